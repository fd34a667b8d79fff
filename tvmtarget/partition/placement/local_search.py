"""Small changes of a choice of sites: one atom, all atoms at a value, or all of a site go elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.placement.energy import LabelingProblem

__all__ = ["neighboring_assignments"]


def neighboring_assignments(placement: LabelingProblem, labels: Ints) -> Iterator[Ints]:
    """Yield labels with one atom under another label, or all that a value, or an edge of it, joins, or one label."""
    for atoms in sorted(_together(placement)):
        members = list(atoms)
        for label in np.flatnonzero(placement.allowed[members].all(axis=0)).tolist():
            if (labels[members] != label).any():
                moved = labels.copy()
                moved[members] = label
                yield moved
    for left in np.unique(labels).tolist():
        for label in np.unique(labels).tolist():
            leaving = (labels == left) & placement.allowed[:, label]
            if left != label and leaving.any():
                yield np.where(leaving, label, labels)


def _together(placement: LabelingProblem) -> set[tuple[int, ...]]:
    groups: set[tuple[int, ...]] = {(atom,) for atom in range(len(placement.costs))}
    readers = placement.readers.tolist()
    for producer, (begin, end) in zip(placement.producer.tolist(), pairwise(placement.start.tolist()), strict=True):
        found = readers[begin:end] if producer < 0 else [producer, *readers[begin:end]]
        groups.add(tuple(sorted(set(found))))
        if producer >= 0:
            groups |= {(min(producer, reader), max(producer, reader)) for reader in found[1:]}
    return groups - {()}
