"""Assign machines so that consecutive inputs overlap well: the load of the busiest machine is minimized.

The operations, in one topological order, are cut into consecutive stages, one per machine, by the linear dynamic
program of Tarnawski et al. ("Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020). The load
of a machine is its operations, one call, and what it receives and sends, each value counted once. The result is optimal
for the order: O(n^2 k) for n atoms, or runs of atoms, and k machines.

Machines that are equal may share a stage, as replicas of which each input takes one (PipeDream, Narayanan et al., SOSP
2019): a stage of n machines has the n-th part of the load of one, and the dynamic program chooses n, too.

For programs of few atoms, `_LoadSearch` goes on from these stages by beam search and local search, so that the stages
of a machine need not be consecutive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise, permutations, product

import numpy as np

from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.dataflow import NO_PRODUCER, Ints
from tvmtarget.partition.machines.machine import Machines
from tvmtarget.partition.placement.by_cost import CostChooser
from tvmtarget.partition.placement.cost_matrix import CostMatrix, cost_matrix_of
from tvmtarget.partition.placement.energy import ENDLESS, Bools, LabelingProblem
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.joint_levels import MAX_LEAVES
from tvmtarget.partition.placement.level import Assignment, Level, level_of, with_capacities
from tvmtarget.partition.placement.local_search import neighboring_labelings, paired
from tvmtarget.partition.subgraphs.forming import quick_subgraphs

__all__ = ["AtomSequence", "PassedValue", "Stages", "ThroughputChooser", "balance_stages", "balanced_leaves"]

# Longer sequences are divided into runs first: the dynamic program is quadratic.
MAX_POSITIONS = 2000

# Orders of machines that are tried; machines with equal columns are interchangeable.
MAX_ORDERS = 24

# `_LoadSearch`: atoms up to which it goes on from stages, the width of the beam times the number of atoms, rounds of
# local search, and labelings of a round whose calls are counted.
MAX_ATOMS, BEAM_ENTRIES, MAX_ROUNDS, MAX_FORMED = 64, 16_384, 8, 16

# Operations up to which the leaves of machines of several are chosen together: a search over all leaves takes longer.
MAX_JOINT = 32

# Ways in which equal machines share stages that are searched: all of them up to five equal machines.
MAX_GROUPINGS = 7


@dataclass(frozen=True)
class PassedValue:
    """A value that passes between positions of a sequence.

    Attributes:
        producer: position of the atom that computes it, `NO_PRODUCER` if it is at home.
        readers: positions of the atoms that read it, ascending.
        is_live_out: whether it must end up at home.
        cost: cost of moving it between two machines.
    """

    producer: int
    readers: tuple[int, ...]
    is_live_out: bool
    cost: int


@dataclass(frozen=True)
class AtomSequence:
    """Atoms in topological order, with costs by machine.

    Attributes:
        costs: cost of each atom (row) on each machine (column).
        allowed: whether an atom may run on a machine.
        launches: cost of a call on each machine.
        values: the values that pass between atoms.
        home: the machine of inputs and results, None if it is none of these machines.
    """

    costs: Ints
    allowed: Bools
    launches: tuple[int, ...]
    values: tuple[PassedValue, ...]
    home: int | None

    def kinds(self) -> list[int]:
        """Return for each machine the first one that is equal to it."""
        columns = [
            (*self.costs[:, machine].tolist(), *self.allowed[:, machine].tolist(), launch, machine == self.home)
            for machine, launch in enumerate(self.launches)
        ]
        return [columns.index(column) for column in columns]


@dataclass(frozen=True)
class Stages:
    """Consecutive stages of a sequence.

    Attributes:
        machines: the machine of each position; of a stage with replicas, the first of them.
        replicas: the number of replicas by machine, the first of which it is: at least 1, and 0 for all others.
        load: the largest load of a machine.
    """

    machines: list[int]
    replicas: list[int]
    load: int


def balance_stages(sequence: AtomSequence, max_replicas: int = 1) -> Stages | None:
    """Cut a sequence into stages for one machine or several equal ones in a row.

    Args:
        sequence: the atoms and the machines, whose order is that of the stages.
        max_replicas: the most machines of a stage.

    Returns:
        The stages with the least largest load; None if no cut is allowed.
    """
    count, machines = len(sequence.costs), len(sequence.launches)
    kinds, place = sequence.kinds(), np.arange(count + 1)
    # best[m][b]: least possible largest load of the first m machines if they have the positions before b.
    best = [np.full(count + 1, ENDLESS)]
    best[0][0] = 0
    begins: list[Ints] = []
    shares: list[Ints] = []
    between = _StageTraffic(sequence)
    for machine in range(machines):
        loads = between.loads(machine)
        least, begin, share = np.full(count + 1, ENDLESS), np.zeros_like(place), np.ones_like(place)
        for number in range(1, 1 + min(max_replicas, machine + 1)):
            if kinds[machine + 1 - number] != kinds[machine]:
                break
            shared = np.where(loads == ENDLESS, ENDLESS, -(-loads // number))
            worst = np.maximum(best[machine + 1 - number][:, None], shared)
            at = worst.argmin(axis=0)
            is_less = worst[at, place] < least
            least = np.where(is_less, worst[at, place], least)
            begin, share = np.where(is_less, at, begin), np.where(is_less, number, share)
        best.append(least)
        begins.append(begin)
        shares.append(share)
    if best[-1][count] == ENDLESS:
        return None
    chosen, replicas = [0] * count, [0] * machines
    end, machine = count, machines
    while machine:
        begin_of_stage, number = int(begins[machine - 1][end]), int(shares[machine - 1][end])
        machine -= number
        replicas[machine] = number
        chosen[begin_of_stage:end] = [machine] * (end - begin_of_stage)
        end = begin_of_stage
    return Stages(chosen, replicas, int(best[-1][count]))


class _StageTraffic:
    """Costs of values that enter and leave the stage from position a up to b, for all a (rows) and b (columns)."""

    def __init__(self, sequence: AtomSequence) -> None:
        self.sequence = sequence
        size = len(sequence.costs) + 1
        arriving, external, leaving, inside = (np.zeros((size, size), dtype=np.int64) for _ in range(4))
        live_out = np.zeros(size, dtype=np.int64)
        self.total_external = 0
        for value in sequence.values:
            begin = value.producer + 1  # an external value is there before position 0: NO_PRODUCER is -1
            live_out[begin] += value.cost * value.is_live_out
            if not value.readers:
                continue
            entering = external if value.producer == NO_PRODUCER else arriving
            for reader in value.readers:
                entering[begin : reader + 1, reader + 1] += value.cost
                begin = reader + 1
            if value.producer == NO_PRODUCER:
                inside[value.readers[0], value.readers[-1] + 1] += value.cost
                self.total_external += value.cost
            else:
                leaving[value.producer + 1, value.producer + 1 : value.readers[-1] + 1] += value.cost
        # All sums over stages are prefix sums of the events above, so that the tables take O(n^2) steps.
        later = np.zeros_like(leaving)
        later[:-1] = leaving[::-1].cumsum(axis=0)[::-1][1:]
        self.crossing = arriving.cumsum(axis=1) + later
        self.external = external.cumsum(axis=1)
        self.external_inside = inside[::-1].cumsum(axis=0)[::-1].cumsum(axis=1)
        self.live_out = live_out.cumsum()

    def loads(self, machine: int) -> Ints:
        """Return the load of a machine for every stage.

        Args:
            machine: index of the machine.

        Returns:
            A matrix over begin (row) and end (column); `ENDLESS` where the machine cannot have the stage.
        """
        sequence = self.sequence
        size = len(sequence.costs) + 1
        time, forbidden = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
        time[1:] = sequence.costs[:, machine].cumsum()
        forbidden[1:] = (~sequence.allowed[:, machine]).cumsum()
        position = np.arange(size)
        live_out = self.live_out[None, :] - self.live_out[:, None]
        loads = time[None, :] - time[:, None] + self.crossing
        if machine == sequence.home:
            loads += (self.live_out[-1] - live_out) + (self.total_external - self.external_inside)
        else:
            loads += live_out + self.external
        loads[position[:, None] < position[None, :]] += sequence.launches[machine]
        loads[(position[:, None] > position[None, :]) | (forbidden[None, :] > forbidden[:, None])] = ENDLESS
        return loads


class ThroughputChooser:
    """A chooser that balances the machines of a cluster; `CostChooser` chooses inside each machine.

    Args:
        feasibility: which site can run which operation.
        estimates: times of operations, calls and copies.
        keeps_stages: give each machine consecutive stages only.
        max_replicas: the most equal machines that share a stage; of these, the first one gets its operations.
    """

    def __init__(
        self, feasibility: Feasibility, estimates: Estimates, *, keeps_stages: bool, max_replicas: int = 1
    ) -> None:
        self.feasibility = feasibility
        self.estimates = estimates
        self.keeps_stages = keeps_stages
        self.max_replicas = max_replicas
        self.by_cost = CostChooser(feasibility, estimates)
        self.machines = Machines(feasibility.program.topology)

    def __call__(self, level: Level) -> Assignment:
        """Choose a site for every atom.

        Args:
            level: the atoms and options of one system.

        Returns:
            Balanced machines at the root of a cluster of several; the assignment by cost anywhere else.
        """
        working = self.machines.working
        if level.site.path or len(working) < 2 or not level.atoms:
            return self.by_cost(level)
        matrix = cost_matrix_of(self.feasibility, self.estimates, level)
        problem, passing = _without_boundaries(self.feasibility, self.estimates, level, matrix)
        owner = [self.machines.of_site(option.path) for option in level.options]
        columns = [[position for position, path in enumerate(owner) if path == machine.path] for machine in working]
        home = next((position for position, machine in enumerate(working) if machine.path == self.machines.home), None)
        order = np.array(level.graph.topological_order, dtype=np.int64)
        options = _cheapest(problem, columns)
        sequence = _sequence(problem, passing, order, options, home)
        most = min(self.max_replicas, len(working))
        runs = _runs(sequence, int(MAX_POSITIONS / most**0.5))
        found = _best_stages(_contracted(sequence, runs), most)
        chosen = np.zeros(len(level.atoms), dtype=np.int64)
        for run, machine in enumerate(() if found is None else found.machines):
            atoms = order[runs[run] : runs[run + 1]]
            chosen[atoms] = options[atoms, machine]
        paths = [machine.path for machine in working]
        if self.keeps_stages or len(level.atoms) > MAX_ATOMS or not {*owner} <= {*paths}:
            return self.by_cost(level) if found is None else Assignment(chosen.tolist())
        machine_of = np.array([paths.index(path) for path in owner])
        starts = [np.array(self.by_cost(level).chosen), *([] if found is None else [chosen])]
        with_capacity, best = with_capacities(level, self.estimates), list[tuple[tuple[int, ...], list[int]]]()
        groupings = {tuple(found.replicas): None} if found is not None else {}
        groupings |= dict.fromkeys(islice(_groupings(sequence.kinds(), most), MAX_GROUPINGS))
        for replicas in map(np.array, groupings):
            # No operation goes to the others of machines that take turns.
            allowed = problem.allowed & (replicas[machine_of] > 0)
            search = _LoadSearch(with_capacity, replace(problem, allowed=allowed), passing, machine_of, home, replicas)
            labels = search.best_of([start for start in starts if allowed[np.arange(len(start)), start].all()])
            best += [] if labels is None else [(search.key(labels), labels.tolist())]
        return Assignment(min(best)[1]) if best else self.by_cost(level)


def balanced_leaves(feasibility: Feasibility, estimates: Estimates, max_replicas: int) -> dict[str, str] | None:
    """Return leaves of all operations, chosen together to balance machines of several leaves.

    Args:
        feasibility: which leaf can run which operation.
        estimates: times of operations, calls and copies.
        max_replicas: the most equal machines that share a stage.

    Returns:
        Paths by operation name; None where each machine is one leaf of unlimited memory, for larger programs, and for
        those with branches or loops.
    """
    program, leaves = feasibility.program, feasibility.leaves
    chooser = ThroughputChooser(feasibility, estimates, keeps_stages=False, max_replicas=max_replicas)
    is_small = len(program.top) <= MAX_JOINT and len(leaves) <= MAX_LEAVES and not program.bodies
    if not is_small:
        return None
    try:
        level = level_of(program, feasibility, program.topology[""], program.top, leaves)
        # The level of the machines does not know the memories of systems.
        is_limited = with_capacities(level, estimates).capacity is not None
        if len(leaves) <= len(chooser.machines.working) and not is_limited:
            return None
        chosen = chooser(level).chosen
    except InfeasibleError:
        return None
    return {
        program.body[index].source: level.options[option].path
        for atom, option in zip(level.atoms, chosen, strict=True)
        for index in atom
    }


class _LoadSearch:
    """Searches for the labeling with the least load of the busiest machine; of equal ones, of the next busiest."""

    def __init__(
        self,
        level: Level,
        problem: LabelingProblem,
        passing: Ints,
        machine_of: Ints,
        home: int | None,
        replicas: Ints,
    ) -> None:
        self.level = level
        self.problem = problem
        self.passing = passing  # what each value (row) takes at the boundary of each label
        self.has_boundaries = bool(passing.any())
        self.machine_of = machine_of  # the machine of each label
        self.replicas = np.maximum(replicas, 1)  # the machines among which the load of each one is divided
        self.count = 1 + int(machine_of.max())
        # Memories are those of the problem, or one for each domain. Of those of no machine here, the load is no one's.
        size = problem.pair_costs.shape[-1]
        self.memory_of = problem.domain_memory if problem.domain_memory.size else np.arange(size)
        count = max(problem.route_times.shape[-1], size)
        self.machine_of_memory = np.full(count, self.count)
        self.machine_of_memory[self.memory_of[problem.domains]] = machine_of
        if home is not None:
            self.machine_of_memory[self.memory_of[problem.home]] = home
        self._values_of: list[list[int]] = [[] for _ in problem.costs]
        ends = pairwise(problem.start.tolist())
        for value, (producer, (begin, end)) in enumerate(zip(problem.producer.tolist(), ends, strict=True)):
            for atom in {producer, *problem.readers[begin:end].tolist()} - {NO_PRODUCER}:
                self._values_of[atom].append(value)
        self._known_hops: dict[tuple[int, int], dict[tuple[int, int], tuple[int, list[int]]]] = {}

    def best_of(self, starts: Sequence[Ints]) -> Ints | None:
        """Return the best labeling that beam search, and local search from there, finds.

        Args:
            starts: labelings that are known.

        Returns:
            A label for each atom; None where atoms have none, or memories are too small for all that is found.
        """
        if not self.problem.allowed.any(axis=1).all():
            return None
        candidates, capacity = [*starts, *self._beam()], self.level.capacity
        first = next((labels for labels in candidates if capacity is None or capacity.fits(labels)), None)
        if first is None:
            return None
        now = self._best(candidates, first)
        for _ in range(MAX_ROUNDS):
            moves = [*neighboring_labelings(self.problem, now), *paired(self.problem, now, every=False)]
            better = self._best(moves, now)
            if better is now:
                break
            now = better
        return now

    def _beam(self) -> Ints:
        """Label atom by atom in topological order, and keep the partial labelings whose machines have the least loads.

        As long as these are all, the result is exact but for the number of calls.
        """
        problem, order = self.problem, self.level.graph.topological_order
        width = BEAM_ENTRIES // len(order)
        own = problem.allowed_costs.min(axis=1)
        ahead = int(own.sum())
        rows, loads = np.zeros((1, len(order)), dtype=np.int64), np.zeros((1, self.count + 1), dtype=np.int64)
        used = np.zeros((1, len(problem.launches)), dtype=np.bool_)
        is_labeled = np.zeros(len(order), dtype=np.bool_)
        for atom in order:
            options = np.flatnonzero(problem.allowed[atom])
            added, every = np.tile(options, len(rows)), np.arange(len(rows) * len(options))
            rows, loads = np.repeat(rows, len(options), axis=0), np.repeat(loads, len(options), axis=0)
            used = np.repeat(used, len(options), axis=0)
            rows[:, atom] = added
            more = problem.costs[atom, added] + np.where(used[every, added], 0, problem.launches[added])
            loads[every, self.machine_of[added]] += more
            used[every, added] = True
            before = is_labeled.copy()
            is_labeled[atom] = True
            for value in self._values_of[atom]:
                loads += self._traffic(value, rows, is_labeled) - self._traffic(value, rows, before)
            ahead -= int(own[atom])
            total = loads[:, : self.count].sum(axis=1)
            # No machine is busier than the others in the best case, but none less than it is already.
            bound = np.maximum(self._divided(loads).max(axis=1), (total + ahead) // int(self.replicas.sum()))
            kept = np.lexsort((total, bound))[:width]
            rows, loads, used = rows[kept], loads[kept], used[kept]
        return rows

    def _best(self, candidates: Sequence[Ints], now: Ints) -> Ints:
        """Return the best of a labeling and others, of which `MAX_FORMED` get their calls counted."""
        if not candidates:
            return now
        best, least, capacity = now, self.key(now), self.level.capacity
        loads = -np.sort(-self._divided(self.loads(np.array(candidates))), axis=1)
        formed = 0
        for number in np.lexsort(loads.T[::-1]).tolist():
            # A call of each label is counted already, and no labeling needs fewer.
            if formed == MAX_FORMED or tuple(loads[number].tolist()) >= least:
                break
            labels = candidates[number]
            if capacity is not None and not capacity.fits(labels):
                continue
            formed += 1
            if (key := self.key(labels)) < least:
                best, least = labels, key
        return best

    def key(self, labels: Ints) -> tuple[int, ...]:
        """Return the loads of all machines, the largest first, with as many calls as a labeling needs.

        Args:
            labels: a label for each atom.

        Returns:
            Picoseconds; of machines that take turns, the share of each.
        """
        launches: list[int] = self.problem.launches.tolist()
        loads = self.loads(labels[None])[0]
        subgraphs = quick_subgraphs(self.level, labels.tolist(), launches)
        called = labels[[subgraph[0] for subgraph in subgraphs]].tolist()
        for label in set(called):
            loads[self.machine_of[label]] += launches[label] * (called.count(label) - 1)
        return tuple(sorted(self._divided(loads[None])[0].tolist(), reverse=True))

    def _divided(self, loads: Ints) -> Ints:
        """Return what each machine has of loads, by row, when its replicas take turns."""
        return -(-loads[:, : self.count] // self.replicas)

    def _hops(self, index: int, source: int) -> dict[tuple[int, int], tuple[int, list[int]]]:
        """Return the links over which a value may leave a domain.

        Args:
            index: the row of `pair_costs` of the value.
            source: the domain.

        Returns:
            By memory of both ends: the time of a copy, and the domains whose copies take that link.
        """
        if (index, source) in self._known_hops:
            return self._known_hops[index, source]
        problem, found = self.problem, dict[tuple[int, int], tuple[int, list[int]]]()
        for domain, cost in enumerate(problem.pair_costs[index, source].tolist()):
            begin, memory, hops = int(self.memory_of[source]), int(self.memory_of[domain]), list[tuple[int, int, int]]()
            while problem.domain_memory.size and memory != begin:
                before = int(problem.route_before[index, begin, memory])
                time = int(problem.route_times[index, begin, memory] - problem.route_times[index, begin, before])
                hops.append((before, memory, time))
                memory = before
            # What is left passes the boundary of a leaf; without memories in between, it is the only link.
            rest = cost - sum(time for *_, time in hops)
            hops.append((begin if not hops else -1 - domain, int(self.memory_of[domain]), rest))
            for src, dst, time in hops:
                if time:
                    found.setdefault((src, dst), (time, []))[1].append(domain)
        self._known_hops[index, source] = found
        return found

    def loads(self, rows: Ints) -> Ints:
        """Return the load of each machine: its operations, one call of each label, what it sends and receives.

        Args:
            rows: labelings, one per row.

        Returns:
            A row of loads for each labeling.
        """
        problem = self.problem
        found = np.zeros((len(rows), self.count + 1), dtype=np.int64)
        for label, machine in enumerate(self.machine_of.tolist()):
            is_here = rows == label
            found[:, machine] += np.where(is_here, problem.costs[:, label], 0).sum(axis=1)
            found[:, machine] += problem.launches[label] * is_here.any(axis=1)
        is_labeled = np.ones(rows.shape[1], dtype=np.bool_)
        for value in range(len(problem.producer)):
            found += self._traffic(value, rows, is_labeled)
        return found[:, : self.count]

    def _traffic(self, value: int, rows: Ints, is_labeled: Bools) -> Ints:
        """Return what copies of a value between some atoms take of each machine; a link occupies both of its ends."""
        problem, producer = self.problem, int(self.problem.producer[value])
        found = np.zeros((len(rows), self.count + 1), dtype=np.int64)
        if producer >= 0 and not is_labeled[producer]:
            return found
        present = np.zeros((len(rows), problem.pair_costs.shape[-1]), dtype=np.bool_)
        present[:, problem.home] = problem.is_live_out[value]
        for reader in problem.readers[problem.start[value] : problem.start[value + 1]].tolist():
            if is_labeled[reader]:
                present[np.arange(len(rows)), problem.domains[rows[:, reader]]] = True
        sources = np.full(len(rows), problem.home) if producer < 0 else problem.domains[rows[:, producer]]
        for source in np.unique(sources).tolist():
            is_source = sources == source
            for (src, dst), (time, domains) in self._hops(int(problem.cost_index[value]), source).items():
                # Links that copies to several domains share carry the value once.
                busy = np.where(is_source & present[:, domains].any(axis=1), time, 0)
                for machine in {int(self.machine_of_memory[memory]) for memory in (src, dst) if memory >= 0}:
                    found[:, machine] += busy
        if self.has_boundaries:
            self._add_passing(found, value, rows, is_labeled)
        return found

    def _add_passing(self, found: Ints, value: int, rows: Ints, is_labeled: Bools) -> None:
        """Add what a value takes to leave its producer, and to enter readers elsewhere: once per reading label."""
        problem, producer, passing = self.problem, int(self.problem.producer[value]), self.passing[value]
        every = np.arange(len(rows))
        enters = np.zeros((len(rows), len(passing)), dtype=np.bool_)
        for reader in problem.readers[problem.start[value] : problem.start[value + 1]].tolist():
            if is_labeled[reader]:
                enters[every, rows[:, reader]] = True
        if producer >= 0:
            own = rows[:, producer]
            enters[every, own] = False
            leaving = enters.sum(axis=1) + problem.is_live_out[value]
            found[every, self.machine_of[own]] += leaving * passing[own]
        for label, machine in enumerate(self.machine_of.tolist()):
            found[:, machine] += enters[:, label] * passing[label]


def _best_stages(sequence: AtomSequence, max_replicas: int) -> Stages | None:
    """Return the stages of the best order of machines."""
    best: Stages | None = None
    for order in _orders(sequence.kinds()):
        found = balance_stages(_permuted(sequence, order), max_replicas)
        if found is not None and (best is None or found.load < best.load):
            replicas = [found.replicas[order.index(machine)] for machine in range(len(order))]
            best = Stages([order[machine] for machine in found.machines], replicas, found.load)
    return best


def _groupings(kinds: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of replicas by machine, for all ways to divide equal machines into groups that take turns."""
    classes = [[machine for machine, other in enumerate(kinds) if other == kind] for kind in dict.fromkeys(kinds)]
    for sizes in product(*(_partitions(len(machines), most) for machines in classes)):
        replicas = [0] * len(kinds)
        for machines, numbers in zip(classes, sizes, strict=True):
            for machine, number in zip(machines, numbers, strict=False):
                replicas[machine] = number
        yield tuple(replicas)


def _partitions(count: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write a number as a sum of numbers from the largest, which is at most `most`, to the least."""
    if not count:
        yield ()
    for first in range(1, min(count, most) + 1):
        yield from ((first, *rest) for rest in _partitions(count - first, first))


def _orders(kind: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield orders of machines, the given one first, without those that only swap equal machines.

    Of more than four machines, these are the given order and the one with equal machines in a row.
    """
    seen: set[tuple[int, ...]] = set()
    given = tuple(range(len(kind)))
    every = permutations(given) if len(given) <= 4 else iter((given, tuple(sorted(given, key=kind.__getitem__))))
    for order in every:
        kinds = tuple(kind[machine] for machine in order)
        if kinds not in seen and len(seen) < MAX_ORDERS:
            seen.add(kinds)
            yield order


def _permuted(sequence: AtomSequence, order: tuple[int, ...]) -> AtomSequence:
    return replace(
        sequence,
        costs=sequence.costs[:, order],
        allowed=sequence.allowed[:, order],
        launches=tuple(sequence.launches[machine] for machine in order),
        home=None if sequence.home is None else order.index(sequence.home),
    )


def _cheapest(problem: LabelingProblem, columns: Sequence[Sequence[int]]) -> Ints:
    """Return the cheapest allowed option of each atom (row) in each machine (column)."""
    costs = problem.allowed_costs
    return np.stack([np.array(own)[costs[:, own].argmin(axis=1)] for own in columns], axis=1)


def _without_boundaries(
    feasibility: Feasibility, estimates: Estimates, level: Level, matrix: CostMatrix
) -> tuple[LabelingProblem, Ints]:
    """Return the problem without what values take at boundaries of leaves, and that for each value and option.

    A boundary takes its time of the machine of its leaf, a copy that of both. In a system, values pass the fastest one.
    """
    problem, types = matrix.problem, feasibility.program.dataflow(level.atoms[0]).types
    rates = np.zeros(len(level.options))
    for number, option in enumerate(level.options):
        if number not in level.drivers:
            rates[number] = min(map(estimates.boundary_rate, feasibility.leaves_below(option)), default=0.0)
    # In the body of a loop, `pair_costs` are also those of values that are copied once for all runs.
    if not rates.any() or len(problem.pair_costs) != len(types):
        return problem, np.zeros((len(problem.producer), len(rates)), dtype=np.int64)
    sizes = np.array([estimates.nbytes(type_) or 0 for type_ in types], dtype=np.float64)
    scale = 0.5**matrix.shift
    is_leaf = np.array([not option.is_system for option in level.options])
    of_domain = np.zeros(problem.pair_costs.shape[-1])
    of_domain[problem.domains[is_leaf]] = rates[is_leaf]
    between = (of_domain[:, None] + of_domain) * ~np.eye(len(of_domain), dtype=np.bool_)
    crossing = np.rint(sizes[:, None, None] * between * scale).astype(np.int64)
    passing = np.rint(sizes[level.values.type_ids, None] * rates * scale).astype(np.int64)
    return replace(problem, pair_costs=np.maximum(problem.pair_costs - crossing, 0)), passing


def _sequence(problem: LabelingProblem, passing: Ints, order: Ints, options: Ints, home: int | None) -> AtomSequence:
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    max_costs = problem.pair_costs.max(axis=(1, 2), initial=0)
    values = [
        PassedValue(
            producer=NO_PRODUCER if problem.producer[index] == NO_PRODUCER else int(position[problem.producer[index]]),
            readers=tuple(sorted(position[problem.readers[problem.start[index] : problem.start[index + 1]]].tolist())),
            is_live_out=bool(problem.is_live_out[index]),
            cost=int(max_costs[problem.cost_index[index]] + passing[index].max()),
        )
        for index in range(len(problem.producer))
    ]
    rows = np.arange(len(order))[:, None]
    used = [options[:, machine] for machine in range(options.shape[1])]
    return AtomSequence(
        costs=problem.costs[rows, options][order],
        allowed=problem.allowed[rows, options][order],
        launches=tuple(int(problem.launches[option].min()) for option in used),
        values=tuple(values),
        home=home,
    )


def _runs(sequence: AtomSequence, most: int = MAX_POSITIONS) -> list[int]:
    """Return where runs of atoms begin that stay together, and the end of the last.

    The sequence is divided into `most` parts of equal time; each run begins at the cheapest cut of its part.
    """
    count = len(sequence.costs)
    if count <= most:
        return list(range(count + 1))
    passing = np.zeros(count + 2, dtype=np.int64)
    for value in sequence.values:
        if value.readers:
            passing[value.producer + 1] += value.cost
            passing[value.readers[-1] + 1] -= value.cost
    cuts = passing.cumsum()[: count + 1]  # what a cut before each position costs
    time = sequence.costs.min(axis=1).cumsum()
    part = (time * most) // (int(time[-1]) + 1) if time[-1] < ENDLESS // most else np.arange(count) * most // count
    begins = np.flatnonzero(np.diff(part, prepend=-1))
    ends = [*begins[1:].tolist(), count]
    found = [begin + int(cuts[begin:end].argmin()) for begin, end in zip(begins.tolist(), ends, strict=True)]
    return sorted({0, *found, count})


def _contracted(sequence: AtomSequence, runs: Sequence[int]) -> AtomSequence:
    """Return the sequence with each run as one position."""
    if len(runs) == len(sequence.costs) + 1:
        return sequence
    begins = np.array(runs[:-1])
    owner = np.repeat(np.arange(len(begins)), np.diff(runs))
    values: list[PassedValue] = []
    for value in sequence.values:
        producer = NO_PRODUCER if value.producer == NO_PRODUCER else int(owner[value.producer])
        readers = tuple(sorted({int(owner[reader]) for reader in value.readers} - {producer}))
        if readers or value.is_live_out:
            values.append(replace(value, producer=producer, readers=readers))
    return replace(
        sequence,
        costs=np.add.reduceat(sequence.costs, begins, axis=0),
        allowed=np.logical_and.reduceat(sequence.allowed, begins, axis=0),
        values=tuple(values),
    )
