"""List colouring of a graph: a site for each vertex from its own list, different for neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["list_coloring"]

# How often a colour is tried before the search is given up.
MAX_TRIES = 20_000


def list_coloring(lists: Mapping[int, Sequence[str]], pairs: Sequence[tuple[int, int]]) -> dict[int, str] | None:
    """Choose a colour for each vertex from its list so that no two neighbours have the same.

    Backtracking search with forward checking; the vertex with the fewest remaining colours is next (minimum remaining
    values). Exponential in the worst case, hence `MAX_TRIES`.

    Args:
        lists: the colours of each vertex, preferred ones first.
        pairs: the edges.

    Returns:
        A colour for each vertex; None if there is no colouring, or none was found by `MAX_TRIES` tries.
    """
    neighbours: dict[int, set[int]] = {vertex: set() for vertex in lists}
    for a, b in pairs:
        neighbours[a].add(b)
        neighbours[b].add(a)
    remaining = {vertex: list(colours) for vertex, colours in lists.items()}
    chosen: dict[int, str] = {}
    tries = 0
    # Vertex, colours still to try, and the neighbours whose lists lost its colour.
    tried: list[tuple[int, list[str], list[int]]] = []
    while len(chosen) < len(lists):
        vertex = min((one for one in remaining if one not in chosen), key=lambda one: (len(remaining[one]), one))
        colours = list(remaining[vertex])
        while not colours:
            if not tried:
                return None
            vertex, colours, removed = tried.pop()
            for one in removed:
                remaining[one] = [
                    colour for colour in lists[one] if colour in remaining[one] or colour == chosen[vertex]
                ]
            del chosen[vertex]
        tries += 1
        if tries > MAX_TRIES:
            return None
        chosen[vertex] = colours.pop(0)
        removed = [one for one in neighbours[vertex] if one not in chosen and chosen[vertex] in remaining[one]]
        for one in removed:
            remaining[one].remove(chosen[vertex])
        tried.append((vertex, colours, removed))
    return chosen
