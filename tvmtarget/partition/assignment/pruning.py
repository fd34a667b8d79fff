"""Ruling out labels that cannot be best, and the components that are then left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tvmtarget.partition.assignment.components import components_of
from tvmtarget.partition.assignment.placement import Bools, Energy
from tvmtarget.partition.dataflow import GIVEN, Ints

__all__ = ["components", "pruned"]

# Rounds of ruling out; each looks at everything, and ends them if it rules out less than the share.
MAX_ROUNDS, LEAST_SHARE = 20, 0.005


def pruned(energy: Energy) -> Energy:
    """Return the energy without labels that cost an atom more than another one would, whatever the others have.

    Bounds are what an atom and the values around it cost at least and at most under a label; they narrow as
    neighbours lose labels. Of labels that are equal the first stays.
    """
    allowed = energy.allowed
    atoms = np.arange(len(allowed))
    for _ in range(MAX_ROUNDS):
        left = int(allowed.sum()) - len(allowed)
        if not left:
            break
        least, most = _bounds(energy, allowed)
        worst = np.iinfo(np.int64).max
        best = np.where(allowed, most, worst).argmin(axis=1)
        kept = allowed & (least < most[atoms, best][:, None])
        kept[atoms, best] = True
        lost = int(allowed.sum()) - int(kept.sum())
        allowed = kept
        if lost <= LEAST_SHARE * left:
            break
    return replace(energy, allowed=allowed)


def _bounds(energy: Energy, allowed: Bools) -> tuple[Ints, Ints]:
    """Return what every label costs every atom at least and at most."""
    least, most = energy.costs.copy(), energy.costs.copy()
    count, width = allowed.shape[1], energy.settled.shape[1]
    edges, owner, readers = len(energy.producer), energy.owner, energy.readers
    groups = energy.groups[energy.layer]
    entries = np.arange(len(owner))
    may = np.zeros((len(owner), width), dtype=np.bool_)
    for label in range(count):
        may[entries, groups[owner, label]] |= allowed[readers, label]
    must = may & (may.sum(axis=1) == 1)[:, None]
    others_may, others_must = (_of_others(which, owner, edges) for which in (may, must))
    possible, sure = energy.settled.copy(), energy.settled.copy()
    for group in range(width):
        possible[owner[may[:, group]], group] = True
        sure[owner[must[:, group]], group] = True
    cheapest = np.full((edges, width), np.iinfo(np.int64).max)
    dearest = np.zeros((edges, width), dtype=np.int64)
    made = np.flatnonzero(energy.producer >= 0)
    given = energy.producer < 0
    rows = energy.routes[energy.routing[given], energy.source[given]]
    cheapest[given] = dearest[given] = rows
    for label in range(count):
        rows = energy.routes[energy.routing[made], groups[made, label]]
        np.add.at(least[:, label], energy.producer[made], (rows * sure[made]).sum(axis=1))
        np.add.at(most[:, label], energy.producer[made], (rows * possible[made]).sum(axis=1))
        has = allowed[energy.producer[made], label]
        which = made[has]
        cheapest[which] = np.minimum(cheapest[which], rows[has])
        dearest[which] = np.maximum(dearest[which], rows[has])
    for label in range(count):
        group = groups[owner, label]
        is_paid = energy.settled[owner, group] | others_must[entries, group]
        high = np.where(is_paid, 0, dearest[owner, group])
        np.add.at(most[:, label], readers, high)
        low = np.where(is_paid | others_may[entries, group], 0, cheapest[owner, group])
        np.add.at(least[:, label], readers, low)
    return least, most


def _of_others(which: Bools, owner: Ints, edges: int) -> Bools:
    """Tell, for every reader of an edge and group, whether that holds of another reader of it."""
    counts = np.stack([np.bincount(owner[column], minlength=edges) for column in which.T], axis=1)
    return (counts[owner] - which) > 0


def components(energy: Energy) -> Iterator[tuple[Ints, Energy]]:
    """Yield the atoms that have a choice, in groups that no value couples, each with an energy of its own."""
    count = len(energy.allowed)
    is_open = energy.allowed.sum(axis=1) > 1
    first = energy.allowed.argmax(axis=1)
    edges = np.arange(len(energy.producer))
    groups = energy.groups[energy.layer]
    made = energy.producer >= 0
    fixed = made & ~is_open[energy.producer]
    source = np.where(fixed, groups[edges, first[energy.producer]], energy.source)
    producer = np.where(made & ~fixed, energy.producer, GIVEN)
    settled = energy.settled.copy()
    stays = ~is_open[energy.readers]
    settled[energy.owner[stays], groups[energy.owner[stays], first[energy.readers[stays]]]] = True
    owner, readers = energy.owner[~stays], energy.readers[~stays]
    anchor = producer.copy()
    anchor[owner[::-1]] = readers[::-1]
    has_tail = (producer != GIVEN) & (anchor != GIVEN)
    root = components_of(
        count, np.concatenate([anchor[owner], anchor[has_tail]]), np.concatenate([readers, producer[has_tail]])
    )
    atoms = np.flatnonzero(is_open)
    atoms = atoms[np.argsort(root[atoms], kind="stable")]
    place = np.zeros(count, dtype=np.int64)
    edge_order = np.argsort(np.where(anchor == GIVEN, count, root[anchor]), kind="stable")
    edge_roots = np.where(anchor == GIVEN, count, root[anchor])[edge_order]
    entry_order = np.argsort(root[readers], kind="stable")
    entry_roots = root[readers][entry_order]
    edge_place = np.zeros(len(edges), dtype=np.int64)
    roots, begins, sizes = np.unique(root[atoms], return_index=True, return_counts=True)
    for number, begin, size in zip(roots.tolist(), begins.tolist(), sizes.tolist(), strict=True):
        inside = atoms[begin : begin + size]
        place[inside] = np.arange(size)
        mine = np.sort(edge_order[slice(*np.searchsorted(edge_roots, [number, number + 1]))])
        entries = np.sort(entry_order[slice(*np.searchsorted(entry_roots, [number, number + 1]))])
        edge_place[mine] = np.arange(len(mine))
        made_here = producer[mine] != GIVEN
        yield (
            inside,
            replace(
                energy,
                costs=energy.costs[inside],
                allowed=energy.allowed[inside],
                producer=np.where(made_here, place[producer[mine]], GIVEN),
                source=source[mine],
                owner=edge_place[owner[entries]],
                readers=place[readers[entries]],
                settled=settled[mine],
                layer=energy.layer[mine],
                routing=energy.routing[mine],
            ),
        )
