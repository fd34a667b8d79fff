"""Opaque TIR functions of a module split into host functions and kernels, by TVM's own passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvmtarget.errors import ModelError
from tvmtarget.ir.function import Function, Value
from tvmtarget.ir.relax.code import code_function, symbols_of, with_code
from tvmtarget.ir.types import DTYPES, TensorType, Type
from tvmtarget.partition.host_device.attributes import as_device, as_host
from tvmtarget.partition.host_device.tir import callees_of_prim, side_of_prim, split_tir, the_tvm
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.layout import Layout, Site

__all__ = ["function_of", "prim_of", "split_code"]

TVM = "tvm"  # the kind of opaque code that is TVM's JSON


def prim_of(function: Function) -> Any:  # noqa: ANN401 - TVM ships no types
    """Return the PrimFunc that an opaque function consists of; `ModelError` if it is something else."""
    tvm, code = the_tvm(), function.code
    if code is None or code.kind != TVM:
        raise ModelError(f"function {function.name!r} is no TIR that TVM wrote, so that it cannot be split")
    try:
        prim = tvm.ir.load_json(code.data.decode())
    except Exception as error:  # whatever TVM raises for a text that is none of its own
        raise ModelError(f"the code of function {function.name!r} is not TVM's JSON") from error
    if not isinstance(prim, tvm.tirx.PrimFunc):
        raise ModelError(f"function {function.name!r} is a {type(prim).__name__}, which TVM does not split")
    return prim


def function_of(
    name: str,
    prim: Any,  # noqa: ANN401
    constraint: Constraint | None = None,
    symbols: Mapping[str, str] | None = None,
) -> Function:
    """Return an opaque function for a PrimFunc; it writes through its parameters, and so has an effect.

    `symbols` are the functions that it can launch, by their symbols.
    """
    params = tuple(Value(str(param.name), _type(param.ty)) for param in prim.params)
    return code_function(name, prim, params, (), symbols or {}, has_effect=True).replace(constraint=constraint)


def split_code(functions: Sequence[Function], helpers: Mapping[str, Function], layout: Layout) -> tuple[Function, ...]:
    """Split opaque TIR functions on devices; those of one device in one go, with the `helpers` that they call.

    Helpers are functions without a constraint: they get that of the code that calls them. The host function keeps name
    and signature, and launches its kernels by name. `ModelError` for a helper that code of two devices calls.
    """
    by_site: dict[str, dict[str, Function]] = {}
    for function in functions:
        path = function.constraint.path if function.constraint is not None else None
        by_site.setdefault(layout.canonical(path or ""), {})[function.name] = function
    owner: dict[str, str] = {}
    made: list[Function] = []
    for path, ones in sorted(by_site.items()):
        prims = _with_helpers(ones, helpers)
        for name in sorted(prims.keys() - ones.keys()):
            if owner.setdefault(name, path) != path:
                raise ModelError(
                    f"function {name!r} is called by code for @{owner[name]} and for @{path}; make a copy for each"
                )
        made += _split(prims, ones | dict(helpers), layout, layout[path])
    return tuple(made)


def _with_helpers(functions: Mapping[str, Function], helpers: Mapping[str, Function]) -> dict[str, Any]:
    prims: dict[str, Any] = {}
    waiting = list(functions.values())
    while waiting:
        function = waiting.pop()
        if function.name not in prims:
            prims[function.name] = prim_of(function)
            waiting += [helpers[name] for name in callees_of_prim(prims[function.name]) if name in helpers]
    return prims


def _split(prims: Mapping[str, Any], old: Mapping[str, Function], layout: Layout, site: Site) -> list[Function]:
    tvm = the_tvm()
    module = tvm.IRModule({tvm.ir.GlobalVar(name): prim for name, prim in sorted(prims.items())})
    host = layout[site.host].target.replace(name=None, host=None, count=1)
    split = split_tir(module, site.target.replace(name=None, count=1, host=host))
    symbols = symbols_of({str(var.name_hint): prim for var, prim in split.functions.items()})
    made: list[Function] = []
    for var in sorted(split.functions.keys(), key=lambda var: str(var.name_hint)):
        name, prim = str(var.name_hint), split[var]
        function = with_code(old[name], prim, symbols) if name in old else function_of(name, prim, symbols=symbols)
        if side_of_prim(prim) == "device":
            made.append(as_device(function.replace(constraint=Constraint.at(site.path))))
        else:
            made.append(as_host(function, site.host, site.path))
    return made


def _type(type_: Any) -> Type:  # noqa: ANN401
    """Return the type of a parameter as far as it has one here: buffers of known shape and scalars."""
    dtype = str(getattr(type_, "dtype", ""))
    if dtype not in DTYPES:
        return None
    shape = [getattr(dim, "value", None) for dim in getattr(type_, "shape", ())]
    return TensorType(dtype, tuple(None if dim is None else int(dim) for dim in shape))
