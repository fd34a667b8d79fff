"""Assign sites by cost: minimize the predicted time of operations, copies and launches together.

A level becomes a labeling problem (`cost_matrix.py`), and a labeling of low cost (`labeling_search.py`) an assignment.
Operations stay on the site that they prefer unless known numbers say that another one is faster. Of two equally fast
assignments, the one that follows the order of preference wins.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.control.control_flow_ops import expected_body_runs
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.placement.alpha_expansion import expand_labels
from tvmtarget.partition.placement.cost_matrix import CostMatrix, cost_matrix_of
from tvmtarget.partition.placement.coupled_atoms import CoupledAtoms, CoupledOps, coupled_atoms
from tvmtarget.partition.placement.detours import Detours
from tvmtarget.partition.placement.energy import LabelingProblem
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.labeling_search import (
    FIXED_WORK,
    LAUNCH_SHARES,
    MAX_BRANCHED,
    WORK,
    LabelingSearch,
    starting_labelings,
)
from tvmtarget.partition.placement.level import Assignment, Level, by_preference, level_of, with_capacities
from tvmtarget.partition.placement.maxflow import Budget
from tvmtarget.target.topology import Site

__all__ = ["CostChooser"]


class CostChooser:
    """A chooser that minimizes the predicted time of a level.

    Args:
        feasibility: which site can run which operation.
        estimates: times of operations, calls and copies.
        coupled: requests that couple operations. They are kept where a level decides them and an assignment that
            keeps them is found.
        bounds: whether to find a tight lower bound for the whole program.
        detours: what values may save in plans that lower bounds also hold for, where each option is a leaf.
        is_quick: leave out the search within memories that hold all weights of a level.
    """

    def __init__(
        self,
        feasibility: Feasibility,
        estimates: Estimates,
        coupled: CoupledOps | None = None,
        *,
        bounds: bool = True,
        detours: Detours | None = None,
        is_quick: bool = False,
    ) -> None:
        self.feasibility = feasibility
        self.estimates = estimates
        self.coupled = coupled or CoupledOps()
        self.bounds = bounds
        self.detours = detours
        self.is_quick = is_quick
        self._body_costs: dict[tuple[str, bool, int], int] = {}

    def __call__(self, level: Level) -> Assignment:
        """Choose a site for every atom.

        Where times have errors (`Costs.doubt`, `OpCost.stdev`), the site that would be best for the whole program keeps
        an operation unless another one is faster even at the worst of the error.

        Args:
            level: the atoms and options of one system.

        Returns:
            The assignment, and a lower bound for all assignments if all relevant times are known.

        Raises:
            InfeasibleError: if the weights fit the memories in no way that was found.
        """
        if not level.atoms or len(level.options) == 1:
            return by_preference(level)
        level = self._within_memories(level)
        matrix = self.matrix(level)
        choice = self.best(level, matrix)
        if not self.estimates.has_errors:
            return choice
        trusted = _best_single_site(level, matrix.problem)
        doubted = self.best(level, self.matrix(level, trusted))
        return replace(choice, chosen=doubted.chosen)

    def _within_memories(self, level: Level) -> Level:
        level = with_capacities(level, self.estimates)
        if self.is_quick and level.capacity is not None and level.capacity.is_ample:
            return replace(level, capacity=None)
        return level

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
                        search = LabelingSearch(inner, matrix.problem, coupled_atoms(inner, self.coupled))
                        search.run(is_bounded=False)
                        total += search.best.total if search.best.is_found else 0
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
        search = LabelingSearch(level, matrix.problem, coupled, self.feasibility.cache, self.detours)
        # Only the bound of the uppermost level is a bound of the program.
        is_bounded = self.bounds and is_known and not level.site.path
        bound = search.run(is_bounded=is_bounded)
        if not search.best.is_found and self.coupled:
            coupled = CoupledAtoms(np.arange(len(level.atoms)))
            search = LabelingSearch(level, matrix.problem, coupled, self.feasibility.cache, self.detours)
            bound = max(bound, search.run(is_bounded=is_bounded))
        chosen = search.best.labels[coupled.owner].tolist()
        return Assignment(chosen, bound if is_known else None, search.best.launches(), level.capacity)

    def with_costlier_calls(self, level: Level) -> Assignment:
        """Return the best assignment if each call took longer, by a copy on average.

        Args:
            level: the atoms and options of one system.

        Returns:
            An assignment without a bound, which mostly has fewer subgraphs.
        """
        level = self._within_memories(level)
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
        if len(level.atoms) > MAX_BRANCHED or not matrix.is_known or matrix.shift or self.estimates.has_errors:
            return []
        coupled = coupled_atoms(level, self.coupled)
        search = LabelingSearch(level, matrix.problem, coupled, self.feasibility.cache, self.detours)
        launches: list[int] = matrix.problem.launches.tolist()
        return [
            Assignment(labels[coupled.owner].tolist(), None, launches, level.capacity)
            for labels in search.below(total, most)
        ]


def _best_single_site(level: Level, problem: LabelingProblem) -> Site:
    """Return the option that gives the fastest program if it runs all that it can, the rest where that is best."""
    atoms, (_, *starts) = np.arange(len(level.atoms)), starting_labelings(problem)
    work = WORK * (len(problem.costs) + len(problem.readers)) + FIXED_WORK
    searches, totals = list[LabelingSearch](), list[int]()
    for option, start in enumerate(starts[: len(level.options)]):
        is_fixed = problem.allowed[:, option, None]
        allowed = np.where(is_fixed, np.arange(len(level.options)) == option, problem.allowed)
        searches.append(LabelingSearch(level, replace(problem, allowed=allowed), CoupledAtoms(atoms)))
        searches[-1].best.consider([start])
        totals.append(searches[-1].best.total)
    for option in sorted(range(len(totals)), key=totals.__getitem__):
        search, start = searches[option], starts[option]
        # The start has the least costs without copies.
        if problem.allowed[:, option].all() or problem.costs[atoms, start].sum() >= min(totals):
            continue
        with suppress(InfeasibleError):
            if search.best.is_small:
                search.run(is_bounded=False)
            else:
                search.best.consider([expand_labels(search.best.problem, LAUNCH_SHARES[0], Budget(work), start)])
        totals[option] = search.best.total
    return level.options[totals.index(min(totals))]
