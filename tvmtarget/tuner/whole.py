"""Whole programs, built in several ways and run by turns on made-up inputs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from tvmtarget.advice import Advice, alone, placement_identity, whole_workload
from tvmtarget.building import build
from tvmtarget.errors import BackendError, RunError, TvmTargetError
from tvmtarget.executable import Executable
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.plan import Plan
from tvmtarget.tuner.checking import Check
from tvmtarget.tuner.device import device_lock, holding
from tvmtarget.tuner.result import Budget, Finding, Progress
from tvmtarget.tuning.environment import environment
from tvmtarget.tuning.log import TuningLog
from tvmtarget.tuning.records import FAILURES, Candidate, Level, Measurement, Status, Trial

__all__ = ["Inputs", "WholeTuner", "compare_runs", "made_up_inputs", "open_sizes", "run_by_turns"]

Inputs: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"

ROUNDS = 9
OPEN_SIZE = 1  # of a dimension without a number
TURN = 0.005  # seconds of a turn, if that is not more runs in a row than this
MAX_IN_A_ROW = 50
MOST_WHY = 300  # letters of a reason in the log
SLOW = 0.5  # seconds a run from which on fewer rounds do


class WholeTuner:
    """What tunes one program as a whole into a log: its settings, or its placement."""

    level: ClassVar[Level]

    def __init__(self, plan: Plan, log: TuningLog, budget: Budget, inputs: Inputs, progress: Progress | None) -> None:
        self._plan = plan
        self._log = log
        self._budget = budget
        self._inputs = inputs
        self._progress = progress
        self._workload = whole_workload(plan, self.level)
        self._identity = placement_identity(plan)
        self._finding: Finding | None = None
        self._failed: set[str] = set()
        self._check: Check | None = None
        self.statuses: Counter[str] = Counter()
        self.left_out: list[str] = []
        self.reused = 0

    def recalled(self) -> Iterator[Trial]:
        """Yield what the log has of this program on this target, beside this default and with what is installed here.

        Left out is what is older than anything it builds on: kernels of the leaves, and for settings the placement.
        What failed is not yielded, but remembered.
        """
        layout, found, newest = self._plan.layout, list[Trial](), 0
        targets = {layout.root.digest, *(alone(leaf.target).digest for leaf in layout.leaves())}
        here, placement = environment().key, whole_workload(self._plan, "graph").key
        for record in self._log:
            if not isinstance(record, Trial) or record.target not in targets:
                continue
            if record.workload == self._workload.key:
                found += [record] if record.env == here else []
            elif record.level == "kernel" or record.workload == placement:
                newest = max(newest, record.ts or 0)
        for trial in found:
            if (trial.ts or 0) < newest:
                continue
            if trial.measured.status in FAILURES:
                self._failed.add(trial.candidate.key)
                continue
            beside = trial.measured.baseline
            if trial.measured.status == "ok" and beside is not None and beside.identity == self._identity:
                yield trial

    def expect(self, program: Executable) -> None:
        """Remember what the default computes, for others to be compared with."""
        self._check = Check(program, self._inputs)

    def built(self, what: str, candidate: Candidate, make: Callable[[], Executable]) -> Executable | None:
        """Build a program and compare what it computes with the default; of what fails that is logged, and None."""
        status: Status = "build_error"
        try:
            program = make()
            status = "run_error"
            why = "" if self._check is None else self._check.difference(program)
            if not why:
                return program
            status = "wrong_output"
        except TvmTargetError as error:
            why = error.problems[0]
        self._failed.add(candidate.key)
        self._budget.done += 1
        self.statuses[status] += 1
        reason = {"why": why[:MOST_WHY]}
        self._log.add(self._workload, self._plan.layout.root, candidate, Measurement(status=status), search=reason)
        self.left_out.append(f"{what}: {why}")
        return None

    def findings(self) -> Iterator[Finding]:
        """Yield what is known after it ran."""
        if self._finding is not None:
            yield self._finding


def open_sizes(plan: Plan) -> dict[str, int]:
    """Return the sizes of the made-up inputs in dimensions without a number, by the names of these."""
    types = [param.type for param in plan.module.main.params]
    shapes = [type_.shape or () for type_ in types if isinstance(type_, TensorType)]
    return {dim: OPEN_SIZE for shape in shapes for dim in shape if isinstance(dim, str)}


def made_up_inputs(plan: Plan) -> Inputs | None:
    """Return inputs for a program, normal or small whole numbers; None if it takes something that is no tensor."""
    random = np.random.default_rng(0)
    inputs: dict[str, np.ndarray[Any, Any]] = {}
    for param in plan.module.main.params:
        if not isinstance(param.type, TensorType) or param.type.shape is None or param.type.dtype == "string":
            return None
        shape = [dim if isinstance(dim, int) else OPEN_SIZE for dim in param.type.shape]
        if param.type.dtype.startswith(("int", "uint", "bool")):
            inputs[param.name] = random.integers(0, 2, shape).astype(param.type.dtype)
        else:
            inputs[param.name] = random.standard_normal(shape).astype(param.type.dtype)
    return inputs


def compare_runs(plan: Plan, log: TuningLog, *, is_placed: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return picoseconds of runs by turns: as the plan is, and as `build` makes it of the log.

    With `is_placed`, the placement in the log is used too. Nothing is returned for what cannot run here.
    """
    inputs = made_up_inputs(plan)
    if inputs is None:
        return (), ()
    try:
        programs = [build(plan), build(Advice(log).placed(plan) if is_placed else plan, log=log)]
        with holding(device_lock()):
            before, after = run_by_turns(programs, inputs)
    except (BackendError, RunError):
        return (), ()
    return tuple(before), tuple(after)


def run_by_turns(programs: Sequence[Executable], inputs: Inputs, rounds: int = ROUNDS) -> list[list[int]]:
    """Return picoseconds of each program in each round, the least of a few runs.

    There are two in a row at least, as idle threads of one program spin into the next, and more of short ones.
    """
    first = [_timed(program, inputs) for program in programs]
    turns = rounds if max(first) < SLOW * 1e12 else min(rounds, 5)
    counts = [max(2, min(MAX_IN_A_ROW, int(TURN * 1e12 / max(1, taken)))) for taken in first]
    costs: list[list[int]] = [[] for _ in programs]
    for _ in range(turns):
        for each, program, count in zip(costs, programs, counts, strict=True):
            each.append(min(_timed(program, inputs) for _ in range(count)))
    return costs


def _timed(program: Executable, inputs: Inputs) -> int:
    begin = time.perf_counter_ns()
    program.run(inputs)
    return 1000 * (time.perf_counter_ns() - begin)
