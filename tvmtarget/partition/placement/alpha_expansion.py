"""Stage C with costs: labels for atoms at the least sum of what they take, of copies, and of launches.

With two labels one minimum cut is exact. With more, labels are offered one after the other, and a cut decides who takes
the one on offer: alpha-expansion (Boykov, Veksler and Zabih, 2001). All numbers are whole.
"""

from __future__ import annotations

import numpy as np

from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.placement.binary_labeling import ALWAYS, Terms, decide
from tvmtarget.partition.placement.energy import Bools, Energy, LabelingProblem, energy_of
from tvmtarget.partition.placement.maxflow import Budget

__all__ = ["expand_labels"]

# Sweeps over the labels; each must gain, and two or three are usual.
MAX_SWEEPS = 4


def expand_labels(
    placement: LabelingProblem, share: float, budget: Budget | None = None, start: Ints | None = None
) -> Ints:
    """Return labels at a least sum, exact for two labels; `share` of a launch is charged wherever a value passes.

    `budget` is the work that cuts may take, and `start` are labels to improve.
    """
    energy = energy_of(placement, share)
    budget = Budget(10**12) if budget is None else budget
    if len(placement.domains) == 2:
        return _offered(energy, energy.allowed.argmax(axis=1), 1, energy.allowed[:, 1], budget)
    if start is None:
        start = np.where(energy.allowed, energy.costs, np.iinfo(np.int64).max).argmin(axis=1)
    return _swept(energy, start, budget)


def _swept(energy: Energy, labels: Ints, budget: Budget) -> Ints:
    """Offer every label in turn, from the second time on only near atoms that have moved since it was offered."""
    count = energy.allowed.shape[1]
    near = np.ones((count, len(labels)), dtype=np.bool_)
    for _ in range(MAX_SWEEPS):
        has_gained = False
        for label in range(count):
            which = near[label] & energy.allowed[:, label] & (labels != label)
            near[label] = False
            around = energy.around(which)
            moved = _offered(around, labels, label, which, budget)
            if around.total(moved) < around.total(labels):
                near |= energy.neighbours(moved != labels)
                labels, has_gained = moved, True
        if not has_gained:
            break
    return labels


def _offered(energy: Energy, labels: Ints, label: int, which: Bools, budget: Budget) -> Ints:
    """Offer one label to atoms that may take it, and return what is best."""
    movable = np.flatnonzero(which & (labels != label))
    if not len(movable):
        return labels
    differences, terms = _offer(energy, labels, label, movable)
    taken = decide(differences, terms, budget)
    result = labels.copy()
    result[movable[taken]] = label
    return result


def _offer(energy: Energy, labels: Ints, label: int, movable: Ints) -> tuple[Ints, Terms]:
    """Return one label on offer, as decisions: whether each of the atoms that may take it does.

    What a value costs is what it costs from where its producer is, and from where its producer would be.
    """
    place = np.full(len(labels) + 1, ALWAYS, dtype=np.int64)
    place[movable] = np.arange(len(movable))
    differences = energy.costs[movable, label] - energy.costs[movable, labels[movable]]
    edges = np.arange(len(energy.producer))
    tail = place[energy.producer]
    offered = energy.groups[energy.layer, label]
    stay = energy.prices(labels)
    go = energy.rows(offered)
    owner, width = energy.owner, stay.shape[1]
    group = energy.groups[energy.layer[owner], labels[energy.readers]]
    moves = (place[energy.readers] != ALWAYS) & (group != offered[owner])
    settled = energy.settled.copy()
    settled[owner[~moves], group[~moves]] = True
    has_tail = tail != ALWAYS
    change = np.einsum("ij,ij->i", go - stay, settled)
    np.add.at(differences, tail[has_tail], change[has_tail])
    heads, owner, group = place[energy.readers[moves]], owner[moves], group[moves]
    count = np.bincount(owner, minlength=len(edges))
    # It may be dearer to reach a group from here than from there, which no cut can say of several readers; for them
    # the dearer way is charged to both, an upper bound that is exact while nothing moves.
    cheaper = has_tail[:, None] & (go < stay)
    excess = np.where(cheaper & (count == 1)[:, None], stay - go, 0)
    always = np.where(has_tail[:, None], np.where(cheaper & (count > 1)[:, None], stay, np.minimum(stay, go)), stay)
    beyond = np.where(has_tail[:, None], np.maximum(go - stay, 0), 0)
    arriving = stay[edges, offered]
    is_counted = ~settled[owner, group]
    single = np.zeros(len(edges), dtype=np.int64)
    single[owner[is_counted]] = excess[owner[is_counted], group[is_counted]]
    np.subtract.at(differences, tail[has_tail], single[has_tail])
    arriving = np.maximum(0, arriving - single)
    keys = owner * width + group
    counted = _Terms(heads[is_counted], keys[is_counted])
    asks = ~settled[edges, offered] & (count > 0)
    arrives = _Terms(heads[asks[owner]], owner[asks[owner]])
    tails = tail[counted.keys // width]
    parts = (
        counted.terms(always.ravel(), np.full(len(counted.keys), ALWAYS), asked=False),
        counted.terms(beyond.ravel(), tails, asked=False),
        arrives.terms(arriving, tail[arrives.keys], asked=True),
    )
    return differences, _joined(parts)


class _Terms:
    """Terms of which each has a key; `heads` are theirs, by the key of each."""

    def __init__(self, heads: Ints, keys: Ints) -> None:
        self.heads = heads
        self.keys, self.owner = np.unique(keys, return_inverse=True)

    def terms(self, costs: Ints, tails: Ints, *, asked: bool) -> Terms:
        """Return those terms that cost something."""
        cost = costs[self.keys]
        which = np.full(len(cost), asked)
        every = np.ones(len(self.heads), dtype=np.bool_)
        return Terms(cost, tails, which, self.heads, self.owner).kept(cost > 0, every)


def _joined(parts: tuple[Terms, ...]) -> Terms:
    begins = np.cumsum([0, *(len(part.cost) for part in parts)])
    return Terms(
        np.concatenate([part.cost for part in parts]),
        np.concatenate([part.tail for part in parts]),
        np.concatenate([part.asked for part in parts]),
        np.concatenate([part.heads for part in parts]),
        np.concatenate([part.owner + begin for part, begin in zip(parts, begins, strict=False)]),
    )
