"""Who reads what inside a large leaf, as arrays of positions, which edits of single operations leave alone.

Positions are those in the list of its operations, so that leaves with equal wirings are listed in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvmtarget.partition.dataflow import Ints, spans
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.plan_cache import digest

__all__ = ["LARGE_LEAF", "LeafWiring", "is_large_leaf", "wiring_of_leaf"]

# Operations above which a leaf is large: such leaves seldom occur twice.
LARGE_LEAF = 1000


@dataclass(frozen=True, eq=False)
class LeafWiring:
    """The values of a large leaf.

    Attributes:
        inputs: values that it reads from elsewhere, by first use.
        outputs: values that it computes and that are read elsewhere or returned, in order.
        values: values that it reads or computes, by first occurrence.
        constants: constants that its function holds, by first occurrence.
        digest: digest of operands, results and outputs by position in `values` and `constants`; leaves with equal
            digests have equal wirings.
        readers: position of the reader of each operand.
        places: position of each operand among those of its reader.
        producers: position of the operation that computes each operand; -1 for values from elsewhere, -2 for constants.
        starts: positions of the operations that read nothing that the leaf computes, ascending.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: tuple[str, ...]
    constants: tuple[str, ...]
    digest: str
    readers: Ints
    places: Ints
    producers: Ints
    starts: Ints


def is_large_leaf(program: FlatProgram, calls: tuple[int, ...]) -> bool:
    """Return whether a leaf has a wiring in arrays.

    Args:
        program: the program.
        calls: operations of a leaf.

    Returns:
        False also in programs with nested bodies.
    """
    return len(calls) > LARGE_LEAF and not program.bodies


def wiring_of_leaf(program: FlatProgram, calls: tuple[int, ...], lifted: Collection[str] = ()) -> LeafWiring:
    """Compute the wiring of a large leaf. O(V + E).

    Args:
        program: a program without nested bodies.
        calls: the operations of the leaf, in topological order.
        lifted: constants that are parameters of its function.

    Returns:
        The wiring, which follows from that of the program and from the names of its constants.
    """
    operands = program.operands
    count, own = len(operands.names), np.array(calls)
    lengths = operands.start[own + 1] - operands.start[own]
    offsets = spans(lengths)
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)  # among the operands, then results of its call
    found = operands.values[np.repeat(operands.start[own], lengths) + place]
    call = np.repeat(np.arange(len(own)), lengths)
    is_input = place < np.repeat(operands.input_counts[own], lengths)

    # The last assignment counts, so that in reverse the first occurrence of each value is kept.
    first = np.zeros(count, dtype=np.int64)
    first[found[::-1]] = np.arange(len(found) - 1, -1, -1)
    distinct = found[first[found] == np.arange(len(found))]
    is_constant = _mask(operands.numbers, [name for name in program.constants if name not in lifted])[distinct]
    is_value = ~is_constant & (distinct != 0)
    number = np.full(count, -1)
    number[distinct[is_value]] = np.arange(np.count_nonzero(is_value))
    number[distinct[is_constant]] = -2 - np.arange(np.count_nonzero(is_constant))

    computed, read = found[~is_input], found[is_input]
    producer = np.full(count, -1)
    producer[computed] = call[~is_input]
    producer[distinct[is_constant]] = -2
    producer[0] = -1
    all_is_input = np.arange(len(operands.values)) < np.repeat(
        operands.start[:-1] + operands.input_counts, np.diff(operands.start)
    )
    is_read_elsewhere = np.bincount(operands.values[all_is_input], minlength=count) > np.bincount(read, minlength=count)
    leaves = is_read_elsewhere | _mask(operands.numbers, program.results)
    inputs = distinct[is_value & (producer[distinct] == -1)]
    outputs = computed[leaves[computed] & (computed != 0)]
    producers, is_start = producer[read], np.ones(len(own), dtype=np.bool_)
    is_start[call[is_input][producers >= 0]] = False

    def names(values: Ints) -> tuple[str, ...]:
        return tuple([operands.names[value] for value in values.tolist()])

    return LeafWiring(
        inputs=names(inputs),
        outputs=names(outputs),
        values=names(distinct[is_value]),
        constants=names(distinct[is_constant]),
        digest=digest(number[found], lengths, operands.input_counts[own], np.sort(number[outputs])),
        readers=call[is_input],
        places=place[is_input],
        producers=producers,
        starts=np.flatnonzero(is_start),
    )


def _mask(numbers: Mapping[str, int], names: Collection[str]) -> npt.NDArray[np.bool_]:
    """Return which values have some names."""
    found = np.zeros(len(numbers), dtype=np.bool_)
    found[[numbers[name] for name in names]] = True
    return found
