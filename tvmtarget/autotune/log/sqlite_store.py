"""A log in one SQLite file, which many processes read and write at once.

What `extend` acknowledged survives the death of the process.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from tvmtarget.autotune.log.entries import read_entry
from tvmtarget.autotune.log.index import Index
from tvmtarget.autotune.log.lines import MAX_LINE
from tvmtarget.autotune.log.tables import (
    APPLICATION,
    BUSY_TIMEOUT,
    LINES,
    SCHEMA,
    corruption_error,
    retry_while_locked,
    translated_errors,
)
from tvmtarget.errors import LogError, NewerLogError
from tvmtarget.files import file_identity, has_file

__all__ = ["PAGE", "SqliteStore"]

_MAX_VALUE = 16 * MAX_LINE  # bytes; no line is longer, and a foreign schema could compute endless ones
_MAX_SCHEMA = 1000  # a larger number is damage, not a version
PAGE = 8192  # bytes: several lines with a trace to a page, so that little of it stays empty


class SqliteStore(Index):
    """A database file with write-ahead logging, opened read-only if it cannot be written.

    Not for network file systems, where SQLite's locks do not hold: tune into a local file and export it there.

    Args:
        path: the file, created if it is missing; its directory has to exist.
        durable: wait for the disk at each commit. Otherwise a loss of power can lose the last commits, and nothing
            else can.

    Raises:
        LogError: the file is something else, damaged, or was written by a newer version.
    """

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        is_new = not has_file(path)
        try:
            with translated_errors(str(path)):
                connection = _connect(path)
        except OSError as error:
            raise LogError(f"{str(path)!r} cannot be read: {error.strerror}") from error
        super().__init__(str(path), connection)
        self._path = path.absolute()  # the working directory may change
        self._file_id = None if self.url == ":memory:" else _file_id(self._path)
        try:
            self._prepare(durable=durable)
        except BaseException:
            connection.close()
            if is_new and self._file_id is not None:  # as on a full disk: an empty file would look like a log
                _remove_empty(self._path)
            raise

    @classmethod
    def in_memory(cls) -> Self:
        """Return a log that ends with the process.

        Returns:
            An empty store.
        """
        return cls(Path(":memory:"))

    def _check_writable(self) -> None:
        # A deleted file can still be written through the open connection, and all of that would be lost.
        if self._file_id is not None and _file_id(self._path) != self._file_id:
            raise LogError(f"the log {self.url!r} was deleted or replaced since it was opened; open it again")

    def repair(self) -> int:
        """Move unreadable lines to `NAME.rejected`, and rebuild all that is derived from the others.

        Returns:
            How many lines were moved.

        Raises:
            LogError: more than indexes is damaged; `recover` reads such a file without SQLite.
        """
        if beyond := [problem for problem in self.corruptions() if " index " not in f" {problem} "]:
            with translated_errors(self.url):
                raise corruption_error(beyond[0])
        with self._transaction():
            unreadable = list(self._unreadable())
            if unreadable:
                _append_rejected(Path(f"{self.url}.rejected"), [line for _, line in unreadable])
            self._connection.executemany("DELETE FROM kept WHERE id = ?", [(number,) for number, _ in unreadable])
            self.rebuild()
        return len(unreadable)

    def _unreadable(self) -> Iterator[tuple[int, bytes]]:
        rows = self._connection.execute("SELECT id, CAST(text AS BLOB) FROM line")  # damaged text may not decode
        while chunk := rows.fetchmany(1000):
            for number, line in chunk:
                try:
                    read_entry((line or b"").decode())
                except (LogError, UnicodeDecodeError):
                    yield number, line or b""

    def _prepare(self, *, durable: bool) -> None:
        with translated_errors(self.url):
            if self.is_empty() and not self._pragma("query_only"):
                self._connection.execute(f"PRAGMA page_size = {PAGE}")
                self.create()
            application, schema = self._pragma("application_id"), self._pragma("user_version")
            if application != APPLICATION and not self.is_empty():
                raise LogError(f"{self.url!r} is a database of something else, not a tuning log")
            self._check_schema()
            if not 0 <= schema < _MAX_SCHEMA:
                raise corruption_error(f"its schema is {schema}")
            if schema > SCHEMA:
                raise NewerLogError(
                    f"{self.url!r} was written by a newer version: schema {schema}, and this reads {SCHEMA}"
                )
            if self._pragma("query_only") and schema < SCHEMA:
                raise LogError(f"{self.url!r} was written by an older version; open it once where it can be written")
            if self._pragma("query_only"):
                return
            # SQLite itself does not wait for others that read or begin at this moment.
            retry_while_locked(lambda: self._connection.execute("PRAGMA journal_mode = WAL"), self.url)
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        if schema < SCHEMA:
            self.upgrade()
        self.update_target_keys()

    def _check_schema(self) -> None:
        """Reject triggers, foreign views and computed columns: reading the database would run them."""
        for type_, name, sql in self._query("SELECT type, name, coalesce(sql, '') FROM sqlite_master"):
            is_plain = type_ in ("table", "index") and not _COMPUTED.search(sql)
            if not is_plain and sql.split() not in map(str.split, LINES.split(";")):
                raise LogError(
                    f"{self.url!r} is no tuning log as this library writes them: it has the {type_} {name!r}"
                )


# What makes SQLite evaluate expressions of the schema (https://www.sqlite.org/security.html).
_COMPUTED = re.compile(r"\bVIRTUAL\b|\bGENERATED\b|\bCHECK\b|\bDEFAULT\b|\bAS\s*\(|\bSELECT\b", re.IGNORECASE)


def _file_id(path: Path) -> tuple[int, int] | None:
    """Return the identity of the file at a path, None if there is none."""
    try:
        return file_identity(path.stat())
    except OSError:
        return None


def _remove_empty(path: Path) -> None:
    with suppress(OSError):
        if path.stat().st_size == 0:
            path.unlink()


def _append_rejected(path: Path, lines: Sequence[bytes]) -> None:
    try:
        with path.open("ab") as rejected:
            rejected.writelines(line + b"\n" for line in lines)
            rejected.flush()
            os.fsync(rejected.fileno())
    except OSError as error:
        raise LogError(f"{str(path)!r} cannot be written: {error.strerror}") from error


def _connect(path: Path) -> sqlite3.Connection:
    connection = _open(path)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _open(path: Path) -> sqlite3.Connection:
    options = {"timeout": BUSY_TIMEOUT, "isolation_level": None, "check_same_thread": False}
    if str(path) == ":memory:":
        return sqlite3.connect(":memory:", **options)  # type: ignore[call-overload, no-any-return]
    if not path.parent.is_dir():
        raise LogError(f"there is no directory {str(path.parent)!r}")
    if path.exists() and not path.is_file():
        raise LogError(f"{str(path)!r} is {'a directory' if path.is_dir() else 'no regular file'}")
    uri = path.absolute().as_uri()
    if not path.exists() or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return sqlite3.connect(uri, uri=True, **options)  # type: ignore[call-overload, no-any-return]
    # Readers of a write-ahead log create files beside it. If that is not allowed, an existing write-ahead log can still
    # be read; without one, all data is in the database itself, and it can be opened as immutable.
    write_ahead = path.with_name(f"{path.name}-wal")
    has_write_ahead = write_ahead.exists() and write_ahead.stat().st_size > 0
    mode = "mode=ro" if has_write_ahead or os.access(path.parent, os.W_OK) else "immutable=1"
    connection = sqlite3.connect(f"{uri}?{mode}", uri=True, **options)  # type: ignore[call-overload]
    try:
        connection.execute("PRAGMA query_only = 1")
        connection.execute("SELECT 1 FROM sqlite_master").fetchall()
    except sqlite3.OperationalError as error:
        if not has_write_ahead or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CANTOPEN:
            raise
        raise LogError(f"{str(path)!r} was not closed; open it once where it can be written") from error
    return connection  # type: ignore[no-any-return]
