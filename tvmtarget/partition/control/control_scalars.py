"""Operations on single numbers that only decide how control flow goes on."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tvmtarget.ir.types import TensorType, Type
from tvmtarget.partition.control.control_flow_ops import control_flow_form
from tvmtarget.partition.flat_program import FlatProgram

__all__ = ["control_scalars_of"]

# How many of its first operands a driver reads to run an operation.
_READ = {"branch": 1, "loop": 2, "scan": 0}


def control_scalars_of(program: FlatProgram, calls: Sequence[int], driven: Collection[int]) -> frozenset[int]:
    """Return which of some operations of one body only compute what a driver reads to run control flow.

    `driven` are those of them whose bodies the driver runs. What steers reads and computes single numbers: conditions
    and counts of these, whether a loop that has this body goes on, and what nothing but such operations read.
    """
    scope = program.scope_of(calls[0]) if calls else program.scopes[0]
    form = None if scope.owner is None else control_flow_form(program.body[scope.owner])
    others = scope.function.results[1:] if form is not None and form.kind == "loop" else scope.function.results
    found: set[int] = set()
    for index in sorted(calls, reverse=True):
        call = program.body[index]
        outputs = [output.name for output in call.outputs if output.name]
        if index in program.bodies or call.has_effect or not outputs:
            continue
        if not all(_is_number(program.types.get(name)) for name in (*call.uses(), *outputs)):
            continue
        readers = ((name, reader) for name in outputs for reader in program.consumers.get(name, ()))
        is_kept = any(name in others for name in outputs)
        if not is_kept and all(one in found or _steers(program, name, one, driven) for name, one in readers):
            found.add(index)
    return frozenset(found)


def _steers(program: FlatProgram, name: str, reader: int, driven: Collection[int]) -> bool:
    """Whether a driver reads a value to run an operation, and nothing else of the operation does."""
    call = program.body[reader]
    form = control_flow_form(call)
    if reader not in driven or form is None:
        return False
    count = _READ[form.kind]
    captured = {captured for _, region in call.regions for captured in region.captures()}
    return name in call.inputs[:count] and name not in call.inputs[count:] and name not in captured


def _is_number(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.shape is not None and all(dim == 1 for dim in type_.shape)
