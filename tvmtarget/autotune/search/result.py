"""What tuning found, and how it is told while it goes on."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeAlias

from tvmtarget.errors import RunError

__all__ = ["Budget", "Finding", "Progress", "TuneInterrupted", "TuneProgress", "TuneResult", "TuneStoppedError"]

MOST_LOAD = 0.5  # on each processor, above which others may have taken what a candidate needs


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known now of one thing that was tuned: what it costs untuned and at its best, in picoseconds.

    The costs are confirmed, that is measured by turns, where `is_confirmed`. `calls` is how often a run of the program
    pays them, `record` the digest of the record, empty where the default is best.
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

    @property
    def speedup(self) -> float:
        """How many times as fast as untuned."""
        return self.default / self.best if self.best else 1.0

    def __str__(self) -> str:
        place = f" on @{self.site}" if self.site else ""
        times = f" x{self.calls}" if self.calls > 1 else ""
        sure = "" if self.is_confirmed else ", not confirmed"
        return (
            f"{self.level} {self.what}{times}{place}: {_time(self.default)} -> {_time(self.best)}, "
            f"{self.speedup:.2f} times as fast{sure} ({self.trials} trials)"
        )


@dataclass(frozen=True, slots=True)
class TuneProgress:
    """A trial that was made: what of, how it ended, how many there were, and what the program's kernels take now."""

    level: str
    what: str
    status: str
    done: int
    trials: int | None
    default: int
    best: int

    @property
    def speedup(self) -> float:
        """How many times as fast all that is tuned is, so far."""
        return self.default / self.best if self.best else 1.0

    @property
    def so_far(self) -> str:
        """What all that is tuned takes, untuned and at its best."""
        return f"{_time(self.default)} -> {_time(self.best)}, {self.speedup:.2f} times as fast"


Progress: TypeAlias = Callable[[TuneProgress], None]


@dataclass
class Budget:
    """How many trials and seconds are left; None is no limit."""

    trials: int | None
    deadline: float | None
    done: int = 0

    @property
    def is_endless(self) -> bool:
        """Whether nothing limits it."""
        return self.trials is None and self.deadline is None

    def at_most(self, count: int) -> int:
        """Return how many of some trials may be made."""
        return count if self.trials is None else min(count, self.trials - self.done)

    def seconds_left(self) -> float:
        """Return the seconds until the deadline, infinite without one."""
        return math.inf if self.deadline is None else self.deadline - time.monotonic()

    def is_spent(self, now: float) -> bool:
        """Whether no further trial may begin."""
        return (self.trials is not None and self.done >= self.trials) or (
            self.deadline is not None and now >= self.deadline
        )


@dataclass(frozen=True)
class TuneResult:
    """What `tune` did: what it found, how candidates ended, and how much faster the whole program is.

    `measured` and `reused` count candidates that were tried now and that the log knew; of those measured, `hinted` are
    such that the log had from elsewhere: imports, near devices, former defaults. `before` and `after` are
    picoseconds of whole runs by turns, untuned and as `build` makes it of the log; empty where it cannot be run here.
    `left_out` says what was not tuned, and why. `load` is what else was asked of each processor of this machine in the
    minute before: what is best beside others need not be best alone.
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
    def speedup(self) -> float | None:
        """How many times as fast the program is as untuned: the median of the ratios of runs by turns."""
        ratios = [before / after for before, after in zip(self.before, self.after, strict=True) if after]
        return median(ratios) if ratios else None

    def lines(self) -> Iterator[str]:
        """Yield what was found, line by line."""
        failed = {status: count for status, count in sorted(self.statuses.items()) if status != "ok"}
        told = "".join(f", {count} {status}" for status, count in failed.items())
        hinted = f", {self.hinted} of them on a hint of the log" if self.hinted else ""
        counts = f"{self.measured} candidates measured{hinted}, {self.reused} known{told}"
        yield f"{counts}, in {self.seconds:.0f} s; log {self.log}"
        if self.load > MOST_LOAD:
            yield (
                f"measured on a busy machine, at a load of {self.load:.1f} on each processor: "
                "on a quiet one, into another log, other candidates may be best"
            )
        yield from map(str, self.findings)
        yield from (f"not tuned: {reason}" for reason in self.left_out)
        if self.speedup is not None:
            yield (
                f"whole program: {_time(median(self.before))} -> {_time(median(self.after))}, "
                f"{self.speedup:.2f} times as fast"
            )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_json(self) -> dict[str, Any]:
        """Return all of it as data; costs in picoseconds."""
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
    """Tuning could not go on; `result` is what it found until then. `problems` say why, and where its trials are."""

    def __init__(self, *problems: str, result: TuneResult) -> None:
        super().__init__(*problems)
        self.result = result


class TuneInterrupted(KeyboardInterrupt):
    """Tuning was interrupted from the keyboard; `result` is what it found until then, which is in the log too."""

    def __init__(self, result: TuneResult) -> None:
        super().__init__()
        self.result = result


def _time(picoseconds: float) -> str:
    return f"{picoseconds / 1e9:.3g} ms" if picoseconds >= 1e9 else f"{picoseconds / 1e6:.3g} us"
