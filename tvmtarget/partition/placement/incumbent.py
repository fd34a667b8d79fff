"""The incumbent of a search: the best labeling so far, by the cost of its plan with subgraphs as they are formed."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np

from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.placement.coupled_atoms import CoupledAtoms
from tvmtarget.partition.placement.detours import Detours
from tvmtarget.partition.placement.energy import ENDLESS, Bools, LabelingProblem
from tvmtarget.partition.placement.level import Level
from tvmtarget.partition.placement.local_search import SubgraphMoves, with_fewer_subgraphs
from tvmtarget.partition.subgraphs.forming import best_subgraphs, labeled_with_cuts, quick_subgraphs
from tvmtarget.partition.subgraphs.lower_bound import fewest_by_label, least_weight

__all__ = ["MAX_FORMED", "MAX_TRIED", "Incumbent"]

# Up to this many atoms, subgraphs are also formed by all methods.
SMALL = 64

# The most labelings, of those that are compared at once, whose subgraphs are formed by all methods.
MAX_FORMED = 16

# The most moves of a round that are tried, those that add least to operations and copies.
MAX_TRIED = 48

# Up to this many candidates are repaired where atoms are not apart as required; of more, these are left out.
MAX_REPAIRED = 64

# Up to MAX_LIMITED candidates are moved within limits on subgraphs, each by at most as many moves. A move is chosen of
# several labelings, as long as all of them have no more than MAX_LIMITED_ENTRIES labels.
MAX_LIMITED, MAX_LIMITED_ENTRIES = 16, 400_000

# Up to this many labelings, the cheapest without calls, have their calls bounded where several are returned.
MAX_BOUNDS = 256

_Forming: TypeAlias = Callable[[Level, Sequence[int], Sequence[int]], list[list[int]]]


class Incumbent:
    """The best labeling so far.

    Args:
        level: the level whose atoms are labeled.
        problem: the labeling problem of its atoms.
        coupled: requests that couple atoms; those that share a label are one variable of the labelings.
        detours: what values may save in plans that lower bounds also hold for.

    Attributes:
        problem: the labeling problem of the variables.
        capacity: the memory capacities for their labels; None where memories are unlimited.
        labels: the best labeling that keeps what is required; empty before one is found.
        total: its cost, in picoseconds.
        cutoff: the cost of a labeling that is kept elsewhere; only better ones are formed by all methods.
        most_saved: what detours save at most under any labeling.
    """

    def __init__(
        self, level: Level, problem: LabelingProblem, coupled: CoupledAtoms, detours: Detours | None = None
    ) -> None:
        self.level = level
        self.coupled = coupled
        self.problem = coupled.contracted(problem)
        self.capacity = coupled.capacity(level.capacity)
        self.detours = detours
        self.most_saved = 0 if detours is None else detours.most(self.problem)
        self.cutoff = 2**63
        self._limited: set[bytes] = set()  # labelings that were moved within the limits on subgraphs
        self.clear()

    def clear(self) -> None:
        """Forget the best labeling, and which ones were formed by all methods."""
        self.labels: Ints = np.zeros(0, dtype=np.int64)
        self.total = 2**63
        self._formed: set[bytes] = set()

    @property
    def is_found(self) -> bool:
        """Whether there is a labeling."""
        return len(self.labels) > 0

    @property
    def is_small(self) -> bool:
        """Whether there is time to form subgraphs by all methods, and for local search over atoms and values."""
        return len(self.problem.costs) <= SMALL

    @property
    def is_coupled(self) -> bool:
        """Whether the choices of variables depend on each other by more than costs."""
        return self.capacity is not None or bool(self.coupled.apart or self.coupled.most)

    @cached_property
    def moves(self) -> SubgraphMoves:
        """Moves of subgraphs and of groups of neighbours."""
        return SubgraphMoves(self.problem)

    @cached_property
    def scarce_launches(self) -> Ints:
        """Costs of calls by label, much higher where the number of subgraphs is limited."""
        return self.coupled.scarce(self.problem.launches)

    def consider(self, candidates: Sequence[Ints]) -> None:
        """Keep the best candidate if it is better than all before; of equal ones the first.

        Args:
            candidates: labelings, which are repaired first where they break requests.
        """
        candidates = self._within_limits(self._kept_apart(candidates))
        if not candidates:
            return
        costs, bounds = self.costs_and_bounds(np.array(candidates))
        best = 0
        # Forming subgraphs is the expensive part: start with what is cheapest without calls, to skip most others.
        for number in np.argsort(costs, kind="stable").tolist():
            labels = candidates[number]
            if bounds[number] > self.total or not self._fits(labels):
                continue
            calls = self._cost_of_calls(labels, quick_subgraphs)
            if calls is not None and (int(costs[number]) + calls, number) < (self.total, best):
                self.labels, self.total, best = labels, int(costs[number]) + calls, number
        if not self.is_small:
            return
        # Candidates that could be better than the best with fewer calls, by other subgraphs.
        remaining = MAX_FORMED
        for number in np.argsort(bounds, kind="stable").tolist():
            if bounds[number] >= min(self.total, self.cutoff) or not remaining:
                break
            remaining -= self._form(candidates[number], int(costs[number]))

    def _form(self, labels: Ints, cost: int) -> bool:
        """Form the subgraphs of a labeling by all methods, if they were not; `cost` is that of atoms and copies."""
        if (key := labels.tobytes()) in self._formed or not self._fits(labels):
            return False
        self._formed.add(key)
        calls = self._cost_of_calls(labels, best_subgraphs)
        if calls is not None and cost + calls < self.total:
            self.labels, self.total = labels, cost + calls
        return True

    def _cost_of_calls(self, labels: Ints, form: _Forming) -> int | None:
        """Return what the calls of subgraphs cost; None if some labels have more of them than they may."""
        launches = self.problem.launches
        used = self._labels_of(labels, self._subgraphs(labels, form, launches))
        if self.coupled.has_too_many(used):
            used = self._labels_of(labels, self._subgraphs(labels, form, self.scarce_launches))
        return None if self.coupled.has_too_many(used) else int(launches[used].sum())

    def _subgraphs(self, labels: Ints, form: _Forming, launches: Ints) -> list[list[int]]:
        return form(self.level, labels[self.coupled.owner].tolist(), launches.tolist())

    def _labels_of(self, labels: Ints, subgraphs: Sequence[Sequence[int]]) -> list[int]:
        found: list[int] = labels[self.coupled.owner[[subgraph[0] for subgraph in subgraphs]]].tolist()
        return found

    def _fits(self, labels: Ints) -> bool:
        return self.capacity is None or self.capacity.fits(labels)

    def subgraphs(self) -> list[list[int]]:
        """Return the subgraphs of the best labeling, as lists of single atoms, by typed fusion."""
        return self._subgraphs(self.labels, quick_subgraphs, self.problem.launches)

    def launches(self) -> list[int]:
        """Return costs of calls with which the best labeling has no more subgraphs than it may."""
        launches = self.problem.launches
        if self.coupled.most and self.coupled.has_too_many(
            self._labels_of(self.labels, self._subgraphs(self.labels, best_subgraphs, launches))
        ):
            launches = self.scarce_launches
        found: list[int] = launches.tolist()
        return found

    def costs(self, rows: Ints) -> Ints:
        """Return the costs of atoms and copies.

        Args:
            rows: labelings, one per row.

        Returns:
            The cost of each row, without calls.
        """
        return self.problem.totals(rows)

    def costs_and_bounds(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the costs of atoms and copies, and lower bounds of all costs.

        Args:
            rows: labelings, one per row.

        Returns:
            The cost of each row without calls; and with one call of each label in use, which is the least.
        """
        costs, launches = self.costs(rows), self.problem.launches
        used = np.stack([(rows == label).any(axis=1) for label in range(len(launches))], axis=1)
        calls: Ints = used @ launches
        return costs, costs + calls

    def keeps(self, rows: Ints) -> Bools:
        """Return which labelings keep requests and memory capacities.

        Args:
            rows: labelings, one per row; of the first variables at least.

        Returns:
            A flag for each row; limits on subgraphs may be broken, as subgraphs are not formed.
        """
        kept = self.coupled.keeps(rows)
        return kept if self.capacity is None else kept & self.capacity.fitting(rows)

    def lower_bound(self, labelings: Ints) -> int:
        """Return a cost that neither the best labeling nor some others go below.

        It holds however their subgraphs are formed. Those that may be better than the best one by this bound are
        considered again, with all methods.

        Args:
            labelings: the others, one per row.

        Returns:
            The bound, in picoseconds.
        """
        labelings = labelings[self.keeps(labelings)]
        costs, bounds = self.costs_and_bounds(labelings)
        least, remaining = self.total, MAX_FORMED if self.is_small else 0
        for number in np.argsort(bounds, kind="stable").tolist():
            if bounds[number] - self.most_saved >= (self.total if remaining else least):
                break
            cost, saved = int(costs[number]), self._saved(labelings[number])
            if bounds[number] - saved >= (self.total if remaining else least):
                continue
            bound = self._least(labelings[number], cost - saved)
            least = min(least, bound)
            if remaining and bound < self.total:
                remaining -= self._form(labelings[number], cost)
        return min(least, self.total)

    def lowest(self, labelings: Ints, total: int, most: int) -> list[Ints]:
        """Return the labelings of the lowest bounds, of those below some cost.

        Args:
            labelings: labelings, one per row.
            total: that cost, in picoseconds.
            most: the most results.

        Returns:
            The labelings, those of the lowest bound first.
        """
        costs, bounds = self.costs_and_bounds(labelings)
        found = list[tuple[int, int]]()  # the lowest bounds, of at most `most` labelings
        for number in np.argsort(bounds, kind="stable")[:MAX_BOUNDS].tolist():
            limit = found[most - 1] if len(found) >= most else (total, -1)
            if bounds[number] - self.most_saved > limit[0]:
                break
            saved = self._saved(labelings[number])
            if (bounds[number] - saved, number) < limit:
                one = self._least(labelings[number], int(costs[number]) - saved), number
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
        chosen, launches = labels[self.coupled.owner].tolist(), self.problem.launches.tolist()
        graph, _, weights = labeled_with_cuts(self.level, chosen, launches)
        if self.coupled.most and self.coupled.exceeds(fewest_by_label(graph)):
            return ENDLESS
        return cost + least_weight(graph, weights)

    def _kept_apart(self, candidates: Sequence[Ints]) -> Sequence[Ints]:
        """Return the candidates in which atoms are apart as required; if they are few, repaired where they are not."""
        if not self.coupled.apart or not candidates:
            return candidates
        kept = self.coupled.keeps(np.array(candidates))
        if len(candidates) > MAX_REPAIRED:
            return [candidates[number] for number in np.flatnonzero(kept).tolist()]
        repaired = [
            labels if is_kept else self.separated(labels)
            for labels, is_kept in zip(candidates, kept.tolist(), strict=True)
        ]
        return [labels for labels in repaired if self.coupled.keeps(labels[None])[0]]

    def separated(self, labels: Ints) -> Ints:
        """Move one of every two variables that must be apart where the cost grows least.

        It moves alone or with neighbours.

        Args:
            labels: a labeling.

        Returns:
            A labeling that may still break requests.
        """
        for pair in self.coupled.apart:
            if labels[pair[0]] != labels[pair[1]]:
                continue
            now = labels.tolist()
            moves = (move for atom in pair for move in self.moves.of_groups_at(now, atom, self.coupled.conflicts))
            _, atoms, label = min(moves, default=(0, [], 0))
            labels = labels.copy()
            labels[atoms] = label
        return labels

    def _within_limits(self, candidates: Sequence[Ints]) -> Sequence[Ints]:
        """Return candidates, and what they become within the limits on subgraphs, if they are few."""
        if not self.coupled.most or len(candidates) > MAX_LIMITED:
            return candidates
        found = {labels.tobytes(): labels for labels in candidates}
        for key in [key for key in found if key not in self._limited]:
            self._limited.add(key)
            labels = self._moved_within_limits(found[key])
            if labels is not None:
                found.setdefault(labels.tobytes(), labels)
        return [*found.values()]

    def _moved_within_limits(self, labels: Ints) -> Ints | None:
        """Make moves, each the cheapest one that leaves fewer subgraphs too many; None if that does not suffice."""
        problem, coupled, launches = self.problem, self.coupled, self.scarce_launches
        is_limited = np.any([mask for mask, _ in coupled.most], axis=0)

        def excess(row: Ints, subgraphs: Sequence[Sequence[int]]) -> int:
            return coupled.excess(Counter(self._labels_of(row, subgraphs)))

        for _ in range(MAX_LIMITED):
            subgraphs = self._subgraphs(labels, quick_subgraphs, launches)
            left = excess(labels, subgraphs)
            if not left:
                return labels
            if len(subgraphs) * problem.allowed.size > MAX_LIMITED_ENTRIES:
                return None
            found = [*with_fewer_subgraphs(problem, self.level.graph, coupled.owner, labels, subgraphs, is_limited)]
            if not found:
                return None
            rows = np.array(found)
            rows = rows[coupled.keeps_apart(rows)]
            for number in np.argsort(self.costs(rows), kind="stable")[:MAX_TRIED].tolist():
                if excess(rows[number], self._subgraphs(rows[number], quick_subgraphs, launches)) < left:
                    labels = rows[number]
                    break
            else:
                return None
        return None
