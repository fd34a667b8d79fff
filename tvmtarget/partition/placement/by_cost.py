"""Assign sites by cost: minimize the predicted time of operations, copies and launches together.

Operations stay on the site that they prefer unless known numbers say that another one is faster (`cost_matrix.py`). Of
two equally fast assignments, the one that follows the order of preference wins.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import cached_property
from itertools import cycle

import numpy as np

from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.control.control_flow_ops import expected_body_runs
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.placement.alpha_expansion import expand_labels
from tvmtarget.partition.placement.cost_matrix import CostMatrix, cost_matrix_of
from tvmtarget.partition.placement.coupled_atoms import CoupledAtoms, CoupledOps, coupled_atoms
from tvmtarget.partition.placement.detours import Detours
from tvmtarget.partition.placement.dual_bound import DualAscent
from tvmtarget.partition.placement.energy import (
    Bools,
    LabelingProblem,
    energy_of,
    enumerate_labelings,
    labelings_below,
)
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.lagrangian import PricedLabelings, Prices, priced_labelings
from tvmtarget.partition.placement.level import (
    Assignment,
    Level,
    by_preference,
    first_option,
    level_of,
    with_capacities,
)
from tvmtarget.partition.placement.local_search import (
    SubgraphMoves,
    mixtures,
    neighboring_labelings,
    paired,
    with_fewer_subgraphs,
)
from tvmtarget.partition.placement.maxflow import Budget
from tvmtarget.partition.placement.memory_capacity import MemoryCapacity
from tvmtarget.partition.plan_cache import PlanCache, digest
from tvmtarget.partition.subgraphs.forming import best_subgraphs, quick_subgraphs
from tvmtarget.partition.subgraphs.lower_bound import fewest_by_label, least_weight
from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph, LabeledGraph
from tvmtarget.target.topology import Site

__all__ = ["CostChooser"]

# Up to this many labelings, all of them are compared, and the result is exact.
ENUMERATED = 4096

# Parts of a launch that are charged wherever a value passes between sites, tried beside 0. How many calls a labeling
# needs is only known once subgraphs are formed, so no single part is right.
SHARES = (0.5, 1.0)

# Paths for which calls of labels with limited subgraphs get a price.
MAX_PRICED = 4

# So many candidates are moved within limits on subgraphs, by as many moves at most.
MAX_LIMITED = 16

# Above this many atoms only the first part is tried, and the dual has calls before labels are chosen: they are charged
# where labels are best after this part of the steps.
LARGE, CHARGED_AFTER = 50_000, 0.1

# Steps of the ascent on the dual before labels are chosen.
START_STEPS = 60

# Labels are promising up to this part of the mean cost of an atom and the cost of a call as reduced cost, in large
# programs up to half of it.
PROMISING = 0.25

# Where the best labeling is this close to the bound, none is taken from the dual with calls.
CLOSE = 0.02

# Up to this many atoms, expansion also starts as if there were no copies.
DIVERSE = 500

# Up to this many atoms starting points are improved, and the result by local search over atoms and values. Starting
# points are at least as many as labels, and so is what expansion tries of each: so many in all.
SMALL, MAX_EXPANDED = 64, 1024

# Up to this many atoms, those single moves of an atom are tried that add least to operations and copies: so many in
# a round. They must pay for themselves by the calls that they save, of which one move seldom saves more than two.
MOVED, MAX_TRIED, MAX_SAVED = 256, 48, 2

# Up to this many atoms, what is between subgraphs is moved, where the best labeling is not this close to the bound and
# all such moves have no more labels than this.
MERGED, WORTH_MERGING, MERGING = 2_000, 0.005, 4_000_000

# In small programs, so many other labelings are improved, too, where the best one is not close to the bound.
OTHERS = 2

# The most labelings, of those that are compared at once, whose subgraphs are formed by all methods.
MAX_FORMED = 16

# Up to this many atoms whose choices depend on each other, any two of them are moved together; of more, exchanged.
PAIRED = 16

# Up to this many atoms, branch and bound is tried first: where it ends, nothing else is needed.
FEW = 24

# If no more labelings than this may be better than the best that was found, all of them are compared.
BETTER = 10_000

# Up to this many labelings, the cheapest without calls, have their calls bounded where several are returned.
MAX_BOUNDS = 256

# Up to this many candidates are repaired where atoms are not apart as required; of more, these are left out.
MAX_REPAIRED = 64

# Of labelings by prices, how many of the last ones sections of the program are taken from; the rounds, and the mixtures
# of each, which are at most so many in small programs, and in all others so many labels.
MAX_MIXED, MAX_MIXED_ROUNDS, MIXTURES, MIXING = 6, 100, 400, 400_000

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
        coupled: requests that couple operations. They are kept where a level decides them and an assignment that
            keeps them is found.
        bounds: whether to find a tight lower bound for the whole program.
        detours: what values may save in plans that lower bounds also hold for, where each option is a leaf.
    """

    def __init__(
        self,
        feasibility: Feasibility,
        estimates: Estimates,
        coupled: CoupledOps | None = None,
        *,
        bounds: bool = True,
        detours: Detours | None = None,
    ) -> None:
        self.feasibility = feasibility
        self.estimates = estimates
        self.coupled = coupled or CoupledOps()
        self.bounds = bounds
        self.detours = detours
        self._body_costs: dict[tuple[str, bool, int], int] = {}

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
        level = with_capacities(level, self.estimates)
        matrix = self.matrix(level)
        choice = self.best(level, matrix)
        if not self.estimates.costs.doubt:
            return choice
        trusted = _best_single_site(level, matrix.problem)
        doubted = self.best(level, self.matrix(level, trusted))
        return replace(choice, chosen=doubted.chosen)

    def matrix(self, level: Level, trusted: Site | None = None) -> CostMatrix:
        """Return the labeling problem of a level.

        Args:
            level: the atoms and options of one system.
            trusted: as for `cost_matrix_of`.

        Returns:
            The problem, in which the bodies that a driver may run cost what they take if they are assigned alone.
        """
        costs = {
            (atom, option): self._body_cost(level, option, level.atoms[atom][0])
            for option in sorted(level.drivers)
            for atom in np.flatnonzero(level.allowed[:, option]).tolist()
        }
        owner = coupled_atoms(level, self.coupled).owner
        return cost_matrix_of(self.feasibility, self.estimates, level, trusted, costs, owner)

    def body_level(self, level: Level, option: int, calls: tuple[int, ...]) -> Level:
        """Return what is to be decided in a body that a driver of a level runs.

        Args:
            level: the level around the body.
            option: the driver, one of the options of the level.
            calls: the operations of the body.

        Returns:
            A level of the driver's site, whose options are leaves where those of the level around it are.

        Raises:
            InfeasibleError: if operations that stay together fit no option.
        """
        driver = level.options[option]
        options = self.feasibility.options_of_bodies(driver)
        if level.decides_leaves:
            options = tuple(leaf for child in options for leaf in self.feasibility.leaves_below(child))
        return level_of(self.estimates.program, self.feasibility, driver, calls, options)

    def _body_cost(self, level: Level, option: int, index: int) -> int:
        """Return what the bodies of an operation take that a driver of a level runs; 0 where that is not known."""
        key = level.options[option].path, level.decides_leaves, index
        if key not in self._body_costs:
            program = self.estimates.program
            runs, total = float(expected_body_runs(program.op(index))), 0
            for scope in program.bodies[index]:
                with suppress(InfeasibleError):
                    inner = self.body_level(level, option, tuple(scope.calls))
                    matrix = self.matrix(inner)
                    if inner.atoms and matrix.is_known and not matrix.shift:
                        search = _Search(inner, matrix.problem, coupled_atoms(inner, self.coupled))
                        search.run(is_bounded=False)
                        total += search.total if len(search.labels) else 0
            self._body_costs[key] = round(total * runs)
        return self._body_costs[key]

    def best(self, level: Level, matrix: CostMatrix) -> Assignment:
        """Choose a site for every atom by known costs.

        Args:
            level: the atoms and options of one system.
            matrix: the costs of the level.

        Returns:
            The best assignment found that keeps the requests that couple atoms; without them if none was found.
        """
        coupled = coupled_atoms(level, self.coupled)
        is_known = matrix.is_known and not matrix.shift
        search = _Search(level, matrix.problem, coupled, self.feasibility.cache, self.detours)
        # Only the bound of the uppermost level is a bound of the program.
        is_bounded = self.bounds and is_known and not level.site.path
        bound = search.run(is_bounded=is_bounded)
        if not len(search.labels) and self.coupled:
            apart = CoupledAtoms(np.arange(len(level.atoms)))
            search = _Search(level, matrix.problem, apart, self.feasibility.cache, self.detours)
            bound = max(bound, search.run(is_bounded=is_bounded))
        chosen = search.labels[search.coupled.owner].tolist()
        return Assignment(chosen, bound if is_known else None, search.launches(), level.capacity)

    def with_costlier_calls(self, level: Level) -> Assignment:
        """Return the best assignment if each call took longer, by a copy on average.

        Args:
            level: the atoms and options of one system.

        Returns:
            An assignment without a bound, which mostly has fewer subgraphs.
        """
        level = with_capacities(level, self.estimates)
        matrix = self.matrix(level)
        problem = matrix.problem
        copies = problem.pair_costs[problem.cost_index]
        more = round(float(copies[copies > 0].mean())) if (copies > 0).any() else 0
        is_called = np.array([number not in level.drivers for number in range(len(level.options))])
        costlier = replace(matrix, problem=replace(problem, launches=problem.launches + more * is_called))
        choice = self.best(level, costlier)
        return replace(choice, least_time=None, launches=problem.launches.tolist())

    def below(self, level: Level, total: int, most: int) -> list[Assignment]:
        """Return assignments that may cost less than a known plan.

        Args:
            level: the atoms and options of one system.
            total: the time of that plan, in picoseconds.
            most: the most assignments.

        Returns:
            Those of the lowest cost first; none if atoms are many, or their times are not known.
        """
        level = with_capacities(level, self.estimates)
        matrix = self.matrix(level)
        if len(level.atoms) > FEW or not matrix.is_known or matrix.shift or self.estimates.costs.doubt:
            return []
        coupled = coupled_atoms(level, self.coupled)
        search = _Search(level, matrix.problem, coupled, self.feasibility.cache, self.detours)
        launches: list[int] = search.problem.launches.tolist()
        return [
            Assignment(labels[coupled.owner].tolist(), None, launches, level.capacity)
            for labels in search.below(total, most)
        ]


def _best_single_site(level: Level, problem: LabelingProblem) -> Site:
    """Return the option that gives the fastest program if it runs all that it can, the rest at its best."""

    def total(labels: Ints) -> int:
        search = _Search(level, problem, CoupledAtoms(np.arange(len(level.atoms))))
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
    shares: tuple[float, ...] = (0.0, *SHARES) if len(problem.costs) <= LARGE else (SHARES[0],)
    found = [starts[0] if len(starts) == 1 else min(starts, key=energy_of(problem, shares[0]).total)]
    for share in shares:
        found.append(expand_labels(problem, share, budget, found[-1]))
    return found[1:]


class _Search:
    """Keeps the best labeling that was considered, by the cost of the plan: subgraphs are formed as they will be."""

    def __init__(
        self,
        level: Level,
        problem: LabelingProblem,
        coupled: CoupledAtoms,
        cache: PlanCache | None = None,
        detours: Detours | None = None,
    ) -> None:
        self.level = level
        self.cache = cache
        self.coupled = coupled
        self.single_atoms = coupled.without_unused(problem)
        self.problem = coupled.contracted(problem)
        self.capacity = coupled.capacity(level.capacity)
        self.energy = energy_of(self.problem, 0.0)
        self.labels: Ints = np.zeros(0, dtype=np.int64)
        self.total = 2**63
        self.formed: set[bytes] = set()  # labelings whose subgraphs were formed by all methods
        self.limited: set[bytes] = set()  # labelings that were moved within the limits on subgraphs
        self.climbed: set[bytes] = set()  # labelings whose neighbours were considered
        self.best_total = 2**63  # before climbing from another labeling
        self.prices: Prices | None = None  # of memories with capacities, for the bound
        self.detours = detours
        self.most_saved = 0 if detours is None else detours.most(self.problem)

    @cached_property
    def moves(self) -> SubgraphMoves:
        """Moves of subgraphs and of groups of neighbours."""
        return SubgraphMoves(self.problem)

    def run(self, *, is_bounded: bool) -> int:
        """Compare all labelings if they are few, else those that cuts and local search find; return a lower bound.

        Where labelings are many, the bound is only tight with `is_bounded`.
        """
        preferred = first_option(self.problem.allowed, self.coupled.all_of(self.level.favoured))
        enumerated = enumerate_labelings(self.problem, ENUMERATED)
        if len(enumerated):
            self.consider([preferred, *enumerated])
            bound = self.bound_of(enumerated)
        else:
            bound = self._solve(preferred, is_bounded=is_bounded)
        if self.capacity is not None and not len(self.labels):
            self.consider_within(self.capacity)
        return bound

    def _solve(self, preferred: Ints, *, is_bounded: bool) -> int:
        """Find labelings by branch and bound if atoms are few, else by cuts and local search; return a lower bound."""
        problem = self.problem
        work = WORK * (len(problem.costs) + len(problem.readers)) + WORK_BESIDE
        budget = Budget(work, cache=self.cache)
        starts = list(_starts(problem))
        if len(problem.costs) <= FEW:
            self.consider([preferred, *starts])
            self.move_atoms()
            proven = self.compare_better()
            if proven is not None:
                return proven
            self.labels, self.total, self.formed, self.climbed = self.labels[:0], 2**63, set(), set()
        found, ascent = self._expanded_from_dual(problem, budget, starts)
        is_exact = not found and len(problem.launches) == 2
        if not found or len(problem.costs) <= DIVERSE:
            found += _expanded(problem, starts, budget)
        found += [
            labels for one in self._within_limits() for labels in self._expanded_from_dual(one, budget, starts)[0]
        ]
        if len(problem.costs) <= SMALL:
            energy, most = energy_of(problem, SHARES[0]), max(1, MAX_EXPANDED // len(problem.launches))
            nearest = starts if len(starts) <= most else sorted(starts, key=energy.total)[:most]
            found += [expand_labels(problem, SHARES[0], budget, start) for start in nearest]
        relaxed = problem.relaxed()
        if relaxed is not problem and is_exact:
            found.insert(0, expand_labels(relaxed, 0.0, budget))
        self.consider([preferred, *starts, *found])
        is_exact &= budget.is_sufficient
        bound = max(0, _lower_bound(relaxed, found[0] if is_exact else None) - self.most_saved)
        if ascent is not None:
            bound = max(bound, ascent.bound)
        if self.capacity is not None:
            self.consider_within(self.capacity)
        self.move_subgraphs()
        if len(self.labels) and SMALL < len(problem.costs) <= MOVED:
            self.move_single_atoms()
        if len(self.labels) and len(problem.costs) <= SMALL:
            self.move_atoms()
            if self._is_coupled:
                self.climb_from([preferred, *starts, *found])
            proven = self.compare_better()
            if proven is not None:
                return proven
        if is_bounded and bound < self.total and len(problem.costs) <= LARGE:
            bound = self._with_calls(bound, ascent, budget)
        if bound < (1 - WORTH_MERGING) * self.total:
            self.merge_subgraphs()
            if bound < (1 - CLOSE) * self.total and len(problem.costs) <= SMALL and not self._is_coupled:
                self.climb_from(self._cheapest_of([*found, *starts], OTHERS))
        return bound

    def _with_calls(self, bound: int, ascent: DualAscent | None, budget: Budget) -> int:
        """Return a lower bound that has calls, or the known one if that is higher; consider the labelings near it."""
        # Merged atoms may form cycles, on which nothing is a path.
        graph = None if self.coupled.is_merged else self.level.graph
        ascent = ascent or self._ascent(self.problem, self.coupled.apart)
        bound = max(bound, self._dual_bound(ascent, graph))
        if graph is not None and bound < self.total:
            bound = max(bound, self._bound_within_limits(ascent, budget))
        if bound < (1 - CLOSE) * self.total and ascent.bound:
            # The reduced costs have calls now.
            self.consider(self._expanded_among_promising(self.problem, ascent, budget))
            self.move_subgraphs()
        if self.coupled.is_merged and len(self.labels) and bound < self.total:
            bound = max(bound, self._bound_of_single_atoms(budget))
        # Without a price this would be the same bound again.
        if self.prices is not None and self.prices.costs.any() and bound < self.total:
            bound = max(bound, self._bound_within_capacity(self.prices, graph))
        return bound

    def _within_limits(self) -> Iterator[LabelingProblem]:
        """Yield the problem with costlier calls of labels whose subgraphs are limited, then without these labels."""
        problem, limited = self.problem, [mask for mask, _ in self.coupled.most]
        if not limited:
            return
        yield replace(problem, launches=self.coupled.scarce(problem.launches))
        others = problem.allowed & ~np.logical_or.reduce(limited)
        yield replace(problem, allowed=np.where(others.any(axis=1)[:, None], others, problem.allowed))

    def _expanded_from_dual(
        self, problem: LabelingProblem, budget: Budget, starts: Sequence[Ints]
    ) -> tuple[list[Ints], DualAscent | None]:
        """Return labelings that expansion finds among promising labels, and the ascent that says which ones these are.

        From a labeling of low reduced costs it ends lower, and sooner, than from one that ignores copies. There is
        none where programs are small, where one cut is exact, and where the tables of the ascent would be too large.
        """
        is_large = len(problem.costs) > LARGE
        if len(problem.costs) <= SMALL or (len(problem.launches) <= 2 and not is_large):
            return [], None
        ascent = self._ascent(problem, self.coupled.apart)
        if not ascent.steps:
            return [], ascent
        # After few steps, labels of low reduced costs may still be worse than a simple start.
        starts = starts if ascent.steps < START_STEPS else ()
        steps = min(START_STEPS, ascent.steps if is_large else ascent.steps * 3 // 4)
        if is_large and not self.coupled.is_merged:
            early = int(CHARGED_AFTER * steps)
            ascent.climb(early)
            ascent.charge_calls(ascent.least_labels(), self.level.graph)
            steps -= early
        ascent.climb(steps)
        return self._expanded_among_promising(problem, ascent, budget, starts), ascent

    def _ascent(self, problem: LabelingProblem, apart: Sequence[tuple[int, int]]) -> DualAscent:
        ascent = DualAscent(problem, self.detours)
        ascent.keep_apart(apart)
        return ascent

    def _expanded_among_promising(
        self, problem: LabelingProblem, ascent: DualAscent, budget: Budget, starts: Sequence[Ints] = ()
    ) -> list[Ints]:
        """Return labelings that expansion finds among the labels of low reduced costs, and those of the best start.

        It does not keep atoms apart, so that those that must be have only one label, the best one, the second time.
        """
        reduced = ascent.reduced_costs()
        part = PROMISING if len(problem.costs) <= LARGE else PROMISING / 2
        most = part * (ascent.bound / len(problem.costs) + int(problem.launches.max()))
        start: Ints = reduced.argmin(axis=1)
        if starts:
            start = min((start, *starts), key=energy_of(problem, SHARES[0]).total)
        promising = problem.allowed & (reduced <= most)
        promising[np.arange(len(start)), start] = True
        found = _expanded(replace(problem, allowed=promising), [start], budget)
        if self.coupled.apart and len(start) == len(self.problem.costs):
            start = self._separated(start)
            ends = sorted({end for pair in self.coupled.apart for end in pair})
            promising[ends] = start[ends, None] == np.arange(promising.shape[1])
            found += _expanded(replace(problem, allowed=promising), [start], budget)
        return found

    def _bound_of_single_atoms(self, budget: Budget) -> int:
        """Return the bound for single atoms, between which there are calls; consider the labelings near it."""
        owner = self.coupled.owner
        first = np.unique(owner, return_index=True)[1].tolist()
        ascent = self._ascent(self.single_atoms, [(first[one], first[other]) for one, other in self.coupled.apart])
        ascent.keep_together([(first[one], atom) for atom, one in enumerate(owner.tolist()) if atom != first[one]])
        bound = self._dual_bound(ascent, self.level.graph, self.labels[owner])
        if 0 < bound < (1 - CLOSE) * self.total:
            self.consider(self._merged(self._expanded_among_promising(self.single_atoms, ascent, budget)))
            self.move_subgraphs()
        return max(bound, self._bound_within_limits(ascent, budget))

    def _merged(self, labelings: Sequence[Ints]) -> list[Ints]:
        """Return labelings of variables that are near to some of atoms: all go where the first goes, or the last."""
        owner, numbers = self.coupled.owner, np.arange(len(self.problem.costs))
        ends = [np.unique(atoms, return_index=True)[1] for atoms in (owner, owner[::-1])]
        rows = [one[first] for labels in labelings for one, first in zip((labels, labels[::-1]), ends, strict=True)]
        others = self.labels if len(self.labels) else self.problem.allowed.argmax(axis=1)
        return [np.where(self.problem.allowed[numbers, row], row, others) for row in rows]

    def _bound_within_limits(self, ascent: DualAscent, budget: Budget) -> int:
        """Return the bound with prices for calls of labels whose subgraphs are limited; consider labelings near it.

        The ascent is that of single atoms.
        """
        problem = self.single_atoms if self.coupled.is_merged else self.problem
        total, found = self.total if len(self.labels) else None, list[Ints]()
        for _ in range(MAX_PRICED if self.coupled.most else 0):
            priced = [ascent.limit_calls(*limit, self.level.graph, total) for limit in self.coupled.most]
            if not any(priced):
                break
            costlier = replace(problem, launches=problem.launches + ascent.call_prices.astype(np.int64))
            labelings = self._expanded_among_promising(costlier, ascent, budget)
            found += labelings if problem is self.problem else self._merged(labelings)
            self.consider(found)
        if found:
            self.mix_with(found[-MAX_MIXED:])
            if SMALL < len(self.labels) <= MOVED:
                self.move_single_atoms()
        return ascent.bound

    def _bound_within_capacity(self, prices: Prices, graph: AtomGraph | None) -> int:
        problem = self.problem
        paid = int(prices.costs[np.arange(len(self.labels)), self.labels].sum())
        priced = replace(problem, costs=np.where(problem.allowed, problem.costs + prices.costs, problem.costs))
        ascent = self._ascent(priced, self.coupled.apart)
        return self._dual_bound(ascent, graph, paid=paid) - prices.most

    def _dual_bound(
        self, ascent: DualAscent, graph: AtomGraph | None, labels: Ints | None = None, paid: int = 0
    ) -> int:
        """Return a lower bound, with calls on paths through a graph.

        `labels` are those of the best labeling by vertex of the graph, and `paid` is what it costs more by the ascent.
        """
        is_known = len(self.labels) > 0
        if graph is not None:
            labels = self.labels if labels is None else labels
            ascent.charge_calls(labels if is_known else ascent.least_labels(), graph)
        ascent.climb(ascent.steps, self.total + paid if is_known else None)
        return ascent.bound

    def compare_better(self) -> int | None:
        """Compare all labelings that may be better than the best one; return a lower bound, None if they are many."""
        # Labelings that only detours make better are compared for the bound, if they are few.
        for saved in dict.fromkeys((self.most_saved, 0)):
            better = labelings_below(self.problem, min(self.total + saved, _ENDLESS), BETTER, self._keeps)
            if better is not None:
                self.consider(list(better))
                return max(0, self.bound_of(better) + saved - self.most_saved) if len(self.labels) else None
        return None

    def below(self, total: int, most: int) -> list[Ints]:
        """Return the labelings of the lowest bounds, of those below some cost; none if they are too many."""
        labelings = labelings_below(self.problem, total + self.most_saved, BETTER, self._keeps)
        if labelings is None:
            labelings = labelings_below(self.problem, total, BETTER, self._keeps)
        if labelings is None:
            return []
        totals, used = self._sums(labelings)
        bounds = totals + used @ self.problem.launches
        found = list[tuple[int, int]]()  # the lowest bounds, of at most `most` labelings
        for number in np.argsort(bounds, kind="stable")[:MAX_BOUNDS].tolist():
            limit = found[most - 1] if len(found) >= most else (total, -1)
            if bounds[number] - self.most_saved > limit[0]:
                break
            saved = self._saved(labelings[number])
            if (bounds[number] - saved, number) < limit:
                one = self._least(labelings[number], int(totals[number]) - saved), number
                if one < limit:
                    insort(found, one)
        return [labelings[number] for _, number in found[:most]]

    def _saved(self, labels: Ints) -> int:
        """Return what detours save at most under a labeling."""
        return self.detours.saved(self.problem, labels) if self.detours is not None and self.most_saved else 0

    def _least(self, labels: Ints, cost: int) -> int:
        """Return what a labeling costs at least, however subgraphs are formed; `cost` is that of atoms and copies.

        It is endless if the labeling needs more subgraphs than it may have.
        """
        graph = LabeledGraph(self.level.graph, labels[self.coupled.owner].tolist())
        weights: list[int] = self.problem.launches.tolist()
        if self.coupled.most and self.coupled.exceeds(fewest_by_label(graph)):
            return _ENDLESS
        return cost + least_weight(graph, weights)

    def _keeps(self, rows: Ints) -> Bools:
        kept = self.coupled.keeps(rows)
        return kept if self.capacity is None else kept & self.capacity.fitting(rows)

    def consider(self, candidates: Sequence[Ints]) -> None:
        """Keep the best candidate if it is better than all before; of equal ones the first."""
        candidates = self._that_keep_limits(self._that_keep_apart(candidates))
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
            if self.capacity is not None and not self.capacity.fits(labels):
                continue
            used_labels = self._labels_of(labels, self._grouped(labels, launches))
            if self.coupled.has_too_many(used_labels):
                used_labels = self._labels_of(labels, self._grouped(labels, self.coupled.scarce(launches)))
            total = int(totals[number]) + int(launches[used_labels].sum())
            if self.coupled.has_too_many(used_labels):
                continue
            if (total, number) < (self.total, best):
                self.labels, self.total, best = labels, total, number
        if len(self.problem.costs) <= SMALL:
            self._form_again(candidates, totals, bounds)

    def _form_again(self, candidates: Sequence[Ints], totals: Ints, bounds: Ints) -> None:
        """Form subgraphs by all methods for candidates that could be better than the best: fewer calls may do."""
        remaining = MAX_FORMED
        for number in np.argsort(bounds, kind="stable").tolist():
            if bounds[number] >= min(self.total, self.best_total) or not remaining:
                break
            remaining -= self._form(candidates[number], int(totals[number]))

    def _form(self, labels: Ints, cost: int) -> bool:
        """Form the subgraphs of a labeling by all methods, if they were not; `cost` is that of atoms and copies."""
        capacity, launches = self.capacity, self.problem.launches
        if (key := labels.tobytes()) in self.formed or not (capacity is None or capacity.fits(labels)):
            return False
        self.formed.add(key)
        used_labels = self._labels_of(labels, self._formed(labels, launches))
        if self.coupled.has_too_many(used_labels):
            used_labels = self._labels_of(labels, self._formed(labels, self.coupled.scarce(launches)))
        total = cost + int(launches[used_labels].sum())
        if total < self.total and not self.coupled.has_too_many(used_labels):
            self.labels, self.total = labels, total
        return True

    def _that_keep_apart(self, candidates: Sequence[Ints]) -> Sequence[Ints]:
        """Return the candidates in which atoms are apart as required; if they are few, repaired where they are not."""
        if not self.coupled.apart or not candidates:
            return candidates
        kept = self.coupled.keeps(np.array(candidates))
        if len(candidates) > MAX_REPAIRED:
            return [candidates[number] for number in np.flatnonzero(kept).tolist()]
        repaired = [
            labels if is_kept else self._separated(labels)
            for labels, is_kept in zip(candidates, kept.tolist(), strict=True)
        ]
        return [labels for labels in repaired if self.coupled.keeps(labels[None])[0]]

    def _separated(self, labels: Ints) -> Ints:
        """Move one of every two variables that must be apart, alone or with neighbours, where the cost grows least.

        The result may still break requests.
        """
        others: dict[int, list[int]] = {}
        for one, other in self.coupled.apart:
            others.setdefault(one, []).append(other)
            others.setdefault(other, []).append(one)
        for pair in self.coupled.apart:
            if labels[pair[0]] != labels[pair[1]]:
                continue
            now = labels.tolist()
            moves = (move for atom in pair for move in self.moves.of_groups_at(now, atom, others))
            _, atoms, label = min(moves, default=(0, [], 0))
            labels = labels.copy()
            labels[atoms] = label
        return labels

    def _that_keep_limits(self, candidates: Sequence[Ints]) -> Sequence[Ints]:
        """Return candidates, and what they become within the limits on subgraphs, if they are few."""
        if not self.coupled.most or len(candidates) > MAX_LIMITED:
            return candidates
        found = {labels.tobytes(): labels for labels in candidates}
        for key in [key for key in found if key not in self.limited]:
            self.limited.add(key)
            labels = self._within_limits_by_moves(found[key])
            if labels is not None:
                found.setdefault(labels.tobytes(), labels)
        return [*found.values()]

    def _within_limits_by_moves(self, labels: Ints) -> Ints | None:
        """Make moves, each the cheapest one that leaves fewer subgraphs too many; None if that does not suffice."""
        problem, coupled = self.problem, self.coupled
        launches = coupled.scarce(problem.launches)
        is_limited = np.any([mask for mask, _ in coupled.most], axis=0)
        for _ in range(MAX_LIMITED):
            subgraphs = self._grouped(labels, launches)
            excess = self._excess(labels, subgraphs)
            if not excess:
                return labels
            if len(subgraphs) * problem.allowed.size > MIXING:
                return None
            found = [*with_fewer_subgraphs(problem, self.level.graph, coupled.owner, labels, subgraphs, is_limited)]
            if not found:
                return None
            rows = np.array(found)
            rows = rows[coupled.keeps_apart(rows)]
            for number in np.argsort(self._sums(rows)[0], kind="stable")[:MAX_TRIED].tolist():
                if self._excess(rows[number], self._grouped(rows[number], launches)) < excess:
                    labels = rows[number]
                    break
            else:
                return None
        return None

    def _excess(self, labels: Ints, subgraphs: Sequence[Sequence[int]]) -> int:
        """Return how many subgraphs of limited labels are too many."""
        return self.coupled.excess(Counter(self._labels_of(labels, subgraphs)))

    def _labels_of(self, labels: Ints, subgraphs: Sequence[Sequence[int]]) -> list[int]:
        found: list[int] = labels[self.coupled.owner[[subgraph[0] for subgraph in subgraphs]]].tolist()
        return found

    def bound_of(self, labelings: Ints) -> int:
        """Return a cost that neither the best labeling nor some others go below, however their subgraphs are formed.

        Those that may be better than the best one by this bound are considered again, with all methods.
        """
        labelings = labelings[self._keeps(labelings)]
        totals, used = self._sums(labelings)
        bounds = totals + used @ self.problem.launches
        least, remaining = self.total, MAX_FORMED if len(self.problem.costs) <= SMALL else 0
        for number in np.argsort(bounds, kind="stable").tolist():
            if bounds[number] - self.most_saved >= (self.total if remaining else least):
                break
            cost, saved = int(totals[number]), self._saved(labelings[number])
            if bounds[number] - saved >= (self.total if remaining else least):
                continue
            bound = self._least(labelings[number], cost - saved)
            least = min(least, bound)
            if remaining and bound < self.total:
                remaining -= self._form(labelings[number], cost)
        return min(least, self.total)

    def _sums(self, rows: Ints) -> tuple[Ints, Bools]:
        """Return the cost of atoms and copies of each labeling, and which labels it uses."""
        used = np.stack([(rows == label).any(axis=1) for label in range(len(self.problem.launches))], axis=1)
        return self.energy.totals(rows) - self.problem.overcharged(rows), used

    def consider_within(self, capacity: MemoryCapacity) -> None:
        """Consider labelings that fit the memories; raise `InfeasibleError` if there is none."""
        problem, priced = self.problem, self._priced(capacity)
        self.prices = priced.prices
        self.consider([*priced.labelings, *priced.fitting])
        if not priced.fitting and not len(self.labels):  # raise the error that names what does not fit
            capacity.repaired(priced.labelings[0], problem.allowed, problem.costs)
        distinct = list({labels.tobytes(): labels for labels in priced.labelings}.values())
        self.mix_with([distinct[0], *distinct[1:][-MAX_MIXED:]])

    def _priced(self, capacity: MemoryCapacity) -> PricedLabelings:
        """Return assignments by prices of memory; with memory reserved for values, those without, and a few more.

        Plans that reserve different amounts are compared, so that the first assignments are needed many times.
        """
        problem, whole = self.problem, capacity.without_reserve
        if whole is None or self.cache is None:
            whole = capacity
        arrays = (getattr(problem, one.name) for one in fields(problem))
        numbers = whole.limits, whole.memories, whole.atoms, whole.owned, whole.sizes
        first = (
            priced_labelings(problem, whole)
            if self.cache is None
            else self.cache.find(
                "prices of memories", digest(*arrays, *numbers), lambda: priced_labelings(problem, whole)
            )
        )
        if whole is capacity:
            return first
        more = priced_labelings(problem, capacity, first)
        fitting = [*more.fitting]
        for labels in first.labelings:
            with suppress(InfeasibleError):
                fitting.append(capacity.repaired(labels, problem.allowed, problem.costs))
        return PricedLabelings([*first.labelings, *more.labelings], fitting, more.prices)

    def mix_with(self, others: Sequence[Ints]) -> None:
        """Take sections of the program from other labelings, which need not fit, while that lowers the cost."""
        if not len(self.labels):
            return
        problem, owner = self.problem, self.coupled.owner
        order = np.array(list(dict.fromkeys(owner[list(self.level.graph.topological_order)].tolist())), dtype=np.int64)
        uniform = [np.where(problem.allowed[:, label], label, -1) for label in range(len(problem.launches))]
        last, most = 0, min(MIXTURES, MIXING // len(order))
        sources = cycle([*others, *uniform])
        for number in range(min(MAX_MIXED_ROUNDS, MIXING // len(order))):
            source, before = next(sources), self.total
            rows = mixtures(self.labels, np.where(source < 0, self.labels, source), order, most)
            rows = rows[self._keeps(rows)]
            if len(rows):
                totals, used = self._sums(rows)
                cheapest = np.argsort(totals + used @ problem.launches, kind="stable")[:MAX_FORMED]
                self.consider(list(rows[cheapest]))
            last = number if self.total < before else last
            if number - last > len(others) + len(uniform):
                break

    def move_subgraphs(self) -> None:
        """Move whole subgraphs to other labels while that lowers the cost, in programs that are not too large."""
        if not len(self.labels) or len(self.problem.costs) + len(self.problem.readers) > MAX_DROPPED:
            return

        def variables() -> list[list[int]]:
            subgraphs = self._grouped(self.labels, self.problem.launches)
            if not self.coupled.is_merged:
                return subgraphs
            return [sorted(set(self.coupled.owner[subgraph].tolist())) for subgraph in subgraphs]

        self._improve(lambda: [self.moves.moved(self.labels, variables())])

    def merge_subgraphs(self) -> None:
        """Move all that is between two subgraphs of a label, or parts of subgraphs, while that lowers the cost."""
        problem, launches = self.problem, self.problem.launches
        if not launches.any() or len(problem.costs) > MERGED:
            return
        for _ in range(MAX_ROUNDS if len(self.labels) else 0):
            before, labels, subgraphs = self.total, self.labels, self._grouped(self.labels, launches)
            if len(subgraphs) ** 2 * problem.allowed.size > MERGING:
                break
            graph, owner = self.level.graph, self.coupled.owner
            rows = np.array([*with_fewer_subgraphs(problem, graph, owner, labels, subgraphs, launches > 0)])
            if not len(rows):
                break
            added = self._sums(rows)[0] - problem.total(labels)
            order = np.argsort(added, kind="stable")[:MAX_TRIED]
            self.consider([rows[number] for number in order[added[order] < MAX_SAVED * launches.max()].tolist()])
            if self.total == before:
                break

    def move_atoms(self) -> None:
        """Move single atoms, all atoms at a value, and all atoms of a label while that lowers the cost.

        Where the choices of atoms depend on each other, two atoms also change their labels together.
        """

        def neighbours() -> list[Ints]:
            found = [*neighboring_labelings(self.problem, self.labels)]
            if self._is_coupled:
                found += [*paired(self.problem, self.labels, every=len(self.labels) <= PAIRED)]
            return found

        if len(self.labels):
            self._improve(neighbours, self.climbed)

    def move_single_atoms(self) -> None:
        """Move single atoms to other labels, the most promising ones, while that lowers the cost.

        Where the choices of atoms depend on each other, all atoms at a value move together, too.
        """
        problem = self.problem
        for _ in range(MAX_ROUNDS):
            before, labels, moved = self.total, self.labels, self._moved_atoms()
            if not len(moved):
                break
            added = self._sums(moved)[0] - problem.total(labels)
            order = np.argsort(added, kind="stable")[:MAX_TRIED]
            for number in order[added[order] < MAX_SAVED * problem.launches.max()].tolist():
                self.consider([np.where(moved[number] != labels, moved[number], self.labels)])
            if self.total == before:
                break

    def _moved_atoms(self) -> Ints:
        if self._is_coupled:
            rows = [*neighboring_labelings(self.problem, self.labels)]
            return np.array(rows, dtype=np.int64).reshape(-1, len(self.labels))
        others = self.problem.allowed.copy()
        others[np.arange(len(others)), self.labels] = False
        atoms, labels = np.nonzero(others)
        moved = np.repeat(self.labels[None], len(atoms), axis=0)
        moved[np.arange(len(atoms)), atoms] = labels
        return moved

    @property
    def _is_coupled(self) -> bool:
        return self.capacity is not None or bool(self.coupled.apart or self.coupled.most)

    def _cheapest_of(self, candidates: Sequence[Ints], most: int) -> list[Ints]:
        """Return a few other labelings than the best one, the cheapest if each label that they use is called once."""
        others = {labels.tobytes(): labels for labels in candidates}
        others.pop(self.labels.tobytes(), None)
        rows = np.array([*others.values()], dtype=np.int64).reshape(-1, len(self.labels))
        totals, used = self._sums(rows)
        order = np.argsort(totals + used @ self.problem.launches, kind="stable")[:most]
        return [*rows[order]]

    def climb_from(self, starts: Sequence[Ints]) -> None:
        """Improve other labelings by moves of atoms too: the best one may be at the border of what is required."""
        best = self.labels, self.total
        for start in starts:
            self.best_total = best[1]
            self.labels, self.total = best[0][:0], 2**63
            if self.capacity is not None and not self.capacity.fits(start):
                try:
                    start = self.capacity.repaired(start, self.problem.allowed, self.problem.costs)
                except InfeasibleError:
                    continue
            self.consider([start])
            if len(self.labels):
                self.merge_subgraphs()
                self.move_atoms()
            if self.total < best[1]:
                best = self.labels, self.total
        self.labels, self.total = best

    def _improve(self, neighbours: Callable[[], Sequence[Ints]], known: set[bytes] | None = None) -> None:
        """Hill climbing: consider neighbours of the best labeling until none is better, or they are known."""
        for _ in range(MAX_ROUNDS):
            before = self.total
            if known is not None:
                if (key := self.labels.tobytes()) in known:
                    break
                known.add(key)
            self.consider(neighbours())
            if self.total == before:
                break

    def _grouped(self, labels: Ints, launches: Ints) -> list[list[int]]:
        return quick_subgraphs(self.level, labels[self.coupled.owner].tolist(), launches.tolist())

    def _formed(self, labels: Ints, launches: Ints) -> list[list[int]]:
        return best_subgraphs(self.level, labels[self.coupled.owner].tolist(), launches.tolist())

    def launches(self) -> list[int]:
        """Return costs of calls with which the best labeling has no more subgraphs than it may."""
        launches = self.problem.launches
        if self.coupled.most and self.coupled.has_too_many(
            self._labels_of(self.labels, self._formed(self.labels, launches))
        ):
            launches = self.coupled.scarce(launches)
        found: list[int] = launches.tolist()
        return found


def _lower_bound(problem: LabelingProblem, without_launches: Ints | None) -> int:
    """Return a cost that no labeling goes below: with two labels all but launches, else only the operations.

    `without_launches` is the best labeling if calls were free, None if it is not proven to be.
    """
    if len(problem.launches) == 2 and without_launches is not None:
        return problem.total(without_launches) + int(problem.launches.min())
    operations = np.where(problem.allowed, problem.costs, _ENDLESS).min(axis=1).sum()
    return int(operations) + int(problem.launches.min())
