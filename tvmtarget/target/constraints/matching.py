"""Maximum bipartite flow between required and available devices.

Demands and supplies are integers, so 65536 replicas cost as much as one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["assign"]


def assign(demands: Sequence[int], supplies: Sequence[int], edges: Sequence[Collection[int]]) -> list[dict[int, int]]:
    """Distribute supplies over demands so that as much as possible is served.

    Shortest augmenting paths (Edmonds and Karp, 1972).

    Args:
        demands: Units that each demand needs.
        supplies: Units that each supply has.
        edges: For each demand, the indices of the supplies that can serve it; earlier ones are tried first.

    Returns:
        For each demand, the units taken by index of the supply.

    >>> assign([1, 1], [1, 1], [[0, 1], [0]])
    [{1: 1}, {0: 1}]
    """
    served: list[dict[int, int]] = [{} for _ in demands]
    spare = list(supplies)
    for start, need in enumerate(demands):
        while need and (path := _augmenting_path(start, served, spare, edges)):
            need -= _shift(path, need, served, spare)
    return served


def _augmenting_path(
    start: int, served: Sequence[dict[int, int]], spare: Sequence[int], edges: Sequence[Collection[int]]
) -> list[int]:
    """Return an alternating path from a demand to a supply with spare units, or an empty list."""
    came_from: dict[int, int] = {}  # of a supply, the demand that reached it
    through: dict[int, int | None] = {start: None}  # of a demand, the supply that it can give up
    queue = [start]
    for demand in queue:  # breadth-first: the list grows during the loop
        for supply in edges[demand]:
            if supply in came_from:
                continue
            came_from[supply] = demand
            if spare[supply]:
                return _trace(supply, came_from, through)
            for other, taken in enumerate(served):
                if other not in through and taken.get(supply):
                    through[other] = supply
                    queue.append(other)
    return []


def _trace(supply: int, came_from: dict[int, int], through: dict[int, int | None]) -> list[int]:
    path, at = [supply], came_from[supply]
    while (given_up := through[at]) is not None:
        path += [at, given_up]
        at = came_from[given_up]
    return [*path, at][::-1]


def _shift(path: list[int], need: int, served: list[dict[int, int]], spare: list[int]) -> int:
    """Augment along a path: each demand takes from the next supply and returns units to the one before."""
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
