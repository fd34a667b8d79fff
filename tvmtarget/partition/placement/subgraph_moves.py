"""Move whole subgraphs to another site when that lowers the total cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.placement.energy import LabelingProblem

__all__ = ["SubgraphMoves"]


class SubgraphMoves:
    """Moves whole subgraphs of one placement; what a move changes is exact but for calls of subgraphs around it."""

    def __init__(self, placement: LabelingProblem) -> None:
        self.placement = placement
        self.producer = placement.producer.tolist()
        readers = placement.readers.tolist()
        self.readers = [readers[begin:end] for begin, end in pairwise(placement.start.tolist())]
        self.is_live_out = placement.is_live_out.tolist()
        self.routing = placement.routing.tolist()
        self.routes = placement.routes.tolist()
        self.domains = placement.domains.tolist()
        self.launches = placement.launches.tolist()
        self.around: list[list[int]] = [[] for _ in placement.costs]
        for value, found in enumerate(self.readers):
            for atom in found if self.producer[value] < 0 else (self.producer[value], *found):
                self.around[atom].append(value)

    def moved(self, labels: Ints, subgraphs: Sequence[Sequence[int]]) -> Ints:
        """Return labels after every subgraph in turn has gone where it costs least."""
        now: list[int] = labels.tolist()
        allowed, costs = self.placement.allowed, self.placement.costs
        for subgraph in subgraphs:
            here = now[subgraph[0]]
            if not self.launches[here]:
                continue
            values = sorted({value for atom in subgraph for value in self.around[atom]})
            own = costs[subgraph].sum(axis=0).tolist()
            before = own[here] + self.launches[here] + sum(self._passing(value, now) for value in values)
            found: list[tuple[int, int]] = []
            for there in np.flatnonzero(allowed[subgraph].all(axis=0)).tolist():
                if there == here:
                    continue
                self._set(now, subgraph, there)
                call = 0 if self._has_neighbour(subgraph, values, now, there) else self.launches[there]
                found.append((own[there] + call + sum(self._passing(value, now) for value in values), there))
            least, best = min(found, default=(before, here))
            self._set(now, subgraph, best if least < before else here)
        return np.array(now, dtype=np.int64)

    def _passing(self, value: int, labels: Sequence[int]) -> int:
        """Return what copies of a value cost."""
        home, domains = self.placement.home, self.domains
        source = home if self.producer[value] < 0 else domains[labels[self.producer[value]]]
        row = self.routes[self.routing[value]][source]
        reached = {domains[labels[reader]] for reader in self.readers[value]}
        if self.is_live_out[value]:
            reached.add(home)
        return sum(row[domain] for domain in reached)

    def _has_neighbour(self, subgraph: Sequence[int], values: Sequence[int], labels: Sequence[int], there: int) -> bool:
        inside = set(subgraph)
        around = (atom for value in values for atom in (self.producer[value], *self.readers[value]))
        return any(atom >= 0 and atom not in inside and labels[atom] == there for atom in around)

    @staticmethod
    def _set(labels: list[int], subgraph: Sequence[int], label: int) -> None:
        for atom in subgraph:
            labels[atom] = label
