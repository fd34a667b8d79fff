"""Assignments within memory capacities, by Lagrangian relaxation with one multiplier per memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.placement.alpha_expansion import expand_labels
from tvmtarget.partition.placement.energy import LabelingProblem
from tvmtarget.partition.placement.maxflow import Budget
from tvmtarget.partition.placement.memory_capacity import MemoryCapacity

__all__ = ["priced_labelings"]

# Multipliers that are tried, and the edge visits that the cuts for each may take.
MAX_PRICES, WORK = 20, 300_000

# The part of a launch that is charged between labels.
SHARE = 0.5


def priced_labelings(problem: LabelingProblem, capacity: MemoryCapacity) -> list[Ints]:
    """Return assignments for several prices of memory, of which only some fit.

    The capacity limits move into the objective as a price per byte of each memory (Fisher, "The Lagrangian Relaxation
    Method for Solving Integer Programming Problems", 1981). The price of each memory is found by bisection: raised
    while the memory is too full, lowered while it is not. Of a constant that several atoms read, each pays a part.

    Args:
        problem: the labeling problem without capacities.
        capacity: the capacities.

    Returns:
        The labeling without prices, then one for each set of prices.
    """
    count, memories = len(problem.costs), len(capacity.limits)
    shares = np.zeros(count, dtype=np.int64)
    bytes_of_first = capacity.shares()
    shares[: len(bytes_of_first)] = bytes_of_first
    low, high = np.zeros(memories), np.full(memories, np.inf)
    # Beyond this price sums would not fit 64 bits.
    max_price = 2.0**59 / max(1, int(shares.sum()))
    price = np.full(memories, max(1.0, float(problem.costs.max(initial=0)) / max(1, int(shares.max(initial=0)))))
    found = [expand_labels(problem, SHARE, Budget(WORK))]
    for _ in range(MAX_PRICES):
        extra = (shares[:, None] * price[capacity.memories]).astype(np.int64)
        priced = replace(problem, costs=np.where(problem.allowed, problem.costs + extra, 0))
        found.append(expand_labels(priced, SHARE, Budget(WORK)))
        loads = capacity.loads(found[-1])
        is_over = np.array(
            [limit is not None and load > limit for load, limit in zip(loads, capacity.limits, strict=True)]
        )
        low, high = np.where(is_over, price, low), np.where(is_over, high, price)
        # Until a price is high enough it grows by 8, then the interval is halved.
        price = np.where(
            np.isinf(high), np.minimum(price * 8, max_price), (low + np.where(np.isinf(high), low, high)) / 2
        )
    return found
