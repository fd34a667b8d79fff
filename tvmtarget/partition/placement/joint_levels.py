"""Assign all leaves of a nested tree at once: one level whose options are the leaves, then split by level.

A decision level by level cannot see what a system gains by an operation of another one. Copies between leaves cost what
the drivers between them copy, which is exact as long as each system gets one subgraph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.placement.by_cost import CostChooser
from tvmtarget.partition.placement.cost_matrix import cost_matrix_of
from tvmtarget.partition.placement.coupled_atoms import CoupledOps
from tvmtarget.partition.placement.detours import Detours
from tvmtarget.partition.placement.energy import LabelingProblem
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.labeling_search import MAX_BRANCHED
from tvmtarget.partition.placement.level import Assignment, Level, level_of
from tvmtarget.partition.subgraphs.forming import subgraphs_of_level

__all__ = ["JointSites", "joint_sites", "next_joint_sites"]

# More leaves are decided level by level only, except for up to MAX_ENTRIES of the tables of copies, which grow with the
# square of the leaves. Next choices have more leaves only where branch and bound is tried (`MAX_BRANCHED`), and up to
# MAX_FEW_ENTRIES.
MAX_LEAVES, MAX_ENTRIES, MAX_FEW_ENTRIES = 24, 2_000_000, 100_000


@dataclass(frozen=True)
class JointSites:
    """The leaves of all operations, chosen together.

    Attributes:
        sites: paths of leaves by operation name; of the system for operations whose bodies its driver runs.
        least_time: a lower bound for all plans, in picoseconds; None where nothing is proven.
        subgraphs: the operations of each subgraph of a leaf, by name, in execution order.
        detoured: paths of the systems of which more calls may save copies (`detours.py`).
    """

    sites: Mapping[str, str]
    least_time: int | None
    subgraphs: tuple[frozenset[str], ...]
    detoured: frozenset[str]


def joint_sites(
    feasibility: Feasibility, estimates: Estimates, coupled: CoupledOps, *, is_quick: bool = False
) -> JointSites | None:
    """Return the leaves of all operations, chosen together by cost.

    If a system gets several subgraphs, its driver copies no less than the joint choice counts, apart from detours by
    its own memory (`detours.py`), and leaves get no fewer calls, so that the lower bound of this choice holds for all
    plans.

    Args:
        feasibility: which leaf can run which operation.
        estimates: times of operations, calls and copies.
        coupled: requests that couple operations.
        is_quick: find no tight lower bound, and leave out the search within memories that hold all weights.

    Returns:
        The leaves and a lower bound; None where leaves or operations are too many, or atoms fit none.
    """
    if not _is_within(feasibility, MAX_ENTRIES):
        return None
    try:
        leaves = _LevelOfLeaves(feasibility, estimates, coupled)
        bounds = not is_quick and not feasibility.program.reserved
        choice = leaves.chooser(bounds=bounds, is_quick=is_quick)(leaves.level)
    except InfeasibleError:
        return None
    return leaves.sites(choice)


def next_joint_sites(
    feasibility: Feasibility,
    estimates: Estimates,
    coupled: CoupledOps,
    total: int,
    most: int,
    *,
    is_quick: bool = False,
) -> Iterator[JointSites]:
    """Yield other leaves of all operations that may give a better plan, the best bounds first.

    Systems that get several calls copy more than the joint choice counts, so that the leaves which it prefers may not
    be the best ones. For more than a few operations, this is one choice, in which calls cost more.

    Args:
        feasibility: which leaf can run which operation.
        estimates: times of operations, calls and copies.
        coupled: requests that couple operations.
        total: the time of the best plan that is known, in picoseconds.
        most: the most results.
        is_quick: leave out the search within memories that hold all weights.

    Yields:
        The leaves; none where programs are too large to be decided jointly.
    """
    if not _is_within(feasibility, MAX_FEW_ENTRIES if len(feasibility.program.top) <= MAX_BRANCHED else 0):
        return
    try:
        leaves = _LevelOfLeaves(feasibility, estimates, coupled)
    except InfeasibleError:
        return
    chooser = leaves.chooser(bounds=False, is_quick=is_quick)
    is_few = len(leaves.level.atoms) <= MAX_BRANCHED
    choices = chooser.below(leaves.level, total, most) if is_few else [chooser.with_costlier_calls(leaves.level)]
    yield from map(leaves.sites, choices)


def _is_within(feasibility: Feasibility, entries: int) -> bool:
    leaves = len(feasibility.leaves)
    return leaves <= MAX_LEAVES or leaves**2 * len(feasibility.program.top) <= entries


class _LevelOfLeaves:
    """The level whose options are all leaves, and what plans by its choices depend on."""

    def __init__(self, feasibility: Feasibility, estimates: Estimates, coupled: CoupledOps) -> None:
        program = feasibility.program
        self.feasibility = feasibility
        self.estimates = estimates
        self.coupled = coupled
        self.level = level_of(program, feasibility, program.topology[""], program.top, feasibility.leaves)
        sizes = [estimates.nbytes(type_) or 0 for type_ in program.dataflow(program.top[:1]).types]
        paths = [leaf.path for leaf in self.level.options]
        self.detours = Detours(estimates.memory_graph, program.topology, paths, sizes)

    @cached_property
    def copies(self) -> LabelingProblem | None:
        """The copies between leaves, one problem for all choices; None where no values may save by detours."""
        if not self.detours.systems:
            return None
        return cost_matrix_of(self.feasibility, self.estimates, self.level).problem

    def chooser(self, *, bounds: bool, is_quick: bool = False) -> CostChooser:
        """Return the chooser for this level, with a tight lower bound if required."""
        return CostChooser(
            self.feasibility, self.estimates, self.coupled, bounds=bounds, detours=self.detours, is_quick=is_quick
        )

    def sites(self, choice: Assignment) -> JointSites:
        """Return the leaves that an assignment of the level chooses, and the subgraphs of these."""
        level, body = self.level, self.feasibility.program.body
        sites = _sites_of(self.feasibility, self.estimates, self.coupled, level, choice)
        helpful = frozenset[str]()
        if self.copies is not None:
            helpful = self.detours.helpful(self.copies, np.array(choice.chosen))
        subgraphs = (
            frozenset(body[index].source for index in level.calls(group))
            for group in subgraphs_of_level(level, choice, self.feasibility.cache)
        )
        # Drivers copy the inputs of bodies only when these need them, which the cost of a body does not count.
        least_time = None if level.drivers else choice.least_time
        return JointSites(sites, least_time, tuple(subgraphs), helpful)


def _sites_of(
    feasibility: Feasibility, estimates: Estimates, coupled: CoupledOps, level: Level, choice: Assignment
) -> dict[str, str]:
    """Return the sites of the operations of a level, and of those in bodies that its driver runs."""
    program, sites = feasibility.program, dict[str, str]()
    choose = CostChooser(feasibility, estimates, coupled, bounds=False)
    for atom, option in zip(level.atoms, choice.chosen, strict=True):
        sites |= {program.body[index].source: level.options[option].path for index in atom}
        # The leaves of each body are chosen together, too.
        for scope in program.bodies[atom[0]] if option in level.drivers else ():
            with suppress(InfeasibleError):
                inner = choose.body_level(level, option, tuple(scope.calls))
                sites |= _sites_of(feasibility, estimates, coupled, inner, choose(inner))
    return sites
