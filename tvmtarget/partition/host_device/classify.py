"""Find the operations of a mixed function that run on the host: shape and scalar computations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvmtarget.ir.types import TensorType, Type
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.support.registry import strategy_at
from tvmtarget.support.strategy import Op, Strategy
from tvmtarget.target.topology import Site

__all__ = ["HOST_OPERANDS", "MOST_ELEMENTS", "host_can_compute", "ops_for_host"]

# Largest number of elements of a tensor that counts as scalars: shapes, axes, paddings, conditions.
MOST_ELEMENTS = 64

# Operands, by position, that configure an operator and are read before it starts; from the ONNX operator specification.
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

_SHAPE_QUERIES = frozenset({"Shape", "Size"})


def host_can_compute(program: FlatProgram, op: Op, leaf: Site) -> bool:
    """Return whether an operation is shape or scalar work that the host of a leaf supports.

    Args:
        program: the program.
        op: the operation.
        leaf: the device.

    Returns:
        Whether the host can run it for the device.
    """
    host = strategy_at(program.topology[leaf.host].target)
    return host is not None and _is_scalar_work(op) and host.check(op) is None


def ops_for_host(
    program: FlatProgram, site: Site, calls: Sequence[int], strategy: Strategy | None, *, always: bool
) -> frozenset[int] | None:
    """Choose the operations of a mixed function that its host runs.

    The host runs the shape and scalar work that the device does not support, and operations that only configure device
    code, unless these need results of the device: no value goes to the host and back for the shape of a tensor.

    Args:
        program: the program.
        site: the device.
        calls: operations of the function, by number.
        strategy: operator support of the device; None if unknown.
        always: split every mixed function, not only those of code generators that take device code only.

    Returns:
        Numbers of operations; None if the function is not split.
    """
    if site.host == site.path or strategy is None or not (always or strategy.accepts == "device"):
        return None
    host = strategy_at(program.topology[site.host].target)
    configuring, inside, found = _configuring_ops(program, calls), frozenset(calls), set[int]()
    for index in calls:
        op = program.op(index)
        if host is None or not _is_scalar_work(op) or host.check(op) is not None:
            continue
        needs_no_device = op.kind not in _SHAPE_QUERIES and all(
            before in found for before in program.predecessors(index) if before in inside
        )
        if (index in configuring and needs_no_device) or strategy.check(op) is not None:
            found.add(index)
    return frozenset(found)


def _configuring_ops(program: FlatProgram, calls: Sequence[int]) -> frozenset[int]:
    """Return the operations whose results only configure others, directly or through other such operations."""
    inside, results, found = frozenset(calls), program.results, set[int]()
    for index in reversed(calls):
        readers = [
            (reader, name)
            for output in program.body[index].outputs
            for reader in program.consumers.get(output.name, ())
            for name in (output.name,)
        ]
        is_result = any(output.name in results for output in program.body[index].outputs)
        if readers and not is_result and all(_only_configures(program, *one, inside, found) for one in readers):
            found.add(index)
    return frozenset(found)


def _only_configures(program: FlatProgram, reader: int, name: str, inside: frozenset[int], found: set[int]) -> bool:
    """Whether an operation reads a value only as configuration, or its own results only configure others."""
    call = program.body[reader]
    if reader not in inside:
        return False
    positions = {position for position, operand in enumerate(call.inputs) if operand == name}
    return reader in found or (bool(positions) and positions <= set(HOST_OPERANDS.get(call.kind, ())))


def _is_scalar_work(op: Op) -> bool:
    if op.call.has_effect or not all(map(_is_scalars, op.outputs)) or not all(map(_is_scalar_work, op.nested())):
        return False
    input_types = (type_ for name, type_ in zip(op.call.inputs, op.inputs, strict=True) if name)
    return op.kind in _SHAPE_QUERIES or all(map(_is_scalars, input_types))


def _is_scalars(type_: Type) -> bool:
    if not isinstance(type_, TensorType) or type_.shape is None or len(type_.shape) > 1:
        return False
    return all(isinstance(dim, int) and dim <= MOST_ELEMENTS for dim in type_.shape)
