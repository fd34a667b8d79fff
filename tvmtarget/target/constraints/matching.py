"""Giving each thing that is wanted a thing that is there, none of them twice: a flow in a bipartite graph.

Capacities are numbers, so that 65536 replicas cost what one does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["assign"]


def assign(demands: Sequence[int], supplies: Sequence[int], edges: Sequence[Collection[int]]) -> list[dict[int, int]]:
    """Return how much of each supply serves each demand, so that as much as possible is served.

    `edges[i]` lists the supplies that can serve demand `i`. Shortest augmenting paths, as Edmonds and Karp do.

    >>> assign([1, 1], [1, 1], [[0, 1], [0]])
    [{1: 1}, {0: 1}]
    """
    served: list[dict[int, int]] = [{} for _ in demands]
    spare = list(supplies)
    for wanted, demand in enumerate(demands):
        need = demand
        while need and (path := _augmenting(wanted, served, spare, edges)):
            need -= _shift(path, need, served, spare)
    return served


def _augmenting(
    wanted: int, served: Sequence[dict[int, int]], spare: Sequence[int], edges: Sequence[Collection[int]]
) -> list[int]:
    """Return demands and supplies by turns, from a demand to a supply with something to spare; empty if none is."""
    came_from: dict[int, int] = {}  # of a supply, the demand that reached it
    through: dict[int, int | None] = {wanted: None}  # of a demand, the supply that it can give up
    waiting = [wanted]
    for demand in waiting:  # grows while it is walked
        for supply in edges[demand]:
            if supply in came_from:
                continue
            came_from[supply] = demand
            if spare[supply]:
                return _trace(supply, came_from, through)
            for other, taken in enumerate(served):
                if other not in through and taken.get(supply):
                    through[other] = supply
                    waiting.append(other)
    return []


def _trace(supply: int, came_from: dict[int, int], through: dict[int, int | None]) -> list[int]:
    path, at = [supply], came_from[supply]
    while (given_up := through[at]) is not None:
        path += [at, given_up]
        at = came_from[given_up]
    return [*path, at][::-1]


def _shift(path: list[int], need: int, served: list[dict[int, int]], spare: list[int]) -> int:
    """Move as much as the path carries: each demand on it takes the next supply and gives up the one before."""
    moves = list(zip(path[::2], path[1::2], strict=True))
    returns = list(zip(path[2::2], path[1::2], strict=False))
    amount = min([need, spare[path[-1]], *(served[demand][supply] for demand, supply in returns)])
    for demand, supply in moves:
        served[demand][supply] = served[demand].get(supply, 0) + amount
    for demand, supply in returns:
        served[demand][supply] -= amount
        if not served[demand][supply]:
            del served[demand][supply]
    spare[path[-1]] -= amount
    return amount
