"""Canonical orders of operations: they depend on structure, not on how the program lists or names operations.

Both orders sort by labels from colour refinement (Weisfeiler and Leman, 1968), in which the label of an operation sums
up what leads to it, or what its results lead to. One pass down an acyclic graph, or up, reaches everything. Labels are
BLAKE2b digests, equal in every process and version of Python. Operations with equal labels stay in the order in which
they are listed: equal structures may then look different, and are not shared, but different ones are never confused,
because deduplication compares all operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TypeAlias

from tvmtarget.ir.def_use import producers_of
from tvmtarget.ir.function import Call, Function
from tvmtarget.partition.subgraphs.typed_fusion import is_large

__all__ = ["CanonicalOrders", "canonical_ranks"]

# For every operation the position of the producer of each operand, and which of its results that is.
_Reads: TypeAlias = Sequence[Sequence[tuple[int, int]]]

# Producer of an operand that is computed elsewhere.
_OUTSIDE = (-1, 0)

# Result number of the edge between successive operations with effects.
_EFFECT = -1


class CanonicalOrders:
    """Orders the operations of leaf functions; equal lists of operations are ordered once."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[int, ...]] = {}

    def order(self, calls: Sequence[Call], fingerprints: Sequence[str]) -> tuple[int, ...]:
        """Return the canonical topological order of operations. O(E log V).

        Of the operations that can come next the one with the smallest label does, then the one whose operands were
        computed first. Operations with effects keep their order.

        Args:
            calls: operations in any topological order.
            fingerprints: text of the fingerprint of each operation.

        Returns:
            Positions in `calls`.
        """
        producer = {out.name: (place, k) for place, call in enumerate(calls) for k, out in enumerate(call.outputs)}
        producer.pop("", None)
        reads = tuple(tuple([producer.get(name, _OUTSIDE) for name in call.inputs]) for call in calls)
        key = (tuple(fingerprints), reads)
        if key not in self._known:
            self._known[key] = _smallest_label_first(
                calls, _refined_up(_refined_down(fingerprints, reads), reads), reads
            )
        return self._known[key]


def canonical_ranks(function: Function, fingerprint: Callable[[int], str]) -> list[int] | None:
    """Rank the operations of a function in its canonical topological order. O(E + V log V).

    The order is depth first from the operations whose results no other operation reads, each behind its operands, so
    that connected operations stay together as exporters list them. Those last operations are sorted by their labels,
    then by their position among the results. Operations with effects keep their order.

    Args:
        function: function whose operations are in topological order.
        fingerprint: returns the text of the fingerprint of an operation, by position.

    Returns:
        Ranks from 0 up; None for a large function, where the given order is used: there, ties are so many that the
        choice makes next to no difference.
    """
    if is_large(len(function.body), sum(len(call.inputs) for call in function.body)):
        return None
    reads = _reads_and_effects(function)
    sinks = set(range(len(reads))).difference(place for read in reads for place, _ in read)
    ranks = [0] * len(reads)
    for rank, index in enumerate(_depth_first(_sorted_sinks(sinks, function, fingerprint, reads), reads)):
        ranks[index] = rank
    return ranks


def _refined_down(labels: Iterable[object], reads: _Reads) -> list[int]:
    """Return a label per operation that sums up its given label and all that leads to it."""
    refined: list[int] = []
    texts = _Texts()
    for label, read in zip(labels, reads, strict=True):
        operands = [(refined[place] if place >= 0 else -1, k) for place, k in read]
        refined.append(_digest(f"({texts[label]}, {operands})"))
    return refined


def _refined_up(labels: Sequence[int], reads: _Reads) -> list[int]:
    """Return a label per operation that sums up its given label and all that its results lead to."""
    below: list[list[tuple[int, int, int]]] = [[] for _ in labels]
    refined = [0] * len(labels)
    for place in reversed(range(len(labels))):
        uses = below[place]
        if len(uses) > 1:
            uses.sort()
        refined[place] = _digest(f"({labels[place]}, {uses})")
        for position, (before, k) in enumerate(reads[place]):
            if before >= 0:
                below[before].append((refined[place], position, k))
    return refined


class _Texts(dict[object, str]):
    """The text of each label, of which many operations share few."""

    def __missing__(self, label: object) -> str:
        return self.setdefault(label, repr(label))


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def _smallest_label_first(calls: Sequence[Call], labels: Sequence[int], reads: _Reads) -> tuple[int, ...]:
    """Return the positions of operations in topological order, by label and then by when operands were computed."""
    readers: list[list[int]] = [[] for _ in calls]
    waiting = [0] * len(calls)
    # An operation that reads a producer twice waits for it twice.
    for place, read in enumerate(reads):
        for one, _ in read:
            if one >= 0:
                readers[one].append(place)
                waiting[place] += 1
    for first, then in pairwise(place for place, call in enumerate(calls) if call.has_effect):
        readers[first].append(then)
        waiting[then] += 1
    ready: list[tuple[int, tuple[int, ...], int]] = [
        (labels[place], (), place) for place, count in enumerate(waiting) if not count
    ]
    heapify(ready)
    order: list[int] = []
    ranks = {-1: -1}
    while ready:
        place = heappop(ready)[-1]
        ranks[place] = len(order)
        order.append(place)
        for reader in readers[place]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, (labels[reader], tuple(ranks[one] for one, _ in reads[reader]), reader))
    return tuple(order)


def _reads_and_effects(function: Function) -> list[list[tuple[int, int]]]:
    """Return the producers of the operands and captures of each operation, in that order, then the previous effect."""
    producer = producers_of(function)
    number = {out.name: k for call in function.body for k, out in enumerate(call.outputs)}
    reads: list[list[tuple[int, int]]] = []
    effect: int | None = None
    for index, call in enumerate(function.body):
        names = call.uses() if call.regions else call.inputs
        read = [(producer[name], number[name]) for name in names if name in producer]
        if call.has_effect:
            read += [] if effect is None else [(effect, _EFFECT)]
            effect = index
        reads.append(read)
    return reads


def _sorted_sinks(sinks: set[int], function: Function, fingerprint: Callable[[int], str], reads: _Reads) -> list[int]:
    if len(sinks) == 1:
        return [*sinks]
    labels = _refined_down(map(fingerprint, range(len(reads))), reads)
    if len({labels[sink] for sink in sinks}) < len(sinks):
        # Sinks with equal labels may still differ in where else their operands are read.
        labels = _refined_down(_refined_up(labels, reads), reads)
    position = {name: number for number, name in enumerate(function.results)}
    last = len(position)

    def key(sink: int) -> tuple[int, int, int]:
        outputs = function.body[sink].outputs
        return labels[sink], min((position.get(out.name, last) for out in outputs), default=last), sink

    return sorted(sinks, key=key)


def _depth_first(sinks: Sequence[int], reads: _Reads) -> list[int]:
    """Return the sinks and all that leads to them, each operation behind its predecessors (postorder)."""
    order: list[int] = []
    is_done = [False] * len(reads)
    stack = [*reversed(sinks)]
    while stack:
        index = stack[-1]
        missing = [] if is_done[index] else [place for place, _ in reversed(reads[index]) if not is_done[place]]
        if missing:
            stack += missing
            continue
        stack.pop()
        if not is_done[index]:
            is_done[index] = True
            order.append(index)
    return order
