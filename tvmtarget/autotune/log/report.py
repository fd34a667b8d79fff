"""A log as a whole: counts, the difference to another one, and its lines in a file."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tvmtarget.autotune.log.lines import parse_record
from tvmtarget.autotune.log.records import Alias, Environment, Pin, Retraction, TargetRecord, Trial, Workload
from tvmtarget.autotune.log.store import Store
from tvmtarget.errors import LogError
from tvmtarget.files import atomic_write

__all__ = ["Changed", "LogDifference", "Stats", "about", "compare", "write_lines"]


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


def about(lines: Callable[[], Iterable[str]], targets: Collection[str]) -> Iterator[str]:
    """Yield all aliases, the trials and pins of some targets, by digest, and what these refer to."""
    names, digests = set(targets), set[str]()
    for record in map(parse_record, lines()):
        if isinstance(record, Trial | Pin) and record.target in targets:
            digests.add(record.digest)
            names |= {record.workload, *([record.env] if isinstance(record, Trial) and record.env else ())}
    for text in lines():
        record = parse_record(text)
        match record:
            case Trial() | Pin():
                is_kept = record.digest in digests
            case Retraction():
                is_kept = record.of in digests
            case TargetRecord() | Workload() | Environment():
                is_kept = record.key in names
            case _:
                is_kept = isinstance(record, Alias)
        if is_kept:
            yield text


def _packing(file: BinaryIO) -> gzip.GzipFile:
    """Return a stream that packs without names and times, so that equal lines are equal files."""
    return gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0)


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines to a file, all or none, and return how many those are."""
    count = 0
    try:
        with atomic_write(path) as file, _packing(file) if path.suffix == ".gz" else nullcontext(file) as stream:
            for line in lines:
                stream.write(f"{line}\n".encode())
                count += 1
    except OSError as error:
        raise LogError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error
    return count
