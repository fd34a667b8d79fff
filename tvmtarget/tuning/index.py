"""The tables of a log: every line as it is, and beside it what is asked often. All but `line` can be made anew.

`choice` has a row for each candidate that ran, by workload, target and environment: the median of its trials of the
most trusted kind. A candidate that gave a wrong output there, or whose lines were retracted, has none.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median_low
from typing import TypeAlias

from tvmtarget.errors import LogError, TvmTargetError
from tvmtarget.target.keys import LEVELS
from tvmtarget.target.kinds import kind_names
from tvmtarget.target.tree import Target
from tvmtarget.tuning.distance import family_of
from tvmtarget.tuning.lines import Line, parse_record
from tvmtarget.tuning.records import Level, Pin, Record, Retraction, TargetRecord, Trial, Workload
from tvmtarget.version import __version__

__all__ = ["APPLICATION", "SCHEMA", "Choice", "Index", "explained"]

APPLICATION = 0x74744C67  # "ttLg", in the header of the file
SCHEMA = 1

_TABLES = """
CREATE TABLE name(id INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL);
CREATE TABLE line(id INTEGER PRIMARY KEY, digest TEXT UNIQUE NOT NULL, type TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE trial(line INTEGER PRIMARY KEY, workload INTEGER, target INTEGER, env INTEGER, candidate BLOB, status TEXT,
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

_BEST = """
SELECT c.trust, c.score, c.ts, l.digest, c.candidate, e.key FROM choice c
    JOIN line l ON l.id = c.line LEFT JOIN name e ON e.id = c.env
    WHERE c.workload = (SELECT id FROM name WHERE key = ?) AND c.target = (SELECT id FROM name WHERE key = ?)
    ORDER BY c.trust, c.score, l.digest LIMIT ?
"""

_Group: TypeAlias = tuple[int, int, bytes, int]  # workload, target, candidate and environment

_GROUP = "SELECT workload, target, candidate, env FROM trial WHERE line = (SELECT id FROM line WHERE digest = ?)"

_BEYOND = """
SELECT l.digest FROM trial t JOIN line l ON l.id = t.line WHERE NOT EXISTS (
    SELECT 1 FROM (
        SELECT c.workload, c.target, c.candidate,
            row_number() OVER (PARTITION BY c.workload, c.target ORDER BY c.trust, c.score, r.digest) AS place
        FROM choice c JOIN line r ON r.id = c.line
    ) k WHERE k.place <= ? AND k.workload = t.workload AND k.target = t.target AND k.candidate = t.candidate
)
"""


@dataclass(frozen=True, slots=True, order=True)
class Choice:
    """A candidate of one target as a log ranks it, the least first; `digest` names its best trial."""

    trust: int
    score: int
    ts: int
    digest: str
    candidate: bytes
    env: str | None


class Index:
    """The tables on one connection; `extend` adds records, the rest asks."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock = threading.RLock()
        self._names: dict[str, int] = {}

    def create(self) -> None:
        """Make the tables of an empty database, unless another process was first."""
        with self._transaction():
            if not self.is_empty():
                return
            for statement in filter(str.strip, _TABLES.split(";")):
                self._connection.execute(statement)
            self._connection.execute("INSERT INTO meta VALUES ('views', ?)", (_rules(),))
            self._connection.execute(f"PRAGMA user_version = {SCHEMA}")
            self._connection.execute(f"PRAGMA application_id = {APPLICATION}")

    def is_empty(self) -> bool:
        """Whether there are no tables."""
        return not self._all("SELECT 1 FROM sqlite_master LIMIT 1")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def extend(self, records: Iterable[Record]) -> int:
        """Add records in one transaction; return how many were new."""
        with self._transaction():
            touched: set[_Group] = set()
            added = sum(self._insert(record, touched) for record in records)
            for group in sorted(touched):
                self._choose(group)
        return added

    # Asking

    def refresh(self) -> None:
        """Take in what others have added, where that is not here already."""

    def best(self, workload: str, target: str, limit: int) -> list[Choice]:
        """Return the best candidates for a workload on exactly one target, by its digest."""
        return [Choice(*row) for row in self._ask(_BEST, workload, target, limit)]

    def targets_by_key(self, level: Level, key: str) -> list[str]:
        """List the targets with a tuning key, by their digests, sorted."""
        return self._keys(
            "SELECT n.key FROM view v JOIN name n ON n.id = v.target WHERE level = ? AND v.key = ?", level, key
        )

    def targets_by_family(self, level: Level, family: str, workload: str) -> list[str]:
        """List the targets of a family for which something of a workload can be chosen, sorted."""
        return self._keys(
            "SELECT n.key FROM view v JOIN name n ON n.id = v.target WHERE level = ? AND family = ? AND EXISTS "
            "(SELECT 1 FROM choice WHERE workload = (SELECT id FROM name WHERE key = ?) AND target = v.target)",
            level, family, workload,
        )  # fmt: skip

    def workloads_by_family(self, family: str) -> list[str]:
        """List the workloads of a family by their keys, sorted."""
        return self._keys("SELECT n.key FROM workload w JOIN name n ON n.id = w.name WHERE family = ?", family)

    def pins(self, workload: str) -> list[Pin]:
        """Return the pins of a workload that were not retracted, the latest first."""
        rows = self._ask(
            "SELECT l.text FROM pin p JOIN line l ON l.id = p.line "
            "WHERE p.workload = (SELECT id FROM name WHERE key = ?) "
            "AND l.digest NOT IN (SELECT digest FROM gone) ORDER BY p.ts DESC, l.digest",
            workload,
        )
        return [record for (text,) in rows if isinstance(record := parse_record(text), Pin)]

    def body_of(self, key: str) -> Record | None:
        """Return the target, workload or environment of a key; of several lines, the one that sorts first."""
        rows = self._ask(
            "SELECT min(l.text) FROM name n JOIN body b ON b.name = n.id JOIN line l ON l.id = b.line WHERE n.key = ?",
            key,
        )
        return parse_record(rows[0][0]) if rows and rows[0][0] else None

    def get(self, digest: str) -> Record | None:
        """Return a line by its digest."""
        rows = self._ask("SELECT text FROM line WHERE digest = ?", digest)
        return parse_record(rows[0][0]) if rows else None

    def find(self, digest: str) -> list[str]:
        """List the digests that begin so, at most three."""
        return self._keys("SELECT digest FROM line WHERE digest GLOB ? LIMIT 3", f"{digest}*")

    def texts(self, type_: str = "") -> Iterator[str]:
        """Yield all lines, or those of a type, as they were added; what is added meanwhile may be among them."""
        last = 0
        where = "AND type = ?" if type_ else ""
        while rows := self._ask(
            f"SELECT id, text FROM line WHERE id > ? {where} ORDER BY id LIMIT 1000", last, *[type_] * bool(type_)
        ):
            yield from (text for _, text in rows)
            last = rows[-1][0]

    def sorted_texts(self) -> Iterator[str]:
        """Yield all lines by type and text, so that equal logs give equal bytes."""
        self.refresh()
        with explained():
            for (text,) in self._connection.execute("SELECT text FROM line ORDER BY type, text"):
                yield text

    def tally(self) -> dict[str, dict[str, int]]:
        """Count lines by type, trials by status, and by level the workloads that have trials."""
        return {
            "lines": dict(self._ask("SELECT type, count(*) FROM line GROUP BY type ORDER BY type")),
            "trials": dict(self._ask("SELECT status, count(*) FROM trial GROUP BY status ORDER BY status")),
            "names": dict(
                self._ask(
                    "SELECT 'workloads', count(DISTINCT workload) FROM trial UNION "
                    "SELECT 'targets', count(DISTINCT target) FROM trial UNION "
                    "SELECT 'candidates', count(DISTINCT candidate) FROM trial UNION "
                    "SELECT 'retracted', count(*) FROM gone"
                )
            ),
        }

    def digests(self) -> list[str]:
        """List the digests of all lines, sorted."""
        return self._keys("SELECT digest FROM line")

    def pairs(self) -> list[tuple[str, str]]:
        """List the workloads and targets, by key, for which something can be chosen, sorted."""
        return sorted(
            self._ask(
                "SELECT DISTINCT w.key, t.key FROM choice c "
                "JOIN name w ON w.id = c.workload JOIN name t ON t.id = c.target"
            )
        )

    def beyond(self, best: int) -> list[str]:
        """List the trials, by digest, that are not of the best candidates for their workload and target, sorted."""
        return self._keys(_BEYOND, best)

    def dangling(self) -> list[str]:
        """List the keys that trials and pins refer to and no line explains, sorted."""
        return self._keys(
            "SELECT key FROM name WHERE id NOT IN (SELECT name FROM body) AND (id IN (SELECT workload FROM trial) "
            "OR id IN (SELECT target FROM trial) OR id IN (SELECT env FROM trial) OR id IN (SELECT target FROM pin))"
        )

    def check(self) -> list[str]:
        """Return what is wrong with the tables themselves."""
        return [text for (text,) in self._ask("PRAGMA integrity_check") if text != "ok"]

    def size(self) -> int:
        """Return how many lines there are."""
        return int(self._ask("SELECT count(*) FROM line")[0][0])

    def problems(self) -> Sequence[Line]:
        """Return the lines that cannot be read: none, as none was let in."""
        return ()

    def drop(self, digests: Iterable[str]) -> None:
        """Forget lines for good."""
        with self._transaction():
            rows = [(digest,) for digest in digests]
            touched = {group for (digest,) in rows for group in self._all(_GROUP, digest)}
            for table in ("trial", "pin", "body"):
                self._connection.executemany(
                    f"DELETE FROM {table} WHERE line = (SELECT id FROM line WHERE digest = ?)", rows
                )
            self._connection.executemany("DELETE FROM line WHERE digest = ?", rows)
            for group in sorted(touched):
                self._choose(group)

    def rekey(self) -> None:
        """Compute the keys of all targets anew if other rules made them, or if other kinds are known now."""
        if self._all("SELECT value FROM meta WHERE name = 'views'") == [(_rules(),)]:
            return
        with self._transaction():
            self._connection.execute("DELETE FROM view")
            for text in self.texts("target"):
                record = parse_record(text)
                if isinstance(record, TargetRecord):
                    self._add_views(record)
            self._connection.execute("REPLACE INTO meta VALUES ('views', ?)", (_rules(),))

    # Adding

    def _insert(self, record: Record, touched: set[_Group]) -> int:
        done = self._connection.execute(
            "INSERT OR IGNORE INTO line(digest, type, text) VALUES (?, ?, ?)", (record.digest, record.type, record.text)
        )
        if not done.rowcount:
            return 0
        line = done.lastrowid or 0
        match record:
            case Trial():
                self._add_trial(record, line, touched)
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
                touched.update(self._all(_GROUP, record.of))
        if (key := getattr(record, "key", None)) is not None:
            self._connection.execute("INSERT INTO body VALUES (?, ?)", (self._name(key), line))
        return 1

    def _add_trial(self, trial: Trial, line: int, touched: set[_Group]) -> None:
        group = (
            self._name(trial.workload),
            self._name(trial.target),
            bytes.fromhex(trial.candidate.key.partition(":")[2]),
            self._name(trial.env) if trial.env is not None else 0,
        )
        workload, target, candidate, env = group
        trust, score = trial.measured.rank or (None, None)
        self._connection.execute(
            "INSERT INTO trial VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (line, workload, target, env, candidate, trial.measured.status, trust, score, trial.ts or 0),
        )
        touched.add(group)

    def _choose(self, group: _Group) -> None:
        """Rank a candidate anew from all its trials."""
        rows = self._all(
            "SELECT t.status, t.trust, t.score, t.ts, l.digest, l.id FROM trial t JOIN line l ON l.id = t.line "
            "WHERE t.workload = ? AND t.target = ? AND t.candidate = ? AND t.env = ? "
            "AND l.digest NOT IN (SELECT digest FROM gone)",
            *group,
        )
        ran = sorted(row[1:] for row in rows if row[1] is not None)
        if not ran or any(row[0] == "wrong_output" for row in rows):
            self._connection.execute(
                "DELETE FROM choice WHERE workload = ? AND target = ? AND candidate = ? AND env = ?", group
            )
            return
        trust, line = ran[0][0], ran[0][4]
        score = median_low([row[1] for row in ran if row[0] == trust])
        since = min(row[2] for row in ran)
        self._connection.execute(
            "REPLACE INTO choice VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*group, trust, score, since, line)
        )

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

    def _keys(self, sql: str, *values: object) -> list[str]:
        return sorted(key for (key,) in self._ask(sql, *values))

    def _ask(self, sql: str, *values: object) -> list[tuple]:  # type: ignore[type-arg]
        self.refresh()
        return self._all(sql, *values)

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


def _rules() -> str:
    """Return what the keys of targets depend on beside the targets."""
    return f"{__version__} {' '.join(kind_names())}"
