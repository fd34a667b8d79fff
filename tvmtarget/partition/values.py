"""The values that pass between groups of operations, or leave them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import cast

import numpy as np
import numpy.typing as npt

from tvmtarget.ir.types import TensorType
from tvmtarget.partition.dataflow import GIVEN, Dataflow, Ints, spans

__all__ = ["Values", "owners", "values_of"]


# Larger values are alike to those who compare them, so that a million of them can be added up in 64 bits.
MOST_BYTES = 2**42


@dataclass(frozen=True)
class Values:
    """Values that another atom reads than the one that computes them, or that leave the atoms; arrays are parallel.

    `producer` is the atom that computes a value, `GIVEN` if none does. The atoms that read it are
    `readers[start[i]:start[i + 1]]`; `is_live_out` says that something outside of the atoms reads it too. `kinds` are
    their types, by number in the dataflow, and `nbytes` their sizes, 1 where that is open, `MOST_BYTES` at most.
    """

    producer: Ints
    start: Ints
    readers: Ints
    is_live_out: npt.NDArray[np.bool_]
    kinds: Ints
    nbytes: Ints

    @cached_property
    def sizes(self) -> list[int]:
        """The bytes of every value."""
        return cast("list[int]", self.nbytes.tolist())

    @cached_property
    def producers(self) -> list[int]:
        """The atom that computes every value."""
        return cast("list[int]", self.producer.tolist())

    @cached_property
    def readers_of(self) -> list[list[int]]:
        """The atoms that read every value."""
        readers = self.readers.tolist()
        return [readers[begin:end] for begin, end in pairwise(self.start.tolist())]

    def read_by(self, count: int) -> list[list[int]]:
        """Return the values that each of `count` atoms reads."""
        return _by_atom(self.reads[0], self.readers, count)

    def produced_by(self, count: int) -> list[list[int]]:
        """Return the values that each of `count` atoms computes."""
        made = np.flatnonzero(self.producer >= 0)
        return _by_atom(made, self.producer[made], count)

    @cached_property
    def reads(self) -> tuple[Ints, Ints]:
        """Which value every entry of `readers` is of, and the entries of values that several atoms read."""
        lengths = np.diff(self.start)
        value = np.repeat(np.arange(len(self.producer)), lengths)
        return value, np.flatnonzero(lengths[value] > 1)

    def cut(self, subgraphs: Ints) -> int:
        """Return the bytes that pass between subgraphs, once for each subgraph that reads a value."""
        value, shared = self.reads
        there = subgraphs[self.readers]
        here = np.where(self.producer >= 0, subgraphs[self.producer], -1)[value]
        total = int(self.nbytes[value[there != here]].sum())
        shared = shared[there[shared] != here[shared]]
        pairs = np.sort(value[shared] * len(subgraphs) + there[shared])
        again = pairs[1:][pairs[1:] == pairs[:-1]] // max(1, len(subgraphs))
        return total - int(self.nbytes[again].sum())


def _by_atom(value: Ints, atom: Ints, count: int) -> list[list[int]]:
    ends = np.cumsum(np.bincount(atom, minlength=count)).tolist()
    ordered = value[np.argsort(atom, kind="stable")].tolist()
    return [ordered[begin:end] for begin, end in pairwise([0, *ends])]


def owners(count: int, atoms: Sequence[tuple[int, ...]]) -> Ints:
    """Return the atom of every one of `count` operations, -1 for one in none."""
    owner = np.full(count, -1, dtype=np.int64)
    members = [index for atom in atoms for index in atom]
    owner[members] = np.repeat(np.arange(len(atoms)), [len(atom) for atom in atoms])
    return owner


def values_of(flow: Dataflow, owner: Ints, count: int) -> Values:
    """Return the values that pass between atoms or leave them, `owner` being the atom of every operation."""
    width = max(1, count)
    producer = np.where(flow.producer >= 0, owner[flow.producer], GIVEN)
    value = np.repeat(np.arange(len(flow.names)), np.diff(flow.start))
    atom = owner[flow.readers]
    is_live_out = flow.is_result.copy()
    is_live_out[value[atom < 0]] = True
    is_live_out &= producer >= 0
    reads = (atom >= 0) & (atom != producer[value])
    pairs = np.unique(value[reads] * width + atom[reads])
    lengths = np.bincount(pairs // width, minlength=len(flow.names))
    kept = (lengths > 0) | is_live_out
    sizes = [(type_.nbytes if isinstance(type_, TensorType) else None) or 1 for type_ in flow.types]
    nbytes = np.array([min(size, MOST_BYTES) for size in sizes], dtype=np.int64)[flow.kinds]
    return Values(
        producer[kept], spans(lengths[kept]), pairs % width, is_live_out[kept], flow.kinds[kept], nbytes[kept]
    )
