"""Who reads what inside the leaves of a large program, as arrays over all leaves.

A value that several leaves read has a place in each of them. Positions of operations are those in the lists of all
leaves, one after the other; values and constants of a leaf are numbered by first occurrence in its list, so that leaves
with equal digests are listed in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import chain

import numpy as np
import numpy.typing as npt

from tvmtarget.partition.dataflow import Ints, distinct, renumbered, spans
from tvmtarget.partition.flat_program import FlatProgram

__all__ = ["LARGE_PROGRAM", "LeafNames", "LeafWirings", "has_listed_leaves", "wirings_of_leaves"]

# Operations above which a program is large: labels of all its operations would take most of the time of planning.
LARGE_PROGRAM = 1000

# Producers of operands that no operation of the leaf computes.
OUTSIDE, CONSTANT = -1, -2

# Where at most so many operations have other labels than before, only these and those near them are refined again.
LOCAL_SHARE = 0.02

# Rounds of colour refinement: operations of one label have equal surroundings up to that distance.
ROUNDS = 6

_Labels = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class LeafNames:
    """Names of some values of each leaf.

    Attributes:
        names: those of all leaves, one after the other.
        start: the names of leaf n are `names[start[n]:start[n + 1]]`.
    """

    names: Sequence[str]
    start: Sequence[int]

    def __getitem__(self, leaf: int) -> tuple[str, ...]:
        return tuple(self.names[self.start[leaf] : self.start[leaf + 1]])


@dataclass(frozen=True, eq=False)
class LeafWirings:
    """The values of all leaves.

    Attributes:
        start: the operations of leaf n are at the positions from `start[n]` to before `start[n + 1]`.
        ops: number of the operation at each position.
        inputs: values that a leaf reads from elsewhere, by first use.
        outputs: values that it computes and that are read elsewhere or returned, in order.
        values: values that it reads or computes, by first occurrence.
        constants: constants that its function holds, by first occurrence.
        digests: digest of operands, results and outputs by position in `values` and `constants`.
        readers: position of the reader of each operand, ascending.
        places: position of each operand among those of its reader.
        producers: position of the operation that computes each operand; `OUTSIDE` or `CONSTANT` if there is none.
        known_labels: labels of the operations that were refined before, then those after each round; empty if none
            were.
    """

    start: Ints
    ops: Ints
    inputs: LeafNames
    outputs: LeafNames
    values: LeafNames
    constants: LeafNames
    digests: Sequence[bytes]
    readers: Ints
    places: Ints
    producers: Ints
    known_labels: list[_Labels] = field(default_factory=list)

    def of(self, leaf: int) -> LeafWirings:
        """Return the wiring of a single leaf.

        Args:
            leaf: its number.

        Returns:
            That leaf as number 0, with positions in its own list.
        """
        if len(self.start) == 2:
            return self
        begin, end = self.start[leaf : leaf + 2].tolist()
        own = slice(*np.searchsorted(self.readers, [begin, end]).tolist())
        producers = self.producers[own]
        names = (self.inputs, self.outputs, self.values, self.constants)
        inputs, outputs, values, constants = (LeafNames(one[leaf], (0, len(one[leaf]))) for one in names)
        return LeafWirings(
            start=np.array([0, end - begin]),
            ops=self.ops[begin:end],
            inputs=inputs,
            outputs=outputs,
            values=values,
            constants=constants,
            digests=[self.digests[leaf]],
            readers=self.readers[own] - begin,
            places=self.places[own],
            producers=np.where(producers >= 0, producers - begin, producers),
            known_labels=[labels[begin:end] for labels in self.known_labels],
        )

    def labels(self, given: _Labels) -> _Labels:
        """Refine labels of operations by what they read and what reads them, in a few rounds.

        Colour refinement (Weisfeiler and Leman, 1968) with sums of hashes, which do not depend on how a leaf is
        listed. Operations whose surroundings differ farther away may have equal labels.

        Args:
            given: a label for each position.

        Returns:
            The refined labels.
        """
        uses = self._uses
        changed = np.flatnonzero(given != self.known_labels[0]) if self.known_labels else np.arange(len(given))
        if len(changed) > LOCAL_SHARE * len(given):
            rounds = [given]
            for _ in range(ROUNDS):
                rounds.append(uses.refined(rounds[-1]))
            self.known_labels[:] = rounds
            return rounds[-1]
        labels = given
        for known in self.known_labels[1:]:
            # What is farther away keeps its label.
            changed = uses.with_neighbours(changed)
            refined = known.copy()
            refined[changed] = uses.refined(labels, changed)
            labels = refined
        return labels

    @cached_property
    def _uses(self) -> _Uses:
        count = int(self.start[-1])
        inner = np.flatnonzero(self.producers >= 0)
        inner = inner[np.argsort(self.producers[inner], kind="stable")]
        places = _mixed(self.places.astype(np.uint64) + np.uint64(1))
        return _Uses(
            # Labels of producers that are no operations of the leaf stand behind those of operations.
            sources=np.where(self.producers >= 0, self.producers, count - 1 - self.producers),
            places=places,
            reads=np.searchsorted(self.readers, np.arange(count + 1)),
            readers=self.readers[inner],
            places_there=places[inner],
            uses=np.searchsorted(self.producers[inner], np.arange(count + 1)),
        )


@dataclass(frozen=True, eq=False)
class _Uses:
    """Operands and readers of operations, for the refinement of labels.

    Attributes:
        sources: of each operand, the position of the operation that computes it.
        places: of each operand, a hash of its place among those of its reader.
        reads: operands of operation n are those from `reads[n]` to before `reads[n + 1]`.
        readers: of each use of a result, the position of the operation that reads it.
        places_there: of each use, a hash of the place that it is read at.
        uses: results of operation n have the uses from `uses[n]` to before `uses[n + 1]`.
    """

    sources: Ints
    places: _Labels
    reads: Ints
    readers: Ints
    places_there: _Labels
    uses: Ints

    def refined(self, labels: _Labels, at: Ints | None = None) -> _Labels:
        """Return the labels of some operations, or all, after one more round."""
        read, reads = _parts(self.reads, at)
        used, uses = _parts(self.uses, at)
        operands = _mixed(np.concatenate([labels, _ELSEWHERE])[self.sources[read]] ^ self.places[read])
        readers = _mixed(labels[self.readers[used]] + self.places_there[used])
        own = labels if at is None else labels[at]
        return _mixed(own * _ODD + _sums(operands, reads)) + _mixed(_sums(readers, uses))

    def with_neighbours(self, at: Ints) -> Ints:
        """Return operations, and those whose results they read or that read theirs."""
        sources = self.sources[_parts(self.reads, at)[0]]
        return distinct(
            np.concatenate([at, sources[sources < len(self.reads) - 1], self.readers[_parts(self.uses, at)[0]]])
        )


def _parts(start: Ints, at: Ints | None) -> tuple[Ints | slice, Ints]:
    """Return the indices in concatenated lists of some of the lists, and where each begins and the last ends."""
    if at is None:
        return slice(None), start
    lengths = start[at + 1] - start[at]
    begins = spans(lengths)
    return np.repeat(start[at] - begins[:-1], lengths) + np.arange(begins[-1]), begins


# Odd 64-bit constants of splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
_ODD, _FIRST, _SECOND = (np.uint64(one) for one in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))

_ELSEWHERE: _Labels = np.array([_FIRST, _SECOND])


def _mixed(labels: _Labels) -> _Labels:
    """Return hashes of 64-bit numbers: the last steps of splitmix64."""
    labels = (labels ^ (labels >> np.uint64(30))) * _FIRST
    labels = (labels ^ (labels >> np.uint64(27))) * _SECOND
    mixed: _Labels = labels ^ (labels >> np.uint64(31))
    return mixed


def _sums(numbers: _Labels, start: Ints) -> _Labels:
    """Return sums, modulo 2**64, of consecutive spans."""
    sums: _Labels = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(numbers, dtype=np.uint64)])
    return sums[start[1:]] - sums[start[:-1]]


def has_listed_leaves(program: FlatProgram) -> bool:
    """Return whether the leaves of a program are compared as they are listed, in arrays.

    Args:
        program: the program.

    Returns:
        False in programs with nested bodies.
    """
    return len(program.body) > LARGE_PROGRAM and not program.bodies


def wirings_of_leaves(
    program: FlatProgram, leaves: Sequence[tuple[int, ...]], lifted: Mapping[int, Collection[str]]
) -> LeafWirings:
    """Compute the wirings of leaves. O(E log E).

    Args:
        program: a program without nested bodies.
        leaves: the operations of each leaf, in topological order.
        lifted: constants that are parameters, by the first operation of a leaf.

    Returns:
        The wirings, which follow from that of the program and from the names of its constants.
    """
    operands = program.operands
    count, start = len(operands.names), spans(map(len, leaves))
    own = np.fromiter(chain.from_iterable(leaves), dtype=np.int64, count=int(start[-1]))
    leaf_of = np.repeat(np.arange(len(leaves)), np.diff(start))
    lengths = operands.start[own + 1] - operands.start[own]
    offsets = spans(lengths)
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)  # among the operands, then results of its call
    found = operands.values[np.repeat(operands.start[own], lengths) + place]
    call = np.repeat(np.arange(len(own)), lengths)
    is_input = place < np.repeat(operands.input_counts[own], lengths)

    # The values of each leaf, in the order of their first occurrence, and which of them every operand and result is.
    keys, entry = renumbered(leaf_of[call] * count + found)
    leaf, value = np.divmod(keys, count)
    is_constant = _mask(operands.numbers, program.constants)[value]
    names = [
        number * count + operands.numbers[name]
        for number, calls in enumerate(leaves if lifted else ())
        for name in lifted.get(calls[0], ())
    ]
    is_constant &= ~np.isin(keys, names)
    is_value = ~is_constant & (value != 0)
    numbers = np.where(is_value, _places(is_value, leaf), np.where(is_constant, -2 - _places(is_constant, leaf), -1))

    producer = np.full(len(keys), OUTSIDE)
    producer[entry[~is_input]] = call[~is_input]
    producer[is_constant] = CONSTANT
    producer[value == 0] = OUTSIDE
    is_read = np.arange(len(operands.values)) < np.repeat(
        operands.start[:-1] + operands.input_counts, np.diff(operands.start)
    )
    reads = np.bincount(operands.values[is_read], minlength=count)
    is_read_elsewhere = reads[value] > np.bincount(entry[is_input], minlength=len(keys))
    is_output = (producer >= 0) & (is_read_elsewhere | _mask(operands.numbers, program.results)[value])

    def named(chosen: npt.NDArray[np.bool_]) -> LeafNames:
        bounds = np.searchsorted(leaf[chosen], np.arange(len(leaves) + 1)).tolist()
        return LeafNames([operands.names[number] for number in value[chosen].tolist()], bounds)

    codes = ((numbers * 2 + is_output)[entry] * 2 + is_input).astype("<i8").tobytes()
    counts = lengths.astype("<i8").tobytes()
    begins = (8 * offsets[start]).tolist()
    digests = [
        blake2b(counts[8 * begin : 8 * end] + codes[first:last], digest_size=16).digest()
        for begin, end, first, last in zip(
            start[:-1].tolist(), start[1:].tolist(), begins[:-1], begins[1:], strict=True
        )
    ]
    return LeafWirings(
        start=start,
        ops=own,
        inputs=named(is_value & (producer == OUTSIDE)),
        outputs=named(is_output),
        values=named(is_value),
        constants=named(is_constant),
        digests=digests,
        readers=call[is_input],
        places=place[is_input],
        producers=producer[entry[is_input]],
    )


def _places(chosen: npt.NDArray[np.bool_], leaf: Ints) -> Ints:
    """Return how many chosen values of its leaf come before each value."""
    before: Ints = np.cumsum(chosen) - chosen
    begins = np.searchsorted(leaf, leaf)
    places: Ints = before - before[begins]
    return places


def _mask(numbers: Mapping[str, int], names: Collection[str]) -> npt.NDArray[np.bool_]:
    """Return which values have some names."""
    found = np.zeros(len(numbers), dtype=np.bool_)
    found[[numbers[name] for name in names]] = True
    return found
