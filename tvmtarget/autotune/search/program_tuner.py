"""What tunes one program as a whole into a log; programs are built and run in a process of their own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from tvmtarget.autotune.log.environment import environment
from tvmtarget.autotune.log.records import FAILURES, Candidate, Level, Measurement, Trial
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.autotune.search.programs import ProgramRun, Programs
from tvmtarget.autotune.search.result import Budget, Finding, Progress
from tvmtarget.building.tuned_schedules import kernel_target, placement_key, program_workload
from tvmtarget.partition.plan import Plan

__all__ = ["ProgramTuner"]

MOST_WHY = 300  # letters of a reason in the log


class ProgramTuner:
    """What tunes one program as a whole into a log: its settings, or its placement."""

    level: ClassVar[Level]

    def __init__(
        self, plan: Plan, log: TuningLog, budget: Budget, programs: Programs, progress: Progress | None
    ) -> None:
        self._plan = plan
        self._log = log
        self._budget = budget
        self._programs = programs
        self._progress = progress
        self._workload = program_workload(plan, self.level)
        self._identity = placement_key(plan)
        self._finding: Finding | None = None
        self._failed: set[str] = set()
        self._longest = 0.0  # seconds that a trial took
        self.statuses: Counter[str] = Counter()
        self.left_out: list[str] = []
        self.reused = 0

    def recalled(self) -> Iterator[Trial]:
        """Yield what the log has of this program on this target, beside this default and with what is installed here.

        Left out is what is older than anything it builds on: kernels of the leaves, and for settings the placement.
        What failed is not yielded, but remembered.
        """
        topology, newest = self._plan.topology, 0
        targets = {topology.root.digest, *(kernel_target(leaf.target).digest for leaf in topology.leaves())}
        here, placement = environment().key, program_workload(self._plan, "graph").key
        for record in self._log:
            if isinstance(record, Trial) and record.target in targets and record.workload != self._workload.key:
                is_built_on = record.level == "kernel" or record.workload == placement
                newest = max(newest, (record.ts or 0) if is_built_on else 0)
        for trial in self._log.trials(self._workload, topology.root):
            if trial.env != here or (trial.ts or 0) < newest:
                continue
            if trial.measured.status in FAILURES:
                self._failed.add(trial.candidate.key)
                continue
            beside = trial.measured.baseline
            if trial.measured.status == "ok" and beside is not None and beside.identity == self._identity:
                yield trial

    def has_time(self, kept: float = 0.0) -> bool:
        """Whether another trial may begin, and end `kept` seconds before the time is up."""
        return not self._budget.is_spent(time.monotonic() + self._longest + kept)

    def ran(self, what: str, candidate: Candidate, ran: ProgramRun) -> bool:
        """Count a trial, and return whether it is one to go on with; of what failed that is logged.

        Failures of the machine, and what was ended as the time was up, are in the log and say nothing of the candidate.
        """
        self._longest = max(self._longest, ran.seconds)
        self._budget.done += 1
        self.statuses[ran.status] += 1
        if ran.status == "ok":
            return True
        self._failed.add(candidate.key)
        reason = {"why": ran.why[:MOST_WHY]}
        self._log.add(
            self._workload, self._plan.topology.root, candidate, Measurement(status=ran.status), search=reason
        )
        self.left_out.append(f"{what}: {ran.why}")
        return False

    def findings(self) -> Iterator[Finding]:
        """Yield what is known after it ran."""
        if self._finding is not None:
            yield self._finding
