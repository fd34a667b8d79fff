"""What an index keeps of a line: its digest and type, and of a trial what it is found and ranked by.

A trial that is spelled as this library spells it is read without making a record of it: all that a record checks is
checked here too, in a fifth of the time. Any other line is left to the records, which also say what is wrong with it.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal, NamedTuple, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.json import Decoder, Encoder

from tvmtarget.autotune.log.lines import parse_record
from tvmtarget.autotune.log.records import MAX_INT, Level, Record, Status, Trial, default_of, rank_of
from tvmtarget.target.identity import canonical

__all__ = ["Entry", "Measured", "entry_of", "packed", "quick_entry", "read_entry", "spelled"]

_SIGN = b',"d":"d1:'  # stands before the 32 digits of a digest, the last two bytes of a line behind them
_TAIL = len(_SIGN) + 32 + 2
_MAX_DEPTH = 8  # what is nested deeper is left to the records
_DIGEST = re.compile(r"d([01]):([0-9a-f]{32})")


class Measured(NamedTuple):
    """What a trial is found and ranked by; `trust` and `score` are None for what never ran.

    A candidate is known by the first eight bytes of its key, which are enough among those of one workload and target.
    `default` is the identity of the default that it was compared with, empty if not told; None if with none. `needs`
    is the begin of a digest of what it requires of targets.
    """

    workload: str
    target: str
    env: str | None
    candidate: bytes
    status: str
    trust: int | None
    score: int | None
    ts: int
    default: str | None
    needs: bytes | None


class Entry(NamedTuple):
    """A line for an index: its digest, packed; `kept` is what the index's table has for its text."""

    digest: bytes
    type: str
    kept: tuple[object, ...]
    measured: Measured | None
    record: Record | None


def entry_of(record: Record, kept: tuple[object, ...]) -> Entry:
    """Return the entry of a record."""
    measured = _measured(record) if isinstance(record, Trial) else None
    return Entry(_pack(record.digest), record.type, kept, measured, record)


def packed(digest: str) -> bytes | str:
    """Return a digest in 17 bytes, the first of them its version; a text that is no digest as it is."""
    return _pack(digest) if _DIGEST.fullmatch(digest) else digest


def spelled(digest: bytes) -> str:
    """Return the text of a digest that was packed."""
    return f"d{digest[0]}:{digest[1:].hex()}"


def _pack(digest: str) -> bytes:
    return bytes((int(digest[1]),)) + bytes.fromhex(digest[3:])


def read_entry(text: str) -> Entry:
    """Return the entry of a line, kept as its text; a `LogError` says what is wrong with it."""
    if isinstance(text, str) and (quick := quick_entry(text.encode(), (text,))) is not None:
        return quick
    record = parse_record(text)
    return entry_of(record, (record.text,))


def _measured(trial: Trial) -> Measured:
    ran, candidate = trial.measured, bytes.fromhex(trial.candidate.key.partition(":")[2])[:8]
    trust, score = ran.rank or (None, None)
    default = None if ran.baseline is None else ran.baseline.default
    needs = None if trial.requires is None else _begin(canonical(trial.requires).encode())
    return Measured(
        trial.workload, trial.target, trial.env, candidate, ran.status, trust, score, trial.ts or 0, default, needs
    )


def _begin(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()[:8]


def quick_entry(line: bytes, kept: tuple[object, ...]) -> Entry | None:
    """Return the entry of a trial, its line without the line's end; None where it has to be read as a record."""
    if line[-_TAIL : len(_SIGN) - _TAIL] != _SIGN or line[-2:] != b'"}':
        return None
    said = line[:-_TAIL] + b"}"
    digest = hashlib.sha256(said).digest()[:16]
    if line[-34:-2] != digest.hex().encode():
        return None
    try:
        trial = _READ(said)
    except (ValueError, RecursionError):
        return None
    ran, beside = trial.m, trial.m.baseline
    candidate = _WRITE(trial.cand)
    if not _is_plain(trial.cand.body) or (ran.status == "ok" and not ran.costs):
        return None
    trial.cand = Raw(candidate)  # type: ignore[assignment]  # it is written once
    if _WRITE(trial) != said:
        return None
    if not (trial.requires is trial.search is trial.src is UNSET) and not _is_plain(
        [value for value in (trial.requires, trial.search, trial.src) if value is not UNSET], -1
    ):
        return None
    trust, score = rank_of(ran.status, ran.kind, ran.costs, beside.costs if beside else ()) or (None, None)
    default = default_of(beside.name, beside.identity or None) if beside else None
    measured = Measured(
        trial.workload,
        trial.target,
        None if trial.env is UNSET else trial.env,
        _begin(candidate),
        ran.status,
        trust,
        score,
        trial.ts or 0,
        default,
        None if trial.requires is UNSET else _begin(_WRITE(trial.requires)),
    )
    return Entry(b"\1" + digest, "trial", kept, measured, None)


# The spelling of a trial: the fields of each object in the order in which they are written.

_Text: TypeAlias = Annotated[str, Meta(min_length=1)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_INT)]


class _Spelled(Struct, forbid_unknown_fields=True, gc=False):
    """An object of a line, without fields that nobody knows."""


class _Candidate(_Spelled, kw_only=True):
    body: object
    format: _Text


class _Baseline(_Spelled, kw_only=True):
    costs: Annotated[list[_Count], Meta(min_length=1)]
    identity: _Text | UnsetType = UNSET
    name: str


class _Measurement(_Spelled, kw_only=True):
    baseline: _Baseline | UnsetType = UNSET
    costs: list[_Count]
    kind: Literal["search", "confirm", "estimate"]
    status: Status
    unit: Literal["ps", "B", "uJ"]


class _Trial(_Spelled, kw_only=True):
    cand: _Candidate
    env: str | UnsetType = UNSET
    level: Level
    m: _Measurement
    requires: dict[str, object] | UnsetType = UNSET
    search: dict[str, object] | UnsetType = UNSET
    src: object = UNSET
    t: Literal["trial"]
    target: str
    ts: _Count | UnsetType = UNSET
    v: Literal[1]
    workload: str


_READ = Decoder(_Trial).decode
_WRITE = Encoder().encode


def _is_plain(value: object, depth: int = 0) -> bool:
    """Whether JSON that is spelled without spaces is canonical, with whole numbers and names in ASCII only."""
    match value:
        case str() | bool():
            return True
        case int():
            return abs(value) <= MAX_INT
        case list() if depth < _MAX_DEPTH:
            return all(_is_plain(item, depth + 1) for item in value)
        case dict() if depth < _MAX_DEPTH:
            names = list(value)
            is_named = names == sorted(names) and all(name.isascii() for name in names)
            return is_named and all(_is_plain(item, depth + 1) for item in value.values())
        case _:
            return False
