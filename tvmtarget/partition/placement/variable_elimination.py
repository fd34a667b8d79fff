"""Decisions coupled in pairs, made smaller exactly: what has one or two neighbours is eliminated, many at a time.

An operation in a chain has two neighbours, one at an end has one, and nets made of blocks in series and in parallel
vanish altogether. What is left has three neighbours or more; only that needs a cut.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.placement.energy import Bools

__all__ = ["Coupled", "Decisions", "Eliminated", "reduced", "restored"]

Decisions: TypeAlias = npt.NDArray[np.int8]

# Rounds of elimination end where one takes away less than this share of what is left, and in any case.
LEAST_SHARE, MAX_ROUNDS = 0.05, 200


@dataclass(frozen=True)
class Coupled:
    """Yes costs `unary[i]` more than no; `rising[j]` is paid if only `b[j]` is yes, `falling[j]` if only `a[j]` is.

    All vertices are open: those that are decided or eliminated are gone. `numbers` say which of all each one is, in
    rising order.
    """

    numbers: Ints
    unary: Ints
    a: Ints
    b: Ints
    rising: Ints
    falling: Ints

    def without(self, gone: Bools) -> Coupled:
        """Return the rest of the graph without some vertices and their pairs."""
        left, stays = ~gone, ~(gone[self.a] | gone[self.b])
        place = np.cumsum(left) - 1
        return Coupled(
            self.numbers[left],
            self.unary[left],
            place[self.a[stays]],
            place[self.b[stays]],
            self.rising[stays],
            self.falling[stays],
        )


@dataclass(frozen=True)
class Eliminated:
    """What was eliminated in one round: vertices, and for each the costs that decide it once its neighbours are known.

    All are given by which of all decisions they are, an absent neighbour as -1. Yes costs `unary` more than no, less
    `with_first` if the first neighbour is yes, and more by `without_first` if it is not; likewise for the second. Of a
    neighbour that is absent both are 0.
    """

    vertices: Ints
    unary: Ints
    first: Ints
    second: Ints
    with_first: Ints
    without_first: Ints
    with_second: Ints
    without_second: Ints


def merged(graph: Coupled) -> Coupled:
    """Return the graph with every pair once, and without pairs that cost nothing."""
    swap = graph.a > graph.b
    a, b = np.where(swap, graph.b, graph.a), np.where(swap, graph.a, graph.b)
    rising, falling = np.where(swap, graph.falling, graph.rising), np.where(swap, graph.rising, graph.falling)
    keys = a * len(graph.unary) + b
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    is_first = np.ones(len(keys), dtype=np.bool_)
    is_first[1:] = keys[1:] != keys[:-1]
    begins = np.flatnonzero(is_first)
    if not len(begins):
        return graph
    chosen = order[begins]
    rising, falling = np.add.reduceat(rising[order], begins), np.add.reduceat(falling[order], begins)
    kept = (rising > 0) | (falling > 0)
    chosen = chosen[kept]
    return Coupled(graph.numbers, graph.unary, a[chosen], b[chosen], rising[kept], falling[kept])


def reduced(graph: Coupled, decisions: Decisions) -> tuple[Coupled, list[Eliminated]]:
    """Return the core of a graph, and what was eliminated around it, in order; what is clear is decided at once."""
    rounds: list[Eliminated] = []
    graph = merged(graph)
    for number in range(MAX_ROUNDS):
        left = len(graph.numbers)
        graph = _settled(graph, decisions)
        vertices = _independent(graph, number)
        if len(vertices):
            graph, eliminated = _without(graph, vertices)
            rounds.append(eliminated)
        if left - len(graph.numbers) <= LEAST_SHARE * left:
            break
    return graph, rounds


def _settled(graph: Coupled, decisions: Decisions) -> Coupled:
    """Decide what is best whatever its neighbours do."""
    least, most = graph.unary.copy(), graph.unary.copy()
    np.subtract.at(least, graph.a, graph.rising)
    np.subtract.at(least, graph.b, graph.falling)
    np.add.at(most, graph.a, graph.falling)
    np.add.at(most, graph.b, graph.rising)
    no = least >= 0
    yes = ~no & (most <= 0)
    is_new = no | yes
    if not is_new.any():
        return graph
    decisions[graph.numbers[no]], decisions[graph.numbers[yes]] = 0, 1
    unary = graph.unary.copy()
    at_a, at_b = is_new[graph.a] & ~is_new[graph.b], is_new[graph.b] & ~is_new[graph.a]
    np.add.at(unary, graph.b[at_a], np.where(yes[graph.a], -graph.falling, graph.rising)[at_a])
    np.add.at(unary, graph.a[at_b], np.where(yes[graph.b], -graph.rising, graph.falling)[at_b])
    return replace(graph, unary=unary).without(is_new)


def restored(decisions: Decisions, rounds: list[Eliminated]) -> None:
    """Decide what was eliminated, last first; no where it makes no difference."""
    for part in reversed(rounds):
        first, second = decisions[part.first] == 1, decisions[part.second] == 1
        cost = part.unary + np.where(first, -part.with_first, part.without_first)
        cost += np.where(second, -part.with_second, part.without_second)
        decisions[part.vertices] = cost < 0


def _independent(graph: Coupled, number: int) -> Ints:
    """Choose vertices with two neighbours at most of which no two are neighbours."""
    count = len(graph.unary)
    degrees = np.bincount(graph.a, minlength=count) + np.bincount(graph.b, minlength=count)
    candidates = degrees <= 2
    # Any order without ties will do that differs from round to round; this one is spread like a random one.
    rank = (graph.numbers.astype(np.uint64) + np.uint64(1 + number * 7919)) * np.uint64(0x9E3779B97F4A7C15)
    a, b = graph.a, graph.b
    both = candidates[a] & candidates[b]
    a, b = a[both], b[both]
    loses = rank[a] < rank[b]
    candidates[np.where(loses, a, b)] = False
    return np.flatnonzero(candidates)


def _without(graph: Coupled, vertices: Ints) -> tuple[Coupled, Eliminated]:
    count = len(graph.unary)
    chosen = np.full(count, -1, dtype=np.int64)
    chosen[vertices] = np.arange(len(vertices))
    at_a, at_b = chosen[graph.a] >= 0, chosen[graph.b] >= 0
    # Of every pair that goes: the vertex, its neighbour, and what only the one or the other costs.
    vertex = np.concatenate([chosen[graph.a[at_a]], chosen[graph.b[at_b]]])
    other = np.concatenate([graph.b[at_a], graph.a[at_b]])
    behind = np.concatenate([graph.rising[at_a], graph.falling[at_b]])
    ahead = np.concatenate([graph.falling[at_a], graph.rising[at_b]])
    order = np.argsort(vertex, kind="stable")
    vertex, other, behind, ahead = vertex[order], other[order], behind[order], ahead[order]
    is_first = np.ones(len(vertex), dtype=np.bool_)
    is_first[1:] = vertex[1:] != vertex[:-1]
    sides = []
    for which in (is_first, ~is_first):
        end = np.full(len(vertices), -1, dtype=np.int64)
        costs = np.zeros((2, len(vertices)), dtype=np.int64)
        end[vertex[which]] = other[which]
        costs[0, vertex[which]], costs[1, vertex[which]] = behind[which], ahead[which]
        sides.append((end, costs))
    (p, (a0, a1)), (q, (b0, b1)) = sides
    own = graph.unary[vertices]
    none, both = np.minimum(0, own + a1 + b1), np.minimum(a0 + b0, own)
    only_p, only_q = np.minimum(a0, own + b1), np.minimum(b0, own + a1)
    # Submodular as before: what both neighbours pay apart is what is not theirs alone.
    between = only_p + only_q - none - both
    unary = graph.unary.copy()
    has_p, has_q = p >= 0, q >= 0
    for_p = np.where(has_q, only_p - none - between, both - none)
    np.add.at(unary, p[has_p], for_p[has_p])
    np.add.at(unary, q[has_q], (only_q - none)[has_q])
    joined = Coupled(
        graph.numbers,
        unary,
        np.concatenate([graph.a, p[has_q]]),
        np.concatenate([graph.b, q[has_q]]),
        np.concatenate([graph.rising, np.zeros(int(has_q.sum()), dtype=np.int64)]),
        np.concatenate([graph.falling, between[has_q]]),
    )
    first, second = (np.where(end >= 0, graph.numbers[end], -1) for end in (p, q))
    eliminated = Eliminated(graph.numbers[vertices], own, first, second, a0, a1, b0, b1)
    return merged(joined.without(chosen >= 0)), eliminated
