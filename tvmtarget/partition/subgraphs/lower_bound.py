"""How few subgraphs there can be, whatever way they are formed.

Subgraphs in the order in which they run are a word of colours that holds the colours of every path. Three things are
known of such a word, each found in one pass over the graph:

- It is as long as the longest path is in changes of colour.
- Whoever reads a vertex comes behind it: if vertices of several colours do, one of these colours comes last of all, so
  that behind the first vertex there are as many subgraphs as there are of these colours, and what is ahead of the last.
  The order of colours that is best for the word is that by what is ahead, the most first, as of jobs with due dates
  (Jackson, 1955), whatever a subgraph of each colour counts (`ahead`).
- Every colour comes as often as a path meets it anew.

With two colours the first is exact (Kennedy and McKinley, 1994); with more of them the least number is NP-hard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tvmtarget.partition.subgraphs.typed_fusion import LabeledGraph

__all__ = ["ahead", "least_of", "lower_bound", "together"]


def lower_bound(coloured: LabeledGraph, reached: int | None = None) -> int:
    """Return a number of subgraphs that no acyclic division of these colours can go below.

    `reached` is a number that some division has: where the bound gets there, nothing more is tried to raise it.
    """
    bound = 0
    for other in _bounds(coloured):
        bound = max(bound, other)
        if bound == reached:
            break
    return bound


def _bounds(coloured: LabeledGraph) -> Iterator[int]:
    """Yield bounds, what is found fastest first."""
    colours, heights = coloured.colours, coloured.changes_ahead
    if not colours:
        return
    tallest = max(heights)
    begins = {colour for colour, height in zip(colours, heights, strict=True) if height == tallest}
    count = len(coloured.names)
    yield max(1 + tallest + (len(begins) > 1), count)
    if count < 3:
        return
    weights = [1] * (1 + max(colours))
    yield least_of(colours, ahead(coloured, weights), weights)
    if coloured.graph.is_large:
        return
    yield sum(_times_met(coloured))
    yield least_of(colours, ahead(coloured.turned, weights), weights)


def ahead(coloured: LabeledGraph, weights: Sequence[int]) -> list[int]:
    """Return, per vertex, what all subgraphs behind its own count together at least; `weights` are by colour."""
    successors, colours = coloured.graph.successors, coloured.colours
    none = [-1] * len(weights)
    heights = [0] * len(successors)
    most = [none] * len(successors)  # by colour: what is ahead of vertices in later subgraphs, -1 if there are none
    for vertex in reversed(coloured.graph.order):
        colour, targets = colours[vertex], successors[vertex]
        if len(targets) == 1 and colours[targets[0]] == colour:
            heights[vertex], most[vertex] = heights[targets[0]], most[targets[0]]
            continue
        height, row = 0, none
        for target in targets:
            row = most[target] if row is none else list(map(max, row, most[target]))
            if colours[target] == colour:
                height = max(height, heights[target])
            elif heights[target] > row[colours[target]]:
                row = row.copy()
                row[colours[target]] = heights[target]
        heights[vertex], most[vertex] = max(height, together(row, weights)), row
    return heights


def least_of(colours: Iterable[int], heights: Iterable[int], weights: Sequence[int]) -> int:
    """Return what all subgraphs count together at least, given what is ahead of each vertex."""
    most = [-1] * len(weights)
    for colour, height in zip(colours, heights, strict=True):
        if height > most[colour]:
            most[colour] = height
    return together(most, weights)


def together(most: Sequence[int], weights: Sequence[int]) -> int:
    """Return what comes together at least if a subgraph of every colour does, with so much ahead; -1 for none."""
    total = least = 0
    for height, weight in sorted(zip(most, weights, strict=True), reverse=True):
        if height < 0:
            break
        total += weight
        if total + height > least:
            least = total + height
    return least


def _times_met(coloured: LabeledGraph) -> list[int]:
    """Return, per colour, how often a path meets it at most with another one in between."""
    successors, colours = coloured.graph.successors, coloured.colours
    none = [0] * (1 + max(colours))
    rows = [none] * len(successors)
    found = none
    for vertex in reversed(coloured.graph.order):
        colour, row, own = colours[vertex], none, 1
        for target in successors[vertex]:
            row = rows[target] if row is none else list(map(max, row, rows[target]))
            own = max(own, rows[target][colour] + (colours[target] != colour))
        if row[colour] != own:
            row = row.copy()
            row[colour] = own
        rows[vertex] = row
        if row[colour] > found[colour]:
            found = list(map(max, found, row))
    return found
