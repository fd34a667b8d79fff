"""Which operations of a mixed function are for the host: the shape and scalar work around what the device computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvmtarget.ir.types import TensorType, Type
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.support.registry import strategy_at
from tvmtarget.support.strategy import Op, Strategy
from tvmtarget.target.topology import Site

__all__ = ["HOST_OPERANDS", "MOST_ELEMENTS", "host_can_compute", "ops_for_host"]

# Elements of a tensor up to which it counts as scalars: shapes, axes, paddings, conditions.
MOST_ELEMENTS = 64

# Operands, by position, that say how to compute and are read before it begins; ONNX's own words on each operator.
HOST_OPERANDS: Mapping[str, tuple[int, ...]] = {
    "CenterCropPad": (1,),
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "Expand": (1,),
    "If": (0,),
    "Loop": (0, 1),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
} | {
    f"Reduce{name}": (1,)
    for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
}

_ASKS_FOR_SHAPES = frozenset({"Shape", "Size"})


def host_can_compute(program: FlatProgram, op: Op, leaf: Site) -> bool:
    """Whether the host of a leaf can compute an operation for it: shape or scalar work beside device code."""
    host = strategy_at(program.topology[leaf.host].target)
    return host is not None and _is_scalar_work(op) and host.check(op) is None


def ops_for_host(
    program: FlatProgram, site: Site, calls: Sequence[int], strategy: Strategy | None, *, is_asked: bool
) -> frozenset[int] | None:
    """Return which operations of a function on a leaf its host computes; None if the function stays as it is.

    `strategy` is that of the leaf. The function is split if another site drives the leaf, and its code generator takes
    device code only, or `is_asked`. The host computes what the device refuses, and what says how device code runs,
    unless that needs a device's results: nothing goes from the device to the host and back for the shape of a tensor.
    """
    if site.host == site.path or strategy is None or not (is_asked or strategy.takes == "device"):
        return None
    host = strategy_at(program.topology[site.host].target)
    wanted, inside, found = _wanted(program, calls), frozenset(calls), set[int]()
    for index in calls:
        op = program.op(index)
        if host is None or not _is_scalar_work(op) or host.check(op) is not None:
            continue
        is_free = op.kind not in _ASKS_FOR_SHAPES and all(
            before in found for before in program.predecessors(index) if before in inside
        )
        if (index in wanted and is_free) or strategy.check(op) is not None:
            found.add(index)
    return frozenset(found)


def _wanted(program: FlatProgram, calls: Sequence[int]) -> frozenset[int]:
    """Return the operations whose results, directly or through others of these, only say how to compute."""
    inside, results, wanted = frozenset(calls), program.results, set[int]()
    for index in reversed(calls):
        readers = [
            (reader, name)
            for output in program.body[index].outputs
            for reader in program.consumers.get(output.name, ())
            for name in (output.name,)
        ]
        is_result = any(output.name in results for output in program.body[index].outputs)
        if readers and not is_result and all(_only_says_how(program, *one, inside, wanted) for one in readers):
            wanted.add(index)
    return frozenset(wanted)


def _only_says_how(program: FlatProgram, reader: int, name: str, inside: frozenset[int], wanted: set[int]) -> bool:
    call = program.body[reader]
    if reader not in inside:
        return False
    positions = {position for position, operand in enumerate(call.inputs) if operand == name}
    return reader in wanted or (bool(positions) and positions <= set(HOST_OPERANDS.get(call.kind, ())))


def _is_scalar_work(op: Op) -> bool:
    if op.call.has_effect or not all(map(_is_scalars, op.outputs)) or not all(map(_is_scalar_work, op.nested())):
        return False
    given = (type_ for name, type_ in zip(op.call.inputs, op.inputs, strict=True) if name)
    return op.kind in _ASKS_FOR_SHAPES or all(map(_is_scalars, given))


def _is_scalars(type_: Type) -> bool:
    if not isinstance(type_, TensorType) or type_.shape is None or len(type_.shape) > 1:
        return False
    return all(isinstance(dim, int) and dim <= MOST_ELEMENTS for dim in type_.shape)
