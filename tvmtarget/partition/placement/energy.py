"""The labeling problem of placement: costs of atoms by label, and of copies of values between labels.

Labels are the options of a level, atoms are groups of operations that stay together, and all numbers are integers in
arrays, so that a step over a large program is a few vector operations. `Energy` is the sum to minimize, in the form
that move-making algorithms such as alpha-expansion need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tvmtarget.partition.dataflow import NO_PRODUCER, Ints, ranges, spans

__all__ = ["ENDLESS", "Bools", "Energy", "LabelingProblem", "energy_of", "enumerate_labelings", "labelings_below"]

Bools: TypeAlias = npt.NDArray[np.bool_]

# The cost of what is not allowed.
ENDLESS = np.iinfo(np.int64).max

# Sets of up to this many domains are coded as integers of 64 bits, beside the number of a domain.
MAX_CODED = 54

# Values whose routes are followed at once: tables with a column for each memory stay in the caches of a processor.
MAX_ROUTED = 2048

# Labelings whose costs are computed at once have no more values than this, all together; up to FEW_PAIRS values are
# added up for each labeling anew.
MAX_PAIRS, FEW_PAIRS = 2**16, 2**10

# Of more labelings than values, the costs are differences if less than one label of so many is another one.
MIN_EQUAL = 8


@dataclass(frozen=True)
class LabelingProblem:
    """Costs of atoms by label, and of copies of the values between them.

    A value is copied to each domain that needs it. `pair_costs` charge every copy in full, although copies of one value
    over the same link are made only once; `overcharge` returns the difference.

    Attributes:
        costs: cost of each atom (row) under each label (column).
        allowed: whether an atom may have a label.
        producer: the atom that computes each value; the value is at home where that is `NO_PRODUCER`.
        start: value i is read by atoms `readers[start[i]:start[i + 1]]`.
        readers: atoms that read values.
        is_live_out: whether a value must end up at home.
        cost_index: `pair_costs[cost_index[i]]` are the costs of value i.
        pair_costs: cost of a copy between any two domains.
        domains: the domain of each label.
        home: the domain of the driver.
        launches: cost of a call under each label.
        domain_memory: the memory of each domain; empty if no two copies can share a link, as are the next two.
        route_times: `route_times[cost_index[i]]` is the time of a copy between any two memories.
        route_before: `route_before[cost_index[i], a, b]` is the last memory on the route from a to b before b.
    """

    costs: Ints
    allowed: Bools
    producer: Ints
    start: Ints
    readers: Ints
    is_live_out: Bools
    cost_index: Ints
    pair_costs: Ints
    domains: Ints
    home: int
    launches: Ints
    domain_memory: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    route_times: Ints = field(default_factory=lambda: np.zeros((0, 0, 0), dtype=np.int64))
    route_before: Ints = field(default_factory=lambda: np.zeros((0, 0, 0), dtype=np.int64))

    @property
    def allowed_costs(self) -> Ints:
        """Cost of each atom under each label, endless under those that it may not have."""
        return np.where(self.allowed, self.costs, ENDLESS)

    def total(self, labels: Ints) -> int:
        """Return the cost of atoms and copies, without launches.

        Args:
            labels: an allowed label for each atom.

        Returns:
            The exact cost, links that copies share counted once.
        """
        return int(self.totals(labels[None])[0])

    def totals(self, rows: Ints) -> Ints:
        """Return the costs of atoms and copies of many labelings, without launches.

        Args:
            rows: labelings, one per row.

        Returns:
            The exact cost of each row, links that copies share counted once.
        """
        count, values = len(rows), len(self.producer)
        if count * values <= FEW_PAIRS:
            value, row = np.tile(np.arange(values), count), np.repeat(np.arange(count), values)
            copies = self._copies_of(value, rows, row).reshape(count, values).sum(axis=1)
            totals: Ints = copies + self.costs[np.arange(len(self.costs)), rows].sum(axis=1)
            return totals
        # Labelings that are compared mostly differ in few atoms, which those of a majority of three show.
        common = np.where(rows[0] == rows[-1], rows[0], rows[count // 2])
        size = max(1, MAX_PAIRS // values)
        if count > values and MIN_EQUAL * (rows[:size] != common).mean() > 1:
            totals = self.costs[np.arange(len(self.costs)), rows].sum(axis=1)
            for one in range(values):
                totals += self.copies(one, rows, len(self.costs))
            return totals
        parts = (rows[begin : begin + size] for begin in range(0, count, size))
        return np.concatenate([self._totals_by_difference(part, common) for part in parts])

    def _totals_by_difference(self, rows: Ints, common: Ints) -> Ints:
        """Return the costs of labelings, of most values as the difference from those under a common labeling."""
        values = len(self.producer)
        copies = self._copies_of(np.arange(values), common[None], np.zeros(values, dtype=np.int64))
        own = self.costs[np.arange(len(common)), common]
        totals = np.full(len(rows), own.sum() + copies.sum(), dtype=np.int64)
        row, atom = np.nonzero(rows != common)
        np.add.at(totals, row, self.costs[atom, rows[row, atom]] - own[atom])
        begin, touching = self._values_of_atoms
        owner, places = ranges(begin[atom], begin[atom + 1])
        is_touched = np.zeros((len(rows), values), dtype=np.bool_)
        is_touched[row[owner], touching[places]] = True
        row, value = np.nonzero(is_touched)
        np.add.at(totals, row, self._copies_of(value, rows, row) - copies[value])
        return totals

    @cached_property
    def _values_of_atoms(self) -> tuple[Ints, Ints]:
        """The values that each atom computes or reads, in a compressed row format: where those of an atom begin."""
        owner = np.repeat(np.arange(len(self.producer)), np.diff(self.start))
        computed = np.flatnonzero(self.producer >= 0)
        atoms = np.concatenate([self.readers, self.producer[computed]])
        order = np.argsort(atoms, kind="stable")
        return spans(np.bincount(atoms, minlength=len(self.costs))), np.concatenate([owner, computed])[order]

    def _copies_of(self, values: Ints, rows: Ints, row: Ints) -> Ints:
        """Return what copies of values cost, each under the labeling of a row."""
        producer, index = self.producer[values], self.cost_index[values]
        sources = np.where(producer >= 0, self.domains[rows[row, producer]], self.home)
        owner, places = ranges(self.start[values], self.start[values + 1])
        present = np.zeros((len(values), self.pair_costs.shape[-1]), dtype=np.bool_)
        present[owner, self.domains[rows[row[owner], self.readers[places]]]] = True
        present[self.is_live_out[values], self.home] = True
        costs: Ints = np.einsum("ij,ij->i", self.pair_costs[index, sources], present)
        if self.domain_memory.size:
            several = np.flatnonzero(present.sum(axis=1) > 1)
            costs[several] -= self.overcharge(index[several], sources[several], present[several])
        return costs

    def copies(self, value: int, rows: Ints, count: int) -> Ints:
        """Return what copies of a value cost between the first atoms, each shared link once.

        Args:
            value: the value, by number.
            rows: labelings of the first atoms, one per row.
            count: how many atoms these are.

        Returns:
            The cost of each row; 0 where the producer is not one of them.
        """
        if self.producer[value] >= count:
            return np.zeros(len(rows), dtype=np.int64)
        producer, index, width = self.producer[value], self.cost_index[value], self.pair_costs.shape[-1]
        sources = self.domains[rows[:, producer]] if producer >= 0 else np.full(len(rows), self.home)
        readers = self.readers[self.start[value] : self.start[value + 1]].tolist()
        targets = [self.domains[rows[:, reader]] for reader in readers if reader < count]
        # A copy to one place shares no link with another one.
        if self.domain_memory.size and len(targets) + self.is_live_out[value] > 1:
            sources, present, number = self._routed(value, sources, targets)
            charged = np.einsum("ij,ij->i", self.pair_costs[index][sources], present)
            costs: Ints = charged - self.overcharge(np.full(len(sources), index), sources, present)
            return costs[number]
        present = np.zeros((len(rows), width), dtype=np.bool_)
        present[:, self.home] = self.is_live_out[value]
        for target in targets:
            present[np.arange(len(rows)), target] = True
        found: Ints = np.einsum("ij,ij->i", self.pair_costs[index][sources], present)
        return found

    def _routed(self, value: int, sources: Ints, targets: Sequence[Ints]) -> tuple[Ints, Bools, Ints]:
        """Return where a value comes from and goes to, each distinct pair of these once, and the pair of each row.

        Labelings are many, and such pairs few.
        """
        width, count = self.pair_costs.shape[-1], len(sources)
        if width > MAX_CODED:
            # One digit for each end, as long as all of them fit a code; the rest stay several pairs.
            first = number = np.arange(count)
            if width ** (1 + len(targets)) < 2**63:
                codes = sources.astype(np.int64)
                for target in targets:
                    codes = codes * width + target
                _, first, number = np.unique(codes, return_index=True, return_inverse=True)
            present = np.zeros((len(first), width), dtype=np.bool_)
            present[:, self.home] = self.is_live_out[value]
            for target in targets:
                present[np.arange(len(first)), target[first]] = True
            return sources[first], present, number
        codes = np.full(count, int(self.is_live_out[value]) << self.home)
        for target in targets:
            codes |= 1 << target
        keys, number = np.unique(codes * width + sources, return_inverse=True)
        return keys % width, (keys // width)[:, None] >> np.arange(width) & 1 > 0, number

    def overcharge(self, cost_index: Ints, sources: Ints, present: Bools) -> Ints:
        """Return what `pair_costs` charge more than once for values.

        Args:
            cost_index: the row of `pair_costs` of each value.
            sources: the domain that it comes from.
            present: the domains (columns) that it goes to.

        Returns:
            The excess cost of each value.
        """
        if not self.domain_memory.size:
            return np.zeros(len(sources), dtype=np.int64)
        if len(sources) > MAX_ROUTED:
            parts = [slice(start, start + MAX_ROUTED) for start in range(0, len(sources), MAX_ROUTED)]
            return np.concatenate([self.overcharge(cost_index[one], sources[one], present[one]) for one in parts])
        start, every = self.domain_memory[sources], np.arange(len(sources))
        times, before = self.route_times[cost_index, start], self.route_before[cost_index, start]
        reached = np.zeros(times.shape, dtype=np.bool_)
        for domain, memory in enumerate(self.domain_memory.tolist()):
            reached[:, memory] |= present[:, domain]
        # Memories on the routes to reached ones hold a copy too; follow routes back to the source.
        last = np.flatnonzero(reached.any(axis=0))
        while len(last):
            passed = reached.copy()
            for memory in last.tolist():
                passed[every, before[:, memory]] |= reached[:, memory]
            last = np.flatnonzero((passed != reached).any(axis=0))
            reached = passed
        hops = times - np.take_along_axis(times, before, axis=1)
        charged: Ints = np.where(present, times[:, self.domain_memory], 0).sum(axis=1)
        paid: Ints = np.where(reached, hops, 0).sum(axis=1)
        return charged - paid

    def relaxed(self) -> LabelingProblem:
        """Return a relaxation, whose optimum is a lower bound.

        Returns:
            The problem in which each copy pays only for the last link of its route; the same problem if no two copies
            can share a link.
        """
        if not self.domain_memory.size:
            return self
        hops = self.route_times - np.take_along_axis(self.route_times, self.route_before, axis=2)
        # Two domains may be in one memory: only the first of them pays for the link.
        is_first = np.array(
            [
                self.domain_memory.tolist().index(one) == position
                for position, one in enumerate(self.domain_memory.tolist())
            ]
        )
        a, b = self.domain_memory[:, None], self.domain_memory[None, :]
        pair_costs = self.pair_costs - self.route_times[:, a, b] + np.where(is_first, hops[:, a, b], 0)
        empty = np.zeros((0, 0, 0), dtype=np.int64)
        return replace(
            self,
            pair_costs=pair_costs,
            domain_memory=np.zeros(0, dtype=np.int64),
            route_times=empty,
            route_before=empty,
        )


@dataclass(frozen=True)
class Energy:
    """A sum to minimize over labelings: a cost per atom and label, and edges with costs between groups of labels.

    An edge is a value, seen by one layer of costs. Layer 0 is copies, where the groups are domains; layer 1, if there
    is one, is launches, where each label is a group. An edge leads from one group to a set of groups, and each of
    them is paid once.

    Attributes:
        costs: cost of each atom (row) under each label (column).
        allowed: whether an atom may have a label.
        producer: the atom at the tail of each edge, or `NO_PRODUCER`.
        source: the group at the tail of an edge without a producer.
        owner: the edge of each entry of `readers`.
        readers: the atoms at the heads of edges.
        fixed: groups (columns) that an edge (row) leads to under every labeling.
        layer: the layer of each edge.
        groups: `groups[layer, label]` is the group of a label.
        cost_index: `pair_costs[cost_index[i]]` are the costs of edge i.
        pair_costs: cost between any two groups.
    """

    costs: Ints
    allowed: Bools
    producer: Ints
    source: Ints
    owner: Ints
    readers: Ints
    fixed: Bools
    layer: Ints
    groups: Ints
    cost_index: Ints
    pair_costs: Ints

    def total(self, labels: Ints) -> int:
        """Return the energy of a labeling.

        Args:
            labels: an allowed label for each atom.

        Returns:
            The sum.
        """
        own = np.take_along_axis(self.costs, labels[:, None], axis=1).sum()
        present = self.fixed.copy()
        present[self.owner, self.groups[self.layer[self.owner], labels[self.readers]]] = True
        edges, into = np.nonzero(present)
        return int(own + self.costs_between(edges, self.sources(labels)[edges], into).sum())

    def sources(self, labels: Ints) -> Ints:
        """Return the group at the tail of each edge.

        Args:
            labels: a label for each atom.

        Returns:
            A group for each edge.
        """
        has_producer = self.producer >= 0
        if not has_producer.any():
            return self.source
        return np.where(
            has_producer, self.groups[self.layer, labels[np.where(has_producer, self.producer, 0)]], self.source
        )

    def costs_between(self, edges: Ints, sources: Ints, into: Ints) -> Ints:
        """Return what edges cost from one group to another.

        Args:
            edges: numbers of edges.
            sources: the group that each comes from.
            into: the group that each leads to.

        Returns:
            A cost for each of them.
        """
        width = self.pair_costs.shape[-1]
        costs: Ints = self.pair_costs.ravel().take((self.cost_index[edges] * width + sources) * width + into)
        return costs

    def touching(self, atoms: Bools) -> Bools:
        """Return which edges have a tail or head among some atoms.

        Args:
            atoms: a mask of atoms.

        Returns:
            A mask of edges.
        """
        edges = (self.producer >= 0) & atoms[self.producer]
        edges[self.owner[atoms[self.readers]]] = True
        return edges

    def neighbours(self, atoms: Bools) -> Bools:
        """Return atoms and those that share an edge with them.

        Args:
            atoms: a mask of atoms.

        Returns:
            A mask of atoms that includes `atoms`.
        """
        edges = self.touching(atoms)
        found = atoms.copy()
        found[self.readers[edges[self.owner]]] = True
        found[self.producer[edges & (self.producer >= 0)]] = True
        return found

    def restricted_to(self, atoms: Bools) -> Energy:
        """Drop the edges that do not touch some atoms.

        Args:
            atoms: a mask of atoms.

        Returns:
            An energy that changes by the same amount as this one if only `atoms` change their labels.
        """
        edges = self.touching(atoms)
        entries = edges[self.owner]
        position = np.cumsum(edges) - 1
        return replace(
            self,
            producer=self.producer[edges],
            source=self.source[edges],
            owner=position[self.owner[entries]],
            readers=self.readers[entries],
            fixed=self.fixed[edges],
            layer=self.layer[edges],
            cost_index=self.cost_index[edges],
        )


def energy_of(problem: LabelingProblem, share: float) -> Energy:
    """Return the energy of a labeling problem with part of a launch per value and label.

    How many calls a labeling needs depends on the subgraphs that are formed later; edges between labels approximate it.

    Args:
        problem: the labeling problem.
        share: the part of a launch per value and label that reads it, from 0 to 1.

    Returns:
        The energy. Launches are part of layer 0 for values between labels that all have memories of their own, else
        layer 1.
    """
    count, size = len(problem.domains), problem.pair_costs.shape[-1]
    launches = np.array([int(share * int(launch)) for launch in problem.launches], dtype=np.int64)
    # Without launches only memories are groups, which are often fewer than labels.
    width = max(count, size) if launches.any() else size
    count_values = len(problem.producer)
    owner = np.repeat(np.arange(count_values), np.diff(problem.start))
    has_producer = problem.producer >= 0
    has_readers = np.diff(problem.start) > 0
    fixed = np.zeros((count_values, width), dtype=np.bool_)
    fixed[problem.is_live_out, problem.home] = True
    pair_costs = np.zeros((len(problem.pair_costs), width, width), dtype=np.int64)
    pair_costs[:, :size, :size] = problem.pair_costs
    groups = np.stack([problem.domains, np.arange(count)])
    if not launches.any():
        groups = groups[:1]
        layer_values = [np.arange(count_values)]
        cost_index, layer = problem.cost_index, np.zeros(count_values, dtype=np.int64)
    else:
        is_distinct = len(set(problem.domains.tolist())) == count
        arriving = np.zeros(width, dtype=np.int64)
        arriving[problem.domains] = launches
        with_launch = pair_costs + np.where(np.eye(width, dtype=np.bool_), 0, arriving)
        launch_costs = np.zeros((1, width, width), dtype=np.int64)
        launch_costs[0, :count, :count] = np.where(np.eye(count, dtype=np.bool_), 0, launches)
        # Where labels and domains are the same groups, a launch is added to the cost of the copy.
        merged = has_producer & ~problem.is_live_out & is_distinct
        launched = np.flatnonzero(has_producer & has_readers & ~merged)
        count_costs = len(pair_costs)
        pair_costs = np.concatenate([pair_costs, with_launch, launch_costs])
        cost_index = np.concatenate(
            [
                problem.cost_index + np.where(merged, count_costs, 0),
                np.full(len(launched), 2 * count_costs, dtype=np.int64),
            ]
        )
        layer = np.concatenate([np.zeros(count_values, dtype=np.int64), np.ones(len(launched), dtype=np.int64)])
        layer_values = [np.arange(count_values), launched]
    selected = np.concatenate(layer_values)
    position = np.full(count_values, -1, dtype=np.int64)
    entries, owners = [problem.readers], [owner]
    if len(layer_values) > 1:
        position[layer_values[1]] = count_values + np.arange(len(layer_values[1]))
        is_repeated = position[owner] >= 0
        entries.append(problem.readers[is_repeated])
        owners.append(position[owner[is_repeated]])
    fixed_groups = fixed[selected]
    fixed_groups[count_values:] = False
    return Energy(
        costs=problem.costs,
        allowed=problem.allowed,
        producer=problem.producer[selected],
        source=np.full(len(selected), problem.home, dtype=np.int64),
        owner=np.concatenate(owners),
        readers=np.concatenate(entries),
        fixed=fixed_groups,
        layer=layer,
        groups=groups,
        cost_index=cost_index,
        pair_costs=pair_costs,
    )


def enumerate_labelings(problem: LabelingProblem, budget: int) -> Ints:
    """Return all allowed labelings if there are few.

    Args:
        problem: the labeling problem.
        budget: the largest number of labelings.

    Returns:
        One labeling per row in lexicographic order; no rows if there are more than `budget`.
    """
    counts = problem.allowed.sum(axis=1).tolist()
    if len(counts) > budget.bit_length() + sum(count == 1 for count in counts) or prod(counts) > budget:
        return np.zeros((0, len(counts)), dtype=np.int64)
    numbers = np.arange(prod(counts))
    rows = np.tile(problem.allowed.argmax(axis=1), (len(numbers), 1))
    block = len(numbers)  # labelings that agree in all atoms before the current one
    for atom in [atom for atom, count in enumerate(counts) if count > 1]:
        block //= counts[atom]
        rows[:, atom] = np.flatnonzero(problem.allowed[atom])[numbers // block % counts[atom]]
    return rows


def labelings_below(
    problem: LabelingProblem, total: int, budget: int, keeps: Callable[[Ints], Bools] | None = None
) -> Ints | None:
    """Return all allowed labelings that may cost less than a known one, by branch and bound.

    Atoms are labeled in order, breadth first. What is labeled costs no less later, the rest at least its own costs, and
    each label in use at least one call.

    Args:
        problem: the labeling problem.
        total: the cost of the known labeling, calls included.
        budget: the largest number of labelings that are kept after each atom.
        keeps: returns which labelings of the first atoms (columns) keep what is required; None if nothing is.

    Returns:
        One labeling per row in lexicographic order; None if there are more than `budget`.
    """
    labels = np.arange(len(problem.domains))
    readers = [problem.readers[begin:end].tolist() for begin, end in pairwise(problem.start.tolist())]
    producers = problem.producer.tolist()
    values_of: list[list[int]] = [[] for _ in problem.costs]
    for value, found in enumerate(readers):
        for atom in {*found, producers[value]} - {NO_PRODUCER}:
            values_of[atom].append(value)

    own = problem.allowed_costs.min(axis=1)
    ahead = np.concatenate([np.cumsum(own[::-1])[::-1], [0]])
    rows, spent = np.zeros((1, 0), dtype=np.int64), np.zeros(1, dtype=np.int64)
    used, calls = np.zeros((1, len(labels)), dtype=np.bool_), np.zeros(1, dtype=np.int64)
    for atom, touching in enumerate(values_of):
        options = np.flatnonzero(problem.allowed[atom])
        # Most labelings are too expensive even without copies, whose tables are as wide as there are domains.
        more = np.add.outer(spent + calls, problem.costs[atom, options]).ravel()
        number = np.flatnonzero(more + ahead[atom + 1] < total)
        before, added = np.divmod(number, len(options))
        added = options[added]
        rows, spent = np.column_stack([rows[before], added]), spent[before] + problem.costs[atom, added]
        calls = calls[before] + np.where(used[before, added], 0, problem.launches[added])
        for value in touching:
            spent += problem.copies(value, rows, atom + 1) - problem.copies(value, rows, atom)
        kept = spent + calls + ahead[atom + 1] < total
        if keeps is not None:
            kept[kept] = keeps(rows[kept])
        rows, spent, calls = rows[kept], spent[kept], calls[kept]
        if len(rows) > budget:
            return None
        used = used[before[kept]] | (added[kept, None] == labels)
    return rows
