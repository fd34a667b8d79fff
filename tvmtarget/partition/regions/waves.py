"""Stage D: regions by joint waves, so that the graph of regions has no circle by construction.

Operations are drained colour by colour in topological order: a region is everything of one colour that can run
before any other colour must. This is typed fusion (Kennedy and McKinley, 1994), greedy over the colours; with
two of them no division has fewer regions. O((V + E) log V).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from heapq import heappop, heappush

__all__ = ["changes_ahead", "predecessors_of", "topological_order", "waves"]


def predecessors_of(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the graph with its edges turned round."""
    predecessors: list[list[int]] = [[] for _ in successors]
    for vertex, targets in enumerate(successors):
        for target in targets:
            predecessors[target].append(vertex)
    return predecessors


def topological_order(successors: Sequence[Sequence[int]]) -> list[int]:
    """Return vertices so that edges point forward, smallest first among equals; shorter than V if there is a circle."""
    if all(not targets or min(targets) > vertex for vertex, targets in enumerate(successors)):
        return list(range(len(successors)))  # the vertices of a program are in order already
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
    for vertex in reversed(topological_order(successors)):
        colour, height = colours[vertex], 0
        for target in successors[vertex]:
            change = heights[target] if colours[target] == colour else heights[target] + 1
            if change > height:
                height = change
        heights[vertex] = height
    return heights


def waves(
    successors: Sequence[Sequence[int]],
    colours: Sequence[int],
    free: Container[int] = (),
    heights: Sequence[int] | None = None,
) -> list[list[int]]:
    """Divide an acyclic graph into one-coloured regions; every edge stays inside one or points to a later one.

    The next colour is the one with a vertex that has most ahead, then the one with most work ready, then the smaller
    number (with two colours, the smaller number at once). Colours that are `free` come before all others. `heights`
    are what is ahead of each vertex: unless given, changes of colour.
    """
    names = sorted(set(colours))
    if len(names) == 2 and (names[0] in free) != (names[1] in free):
        return _alternating(successors, colours, names[names[1] in free])
    if heights is None:
        heights = changes_ahead(successors, colours)
    if len(names) == 2:
        _, first = max((height, -colour) for height, colour in zip(heights, colours, strict=True))
        return _alternating(successors, colours, -first)
    waiting = [0] * len(successors)
    for targets in successors:
        for target in targets:
            waiting[target] += 1
    ready: dict[int, list[int]] = {colour: [] for colour in names}
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


def _alternating(successors: Sequence[Sequence[int]], colours: Sequence[int], first: int) -> list[list[int]]:
    """Return the waves of two colours, of which one comes first if it can: then nothing else is to be chosen."""
    place = [int(colour != first) for colour in colours]
    for vertex in topological_order(successors):
        here, colour = place[vertex], colours[vertex]
        for target in successors[vertex]:
            there = here if colours[target] == colour else here + 1
            if there > place[target]:
                place[target] = there
    regions: list[list[int]] = [[] for _ in range(1 + max(place))]
    for vertex, number in enumerate(place):
        regions[number].append(vertex)
    return regions if regions[0] else regions[1:]
