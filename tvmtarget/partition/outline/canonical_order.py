"""Canonical orders of operations: they depend on structure, not on how the program lists or names operations.

Both orders sort by labels from colour refinement (Weisfeiler and Leman, 1968), in which the label of an operation sums
up what leads to it, or what its results lead to. One pass down an acyclic graph, or up, reaches everything. Labels are
BLAKE2b digests, equal in every process and version of Python. Operations of a leaf function whose labels are equal are
distinguished by the values that they read from elsewhere, then by the data of constants; what is still equal stays in
the order in which it is listed. Equal structures may then look different, and are not shared, but different ones are
never confused, because deduplication compares all operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, TypeAlias

from tvmtarget.ir.def_use import producers_of
from tvmtarget.ir.function import Call, Function
from tvmtarget.partition.subgraphs.typed_fusion import is_large

__all__ = ["CanonicalOrders", "CanonicalRanks"]

# Operations of a function above which its results are in the order of the signature, so that an edit of one operation
# does not change the order of the others.
MANY_OPS = 1000

# For every operation the position of the producer of each operand, and which of its results that is.
_Reads: TypeAlias = Sequence[Sequence[tuple[int, int]]]

# Producer of an operand that is computed elsewhere.
_OUTSIDE = (-1, 0)

# Result number of the edge between successive operations with effects.
_EFFECT = -1


class CanonicalOrders:
    """Orders the operations of leaf functions; equal lists of operations are labeled once."""

    def __init__(self) -> None:
        self._labels: dict[object, list[int]] = {}

    def order(
        self,
        calls: Sequence[Call],
        fingerprints: Sequence[str],
        is_returned: Callable[[str], bool] = lambda _: False,
        data: Callable[[str], str | None] = lambda _: None,
    ) -> tuple[int, ...]:
        """Return the canonical topological order of operations. O(E log V).

        Of the operations that can come next the one with the smallest label does, then the one whose operands were
        computed first. Operations with effects keep their order.

        Args:
            calls: operations in any topological order.
            fingerprints: text of the fingerprint of each operation.
            is_returned: returns whether a value is read elsewhere.
            data: returns what distinguishes a constant from others of its type; None for values that are no constants.

        Returns:
            Positions in `calls`.
        """
        # Where each operation reads the one before, there is no other order.
        if all([out for out in call.outputs if out.name and out.name in then.inputs] for call, then in pairwise(calls)):
            return tuple(range(len(calls)))
        producer = {out.name: (place, k) for place, call in enumerate(calls) for k, out in enumerate(call.outputs)}
        producer.pop("", None)
        reads = tuple(tuple([producer.get(name, _OUTSIDE) for name in call.inputs]) for call in calls)
        key = (tuple(fingerprints), reads)
        if key not in self._labels:
            self._labels[key] = _refined_up(_refined_down(fingerprints, reads), reads)
        labels = self._labels[key]
        ties = _Ties(calls, labels, reads, is_returned, data) if len(set(labels)) < len(labels) else None
        return _smallest_label_first(calls, labels, reads, ties)


class _Ties:
    """Distinguishes operations of one label, where they differ.

    First by which operands from elsewhere are one value, which are constants, and which results are read elsewhere;
    then by the data of constants. Data come last, so that they do not keep operations of equal structure from being in
    the same order. Of operations that are still equal, those come first whose operands were read first.

    Labels that tell operations apart are computed once two that can come next need them: most operations of one label
    read other producers, by which they are sorted before.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        labels: Sequence[int],
        reads: _Reads,
        is_returned: Callable[[str], bool],
        data: Callable[[str], str | None],
    ) -> None:
        self.reads = reads
        self.given = labels
        self.outside = [
            [(position, name) for position, name in enumerate(call.inputs) if name and read[position] == _OUTSIDE]
            for call, read in zip(calls, reads, strict=True)
        ]
        self.uses: dict[str, list[tuple[int, int]]] = {}
        for place, operands in enumerate(self.outside):
            for position, name in operands:
                self.uses.setdefault(name, []).append((place, position))
        self.calls, self.is_returned, self.data = calls, is_returned, data
        self.numbers: dict[str, int] = {}  # of values from elsewhere, in the order in which they are first read

    @cached_property
    def leaves(self) -> list[list[bool]]:
        """Whether each result of each operation is read elsewhere."""
        return [[self.is_returned(output.name) for output in call.outputs] for call in self.calls]

    @cached_property
    def labels(self) -> list[tuple[int, int]]:
        """What distinguishes operations of one label: by structure, then by data."""
        texts = {name: self.data(name) for name in self.uses}
        kinds = {name: text is None for name, text in texts.items()}
        structure, before, count = list(self.given), 0, len(set(self.given))
        while before < count < len(self.given):
            structure, before = self._refined(structure, kinds), count
            count = len(set(structure))
        has_data = count < len(self.given) and not all(kinds.values())
        return list(zip(structure, self._refined(structure, texts) if has_data else structure, strict=True))

    def _refined(self, labels: Sequence[int], kinds: Mapping[str, object]) -> list[int]:
        values = {
            name: _digest(f"{kinds[name]} {sorted((labels[place], position) for place, position in found)}")
            for name, found in self.uses.items()
        }
        with_operands = [
            f"{label} {self.leaves[place]} {[(position, values[name]) for position, name in self.outside[place]]}"
            for place, label in enumerate(labels)
        ]
        return _refined_up(_refined_down(with_operands, self.reads), self.reads)

    def tie(self, place: int) -> _Tie:
        """Return by what an operation is sorted among those of its label; less once more of its operands were read."""
        unread, names = len(self.uses), self.outside[place]
        return _Tie(self, place, tuple([self.numbers.get(name, unread) for _, name in names]) if names else ())

    def first_read_by(self, place: int) -> Iterator[int]:
        """Yield the other readers of the values that an operation is the first to read."""
        fresh = [name for _, name in self.outside[place] if name not in self.numbers]
        for name in fresh:
            self.numbers.setdefault(name, len(self.numbers))
        for name in dict.fromkeys(fresh):
            yield from (reader for reader, _ in self.uses[name])


class _Tie:
    """What distinguishes an operation from another of its label, when it can come next."""

    __slots__ = ("numbers", "place", "ties")

    def __init__(self, ties: _Ties, place: int, numbers: tuple[int, ...]) -> None:
        self.ties, self.place, self.numbers = ties, place, numbers

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Tie) or self.numbers != other.numbers:
            return False
        if self.place == other.place:  # it can come next again once its operands were read
            return True
        labels = self.ties.labels
        return labels[self.place] == labels[other.place]

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: _Tie) -> bool:
        labels = self.ties.labels
        own, others = labels[self.place], labels[other.place]
        return self.numbers < other.numbers if own == others else own < others


class CanonicalRanks:
    """Ranks of the operations of a function in its canonical topological order. O(E + V log V).

    The order is depth first from the operations whose results no other operation reads, each behind its operands, so
    that connected operations stay together as exporters list them. Those last operations are sorted by their labels,
    then by their position among the results; in a function of many operations by this position, then by their labels.
    Operations with effects keep their order.

    Args:
        function: function whose operations are in topological order; only who reads what is used of it, so that the
            ranks are also those of another function with the same wiring.
    """

    def __init__(self, function: Function) -> None:
        self._is_large = is_large(len(function.body), sum(len(call.inputs) for call in function.body))
        self._reads = [] if self._is_large else _reads_and_effects(function)
        sinks = set(range(len(self._reads))).difference(place for read in self._reads for place, _ in read)
        position = {name: number for number, name in enumerate(function.results)}
        last = len(position)
        # The position of each sink among the results of the function.
        self._sinks = {
            sink: min((position.get(out.name, last) for out in function.body[sink].outputs), default=last)
            for sink in sinks
        }
        self._latest: tuple[list[int], list[int]] | None = None

    def ranks(self, fingerprint: Callable[[int], str]) -> list[int] | None:
        """Return the rank of every operation.

        Args:
            fingerprint: returns the text of the fingerprint of an operation, by position.

        Returns:
            Ranks from 0 up; None for a large function, where the given order is used: there, ties are so many that the
            choice makes next to no difference.
        """
        if self._is_large:
            return None
        sinks = self._sorted_sinks(fingerprint)
        if self._latest is None or self._latest[0] != sinks:
            ranks = [0] * len(self._reads)
            for rank, index in enumerate(_depth_first(sinks, self._reads)):
                ranks[index] = rank
            self._latest = sinks, ranks
        return self._latest[1]

    def _sorted_sinks(self, fingerprint: Callable[[int], str]) -> list[int]:
        position = self._sinks
        has_many = len(self._reads) > MANY_OPS
        if len(position) == 1 or (has_many and len(set(position.values())) == len(position)):
            return sorted(position, key=position.__getitem__)
        labels = _refined_down(map(fingerprint, range(len(self._reads))), self._reads)
        if len({labels[sink] for sink in position}) < len(position):
            # Sinks with equal labels may still differ in where else their operands are read.
            labels = _refined_down(_refined_up(labels, self._reads), self._reads)
        if has_many:
            return sorted(position, key=lambda sink: (position[sink], labels[sink], sink))
        return sorted(position, key=lambda sink: (labels[sink], position[sink], sink))


def _refined_down(labels: Iterable[object], reads: _Reads) -> list[int]:
    """Return a label per operation that sums up its given label and all that leads to it."""
    refined: list[int] = []
    texts = _Texts()
    for label, read in zip(labels, reads, strict=True):
        if len(read) == 1:
            place, k = read[0]
            refined.append(_digest(f"({texts[label]}, [({refined[place] if place >= 0 else -1}, {k})])"))
            continue
        operands = [(refined[place] if place >= 0 else -1, k) for place, k in read]
        refined.append(_digest(f"({texts[label]}, {operands})"))
    return refined


def _refined_up(labels: Sequence[int], reads: _Reads) -> list[int]:
    """Return a label per operation that sums up its given label and all that its results lead to."""
    below: list[list[tuple[int, int, int]]] = [[] for _ in labels]
    refined = [0] * len(labels)
    for place in range(len(labels) - 1, -1, -1):
        uses = below[place]
        if len(uses) == 1:
            own = _digest(f"({labels[place]}, [{uses[0]}])")
        else:
            uses.sort()
            own = _digest(f"({labels[place]}, {uses})")
        refined[place] = own
        for position, (before, k) in enumerate(reads[place]):
            if before >= 0:
                below[before].append((own, position, k))
    return refined


class _Texts(dict[object, str]):
    """The text of each label, of which many operations share few."""

    def __missing__(self, label: object) -> str:
        return self.setdefault(label, repr(label))


# A copy of an empty state is made in less time than a new one.
_EMPTY = blake2b(digest_size=8)


def _digest(text: str) -> int:
    state = _EMPTY.copy()
    state.update(text.encode())
    return int.from_bytes(state.digest())


def _smallest_label_first(
    calls: Sequence[Call], labels: Sequence[int], reads: _Reads, ties: _Ties | None
) -> tuple[int, ...]:
    """Return the positions of operations in topological order: by label, when operands were computed, tie breaker."""
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
    operands: list[tuple[int, ...]] = [()] * len(calls)
    ready: list[tuple[int, tuple[int, ...], Any, int]] = []

    def push(place: int) -> None:
        heappush(ready, (labels[place], operands[place], None if ties is None else ties.tie(place), place))

    for place, count in enumerate(waiting):
        if not count:
            push(place)
    order: list[int] = []
    ranks = {-1: -1}
    while ready:
        place = heappop(ready)[-1]
        if place in ranks:
            continue
        ranks[place] = len(order)
        order.append(place)
        following = readers[place]
        # Where a single operation can come next, as in a chain, there is nothing to compare.
        while len(following) == 1 and not ready and ties is None and waiting[following[0]] == 1:
            place = following[0]
            waiting[place] = 0
            ranks[place] = len(order)
            order.append(place)
            following = readers[place]
        for reader in following:
            waiting[reader] -= 1
            if not waiting[reader]:
                operands[reader] = tuple([ranks[one] for one, _ in reads[reader]])
                push(reader)
        for reader in () if ties is None else ties.first_read_by(place):
            if not waiting[reader] and reader not in ranks:
                push(reader)  # before those of its label that read other values; its earlier entry is skipped
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
