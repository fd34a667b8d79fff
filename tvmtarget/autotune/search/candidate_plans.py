"""Plans that are worth measuring for what they teach: which operations run well on which leaf.

All on one leaf says what a leaf takes, but not which of its operations take that. So the program is also cut where
few values pass into segments that take turns between the leaves, and sums of products are set apart from the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from tvmtarget.partition.costs.work import Work
from tvmtarget.partition.plan import Plan

__all__ = ["Weigh", "plans_by_leaf", "plans_by_segment", "plans_by_work", "weight"]

Weigh = Callable[[int], float]

SEGMENTS = 8
BYTES_A_FLOP = 4  # how work is weighed: a byte moved counts as much as so many operations


def weight(work: object) -> float:
    """Return how much an operation has to do, for want of a time; `work` is what is known of it."""
    return 1.0 + work.flops + BYTES_A_FLOP * work.nbytes if isinstance(work, Work) else 1.0


def plans_by_leaf(plan: Plan) -> Iterator[Plan]:
    """Yield, for each leaf of a composite, the plan with all operations on it that may go there."""
    for leaf in plan.topology.leaves():
        yield _with(plan, [leaf.path] * len(plan.program.body))


def plans_by_segment(plan: Plan, leaves: Sequence[str], weigh: Weigh) -> Iterator[Plan]:
    """Yield a plan for each leaf in which segments of the program take turns; together, each has been on each leaf."""
    bounds = _bounds(plan, weigh)
    numbers = [number for number, (first, end) in enumerate(pairwise(bounds)) for _ in range(first, end)]
    for shift in range(len(leaves)):
        yield _with(plan, [leaves[(number + shift) % len(leaves)] for number in numbers])


def plans_by_work(plan: Plan, leaves: Sequence[str], is_sum: Callable[[int], bool]) -> Iterator[Plan]:
    """Yield for each leaf the plan with sums of products on it, and the rest on the next one."""
    for at, leaf in enumerate(leaves):
        other = leaves[(at + 1) % len(leaves)]
        yield _with(plan, [leaf if is_sum(index) else other for index in range(len(plan.program.body))])


def _with(plan: Plan, sites: Sequence[str]) -> Plan:
    """Return the plan with operations where they are wanted, as far as they may go there."""
    wanted = {call.source: site for call, site in zip(plan.program.body, sites, strict=True)}
    return plan.replanned(plan.request.with_options(costs=None, objective="latency"), sites=wanted)


def _bounds(plan: Plan, weigh: Weigh) -> list[int]:
    """Return where segments begin and end: of the bounds that are near equal shares of work, the fewest values pass."""
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
