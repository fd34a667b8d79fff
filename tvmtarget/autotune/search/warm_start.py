"""Warm start of a kernel's search: what a log knows is not measured again, and what may be good is tried first.

Trials that were compared with today's default, on this device or an equal one, are taken over. The best of the other
candidates that are legal here are tried before anything is searched: pinned ones, imports from other tools, those that
were compared with a former default, those of an equivalent workload, and those of a near device.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_low

from tvmtarget.autotune.log.match import Policy
from tvmtarget.autotune.log.records import FAILURES, Candidate, Trial, Workload
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.autotune.search.candidates import Choices
from tvmtarget.autotune.search.kernel import TunedKernel
from tvmtarget.building.tuned_schedules import SAME_DEVICE

__all__ = ["HINT", "MAX_HINTS", "warm_start"]

HINT = "log"  # the tuner of a candidate that was a hint, in its trial
MAX_HINTS = 8  # of a kernel, in all runs together

_NEAR = Policy()


def warm_start(log: TuningLog, kernel: TunedKernel, space: str) -> int:
    """Give a kernel's search the trials that a log has of it, and the candidates to try first.

    Args:
        log: the log.
        kernel: the kernel, whose search and hints are filled.
        space: where its candidates come from: `auto`, `own` or `metaschedule`.

    Returns:
        How many candidates the log knew.
    """
    known = list(_known(log, kernel))
    for choices, trial in known:
        _take_over(kernel, choices, trial)
    tried = {
        trial.candidate.key for _, trial in known if trial.search is not None and trial.search.get("tuner") == HINT
    }
    hints = list(_hints(log, kernel, space, MAX_HINTS - len(tried)))
    kernel.hints = [hint for candidate in hints if (hint := kernel.read(candidate)) is not None]
    kernel.hinted = frozenset(candidate.key for candidate in hints)
    return len({trial.candidate.key for _, trial in known})


def _known(log: TuningLog, kernel: TunedKernel) -> Iterator[tuple[Choices, Trial]]:
    """Yield the trials that are still valid: failures, and costs compared with today's default."""
    for trial in log.trials(kernel.workload, kernel.target):
        choices = kernel.read(trial.candidate)
        if choices is not None and (trial.measured.status in FAILURES or kernel.is_beside_default(trial)):
            yield choices, trial


def _take_over(kernel: TunedKernel, choices: Choices, trial: Trial) -> None:
    """Report one trial to a kernel's search; a confirmed cost replaces one of the search."""
    measured = trial.measured
    if measured.kind == "confirm" and measured.baseline is not None and measured.cost is not None:
        costs = measured.cost, median_low(measured.baseline.costs), trial.digest
        kernel.confirmed[trial.candidate.key] = costs
        kernel.report(choices, measured)
    elif not kernel.search.knows(choices):
        kernel.report(choices, measured)
    if choices == kernel.default_choices:
        kernel.default = measured.cost or 0


def _hints(log: TuningLog, kernel: TunedKernel, space: str, count: int) -> Iterator[Candidate]:
    """Yield at most `count` new candidates: those of this device, then those of other devices, the nearest first."""
    described = kernel.space.kernel
    equivalent = [
        (Workload.of(body, payload={"name": described.name}), name) for name, body in described.equivalents.items()
    ]
    seen: set[str] = set()
    for policy in (SAME_DEVICE, _NEAR):
        for workload, format_ in ((kernel.workload, ""), *equivalent):
            if len(seen) >= count:
                return
            for match in log.matches(workload, kernel.target, policy=policy, default=described.default or None):
                candidate = match.record.candidate if match.record is not None else None
                if candidate is None or candidate.key in seen or format_ not in ("", candidate.format):
                    continue
                if _is_new(kernel, space, candidate):
                    seen.add(candidate.key)
                    yield candidate
                    if len(seen) >= count:
                        return


def _is_new(kernel: TunedKernel, space: str, candidate: Candidate) -> bool:
    """Whether a candidate is one of the kernel's, from the space that is searched, and not known yet."""
    choices = kernel.read(candidate)
    if choices is None or kernel.search.knows(choices) or choices == kernel.default_choices:
        return False
    return space == "auto" or isinstance(choices, str) == (space == "metaschedule")
