"""The ways of choosing sites that are tried for one plan, of which the best is kept."""

from __future__ import annotations

from collections.abc import Mapping

from tvmtarget.partition.cached_assignment import CachedChooser
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.placement.by_cost import CostChooser
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.level import Chooser, by_preference
from tvmtarget.partition.placement.pinned_assignment import PinnedChooser
from tvmtarget.partition.placement.throughput_balancing import ThroughputChooser

__all__ = ["choosers_for"]


def choosers_for(
    feasibility: Feasibility, estimates: Estimates | None, objective: str, sites: Mapping[str, str] | None
) -> list[Chooser]:
    """Return by preference, by costs if there are any, or both; each keeps the `sites` of operations that are given."""
    program = feasibility.program
    is_deep = program.bodies or any(option.is_system for option in program.topology.options(""))
    choosers: list[Chooser] = [by_preference] if estimates is None or is_deep or estimates.costs.subgraphs else []
    if estimates is not None:
        choosers.append(CachedChooser(CostChooser(feasibility, estimates)))
    if estimates is not None and objective == "throughput":
        choosers.append(ThroughputChooser(feasibility, estimates))
    if sites is None:
        return choosers
    names = tuple(call.source for call in program.body)
    return [PinnedChooser(sites, names, choose) for choose in choosers]
