"""A tuning log as a database of MetaSchedule that respects the target of a query.

It serves everything that takes such a database: `tune_tir(..., database=LogDatabase(log, target))`, and the pass
`MetaScheduleApplyDatabase` within `with LogDatabase(log, target):`. Programs are identified by their structure
and not by the names of functions, so what `tune` found is served too. This module imports TVM, which ships no types:
its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from tvmtarget.autotune.log.importers.metaschedule import candidate_problem
from tvmtarget.autotune.log.match import Match
from tvmtarget.autotune.log.records import Candidate, Measurement, Trial, Workload
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.backends.protocol import Kernel
from tvmtarget.building.tuned_schedules import kernel_target, kernel_workload
from tvmtarget.errors import BackendError, MissingExtraError
from tvmtarget.target.tree import Target

try:
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.database import PyDatabase, TuningRecord
    from tvm.s_tir.meta_schedule.database import Workload as Program
except ImportError as error:
    raise MissingExtraError("apache-tvm", "tvm") from error

from tvmtarget.backends.tvm.call_sites import Use
from tvmtarget.backends.tvm.kernels import described
from tvmtarget.backends.tvm.traces import TRACE_FORMAT, program_of, replay, trace_text

__all__ = ["LogDatabase"]

Module: TypeAlias = Any
Record: TypeAlias = Any
Schedule: TypeAlias = Any
TvmTarget: TypeAlias = Any

_FAILED = 1e9  # seconds; MetaSchedule writes at least that for a failed candidate
_MORE = 4  # times the number of candidates that is read, because some may be of other formats


class _LogDatabase(PyDatabase):  # type: ignore[misc]
    """The records for one target; a query is answered for the target that it names."""

    def __init__(self, log: TuningLog, target: Target) -> None:
        super().__init__()
        self._log = log
        self._target = kernel_target(target)
        self._key = _key(target.to_tvm().load())
        self._size = -1
        self._workloads: dict[str, list[Workload]] = {}

    def has_workload(self, mod: Module) -> bool:
        return bool(self._known(mod))

    def commit_workload(self, mod: Module) -> Program:
        return Program(mod)

    def commit_tuning_record(self, record: Record) -> None:
        costs = tuple(round(float(seconds) * 1e12) for seconds in record.run_secs or ())
        is_run = bool(costs) and max(costs) < _FAILED * 1e12
        measured = Measurement(status="ok", costs=costs) if is_run else Measurement(status="infra_error")
        target = self._target if record.target is None else self._target_of(record.target)
        program = record.workload.mod
        workload = next(iter(self._known(program)), None) or kernel_workload(_kernel(program))
        candidate = Candidate(format=TRACE_FORMAT, body=trace_text(record.trace))
        self._log.add(workload, target, candidate, measured, search={"tuner": "metaschedule"})

    def get_top_k(self, workload: Program, top_k: int) -> list[Record]:
        return [self._record(workload, match) for match in self._matches(workload.mod, self._target, top_k)]

    def get_all_tuning_records(self) -> list[Record]:
        self._refresh()
        found = []
        for workload in [one for some in self._workloads.values() for one in some if one.payload]:
            payload = workload.payload or {}
            if payload.get("format") == "tvm.ir.json":
                program = Program.from_json([payload["hash"], payload["b64"]])
                found += self.get_top_k(program, len(self._log))
        return found

    def query_tuning_record(self, mod: Module, target: TvmTarget, workload_name: str | None = None) -> Record | None:
        best = self._matches(mod, self._target_of(target), 1)
        return self._record(Program(mod), best[0]) if best else None

    def query_schedule(self, mod: Module, target: TvmTarget, workload_name: str | None = None) -> Schedule | None:
        best = self._matches(mod, self._target_of(target), 1)
        return replay(mod, str(best[0].candidate.body)) if best and best[0].candidate else None

    def query_ir_module(self, mod: Module, target: TvmTarget, workload_name: str | None = None) -> Module | None:
        schedule = self.query_schedule(mod, target, workload_name)
        return None if schedule is None else schedule.mod

    def __len__(self) -> int:
        return len(self.get_all_tuning_records())

    def _target_of(self, target: TvmTarget) -> Target:
        """Return the target of a query: this one if TVM's target equals it without caches and memories."""
        return self._target if _key(target) == self._key else kernel_target(Target.from_tvm(target))

    def _matches(self, mod: Module, target: Target, count: int) -> list[Match]:
        """Return the best traces for a program on a target or an equal one, under any name of the program."""
        found = [
            match
            for workload in self._known(mod)
            for match in self._log.top_k(workload, target, _MORE * count, unusable=candidate_problem)
            if match.candidate is not None and candidate_problem(match.candidate) is None
        ]
        return sorted(found, key=_rank)[:count]

    def _known(self, mod: Module) -> list[Workload]:
        """Return the workloads of the log with the structure of a program."""
        self._refresh()
        kernel = _kernel(mod)
        return self._workloads.get(str(kernel.body["structure"]), [])

    def _refresh(self) -> None:
        """Read the workloads of the log again if it has grown."""
        if len(self._log) == self._size:
            return
        self._size = len(self._log)
        self._workloads = {}
        for workload in self._log.workloads():
            body = workload.body if isinstance(workload.body, Mapping) else {}
            if workload.level == "kernel" and "structure" in body:
                self._workloads.setdefault(str(body["structure"]), []).append(workload)

    def _record(self, program: Program, match: Match) -> Record:
        trial = match.record
        costs = trial.measured.costs if isinstance(trial, Trial) else ()
        trace = replay(program.mod, str(match.candidate.body if match.candidate else "")).trace
        source = match.source or match.target
        return TuningRecord(trace, program, [cost / 1e12 for cost in costs], source.to_tvm().load())


def _key(target: TvmTarget) -> str:
    return kernel_target(Target.from_tvm(target)).tuning_key("kernel")


def _rank(match: Match) -> tuple[int, int]:
    return (isinstance(match.record, Trial) and match.record.measured.rank) or (0, 0)


def _kernel(mod: Module) -> Kernel:
    """Return the only function of a module as a kernel."""
    functions = list(mod.functions.values())
    if len(functions) != 1:
        raise BackendError(f"a program of MetaSchedule has one function, not {len(functions)}")
    (function,) = functions
    return replace(described("main", function, Use()), program=program_of(function))


LogDatabase = derived_object(_LogDatabase)
