"""Maximum bipartite flow between required and available devices.

Demands and supplies are integers, so 65536 replicas cost as much as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["assign", "indices"]


def assign(demands: Sequence[int], supplies: Sequence[int], edges: Sequence[int]) -> list[dict[int, int]]:
    """Distribute supplies over demands so that as much as possible is served.

    Shortest augmenting paths (Edmonds and Karp, 1972).

    Args:
        demands: Units that each demand needs.
        supplies: Units that each supply has.
        edges: For each demand, the supplies that can serve it, as a set of bits: bit 0 for the first supply, which is
            tried first. Thousands of demands and supplies would have millions of edges one by one.

    Returns:
        For each demand, the units taken by index of the supply.

    >>> assign([1, 1], [1, 1], [0b11, 0b01])
    [{1: 1}, {0: 1}]
    """
    flow = _Flow(demands, supplies, edges)
    for start, need in enumerate(demands):
        while need and (path := flow.augmenting_path(start)):
            need -= flow.shift(path, need)
    return flow.served


def indices(bits: int) -> Iterator[int]:
    """List the members of a set of bits.

    Args:
        bits: The set.

    Yields:
        The positions of its bits, in ascending order.

    >>> [*indices(0b1101)]
    [0, 2, 3]
    """
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


class _Flow:
    """Units of supplies that demands have taken so far."""

    def __init__(self, demands: Sequence[int], supplies: Sequence[int], edges: Sequence[int]) -> None:
        self.served: list[dict[int, int]] = [{} for _ in demands]
        self._holders: list[set[int]] = [set() for _ in supplies]  # of a supply, the demands that took units of it
        self._left = list(supplies)
        self._spare = sum(1 << at for at, left in enumerate(supplies) if left)  # supplies with units left
        self._edges = edges

    def augmenting_path(self, start: int) -> list[int]:
        """Return an alternating path from a demand to a supply with spare units, or an empty list."""
        came_from: dict[int, int] = {}  # of a supply, the demand that reached it
        through: dict[int, int | None] = {start: None}  # of a demand, the supply that it can give up
        queue, seen = [start], 0
        for demand in queue:  # breadth-first: the list grows during the loop
            reached = self._edges[demand] & ~seen
            seen |= reached
            if free := reached & self._spare:
                supply = next(indices(free))
                came_from[supply] = demand
                return _trace(supply, came_from, through)
            for supply in indices(reached):
                came_from[supply] = demand
                for other in sorted(self._holders[supply]):
                    if other not in through:
                        through[other] = supply
                        queue.append(other)
        return []

    def shift(self, path: list[int], need: int) -> int:
        """Augment along a path: each demand takes from the next supply and returns units to the one before."""
        moves = list(zip(path[::2], path[1::2], strict=True))
        returns = list(zip(path[2::2], path[1::2], strict=False))
        amount = min([need, self._left[path[-1]], *(self.served[demand][supply] for demand, supply in returns)])
        for demand, supply in moves:
            self.served[demand][supply] = self.served[demand].get(supply, 0) + amount
            self._holders[supply].add(demand)
        for demand, supply in returns:
            self.served[demand][supply] -= amount
            if not self.served[demand][supply]:
                del self.served[demand][supply]
                self._holders[supply].discard(demand)
        self._left[path[-1]] -= amount
        if not self._left[path[-1]]:
            self._spare &= ~(1 << path[-1])
        return amount


def _trace(supply: int, came_from: dict[int, int], through: dict[int, int | None]) -> list[int]:
    path, at = [supply], came_from[supply]
    while (given_up := through[at]) is not None:
        path += [at, given_up]
        at = came_from[given_up]
    return [*path, at][::-1]
