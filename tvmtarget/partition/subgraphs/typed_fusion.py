"""Stage D: subgraphs by joint waves, so that the graph of subgraphs has no circle by construction.

Operations are drained label by label in topological order: a subgraph is everything of one label that can run
before any other label must. This is typed fusion (Kennedy and McKinley, 1994), greedy over the labels; with
two of them no division has fewer subgraphs. O((V + E) log V).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from heapq import heappop, heappush
from itertools import chain, pairwise
from typing import cast

import numpy as np

from tvmtarget.partition.dataflow import Ints

__all__ = ["AtomGraph", "LabeledGraph", "graph_from_edges", "is_large", "typed_fusion"]

# Above this many vertices and edges the cheapest ways alone are gone: of bounds the first two, of divisions waves.
LARGE = 60_000


class AtomGraph:
    """A graph without circles, by the successors of every vertex, which nobody may change."""

    def __init__(self, successors: Sequence[Sequence[int]]) -> None:
        self.successors = successors
        self._latest: LabeledGraph | None = None

    def __len__(self) -> int:
        return len(self.successors)

    @cached_property
    def lengths(self) -> Ints:
        """How many successors every vertex has."""
        return np.fromiter(map(len, self.successors), dtype=np.int64, count=len(self))

    @cached_property
    def starts(self) -> Ints:
        """Where edges begin, in the order of vertices and their successors."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def ends(self) -> Ints:
        """Where edges end."""
        return np.fromiter(chain.from_iterable(self.successors), dtype=np.int64, count=int(self.lengths.sum()))

    @cached_property
    def degrees(self) -> list[int]:
        """How many vertices each comes after."""
        return cast("list[int]", np.bincount(self.ends, minlength=len(self)).tolist())

    @cached_property
    def is_large(self) -> bool:
        """Whether only what takes next to no time is done."""
        return is_large(len(self), len(self.ends))

    @cached_property
    def transposed(self) -> AtomGraph:
        """The graph with its edges turned round."""
        predecessors: list[list[int]] = [[] for _ in self.successors]
        for vertex, targets in enumerate(self.successors):
            for target in targets:
                predecessors[target].append(vertex)
        return AtomGraph(predecessors)

    @cached_property
    def order(self) -> Sequence[int]:
        """Vertices so that edges point forward, smallest first among equals; fewer than V if there is a circle."""
        if bool((self.starts < self.ends).all()):
            return range(len(self))  # the vertices of a program are in order already
        waiting = self.degrees.copy()
        ready = [vertex for vertex, count in enumerate(waiting) if count == 0]
        order: list[int] = []
        while ready:
            vertex = heappop(ready)
            order.append(vertex)
            for target in self.successors[vertex]:
                waiting[target] -= 1
                if waiting[target] == 0:
                    heappush(ready, target)
        return order

    def labeled(self, labels: Sequence[int]) -> LabeledGraph:
        """Return the graph with labels; the latest ones are kept, as several steps look at what is chosen."""
        if self._latest is None or self._latest.labels != labels:
            self._latest = LabeledGraph(self, labels)
        return self._latest


def is_large(vertices: int, edges: int) -> bool:
    """Whether there are more than `LARGE` vertices and edges."""
    return vertices + edges > LARGE


def graph_from_edges(count: int, starts: Ints, ends: Ints) -> AtomGraph:
    """Return the graph of `count` vertices with these edges, each once, less those from a vertex to itself."""
    apart = starts != ends
    pairs = np.unique(starts[apart] * count + ends[apart])
    targets, bounds = (pairs % max(1, count)).tolist(), np.searchsorted(pairs, np.arange(count + 1) * count).tolist()
    return AtomGraph([targets[begin:end] for begin, end in pairwise(bounds)])


class LabeledGraph:
    """A graph whose vertices have labels; what several steps ask of it is found once."""

    def __init__(self, graph: AtomGraph, labels: Sequence[int]) -> None:
        self.graph = graph
        self.labels = labels
        self._fused: dict[frozenset[int], list[list[int]]] = {}

    @cached_property
    def names(self) -> list[int]:
        """The labels that there are, in order."""
        return sorted(set(self.labels))

    @cached_property
    def transposed(self) -> LabeledGraph:
        """The same with edges turned round."""
        return LabeledGraph(self.graph.transposed, self.labels)

    @cached_property
    def label_changes_ahead(self) -> list[int]:
        """How often, per vertex, the label changes at most on a path that begins there."""
        successors, labels = self.graph.successors, self.labels
        heights = [0] * len(successors)
        for vertex in reversed(self.graph.topological_order):
            label, height = labels[vertex], 0
            for target in successors[vertex]:
                change = heights[target] if labels[target] == label else heights[target] + 1
                if change > height:
                    height = change
            heights[vertex] = height
        return heights

    def fused(self, free: frozenset[int] = frozenset()) -> list[list[int]]:
        """Return waves by how often labels change ahead; nobody may change them."""
        if free not in self._fused:
            self._fused[free] = typed_fusion(self, free)
        return self._fused[free]


def typed_fusion(
    labeled: LabeledGraph, free: frozenset[int] = frozenset(), heights: Sequence[int] = ()
) -> list[list[int]]:
    """Divide an acyclic graph into one-labeled subgraphs; every edge stays inside one or points to a later one.

    The next label is the one with a vertex that has most ahead, then the one with most work ready, then the smaller
    number (with two labels, the smaller number at once). Colours that are `free` come before all others. `heights`
    are what is ahead of each vertex: unless given, changes of label.
    """
    names, labels, successors = labeled.names, labeled.labels, labeled.graph.successors
    if len(names) == 2 and (names[0] in free) != (names[1] in free):
        return _alternating(labeled, names[names[1] in free])
    heights = heights or labeled.label_changes_ahead
    if len(names) == 2:
        _, first = max((height, -label) for height, label in zip(heights, labels, strict=True))
        return _alternating(labeled, -first)
    waiting = labeled.graph.degrees.copy()
    ready: dict[int, list[int]] = {label: [] for label in names}
    tallest = dict.fromkeys(ready, -1)
    for vertex, count in enumerate(waiting):
        if count == 0:
            label = labels[vertex]
            ready[label].append(vertex)
            tallest[label] = max(tallest[label], heights[vertex])
    subgraphs: list[list[int]] = []
    while any(ready.values()):
        label = max((c for c in ready if ready[c]), key=lambda c: (c in free, tallest[c], len(ready[c]), -c))
        subgraph, ready[label], tallest[label] = ready[label], [], -1
        for vertex in subgraph:
            for target in successors[vertex]:
                waiting[target] -= 1
                if waiting[target]:
                    continue
                other = labels[target]
                if other == label:
                    subgraph.append(target)
                else:
                    ready[other].append(target)
                    if heights[target] > tallest[other]:
                        tallest[other] = heights[target]
        subgraphs.append(sorted(subgraph))
    return subgraphs


def _alternating(labeled: LabeledGraph, first: int) -> list[list[int]]:
    """Return the waves of two labels, of which one comes first if it can: then nothing else is to be chosen."""
    labels, successors = labeled.labels, labeled.graph.successors
    place = [int(label != first) for label in labels]
    for vertex in labeled.graph.topological_order:
        here, label = place[vertex], labels[vertex]
        for target in successors[vertex]:
            there = here if labels[target] == label else here + 1
            if there > place[target]:
                place[target] = there
    subgraphs: list[list[int]] = [[] for _ in range(1 + max(place))]
    for vertex, number in enumerate(place):
        subgraphs[number].append(vertex)
    return subgraphs if subgraphs[0] else subgraphs[1:]
