"""Stage D: regions by joint waves, so that the graph of regions has no circle by construction.

Operations are drained colour by colour in topological order: a region is everything of one colour that can run
before any other colour must. This is typed fusion (Kennedy and McKinley, 1994), greedy over the colours; with
two of them no division has fewer regions. O((V + E) log V).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

__all__ = ["lower_bound", "topological_order", "waves"]


def topological_order(successors: Sequence[Sequence[int]]) -> list[int]:
    """Return vertices so that edges point forward, smallest first among equals; shorter than V if there is a circle."""
    waiting = [0] * len(successors)
    for targets in successors:
        for target in targets:
            waiting[target] += 1
    ready = [vertex for vertex, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        vertex = heappop(ready)
        order.append(vertex)
        for target in successors[vertex]:
            waiting[target] -= 1
            if waiting[target] == 0:
                heappush(ready, target)
    return order


def _heights(successors: Sequence[Sequence[int]], colours: Sequence[int]) -> list[int]:
    """Return, per vertex, how often the colour changes at most on a path that begins there."""
    heights = [0] * len(successors)
    for vertex in reversed(topological_order(successors)):
        for target in successors[vertex]:
            change = heights[target] + (colours[target] != colours[vertex])
            heights[vertex] = max(heights[vertex], change)
    return heights


def lower_bound(successors: Sequence[Sequence[int]], colours: Sequence[int]) -> int:
    """Return a number of regions that no acyclic division of these colours can go below.

    Regions in order must hold the colours of every path as a subsequence: as many as the longest such sequence,
    one more if two of that length begin differently, and one for each colour at least.
    """
    if not colours:
        return 0
    heights = _heights(successors, colours)
    tallest = max(heights)
    begins = {colour for colour, height in zip(colours, heights, strict=True) if height == tallest}
    return max(1 + tallest + (len(begins) > 1), len(set(colours)))


def waves(successors: Sequence[Sequence[int]], colours: Sequence[int]) -> list[list[int]]:
    """Divide an acyclic graph into one-coloured regions; every edge stays inside one or points to a later one.

    The next colour is the one with the most changes of colour still to come, then the one with most work ready,
    then the smaller number.
    """
    heights = _heights(successors, colours)
    waiting = [0] * len(successors)
    for targets in successors:
        for target in targets:
            waiting[target] += 1
    ready: dict[int, list[int]] = {colour: [] for colour in sorted(set(colours))}
    tallest = dict.fromkeys(ready, -1)

    def make_ready(vertex: int) -> None:
        colour = colours[vertex]
        heappush(ready[colour], vertex)
        tallest[colour] = max(tallest[colour], heights[vertex])

    for vertex, count in enumerate(waiting):
        if count == 0:
            make_ready(vertex)
    regions: list[list[int]] = []
    while any(ready.values()):
        colour = max((c for c in ready if ready[c]), key=lambda c: (tallest[c], len(ready[c]), -c))
        region: list[int] = []
        while ready[colour]:
            vertex = heappop(ready[colour])
            region.append(vertex)
            for target in successors[vertex]:
                waiting[target] -= 1
                if waiting[target] == 0:
                    make_ready(target)
        tallest[colour] = -1
        regions.append(region)
    return regions
