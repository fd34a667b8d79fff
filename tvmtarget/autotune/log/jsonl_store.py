"""A log that is a file of lines, `.jsonl` or `.jsonl.gz`: it is loaded when it is opened, and only read.

Such files are written by `TuningLog.export`. The only log that is written in place is the database.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NoReturn

from tvmtarget.autotune.log.entries import Entry, entry_of, quick_entry
from tvmtarget.autotune.log.index import Index
from tvmtarget.autotune.log.lines import Line, RawLine, raw_lines
from tvmtarget.autotune.log.sqlite_store import PAGE
from tvmtarget.errors import LogError, ReadOnlyLogError
from tvmtarget.garbage_collection import without_garbage_collection
from tvmtarget.untrusted import open_regular, unpack_gzip

__all__ = ["STDIN", "JsonLinesStore"]

_BATCH = 1000
STDIN = "-"  # the URL of the lines on standard input
_MOST_FOREIGN = 100  # unreadable lines after which a file that began with one is given up


class JsonLinesStore(Index):
    """The lines of a file in a temporary database, with every query of a log.

    Args:
        path: a `.jsonl` or `.jsonl.gz` file, or `-` for standard input.

    Raises:
        LogError: the file does not exist, cannot be read, or is something else than a log.
    """

    def __init__(self, path: Path) -> None:
        # An unnamed database spills to disk if it is large, and is deleted when it is closed.
        connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        connection.execute(f"PRAGMA page_size = {PAGE}")
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -16000")  # KiB
        super().__init__(str(path), connection)
        self._path = path
        self._problems: list[Line] = []
        self._is_loaded = False
        try:
            self.create()
            self._load()
        except BaseException:
            self.close()
            raise
        self._is_loaded = True

    def problems(self) -> Sequence[Line]:
        """Return the lines of the file that cannot be read.

        Returns:
            The lines with what is wrong, in their order.
        """
        return self._problems

    def repair(self) -> NoReturn:
        """Reject a repair: an export of the log has all lines that are whole.

        Raises:
            ReadOnlyLogError: always.
        """
        raise ReadOnlyLogError(
            f"{self.url!r} is only read: `tvmtarget log export` writes its whole lines to a new file, and `tvmtarget "
            "log merge NAME.db FILE` takes them into a database"
        )

    def _check_writable(self) -> None:
        if self._is_loaded:
            raise ReadOnlyLogError(
                f"{self.url!r} is a file of lines, which is only read: write to a database such as NAME.db, take lines "
                "in with `tvmtarget log merge NAME.db FILE`, and write them with `tvmtarget log export`"
            )

    def _load(self) -> None:
        with self._open() as stream, without_garbage_collection(), self._bulk_insert():
            entries = self._entries(stream)
            while batch := list(islice(entries, _BATCH)):
                self._insert(batch)

    @contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        if self.url == STDIN:
            yield sys.stdin.buffer
            return
        if not os.path.lexists(self._path):
            raise LogError(
                f"there is no log {self.url!r}; a new log is a database such as NAME.db, and `tvmtarget log export` "
                "writes files of lines"
            )
        with open_regular(self._path, "log", error=LogError) as file:
            is_packed = self._path.suffix.lower() == ".gz"
            try:
                yield unpack_gzip(file, f"the log {self.url!r}", error=LogError) if is_packed else file
            except (EOFError, zlib.error) as error:
                raise LogError(f"{self.url!r} cannot be read: {error}") from error

    def _entries(self, stream: BinaryIO) -> Iterator[Entry]:
        """Yield the entries of a stream, and collect the lines that are none."""
        foreign: Line | None = None  # the first line, if it cannot be one of a damaged log
        is_log = False
        for raw in raw_lines(stream):
            if (entry := self._entry(raw)) is not None:
                is_log = True
                yield entry
                continue
            problem = self._problems[-1]
            if problem.offset == 0 and not problem.looks_like_json:
                foreign = problem
            if foreign is not None and not is_log and len(self._problems) > _MOST_FOREIGN:
                break
        if foreign is not None and not is_log:
            raise LogError(f"{self.url!r} is not a tuning log: {foreign}")

    def _entry(self, raw: RawLine) -> Entry | None:
        if (quick := quick_entry(raw.data.rstrip(b"\r\n"))) is not None:
            return quick
        line = raw.read()
        if line.record is not None:
            return entry_of(line.record)
        self._problems.append(line)
        return None
