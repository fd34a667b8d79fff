"""Programs after an edit of few operations that leaves alone who reads whom: what is known of the others stays.

Such an edit changes operators, attributes, names of operations or the data of constants. `program_after` recognises it
by the identity of operations, which are frozen, and gives up wherever normalising the whole program might do more than
put the new operations in place of the old ones. The result is the program that `normalised` would return. A program
that is read again has other objects, of which `with_known_calls` exchanges those that are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import is_

from tvmtarget.ir.function import Call, Constant, Function, changed_places
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.dequantization import DEQUANTIZE
from tvmtarget.partition.flat_program import BodyEdit, FlatProgram
from tvmtarget.partition.options import PartitionOptions
from tvmtarget.partition.outline.deduplicate import same_data
from tvmtarget.partition.placement.where_rules import NamePatterns, names_of

__all__ = ["changed_ops", "program_after", "with_known_calls"]

# Operations whose results may be known of types alone, so that they are folded into constants.
_OF_TYPES = frozenset({"onnx.Shape", "onnx.Size"})


def with_known_calls(function: Function, before: Function) -> Function:
    """Return a function with the operations and constants of another one where they are equal.

    Args:
        function: the function.
        before: the other function; its operations correspond to those of `function` by position.

    Returns:
        An equal function; the same one where the numbers of operations or constants differ.
    """
    if len(function.body) != len(before.body) or len(function.constants) != len(before.constants):
        return function
    calls = list(function.body)
    for at in changed_places(before.body, calls):
        if _is_equal(before.body[at], calls[at]):
            calls[at] = before.body[at]
    constants = zip(before.constants, function.constants, strict=True)
    return function.replace(
        body=tuple(calls),
        constants=tuple(
            old if (old.name, old.type) == (new.name, new.type) and same_data(old, new) else new
            for old, new in constants
        ),
    )


def _is_equal(old: Call, new: Call) -> bool:
    return old == new and not new.regions and (not new.attrs or _are_identical(old.attrs, new.attrs))


def _are_identical(one: object, other: object) -> bool:
    """Compare attributes; 1, 1.0 and True are equal in Python, but are not one attribute."""
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_are_identical, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one.hex() == other.hex()  # 0.0 equals -0.0
    return one == other


def program_after(
    program: FlatProgram, before: Function, after: Function, options: PartitionOptions
) -> FlatProgram | None:
    """Return the flat program of an edited function.

    Args:
        program: the flat program of the function before the edit.
        before: the entry before the edit.
        after: the entry after it, in a module whose other functions are the same ones.
        options: the options that both programs are normalised with.

    Returns:
        The flat program; None if the edit may change more than single operations.
    """
    if len(before.body) != len(after.body) or not _is_plain(program, before):
        return None
    parts = ("name", "params", "results", "opsets", "attrs", "constraint")
    if any(getattr(before, part) != getattr(after, part) for part in parts):
        return None
    constants = {constant.name: constant for constant in after.constants}
    if not _are_exchangeable(program, constants):
        return None
    # Its operations are those of the function.
    edit = BodyEdit(program.body, after.body, changed_places(program.body, after.body))
    pairs = [(before.body[at], after.body[at]) for at in edit.places]
    if not all(_is_local(old, new, program, options) for old, new in pairs) or not _keeps_names(pairs, program):
        return None
    # Mostly normalisation changed nothing; then the function is the same one, which was looked at before.
    is_same = all(getattr(program.function, part) == getattr(before, part) for part in parts)
    function = after if is_same else program.function.replace(body=after.body, constants=after.constants)
    (scope,) = program.scopes
    scopes = (replace(scope, function=function),)
    return replace(program, function=function, scopes=scopes, body=after.body, constants=constants, edit=edit)


def changed_ops(before: FlatProgram, after: FlatProgram) -> Iterator[int]:
    """Yield the operations that an edit changed, and those that read a constant that it changed.

    Args:
        before: the program before.
        after: what `program_after` made of it.

    Yields:
        Numbers of operations; one may occur several times.
    """
    yield from after.changed_since(before.body)
    for name, constant in after.constants.items():
        if before.constants[name] is not constant:
            yield from after.consumers.get(name, ())


def _is_plain(program: FlatProgram, function: Function) -> bool:
    """Whether normalising a function of ONNX operations changed nothing in it, and folding cannot find anything."""
    dims = (dim for param in function.params if isinstance(param.type, TensorType) for dim in param.type.shape or ())
    return (
        len(program.scopes) == 1
        and not program.folded
        and not any(program.frames)
        and len(program.body) == len(function.body)
        and all(map(is_, program.body, function.body))
        and all(op.startswith("onnx.") for op in function.ops)
        and function.ops.isdisjoint(_OF_TYPES)
        and not any(isinstance(dim, str) for dim in dims)
        and not (program.imported_matches or program.imported_generators)
    )


def _are_exchangeable(program: FlatProgram, after: Mapping[str, Constant]) -> bool:
    """Whether constants agree with those before in name and type, and no others follow from the data that changed."""
    if [*program.constants] != [*after]:
        return False
    changed = [(program.constants[name], constant) for name, constant in after.items()]
    changed = [(old, new) for old, new in changed if old is not new]
    readers = (program.body[index] for _, new in changed for index in program.consumers.get(new.name, ()))
    # Integers may be sizes, which types follow from.
    has_same_types = all(old.type == new.type and "float" in new.type.dtype for old, new in changed)
    return has_same_types and not any(_reads_constants_only(call, program) for call in readers)


def _reads_constants_only(call: Call, program: FlatProgram) -> bool:
    """Whether all operands are constants, so that the operation may be folded."""
    return all(name in program.constants for name in call.inputs if name)


def _is_local(old: Call, new: Call, program: FlatProgram, options: PartitionOptions) -> bool:
    """Whether normalisation puts one operation in place of another, and no rule tells them apart."""
    parts = ("inputs", "outputs", "regions", "constraint", "has_effect")
    if any(getattr(old, part) != getattr(new, part) for part in parts) or new.regions:
        return False
    if not new.op.startswith("onnx.") or new.op in _OF_TYPES or {old.kind, new.kind} & DEQUANTIZE:
        return False
    if _reads_constants_only(new, program):
        return False
    if not options.where and not options.named_ops:
        return True
    patterns = NamePatterns((*options.where, *options.named_ops))
    return patterns.matching(names_of(old)) == patterns.matching(names_of(new))


def _keeps_names(pairs: list[tuple[Call, Call]], program: FlatProgram) -> bool:
    """Whether operations still have names, each its own."""
    renamed = [new.source for old, new in pairs if old.source != new.source]
    if not renamed:
        return True
    sources = {call.source for call in program.body}
    return "" not in renamed and len(set(renamed)) == len(renamed) and sources.isdisjoint(renamed)
