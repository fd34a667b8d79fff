"""What values save by detours through the memories of drivers, for lower bounds of nested trees.

Copies of one call of a system take the fastest routes from where a value was computed to all its readers. A value that
passes between two calls of the system is in the memory of its driver meanwhile. Its copies to there, and from there to
the readers of the second call, may take less time together than these routes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, pairwise

import numpy as np

from tvmtarget.partition.costs.memory_graph import MemoryGraph
from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.placement.energy import Bools, LabelingProblem
from tvmtarget.target.topology import Topology

__all__ = ["Detours"]

# In systems of more memories, savings are only estimated from above: sets of memories grow too many.
MAX_MEMORIES = 5


class Detours:
    """Savings by detours for labelings of which each label is a leaf of a nested tree.

    Args:
        graph: the memories.
        topology: the sites.
        leaves: the path of the leaf of each label.
        sizes: bytes of a value by `LabelingProblem.cost_index`.
    """

    def __init__(self, graph: MemoryGraph, topology: Topology, leaves: Sequence[str], sizes: Sequence[int]) -> None:
        self.sizes = sizes
        paths = sorted({leaf[:at] for leaf in leaves for at, character in enumerate(leaf) if character == "/"})
        systems = (_System(graph, topology, path, leaves) for path in paths)
        self.systems = [system for system in systems if any(map(system.has_detours, set(sizes)))]

    def most(self, problem: LabelingProblem, values: Ints | None = None) -> int:
        """Return what values of a problem save at most, under any labeling.

        Args:
            problem: the labeling problem, whose labels are the leaves.
            values: the numbers of these values; None for all.

        Returns:
            Picoseconds.
        """
        is_counted = np.ones(len(problem.producer), dtype=np.bool_)
        if values is not None:
            is_counted[:] = False
            is_counted[values] = True
        return sum(
            system.most(
                self.sizes[problem.cost_index[value]], problem.allowed[producer], problem.allowed[readers], ends
            )
            for value, producer, readers, ends in self._values(problem)
            if is_counted[value]
            for system in self.systems
        )

    def saved(self, problem: LabelingProblem, labels: Ints) -> int:
        """Return what all values of a problem save at most under a labeling.

        Args:
            problem: the labeling problem, whose labels are the leaves.
            labels: a label for each atom.

        Returns:
            Picoseconds.
        """
        return sum(self._saved_by(problem, labels, system) for system in self.systems)

    def saved_by(self, cost_index: int, own: int, readers: frozenset[int], is_live_out: bool) -> int:
        """Return what one value saves at most.

        Args:
            cost_index: as in `LabelingProblem`.
            own: the label of its producer.
            readers: the labels of its readers.
            is_live_out: whether it must end up at home.

        Returns:
            Picoseconds.
        """
        size = self.sizes[cost_index]
        return sum(system.saved(size, own, readers, is_live_out) for system in self.systems)

    def helpful(self, problem: LabelingProblem, labels: Ints) -> frozenset[str]:
        """Return the systems of which more calls may save copies under a labeling.

        Args:
            problem: the labeling problem, whose labels are the leaves.
            labels: a label for each atom.

        Returns:
            Paths.
        """
        return frozenset(system.path for system in self.systems if self._saved_by(problem, labels, system))

    def _saved_by(self, problem: LabelingProblem, labels: Ints, system: _System) -> int:
        total = 0
        for value, producer, readers, _ in self._values(problem):
            size, is_live_out = self.sizes[problem.cost_index[value]], bool(problem.is_live_out[value])
            total += system.saved(size, int(labels[producer]), frozenset(labels[readers].tolist()), is_live_out)
        return total

    def _values(self, problem: LabelingProblem) -> Iterator[tuple[int, int, Ints, int]]:
        """Yield the values with several uses: their number, producer and readers, and the number of uses."""
        if self.systems:
            for value, (begin, end) in enumerate(pairwise(problem.start.tolist())):
                ends = end - begin + bool(problem.is_live_out[value])
                if problem.producer[value] >= 0 and ends > 1:
                    yield value, int(problem.producer[value]), problem.readers[begin:end], ends


class _System:
    """One system below the root, as its driver sees it: its own memory, and those of its children."""

    def __init__(self, graph: MemoryGraph, topology: Topology, path: str, leaves: Sequence[str]) -> None:
        self.graph = graph
        self.path = path
        self.home = topology.home(path)
        options = {option.path: option.domain for option in topology.options(path)}
        # The memory of the child around each leaf; None for leaves outside of the system.
        depth = path.count("/") + 2
        self.memory_of = [options.get("/".join(leaf.split("/")[:depth])) for leaf in leaves]
        self.memories = [one for one in dict.fromkeys(options.values()) if one != self.home]
        self.inside: Bools = np.array([memory is not None for memory in self.memory_of])
        self.time = cache(self._time)
        self.has_detours = cache(self._has_detours)
        self.copied = cache(self._copied)
        self.saved_from = cache(self._saved_from)
        self.most_by = cache(self._most_by)

    def most(self, size: int, own: Bools, readers: Bools, ends: int) -> int:
        """Return the most that a value saves, by the labels that its producer and readers may have."""
        if not (own & self.inside).any() or not self.has_detours(size):
            return 0
        return self.most_by(size, int((readers & self.inside).any(axis=1).sum()), ends)

    def saved(self, size: int, own: int, readers: frozenset[int], is_live_out: bool) -> int:
        """Return the most that a value saves, by the labels of its producer and its readers."""
        src = self.memory_of[own]
        if src is None or src == self.home or not self.has_detours(size):
            return 0
        near = frozenset(memory for label in readers if (memory := self.memory_of[label]) is not None)
        leaves = is_live_out or self.home in near or any(self.memory_of[label] is None for label in readers)
        return self.saved_from(size, src, near - {src, self.home}, leaves)

    def _time(self, size: int, src: str, dst: str) -> int:
        return self.graph.route(src, dst, size).time or 0

    def _has_detours(self, size: int) -> bool:
        """Whether the routes between some of the memories do not lead over that of the driver."""
        home = self.home
        pairs = ((a, b) for a in self.memories for b in self.memories if a != b)
        return any(self.time(size, a, b) < self.time(size, a, home) + self.time(size, home, b) for a, b in pairs)

    def _copied(self, size: int, src: str, targets: frozenset[str]) -> int:
        """Return the time of copies to several memories, which share the links of their routes."""
        routes = ((src, *self.graph.route(src, dst, size).stops, dst) for dst in sorted(targets))
        return sum(self.time(size, *link) for link in {link for route in routes for link in pairwise(route)})

    def _saved_from(self, size: int, src: str, near: frozenset[str], leaves: bool) -> int:
        """Return the most that a value saves on its way from one memory to others, and home if it leaves the system."""
        home = self.home
        if len(self.memories) > MAX_MEMORIES:
            # One call copies no more than each route alone; another one no less than the shortest from the driver.
            direct = sum(self.time(size, src, dst) for dst in near)
            return max(0, direct - min((self.time(size, home, dst) for dst in near), default=0))
        whole, later = self.copied(size, src, near | {home} if leaves else near), _subsets(near)
        costs = (self.copied(size, src, near - late | {home}) + self.copied(size, home, late) for late in later)
        return max(0, whole - min(costs, default=whole))

    def _most_by(self, size: int, readers: int, ends: int) -> int:
        """Return the most that a value saves with so many readers in the system, of so many uses in all."""
        if len(self.memories) > MAX_MEMORIES:
            longest = max(self.time(size, a, b) for a in self.memories for b in self.memories)
            return longest * min(readers, len(self.memories))
        return max(
            (
                self.saved_from(size, src, near, len(near) < ends)
                for src in self.memories
                for near in _subsets(frozenset(self.memories) - {src})
                if len(near) <= readers
            ),
            default=0,
        )


def _subsets(members: frozenset[str]) -> Iterator[frozenset[str]]:
    """Yield all sets of some members of a set."""
    for count in range(1, len(members) + 1):
        yield from map(frozenset, combinations(sorted(members), count))
