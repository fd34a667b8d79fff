"""Parse lines into records, and report every line that is none with its place and reason.

A bad line affects itself only. Blank lines and those that begin with '#' are skipped, and so are a byte order mark and
Windows line ends. Bytes after the last line end are a line that was cut short, unless they are a whole record.
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

_SUFFIX = f',"d":"d1:{"0" * 32}"}}'  # as long as the end of a line, its digest

_TYPES: dict[str, type[Record]] = {
    record.type: record for record in (TargetRecord, Workload, Environment, Trial, Pin, Retraction, Alias)
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file: where it is, and its record or its problem.

    Attributes:
        number: the number of the line, from 1.
        offset: the byte at which it begins.
        end: the byte after it.
        record: the record, None if the line is none.
        problem: why it is none, empty if it is one.
        is_ended: whether it has a line end.
        looks_like_json: whether it begins like an object.
    """

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
    """Parse one line.

    Args:
        text: the line without its line end.
        known: the digest that the line must have. A line in canonical spelling is then checked by its bytes, which is
            faster than by encoding the record again.

    Returns:
        The record; one of an unknown type or newer version is `Foreign`.

    Raises:
        LogError: the line is not a record, or does not match its digest.
    """
    flat = _load(text)
    type_, version, digest = flat.pop("t", None), flat.pop("v", None), flat.pop("d", None)
    if not isinstance(type_, str) or not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise LogError("a record has a type in 't' and a version in 'v'")
    model = _TYPES.get(type_)
    if model is None or version > model.version:
        return Foreign(line=text)
    try:
        record = model(**flat)
        computed = record.digest if known is None else digest_of(f"{text[: -len(_SUFFIX)]}}}")
    except TvmTargetError as error:
        raise LogError(*error.problems) from error
    if (digest != computed and not _is_canonical_digest(digest, text)) or digest != (known or digest):
        stated = shown(digest) if known is None else repr(known)
        raise LogError(f"the digest of the line is {computed!r}, and it says {stated}: it was changed or cut")
    return record


def _is_canonical_digest(digest: object, text: str) -> bool:
    """Whether a digest is that of the canonical JSON of a line without the defaults that this version adds."""
    flat = _load(text)
    flat.pop("d", None)
    try:
        return digest == digest_of(canonical(flat))
    except TvmTargetError:
        return False


class RawLine(NamedTuple):
    """A line of a file before it is parsed.

    Attributes:
        number: the number of the line, from 1.
        offset: the byte at which it begins.
        size: its length in bytes, with the line end.
        data: its bytes; empty if it is longer than `MAX_LINE`.
        is_ended: whether it has a line end.
        looks_like_json: whether it begins like an object.
    """

    number: int
    offset: int
    size: int
    data: bytes
    is_ended: bool
    looks_like_json: bool

    @property
    def end(self) -> int:
        """The byte after the line."""
        return self.offset + self.size

    def text(self) -> str:
        """Decode the line.

        Returns:
            The text without its line end.

        Raises:
            LogError: the line is too long or is not UTF-8.
        """
        if not self.data:
            raise LogError(f"{self.size} bytes long; a line has at most {MAX_LINE}")
        try:
            return self.data.decode("utf-8" if self.offset else "utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise LogError(f"not UTF-8 at byte {self.offset + error.start}") from error

    def read(self) -> Line:
        """Parse the line.

        Returns:
            The line with its record, or with what is wrong.
        """
        try:
            record = parse_record(self.text())
        except LogError as error:
            return self.rejected("; ".join(error.problems))
        return Line(self.number, self.offset, self.end, record, "", self.is_ended)

    def rejected(self, problem: str) -> Line:
        """Return the line as one that is no record.

        Args:
            problem: what is wrong with it.

        Returns:
            The line without a record.
        """
        prefix = "" if self.is_ended else "cut short: "
        return Line(self.number, self.offset, self.end, None, prefix + problem, self.is_ended, self.looks_like_json)


def raw_lines(stream: BinaryIO) -> Iterator[RawLine]:
    """Split a stream into lines, in little memory however long a line is.

    Args:
        stream: a binary stream at its beginning.

    Yields:
        The lines that are neither blank nor comments.
    """
    number, offset = 1, 0
    while data := stream.readline(MAX_LINE + 2):
        if data == b"\n":  # files with millions of blank lines exist
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
        if looks_like_json or not data or _has_content(data, offset):
            yield RawLine(number, offset, size, data, is_ended, looks_like_json)
        number, offset = number + 1, offset + size


def _has_content(data: bytes, offset: int) -> bool:
    content = data if offset else data.removeprefix(codecs.BOM_UTF8)
    return bool(content.strip()) and not content.startswith(b"#")


def _load(text: str) -> dict[str, object]:
    if not isinstance(text, str):  # a damaged database may hold other types
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
