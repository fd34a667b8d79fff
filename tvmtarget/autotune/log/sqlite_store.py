"""A log in one SQLite file: many writers and readers at once, nothing acknowledged is lost when one is killed."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from tvmtarget.autotune.log.entries import read_entry
from tvmtarget.autotune.log.index import Index
from tvmtarget.autotune.log.lines import MAX_LINE
from tvmtarget.autotune.log.tables import APPLICATION, BUSY_TIMEOUT, SCHEMA, damage, explained, patiently
from tvmtarget.errors import LogError, NewerLogError
from tvmtarget.files import file_identity

__all__ = ["PAGE", "SqliteStore"]

_MOST_BYTES = 16 * MAX_LINE  # of a value; no line is longer, and a foreign schema could compute endless ones
_MOST_SCHEMAS = 1000  # a number beyond is no version but damage
PAGE = 8192  # bytes: several lines with a trace to a page, so that little of it stays empty


class SqliteStore(Index):
    """A file with write-ahead logging; opened to be read only where it cannot be written.

    Not for network file systems, where SQLite's locks do not hold: keep `.jsonl` there. `durable` waits for the
    disk at each commit; without it, only a machine that loses power can lose what was written last.
    """

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        try:
            with explained(str(path)):
                connection = _connect(path)
        except OSError as error:
            raise LogError(f"{str(path)!r} cannot be read: {error.strerror}") from error
        super().__init__(str(path), connection)
        self._path = path.absolute()
        self._place = None if self.url == ":memory:" else _place(self._path)
        try:
            self._prepare(durable=durable)
        except BaseException:
            connection.close()
            raise

    @classmethod
    def in_memory(cls) -> Self:
        """Return a log that ends with the process."""
        return cls(Path(":memory:"))

    def _check_place(self) -> None:
        """Refuse to write to a file that was taken away, and would take with it what is written."""
        if self._place is not None and _place(self._path) != self._place:
            raise LogError(f"the log {self.url!r} was deleted or replaced since it was opened; open it again")

    def mend(self) -> int:
        """Put lines that cannot be read aside, and make all else anew from the others; return how many those were.

        Damage beyond indexes, which are rebuilt, is a `LogError`: `salvage` reads such a file without SQLite.
        """
        if beyond := [problem for problem in self.damages() if " index " not in f" {problem} "]:
            with explained(self.url):
                raise damage(beyond[0])
        with self._transaction():
            bad = list(self._unreadable())
            if bad:
                _put_aside(Path(f"{self.url}.rejected"), [line for _, line in bad])
            self._connection.executemany("DELETE FROM kept WHERE id = ?", [(number,) for number, _ in bad])
            self.remake()
        return len(bad)

    def _unreadable(self) -> Iterator[tuple[int, bytes]]:
        rows = self._connection.execute("SELECT id, CAST(text AS BLOB) FROM line")  # it may be no text any more
        while some := rows.fetchmany(1000):
            for number, line in some:
                try:
                    read_entry((line or b"").decode())
                except (LogError, UnicodeDecodeError):
                    yield number, line or b""

    def _prepare(self, *, durable: bool) -> None:
        with explained(self.url):
            if self.is_empty() and not self._pragma("query_only"):
                self._connection.execute(f"PRAGMA page_size = {PAGE}")
                self.create()
            application, schema = self._pragma("application_id"), self._pragma("user_version")
            if application != APPLICATION and not self.is_empty():
                raise LogError(f"{self.url!r} is a database of something else, not a tuning log")
            self._check_schema()
            if not 0 <= schema < _MOST_SCHEMAS:
                raise damage(f"its schema is {schema}")
            if schema > SCHEMA:
                raise NewerLogError(
                    f"{self.url!r} was written by a newer version: schema {schema}, and this reads {SCHEMA}"
                )
            if self._pragma("query_only") and schema < SCHEMA:
                raise LogError(f"{self.url!r} was written by an older version; open it once where it can be written")
            if self._pragma("query_only"):
                return
            self._write_ahead()
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        if schema < SCHEMA:
            self.upgrade()
        self.rekey()

    def _check_schema(self) -> None:
        """Refuse a database with triggers, foreign views or computed columns: reading it would run what they say."""
        for type_, name, sql in self._all("SELECT type, name, coalesce(sql, '') FROM sqlite_master"):
            is_plain = type_ in ("table", "index") and not _COMPUTED.search(sql)
            if not is_plain and _words(sql) not in map(_words, self._LINES.split(";")):
                raise LogError(
                    f"{self.url!r} is no tuning log as this library writes them: it has the {type_} {name!r}"
                )

    def _write_ahead(self) -> None:
        """Begin write-ahead logging; SQLite itself does not wait for others that read or begin at that moment."""
        patiently(lambda: self._connection.execute("PRAGMA journal_mode = WAL"), self.url)


# What makes SQLite evaluate expressions of the schema (https://www.sqlite.org/security.html).
_COMPUTED = re.compile(r"\bVIRTUAL\b|\bGENERATED\b|\bCHECK\b|\bDEFAULT\b|\bAS\s*\(|\bSELECT\b", re.IGNORECASE)


def _words(sql: str) -> list[str]:
    return sql.split()


def _place(path: Path) -> tuple[int, int] | None:
    """Return which file a path is; None while there is none."""
    try:
        return file_identity(path.stat())
    except OSError:
        return None


def _put_aside(path: Path, lines: Sequence[bytes]) -> None:
    try:
        with path.open("ab") as rejected:
            rejected.writelines(line + b"\n" for line in lines)
            rejected.flush()
            os.fsync(rejected.fileno())
    except OSError as error:
        raise LogError(f"{str(path)!r} cannot be written: {error.strerror}") from error


def _connect(path: Path) -> sqlite3.Connection:
    connection = _opened(path)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _opened(path: Path) -> sqlite3.Connection:
    options = {"timeout": BUSY_TIMEOUT, "isolation_level": None, "check_same_thread": False}
    if str(path) == ":memory:":
        return sqlite3.connect(":memory:", **options)  # type: ignore[call-overload, no-any-return]
    if not path.parent.is_dir():
        raise LogError(f"there is no directory {str(path.parent)!r}")
    if path.exists() and not path.is_file():
        raise LogError(f"{str(path)!r} is {'a directory' if path.is_dir() else 'no regular file'}")
    place = path.absolute().as_uri()
    if not path.exists() or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return sqlite3.connect(place, uri=True, **options)  # type: ignore[call-overload, no-any-return]
    # Readers of a write-ahead log write beside it. Where that is not allowed, they can read one that is there already;
    # where there is none, all is in the file itself.
    ahead = path.with_name(f"{path.name}-wal")
    is_ahead = ahead.exists() and ahead.stat().st_size > 0
    mode = "mode=ro" if is_ahead or os.access(path.parent, os.W_OK) else "immutable=1"
    connection = sqlite3.connect(f"{place}?{mode}", uri=True, **options)  # type: ignore[call-overload]
    try:
        connection.execute("PRAGMA query_only = 1")
        connection.execute("SELECT 1 FROM sqlite_master").fetchall()
    except sqlite3.OperationalError as error:
        if not is_ahead or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CANTOPEN:
            raise
        raise LogError(f"{str(path)!r} was not closed; open it once where it can be written") from error
    return connection  # type: ignore[no-any-return]
