"""Minimum cuts by Dinic's algorithm, for the small networks that remain once clear decisions are made.

E. A. Dinic, "Algorithm for Solution of a Problem of Maximum Flow in Networks with Power Estimation" (1970).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tvmtarget.partition.plan_cache import PlanCache

__all__ = ["Budget", "Network"]


@dataclass(slots=True)
class Budget:
    """Edge visits that may still be made; bounds the time without making results depend on the clock.

    Attributes:
        left: remaining visits.
        is_sufficient: false once a cut was not finished; what was found is then not proven to be the best.
        cache: finished cuts, of this plan and of an earlier one; None keeps none.
    """

    left: int
    is_sufficient: bool = True
    cache: PlanCache | None = None

    def part(self, visits: int) -> Budget:
        """Take visits out of the budget; what is not used of them has to be given back.

        Args:
            visits: edge visits, at most those that are left.

        Returns:
            A budget of its own, with the same cache.
        """
        self.left -= visits
        return Budget(visits, cache=self.cache)


class Network:
    """A flow network with integer capacities; vertex 0 is the source, vertex 1 the sink, the others are decisions.

    A decision is yes if it is on the sink's side of the cut.

    Args:
        unary: cost of yes minus cost of no for each decision.
        a: first decision of each pair.
        b: second decision of each pair.
        rising: cost of each pair if only b is yes.
        falling: cost of each pair if only a is yes.
    """

    def __init__(
        self, unary: Sequence[int], a: Sequence[int], b: Sequence[int], rising: Sequence[int], falling: Sequence[int]
    ) -> None:
        self._edges: list[list[int]] = [[] for _ in range(len(unary) + 2)]
        self._to: list[int] = []
        self._residual: list[int] = []
        edges, to, residual = self._edges, self._to, self._residual
        # Edge n and its reverse, n ^ 1, are stored next to each other.
        number = 0
        for vertex, cost in enumerate(unary, 2):
            if cost:
                start, end = (0, vertex) if cost > 0 else (vertex, 1)
                edges[start].append(number)
                edges[end].append(number + 1)
                to += (end, start)
                residual += (abs(cost), 0)
                number += 2
        for first, second, forth, back in zip(a, b, rising, falling, strict=True):
            edges[first + 2].append(number)
            edges[second + 2].append(number + 1)
            to += (second + 2, first + 2)
            residual += (forth, back)
            number += 2

    def sink_side(self, budget: Budget) -> list[bool] | None:
        """Compute a minimum cut; the flow is left in the network.

        Args:
            budget: edge visits, which are subtracted.

        Returns:
            Whether each decision is on the sink's side; of all minimum cuts the one with the fewest. None if the
            budget is used up before.
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
        """Return the distance of each vertex to the sink in the residual network, -1 where unknown."""
        levels = [-1] * len(self._edges)
        levels[1] = 0
        queue = deque([1])
        to, residual, edges = self._to, self._residual, self._edges
        # Vertices farther from the sink than the source are on no shortest path.
        while queue and levels[0] < 0:
            vertex = queue.popleft()
            level = levels[vertex] + 1
            for edge in edges[vertex]:
                target = to[edge]
                if levels[target] < 0 and residual[edge ^ 1]:
                    levels[target] = level
                    queue.append(target)
        return levels

    def _block(self, levels: list[int], budget: Budget) -> None:
        """Send a blocking flow: augment along shortest paths until each has a saturated edge."""
        # Local names and one flat loop: this is the hottest loop of placement.
        to, residual, all_edges = self._to, self._residual, self._edges
        # The current-arc rule: an edge that was of no use in this phase is not looked at again.
        current = [0] * len(all_edges)
        path: list[int] = []
        vertex = 0
        steps = 0
        while True:
            if vertex == 1:
                amount = min([residual[edge] for edge in path])
                full = len(path)
                for position in range(len(path) - 1, -1, -1):
                    edge = path[position]
                    residual[edge] -= amount
                    residual[edge ^ 1] += amount
                    if not residual[edge]:
                        full = position
                steps += len(path)
                # Go on behind the part of the path that still has capacity, instead of from the source.
                vertex = to[path[full] ^ 1]
                del path[full:]
                continue
            edges, position, level = all_edges[vertex], current[vertex], levels[vertex] - 1
            count = len(edges)
            begin = position
            while position < count and not (residual[edges[position]] and levels[to[edges[position]]] == level):
                position += 1
            steps += position - begin
            current[vertex] = position
            if position < count:
                path.append(edges[position])
                vertex = to[edges[position]]
            elif path:
                vertex = to[path.pop() ^ 1]
                current[vertex] += 1
            else:
                budget.left -= steps
                return

    def _reaching_sink(self) -> list[bool]:
        """Return which decisions reach the sink in the residual network."""
        found = [False] * len(self._edges)
        found[1] = True
        stack = [1]
        while stack:
            for edge in self._edges[stack.pop()]:
                before = self._to[edge]
                if self._residual[edge ^ 1] and not found[before]:
                    found[before] = True
                    stack.append(before)
        return found[2:]
