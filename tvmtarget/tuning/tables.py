"""The tables of a log: every line as it is, and beside it what is asked often. All but `line` can be made anew.

`choice` has a row for each candidate that ran, by workload, target and environment: the median of its trials of the
most trusted kind. A candidate that gave a wrong output there, or whose lines were retracted, has none.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from operator import itemgetter
from statistics import median_low
from typing import TypeAlias

from tvmtarget.errors import LogError, TvmTargetError
from tvmtarget.target.keys import LEVELS
from tvmtarget.target.kinds import kind_names
from tvmtarget.target.tree import Target
from tvmtarget.tuning.distance import family_of
from tvmtarget.tuning.entries import Entry, Measured, read_entry
from tvmtarget.tuning.lines import parse_record
from tvmtarget.tuning.records import Pin, Record, Retraction, TargetRecord, Workload
from tvmtarget.version import __version__

__all__ = ["APPLICATION", "SCHEMA", "Tables", "explained"]

APPLICATION = 0x74744C67  # "ttLg", in the header of the file
SCHEMA = 2

_DERIVED = """
CREATE TABLE name(id INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL);
CREATE TABLE trial(line INTEGER PRIMARY KEY, workload INTEGER, target INTEGER, candidate BLOB, env INTEGER, status TEXT,
    trust INTEGER, score INTEGER, ts INTEGER);
CREATE INDEX measured ON trial(workload, target, candidate, env);
CREATE TABLE choice(workload INTEGER, target INTEGER, candidate BLOB, env INTEGER, trust INTEGER, score INTEGER,
    ts INTEGER, line INTEGER, PRIMARY KEY(workload, target, candidate, env)) WITHOUT ROWID;
CREATE INDEX best ON choice(workload, target, trust, score);
CREATE TABLE view(target INTEGER, level TEXT, key TEXT, family TEXT, PRIMARY KEY(target, level)) WITHOUT ROWID;
CREATE INDEX by_key ON view(level, key);
CREATE INDEX by_family ON view(level, family);
CREATE TABLE workload(name INTEGER PRIMARY KEY, family TEXT, line INTEGER);
CREATE INDEX by_structure ON workload(family);
CREATE TABLE body(name INTEGER, line INTEGER, PRIMARY KEY(name, line)) WITHOUT ROWID;
CREATE TABLE pin(line INTEGER PRIMARY KEY, workload INTEGER, target INTEGER, ts INTEGER);
CREATE INDEX pinned ON pin(workload);
CREATE TABLE gone(digest TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
"""

_MADE = ("name", "trial", "choice", "view", "workload", "body", "pin", "gone", "meta")

_GROUP = ("workload", "target", "candidate", "env")
_Group: TypeAlias = tuple[int | bytes, ...]  # values of the first columns of _GROUP, or of all

_CHUNK = 500


class Tables:
    """The tables on one connection, and how they are filled."""

    # How lines are kept, so that they are read from `line`; and how an entry is.
    _LINES = (
        "CREATE TABLE line(id INTEGER PRIMARY KEY, digest TEXT UNIQUE NOT NULL, type TEXT NOT NULL, text TEXT NOT NULL)"
    )
    _KEEP = "INSERT INTO line VALUES (?, ?, ?, ?)"

    def __init__(self, connection: sqlite3.Connection) -> None:
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
                for statement in self._LINES.split(";"):
                    self._connection.execute(statement)
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
            for table in _MADE:
                self._connection.execute(f"DROP TABLE IF EXISTS {table}")
            self._names.clear()
            self._derive()
            rows = self._connection.execute("SELECT id, text FROM line ORDER BY id")
            while some := list(islice(rows, _CHUNK)):
                self._settle(self._fill([(line, read_entry(text)) for line, text in some]))

    def _derive(self) -> None:
        for statement in filter(str.strip, _DERIVED.split(";")):
            self._connection.execute(statement)
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

    def _add(self, entries: Iterable[Entry]) -> tuple[int, set[_Group]]:
        """Add entries within a transaction; return how many were new, and the groups that have to be settled."""
        fresh: dict[str, Entry] = {}
        for entry in entries:
            fresh.setdefault(entry.digest, entry)
        self._connection.execute("SAVEPOINT lines")
        try:
            numbered = self._keep(fresh.values())
        except sqlite3.IntegrityError:
            self._connection.execute("ROLLBACK TO lines")
            for digest in self._there(list(fresh)):
                del fresh[digest]
            numbered = self._keep(fresh.values())
        self._connection.execute("RELEASE lines")
        return len(fresh), self._fill(numbered)

    def _keep(self, entries: Iterable[Entry]) -> list[tuple[int, Entry]]:
        last: int = self._all("SELECT ifnull(max(id), 0) FROM line")[0][0]
        numbered = list(enumerate(entries, last + 1))
        self._connection.executemany(
            self._KEEP, [(line, entry.digest, entry.type, *entry.kept) for line, entry in numbered]
        )
        return numbered

    def _there(self, digests: Sequence[str]) -> list[str]:
        found: list[str] = []
        for at in range(0, len(digests), _CHUNK):
            some = digests[at : at + _CHUNK]
            found += (row[0] for row in self._all(f"SELECT digest FROM line WHERE digest IN ({_marks(some)})", *some))
        return found

    def _fill(self, numbered: Sequence[tuple[int, Entry]]) -> set[_Group]:
        """Write what lines say into the other tables; return the groups that have to be settled."""
        trials = [(line, *self._group(trial), *trial[4:]) for line, entry in numbered if (trial := entry.measured)]
        self._connection.executemany("INSERT INTO trial VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", trials)
        touched: set[_Group] = {row[1:5] for row in trials}  # type: ignore[misc]
        for line, entry in numbered:
            if entry.record is not None and entry.measured is None:
                touched.update(self._add_other(line, entry.record))
        return touched

    def _group(self, trial: Measured) -> _Group:
        env = self._name(trial.env) if trial.env is not None else 0
        return self._name(trial.workload), self._name(trial.target), trial.candidate, env

    def _add_other(self, line: int, record: Record) -> Iterable[_Group]:
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
                self._connection.execute("INSERT OR IGNORE INTO gone VALUES (?)", (record.of,))
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

    def _groups_of(self, digest: str) -> list[_Group]:
        return self._all(
            f"SELECT {', '.join(_GROUP)} FROM trial WHERE line = (SELECT id FROM line WHERE digest = ?)", digest
        )

    def _forget(self, digests: Iterable[str]) -> None:
        """Delete lines, and what was made of them."""
        rows = [(digest,) for digest in digests]
        touched = {group for (digest,) in rows for group in self._groups_of(digest)}
        for table in ("trial", "pin", "body"):
            self._connection.executemany(
                f"DELETE FROM {table} WHERE line = (SELECT id FROM line WHERE digest = ?)", rows
            )
        self._connection.executemany("DELETE FROM line WHERE digest = ?", rows)
        self._settle(touched)

    # Ranking

    def _settle(self, groups: Collection[_Group]) -> None:
        """Rank candidates anew from all their trials: those of the groups, which may all be short of last columns."""
        left = iter(sorted(groups))
        while some := list(islice(left, _CHUNK // 4)):
            names = _GROUP[: len(some[0])]
            given = ", ".join([f"({_marks(names)})"] * len(some))
            same = " AND ".join(f"trial.{name} = given.{name}" for name in names)
            group = ", ".join(f"trial.{name}" for name in _GROUP)
            rows = self._all(
                f"WITH given({', '.join(names)}) AS (VALUES {given}) "
                f"SELECT {group}, status, trust, score, ts, digest, id "
                f"FROM given CROSS JOIN trial ON {same} JOIN line ON id = trial.line "
                f"WHERE digest NOT IN (SELECT digest FROM gone) ORDER BY {group}",
                *(value for group in some for value in group),
            )
            where = " AND ".join(f"{name} = ?" for name in names)
            self._connection.executemany(f"DELETE FROM choice WHERE {where}", some)
            ranked = [_ranked(key, list(trials)) for key, trials in groupby(rows, itemgetter(0, 1, 2, 3))]
            self._connection.executemany(
                "INSERT INTO choice VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [row for row in ranked if row is not None]
            )

    # Asking

    def _pragma(self, name: str) -> int:
        return int(self._all(f"PRAGMA {name}")[0][0])

    def _all(self, sql: str, *values: object) -> list[tuple]:  # type: ignore[type-arg]
        with self._lock, explained():
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Do all of a block or nothing of it."""
        with self._lock, explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._names.clear()
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


@contextmanager
def explained(url: str = "") -> Iterator[None]:
    """Turn an error of SQLite into one of ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise LogError(f"the log{f' {url!r}' if url else ''} cannot be used: {error}") from error


def _ranked(key: tuple[object, ...], rows: list[tuple]) -> tuple[object, ...] | None:  # type: ignore[type-arg]
    """Return the row of `choice` for a candidate; None where it never ran, or gave a wrong output."""
    ran = sorted(row[5:] for row in rows if row[5] is not None)
    if not ran or any(row[4] == "wrong_output" for row in rows):
        return None
    trust, line = ran[0][0], ran[0][4]
    score = median_low([row[1] for row in ran if row[0] == trust])
    return *key, trust, score, min(row[2] for row in ran), line


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))


def _rules() -> str:
    """Return what the keys of targets depend on beside the targets."""
    return f"{__version__} {' '.join(kind_names())}"
