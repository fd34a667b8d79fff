"""Moving what can run in several regions of its site to the one where fewest bytes pass between regions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tvmtarget.partition.values import Values

__all__ = ["slackened"]

SWEEPS = 2


def slackened(
    successors: Sequence[Sequence[int]], colours: Sequence[int], values: Values, regions: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return regions in the same order, less those that become empty; every edge stays or points forward."""
    place = _Places(successors, colours, values, regions)
    for sweep in range(SWEEPS):
        count = len(successors)
        moved = [place.improve(vertex) for vertex in (range(count) if sweep % 2 else range(count - 1, -1, -1))]
        if not any(moved):
            break
    return place.regions()


class _Places:
    def __init__(
        self,
        successors: Sequence[Sequence[int]],
        colours: Sequence[int],
        values: Values,
        regions: Sequence[Sequence[int]],
    ) -> None:
        self.successors = successors
        self.predecessors: list[list[int]] = [[] for _ in successors]
        for vertex, targets in enumerate(successors):
            for target in targets:
                self.predecessors[target].append(vertex)
        self.place = [0] * len(successors)
        for number, region in enumerate(regions):
            for vertex in region:
                self.place[vertex] = number
        self.colour_of = [colours[region[0]] for region in regions]
        self.colours = colours
        self.nbytes = values.nbytes.tolist()
        self.producer = values.producer.tolist()
        self.reads: list[list[int]] = [[] for _ in successors]
        self.makes: list[list[int]] = [[] for _ in successors]
        self.counts: list[dict[int, int]] = [{} for _ in self.producer]
        readers = values.readers.tolist()
        for value, (begin, end) in enumerate(pairwise(values.start.tolist())):
            if self.producer[value] >= 0:
                self.makes[self.producer[value]].append(value)
            for reader in readers[begin:end]:
                self.reads[reader].append(value)
                there = self.place[reader]
                self.counts[value][there] = self.counts[value].get(there, 0) + 1

    def improve(self, vertex: int) -> bool:
        """Move one vertex to the earliest or latest region it can be in, if fewer bytes pass then."""
        here = self.place[vertex]
        first = max((self.place[other] for other in self.predecessors[vertex]), default=here)
        last = min((self.place[other] for other in self.successors[vertex]), default=here)
        colour = self.colours[vertex]
        options = [there for there in (first, last) if there != here and self.colour_of[there] == colour]
        best = min(options, key=lambda there: self._change(vertex, here, there), default=here)
        if best == here or self._change(vertex, here, best) >= 0:
            return False
        self.place[vertex] = best
        for value in self.reads[vertex]:
            counts = self.counts[value]
            counts[here] -= 1
            counts[best] = counts.get(best, 0) + 1
        return True

    def _change(self, vertex: int, here: int, there: int) -> int:
        """Return by how many bytes more pass between regions after a move."""
        change = 0
        for value in self.reads[vertex]:
            counts, source = self.counts[value], self.producer[value]
            home = self.place[source] if source >= 0 else -1
            change += self.nbytes[value] if home != there and not counts.get(there) else 0
            change -= self.nbytes[value] if home != here and counts[here] == 1 else 0
        for value in self.makes[vertex]:
            counts = self.counts[value]
            change += self.nbytes[value] if counts.get(here) else 0
            change -= self.nbytes[value] if counts.get(there) else 0
        return change

    def regions(self) -> list[list[int]]:
        """Return the regions that still hold something."""
        members: list[list[int]] = [[] for _ in self.colour_of]
        for vertex, place in enumerate(self.place):
            members[place].append(vertex)
        return [region for region in members if region]
