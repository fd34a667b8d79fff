"""Stage D: regions by joint waves, so that the graph of regions has no circle by construction.

Operations are drained colour by colour in topological order: a region is everything of one colour that can run
before any other colour must. This is typed fusion (Kennedy and McKinley, 1994), greedy over the colours; with
two of them no division has fewer regions. O((V + E) log V).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from heapq import heappop, heappush

__all__ = ["changes_ahead", "lower_bound", "predecessors_of", "topological_order", "waves"]


def predecessors_of(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the graph with its edges turned round."""
    predecessors: list[list[int]] = [[] for _ in successors]
    for vertex, targets in enumerate(successors):
        for target in targets:
            predecessors[target].append(vertex)
    return predecessors


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


def changes_ahead(successors: Sequence[Sequence[int]], colours: Sequence[int]) -> list[int]:
    """Return, per vertex, how often the colour changes at most on a path that begins there."""
    heights = [0] * len(successors)
    for vertex in _backwards(successors):
        colour, height = colours[vertex], 0
        for target in successors[vertex]:
            change = heights[target] if colours[target] == colour else heights[target] + 1
            if change > height:
                height = change
        heights[vertex] = height
    return heights


def _backwards(successors: Sequence[Sequence[int]]) -> Sequence[int]:
    """Return vertices so that edges point backward; those of a program are in order already."""
    is_ordered = all(not targets or min(targets) > vertex for vertex, targets in enumerate(successors))
    return range(len(successors) - 1, -1, -1) if is_ordered else topological_order(successors)[::-1]


def lower_bound(successors: Sequence[Sequence[int]], colours: Sequence[int]) -> int:
    """Return a number of regions that no acyclic division of these colours can go below.

    Regions in order must hold the colours of every path as a subsequence: as many as the longest such sequence,
    one more if two of that length begin differently, and one for each colour at least.
    """
    if not colours:
        return 0
    heights = changes_ahead(successors, colours)
    tallest = max(heights)
    begins = {colour for colour, height in zip(colours, heights, strict=True) if height == tallest}
    return max(1 + tallest + (len(begins) > 1), len(set(colours)))


def waves(
    successors: Sequence[Sequence[int]],
    colours: Sequence[int],
    free: Container[int] = (),
    heights: Sequence[int] | None = None,
) -> list[list[int]]:
    """Divide an acyclic graph into one-coloured regions; every edge stays inside one or points to a later one.

    The next colour is the one with the most changes of colour still to come, then the one with most work ready,
    then the smaller number. Colours that are `free` come before all others. `heights` are what `changes_ahead` gives,
    where it was asked already.
    """
    if heights is None:
        heights = changes_ahead(successors, colours)
    waiting = [0] * len(successors)
    for targets in successors:
        for target in targets:
            waiting[target] += 1
    ready: dict[int, list[int]] = {colour: [] for colour in sorted(set(colours))}
    tallest = dict.fromkeys(ready, -1)
    for vertex, count in enumerate(waiting):
        if count == 0:
            colour = colours[vertex]
            ready[colour].append(vertex)
            tallest[colour] = max(tallest[colour], heights[vertex])
    regions: list[list[int]] = []
    while any(ready.values()):
        colour = max((c for c in ready if ready[c]), key=lambda c: (c in free, tallest[c], len(ready[c]), -c))
        region, ready[colour], tallest[colour] = ready[colour], [], -1
        for vertex in region:
            for target in successors[vertex]:
                waiting[target] -= 1
                if waiting[target]:
                    continue
                other = colours[target]
                if other == colour:
                    region.append(target)
                else:
                    ready[other].append(target)
                    if heights[target] > tallest[other]:
                        tallest[other] = heights[target]
        regions.append(sorted(region))
    return regions
