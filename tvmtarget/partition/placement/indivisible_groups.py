"""Atoms: the smallest groups of operations that the assignment may not divide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tvmtarget.ir.inline import Frame
from tvmtarget.partition.control.scopes import Scope
from tvmtarget.partition.flat_program import FlatProgram, atomic_call, binds_readers
from tvmtarget.partition.placement.pattern_groups import PatternGroup
from tvmtarget.union_find import UnionFind

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
    sets = UnionFind(calls)
    for members in (*call_groups(calls, program.frames, path), *program.atomic):
        _unite(sets, members)
    for index in calls:
        if index in groups:
            _unite(sets, (index, groups[index].calls[0]))
        for output in program.body[index].outputs:
            if binds_readers(output.type):
                _unite(sets, (index, *program.consumers.get(output.name, ())))
    return sets.groups()


def _unite(sets: UnionFind[int], members: Sequence[int]) -> None:
    """Merge the sets of operations, as far as they are among those of the node."""
    for index in members[1:]:
        if members[0] in sets and index in sets:
            sets.union(members[0], index)


def untyped(program: FlatProgram, scope: Scope) -> Iterator[str]:
    """Yield values of unknown type that cross the boundary of a nested body.

    Args:
        program: the program.
        scope: the nested body.

    Yields:
        Names of parameters that are read, and of results that are computed there.
    """
    for param in scope.function.params:
        if param.type is None and param.name in program.consumers:
            yield param.name
    for name in scope.function.results:
        if program.types[name] is None and program.producer.get(name) in scope.calls:
            yield name
