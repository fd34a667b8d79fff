"""Choosing sites by cost: operations, copies and launches together, beside the choice by preference.

What is unknown is dearer than everything that is known: of two choices the one with fewer unknowns wins, then the
faster one, then the one that children in order of preference give.
"""

from __future__ import annotations

import numpy as np

from tvmtarget.partition.assignment.expansion import expanded
from tvmtarget.partition.assignment.maxflow import Budget
from tvmtarget.partition.assignment.placement import Placement, energy_of, enumerated
from tvmtarget.partition.assignment.scales import scaled
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.feasibility import Feasibility
from tvmtarget.partition.split import Choice, Level, by_preference, grouped

__all__ = ["ByCost"]

# All choices are tried if there are no more than this.
ENUMERATED = 4096

# Shares of a launch that are charged wherever a value passes between sites: how many regions that makes is only
# known afterwards, so several are tried, beside none.
SHARES = (0.5, 1.0)

# Visits of edges that the cuts of one level may take, for each atom and value, and beside: beyond it, sites are still
# valid, but no longer the best.
WORK, WORK_BESIDE = 40, 10**6


class ByCost:
    """A chooser of sites (see `split`) that asks estimates."""

    def __init__(self, feasibility: Feasibility, estimates: Estimates) -> None:
        self.feasibility = feasibility
        self.estimates = estimates

    def __call__(self, level: Level) -> Choice:
        """Choose a site for every atom of a level."""
        if not level.atoms or len(level.options) == 1:
            return by_preference(level)
        numbers = scaled(self.feasibility, self.estimates, level)
        placement = numbers.placement
        judge = _Judge(level, placement)
        judge.look_at(level.allowed.argmax(axis=1))
        tried = list(enumerated(placement, ENUMERATED))
        if tried:
            for labels in tried:
                judge.look_at(labels)
            least = judge.least
        else:
            least = self._searched(placement, judge)
        is_known = least < numbers.beyond and not numbers.shift
        return Choice(judge.chosen.tolist(), least if is_known else None)

    def _searched(self, placement: Placement, judge: _Judge) -> int:
        """Look at the choices that cuts find, and return what none can go below."""
        rows = np.arange(len(placement.costs))
        for option in range(len(placement.launches)):
            first = placement.allowed.argmax(axis=1)
            judge.look_at(np.where(placement.allowed[rows, option], option, first))
        budget = Budget(WORK * (len(placement.costs) + len(placement.readers)) + WORK_BESIDE)
        without_launches = expanded(placement, 0.0, budget)
        labels = without_launches
        judge.look_at(labels)
        for share in SHARES:
            labels = expanded(placement, share, budget, labels)
            judge.look_at(labels)
        return _least(placement, without_launches)


class _Judge:
    """Keeps the best choice, by the model that plans are measured by: regions as they will be."""

    def __init__(self, level: Level, placement: Placement) -> None:
        self.level = level
        self.placement = placement
        self.energy = energy_of(placement, 0.0)
        self.chosen: Ints = np.zeros(0, dtype=np.int64)
        self.least: int | None = None

    def look_at(self, labels: Ints) -> None:
        """Take a choice if it is better than all before."""
        total = self.energy.total(labels)
        if self.least is not None and total >= self.least:
            return
        regions = grouped(self.level, labels.tolist())
        total += sum(int(self.placement.launches[labels[region[0]]]) for region in regions)
        if self.least is None or total < self.least:
            self.chosen, self.least = labels, total


def _least(placement: Placement, without_launches: Ints) -> int:
    """Return what no choice can go below: exact but for launches with two sites, else only the operations."""
    if len(placement.launches) == 2:
        return placement.total(without_launches) + int(placement.launches.min())
    endless = np.iinfo(np.int64).max
    operations = np.where(placement.allowed, placement.costs, endless).min(axis=1).sum()
    return int(operations) + int(placement.launches.min())
