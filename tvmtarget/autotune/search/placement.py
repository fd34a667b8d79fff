"""Tuning of the placement: plans are run, the times of their subgraphs become costs, and the costs make the next plan.

The plan by preference is measured first, then the plan by given costs, and for each leaf the plan with all operations
on it that it can run; then plans that divide the program between the leaves that are not far behind
(`candidate_plans.py`): segments on each of these leaves, and each segment on the leaf that is the fastest for it. The
times of subgraphs give the times of operations (`fit_costs.py`), and these the next plan, until a plan comes back or
the budget ends. The fastest plans are compared by turns with the plan by preference, which stays unless another one is
clearly faster. A plan with other results is rejected. What the log knows is not measured again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from tvmtarget.autotune.log.records import TIE, Baseline, Candidate, Measurement, Status, Trial
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.autotune.search.candidate_plans import Segments, SegmentTimes, plans_by_leaf, plans_by_work, weight
from tvmtarget.autotune.search.fit_costs import fit_op_costs, subgraph_costs
from tvmtarget.autotune.search.program_tuner import ProgramTuner
from tvmtarget.autotune.search.programs import Programs, Variant
from tvmtarget.autotune.search.result import Budget, Finding, Progress, TuneProgress
from tvmtarget.autotune.search.timing import ROUNDS, seconds_of_turns, symbolic_sizes
from tvmtarget.building.tuned_schedules import PLACEMENT, TunedChoices, placement_body, sites_of
from tvmtarget.errors import TvmTargetError
from tvmtarget.partition.costs.costs import Costs
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.costs.work import Work
from tvmtarget.partition.plan import Plan

__all__ = ["PlacementTuner"]

MAX_PLANS = 16
CONFIRMED = 3
_OF_A_PROGRAM = ("over_limit", "build_error", "run_error", "wrong_output")  # fewer programs at once may not fail so
GAIN = 1 - TIE / 100  # of the time of an earlier plan; one that takes more does not replace it
CUT_SHARE = 0.25  # the least that a cut is expected to take, of what it takes in a program cut at every segment
FAR_BEHIND = 6.0  # times the fastest plan with all on one leaf; slower leaves get no plans that divide the program


@dataclass
class _Measured:
    """A plan that ran: picoseconds of its fastest run and of each function."""

    plan: Plan
    cost: float
    functions: Mapping[str, float]

    @property
    def leaf(self) -> str | None:
        """The path of the leaf with all operations; None if there are several."""
        sites = set(sites_of(self.plan))
        return sites.pop() if len(sites) == 1 else None


class PlacementTuner(ProgramTuner):
    """Tunes the placement of one program.

    Args:
        plan: the plan by preference.
        log: the log to write.
        budget: the trials and the time for this tuner.
        programs: the process that builds and runs programs.
        progress: is called with every trial.
        given: costs for a first plan.

    Attributes:
        best: the plan to continue with.
        costs: the fitted costs, None before the first fit.
    """

    level = "graph"

    def __init__(
        self,
        plan: Plan,
        log: TuningLog,
        budget: Budget,
        programs: Programs,
        progress: Progress | None,
        given: Costs | None = None,
    ) -> None:
        super().__init__(plan, log, budget, programs, progress)
        self._measured: dict[tuple[str, ...], _Measured] = {}
        self._given = given
        costs = given or Costs()
        sizes = {**symbolic_sizes(plan), **costs.symbolic_hints}
        self._estimates = Estimates(plan.program, replace(costs, symbolic_hints=sizes))
        self._default = self._variant(plan)
        self._trials: dict[str, Trial] = {}
        self._confirmed: list[Trial] = []
        self.best = plan
        self.costs: Costs | None = None
        self._least: float | None = None  # picoseconds of the program with each segment on its fastest leaf

    def run(self) -> None:
        """Measure plans until fitted costs give no new one, and confirm the fastest."""
        for trial in self.valid_trials():
            if trial.measured.kind == "confirm":
                self._confirmed.append(trial)
            elif trial.measured.kind == "search":
                self._trials.setdefault(trial.candidate.key, trial)
        self._measure_all([self._plan])
        if not self._measured:
            if not self.statuses:
                self.left_out.append("placement: the trials were up before it")
            return
        if self._given is not None:
            self._measure_all([self._plan_by_costs(self._estimates.costs)])
        self._measure_all(plans_by_leaf(self._plan))
        near = self._competitive_leaves()
        if len(near) > 1 and not self._plan.program.bodies:
            self._measure_segments(near)
            self._plan_until_stable()
            self._measure_all(plans_by_work(self._plan, list(near), self._is_sum))
        self._plan_until_stable()
        self._confirm()

    def _plan_until_stable(self) -> None:
        """Measure the plan by the fitted costs, and fit again, until that plan was measured before."""
        while True:
            self.costs = self._fitted_costs()
            known = len(self._measured)
            self._measure_all([self._plan_by_costs(self.costs)])
            if len(self._measured) == known or not self._can_go_on():
                return

    def _plan_by_costs(self, costs: Costs) -> Plan:
        return self._plan.replanned(self._plan.request.with_options(costs=costs))

    def _measure_segments(self, near: Mapping[str, float]) -> None:
        """Measure each segment on each leaf that is not far behind, then the plan with each on its fastest leaf."""
        segments = Segments.of(self._plan, self._work())
        if len(segments) < 2:
            return
        runs = [(choice, segments.placed(choice)) for choice in segments.alternating(list(near))]
        self._measure_all(plan for _, plan in runs)
        times: list[dict[str, float]] = [{} for _ in range(len(segments))]
        for choice, plan in runs:
            ran = self._measured.get(sites_of(plan))
            if ran is None:
                return
            taken = segments.times(ran.plan, ran.functions, ran.cost)
            for by_leaf, leaf, time in zip(times, choice, taken, strict=True):
                by_leaf[leaf] = time
        self._measure_fastest(segments, SegmentTimes.of(times, near))

    def _measure_fastest(self, segments: Segments, times: SegmentTimes) -> None:
        """Measure the plan with each segment on its fastest leaf, until what cuts take in it is as expected."""
        share = CUT_SHARE
        while True:
            choice, self._least = times.fastest(share)
            plan = segments.placed(choice)
            known = sites_of(plan) in self._measured
            self._measure_all([plan])
            ran = self._measured.get(sites_of(plan))
            if known or ran is None:
                return
            share = max(share, times.share(choice, ran.cost))

    def _work(self) -> list[float]:
        """Return the time of each operation on its fastest leaf by the given costs; unless all are known, its work."""
        by_leaf = [self._estimates.times_by_op(leaf) for leaf in self._estimates.leaves]
        times = [min((time for time in each if time is not None), default=0) for each in zip(*by_leaf, strict=True)]
        if all(times):
            return list(map(float, times))
        return [weight(self._estimates.work(index)) for index in range(len(times))]

    def _competitive_leaves(self) -> dict[str, float]:
        """Return what the whole program takes on each leaf that is not far slower than the fastest."""
        alone = {each.leaf: each.cost for each in self._measured.values() if each.leaf is not None}
        return {site: cost for site, cost in alone.items() if cost <= FAR_BEHIND * min(alone.values())}

    def _is_sum(self, index: int) -> bool:
        work = self._estimates.work(index)
        return isinstance(work, Work) and work.is_contraction

    def _can_go_on(self) -> bool:
        return len(self._measured) < MAX_PLANS and self.has_time(self._confirmation_time())

    def _measure_all(self, plans: Iterable[Plan]) -> None:
        for plan in plans:
            if sites_of(plan) in self._measured or self._use_known(plan):
                continue
            if self._budget.at_most(1) < 1:
                return
            if self._measured:
                if not self._can_go_on():
                    return
                if _candidate(plan).key in self._failed:
                    continue
            self._measure(plan)

    def _use_known(self, plan: Plan) -> bool:
        """Use the trial of a plan in the log, if that has the times of its functions; return whether it does.

        Costs of other runs are scaled by their baselines, because ratios are stable and times are not.
        """
        trial = self._trials.get(_candidate(plan).key)
        base = None if trial is None else trial.measured.baseline
        times = None if trial is None or trial.search is None else trial.search.get("functions")
        if trial is None or base is None or not isinstance(times, list | tuple) or len(times) != len(plan.subgraphs):
            return False
        if not all(type(taken) is int and taken >= 0 for taken in times):  # a log may come from someone else
            return False
        first = self._measured.get(sites_of(self._plan))
        scale = first.cost / max(1, median_low(base.costs)) if first is not None else 1.0
        functions = {subgraph.function: scale * taken for subgraph, taken in zip(plan.subgraphs, times, strict=True)}
        self._measured[sites_of(plan)] = _Measured(plan, scale * min(trial.measured.costs), functions)
        self.reused += 1
        return True

    def _measure(self, plan: Plan) -> None:
        """Build and run a plan with its tuned kernels, and write its cost beside that of the first plan."""
        base = self._measured.get(sites_of(self._plan))
        if base is not None:
            plan = self._as_built(plan)
        ran = self._programs.measure(self._variant(plan), self._default)
        on = ", ".join(sorted(set(sites_of(plan))))
        if not self.count_run(f"a placement on {on}", _candidate(plan), ran):
            return
        (cost,), (now,) = ran.costs
        # Costs are scaled to the moment when the first plan was measured, since when load may have changed.
        scale = 1.0 if base is None else base.cost / max(1, now)
        scaled = {name: scale * taken for name, taken in ran.functions.items()}
        self._measured[sites_of(plan)] = _Measured(plan, scale * cost, scaled)
        times = [ran.functions.get(subgraph.function, 0) for subgraph in plan.subgraphs]
        self._write(plan, [cost], [now], "search", {"functions": times})
        if self._progress is not None:
            first = base.cost if base is not None else cost
            best = min(each.cost for each in self._measured.values())
            what, done = f"{len(plan.subgraphs)} subgraphs", self._budget.done
            self._progress(TuneProgress("placement", what, "ok", done, self._budget.trials, round(first), round(best)))

    def _as_built(self, plan: Plan) -> Plan:
        """Return the plan that a build makes of the sites of a plan."""
        try:
            return self._plan.with_sites(sites_of(plan))
        except TvmTargetError:
            return plan  # its trial will have the error

    def _variant(self, plan: Plan) -> Variant:
        """Return the variant that a build with the log makes of a plan."""
        settings = TunedChoices(self._log).settings(plan)
        return Variant(None if plan is self._plan else plan, settings)

    def _confirmation_time(self) -> float:
        """Return the seconds that comparing the fastest plans takes."""
        costs = sorted(each.cost for each in self._measured.values())
        return seconds_of_turns([*costs[: CONFIRMED + 1], *costs[-1:]])

    def _fitted_costs(self) -> Costs:
        """Return the costs of operations and of whole functions, fitted to what was measured."""
        runs = [(each.plan, each.functions) for each in self._measured.values()]
        return self._estimates.costs.with_records([*fit_op_costs(self._estimates, runs), *subgraph_costs(runs)])

    def _confirm(self) -> None:
        """Compare the fastest plans with the one by preference by turns, unless the log has all of that."""
        base = self._measured[sites_of(self._plan)]
        others = sorted((each for each in self._measured.values() if each is not base), key=lambda each: each.cost)
        # The fastest on one leaf, too: other load may have slowed it down when it was measured.
        alone = next((at for at, each in enumerate(others) if each.leaf is not None), 0)
        fastest = [*others[:CONFIRMED], *others[max(CONFIRMED, alone) : alone + 1]]
        # In the order in which they were measured: of plans that tie, a lookup takes the oldest.
        compared = [base, *(each for each in self._measured.values() if each in fastest)]
        if len(compared) == 1:
            return
        known = {trial.candidate.key: trial for trial in self._confirmed}
        if self.statuses["ok"] or any(_candidate(each.plan).key not in known for each in compared):
            self._compare(compared)
            return
        trials = [known[_candidate(each.plan).key] for each in compared]
        costs = [trial.measured.cost or 0 for trial in trials]
        baselines = [median_low(trial.measured.baseline.costs) if trial.measured.baseline else 1 for trial in trials]
        ratios = [cost / max(1, beside) for cost, beside in zip(costs, baselines, strict=True)]
        at, scale = self._chosen(ratios), _scale(compared, costs)
        self._set_finding(compared[at].plan, baselines[at], costs[at], trials[at].digest if at else "", scale)

    def _compare(self, compared: Sequence[_Measured]) -> None:
        status, ran = self._run_by_turns(compared)
        if status in _OF_A_PROGRAM and len(compared) > 2:
            # Two at once need less memory than all, and one that fails does not hide the others.
            pairs = [self._run_by_turns([compared[0], other])[1] for other in compared[1:]]
            ran = [*next((pair[:1] for pair in pairs if pair), []), *(one for pair in pairs for one in pair[1:])]
        if not ran:
            # Else a build would take one that was the fastest at a single look.
            self._write(compared[0].plan, [round(compared[0].cost)], [round(compared[0].cost)], "confirm")
            return
        digests = [self._write(each.plan, own, beside, "confirm") for each, own, beside in ran]
        costs, baselines = [median_low(own) for _, own, _ in ran], [median_low(beside) for _, _, beside in ran]
        at = self._chosen([cost / max(1, beside) for cost, beside in zip(costs, baselines, strict=True)])
        scale = _scale([each for each, _, _ in ran], costs)
        self._set_finding(ran[at][0].plan, baselines[at], costs[at], digests[at] if at else "", scale)

    def _run_by_turns(
        self, compared: Sequence[_Measured]
    ) -> tuple[Status, list[tuple[_Measured, Sequence[int], Sequence[int]]]]:
        """Return how it ended, and plans with their costs and those of the first of them if it ended well."""
        ran = self._programs.compare([self._variant(each.plan) for each in compared], ROUNDS)
        if ran.status != "ok":
            self.left_out.append(f"the {len(compared)} fastest placements could not be compared: {ran.why}")
            return ran.status, []
        return ran.status, [(each, own, ran.costs[0]) for each, own in zip(compared, ran.costs, strict=True)]

    def _chosen(self, ratios: Sequence[float]) -> int:
        """Return the plan to continue with: the first to which no other one is clearly faster."""
        return next(at for at, ratio in enumerate(ratios) if GAIN * ratio <= min(ratios))

    def _set_finding(self, best: Plan, default: int, cost: int, record: str, scale: float) -> None:
        self.best = best
        sites = ", ".join(f"{count} ops on @{site}" for site, count in sorted(Counter(sites_of(best)).items()))
        trials, bound = len(self._measured), min(self._bound(scale), cost)
        self._finding = Finding("placement", sites, "", default, cost, 1, trials, True, record, bound)

    def _bound(self, scale: float) -> int:
        """Return picoseconds below which no placement is by what was measured, if all take `scale` times as long now.

        That is the time of the program with each segment on its fastest leaf; unless segments were measured, a bound by
        the fitted costs of single operations. Both may be off: a plan that was measured to take less is the bound.
        """
        if self._least is not None:
            return round(self._least * scale)
        if self.costs is None:
            return 0
        # Times of whole functions hold for the plans that have them, and not for all.
        prediction = self._plan_by_costs(replace(self.costs, subgraphs=())).prediction
        least = None if prediction is None or prediction.unknown else prediction.lower_bound
        return 0 if least is None else round(least * scale)

    def _write(
        self,
        plan: Plan,
        costs: Sequence[int],
        baseline: Sequence[int],
        kind: str,
        search: Mapping[str, object] | None = None,
    ) -> str:
        beside = Baseline(name="preference", costs=tuple(baseline), identity=self._identity)
        measured = Measurement.model_validate({"status": "ok", "kind": kind, "costs": costs, "baseline": beside})
        return self._log.add(self._workload, self._plan.topology.root, _candidate(plan), measured, search=search).digest


def _scale(compared: Sequence[_Measured], costs: Sequence[int]) -> float:
    """Return how many times as long programs take as when they were measured first, by the fastest on one leaf."""
    pairs = zip(compared, costs, strict=True)
    _, first, now = min((each.leaf is None, each.cost, cost) for each, cost in pairs)
    return now / max(1.0, first)


def _candidate(plan: Plan) -> Candidate:
    return Candidate(format=PLACEMENT, body=placement_body(plan))
