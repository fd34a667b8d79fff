"""The base of the tuners of whole programs, which are built and run in a process of their own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from tvmtarget.autotune.log.environment import environment
from tvmtarget.autotune.log.records import FAILURES, Candidate, Level, Measurement, Trial
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.autotune.search.programs import ProgramRun, Programs
from tvmtarget.autotune.search.rates import RATES
from tvmtarget.autotune.search.result import Budget, Finding, Progress
from tvmtarget.building.tuned_schedules import kernel_target, placement_key, program_workload
from tvmtarget.partition.plan import Plan

__all__ = ["ProgramTuner"]

MAX_WHY = 300  # letters of a reason in the log


class ProgramTuner:
    """Base of the tuners that measure one program as a whole, by its settings or its placement.

    Args:
        plan: the default plan of the program.
        log: the log to write.
        budget: the trials and the time for this tuner.
        programs: the process that builds and runs programs.
        progress: is called with every trial.
    """

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

    def valid_trials(self) -> Iterator[Trial]:
        """Yield the successful trials of this program in the log that are still valid.

        A trial is valid if it was compared with today's default on this target, with the versions installed here, and
        after everything that it builds on was measured: kernels of the leaves, and for settings the placement. Failures
        are not yielded, but remembered.

        Yields:
            Trials.
        """
        topology, newest = self._plan.topology, 0
        targets = {topology.root.digest, *(kernel_target(leaf.target).digest for leaf in topology.leaves())}
        here, placement = environment().key, program_workload(self._plan, "graph").key
        for record in self._log:
            if isinstance(record, Trial) and record.target in targets and record.workload != self._workload.key:
                is_kernel = record.level == "kernel" and record.candidate.format != RATES
                is_built_on = is_kernel or record.workload == placement
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
        """Return whether another trial may begin.

        Args:
            kept: seconds before the deadline by which it must end.

        Returns:
            False if trials or time are used up.
        """
        return not self._budget.is_spent(time.monotonic() + self._longest + kept)

    def count_run(self, what: str, candidate: Candidate, run: ProgramRun, *, is_trial: bool = True) -> bool:
        """Count a trial, and write it into the log if it failed.

        Args:
            what: the candidate, for the result.
            candidate: the candidate.
            run: the outcome.
            is_trial: whether it counts as a trial, as a confirmation does not.

        Returns:
            Whether the program ran. Failures of the machine and cancelled trials do not count against the candidate.
        """
        self._longest = max(self._longest, run.seconds)
        self._budget.done += is_trial
        self.statuses[run.status] += is_trial
        if run.status == "ok":
            return True
        self._failed.add(candidate.key)
        reason = {"why": run.why[:MAX_WHY]}
        self._log.add(
            self._workload, self._plan.topology.root, candidate, Measurement(status=run.status), search=reason
        )
        self.left_out.append(f"{what}: {run.why}")
        return False

    def findings(self) -> Iterator[Finding]:
        """Yield the result, after `run`.

        Yields:
            One finding at most.
        """
        if self._finding is not None:
            yield self._finding
