"""Ascent on the dual of a labeling problem, by min-sum diffusion: lower bounds, and good labelings to start from.

Costs move between atoms and the values that they share until the minima of all of them, taken independently, add up to
as much as possible (Werner, "A Linear Programming Approach to Max-sum Problem: A Review", 2007). All atoms move their
costs at once, each by a part, so that a step over a large program is a few vector operations. Steps have momentum
(Polyak, "Some methods of speeding up the convergence of iteration methods", 1964), so that changes travel along chains;
it grows from step to step, as Nesterov's does ("A method of solving a convex programming problem with convergence rate
O(1/k^2)", 1983), because the first steps are far from where they lead to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, combinations

import numpy as np
import numpy.typing as npt

from tvmtarget.partition.dataflow import Ints, renumbered
from tvmtarget.partition.placement.detours import Detours
from tvmtarget.partition.placement.energy import Bools, Energy, LabelingProblem, energy_of
from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph

__all__ = ["DualAscent"]

# Steps, and the table entries that all steps may visit together: larger problems get fewer steps. Fewer
# than `LEAST_STEPS` lead to weak bounds, and take tables of much memory.
MAX_STEPS, LEAST_STEPS, WORK = 250, 10, 100_000_000

# The ascent ends this close below the known labeling, or if this many steps gain less than a part of it.
NEAR, PATIENCE, SLOW = 2e-4, 10, 1e-3

# Momentum is step / (step + DELAY), at most MOMENTUM.
MOMENTUM, DELAY = 0.8, 3

# Groups of labels, above which tables of all their sets would be too large.
MAX_GROUPS = 7

# Costs of copies that share links, by type, group and set of groups, above which each pays for its last link only.
MAX_SHARED = 200_000

_ENDLESS = float(np.iinfo(np.int64).max)

_Floats = npt.NDArray[np.float64]


class DualAscent:
    """The dual of a labeling problem, at the point that the ascent has reached.

    Args:
        problem: a labeling problem.
        detours: what values may save, with which the bound holds for the plans of nested trees.

    Attributes:
        bound: a cost that no labeling goes below; 0 where the problem is too large.
        steps: how many steps are left.
    """

    def __init__(self, problem: LabelingProblem, detours: Detours | None = None) -> None:
        kinds = len(problem.pair_costs) * problem.pair_costs.shape[-1] << problem.pair_costs.shape[-1]
        if kinds > MAX_SHARED or problem.pair_costs.shape[-1] > MAX_GROUPS:
            problem = problem.relaxed()
        self.problem = problem
        self.bound = 0
        energy = energy_of(problem, 0.0)
        self.steps = _steps(energy)
        if not self.steps:
            return
        costs = np.where(energy.allowed, energy.costs, np.iinfo(np.int64).max)
        self._most = energy.total(costs.argmin(axis=1)) + int(problem.launches.sum())
        self._unary: _Floats = costs.T.astype(np.float64)
        self._parts = [_Part(problem, energy, *part, detours) for part in _edges_by_sets(energy)]
        for part in self._parts:
            part.exclude(self._unary, self._most)
        self._shares = _Shares(self._unary.shape[1], self._parts)

    def charge_calls(self, labels: Ints, graph: AtomGraph) -> None:
        """Add costs of calls, which the bound then includes.

        A call of a label is at least needed each time that a path enters the label. For each label one path is charged:
        the one that enters it most often under a known labeling.

        Args:
            labels: the known labeling, the better the tighter is the bound.
            graph: dependences between the atoms.
        """
        launches = self.problem.launches
        if not self.steps or not launches.any():
            return
        paths = {label: _path(labels.tolist(), graph, label) for label in np.flatnonzero(launches).tolist()}
        for label, path in paths.items():
            self._unary[label, path[0]] += launches[label]
        calls = _energy_of_calls(self.problem, paths)
        if not len(calls.producer):
            return
        every = np.arange(len(calls.producer))
        sets = _sets(calls.pair_costs.shape[-1], 1)
        self._parts.append(_Part(self.problem, calls, every, sets, are_values=False))
        self._parts[-1].exclude(self._unary, self._most)
        self._shares = _Shares(self._unary.shape[1], self._parts)

    def climb(self, steps: int, total: int | None = None) -> None:
        """Raise the bound.

        Args:
            steps: the most steps to take.
            total: the cost of a known labeling, near which the ascent ends.
        """
        steps = min(steps, self.steps)
        if not steps:
            return
        enough = np.inf if total is None else (1 - NEAR) * total
        slow = SLOW * (self._most if total is None else total)
        best, earlier = 0.0, 0.0
        for part in self._parts:
            part.stop()
        for step in range(steps + 1):
            atoms = self._atoms()
            found = [part.minima() for part in self._parts]
            best = max(best, float(atoms.min(axis=0).sum()) + sum(float(least.sum()) for least, _, _ in found))
            is_slow = step % PATIENCE == 0 and best - earlier < slow
            if step == steps or best >= enough or (step and is_slow):
                self.steps -= step
                break
            earlier = best if step % PATIENCE == 0 else earlier
            minima = [(by_tail, by_reader) for _, by_tail, by_reader in found]
            equal = self._with_minima(atoms, minima)
            equal /= self._shares.degree + 1
            momentum = min(MOMENTUM, step / (step + DELAY))
            for part, pair in zip(self._parts, minima, strict=True):
                part.move(equal, pair, self._shares.part, momentum)
        # Sums of floating point numbers may be too large by a little.
        self.bound = max(self.bound, int(best * (1 - 1e-9)) - 1)

    def reduced_costs(self) -> _Floats:
        """Return how much more each label costs than the best one of its atom.

        Costs are those of the atom itself and the least costs of all values at it.

        Returns:
            Atoms as rows, labels as columns; practically endless where a label is not allowed.
        """
        minima = [part.minima()[1:] for part in self._parts]
        found = self._with_minima(self._atoms(), minima)
        reduced: _Floats = (found - found.min(axis=0)).T
        return reduced

    def _atoms(self) -> _Floats:
        """Return the costs of atoms (columns) by label (row), with those that were moved to them."""
        return sum((part.by_label(part.to_tail, part.to_reader) for part in self._parts), self._unary)

    def _with_minima(self, atoms: _Floats, minima: list[tuple[_Floats, _Floats]]) -> _Floats:
        return sum((part.by_label(*pair) for part, pair in zip(self._parts, minima, strict=True)), atoms)


def _edges_by_sets(energy: Energy) -> list[tuple[Ints, Bools]]:
    """Return the edges of one reader at most, then the others, with the sets of groups that readers may be in."""
    width = energy.pair_costs.shape[-1]
    count = np.bincount(energy.owner, minlength=len(energy.producer))
    parts = ((np.flatnonzero(count < 2), _sets(width, 1)), (np.flatnonzero(count >= 2), _sets(width, width)))
    return [(edges, sets) for edges, sets in parts if len(edges)]


def _steps(energy: Energy) -> int:
    """Return the number of steps of the ascent; 0 where the problem is too large."""
    width, counts = energy.pair_costs.shape[-1], np.bincount(energy.owner, minlength=len(energy.producer))
    if width > MAX_GROUPS or not len(energy.producer):
        return 0
    # Table entries that a step visits.
    size: int = sum(
        len(sets) * (width * len(edges) + int(counts[edges].sum())) for edges, sets in _edges_by_sets(energy)
    )
    steps = min(MAX_STEPS, WORK // size)
    return steps if steps >= LEAST_STEPS else 0


def _energy_of_calls(problem: LabelingProblem, paths: Mapping[int, Sequence[int]]) -> Energy:
    """Return an edge for each step of a path that may need another call of the label whose path it is."""
    count = len(problem.domains)
    taken = {label: np.array(path, dtype=np.int64) for label, path in paths.items()}
    atoms = len(problem.costs)
    steps = [path[:-1] * atoms + path[1:] for path in taken.values()]
    entered = np.repeat(np.array([*taken], dtype=np.int64), [len(own) for own in steps])
    charged, numbers = renumbered(np.concatenate(steps))
    tables = np.zeros((len(charged), count, count), dtype=np.int64)
    tables[numbers, :, entered] = problem.launches[entered, None]
    tables[numbers, entered, entered] = 0
    first, then = np.divmod(charged, atoms)
    edges = np.arange(len(charged))
    return Energy(
        costs=problem.costs,
        allowed=problem.allowed,
        producer=first,
        source=np.zeros(len(charged), dtype=np.int64),
        owner=edges,
        readers=then,
        fixed=np.zeros((len(charged), count), dtype=np.bool_),
        layer=np.zeros(len(charged), dtype=np.int64),
        groups=np.arange(count)[None],
        cost_index=edges,
        pair_costs=tables,
    )


def _path(labels: list[int], graph: AtomGraph, label: int) -> list[int]:
    """Return a path that enters a label as often as any does."""
    has_label = [own == label for own in labels]
    entered = [int(own) for own in has_label]  # the most that a path from here enters, this atom as the first
    then = [-1] * len(labels)
    for atom in reversed(graph.topological_order):
        most, following, own = entered[atom], -1, has_label[atom]
        for target in graph.successors[atom]:
            # Where both atoms have the label, entering the second is not another time.
            more = entered[target] + 1 if own and not has_label[target] else entered[target]
            if more > most or (more == most and following < 0):
                most, following = more, target
        entered[atom], then[atom] = most, following
    path = [entered.index(max(entered))]
    while then[path[-1]] >= 0:
        path.append(then[path[-1]])
    return path


def _sets(width: int, most: int) -> Bools:
    """Return masks of all sets of up to `most` groups."""
    sets = list(chain.from_iterable(combinations(range(width), size) for size in range(1, most + 1)))
    masks = np.zeros((len(sets), width), dtype=np.bool_)
    for number, members in enumerate(sets):
        masks[number, list(members)] = True
    return masks


class _Part:
    """Edges whose readers may be in the same sets of groups, with the costs that were moved to their atoms.

    `cost[s, t, e]` is the cost of edge e from group s if its readers are exactly in the groups of set t. Edges and
    readers are the last axis of all tables: NumPy reduces a short leading axis several times faster than a short last
    one.
    """

    def __init__(
        self,
        problem: LabelingProblem,
        energy: Energy,
        edges: Ints,
        sets: Bools,
        detours: Detours | None = None,
        *,
        are_values: bool = True,
    ) -> None:
        width = sets.shape[1]
        position = np.full(len(energy.producer), -1, dtype=np.int64)
        position[edges] = np.arange(len(edges))
        entries = position[energy.owner] >= 0
        self.owner = position[energy.owner[entries]]
        self.readers = energy.readers[entries]
        self.sets = [np.flatnonzero(members).tolist() for members in sets]
        has_readers = np.bincount(self.owner, minlength=len(edges)) > 0
        firsts, kinds = _kinds_of_tables(energy, edges, has_readers)
        tables = _tables(energy, edges[firsts], sets, has_readers[firsts])
        if are_values and problem.domain_memory.size:
            _subtract_shared(tables, problem, energy, edges[firsts], sets, has_readers[firsts])
        if are_values and detours is not None and detours.systems:
            _subtract_savings(tables, problem, energy, edges[firsts], sets, detours)
        cost = np.moveaxis(tables, 0, 2)[:, :, kinds]
        # Without a producer the source is known: all other rows are out of the question.
        fixed = np.flatnonzero(energy.producer[edges] < 0)
        cost[:, :, fixed] = cost[energy.source[edges[fixed]], :, fixed].T
        self.cost: _Floats = np.ascontiguousarray(cost)
        self.has_tail = np.flatnonzero(energy.producer[edges] >= 0)
        self.tails = energy.producer[edges][self.has_tail]
        self.to_tail = np.zeros((width, len(edges)))
        self.to_reader = np.zeros((width, len(self.owner)))
        self.tail_step = np.zeros((width, len(self.tails)))
        self.reader_step = np.zeros_like(self.to_reader)
        self.arity = np.bincount(self.owner, minlength=len(edges))
        self.arity[self.has_tail] += 1
        np.maximum(self.arity, 1, out=self.arity)
        groups = energy.groups[energy.layer[edges]].T
        self.tail_groups = _GroupsOfLabels(groups[:, self.has_tail], width)
        self.reader_groups = _GroupsOfLabels(groups[:, self.owner], width)
        count = energy.costs.shape[0]
        self.tail_sum = _ColumnSum(self.tails, len(groups), count)
        self.reader_sum = _ColumnSum(self.readers, len(groups), count)
        self.set_sum = _ColumnSum(self.owner, len(sets), len(edges))
        # Reused from step to step: the memory of a new array costs more than filling it.
        self._table = np.empty_like(self.cost)
        self._nearest = np.empty((len(sets), len(self.owner)))
        self._others = np.empty_like(self._nearest)

    def exclude(self, unary: _Floats, most: int) -> None:
        """Move costs as large as the whole to edges in groups that their atoms cannot be in."""
        tails = self.tail_groups.least(unary.take(self.tails, axis=1))
        self.to_tail[:, self.has_tail] = np.where(tails < _ENDLESS, 0.0, -float(most))
        readers = self.reader_groups.least(unary.take(self.readers, axis=1))
        self.to_reader[:] = np.where(readers < _ENDLESS, 0.0, -float(most))

    def stop(self) -> None:
        """Take the momentum away."""
        self.tail_step[:], self.reader_step[:] = 0.0, 0.0

    def minima(self) -> tuple[_Floats, _Floats, _Floats]:
        """Return the minimum of each edge, and its minima by group of the tail and of each reader."""
        nearest, others, table = self._nearest, self._others, self._table
        width = len(self.to_reader)
        np.negative(self.to_reader, out=nearest[:width])
        # Sets are in order of size: each is a smaller one and a group.
        for number in range(width, len(self.sets)):
            *before, last = self.sets[number]
            np.minimum(nearest[self.sets.index(before)], nearest[last], out=nearest[number])
        np.add(self.cost, self.set_sum(nearest), out=table)
        by_tail = table.min(axis=1)
        by_tail -= self.to_tail
        table -= self.to_tail[:, None]
        by_set = table.min(axis=0)
        by_set.take(self.owner, axis=1, out=others)
        others -= nearest
        by_reader = others[:width].copy()
        for number in range(width, len(self.sets)):
            for group in self.sets[number]:
                np.minimum(by_reader[group], others[number], out=by_reader[group])
        by_reader -= self.to_reader
        return by_set.min(axis=0), by_tail, by_reader

    def move(self, equal: _Floats, minima: tuple[_Floats, _Floats], part: _Floats, momentum: float) -> None:
        """Move costs between edges and atoms towards equal shares.

        Args:
            equal: the share of each edge at an atom (column) by label (row).
            minima: the minima of edges by group of the tail and of each reader.
            part: the part of a step that each atom takes.
            momentum: the part of the last step that is repeated.
        """
        by_tail, by_reader = minima
        share = self.tail_groups.least(equal.take(self.tails, axis=1))
        more = part.take(self.tails) * (by_tail.take(self.has_tail, axis=1) - share)
        self.tail_step = momentum * self.tail_step + np.where(share < _ENDLESS / 2**20, more, 0.0)
        self.to_tail[:, self.has_tail] += self.tail_step
        share = self.reader_groups.least(equal.take(self.readers, axis=1))
        more = part.take(self.readers) * (by_reader - share)
        self.reader_step = momentum * self.reader_step + np.where(share < _ENDLESS / 2**20, more, 0.0)
        self.to_reader += self.reader_step

    def by_label(self, by_tail: _Floats, by_reader: _Floats) -> _Floats:
        """Return costs by group, of tails and readers, as costs of atoms by label."""
        tails = self.tail_groups.spread(by_tail.take(self.has_tail, axis=1))
        return self.tail_sum(tails) + self.reader_sum(self.reader_groups.spread(by_reader))


def _kinds_of_tables(energy: Energy, edges: Ints, has_readers: Bools) -> tuple[Ints, Ints]:
    """Return the position of the first edge of each kind, and the kind of every edge; edges of one have equal costs."""
    fixed = energy.fixed[edges] @ (1 << np.arange(energy.fixed.shape[1]))
    ends = 2 * has_readers + (energy.producer[edges] >= 0)
    keys = (4 * energy.cost_index[edges] + ends << energy.fixed.shape[1]) + fixed
    _, firsts, kinds = np.unique(keys, return_index=True, return_inverse=True)
    return firsts, kinds


def _tables(energy: Energy, edges: Ints, sets: Bools, has_readers: Bools) -> _Floats:
    """Return the costs of edges by edge, group at the tail and set of groups that their readers are in."""
    pair_costs = energy.pair_costs[energy.cost_index[edges]].astype(np.float64)
    reached = _reached(energy, edges, sets, has_readers)
    tables: _Floats = np.einsum("esd,etd->est", pair_costs, reached.astype(np.float64))
    return tables


def _reached(energy: Energy, edges: Ints, sets: Bools, has_readers: Bools) -> Bools:
    """Return the groups that edges lead to, by edge and set of groups that their readers are in."""
    return np.where(has_readers[:, None, None], sets[None], False) | energy.fixed[edges][:, None]


def _subtract_shared(
    tables: _Floats, problem: LabelingProblem, energy: Energy, edges: Ints, sets: Bools, has_readers: Bools
) -> None:
    """Subtract from the costs of values what copies that share links pay more than once."""
    size = problem.pair_costs.shape[-1]
    shape = len(edges), size, len(sets)
    reached = _reached(energy, edges, sets, has_readers)[:, None, :, :size]
    excess = problem.overcharge(
        np.broadcast_to(problem.cost_index[edges][:, None, None], shape).ravel(),
        np.broadcast_to(np.arange(size)[None, :, None], shape).ravel(),
        np.broadcast_to(reached, (*shape, size)).reshape(-1, size),
    )
    tables[:, :size] -= excess.reshape(shape)


def _subtract_savings(
    tables: _Floats, problem: LabelingProblem, energy: Energy, edges: Ints, sets: Bools, detours: Detours
) -> None:
    """Subtract from the costs of values what they may save by detours, which depends on their groups alone."""
    labels = {domain: label for label, domain in reversed([*enumerate(problem.domains.tolist())])}
    # Sets with groups that no label is in cannot occur.
    readers = [np.flatnonzero(members).tolist() for members in sets]
    known = [(number, groups) for number, groups in enumerate(readers) if labels.keys() >= set(groups)]
    for row, edge in enumerate(edges.tolist()):
        if problem.producer[edge] < 0:
            continue
        is_live_out, cost_index = bool(problem.is_live_out[edge]), int(energy.cost_index[edge])
        for domain, own in labels.items():
            for number, groups in known:
                others = frozenset(labels[group] for group in groups)
                tables[row, domain, number] -= detours.saved_by(cost_index, own, others, is_live_out)


class _ColumnSum:
    """Adds up columns of a table that have the same number."""

    def __init__(self, numbers: Ints, height: int, count: int) -> None:
        self.places = (numbers + count * np.arange(height)[:, None]).ravel()
        self.shape = height, count

    def __call__(self, columns: _Floats) -> _Floats:
        size = self.shape[0] * self.shape[1]
        sums = np.bincount(self.places, weights=columns.ravel(), minlength=size)
        return sums.astype(np.float64, copy=False).reshape(self.shape)


class _GroupsOfLabels:
    """The group of each label (row), which differs between columns."""

    def __init__(self, groups: Ints, width: int) -> None:
        count = groups.shape[1]
        self.places = groups * count + np.arange(count)
        self.shape = width, count
        # Mostly each label is a group of its own.
        self.are_labels = groups.shape == self.shape and bool((groups == np.arange(width)[:, None]).all())

    def spread(self, by_group: _Floats) -> _Floats:
        """Return the cost of each label from the costs of groups."""
        return by_group if self.are_labels else by_group.ravel().take(self.places)

    def least(self, by_label: _Floats) -> _Floats:
        """Return the least cost of the labels of each group, without end where a group has none."""
        if self.are_labels:
            return by_label
        found = np.full(self.shape[0] * self.shape[1], np.inf)
        for places, costs in zip(self.places, by_label, strict=True):
            found[places] = np.minimum(found[places], costs)
        return found.reshape(self.shape)


class _Shares:
    """Of each atom the number of edges at it, and the part of a step that it takes."""

    def __init__(self, count: int, parts: Sequence[_Part]) -> None:
        self.degree, widest = np.zeros(count), np.ones(count)
        for part in parts:
            for atoms, edges in ((part.tails, part.has_tail), (part.readers, part.owner)):
                np.add.at(self.degree, atoms, 1.0)
                np.maximum.at(widest, atoms, part.arity[edges].astype(np.float64))
        self.part: _Floats = 2 / (widest + 1)
