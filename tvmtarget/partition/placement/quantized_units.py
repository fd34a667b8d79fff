"""Quantized units: operations with the dequantization of their operands and the quantization of their results.

A model with QuantizeLinear and DequantizeLinear computes in float between the two, so that a cut inside of a unit
copies floats where one beside it copies quantized values, a quarter of the bytes or less. ONNX Runtime calls the same
groups node units (`core/framework/node_unit.h`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tvmtarget.ir.function import Call, kind_of_op
from tvmtarget.partition.dequantization import DEQUANTIZE
from tvmtarget.partition.flat_program import FlatProgram

__all__ = ["followed_ops", "has_quantized_units", "joined_units"]

_QUANTIZE = frozenset({"QuantizeLinear", "relax.quantize"})

# What only moves or selects elements: its result is a float copy of quantized values if its operand is one.
_MOVES = frozenset({"DepthToSpace", "Flatten", "Identity", "MaxPool", "Reshape", "Slice", "SpaceToDepth"}) | {
    "Squeeze",
    "Transpose",
    "Unsqueeze",
}
# Element by element, as fused into the operation before by code generators for quantized models.
_ACTIVATIONS = frozenset({"Celu", "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu"}) | {
    "Relu",
    "Selu",
    "Sigmoid",
    "Softplus",
    "Tanh",
    "ThresholdedRelu",
}


def followed_ops(program: FlatProgram, calls: Sequence[int]) -> dict[int, int]:
    """Return which operation each part of a quantized unit follows.

    DequantizeLinear follows its only reader, and QuantizeLinear with constant scales what it quantizes. So do
    operations between that only move elements, and activations before a quantization. What follows has a single reader,
    or a single computed operand: merging it with the operation that it follows creates no cycle.

    Args:
        program: the program.
        calls: operations of one body.

    Returns:
        The followed operation by the number of the one that follows.
    """
    found: dict[int, int] = {}
    if not has_quantized_units(program):
        return found
    inside = frozenset(calls)

    def follow(index: int, other: int | None) -> bool:
        """Let one operation follow another one that does not follow it already."""
        if other is None or other not in inside or index in found or {index, other} & program.bodies.keys():
            return False
        if program.is_boundary(*sorted((index, other))):
            return False
        end = other
        while end in found:
            end = found[end]
        if end == index:
            return False
        found[index] = other
        return True

    for index in calls:
        if program.body[index].kind in DEQUANTIZE:
            reader = _only_reader(program, index)
            while follow(index, reader) and reader is not None and program.body[reader].kind in _MOVES:
                index, reader = reader, _only_reader(program, reader)
                if reader is None or program.body[reader].kind in _QUANTIZE:
                    break
    for index in calls:
        call = program.body[index]
        if call.kind in _QUANTIZE and _has_one_computed_operand(program, call):
            producer = program.producer.get(call.inputs[0])
            while follow(index, producer) and producer is not None and _is_only_quantized(program, producer, found):
                index, producer = producer, program.producer.get(program.body[producer].inputs[0])
    return found


def has_quantized_units(program: FlatProgram) -> bool:
    """Return whether a program may have quantized units.

    Args:
        program: the program.

    Returns:
        False if no operation quantizes or dequantizes.
    """
    return any(kind_of_op(op) in DEQUANTIZE | _QUANTIZE for op in program.function.ops)


def _only_reader(program: FlatProgram, index: int) -> int | None:
    """Return the operation that alone reads the only result of one; None if there is none."""
    outputs = [output.name for output in program.body[index].outputs if output.name]
    readers = program.consumers.get(outputs[0], ()) if len(outputs) == 1 else ()
    return readers[0] if len(readers) == 1 and outputs[0] not in program.results else None


def _has_one_computed_operand(program: FlatProgram, call: Call) -> bool:
    return all(name in program.constants for name in call.inputs[1:] if name)


def _is_only_quantized(program: FlatProgram, index: int, followed: Mapping[int, int]) -> bool:
    """Whether an operation moves elements or is an activation, and only quantizations read what it computes."""
    call = program.body[index]
    if call.kind not in _MOVES | _ACTIVATIONS or not _has_one_computed_operand(program, call):
        return False
    name = call.outputs[0].name
    return name not in program.results and all(followed.get(one) == index for one in program.consumers.get(name, ()))


def joined_units(
    atoms: Sequence[tuple[int, ...]], followed: Mapping[int, int], may_join: Callable[[tuple[int, ...], int], bool]
) -> list[tuple[int, ...]]:
    """Merge the atoms of each quantized unit, as far as they may be one atom.

    Args:
        atoms: disjoint groups of operations of one body.
        followed: what `followed_ops` returns for the body.
        may_join: whether operations may be one atom that goes where an operation of them goes.

    Returns:
        The atoms in order of their first operation.
    """
    atom_of = {index: atom for atom in atoms for index in atom}
    followers: dict[int, list[int]] = {}
    for index, other in followed.items():
        followers.setdefault(other, []).append(index)
    joined: dict[int, tuple[int, ...]] = {}
    for center in (other for other in followers if other not in followed):
        unit = atom_of[center]
        # Nearest first, so that what an operation follows is known to be in the unit or not.
        for index in _nearest_first(followers, center):
            is_free = len(atom_of[index]) == 1 and followed[index] in unit
            if is_free and may_join(grown := tuple(sorted((*unit, index))), center):
                unit = grown
        joined |= dict.fromkeys(unit, unit)
    units = dict.fromkeys(joined.get(atom[0], atom) for atom in atoms)
    return sorted(units)


def _nearest_first(followers: dict[int, list[int]], center: int) -> Iterator[int]:
    found: Iterable[int] = [center]
    while found:
        found = sorted(index for one in found for index in followers.get(one, ()))
        yield from found
