"""Edges of the dual of a labeling problem: their least costs, by group of the tail and of each reader.

`SetEdges` have a table of all sets of groups that their readers may be in: copies of a value may share links in any
way. `copy_edges.py` has edges for more groups than such tables can have.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.placement.detours import Detours
from tvmtarget.partition.placement.energy import Bools, Energy, LabelingProblem

__all__ = ["ColumnSum", "Edges", "SetEdges"]

_ENDLESS = float(np.iinfo(np.int64).max)

_Floats = npt.NDArray[np.float64]


class Edges:
    """Edges with the costs that were moved to their atoms.

    Edges and readers are the last axis of all tables: NumPy reduces a short leading axis several times faster than a
    short last one.

    Args:
        producer: the atom at the tail of each edge, negative where there is none.
        owner: the edge of each reader.
        readers: the atoms at the heads of edges.
        groups: the group of each label (row) for each edge.
        width: the number of groups.
        count: the number of atoms.
    """

    def __init__(self, producer: Ints, owner: Ints, readers: Ints, groups: Ints, width: int, count: int) -> None:
        self.owner, self.readers = owner, readers
        self.has_tail = np.flatnonzero(producer >= 0)
        self.tails = producer[self.has_tail]
        self.to_tail = np.zeros((width, len(producer)))
        self.to_reader = np.zeros((width, len(readers)))
        self.tail_step = np.zeros((width, len(self.tails)))
        self.reader_step = np.zeros_like(self.to_reader)
        self.arity = np.bincount(owner, minlength=len(producer))
        self.arity[self.has_tail] += 1
        np.maximum(self.arity, 1, out=self.arity)
        self.tail_groups = _GroupsOfLabels(groups[:, self.has_tail], width)
        self.reader_groups = _GroupsOfLabels(groups[:, owner], width)
        self.tail_sum = ColumnSum(self.tails, len(groups), count)
        self.reader_sum = ColumnSum(readers, len(groups), count)

    def exclude(self, unary: _Floats, most: int) -> None:
        """Move costs as large as the whole to edges in groups that their atoms cannot be in.

        Args:
            unary: the costs of atoms (columns) by label (row), endless where a label is not allowed.
            most: a cost that no labeling reaches.
        """
        tails = self.tail_groups.least(unary.take(self.tails, axis=1))
        self.to_tail[:, self.has_tail] = np.where(tails < _ENDLESS, 0.0, -float(most))
        readers = self.reader_groups.least(unary.take(self.readers, axis=1))
        self.to_reader[:] = np.where(readers < _ENDLESS, 0.0, -float(most))

    def stop(self) -> None:
        """Take the momentum away."""
        self.tail_step[:], self.reader_step[:] = 0.0, 0.0

    def minima(self) -> tuple[_Floats, _Floats, _Floats]:
        """Return the least costs of edges, with those that were moved to atoms.

        Returns:
            The minimum of each edge, and its minima by group of the tail and of each reader.

        Raises:
            NotImplementedError: in this class, whose edges have no costs.
        """
        raise NotImplementedError

    def share(self) -> None:
        """Move costs between edges of one value, by the minima that were returned last."""

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
        """Return costs by group as costs of atoms by label.

        Args:
            by_tail: the costs by group (row) of the tail of each edge.
            by_reader: those of each reader.

        Returns:
            Labels as rows, atoms as columns.
        """
        tails = self.tail_groups.spread(by_tail.take(self.has_tail, axis=1))
        return self.tail_sum(tails) + self.reader_sum(self.reader_groups.spread(by_reader))


class SetEdges(Edges):
    """Edges whose readers may be in the same sets of groups.

    `cost[s, t, e]` is the cost of edge e from group s if its readers are exactly in the groups of set t.

    Args:
        problem: the labeling problem.
        energy: its energy, or other edges between its atoms.
        edges: which of these.
        sets: masks of the sets, in order of size.
        detours: what values may save.
        are_values: whether the edges are values of the problem.
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
        position = np.full(len(energy.producer), -1, dtype=np.int64)
        position[edges] = np.arange(len(edges))
        entries = position[energy.owner] >= 0
        owner = position[energy.owner[entries]]
        groups = energy.groups[energy.layer[edges]].T
        super().__init__(
            energy.producer[edges], owner, energy.readers[entries], groups, sets.shape[1], energy.costs.shape[0]
        )
        self.sets = [np.flatnonzero(members).tolist() for members in sets]
        has_readers = np.bincount(owner, minlength=len(edges)) > 0
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
        self.set_sum = ColumnSum(self.owner, len(sets), len(edges))
        # Reused from step to step: the memory of a new array costs more than filling it.
        self._table = np.empty_like(self.cost)
        self._nearest = np.empty((len(sets), len(self.owner)))
        self._others = np.empty_like(self._nearest)

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


class ColumnSum:
    """Adds up columns of a table that have the same number."""

    def __init__(self, numbers: Ints, height: int, count: int) -> None:
        self.places = (numbers + count * np.arange(height)[:, None]).ravel()
        self.shape = height, count

    def __call__(self, columns: _Floats) -> _Floats:
        """Return the sums by number (column), for each row of a table."""
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
