"""What functions of partitioned programs take, beside what costs predict of them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tvmtarget import Plan
    from tvmtarget.partition.costs.estimate import Estimates

__all__ = ["Prediction", "explored", "predictions", "spread"]

RUNS, SECONDS = 30, 1.0  # of a plan at most


@dataclass(frozen=True)
class Prediction:
    """A function on a leaf: microseconds that costs say a call takes, and those of the fastest one."""

    site: str
    ops: int
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """The logarithm of how many times too large the prediction is."""
        return math.log(self.predicted / self.measured)


def explored(plan: Plan, estimates: Estimates, leaves: Sequence[str]) -> Iterator[Plan]:
    """Yield plans of a program: all on each of some leaves, and segments on these by turns."""
    from tvmtarget.autotune.search.candidate_plans import Segments, plans_by_leaf, weight

    for leaf, alone in zip(plan.topology.leaves(), plans_by_leaf(plan), strict=True):
        if leaf.path in leaves:
            yield alone
    segments = Segments.of(plan, [weight(estimates.work(index)) for index in range(len(plan.program.body))])
    yield from map(segments.placed, segments.alternating(leaves))


def predictions(plan: Plan, estimates: Estimates, inputs: Mapping[str, np.ndarray]) -> Iterator[Prediction]:
    """Run a plan, and yield what its functions take; `estimates` are of the same program."""
    import tvmtarget as tt
    from tvmtarget.executors.protocol import CallEvent

    program = tt.build(plan)
    program.run(inputs)
    least: dict[str, float] = {}
    until = time.monotonic() + SECONDS
    for number in range(RUNS):
        if number and time.monotonic() > until:
            break
        events: list[object] = []
        program.run(inputs, record=events.append)
        for event in events:
            if isinstance(event, CallEvent):
                taken = event.duration_ns / 1000
                least[event.function] = min(taken, least.get(event.function, taken))
    for subgraph in plan.subgraphs:
        site = plan.topology[subgraph.site]
        times = [estimates.time(index, site).time for index in subgraph.calls]
        known = [each for each in times if each is not None]
        if len(known) == len(times) and subgraph.function in least:
            predicted = (estimates.launch(site) + sum(known)) / 10**6
            yield Prediction(subgraph.site, len(subgraph.calls), predicted, least[subgraph.function])


def spread(found: Sequence[Prediction]) -> str:
    """Return how far off predictions are: all, and by leaf; the sign of the median is the direction."""
    sites = sorted({one.site for one in found})
    by_site = {"all": found} | {site: [one for one in found if one.site == site] for site in sites}
    parts = []
    for name, own in by_site.items():
        errors = np.array([one.error for one in own])
        middle, tail = np.quantile(abs(errors), (0.5, 0.9))
        parts.append(f"{name} {middle:.3f} (x{math.exp(np.median(errors)):.2f}, ninth decile {tail:.3f}, {len(own)})")
    return "; ".join(parts)
