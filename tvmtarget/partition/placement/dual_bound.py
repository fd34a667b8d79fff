"""Lower bound of a labeling problem: ascent on the dual of its linear relaxation, by min-sum diffusion.

Costs move between atoms and the values that they share until the minima of all of them, taken independently, add up to
as much as possible (Werner, "A Linear Programming Approach to Max-sum Problem: A Review", 2007). All atoms move their
costs at once, each by a part, so that a step over a large program is a few vector operations. Steps have momentum
(Polyak, "Some methods of speeding up the convergence of iteration methods", 1964), so that changes travel along chains.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, combinations

import numpy as np
import numpy.typing as npt

from tvmtarget.partition.dataflow import Ints, renumbered
from tvmtarget.partition.placement.energy import Bools, Energy, LabelingProblem, energy_of
from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph

__all__ = ["dual_bound"]

# Steps, and the table entries that all steps may visit together: larger problems get fewer steps.
MAX_STEPS, WORK = 250, 2_000_000

# The ascent ends this close below the known labeling, or if this many steps gain less than that part of it.
NEAR, PATIENCE = 2e-4, 10

# The part of a step that the next one repeats, and the same where there are fewer steps than `FEW`.
MOMENTUM, LESS, FEW = 0.8, 0.6, 30

# Groups of labels, above which tables of all their sets would be too large.
MAX_GROUPS = 7

# Costs of copies that share links, by type, group and set of groups, above which each pays for its last link only.
MAX_SHARED = 200_000

_Floats = npt.NDArray[np.float64]


def dual_bound(problem: LabelingProblem, labels: Ints, total: int, graph: AtomGraph | None) -> int:
    """Return a cost that no labeling goes below, calls included.

    A call of a label is at least needed each time that a path enters the label. For each label one path is charged: the
    one that enters it most often under a known labeling.

    Args:
        problem: a labeling problem.
        labels: a labeling, the better the tighter is the bound.
        total: its cost with calls.
        graph: dependences between the atoms; None charges no calls.

    Returns:
        The bound; 0 where the problem is too large.
    """
    kinds = len(problem.pair_costs) * problem.pair_costs.shape[-1] << problem.pair_costs.shape[-1]
    if kinds > MAX_SHARED or problem.pair_costs.shape[-1] > MAX_GROUPS:
        problem = problem.relaxed()
    energy = energy_of(problem, 0.0)
    # Tables of large problems would take long, and be visited in no step.
    if not _steps(energy):
        return 0
    if graph is not None:
        energy = _with_launches(energy, problem, labels.tolist(), graph)
    steps = _steps(energy)
    parts = [_Part(problem, energy, edges, sets) for edges, sets in _edges_by_sets(energy)] if steps else []
    return _ascend(energy, parts, steps, total) if steps else 0


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
    return min(MAX_STEPS, WORK // size)


def _with_launches(energy: Energy, problem: LabelingProblem, labels: list[int], graph: AtomGraph) -> Energy:
    """Return the energy of copies, with an edge for each step of a path that may need another call."""
    count, width = len(problem.domains), energy.pair_costs.shape[-1]
    costs = energy.costs.copy()
    steps: list[tuple[Ints, Ints]] = []  # by label: steps of its path, as one number, and the label
    for label in np.flatnonzero(problem.launches).tolist():
        path = np.array(_path(labels, graph, label), dtype=np.int64)
        costs[path[0], label] += problem.launches[label]
        steps.append((path[:-1] * len(labels) + path[1:], np.full(len(path) - 1, label)))
    charged, numbers = renumbered(np.concatenate([taken for taken, _ in steps] or [np.zeros(0, dtype=np.int64)]))
    if not len(charged):
        return replace(energy, costs=costs)
    tables = np.zeros((len(charged), width, width), dtype=np.int64)
    entered = np.concatenate([own for _, own in steps])
    tables[numbers, :, entered] = problem.launches[entered, None]
    tables[numbers, entered, entered] = 0
    first, then = np.divmod(charged, len(labels))
    edges, more = len(energy.producer), len(charged)
    groups = np.stack([energy.groups[0], np.arange(count)])
    return replace(
        energy,
        costs=costs,
        groups=groups,
        producer=np.concatenate([energy.producer, first]),
        source=np.concatenate([energy.source, np.zeros(more, dtype=np.int64)]),
        owner=np.concatenate([energy.owner, edges + np.arange(more)]),
        readers=np.concatenate([energy.readers, then]),
        fixed=np.concatenate([energy.fixed, np.zeros((more, width), dtype=np.bool_)]),
        layer=np.concatenate([energy.layer, np.ones(more, dtype=np.int64)]),
        cost_index=np.concatenate([energy.cost_index, len(energy.pair_costs) + np.arange(more)]),
        pair_costs=np.concatenate([energy.pair_costs, tables]),
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

    def __init__(self, problem: LabelingProblem, energy: Energy, edges: Ints, sets: Bools) -> None:
        width = sets.shape[1]
        position = np.full(len(energy.producer), -1, dtype=np.int64)
        position[edges] = np.arange(len(edges))
        entries = position[energy.owner] >= 0
        self.owner = position[energy.owner[entries]]
        self.readers = energy.readers[entries]
        self.sets = sets
        has_readers = np.bincount(self.owner, minlength=len(edges)) > 0
        firsts, kinds = _kinds_of_tables(energy, edges, has_readers)
        tables = _tables(problem, energy, edges[firsts], sets, has_readers[firsts])
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
        self.is_single = len(sets) == width

    def minima(self) -> tuple[_Floats, _Floats, _Floats]:
        """Return the minimum of each edge, and its minima by group of the tail and of each reader."""
        left = -self.to_reader
        nearest = left
        if not self.is_single:
            nearest = np.stack([left[members].min(axis=0) for members in self.sets])
        table = self.cost + self.set_sum(nearest)
        by_tail = table.min(axis=1)
        by_tail -= self.to_tail
        table -= self.to_tail[:, None]
        by_set = table.min(axis=0)
        others = by_set[:, self.owner]
        others -= nearest
        by_reader = others
        if not self.is_single:
            by_reader = np.stack([others[holds].min(axis=0) for holds in self.sets.T])
        return by_set.min(axis=0), by_tail, by_reader + left

    def by_label(self, by_tail: _Floats, by_reader: _Floats) -> _Floats:
        """Return costs by group, of tails and readers, as costs of atoms by label."""
        tails = self.tail_groups.spread(by_tail[:, self.has_tail])
        return self.tail_sum(tails) + self.reader_sum(self.reader_groups.spread(by_reader))


def _kinds_of_tables(energy: Energy, edges: Ints, has_readers: Bools) -> tuple[Ints, Ints]:
    """Return the position of the first edge of each kind, and the kind of every edge; edges of one have equal costs."""
    fixed = energy.fixed[edges] @ (1 << np.arange(energy.fixed.shape[1]))
    keys = (2 * energy.cost_index[edges] + has_readers << energy.fixed.shape[1]) + fixed
    _, firsts, kinds = np.unique(keys, return_index=True, return_inverse=True)
    return firsts, kinds


def _tables(problem: LabelingProblem, energy: Energy, edges: Ints, sets: Bools, has_readers: Bools) -> _Floats:
    """Return the costs of edges by edge, group at the tail and set of groups that their readers are in."""
    reached = np.where(has_readers[:, None, None], sets[None], False) | energy.fixed[edges][:, None]
    pair_costs = energy.pair_costs[energy.cost_index[edges]].astype(np.float64)
    tables: _Floats = np.einsum("esd,etd->est", pair_costs, reached.astype(np.float64))
    # The edges behind those of values are for launches.
    copies = np.flatnonzero(edges < len(problem.producer))
    size, count = problem.pair_costs.shape[-1], sets.shape[0]
    if not problem.domain_memory.size or not len(copies):
        return tables
    # What copies that share links pay more than once.
    shape = len(copies), size, count
    excess = problem.overcharge(
        np.broadcast_to(problem.cost_index[edges[copies]][:, None, None], shape).ravel(),
        np.broadcast_to(np.arange(size)[None, :, None], shape).ravel(),
        np.broadcast_to(reached[copies][:, None, :, :size], (*shape, size)).reshape(-1, size),
    )
    tables[copies, :size] -= excess.reshape(shape)
    return tables


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

    def spread(self, by_group: _Floats) -> _Floats:
        """Return the cost of each label from the costs of groups."""
        spread: _Floats = by_group.ravel()[self.places]
        return spread

    def least(self, by_label: _Floats) -> _Floats:
        """Return the least cost of the labels of each group, without end where a group has none."""
        found = np.full(self.shape[0] * self.shape[1], np.inf)
        for places, costs in zip(self.places, by_label, strict=True):
            found[places] = np.minimum(found[places], costs)
        return found.reshape(self.shape)


@dataclass(frozen=True)
class _Shares:
    """Of each atom the number of edges at it, and the part of a step that it takes."""

    degree: _Floats
    part: _Floats


def _ascend(energy: Energy, parts: list[_Part], steps: int, total: int) -> int:
    endless = float(np.iinfo(np.int64).max)
    unary: _Floats = np.where(energy.allowed, energy.costs.astype(np.float64), endless).T.copy()
    shares = _shares(unary.shape[1], parts)
    # An edge must not use a group that its atom cannot be in: there, costs as large as the whole move to the edge.
    for part in parts:
        tails = part.tail_groups.least(unary[:, part.tails])
        part.to_tail[:, part.has_tail] = np.where(tails < endless, 0.0, -float(total))
        readers = part.reader_groups.least(unary[:, part.readers])
        part.to_reader[:] = np.where(readers < endless, 0.0, -float(total))
    best, earlier, momentum = 0.0, 0.0, LESS if steps < FEW else MOMENTUM
    for step in range(steps + 1):
        atoms = sum((part.by_label(part.to_tail, part.to_reader) for part in parts), unary)
        found = [part.minima() for part in parts]
        best = max(best, float(atoms.min(axis=0).sum()) + sum(float(least.sum()) for least, _, _ in found))
        is_slow = step % PATIENCE == 0 and best - earlier < NEAR * total
        if step == steps or best >= (1 - NEAR) * total or (step and is_slow):
            break
        earlier = best if step % PATIENCE == 0 else earlier
        minima = [(by_tail, by_reader) for _, by_tail, by_reader in found]
        equal = sum((part.by_label(*pair) for part, pair in zip(parts, minima, strict=True)), atoms)
        equal /= shares.degree + 1
        for part, (by_tail, by_reader) in zip(parts, minima, strict=True):
            share = part.tail_groups.least(equal[:, part.tails])
            more = shares.part[part.tails] * (by_tail[:, part.has_tail] - share)
            part.tail_step = momentum * part.tail_step + np.where(share < endless / 2**20, more, 0.0)
            part.to_tail[:, part.has_tail] += part.tail_step
            share = part.reader_groups.least(equal[:, part.readers])
            more = shares.part[part.readers] * (by_reader - share)
            part.reader_step = momentum * part.reader_step + np.where(share < endless / 2**20, more, 0.0)
            part.to_reader += part.reader_step
    # Sums of floating point numbers may be too large by a little.
    return max(0, int(best * (1 - 1e-9)) - 1)


def _shares(count: int, parts: list[_Part]) -> _Shares:
    degree, widest = np.zeros(count), np.ones(count)
    for part in parts:
        for atoms, edges in ((part.tails, part.has_tail), (part.readers, part.owner)):
            np.add.at(degree, atoms, 1.0)
            np.maximum.at(widest, atoms, part.arity[edges].astype(np.float64))
    return _Shares(degree, 2 / (widest + 1))
