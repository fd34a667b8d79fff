"""Topological orders of the atoms of a subgraph; every prefix of one can be a subgraph of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

__all__ = ["breadth_first", "depth_first_backwards", "fewest_new_inputs"]

# Values with more readers are ignored when looking for related atoms: they say little about what belongs together.
MAX_READERS = 32


def breadth_first(after: Mapping[int, Sequence[int]]) -> list[int]:
    """Order atoms breadth first (Kahn, 1962).

    Args:
        after: successors of each atom within the subgraph.

    Returns:
        Atoms in topological order.
    """
    waiting = _waiting(after)
    order = [atom for atom in sorted(after) if not waiting[atom]]
    for atom in order:  # grows while it is read
        order += _freed(atom, after, waiting)
    return order


def depth_first_backwards(after: Mapping[int, Sequence[int]]) -> list[int]:
    """Order atoms depth first from the sinks, so that what leads to a sink is together.

    Args:
        after: successors of each atom within the subgraph.

    Returns:
        Atoms in topological order.
    """
    before: dict[int, list[int]] = {atom: [] for atom in after}
    for atom in sorted(after):
        for target in after[atom]:
            before[target].append(atom)
    order: list[int] = []
    seen = set[int]()
    for last in (atom for atom in sorted(after) if not after[atom]):
        stack = [(last, iter(before[last]))]
        seen.add(last)
        while stack:
            atom, others = stack[-1]
            other = next((one for one in others if one not in seen), None)
            if other is None:
                order.append(stack.pop()[0])
            else:
                seen.add(other)
                stack.append((other, iter(before[other])))
    return order


def fewest_new_inputs(
    after: Mapping[int, Sequence[int]],
    reads: Sequence[Sequence[int]],
    makes: Sequence[Sequence[int]],
    readers_of: Sequence[Sequence[int]],
    max_inputs: int,
) -> list[int]:
    """Order atoms greedily by the number of inputs that each adds to the part it is in.

    Args:
        after: successors of each atom within the subgraph.
        reads: values that each atom reads.
        makes: values that each atom computes.
        readers_of: atoms that read each value.
        max_inputs: number of inputs after which a new part begins.

    Returns:
        Atoms in topological order.
    """
    return list(_GreedyOrder(after, reads, makes, readers_of, max_inputs).order())


class _GreedyOrder:
    """Two heaps of atoms that can come next: `ready` by number of inputs, `near` by number of new inputs."""

    def __init__(
        self,
        after: Mapping[int, Sequence[int]],
        reads: Sequence[Sequence[int]],
        makes: Sequence[Sequence[int]],
        readers_of: Sequence[Sequence[int]],
        max_inputs: int,
    ) -> None:
        self.after = after
        self.reads = reads
        self.makes = makes
        self.readers_of = readers_of
        self.max_inputs = max_inputs
        self.waiting = _waiting(after)
        self.ready = [(len(reads[atom]), atom) for atom, count in self.waiting.items() if not count]
        heapify(self.ready)
        self.near: list[tuple[int, int, int]] = []
        self.available = set[int]()
        self.done = set[int]()
        self.inputs = 0

    def order(self) -> Iterator[int]:
        """Yield all atoms in order."""
        while len(self.done) < len(self.after):
            atom = self._next()
            added = self._new_inputs(atom)
            if self.available and self.inputs + added > self.max_inputs:
                self.available, self.near, self.inputs = set(), [], 0
                heappush(self.ready, (len(self.reads[atom]), atom))
                continue
            self.inputs += added
            yield atom
            self._add(atom)

    def _next(self) -> int:
        while self.near and self.near[0][-1] in self.done:
            heappop(self.near)
        while self.ready and self.ready[0][-1] in self.done:
            heappop(self.ready)
        if self.near and (not self.ready or self.near[0][0] <= self.ready[0][0]):
            return self.near[0][-1]
        return self.ready[0][-1]

    def _new_inputs(self, atom: int) -> int:
        return sum(value not in self.available for value in self.reads[atom])

    def _add(self, atom: int) -> None:
        self.done.add(atom)
        found = [value for value in (*self.reads[atom], *self.makes[atom]) if value not in self.available]
        self.available.update(found)
        freed = _freed(atom, self.after, self.waiting)
        for other in freed:
            heappush(self.ready, (len(self.reads[other]), other))
        close = {one for value in found if len(self.readers_of[value]) <= MAX_READERS for one in self.readers_of[value]}
        for other in sorted(close.union(freed)):
            if self.waiting.get(other) == 0 and other not in self.done:
                heappush(self.near, (self._new_inputs(other), -len(self.done), other))


def _waiting(after: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Return the number of predecessors of each atom within the subgraph."""
    waiting = dict.fromkeys(after, 0)
    for targets in after.values():
        for target in targets:
            waiting[target] += 1
    return waiting


def _freed(atom: int, after: Mapping[int, Sequence[int]], waiting: dict[int, int]) -> list[int]:
    """Return the atoms that become ready when an atom is done."""
    freed = []
    for target in after[atom]:
        waiting[target] -= 1
        if not waiting[target]:
            freed.append(target)
    return freed
