"""Routes of copies for many sizes of values at once.

The time of a route is the sum of those of its links, and mostly the same links are the fastest for all sizes. Shortest
paths are therefore searched for one size, and kept for all others for which no link leads to a memory sooner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tvmtarget.partition.costs.memory_graph import ASSUMED_NBYTES, MemoryGraph, length_of
from tvmtarget.partition.dataflow import Ints

__all__ = ["MAX_TIME", "RouteGroup", "Times", "routes_by_size"]

# Times are Python integers where sums of them may not be below this number, which fits 64 bits.
MAX_TIME = 2**62

# Lengths that are compared at once, so that temporary tables stay small.
MAX_COMPARED = 1_000_000

# Picoseconds, as integers of 64 bits or as Python integers.
Times: TypeAlias = npt.NDArray[Any]

Bools: TypeAlias = npt.NDArray[np.bool_]

# Of paths (rows): the links of unknown time, the picoseconds of all others by size (column), and the number of links.
_Lengths: TypeAlias = tuple[Ints, Times, Ints]


class RouteGroup:
    """Sizes of values that take the same routes.

    Args:
        links: the links, with their times for these sizes among others.
        columns: the columns of these sizes.
        places: the positions of the sizes among those that were given.
        is_unknown: whether the size is unknown, and with it the time of each copy.

    Attributes:
        places: as above.
    """

    def __init__(self, links: _Links, columns: Sequence[int], places: Sequence[int], *, is_unknown: bool) -> None:
        self.places = places
        self._links, self._columns, self._is_unknown = links, columns, is_unknown
        self._size = links.sizes[columns[0]]
        self._lengths: dict[str, _Lengths] = {}

    def stops(self, src: str, dst: str) -> tuple[str, ...]:
        """Return the memories between the two ends of a copy.

        Args:
            src: the domain of the memory that holds the value.
            dst: the domain that needs it.

        Returns:
            Domains, in the order of the route.
        """
        return self._links.graph.route(src, dst, self._size).stops

    def times(self, pairs: Iterable[tuple[str, str]]) -> tuple[Times, Bools]:
        """Return the times of copies.

        Args:
            pairs: the domain of the memory that holds the value, and the one that needs it.

        Returns:
            Picoseconds by pair (row) and size (column), 0 where they are unknown, and for each pair whether they are.
        """
        found = [self._time(src, dst) for src, dst in pairs]
        none = np.zeros(len(self.places), dtype=np.int64)
        times = np.array([none if row is None else row for row in found]).reshape(len(found), len(none))
        return times, np.array([row is None for row in found], dtype=np.bool_)

    def _time(self, src: str, dst: str) -> Times | None:
        if src not in self._lengths:
            self._lengths[src] = self._links.lengths(self._links.graph.tree(src, self._size), self._columns)
        (unknown, times, _), end = self._lengths[src], self._links.number[dst]
        return None if unknown[end] or (self._is_unknown and src != dst) else times[end]


def routes_by_size(graph: MemoryGraph, sources: Iterable[str], sizes: Sequence[int | None]) -> list[RouteGroup]:
    """Return the routes from some memories for many sizes of values.

    Args:
        graph: the memories and their links.
        sources: the domains of the memories.
        sizes: bytes, each number once; None for values of unknown size.

    Returns:
        Groups of sizes with the same routes, each size in one of them, in the order of their first sizes.
    """
    place = {size: number for number, size in enumerate(sizes)}
    groups = [
        RouteGroup(_Links(graph, [ASSUMED_NBYTES if size is None else 0]), [0], [place[size]], is_unknown=size is None)
        for size in (None, 0)
        if size in place
    ]
    # Links of a known latency and an unknown bandwidth have a time for empty values only.
    positive = [size for size in sizes if size]
    if positive:
        links = _Links(graph, positive)
        trees: list[tuple[int, ...]] = [()] * len(positive)
        for src in dict.fromkeys(sources):
            for number, columns in enumerate(links.by_tree(src)):
                for column in columns:
                    trees[column] += (number,)
        found: dict[tuple[int, ...], list[int]] = {}
        for column, numbers in enumerate(trees):
            found.setdefault(numbers, []).append(column)
        for columns in found.values():
            places = [place[positive[column]] for column in columns]
            groups.append(RouteGroup(links, columns, places, is_unknown=False))
    return sorted(groups, key=lambda group: group.places[0])


class _Links:
    """All links, with their times for some sizes, of which none or each one is 0."""

    def __init__(self, graph: MemoryGraph, sizes: Sequence[int]) -> None:
        self.graph, self.sizes = graph, sizes
        # In the order of their names, by which the first of several paths of one length is taken.
        domains = sorted({*graph.links, *(domain for group in graph.groups for domain in group)})
        self.number = {domain: number for number, domain in enumerate(domains)}
        self._groups = [np.array([self.number[domain] for domain in group]) for group in graph.groups]
        kinds: dict[tuple[object, ...], int] = {(): 0}
        self._kind_of: dict[tuple[str, str], int] = {}
        lengths = [[length_of((), 0)] * len(sizes)]
        for src, links in graph.links.items():
            for dst, speeds in links.items():
                kind = kinds.setdefault(tuple(speeds), len(kinds))
                if kind == len(lengths):
                    lengths.append([length_of(speeds, size) for size in sizes])
                self._kind_of[src, dst] = kind
        self._unknown = np.array([row[0][0] for row in lengths])
        times = [[time for _, time, _ in row] for row in lengths]
        longest = max(map(max, times)) * len(domains)
        self._times: Times = np.array(times, dtype=np.int64 if longest < MAX_TIME else object)
        ends = [(self.number[src], self.number[dst]) for src, dst in self._kind_of]
        self._ends = np.array(ends, dtype=np.int64).reshape(-1, 2).T
        self._kinds = np.array([*self._kind_of.values()], dtype=np.int64)

    def by_tree(self, src: str) -> Iterator[list[int]]:
        """Yield the columns of the sizes whose shortest paths from a memory lead over the same memories."""
        columns = list(range(len(self.sizes)))
        while columns:
            tree = self.graph.tree(src, self.sizes[columns[0]])
            is_shortest = [True]  # for the size that was searched
            step = max(1, MAX_COMPARED // max(1, len(self._kinds)))
            for begin in range(1, len(columns), step):
                is_shortest += self._is_shortest(tree, columns[begin : begin + step]).tolist()
            same = [column for column, keeps in zip(columns, is_shortest, strict=True) if keeps]
            for column in same[1:]:
                self.graph.reuse_tree(src, self.sizes[column], tree)
            yield same
            columns = [column for column, keeps in zip(columns, is_shortest, strict=True) if not keeps]

    def lengths(self, tree: dict[str, str], columns: Sequence[int]) -> _Lengths:
        """Return the lengths of the paths of a tree to each memory (row) for some sizes."""
        of_links = self._times[:, columns]
        unknown, count = np.zeros((2, len(self.number)), dtype=np.int64)
        times = np.zeros((len(self.number), len(columns)), dtype=of_links.dtype)
        for domain, before in tree.items():
            if domain != before:
                end, start, kind = self.number[domain], self.number[before], self._kind_of.get((before, domain), 0)
                np.add(times[start], of_links[kind], out=times[end])
                unknown[end] = unknown[start] + self._unknown[kind]
                count[end] = count[start] + 1
        return unknown, times, count

    def _is_shortest(self, tree: dict[str, str], columns: Sequence[int]) -> Bools:
        """Return for each size whether the paths of a tree are the shortest."""
        unknown, times, count = self.lengths(tree, columns)
        before = np.zeros(len(self.number), dtype=np.int64)
        for domain, start in tree.items():
            before[self.number[domain]] = self.number[start]
        known = unknown[:, None], times, count[:, None], before[:, None]
        src, dst = self._ends
        paths = (
            (unknown[src] + self._unknown[self._kinds])[:, None],
            times[src] + self._times[self._kinds][:, columns],
            count[src, None] + 1,
            src[:, None],
        )
        found = _is_no_shorter(paths, tuple(lengths[dst] for lengths in known))
        for group in self._groups:
            # The nearest memory of a group is the best way into it.
            least = unknown[group].min()
            nearest = group[unknown[group] == least]
            time = times[nearest].min(axis=0)
            is_first = times[nearest] == time
            links = np.where(is_first, count[nearest, None], len(count)).min(axis=0)
            is_first = is_first & (count[nearest, None] == links)
            first = np.where(is_first, nearest[:, None], len(count)).min(axis=0)
            found &= _is_no_shorter((least + 1, time, links + 1, first), tuple(lengths[group] for lengths in known))
        return found


def _is_no_shorter(paths: tuple[Times, ...], known: tuple[Times, ...]) -> Bools:
    """Return for each size (column) whether no path is before the known one, by all numbers in their order."""
    found: Times = paths[-1] >= known[-1]
    for more, least in zip(paths[-2::-1], known[-2::-1], strict=True):
        found = (more > least) | ((more == least) & found)
    is_no_shorter: Bools = np.logical_and.reduce(found, axis=0)
    return is_no_shorter
