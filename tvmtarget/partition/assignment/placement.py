"""What is to be placed: atoms with a cost under every label, and values that cost something to pass between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

__all__ = ["Edge", "Energy", "Flow", "Placement", "Routes", "energy_of", "enumerated"]

Routes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """A value: who makes it (None: it is given at home), who reads it, and what a copy costs between any two domains.

    `is_wanted` says that it must end up at home as well.
    """

    producer: int | None
    readers: tuple[int, ...]
    is_wanted: bool
    routes: Routes


@dataclass(frozen=True)
class Placement:
    """What is to be decided: a cost, or None for never, per atom and label, and the values between atoms.

    `domains` are the memories of the labels and `home` that of the driver, all of them indices into the routes.
    `launches` is what calling a function costs under each label.
    """

    costs: tuple[tuple[int | None, ...], ...]
    flows: tuple[Flow, ...]
    domains: tuple[int, ...]
    home: int
    launches: tuple[int, ...]

    def total(self, labels: Sequence[int]) -> int:
        """Return what atoms and copies cost under labels that are allowed; launches are not counted."""
        own = sum(row[label] or 0 for row, label in zip(self.costs, labels, strict=True))
        return own + sum(self._copies(flow, labels) for flow in self.flows)

    def _copies(self, flow: Flow, labels: Sequence[int]) -> int:
        domains = {self.domains[labels[reader]] for reader in flow.readers}
        if flow.is_wanted:
            domains.add(self.home)
        source = self.home if flow.producer is None else self.domains[labels[flow.producer]]
        return sum(flow.routes[source][domain] for domain in domains if domain != source)


@dataclass(frozen=True, slots=True)
class Edge:
    """A value as one layer of costs sees it: groups of labels between which it costs something to pass.

    It comes from the group of its producer, or from `source` where that is None or decided, and goes, once each,
    to the groups of its readers and to those that are `settled`.
    """

    producer: int | None
    source: int
    readers: tuple[int, ...]
    settled: tuple[int, ...]
    groups: tuple[int, ...]
    routes: Routes

    def total(self, labels: Sequence[int]) -> int:
        """Return what the value costs under labels."""
        groups = {self.groups[labels[reader]] for reader in self.readers}
        groups.update(self.settled)
        row = self.routes[self.source if self.producer is None else self.groups[labels[self.producer]]]
        return sum(row[group] for group in groups)


@dataclass(frozen=True, slots=True)
class Energy:
    """A sum to be made small by labels: a cost, or None for never, per atom and label, and edges."""

    costs: tuple[tuple[int | None, ...], ...]
    edges: tuple[Edge, ...]

    @property
    def allowed(self) -> list[tuple[int, ...]]:
        """The labels that every atom may have."""
        return [tuple(label for label, cost in enumerate(row) if cost is not None) for row in self.costs]

    def total(self, labels: Sequence[int]) -> int:
        """Return the sum under labels that are allowed."""
        own = sum(row[label] or 0 for row, label in zip(self.costs, labels, strict=True))
        return own + sum(edge.total(labels) for edge in self.edges)


def energy_of(placement: Placement, share: float) -> Energy:
    """Return the sum in which a share of a launch is charged wherever a value passes between labels.

    Copies and launches are one layer of costs where every label has a memory of its own, else two.
    """
    count = len(placement.domains)
    own = tuple(range(count))
    launches = tuple(int(share * launch) for launch in placement.launches)
    passing = tuple(tuple(0 if a == b else launches[b] for b in own) for a in own)
    is_single = len(set(placement.domains)) == count
    merged: dict[int, Routes] = {}
    edges: list[Edge] = []
    for flow in placement.flows:
        routes = flow.routes
        settled = (placement.home,) if flow.is_wanted else ()
        if is_single and flow.producer is not None and not flow.is_wanted and any(launches):
            if id(routes) not in merged:
                merged[id(routes)] = _with_launches(routes, placement.domains, launches)
            routes = merged[id(routes)]
        elif flow.producer is not None and any(launches) and flow.readers:
            edges.append(Edge(flow.producer, 0, flow.readers, (), own, passing))
        edges.append(Edge(flow.producer, placement.home, flow.readers, settled, placement.domains, routes))
    return Energy(placement.costs, tuple(edges))


def _with_launches(routes: Routes, domains: Sequence[int], launches: Sequence[int]) -> Routes:
    """Return routes on which arriving costs a launch as well."""
    extra = [0] * len(routes)
    for domain, launch in zip(domains, launches, strict=True):
        extra[domain] = launch
    return tuple(
        tuple(cost + extra[b] if a != b else cost for b, cost in enumerate(row)) for a, row in enumerate(routes)
    )


def enumerated(energy: Energy | Placement, budget: int) -> Iterator[list[int]]:
    """Yield all labels that are allowed, the first ones first; nothing if there are more than `budget`."""
    allowed = Energy(energy.costs, ()).allowed
    count = 1
    for labels in allowed:
        count *= len(labels)
        if count > budget:
            return
    yield from map(list, product(*allowed))
