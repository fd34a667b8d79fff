"""Choosing sites by cost: operations, copies and launches together, beside the choice by preference.

What is unknown is dearer than everything that is known: of two choices the one with fewer unknowns wins, then the
faster one, then the one that children in order of preference give.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvmtarget.partition.assignment.expansion import expanded
from tvmtarget.partition.assignment.placement import Flow, Placement, Routes, enumerated
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.feasibility import Feasibility
from tvmtarget.partition.split import Choice, Level, by_preference, grouped
from tvmtarget.partition.strategies.strategy import strategy_for
from tvmtarget.target.layout import Site

__all__ = ["ByCost"]

# All choices are tried if there are no more than this.
ENUMERATED = 4096

# Shares of a launch that are charged wherever a value passes between sites: how many regions that makes is only
# known afterwards, so several are tried, beside none.
SHARES = (0.5, 1.0)


class ByCost:
    """A chooser of sites (see `split`) that asks estimates."""

    def __init__(self, feasibility: Feasibility, estimates: Estimates) -> None:
        self.feasibility = feasibility
        self.estimates = estimates
        self.program = feasibility.program

    def __call__(self, level: Level) -> Choice:
        """Choose a site for every atom of a level."""
        if not level.atoms or len(level.options) == 1:
            return by_preference(level)
        scales = _Scales(self, level)
        placement = scales.placement()
        judge = _Judge(level, placement)
        judge.look_at(by_preference(level).chosen)
        tried = list(enumerated(placement, ENUMERATED))
        if tried:
            for labels in tried:
                judge.look_at(labels)
            return Choice(judge.chosen, judge.least if judge.least < scales.beyond else None)
        for option in range(len(level.options)):
            judge.look_at([option if option in allowed else allowed[0] for allowed in level.allowed])
        without_launches = expanded(placement, 0.0)
        for labels in (without_launches, *(expanded(placement, share) for share in SHARES)):
            judge.look_at(labels)
        least = _least(placement, without_launches)
        return Choice(judge.chosen, least if least < scales.beyond else None)


class _Judge:
    """Keeps the best choice, by the model that plans are measured by: regions as they will be."""

    def __init__(self, level: Level, placement: Placement) -> None:
        self.level = level
        self.placement = placement
        self.chosen: list[int] = []
        self.least = 0

    def look_at(self, labels: list[int]) -> None:
        """Take a choice if it is better than all before."""
        if labels == self.chosen:
            return
        total = self.placement.total(labels)
        if self.chosen and total >= self.least:
            return
        regions = grouped(self.level, labels)
        total += sum(self.placement.launches[labels[region[0]]] for region in regions)
        if not self.chosen or total < self.least:
            self.chosen, self.least = labels, total


def _least(placement: Placement, without_launches: list[int]) -> int:
    """Return what no choice can go below: exact but for launches with two sites, else only the operations."""
    if len(placement.launches) == 2:
        return placement.total(without_launches) + min(placement.launches)
    operations = sum(min(cost for cost in row if cost is not None) for row in placement.costs)
    return operations + min(placement.launches)


class _Scales:
    """The numbers of one level: what atoms, launches and copies cost; `beyond` stands for what is unknown."""

    def __init__(self, chooser: ByCost, level: Level) -> None:
        self.chooser = chooser
        self.program = chooser.program
        self.estimates = chooser.estimates
        self.level = level
        self.launches = [self._launch(option) for option in level.options]
        # Where every atom is a function of its own, it pays for its launch itself; elsewhere, regions do.
        self.passing = tuple(
            0 if level.is_divided or _is_single(option) else launch
            for option, launch in zip(level.options, self.launches, strict=True)
        )
        homes = [self.program.layout.home(option.path) for option in level.options]
        self.home = self.program.layout.home(level.site.path)
        self.domains = tuple(dict.fromkeys([*homes, self.home]))
        self.homes = tuple(self.domains.index(home) for home in homes)
        self.values = list(self._values())
        self._routes: dict[int | None, tuple[tuple[int | None, ...], ...]] = {}
        self._times = [
            [self._time(atom, option) if option in allowed else None for option in range(len(level.options))]
            for atom, allowed in enumerate(level.allowed)
        ]
        self.beyond = self._beyond()

    def placement(self) -> Placement:
        """Return the numbers with unknowns beyond all that is known."""
        costs = tuple(
            tuple(None if time is None else time[0] + time[1] * self.beyond for time in row) for row in self._times
        )
        routes: dict[int | None, Routes] = {}
        for *_, nbytes in self.values:
            if nbytes not in routes:
                routes[nbytes] = tuple(
                    tuple(self.beyond if cost is None else cost for cost in row) for row in self._route(nbytes)
                )
        flows = tuple(
            Flow(producer, readers, is_wanted, routes[nbytes]) for producer, readers, is_wanted, nbytes in self.values
        )
        return Placement(costs, flows, self.homes, self.domains.index(self.home), self.passing)

    def _beyond(self) -> int:
        """Return more than everything that is known can add up to."""
        known = sum(max((time[0] for time in row if time is not None), default=0) for row in self._times)
        for *_, nbytes in self.values:
            dearest = max((cost for row in self._route(nbytes) for cost in row if cost is not None), default=0)
            known += dearest * len(self.domains)
        return 1 + known + max(self.launches) * len(self.level.atoms) + 1

    def _time(self, atom: int, option: int) -> tuple[int, int]:
        """Return what is known of the time of an atom, and how many of its operations are unknown."""
        site = self.level.options[option]
        known, unknown = self.launches[option] - self.passing[option], 0
        for index in self.level.atoms[atom]:
            leaves = (leaf for leaf in self.chooser.feasibility.below(site))
            times = [
                self.estimates.time(index, leaf).time
                for leaf in leaves
                if self.chooser.feasibility.verdict(index, leaf) is None
            ]
            least = min((time for time in times if time is not None), default=None)
            known += least or 0
            unknown += least is None
        return known, unknown

    def _launch(self, option: Site) -> int:
        return min(self.estimates.launch(leaf) for leaf in self.chooser.feasibility.below(option))

    def _route(self, nbytes: int | None) -> tuple[tuple[int | None, ...], ...]:
        if nbytes not in self._routes:
            links = self.estimates.links
            self._routes[nbytes] = tuple(
                tuple(
                    0 if src == dst else None if nbytes is None else links.copy(nbytes, src, dst)
                    for dst in self.domains
                )
                for src in self.domains
            )
        return self._routes[nbytes]

    def _values(self) -> Iterator[tuple[int | None, tuple[int, ...], bool, int | None]]:
        """Yield producer, readers, whether it must come home, and size of every value between atoms or to outside."""
        program = self.program
        owner = {index: atom for atom, members in enumerate(self.level.atoms) for index in members}
        results = program.results
        given: dict[str, dict[int, None]] = {}
        for atom, members in enumerate(self.level.atoms):
            for index in members:
                for name in program.body[index].uses():
                    if program.producer.get(name) not in owner and name not in program.constants:
                        given.setdefault(name, {})[atom] = None
                for output in program.body[index].outputs:
                    consumers = program.consumers.get(output.name, ())
                    readers = dict.fromkeys(owner[reader] for reader in consumers if reader in owner)
                    readers.pop(atom, None)
                    is_wanted = output.name in results or any(reader not in owner for reader in consumers)
                    if output.name and (readers or is_wanted):
                        yield atom, tuple(readers), is_wanted, self.estimates.nbytes(output.type)
        for name, read in given.items():
            yield None, tuple(read), False, self.estimates.nbytes(program.types[name])


def _is_single(site: Site) -> bool:
    strategy = strategy_for(site.target.kind)
    return strategy is not None and strategy.regions == "single"
