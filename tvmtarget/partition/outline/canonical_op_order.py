"""An order of operations that their structure gives, whatever order they are listed in.

Each operation gets a number that tells what leads to it and what comes of it (one round of colour refinement down and
one up the graph); of those that can come next the one with the least number does. Operations whose numbers are equal
come in the order of what they read, and at last in the given one: what is alike but not found to be so is only not
shared, as whoever asks compares the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TypeAlias

from tvmtarget.ir.function import Call

__all__ = ["CanonicalOpOrder"]

# For every operation who computes what it reads, by place, and as which of its results.
Reads: TypeAlias = Sequence[Sequence[tuple[int, int]]]

# Of an operation that can come next: its number, the places of what it reads, and its own.
_Next: TypeAlias = tuple[int, tuple[int, ...], int]


class CanonicalOpOrder:
    """Arranges operations; those that are listed alike are arranged alike, and looked at once."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[int, ...]] = {}

    def order(self, calls: Sequence[Call], told: Sequence[str]) -> tuple[int, ...]:
        """Return the places of operations, listed in topological order, in the order that their structure gives.

        `told` is what each is by itself. Operations with effects keep their order. O(E log V).
        """
        producer = {out.name: (place, k) for place, call in enumerate(calls) for k, out in enumerate(call.outputs)}
        producer.pop("", None)
        reads = tuple(tuple([producer.get(name, _OUTSIDE) for name in call.inputs]) for call in calls)
        key = (tuple(told), reads)
        if key not in self._known:
            self._known[key] = _arranged(calls, told, reads)
        return self._known[key]


# Who computes what comes from elsewhere, and as which of its results.
_OUTSIDE = (-1, 0)


def _arranged(calls: Sequence[Call], told: Sequence[str], reads: Reads) -> tuple[int, ...]:
    colours = _colours(told, reads)
    readers: list[list[int]] = [[] for _ in calls]
    waiting = [0] * len(calls)
    for place, before in enumerate(_before(calls, reads)):
        waiting[place] = len(before)
        for one in before:
            readers[one].append(place)
    ready: list[_Next] = [(colours[place], (), place) for place, count in enumerate(waiting) if not count]
    return tuple(_in_order(ready, colours, reads, readers, waiting))


def _in_order(
    ready: list[_Next],
    colours: Sequence[int],
    reads: Reads,
    readers: Sequence[Sequence[int]],
    waiting: list[int],
) -> list[int]:
    heapify(ready)
    found: list[int] = []
    places = {-1: -1}
    while ready:
        place = heappop(ready)[-1]
        places[place] = len(found)
        found.append(place)
        for reader in readers[place]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, (colours[reader], tuple(places[one] for one, _ in reads[reader]), reader))
    return found


def _before(calls: Sequence[Call], reads: Reads) -> list[set[int]]:
    before = [{place for place, _ in read if place >= 0} for read in reads]
    effects = [place for place, call in enumerate(calls) if call.has_effect]
    for first, then in pairwise(effects):
        before[then].add(first)
    return before


def _colours(told: Sequence[str], reads: Reads) -> list[int]:
    """Number operations by what leads to them and what comes of them."""
    down: list[int] = []
    for text, read in zip(told, reads, strict=True):
        down.append(_mixed(text, [(down[place] if place >= 0 else -1, k) for place, k in read]))
    below: list[list[tuple[int, int, int]]] = [[] for _ in told]
    up = [0] * len(told)
    for place in reversed(range(len(told))):
        up[place] = _mixed(down[place], sorted(below[place]))
        for position, (before, k) in enumerate(reads[place]):
            if before >= 0:
                below[before].append((up[place], position, k))
    return up


def _mixed(*parts: object) -> int:
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest())
