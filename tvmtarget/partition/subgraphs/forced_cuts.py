"""Boundaries that the program requires: pairs of atoms that no subgraph may hold both of."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph, graph_from_edges

__all__ = ["forced_cuts_of", "graph_with_cuts"]


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


def graph_with_cuts(graph: AtomGraph, cuts: Collection[tuple[int, int]]) -> AtomGraph:
    """Put a vertex between the two atoms of every forced cut.

    With a label of its own, such a vertex is on a path between the two that leaves their label, so that no subgraph
    without a cycle holds both.

    Args:
        graph: the graph of atoms.
        cuts: pairs of atoms to separate.

    Returns:
        The graph with the new vertices behind the atoms; the same graph if there are no cuts.
    """
    if not cuts:
        return graph
    firsts, thens = (np.array(ends, dtype=np.int64) for ends in zip(*sorted(cuts), strict=True))
    between = len(graph) + np.arange(len(cuts))
    starts, ends = np.concatenate([graph.starts, firsts, between]), np.concatenate([graph.ends, between, thens])
    return graph_from_edges(len(graph) + len(cuts), starts, ends)
