"""Boundary refinement: move atoms between subgraphs of their site so that fewer bytes pass between subgraphs.

A local search in the manner of Kernighan and Lin (1970) and Fiduccia and Mattheyses (1982), with single moves that must
reduce the bytes at once. An atom moves only to the earliest or the latest subgraph that its neighbours allow, so the
order of subgraphs stays topological and their number never grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import chain

import numpy as np

from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.subgraphs.typed_fusion import LabeledGraph
from tvmtarget.partition.values import Values

__all__ = ["BoundaryRefinement"]

# Passes over all atoms, alternately backwards and forwards.
SWEEPS = 2


class BoundaryRefinement:
    """Local search over the subgraphs of a labeled graph; one instance serves several starting points."""

    def __init__(self, labeled: LabeledGraph, values: Values) -> None:
        """Prepare a search.

        Args:
            labeled: graph of atoms without cycles.
            values: values that pass between the atoms.
        """
        self.graph = labeled.graph
        self.labels = labeled.labels
        self.values = values

    @cached_property
    def reads(self) -> list[list[int]]:
        """Values that every atom reads."""
        return self.values.read_by(len(self.graph))

    @cached_property
    def makes(self) -> list[list[int]]:
        """Values that every atom computes."""
        return self.values.produced_by(len(self.graph))

    @cached_property
    def is_read_once(self) -> list[bool]:
        """Whether a single atom reads each value."""
        return [len(readers) == 1 for readers in self.values.readers_of]

    def refine(self, subgraphs: Sequence[Sequence[int]]) -> list[list[int]]:
        """Move atoms between subgraphs until no single move reduces the bytes, or for two sweeps.

        Args:
            subgraphs: subgraphs of one label each, in execution order.

        Returns:
            The subgraphs in the same order, without those that become empty.
        """
        positions = _Positions(self, subgraphs)
        for sweep in range(SWEEPS):
            if not positions.sweep(1 if sweep % 2 else -1):
                break
        return positions.subgraphs()


class _Positions:
    """The position of the subgraph of every atom in the execution order; -1 for values that no atom computes."""

    def __init__(self, refinement: BoundaryRefinement, subgraphs: Sequence[Sequence[int]]) -> None:
        self.refinement = refinement
        self.label_of = [refinement.labels[subgraph[0]] for subgraph in subgraphs]
        # One entry more than atoms: producer -1 of a value indexes the last entry, which stays -1.
        self.position = [-1] * (len(refinement.graph) + 1)
        for number, subgraph in enumerate(subgraphs):
            for vertex in subgraph:
                self.position[vertex] = number
        self._counts: list[dict[int, int] | None] = [None] * len(refinement.values.producers)
        self._moves = 1
        self._changed = [1] * len(refinement.values.producers)  # last move of an atom that computes or reads a value
        self._visited = [0] * len(refinement.graph)  # number of moves made when an atom was last examined

    def sweep(self, step: int) -> bool:
        """Improve every movable atom once, in ascending (`step` 1) or descending order (-1).

        Neighbours of a moved atom that come later in the sweep are examined again.

        Returns:
            Whether any atom moved.
        """
        before, after = self.refinement.graph.transposed.successors, self.refinement.graph.successors
        waiting = [step * vertex for vertex in self._movable() if self._is_changed(vertex)]
        heapify(waiting)
        last, is_moved = -len(self.position), False
        while waiting:
            at = heappop(waiting)
            if at == last:
                continue
            last = at
            is_better = self._improve(step * at)
            self._visited[step * at] = self._moves
            if not is_better:
                continue
            is_moved = True
            for other in chain(before[step * at], after[step * at]):
                if step * other > at:
                    heappush(waiting, step * other)
        return is_moved

    def _is_changed(self, vertex: int) -> bool:
        """Whether a producer or reader of a value of the atom moved since the atom was last examined."""
        visited, changed = self._visited[vertex], self._changed
        return any(
            changed[value] > visited for value in (*self.refinement.reads[vertex], *self.refinement.makes[vertex])
        )

    def _movable(self) -> Iterable[int]:
        """Return the atoms that could move to another subgraph while all others stay."""
        position, labels = np.array(self.position[:-1], dtype=np.int64), np.array(self.refinement.labels)
        first, last = self._bounds(position)
        label_of = np.array(self.label_of, dtype=np.int64)
        is_movable = np.zeros(len(position), dtype=np.bool_)
        for bound in (first, last):
            is_movable |= (bound != position) & (label_of[bound] == labels)
        found: list[int] = np.flatnonzero(is_movable).tolist()
        return found

    def _bounds(self, position: Ints) -> tuple[Ints, Ints]:
        """Return the earliest and latest position of every atom; its own position where nothing bounds it."""
        graph = self.refinement.graph
        first, last = np.full_like(position, -1), np.full_like(position, len(self.label_of))
        np.maximum.at(first, graph.ends, position[graph.starts])
        np.minimum.at(last, graph.starts, position[graph.ends])
        return np.where(first < 0, position, first), np.where(last == len(self.label_of), position, last)

    def _improve(self, vertex: int) -> bool:
        """Move one atom to its earliest or latest subgraph if that reduces the bytes; return whether it moved."""
        position, refinement = self.position, self.refinement
        here, label = position[vertex], refinement.labels[vertex]
        before, after = refinement.graph.transposed.successors[vertex], refinement.graph.successors[vertex]
        first = max([position[other] for other in before]) if before else here
        last = min([position[other] for other in after]) if after else here
        # Only the two ends of the range are tried: bytes rarely fall in between, and it may be long.
        if first == here or self.label_of[first] != label:
            first = last
        elif last == here or self.label_of[last] != label:
            last = first
        if first == here or self.label_of[first] != label:
            return False
        passing = self._passing(vertex, here, 1)
        best, gain = first, passing - self._passing(vertex, first, 0)
        if last != first:
            other = passing - self._passing(vertex, last, 0)
            if other > gain:
                best, gain = last, other
        if gain <= 0:
            return False
        self._moves += 1
        for value in refinement.reads[vertex]:
            self._changed[value] = self._moves
            if not refinement.is_read_once[value]:
                counts = self._counts[value] or self._counted(value)
                counts[here] -= 1
                counts[best] = counts.get(best, 0) + 1
        for value in refinement.makes[vertex]:
            self._changed[value] = self._moves
        position[vertex] = best
        return True

    def _passing(self, vertex: int, there: int, own: int) -> int:
        """Return the bytes that pass between subgraphs because of the position of one atom.

        Args:
            vertex: the atom.
            there: position for which to count.
            own: how often the atom itself is counted as a reader there: 1 for its current position, else 0.
        """
        refinement, position, found, passing = self.refinement, self.position, self._counts, 0
        values, is_read_once = refinement.values, refinement.is_read_once
        makers, sizes = values.producers, values.sizes
        for value in refinement.reads[vertex]:
            if position[makers[value]] == there:
                continue
            if is_read_once[value] or (found[value] or self._counted(value)).get(there, 0) == own:
                passing += sizes[value]
        # A value that the atom computes is not copied to readers in its own subgraph.
        for value in refinement.makes[vertex]:
            if is_read_once[value]:
                passing -= sizes[value] if position[values.readers_of[value][0]] == there else 0
            elif (found[value] or self._counted(value)).get(there):
                passing -= sizes[value]
        return passing

    def _counted(self, value: int) -> dict[int, int]:
        """Count the readers of a value by subgraph; `_improve` keeps the counts up to date from then on."""
        counts: dict[int, int] = {}
        for reader in self.refinement.values.readers_of[value]:
            there = self.position[reader]
            counts[there] = counts.get(there, 0) + 1
        self._counts[value] = counts
        return counts

    def subgraphs(self) -> list[list[int]]:
        """Return the subgraphs that are not empty."""
        members: list[list[int]] = [[] for _ in self.label_of]
        for vertex, position in enumerate(self.position[:-1]):
            members[position].append(vertex)
        return [subgraph for subgraph in members if subgraph]
