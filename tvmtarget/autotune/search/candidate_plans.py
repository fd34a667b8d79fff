"""Plans that show by their times which operations run fast on which leaf.

A plan with all operations on one leaf gives the time of the leaf, but not of its operations. So the program is also
cut, where few values pass, into segments that alternate between the leaves, and sums of products are separated from
other operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from tvmtarget.partition.costs.work import Work
from tvmtarget.partition.plan import Plan

__all__ = ["Weigh", "plans_by_leaf", "plans_by_segment", "plans_by_work", "weight"]

Weigh = Callable[[int], float]

SEGMENTS = 8
BYTES_A_FLOP = 4  # a moved byte counts as so many floating-point operations


def weight(work: object) -> float:
    """Return an estimate of the work of an operation whose time is unknown.

    Args:
        work: the operation's `Work`, or anything else if that is unknown.

    Returns:
        Floating-point operations, and bytes in the same unit.
    """
    return 1.0 + work.flops + BYTES_A_FLOP * work.nbytes if isinstance(work, Work) else 1.0


def plans_by_leaf(plan: Plan) -> Iterator[Plan]:
    """Yield plans with all operations on one leaf, as far as that can run them.

    Args:
        plan: a plan of the program.

    Yields:
        A plan for each leaf.
    """
    for leaf in plan.topology.leaves():
        yield _replanned(plan, [leaf.path] * len(plan.program.body))


def plans_by_segment(plan: Plan, leaves: Sequence[str], weigh: Weigh) -> Iterator[Plan]:
    """Yield plans in which segments of the program alternate between leaves.

    Args:
        plan: a plan of the program.
        leaves: paths of leaves.
        weigh: returns the work of an operation by its index.

    Yields:
        A plan for each leaf; together, each segment runs on each leaf.
    """
    bounds = _bounds(plan, weigh)
    numbers = [number for number, (first, end) in enumerate(pairwise(bounds)) for _ in range(first, end)]
    for shift in range(len(leaves)):
        yield _replanned(plan, [leaves[(number + shift) % len(leaves)] for number in numbers])


def plans_by_work(plan: Plan, leaves: Sequence[str], is_sum: Callable[[int], bool]) -> Iterator[Plan]:
    """Yield plans with sums of products on one leaf, and all other operations on the next one.

    Args:
        plan: a plan of the program.
        leaves: paths of leaves.
        is_sum: whether an operation, by its index, sums products.

    Yields:
        A plan for each leaf.
    """
    for at, leaf in enumerate(leaves):
        other = leaves[(at + 1) % len(leaves)]
        yield _replanned(plan, [leaf if is_sum(index) else other for index in range(len(plan.program.body))])


def _replanned(plan: Plan, sites: Sequence[str]) -> Plan:
    """Return the plan with operations on the given sites, as far as these can run them."""
    chosen = {call.source: site for call, site in zip(plan.program.body, sites, strict=True)}
    return plan.replanned(plan.request.without_costs(), sites=chosen)


def _bounds(plan: Plan, weigh: Weigh) -> list[int]:
    """Return where segments begin and end: near equal shares of work, where the fewest values pass."""
    program = plan.program
    count = len(program.body)
    passing = [0] * (count + 1)
    for value, index in program.producer.items():
        for between in range(index + 1, max(program.consumers.get(value, ()), default=index) + 1):
            passing[between] += 1
    done = [0.0]
    for index in range(count):
        done.append(done[-1] + weigh(index))
    share = done[-1] / SEGMENTS
    found = {0, count}
    for number in range(1, SEGMENTS):
        near = [at for at in range(1, count) if abs(done[at] - number * share) <= share / 2]
        if near:
            found.add(min(near, key=lambda at: (passing[at], abs(done[at] - number * share))))
    return sorted(found)
