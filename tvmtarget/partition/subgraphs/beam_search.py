"""Waves that look ahead: several orders of labels are followed side by side, and the one that ends first is taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvmtarget.partition.subgraphs.lower_bound import least_sequence_weight
from tvmtarget.partition.subgraphs.typed_fusion import LabeledGraph

__all__ = ["beam_search"]

# Orders of labels that are followed side by side.
WIDTH = 8

# Vertices and edges that may be looked at in all, for each that there is.
WORK = 60


@dataclass(frozen=True, slots=True)
class _Sweep:
    """How far one order of labels has come, and what its subgraphs count; `before` is what it was a subgraph ago.

    `ready` are by label the vertices that can run next, and `tallest` what is ahead of them at most, -1 where there
    are none. `waiting` are how many edges into others are still to come, where some have. `done` vertices have run.
    """

    before: _Sweep | None
    subgraph: list[int]
    ready: tuple[list[int], ...]
    tallest: tuple[int, ...]
    waiting: dict[int, int]
    count: int
    done: int

    def subgraphs(self) -> list[list[int]]:
        """Return all subgraphs so far."""
        found: list[list[int]] = []
        sweep = self
        while sweep.before is not None:
            found.append(sorted(sweep.subgraph))
            sweep = sweep.before
        return found[::-1]


def beam_search(labeled: LabeledGraph, weights: Sequence[int], heights: Sequence[int]) -> list[list[int]] | None:
    """Divide an acyclic graph as `waves` does, following at each step the orders of labels that promise most.

    That is the least by what a subgraph of each counts (`weights`, by label) and what is ahead (`heights`, as `ahead`
    gives them), then by what is left to run. None if that is too much work.
    """
    sweeping = _Sweeping(labeled, weights, heights)
    count = len(labeled.graph)
    work = WORK * (count + len(labeled.graph.ends))
    sweeps = [sweeping.start()]
    while sweeps[0].done < count:
        found: dict[tuple[frozenset[int], ...], tuple[tuple[int, int], _Sweep]] = {}
        for after in (step for sweep in sweeps for step in sweeping.steps(sweep)):
            work -= len(after.waiting) + sum(map(len, after.ready)) + 2 * len(after.subgraph)
            promise = after.count + least_sequence_weight(after.tallest, weights), -after.done
            key = tuple(map(frozenset, after.ready))
            if key not in found or promise < found[key][0]:
                found[key] = promise, after
        if work < 0:
            return None
        sweeps = [sweep for _, sweep in sorted(found.values(), key=lambda pair: pair[0])[:WIDTH]]
    return sweeps[0].subgraphs()


class _Sweeping:
    """What sweeps go over."""

    def __init__(self, labeled: LabeledGraph, weights: Sequence[int], heights: Sequence[int]) -> None:
        self.successors = labeled.graph.successors
        self.labels = labeled.labels
        self.weights = weights
        self.heights = heights
        self.degrees = labeled.graph.in_degrees

    def start(self) -> _Sweep:
        """Return the sweep of which nothing has run."""
        free = [vertex for vertex, degree in enumerate(self.degrees) if not degree]
        ready: tuple[list[int], ...] = tuple([] for _ in self.weights)
        return _Sweep(None, [], *self._with(ready, (-1,) * len(ready), free), {}, 0, 0)

    def steps(self, sweep: _Sweep) -> Iterator[_Sweep]:
        """Yield a sweep with one subgraph more, for every label that has something ready."""
        successors, labels, degrees = self.successors, self.labels, self.degrees
        for label, begun in enumerate(sweep.ready):
            if not begun:
                continue
            waiting, subgraph = sweep.waiting.copy(), begun.copy()
            fresh: list[int] = []
            for vertex in subgraph:
                for target in successors[vertex]:
                    left = waiting.get(target, degrees[target]) - 1
                    if left:
                        waiting[target] = left
                        continue
                    waiting.pop(target, None)
                    (subgraph if labels[target] == label else fresh).append(target)
            ready = (*sweep.ready[:label], [], *sweep.ready[label + 1 :])
            tallest = (*sweep.tallest[:label], -1, *sweep.tallest[label + 1 :])
            count, done = sweep.count + self.weights[label], sweep.done + len(subgraph)
            yield _Sweep(sweep, subgraph, *self._with(ready, tallest, fresh), waiting, count, done)

    def _with(
        self, ready: tuple[list[int], ...], tallest: tuple[int, ...], fresh: Sequence[int]
    ) -> tuple[tuple[list[int], ...], tuple[int, ...]]:
        """Return what is ready, and what is ahead of it, with more vertices."""
        lists: list[list[int]] = [[] for _ in ready]
        heights = list(tallest)
        for vertex in fresh:
            label = self.labels[vertex]
            lists[label].append(vertex)
            heights[label] = max(heights[label], self.heights[vertex])
        joined = tuple(old + new if new else old for old, new in zip(ready, lists, strict=True))
        return joined, tuple(heights)
