"""The tables of a log: every line as it is, and beside it what is asked often. All but `kept` can be made anew.

Of the trials of one candidate, by workload, target, environment, the default `beside` it and what it `needs` of
targets, the median of those of the most trusted kind stands for all: its `since` is when the first of them ran, and
that of the others is null. No trial stands for a candidate that gave a wrong output there, or whose lines were
retracted.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from operator import itemgetter
from statistics import median_low
from typing import NamedTuple, TypeAlias, TypeVar

from tvmtarget.autotune.log.distance import family_of
from tvmtarget.autotune.log.entries import Entry, Measured, packed, read_entry
from tvmtarget.autotune.log.lines import parse_record
from tvmtarget.autotune.log.records import Pin, Record, Retraction, TargetRecord, Workload
from tvmtarget.errors import LogError, TvmTargetError
from tvmtarget.target.keys import LEVELS
from tvmtarget.target.kinds import kind_names
from tvmtarget.target.tree import Target
from tvmtarget.version import __version__

__all__ = [
    "APPLICATION",
    "BUSY_TIMEOUT",
    "OF_TRIALS",
    "PATIENCE",
    "SCHEMA",
    "Group",
    "Tables",
    "damage",
    "explained",
    "patiently",
]

_T = TypeVar("_T")
_LOGGER = logging.getLogger(__name__)

PATIENCE = 60.0  # seconds to wait for other writers
BUSY_TIMEOUT = 2.0  # seconds that SQLite waits by itself, before the wait is reported

APPLICATION = 0x74744C67  # "ttLg", in the header of the file
SCHEMA = 5
_WHOLE_LINES = 2  # up to this schema, the table of lines has their digests in their texts

_DERIVED = """
CREATE TABLE name(id INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL);
CREATE TABLE trial(line INTEGER PRIMARY KEY, workload INTEGER, target INTEGER, candidate BLOB, env INTEGER, status TEXT,
    trust INTEGER, score INTEGER, ts INTEGER, since INTEGER, beside INTEGER, needs BLOB);
CREATE TABLE view(target INTEGER, level TEXT, key TEXT, family TEXT, PRIMARY KEY(target, level)) WITHOUT ROWID;
CREATE INDEX by_key ON view(level, key);
CREATE INDEX by_family ON view(level, family);
CREATE TABLE workload(name INTEGER PRIMARY KEY, family TEXT, line INTEGER);
CREATE INDEX by_structure ON workload(family);
CREATE TABLE body(name INTEGER, line INTEGER, PRIMARY KEY(name, line)) WITHOUT ROWID;
CREATE TABLE pin(line INTEGER PRIMARY KEY, workload INTEGER, target INTEGER, ts INTEGER);
CREATE INDEX pinned ON pin(workload);
CREATE TABLE gone(digest BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
"""

OF_TRIALS = """
CREATE INDEX measured ON trial(workload, target, candidate, env);
CREATE INDEX best ON trial(workload, target, trust, score) WHERE since IS NOT NULL
"""

_MADE = ("name", "trial", "choice", "view", "workload", "body", "pin", "gone", "meta")

_GROUP = ("workload", "target", "candidate", "env")
Group: TypeAlias = tuple[int | bytes, ...]  # values of the columns of _GROUP

_CHUNK = 500


class Tables:
    """The tables on one connection, and how they are filled."""

    # How lines are kept, so that they are read from `line`; and how an entry is. The digest that a record ends with
    # is kept once; a line of another version has none that we know.
    _LINES = """
CREATE TABLE kept(id INTEGER PRIMARY KEY, digest BLOB UNIQUE NOT NULL, type TEXT NOT NULL, said TEXT NOT NULL);
CREATE VIEW line AS SELECT id, digest, type, CASE type WHEN '' THEN said ELSE
    substr(said, 1, length(said) - 1) || ',"d":"d1:' || lower(substr(hex(digest), 3)) || '"}' END AS text FROM kept
"""
    _KEEP = (
        "INSERT INTO kept VALUES (?1, ?2, ?3, CASE ?3 WHEN '' THEN ?4 ELSE substr(?4, 1, length(?4) - 43) || '}' END)"
    )

    def __init__(self, url: str, connection: sqlite3.Connection) -> None:
        self.url = url
        self._connection = connection
        self._lock = threading.RLock()
        self._names: dict[str, int] = {}

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    # Making the tables

    def create(self) -> None:
        """Make the tables of an empty database, unless another process was first."""
        with self._transaction():
            if self.is_empty():
                self._make(self._LINES)
                self._derive()
                self._connection.execute(f"PRAGMA application_id = {APPLICATION}")

    def is_empty(self) -> bool:
        """Whether there are no tables."""
        return not self._all("SELECT 1 FROM sqlite_master LIMIT 1")

    def upgrade(self) -> None:
        """Make all tables but that of the lines anew, in one transaction, if an older version made them."""
        with self._transaction():
            if self._pragma("user_version") >= SCHEMA:
                return
            if self._pragma("user_version") > _WHOLE_LINES:
                self.remake()
                return
            self._forget_made()
            self._connection.execute("ALTER TABLE line RENAME TO older")
            self._make(self._LINES)
            self._derive()
            for numbered in self._numbered_of("SELECT id, text FROM older ORDER BY id"):
                self._keep(numbered)
                self._settle(self._fill(numbered))
            self._connection.execute("DROP TABLE older")

    def remake(self) -> None:
        """Make all tables but that of the lines anew, within a transaction."""
        self._forget_made()
        self._connection.execute("REINDEX")
        self._derive()
        for numbered in self._numbered_of("SELECT id, text FROM line ORDER BY id"):
            self._settle(self._fill(numbered))

    def _forget_made(self) -> None:
        for table in _MADE:
            self._connection.execute(f"DROP TABLE IF EXISTS {table}")
        self._names.clear()

    def _numbered_of(self, sql: str) -> Iterator[list[tuple[int, Entry]]]:
        rows = self._connection.execute(sql)
        while some := list(islice(rows, _CHUNK)):
            yield [(line, read_entry(text)) for line, text in some]

    def _make(self, statements: str) -> None:
        for statement in filter(str.strip, statements.split(";")):
            self._connection.execute(statement)

    def _derive(self) -> None:
        self._make(_DERIVED + OF_TRIALS)
        self._connection.execute("INSERT INTO meta VALUES ('views', ?)", (_rules(),))
        self._connection.execute(f"PRAGMA user_version = {SCHEMA}")

    def rekey(self) -> None:
        """Compute the keys of all targets anew if other rules made them, or if other kinds are known now."""
        if self._all("SELECT value FROM meta WHERE name = 'views'") == [(_rules(),)]:
            return
        with self._transaction():
            self._connection.execute("DELETE FROM view")
            for (text,) in self._all("SELECT text FROM line WHERE type = 'target'"):
                record = parse_record(text)
                if isinstance(record, TargetRecord):
                    self._add_views(record)
            self._connection.execute("REPLACE INTO meta VALUES ('views', ?)", (_rules(),))

    # Filling them

    def _add(self, entries: Iterable[Entry]) -> tuple[int, list[Group]]:
        """Add entries within a transaction; return how many were new, and the groups that have to be settled."""
        fresh: dict[bytes, Entry] = {}
        for entry in entries:
            fresh.setdefault(entry.digest, entry)
        self._connection.execute("SAVEPOINT lines")
        try:
            numbered = self._numbered(fresh.values())
        except sqlite3.IntegrityError:
            self._connection.execute("ROLLBACK TO lines")
            for digest in self._there(list(fresh)):
                del fresh[digest]
            numbered = self._numbered(fresh.values())
        self._connection.execute("RELEASE lines")
        return len(fresh), self._fill(numbered)

    def _numbered(self, entries: Iterable[Entry]) -> list[tuple[int, Entry]]:
        last: int = self._all("SELECT ifnull(max(id), 0) FROM kept")[0][0]
        numbered = list(enumerate(entries, last + 1))
        self._keep(numbered)
        return numbered

    def _keep(self, numbered: Iterable[tuple[int, Entry]]) -> None:
        self._connection.executemany(self._KEEP, [(line, *entry[:2], *entry.kept) for line, entry in numbered])

    def _there(self, digests: Sequence[bytes]) -> list[bytes]:
        found: list[bytes] = []
        for at in range(0, len(digests), _CHUNK):
            some = digests[at : at + _CHUNK]
            found += (row[0] for row in self._all(f"SELECT digest FROM kept WHERE digest IN ({_marks(some)})", *some))
        return found

    def _fill(self, numbered: Sequence[tuple[int, Entry]]) -> list[Group]:
        """Write what lines say into the other tables; return the groups that have to be settled.

        Most candidates have one trial, so each that ran stands for its candidate until that is settled.
        """
        trials = [(line, *self._row(entry.measured)) for line, entry in numbered if entry.measured is not None]
        self._connection.executemany(
            "INSERT INTO trial "
            "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, CASE WHEN ?8 IS NOT NULL THEN ?9 END, ?10, ?11)",
            trials,
        )
        touched: list[Group] = [row[1:5] for row in trials]  # type: ignore[misc]
        for line, entry in numbered:
            if entry.record is not None and entry.measured is None:
                touched += self._add_other(line, entry.record)
        return touched

    def _row(self, trial: Measured) -> tuple[object, ...]:
        """Return the columns of a trial beside its line, names by their numbers."""
        workload, target, env, candidate, status, trust, score, ts, default, needs = trial
        known = self._names.get
        return (
            known(workload) or self._name(workload),
            known(target) or self._name(target),
            candidate,
            0 if env is None else known(env) or self._name(env),
            status,
            trust,
            score,
            ts,
            0 if default is None else known(default) or self._name(default),
            needs,
        )

    def _add_other(self, line: int, record: Record) -> Iterable[Group]:
        match record:
            case TargetRecord():
                self._add_views(record)
            case Workload():
                family = (self._name(record.key), record.family, line)
                self._connection.execute("INSERT OR IGNORE INTO workload VALUES (?, ?, ?)", family)
            case Pin():
                pin = (line, self._name(record.workload), self._name(record.target), record.ts)
                self._connection.execute("INSERT INTO pin VALUES (?, ?, ?, ?)", pin)
            case Retraction():
                self._connection.execute("INSERT OR IGNORE INTO gone VALUES (?)", (packed(record.of),))
                return self._groups_of(record.of)
        if (key := getattr(record, "key", None)) is not None:
            self._connection.execute("INSERT INTO body VALUES (?, ?)", (self._name(key), line))
        return ()

    def _add_views(self, record: TargetRecord) -> None:
        for level in LEVELS:
            try:
                target = Target.from_json(record.body, tags={})
                row = (level, target.tuning_key(level), None if level != "kernel" else family_of(target))
            except TvmTargetError:  # a system has no kernels, and nobody may know the kind
                continue
            self._connection.execute("REPLACE INTO view VALUES (?, ?, ?, ?)", (self._name(record.key), *row))

    def _name(self, key: str) -> int:
        if (known := self._names.get(key)) is not None:
            return known
        self._connection.execute("INSERT OR IGNORE INTO name(key) VALUES (?)", (key,))
        found: int = self._all("SELECT id FROM name WHERE key = ?", key)[0][0]
        self._names[key] = found
        return found

    def _groups_of(self, digest: str) -> list[Group]:
        return self._all(
            f"SELECT {', '.join(_GROUP)} FROM trial WHERE line = (SELECT id FROM kept WHERE digest = ?)", packed(digest)
        )

    def _forget(self, digests: Iterable[str]) -> None:
        """Delete lines, and what was made of them."""
        given = list(digests)
        touched = {group for digest in given for group in self._groups_of(digest)}
        rows = [(packed(digest),) for digest in given]
        for table in ("trial", "pin", "body"):
            self._connection.executemany(
                f"DELETE FROM {table} WHERE line = (SELECT id FROM kept WHERE digest = ?)", rows
            )
        self._connection.executemany("DELETE FROM kept WHERE digest = ?", rows)
        self._settle(touched)

    # Ranking

    def _settle(self, groups: Collection[Group]) -> None:
        """Rank the candidates of the groups anew, from all their trials."""
        for changes in self._to_settle(groups):
            self._connection.executemany("UPDATE trial SET since = ? WHERE line = ?", changes)

    def _to_settle(self, groups: Collection[Group]) -> Iterator[list[tuple[int | None, int]]]:
        left = iter(sorted(set(groups)))
        same = " AND ".join(f"trial.{name} = given.{name}" for name in _GROUP)
        group = ", ".join(f"trial.{name}" for name in _GROUP)
        while some := list(islice(left, _CHUNK // 4)):
            given = ", ".join([f"({_marks(_GROUP)})"] * len(some))
            rows = self._all(
                f"WITH given({', '.join(_GROUP)}) AS (VALUES {given}) "
                f"SELECT {group}, trust, score, ts, digest, line, status, since, beside, needs, "
                "digest IN (SELECT digest FROM gone) "
                f"FROM given CROSS JOIN trial ON {same} JOIN kept ON id = line ORDER BY {group}",
                *(value for group in some for value in group),
            )
            yield [
                change
                for _, trials in groupby(rows, itemgetter(0, 1, 2, 3))
                for change in _changes([_Row(*row[4:]) for row in trials])
            ]

    def _check_place(self) -> None:
        """Refuse to write where nobody would find it."""

    # Asking

    def _pragma(self, name: str) -> int:
        return int(self._all(f"PRAGMA {name}")[0][0])

    def _all(self, sql: str, *values: object) -> list[tuple]:  # type: ignore[type-arg]
        with self._lock, explained(self.url):
            return patiently(lambda: self._connection.execute(sql, values).fetchall(), self.url)

    def _in_order(self, sql: str, *values: object) -> Iterator[tuple]:  # type: ignore[type-arg]
        """Yield the rows of a query for ids beyond its first value, which it answers some at a time.

        In a damaged database ids need not rise, and asking for those beyond the last one would never end.
        """
        last = 0
        while rows := self._all(sql, last, *values):
            for row in rows:
                if row[0] <= last:
                    with explained(self.url):
                        raise damage(f"line {row[0]} stands behind line {last}")
                last = row[0]
                yield row

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Do all of a block or nothing of it."""
        with self._lock, explained(self.url):
            self._check_place()
            patiently(lambda: self._connection.execute("BEGIN IMMEDIATE"), self.url)
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._names.clear()
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn an error of SQLite, or of reading what a damaged file gives, into one of ours."""
    try:
        yield
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        is_damaged = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT
        help_ = "; `tvmtarget log repair` makes a new one of the lines that are whole" if is_damaged else ""
        raise LogError(f"the log {url!r} cannot be used: {error}{help_}", path=url) from error


def damage(problem: str) -> sqlite3.DatabaseError:
    """Return an error as SQLite raises it for a damaged database, for damage that only we can see."""
    error = sqlite3.DatabaseError(problem)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def patiently(action: Callable[[], _T], url: str) -> _T:
    """Repeat an action while another process holds the lock of a log, and report that it is waited for.

    Args:
        action: raises an `sqlite3.OperationalError` (busy) or a `BlockingIOError` where the lock is held.
        url: the log, for the message.

    The error is raised after `PATIENCE`.
    """
    began, pause, is_reported = time.monotonic(), 0.0002, False
    while True:
        try:
            return action()
        except (sqlite3.OperationalError, BlockingIOError) as error:
            waited = time.monotonic() - began
            code = getattr(error, "sqlite_errorcode", 0)  # errors of Python's own module have none
            is_busy = isinstance(error, BlockingIOError) or code & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or waited > PATIENCE:
                raise
            if waited > 2 and not is_reported:
                is_reported = True
                _LOGGER.warning("waiting for another process that holds the lock of the log %r", url)
            time.sleep(random.uniform(pause / 2, pause))  # not all at once again
            pause = min(2 * pause, 0.01)


class _Row(NamedTuple):
    """A trial of a candidate, and whether it stands for it so far."""

    trust: int | None
    score: int | None
    ts: int
    digest: bytes
    line: int
    status: str
    since: int | None
    beside: int
    needs: bytes | None
    is_gone: bool


def _changes(rows: Sequence[_Row]) -> Iterator[tuple[int | None, int]]:
    """Yield `since` and line of the trials of one candidate where it is not what it should be."""
    counted = [row for row in rows if not row.is_gone]
    stands: dict[int, int] = {}
    if all(row.status != "wrong_output" for row in counted):
        alike: dict[tuple[int, bytes | None], list[_Row]] = {}
        for row in counted:
            if row.score is not None:
                alike.setdefault((row.beside, row.needs), []).append(row)
        for ran in map(sorted, alike.values()):
            median = median_low([row for row in ran if row.trust == ran[0].trust])
            stands[median.line] = min(one.ts for one in ran)
    for row in rows:
        since = stands.get(row.line)
        if row.since != since:
            yield since, row.line


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))


def _rules() -> str:
    """Return what the keys of targets depend on beside the targets."""
    return f"{__version__} {' '.join(kind_names())}"
