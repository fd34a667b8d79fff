"""Typed fusion: the fewest subgraphs of operations with one site each, without cycles between subgraphs.

Operations are taken label by label in topological order: a subgraph is everything of one label that can run before an
operation of another label must. The labels are sites. This is typed fusion (Kennedy and McKinley, 1993), greedy in the
choice of the next label; with two labels the result is optimal. O((V + E) log V).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property
from heapq import heappop, heappush
from itertools import chain, pairwise
from typing import cast

import numpy as np

from tvmtarget.partition.dataflow import Ints, distinct

__all__ = ["AtomGraph", "LabeledGraph", "graph_from_edges", "is_large", "typed_fusion"]

# Vertices and edges above which only the cheapest methods run: the first two lower bounds, and typed fusion alone.
LARGE = 60_000


class AtomGraph:
    """An immutable directed graph of atoms: groups of operations that are placed together.

    All methods but `topological_order` expect a graph without cycles.
    """

    def __init__(self, successors: Sequence[Sequence[int]]) -> None:
        """Make a graph.

        Args:
            successors: vertices that each vertex has an edge to, each once. The graph keeps a reference.
        """
        self.successors = successors
        self._latest: LabeledGraph | None = None

    def __len__(self) -> int:
        return len(self.successors)

    @cached_property
    def out_degrees(self) -> Ints:
        """Number of successors of every vertex."""
        return np.fromiter(map(len, self.successors), dtype=np.int64, count=len(self))

    @cached_property
    def starts(self) -> Ints:
        """Start of every edge, in the order of vertices and their successors."""
        return np.repeat(np.arange(len(self)), self.out_degrees)

    @cached_property
    def ends(self) -> Ints:
        """End of every edge, parallel to `starts`."""
        return np.fromiter(chain.from_iterable(self.successors), dtype=np.int64, count=int(self.out_degrees.sum()))

    @cached_property
    def in_degrees(self) -> list[int]:
        """Number of predecessors of every vertex."""
        return cast("list[int]", np.bincount(self.ends, minlength=len(self)).tolist())

    @cached_property
    def is_large(self) -> bool:
        """Whether the graph has more than `LARGE` vertices and edges."""
        return is_large(len(self), len(self.ends))

    @cached_property
    def transposed(self) -> AtomGraph:
        """The graph with all edges reversed."""
        predecessors: list[list[int]] = [[] for _ in self.successors]
        for vertex, targets in enumerate(self.successors):
            for target in targets:
                predecessors[target].append(vertex)
        return AtomGraph(predecessors)

    def reachable(self, vertices: Iterable[int]) -> set[int]:
        """Return the vertices that paths from some vertices lead to.

        Args:
            vertices: where paths start.

        Returns:
            These vertices and all behind them.
        """
        waiting = list(vertices)
        found = set(waiting)
        while waiting:
            new = [target for target in self.successors[waiting.pop()] if target not in found]
            found.update(new)
            waiting += new
        return found

    @cached_property
    def topological_order(self) -> Sequence[int]:
        """The lexicographically smallest topological order; vertices on or behind a cycle are missing."""
        if bool((self.starts < self.ends).all()):
            return range(len(self))  # operations are listed in topological order, so this is the usual case
        waiting = self.in_degrees.copy()
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
        """Label the vertices of the graph.

        The latest result is cached, because the lower bound, typed fusion and the reports use the same labels.

        Args:
            labels: label of every vertex, from 0 up.

        Returns:
            The labeled graph.
        """
        if self._latest is None or self._latest.labels != labels:
            self._latest = LabeledGraph(self._unlabeled, labels)
        return self._latest

    @cached_property
    def _unlabeled(self) -> AtomGraph:
        """The same graph, which keeps no labeled one, so that the two are freed together."""
        return copy(self)


def is_large(vertices: int, edges: int) -> bool:
    """Return whether a graph has more than `LARGE` vertices and edges.

    Args:
        vertices: number of vertices.
        edges: number of edges.

    Returns:
        Whether only the cheapest methods should run.
    """
    return vertices + edges > LARGE


def graph_from_edges(count: int, starts: Ints, ends: Ints) -> AtomGraph:
    """Make a graph with each of the given edges once, without self-loops.

    Args:
        count: number of vertices.
        starts: start of each edge.
        ends: end of each edge, parallel to `starts`.

    Returns:
        The graph; successors are in ascending order.
    """
    proper = starts != ends
    # An edge as one number, so that sorting and removing duplicates is a single vectorised step.
    pairs = distinct(starts[proper] * count + ends[proper])
    targets, bounds = (pairs % max(1, count)).tolist(), np.searchsorted(pairs, np.arange(count + 1) * count).tolist()
    return AtomGraph([targets[begin:end] for begin, end in pairwise(bounds)])


class LabeledGraph:
    """A graph with a label per vertex, and cached properties of the labeling."""

    def __init__(self, graph: AtomGraph, labels: Sequence[int]) -> None:
        """Label a graph.

        Args:
            graph: graph without cycles.
            labels: label of every vertex, from 0 up.
        """
        self.graph = graph
        self.labels = labels
        self._subgraphs: dict[frozenset[int], list[list[int]]] = {}

    @cached_property
    def distinct_labels(self) -> list[int]:
        """The labels that occur, in ascending order."""
        return sorted(set(self.labels))

    @cached_property
    def transposed(self) -> LabeledGraph:
        """The labeled graph with all edges reversed."""
        return LabeledGraph(self.graph.transposed, self.labels)

    @cached_property
    def label_changes_ahead(self) -> list[int]:
        """Largest number of label changes on a path that starts at each vertex."""
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

    def fused(self, preferred: frozenset[int] = frozenset()) -> list[list[int]]:
        """Return the result of `typed_fusion` by label changes, which is cached.

        Args:
            preferred: labels that come before all others.

        Returns:
            Subgraphs in execution order; callers must not modify them.
        """
        if preferred not in self._subgraphs:
            self._subgraphs[preferred] = typed_fusion(self, preferred)
        return self._subgraphs[preferred]


def typed_fusion(
    labeled: LabeledGraph, preferred: frozenset[int] = frozenset(), heights: Sequence[int] = ()
) -> list[list[int]]:
    """Partition a labeled graph into subgraphs of one label each, in execution order.

    The next label is a preferred one, then the one with the ready vertex of greatest height, then the one with most
    ready vertices, then the smallest. With two labels only the first label is a choice.

    Args:
        labeled: graph without cycles.
        preferred: labels that come before all others, such as those whose calls cost nothing.
        heights: what follows each vertex, larger for a longer remaining path; by default the number of label changes.

    Returns:
        Subgraphs as ascending lists of vertices; every edge is inside one or points to a later one.
    """
    names, labels, successors = labeled.distinct_labels, labeled.labels, labeled.graph.successors
    if len(names) == 2 and (names[0] in preferred) != (names[1] in preferred):
        return _fuse_two_labels(labeled, names[names[1] in preferred])
    heights = heights or labeled.label_changes_ahead
    if len(names) == 2:
        _, first = max((height, -label) for height, label in zip(heights, labels, strict=True))
        return _fuse_two_labels(labeled, -first)
    waiting = labeled.graph.in_degrees.copy()
    ready: dict[int, list[int]] = {label: [] for label in names}
    tallest = dict.fromkeys(ready, -1)
    for vertex, count in enumerate(waiting):
        if count == 0:
            label = labels[vertex]
            ready[label].append(vertex)
            tallest[label] = max(tallest[label], heights[vertex])
    subgraphs: list[list[int]] = []
    while any(ready.values()):
        label = max((c for c in ready if ready[c]), key=lambda c: (c in preferred, tallest[c], len(ready[c]), -c))
        subgraph, ready[label], tallest[label] = ready[label], [], -1
        for vertex in subgraph:  # grows while it is read
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


def _fuse_two_labels(labeled: LabeledGraph, first: int) -> list[list[int]]:
    """Return the subgraphs of two labels, which alternate; `first` is the label of the first one if it can be."""
    labels, successors = labeled.labels, labeled.graph.successors
    position = [int(label != first) for label in labels]
    for vertex in labeled.graph.topological_order:
        here, label = position[vertex], labels[vertex]
        for target in successors[vertex]:
            there = here if labels[target] == label else here + 1
            if there > position[target]:
                position[target] = there
    subgraphs: list[list[int]] = [[] for _ in range(1 + max(position))]
    for vertex, number in enumerate(position):
        subgraphs[number].append(vertex)
    return subgraphs if subgraphs[0] else subgraphs[1:]
