"""Choices of sites that are recalled: at a level of the same numbers the search by cost finds the same."""

from __future__ import annotations

from dataclasses import fields, replace

from tvmtarget.partition.placement.by_cost import CostChooser
from tvmtarget.partition.placement.cost_matrix import cost_matrix_of
from tvmtarget.partition.placement.level import Assignment, Level, decision_inputs
from tvmtarget.partition.plan_cache import digest

__all__ = ["CachedChooser"]


class CachedChooser:
    """A chooser (see `split`) that asks another one where an earlier plan had no level of the same numbers.

    The numbers are all that the other one goes by: what is allowed, what follows what, and what everything costs. Where
    memories are too small for all weights, or numbers are doubted, it goes by more, and is always asked.
    """

    def __init__(self, choose: CostChooser) -> None:
        self.choose = choose

    def __call__(self, level: Level) -> Assignment:
        """Choose a site for every atom of a level."""
        feasibility, estimates = self.choose.feasibility, self.choose.estimates
        is_fixed = not level.atoms or len(level.options) == 1
        if is_fixed or level.capacity is not None or estimates.capacities() or estimates.costs.doubt:
            return self.choose(level)
        numbers = cost_matrix_of(feasibility, estimates, level)
        placement = (getattr(numbers.placement, field.name) for field in fields(numbers.placement))
        key = digest(*decision_inputs(level), *placement, numbers.beyond, numbers.shift, numbers.is_known)
        found = feasibility.cache.find("choices of sites", key, lambda: self.choose(level))
        return replace(found, chosen=[*found.chosen], launches=[*found.launches])
