"""Shared parts of the importers: lines of JSON, costs in seconds, TVM's targets, and the outcome."""

from __future__ import annotations

import importlib.util
import json
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import BinaryIO

from tvmtarget.autotune.log.lines import MAX_LINE, Line, raw_lines
from tvmtarget.autotune.log.records import Record, TargetRecord
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.errors import LogError, TvmTargetError, TvmTargetWarning, raise_all
from tvmtarget.human_units import counted
from tvmtarget.target.identity import identity_of
from tvmtarget.target.problems import shown
from tvmtarget.target.tree import Target
from tvmtarget.untrusted import open_regular, unpack_gzip

__all__ = [
    "OWN_LOG",
    "Imported",
    "device_lookup",
    "import_lines",
    "leaf_of",
    "opened",
    "picoseconds",
    "target_record",
    "writable",
]

OWN_LOG = "a log of this library, of which `tvmtarget log merge` adds the records"
_GZIP, _SQLITE = b"\x1f\x8b", b"SQLite format 3\0"  # magic numbers
_FAILED = 10**8  # seconds; tuners write 1e9 or 1e10 for a failure


@dataclass(frozen=True)
class Imported:
    """The outcome of an import.

    Attributes:
        read: how many lines were read.
        added: how many records were new.
        rejected: the lines that were rejected, with the reasons.
    """

    read: int
    added: int
    rejected: tuple[Line, ...]

    def __str__(self) -> str:
        rejected = counted(len(self.rejected), "line")
        return f"{counted(self.read, 'line')} read, {counted(self.added, 'record')} new, {rejected} rejected"


def import_lines(log: TuningLog, stream: BinaryIO, convert: Callable[[object], Sequence[Record]]) -> Imported:
    """Add the records of a stream of JSON lines to a log.

    Args:
        log: the log.
        stream: the lines.
        convert: returns the records of a line; an error that it raises is why the line is rejected.

    Returns:
        The outcome.
    """
    read, rejected = 0, list[Line]()

    def records() -> Iterator[Record]:
        nonlocal read
        for line in raw_lines(stream):
            read += 1
            try:
                converted = writable(convert(_load(line.text())))
            except RecursionError:
                rejected.append(line.rejected("the JSON is nested too deeply"))
                continue
            except TvmTargetError as error:
                rejected.append(line.rejected("; ".join(str(error).splitlines())))
                continue
            yield from converted

    added = log.extend(records())
    return Imported(read, added, tuple(rejected))


def writable(records: Sequence[Record]) -> Sequence[Record]:
    """Check that a log can hold records.

    Args:
        records: the records.

    Returns:
        The same records.

    Raises:
        LogError: a line would be too long.
    """
    too_long = [one for one in records if len(one.text.encode()) > MAX_LINE]
    raise_all(LogError, [f"its {one.type} has more than {MAX_LINE} bytes, the most of a line" for one in too_long])
    return records


def _load(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise LogError(f"not JSON: {error}") from error


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, decompressing gzip.

    Args:
        path: a regular file.

    Yields:
        A binary stream.

    Raises:
        LogError: the file cannot be read, or is a database.
    """
    with open_regular(path, error=LogError) as file:
        begin = file.read(len(_SQLITE))
        if begin == _SQLITE:
            raise LogError(f"{str(path)!r} is {OWN_LOG}")
        file.seek(0)
        try:
            yield unpack_gzip(file, repr(str(path)), error=LogError) if begin.startswith(_GZIP) else file
        except (OSError, EOFError, zlib.error) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise LogError(f"{str(path)!r} cannot be read: {reason}") from error


def picoseconds(costs: object) -> tuple[int, ...]:
    """Convert costs in seconds to picoseconds.

    Args:
        costs: a list of seconds.

    Returns:
        Picoseconds, without the huge numbers that tuners write for a failure.

    Raises:
        LogError: the value is no list of positive numbers.
    """
    if not isinstance(costs, list) or not all(
        isinstance(cost, int | float) and not isinstance(cost, bool) for cost in costs
    ):
        raise LogError(f"costs are a list of seconds, not {shown(costs)}")
    found = [round(cost * 10**12) if 0 < cost < _FAILED else 0 for cost in costs]
    if not all(ran or _FAILED <= cost < float("inf") for cost, ran in zip(costs, found, strict=True)):
        raise LogError(f"costs are seconds, and more than none, not {shown(costs)}")
    return tuple(filter(None, found))


@lru_cache(maxsize=4096)
def leaf_of(text: str) -> Target:
    """Return the device that a target of any version of TVM describes.

    Args:
        text: a command line, or JSON.

    Returns:
        A leaf without host, executor and runtime.

    Raises:
        LogError: the target is a composite.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TvmTargetWarning)
        target = Target.from_tvm(text)
    if target.is_composite:
        raise LogError(f"other tools measure on one device, not on {str(target)!r}")
    return target.replace(host=None, executor=None, runtime=None)


def device_lookup(targets: Iterable[Target]) -> Callable[[Target], Target]:
    """Return a function that replaces a leaf as TVM writes it by the device that the user named.

    TVM has no attributes for caches and memories, and writes the triple of its own build if a target has none.

    Args:
        targets: devices; a leaf that TVM writes like one of them is replaced by it.

    Returns:
        A function from leaves to leaves.

    Raises:
        LogError: a target is a composite, or TVM writes two of them the same way.
    """
    known: dict[str, Target] = {}
    for target in targets:
        if target.is_composite:
            raise LogError(f"other tools measure on one device; name a leaf of {str(target)!r}")
        leaf = target.replace(name=None, host=None, count=1, executor=None, runtime=None)
        for key in {form.tuning_key() for form in _forms(leaf)}:
            if known.setdefault(key, leaf) != leaf:
                raise LogError(f"TVM writes {str(known[key])!r} and {str(leaf)!r} the same way; name one of them")

    @cache
    def found(leaf: Target) -> Target:
        return known.get(leaf.tuning_key(), leaf) if known else leaf

    return found


def _forms(leaf: Target) -> Iterator[Target]:
    """Yield a leaf as TVM writes it, with our tables and with the installed TVM."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TvmTargetWarning)
        written = leaf.to_tvm()
        sources = [written.config]
        if importlib.util.find_spec("tvm") is not None:
            sources.append(written.load())
        yield from (Target.from_tvm(source).replace(host=None) for source in sources)


def target_record(target: Target) -> TargetRecord:
    """Return the record of a target.

    Args:
        target: the target.

    Returns:
        The record, without an origin.
    """
    return TargetRecord(key=target.digest, body=identity_of(target))
