"""Choosing sites so that inputs which follow each other get through fast: the busiest machine is made least busy.

Operations in one topological order are cut into consecutive stages, one for each machine, as in the linear dynamic
program of Tarnawski et al. ("Efficient Algorithms for Device LabelingProblem of DNN Graph Operators", NeurIPS 2020). A
machine is busy with its operations, one call, what it receives, once each, and what it sends, counted once each. Of
that the result is the best among all stages of the order: O(n^2 k) for n atoms, or runs of atoms, and k machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.dataflow import GIVEN, Ints
from tvmtarget.partition.machines.machine import Machines
from tvmtarget.partition.placement.by_cost import CostChooser
from tvmtarget.partition.placement.cost_matrix import cost_matrix_of
from tvmtarget.partition.placement.energy import Bools, LabelingProblem
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.level import Assignment, Level

__all__ = ["Line", "PassedValues", "ThroughputChooser", "balanced"]

LONGEST = 2000  # places between which stages are cut; of a longer line, the cheapest cut in each of so many parts
ORDERS = 24  # orders of machines that are not alike which are tried

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class PassedValues:
    """What passes between places of a line: who makes it (`GIVEN`: it is at home), who reads it, and what a move costs.

    `readers` rise; `is_live_out` says that it must end up at home as well.
    """

    producer: int
    readers: tuple[int, ...]
    is_live_out: bool
    cost: int


@dataclass(frozen=True)
class Line:
    """Atoms in a topological order: what each costs on each machine, where it is allowed, and values between them.

    `launches` is what a call costs on each machine, `home` the machine where inputs and results are, None for one
    that gets no work.
    """

    costs: Ints
    allowed: Bools
    launches: tuple[int, ...]
    values: tuple[PassedValues, ...]
    home: int | None


def balanced(line: Line) -> tuple[list[int], int] | None:
    """Return the machine of every place, in stages in the order of machines, and what the busiest then does.

    None if no such stages are allowed.
    """
    count = len(line.costs)
    best = np.full(count + 1, _NEVER)
    best[0] = 0
    begins: list[Ints] = []
    between = _Between(line)
    for machine in range(len(line.launches)):
        loads = between.loads(machine)
        worst = np.maximum(best[:, None], loads)
        begin = worst.argmin(axis=0)
        begins.append(begin)
        best = worst[begin, np.arange(count + 1)]
    if best[count] == _NEVER:
        return None
    chosen = [0] * count
    end = count
    for machine in reversed(range(len(line.launches))):
        begin_of_stage = int(begins[machine][end])
        chosen[begin_of_stage:end] = [machine] * (end - begin_of_stage)
        end = begin_of_stage
    return chosen, int(best[count])


class _Between:
    """What passes into and out of the stage from place a up to place b, for all a (rows) and b (columns)."""

    def __init__(self, line: Line) -> None:
        self.line = line
        size = len(line.costs) + 1
        arriving, given, leaving, inside = (np.zeros((size, size), dtype=np.int64) for _ in range(4))
        wanted = np.zeros(size, dtype=np.int64)
        self.given_in_all = 0
        for value in line.values:
            begin = value.producer + 1  # a value that is given is there before the first place
            wanted[begin] += value.cost * value.is_live_out
            if not value.readers:
                continue
            entering = given if value.producer == GIVEN else arriving
            for reader in value.readers:
                entering[begin : reader + 1, reader + 1] += value.cost
                begin = reader + 1
            if value.producer == GIVEN:
                inside[value.readers[0], value.readers[-1] + 1] += value.cost
                self.given_in_all += value.cost
            else:
                leaving[value.producer + 1, value.producer + 1 : value.readers[-1] + 1] += value.cost
        later = np.zeros_like(leaving)
        later[:-1] = leaving[::-1].cumsum(axis=0)[::-1][1:]
        self.crossing = arriving.cumsum(axis=1) + later
        self.given = given.cumsum(axis=1)
        self.given_inside = inside[::-1].cumsum(axis=0)[::-1].cumsum(axis=1)
        self.wanted = wanted.cumsum()

    def loads(self, machine: int) -> Ints:
        """Return what a machine is busy with for every stage; `_NEVER` where it may not have it."""
        line = self.line
        size = len(line.costs) + 1
        time, refused = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
        time[1:] = line.costs[:, machine].cumsum()
        refused[1:] = (~line.allowed[:, machine]).cumsum()
        place = np.arange(size)
        wanted = self.wanted[None, :] - self.wanted[:, None]
        loads = time[None, :] - time[:, None] + self.crossing
        if machine == line.home:
            loads += (self.wanted[-1] - wanted) + (self.given_in_all - self.given_inside)
        else:
            loads += wanted + self.given
        loads[place[:, None] < place[None, :]] += line.launches[machine]
        loads[(place[:, None] > place[None, :]) | (refused[None, :] > refused[:, None])] = _NEVER
        return loads


class ThroughputChooser:
    """A chooser that gives the machines of a cluster consecutive stages; `CostChooser` chooses below it."""

    def __init__(self, feasibility: Feasibility, estimates: Estimates) -> None:
        self.feasibility = feasibility
        self.estimates = estimates
        self.by_cost = CostChooser(feasibility, estimates)
        self.machines = Machines(feasibility.program.topology)

    def __call__(self, level: Level) -> Assignment:
        """Choose a site for every atom of a level."""
        working = self.machines.working
        if level.site.path or len(working) < 2 or not level.atoms:
            return self.by_cost(level)
        placement = cost_matrix_of(self.feasibility, self.estimates, level).placement
        owner = [self.machines.of_site(option.path) for option in level.options]
        columns = [[place for place, path in enumerate(owner) if path == machine.path] for machine in working]
        home = next((place for place, machine in enumerate(working) if machine.path == self.machines.home), None)
        order = np.array(level.graph.topological_order, dtype=np.int64)
        options = _cheapest(placement, columns)
        line = _line(placement, order, options, home)
        runs = _runs(line)
        found = _best(_contracted(line, runs))
        if found is None:
            return self.by_cost(level)
        chosen = [0] * len(level.atoms)
        for run, machine in enumerate(found):
            for place in range(runs[run], runs[run + 1]):
                atom = int(order[place])
                chosen[atom] = int(options[atom, machine])
        return Assignment(chosen)


def _best(line: Line) -> list[int] | None:
    """Return the stages of the best order of machines, where those that are alike need no second order."""
    columns = [
        (*line.costs[:, place].tolist(), *line.allowed[:, place].tolist(), launch, place == line.home)
        for place, launch in enumerate(line.launches)
    ]
    kind = [columns.index(column) for column in columns]
    best: tuple[int, list[int]] | None = None
    for order in _orders(kind):
        found = balanced(_permuted(line, order))
        if found is not None and (best is None or found[1] < best[0]):
            best = found[1], [order[machine] for machine in found[0]]
    return None if best is None else best[1]


def _orders(kind: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield orders of machines, the given one first, of which no two differ only in machines that are alike."""
    seen: set[tuple[int, ...]] = set()
    every = permutations(range(len(kind))) if len(kind) <= 4 else iter([tuple(range(len(kind)))])
    for order in every:
        kinds = tuple(kind[machine] for machine in order)
        if kinds not in seen and len(seen) < ORDERS:
            seen.add(kinds)
            yield order


def _permuted(line: Line, order: tuple[int, ...]) -> Line:
    return replace(
        line,
        costs=line.costs[:, order],
        allowed=line.allowed[:, order],
        launches=tuple(line.launches[machine] for machine in order),
        home=None if line.home is None else order.index(line.home),
    )


def _cheapest(placement: LabelingProblem, columns: Sequence[Sequence[int]]) -> Ints:
    """Return the option that an atom (row) has in each machine (column): the cheapest that is allowed."""
    costs = np.where(placement.allowed, placement.costs, _NEVER)
    return np.stack([np.array(own)[costs[:, own].argmin(axis=1)] for own in columns], axis=1)


def _line(placement: LabelingProblem, order: Ints, options: Ints, home: int | None) -> Line:
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    dearest = placement.routes.max(axis=(1, 2), initial=0)
    values = [
        PassedValues(
            producer=GIVEN if placement.producer[index] == GIVEN else int(place[placement.producer[index]]),
            readers=tuple(
                sorted(place[placement.readers[placement.start[index] : placement.start[index + 1]]].tolist())
            ),
            is_live_out=bool(placement.is_live_out[index]),
            cost=int(dearest[placement.routing[index]]),
        )
        for index in range(len(placement.producer))
    ]
    rows = np.arange(len(order))[:, None]
    used = [options[:, machine] for machine in range(options.shape[1])]
    return Line(
        costs=placement.costs[rows, options][order],
        allowed=placement.allowed[rows, options][order],
        launches=tuple(int(placement.launches[option].min()) for option in used),
        values=tuple(values),
        home=home,
    )


def _runs(line: Line) -> list[int]:
    """Return where runs of places begin that stay together, and the end: of equal parts by time, the cheapest cut."""
    count = len(line.costs)
    if count <= LONGEST:
        return list(range(count + 1))
    passing = np.zeros(count + 2, dtype=np.int64)
    for value in line.values:
        if value.readers:
            passing[value.producer + 1] += value.cost
            passing[value.readers[-1] + 1] -= value.cost
    cuts = passing.cumsum()[: count + 1]  # what a cut before each place costs
    time = line.costs.min(axis=1).cumsum()
    part = (
        (time * LONGEST) // (int(time[-1]) + 1) if time[-1] < _NEVER // LONGEST else np.arange(count) * LONGEST // count
    )
    begins = np.flatnonzero(np.diff(part, prepend=-1))
    ends = [*begins[1:].tolist(), count]
    found = [begin + int(cuts[begin:end].argmin()) for begin, end in zip(begins.tolist(), ends, strict=True)]
    return sorted({0, *found, count})


def _contracted(line: Line, runs: Sequence[int]) -> Line:
    """Return the line with runs of places as its places."""
    if len(runs) == len(line.costs) + 1:
        return line
    begins = np.array(runs[:-1])
    owner = np.repeat(np.arange(len(begins)), np.diff(runs))
    values: list[PassedValues] = []
    for value in line.values:
        producer = GIVEN if value.producer == GIVEN else int(owner[value.producer])
        readers = tuple(sorted({int(owner[reader]) for reader in value.readers} - {producer}))
        if readers or value.is_live_out:
            values.append(replace(value, producer=producer, readers=readers))
    return replace(
        line,
        costs=np.add.reduceat(line.costs, begins, axis=0),
        allowed=np.logical_and.reduceat(line.allowed, begins, axis=0),
        values=tuple(values),
    )
