"""Subgraphs by contraction: two that a value joins become one if that makes no circle, the largest values first.

An order of all subgraphs is kept while they grow (Pearce and Kelly, 2006): only what lies between the two in that order
is looked at, to see whether another way leads from one to the other, and moved. All subgraphs are connected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph

__all__ = ["contract_edges"]

# Vertices that may be looked at in all, for each vertex and edge; then what is joined stays so and nothing else is.
WORK = 40


def contract_edges(graph: AtomGraph, labels: Sequence[int], edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Join the ends of edges, in the order given, and return the subgraphs in an order in which they can run."""
    quotient = _Quotient(graph)
    joined = quotient.joined
    for a, b in edges:
        if labels[a] != labels[b]:
            continue
        if quotient.left <= 0:
            break
        a = joined[a] if joined[joined[a]] == joined[a] else quotient.find(a)
        b = joined[b] if joined[joined[b]] == joined[b] else quotient.find(b)
        if a != b:
            quotient.join(a, b)
    return quotient.subgraphs()


class _Quotient:
    """Subgraphs, the edges between them, and an order of them in which edges point forward."""

    def __init__(self, graph: AtomGraph) -> None:
        count = len(graph)
        self.after: list[set[int]] = list(map(set, graph.successors))
        self.before: list[set[int]] = list(map(set, graph.transposed.successors))
        self.place = [0] * count
        for place, vertex in enumerate(graph.topological_order):
            self.place[vertex] = place
        self.joined = list(range(count))
        self.left = WORK * (count + len(graph.ends))

    def find(self, vertex: int) -> int:
        """Return the vertex that stands for a subgraph."""
        joined = self.joined
        while joined[vertex] != vertex:
            joined[vertex] = joined[joined[vertex]]
            vertex = joined[vertex]
        return vertex

    def join(self, a: int, b: int) -> None:
        """Make one subgraph of two that an edge joins, unless another way leads from one to the other."""
        if self.place[a] > self.place[b]:
            a, b = b, a
        if len(self.before[b]) == 1:  # there is no other way, and nothing has to move
            self._merge(a, b, self.place[a])
            return
        if len(self.after[a]) == 1:
            self._merge(a, b, self.place[b])
            return
        few = len(self.after[a]) < len(self.before[b])
        near = self._reached(a, b, self.after) if few else self._reached(b, a, self.before)
        if near is None:
            return
        if not near:  # nothing has to move: the one stands where the other does
            self._merge(a, b, self.place[b if few else a])
            return
        far = self._reached(b, a, self.before) if few else self._reached(a, b, self.after)
        if far is not None:
            self._merge(a, b, self._make_way(a, b, *((near, far) if few else (far, near))))

    def _reached(self, start: int, end: int, edges: Sequence[set[int]]) -> list[int] | None:
        """Return what one subgraph reaches before another in the order; None if that includes the other."""
        place = self.place
        low, high = place[start], place[end]
        if low > high:
            low, high = high, low
        found = {start}
        waiting = [other for other in edges[start] if other != end]
        reached: list[int] = []
        while waiting:
            vertex = waiting.pop()
            if vertex == end:
                return None
            if vertex in found or not low < place[vertex] < high:
                continue
            self.left -= 1 + len(edges[vertex])
            if self.left <= 0:
                return None
            found.add(vertex)
            reached.append(vertex)
            waiting += edges[vertex]
        return reached

    def _make_way(self, a: int, b: int, behind: list[int], ahead: list[int]) -> int:
        """Move what one must come before behind all that must come before the other; return the place between."""
        place = self.place
        behind.sort(key=place.__getitem__)
        ahead.sort(key=place.__getitem__)
        places = sorted([place[a], place[b], *map(place.__getitem__, behind), *map(place.__getitem__, ahead)])
        for number, vertex in zip(places, ahead, strict=False):
            place[vertex] = number
        for number, vertex in zip(reversed(places), reversed(behind), strict=False):
            place[vertex] = number
        return places[len(ahead)]

    def _merge(self, a: int, b: int, place: int) -> None:
        """Make one of two subgraphs, by the name of the one with more edges."""
        after, before = self.after, self.before
        if len(after[a]) + len(before[a]) < len(after[b]) + len(before[b]):
            a, b = b, a
        self.place[a] = place
        self.joined[b] = a
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
        """Return the subgraphs in order."""
        members: dict[int, list[int]] = {}
        for vertex in range(len(self.joined)):
            members.setdefault(self.find(vertex), []).append(vertex)
        return [members[vertex] for vertex in sorted(members, key=self.place.__getitem__)]
