"""Recovery of the whole lines of a database that SQLite cannot read any more.

Pages are parsed as the file format documents them (https://www.sqlite.org/fileformat2.html), those of the write-ahead
log too. A damaged line does not match its digest, so everything that looks like a line can be tried. Lines that
compaction deleted may be found again, as in a merge with a copy that was not compacted.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

from tvmtarget.autotune.log.entries import packed, unpacked
from tvmtarget.autotune.log.lines import MAX_LINE, parse_record
from tvmtarget.autotune.log.sqlite_store import PAGE, SqliteStore
from tvmtarget.errors import LogError, NewerLogError, ReadOnlyLogError
from tvmtarget.untrusted import read_bytes

__all__ = ["is_damage", "recover"]

_LEAF = 0x0D  # type of a leaf page of a table
_HEADER = 100  # bytes of the file's header, before that of the first page
_WAL_HEADER = 32  # bytes before the first frame of the write-ahead log
_FRAME = 24  # bytes before a page in the write-ahead log

# Errors of SQLite with files that may be intact: the disk is full, the file is locked, or may not be read or written.
_NO_DAMAGE = frozenset({
    sqlite3.SQLITE_AUTH, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY,
})  # fmt: skip


def is_damage(error: LogError) -> bool:
    """Return whether an error may come from a damaged database, which `recover` reads.

    Args:
        error: the error with which a log could not be opened or repaired.

    Returns:
        True also for a short read; False for other errors of the disk, newer versions and files of lines.
    """
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        return code == sqlite3.SQLITE_IOERR_SHORT_READ or code & 0xFF not in _NO_DAMAGE
    return not isinstance(cause, OSError) and not isinstance(error, NewerLogError | ReadOnlyLogError)


def recover(path: Path) -> tuple[int, Path]:
    """Replace a damaged database by a new one with its whole lines.

    Args:
        path: the database, which no other process may have open.

    Returns:
        How many lines were recovered, and the path of the damaged file, `NAME.damaged`.

    Raises:
        LogError: no line was found, so that the file was left as it is; or it cannot be read or written.
    """
    lines = list(dict.fromkeys(_lines(path)))
    if not lines:
        raise LogError(f"no line of a log can be read in {str(path)!r}")
    fresh = path.with_name(f"{path.name}.new")
    aside = next(one for at in count() if not (one := path.with_name(f"{path.name}.damaged{at or ''}")).exists())
    try:
        fresh.unlink(missing_ok=True)
        store = SqliteStore(fresh, durable=True)
        store.extend_lines(lines)
        store.close()
        for end in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.replace(f"{path}{end}", f"{aside}{end}")
        path.replace(aside)
        fresh.replace(path)
    except OSError as error:
        raise LogError(f"{str(path)!r} cannot be written: {error.strerror}") from error
    return len(lines), aside


def _lines(path: Path) -> Iterator[str]:
    main = read_bytes(path, "tuning log", most="unpacked-log-bytes", error=LogError)
    ahead = Path(f"{path}-wal")
    frames = read_bytes(ahead, most="unpacked-log-bytes", error=LogError)[_WAL_HEADER:] if ahead.exists() else b""
    stated = int.from_bytes(main[16:18])
    size = stated if stated in (512, 1024, 2048, 4096, 8192, 16384, 32768) else PAGE
    pages = {at // size + 1: main[at : at + size] for at in range(0, len(main), size)}
    newer = dict(pages)
    written = []
    for at in range(0, len(frames), _FRAME + size):
        page = frames[at + _FRAME : at + _FRAME + size]
        newer[int.from_bytes(frames[at : at + 4])] = page
        written.append(page)
    for number, page in pages.items():
        yield from _lines_in(page, _HEADER if number == 1 else 0, size, (pages, newer))
    for page in written:
        yield from _lines_in(page, 0, size, (newer, pages))


def _lines_in(page: bytes, begin: int, size: int, files: tuple[Mapping[int, bytes], ...]) -> Iterator[str]:
    """Yield the whole lines of a page; `files` are the pages by number, which long lines overflow into."""
    if page[begin : begin + 1] != bytes([_LEAF]):
        return
    for at in range(int.from_bytes(page[begin + 3 : begin + 5])):
        place = int.from_bytes(page[begin + 8 + 2 * at : begin + 10 + 2 * at])
        for pages in files:
            with suppress(LogError, ValueError, IndexError):
                yield _line(_payload(page, place, size, pages))
                break


def _payload(page: bytes, at: int, size: int, pages: Mapping[int, bytes]) -> bytes:
    """Return the payload of a cell, including its overflow pages."""
    length, at = _number(page, at)
    _, at = _number(page, at)
    most, least = size - 35, (size - 12) * 32 // 255 - 23
    if length <= most:
        return page[at : at + length]
    if length > MAX_LINE + size:  # a damaged number, which pages that refer to each other would never reach
        raise ValueError
    local = least + (length - least) % (size - 4)
    local = local if local <= most else least
    data, following = bytearray(page[at : at + local]), int.from_bytes(page[at + local : at + local + 4])
    while len(data) < length and (more := pages.get(following)):
        data += more[4 : 4 + length - len(data)]
        following = int.from_bytes(more[:4])
    return bytes(data)


def _line(payload: bytes) -> str:
    """Return the line in a row of the table of lines; an error if the row is of another table, or was damaged."""
    end, at = _number(payload, 0)
    values, begin = [], end
    while at < end:
        kind, at = _number(payload, at)
        length = (kind - 12) // 2 if kind >= 12 else 0
        values.append(payload[begin : begin + length])
        begin += length
    _, digest, type_, stored = values
    text = stored.decode()
    if type_ and len(digest) == 17:  # older schemas store the digest in the line
        text = f'{text[:-1]},"d":"{unpacked(digest)}"}}'
    record = parse_record(text)
    if record.type != type_.decode() or (not type_ and packed(record.digest) != digest):
        raise LogError("it is another line")
    return text


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length (a varint), and where it ends."""
    value = 0
    for byte in range(9):
        one = data[at + byte]
        if byte == 8:
            return value << 8 | one, at + 9
        value = value << 7 | one & 0x7F
        if one < 0x80:
            return value, at + byte + 1
    raise IndexError
