"""Tuning of kernels: those of all leaf functions of a plan; each trial goes to the kernel with most time left.

First the default of every kernel is measured, then candidates (`candidates.py`), then the best few of each kernel by
turns with its default. Everything is written into the log at once; what the log knows is not measured again.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from statistics import median_low

from tvmtarget.autotune.log.records import FAILURES, Measurement
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.autotune.search.candidates import BlockSearch, Choices, Search, TraceSearch
from tvmtarget.autotune.search.kernel import TunedKernel
from tvmtarget.autotune.search.measuring import Outcome, Worker
from tvmtarget.autotune.search.process import Limits, LostError
from tvmtarget.autotune.search.remote import Remotes, RemoteWorker
from tvmtarget.autotune.search.result import Budget, Finding, Progress, TuneProgress
from tvmtarget.autotune.search.warm_start import HINT, warm_start
from tvmtarget.backends.protocol import CompileRequest, Space
from tvmtarget.building.backend_choice import choose_backend
from tvmtarget.building.compile_plan import codegen_target, compile_request
from tvmtarget.building.tuned_schedules import kernel_target, kernel_workload
from tvmtarget.errors import BackendError, RunError
from tvmtarget.partition.plan import Plan
from tvmtarget.target.tree import Target

__all__ = ["KernelTuner"]

USUAL_TRIALS = 32  # of a kernel, if neither trials nor seconds are limited
ROUNDS = 7
CONFIRM_TIME = 0.1  # seconds that a comparison of a candidate takes longer than its measurement
UNSURE = 1.5  # factor on the estimated duration of comparisons, for which time is reserved
MAX_PROCESSES = 4  # at a time; starting one more ends the least recently used one
RELUCTANCE = 2.0  # how much more urgent a kernel without a process must be than one with a process


class KernelTuner:
    """Tunes the kernels of plans of one program.

    Args:
        plans: the plans.
        log: the log to write.
        budget: the trials and the time for this tuner.
        seed: makes the same search again.
        limits: the time and the memory that a candidate may take.
        progress: is called with every trial.
        remotes: machines to measure on, instead of this one.
        space: where candidates come from: `auto`, `own` or `metaschedule`.
        allow_interpreter: let numpy interpret leaves without a code generator.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        log: TuningLog,
        budget: Budget,
        *,
        seed: int,
        limits: Limits,
        progress: Progress | None,
        remotes: Remotes | None = None,
        space: str = "auto",
        allow_interpreter: bool = False,
    ) -> None:
        self._allow_interpreter = allow_interpreter
        self._remotes = remotes
        self._space = space
        self._plans = plans
        self._log = log
        self._budget = budget
        self._seed = seed
        self._limits = limits
        self._progress = progress
        self._workers: list[Worker] = []
        self._kernels: list[TunedKernel] = []
        self.statuses: Counter[str] = Counter()
        self.left_out: list[str] = []
        self.reused = 0
        self.hinted = 0

    def run(self) -> None:
        """Open the leaf functions, search, and confirm the best candidates; all workers end.

        Raises:
            RunError: no kernel could be measured.
        """
        try:
            self._open()
            for kernel in self._kernels:
                self.reused += warm_start(self._log, kernel, self._space)
            for kernel in sorted(self._kernels, key=lambda kernel: -kernel.size):
                self._measure_default(kernel)
            self.left_out = list(dict.fromkeys(self.left_out))
            if self._kernels and all(kernel.is_exhausted and not kernel.trials for kernel in self._kernels):
                raise RunError(*self.left_out)
            while not self._budget.is_spent(time.monotonic() + self._confirmation_time()) and self._measure_next():
                pass
            for kernel in sorted(self._kernels, key=lambda kernel: -kernel.gain):
                self._confirm(kernel)
            waiting = sum(not kernel.default and not kernel.is_exhausted for kernel in self._kernels)
            if waiting:
                self.left_out.append(f"{waiting} of {len(self._kernels)} kernels: trials or time were up before them")
        finally:
            for worker in self._workers:
                worker.close()

    def _confirmation_time(self) -> float:
        """Return the seconds that comparing the best candidates with the defaults takes."""
        waiting = [kernel for kernel in self._kernels if kernel.good and not kernel.is_confirmed]
        closed = {id(kernel.worker): kernel.worker for kernel in waiting if kernel.worker.pid is None}
        comparing = sum((len(kernel.good) + 1) * (kernel.seconds + CONFIRM_TIME) for kernel in waiting)
        return UNSURE * (comparing + sum(worker.open_seconds for worker in closed.values()))

    def findings(self) -> Iterator[Finding]:
        """Yield the results of the kernels that ran.

        Yields:
            Findings, those with most time first.
        """
        ran = [kernel for kernel in self._kernels if kernel.default]
        for kernel in sorted(ran, key=lambda kernel: -kernel.calls * kernel.default):
            confirmed = min(kernel.confirmed.values(), key=lambda found: found[0] / max(1, found[1]), default=None)
            default, best, record, is_confirmed = kernel.default, kernel.best, "", False
            if confirmed is not None:
                best, default, record = confirmed
                is_confirmed = True
                if best >= default:
                    best, record = default, ""
            what, calls = kernel.name, kernel.calls
            yield Finding("kernel", what, kernel.site, default, best, calls, kernel.trials, is_confirmed, record)

    def _open(self) -> None:
        """Open each leaf function once, whichever plans it is in."""
        found: dict[tuple[str, str], TunedKernel] = {}
        opened: set[tuple[str, str]] = set()
        for plan in self._plans:
            for task in plan.tasks():
                backend = self._backend(plan, task.subgraph.site)
                if backend is None or (task.structure, task.codegen_key) in opened:
                    continue
                opened.add((task.structure, task.codegen_key))
                leaf = codegen_target(plan.topology, task.subgraph.site)
                worker = self._worker(backend, compile_request(plan, task.subgraph, leaf))
                self._activate(worker)
                try:
                    self._add(found, worker, task.subgraph.site, kernel_target(leaf), task.weight)
                except (BackendError, RunError) as error:
                    self.left_out += error.problems
                except LostError:
                    self.left_out.append(
                        f"kernels of @{task.subgraph.site or '.'}: the time was up before they were open"
                    )
        self._kernels = list(found.values())
        self.left_out = list(dict.fromkeys(self.left_out))

    def _worker(self, backend: str, part: CompileRequest) -> Worker:
        if self._remotes is None:
            return Worker(backend, part, self._limits)
        return RemoteWorker(backend, part, self._limits, self._remotes)

    def _activate(self, worker: Worker) -> Worker:
        """Return a worker with the deadline set, and end those that were least recently used."""
        worker.until = self._budget.deadline
        self._workers = [*(each for each in self._workers if each is not worker), worker]
        for each in [each for each in self._workers if each.pid is not None and each is not worker][
            : -MAX_PROCESSES + 1
        ]:
            each.close()
        return worker

    def _backend(self, plan: Plan, site: str) -> str | None:
        """Return the name of the backend that tunes the kernels of a leaf; None, with a note, if there is none."""
        place = f"kernels of @{site or '.'}"
        try:
            backend, _ = choose_backend(plan.topology, site, allow_interpreter=self._allow_interpreter)
        except BackendError as error:
            self.left_out += error.problems
            return None
        reason = backend.unsupported_reason(codegen_target(plan.topology, site)) if self._remotes is None else None
        if reason is not None:
            self.left_out.append(f"{place} cannot run on this machine: {reason}")
        elif "tuning" not in backend.supports:
            self.left_out.append(f"{place}: {backend.name} has none of its own to tune")
        else:
            return backend.name
        return None

    def _add(
        self, found: dict[tuple[str, str], TunedKernel], worker: Worker, site: str, target: Target, weight: int
    ) -> None:
        """Add the kernels of a leaf function, and close a worker without new ones."""
        spaces = [space for space in worker.spaces() if space.choices or self._space != "own"]
        if not spaces:
            self.left_out.append(f"kernels of @{site or '.'}: none has sums that could be blocked")
        key = target.tuning_key("kernel")
        for space in spaces:
            known = found.get((space.kernel.key, key))
            if known is not None:
                known.calls += weight * space.kernel.calls
                continue
            found[space.kernel.key, key] = self._kernel(site, target, worker, space, weight)
        if not any(kernel.worker is worker for kernel in found.values()):
            worker.close()

    def _kernel(self, site: str, target: Target, worker: Worker, space: Space, weight: int) -> TunedKernel:
        """Return a kernel with its search; traces are stored with the program that TVM needs for them."""
        search: Search
        kernel = space.kernel
        if self._space == "metaschedule" or not space.choices:
            search = TraceSearch(self._seed, partial(worker.propose, kernel.key))
            kernel = replace(kernel, program=worker.program(kernel.key))
        else:
            search = BlockSearch(space, self._seed, partial(worker.legal, kernel.key))
        return TunedKernel(site, target, worker, space, kernel_workload(kernel), weight * kernel.calls, search)

    def _measure_default(self, kernel: TunedKernel) -> None:
        if kernel.default or self._budget.is_spent(time.monotonic()):
            return
        try:
            outcome = self._activate(kernel.worker).measure(kernel.space.kernel.key, kernel.default_choices, repeats=5)
        except BackendError as error:  # all remote machines refuse it
            self.left_out += (f"kernels of @{kernel.site or '.'}: {problem}" for problem in error.problems)
            kernel.is_exhausted = True
            return
        kernel.default = median_low(outcome.costs) if outcome.status == "ok" else 0
        if outcome.status == "cancelled":
            return
        if not kernel.default:
            self.left_out.append(f"kernel {kernel.name}: its default did not run here: {outcome.why}")
            kernel.is_exhausted = True
        self._write(kernel, kernel.default_choices, outcome)

    def _measure_next(self) -> bool:
        """Measure a candidate of the most urgent kernel, or one per machine; return whether there was one."""
        chosen: list[tuple[TunedKernel, Choices]] = []
        while len(chosen) < self._budget.at_most(1 if self._remotes is None else self._remotes.size):
            found = self._propose()
            if found is None:
                break
            chosen.append(found)
        if self._remotes is None:
            for kernel, choices in chosen:
                outcome = kernel.measure(choices)
                kernel.pending -= 1
                self._write(kernel, choices, outcome)
        else:
            self._measure_remotely(self._remotes, chosen)
        return bool(chosen)

    def _measure_remotely(self, remotes: Remotes, chosen: Sequence[tuple[TunedKernel, Choices]]) -> None:
        """Measure candidates on several machines; if one fails for lack of machines, write the others first."""
        errors: list[RunError | BackendError] = []
        with ThreadPoolExecutor(max(1, len(chosen))) as threads:
            futures = [threads.submit(kernel.measure, choices) for kernel, choices in chosen]
            try:
                for (kernel, choices), future in zip(chosen, futures, strict=True):
                    try:
                        outcome = future.result()
                    except (RunError, BackendError) as error:
                        errors.append(error)
                    else:
                        kernel.pending -= 1
                        self._write(kernel, choices, outcome)
            except BaseException:
                remotes.stop()  # leaving the executor waits for the other threads
                raise
        if errors:
            raise errors[0]

    def _propose(self) -> tuple[TunedKernel, Choices] | None:
        """Return a candidate of the most urgent kernel that has one left."""
        most = USUAL_TRIALS if self._budget.is_endless else math.inf
        while open_ := [each for each in self._kernels if not each.is_exhausted and each.trials + each.pending < most]:
            kernel = max(
                open_, key=lambda each: each.urgency * (1.0 if each.worker.pid is not None else 1 / RELUCTANCE)
            )
            self._activate(kernel.worker)
            try:
                choices = kernel.propose()
            except LostError:
                return None
            except (BackendError, RunError) as error:
                self.left_out.append(f"kernel {kernel.name}: {error.problems[0]}")
                choices = None
            if choices is not None:
                kernel.search.skip(choices)
                kernel.pending += 1
                return kernel, choices
            kernel.is_exhausted = True
        return None

    def _write(self, kernel: TunedKernel, choices: Choices, outcome: Outcome) -> None:
        """Write a trial, and report it to the search unless the machine failed."""
        beside = outcome.costs if choices == kernel.default_choices else outcome.beside
        baseline = kernel.baseline(beside) if beside else None
        measured = Measurement(status=outcome.status, costs=outcome.costs, baseline=baseline)
        self._budget.done += 1
        kernel.trials += 1
        kernel.is_changed = True
        self.statuses[outcome.status] += 1
        candidate = kernel.candidate(choices)
        tuner = "metaschedule" if isinstance(choices, str) else "tvmtarget.search/1"
        if candidate.key in kernel.hinted:
            tuner = HINT
            self.hinted += 1
        search = {"tuner": tuner, "seed": self._seed, "i": self._budget.done} | _why(outcome)
        self._log.add(kernel.workload, kernel.target, candidate, measured, search=search, env=outcome.env)
        if outcome.status in FAILURES or measured.ratio_ppb is not None:
            kernel.report(choices, measured)
        self._report_progress(kernel, outcome.status)

    def _confirm(self, kernel: TunedKernel) -> None:
        """Compare the best candidates with the default by turns; if none is better, the default is confirmed."""
        if kernel.is_confirmed or self._budget.seconds_left() <= 0:
            return
        good, default = kernel.good, kernel.default_choices
        outcomes = self._activate(kernel.worker).compare(kernel.space.kernel.key, [default, *good], ROUNDS)
        if not outcomes:
            if self._budget.seconds_left() > 0:
                self.left_out.append(f"kernel {kernel.name}: its candidates could not be compared")
            return
        kernel.default = median_low(outcomes[0].costs)
        kernel.is_changed = False
        for choices, outcome in zip((default, *good), outcomes, strict=True):
            self._write_confirmed(kernel, choices, outcome, outcomes[0].costs)
        self._report_progress(kernel, "confirmed")

    def _write_confirmed(
        self, kernel: TunedKernel, choices: Choices, outcome: Outcome, baseline: tuple[int, ...]
    ) -> None:
        measured = Measurement(status="ok", kind="confirm", costs=outcome.costs, baseline=kernel.baseline(baseline))
        candidate = kernel.candidate(choices)
        trial = self._log.add(kernel.workload, kernel.target, candidate, measured, env=outcome.env)
        kernel.report(choices, measured)
        kernel.confirmed[candidate.key] = median_low(outcome.costs), median_low(baseline), trial.digest

    def _report_progress(self, kernel: TunedKernel, status: str) -> None:
        if self._progress is None:
            return
        default = sum(each.calls * each.default for each in self._kernels)
        best = sum(each.calls * each.best for each in self._kernels)
        self._progress(
            TuneProgress("kernel", kernel.name, status, self._budget.done, self._budget.trials, default, best)
        )


def _why(outcome: Outcome) -> dict[str, object]:
    return {"why": outcome.why} if outcome.why else {}
