"""`tune`: measure what can be chosen for a program on a target, and write it into a log that `build` reads."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tvmtarget.advice import closing_log
from tvmtarget.errors import TargetError, did_you_mean, raise_all
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.decompose import decompose
from tvmtarget.partition.plan import Plan
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.tree import Target
from tvmtarget.tuner.kernels import KernelTuner
from tvmtarget.tuner.measuring import USUAL_LIMITS, Limits
from tvmtarget.tuner.result import Budget, Progress, TuneResult
from tvmtarget.tuner.whole import compare_runs
from tvmtarget.tuning.log import TuningLog

__all__ = ["LEVELS", "tune"]

LEVELS = ("kernel", "executor", "placement")


def tune(
    module: IRModule | Plan,
    target: Target | str | None = None,
    *,
    log: TuningLog | str | Path,
    trials: int | None = None,
    seconds: float | None = None,
    levels: Sequence[str] = LEVELS,
    seed: int = 0,
    where: Mapping[str, Constraint | str | Target] | None = None,
    limits: Limits = USUAL_LIMITS,
    progress: Progress | None = None,
) -> TuneResult:
    """Measure kernels, settings and placements of a program on this machine, and write what they cost into a log.

    Args:
        module: a program, or the plan of one, whose placement then stays.
        target: the tree, or its text; the module's own unless given.
        log: the log or its URL; what it knows already is not measured again.
        trials: how many candidates to measure at most. seconds: when to begin no further one.
        levels: what to tune: `kernel`, `executor` (settings of leaves), `placement` (of a composite).
        seed: makes the same search again.
        where: constraints by name or operator, as for `decompose`.
        limits: seconds that a candidate may take.
        progress: is told of every trial.

    Without trials and seconds, each kernel gets a few dozen. What is measured is in the log at once, so that an
    interrupted run can be gone on with. Raises what `decompose` raises.
    """
    wrong = [level for level in levels if level not in LEVELS]
    raise_all(TargetError, [f"unknown level {level!r}{did_you_mean(level, LEVELS)}" for level in wrong])
    begin = time.monotonic()
    plan = module if isinstance(module, Plan) else decompose(module, target, where=where)
    with closing_log(log) as opened:
        budget = Budget(trials, None if seconds is None else begin + seconds)
        tuner = KernelTuner(plan, opened, budget, seed=seed, limits=limits, progress=progress)
        if "kernel" in levels:
            tuner.run()
        before, after = compare_runs(plan, opened)
        return TuneResult(
            opened.url,
            tuple(tuner.findings()),
            budget.done,
            tuner.reused,
            tuner.statuses,
            time.monotonic() - begin,
            before,
            after,
            tuple(tuner.left_out),
        )
