"""The convex set of operations with the largest gain, which one function can hold.

A set is convex if no path leaves it and comes back. Every operation runs before the set, in it or after it, and never
at an earlier stage than its predecessors. A gain for the middle of three ordered stages is a minimum cut with two
binary decisions per operation: whether it is not before, and whether it is after (Ishikawa, 2003: ordered labels with
convex terms between them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tvmtarget.partition.placement.maxflow import Budget, Network

__all__ = ["best_convex_subset"]

# Limit on the visits of edges, per vertex and edge of the flow network.
WORK = 1000


def best_convex_subset(
    edges: Sequence[tuple[int, int]], count: int, gains: Mapping[int, int], together: Iterable[Sequence[int]] = ()
) -> frozenset[int] | None:
    """Return the convex set of vertices with the largest total gain.

    Args:
        edges: pairs of a vertex and its successor.
        count: number of vertices.
        gains: gain of each vertex that may be in the set; the others may not.
        together: groups of vertices that are all in the set or all outside.

    Returns:
        The set; None if the work limit is exceeded before it is found.
    """
    total = 1 + sum(map(abs, gains.values()))
    equal = [pair for group in together for one in group[1:] for pair in ((group[0], one), (one, group[0]))]
    rises = [*edges, *equal]
    stages = range(count)
    # Variables 2v and 2v + 1 of vertex v: "not before the set" and "after the set".
    first = [2 * vertex for vertex in stages] + [2 * a + later for a, _ in rises for later in (0, 1)]
    second = [2 * vertex + 1 for vertex in stages] + [2 * b + later for _, b in rises for later in (0, 1)]
    within = [max(0, -gains[vertex]) if vertex in gains else total for vertex in stages]
    # A cost that no minimum cut pays: it forbids "after, but not before" and a stage earlier than a predecessor's.
    forbidden = (count + 1) * total
    network = Network(
        unary=[sign * max(0, gains.get(vertex, 0)) for vertex in stages for sign in (-1, 1)],
        a=first,
        b=second,
        rising=[forbidden] * count + [0] * (2 * len(rises)),
        falling=within + [forbidden] * (2 * len(rises)),
    )
    chosen = network.sink_side(Budget(WORK * (len(first) + 2 * count)))
    if chosen is None:
        return None
    return frozenset(vertex for vertex in stages if chosen[2 * vertex] and not chosen[2 * vertex + 1])
