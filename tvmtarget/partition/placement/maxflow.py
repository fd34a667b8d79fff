"""Minimum cuts by Dinic's algorithm, for the small networks that are left once the clear decisions are made."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Budget", "Network"]


@dataclass(slots=True)
class Budget:
    """Work that may still be done, in visits of edges: what bounds the time without making it depend on the clock.

    `is_kept` until a cut was not finished for lack of it: what was found is then no longer proven to be the best.
    """

    left: int
    is_kept: bool = True


class Network:
    """A directed network with capacities that are whole numbers; vertex 0 is the source, vertex 1 the sink.

    The others are decisions: yes is to be beyond the cut, and costs `unary` more than no. For a pair (a, b) `rising`
    is paid if only b is yes, and `falling` if only a is.
    """

    def __init__(
        self, unary: Sequence[int], a: Sequence[int], b: Sequence[int], rising: Sequence[int], falling: Sequence[int]
    ) -> None:
        self._edges: list[list[int]] = [[] for _ in range(len(unary) + 2)]
        self._to: list[int] = []
        self._room: list[int] = []
        edges, to, room = self._edges, self._to, self._room
        number = 0
        for vertex, cost in enumerate(unary, 2):
            if cost:
                start, end = (0, vertex) if cost > 0 else (vertex, 1)
                edges[start].append(number)
                edges[end].append(number + 1)
                to += (end, start)
                room += (abs(cost), 0)
                number += 2
        for first, second, forth, back in zip(a, b, rising, falling, strict=True):
            edges[first + 2].append(number)
            edges[second + 2].append(number + 1)
            to += (second + 2, first + 2)
            room += (forth, back)
            number += 2

    def sink_side(self, budget: Budget) -> list[bool] | None:
        """Saturate the network and tell which decisions are beyond a minimum cut: the fewest that can be.

        None if the budget is used up before.
        """
        budget.left -= len(self._to)
        while budget.left > 0:
            levels = self._levels()
            budget.left -= len(self._to)
            if levels[0] < 0:
                return self._reaching_sink()
            self._block(levels, budget)
        return None

    def _levels(self) -> list[int]:
        """Return the distances to the sink."""
        levels = [-1] * len(self._edges)
        levels[1] = 0
        queue = deque([1])
        to, room, edges = self._to, self._room, self._edges
        while queue and levels[0] < 0:
            vertex = queue.popleft()
            level = levels[vertex] + 1
            for edge in edges[vertex]:
                target = to[edge]
                if levels[target] < 0 and room[edge ^ 1]:
                    levels[target] = level
                    queue.append(target)
        return levels

    def _block(self, levels: list[int], budget: Budget) -> None:
        """Send flow along shortest paths until each of them has a full edge."""
        to, room, all_edges = self._to, self._room, self._edges
        at = [0] * len(all_edges)
        path: list[int] = []
        vertex = 0
        steps = 0
        while True:
            if vertex == 1:
                amount = min([room[edge] for edge in path])
                full = len(path)
                for place in range(len(path) - 1, -1, -1):
                    edge = path[place]
                    room[edge] -= amount
                    room[edge ^ 1] += amount
                    if not room[edge]:
                        full = place
                steps += len(path)
                vertex = to[path[full] ^ 1]
                del path[full:]
                continue
            edges, place, level = all_edges[vertex], at[vertex], levels[vertex] - 1
            count = len(edges)
            begun = place
            while place < count and not (room[edges[place]] and levels[to[edges[place]]] == level):
                place += 1
            steps += place - begun
            at[vertex] = place
            if place < count:
                path.append(edges[place])
                vertex = to[edges[place]]
            elif path:
                vertex = to[path.pop() ^ 1]
                at[vertex] += 1
            else:
                budget.left -= steps
                return

    def _reaching_sink(self) -> list[bool]:
        found = [False] * len(self._edges)
        found[1] = True
        waiting = [1]
        while waiting:
            for edge in self._edges[waiting.pop()]:
                before = self._to[edge]
                if self._room[edge ^ 1] and not found[before]:
                    found[before] = True
                    waiting.append(before)
        return found[2:]
