"""Orders of the atoms of a subgraph in which edges point forward; each prefix can be a subgraph of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

__all__ = ["backwards_in_depth", "gathered", "in_breadth"]

# Who reads a value that more atoms read is not looked for: such a value says little of what belongs together.
FEW = 32


def in_breadth(after: Mapping[int, Sequence[int]]) -> list[int]:
    """Return atoms in waves; `after` are those of the subgraph that come after each."""
    waiting = _waiting(after)
    order = [atom for atom in sorted(after) if not waiting[atom]]
    for atom in order:
        order += _freed(atom, after, waiting)
    return order


def backwards_in_depth(after: Mapping[int, Sequence[int]]) -> list[int]:
    """Return atoms so that what leads to one that nothing comes after is together, as far as it can be."""
    before: dict[int, list[int]] = {atom: [] for atom in after}
    for atom in sorted(after):
        for target in after[atom]:
            before[target].append(atom)
    order: list[int] = []
    seen = set[int]()
    for last in (atom for atom in sorted(after) if not after[atom]):
        path = [(last, iter(before[last]))]
        seen.add(last)
        while path:
            atom, others = path[-1]
            other = next((one for one in others if one not in seen), None)
            if other is None:
                order.append(path.pop()[0])
            else:
                seen.add(other)
                path.append((other, iter(before[other])))
    return order


def gathered(
    after: Mapping[int, Sequence[int]],
    reads: Sequence[Sequence[int]],
    makes: Sequence[Sequence[int]],
    readers_of: Sequence[Sequence[int]],
    most: int,
) -> list[int]:
    """Return atoms so that each adds the fewest values to those that are read from before; after `most` anew.

    `reads` and `makes` are the values of each atom, `readers_of` the atoms that read each value.
    """
    return list(_Gathering(after, reads, makes, readers_of, most).order())


class _Gathering:
    """What can come next: `ready` by the values that it reads, `near` by those that were not read or made yet."""

    def __init__(
        self,
        after: Mapping[int, Sequence[int]],
        reads: Sequence[Sequence[int]],
        makes: Sequence[Sequence[int]],
        readers_of: Sequence[Sequence[int]],
        most: int,
    ) -> None:
        self.after = after
        self.reads = reads
        self.makes = makes
        self.readers_of = readers_of
        self.most = most
        self.waiting = _waiting(after)
        self.ready = [(len(reads[atom]), atom) for atom, count in self.waiting.items() if not count]
        heapify(self.ready)
        self.near: list[tuple[int, int, int]] = []
        self.known = set[int]()
        self.done = set[int]()
        self.inputs = 0

    def order(self) -> Iterator[int]:
        """Yield all atoms."""
        while len(self.done) < len(self.after):
            atom = self._next()
            added = self._added(atom)
            if self.known and self.inputs + added > self.most:
                self.known, self.near, self.inputs = set(), [], 0
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

    def _added(self, atom: int) -> int:
        return sum(value not in self.known for value in self.reads[atom])

    def _add(self, atom: int) -> None:
        self.done.add(atom)
        found = [value for value in (*self.reads[atom], *self.makes[atom]) if value not in self.known]
        self.known.update(found)
        freed = _freed(atom, self.after, self.waiting)
        for other in freed:
            heappush(self.ready, (len(self.reads[other]), other))
        close = {one for value in found if len(self.readers_of[value]) <= FEW for one in self.readers_of[value]}
        for other in sorted(close.union(freed)):
            if self.waiting.get(other) == 0 and other not in self.done:
                heappush(self.near, (self._added(other), -len(self.done), other))


def _waiting(after: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Return how many atoms of the subgraph each comes after."""
    waiting = dict.fromkeys(after, 0)
    for targets in after.values():
        for target in targets:
            waiting[target] += 1
    return waiting


def _freed(atom: int, after: Mapping[int, Sequence[int]], waiting: dict[int, int]) -> list[int]:
    """Return what waits for nothing more once an atom is done."""
    freed = []
    for target in after[atom]:
        waiting[target] -= 1
        if not waiting[target]:
            freed.append(target)
    return freed
