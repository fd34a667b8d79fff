"""Ruling out labels that cannot be best, and the components that are then left."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tvmtarget.partition.assignment.placement import Edge, Energy

__all__ = ["components", "pruned"]

# A value with more readers than this is not looked at closely: its bounds stay wide.
MAX_READERS = 16


def pruned(energy: Energy) -> Energy:
    """Return the energy without labels that cost an atom more than another one would, whatever the others have.

    Bounds are what an atom and the values around it cost at least and at most under a label; they narrow as
    neighbours lose labels. Of labels that are equal the first stays.
    """
    allowed = [list(labels) for labels in energy.allowed]
    around: list[list[Edge]] = [[] for _ in energy.costs]
    for edge in energy.edges:
        for atom in _atoms(edge):
            around[atom].append(edge)
    waiting = deque(range(len(energy.costs)))
    is_waiting = [True] * len(energy.costs)
    while waiting:
        atom = waiting.popleft()
        is_waiting[atom] = False
        if len(allowed[atom]) == 1:
            continue
        bounds = {label: _bounds(energy, around[atom], allowed, atom, label) for label in allowed[atom]}
        best = min(allowed[atom], key=lambda label: bounds[label][1])
        most = bounds[best][1]
        kept = [label for label in allowed[atom] if label == best or bounds[label][0] < most]
        if len(kept) == len(allowed[atom]):
            continue
        allowed[atom] = kept
        for edge in around[atom]:
            if len(edge.readers) > MAX_READERS and edge.producer != atom:
                continue
            for other in _atoms(edge):
                if not is_waiting[other]:
                    is_waiting[other] = True
                    waiting.append(other)
    costs = (
        tuple(cost if label in labels else None for label, cost in enumerate(row))
        for row, labels in zip(energy.costs, allowed, strict=True)
    )
    return Energy(tuple(costs), energy.edges)


def _atoms(edge: Edge) -> tuple[int, ...]:
    return edge.readers if edge.producer is None else (edge.producer, *edge.readers)


def _bounds(energy: Energy, around: list[Edge], allowed: list[list[int]], atom: int, label: int) -> tuple[int, int]:
    """Return what a label costs at least and at most."""
    least = most = energy.costs[atom][label] or 0
    for edge in around:
        low, high = _sent(edge, allowed, label) if edge.producer == atom else _read(edge, allowed, atom, label)
        least, most = least + low, most + high
    return least, most


def _sent(edge: Edge, allowed: list[list[int]], label: int) -> tuple[int, int]:
    row = edge.routes[edge.groups[label]]
    sure = set(edge.settled)
    if len(edge.readers) > MAX_READERS:
        return sum(row[group] for group in sure), sum(row[group] for group in {*edge.groups, *sure})
    possible = set(sure)
    for reader in edge.readers:
        groups = {edge.groups[other] for other in allowed[reader]}
        possible |= groups
        sure |= groups if len(groups) == 1 else set()
    return sum(row[group] for group in sure), sum(row[group] for group in possible)


def _read(edge: Edge, allowed: list[list[int]], atom: int, label: int) -> tuple[int, int]:
    """Return bounds of what reading a value under a label adds; nothing where others have it brought there."""
    group = edge.groups[label]
    if group in edge.settled:
        return 0, 0
    sources = [edge.source] if edge.producer is None else [edge.groups[other] for other in allowed[edge.producer]]
    prices = [edge.routes[source][group] for source in sources]
    if len(edge.readers) > MAX_READERS:
        return 0, max(prices)
    others = [{edge.groups[other] for other in allowed[reader]} for reader in edge.readers if reader != atom]
    if {group} in others:
        return 0, 0
    return 0 if any(group in groups for groups in others) else min(prices), max(prices)


def components(energy: Energy) -> Iterator[tuple[list[int], Energy]]:
    """Yield the atoms that have a choice, in groups that no value couples, each with an energy of its own."""
    labels = [allowed[0] for allowed in energy.allowed]
    is_open = [len(allowed) > 1 for allowed in energy.allowed]
    around: list[list[int]] = [[] for _ in labels]
    reduced = [_reduced(edge, labels, is_open) for edge in energy.edges]
    for number, edge in enumerate(reduced):
        for atom in _atoms(edge):
            around[atom].append(number)
    seen = [not choice for choice in is_open]
    for start in range(len(labels)):
        if seen[start]:
            continue
        seen[start] = True
        atoms, numbers = [start], set[int]()
        for atom in atoms:
            for number in around[atom]:
                others = () if number in numbers else _atoms(reduced[number])
                numbers.add(number)
                for other in others:
                    if not seen[other]:
                        seen[other] = True
                        atoms.append(other)
        atoms.sort()
        place = {atom: index for index, atom in enumerate(atoms)}
        edges = tuple(_renumbered(reduced[number], place) for number in sorted(numbers))
        yield atoms, Energy(tuple(energy.costs[atom] for atom in atoms), edges)


def _reduced(edge: Edge, labels: list[int], is_open: list[bool]) -> Edge:
    """Return an edge as the atoms see it that have a choice: decided ends are settled."""
    producer, source = edge.producer, edge.source
    if producer is not None and not is_open[producer]:
        source, producer = edge.groups[labels[producer]], None
    settled = {*edge.settled, *(edge.groups[labels[reader]] for reader in edge.readers if not is_open[reader])}
    readers = tuple(reader for reader in edge.readers if is_open[reader])
    return Edge(producer, source, readers, tuple(sorted(settled)), edge.groups, edge.routes)


def _renumbered(edge: Edge, place: dict[int, int]) -> Edge:
    producer = None if edge.producer is None else place[edge.producer]
    readers = tuple(place[reader] for reader in edge.readers)
    return Edge(producer, edge.source, readers, edge.settled, edge.groups, edge.routes)
