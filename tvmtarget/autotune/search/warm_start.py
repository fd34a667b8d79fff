"""What a log knows of a kernel before it is tuned: what need not be measured again, and what is worth trying first.

What was measured beside the default of today on this device, or on one equal to it, is taken over. The best of all else
that is legal here is tried before anything is searched, as it was not compared with that default, or not here: what
people pinned, what another tool measured and the log imported, what was measured beside a former default, for a
workload that is alike, or on a near device.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median_low

from tvmtarget.autotune.log.match import Policy
from tvmtarget.autotune.log.records import FAILURES, Candidate, Trial, Workload
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.autotune.search.candidates import Choices
from tvmtarget.autotune.search.kernel import TunedKernel
from tvmtarget.building.tuned_schedules import SAME_DEVICE

__all__ = ["HINT", "recall"]

HINT = "log"  # what found a candidate that was a hint, as trials tell it
HINTS = 8  # of a kernel, those that were tried in earlier runs among them

_NEAR = Policy()


def recall(log: TuningLog, kernel: TunedKernel, space: str) -> int:
    """Take over what a log knows of a kernel, and what is to be tried first; return how many candidates it knew."""
    taken = [*_known(log, kernel)]
    for choices, trial in taken:
        _take(kernel, choices, trial)
    tried = {
        trial.candidate.key for _, trial in taken if trial.search is not None and trial.search.get("tuner") == HINT
    }
    found = _hints(log, kernel, space, HINTS - len(tried))
    kernel.hints = [hint for candidate in found if (hint := kernel.read(candidate)) is not None]
    kernel.hinted = frozenset(candidate.key for candidate in found)
    return len({trial.candidate.key for _, trial in taken})


def _known(log: TuningLog, kernel: TunedKernel) -> Iterator[tuple[Choices, Trial]]:
    """Yield the trials that say something of candidates today."""
    for trial in log.trials(kernel.workload, kernel.target):
        choices = kernel.read(trial.candidate)
        if choices is not None and (trial.measured.status in FAILURES or kernel.is_beside_default(trial)):
            yield choices, trial


def _take(kernel: TunedKernel, choices: Choices, trial: Trial) -> None:
    """Take over one trial of a kernel's candidate; what was confirmed counts before what was seen once."""
    measured = trial.measured
    if measured.kind == "confirm" and measured.baseline is not None and measured.cost is not None:
        costs = measured.cost, median_low(measured.baseline.costs), trial.digest
        kernel.confirmed[trial.candidate.key] = costs
        kernel.tell(choices, measured)
    elif not kernel.search.knows(choices):
        kernel.tell(choices, measured)
    if choices == kernel.default_choices:
        kernel.default = measured.cost or 0


def _hints(log: TuningLog, kernel: TunedKernel, space: str, count: int) -> list[Candidate]:
    """Return so many candidates at most: those of this device, then those carried over, the nearest first.

    A lookup goes through all that is legal here in that order, and asks of each candidate whether it is of use.
    """
    found: dict[str, Candidate] = {}
    described = kernel.space.kernel
    alike = [(Workload.of(body, payload={"name": described.name}), name) for name, body in described.alike.items()]

    def refusal(format_: str, candidate: Candidate) -> str | None:
        if len(found) < count and format_ in ("", candidate.format) and _is_new(kernel, space, candidate):
            found.setdefault(candidate.key, candidate)
        return None if len(found) >= count else "more is looked for"

    for policy in (SAME_DEVICE, _NEAR):
        for workload, format_ in ((kernel.workload, ""), *alike):
            if len(found) < count:
                refuses = partial(refusal, format_)
                log.lookup(workload, kernel.target, policy=policy, default=described.default or None, refuses=refuses)
    return list(found.values())


def _is_new(kernel: TunedKernel, space: str, candidate: Candidate) -> bool:
    """Whether a candidate is one of the kernel's, from where candidates are to come from, and not known yet."""
    choices = kernel.read(candidate)
    if choices is None or kernel.search.knows(choices) or choices == kernel.default_choices:
        return False
    return space == "auto" or isinstance(choices, str) == (space == "metaschedule")
