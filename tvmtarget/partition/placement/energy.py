"""What is to be labeling_problem: atoms with a cost under every label, and values that cost something to pass between
them.

All of it is whole arrays of whole numbers, so that every step over a large program is a few steps over arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tvmtarget.partition.dataflow import GIVEN, Ints, spans

__all__ = ["Bools", "Energy", "Flow", "LabelingProblem", "energy_of", "enumerated", "labeling_problem"]

Bools: TypeAlias = npt.NDArray[np.bool_]
Routes: TypeAlias = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Flow:
    """A value: who makes it (None: it is given at home), who reads it, and what a copy costs between any two domains.

    `is_live_out` says that it must end up at home as well.
    """

    producer: int | None
    readers: tuple[int, ...]
    is_live_out: bool
    routes: Routes


@dataclass(frozen=True)
class LabelingProblem:
    """What is to be decided: a cost per atom and label that is allowed, and the values between atoms.

    Value i comes from atom `producer[i]`, or from home where that is `GIVEN`, is read by atoms
    `readers[start[i]:start[i + 1]]`, and `routes[routing[i]]` is what a copy of it costs between any two domains.
    `domains` are the memories of the labels and `home` that of the driver, all of them indices into the routes.
    `launches` is what calling a function costs under each label.

    Copies of one value over the same links are made once, though `routes` charge them to every domain that they lead
    to. Where there may be such, `memory` is the memory of every domain, `times[routing[i]]` what copies between any two
    memories cost, and `before[routing[i], a, b]` the last memory on the route from a to b before b; else these are
    empty.
    """

    costs: Ints
    allowed: Bools
    producer: Ints
    start: Ints
    readers: Ints
    is_live_out: Bools
    routing: Ints
    routes: Ints
    domains: Ints
    home: int
    launches: Ints
    memory: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    times: Ints = field(default_factory=lambda: np.zeros((0, 0, 0), dtype=np.int64))
    before: Ints = field(default_factory=lambda: np.zeros((0, 0, 0), dtype=np.int64))

    def total(self, labels: Ints) -> int:
        """Return what atoms and copies cost under labels that are allowed; launches are not counted."""
        return energy_of(self, 0.0).total(labels) - int(self.shared(labels[None])[0])

    def shared(self, rows: Ints) -> Ints:
        """Return for every row of labels what `routes` charge more than once for links that copies share."""
        total = np.zeros(len(rows), dtype=np.int64)
        if not self.memory.size:
            return total
        several = np.flatnonzero(np.diff(self.start) + self.is_live_out > 1)
        if len(rows) <= len(several):
            owner = np.repeat(np.arange(len(self.producer)), np.diff(self.start))
            for row, labels in enumerate(rows):
                present = np.zeros((len(self.producer), len(self.memory)), dtype=np.bool_)
                present[owner, self.domains[labels[self.readers]]] = True
                present[self.is_live_out, self.home] = True
                sources = np.where(self.producer >= 0, self.domains[labels[self.producer]], self.home)
                total[row] = self._shared(self.routing[several], sources[several], present[several]).sum()
            return total
        every = np.arange(len(rows))
        for value in several.tolist():
            present = np.zeros((len(rows), len(self.memory)), dtype=np.bool_)
            present[:, self.home] = self.is_live_out[value]
            for reader in self.readers[self.start[value] : self.start[value + 1]].tolist():
                present[every, self.domains[rows[:, reader]]] = True
            producer = self.producer[value]
            sources = self.domains[rows[:, producer]] if producer >= 0 else np.full(len(rows), self.home)
            total += self._shared(np.full(len(rows), self.routing[value]), sources, present)
        return total

    def _shared(self, routing: Ints, sources: Ints, present: Bools) -> Ints:
        """Return what is charged too much for values: each with its costs, its domain, and those that it goes to."""
        start, every = self.memory[sources], np.arange(len(sources))
        times, before = self.times[routing, start], self.before[routing, start]
        reached = np.zeros(times.shape, dtype=np.bool_)
        for domain, memory in enumerate(self.memory.tolist()):
            reached[:, memory] |= present[:, domain]
        while True:
            passed = reached.copy()
            for memory in range(times.shape[1]):
                passed[every, before[:, memory]] |= reached[:, memory]
            if (passed == reached).all():
                break
            reached = passed
        hops = times - np.take_along_axis(times, before, axis=1)
        charged: Ints = np.where(present, times[:, self.memory], 0).sum(axis=1)
        made: Ints = np.where(reached, hops, 0).sum(axis=1)
        return charged - made

    def relaxed(self) -> LabelingProblem:
        """Return the placement in which each copy costs the last link of its route alone: never more than in truth."""
        if not self.memory.size:
            return self
        hops = self.times - np.take_along_axis(self.times, self.before, axis=2)
        is_first = np.array(
            [self.memory.tolist().index(one) == place for place, one in enumerate(self.memory.tolist())]
        )
        a, b = self.memory[:, None], self.memory[None, :]
        routes = self.routes - self.times[:, a, b] + np.where(is_first, hops[:, a, b], 0)
        empty = np.zeros((0, 0, 0), dtype=np.int64)
        return replace(self, routes=routes, memory=np.zeros(0, dtype=np.int64), times=empty, before=empty)


def labeling_problem(
    costs: Sequence[Sequence[int | None]],
    flows: Sequence[Flow],
    domains: Sequence[int],
    home: int,
    launches: Sequence[int],
) -> LabelingProblem:
    """Return the placement of a few atoms that are given one by one; a cost of None is never."""
    count = len(launches)
    rows = np.array([[-1 if cost is None else cost for cost in row] for row in costs], dtype=np.int64)
    rows = rows.reshape(len(costs), count)
    size = len(flows[0].routes) if flows else 1 + max((*domains, home))
    return LabelingProblem(
        costs=np.where(rows < 0, 0, rows),
        allowed=rows >= 0,
        producer=np.array([GIVEN if flow.producer is None else flow.producer for flow in flows], dtype=np.int64),
        start=spans([len(flow.readers) for flow in flows]),
        readers=np.array([reader for flow in flows for reader in flow.readers], dtype=np.int64),
        is_live_out=np.array([flow.is_live_out for flow in flows], dtype=np.bool_),
        routing=np.arange(len(flows), dtype=np.int64),
        routes=np.array([flow.routes for flow in flows], dtype=np.int64).reshape(len(flows), size, size),
        domains=np.array(domains, dtype=np.int64),
        home=home,
        launches=np.array(launches, dtype=np.int64),
    )


@dataclass(frozen=True)
class Energy:
    """A sum to be made small by labels: a cost per atom and label that is allowed, and edges.

    An edge is a value as one layer of costs sees it: groups of labels between which it costs something to pass. It
    comes from the group of its producer, or from `source` where that is `GIVEN`, and goes, once each, to the groups
    of its readers and to those that are `settled`. `owner` is the edge of every entry of `readers`; `groups[layer]`
    are the groups of the labels, and `routes[routing]` what passing costs between any two.
    """

    costs: Ints
    allowed: Bools
    producer: Ints
    source: Ints
    owner: Ints
    readers: Ints
    settled: Bools
    layer: Ints
    groups: Ints
    routing: Ints
    routes: Ints

    def total(self, labels: Ints) -> int:
        """Return the sum under labels that are allowed."""
        own = np.take_along_axis(self.costs, labels[:, None], axis=1).sum()
        present = self.settled.copy()
        present[self.owner, self.groups[self.layer[self.owner], labels[self.readers]]] = True
        return int(own + np.einsum("ij,ij->", self.prices(labels), present))

    def totals(self, rows: Ints) -> Ints:
        """Return the sum for every row of labels: row by row, or edge by edge where there are more rows than edges."""
        count = len(self.producer)
        if len(rows) <= count:
            return np.array([self.total(labels) for labels in rows], dtype=np.int64)
        totals: Ints = np.take_along_axis(self.costs[None], rows[:, :, None], axis=2).sum(axis=(1, 2))
        every = np.arange(len(rows))
        begins = np.searchsorted(self.owner, np.arange(count + 1))
        for edge in range(count):
            groups, producer = self.groups[self.layer[edge]], self.producer[edge]
            present = np.repeat(self.settled[edge][None], len(rows), axis=0)
            for reader in self.readers[begins[edge] : begins[edge + 1]].tolist():
                present[every, groups[rows[:, reader]]] = True
            sources = groups[rows[:, producer]] if producer >= 0 else np.full(len(rows), self.source[edge])
            totals += np.einsum("ij,ij->i", self.routes[self.routing[edge]].take(sources, axis=0), present)
        return totals

    def sources(self, labels: Ints) -> Ints:
        """Return the group that every edge comes from."""
        made = self.producer >= 0
        if not made.any():
            return self.source
        return np.where(made, self.groups[self.layer, labels[np.where(made, self.producer, 0)]], self.source)

    def prices(self, labels: Ints) -> Ints:
        """Return what every edge pays for each group that it goes to."""
        return self.rows(self.sources(labels))

    def rows(self, sources: Ints) -> Ints:
        """Return what every edge would pay for each group if it came from these groups."""
        width = self.routes.shape[-1]
        rows: Ints = self.routes.reshape(-1, width).take(self.routing * width + sources, axis=0)
        return rows

    def touching(self, atoms: Bools) -> Bools:
        """Tell which edges come from some atoms or go to them."""
        edges = (self.producer >= 0) & atoms[self.producer]
        edges[self.owner[atoms[self.readers]]] = True
        return edges

    def neighbours(self, atoms: Bools) -> Bools:
        """Return atoms and those that share an edge with them."""
        edges = self.touching(atoms)
        found = atoms.copy()
        found[self.readers[edges[self.owner]]] = True
        found[self.producer[edges & (self.producer >= 0)]] = True
        return found

    def around(self, atoms: Bools) -> Energy:
        """Return the part of the sum that depends on some atoms, and maybe more costs of single atoms."""
        edges = self.touching(atoms)
        entries = edges[self.owner]
        place = np.cumsum(edges) - 1
        return replace(
            self,
            producer=self.producer[edges],
            source=self.source[edges],
            owner=place[self.owner[entries]],
            readers=self.readers[entries],
            settled=self.settled[edges],
            layer=self.layer[edges],
            routing=self.routing[edges],
        )


def energy_of(placement: LabelingProblem, share: float) -> Energy:
    """Return the sum in which a share of a launch is charged wherever a value passes between labels.

    Copies and launches are one layer of costs where every label has a memory of its own, else two.
    """
    count, size = len(placement.domains), placement.routes.shape[-1]
    launches = np.array([int(share * int(launch)) for launch in placement.launches], dtype=np.int64)
    width = max(count, size)
    flows = len(placement.producer)
    owner = np.repeat(np.arange(flows), np.diff(placement.start))
    made = placement.producer >= 0
    has_readers = np.diff(placement.start) > 0
    settled = np.zeros((flows, width), dtype=np.bool_)
    settled[placement.is_live_out, placement.home] = True
    routes = np.zeros((len(placement.routes), width, width), dtype=np.int64)
    routes[:, :size, :size] = placement.routes
    groups = np.stack([placement.domains, np.arange(count)])
    if not launches.any():
        parts = [np.arange(flows)]
        routing, layer = placement.routing, np.zeros(flows, dtype=np.int64)
    else:
        is_own = len(set(placement.domains.tolist())) == count
        arriving = np.zeros(width, dtype=np.int64)
        arriving[placement.domains] = launches
        dearer = routes + np.where(np.eye(width, dtype=np.bool_), 0, arriving)
        passing = np.zeros((1, width, width), dtype=np.int64)
        passing[0, :count, :count] = np.where(np.eye(count, dtype=np.bool_), 0, launches)
        merged = made & ~placement.is_live_out & is_own
        apart = np.flatnonzero(made & has_readers & ~merged)
        kinds = len(routes)
        routes = np.concatenate([routes, dearer, passing])
        routing = np.concatenate(
            [placement.routing + np.where(merged, kinds, 0), np.full(len(apart), 2 * kinds, dtype=np.int64)]
        )
        layer = np.concatenate([np.zeros(flows, dtype=np.int64), np.ones(len(apart), dtype=np.int64)])
        parts = [np.arange(flows), apart]
    picked = np.concatenate(parts)
    place = np.full(flows, -1, dtype=np.int64)
    entries, owners = [placement.readers], [owner]
    if len(parts) > 1:
        place[parts[1]] = flows + np.arange(len(parts[1]))
        again = place[owner] >= 0
        entries.append(placement.readers[again])
        owners.append(place[owner[again]])
    wanted = settled[picked]
    wanted[flows:] = False
    return Energy(
        costs=placement.costs,
        allowed=placement.allowed,
        producer=placement.producer[picked],
        source=np.full(len(picked), placement.home, dtype=np.int64),
        owner=np.concatenate(owners),
        readers=np.concatenate(entries),
        settled=wanted,
        layer=layer,
        groups=groups,
        routing=routing,
        routes=routes,
    )


def enumerated(placement: LabelingProblem, budget: int) -> Ints:
    """Return all labels that are allowed, one choice in every row, the first ones first; none if beyond `budget`."""
    counts = placement.allowed.sum(axis=1).tolist()
    if len(counts) > budget.bit_length() + sum(count == 1 for count in counts) or prod(counts) > budget:
        return np.zeros((0, len(counts)), dtype=np.int64)
    numbers = np.arange(prod(counts))
    rows = np.zeros((len(numbers), len(counts)), dtype=np.int64)
    alike = len(numbers)
    for atom, count in enumerate(counts):
        alike //= count
        rows[:, atom] = np.flatnonzero(placement.allowed[atom])[numbers // alike % count]
    return rows
