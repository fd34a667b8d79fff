"""`place`: predict, measure the few plans that differ, and return the fastest.

The candidates are the plan by preference, the plan by measured rates of the leaves, the plan with all operations on
each leaf, plans with segments on each leaf, and with each segment on its fastest leaf. A log keeps rates and plans, so
that a program is measured once on a machine. `tune` continues from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.autotune.search.process import USUAL_LIMITS, Limits
from tvmtarget.autotune.search.result import Progress, TuneResult
from tvmtarget.autotune.search.timing import random_inputs
from tvmtarget.autotune.search.tuning import MEASURED, tune
from tvmtarget.backends.protocol import Array
from tvmtarget.building.plan_request import PlanRequest, with_where
from tvmtarget.building.tuned_schedules import TunedChoices, opened_log
from tvmtarget.errors import RunError, TargetError
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.plan import Plan
from tvmtarget.target.argument_types import check_arguments
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.tree import Target, TargetLike

if TYPE_CHECKING:
    import onnx
    import tvm

__all__ = ["place"]


@check_arguments
def place(
    module: IRModule | onnx.ModelProto | tvm.IRModule | str | Path | bytes,
    target: TargetLike | None = None,
    target_host: TargetLike | None = None,
    executor: Executor | str | Mapping[str, object] | None = None,
    runtime: Runtime | str | Mapping[str, object] | None = None,
    params: Mapping[str, Array] | None = None,
    *,
    log: TuningLog | str | Path,
    where: Mapping[str, Constraint | str | Target] | None = None,
    entry: str | None = None,
    options: Mapping[str, object] | None = None,
    allow_interpreter: bool = False,
    limits: Limits = USUAL_LIMITS,
    progress: Progress | None = None,
) -> Plan:
    """Measure a few plans of a program, unless the log has them, and return the fastest.

    Args:
        module: a program in any form that `build` takes.
        target: the target, in any form that `Target.parse` reads; that of the module unless given.
        target_host: as for `build`.
        executor: as for `build`.
        runtime: as for `build`.
        params: as for `build`.
        log: the log or its URL, which keeps what is measured.
        where: constraints by name or operator, as for `decompose`.
        entry: as for `build`.
        options: further arguments of `decompose` by name, without `costs`, which are measured.
        allow_interpreter: let numpy interpret leaves without a code generator, as for `build`.
        limits: the time and the memory that a candidate may take.
        progress: is called with every measured plan.

    Returns:
        The plan. It is not slower than all operations on one leaf, as measured here to 3 percent; `build` takes it.

    Raises:
        TargetError: an argument is invalid; also what `decompose` raises.
        RunError: the program cannot be measured here, with the reason.
        BackendError: the program cannot be built, as for `build`.
    """
    if options is not None and options.get("costs") is not None:
        raise TargetError("costs are measured here; omit them, or pass them to decompose")
    request = PlanRequest(
        module=module,
        target=target,
        target_host=target_host,
        executor=executor,
        runtime=runtime,
        params=params,
        entry=entry,
        options=with_where(options, where),
    )
    plan = request.plan()
    leaves = sum(1 for _ in plan.topology.leaves())
    if not plan.topology.root.is_composite or leaves == 1:
        return plan
    with opened_log(log) as opened:
        known = TunedChoices(opened)
        placed = known.placed(plan)
        if known.applied and known.applied[0].tier != "default":
            return placed
        if random_inputs(plan) is None:
            raise RunError("no inputs can be made up for this program, so that its plans cannot be measured")
        result = tune(
            module,
            target,
            target_host,
            executor,
            runtime,
            params,
            log=opened,
            trials=2 * leaves + 3,
            levels=["placement"],
            where=where,
            entry=entry,
            options=options,
            costs=MEASURED,
            allow_interpreter=allow_interpreter,
            limits=limits,
            progress=progress,
        )
        _check(result)
        return TunedChoices(opened).placed(plan)


def _check(result: TuneResult) -> None:
    """Raise `RunError` if no plan could be measured."""
    if not result.statuses["ok"] and not result.reused:
        raise RunError(f"no plan could be measured: {'; '.join(result.left_out) or 'all of them failed'}")
