"""The best part of a program that can be one function: no path leaves it and comes back.

Every operation is before the part, in it, or after it, and never before one that it follows. A choice of three such
stages with any gain for the middle one is a minimum cut with two yes-or-no decisions for each operation: whether it is
not before, and whether it is after (Ishikawa, 2003: labels in an order, with convex terms between them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tvmtarget.partition.placement.maxflow import Budget, Network

__all__ = ["best_convex_subset"]

# Visits of edges for each vertex and edge of the network; then nothing is said.
WORK = 1000


def best_convex_subset(
    edges: Sequence[tuple[int, int]], count: int, gains: Mapping[int, int], together: Iterable[Sequence[int]] = ()
) -> frozenset[int] | None:
    """Return the vertices of most gain of which no path leads out and back in; None if the work is used up before.

    `gains` says what each vertex that may be taken brings; those of one group in `together` are taken or left as one.
    """
    whole = 1 + sum(map(abs, gains.values()))
    tied = [pair for group in together for one in group[1:] for pair in ((group[0], one), (one, group[0]))]
    rises = [*edges, *tied]
    stages = range(count)
    first = [2 * vertex for vertex in stages] + [2 * a + later for a, _ in rises for later in (0, 1)]
    second = [2 * vertex + 1 for vertex in stages] + [2 * b + later for _, b in rises for later in (0, 1)]
    within = [max(0, -gains[vertex]) if vertex in gains else whole for vertex in stages]
    never = (count + 1) * whole
    network = Network(
        unary=[sign * max(0, gains.get(vertex, 0)) for vertex in stages for sign in (-1, 1)],
        a=first,
        b=second,
        rising=[never] * count + [0] * (2 * len(rises)),
        falling=within + [never] * (2 * len(rises)),
    )
    chosen = network.sink_side(Budget(WORK * (len(first) + 2 * count)))
    if chosen is None:
        return None
    return frozenset(vertex for vertex in stages if chosen[2 * vertex] and not chosen[2 * vertex + 1])
