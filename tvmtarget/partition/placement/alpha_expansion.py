"""Minimize the energy of a labeling by alpha-expansion; with two labels one minimum cut is exact.

Boykov, Veksler and Zabih, "Fast Approximate Energy Minimization via Graph Cuts" (2001): for each label alpha in turn,
a cut decides which atoms change to it. All numbers are integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.placement.binary_labeling import ALWAYS, Terms, decide
from tvmtarget.partition.placement.energy import Bools, Energy, LabelingProblem, energy_of
from tvmtarget.partition.placement.maxflow import Budget

__all__ = ["expand_each", "expand_labels"]

# Sweeps over all labels end when one gains nothing; two or three are usual.
MAX_SWEEPS = 4

# Expansions that are made already, by labeling, label and candidates: the better labeling, None if there is none, and
# the edge visits that it took.
_Known: TypeAlias = dict[tuple[bytes, int, bytes], tuple[Ints | None, int]]


def expand_labels(
    problem: LabelingProblem, share: float, budget: Budget | None = None, start: Ints | None = None
) -> Ints:
    """Return a labeling of low energy.

    Args:
        problem: the labeling problem.
        share: the part of a launch that is charged wherever a value passes between labels.
        budget: edge visits that the cuts may take; None for practically no limit.
        start: labels to improve; None starts from the cheapest label of each atom.

    Returns:
        An allowed label for each atom; the optimum if there are two labels and the budget suffices.
    """
    energy = energy_of(problem, share)
    budget = Budget(10**12) if budget is None else budget
    # From all on label 0, expanding label 1 covers every labeling: one cut is the global optimum.
    if len(problem.domains) == 2:
        return _expanded(energy, energy.allowed.argmax(axis=1), 1, energy.allowed[:, 1], budget)
    if start is None:
        start = problem.allowed_costs.argmin(axis=1)
    return _sweep(energy, start, budget)


def expand_each(problem: LabelingProblem, share: float, budget: Budget, starts: Sequence[Ints]) -> list[Ints]:
    """Return a labeling of low energy for each of several starts.

    Many starts lead to the same labelings, from which each expansion is made once.

    Args:
        problem: the labeling problem.
        share: as for `expand_labels`.
        budget: edge visits that the cuts may take.
        starts: labels to improve.

    Returns:
        What `expand_labels` returns for each start.
    """
    if len(problem.domains) == 2:
        return [expand_labels(problem, share, budget, start) for start in starts]
    energy, known = energy_of(problem, share), _Known()
    return [_sweep(energy, start, budget, known) for start in starts]


def _sweep(energy: Energy, labels: Ints, budget: Budget, known: _Known | None = None) -> Ints:
    """Expand every label in turn; after the first sweep only atoms near those that have moved since then."""
    count = energy.allowed.shape[1]
    pending = np.ones((count, len(labels)), dtype=np.bool_)
    for _ in range(MAX_SWEEPS):
        has_gained = False
        for label in range(count):
            candidates = pending[label] & energy.allowed[:, label] & (labels != label)
            pending[label] = False
            if known is None:
                moved = _improved(energy, labels, label, candidates, budget)
            else:
                moved = _recalled(energy, labels, label, candidates, budget, known)
            if moved is not None:
                pending |= energy.neighbours(moved != labels)
                labels, has_gained = moved, True
        if not has_gained:
            break
    return labels


def _recalled(
    energy: Energy, labels: Ints, label: int, candidates: Bools, budget: Budget, known: _Known
) -> Ints | None:
    """Return what `_improved` returns, and charge the same visits, if need be without cuts."""
    key = labels.tobytes(), label, candidates.tobytes()
    moved, visits = known.get(key, (None, -1))
    # A cut may take up to a quarter of what is left: with more than that, each would be finished again.
    if visits >= 0 and budget.left > 4 * visits + 8:
        budget.left -= visits
        return moved
    before = budget.left
    moved = _improved(energy, labels, label, candidates, budget)
    if budget.is_sufficient:
        known[key] = moved, before - budget.left
    return moved


def _improved(energy: Energy, labels: Ints, label: int, candidates: Bools, budget: Budget) -> Ints | None:
    """Return the labeling after an expansion; None if it is not better."""
    local = energy.restricted_to(candidates)
    moved = _expanded(local, labels, label, candidates, budget)
    is_better = (moved != labels).any() and local.total(moved) < local.total(labels)
    return moved if is_better else None


def _expanded(energy: Energy, labels: Ints, label: int, candidates: Bools, budget: Budget) -> Ints:
    """Return the labeling after some atoms may have changed to one label."""
    movable = np.flatnonzero(candidates & (labels != label))
    if not len(movable):
        return labels
    differences, terms = _binary_problem(energy, labels, label, movable)
    accepted = decide(differences, terms, budget)
    result = labels.copy()
    result[movable[accepted]] = label
    return result


def _binary_problem(energy: Energy, labels: Ints, label: int, movable: Ints) -> tuple[Ints, Terms]:
    """Return the choice between keeping the current label and taking one label as binary decisions of some atoms.

    The cost of a value is taken from the group where its producer is, and from the group where its producer would be.
    """
    position = np.full(len(labels) + 1, ALWAYS, dtype=np.int64)
    position[movable] = np.arange(len(movable))
    differences = energy.costs[movable, label] - energy.costs[movable, labels[movable]]
    edges = np.arange(len(energy.producer))
    tail = position[energy.producer]
    source, target = energy.sources(labels), energy.groups[energy.layer, label]
    owner, width = energy.owner, energy.pair_costs.shape[-1]
    group = energy.groups[energy.layer[owner], labels[energy.readers]]
    moves = (position[energy.readers] != ALWAYS) & (group != target[owner])
    fixed = energy.fixed.copy()
    fixed[owner[~moves], group[~moves]] = True
    has_tail = tail != ALWAYS
    # Only groups that an edge leads to are looked at: there may be many more.
    reached, into = np.nonzero(fixed & has_tail[:, None])
    change = energy.costs_between(reached, target[reached], into) - energy.costs_between(reached, source[reached], into)
    np.add.at(differences, tail[reached], change)
    heads, owner, group = position[energy.readers[moves]], owner[moves], group[moves]
    count = np.bincount(owner, minlength=len(edges))
    is_counted = ~fixed[owner, group]
    counted = _KeyedTerms(heads[is_counted], (owner * width + group)[is_counted])
    of, into = np.divmod(counted.keys, width)
    stay, go = (energy.costs_between(of, sources[of], into) for sources in (source, target))
    # If the producer moves, reaching a group may become cheaper. For one reader that is still submodular; for several
    # it is not, so the higher cost is charged in both cases: an upper bound that is exact while nothing moves.
    is_cheaper, is_single = has_tail[of] & (go < stay), count[of] == 1
    always = np.where(has_tail[of] & (is_single | ~is_cheaper), np.minimum(stay, go), stay)
    extra = np.where(has_tail[of], np.maximum(go - stay, 0), 0)
    single = np.zeros(len(edges), dtype=np.int64)
    single[of] = np.where(is_cheaper & is_single, stay - go, 0)
    np.subtract.at(differences, tail[has_tail], single[has_tail])
    arriving = np.maximum(0, energy.costs_between(edges, source, target) - single)
    is_entered = ~fixed[edges, target] & (count > 0)
    arrives = _KeyedTerms(heads[is_entered[owner]], owner[is_entered[owner]])
    parts = (
        # Heads that do not move (trigger no) pay for their group once; more if the producer moves.
        counted.terms(always, np.full(len(of), ALWAYS), trigger=False),
        counted.terms(extra, tail[of], trigger=False),
        # Heads that move (trigger yes) pay for the target group once, unless the producer moves too.
        arrives.terms(arriving[arrives.keys], tail[arrives.keys], trigger=True),
    )
    return differences, _joined(parts)


class _KeyedTerms:
    """Groups of heads that share a key, and so pay a cost only once."""

    def __init__(self, heads: Ints, keys: Ints) -> None:
        self.heads = heads
        self.keys, self.owner = np.unique(keys, return_inverse=True)

    def terms(self, cost: Ints, tails: Ints, *, trigger: bool) -> Terms:
        """Return the terms with a positive cost, from those of all keys."""
        triggers = np.full(len(cost), trigger)
        every = np.ones(len(self.heads), dtype=np.bool_)
        return Terms(cost, tails, triggers, self.heads, self.owner).select(cost > 0, every)


def _joined(parts: tuple[Terms, ...]) -> Terms:
    begins = np.cumsum([0, *(len(part.cost) for part in parts)])
    return Terms(
        np.concatenate([part.cost for part in parts]),
        np.concatenate([part.tail for part in parts]),
        np.concatenate([part.trigger for part in parts]),
        np.concatenate([part.heads for part in parts]),
        np.concatenate([part.owner + begin for part, begin in zip(parts, begins, strict=False)]),
    )
