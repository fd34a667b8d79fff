"""Boundaries that the program requires: split subgraphs at forced cuts."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from tvmtarget.partition.flat_program import FlatProgram

__all__ = ["forced_cuts_of", "split_at_cuts"]


def forced_cuts_of(program: FlatProgram, atoms: Sequence[tuple[int, ...]]) -> frozenset[tuple[int, int]]:
    """Find the pairs of atoms that must be in different subgraphs.

    Args:
        program: program with the boundaries that it requires between operations.
        atoms: operations of each atom.

    Returns:
        Pairs of a producer atom and an atom that reads one of its results.
    """
    if not any(program.boundaries):
        return frozenset()
    owner = {index: number for number, atom in enumerate(atoms) for index in atom}
    pairs = ((first, then) for then in owner for first in program.predecessors(then) if first in owner)
    return frozenset((owner[first], owner[then]) for first, then in pairs if program.is_boundary(first, then))


def split_at_cuts(
    subgraph: Sequence[int], successors: Sequence[Sequence[int]], cuts: Container[tuple[int, int]]
) -> Iterator[list[int]]:
    """Split a subgraph so that no forced cut is inside a part.

    An atom is in the part whose number is the largest number of cuts on a path that leads to it.

    Args:
        subgraph: atoms of the subgraph.
        successors: successors of every atom.
        cuts: pairs of atoms to separate.

    Yields:
        Parts as ascending lists of atoms, in execution order.
    """
    inside, step = set(subgraph), dict.fromkeys(subgraph, 0)
    waiting = dict.fromkeys(subgraph, 0)
    for atom in subgraph:
        for target in successors[atom]:
            if target in inside:
                waiting[target] += 1
    ready = [atom for atom in sorted(subgraph) if not waiting[atom]]
    for atom in ready:  # grows while it is read
        for target in successors[atom]:
            if target in inside:
                step[target] = max(step[target], step[atom] + ((atom, target) in cuts))
                waiting[target] -= 1
                if not waiting[target]:
                    ready.append(target)
    parts: list[list[int]] = [[] for _ in range(max(step.values(), default=0) + 1)]
    for atom in sorted(subgraph):
        parts[step[atom]].append(atom)
    yield from parts
