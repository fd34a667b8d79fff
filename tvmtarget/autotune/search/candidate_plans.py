"""Plans that show by their times which operations run fast on which leaf.

A plan with all operations on one leaf gives the time of the leaf, but not of its operations. So the program is also
cut, where few values pass, into segments that alternate between the leaves, and sums of products are separated from
other operations. The times of segments give the fastest choice of a leaf for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tvmtarget.partition.costs.work import Work
from tvmtarget.partition.plan import Plan

__all__ = ["SegmentTimes", "Segments", "plans_by_leaf", "plans_by_work", "weight"]

SEGMENTS = 16
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


@dataclass(frozen=True)
class Segments:
    """A program cut into segments, near equal shares of work and where the fewest values pass.

    Attributes:
        plan: a plan of the program.
        work: the work of each operation.
        numbers: the number of the segment of each operation.
    """

    plan: Plan
    work: Sequence[float]
    numbers: Sequence[int]

    @classmethod
    def of(cls, plan: Plan, work: Sequence[float]) -> Segments:
        """Cut the program of a plan.

        Args:
            plan: the plan.
            work: the work of each operation.

        Returns:
            At most `SEGMENTS` segments.
        """
        bounds = _bounds(plan, work)
        return cls(
            plan, work, [number for number, (first, end) in enumerate(pairwise(bounds)) for _ in range(first, end)]
        )

    def __len__(self) -> int:
        return 1 + max(self.numbers, default=-1)

    def alternating(self, leaves: Sequence[str]) -> list[list[str]]:
        """Return choices of leaves such that each segment is on each leaf in one of them.

        Args:
            leaves: paths of leaves.

        Returns:
            A choice for each leaf.
        """
        return [[leaves[(number + shift) % len(leaves)] for number in range(len(self))] for shift in range(len(leaves))]

    def placed(self, choice: Sequence[str]) -> Plan:
        """Return the plan with each segment on a leaf, as far as that can run it.

        Args:
            choice: the path of a leaf for each segment.

        Returns:
            The plan.
        """
        return _replanned(self.plan, [choice[number] for number in self.numbers])

    def times(self, plan: Plan, functions: Mapping[str, float], cost: float) -> list[float]:
        """Return what each segment took in a plan that ran.

        Args:
            plan: the plan.
            functions: the time of each function by name; of one with operations of several segments, by their work.
            cost: the time of the whole program; what it takes beside its functions belongs equally to all segments.

        Returns:
            Times by segment, which add up to that of the program.
        """
        taken = [0.0] * len(self)
        for subgraph in plan.subgraphs:
            time, work = functions.get(subgraph.function, 0.0), sum(self.work[index] for index in subgraph.calls)
            for index in subgraph.calls:
                taken[self.numbers[index]] += time * self.work[index] / work
        beside = (cost - sum(taken)) / max(1, len(self))
        return [each + beside for each in taken]


@dataclass(frozen=True)
class SegmentTimes:
    """What the segments of a program take on each leaf, and the cuts between segments on different leaves.

    Segments are measured between segments of other leaves, and take longer there: values change their layout, and
    caches hold other data. Without cuts, the segments of a leaf take the time of the whole program on it, in the same
    proportions. What they take more as measured belongs to the cuts beside them, equally. With fewer cuts, each of them
    may take less, because the buffers of fewer functions fit into the caches.

    Attributes:
        inside: of each segment, its time without cuts by leaf.
        side: what a cut takes more on the side of each leaf, where every segment is beside cuts.
    """

    inside: Sequence[Mapping[str, float]]
    side: Mapping[str, float]

    @classmethod
    def of(cls, times: Sequence[Mapping[str, float]], alone: Mapping[str, float]) -> SegmentTimes:
        """Separate what segments take from what cuts take.

        Args:
            times: of each segment, its time by leaf between segments of other leaves.
            alone: the time of the whole program by leaf.

        Returns:
            The times.
        """
        measured = {leaf: sum(each[leaf] for each in times) for leaf in alone}
        share = {leaf: whole / max(1.0, measured[leaf]) for leaf, whole in alone.items()}
        inside = [{leaf: each[leaf] * share[leaf] for leaf in alone} for each in times]
        # Each cut has two sides.
        sides = 2 * max(1, len(times) - 1)
        return cls(inside, {leaf: max(0.0, measured[leaf] - whole) / sides for leaf, whole in alone.items()})

    def fastest(self, share: float) -> tuple[list[str], float]:
        """Return the fastest choice of a leaf for each segment.

        Args:
            share: what a cut takes, as a share of what it takes where every segment is beside cuts.

        Returns:
            A leaf for each segment, and the time of the program: of a choice of one leaf, the time of that leaf alone.
        """
        # For each leaf of the last segment, the fastest choice for all segments so far.
        best: dict[str, tuple[float, list[str]]] = {leaf: (time, [leaf]) for leaf, time in self.inside[0].items()}
        for inside in self.inside[1:]:
            best = {
                leaf: min(
                    (before + time + (share * self._cut(last, leaf) if last != leaf else 0.0), [*choice, leaf])
                    for last, (before, choice) in best.items()
                )
                for leaf, time in inside.items()
            }
        least, choice = min(best.values())
        return choice, least

    def share(self, choice: Sequence[str], cost: float) -> float:
        """Return what a cut takes in a placement, as a share of what it takes between all segments.

        Args:
            choice: the leaf of each segment.
            cost: the time of the program with that choice.

        Returns:
            From 0 to 1; 1 if the choice has no cuts.
        """
        inside = sum(times[leaf] for times, leaf in zip(self.inside, choice, strict=True))
        cuts = sum(self._cut(last, leaf) for last, leaf in pairwise(choice) if last != leaf)
        return min(1.0, max(0.0, cost - inside) / cuts) if cuts else 1.0

    def _cut(self, last: str, leaf: str) -> float:
        return self.side[last] + self.side[leaf]


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


def _bounds(plan: Plan, work: Sequence[float]) -> list[int]:
    """Return where segments begin and end: near equal shares of work, where the fewest values pass."""
    program = plan.program
    count = len(program.body)
    passing = [0] * (count + 1)
    for value, index in program.producer.items():
        for between in range(index + 1, max(program.consumers.get(value, ()), default=index) + 1):
            passing[between] += 1
    done = [0.0]
    for each in work:
        done.append(done[-1] + each)
    share = done[-1] / SEGMENTS
    found = {0, count}
    for number in range(1, SEGMENTS):
        near = [at for at in range(1, count) if abs(done[at] - number * share) <= share / 2]
        if near:
            found.add(min(near, key=lambda at: (passing[at], abs(done[at] - number * share))))
    return sorted(found)
