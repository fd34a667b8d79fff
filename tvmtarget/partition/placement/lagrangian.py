"""Choices within what memories hold: bytes get a price where they do not fit, until they do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.placement.alpha_expansion import expand_labels
from tvmtarget.partition.placement.energy import LabelingProblem
from tvmtarget.partition.placement.maxflow import Budget
from tvmtarget.partition.placement.memory_capacity import MemoryCapacity

__all__ = ["within_capacity"]

# Prices that are tried, and the work that the cuts for each may take.
MAX_PRICES, WORK = 20, 300_000

SHARE = 0.5


def within_capacity(placement: LabelingProblem, room: MemoryCapacity) -> Iterator[Ints]:
    """Yield choices that fit, by the method of Lagrange: the price of a byte is halved between too low and too high.

    The last one is repaired by moving single atoms; `InfeasibleError` says what does not fit even then.
    """
    count, memories = len(placement.costs), len(room.limits)
    shares = np.zeros(count, dtype=np.int64)
    found = room.shares()
    shares[: len(found)] = found
    low, high = np.zeros(memories), np.full(memories, np.inf)
    dearest = 2.0**59 / max(1, int(shares.sum()))
    price = np.full(memories, max(1.0, float(placement.costs.max(initial=0)) / max(1, int(shares.max(initial=0)))))
    labels = placement.allowed.argmax(axis=1)
    for _ in range(MAX_PRICES):
        extra = (shares[:, None] * price[room.memories]).astype(np.int64)
        dearer = replace(placement, costs=np.where(placement.allowed, placement.costs + extra, 0))
        labels = expand_labels(dearer, SHARE, Budget(WORK))
        loads = room.loads(labels)
        is_over = np.array([limit is not None and load > limit for load, limit in zip(loads, room.limits, strict=True)])
        if not is_over.any():
            yield labels
        low, high = np.where(is_over, price, low), np.where(is_over, high, price)
        price = np.where(
            np.isinf(high), np.minimum(price * 8, dearest), (low + np.where(np.isinf(high), low, high)) / 2
        )
    yield room.repaired(labels, placement.allowed, placement.costs)
    yield room.repaired(expand_labels(placement, SHARE, Budget(WORK)), placement.allowed, placement.costs)
