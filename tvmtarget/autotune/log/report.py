"""Counts of a log, the difference between two logs, and the writing of lines to a file."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from tvmtarget.autotune.log.lines import parse_record
from tvmtarget.autotune.log.records import Alias, Environment, Pin, Retraction, TargetRecord, Trial, Workload
from tvmtarget.autotune.log.store import Store
from tvmtarget.errors import LogError
from tvmtarget.files import atomic_write
from tvmtarget.human_units import counted

__all__ = ["Changed", "LogDifference", "Stats", "about", "compare", "write_lines"]


def _named(count: int, name: str) -> str:
    """Return a number and what it counts; the names of what a log holds are plurals, of types of lines singular."""
    return f"{count} {name.removesuffix('s') if count == 1 else name}"


@dataclass(frozen=True)
class Stats:
    """Counts of a log.

    Attributes:
        url: the log.
        counts: lines by type, trials by status, and the distinct names that trials refer to.
        bad_lines: how many lines cannot be read.
    """

    url: str
    counts: Mapping[str, Mapping[str, int]]
    bad_lines: int

    def __str__(self) -> str:
        rows = [f"{what}: " + (", ".join(_named(count, name or "foreign") for name, count in counts.items()) or "none")
                for what, counts in self.counts.items()]  # fmt: skip
        return "\n".join([self.url, *rows, f"bad lines: {self.bad_lines}"])

    def to_json(self) -> dict[str, object]:
        """Return the counts as data.

        Returns:
            An object of JSON.
        """
        return {
            "url": self.url,
            **{name: dict(counts) for name, counts in self.counts.items()},
            "bad_lines": self.bad_lines,
        }


@dataclass(frozen=True, slots=True)
class Changed:
    """A workload and a target for which two logs choose different candidates.

    Attributes:
        left: the digest of the first log's trial.
        right: the digest of the second log's trial.
        ratio: the cost of the second over that of the first; None if one is unknown.
    """

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
    """The difference between two logs; false if they have the same lines.

    Attributes:
        only_left: digests of the lines that only the first has.
        only_right: digests of the lines that only the second has.
        changed: where they choose different candidates.
    """

    only_left: tuple[str, ...]
    only_right: tuple[str, ...]
    changed: tuple[Changed, ...]

    def __bool__(self) -> bool:
        return bool(self.only_left or self.only_right)

    def __str__(self) -> str:
        counts = f"{counted(len(self.only_left), 'line')} only in the first, {len(self.only_right)} only in the second"
        return "\n".join([counts, *map(str, self.changed)])

    def to_json(self) -> dict[str, object]:
        """Return the difference as data.

        Returns:
            An object of JSON.
        """
        return asdict(self)


def compare(left: Store, right: Store) -> LogDifference:
    """Compare two stores.

    Args:
        left: the first store.
        right: the second store.

    Returns:
        Their difference.
    """
    left_digests, right_digests = set(left.digests()), set(right.digests())
    pairs = sorted(set(left.pairs()) & set(right.pairs()))
    changed = (_changed(left, right, *pair) for pair in pairs)
    return LogDifference(
        tuple(sorted(left_digests - right_digests)),
        tuple(sorted(right_digests - left_digests)),
        tuple(filter(None, changed)),
    )


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
    """Yield the trials and pins of some targets, what these refer to, and all aliases.

    Args:
        lines: returns an iterator over all lines; it is called twice.
        targets: digests of targets.

    Yields:
        Lines in their order.
    """
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
    """Return a compressed stream without name and time, so that equal lines give equal files."""
    return gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0)


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines to a file, all or none.

    Args:
        path: the file; with suffix `.gz` it is compressed.
        lines: the lines without their ends.

    Returns:
        How many lines were written.

    Raises:
        LogError: the file cannot be written.
    """
    count = 0
    try:
        with atomic_write(path) as file, _packing(file) if path.suffix == ".gz" else nullcontext(file) as stream:
            for line in lines:
                stream.write(f"{line}\n".encode())
                count += 1
    except OSError as error:
        raise LogError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error
    return count
