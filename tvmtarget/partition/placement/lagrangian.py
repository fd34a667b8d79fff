"""Assignments within memory capacities, by Lagrangian relaxation with one multiplier per memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import numpy.typing as npt

from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.placement.alpha_expansion import expand_labels
from tvmtarget.partition.placement.energy import LabelingProblem, energy_of
from tvmtarget.partition.placement.maxflow import Budget
from tvmtarget.partition.placement.memory_capacity import MemoryCapacity

__all__ = ["PricedLabelings", "Prices", "priced_labelings"]

# Prices that are tried, fewer where those of similar capacities are known, and the edge visits that the cuts for each
# may take.
MAX_PRICES, MAX_MORE_PRICES, WORK = 20, 10, 300_000

# The part of a launch that is charged between labels.
LAUNCH_SHARE = 0.5

# A step takes the prices to where the bound would be as high as the cost of a labeling that fits, were it linear; after
# so many steps without a higher bound, to half of that, and so on (Held, Wolfe and Crowder, "Validation of Subgradient
# Optimization", 1974).
PATIENCE = 3


@dataclass(frozen=True)
class Prices:
    """Prices of memory for a lower bound.

    A labeling that fits the memories costs no less than the least cost with these prices, less `most`.

    Attributes:
        costs: what each atom (row) pays for its constants with each label (column).
        most: what all pay together at most, as the memories hold no more.
        per_byte: the price of a byte by memory.
    """

    costs: Ints
    most: int
    per_byte: npt.NDArray[np.float64]


@dataclass(frozen=True)
class PricedLabelings:
    """Assignments for several prices of memory.

    Attributes:
        labelings: the one for the first prices, then one for each other set of prices, of which only some fit, those of
            the best prices last.
        fitting: what they become where atoms leave the memories that are too full, if that suffices.
        prices: the best prices for a lower bound.
    """

    labelings: list[Ints]
    fitting: list[Ints]
    prices: Prices


def priced_labelings(
    problem: LabelingProblem, capacity: MemoryCapacity, known: PricedLabelings | None = None
) -> PricedLabelings:
    """Return assignments for several prices of memory.

    The capacity limits move into the objective as a price per byte of each memory that has one (Fisher, "The Lagrangian
    Relaxation Method for Solving Integer Programming Problems", 1981). Prices go up while a memory is too full, and
    down while it is not. Of a constant that several atoms read, each pays a part.

    Args:
        problem: the labeling problem without capacities.
        capacity: the capacities.
        known: those for similar capacities, whose best prices are the first ones; None begins without prices.

    Returns:
        The assignments.
    """
    # What the readers of a constant pay together is at most its size, so that the bound is one.
    shares_of_first = capacity.shares(rounds_up=False)
    shares = np.zeros(len(problem.costs), dtype=np.int64)
    shares[: len(shares_of_first)] = shares_of_first
    is_limited = np.array([limit is not None for limit in capacity.limits])
    limits = np.array([limit or 0 for limit in capacity.limits])
    size = np.maximum(limits, 1)  # memories of all sizes are to be filled at the same pace
    # Beyond this price sums would not fit 64 bits.
    max_price = 2.0**59 / max(1, int(shares.sum()))
    energy, cost = energy_of(problem, 0.0), np.inf
    price = np.zeros(len(limits)) if known is None else known.prices.per_byte
    best, least, part, waited = price, -np.inf, 1.0, 0
    found, fitting, bounds = list[Ints](), list[Ints](), list[float]()
    for _ in range(MAX_PRICES if known is None else MAX_MORE_PRICES):
        costs = np.where(problem.allowed, problem.costs + _paid(shares, price, capacity), 0)
        # From the labels of other prices, cuts are fewer, but the bound is less tight.
        start = found[-1] if found and known is not None else None
        labels = expand_labels(replace(problem, costs=costs), LAUNCH_SHARE, Budget(WORK), start)
        found.append(labels)
        try:
            fitting.append(capacity.repaired(labels, problem.allowed, problem.costs))
            cost = min(cost, float(energy.total(fitting[-1])))
        except InfeasibleError:
            pass
        over = np.where(is_limited, np.bincount(capacity.memories[labels], shares, len(limits)) - limits, 0.0)
        bound = energy.total(labels) + float(price @ over)
        bounds.append(bound)
        if bound > least:
            best, least, waited = price, bound, 0
        elif (waited := waited + 1) == PATIENCE:
            part, waited = part / 2, 0
        # Full is what costs something, or is too full.
        slope = np.where((price > 0) | (over > 0), over / size, 0.0)
        if not slope.any() or least >= cost:
            break
        # Without a labeling that fits, the bound is to become twice as high.
        missing = (cost if cost < np.inf else 2 * abs(least) + 1) - bound
        price = np.clip(price + part * missing / (slope @ slope) * slope / size, 0.0, max_price)
    order = [0, *sorted(range(1, len(found)), key=lambda at: bounds[at])]
    prices = Prices(_paid(shares, best, capacity), ceil(best @ limits), best)
    return PricedLabelings([found[at] for at in order], fitting, prices)


def _paid(shares: Ints, price: npt.NDArray[np.float64], capacity: MemoryCapacity) -> Ints:
    return (shares[:, None] * price[capacity.memories]).astype(np.int64)
