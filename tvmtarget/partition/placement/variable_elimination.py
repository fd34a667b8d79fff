"""Variable elimination in pairwise binary problems: vertices with one or two neighbours are removed exactly, in bulk.

Nonserial dynamic programming (Bertele and Brioschi, 1972): the cost of the best decision of a vertex, as a function of
its neighbours, replaces the vertex. Operations in a chain have two neighbours, so chains, trees and series-parallel
graphs vanish altogether. Only what is left, where vertices have three or more neighbours, needs a cut.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.placement.energy import Bools

__all__ = ["Decisions", "Eliminated", "PairwiseProblem", "back_substitute", "eliminate"]

Decisions: TypeAlias = npt.NDArray[np.int8]

# Rounds of elimination end when one removes less than this share of the vertices, or after `MAX_ROUNDS`.
LEAST_SHARE, MAX_ROUNDS = 0.05, 200


@dataclass(frozen=True)
class PairwiseProblem:
    """Binary decisions with pairwise costs; decided and eliminated vertices are not part of it.

    Attributes:
        ids: the decision of each vertex, ascending.
        unary: cost of yes minus cost of no.
        a: first vertex of each pair.
        b: second vertex of each pair.
        rising: cost if only b is yes.
        falling: cost if only a is yes.
    """

    ids: Ints
    unary: Ints
    a: Ints
    b: Ints
    rising: Ints
    falling: Ints

    def without(self, gone: Bools) -> PairwiseProblem:
        """Remove vertices and their pairs.

        Args:
            gone: mask of the vertices to remove.

        Returns:
            The other vertices, renumbered.
        """
        left, stays = ~gone, ~(gone[self.a] | gone[self.b])
        position = np.cumsum(left) - 1
        return PairwiseProblem(
            self.ids[left],
            self.unary[left],
            position[self.a[stays]],
            position[self.b[stays]],
            self.rising[stays],
            self.falling[stays],
        )


@dataclass(frozen=True)
class Eliminated:
    """Vertices eliminated in one round, with the costs that decide each of them once its neighbours are decided.

    Vertices and neighbours are decisions, as in `PairwiseProblem.ids`; an absent neighbour is -1, with costs 0. Yes
    costs `unary` more than no, less `with_first` if the first neighbour is yes, plus `without_first` if it is no, and
    likewise for the second.
    """

    vertices: Ints
    unary: Ints
    first: Ints
    second: Ints
    with_first: Ints
    without_first: Ints
    with_second: Ints
    without_second: Ints


def merge_pairs(graph: PairwiseProblem) -> PairwiseProblem:
    """Merge parallel pairs, and drop pairs without costs.

    Args:
        graph: the problem.

    Returns:
        The same problem with each pair once.
    """
    swap = graph.a > graph.b
    a, b = np.where(swap, graph.b, graph.a), np.where(swap, graph.a, graph.b)
    rising, falling = np.where(swap, graph.falling, graph.rising), np.where(swap, graph.rising, graph.falling)
    # Sort pairs by one key and add up runs: a group-by in NumPy.
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
    return PairwiseProblem(graph.ids, graph.unary, a[chosen], b[chosen], rising[kept], falling[kept])


def eliminate(graph: PairwiseProblem, decisions: Decisions) -> tuple[PairwiseProblem, list[Eliminated]]:
    """Eliminate vertices with up to two neighbours, and decide dominated ones.

    Args:
        graph: the problem.
        decisions: all decisions, -1 where open; those of dominated vertices are filled in.

    Returns:
        The remaining core, and the eliminated vertices by round, for `back_substitute`.
    """
    rounds: list[Eliminated] = []
    graph = merge_pairs(graph)
    for number in range(MAX_ROUNDS):
        left = len(graph.ids)
        graph = _fix_dominated(graph, decisions)
        vertices = _independent(graph, number)
        if len(vertices):
            graph, eliminated = _without(graph, vertices)
            rounds.append(eliminated)
        if left - len(graph.ids) <= LEAST_SHARE * left:
            break
    return graph, rounds


def _fix_dominated(graph: PairwiseProblem, decisions: Decisions) -> PairwiseProblem:
    """Decide vertices whose best decision does not depend on their neighbours."""
    least, most = graph.unary.copy(), graph.unary.copy()
    np.subtract.at(least, graph.a, graph.rising)
    np.subtract.at(least, graph.b, graph.falling)
    np.add.at(most, graph.a, graph.falling)
    np.add.at(most, graph.b, graph.rising)
    no = least >= 0
    yes = ~no & (most <= 0)
    is_fixed = no | yes
    if not is_fixed.any():
        return graph
    decisions[graph.ids[no]], decisions[graph.ids[yes]] = 0, 1
    unary = graph.unary.copy()
    at_a, at_b = is_fixed[graph.a] & ~is_fixed[graph.b], is_fixed[graph.b] & ~is_fixed[graph.a]
    np.add.at(unary, graph.b[at_a], np.where(yes[graph.a], -graph.falling, graph.rising)[at_a])
    np.add.at(unary, graph.a[at_b], np.where(yes[graph.b], -graph.rising, graph.falling)[at_b])
    return replace(graph, unary=unary).without(is_fixed)


def back_substitute(decisions: Decisions, rounds: list[Eliminated]) -> None:
    """Decide eliminated vertices, last round first; no where both cost the same.

    Args:
        decisions: all decisions; those of the eliminated vertices are filled in.
        rounds: the eliminated vertices.
    """
    for step in reversed(rounds):
        first, second = decisions[step.first] == 1, decisions[step.second] == 1
        cost = step.unary + np.where(first, -step.with_first, step.without_first)
        cost += np.where(second, -step.with_second, step.without_second)
        decisions[step.vertices] = cost < 0


def _independent(graph: PairwiseProblem, number: int) -> Ints:
    """Return an independent set of vertices with at most two neighbours."""
    count = len(graph.unary)
    degrees = np.bincount(graph.a, minlength=count) + np.bincount(graph.b, minlength=count)
    candidates = degrees <= 2
    # Fibonacci hashing (Knuth): an order without ties that differs from round to round and looks random.
    rank = (graph.ids.astype(np.uint64) + np.uint64(1 + number * 7919)) * np.uint64(0x9E3779B97F4A7C15)
    a, b = graph.a, graph.b
    both = candidates[a] & candidates[b]
    a, b = a[both], b[both]
    loses = rank[a] < rank[b]
    candidates[np.where(loses, a, b)] = False
    return np.flatnonzero(candidates)


def _without(graph: PairwiseProblem, vertices: Ints) -> tuple[PairwiseProblem, Eliminated]:
    """Eliminate independent vertices: add to their neighbours, and between them, the cost of the best decision."""
    count = len(graph.unary)
    chosen = np.full(count, -1, dtype=np.int64)
    chosen[vertices] = np.arange(len(vertices))
    at_a, at_b = chosen[graph.a] >= 0, chosen[graph.b] >= 0
    # For every pair at an eliminated vertex: the vertex, its neighbour, and the costs if only one of them is yes.
    vertex = np.concatenate([chosen[graph.a[at_a]], chosen[graph.b[at_b]]])
    other = np.concatenate([graph.b[at_a], graph.a[at_b]])
    behind = np.concatenate([graph.rising[at_a], graph.falling[at_b]])
    ahead = np.concatenate([graph.falling[at_a], graph.rising[at_b]])
    order = np.argsort(vertex, kind="stable")
    vertex, other, behind, ahead = vertex[order], other[order], behind[order], ahead[order]
    is_first = np.ones(len(vertex), dtype=np.bool_)
    is_first[1:] = vertex[1:] != vertex[:-1]
    ends = []
    for which in (is_first, ~is_first):
        end = np.full(len(vertices), -1, dtype=np.int64)
        costs = np.zeros((2, len(vertices)), dtype=np.int64)
        end[vertex[which]] = other[which]
        costs[0, vertex[which]], costs[1, vertex[which]] = behind[which], ahead[which]
        ends.append((end, costs))
    (p, (a0, a1)), (q, (b0, b1)) = ends
    own = graph.unary[vertices]
    none, both = np.minimum(0, own + a1 + b1), np.minimum(a0 + b0, own)
    only_p, only_q = np.minimum(a0, own + b1), np.minimum(b0, own + a1)
    # The cost if the neighbours disagree, beyond what each pays alone; it is not negative: still submodular.
    between = only_p + only_q - none - both
    unary = graph.unary.copy()
    has_p, has_q = p >= 0, q >= 0
    for_p = np.where(has_q, only_p - none - between, both - none)
    np.add.at(unary, p[has_p], for_p[has_p])
    np.add.at(unary, q[has_q], (only_q - none)[has_q])
    joined = PairwiseProblem(
        graph.ids,
        unary,
        np.concatenate([graph.a, p[has_q]]),
        np.concatenate([graph.b, q[has_q]]),
        np.concatenate([graph.rising, np.zeros(int(has_q.sum()), dtype=np.int64)]),
        np.concatenate([graph.falling, between[has_q]]),
    )
    first, second = (np.where(end >= 0, graph.ids[end], -1) for end in (p, q))
    eliminated = Eliminated(graph.ids[vertices], own, first, second, a0, a1, b0, b1)
    return merge_pairs(joined.without(chosen >= 0)), eliminated
