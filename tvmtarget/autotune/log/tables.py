"""The SQLite tables of a log: the lines themselves, and columns derived from them for queries.

Only the table `kept` is data; all others can be rebuilt from it. A candidate is identified by workload, target,
environment, the default it was compared with (`beside`) and what it requires of targets (`needs`). One trial represents
each candidate: the median of its trials of the most trusted kind. The column `since` of that trial is the time of the
candidate's first trial; it is null in all other trials. No trial represents a candidate that gave a wrong output, or
whose lines were all retracted.
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
from tvmtarget.autotune.log.entries import Entry, TrialColumns, packed, read_entry
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
    "LINES",
    "LOCK_TIMEOUT",
    "SCHEMA",
    "Group",
    "Tables",
    "corruption_error",
    "retry_while_locked",
    "translated_errors",
]

_T = TypeVar("_T")
_LOGGER = logging.getLogger(__name__)

LOCK_TIMEOUT = 60.0  # seconds to wait for other writers
BUSY_TIMEOUT = 2.0  # seconds that SQLite waits by itself, before the wait is reported

APPLICATION = 0x74744C67  # "ttLg", in the header of the file
SCHEMA = 5
_LAST_SCHEMA_WITH_WHOLE_LINES = 2  # up to this one, the table of lines stores digests within the texts

# The digest at the end of a record's line is stored once, in binary, which saves 43 bytes a line. A line of an unknown
# type has no digest of ours and is stored whole.
LINES = """
CREATE TABLE kept(id INTEGER PRIMARY KEY, digest BLOB UNIQUE NOT NULL, type TEXT NOT NULL, said TEXT NOT NULL);
CREATE VIEW line AS SELECT id, digest, type, CASE type WHEN '' THEN said ELSE
    substr(said, 1, length(said) - 1) || ',"d":"d1:' || lower(substr(hex(digest), 3)) || '"}' END AS text FROM kept
"""

_INSERT_LINE = (
    "INSERT INTO kept VALUES (?1, ?2, ?3, CASE ?3 WHEN '' THEN ?4 ELSE substr(?4, 1, length(?4) - 43) || '}' END)"
)

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

_TRIAL_INDEXES = """
CREATE INDEX measured ON trial(workload, target, candidate, env);
CREATE INDEX best ON trial(workload, target, trust, score) WHERE since IS NOT NULL
"""

# "choice" is a table of older schemas.
_DERIVED_TABLES = ("name", "trial", "choice", "view", "workload", "body", "pin", "gone", "meta")

_GROUP = ("workload", "target", "candidate", "env")
Group: TypeAlias = tuple[int | bytes, ...]  # values of the columns of _GROUP

# Candidates with several trials, or with a retracted one: any other is represented by its only trial.
_CONTESTED = f"""
SELECT {", ".join(_GROUP)} FROM trial GROUP BY 1, 2, 3, 4 HAVING count(*) > 1 UNION
SELECT {", ".join(_GROUP)} FROM gone JOIN kept USING (digest) JOIN trial ON line = id
"""

_CHUNK = 500  # below SQLite's default limit of 999 parameters in a statement


class Tables:
    """The tables on one connection: creation, upgrades, insertion, deletion, ranking.

    Attributes:
        url: the log, for messages.
    """

    def __init__(self, url: str, connection: sqlite3.Connection) -> None:
        self.url = url
        self._connection = connection
        self._lock = threading.RLock()
        self._name_ids: dict[str, int] = {}

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    # Creation

    def create(self) -> None:
        """Create the tables of an empty database, unless another process was first."""
        with self._transaction():
            if self.is_empty():
                self._run_script(LINES)
                self._create_derived()
                self._connection.execute(f"PRAGMA application_id = {APPLICATION}")

    def is_empty(self) -> bool:
        """Return whether there are no tables.

        Returns:
            True for a new database.
        """
        return not self._query("SELECT 1 FROM sqlite_master LIMIT 1")

    def upgrade(self) -> None:
        """Bring a database of an older schema up to date, in one transaction."""
        with self._transaction():
            if self._pragma("user_version") >= SCHEMA:
                return
            if self._pragma("user_version") > _LAST_SCHEMA_WITH_WHOLE_LINES:
                self.rebuild()
                return
            self._drop_derived()
            self._connection.execute("ALTER TABLE line RENAME TO older")
            self._run_script(LINES)
            self._create_derived()
            for numbered in self._numbered_entries("SELECT id, text FROM older ORDER BY id"):
                self._insert_lines(numbered)
                self._rank(self._insert_columns(numbered))
            self._connection.execute("DROP TABLE older")

    def rebuild(self) -> None:
        """Rebuild all tables but that of the lines, within a transaction."""
        self._drop_derived()
        self._connection.execute("REINDEX")
        self._create_derived()
        for numbered in self._numbered_entries("SELECT id, text FROM line ORDER BY id"):
            self._rank(self._insert_columns(numbered))

    def _drop_derived(self) -> None:
        for table in _DERIVED_TABLES:
            self._connection.execute(f"DROP TABLE IF EXISTS {table}")
        self._name_ids.clear()

    def _numbered_entries(self, sql: str) -> Iterator[list[tuple[int, Entry]]]:
        rows = self._connection.execute(sql)
        while chunk := list(islice(rows, _CHUNK)):
            yield [(line, read_entry(text)) for line, text in chunk]

    def _run_script(self, statements: str) -> None:
        # Not `executescript`, which commits the transaction.
        for statement in filter(str.strip, statements.split(";")):
            self._connection.execute(statement)

    def _create_derived(self) -> None:
        self._run_script(_DERIVED + _TRIAL_INDEXES)
        self._connection.execute("INSERT INTO meta VALUES ('views', ?)", (_key_rules(),))
        self._connection.execute(f"PRAGMA user_version = {SCHEMA}")

    def update_target_keys(self) -> None:
        """Recompute the tuning keys of all targets if another version or other kinds made them."""
        if self._query("SELECT value FROM meta WHERE name = 'views'") == [(_key_rules(),)]:
            return
        with self._transaction():
            self._connection.execute("DELETE FROM view")
            for (text,) in self._query("SELECT text FROM line WHERE type = 'target'"):
                record = parse_record(text)
                if isinstance(record, TargetRecord):
                    self._insert_target_keys(record)
            self._connection.execute("REPLACE INTO meta VALUES ('views', ?)", (_key_rules(),))

    # Insertion and deletion

    def _insert(self, entries: Iterable[Entry]) -> tuple[int, list[Group]]:
        """Insert entries within a transaction; return how many were new, and the candidates to rank again."""
        fresh: dict[bytes, Entry] = {}
        for entry in entries:
            fresh.setdefault(entry.digest, entry)
        # Most batches have no duplicates, so looking for them first would cost a query for nothing.
        self._connection.execute("SAVEPOINT lines")
        try:
            numbered = self._insert_numbered(fresh.values())
        except sqlite3.IntegrityError:
            self._connection.execute("ROLLBACK TO lines")
            for digest in self._existing(list(fresh)):
                del fresh[digest]
            numbered = self._insert_numbered(fresh.values())
        self._connection.execute("RELEASE lines")
        return len(fresh), self._insert_columns(numbered)

    def _insert_numbered(self, entries: Iterable[Entry]) -> list[tuple[int, Entry]]:
        last: int = self._query("SELECT ifnull(max(id), 0) FROM kept")[0][0]
        numbered = list(enumerate(entries, last + 1))
        self._insert_lines(numbered)
        return numbered

    def _insert_lines(self, numbered: Iterable[tuple[int, Entry]]) -> None:
        self._connection.executemany(
            _INSERT_LINE, [(line, entry.digest, entry.type, entry.text) for line, entry in numbered]
        )

    def _existing(self, digests: Sequence[bytes]) -> list[bytes]:
        found: list[bytes] = []
        for at in range(0, len(digests), _CHUNK):
            chunk = digests[at : at + _CHUNK]
            rows = self._query(f"SELECT digest FROM kept WHERE digest IN ({_placeholders(chunk)})", *chunk)
            found += (digest for (digest,) in rows)
        return found

    def _insert_columns(self, numbered: Sequence[tuple[int, Entry]]) -> list[Group]:
        """Fill the derived tables from lines; return the candidates to rank again.

        Most candidates have one trial, so each trial that ran represents its candidate until ranking corrects that.
        """
        trials = [(line, *self._row(entry.trial)) for line, entry in numbered if entry.trial is not None]
        self._connection.executemany(
            "INSERT INTO trial "
            "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, CASE WHEN ?8 IS NOT NULL THEN ?9 END, ?10, ?11)",
            trials,
        )
        changed: list[Group] = [row[1:5] for row in trials]  # type: ignore[misc]
        for line, entry in numbered:
            if entry.record is not None and entry.trial is None:
                changed += self._insert_other(line, entry.record)
        return changed

    def _row(self, trial: TrialColumns) -> tuple[object, ...]:
        """Return the columns of a trial after its line, with names replaced by their ids."""
        workload, target, env, candidate, status, trust, score, ts, default, needs = trial
        known = self._name_ids.get  # a call less for each name: a tenth of the time of a large import
        return (
            known(workload) or self._name_id(workload),
            known(target) or self._name_id(target),
            candidate,
            0 if env is None else known(env) or self._name_id(env),
            status,
            trust,
            score,
            ts,
            0 if default is None else known(default) or self._name_id(default),
            needs,
        )

    def _insert_other(self, line: int, record: Record) -> Iterable[Group]:
        """Fill the derived tables from a record that is no trial; return the candidates to rank again."""
        match record:
            case TargetRecord():
                self._insert_target_keys(record)
            case Workload():
                family = (self._name_id(record.key), record.family, line)
                self._connection.execute("INSERT OR IGNORE INTO workload VALUES (?, ?, ?)", family)
            case Pin():
                pin = (line, self._name_id(record.workload), self._name_id(record.target), record.ts)
                self._connection.execute("INSERT INTO pin VALUES (?, ?, ?, ?)", pin)
            case Retraction():
                self._connection.execute("INSERT OR IGNORE INTO gone VALUES (?)", (packed(record.of),))
                return self._groups_of(record.of)
        if (key := getattr(record, "key", None)) is not None:
            self._connection.execute("INSERT INTO body VALUES (?, ?)", (self._name_id(key), line))
        return ()

    def _insert_target_keys(self, record: TargetRecord) -> None:
        for level in LEVELS:
            try:
                target = Target.from_json(record.body, tags={})
                row = (level, target.tuning_key(level), None if level != "kernel" else family_of(target))
            except TvmTargetError:  # a composite has no kernels, and the kind may be that of a missing plugin
                continue
            self._connection.execute("REPLACE INTO view VALUES (?, ?, ?, ?)", (self._name_id(record.key), *row))

    def _name_id(self, key: str) -> int:
        if (known := self._name_ids.get(key)) is not None:
            return known
        self._connection.execute("INSERT OR IGNORE INTO name(key) VALUES (?)", (key,))
        found: int = self._query("SELECT id FROM name WHERE key = ?", key)[0][0]
        self._name_ids[key] = found
        return found

    def _groups_of(self, digest: str) -> list[Group]:
        """Return the candidate that the trial of a digest tried, if there is such a trial."""
        return self._query(
            f"SELECT {', '.join(_GROUP)} FROM trial WHERE line = (SELECT id FROM kept WHERE digest = ?)", packed(digest)
        )

    def _delete(self, digests: Iterable[str]) -> None:
        """Delete lines and everything derived from them."""
        deleted = list(digests)
        changed = {group for digest in deleted for group in self._groups_of(digest)}
        rows = [(packed(digest),) for digest in deleted]
        for table in ("trial", "pin", "body"):
            self._connection.executemany(
                f"DELETE FROM {table} WHERE line = (SELECT id FROM kept WHERE digest = ?)", rows
            )
        self._connection.executemany("DELETE FROM kept WHERE digest = ?", rows)
        self._rank(changed)

    @contextmanager
    def _bulk_insert(self) -> Iterator[None]:
        """Insert into an empty database within one transaction; indexes are built and candidates ranked at the end.

        This takes half of the time of inserting into tables with indexes.
        """
        with self._transaction():
            for index in ("measured", "best"):
                self._connection.execute(f"DROP INDEX {index}")
            yield
            self._run_script(_TRIAL_INDEXES)
            self._rank(self._query(_CONTESTED))

    # Ranking

    def _rank(self, groups: Collection[Group]) -> None:
        """Choose the trial that represents each of some candidates, from all their trials."""
        for changes in self._rank_changes(groups):
            self._connection.executemany("UPDATE trial SET since = ? WHERE line = ?", changes)

    def _rank_changes(self, groups: Collection[Group]) -> Iterator[list[tuple[int | None, int]]]:
        """Yield, chunk by chunk, the new `since` and the line of the trials whose rank is out of date."""
        left = iter(sorted(set(groups)))
        same = " AND ".join(f"trial.{name} = given.{name}" for name in _GROUP)
        group = ", ".join(f"trial.{name}" for name in _GROUP)
        while chunk := list(islice(left, _CHUNK // 4)):
            given = ", ".join([f"({_placeholders(_GROUP)})"] * len(chunk))
            rows = self._query(
                f"WITH given({', '.join(_GROUP)}) AS (VALUES {given}) "
                f"SELECT {group}, trust, score, ts, digest, line, status, since, beside, needs, "
                "digest IN (SELECT digest FROM gone) "
                f"FROM given CROSS JOIN trial ON {same} JOIN kept ON id = line ORDER BY {group}",
                *(value for group in chunk for value in group),
            )
            yield [
                change
                for _, trials in groupby(rows, itemgetter(0, 1, 2, 3))
                for change in _representative_changes([_RankedTrial(*row[4:]) for row in trials])
            ]

    def _check_writable(self) -> None:
        """Raise a `LogError` if what is written now would be lost or is not allowed."""

    # Queries

    def _pragma(self, name: str) -> int:
        return int(self._query(f"PRAGMA {name}")[0][0])

    def _query(self, sql: str, *values: object) -> list[tuple]:  # type: ignore[type-arg]
        with self._lock, translated_errors(self.url):
            return retry_while_locked(lambda: self._connection.execute(sql, values).fetchall(), self.url)

    def _rows_by_id(self, sql: str, *values: object) -> Iterator[tuple]:  # type: ignore[type-arg]
        """Yield the rows of a query whose first parameter is the last id seen, and which returns some at a time.

        Ids of a damaged database need not rise, so that querying for those beyond the last one would never end.
        """
        last = 0
        while rows := self._query(sql, last, *values):
            for row in rows:
                if row[0] <= last:
                    with translated_errors(self.url):
                        raise corruption_error(f"line {row[0]} follows line {last}")
                last = row[0]
                yield row

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run a block in one transaction."""
        with self._lock, translated_errors(self.url):
            self._check_writable()
            retry_while_locked(lambda: self._connection.execute("BEGIN IMMEDIATE"), self.url)
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._name_ids.clear()  # ids that the rollback takes back
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


@contextmanager
def translated_errors(url: str) -> Iterator[None]:
    """Turn errors of SQLite, and of decoding what a damaged file holds, into `LogError`.

    Args:
        url: the log, for the message.

    Yields:
        Nothing.

    Raises:
        LogError: the block raised one of these errors.
    """
    try:
        yield
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        is_damaged = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT
        help_ = "; `tvmtarget log repair` makes a new one of the lines that are whole" if is_damaged else ""
        raise LogError(f"the log {url!r} cannot be used: {error}{help_}", path=url) from error


def corruption_error(problem: str) -> sqlite3.DatabaseError:
    """Return the error of SQLite for a damaged database, for damage that SQLite does not notice.

    Args:
        problem: what is damaged.

    Returns:
        An error to be raised.
    """
    error = sqlite3.DatabaseError(problem)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def retry_while_locked(action: Callable[[], _T], url: str) -> _T:
    """Repeat an action while another process holds the lock of a log, up to `LOCK_TIMEOUT`.

    SQLite's own wait reports nothing; this one logs a warning after two seconds.

    Args:
        action: raises an `sqlite3.OperationalError` (busy) while the lock is held.
        url: the log, for the warning.

    Returns:
        The result of the action.

    Raises:
        sqlite3.OperationalError: the lock was held for longer than `LOCK_TIMEOUT`, or another error occurred.
    """
    began, pause, is_reported = time.monotonic(), 0.0002, False
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            waited = time.monotonic() - began
            code = getattr(error, "sqlite_errorcode", 0)  # errors that Python's own module raises have none
            if code & 0xFF != sqlite3.SQLITE_BUSY or waited > LOCK_TIMEOUT:
                raise
            if waited > 2 and not is_reported:
                is_reported = True
                _LOGGER.warning("waiting for another process that holds the lock of the log %r", url)
            # Exponential backoff with jitter, so that processes that wait do not try at the same moments.
            time.sleep(random.uniform(pause / 2, pause))
            pause = min(2 * pause, 0.01)


class _RankedTrial(NamedTuple):
    """A trial of one candidate; the order of the first four columns is the order of ranks."""

    trust: int | None
    score: int | None
    ts: int
    digest: bytes
    line: int
    status: str
    since: int | None
    beside: int
    needs: bytes | None
    is_retracted: bool


def _representative_changes(rows: Sequence[_RankedTrial]) -> Iterator[tuple[int | None, int]]:
    """Yield the new `since` and the line of each trial of a group whose `since` is out of date."""
    counted = [row for row in rows if not row.is_retracted]
    since_of: dict[int, int] = {}
    if all(row.status != "wrong_output" for row in counted):
        comparable: dict[tuple[int, bytes | None], list[_RankedTrial]] = {}
        for row in counted:
            if row.score is not None:
                comparable.setdefault((row.beside, row.needs), []).append(row)
        for trials in map(sorted, comparable.values()):
            median = median_low([row for row in trials if row.trust == trials[0].trust])
            since_of[median.line] = min(trial.ts for trial in trials)
    for row in rows:
        since = since_of.get(row.line)
        if row.since != since:
            yield since, row.line


def _placeholders(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))


def _key_rules() -> str:
    """Return what tuning keys depend on besides the targets: the version and the known kinds."""
    return f"{__version__} {' '.join(kind_names())}"
