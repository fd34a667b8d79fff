"""Values as edges for many groups or many readers: their cost is a sum over the groups that readers are in.

Each reader of a value is in some group, and those in one group share a copy. The least cost is therefore a minimum over
the ways to divide readers into blocks, of the cost of each block in its best group: as tables of two groups for each
subset of readers, these are far fewer than one for each set of groups. Where two blocks are in one group, its copy is
paid twice, which is never the least.

Readers of a value that has many are divided among several edges, each of which pays a share of each copy. The best
shares are those of the linear relaxation in which a copy is made wherever one of these edges has a reader, as in
facility location (Erlenkotter, "A Dual-Based Procedure for Uncapacitated Facility Location", 1978).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.placement.dual_edges import ColumnSum, Edges, tails_first
from tvmtarget.partition.placement.energy import Bools, LabelingProblem

__all__ = ["AdditiveCosts", "BlockEdges", "costs_at_home"]

# Readers of one edge, of which all subsets have a table.
MAX_READERS = 3

# Table entries that are worked on together, so that temporary tables stay small.
BLOCK_ENTRIES = 20_000

# The part of a step towards equal slack that shares of costs take.
STEP = 0.5

_Floats = npt.NDArray[np.float64]


class BlockEdges(Edges):
    """Edges that have the same number of readers.

    Args:
        problem: the labeling problem.
        values: the value of each edge.
        readers: the readers (rows) of each edge.
        leaving: the cost of each edge, by group of the producer, where a reader is in another group.
        cost: beside it, the costs by group of the producer and group of readers, 0 for equal ones; one row if they are
            the same for all other groups of the producer.
        has_shares: whether edges of one value pay shares of its copies.
    """

    def __init__(
        self,
        problem: LabelingProblem,
        values: Ints,
        readers: Ints,
        leaving: _Floats,
        cost: _Floats,
        *,
        has_shares: bool,
    ) -> None:
        self.size, edges = readers.shape
        groups = np.repeat(problem.domains[:, None], edges, axis=1)
        owner = np.tile(np.arange(edges), self.size)
        super().__init__(problem.producer[values], owner, readers.ravel(), groups, len(leaving), len(problem.costs))
        # Without a producer the source is known: all other rows are out of the question.
        fixed = np.flatnonzero(problem.producer[values] < 0)
        if len(cost) > 1:
            cost[:, :, fixed] = cost[problem.home, :, fixed].T
        leaving[:, fixed] = leaving[problem.home, fixed]
        # What is added to the costs of readers in the group of the producer.
        self._local = np.zeros_like(leaving)
        self._local[np.ix_(np.arange(len(leaving)) != problem.home, fixed)] = np.inf
        self.cost, self.leaving = cost, leaving
        self.shares = (_Shares(cost, values), _Shares(leaving, values)) if has_shares else None
        # The least costs of the last step, and what each edge must pay where it pays a share.
        self._least, self._leaves = np.zeros(edges), np.zeros_like(leaving)
        self._pays = np.zeros_like(cost) if has_shares else cost[:, :, :0]

    def minima(self) -> tuple[_Floats, _Floats, _Floats]:
        """Return the minimum of each edge, and its minima by group of the tail and of each reader."""
        width, edges = self.to_tail.shape
        by_tail, by_reader = np.empty_like(self.to_tail), np.empty((width, self.size, edges))
        step = max(1, BLOCK_ENTRIES // (len(self.cost) * width))
        for begin in range(0, edges, step):
            part = slice(begin, begin + step)
            by_tail[:, part], by_reader[:, :, part] = self._minima(part)
        self._least = (by_tail - self.to_tail).min(axis=0)
        return self._least, by_tail, by_reader.reshape(width, -1) + self.to_reader

    def _minima(self, part: slice) -> tuple[_Floats, _Floats]:
        """Return the minima of some edges, by group of the tail and of each reader."""
        cost, to_tail = self.cost[:, :, part], self.to_tail[:, part]
        own = -self.to_reader.reshape(len(to_tail), self.size, -1)[:, :, part]
        local = self._local[:, part]
        whole = (1 << self.size) - 1
        none = np.zeros_like(to_tail)
        sums, nearest, divided, blocks = [none], [none], [none], [cost]  # by mask of readers
        for mask in range(1, whole + 1):
            last = mask & -mask
            sums.append(sums[mask ^ last] + own[:, last.bit_length() - 1])
            blocks.append(cost + sums[mask])
            nearest.append(np.minimum(blocks[mask].min(axis=1), sums[mask] + local))
            found = nearest[mask]
            for first in range(1, mask):
                if first & mask == first and first & last:
                    found = np.minimum(found, nearest[first] + divided[mask ^ first])
            divided.append(found)
        # With all readers in the group of the producer there is no copy.
        staying = local + sums[whole] - to_tail
        leaving = self.leaving[:, part] - to_tail
        by_reader = np.repeat(staying[:, None], self.size, axis=1)
        for mask, block in enumerate(blocks[1:], start=1):
            beside = leaving + divided[whole ^ mask]
            block += beside[:, None] if len(cost) > 1 else beside.min(axis=0)
            found = np.minimum(block.min(axis=0), sums[mask] + local + beside)
            for reader in range(self.size):
                if mask >> reader & 1:
                    np.minimum(by_reader[:, reader], found, out=by_reader[:, reader])
        if self.shares is not None:
            self._leaves[:, part] = leaving + divided[whole]
            np.minimum.reduce(blocks[1:], out=self._pays[:, :, part])
        return np.minimum(local + sums[whole], self.leaving[:, part] + divided[whole]), by_reader

    def share(self) -> None:
        """Move shares of copies between the edges of a value, by the minima that were returned last."""
        if self.shares is not None:
            copies, links = self.shares
            self.cost = copies.moved(self.cost, self._pays - self._least)
            self.leaving = links.moved(self.leaving, self._leaves - self._least)


class _Shares:
    """The shares that the edges of each value pay of some costs."""

    def __init__(self, cost: _Floats, values: Ints) -> None:
        _, self.values = np.unique(values, return_inverse=True)
        count = int(self.values.max(initial=-1)) + 1
        rows = cost.reshape(-1, len(values))
        self.edges = np.bincount(self.values, minlength=count)
        self.sums = ColumnSum(self.values, len(rows), count)
        self.whole = self.sums(rows)

    def moved(self, cost: _Floats, slack: _Floats) -> _Floats:
        """Return shares that are nearer to the best ones: edges that a cost does not matter to pay less of it.

        Args:
            cost: the shares; edges are the last axis.
            slack: how much more than the least cost an edge must pay where it pays a share.

        Returns:
            Shares that are not negative, and add up to no more than the cost.
        """
        slack = slack.reshape(-1, len(self.values))
        mean = self.sums(slack) / self.edges
        shares: _Floats = cost.reshape(slack.shape) + STEP * (mean[:, self.values] - slack)
        np.maximum(shares, 0.0, out=shares)
        total = self.sums(shares)
        part = np.divide(self.whole, total, out=np.ones_like(total), where=total > self.whole)
        shares *= part[:, self.values]
        return shares.reshape(cost.shape)


def costs_at_home(problem: LabelingProblem, values: Ints) -> _Floats:
    """Return what copies of final results cost, which the edges of `AdditiveCosts` leave out.

    Args:
        problem: the labeling problem.
        values: numbers of those that have such edges.

    Returns:
        Costs by label (row) and atom (column).
    """
    costs = np.zeros((len(problem.domains), len(problem.costs)))
    values = values[(problem.is_live_out & (problem.producer >= 0))[values]]
    home = problem.pair_costs[problem.cost_index[values], :, problem.home].T[problem.domains]
    np.add.at(costs.T, problem.producer[values], home.T)
    return costs


@dataclass(frozen=True)
class AdditiveCosts:
    """Costs of copies as a cost of leaving the group of the producer, and one for each group of readers.

    These are for values that do not end up at home, for those that do, which have a copy there in any case, and for
    those with a single reader and no copy at home.

    Attributes:
        leaving: by `LabelingProblem.cost_index` and group of the producer.
        other: by cost index, group of the producer and group of readers, 0 for equal ones; one row instead of one for
            each group of the producer where all of them have the same costs.
    """

    leaving: _Floats
    other: _Floats

    @classmethod
    def of(cls, problem: LabelingProblem) -> AdditiveCosts:
        """Return costs that add up to no more than those of the copies.

        Where all routes from a memory pass through the home memory, the link to there is paid by leaving; else each
        copy pays for the last link of its route.

        Args:
            problem: a labeling problem.

        Returns:
            The costs.
        """
        last = problem.relaxed().pair_costs.astype(np.float64)
        leaving = np.zeros(last.shape[:2])
        at_home: Bools = np.zeros(last.shape, dtype=np.bool_)
        at_home[:, :, problem.home] = True
        if not problem.domain_memory.size:
            other = np.stack([last, np.where(at_home, 0.0, last), last])
            return cls(np.stack([leaving, leaving, leaving]), _merged_rows(other))
        memories, home = problem.domain_memory, problem.domain_memory[problem.home]
        passes = _passes(problem, home)[:, memories][:, :, memories]
        is_own = memories[:, None] == memories
        # Between two groups in one memory there is no link to pay for.
        is_through = (passes | is_own).all(axis=2) & (is_own.sum(axis=1) == 1)
        leaving = np.where(is_through, problem.route_times[:, memories, home], 0).astype(np.float64)
        # What is on the way home is paid with it.
        is_on_way = _on_way(problem, home)[:, memories][:, :, memories] | at_home
        with_copy = np.where(is_on_way, 0.0, last)
        without = np.where(is_on_way & is_through[:, :, None], 0.0, last)
        # No link is shared where there is one reader.
        full = problem.pair_costs.astype(np.float64)
        is_full = (leaving[:, :, None] + without == full) | np.eye(len(memories), dtype=np.bool_)
        none = np.zeros_like(leaving)
        single = (leaving, without) if is_full.all() else (none, full)
        return cls(np.stack([leaving, none, single[0]]), _merged_rows(np.stack([without, with_copy, single[1]])))

    def entries(self, problem: LabelingProblem, values: Ints) -> int:
        """Return how many table entries the edges of values have.

        Args:
            problem: the labeling problem.
            values: their numbers.

        Returns:
            The number of entries.
        """
        counts = np.diff(problem.start)[values]
        subsets = (1 << np.minimum(counts, MAX_READERS)) - 1
        tables = (subsets * -(-counts // MAX_READERS)).sum()
        return int(tables * self.other.shape[-2] * self.other.shape[-1])

    def edges(self, problem: LabelingProblem, values: Ints) -> list[BlockEdges]:
        """Return edges for values of a labeling problem, as a relaxation.

        Args:
            problem: the labeling problem.
            values: their numbers.

        Returns:
            Edges that cost no more than the copies of the values, but for those of final results to the driver.
        """
        counts = np.diff(problem.start)
        found = []
        for size in range(1, MAX_READERS + 1):
            own = tails_first(problem.producer, values[counts[values] == size])
            readers = problem.readers[problem.start[own] + np.arange(size)[:, None]]
            found.append((own, readers, np.ones(len(own))))
        many = tails_first(problem.producer, values[counts[values] > MAX_READERS])
        parts = -(-counts[many] // MAX_READERS)
        own = np.repeat(many, parts)
        # The last edge of a value has some of its first readers again.
        first = MAX_READERS * (np.arange(len(own)) - np.repeat(np.cumsum(parts) - parts, parts))
        places = (first + np.arange(MAX_READERS)[:, None]) % counts[own]
        readers = problem.readers[problem.start[own] + places]
        found.append((own, readers, np.repeat(parts, parts).astype(np.float64)))
        edges = []
        for own, readers, shares in found:
            if len(own):
                single = 2 if len(readers) == 1 else 0
                kinds = np.where(problem.is_live_out[own], 1, single), problem.cost_index[own]
                leaving = self.leaving[kinds].T / shares
                cost = np.ascontiguousarray(np.moveaxis(self.other[kinds], 0, 2)) / shares
                edges.append(BlockEdges(problem, own, readers, leaving, cost, has_shares=bool((shares > 1).any())))
        return edges


def _merged_rows(other: _Floats) -> _Floats:
    """Return one row of costs where those of all groups of the producer are equal, but for each group itself."""
    is_own = np.eye(other.shape[-1], dtype=np.bool_)
    most = np.where(is_own, 0.0, other).max(axis=-2)
    is_equal = (is_own | (other == most[..., None, :])).all()
    return most[..., None, :] if is_equal else other


def _passes(problem: LabelingProblem, home: int) -> Bools:
    """Return whether the route between two memories passes through the home memory, or ends there."""
    found: Bools = np.zeros(problem.route_times.shape, dtype=np.bool_)
    found[:, :, home] = True
    for _ in range(found.shape[1]):
        found |= np.take_along_axis(found, problem.route_before, axis=2)
    return found


def _on_way(problem: LabelingProblem, home: int) -> Bools:
    """Return by two memories whether the route from the first to the home memory passes through the second."""
    found: Bools = np.zeros(problem.route_times.shape, dtype=np.bool_)
    at = np.full(found.shape[:2], home)
    for _ in range(found.shape[1]):
        np.put_along_axis(found, at[:, :, None], True, axis=2)
        at = np.take_along_axis(problem.route_before, at[:, :, None], axis=2)[:, :, 0]
    return found
