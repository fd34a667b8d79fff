"""Reading lines: one record each, and for every line that is none, where it is and why.

A bad line costs itself only. Blank lines and those that begin with '#' say nothing; a byte order mark and
Windows' line ends are passed over. What stands behind the last line end was cut short, unless it is whole.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from tvmtarget.autotune.log.records import (
    Alias,
    Environment,
    Foreign,
    Pin,
    Record,
    Retraction,
    TargetRecord,
    Trial,
    Workload,
    digest_of,
)
from tvmtarget.errors import LogError, TvmTargetError
from tvmtarget.target.identity import canonical
from tvmtarget.target.problems import shown

__all__ = ["MAX_LINE", "Line", "RawLine", "parse_record", "raw_lines"]

MAX_LINE = 1 << 20  # bytes

_SIGN = f',"d":"d1:{"0" * 32}"}}'  # what stands behind all that a line says

_TYPES: dict[str, type[Record]] = {
    record.type: record for record in (TargetRecord, Workload, Environment, Trial, Pin, Retraction, Alias)
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file: its number from 1, the byte it begins at, its end, and the record or what is wrong."""

    number: int
    offset: int
    end: int
    record: Record | None = None
    problem: str = ""
    is_ended: bool = True
    looks_like_json: bool = True

    def __str__(self) -> str:
        return f"line {self.number} (byte {self.offset}): {self.problem or 'a record'}"


def parse_record(text: str, *, known: str | None = None) -> Record:
    """Read one line; a `LogError` says what is wrong with it.

    With the digest that it is `known` by, a line in our spelling is checked by its bytes, which is faster.
    """
    flat = _load(text)
    type_, version, digest = flat.pop("t", None), flat.pop("v", None), flat.pop("d", None)
    if not isinstance(type_, str) or not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise LogError("a record has a type in 't' and a version in 'v'")
    kind = _TYPES.get(type_)
    if kind is None or version > kind.version:
        return Foreign(line=text)
    try:
        record = kind(**flat)
        computed = record.digest if known is None else digest_of(f"{text[: -len(_SIGN)]}}}")
    except TvmTargetError as error:
        raise LogError(*error.problems) from error
    if (digest != computed and not _is_digest(digest, text)) or digest != (known or digest):
        said = shown(digest) if known is None else repr(known)
        raise LogError(f"the digest of the line is {computed!r}, and it says {said}: it was changed or cut")
    return record


def _is_digest(digest: object, text: str) -> bool:
    """Whether a digest is that of what a line says, with nothing said that goes without saying."""
    flat = _load(text)
    flat.pop("d", None)
    try:
        return digest == digest_of(canonical(flat))
    except TvmTargetError:
        return False


class RawLine(NamedTuple):
    """A line before it is read: where it stands, and its bytes, which are left out where it is too long."""

    number: int
    offset: int
    size: int
    data: bytes
    is_ended: bool
    looks_like_json: bool

    @property
    def end(self) -> int:
        """The byte behind it."""
        return self.offset + self.size

    def text(self) -> str:
        """Return the line without its end; a `LogError` says what is wrong with its bytes."""
        if not self.data:
            raise LogError(f"{self.size} bytes long; a line has at most {MAX_LINE}")
        try:
            return self.data.decode("utf-8" if self.offset else "utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise LogError(f"not UTF-8 at byte {self.offset + error.start}") from error

    def read(self) -> Line:
        """Return the line with its record, or with what is wrong."""
        try:
            record = parse_record(self.text())
        except LogError as error:
            return self.bad("; ".join(error.problems))
        return Line(self.number, self.offset, self.end, record, "", self.is_ended)

    def bad(self, problem: str) -> Line:
        """Return the line with what is wrong with it."""
        cut = "" if self.is_ended else "cut short: "
        return Line(self.number, self.offset, self.end, None, cut + problem, self.is_ended, self.looks_like_json)


def raw_lines(stream: BinaryIO, *, number: int = 1, offset: int = 0) -> Iterator[RawLine]:
    """Yield the lines of a stream that say something, in little memory however long one is.

    The stream stands at line `number` and byte `offset`.
    """
    while data := stream.readline(MAX_LINE + 2):
        if data == b"\n":  # files of millions of them exist
            number, offset = number + 1, offset + 1
            continue
        size, is_ended = len(data), data.endswith(b"\n")
        if is_ended and size <= MAX_LINE and data.startswith(b"{"):  # nearly always
            yield RawLine(number, offset, size, data, True, True)
            number, offset = number + 1, offset + size
            continue
        looks_like_json = data.lstrip(b"\xef\xbb\xbf \t").startswith(b"{")
        while not is_ended and (more := stream.readline(MAX_LINE)):
            size, is_ended = size + len(more), more.endswith(b"\n")
        if size > len(data) or (size > MAX_LINE and len(data.rstrip(b"\r\n")) > MAX_LINE):
            data = b""
        if looks_like_json or not data or _says_something(data, offset):
            yield RawLine(number, offset, size, data, is_ended, looks_like_json)
        number, offset = number + 1, offset + size


def _says_something(data: bytes, offset: int) -> bool:
    said = data if offset else data.removeprefix(codecs.BOM_UTF8)
    return bool(said.strip()) and not said.startswith(b"#")


def _load(text: str) -> dict[str, object]:
    if not isinstance(text, str):  # from a database that was damaged
        raise LogError(f"a line is text, not {shown(text)}")
    try:
        flat = json.loads(text)
    except RecursionError as error:
        raise LogError("the JSON is nested too deeply") from error
    except ValueError as error:
        raise LogError(f"not JSON: {error}") from error
    if not isinstance(flat, dict):
        raise LogError(f"a record is an object, not {shown(flat)}")
    return flat
