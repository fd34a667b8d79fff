"""Atoms: the smallest groups of operations that the assignment may not divide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tvmtarget.ir.inline import Frame
from tvmtarget.partition.control.scopes import Scope
from tvmtarget.partition.flat_program import FlatProgram, atomic_call, binds_readers
from tvmtarget.partition.placement.pattern_groups import PatternGroup

__all__ = ["atoms_of", "call_groups", "untyped"]


def call_groups(calls: Iterable[int], frames: tuple[tuple[Frame, ...], ...], path: str) -> list[tuple[int, ...]]:
    """Group operations by the inlined calls that must not be divided at a node.

    Args:
        calls: operations.
        frames: the inlined calls around each operation.
        path: the path of the node.

    Returns:
        The groups in order of their first operation.
    """
    groups: dict[object, list[int]] = {}
    for index in calls:
        ordinal = atomic_call(frames[index], path)
        groups.setdefault(("op", index) if ordinal is None else ("call", ordinal), []).append(index)
    return [tuple(members) for members in groups.values()]


def atoms_of(
    program: FlatProgram, groups: Mapping[int, PatternGroup], calls: tuple[int, ...], path: str
) -> list[tuple[int, ...]]:
    """Group operations that must stay together at a node.

    Operations are in one atom if they are in one call of a constrained function, in one matched or atomic group, or at
    both ends of a value that no function can return.

    Args:
        program: the program.
        groups: the matched group of each operation that is in one.
        calls: operations of one body.
        path: the path of the node.

    Returns:
        The atoms in order of their first operation.
    """
    if (
        not groups
        and not program.atomic
        and not program.has_binding_values
        and not any(program.frames[index] for index in calls)
    ):
        return [(index,) for index in calls]
    leader = {index: members[0] for members in call_groups(calls, program.frames, path) for index in members}
    joined = {first: first for first in leader.values()}

    def find(first: int) -> int:
        while joined[first] != first:
            first = joined[first]
        return first

    def join(one: int, other: int) -> None:
        if one in leader and other in leader:
            a, b = sorted((find(leader[one]), find(leader[other])))
            joined[b] = a

    for members in program.atomic:
        for index in members[1:]:
            join(members[0], index)
    for index in calls:
        if index in groups:
            join(index, groups[index].calls[0])
        for output in program.body[index].outputs:
            readers = program.consumers.get(output.name, ()) if binds_readers(output.type) else ()
            for reader in readers:
                join(index, reader)
    atoms: dict[int, list[int]] = {}
    for index in calls:
        atoms.setdefault(find(leader[index]), []).append(index)
    return [tuple(members) for members in atoms.values()]


def untyped(program: FlatProgram, scope: Scope) -> Iterator[str]:
    """Yield values of unknown type that enter or leave a nested body and are used or computed there.

    Args:
        program: the program.
        scope: the nested body.

    Yields:
        Names of values.
    """
    for param in scope.function.params:
        if param.type is None and param.name in program.consumers:
            yield param.name
    for name in scope.function.results:
        if program.types[name] is None and program.producer.get(name) in scope.calls:
            yield name
