"""Moving what can run in several subgraphs of its site to the one where fewest bytes pass between subgraphs."""

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

SWEEPS = 2


class BoundaryRefinement:
    """Atoms, what they must come before, and the values that they pass: what moving them needs to know."""

    def __init__(self, labeled: LabeledGraph, values: Values) -> None:
        self.labeled = labeled
        self.graph = labeled.graph
        self.labels = labeled.labels
        self.values = values

    @cached_property
    def reads(self) -> list[list[int]]:
        """The values that every atom reads."""
        return self.values.read_by(len(self.graph))

    @cached_property
    def makes(self) -> list[list[int]]:
        """The values that every atom computes."""
        return self.values.produced_by(len(self.graph))

    @cached_property
    def is_read_once(self) -> list[bool]:
        """Whether a single atom reads each value."""
        return [len(readers) == 1 for readers in self.values.readers_of]

    def refine(self, subgraphs: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return subgraphs in the same order, less those that become empty; every edge stays or points forward."""
        places = _Places(self, subgraphs)
        for sweep in range(SWEEPS):
            if not places.sweep(1 if sweep % 2 else -1):
                break
        return places.subgraphs()


class _Places:
    """In which subgraph every atom is; what no atom computes is in none, -1."""

    def __init__(self, slack: BoundaryRefinement, subgraphs: Sequence[Sequence[int]]) -> None:
        self.slack = slack
        self.label_of = [slack.labels[subgraph[0]] for subgraph in subgraphs]
        self.place = [-1] * (len(slack.graph) + 1)
        for number, subgraph in enumerate(subgraphs):
            for vertex in subgraph:
                self.place[vertex] = number
        self._counts: list[dict[int, int] | None] = [None] * len(slack.values.producers)
        self._moves = 1
        self._changed = [1] * len(slack.values.producers)  # which move was the last of who computes or reads a value
        self._looked = [0] * len(slack.graph)  # after which move an atom was looked at

    def sweep(self, step: int) -> bool:
        """Improve every atom once, by number upwards or downwards; return whether any moved."""
        before, after = self.slack.graph.transposed.successors, self.slack.graph.successors
        waiting = [step * vertex for vertex in self._movable() if self._is_changed(vertex)]
        heapify(waiting)
        last, is_moved = -len(self.place), False
        while waiting:
            at = heappop(waiting)
            if at == last:
                continue
            last = at
            is_better = self._improve(step * at)
            self._looked[step * at] = self._moves
            if not is_better:
                continue
            is_moved = True
            for other in chain(before[step * at], after[step * at]):
                if step * other > at:
                    heappush(waiting, step * other)
        return is_moved

    def _is_changed(self, vertex: int) -> bool:
        """Whether a value of an atom is computed or read elsewhere than when the atom was looked at."""
        looked, changed = self._looked[vertex], self._changed
        return any(changed[value] > looked for value in (*self.slack.reads[vertex], *self.slack.makes[vertex]))

    def _movable(self) -> Iterable[int]:
        """Return the atoms that could be in another subgraph, as the others are."""
        place, labels = np.array(self.place[:-1], dtype=np.int64), np.array(self.slack.labels)
        first, last = self._bounds(place)
        label_of = np.array(self.label_of, dtype=np.int64)
        is_movable = np.zeros(len(place), dtype=np.bool_)
        for bound in (first, last):
            is_movable |= (bound != place) & (label_of[bound] == labels)
        found: list[int] = np.flatnonzero(is_movable).tolist()
        return found

    def _bounds(self, place: Ints) -> tuple[Ints, Ints]:
        """Return the earliest and the latest subgraph that every atom can be in; where it is, if nothing bounds it."""
        graph = self.slack.graph
        first, last = np.full_like(place, -1), np.full_like(place, len(self.label_of))
        np.maximum.at(first, graph.ends, place[graph.starts])
        np.minimum.at(last, graph.starts, place[graph.ends])
        return np.where(first < 0, place, first), np.where(last == len(self.label_of), place, last)

    def _improve(self, vertex: int) -> bool:
        """Move one atom to the earliest or latest subgraph it can be in, if fewer bytes pass then."""
        place, slack = self.place, self.slack
        here, label = place[vertex], slack.labels[vertex]
        before, after = slack.graph.transposed.successors[vertex], slack.graph.successors[vertex]
        first = max([place[other] for other in before]) if before else here
        last = min([place[other] for other in after]) if after else here
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
        for value in slack.reads[vertex]:
            self._changed[value] = self._moves
            if not slack.is_read_once[value]:
                counts = self._counts[value] or self._counted(value)
                counts[here] -= 1
                counts[best] = counts.get(best, 0) + 1
        for value in slack.makes[vertex]:
            self._changed[value] = self._moves
        place[vertex] = best
        return True

    def _passing(self, vertex: int, there: int, own: int) -> int:
        """Return the bytes that pass because of where an atom is, which counts `own` times there as a reader."""
        slack, place, found, passing = self.slack, self.place, self._counts, 0
        values, is_read_once = slack.values, slack.is_read_once
        makers, sizes = values.producers, values.sizes
        for value in slack.reads[vertex]:
            if place[makers[value]] == there:
                continue
            if is_read_once[value] or (found[value] or self._counted(value)).get(there, 0) == own:
                passing += sizes[value]
        for value in slack.makes[vertex]:
            if is_read_once[value]:
                passing -= sizes[value] if place[values.readers_of[value][0]] == there else 0
            elif (found[value] or self._counted(value)).get(there):
                passing -= sizes[value]
        return passing

    def _counted(self, value: int) -> dict[int, int]:
        """Count how many atoms of each subgraph read a value, which is kept up to date from then on."""
        counts: dict[int, int] = {}
        for reader in self.slack.values.readers_of[value]:
            there = self.place[reader]
            counts[there] = counts.get(there, 0) + 1
        self._counts[value] = counts
        return counts

    def subgraphs(self) -> list[list[int]]:
        """Return the subgraphs that still hold something."""
        members: list[list[int]] = [[] for _ in self.label_of]
        for vertex, place in enumerate(self.place[:-1]):
            members[place].append(vertex)
        return [subgraph for subgraph in members if subgraph]
