"""Typed fusion with beam search: follow several orders of labels at once and keep the cheapest.

Greedy typed fusion is not optimal with three labels or more. The beam holds the `WIDTH` most promising prefixes, by
their weight plus a lower bound on what remains (as in A*, with bounded memory).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from tvmtarget.partition.subgraphs.lower_bound import least_sequence_weight
from tvmtarget.partition.subgraphs.typed_fusion import LabeledGraph

__all__ = ["beam_search"]

# Prefixes that are followed at once.
WIDTH = 8

# Limit on the visits of vertices and edges, per vertex and edge of the graph.
WORK = 60


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The first subgraphs of a partition.

    Attributes:
        before: prefix without the last subgraph; None for the empty prefix.
        subgraph: vertices of the last subgraph.
        ready: vertices that can run next, by label; only labels that have some, as there can be hundreds of labels.
        tallest: largest weight ahead of a ready vertex, by the same labels.
        waiting: number of unfinished predecessors of vertices with some finished and some unfinished ones.
        weight: total weight of all subgraphs.
        done: number of vertices in all subgraphs.
    """

    before: _Prefix | None
    subgraph: list[int]
    ready: dict[int, list[int]]
    tallest: dict[int, int]
    waiting: dict[int, int]
    weight: int
    done: int

    def subgraphs(self) -> list[list[int]]:
        """Return all subgraphs in execution order."""
        found: list[list[int]] = []
        prefix = self
        while prefix.before is not None:
            found.append(sorted(prefix.subgraph))
            prefix = prefix.before
        return found[::-1]


def beam_search(labeled: LabeledGraph, weights: Sequence[int], heights: Sequence[int]) -> list[list[int]] | None:
    """Partition a labeled graph into subgraphs of one label each, of low total weight.

    Args:
        labeled: graph without cycles.
        weights: weight of a subgraph, by label.
        heights: total weight that follows each vertex at least, as `weight_ahead` returns it.

    Returns:
        Subgraphs in execution order, as `typed_fusion` returns them; None when the work limit is exceeded.
    """
    expansion = _Expansion(labeled, weights, heights)
    count = len(labeled.graph)
    work = WORK * (count + len(labeled.graph.ends))
    beam = [expansion.start()]
    while beam[0].done < count:
        # Of prefixes with the same ready vertices only the best one can be part of the best result.
        found: dict[frozenset[int], tuple[tuple[int, int], _Prefix]] = {}
        for after in (successor for prefix in beam for successor in expansion.successors_of(prefix)):
            key = frozenset(chain.from_iterable(after.ready.values()))
            work -= len(after.waiting) + len(key) + 2 * len(after.subgraph)
            of_ready = [weights[label] for label in after.tallest]
            score = after.weight + least_sequence_weight([*after.tallest.values()], of_ready), -after.done
            if key not in found or score < found[key][0]:
                found[key] = score, after
        if work < 0:
            return None
        beam = [prefix for _, prefix in sorted(found.values(), key=lambda pair: pair[0])[:WIDTH]]
    return beam[0].subgraphs()


class _Expansion:
    """The graph that prefixes are partitions of."""

    def __init__(self, labeled: LabeledGraph, weights: Sequence[int], heights: Sequence[int]) -> None:
        self.successors = labeled.graph.successors
        self.labels = labeled.labels
        self.weights = weights
        self.heights = heights
        self.in_degrees = labeled.graph.in_degrees

    def start(self) -> _Prefix:
        """Return the empty prefix."""
        sources = [vertex for vertex, degree in enumerate(self.in_degrees) if not degree]
        return _Prefix(None, [], *self._with_ready({}, {}, sources), {}, 0, 0)

    def successors_of(self, prefix: _Prefix) -> Iterator[_Prefix]:
        """Yield the prefix with one more subgraph, for every label that has ready vertices."""
        successors, labels, in_degrees = self.successors, self.labels, self.in_degrees
        for label, begun in sorted(prefix.ready.items()):
            waiting, subgraph = prefix.waiting.copy(), begun.copy()
            newly_ready: list[int] = []
            for vertex in subgraph:  # grows while it is read
                for target in successors[vertex]:
                    left = waiting.get(target, in_degrees[target]) - 1
                    if left:
                        waiting[target] = left
                        continue
                    waiting.pop(target, None)
                    (subgraph if labels[target] == label else newly_ready).append(target)
            ready, tallest = prefix.ready.copy(), prefix.tallest.copy()
            del ready[label], tallest[label]
            weight, done = prefix.weight + self.weights[label], prefix.done + len(subgraph)
            yield _Prefix(prefix, subgraph, *self._with_ready(ready, tallest, newly_ready), waiting, weight, done)

    def _with_ready(
        self, ready: Mapping[int, list[int]], tallest: Mapping[int, int], vertices: Sequence[int]
    ) -> tuple[dict[int, list[int]], dict[int, int]]:
        """Return `ready` and `tallest` with more ready vertices."""
        lists: dict[int, list[int]] = {}
        heights = dict(tallest)
        for vertex in vertices:
            label = self.labels[vertex]
            lists.setdefault(label, []).append(vertex)
            heights[label] = max(heights.get(label, 0), self.heights[vertex])
        return {**ready, **{label: ready.get(label, []) + new for label, new in lists.items()}}, heights
