"""What the importers share: reading lines of JSON, costs in seconds, targets as TVM wrote them, and the outcome."""

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
from tvmtarget.target.identity import identity_of
from tvmtarget.target.problems import shown
from tvmtarget.target.tree import Target
from tvmtarget.untrusted import open_regular, unpack_gzip

__all__ = ["Imported", "leaf_of", "meant", "opened", "picoseconds", "take_in", "target_record", "writable"]

_GZIP = b"\x1f\x8b"  # what such a file begins with
_STUB = 10**8  # seconds; tuners write 1e9 or 1e10 where nothing ran


@dataclass(frozen=True)
class Imported:
    """How many lines were read, how many records were new, and the lines that were rejected."""

    read: int
    added: int
    rejected: tuple[Line, ...]

    def __str__(self) -> str:
        return f"{self.read} lines read, {self.added} records new, {len(self.rejected)} lines rejected"


def take_in(log: TuningLog, stream: BinaryIO, convert: Callable[[object], Sequence[Record]]) -> Imported:
    """Add what `convert` makes of each line of JSON; what it raises is why the line is rejected."""
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
    """Return records whose lines a log can hold; an error says what of them it cannot."""
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
    """Open a file, unpacked if it is packed by gzip; a `LogError` says why it cannot be read."""
    with open_regular(path, error=LogError) as file:
        is_packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        try:
            yield unpack_gzip(file, repr(str(path)), error=LogError) if is_packed else file
        except (OSError, EOFError, zlib.error) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise LogError(f"{str(path)!r} cannot be read: {reason}") from error


def picoseconds(costs: object) -> tuple[int, ...]:
    """Return costs in seconds as picoseconds; nothing for the huge numbers that stand for a failure."""
    if not isinstance(costs, list) or not all(
        isinstance(cost, int | float) and not isinstance(cost, bool) for cost in costs
    ):
        raise LogError(f"costs are a list of seconds, not {shown(costs)}")
    found = [round(cost * 10**12) if 0 < cost < _STUB else 0 for cost in costs]
    if not all(ran or _STUB <= cost < float("inf") for cost, ran in zip(costs, found, strict=True)):
        raise LogError(f"costs are seconds, and more than none, not {shown(costs)}")
    return tuple(filter(None, found))


@lru_cache(maxsize=4096)
def leaf_of(text: str) -> Target:
    """Return the device that a target of any TVM describes, without its host: a command line, or JSON."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TvmTargetWarning)
        target = Target.from_tvm(text)
    if target.is_composite:
        raise LogError(f"what other tools measure runs on one device, not on {str(target)!r}")
    return target.replace(host=None, executor=None, runtime=None)


def meant(targets: Iterable[Target]) -> Callable[[Target], Target]:
    """Return what tells which device TVM wrote: that of `targets` of which it would write the same, or no other.

    TVM has no words for caches and memories, and writes the triple of its own build where a target has none.
    """
    known: dict[str, Target] = {}
    for target in targets:
        if target.is_composite:
            raise LogError(f"what other tools measure runs on one device; name a leaf of {str(target)!r}")
        leaf = target.replace(name=None, host=None, count=1, executor=None, runtime=None)
        for key in {form.tuning_key() for form in _forms(leaf)}:
            if known.setdefault(key, leaf) != leaf:
                raise LogError(f"TVM writes {str(known[key])!r} and {str(leaf)!r} alike; name one of them")

    @cache
    def found(leaf: Target) -> Target:
        return known.get(leaf.tuning_key(), leaf) if known else leaf

    return found


def _forms(leaf: Target) -> Iterator[Target]:
    """Yield a leaf as TVM writes it, without TVM and as the TVM that is installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TvmTargetWarning)
        written = leaf.to_tvm()
        sources = [written.config]
        if importlib.util.find_spec("tvm") is not None:
            sources.append(written.load())
        yield from (Target.from_tvm(source).replace(host=None) for source in sources)


def target_record(target: Target) -> TargetRecord:
    """Return the line that says what a target is."""
    return TargetRecord(key=target.digest, body=identity_of(target))
