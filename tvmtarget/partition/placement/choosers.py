"""The methods of assignment that are tried for one plan, and choosers that reuse earlier assignments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tvmtarget.errors import InfeasibleError
from tvmtarget.ir.function import Call
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.options import PartitionOptions
from tvmtarget.partition.placement.coupled_atoms import CoupledOps, with_scarce_calls, with_unsized_values
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.level import (
    Assignment,
    Chooser,
    Level,
    by_preference,
    decision_inputs,
    with_capacities,
)
from tvmtarget.partition.plan_cache import digest
from tvmtarget.target.topology import Site
from tvmtarget.target.tree_paths import covers

# Many plans are by preference alone: what chooses by cost is imported where a plan has costs.
if TYPE_CHECKING:
    from tvmtarget.partition.placement.by_cost import CostChooser
    from tvmtarget.partition.placement.joint_levels import JointSites

__all__ = ["MAX_COMPARED", "CachedChooser", "PinnedChooser", "choosers_for", "next_choosers", "quick_chooser"]

# So many systems, at most, are called more often one at a time, beside all together.
MAX_DETOURED = 4

# Programs of more operations on nested trees are planned in fewer ways, the most promising one first. Of the ways to
# form calls for leaves that are chosen together, these are the first and the last one; above MAX_FREED the first alone.
MAX_COMPARED, MAX_FREED = 2000, 10_000


def choosers_for(
    feasibility: Feasibility,
    estimates: Estimates | None,
    options: PartitionOptions,
    sites: Mapping[str, str] | None,
    coupled: CoupledOps,
) -> list[Chooser]:
    """Return the choosers whose plans are compared.

    Args:
        feasibility: which site can run which operation.
        estimates: estimated times; None assigns by preference alone.
        options: whether latency or throughput counts, and the most replicas of a machine.
        sites: leaves by operation name that the plan should keep; None to start anew.
        coupled: requests that couple operations, which assignment by cost keeps where it can.

    Returns:
        At least one chooser; of equally good plans, that of the first one is kept.
    """
    program = feasibility.program
    has_systems = any(option.is_system for option in program.topology.options(""))
    is_nested = program.bodies or has_systems
    # At one flat level the assignment by cost compares the one by preference itself. A whole plan by preference is
    # only needed where levels interact, or where measurements of whole functions decide.
    choosers: list[Chooser] = []
    if estimates is None:
        choosers.append(by_preference)
    elif is_nested or estimates.costs.subgraphs:
        # The costs may state capacities, which plans are compared within.
        choosers.append(_PreferenceChooser(estimates) if estimates.capacities() else by_preference)
    if estimates is not None:
        from tvmtarget.partition.placement.by_cost import CostChooser
        from tvmtarget.partition.placement.joint_levels import joint_sites

        # With memory reserved for values, the bound is not that of all plans, and the first plan had that.
        bounds = not program.reserved
        by_cost = CachedChooser(CostChooser(feasibility, estimates, coupled, bounds=bounds))
        choosers.append(by_cost)
        # Neither is always better: the joint choice does not know how many calls the systems will get.
        joint = joint_sites(feasibility, estimates, coupled) if has_systems else None
        if joint is not None:
            first, *others = _choosers_of(joint, feasibility, estimates, by_cost, coupled)
            if len(program.top) > MAX_COMPARED:
                choosers = [first, *choosers, *(others[-1:] if len(program.top) <= MAX_FREED else [])]
            else:
                choosers += [first, *others]
        if program.bodies:
            choosers += _choosers_around_bodies(feasibility, estimates, coupled, by_cost)
    if estimates is not None and options.objective == "throughput":
        from tvmtarget.partition.placement.throughput_balancing import ThroughputChooser, balanced_leaves

        # The busiest machine is not all that limits a stream: consecutive stages wait less for each other.
        choosers += [
            ThroughputChooser(feasibility, estimates, keeps_stages=keeps, max_replicas=most)
            for most in sorted({1, options.max_replicas})
            for keeps in (True, False)
        ]
        leaves = balanced_leaves(feasibility, estimates, options.max_replicas) if has_systems else None
        if leaves is not None:
            choosers.append(PinnedChooser(leaves, program.body, by_cost, estimates))
    if sites is None:
        return choosers
    return [PinnedChooser(sites, program.body, choose, estimates) for choose in choosers]


def quick_chooser(
    feasibility: Feasibility, estimates: Estimates, coupled: CoupledOps, sites: Mapping[str, str] | None
) -> Chooser:
    """Return the one chooser of plans that are made many times on the way to another one.

    Args:
        feasibility: which site can run which operation.
        estimates: estimated times.
        coupled: requests that couple operations.
        sites: leaves by operation name that the plan should keep; None to start anew.

    Returns:
        The joint choice of all leaves where these are few, else the choice level by level; without a tight bound.
    """
    from tvmtarget.partition.placement.by_cost import CostChooser
    from tvmtarget.partition.placement.joint_levels import joint_sites

    program = feasibility.program
    choose: Chooser = CachedChooser(CostChooser(feasibility, estimates, coupled, bounds=False, is_quick=True))
    if any(option.is_system for option in program.topology.options("")):
        joint = joint_sites(feasibility, estimates, coupled, is_quick=True)
        if joint is not None:
            choose = PinnedChooser(joint.sites, program.body, choose, estimates, joint.least_time)
    return choose if sites is None else PinnedChooser(sites, program.body, choose, estimates)


def _choosers_around_bodies(
    feasibility: Feasibility, estimates: Estimates, coupled: CoupledOps, by_cost: Chooser
) -> Iterator[Chooser]:
    """Yield choosers that move operations together which the costs alone keep where they prefer to be.

    What a body takes on another leaf, and what is copied for it, is only known once the body is decided; and operations
    at the results of a loop, whose size is often unknown, leave the site that they prefer only together with it.
    """
    from tvmtarget.partition.placement.by_cost import CostChooser
    from tvmtarget.partition.placement.joint_levels import MAX_LEAVES, joint_sites

    program = feasibility.program
    if len(feasibility.leaves) > MAX_LEAVES or len(program.body) > MAX_COMPARED:
        return
    names = [call.source for call in program.body]
    for leaf in feasibility.leaves:
        # What the leaf cannot run whole, the driver of its system runs.
        driven = [names[index] for index in program.bodies if not feasibility.supports_whole((index,), leaf)]
        sites = dict.fromkeys(names, leaf.path) | dict.fromkeys(driven, leaf.path.rpartition("/")[0])
        yield PinnedChooser(sites, program.body, by_cost, estimates)
    united = with_unsized_values(coupled, program, estimates)
    if united is None:
        return
    together = CostChooser(feasibility, estimates, united, bounds=False)
    if any(option.is_system for option in program.topology.options("")):
        joint = joint_sites(feasibility, estimates, united)
        if joint is not None:
            yield from _choosers_of(replace(joint, least_time=None), feasibility, estimates, together, united)
    else:
        yield together


def next_choosers(
    feasibility: Feasibility,
    estimates: Estimates,
    coupled: CoupledOps,
    total: int,
    most: int,
    *,
    is_quick: bool = False,
) -> Iterator[PinnedChooser]:
    """Yield choosers of other sites that may be better than those of `choosers_for`.

    Costs of levels depend on each other: systems that get several calls copy again what they read.

    Args:
        feasibility: which site can run which operation.
        estimates: estimated times.
        coupled: requests that couple operations.
        total: the time of the best plan that is known, in picoseconds.
        most: the most choices of sites, each with several choosers.
        is_quick: leave out the search within memories that hold all weights.

    Yields:
        Choosers; none if the program is too large to be decided jointly.
    """
    from tvmtarget.partition.placement.by_cost import CostChooser
    from tvmtarget.partition.placement.joint_levels import next_joint_sites

    if len(feasibility.program.top) > MAX_COMPARED:
        return
    by_cost = CostChooser(feasibility, estimates, coupled, bounds=False, is_quick=is_quick)
    for joint in next_joint_sites(feasibility, estimates, coupled, total, most, is_quick=is_quick):
        yield from _choosers_of(joint, feasibility, estimates, by_cost, coupled)


def _choosers_of(
    joint: JointSites, feasibility: Feasibility, estimates: Estimates, by_cost: Chooser, coupled: CoupledOps
) -> Iterator[PinnedChooser]:
    """Yield the ways to form calls of systems for leaves that are chosen together."""
    pinned = PinnedChooser(joint.sites, feasibility.program.body, by_cost, estimates, joint.least_time)
    yield pinned
    # Levels form subgraphs with one cost of a call for each system, but calls of a system run different leaves.
    if coupled.max_subgraphs or _uses_several_leaves_of_one(joint.sites.values()):
        yield replace(pinned, subgraphs=joint.subgraphs)
    each = (frozenset({path}) for path in sorted(joint.detoured)[:MAX_DETOURED])
    for detoured in dict.fromkeys((joint.detoured, *each) if joint.detoured else ()):
        yield replace(pinned, subgraphs=joint.subgraphs, detoured=detoured)
    if _has_several_calls(joint):
        merging = replace(pinned, merges=True)
        yield from (merging, replace(merging, frees=True))


def _uses_several_leaves_of_one(sites: Iterable[str]) -> bool:
    """Return whether several leaves of one system are used."""
    systems = Counter(site.partition("/")[0] for site in dict.fromkeys(sites) if "/" in site)
    return max(systems.values(), default=0) > 1


def _has_several_calls(joint: JointSites) -> bool:
    """Return whether a system below the root gets several subgraphs of its leaves."""
    sites = (joint.sites.get(name, "") for name in map(min, joint.subgraphs))
    systems = [site.partition("/")[0] for site in sites if "/" in site]
    return len(set(systems)) < len(systems)


@dataclass(frozen=True)
class _PreferenceChooser:
    """A chooser by preference within the memory capacities that costs state."""

    estimates: Estimates

    def __call__(self, level: Level) -> Assignment:
        return by_preference(with_capacities(level, self.estimates))


@dataclass(frozen=True)
class CachedChooser:
    """A chooser that reuses the assignment of an earlier plan for a level with the same costs.

    Attributes:
        choose: chooses if the cache has no such level.
    """

    choose: CostChooser

    @classmethod
    def of(cls, feasibility: Feasibility, estimates: Estimates) -> CachedChooser:
        """Return a chooser by cost without a bound.

        Args:
            feasibility: which site can run which operation.
            estimates: estimated times.

        Returns:
            The chooser.
        """
        from tvmtarget.partition.placement.by_cost import CostChooser

        return cls(CostChooser(feasibility, estimates, bounds=False))

    def __call__(self, level: Level) -> Assignment:
        """Choose a site for every atom.

        Args:
            level: the atoms and options of one system.

        Returns:
            The same assignment that `choose` returns.
        """
        feasibility, estimates = self.choose.feasibility, self.choose.estimates
        is_fixed = not level.atoms or len(level.options) == 1
        # The key below does not cover memory capacities, coupled operations, nor times with their errors.
        if (
            is_fixed
            or self.choose.coupled
            or level.capacity is not None
            or estimates.capacities()
            or estimates.has_errors
        ):
            return self.choose(level)
        matrix = self.choose.matrix(level)
        arrays = (getattr(matrix.problem, field.name) for field in fields(matrix.problem))
        key = digest(*decision_inputs(level), *arrays, matrix.penalty, matrix.shift, matrix.is_known)
        found = feasibility.cache.find("choices of sites", key, lambda: self.choose.best(level, matrix))
        return replace(found, chosen=[*found.chosen], launches=[*found.launches])


@dataclass(frozen=True)
class PinnedChooser:
    """A chooser that keeps operations on the leaves of an earlier plan, wherever these are still allowed.

    New operations, and those whose leaf is no longer allowed or cannot hold their weights, are left to another chooser.

    Attributes:
        sites: leaves by operation name.
        body: the operations of the program.
        choose: chooses among the options that are left.
        estimates: the costs, which may state memory capacities.
        least_time: a lower bound for all plans that is known already, in picoseconds.
        subgraphs: the operations of subgraphs of leaves, by name, in execution order, that subgraphs of systems do not
            divide where all of the leaves are kept; None forms all subgraphs by the cost of their calls.
        detoured: paths of systems that are called anew for each of these subgraphs.
        merges: call each system as seldom as possible, as each call copies again what it reads.
        frees: keep operations in the same child of the root alone, and choose anew below for each call of it.
    """

    sites: Mapping[str, str]
    body: tuple[Call, ...]
    choose: Chooser
    estimates: Estimates | None = None
    least_time: int | None = None
    subgraphs: tuple[frozenset[str], ...] | None = None
    detoured: frozenset[str] = frozenset()
    merges: bool = False
    frees: bool = False

    def __call__(self, level: Level) -> Assignment:
        """Choose a site for every atom.

        Args:
            level: the atoms and options of one system.

        Returns:
            An assignment; its lower bound holds for all assignments, not only for those that keep the leaves.
        """
        if self.frees and level.site.path:
            return replace(self.choose(level), least_time=None)
        allowed = level.allowed & self._kept(level)
        allowed = np.where(allowed.any(axis=1, keepdims=True), allowed, level.allowed)
        choice = self._within_capacity(level, allowed)
        bound = choice.least_time if self.least_time is None else self.least_time
        if self.least_time is None and bound is not None and (allowed != level.allowed).any():
            # Only the bound of the uppermost level is one of the program.
            bound = None if level.site.path else self.choose(level).least_time
        subgraphs = self._subgraphs_of(level, choice.chosen)
        launches = self._launches(level, choice)
        detoured = frozenset(number for number, option in enumerate(level.options) if option.path in self.detoured)
        return replace(choice, launches=launches, least_time=bound, subgraphs=subgraphs, kept=detoured)

    def _kept(self, level: Level) -> npt.NDArray[np.bool_]:
        """Return which options (columns) are or contain the leaves of each atom (row)."""
        kept: dict[frozenset[str | None], list[bool]] = {}
        rows = [frozenset([self.sites.get(self.body[index].source) for index in atom]) for atom in level.atoms]
        for leaves in dict.fromkeys(rows):
            kept[leaves] = [
                all(leaf is not None and _contains(level, site, leaf) for leaf in leaves) for site in level.options
            ]
        return np.array([kept[leaves] for leaves in rows], dtype=np.bool_).reshape(level.allowed.shape)

    def _subgraphs_of(self, level: Level, chosen: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return the given subgraphs as atoms of a level; none if atoms are not where they were, or in several."""
        if self.subgraphs is None or not any(option.is_system for option in level.options):
            return ()
        number_of = {name: number for number, names in enumerate(self.subgraphs) for name in names}
        found: dict[int, list[int]] = {}
        for atom, calls in enumerate(level.atoms):
            numbers = {number_of.get(self.body[index].source, -1) for index in calls}
            if len(numbers) > 1 or -1 in numbers:
                return ()
            found.setdefault(numbers.pop(), []).append(atom)
        if any(len({chosen[atom] for atom in atoms}) > 1 for atoms in found.values()):
            return ()
        return [found[number] for number in sorted(found)]

    def _launches(self, level: Level, choice: Assignment) -> Sequence[int]:
        """Return the cost of a call by option: in a system, that of the cheapest leaf which is known to be used."""
        if self.estimates is None or not choice.launches or level.is_divided:
            return choice.launches
        launches, rates, topology = [*choice.launches], self.estimates.rates, self.estimates.program.topology
        sites: list[set[str]] = [set() for _ in level.options]
        for atom, chosen in zip(level.atoms, choice.chosen, strict=True):
            sites[chosen].update([self.sites.get(self.body[index].source, "") for index in atom])
        for number, option in enumerate(level.options):
            # Operations with nested bodies that a driver runs are on no leaf.
            used = [topology[site] for site in sites[number] if site in rates and covers(option.path, site)]
            if option.is_system and used:
                launches[number] = min(map(self.estimates.launch, used))
        if self.merges:
            is_system = np.array([option.is_system for option in level.options])
            launches = with_scarce_calls(np.array(launches), is_system, len(level.atoms)).tolist()
        return launches

    def _within_capacity(self, level: Level, allowed: npt.NDArray[np.bool_]) -> Assignment:
        """Choose among allowed options; release atoms whose weights do not fit, and all where that does not suffice."""
        capacity = level.capacity
        if self.estimates is not None:
            capacity = with_capacities(level, self.estimates).capacity
        if capacity is None:
            return self.choose(replace(level, allowed=allowed))
        released = capacity.released(level.allowed, allowed)
        try:
            return self.choose(replace(level, allowed=np.where(released[:, None], level.allowed, allowed)))
        except InfeasibleError:
            return self.choose(level)


def _contains(level: Level, site: Site, path: str) -> bool:
    """Check whether an option is or contains a node; the level's own site, which runs control flow, only is itself."""
    return path == site.path if site is level.site else covers(site.path, path)
