"""Moving what can run in several regions of its site to the one where fewest bytes pass between regions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np

from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.regions.waves import predecessors_of
from tvmtarget.partition.values import Values

__all__ = ["Slack"]

SWEEPS = 2


class Slack:
    """Atoms, what they must come before, and the values that they pass: what moving them needs to know."""

    def __init__(self, successors: Sequence[Sequence[int]], colours: Sequence[int], values: Values) -> None:
        self.successors = successors
        self.colours = colours
        self.values = values
        count = len(successors)
        self.reads, self.makes = values.read_by(count), values.made_by(count)
        self.ends = np.fromiter((end for ends in successors for end in ends), dtype=np.int64)
        self.starts = np.repeat(np.arange(count), [len(ends) for ends in successors])

    @cached_property
    def predecessors(self) -> list[list[int]]:
        """The atoms that each comes after."""
        return predecessors_of(self.successors)

    def moved(self, regions: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return regions in the same order, less those that become empty; every edge stays or points forward."""
        places = _Places(self, regions)
        for sweep in range(SWEEPS):
            if not places.sweep(1 if sweep % 2 else -1):
                break
        return places.regions()


class _Places:
    """In which region every atom is."""

    def __init__(self, slack: Slack, regions: Sequence[Sequence[int]]) -> None:
        self.slack = slack
        self.colour_of = [slack.colours[region[0]] for region in regions]
        self.place = [0] * len(slack.successors)
        for number, region in enumerate(regions):
            for vertex in region:
                self.place[vertex] = number
        self._counts: dict[int, dict[int, int]] = {}

    def sweep(self, step: int) -> bool:
        """Improve every atom once, by number upwards or downwards; return whether any moved."""
        waiting = [step * vertex for vertex in self._movable()]
        heapify(waiting)
        last, is_moved = -len(self.place), False
        while waiting:
            at = heappop(waiting)
            if at == last or not self._improve(step * at):
                last = at
                continue
            last, is_moved = at, True
            for other in (*self.slack.predecessors[step * at], *self.slack.successors[step * at]):
                if step * other > at:
                    heappush(waiting, step * other)
        return is_moved

    def _movable(self) -> Iterable[int]:
        """Return the atoms that could be in another region, as the others are."""
        place, colours = np.array(self.place, dtype=np.int64), np.array(self.slack.colours)
        first, last = self._bounds(place)
        colour_of = np.array(self.colour_of, dtype=np.int64)
        is_movable = np.zeros(len(place), dtype=np.bool_)
        for bound in (first, last):
            is_movable |= (bound != place) & (colour_of[bound] == colours)
        found: list[int] = np.flatnonzero(is_movable).tolist()
        return found

    def _bounds(self, place: Ints) -> tuple[Ints, Ints]:
        """Return the earliest and the latest region that every atom can be in; where it is, if nothing bounds it."""
        slack = self.slack
        first, last = np.full_like(place, -1), np.full_like(place, len(self.colour_of))
        np.maximum.at(first, slack.ends, place[slack.starts])
        np.minimum.at(last, slack.starts, place[slack.ends])
        return np.where(first < 0, place, first), np.where(last == len(self.colour_of), place, last)

    def _improve(self, vertex: int) -> bool:
        """Move one atom to the earliest or latest region it can be in, if fewer bytes pass then."""
        place = self.place
        here, colour = place[vertex], self.slack.colours[vertex]
        first = max((place[other] for other in self.slack.predecessors[vertex]), default=here)
        last = min((place[other] for other in self.slack.successors[vertex]), default=here)
        best, change = here, 0
        for there in {first: None, last: None}:
            if there != here and self.colour_of[there] == colour:
                found = self._change(vertex, here, there)
                if found < change:
                    best, change = there, found
        if best == here:
            return False
        place[vertex] = best
        for value in self.slack.reads[vertex]:
            counts = self._counts[value]
            counts[here] -= 1
            counts[best] = counts.get(best, 0) + 1
        return True

    def _change(self, vertex: int, here: int, there: int) -> int:
        """Return by how many bytes more pass between regions after a move."""
        values, change = self.slack.values, 0
        for value in self.slack.reads[vertex]:
            counts, maker = self._readers_in(value), values.makers[value]
            home = self.place[maker] if maker >= 0 else -1
            change += values.sizes[value] if home != there and not counts.get(there) else 0
            change -= values.sizes[value] if home != here and counts[here] == 1 else 0
        for value in self.slack.makes[vertex]:
            counts = self._readers_in(value)
            change += values.sizes[value] if counts.get(here) else 0
            change -= values.sizes[value] if counts.get(there) else 0
        return change

    def _readers_in(self, value: int) -> dict[int, int]:
        """Return how many atoms of each region read a value."""
        counts = self._counts.get(value)
        if counts is None:
            counts = self._counts[value] = {}
            for reader in self.slack.values.readers_of[value]:
                there = self.place[reader]
                counts[there] = counts.get(there, 0) + 1
        return counts

    def regions(self) -> list[list[int]]:
        """Return the regions that still hold something."""
        members: list[list[int]] = [[] for _ in self.colour_of]
        for vertex, place in enumerate(self.place):
            members[place].append(vertex)
        return [region for region in members if region]
