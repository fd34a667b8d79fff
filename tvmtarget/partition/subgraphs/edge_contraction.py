"""Edge contraction: merge the subgraphs at both ends of a value unless that makes a cycle.

The topological order of all subgraphs is maintained while they grow (Pearce and Kelly, 2006: dynamic topological sort).
The search for a second path, which would become a cycle, visits only subgraphs between the two in that order, and only
those are moved. All resulting subgraphs are connected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph

__all__ = ["contract_edges"]

# Limit on the visits of vertices, per vertex and edge; merging stops when it is exceeded, which only random graphs do.
WORK = 10


def contract_edges(graph: AtomGraph, labels: Sequence[int], edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Merge the ends of edges between vertices of one label, in the given order.

    Args:
        graph: graph without cycles.
        labels: label of every vertex.
        edges: edges to contract, as pairs of vertices, the most valuable first.

    Returns:
        Subgraphs as ascending lists of vertices, in execution order.
    """
    quotient = _Quotient(graph)
    parent = quotient.parent
    for a, b in edges:
        if labels[a] != labels[b]:
            continue
        if quotient.work_left <= 0:
            break
        # Most vertices are at most one step from their representative, and a call of `find` costs more than that step.
        a = parent[a] if parent[parent[a]] == parent[a] else quotient.find(a)
        b = parent[b] if parent[parent[b]] == parent[b] else quotient.find(b)
        if a != b:
            quotient.merge(a, b)
    return quotient.subgraphs()


class _Quotient:
    """Subgraphs as a union-find forest, the edges between them, and a topological order of them."""

    def __init__(self, graph: AtomGraph) -> None:
        count = len(graph)
        self.after: list[set[int]] = list(map(set, graph.successors))
        self.before: list[set[int]] = list(map(set, graph.transposed.successors))
        self.position = [0] * count
        for position, vertex in enumerate(graph.topological_order):
            self.position[vertex] = position
        self.parent = list(range(count))
        self.work_left = WORK * (count + len(graph.ends))

    def find(self, vertex: int) -> int:
        """Return the representative of the subgraph of a vertex (union-find with path halving)."""
        parent = self.parent
        while parent[vertex] != vertex:
            parent[vertex] = parent[parent[vertex]]
            vertex = parent[vertex]
        return vertex

    def merge(self, a: int, b: int) -> None:
        """Merge two subgraphs that an edge connects, unless a second path connects them."""
        if self.position[a] > self.position[b]:
            a, b = b, a
        if len(self.before[b]) == 1:  # no second path can exist, and nothing has to move
            self._merge(a, b, self.position[a])
            return
        if len(self.after[a]) == 1:
            self._merge(a, b, self.position[b])
            return
        few = len(self.after[a]) < len(self.before[b])
        near = self._reached(a, b, self.after) if few else self._reached(b, a, self.before)
        if near is None:
            return
        if not near:  # nothing has to move: one takes the position of the other
            self._merge(a, b, self.position[b if few else a])
            return
        far = self._reached(b, a, self.before) if few else self._reached(a, b, self.after)
        if far is not None:
            self._merge(a, b, self._make_way(a, b, *((near, far) if few else (far, near))))

    def _reached(self, start: int, end: int, edges: Sequence[set[int]]) -> list[int] | None:
        """Return what `start` reaches between the two in the order; None if that includes `end` or takes too long."""
        position = self.position
        low, high = position[start], position[end]
        if low > high:
            low, high = high, low
        found = {start}
        waiting = [other for other in edges[start] if other != end]
        reached: list[int] = []
        while waiting:
            vertex = waiting.pop()
            if vertex == end:
                return None
            if vertex in found or not low < position[vertex] < high:
                continue
            self.work_left -= 1 + len(edges[vertex])
            if self.work_left <= 0:
                return None
            found.add(vertex)
            reached.append(vertex)
            waiting += edges[vertex]
        return reached

    def _make_way(self, a: int, b: int, behind: list[int], ahead: list[int]) -> int:
        """Reorder so that `a` and `b` can share a position, and return it.

        What must run before `b` takes the first positions, what must run after `a` the last ones.
        """
        position = self.position
        behind.sort(key=position.__getitem__)
        ahead.sort(key=position.__getitem__)
        positions = sorted(
            [position[a], position[b], *map(position.__getitem__, behind), *map(position.__getitem__, ahead)]
        )
        for number, vertex in zip(positions, ahead, strict=False):
            position[vertex] = number
        for number, vertex in zip(reversed(positions), reversed(behind), strict=False):
            position[vertex] = number
        return positions[len(ahead)]

    def _merge(self, a: int, b: int, position: int) -> None:
        """Merge two subgraphs into the one with more edges."""
        after, before = self.after, self.before
        if len(after[a]) + len(before[a]) < len(after[b]) + len(before[b]):
            a, b = b, a
        self.position[a] = position
        self.parent[b] = a
        for edges, back in ((after, before), (before, after)):
            for other in edges[b]:
                sources = back[other]
                sources.discard(b)
                if other != a:
                    sources.add(a)
            edges[a] |= edges[b]
            edges[a].discard(a)
            edges[a].discard(b)
            edges[b] = set()

    def subgraphs(self) -> list[list[int]]:
        """Return the subgraphs in execution order."""
        members: dict[int, list[int]] = {}
        for vertex in range(len(self.parent)):
            members.setdefault(self.find(vertex), []).append(vertex)
        return [members[vertex] for vertex in sorted(members, key=self.position.__getitem__)]
