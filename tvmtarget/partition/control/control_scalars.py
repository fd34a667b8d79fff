"""Operations on scalars that only compute conditions and trip counts of control flow."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tvmtarget.ir.control_flow import control_flow_form
from tvmtarget.ir.types import TensorType, Type
from tvmtarget.partition.flat_program import FlatProgram

__all__ = ["control_scalars_of"]

# Number of leading operands that a driver reads itself: the condition of a branch; trip count and condition of a loop.
_CONTROL_OPERANDS = {"branch": 1, "loop": 2, "scan": 0}


def control_scalars_of(program: FlatProgram, calls: Sequence[int], driven: Collection[int]) -> frozenset[int]:
    """Find the operations that only compute scalars which a driver reads to run control flow.

    Such an operation reads and computes scalars, and its results are read only as conditions and trip counts of driven
    operations, as the condition of the loop around it, or by operations of the same sort.

    Args:
        program: the program.
        calls: operations of one region or function, by number.
        driven: those of them whose regions the driver runs.

    Returns:
        The numbers of the operations found.
    """
    scope = program.scope_of(calls[0]) if calls else program.scopes[0]
    form = None if scope.owner is None else control_flow_form(program.body[scope.owner])
    # The first result of a loop body is the condition to go on, which the driver reads.
    data_results = scope.function.results[1:] if form is not None and form.kind == "loop" else scope.function.results
    found: set[int] = set()
    # Backwards, because an operation counts only if all of its readers, which come later, do.
    for index in sorted(calls, reverse=True):
        call = program.body[index]
        outputs = [output.name for output in call.outputs if output.name]
        if index in program.bodies or call.has_effect or not outputs:
            continue
        if not all(_is_scalar(program.types.get(name)) for name in (*call.uses(), *outputs)):
            continue
        readers = ((name, reader) for name in outputs for reader in program.consumers.get(name, ()))
        is_returned = any(name in data_results for name in outputs)
        if not is_returned and all(
            reader in found or _is_control_operand(program, name, reader, driven) for name, reader in readers
        ):
            found.add(index)
    return frozenset(found)


def _is_control_operand(program: FlatProgram, name: str, reader: int, driven: Collection[int]) -> bool:
    """Whether a driver reads a value to run an operation, and nothing inside the operation reads it."""
    call = program.body[reader]
    form = control_flow_form(call)
    if reader not in driven or form is None:
        return False
    count = _CONTROL_OPERANDS[form.kind]
    captured = {captured for _, region in call.regions for captured in region.captures()}
    return name in call.inputs[:count] and name not in call.inputs[count:] and name not in captured


def _is_scalar(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.shape is not None and all(dim == 1 for dim in type_.shape)
