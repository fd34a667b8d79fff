"""Choosing sites by cost: operations, copies and launches together, beside the choice by preference.

Operations stay on the site that they prefer unless known numbers say that another one is faster (`scales.py`). Of two
choices the faster one wins, then the one that children in order of preference give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.placement.alpha_expansion import expand_labels
from tvmtarget.partition.placement.cost_matrix import CostMatrix, cost_matrix_of
from tvmtarget.partition.placement.energy import Bools, LabelingProblem, energy_of, enumerated
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.lagrangian import within_capacity
from tvmtarget.partition.placement.level import Assignment, Level, by_preference, preferred
from tvmtarget.partition.placement.local_search import neighboring_assignments
from tvmtarget.partition.placement.maxflow import Budget
from tvmtarget.partition.placement.memory_capacity import MemoryCapacity, capacity_of
from tvmtarget.partition.placement.subgraph_moves import SubgraphMoves
from tvmtarget.partition.subgraphs.forming import quick_subgraphs
from tvmtarget.partition.subgraphs.lower_bound import lower_bound
from tvmtarget.partition.subgraphs.typed_fusion import LabeledGraph
from tvmtarget.target.topology import Site

__all__ = ["CostChooser"]

# All choices are tried if there are no more than this.
ENUMERATED = 65_536

# Shares of a launch that are charged wherever a value passes between sites: how many subgraphs that makes is only
# known afterwards, so several are tried, beside none.
SHARES = (0.5, 1.0)

# With more atoms than this only the first share is tried, and none where that would prove nothing.
LARGE = 50_000

# With no more atoms than this several starts are improved, and the best choice by single atoms and values.
SMALL = 64

# Visits of edges that the cuts of one level may take, for each atom and value, and beside: beyond it, sites are still
# valid, but no longer the best.
WORK, WORK_BESIDE = 4, 10**6

# Whole subgraphs are offered other sites in programs with no more atoms and readers than this, in so many rounds.
MAX_DROPPED, MAX_ROUNDS = 60_000, 4


class CostChooser:
    """A chooser of sites (see `split`) that asks estimates."""

    def __init__(self, feasibility: Feasibility, estimates: Estimates) -> None:
        self.feasibility = feasibility
        self.estimates = estimates

    def __call__(self, level: Level) -> Assignment:
        """Choose a site for every atom of a level."""
        if not level.atoms or len(level.options) == 1:
            return by_preference(level)
        level = self._with_capacities(level)
        numbers = cost_matrix_of(self.feasibility, self.estimates, level)
        choice = self._best(level, numbers)
        if not self.estimates.costs.doubt:
            return choice
        trusted = _best_alone(level, numbers.placement)
        doubted = self._best(level, cost_matrix_of(self.feasibility, self.estimates, level, trusted))
        return replace(choice, chosen=doubted.chosen)

    def _best(self, level: Level, numbers: CostMatrix) -> Assignment:
        placement = numbers.placement
        judge = _Judge(level, placement)
        by_preference_first = preferred(level)
        tried = enumerated(placement, ENUMERATED)
        if len(tried):
            judge.look_at([by_preference_first, *tried])
            least = judge.least_of(tried)
        else:
            budget = Budget(WORK * (len(placement.costs) + len(placement.readers)) + WORK_BESIDE)
            starts = list(_starts(placement))
            found = _searched(placement, starts, budget)
            if len(placement.costs) <= SMALL:
                found += [expand_labels(placement, SHARES[0], budget, start) for start in starts]
            relaxed = placement.relaxed()
            if relaxed is not placement and len(placement.launches) == 2:
                found.insert(0, expand_labels(relaxed, 0.0, budget))
            judge.look_at([by_preference_first, *starts, *found])
            if len(judge.chosen) and len(placement.costs) + len(placement.readers) <= MAX_DROPPED:
                judge.drop_subgraphs()
            if len(judge.chosen) and len(placement.costs) <= SMALL:
                judge.nudge()
            least = _least(relaxed, found[0] if budget.is_kept else None)
        if level.capacity is not None and not (len(tried) and len(judge.chosen)):
            judge.look_within(level.capacity)
        is_known = numbers.is_known and not numbers.shift
        launches: list[int] = placement.launches.tolist()
        return Assignment(judge.chosen.tolist(), least if is_known else None, launches)

    def _with_capacities(self, level: Level) -> Level:
        """Return the level with the capacities that the costs state."""
        stated = self.estimates.capacities()
        if not stated:
            return level
        return replace(
            level, capacity=capacity_of(self.feasibility.program, level.site.domain, level.options, level.atoms, stated)
        )


def _best_alone(level: Level, placement: LabelingProblem) -> Site:
    """Return the option with which all is fastest that it can take, the rest at its best."""

    def total(labels: Ints) -> int:
        judge = _Judge(level, placement)
        judge.look_at([labels])
        return judge.least

    _, *starts = _starts(placement)
    return min(zip(level.options, starts, strict=False), key=lambda pair: total(pair[1]))[0]


def _starts(placement: LabelingProblem) -> Iterator[Ints]:
    """Yield all at its best, and for every site and memory the choice that puts there whatever it can."""
    endless = np.iinfo(np.int64).max
    costs = np.where(placement.allowed, placement.costs, endless)
    numbers = np.arange(len(placement.domains))
    shared = (placement.domains == domain for domain in np.unique(placement.domains).tolist())
    yield costs.argmin(axis=1)
    for which in (*(numbers == option for option in numbers.tolist()), *(one for one in shared if one.sum() > 1)):
        inside = np.where(which, costs, endless)
        yield np.where(inside.min(axis=1) < endless, inside.argmin(axis=1), costs.argmin(axis=1))


def _searched(placement: LabelingProblem, starts: Sequence[Ints], budget: Budget) -> list[Ints]:
    """Return the choices that cuts find: with two sites the first is without regard to launches."""
    shares: tuple[float, ...] = (0.0, *SHARES) if len(placement.costs) <= LARGE else (0.0, SHARES[0])
    if len(placement.costs) > LARGE and len(placement.launches) > 2:
        shares = shares[1:]
    found = [min(starts, key=energy_of(placement, shares[0]).total)]
    for share in shares:
        found.append(expand_labels(placement, share, budget, found[-1]))
    return found[1:]


class _Judge:
    """Keeps the best choice, by the model that plans are measured by: subgraphs as they will be."""

    def __init__(self, level: Level, placement: LabelingProblem) -> None:
        self.level = level
        self.placement = placement
        self.energy = energy_of(placement, 0.0)
        self.chosen: Ints = np.zeros(0, dtype=np.int64)
        self.least = 2**63

    def look_at(self, candidates: Sequence[Ints]) -> None:
        """Take the best of some choices if it is better than all before; of equal ones the first."""
        if not candidates:
            return
        launches = self.placement.launches
        totals, used = self._sums(np.array(candidates))
        floors = totals + used @ launches
        best = 0
        for place in np.argsort(totals, kind="stable").tolist():
            if floors[place] > self.least:
                continue
            labels = candidates[place]
            if self.level.capacity is not None and not self.level.capacity.is_kept(labels):
                continue
            subgraphs = self._grouped(labels)
            total = int(totals[place]) + int(launches[labels[[subgraph[0] for subgraph in subgraphs]]].sum())
            if (total, place) < (self.least, best):
                self.chosen, self.least, best = labels, total, place

    def least_of(self, choices: Ints) -> int:
        """Return what none of some choices can go below, however its subgraphs are formed."""
        launches = self.placement.launches
        totals, used = self._sums(choices)
        floors = totals + used @ launches
        least: int | None = None
        for place in np.argsort(floors, kind="stable").tolist():
            if least is not None and floors[place] >= least:
                break
            more = lower_bound(LabeledGraph(self.level.graph, choices[place].tolist())) - int(used[place].sum())
            floor = int(floors[place]) + more * int(launches[used[place]].min())
            least = floor if least is None else min(least, floor)
        return least or 0

    def _sums(self, rows: Ints) -> tuple[Ints, Bools]:
        """Return what atoms and copies cost under every row of labels, and which labels each has."""
        used = np.stack([(rows == label).any(axis=1) for label in range(len(self.placement.launches))], axis=1)
        return self.energy.totals(rows) - self.placement.shared(rows), used

    def look_within(self, capacity: MemoryCapacity) -> None:
        """Look at choices that memories have capacity for; `InfeasibleError` if there is none."""
        try:
            for labels in within_capacity(self.placement, capacity):
                self.look_at([labels])
        except InfeasibleError:
            if not len(self.chosen):
                raise

    def drop_subgraphs(self) -> None:
        """Move subgraphs that cost more than they bring, and those that this makes so, as long as the whole gains."""
        drops = SubgraphMoves(self.placement)
        self._look_again(lambda: [drops.moved(self.chosen, self._grouped(self.chosen))])

    def nudge(self) -> None:
        """Move single atoms, all at a value, and all of a site, as long as the whole gains."""
        self._look_again(lambda: [*neighboring_assignments(self.placement, self.chosen)])

    def _look_again(self, changed: Callable[[], Sequence[Ints]]) -> None:
        """Look at changes of what is chosen, as long as the whole gains."""
        for _ in range(MAX_ROUNDS):
            before = self.least
            self.look_at(changed())
            if self.least == before:
                break

    def _grouped(self, labels: Ints) -> list[list[int]]:
        return quick_subgraphs(self.level, labels.tolist(), self.placement.launches.tolist())


def _least(placement: LabelingProblem, without_launches: Ints | None) -> int:
    """Return what no choice can go below: exact but for launches with two sites, else only the operations.

    `without_launches` is the best choice if calls were free, None if no proof says that it is.
    """
    if len(placement.launches) == 2 and without_launches is not None:
        return placement.total(without_launches) + int(placement.launches.min())
    endless = np.iinfo(np.int64).max
    operations = np.where(placement.allowed, placement.costs, endless).min(axis=1).sum()
    return int(operations) + int(placement.launches.min())
