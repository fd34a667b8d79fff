"""The result of tuning, and its progress."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeAlias

from tvmtarget.errors import RunError
from tvmtarget.human_units import counted

__all__ = ["Budget", "Finding", "Progress", "TuneInterrupted", "TuneProgress", "TuneResult", "TuneStoppedError"]

MAX_LOAD = 0.5  # of each processor, above which other processes may have changed which candidate is best


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for one kernel, or for the placement or settings of the program.

    Attributes:
        level: `kernel`, `placement` or `executor`.
        what: what was tuned.
        site: the path of the leaf.
        default: picoseconds without tuning.
        best: picoseconds of the best candidate.
        calls: how often a run of the program executes it.
        trials: how many candidates were measured.
        is_confirmed: whether the costs were measured by turns.
        record: the digest of the trial, empty if the default is best.
        bound: of a placement, picoseconds below which no placement is, by the times of its segments on each leaf, or of
            operations that are fitted to those of the measured subgraphs; 0 if unknown.
    """

    level: str
    what: str
    site: str
    default: int
    best: int
    calls: int = 1
    trials: int = 0
    is_confirmed: bool = False
    record: str = ""
    bound: int = 0

    @property
    def speedup(self) -> float:
        """The time without tuning over the best time."""
        return self.default / self.best if self.best else 1.0

    def __str__(self) -> str:
        place = f" on @{self.site}" if self.site else ""
        times = f" x{self.calls}" if self.calls > 1 else ""
        sure = "" if self.is_confirmed else ", not confirmed"
        return (
            f"{self.level} {self.what}{times}{place}: {_time(self.default)} -> {_time(self.best)}, "
            f"{self.speedup:.2f} times as fast{sure} ({counted(self.trials, 'trial')})"
            + (f"; by the times of its parts no placement takes less than {_time(self.bound)}" if self.bound else "")
        )


@dataclass(frozen=True, slots=True)
class TuneProgress:
    """One finished trial.

    Attributes:
        level: `kernel`, `placement` or `executor`.
        what: what was tuned.
        status: how the trial ended.
        done: how many trials were made.
        trials: how many there will be, None if that is not limited.
        default: picoseconds of everything tuned at this level, without tuning.
        best: the same with the best candidates so far.
    """

    level: str
    what: str
    status: str
    done: int
    trials: int | None
    default: int
    best: int

    @property
    def speedup(self) -> float:
        """The time without tuning over the best time so far."""
        return self.default / self.best if self.best else 1.0

    @property
    def so_far(self) -> str:
        """The times without tuning and so far, as text."""
        return f"{_time(self.default)} -> {_time(self.best)}, {self.speedup:.2f} times as fast"


Progress: TypeAlias = Callable[[TuneProgress], None]


@dataclass
class Budget:
    """The trials and the time that a run may use; None is no limit.

    Attributes:
        trials: how many trials may be made.
        deadline: when to end, by the monotonic clock.
        done: how many trials were made.
    """

    trials: int | None
    deadline: float | None
    done: int = 0

    @property
    def is_endless(self) -> bool:
        """Whether there is no limit."""
        return self.trials is None and self.deadline is None

    def at_most(self, count: int) -> int:
        """Limit a number of trials to those that are left.

        Args:
            count: the number.

        Returns:
            The number, or fewer.
        """
        return count if self.trials is None else min(count, self.trials - self.done)

    def seconds_left(self) -> float:
        """Return the time until the deadline.

        Returns:
            Seconds, infinite without a deadline.
        """
        return math.inf if self.deadline is None else self.deadline - time.monotonic()

    def is_spent(self, now: float) -> bool:
        """Return whether no further trial may begin.

        Args:
            now: a time of the monotonic clock.

        Returns:
            True if no trials are left, or the deadline is over.
        """
        return (self.trials is not None and self.done >= self.trials) or (
            self.deadline is not None and now >= self.deadline
        )


@dataclass(frozen=True)
class TuneResult:
    """The result of `tune`.

    Attributes:
        log: the URL of the log.
        findings: the results of kernels, placement and settings.
        measured: how many candidates were measured.
        reused: how many candidates the log knew.
        hinted: how many of those measured were hints of the log: imports, near devices, former defaults.
        statuses: how many trials ended with each status.
        seconds: the duration.
        before: picoseconds of runs of the untuned program, by turns with the tuned one; empty if it cannot run here.
        after: picoseconds of runs of the program as `build` makes it with the log.
        left_out: what was not tuned, and why.
        load: the load of each processor by other processes in the minute before; what is best beside them need not be
            best on an idle machine.
    """

    log: str
    findings: tuple[Finding, ...] = ()
    measured: int = 0
    reused: int = 0
    hinted: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()
    load: float = 0.0

    @property
    def ratios(self) -> tuple[float, ...]:
        """Times of the untuned program, each over that of the tuned program which ran next to it."""
        return tuple(before / after for before, after in zip(self.before, self.after, strict=True) if after)

    @property
    def speedup(self) -> float | None:
        """The median of `ratios`; None without such runs.

        It differs from the ratio of the median times where the speed of the machine changes between the pairs.
        """
        return median(self.ratios) if self.ratios else None

    def lines(self) -> Iterator[str]:
        """Describe the result.

        Yields:
            Lines of text.
        """
        failed = {status: count for status, count in sorted(self.statuses.items()) if status != "ok"}
        failures = "".join(f", {count} {status}" for status, count in failed.items())
        hinted = f", {self.hinted} of them on a hint of the log" if self.hinted else ""
        counts = f"{counted(self.measured, 'candidate')} measured{hinted}, {self.reused} known{failures}"
        yield f"{counts}, in {self.seconds:.0f} s; log {self.log}"
        if self.load > MAX_LOAD:
            yield (
                f"measured on a busy machine, at a load of {self.load:.1f} on each processor: "
                "on a quiet one, into another log, other candidates may be best"
            )
        yield from map(str, self.findings)
        yield from (f"not tuned: {reason}" for reason in self.left_out)
        if self.speedup is not None:
            pairs = f"{counted(len(self.ratios), 'pair')} of runs by turns"
            yield (
                f"whole program: {_time(median(self.before))} -> {_time(median(self.after))}, the median of each; "
                f"{self.speedup:.2f} times as fast, the median of {pairs} ({min(self.ratios):.2f} to "
                f"{max(self.ratios):.2f})"
            )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_json(self) -> dict[str, Any]:
        """Return the result as data.

        Returns:
            An object of JSON; costs are in picoseconds.
        """
        return {
            "log": self.log,
            "measured": self.measured,
            "reused": self.reused,
            "hinted": self.hinted,
            "statuses": dict(sorted(self.statuses.items())),
            "seconds": round(self.seconds, 3),
            "findings": [
                {name: getattr(finding, name) for name in Finding.__slots__} | {"speedup": round(finding.speedup, 4)}
                for finding in self.findings
            ],
            "left_out": list(self.left_out),
            "load": round(self.load, 2),
            "before": list(self.before),
            "after": list(self.after),
            "speedup": self.speedup,
        }


class TuneStoppedError(RunError):
    """Tuning could not continue; the problems say why, and where its trials are.

    Attributes:
        result: the result until then.
    """

    def __init__(self, *problems: str, result: TuneResult) -> None:
        super().__init__(*problems)
        self.result = result


class TuneInterrupted(KeyboardInterrupt):
    """Tuning was interrupted from the keyboard.

    Attributes:
        result: the result until then, which is in the log too.
    """

    def __init__(self, result: TuneResult) -> None:
        super().__init__()
        self.result = result


def _time(picoseconds: float) -> str:
    return f"{picoseconds / 1e9:.3g} ms" if picoseconds >= 1e9 else f"{picoseconds / 1e6:.3g} us"
