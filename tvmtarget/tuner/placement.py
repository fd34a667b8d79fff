"""Placements: plans are built and run, what their regions took becomes costs, and the costs make the next plan.

First the plan by preference is measured, and for each leaf the plan with all on it that may go there, so that every
operation has a time on every site. The time of a region is shared among its operations by the work they do; of
operations of one structure the mean counts. That goes on until the plan by costs was measured before, or the budget
ends. Then the fastest plans are compared by turns with the one by preference.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import mean, median_low

from tvmtarget.advice import PLACEMENT
from tvmtarget.building import build
from tvmtarget.errors import TvmTargetError
from tvmtarget.executable import Executable
from tvmtarget.executors.graph import CallEvent, Event
from tvmtarget.partition.costs.costs import Costs, OpCost, structure_of
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.costs.work import Work
from tvmtarget.partition.plan import Plan, planned
from tvmtarget.tuner.device import device_lock, holding
from tvmtarget.tuner.result import Budget, Finding, Progress, Step
from tvmtarget.tuner.whole import Inputs, WholeTuner, run_by_turns
from tvmtarget.tuning.log import TuningLog
from tvmtarget.tuning.records import Baseline, Candidate, Measurement

__all__ = ["PlacementTuner", "plans_by_leaf"]

ROUNDS = 5  # runs of a plan, of which the fastest counts
MAX_PLANS = 12
CONFIRMED = 2
BYTES_A_FLOP = 4  # how a region's time is shared: a byte moved counts as much as so many operations


def plans_by_leaf(plan: Plan) -> Iterator[Plan]:
    """Yield, for each leaf of a composite, the plan with all operations on it that may go there."""
    for leaf in plan.layout.leaves():
        sites = dict.fromkeys((call.source for call in plan.program.body), leaf.path)
        yield planned(replace(plan.request, costs=None), plan.feasibility, sites)


@dataclass
class _Measured:
    """A plan that ran: the program that was built, picoseconds of its fastest run, and of each region in it."""

    plan: Plan
    program: Executable
    cost: int
    regions: dict[str, int]

    @property
    def sites(self) -> tuple[str, ...]:
        return sites_of(self.plan)


class PlacementTuner(WholeTuner):
    """Tunes the placement of one program into a log; `best` is the plan to go on with."""

    level = "graph"

    def __init__(self, plan: Plan, log: TuningLog, budget: Budget, inputs: Inputs, progress: Progress | None) -> None:
        super().__init__(plan, log, budget, inputs, progress)
        self._measured: dict[tuple[str, ...], _Measured] = {}
        self.best = plan
        self.costs: Costs | None = None

    def run(self) -> None:
        """Measure, plan again until nothing changes, and confirm."""
        for plan in (self._plan, *plans_by_leaf(self._plan)):
            self._measure(plan)
        if sites_of(self._plan) not in self._measured:
            return
        while self._can_go_on():
            self.costs = self._learned()
            plan = planned(replace(self._plan.request, costs=self.costs), self._plan.feasibility)
            if sites_of(plan) in self._measured:
                break
            self._measure(plan)
        self._confirm()

    def _can_go_on(self) -> bool:
        return len(self._measured) < MAX_PLANS and not self._budget.is_spent(time.monotonic())

    def _measure(self, plan: Plan) -> None:
        """Build a plan with what is known of its kernels, run it, and write what it cost."""
        if sites_of(plan) in self._measured or (self._measured and not self._can_go_on()):
            return
        try:
            program = build(plan, log=self._log)
            with holding(device_lock()):
                measured = _run(plan, program, self._inputs)
        except TvmTargetError as error:
            self.left_out.append(f"a placement on {', '.join(sorted(set(sites_of(plan))))}: {error.problems[0]}")
            return
        self._measured[measured.sites] = measured
        self._budget.done += 1
        self.statuses["ok"] += 1
        base = self._measured.get(sites_of(self._plan), measured)
        self._write(plan, [measured.cost], [base.cost], "search")
        if self._progress is not None:
            best = min(each.cost for each in self._measured.values())
            what = f"{len(plan.regions)} regions"
            self._progress(Step("placement", what, "ok", self._budget.done, self._budget.trials, base.cost, best))

    def _learned(self) -> Costs:
        """Return costs of what was measured: for each structure of operation and each site, the mean of its shares."""
        program = self._plan.program
        estimates = Estimates(program, self._plan.request.costs or Costs())
        found: dict[tuple[str, str], list[float]] = {}
        for measured in self._measured.values():
            for region in measured.plan.regions:
                left = measured.regions[region.function] - estimates.launch(program.layout[region.site])
                weights = [_weight(estimates.work(index)) for index in region.calls]
                for index, weight in zip(region.calls, weights, strict=True):
                    key = structure_of(program.op(index)), region.site
                    found.setdefault(key, []).append(max(0, left) * weight / sum(weights))
        records = [
            OpCost(site, structure=structure, time=mean(times) / 10**6, origin="measured")
            for (structure, site), times in found.items()
        ]
        return estimates.costs.with_records(records)

    def _confirm(self) -> None:
        """Compare the fastest plans with the one by preference, by turns."""
        base = self._measured[sites_of(self._plan)]
        others = [each for each in self._measured.values() if each is not base]
        fastest = sorted(others, key=lambda each: each.cost)[:CONFIRMED]
        if not fastest:
            return
        with holding(device_lock()):
            costs = run_by_turns([base.program, *(each.program for each in fastest)], self._inputs)
        results = [(median_low(own), each, own) for each, own in zip((base, *fastest), costs, strict=True)]
        digests = {id(each): self._write(each.plan, own, costs[0], "confirm") for _, each, own in results}
        cost, best, _ = min(results, key=lambda found: found[0])
        self.best = best.plan
        record = digests[id(best)] if best is not base else ""
        sites = ", ".join(f"{count} ops on @{site}" for site, count in sorted(Counter(best.sites).items()))
        self._finding = Finding(
            "placement", sites, "", median_low(costs[0]), cost, 1, len(self._measured), True, record
        )

    def _write(self, plan: Plan, costs: Sequence[int], baseline: Sequence[int], kind: str) -> str:
        runs = [[site, len(list(group))] for site, group in groupby(sites_of(plan))]
        measured = Measurement.model_validate(
            {
                "status": "ok",
                "kind": kind,
                "costs": costs,
                "baseline": Baseline(name="preference", costs=tuple(baseline)),
            }
        )
        candidate = Candidate(format=PLACEMENT, body={"sites": runs})
        return self._log.add(self._workload, self._plan.layout.root, candidate, measured).digest


def sites_of(plan: Plan) -> tuple[str, ...]:
    """Return the site of every operation, in the order of the program."""
    found = {index: region.site for region in plan.regions for index in region.calls}
    return tuple(found[index] for index in range(len(found)))


def _run(plan: Plan, program: Executable, inputs: Inputs) -> _Measured:
    """Run a few times; of each region and of the whole the fastest counts."""
    program.run(inputs)
    cost, regions = 0, dict[str, int]()
    for _ in range(ROUNDS):
        events: list[Event] = []
        begin = time.perf_counter_ns()
        program.run(inputs, record=events.append)
        taken = 1000 * (time.perf_counter_ns() - begin)
        cost = min(cost or taken, taken)
        for event in events:
            if isinstance(event, CallEvent):
                before = regions.get(event.function, 1000 * event.duration_ns)
                regions[event.function] = min(before, 1000 * event.duration_ns)
    return _Measured(plan, program, cost, regions)


def _weight(work: object) -> float:
    return 1.0 + work.flops + BYTES_A_FLOP * work.nbytes if isinstance(work, Work) else 1.0
