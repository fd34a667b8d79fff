"""Minimum cuts by Dinic's algorithm, for the small networks that are left once the clear decisions are made."""

from __future__ import annotations

from collections import deque

__all__ = ["Network"]


class Network:
    """A directed network with capacities that are whole numbers; vertex 0 is the source, vertex 1 the sink."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]
        self._to: list[int] = []
        self._room: list[int] = []

    def vertex(self) -> int:
        """Add a vertex and return its number."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, start: int, end: int, capacity: int) -> None:
        """Add an edge; one without capacity is left out."""
        if capacity <= 0:
            return
        for a, b, room in ((start, end, capacity), (end, start, 0)):
            self._edges[a].append(len(self._to))
            self._to.append(b)
            self._room.append(room)

    def sink_side(self) -> set[int]:
        """Saturate the network and return the vertices beyond a minimum cut: the fewest that can be."""
        while True:
            levels = self._levels()
            if levels[1] < 0:
                return self._reaching_sink()
            self._block(levels)

    def _levels(self) -> list[int]:
        levels = [-1] * len(self._edges)
        levels[0] = 0
        queue = deque([0])
        to, room = self._to, self._room
        while queue and levels[1] < 0:
            vertex = queue.popleft()
            level = levels[vertex] + 1
            for edge in self._edges[vertex]:
                target = to[edge]
                if levels[target] < 0 and room[edge]:
                    levels[target] = level
                    queue.append(target)
        return levels

    def _block(self, levels: list[int]) -> None:
        """Send flow along shortest paths until each of them has a full edge."""
        to, room = self._to, self._room
        at = [0] * len(self._edges)
        path: list[int] = []
        vertex = 0
        while True:
            if vertex == 1:
                amount = min(room[edge] for edge in path)
                for edge in path:
                    room[edge] -= amount
                    room[edge ^ 1] += amount
                full = next(place for place, edge in enumerate(path) if not room[edge])
                vertex = to[path[full] ^ 1]
                del path[full:]
                continue
            edges, place, level = self._edges[vertex], at[vertex], levels[vertex] + 1
            while place < len(edges) and not (room[edges[place]] and levels[to[edges[place]]] == level):
                place += 1
            at[vertex] = place
            if place < len(edges):
                path.append(edges[place])
                vertex = to[edges[place]]
            elif path:
                vertex = to[path.pop() ^ 1]
                at[vertex] += 1
            else:
                return

    def _reaching_sink(self) -> set[int]:
        found = {1}
        waiting = [1]
        while waiting:
            for edge in self._edges[waiting.pop()]:
                before = self._to[edge]
                if self._room[edge ^ 1] and before not in found:
                    found.add(before)
                    waiting.append(before)
        return found
