"""The workload of a function: its structure without names, places and marks.

The structure is that of `ir/structure.py`, in which names, sources and the order of independent calls do not matter,
without constraints, memory scopes, the marks that compilers write, and the elements of weights (constants of
floating-point numbers). The sizes of its tensors stand apart in `shapes`, so that the workloads of a family have the
same structure and other sizes; the sizes of functions that it calls stay in the structure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import cast

from tvmtarget.autotune.log.records import Level, Workload
from tvmtarget.errors import ModelError, raise_all
from tvmtarget.ir.function import Function, callees_of
from tvmtarget.ir.structure import structure_of
from tvmtarget.target.keys import key_of

__all__ = ["shapeless", "workload_of"]

_CONTAINERS = ("sequence", "optional", "sparse", "map")  # types whose last part is another type


def workload_of(
    function: Function, level: Level = "kernel", *, callees: Mapping[str, Function] | None = None
) -> Workload:
    """Return the workload of a function.

    Args:
        function: the function.
        level: the level at which it is tuned.
        callees: the functions of its module by name.

    Returns:
        The workload, without a payload.
    """
    structure, shapes = shapeless(function, callees or {})
    ops = Counter(call.op if call.callee is None else "@" for call in function.body)
    return Workload.of({"structure": key_of("st2", structure), "ops": dict(ops), "shapes": shapes}, level)


def shapeless(function: Function, callees: Mapping[str, Function]) -> tuple[dict[str, object], list[object]]:
    """Return the structure of a function without sizes, and the sizes.

    Args:
        function: the function.
        callees: the functions of its module by name.

    Returns:
        The JSON whose digest is `structure` of the workload, and the shapes in their order.
    """
    functions = {name: callee if callee.name == name else callee.replace(name=name) for name, callee in callees.items()}
    needed = {name for one in (function, *functions.values()) for name in callees_of(one)}
    raise_all(
        ModelError,
        [f"the workload calls '@{name}', which is not given in `callees`" for name in sorted(needed - {*functions})],
    )
    structure = structure_of(function, functions, weights=False, marks=False)
    shapes: list[object] = []
    _take_shapes(structure, shapes)
    return structure, shapes


def _take_shapes(function: dict[str, object], shapes: list[object]) -> None:
    """Move the sizes in the types of a function's structure to `shapes`; the ranks stay."""
    _take_from(function["params"], shapes)
    for call in cast("list[dict[str, object]]", function["calls"]):
        _take_from(call["outputs"], shapes)
        for _, region in cast("list[tuple[str, dict[str, object]]]", call.get("regions", [])):
            _take_shapes(region, shapes)
    _take_from(function["constants"], shapes)


def _take_from(typed: object, shapes: list[object]) -> None:
    for entry in cast("Iterable[list[object]]", typed):
        entry[0] = _sizeless(entry[0], shapes)


def _sizeless(type_: object, shapes: list[object]) -> object:
    match type_:
        case [str() as kind, *rest, inner] if kind in _CONTAINERS:
            return [kind, *rest, _sizeless(inner, shapes)]
        case [str() as dtype, [*dims]]:
            shapes.append(["?" if dim is None else dim for dim in dims])
            return [dtype, len(dims)]
        case _:
            return type_
