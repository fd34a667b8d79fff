"""Search for a labeling of least cost: enumeration or branch and bound if it is small, else expansion and the dual."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace

import numpy as np

from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.placement.alpha_expansion import expand_each, expand_labels
from tvmtarget.partition.placement.coupled_atoms import CoupledAtoms
from tvmtarget.partition.placement.detours import Detours
from tvmtarget.partition.placement.dual_bound import DualAscent
from tvmtarget.partition.placement.energy import (
    ENDLESS,
    LabelingProblem,
    energy_of,
    enumerate_labelings,
    labelings_below,
)
from tvmtarget.partition.placement.hill_climbing import MAX_MIXED, HillClimbing
from tvmtarget.partition.placement.incumbent import Incumbent
from tvmtarget.partition.placement.lagrangian import PricedLabelings, Prices, priced_labelings
from tvmtarget.partition.placement.level import Level, first_option
from tvmtarget.partition.placement.maxflow import Budget
from tvmtarget.partition.placement.memory_capacity import MemoryCapacity
from tvmtarget.partition.plan_cache import PlanCache, digest
from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph

__all__ = ["FIXED_WORK", "LAUNCH_SHARES", "MAX_BRANCHED", "WORK", "LabelingSearch", "starting_labelings"]

# Up to this many labelings, all of them are compared, and the result is exact.
MAX_ENUMERATED = 4096

# Up to this many atoms, branch and bound is tried first: where it ends, nothing else is needed.
MAX_BRANCHED = 24

# If no more labelings than this may be better than the best that was found, all of them are compared.
MAX_BETTER = 10_000

# Parts of a launch that are charged wherever a value passes between sites, tried beside 0. How many calls a labeling
# needs is only known once subgraphs are formed, so no single part is right.
LAUNCH_SHARES = (0.5, 1.0)

# Above this many atoms only the first part is tried, and the dual has calls before labels are chosen: they are charged
# where labels are best after this part of the steps.
LARGE, CHARGED_AFTER = 50_000, 0.1

# Steps of the ascent on the dual before labels are chosen.
START_STEPS = 60

# Labels are promising if their reduced costs are at most this part of the mean cost of an atom and the cost of a call
# together, in large programs half of it.
PROMISING = 0.25

# Up to this many atoms, expansion also starts as if there were no copies.
MAX_DIVERSIFIED = 500

# In small programs, expansion starts from every starting point, of which there are at least as many as labels, and
# tries every label from each: so many expansions in all. With more than so many labels it starts from the dual alone.
MAX_EXPANDED, MAX_LABELS = 1024, 24

# The most paths for which calls of labels with limited subgraphs get a price.
MAX_PRICED = 4

# The gap between the bound and the best labeling below which none is taken from the dual with calls, and the one below
# which what is between subgraphs is not moved.
CLOSE_GAP, MERGE_GAP = 0.02, 0.005

# In small programs, local search starts from so many other labelings, too, where the best is not close to the bound.
MAX_RESTARTS = 2

# Edge visits that the cuts of one level may take, per atom and value, and in addition. Beyond the budget the
# assignment is valid, but not proven to be the best.
WORK, FIXED_WORK = 4, 10**6


class LabelingSearch:
    """A search for a labeling of a level of least cost.

    Args:
        level: the level whose atoms are labeled.
        problem: the labeling problem of its atoms.
        coupled: requests that couple atoms.
        cache: results of earlier plans; None keeps none.
        detours: what values may save in plans that the lower bound also holds for.

    Attributes:
        best: the best labeling so far, of the variables that atoms are merged to.
    """

    def __init__(
        self,
        level: Level,
        problem: LabelingProblem,
        coupled: CoupledAtoms,
        cache: PlanCache | None = None,
        detours: Detours | None = None,
    ) -> None:
        self.best = Incumbent(level, problem, coupled, detours)
        self._climbing = HillClimbing(self.best)
        self._level = level
        self._coupled = coupled
        self._problem = self.best.problem
        self._single_atoms = coupled.without_unused(problem)
        self._cache = cache
        self._detours = detours
        self._prices: Prices | None = None  # of memories with capacities, for the bound

    def run(self, *, is_bounded: bool) -> int:
        """Compare all labelings if they are few, else those that cuts and local search find.

        Args:
            is_bounded: find a tight lower bound also where labelings are many.

        Returns:
            A lower bound, in picoseconds.
        """
        best = self.best
        preferred = first_option(self._problem.allowed, self._coupled.all_of(self._level.favoured))
        enumerated = enumerate_labelings(self._problem, MAX_ENUMERATED)
        if len(enumerated):
            best.consider([preferred, *enumerated[(enumerated != preferred).any(axis=1)]])
            bound = best.lower_bound(enumerated)
        else:
            bound = self._solve(preferred, is_bounded=is_bounded)
        if best.capacity is not None and not best.is_found:
            self._consider_within(best.capacity)
        return bound

    def below(self, total: int, most: int) -> list[Ints]:
        """Return the labelings of the lowest bounds, of those below some cost.

        Args:
            total: that cost, in picoseconds.
            most: the most results.

        Returns:
            The labelings, those of the lowest bound first; none if too many may be below the cost.
        """
        found = self._labelings_below(total)
        return [] if found is None else self.best.lowest(found[0], total, most)

    def _labelings_below(self, total: int) -> tuple[Ints, int] | None:
        """Return labelings that may cost less by branch and bound, and what detours may save them; None if too many.

        Those that only detours make better are left out where they are too many.
        """
        for saved in dict.fromkeys((self.best.most_saved, 0)):
            found = labelings_below(self._problem, min(total + saved, ENDLESS), MAX_BETTER, self.best.keeps)
            if found is not None:
                return found, saved
        return None

    def _compare_better(self) -> int | None:
        """Compare all labelings that may be better than the best one; return a lower bound, None if they are many."""
        better = self._labelings_below(self.best.total)
        if better is None:
            return None
        labelings, saved = better
        self.best.consider(list(labelings))
        return max(0, self.best.lower_bound(labelings) + saved - self.best.most_saved) if self.best.is_found else None

    def _solve(self, preferred: Ints, *, is_bounded: bool) -> int:
        """Find labelings by branch and bound if atoms are few, else by cuts and local search; return a lower bound."""
        problem, best, climbing = self._problem, self.best, self._climbing
        work = WORK * (len(problem.costs) + len(problem.readers)) + FIXED_WORK
        budget = Budget(work, cache=self._cache)
        starts = list(starting_labelings(problem))
        if len(problem.costs) <= MAX_BRANCHED:
            best.consider([preferred, *starts])
            climbing.move_atoms()
            proven = self._compare_better()
            if proven is not None:
                return proven
            best.clear()
            climbing = self._climbing = HillClimbing(best)
        found, ascent = self._expanded_from_dual(problem, budget, starts)
        is_exact = not found and len(problem.launches) == 2
        if not found or len(problem.costs) <= MAX_DIVERSIFIED:
            found += _expanded(problem, starts, budget)
        found += [
            labels for one in self._within_limits() for labels in self._expanded_from_dual(one, budget, starts)[0]
        ]
        if self._tries_all_starts:
            energy, most = energy_of(problem, LAUNCH_SHARES[0]), max(1, MAX_EXPANDED // len(problem.launches))
            nearest = starts if len(starts) <= most else sorted(starts, key=energy.total)[:most]
            found += expand_each(problem, LAUNCH_SHARES[0], budget, nearest)
        relaxed = problem.relaxed()
        if relaxed is not problem and is_exact:
            found.insert(0, expand_labels(relaxed, 0.0, budget))
        best.consider([preferred, *starts, *found])
        is_exact &= budget.is_sufficient
        bound = max(0, _lower_bound(relaxed, found[0] if is_exact else None) - best.most_saved)
        if ascent is not None:
            bound = max(bound, ascent.bound)
        if best.capacity is not None:
            self._consider_within(best.capacity)
        climbing.move_subgraphs()
        climbing.move_single_atoms()
        if best.is_small and best.is_found:
            climbing.move_atoms()
            if best.is_coupled:
                climbing.restart([preferred, *starts, *found])
            proven = self._compare_better()
            if proven is not None:
                return proven
        if is_bounded and bound < best.total and len(problem.costs) <= LARGE:
            bound = self._with_calls(bound, ascent, budget)
        if bound < (1 - MERGE_GAP) * best.total:
            climbing.merge_subgraphs()
            if bound < (1 - CLOSE_GAP) * best.total and best.is_small and not best.is_coupled:
                climbing.restart([*found, *starts], MAX_RESTARTS)
        return bound

    @property
    def _tries_all_starts(self) -> bool:
        return self.best.is_small and len(self._problem.launches) <= MAX_LABELS

    def _with_calls(self, bound: int, ascent: DualAscent | None, budget: Budget) -> int:
        """Return a lower bound that has calls, or the known one if that is higher; consider the labelings near it."""
        best = self.best
        # Merged atoms may form cycles, on which nothing is a path.
        graph = None if self._coupled.is_merged else self._level.graph
        ascent = ascent or self._ascent(self._problem, self._coupled.apart)
        bound = max(bound, self._dual_bound(ascent, graph))
        if graph is not None and bound < best.total:
            bound = max(bound, self._bound_within_limits(ascent, budget))
        if bound < (1 - CLOSE_GAP) * best.total and ascent.bound:
            # The reduced costs have calls now.
            best.consider(self._expanded_among_promising(self._problem, ascent, budget))
            self._climbing.move_subgraphs()
        if self._coupled.is_merged and best.is_found and bound < best.total:
            bound = max(bound, self._bound_of_single_atoms(budget))
        # Without a price this would be the same bound again.
        if self._prices is not None and self._prices.costs.any() and bound < best.total:
            bound = max(bound, self._bound_within_capacity(self._prices, graph))
        return bound

    def _within_limits(self) -> Iterator[LabelingProblem]:
        """Yield the problem with costlier calls of labels whose subgraphs are limited, then without these labels."""
        problem, limited = self._problem, [mask for mask, _ in self._coupled.most]
        if not limited:
            return
        yield replace(problem, launches=self.best.scarce_launches)
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
        if self._tries_all_starts or (len(problem.launches) <= 2 and not is_large):
            return [], None
        ascent = self._ascent(problem, self._coupled.apart)
        if not ascent.steps:
            return [], ascent
        # After few steps, labels of low reduced costs may still be worse than a simple start.
        starts = starts if ascent.steps < START_STEPS else ()
        steps = min(START_STEPS, ascent.steps if is_large else ascent.steps * 3 // 4)
        if is_large and not self._coupled.is_merged:
            early = int(CHARGED_AFTER * steps)
            ascent.climb(early)
            ascent.charge_calls(ascent.least_labels(), self._level.graph)
            steps -= early
        ascent.climb(steps)
        return self._expanded_among_promising(problem, ascent, budget, starts), ascent

    def _ascent(self, problem: LabelingProblem, apart: Sequence[tuple[int, int]]) -> DualAscent:
        ascent = DualAscent(problem, self._detours)
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
            start = min((start, *starts), key=energy_of(problem, LAUNCH_SHARES[0]).total)
        promising = problem.allowed & (reduced <= most)
        promising[np.arange(len(start)), start] = True
        found = _expanded(replace(problem, allowed=promising), [start], budget)
        if self._coupled.apart and len(start) == len(self._problem.costs):
            start = self.best.separated(start)
            ends = sorted({end for pair in self._coupled.apart for end in pair})
            promising[ends] = start[ends, None] == np.arange(promising.shape[1])
            found += _expanded(replace(problem, allowed=promising), [start], budget)
        return found

    def _bound_of_single_atoms(self, budget: Budget) -> int:
        """Return the bound for single atoms, between which there are calls; consider the labelings near it."""
        owner, best = self._coupled.owner, self.best
        first = np.unique(owner, return_index=True)[1].tolist()
        ascent = self._ascent(self._single_atoms, [(first[one], first[other]) for one, other in self._coupled.apart])
        ascent.keep_together([(first[one], atom) for atom, one in enumerate(owner.tolist()) if atom != first[one]])
        bound = self._dual_bound(ascent, self._level.graph, best.labels[owner])
        if 0 < bound < (1 - CLOSE_GAP) * best.total:
            best.consider(self._merged(self._expanded_among_promising(self._single_atoms, ascent, budget)))
            self._climbing.move_subgraphs()
        return max(bound, self._bound_within_limits(ascent, budget))

    def _merged(self, labelings: Sequence[Ints]) -> list[Ints]:
        """Return labelings of variables that are near to some of atoms: all go where the first goes, or the last."""
        owner, allowed = self._coupled.owner, self._problem.allowed
        ends = [np.unique(atoms, return_index=True)[1] for atoms in (owner, owner[::-1])]
        rows = [one[first] for labels in labelings for one, first in zip((labels, labels[::-1]), ends, strict=True)]
        others = self.best.labels if self.best.is_found else allowed.argmax(axis=1)
        return [np.where(allowed[np.arange(len(allowed)), row], row, others) for row in rows]

    def _bound_within_limits(self, ascent: DualAscent, budget: Budget) -> int:
        """Return the bound with prices for calls of labels whose subgraphs are limited; consider labelings near it.

        The ascent is that of single atoms.
        """
        best, is_merged = self.best, self._coupled.is_merged
        problem = self._single_atoms if is_merged else self._problem
        total, found = best.total if best.is_found else None, list[Ints]()
        for _ in range(MAX_PRICED if self._coupled.most else 0):
            priced = [ascent.limit_calls(*limit, self._level.graph, total) for limit in self._coupled.most]
            if not any(priced):
                break
            costlier = replace(problem, launches=problem.launches + ascent.call_prices.astype(np.int64))
            labelings = self._expanded_among_promising(costlier, ascent, budget)
            found += self._merged(labelings) if is_merged else labelings
            best.consider(found)
        if found:
            self._climbing.mix_with(found[-MAX_MIXED:])
            self._climbing.move_single_atoms()
        return ascent.bound

    def _bound_within_capacity(self, prices: Prices, graph: AtomGraph | None) -> int:
        problem, labels = self._problem, self.best.labels
        paid = int(prices.costs[np.arange(len(labels)), labels].sum())
        priced = replace(problem, costs=np.where(problem.allowed, problem.costs + prices.costs, problem.costs))
        ascent = self._ascent(priced, self._coupled.apart)
        return self._dual_bound(ascent, graph, paid=paid) - prices.most

    def _dual_bound(
        self, ascent: DualAscent, graph: AtomGraph | None, labels: Ints | None = None, paid: int = 0
    ) -> int:
        """Return a lower bound, with calls on paths through a graph.

        `labels` are those of the best labeling by vertex of the graph, and `paid` is what it costs more by the ascent.
        """
        best = self.best
        if graph is not None:
            labels = best.labels if labels is None else labels
            ascent.charge_calls(labels if best.is_found else ascent.least_labels(), graph)
        ascent.climb(ascent.steps, best.total + paid if best.is_found else None)
        return ascent.bound

    def _consider_within(self, capacity: MemoryCapacity) -> None:
        """Consider labelings that fit the memories; raise `InfeasibleError` if there is none."""
        problem, best, priced = self._problem, self.best, self._priced(capacity)
        self._prices = priced.prices
        best.consider([*priced.labelings, *priced.fitting])
        if not priced.fitting and not best.is_found:  # raise the error that names what does not fit
            capacity.repaired(priced.labelings[0], problem.allowed, problem.costs)
        distinct = list({labels.tobytes(): labels for labels in priced.labelings}.values())
        self._climbing.mix_with([distinct[0], *distinct[1:][-MAX_MIXED:]])

    def _priced(self, capacity: MemoryCapacity) -> PricedLabelings:
        """Return assignments by prices of memory; with memory reserved for values, those without, and a few more.

        Plans that reserve different amounts are compared, so that the first assignments are needed many times.
        """
        problem, whole = self._problem, capacity.without_reserve
        if whole is None or self._cache is None:
            whole = capacity
        arrays = (getattr(problem, one.name) for one in fields(problem))
        numbers = whole.limits, whole.memories, whole.atoms, whole.owned, whole.sizes
        first = (
            priced_labelings(problem, whole)
            if self._cache is None
            else self._cache.find(
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


def starting_labelings(problem: LabelingProblem) -> Iterator[Ints]:
    """Yield start labelings: the best label of each atom, then one label or memory for most.

    Args:
        problem: the labeling problem.

    Yields:
        The first, then one for each label, then one for each memory of several labels.
    """
    costs = problem.allowed_costs
    labels = np.arange(len(problem.domains))
    shared = (problem.domains == domain for domain in np.unique(problem.domains).tolist())
    yield costs.argmin(axis=1)
    for mask in (*(labels == label for label in labels.tolist()), *(one for one in shared if one.sum() > 1)):
        inside = np.where(mask, costs, ENDLESS)
        yield np.where(inside.min(axis=1) < ENDLESS, inside.argmin(axis=1), costs.argmin(axis=1))


def _expanded(problem: LabelingProblem, starts: Sequence[Ints], budget: Budget) -> list[Ints]:
    """Return the labelings that expansion finds for each part of a launch; with two labels the first is for part 0."""
    shares: tuple[float, ...] = (0.0, *LAUNCH_SHARES) if len(problem.costs) <= LARGE else (LAUNCH_SHARES[0],)
    found = [starts[0] if len(starts) == 1 else min(starts, key=energy_of(problem, shares[0]).total)]
    for share in shares:
        found.append(expand_labels(problem, share, budget, found[-1]))
    return found[1:]


def _lower_bound(problem: LabelingProblem, without_launches: Ints | None) -> int:
    """Return a cost that no labeling goes below: with two labels all but launches, else only the operations.

    `without_launches` is the best labeling if calls were free, None if it is not proven to be.
    """
    if len(problem.launches) == 2 and without_launches is not None:
        return problem.total(without_launches) + int(problem.launches.min())
    operations = problem.allowed_costs.min(axis=1).sum()
    return int(operations) + int(problem.launches.min())
