"""Edges of the dual of a labeling problem: their least costs, by group of the tail and of each reader.

`SetEdges` have a table of all sets of groups that their readers may be in: copies of a value may share links in any
way. `copy_edges.py` has edges for more groups than such tables can have. `PairEdges` are between two atoms, and need no
tables of both labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tvmtarget.partition.dataflow import Ints, spans
from tvmtarget.partition.placement.detours import Detours
from tvmtarget.partition.placement.energy import ENDLESS, Bools, Energy, LabelingProblem

__all__ = ["ColumnSum", "Edges", "PairEdges", "SetEdges", "tails_first"]

# Table entries that are worked on together, so that they stay in the cache of a core.
BLOCK_ENTRIES = 150_000

_ENDLESS = float(ENDLESS)

_Floats = npt.NDArray[np.float64]


class Edges:
    """Edges with the costs that were moved to their atoms.

    Edges and readers are the last axis of all tables: NumPy reduces a short leading axis several times faster than a
    short last one.

    Args:
        producer: the atom at the tail of each edge, negative where there is none; such edges are the last ones.
        owner: the edge of each reader.
        readers: the atoms at the heads of edges.
        groups: the group of each label (row) for each edge.
        width: the number of groups.
        count: the number of atoms.
    """

    def __init__(self, producer: Ints, owner: Ints, readers: Ints, groups: Ints, width: int, count: int) -> None:
        self.owner, self.readers = owner, readers
        self.tails = producer[producer >= 0]
        self.to_tail = np.zeros((width, len(producer)))
        self.to_reader = np.zeros((width, len(readers)))
        self.arity = np.bincount(owner, minlength=len(producer))
        self.arity[: len(self.tails)] += 1
        np.maximum(self.arity, 1, out=self.arity)
        self._tails = _Ends(self.tails, groups[:, : len(self.tails)], width, count)
        self._readers = _Ends(readers, groups[:, owner], width, count)

    def exclude(self, unary: _Floats, most: int) -> None:
        """Move costs as large as the whole to edges in groups that their atoms cannot be in.

        Args:
            unary: the costs of atoms (columns) by label (row), endless where a label is not allowed.
            most: a cost that no labeling reaches.
        """
        for ends, moved in self._moved():
            moved[:] = np.where(ends.of_atoms(unary) < _ENDLESS, 0.0, -float(most))

    def stop(self) -> None:
        """Take the momentum away."""
        self._tails.step[:], self._readers.step[:] = 0.0, 0.0

    def minima(self) -> tuple[_Floats, _Floats, _Floats]:
        """Return the least costs of edges, with those that were moved to atoms.

        Returns:
            The minimum of each edge, and its minima by group of the tail and of each reader, without what was moved to
            that tail or reader; valid until the next call.

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
        for (ends, moved), least in zip(self._moved(), (by_tail[:, : len(self.tails)], by_reader), strict=True):
            ends.move(moved, least, ends.of_atoms(equal), part, momentum)

    def by_label(self, by_tail: _Floats, by_reader: _Floats) -> _Floats:
        """Return costs by group as costs of atoms by label.

        Args:
            by_tail: the costs by group (row) of the tail of each edge.
            by_reader: those of each reader.

        Returns:
            Labels as rows, atoms as columns.
        """
        sums = self._tails.by_label(by_tail[:, : len(self.tails)])
        sums += self._readers.by_label(by_reader)
        return sums

    def _moved(self) -> tuple[tuple[_Ends, _Floats], ...]:
        """Return both ends of edges with the costs that were moved there."""
        return (self._tails, self.to_tail[:, : len(self.tails)]), (self._readers, self.to_reader)


def tails_first(producer: Ints, edges: Ints) -> Ints:
    """Return edges in the order that `Edges` needs.

    Args:
        producer: the atom at the tail of each edge, negative where there is none.
        edges: numbers of edges.

    Returns:
        Those with a tail, then the others.
    """
    return edges[np.argsort(producer[edges] < 0, kind="stable")]


class _Ends:
    """The atoms at one end of edges, and the last steps of the costs that are moved to them."""

    def __init__(self, atoms: Ints, groups: Ints, width: int, count: int) -> None:
        self.atoms = atoms
        self.groups = _GroupsOfLabels(groups, width)
        self.sum = ColumnSum(atoms, len(groups), count)
        self.step = np.zeros((width, len(atoms)))
        # Reused from step to step: the memory of a new array costs more than filling it.
        self._labels = np.empty((len(groups), len(atoms)))
        self._more = np.empty_like(self.step)

    def of_atoms(self, by_label: _Floats) -> _Floats:
        """Return the least cost of each end by group, from the costs of atoms (columns) by label (row)."""
        # With `clip` no copy is made before the result is written.
        return self.groups.least(by_label.take(self.atoms, axis=1, out=self._labels, mode="clip"))

    def by_label(self, by_group: _Floats) -> _Floats:
        """Return the sums of costs by group (row) of each end, as costs of atoms by label."""
        return self.sum(self.groups.spread(by_group))

    def move(self, moved: _Floats, least: _Floats, share: _Floats, part: _Floats, momentum: float) -> None:
        """Move the difference of the least costs of edges and the shares of atoms, where groups are allowed."""
        more = np.subtract(least, moved, out=self._more)
        more -= share
        more *= part.take(self.atoms)
        np.copyto(more, 0.0, where=share >= _ENDLESS / 2**20)
        self.step *= momentum
        self.step += more
        moved += self.step


class SetEdges(Edges):
    """Edges whose readers may be in the same sets of groups.

    `cost[s, t, e]` is the cost of edge e from group s if its readers are exactly in the groups of set t.

    Args:
        problem: the labeling problem.
        energy: its energy.
        edges: which of these.
        sets: masks of the sets, in order of size.
        detours: what values may save.

    Attributes:
        tables: the costs by group of the tail, set, and kind of edge.
    """

    def __init__(
        self,
        problem: LabelingProblem,
        energy: Energy,
        edges: Ints,
        sets: Bools,
        detours: Detours | None = None,
    ) -> None:
        position = np.full(len(energy.producer), -1, dtype=np.int64)
        position[edges] = np.arange(len(edges))
        entries = np.flatnonzero(position[energy.owner] >= 0)
        entries = entries[np.argsort(position[energy.owner[entries]], kind="stable")]
        owner = position[energy.owner[entries]]
        groups = energy.groups[energy.layer[edges]].T
        super().__init__(
            energy.producer[edges], owner, energy.readers[entries], groups, sets.shape[1], energy.costs.shape[0]
        )
        self._sets = [np.flatnonzero(members).tolist() for members in sets]
        # Sets are in order of size: each is a smaller one and a group.
        self._parts = [(self._sets.index(members[:-1]), members[-1]) for members in self._sets[sets.shape[1] :]]
        has_readers = np.bincount(owner, minlength=len(edges)) > 0
        firsts, kinds = _kinds_of_tables(energy, edges, has_readers)
        tables = _tables(energy, edges[firsts], sets, has_readers[firsts])
        if problem.domain_memory.size:
            _subtract_shared(tables, problem, energy, edges[firsts], sets, has_readers[firsts])
        if detours is not None and detours.systems:
            _subtract_savings(tables, problem, energy, edges[firsts], sets, detours)
        # Without a producer the source is known: all other rows are out of the question.
        for kind, edge in enumerate(edges[firsts].tolist()):
            if energy.producer[edge] < 0:
                tables[kind] = tables[kind, energy.source[edge]]
        self.tables = np.ascontiguousarray(np.moveaxis(tables, 0, 2))
        self._kinds = None if np.array_equal(kinds, np.arange(len(edges))) else kinds
        self._blocks = _blocks(owner, len(edges), self.tables.shape)
        self._minima = np.empty(len(edges)), np.empty_like(self.to_tail), np.empty_like(self.to_reader)

    def charge_entries(self, first: Ints, second: Ints, is_entered: Bools, launches: Ints) -> Bools:
        """Add what it costs to enter labels to the edges that are between two atoms anyway.

        Args:
            first: the first atom of each pair; no pair occurs twice.
            second: the second one.
            is_entered: whether a pair (row) pays for a label (column) that the second atom alone has.
            launches: what each label costs.

        Returns:
            The mask of what no edge could be found for: edges of one reader, and labels without others in their group.
        """
        groups, count = self._tails.groups.single, self._tails.sum.shape[1]
        if self._parts or (groups < 0).all():
            return is_entered
        inner = np.flatnonzero(self.owner < len(self.tails))
        codes = self.tails[self.owner[inner]] * count + self.readers[inner]
        order, wanted = np.argsort(codes, kind="stable"), first * count + second
        places = np.minimum(np.searchsorted(codes, wanted, sorter=order), max(0, len(codes) - 1))
        added = is_entered & (groups >= 0)
        added &= (codes[order[places]] == wanted if len(codes) else np.zeros(len(wanted), dtype=np.bool_))[:, None]
        pairs = np.flatnonzero(added.any(axis=1))
        if not len(pairs):
            return is_entered
        # Edges of one kind that pay for the same labels stay of one kind.
        entries, of_pair = np.unique(np.packbits(added[pairs], axis=1), axis=0, return_inverse=True)
        entered = np.unpackbits(entries, axis=1, count=added.shape[1]).astype(np.bool_)
        kinds = np.arange(self.tables.shape[2]) if self._kinds is None else self._kinds
        keys = kinds * (len(entries) + 1)
        keys[self.owner[inner][order[places[pairs]]]] += 1 + of_pair.ravel()
        known, self._kinds = np.unique(keys, return_inverse=True)
        before, paid = np.divmod(known, len(entries) + 1)
        self.tables = self.tables[:, :, before]
        for label in np.flatnonzero(entered.any(axis=0)).tolist():
            own = groups[label]
            charged = (paid > 0) & entered[paid - 1, label]
            self.tables[:, own, charged] += launches[label]
            self.tables[own, own, charged] -= launches[label]
        return is_entered & ~added

    def minima(self) -> tuple[_Floats, _Floats, _Floats]:
        """Return the minimum of each edge, and its minima by group of the tail and of each reader."""
        for block in self._blocks:
            self._find_minima(block)
        return self._minima

    def _find_minima(self, block: _Block) -> None:
        """Find the minima of some edges."""
        nearest, others, table = block.nearest, block.others, block.table
        least, by_tail, by_reader = self._minima
        of_reader = by_reader[:, block.readers]
        width = len(of_reader)
        np.negative(self.to_reader[:, block.readers], out=nearest[:width])
        for number, (before, last) in enumerate(self._parts, start=width):
            np.minimum(nearest[before], nearest[last], out=nearest[number])
        if self._kinds is None:
            np.add(self.tables[:, :, block.edges], block.sum(nearest), out=table)
        else:
            self.tables.take(self._kinds[block.edges], axis=2, out=table, mode="clip")
            table += block.sum(nearest)
        table.min(axis=1, out=by_tail[:, block.edges])
        table -= self.to_tail[:, None, block.edges]
        by_set = table.min(axis=0)
        by_set.min(axis=0, out=least[block.edges])
        by_set.take(block.owner, axis=1, out=others, mode="clip")
        others -= nearest
        of_reader[:] = others[:width]
        for members, found in zip(self._sets[width:], others[width:], strict=True):
            for group in members:
                np.minimum(of_reader[group], found, out=of_reader[group])


class PairEdges(Edges):
    """Edges between two atoms each, whose cost depends on the second label where the two differ.

    Args:
        first: the first atom of each edge.
        second: the second one.
        equal: the cost of equal labels.
        unequal: the cost of other labels by label of the second atom (row), and by edge or for all of them.
        count: the number of atoms.

    Attributes:
        unequal: as above.
    """

    def __init__(self, first: Ints, second: Ints, equal: float, unequal: _Floats, count: int) -> None:
        labels, edges = len(unequal), len(first)
        groups = np.repeat(np.arange(labels)[:, None], edges, axis=1)
        super().__init__(first, np.arange(edges), second, groups, labels, count)
        self._equal, self.unequal = equal, unequal

    def minima(self) -> tuple[_Floats, _Floats, _Floats]:
        """Find the least costs of edges, as `Edges.minima` defines them.

        Returns:
            The minimum of each edge, and its minima by label of the first and of the second atom.
        """
        entered = self.unequal - self.to_reader
        by_tail = np.minimum(_least_of_others(entered), self._equal - self.to_reader)
        by_reader = np.minimum(_least_of_others(-self.to_tail) + self.unequal, self._equal - self.to_tail)
        return (by_tail - self.to_tail).min(axis=0), by_tail, by_reader


def _least_of_others(costs: _Floats) -> _Floats:
    """Return for each row the least cost of the other rows, by column; endless where there are none."""
    columns, nearest = np.arange(costs.shape[1]), costs.argmin(axis=0)
    found = np.repeat(costs[nearest, columns][None], len(costs), axis=0)
    rest = costs.copy()
    rest[nearest, columns] = np.inf
    found[nearest, columns] = rest.min(axis=0)
    return found


@dataclass(frozen=True)
class _Block:
    """Consecutive edges with their readers, and tables that are filled in every step."""

    edges: slice
    readers: slice
    owner: Ints  # numbered from the first edge of the block
    sum: ColumnSum
    nearest: _Floats
    others: _Floats
    table: _Floats


def _blocks(owner: Ints, count: int, shape: tuple[int, ...]) -> list[_Block]:
    """Return blocks of about as many edges, whose tables have no more than `BLOCK_ENTRIES` entries.

    All tables are parts of the same arrays: memory that was just used is in the cache.
    """
    width, sets, _ = shape
    readers = spans(np.bincount(owner, minlength=count))
    parts = max(1, -(-width * sets * count // BLOCK_ENTRIES))
    ends = [count * part // parts for part in range(parts + 1)]
    bounds = [(begin, end, int(readers[begin]), int(readers[end])) for begin, end in pairwise(ends)]
    most_edges = max(end - begin for begin, end, _, _ in bounds)
    most_readers = max(last - first for _, _, first, last in bounds)
    table, nearest, others = (np.empty(sets * size) for size in (width * most_edges, most_readers, most_readers))
    blocks = []
    for begin, end, first, last in bounds:
        own, read = owner[first:last] - begin, sets * (last - first)
        blocks.append(
            _Block(
                slice(begin, end),
                slice(first, last),
                own,
                ColumnSum(own, sets, end - begin),
                nearest[:read].reshape(sets, -1) if read else np.empty((sets, 0)),
                others[:read].reshape(sets, -1) if read else np.empty((sets, 0)),
                table[: width * sets * (end - begin)].reshape(width, sets, -1),
            )
        )
    return blocks


def _kinds_of_tables(energy: Energy, edges: Ints, has_readers: Bools) -> tuple[Ints, Ints]:
    """Return the position of the first edge of each kind, and the kind of every edge; edges of one have equal costs."""
    # A group that an edge leads to in any case, or comes from without a producer, is that of the driver.
    is_fixed = energy.fixed[edges].any(axis=1)
    has_tail = energy.producer[edges] >= 0
    keys = 8 * energy.cost_index[edges] + 4 * is_fixed + 2 * has_tail + has_readers
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
        self._groups = groups

    @property
    def single(self) -> Ints:
        """The group of each label, -1 where it differs between columns or another label has it somewhere, too."""
        if not self._groups.shape[1]:
            return np.full(len(self._groups), -1)
        first = self._groups[:, 0]
        is_single = [
            bool((row == group).all() and ((self._groups == group).sum(axis=0) == 1).all())
            for row, group in zip(self._groups, first.tolist(), strict=True)
        ]
        return np.where(is_single, first, -1)

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
