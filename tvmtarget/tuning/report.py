"""A log as a whole: counts, the difference to another one, and its lines in a file."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tvmtarget.errors import LogError
from tvmtarget.tuning.records import Trial
from tvmtarget.tuning.store import Store

__all__ = ["Changed", "LogDifference", "Stats", "compare", "write_lines"]


@dataclass(frozen=True)
class Stats:
    """Counts of lines by type, of trials by status, of the names that trials refer to, and of lines that are bad."""

    url: str
    counts: Mapping[str, Mapping[str, int]]
    bad_lines: int

    def __str__(self) -> str:
        rows = [f"{what}: " + (", ".join(f"{count} {name or 'foreign'}" for name, count in counts.items()) or "none")
                for what, counts in self.counts.items()]  # fmt: skip
        return "\n".join([self.url, *rows, f"bad lines: {self.bad_lines}"])

    def to_json(self) -> dict[str, object]:
        """Return the counts as data."""
        return {
            "url": self.url,
            **{name: dict(counts) for name, counts in self.counts.items()},
            "bad_lines": self.bad_lines,
        }


@dataclass(frozen=True, slots=True)
class Changed:
    """A workload and a target for which two logs choose differently, and the second's cost over the first's."""

    workload: str
    target: str
    left: str
    right: str
    ratio: float | None

    def __str__(self) -> str:
        cost = "" if self.ratio is None else f", {self.ratio:.3f} of the cost"
        return f"~ {self.workload} on {self.target[:20]}: {self.left} -> {self.right}{cost}"


@dataclass(frozen=True)
class LogDifference:
    """The lines, by digest, that only one of two logs has, and what they choose differently; false if nothing."""

    only_left: tuple[str, ...]
    only_right: tuple[str, ...]
    changed: tuple[Changed, ...]

    def __bool__(self) -> bool:
        return bool(self.only_left or self.only_right)

    def __str__(self) -> str:
        counts = f"{len(self.only_left)} lines only in the first, {len(self.only_right)} only in the second"
        return "\n".join([counts, *map(str, self.changed)])


def compare(left: Store, right: Store) -> LogDifference:
    """Return how two stores differ."""
    mine, yours = set(left.digests()), set(right.digests())
    pairs = sorted(set(left.pairs()) & set(right.pairs()))
    changed = (_changed(left, right, *pair) for pair in pairs)
    return LogDifference(tuple(sorted(mine - yours)), tuple(sorted(yours - mine)), tuple(filter(None, changed)))


def _changed(left: Store, right: Store, workload: str, target: str) -> Changed | None:
    (one, *_), (other, *_) = left.best(workload, target, 1), right.best(workload, target, 1)
    if one.candidate == other.candidate:
        return None
    costs = [_cost(store, choice.digest) for store, choice in ((left, one), (right, other))]
    ratio = costs[1] / costs[0] if costs[0] and costs[1] is not None else None
    return Changed(workload, target, one.digest, other.digest, ratio)


def _cost(store: Store, digest: str) -> int | None:
    found = store.get(digest)
    return found.measured.cost if isinstance(found, Trial) else None


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines to a new file beside the one of this name, then put it in its place."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    count = 0
    try:
        with gzip.open(fresh, "wb") if path.suffix == ".gz" else fresh.open("wb") as stream:
            for line in lines:
                stream.write(f"{line}\n".encode())
                count += 1
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise LogError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error
    return count
