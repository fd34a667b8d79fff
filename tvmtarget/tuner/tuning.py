"""`tune`: measure what can be chosen for a program on a target, and write it into a log that `build` reads."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from tvmtarget.advice import Advice, closing_log
from tvmtarget.errors import TargetError, did_you_mean, raise_all
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.costs.cost_file import load_costs
from tvmtarget.partition.costs.costs import Costs
from tvmtarget.partition.decompose import decompose
from tvmtarget.partition.plan import Plan
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.tree import Target
from tvmtarget.tuner.exploring import plans_by_leaf
from tvmtarget.tuner.kernels import KernelTuner
from tvmtarget.tuner.measuring import USUAL_LIMITS, Limits
from tvmtarget.tuner.placement import PlacementTuner
from tvmtarget.tuner.rates import measure_rates
from tvmtarget.tuner.remote import Remotes
from tvmtarget.tuner.result import Budget, Progress, TuneResult
from tvmtarget.tuner.settings import SettingsTuner
from tvmtarget.tuner.whole import compare_runs, made_up_inputs
from tvmtarget.tuning.log import TuningLog

__all__ = ["LEVELS", "SPACES", "tune"]

LEVELS = ("kernel", "executor", "placement")

SPACES = ("auto", "own", "metaschedule")

MEASURED = "measured"  # costs that are to be measured here

KERNEL_SHARE = 0.7  # of trials and seconds, where there are other levels too


def tune(
    module: IRModule | Plan,
    target: Target | str | None = None,
    *,
    log: TuningLog | str | Path,
    trials: int | None = None,
    seconds: float | None = None,
    levels: Sequence[str] = LEVELS,
    space: str = "auto",
    seed: int = 0,
    where: Mapping[str, Constraint | str | Target] | None = None,
    costs: Costs | Mapping[str, object] | str | Path | None = None,
    limits: Limits = USUAL_LIMITS,
    workers: str | None = None,
    progress: Progress | None = None,
) -> TuneResult:
    """Measure kernels, settings and placements of a program on this machine, and write what they cost into a log.

    Args:
        module: a program, or the plan of one, whose placement then stays.
        target: the tree, or its text; the module's own unless given.
        log: the log or its URL; what it knows already is not measured again.
        trials: how many candidates to measure at most. seconds: when to begin no further one.
        levels: what to tune: `kernel`, `executor` (settings of leaves), `placement` (of a composite).
        space: where candidates for kernels come from: `own` register blocks; traces of TVM's `metaschedule`; `auto`
            takes those for kernels that have no register block.
        seed: makes the same search again.
        where: constraints by name or operator, as for `decompose`.
        costs: what operations take, as for `decompose`, or `measured`, which measures rates of the leaves here first:
            the placement by them is tried before others, and what is not known yet of a site is reckoned by them.
        limits: seconds that a candidate may take.
        workers: a Dask scheduler, `tcp://HOST:PORT`, on whose workers kernels are measured; they should be equal
            machines. Placement and settings are measured here.
        progress: is told of every trial.

    Without trials and seconds, each kernel gets a few dozen. What is measured is in the log at once, so that an
    interrupted run can be gone on with. Raises what `decompose` raises.
    """
    wrong = [level for level in levels if level not in LEVELS]
    problems = [f"unknown level {level!r}{did_you_mean(level, LEVELS)}" for level in wrong]
    if space not in SPACES:
        problems.append(f"unknown space {space!r}{did_you_mean(space, SPACES)}; there are: {', '.join(SPACES)}")
    if costs is not None and (isinstance(module, Plan) or "placement" not in levels):
        problems.append("costs are for the level 'placement' of a module; a plan keeps its own")
    raise_all(TargetError, problems)
    begin = time.monotonic()
    plan = module if isinstance(module, Plan) else decompose(module, target, where=where)
    given = None if costs is None else _costs(costs, plan.layout.root)
    with closing_log(log) as opened:
        budget = Budget(trials, None if seconds is None else begin + seconds)
        with nullcontext() if workers is None else Remotes(workers) as remotes:
            return _Tuning(plan, opened, budget, begin, progress, remotes, space, given).run(
                levels, seed=seed, limits=limits, is_fixed=isinstance(module, Plan)
            )


def _costs(costs: Costs | Mapping[str, object] | str | Path, target: Target) -> Costs:
    """Read costs, or measure the rates of the leaves of a target."""
    return measure_rates(target).costs if costs == MEASURED else load_costs(costs)


@dataclass
class _Tuning:
    """One run: kernels first, then the placement with them, then settings of the leaves of the best plan."""

    plan: Plan
    log: TuningLog
    budget: Budget
    begin: float
    progress: Progress | None
    remotes: Remotes | None
    space: str
    costs: Costs | None

    def run(self, levels: Sequence[str], *, seed: int, limits: Limits, is_fixed: bool) -> TuneResult:
        is_placed = "placement" in levels and not is_fixed and self.plan.layout.root.is_composite
        inputs = made_up_inputs(self.plan)
        tuners: list[KernelTuner | PlacementTuner | SettingsTuner] = []
        left_out: list[str] = []
        if "kernel" in levels:
            plans = (self.plan, *plans_by_leaf(self.plan)) if is_placed else (self.plan,)
            part = self.part(KERNEL_SHARE if is_placed or "executor" in levels else 1.0)
            kernels = KernelTuner(
                plans,
                self.log,
                part,
                seed=seed,
                limits=limits,
                progress=self.progress,
                remotes=self.remotes,
                space=self.space,
            )
            tuners.append(kernels)
            kernels.run()
            self.budget.done = part.done
        best = self.plan if is_fixed else Advice(self.log).placed(self.plan)
        if inputs is None and (is_placed or "executor" in levels):
            left_out.append("placement and settings: no inputs can be made up for this program")
        elif inputs is not None:
            if is_placed:
                placement = PlacementTuner(self.plan, self.log, self.budget, inputs, self.progress, self.costs)
                tuners.append(placement)
                placement.run()
                best = placement.best
            if "executor" in levels:
                settings = SettingsTuner(best, self.log, self.budget, inputs, self.progress)
                tuners.append(settings)
                settings.run()
        before, after = compare_runs(self.plan, self.log, is_placed=not is_fixed)
        return TuneResult(
            log=self.log.url,
            findings=tuple(finding for tuner in tuners for finding in tuner.findings()),
            measured=self.budget.done,
            reused=sum(tuner.reused for tuner in tuners),
            statuses=sum((tuner.statuses for tuner in tuners), Counter()),
            seconds=time.monotonic() - self.begin,
            before=before,
            after=after,
            left_out=(*left_out, *(reason for tuner in tuners for reason in tuner.left_out)),
        )

    def part(self, share: float) -> Budget:
        """Return the budget of the kernels, a share of the whole."""
        trials, deadline = self.budget.trials, self.budget.deadline
        return Budget(
            None if trials is None else max(1, round(share * trials)),
            None if deadline is None else self.begin + share * (deadline - self.begin),
        )
