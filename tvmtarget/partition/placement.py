"""Stage C with costs: labels for atoms at the least sum of what they take, of copies, and of launches.

With two labels one minimum cut is exact. With more, labels are offered one after the other, and a cut decides who
takes the one on offer: alpha-expansion (Boykov, Veksler and Zabih, 2001). All numbers are whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvmtarget.partition.binary import ALWAYS, Term, decide

__all__ = ["Flow", "Placement", "Routes", "enumerated", "expanded"]

# Sweeps over the labels; each must gain, and two or three are usual.
MAX_SWEEPS = 8

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

    def firsts(self) -> list[int]:
        """Return the first label that every atom may have."""
        return [next(label for label, cost in enumerate(row) if cost is not None) for row in self.costs]


@dataclass(frozen=True, slots=True)
class _Edge:
    """A value as one layer of costs sees it: groups of labels between which it costs something to pass."""

    producer: int | None
    source: int
    readers: tuple[int, ...]
    wanted: int | None
    groups: tuple[int, ...]
    routes: Routes


def expanded(placement: Placement, share: float) -> list[int]:
    """Return labels at a least sum, exact for two labels; `share` of a launch is charged wherever a value passes."""
    edges = _edges(placement, share)
    labels = placement.firsts()
    count = len(placement.domains)
    if count == 2:
        return _offered(placement, edges, labels, 1)
    best = _swept(placement, edges, labels)
    cheapest = [min(_allowed(row), key=lambda label: row[label] or 0) for row in placement.costs]
    other = _swept(placement, edges, cheapest)
    return min((best, other), key=lambda found: _energy(placement, edges, found))


def _swept(placement: Placement, edges: Sequence[_Edge], labels: list[int]) -> list[int]:
    least = _energy(placement, edges, labels)
    for _ in range(MAX_SWEEPS):
        before = least
        for label in range(len(placement.domains)):
            moved = _offered(placement, edges, labels, label)
            energy = _energy(placement, edges, moved)
            if energy < least:
                labels, least = moved, energy
        if least == before:
            break
    return labels


def _allowed(row: Sequence[int | None]) -> list[int]:
    return [label for label, cost in enumerate(row) if cost is not None]


def _edges(placement: Placement, share: float) -> list[_Edge]:
    """Put copies and launches into one layer of costs where every label has a memory of its own, else into two."""
    count = len(placement.domains)
    own = tuple(range(count))
    launches = tuple(int(share * launch) for launch in placement.launches)
    passing = tuple(tuple(0 if a == b else launches[b] for b in own) for a in own)
    is_single = len(set(placement.domains)) == count
    merged: dict[int, Routes] = {}
    edges: list[_Edge] = []
    for flow in placement.flows:
        routes = flow.routes
        wanted = placement.home if flow.is_wanted else None
        if is_single and flow.producer is not None and not flow.is_wanted and any(launches):
            if id(routes) not in merged:
                merged[id(routes)] = _with_launches(routes, placement.domains, launches)
            routes = merged[id(routes)]
        elif flow.producer is not None and any(launches) and flow.readers:
            edges.append(_Edge(flow.producer, 0, flow.readers, None, own, passing))
        edges.append(_Edge(flow.producer, placement.home, flow.readers, wanted, placement.domains, routes))
    return edges


def _with_launches(routes: Routes, domains: Sequence[int], launches: Sequence[int]) -> Routes:
    """Return routes on which arriving costs a launch as well."""
    extra = [0] * len(routes)
    for domain, launch in zip(domains, launches, strict=True):
        extra[domain] = launch
    return tuple(
        tuple(cost + extra[b] if a != b else cost for b, cost in enumerate(row)) for a, row in enumerate(routes)
    )


def _energy(placement: Placement, edges: Sequence[_Edge], labels: Sequence[int]) -> int:
    total = sum(row[label] or 0 for row, label in zip(placement.costs, labels, strict=True))
    for edge in edges:
        groups = {edge.groups[labels[reader]] for reader in edge.readers}
        if edge.wanted is not None:
            groups.add(edge.wanted)
        row = edge.routes[edge.source if edge.producer is None else edge.groups[labels[edge.producer]]]
        total += sum(row[group] for group in groups)
    return total


def _offered(placement: Placement, edges: Sequence[_Edge], labels: Sequence[int], label: int) -> list[int]:
    """Offer one label to every atom that may take it, and return what is best."""
    movable = [atom for atom, row in enumerate(placement.costs) if labels[atom] != label and row[label] is not None]
    offer = _Offer(placement, labels, label, {atom: index for index, atom in enumerate(movable)})
    for edge in edges:
        offer.couple(edge)
    taken = decide(offer.differences, offer.terms)
    result = list(labels)
    for atom, is_taken in zip(movable, taken, strict=True):
        if is_taken:
            result[atom] = label
    return result


class _Offer:
    """One label on offer, as decisions: whether each atom that may take it does."""

    def __init__(self, placement: Placement, labels: Sequence[int], label: int, movable: dict[int, int]) -> None:
        rows = placement.costs
        self.labels = labels
        self.label = label
        self.movable = movable
        self.differences = [(rows[atom][label] or 0) - (rows[atom][labels[atom]] or 0) for atom in movable]
        self.terms: list[Term] = []

    def couple(self, edge: _Edge) -> None:
        """Add what a value costs from where its producer is, and from where its producer would be."""
        producer, movable = edge.producer, self.movable
        source = edge.source if producer is None else edge.groups[self.labels[producer]]
        tail = ALWAYS if producer is None else movable.get(producer, ALWAYS)
        offered = edge.groups[self.label]
        settled = set() if edge.wanted is None else {edge.wanted}
        moving: dict[int, list[int]] = {}
        for reader in edge.readers:
            group = edge.groups[self.labels[reader]]
            if reader in movable and group != offered:
                moving.setdefault(group, []).append(movable[reader])
            else:
                settled.add(group)
        stay, go = edge.routes[source], edge.routes[offered]
        if tail != ALWAYS:
            self.differences[tail] += sum(go[group] - stay[group] for group in settled)
        arriving = stay[offered]
        heads = [head for group in moving.values() for head in group]
        for group, readers in moving.items():
            if group in settled:
                continue
            least = stay[group] if tail == ALWAYS else min(stay[group], go[group])
            self._add(least, ALWAYS, readers, asked=False)
            if tail == ALWAYS or stay[group] == go[group]:
                continue
            if go[group] > stay[group]:
                self._add(go[group] - stay[group], tail, readers, asked=False)
                continue
            # It is dearer to reach this group from here than from there, which no cut can say of several readers;
            # for them the dearer way is charged to both, an upper bound that is exact while nothing moves.
            excess = stay[group] - go[group]
            if len(heads) == 1:
                self.differences[tail] -= excess
                arriving = max(0, arriving - excess)
            else:
                self._add(excess, ALWAYS, readers, asked=False)
        if heads and offered not in settled:
            self._add(arriving, tail, heads, asked=True)

    def _add(self, cost: int, tail: int, heads: Sequence[int], *, asked: bool) -> None:
        if not cost or not heads:
            return
        if tail == ALWAYS and len(heads) == 1:
            self.differences[heads[0]] += cost if asked else -cost
        else:
            self.terms.append(Term(cost, tail, heads, asked))


def enumerated(placement: Placement, budget: int) -> Iterator[list[int]]:
    """Yield all labellings that are allowed, or none if there are more than `budget`."""
    rows = [_allowed(row) for row in placement.costs]
    count = 1
    for row in rows:
        count *= len(row)
        if count > budget:
            return
    labels = [row[0] for row in rows]
    places = [0] * len(rows)
    while True:
        yield list(labels)
        for atom in reversed(range(len(rows))):
            places[atom] = (places[atom] + 1) % len(rows[atom])
            labels[atom] = rows[atom][places[atom]]
            if places[atom]:
                break
        else:
            return
