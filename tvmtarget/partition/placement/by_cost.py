"""Assign sites by cost: minimize the predicted time of operations, copies and launches together.

Operations stay on the site that they prefer unless known numbers say that another one is faster (`cost_matrix.py`). Of
two equally fast assignments, the one that follows the order of preference wins.
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
from tvmtarget.partition.placement.energy import Bools, LabelingProblem, energy_of, enumerate_labelings
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.lagrangian import within_capacity
from tvmtarget.partition.placement.level import Assignment, Level, by_preference, preferred
from tvmtarget.partition.placement.local_search import SubgraphMoves, neighboring_labelings
from tvmtarget.partition.placement.maxflow import Budget
from tvmtarget.partition.placement.memory_capacity import MemoryCapacity, capacity_of
from tvmtarget.partition.subgraphs.forming import best_subgraphs, quick_subgraphs
from tvmtarget.partition.subgraphs.lower_bound import lower_bound
from tvmtarget.partition.subgraphs.typed_fusion import LabeledGraph
from tvmtarget.target.topology import Site

__all__ = ["CostChooser"]

# Up to this many labelings, all of them are compared, and the result is exact.
ENUMERATED = 65_536

# Parts of a launch that are charged wherever a value passes between sites, tried beside 0. How many calls a labeling
# needs is only known once subgraphs are formed, so no single part is right.
SHARES = (0.5, 1.0)

# Above this many atoms only the first part is tried, and 0 only where it proves a lower bound.
LARGE = 50_000

# Up to this many atoms all starting points are improved, and the result by local search over atoms and values.
SMALL = 64

# The most labelings, of those that are compared at once, whose subgraphs are formed by all methods.
MAX_FORMED = 16

# Edge visits that the cuts of one level may take, per atom and value, and in addition. Beyond the budget the
# assignment is valid, but not proven to be the best.
WORK, WORK_BESIDE = 4, 10**6

# Up to this many atoms and readers, whole subgraphs are moved too, in at most this many rounds.
MAX_DROPPED, MAX_ROUNDS = 60_000, 4

_ENDLESS = np.iinfo(np.int64).max


class CostChooser:
    """A chooser that minimizes the predicted time of a level.

    Args:
        feasibility: which site can run which operation.
        estimates: times of operations, calls and copies.
    """

    def __init__(self, feasibility: Feasibility, estimates: Estimates) -> None:
        self.feasibility = feasibility
        self.estimates = estimates

    def __call__(self, level: Level) -> Assignment:
        """Choose a site for every atom.

        With `Costs.doubt`, the site that would be best for the whole program keeps an operation unless another one is
        faster even at the worst of the error.

        Args:
            level: the atoms and options of one system.

        Returns:
            The assignment, and a lower bound for all assignments if all relevant times are known.

        Raises:
            InfeasibleError: if the weights fit the memories in no way that was found.
        """
        if not level.atoms or len(level.options) == 1:
            return by_preference(level)
        level = self._with_capacities(level)
        matrix = cost_matrix_of(self.feasibility, self.estimates, level)
        choice = self._best(level, matrix)
        if not self.estimates.costs.doubt:
            return choice
        trusted = _best_single_site(level, matrix.problem)
        doubted = self._best(level, cost_matrix_of(self.feasibility, self.estimates, level, trusted))
        return replace(choice, chosen=doubted.chosen)

    def _best(self, level: Level, matrix: CostMatrix) -> Assignment:
        """Return the best of all labelings if they are few, else of those that cuts and local search find."""
        problem = matrix.problem
        search = _Search(level, problem)
        by_preference_first = preferred(level)
        enumerated = enumerate_labelings(problem, ENUMERATED)
        if len(enumerated):
            search.consider([by_preference_first, *enumerated])
            bound = search.bound_of(enumerated)
        else:
            budget = Budget(WORK * (len(problem.costs) + len(problem.readers)) + WORK_BESIDE)
            starts = list(_starts(problem))
            found = _expanded(problem, starts, budget)
            if len(problem.costs) <= SMALL:
                found += [expand_labels(problem, SHARES[0], budget, start) for start in starts]
            relaxed = problem.relaxed()
            if relaxed is not problem and len(problem.launches) == 2:
                found.insert(0, expand_labels(relaxed, 0.0, budget))
            search.consider([by_preference_first, *starts, *found])
            if len(search.labels) and len(problem.costs) + len(problem.readers) <= MAX_DROPPED:
                search.move_subgraphs()
            if len(search.labels) and len(problem.costs) <= SMALL:
                search.move_atoms()
            bound = _lower_bound(relaxed, found[0] if budget.is_sufficient else None)
        if level.capacity is not None and not (len(enumerated) and len(search.labels)):
            search.consider_within(level.capacity)
        is_known = matrix.is_known and not matrix.shift
        launches: list[int] = problem.launches.tolist()
        return Assignment(search.labels.tolist(), bound if is_known else None, launches, level.capacity)

    def _with_capacities(self, level: Level) -> Level:
        """Return the level with the memory capacities that the costs state."""
        stated = self.estimates.capacities()
        if not stated:
            return level
        program = self.feasibility.program
        capacity = capacity_of(program, level.site.domain, level.options, level.atoms, stated)
        return replace(level, capacity=capacity)


def _best_single_site(level: Level, problem: LabelingProblem) -> Site:
    """Return the option that gives the fastest program if it runs all that it can, the rest at its best."""

    def total(labels: Ints) -> int:
        search = _Search(level, problem)
        search.consider([labels])
        return search.total

    _, *starts = _starts(problem)
    return min(zip(level.options, starts, strict=False), key=lambda pair: total(pair[1]))[0]


def _starts(problem: LabelingProblem) -> Iterator[Ints]:
    """Yield starting points: each atom at its best, then for every site and memory all that can be there."""
    costs = np.where(problem.allowed, problem.costs, _ENDLESS)
    labels = np.arange(len(problem.domains))
    shared = (problem.domains == domain for domain in np.unique(problem.domains).tolist())
    yield costs.argmin(axis=1)
    for mask in (*(labels == label for label in labels.tolist()), *(one for one in shared if one.sum() > 1)):
        inside = np.where(mask, costs, _ENDLESS)
        yield np.where(inside.min(axis=1) < _ENDLESS, inside.argmin(axis=1), costs.argmin(axis=1))


def _expanded(problem: LabelingProblem, starts: Sequence[Ints], budget: Budget) -> list[Ints]:
    """Return the labelings that expansion finds for each part of a launch; with two labels the first is for part 0."""
    shares: tuple[float, ...] = (0.0, *SHARES) if len(problem.costs) <= LARGE else (0.0, SHARES[0])
    if len(problem.costs) > LARGE and len(problem.launches) > 2:
        shares = shares[1:]
    found = [min(starts, key=energy_of(problem, shares[0]).total)]
    for share in shares:
        found.append(expand_labels(problem, share, budget, found[-1]))
    return found[1:]


class _Search:
    """Keeps the best labeling that was considered, by the cost of the plan: subgraphs are formed as they will be."""

    def __init__(self, level: Level, problem: LabelingProblem) -> None:
        self.level = level
        self.problem = problem
        self.energy = energy_of(problem, 0.0)
        self.labels: Ints = np.zeros(0, dtype=np.int64)
        self.total = 2**63
        self.formed: set[bytes] = set()  # labelings whose subgraphs were formed by all methods

    def consider(self, candidates: Sequence[Ints]) -> None:
        """Keep the best candidate if it is better than all before; of equal ones the first."""
        if not candidates:
            return
        launches = self.problem.launches
        totals, used = self._sums(np.array(candidates))
        bounds = totals + used @ launches  # at least one call per label in use
        best = 0
        # Forming subgraphs is the expensive part: start with what is cheapest without calls, to skip most others.
        for number in np.argsort(totals, kind="stable").tolist():
            if bounds[number] > self.total:
                continue
            labels = candidates[number]
            if self.level.capacity is not None and not self.level.capacity.fits(labels):
                continue
            subgraphs = self._grouped(labels)
            total = int(totals[number]) + int(launches[labels[[subgraph[0] for subgraph in subgraphs]]].sum())
            if (total, number) < (self.total, best):
                self.labels, self.total, best = labels, total, number
        if len(self.problem.costs) <= SMALL:
            self._form_again(candidates, totals, bounds)

    def _form_again(self, candidates: Sequence[Ints], totals: Ints, bounds: Ints) -> None:
        """Form subgraphs by all methods for candidates that could be better than the best: fewer calls may do."""
        level, launches = self.level, self.problem.launches
        remaining = MAX_FORMED
        for number in np.argsort(bounds, kind="stable").tolist():
            if bounds[number] >= self.total or not remaining:
                break
            labels = candidates[number]
            if (key := labels.tobytes()) in self.formed or not (level.capacity is None or level.capacity.fits(labels)):
                continue
            self.formed.add(key)
            remaining -= 1
            subgraphs = best_subgraphs(level, labels.tolist(), launches.tolist())
            total = int(totals[number]) + int(launches[labels[[subgraph[0] for subgraph in subgraphs]]].sum())
            if total < self.total:
                self.labels, self.total = labels, total

    def bound_of(self, labelings: Ints) -> int:
        """Return a cost that none of some labelings goes below, however their subgraphs are formed."""
        launches = self.problem.launches
        totals, used = self._sums(labelings)
        bounds = totals + used @ launches
        least: int | None = None
        for number in np.argsort(bounds, kind="stable").tolist():
            if least is not None and bounds[number] >= least:
                break
            graph = LabeledGraph(self.level.graph, labelings[number].tolist())
            more_calls = lower_bound(graph) - int(used[number].sum())
            bound = int(bounds[number]) + more_calls * int(launches[used[number]].min())
            least = bound if least is None else min(least, bound)
        return least or 0

    def _sums(self, rows: Ints) -> tuple[Ints, Bools]:
        """Return the cost of atoms and copies of each labeling, and which labels it uses."""
        used = np.stack([(rows == label).any(axis=1) for label in range(len(self.problem.launches))], axis=1)
        return self.energy.totals(rows) - self.problem.overcharged(rows), used

    def consider_within(self, capacity: MemoryCapacity) -> None:
        """Consider labelings that fit the memories; raise `InfeasibleError` if there is none."""
        try:
            for labels in within_capacity(self.problem, capacity):
                self.consider([labels])
        except InfeasibleError:
            if not len(self.labels):
                raise

    def move_subgraphs(self) -> None:
        """Move whole subgraphs to other labels while that lowers the cost."""
        moves = SubgraphMoves(self.problem)
        self._improve(lambda: [moves.moved(self.labels, self._grouped(self.labels))])

    def move_atoms(self) -> None:
        """Move single atoms, all atoms at a value, and all atoms of a label while that lowers the cost."""
        self._improve(lambda: [*neighboring_labelings(self.problem, self.labels)])

    def _improve(self, neighbours: Callable[[], Sequence[Ints]]) -> None:
        """Hill climbing: consider neighbours of the best labeling until none is better."""
        for _ in range(MAX_ROUNDS):
            before = self.total
            self.consider(neighbours())
            if self.total == before:
                break

    def _grouped(self, labels: Ints) -> list[list[int]]:
        return quick_subgraphs(self.level, labels.tolist(), self.problem.launches.tolist())


def _lower_bound(problem: LabelingProblem, without_launches: Ints | None) -> int:
    """Return a cost that no labeling goes below: with two labels all but launches, else only the operations.

    `without_launches` is the best labeling if calls were free, None if it is not proven to be.
    """
    if len(problem.launches) == 2 and without_launches is not None:
        return problem.total(without_launches) + int(problem.launches.min())
    operations = np.where(problem.allowed, problem.costs, _ENDLESS).min(axis=1).sum()
    return int(operations) + int(problem.launches.min())
