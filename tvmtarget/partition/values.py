"""Values that pass between atoms (indivisible groups of operations) or leave them, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import cast

import numpy as np
import numpy.typing as npt

from tvmtarget.ir.types import TensorType
from tvmtarget.partition.dataflow import NO_PRODUCER, Dataflow, Ints, distinct, spans

__all__ = ["Values", "owner_array", "values_of"]


# Sizes are capped here (4 TiB), so that a sum over a million values fits 64 bits.
MOST_BYTES = 2**42


@dataclass(frozen=True)
class Values:
    """Values that another atom reads than the one that computes them, or that leave the atoms; arrays are parallel.

    Attributes:
        producer: the atom that computes each value, `NO_PRODUCER` if none of them does.
        start: the atoms that read value i are `readers[start[i]:start[i + 1]]`.
        readers: atoms, each once per value, without the producer.
        is_live_out: whether something outside of the atoms reads the value too.
        type_ids: index of the value's type in the data flow.
        nbytes: size of each value in bytes: 1 where a dimension is symbolic, `MOST_BYTES` at most.
        numbers: index of each value in the data flow.
    """

    producer: Ints
    start: Ints
    readers: Ints
    is_live_out: npt.NDArray[np.bool_]
    type_ids: Ints
    nbytes: Ints
    numbers: Ints

    @cached_property
    def sizes(self) -> list[int]:
        """`nbytes` as a list."""
        return cast("list[int]", self.nbytes.tolist())

    @cached_property
    def producers(self) -> list[int]:
        """`producer` as a list."""
        return cast("list[int]", self.producer.tolist())

    @cached_property
    def readers_of(self) -> list[list[int]]:
        """The atoms that read each value."""
        readers = self.readers.tolist()
        return [readers[begin:end] for begin, end in pairwise(self.start.tolist())]

    def read_by(self, count: int) -> list[list[int]]:
        """List the values that each atom reads.

        Args:
            count: number of atoms.

        Returns:
            Ascending value numbers for each atom.
        """
        return _by_atom(self.reads[0], self.readers, count)

    def produced_by(self, count: int) -> list[list[int]]:
        """List the values that each atom computes.

        Args:
            count: number of atoms.

        Returns:
            Ascending value numbers for each atom.
        """
        has_producer = np.flatnonzero(self.producer >= 0)
        return _by_atom(has_producer, self.producer[has_producer], count)

    @cached_property
    def reads(self) -> tuple[Ints, Ints]:
        """The value of each entry of `readers`, and the entries whose value several atoms read."""
        lengths = np.diff(self.start)
        value = np.repeat(np.arange(len(self.producer)), lengths)
        return value, np.flatnonzero(lengths[value] > 1)

    def cut(self, subgraphs: Ints) -> int:
        """Return the bytes that pass between subgraphs.

        Args:
            subgraphs: the subgraph of each atom.

        Returns:
            Bytes; a value counts once for each other subgraph that reads it.
        """
        value, shared = self.reads
        reader = subgraphs[self.readers]
        producer = np.where(self.producer >= 0, subgraphs[self.producer], -1)[value]
        total = int(self.nbytes[value[reader != producer]].sum())
        # Several atoms of one subgraph may read the same value: subtract the repetitions.
        shared = shared[reader[shared] != producer[shared]]
        pairs = np.sort(value[shared] * len(subgraphs) + reader[shared])
        repeated = pairs[1:][pairs[1:] == pairs[:-1]] // max(1, len(subgraphs))
        return total - int(self.nbytes[repeated].sum())


def _by_atom(value: Ints, atom: Ints, count: int) -> list[list[int]]:
    ends = np.cumsum(np.bincount(atom, minlength=count)).tolist()
    ordered = value[np.argsort(atom, kind="stable")].tolist()
    return [ordered[begin:end] for begin, end in pairwise([0, *ends])]


def owner_array(count: int, atoms: Sequence[tuple[int, ...]]) -> Ints:
    """Return the atom of each operation.

    Args:
        count: number of operations.
        atoms: disjoint groups of operations.

    Returns:
        An index into `atoms` for each operation, -1 for one that is in no atom.
    """
    owner = np.full(count, -1, dtype=np.int64)
    members = [index for atom in atoms for index in atom]
    owner[members] = np.repeat(np.arange(len(atoms)), [len(atom) for atom in atoms])
    return owner


def values_of(flow: Dataflow, owner: Ints, count: int) -> Values:
    """Return the values that pass between atoms or leave them.

    Args:
        flow: the values of the operations.
        owner: the atom of each operation, see `owner_array`.
        count: number of atoms.

    Returns:
        The values, in the order of `flow`.
    """
    width = max(1, count)
    producer = np.where(flow.producer >= 0, owner[flow.producer], NO_PRODUCER)
    value = np.repeat(np.arange(len(flow.names)), np.diff(flow.start))
    atom = owner[flow.readers]
    is_live_out = flow.is_result.copy()
    is_live_out[value[atom < 0]] = True
    is_live_out &= producer >= 0
    is_external = (atom >= 0) & (atom != producer[value])
    # Pairs of value and reading atom, encoded as one number: sorted, and each once.
    pairs = distinct(value[is_external] * width + atom[is_external])
    lengths = np.bincount(pairs // width, minlength=len(flow.names))
    kept = (lengths > 0) | is_live_out
    sizes = [(type_.nbytes if isinstance(type_, TensorType) else None) or 1 for type_ in flow.types]
    nbytes = np.array([min(size, MOST_BYTES) for size in sizes], dtype=np.int64)[flow.type_ids]
    return Values(
        producer=producer[kept],
        start=spans(lengths[kept]),
        readers=pairs % width,
        is_live_out=is_live_out[kept],
        type_ids=flow.type_ids[kept],
        nbytes=nbytes[kept],
        numbers=np.flatnonzero(kept),
    )
