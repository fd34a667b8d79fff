"""`tune`: measure what can be chosen for a program on a target, and write it into a log that `build` reads."""

from __future__ import annotations

import os
import shlex
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tvmtarget.autotune.log.environment import environment
from tvmtarget.autotune.log.records import Record, Trial
from tvmtarget.autotune.log.report import write_lines
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.autotune.search.candidate_plans import plans_by_leaf
from tvmtarget.autotune.search.kernels import KernelTuner
from tvmtarget.autotune.search.placement import PlacementTuner
from tvmtarget.autotune.search.process import USUAL_LIMITS, Limits
from tvmtarget.autotune.search.programs import Programs, Variant
from tvmtarget.autotune.search.rates import measure_rates
from tvmtarget.autotune.search.remote import Remotes
from tvmtarget.autotune.search.result import Budget, Progress, TuneInterrupted, TuneResult, TuneStoppedError
from tvmtarget.autotune.search.settings import SettingsTuner, open_settings
from tvmtarget.autotune.search.timing import ROUNDS, random_inputs, seconds_of_turns
from tvmtarget.autotune.search.worker_protocol import is_serving
from tvmtarget.backends.machine import load
from tvmtarget.backends.protocol import Array
from tvmtarget.building.backend_choice import choose_backend, choose_backends
from tvmtarget.building.compile_plan import codegen_target
from tvmtarget.building.plan_request import PlanRequest, with_where
from tvmtarget.building.tuned_schedules import TunedChoices, opened_log
from tvmtarget.errors import BackendError, LogError, RunError, TargetError, did_you_mean, raise_all
from tvmtarget.human_units import counted
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.costs.cost_file import load_costs
from tvmtarget.partition.costs.costs import Costs
from tvmtarget.partition.plan import Plan
from tvmtarget.target.argument_types import check_arguments
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.tree import Target, TargetLike

if TYPE_CHECKING:
    import onnx
    import tvm

__all__ = ["LEVELS", "SPACES", "Journal", "tune"]

LEVELS = ("kernel", "executor", "placement")

SPACES = ("auto", "own", "metaschedule")

MEASURED = "measured"  # the argument `costs` for rates measured here

KERNEL_SHARE = 0.7  # of trials and seconds, if there are other levels too
PLACEMENT_SHARE = 0.7  # of the rest, if there are settings too
LEAST_SHARE = 0.25  # of the seconds; a program whose first build takes longer is not run
BUILD_AGAIN = 1.3  # factor on the first build for the build with the log
LEAST_LATE, LATE = 2.0, 0.03  # seconds, and share of those allowed, by which tuning may end late

UNTUNED = Variant(is_tuned=False)


@check_arguments
def tune(
    module: IRModule | Plan | onnx.ModelProto | tvm.IRModule | str | Path | bytes,
    target: TargetLike | None = None,
    target_host: TargetLike | None = None,
    executor: Executor | str | Mapping[str, object] | None = None,
    runtime: Runtime | str | Mapping[str, object] | None = None,
    params: Mapping[str, Array] | None = None,
    *,
    log: TuningLog | str | Path,
    trials: int | None = None,
    seconds: float | None = None,
    levels: str | Sequence[str] = LEVELS,
    space: str = "auto",
    seed: int = 0,
    where: Mapping[str, Constraint | str | Target] | None = None,
    entry: str | None = None,
    options: Mapping[str, object] | None = None,
    costs: Costs | Mapping[str, object] | str | Path | None = None,
    allow_interpreter: bool = False,
    limits: Limits = USUAL_LIMITS,
    workers: str | None = None,
    insecure: bool = False,
    progress: Progress | None = None,
) -> TuneResult:
    """Measure kernels, settings and placements of a program, and write their costs into a log.

    Without `trials` and `seconds`, each kernel gets 32 trials. Every measurement is written at once, so that an
    interrupted run can be continued.

    Args:
        module: a program in any form that `build` takes, or a plan of one, whose placement is then fixed.
        target: the target, in any form that `Target.parse` reads; that of the module unless given.
        target_host: as for `build`.
        executor: as for `build`.
        runtime: as for `build`.
        params: as for `build`.
        log: the log or its URL; what it knows is not measured again.
        trials: how many candidates to measure at most.
        seconds: how long to tune; it ends at most 3 percent or two seconds later.
        levels: what to tune, one or several: `kernel`, `executor` (settings of leaves), `placement` (of a composite).
        space: the candidates for kernels: `own` register blocks, traces of TVM's `metaschedule`, or `auto`, which takes
            traces for kernels without a register block.
        seed: makes the same search again.
        where: constraints by name or operator, as for `decompose`.
        entry: as for `build`.
        options: further arguments of `decompose` by name, such as `same_site`, which hold for all plans.
        costs: costs of operations, as for `decompose`, or `measured`, which measures rates of the leaves first. The
            plan by these costs is measured early, and costs that are not measured yet are estimated by them.
        allow_interpreter: let numpy interpret leaves without a code generator, as for `build`.
        limits: the time and the memory that a candidate may take.
        workers: a Dask scheduler, `tls://HOST:PORT`, on whose workers kernels are measured; they should be equal
            machines. Placement and settings are measured here.
        insecure: allow a scheduler without TLS; anyone who reaches it can run code on all of its machines and here.
        progress: is called with every trial.

    Returns:
        What was found.

    Raises:
        TargetError: an argument is invalid; also what `decompose` raises.
        BackendError: the program cannot be built, as for `build`.
        RunError: no leaf of the target can run on this machine.
        TuneInterrupted: the user pressed Ctrl-C; the error has the result so far.
        TuneStoppedError: the log cannot be written any more, or all workers are lost; the error has the result so far.
    """
    levels = (levels,) if isinstance(levels, str) else tuple(levels)
    problems = [*_level_problems(levels, space), *_budget_problems(trials, seconds)]
    if insecure and workers is None:
        problems.append("insecure (--insecure) has no effect without workers; pass workers (--workers)")
    if costs is not None and (isinstance(module, Plan) or "placement" not in levels):
        problems.append("costs are for the level 'placement' of a module; a plan keeps its own")
    # Read before anything is measured or written.
    costs = costs if costs is None or costs == MEASURED else load_costs(costs)
    if isinstance(costs, Costs) and costs.is_energy:
        problems.append(
            "costs are energies (unit 'uJ'), but tuning measures time; pass costs in a unit of time, such as 'us'"
        )
    if (options or {}).get("objective", "latency") != "latency":
        problems.append(f"objective {(options or {})['objective']!r} is not what tuning measures, which is latency")
    raise_all(TargetError, problems)
    if is_serving():
        raise RunError(
            "the main module tunes while it is imported by what measures; put that under 'if __name__ ==' ..."
        )
    begin = time.monotonic()
    plan = PlanRequest(
        module=module,
        target=target,
        target_host=target_host,
        executor=executor,
        runtime=runtime,
        params=params,
        entry=entry,
        options=with_where(options, where),
    ).plan()
    choose_backends(plan, allow_interpreter=allow_interpreter)
    if workers is None:
        raise_all(RunError, _not_here(plan, allow_interpreter=allow_interpreter))
    with opened_log(log) as opened:
        opened.append(environment())  # fails for a read-only log before anything is measured
        given = (
            None if costs is None else _costs(costs, plan.topology.root, opened, allow_interpreter=allow_interpreter)
        )
        budget = Budget(trials, None if seconds is None else begin + seconds)
        journal = Journal(opened)
        with (
            journal.recording(),
            nullcontext() if workers is None else Remotes(workers, insecure=insecure) as remotes,
        ):
            tuning = _Tuning(
                plan, opened, journal, budget, begin, progress, remotes, space, given, limits, seed, allow_interpreter
            )
            return tuning.run(levels, is_fixed=isinstance(module, Plan))


def _level_problems(levels: Sequence[str], space: str) -> Iterator[str]:
    """Yield what is wrong with the levels, and with the space of candidates for one of them."""
    wrong = [level for level in levels if level not in LEVELS]
    yield from (f"unknown level {level!r}{did_you_mean(level, LEVELS)}" for level in wrong)
    if space not in SPACES:
        yield f"unknown space {space!r}{did_you_mean(space, SPACES)}"
    if space != "auto" and "kernel" not in levels:
        yield f"space {space!r} has no effect without the level 'kernel'; other levels measure no kernels"
    if not levels:
        yield f"no level is given to tune; there is {', '.join(LEVELS)}"


def _budget_problems(trials: object, seconds: object) -> Iterator[str]:
    if trials is not None and not (isinstance(trials, int) and trials >= 1):
        yield f"{trials} trials are given; at least one is needed, or None for 32 of each kernel"
    if seconds is not None and not (isinstance(seconds, int | float) and seconds >= 0):
        yield f"{seconds} seconds are given; a number that is not negative is needed, or None"


def _not_here(plan: Plan, *, allow_interpreter: bool) -> list[str]:
    """Return why no leaf of a target can run on this machine; empty if one can."""
    reasons: list[str] = []
    for leaf in plan.topology.leaves():
        try:
            backend, _ = choose_backend(plan.topology, leaf.path, allow_interpreter=allow_interpreter)
        except BackendError:
            continue
        reason = backend.unsupported_reason(codegen_target(plan.topology, leaf.path))
        if reason is None:
            return []
        reasons.append(
            f"{str(leaf.target)!r} (@{leaf.path or '.'}) cannot be tuned on this machine: {reason}; tune it where it "
            "can run, or kernels on the workers of a Dask scheduler there (workers=)"
        )
    return reasons


def _costs(
    costs: Costs | Mapping[str, object] | str | Path, target: Target, log: TuningLog, *, allow_interpreter: bool
) -> Costs:
    """Return given costs, or the rates of the leaves of a target, which are measured unless the log has them."""
    if costs != MEASURED:
        return load_costs(costs)
    return measure_rates(target, allow_interpreter=allow_interpreter, log=log).costs


class Journal:
    """A copy of all records that are written into a log from now on.

    A full disk, a lock that is never released or a deleted file must not lose what was measured: the copy is written
    elsewhere then.

    Args:
        log: the log that the run writes into.
    """

    def __init__(self, log: TuningLog) -> None:
        self._log = log
        self._records: dict[str, Record] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Copy the records that are written within a `with` block.

        Yields:
            Nothing.
        """
        with self._log.observed(self._remember):
            yield

    def _remember(self, records: Iterable[Record]) -> None:
        self._records.update((record.digest, record) for record in records)

    def write_again(self) -> None:
        """Write all records again, which adds nothing unless the log has lost some.

        Raises:
            LogError: the log was deleted or replaced, or cannot be written.
        """
        self._log.extend(list(self._records.values()))

    def rescue(self) -> str:
        """Write the records into a new file, beside the log or in the folder for temporary files.

        Returns:
            A sentence that says where they are, for an error message.
        """
        trials = sum(isinstance(record, Trial) for record in self._records.values())
        if not trials:
            return "nothing was measured before"
        lines = sorted(record.text for record in self._records.values())
        for path in self._paths():
            try:
                write_lines(path, lines)
            except LogError:
                continue
            merge = shlex.join(["tvmtarget", "log", "merge", self._log.url, str(path)])
            return f"all that was measured, {counted(trials, 'trial')}, is in {str(path)!r} too; merge it with: {merge}"
        return f"what was measured, {counted(trials, 'trial')}, could not be written elsewhere either"

    def _paths(self) -> Iterator[Path]:
        name = f"{Path(self._log.url).stem or 'log'}-unsaved-{os.getpid()}.jsonl"
        if "://" not in self._log.url:
            yield Path(self._log.url).absolute().parent / name
        yield Path(tempfile.gettempdir()) / name


@dataclass
class _Tuning:
    """One run: kernels first, then the placement with them, then settings of the leaves of the best plan.

    At the end, the untuned program and the one that `build` makes with the log run by turns, in time reserved for that.
    """

    plan: Plan
    log: TuningLog
    journal: Journal
    budget: Budget
    begin: float
    progress: Progress | None
    remotes: Remotes | None
    space: str
    costs: Costs | None
    limits: Limits
    seed: int
    allow_interpreter: bool
    tuners: list[KernelTuner | PlacementTuner | SettingsTuner] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    compared: tuple[tuple[int, ...], ...] = ((), ())
    is_short: bool = False
    load: float = field(default_factory=load)

    def run(self, levels: Sequence[str], *, is_fixed: bool) -> TuneResult:
        """Tune some levels; `TuneInterrupted` and `TuneStoppedError` have the result so far."""
        try:
            with Programs(self.plan, self.log, self.limits, allow_interpreter=self.allow_interpreter) as programs:
                self._tune(levels, programs, is_fixed=is_fixed)
            self.journal.write_again()
        except KeyboardInterrupt as error:
            raise TuneInterrupted(self._result()) from error
        except LogError as error:
            raise TuneStoppedError(*error.problems, self.journal.rescue(), result=self._result()) from error
        except (RunError, BackendError) as error:
            raise TuneStoppedError(*error.problems, result=self._result()) from error
        return self._result()

    def _tune(self, levels: Sequence[str], programs: Programs, *, is_fixed: bool) -> None:
        is_placed = "placement" in levels and not is_fixed and self.plan.topology.root.is_composite
        has_settings = "executor" in levels and self._has_settings(is_placed=is_placed)
        why_not = self._why_not_run()
        has_inputs = not why_not
        end = self._keep(programs) if has_inputs else self.budget.deadline
        if "kernel" in levels:
            self._tune_kernels(self._part(KERNEL_SHARE if is_placed or has_settings else 1.0, end), is_placed=is_placed)
        if not has_inputs and (is_placed or "executor" in levels):
            self.left_out.append(f"placement and settings: {why_not}")
        if not has_inputs:
            return
        best = self.plan if is_fixed else TunedChoices(self.log).placed(self.plan)
        if is_placed:
            part = self._part(PLACEMENT_SHARE if has_settings else 1.0, end)
            programs.until = part.deadline
            placement = PlacementTuner(self.plan, self.log, part, programs, self.progress, self.costs)
            self.tuners.append(placement)
            placement.run()
            self.budget.done = part.done
            best = placement.best
        if "executor" in levels:
            part = self._part(1.0, end)
            programs.until = part.deadline
            settings = SettingsTuner(
                best,
                self.log,
                part,
                programs,
                self.progress,
                is_own=best is self.plan,
                allow_interpreter=self.allow_interpreter,
            )
            self.tuners.append(settings)
            settings.run()
            self.budget.done = part.done
        if end is not None and self.budget.deadline is not None:
            programs.until = self.budget.deadline + max(LEAST_LATE, LATE * (self.budget.deadline - self.begin))
        self._compare(programs, is_placed=not is_fixed)

    def _why_not_run(self) -> str:
        """Return why the whole program cannot run here; empty if it can."""
        if self.remotes is not None and _not_here(self.plan, allow_interpreter=self.allow_interpreter):
            return "no leaf of the target can run on this machine"
        return "no inputs can be made up for this program" if random_inputs(self.plan) is None else ""

    def _has_settings(self, *, is_placed: bool) -> bool:
        """Whether any leaf that may be used has settings to try."""
        plans = (self.plan, *plans_by_leaf(self.plan)) if is_placed else (self.plan,)
        try:
            return any(True for plan in plans for _ in open_settings(plan, allow_interpreter=self.allow_interpreter))
        except BackendError:
            return False

    def _keep(self, programs: Programs) -> float | None:
        """Return when tuning must end, so that the programs before and after can run by turns until the deadline.

        The untuned program is built now, to know how long that takes; without a deadline, it is built when it is
        needed.
        """
        deadline = self.budget.deadline
        if deadline is None:
            return None
        seconds = deadline - self.begin
        programs.until = time.monotonic() + LEAST_SHARE * seconds
        ran = programs.compare([UNTUNED], 1)
        if ran.status == "cancelled":
            self.is_short = True
            return deadline
        cost = max(ran.costs[0], default=0) if ran.costs else 0
        return deadline - BUILD_AGAIN * ran.seconds - seconds_of_turns([cost, cost])

    def _tune_kernels(self, part: Budget, *, is_placed: bool) -> None:
        plans = (self.plan, *plans_by_leaf(self.plan)) if is_placed else (self.plan,)
        kernels = KernelTuner(
            plans,
            self.log,
            part,
            seed=self.seed,
            limits=self.limits,
            progress=self.progress,
            remotes=self.remotes,
            space=self.space,
            allow_interpreter=self.allow_interpreter,
        )
        self.tuners.append(kernels)
        kernels.run()
        self.budget.done = part.done

    def _compare(self, programs: Programs, *, is_placed: bool) -> None:
        """Run the untuned and the tuned program by turns, unless there is no time for it."""
        if self.is_short:
            self.left_out.append("the whole program was not run: building it takes too much of the seconds given")
            return
        advice = TunedChoices(self.log)
        placed = advice.placed(self.plan) if is_placed else self.plan
        after = Variant(None if placed is self.plan else placed, advice.settings(placed))
        ran = programs.compare([UNTUNED, after], ROUNDS)
        if ran.status == "ok":
            self.compared = ran.costs
        else:
            self.left_out.append(f"the whole program could not be compared: {ran.why}")

    def _part(self, share: float, end: float | None) -> Budget:
        """Return a budget with a share of what is left."""
        trials, done = self.budget.trials, self.budget.done
        now = time.monotonic()
        return Budget(
            None if trials is None else min(trials, done + max(1, round(share * (trials - done)))),
            None if end is None else now + share * (end - now),
            done,
        )

    def _result(self) -> TuneResult:
        before, after = self.compared
        statuses = sum((tuner.statuses for tuner in self.tuners), Counter[str]())
        return TuneResult(
            log=self.log.url,
            findings=tuple(finding for tuner in self.tuners for finding in tuner.findings()),
            measured=statuses.total(),
            reused=sum(tuner.reused for tuner in self.tuners),
            hinted=sum(tuner.hinted for tuner in self.tuners if isinstance(tuner, KernelTuner)),
            statuses=statuses,
            seconds=time.monotonic() - self.begin,
            before=before,
            after=after,
            left_out=(*self.left_out, *(reason for tuner in self.tuners for reason in tuner.left_out)),
            load=self.load,
        )
