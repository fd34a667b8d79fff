"""Readers for files of unknown origin: opening, unpacking and parsing within documented limits.

Logs, artifacts, models, tags, plans and configurations are shared between people, so every reader of the library opens
them by this module: only regular files, with sizes checked before memory is allocated, and no nesting that exhausts the
stack. A user raises a limit for one process by an environment variable: `TVMTARGET_MAX_JSON_DEPTH=500`.
"""

from __future__ import annotations

import errno
import io
import json
import mmap
import os
import re
import stat
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from tvmtarget.errors import FileError, TvmTargetError

if TYPE_CHECKING:
    import zipfile

    import numpy as np

__all__ = [
    "LIMITS",
    "Limit",
    "check_json_size",
    "check_limit",
    "check_members",
    "limit",
    "open_regular",
    "open_zip",
    "parse_json",
    "parse_toml",
    "printable",
    "private_copy",
    "read_arrays",
    "read_bytes",
    "read_member",
    "read_text",
    "unpack_gzip",
    "whole_number_of",
]


class Limit(NamedTuple):
    """A limit on the content of a file: its name, default, unit, and what it bounds."""

    name: str
    default: int
    unit: str
    doc: str

    @property
    def variable(self) -> str:
        """The environment variable that changes the limit."""
        return f"TVMTARGET_MAX_{self.name.upper().replace('-', '_')}"


_MIB = 1 << 20
_IN_MEMORY = 256 * _MIB  # bytes of a private copy from which it is a file
_CHUNK = 16 * _MIB  # bytes that are copied at a time

# docs/limits.md is generated from this table; tests/test_untrusted.py compares them.
LIMITS: Mapping[str, Limit] = {
    row.name: row
    for row in (
        Limit("text-bytes", 64 * _MIB, "bytes", "size of a text file: targets, costs, tables, captured machines"),
        Limit("target-bytes", 4 * _MIB, "bytes", "size of a target or constraint that is no JSON, or a file of tags"),
        Limit("manifest-bytes", 64 * _MIB, "bytes", "size of an artifact's manifest"),
        Limit("artifact-bytes", 64 << 30, "bytes", "unpacked size of an artifact or of an archive of arrays"),
        Limit(
            "unpacked-ratio",
            100,
            "times",
            "unpacked over packed size, of an archive above 64 MiB or a .jsonl.gz log above 1 MiB",
        ),
        Limit("archive-members", 100_000, "files", "number of files in an archive"),
        Limit("json-depth", 200, "levels", "nesting of JSON, and parts of a key of TOML"),
        Limit("json-values", 2_000_000, "objects and lists", "size of JSON"),
        Limit("target-nodes", 131_072, "nodes", "size of the text or data of a target, or of a constraint's text"),
        Limit("target-sites", 200_000, "sites", "size of a target whose counts are expanded"),
        Limit("unpacked-log-bytes", 4 << 30, "bytes", "unpacked size of a .jsonl.gz log"),
        Limit("model-operations", 1_000_000, "operations", "size of a model, functions counted at each call"),
        Limit("model-depth", 64, "levels", "nesting of bodies, and of calls of functions, in a model"),
        Limit("folded-bytes", 16 * _MIB, "bytes", "growth of a function's constants by folding; larger results stay"),
        Limit("tensor-bytes", 64 << 30, "bytes", "size of one value of a program that is built"),
        Limit("compile-seconds", 600, "seconds", "time for compiling one function of a leaf"),
        Limit(
            "start-seconds",
            120,
            "seconds",
            "time in which a cluster starts, or its scheduler first answers",
        ),
        Limit("silence-seconds", 30, "seconds", "time that a machine may be stopped, or a scheduler silent"),
        Limit("cache-bytes", 5 << 30, "bytes", "size of the compile cache; entries beyond it are removed"),
        Limit("model-bytes", 2 << 30, "bytes", "size of an ONNX file, without external data; protobuf's own limit"),
    )
}

# Limits are looked up for every small text.
_VARIABLES = {name: row.variable for name, row in LIMITS.items()}

# Unpacked bytes below which any ratio is allowed. Lines of a log hold digests, which do not compress.
_ANY_RATIO = {"archive": 64 * _MIB, "log": _MIB}


def limit(name: str) -> int:
    """Return the value of a limit: its default, or that of its environment variable.

    Args:
        name: a key of `LIMITS`.

    Returns:
        The limit, in its unit.

    Raises:
        TvmTargetError: the variable is not a whole number above 0.
    """
    stated = whole_number_of(_VARIABLES[name])
    return LIMITS[name].default if stated is None else stated


def whole_number_of(variable: str) -> int | None:
    """Return the number that an environment variable holds.

    Args:
        variable: its name.

    Returns:
        The number, from 1 to 2^63 - 1; None if the variable is not set.

    Raises:
        TvmTargetError: the variable is not such a number.
    """
    text = os.environ.get(variable)
    if text is None:
        return None
    # `int` raises another error for thousands of digits.
    if not text.isascii() or not text.isdigit() or len(text) > len(str(1 << 63)) or not 0 < int(text) < 1 << 63:
        raise TvmTargetError(
            f"environment variable {variable} is {text[:80]!r}; expected a whole number above 0 and below 2^63"
        )
    return int(text)


def check_limit(name: str, value: int, what: str, error: type[TvmTargetError] = FileError) -> None:
    """Raise an error if a value exceeds a limit.

    Args:
        name: a key of `LIMITS`.
        value: the value, in the unit of the limit.
        what: the beginning of the message, which names the place.
        error: class of the error.

    Raises:
        FileError: (or `error`) the value is above the limit.
    """
    if value > limit(name):
        row = LIMITS[name]
        problem = f"{what} has {value:,} {row.unit}, more than the limit of {limit(name):,}"
        raise error(f"{problem}; {row.variable} raises it")


@contextmanager
def open_regular(
    path: str | Path, what: str = "file", *, most: str | None = None, error: type[TvmTargetError] = FileError
) -> Iterator[BinaryIO]:
    """Open a regular file for reading, without blocking on a pipe or reading a device.

    Args:
        path: the file.
        what: the kind of file, for messages ("tuning log").
        most: name of the limit of its size.
        error: class of errors to raise.

    Yields:
        The stream.

    Raises:
        FileError: (or `error`) the file is missing, not regular, too large, or cannot be read.
    """
    place = f"{what} {str(path)!r}"
    try:
        # Without O_NONBLOCK, opening a pipe blocks until a process opens it for writing.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except (OSError, ValueError) as cause:  # ValueError: a NUL in the path
        raise _located(error(_unreadable(place, cause)), path) from cause
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "no regular file"
        raise _located(error(f"{place} cannot be read: it is {kind}"), path)
    with os.fdopen(descriptor, "rb") as stream:
        try:
            if most is not None:
                check_limit(most, found.st_size, place, error)
            yield stream
        except OSError as cause:
            raise _located(error(_unreadable(place, cause)), path) from cause
        except FileError as problem:
            _located(problem, path)
            raise


def _located(error: TvmTargetError, path: str | Path = "", offset: int | None = None) -> TvmTargetError:
    """Record where a file is damaged, in an error that has fields for that."""
    if isinstance(error, FileError):
        error.path = error.path or str(path)
        error.offset = offset if error.offset is None else error.offset
    return error


def _unreadable(place: str, cause: Exception) -> str:
    if isinstance(cause, FileNotFoundError):
        return f"no {place}"
    reason = cause.strerror or str(cause) if isinstance(cause, OSError) else str(cause)
    if isinstance(cause, OSError) and cause.errno == errno.EISDIR:
        reason = "it is a directory"
    return f"{place} cannot be read: {reason}"


def read_bytes(
    path: str | Path, what: str = "file", *, most: str = "text-bytes", error: type[TvmTargetError] = FileError
) -> bytes:
    """Return the contents of a regular file.

    Args:
        path: the file.
        what: the kind of file, for messages.
        most: name of the limit of its size.
        error: class of errors to raise.

    Returns:
        The bytes.

    Raises:
        FileError: (or `error`) the file is missing, not regular, too large, grows while it is read, or cannot be read.
    """
    with open_regular(path, what, most=most, error=error) as stream:
        size = os.fstat(stream.fileno()).st_size
        data = stream.read(size + 1)  # not up to the limit: `read` allocates memory for as much as it may return
        if len(data) > size:
            raise error(f"{what} {str(path)!r} grew while it was read")
        return data


def private_copy(stream: BinaryIO, offset: int, size: int) -> memoryview:
    """Copy bytes of a file, so that later changes of the file have no effect on them.

    A mapped file that is truncated ends the process by SIGBUS, and one that is written to changes bytes that were
    already checked. The copy is in memory, or from 256 MiB on in a mapped temporary file without a name, so that models
    may exceed memory.

    Args:
        stream: a regular file.
        offset: where the bytes begin.
        size: number of bytes.

    Returns:
        A read-only view that begins at a page of memory.

    Raises:
        OSError: they cannot be read, or there is no space for the copy.
        EOFError: the file is shorter.
    """
    if not size:
        return memoryview(b"")
    stream.seek(offset)
    done = 0
    if size < _IN_MEMORY:
        copy = memoryview(mmap.mmap(-1, size))
        while done < size and (read := stream.readinto(copy[done:])):  # type: ignore[attr-defined]
            done += read
    else:
        import tempfile  # reading a target, which needs no archives, is to start fast

        with tempfile.TemporaryFile() as file:
            while done < size and (data := stream.read(min(_CHUNK, size - done))):
                done += file.write(data)
            file.flush()
            if done == size:
                copy = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
    if done < size:
        raise EOFError(f"it is {offset + done:,} bytes long, not {offset + size:,}")
    return copy.toreadonly()


def read_text(
    path: str | Path, what: str = "file", *, most: str = "text-bytes", error: type[TvmTargetError] = FileError
) -> str:
    """Return the text of a UTF-8 file, without a byte order mark.

    Args:
        path: the file.
        what: the kind of file, for messages.
        most: name of the limit of its size.
        error: class of errors to raise.

    Returns:
        The text.

    Raises:
        FileError: (or `error`) the file cannot be read, as for `read_bytes`, or is not UTF-8.
    """
    try:
        return read_bytes(path, what, most=most, error=error).decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        problem = f"byte {cause.start} is {cause.object[cause.start]:#04x}"
        raise _located(error(f"{what} {str(path)!r} is not UTF-8 text: {problem}"), path, cause.start) from cause


# Control characters of terminals (ECMA-48), but for line ends and tabs, and characters that change the direction or
# the lines of text (https://www.unicode.org/reports/tr36/), as escapes that JSON knows too.
_CONTROLS = {
    code: f"\\u{code:04x}"
    for code in (*range(32), *range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
    if code not in (0x09, 0x0A)
}


def printable(text: str) -> str:
    r"""Escape the characters of a text that control a terminal, for example as `\u001b`.

    Args:
        text: the text.

    Returns:
        The text on which a terminal only prints.
    """
    return text.translate(_CONTROLS) if not text.isascii() or not text.isprintable() else text


def check_json_size(data: bytes | str, what: str, *, error: type[TvmTargetError] = FileError) -> None:
    """Raise an error if JSON has more objects and lists than `json-values`.

    Opening brackets are counted, those in strings too, because that costs far less than parsing.

    Args:
        data: UTF-8 bytes or text.
        what: the place, for messages.
        error: class of errors to raise.

    Raises:
        FileError: (or `error`) it has more.
    """
    found = data.count("[") + data.count("{") if isinstance(data, str) else data.count(b"[") + data.count(b"{")
    check_limit("json-values", found, what, error)


def parse_json(data: bytes | str, what: str, *, error: type[TvmTargetError] = FileError) -> Any:  # noqa: ANN401 - JSON
    """Parse JSON without NaN, infinities or duplicate keys, nested at most `json-depth` levels.

    Args:
        data: UTF-8 bytes or text.
        what: the place, for messages ("'manifest.json' of 'digits.tta'").
        error: class of errors to raise.

    Returns:
        The value.

    Raises:
        FileError: (or `error`) the data is not such JSON; the message has the offset.
    """
    depth = limit("json-depth")
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
        check_json_size(text, what, error=error)
        value = json.loads(text, parse_constant=_reject_constant, object_pairs_hook=_without_duplicates)
    except TvmTargetError:
        raise
    except json.JSONDecodeError as cause:
        problem = f"{what} is not JSON: {cause.msg[:1].lower()}{cause.msg[1:]} at offset {cause.pos}"
        raise _located(error(problem), offset=cause.pos) from cause
    except RecursionError:
        raise error(f"{what} is nested deeper than {depth} levels; {LIMITS['json-depth'].variable} raises it") from None
    except ValueError as cause:  # no UTF-8, a constant, a duplicate, an integer of thousands of digits
        raise error(f"{what} is not JSON: {str(cause)[:200]}") from cause
    if _is_deeper(value, depth):
        raise error(f"{what} is nested deeper than {depth} levels; {LIMITS['json-depth'].variable} raises it")
    return value


def parse_toml(text: str, what: str, *, error: type[TvmTargetError] = FileError) -> dict[str, Any]:
    """Parse TOML of at most `target-bytes`, with keys of at most `json-depth` parts.

    Args:
        text: the text.
        what: the place, for messages.
        error: class of errors to raise.

    Returns:
        The table.

    Raises:
        FileError: (or `error`) the text is not such TOML; the message has line and column.
    """
    import tomllib  # not needed for the shipped tags

    depth = limit("json-depth")
    check_limit("target-bytes", len(text), what, error)
    # tomllib takes time and memory in proportion to the square of the parts of a key.
    if any(_has_long_key(line, depth) for line in text.split("\n") if line.count(".") >= depth):
        raise error(f"{what} has keys of more than {depth} parts; {LIMITS['json-depth'].variable} raises it")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise error(f"{what} is nested too deep") from None
    except ValueError as cause:  # no TOML, or a number of thousands of digits
        raise error(f"{what} is not TOML: {str(cause)[:1].lower()}{str(cause)[1:200]}") from cause


# A dot in a key of TOML, and the part after it.
_PART = re.compile(r"""\.[ \t]*(?:[\w-]+|"[^"]*"|'[^']*')[ \t]*""")


def _has_long_key(line: str, depth: int) -> bool:
    """Return whether so many parts of a key may follow each other in a line of TOML.

    A dot may be in a string, so that parts are counted from every dot on, in time proportional to the line.
    """
    parts: dict[int, int] = {}  # in a row, by the position of the first dot
    at = line.rfind(".")
    while at >= 0:
        if (found := _PART.match(line, at)) is not None:
            parts[at] = 1 + parts.get(found.end(), 0)
            if parts[at] >= depth:
                return True
        at = line.rfind(".", 0, at)
    return False


def _reject_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number of JSON")


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, uses in Counter(name for name, _ in pairs).items() if uses > 1)
        raise ValueError(f"the key {twice[:80]!r} is given twice")
    return found


def _is_deeper(value: object, depth: int) -> bool:
    """Whether JSON is nested deeper than `depth`; a breadth-first search, which cannot exhaust the stack."""
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def check_members(members: Sequence[zipfile.ZipInfo], size: int, what: str, *, are_files: bool = True) -> None:
    """Check the members of a zip file before anything is unpacked.

    Args:
        members: the entries of the archive's directory; their declared sizes bound the results of reading them.
        size: bytes of the archive.
        what: the archive, for messages.
        are_files: whether names have to be relative paths; those of arrays are any text, such as PyTorch's `/fc/Gemm`.

    Raises:
        FileError: names that are absolute, leave the folder, repeat or are no text; links; encrypted or overlapping
            members; more members or bytes than the limits allow, or an unpacked size out of proportion.
    """
    check_limit("archive-members", len(members), what)
    for info in members:
        name = info.filename
        if info.flag_bits & 1:
            raise FileError(f"{what} is damaged: {name!r} is encrypted", member=name)
        is_absolute = name.startswith(("/", "\\")) or ":" in name.partition("/")[0]
        if not name or (are_files and (is_absolute or "\\" in name or "\0" in name)):
            raise FileError(f"{what} is damaged: {name!r} is no relative name", member=name)
        if are_files and any(part in ("", ".", "..") for part in name.split("/")):
            raise FileError(f"{what} is damaged: {name!r} is no plain relative name", member=name)
        if stat.S_ISLNK(info.external_attr >> 16):
            raise FileError(f"{what} is damaged: {name!r} is a link", member=name)
    if len({info.filename for info in members}) != len(members):
        raise FileError(f"{what} is damaged: two files in it have one name")
    packed, unpacked = (sum(getattr(info, field) for info in members) for field in ("compress_size", "file_size"))
    if packed > size:
        raise FileError(f"{what} is damaged: the files in it overlap")
    check_limit("artifact-bytes", unpacked, f"unpacked {what}")
    if unpacked > max(_ANY_RATIO["archive"], limit("unpacked-ratio") * size):
        row = LIMITS["unpacked-ratio"]
        raise FileError(
            f"{what} unpacks {size:,} bytes to {unpacked:,}, more than {limit(row.name)} {row.unit}; "
            f"{row.variable} raises the limit"
        )


def open_zip(stream: BinaryIO, what: str, *, has_files: bool = True) -> zipfile.ZipFile:
    """Open a zip file and check its members.

    Args:
        stream: the file.
        what: the archive, for messages.
        has_files: whether names of members have to be relative paths.

    Returns:
        The archive.

    Raises:
        FileError: it is no zip file, or its members fail `check_members`.
    """
    import zipfile

    try:
        archive = zipfile.ZipFile(stream)
        size = stream.seek(0, io.SEEK_END)
    except _damage() as cause:
        raise FileError(f"{what} is damaged, or not a zip file: {cause}") from cause
    check_members(archive.infolist(), size, what, are_files=has_files)
    return archive


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, what: str) -> bytes:
    """Unpack one member of a zip file.

    Args:
        archive: the archive.
        info: the member.
        what: the archive, for messages.

    Returns:
        The bytes.

    Raises:
        FileError: the member is damaged; the error names it.
    """
    try:
        data = archive.read(info)
    except _damage() as cause:
        raise FileError(
            f"{what} is damaged: {info.filename!r} cannot be unpacked: {cause}",
            member=info.filename,
            offset=info.header_offset,
        ) from cause
    if len(data) != info.file_size:
        raise FileError(f"{what} is damaged: {info.filename!r} is cut off", member=info.filename)
    return data


def _damage() -> tuple[type[Exception], ...]:
    """Return what zipfile and zlib raise on damaged archives (zipfile names only BadZipFile)."""
    import zipfile
    import zlib

    return (
        zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError, struct.error,
        OverflowError,
    )  # fmt: skip


def read_arrays(stream: BinaryIO, what: str) -> dict[str, np.ndarray[Any, Any]]:
    """Read an .npz file, checking each array against its bytes before memory is allocated.

    Args:
        stream: the file.
        what: the file, for messages.

    Returns:
        The arrays of numbers by name.

    Raises:
        FileError: the file is damaged, too large, or holds Python objects.
    """
    from numpy.lib import format as npy

    found: dict[str, np.ndarray[Any, Any]] = {}
    with open_zip(stream, what, has_files=False) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            place = f"{what} is damaged: array {name!r}"
            if name in found:  # as `x` and `x.npy`
                raise FileError(f"{place} is given twice", member=name)
            try:
                with archive.open(info) as head:
                    if head.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
                        raise FileError(f"{what} is damaged, or something else: {name!r} is no array", member=name)
                    head.seek(0)
                    version = npy.read_magic(head)
                    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
                    if read is None:
                        raise FileError(f"{place} has version {version} of the format", member=name)
                    shape, _, dtype = read(head)
                    if dtype.hasobject:
                        raise FileError(
                            f"array {name!r} of {what} holds Python objects, which are not read", member=name
                        )
                    if head.tell() + prod(shape) * dtype.itemsize != info.file_size or min(shape, default=0) < 0:
                        raise FileError(f"{place} does not have the size of its shape {shape}", member=name)
                found[name] = npy.read_array(io.BytesIO(read_member(archive, info, what)), allow_pickle=False)
            except FileError:
                raise
            except Exception as cause:  # numpy parses the header as Python, whose tokenizer has errors of its own
                raise FileError(f"{place} cannot be read: {cause}", member=name) from cause
    return found


class _BoundedGzip(io.RawIOBase):
    """The unpacked bytes of a gzip file, up to a size in proportion to the packed file."""

    def __init__(self, stream: BinaryIO, what: str, error: type[TvmTargetError]) -> None:
        import gzip

        self._file = gzip.GzipFile(fileobj=stream)
        self._what, self._error = what, error
        size = os.fstat(stream.fileno()).st_size
        self._most = max(_ANY_RATIO["log"], min(limit("unpacked-ratio") * size, limit("unpacked-log-bytes")))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any writable buffer
        data = self._file.read1(len(buffer))
        if self._file.tell() > self._most:
            names = " and ".join(LIMITS[name].variable for name in ("unpacked-ratio", "unpacked-log-bytes"))
            raise self._error(f"{self._what} unpacks to more than {self._most:,} bytes; {names} raise the limit")
        buffer[: len(data)] = data
        return len(data)


def unpack_gzip(stream: BinaryIO, what: str, *, error: type[TvmTargetError] = FileError) -> BinaryIO:
    """Return the unpacked bytes of a gzip file as a stream.

    Args:
        stream: the file.
        what: the file, for messages.
        error: class of errors to raise.

    Returns:
        A stream; reading from it raises `error` beyond the limits of unpacked sizes.
    """
    return cast("BinaryIO", io.BufferedReader(_BoundedGzip(stream, what, error)))
