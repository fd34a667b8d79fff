"""Index entries: the columns by which a log finds and ranks one line, without the rest of its text.

A trial in the canonical spelling of this library is decoded with msgspec, which takes 8 us for a line; the pydantic
record takes 24 us. The msgspec types are derived from the record models, so that `records.py` is the only description
of a trial. Any line that the fast path does not accept is parsed as a record, which also explains what is wrong.
"""

from __future__ import annotations

import hashlib
import re
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, cast, get_args, get_origin

from msgspec import UNSET, Meta, Raw, UnsetType, defstruct
from msgspec.json import Decoder, Encoder
from pydantic.fields import FieldInfo

from tvmtarget.autotune.log.lines import parse_record
from tvmtarget.autotune.log.records import MAX_INT, Candidate, Record, Trial, default_of, rank_of
from tvmtarget.target.identity import canonical
from tvmtarget.target.node import Node

__all__ = ["Entry", "TrialColumns", "entry_of", "packed", "quick_entry", "read_entry", "unpacked"]

_SUFFIX = b',"d":"d1:'  # a line ends with this, the 32 digits of its digest, and two more bytes
_TAIL = len(_SUFFIX) + 32 + 2
_MAX_DEPTH = 8  # levels of JSON that the fast path checks; deeper lines are parsed as records
_DIGEST = re.compile(r"d([01]):([0-9a-f]{32})")


class TrialColumns(NamedTuple):
    """The columns that find and rank a trial; `trust` and `score` are None if the candidate did not run.

    Attributes:
        candidate: the first eight bytes of the candidate's key, which identify it within a workload and target.
        default: the identity of the default that the trial was compared with: empty if unknown, None without one.
        needs: the first eight bytes of the digest of the trial's `requires`.
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
    """One line for the index.

    Attributes:
        digest: the packed digest of the line.
        type: the type of the record, empty for a line that this version cannot interpret.
        text: the line.
        trial: the columns of a trial, None for other records.
        record: the parsed record; None if the fast path read the line.
    """

    digest: bytes
    type: str
    text: str
    trial: TrialColumns | None
    record: Record | None


def entry_of(record: Record) -> Entry:
    """Return the index entry of a record.

    Args:
        record: a record of any type.

    Returns:
        The entry, with the record itself.
    """
    columns = _columns(record) if isinstance(record, Trial) else None
    return Entry(_pack(record.digest), record.type, record.text, columns, record)


def packed(digest: str) -> bytes | str:
    """Pack a digest into 17 bytes, the first of which is its version.

    Args:
        digest: text such as `d1:` and 32 hexadecimal digits.

    Returns:
        The bytes, or the text itself if it is no digest, which then equals no packed digest.
    """
    return _pack(digest) if _DIGEST.fullmatch(digest) else digest


def unpacked(digest: bytes) -> str:
    """Return the text of a packed digest.

    Args:
        digest: 17 bytes, as `packed` returns them.

    Returns:
        `d1:` or `d0:` and 32 hexadecimal digits.
    """
    return f"d{digest[0]}:{digest[1:].hex()}"


def _pack(digest: str) -> bytes:
    return bytes((int(digest[1]),)) + bytes.fromhex(digest[3:])


def read_entry(text: str) -> Entry:
    """Return the index entry of a line.

    Args:
        text: the line without its line end.

    Returns:
        The entry; its text is the canonical spelling of the line.

    Raises:
        LogError: the line is not a record, or does not match its digest.
    """
    if isinstance(text, str) and (quick := quick_entry(text.encode())) is not None:
        return quick
    return entry_of(parse_record(text))


def _columns(trial: Trial) -> TrialColumns:
    measured, candidate = trial.measured, bytes.fromhex(trial.candidate.key.partition(":")[2])[:8]
    trust, score = measured.rank or (None, None)
    default = None if measured.baseline is None else measured.baseline.default
    needs = None if trial.requires is None else _prefix(canonical(trial.requires).encode())
    return TrialColumns(
        trial.workload, trial.target, trial.env, candidate, measured.status, trust, score, trial.ts or 0, default, needs
    )


def _prefix(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()[:8]


def quick_entry(line: bytes) -> Entry | None:
    """Return the index entry of a trial in canonical spelling, without building a record.

    Checks everything that the record would check. A line is canonical if encoding the decoded values gives its bytes.

    Args:
        line: the line without its line end, as UTF-8.

    Returns:
        The entry without a record, or None if the line has to be parsed as a record.
    """
    if line[-_TAIL : len(_SUFFIX) - _TAIL] != _SUFFIX or line[-2:] != b'"}':
        return None
    content = line[:-_TAIL] + b"}"
    digest = hashlib.sha256(content).digest()[:16]
    if line[-34:-2] != digest.hex().encode():
        return None
    try:
        trial = _DECODE_TRIAL(content)
        encoded = bytes(trial.cand)
        candidate = _DECODE_CANDIDATE(encoded)
    except (ValueError, RecursionError):
        return None
    measured, baseline = trial.m, trial.m.baseline
    if not _is_plain(candidate.body) or (measured.status == "ok" and not measured.costs):
        return None
    if _ENCODE(candidate) != encoded or _ENCODE(trial) != content:
        return None
    if not (trial.requires is trial.search is trial.src is UNSET) and not _is_plain(
        [value for value in (trial.requires, trial.search, trial.src) if value is not UNSET], -1
    ):
        return None
    beside = baseline.costs if baseline else ()
    trust, score = rank_of(measured.status, measured.kind, measured.unit, measured.costs, beside) or (None, None)
    columns = TrialColumns(
        trial.workload,
        trial.target,
        None if trial.env is UNSET else trial.env,
        _prefix(encoded),
        measured.status,
        trust,
        score,
        trial.ts or 0,
        default_of(baseline.name, baseline.identity or None) if baseline else None,
        None if trial.requires is UNSET else _prefix(_ENCODE(trial.requires)),
    )
    return Entry(b"\1" + digest, "trial", line.decode(), columns, None)


def _struct_of(model: type[Node], **replaced: object) -> Any:  # noqa: ANN401 - a class made at run time
    """Derive the msgspec struct that decodes the canonical JSON of a record model.

    Fields stand in the order of their names in JSON, which is the order of canonical JSON. A field whose default is
    None may be absent; a canonical line spells all other defaults.

    Args:
        model: a pydantic model.
        **replaced: types of fields by their name in JSON, instead of those of the model.

    Returns:
        A struct type that rejects unknown fields.
    """
    types = {field.alias or name: _type_of(field, model) for name, field in model.model_fields.items()} | replaced
    optional = {field.alias or name for name, field in model.model_fields.items() if _is_optional(field)}
    fields: list[Any] = [
        (name, Union[types[name], UnsetType], UNSET) if name in optional else (name, types[name])  # noqa: UP007
        for name in sorted(types)
    ]
    return defstruct(model.__name__, fields, forbid_unknown_fields=True, kw_only=True, gc=False)


def _is_optional(field: FieldInfo) -> bool:
    return not field.is_required() and field.default is None


def _type_of(field: FieldInfo, model: type[Node]) -> Any:  # noqa: ANN401 - a type expression
    """Return the msgspec type of a pydantic field, with its limits."""
    return _translated(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)


def _translated(annotation: Any) -> Any:  # noqa: ANN401 - a type expression
    """Translate a type annotation of pydantic into one of msgspec."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        limits: dict[str, int] = {}
        for one in parts[1:]:
            for limit in one.metadata if isinstance(one, FieldInfo) else (one,):
                limits |= {name: value for name in _LIMITS if (value := getattr(limit, name, None)) is not None}
        inner = _translated(parts[0])
        return Annotated[inner, Meta(**cast("Any", limits))] if limits else inner
    if origin in (Union, UnionType):
        (inner,) = (part for part in parts if part is not NoneType)
        return _translated(inner)
    if origin is tuple:
        return list[_translated(parts[0])]  # type: ignore[misc]
    if isinstance(annotation, type) and issubclass(annotation, Node):
        return _struct_of(annotation)
    return annotation


_LIMITS = ("ge", "le", "min_length")

_DECODE_CANDIDATE = Decoder(_struct_of(Candidate)).decode
# The candidate stays encoded: its bytes are hashed, and compared with those of the decoded candidate.
_DECODE_TRIAL = Decoder(_struct_of(Trial, cand=Raw, t=Literal[Trial.type], v=Literal[Trial.version])).decode
_ENCODE = Encoder().encode


def _is_plain(value: object, depth: int = 0) -> bool:
    """Whether compact JSON is canonical: whole numbers, sorted names in ASCII, at most `_MAX_DEPTH` levels."""
    match value:
        case str() | bool():
            return True
        case int():
            return abs(value) <= MAX_INT
        case list() if depth < _MAX_DEPTH:
            return all(_is_plain(item, depth + 1) for item in value)
        case dict() if depth < _MAX_DEPTH:
            names = list(value)
            is_sorted = names == sorted(names) and all(name.isascii() for name in names)
            return is_sorted and all(_is_plain(item, depth + 1) for item in value.values())
        case _:
            return False
