"""What is asked of the tables of a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tvmtarget.autotune.log.entries import Entry, Measured, entry_of, packed, read_entry, spelled
from tvmtarget.autotune.log.lines import MAX_LINE, Line, parse_record
from tvmtarget.autotune.log.records import TIE, Level, Pin, Record
from tvmtarget.autotune.log.tables import Tables
from tvmtarget.errors import LogError, raise_all
from tvmtarget.target.problems import shown

__all__ = ["Index", "RankedCandidate"]

_BEST = """
SELECT t.trust, t.score, t.since, l.digest, t.candidate, e.key, b.key FROM trial t
    JOIN kept l ON l.id = t.line LEFT JOIN name e ON e.id = t.env LEFT JOIN name b ON b.id = t.beside
    WHERE t.workload = (SELECT id FROM name WHERE key = ?) AND t.target = (SELECT id FROM name WHERE key = ?)
    AND t.since IS NOT NULL ORDER BY t.trust, t.score, l.digest LIMIT ?
"""

_TRIALS = """
SELECT l.text FROM trial t JOIN line l ON l.id = t.line
    WHERE t.workload = (SELECT id FROM name WHERE key = ?) AND t.target = (SELECT id FROM name WHERE key = ?)
    AND l.digest NOT IN (SELECT digest FROM gone) ORDER BY l.id
"""

# The candidate that a lookup takes, the oldest of those as good as the best, is the first; then by rank.
_BEYOND = """
WITH first AS (
    SELECT c.workload, c.target, c.beside, c.candidate, c.trust, c.score, c.since, r.digest, row_number() OVER (
        PARTITION BY c.workload, c.target, c.beside, c.candidate ORDER BY c.trust, c.score, r.digest) AS turn
    FROM trial c JOIN kept r ON r.id = c.line WHERE c.since IS NOT NULL
), dated AS (
    SELECT *, row_number() OVER (
        PARTITION BY workload, target, beside, is_worse ORDER BY since, score, digest) AS age
    FROM (SELECT *, score * 100 > (100 + ?2) * first_value(score) OVER best
        OR trust > first_value(trust) OVER best AS is_worse FROM first WHERE turn = 1
        WINDOW best AS (PARTITION BY workload, target, beside ORDER BY trust, score, digest))
), placed AS (
    SELECT workload, target, candidate, row_number() OVER (
        PARTITION BY workload, target, beside ORDER BY is_worse OR age > 1, trust, score, digest) AS place FROM dated
)
SELECT l.digest FROM trial t JOIN kept l ON l.id = t.line WHERE NOT EXISTS (
    SELECT 1 FROM placed k
    WHERE k.place <= ?1 AND k.workload = t.workload AND k.target = t.target AND k.candidate = t.candidate
)
"""


_READ_AGAIN = """
SELECT l.id, l.text, w.key, n.key, e.key, t.candidate, t.status, t.trust, t.score, t.ts, b.key, t.needs
    FROM line l LEFT JOIN trial t ON t.line = l.id LEFT JOIN name w ON w.id = t.workload
    LEFT JOIN name n ON n.id = t.target LEFT JOIN name e ON e.id = t.env LEFT JOIN name b ON b.id = t.beside
    WHERE l.id > ? ORDER BY l.id LIMIT 1000
"""


_AT_ONCE = 500  # lines, by digest


def _checked(record: Record) -> Record:
    if not isinstance(record, Record):
        raise LogError(f"a log holds records, not {shown(record)}")
    return record


def _refuse_long(entries: Iterable[Entry]) -> None:
    """Refuse lines that could not be read again from a file."""
    texts = ((entry, str(entry.kept[0])) for entry in entries)
    long = [entry for entry, text in texts if len(text) > MAX_LINE // 4 and len(text.encode()) > MAX_LINE]
    raise_all(LogError, [f"{spelled(one.digest)} has more than {MAX_LINE} bytes, the most of a line" for one in long])


class RankedCandidate(NamedTuple):
    """A candidate of one target as a log ranks it, the least first; `digest` names the trial that stands for it.

    `default` is the identity of the default that it was compared with, empty if not told; None if with none.
    """

    trust: int
    score: int
    ts: int
    digest: str
    candidate: bytes
    env: str | None
    default: str | None


class Index(Tables):
    """The tables on one connection; `extend` adds records, `drop` forgets them, the rest asks."""

    def extend(self, records: Iterable[Record]) -> int:
        """Add records, all or none; return how many were new."""
        entries = [entry_of(record, (record.text,)) for record in map(_checked, records)]
        _refuse_long(entries)
        return self._extend(entries)

    def take(self, texts: Iterable[str]) -> int:
        """Add lines of another log, all or none; return how many were new."""
        try:
            entries = [read_entry(text) for text in texts]
        except LogError as error:
            raise LogError(f"a line to take in was damaged: {error}; `tvmtarget log repair` puts it aside") from error
        _refuse_long(entries)
        return self._extend(entries)

    def _extend(self, entries: Iterable[Entry]) -> int:
        with self._transaction():
            added, touched = self._add(entries)
            self._settle(touched)
        return added

    def drop(self, digests: Iterable[str]) -> None:
        """Forget lines for good."""
        with self._transaction():
            self._forget(digests)

    # Asking

    def refresh(self) -> None:
        """Take in what others have added, where that is not here already."""

    def rank(self, workload: str | None = None) -> None:
        """Rank what was read and not ranked yet, of a workload or of all; here, that is done with each writing."""

    def best(self, workload: str, target: str, limit: int) -> list[RankedCandidate]:
        """Return the best candidates for a workload on exactly one target, by its digest."""
        self.rank(workload)
        rows = self._ask(_BEST, workload, target, limit)
        return [RankedCandidate(trust, score, ts, spelled(digest), *rest) for trust, score, ts, digest, *rest in rows]

    def trials(self, workload: str, target: str) -> list[str]:
        """Return the lines of all trials of a workload on exactly one target that were not retracted, as added."""
        rows = self._ask(_TRIALS, workload, target)
        return [text for (text,) in rows]

    def targets_of(self, workload: str) -> list[str]:
        """List the targets on which a workload was measured or pinned, by their digests, sorted."""
        of = "WHERE {0}.workload = (SELECT id FROM name WHERE key = ?)"
        return self._keys(
            f"SELECT n.key FROM trial t JOIN name n ON n.id = t.target {of.format('t')} UNION "
            f"SELECT n.key FROM pin p JOIN name n ON n.id = p.target {of.format('p')}",
            workload, workload,
        )  # fmt: skip

    def targets_by_key(self, level: Level, key: str) -> list[str]:
        """List the targets with a tuning key, by their digests, sorted."""
        return self._keys(
            "SELECT n.key FROM view v JOIN name n ON n.id = v.target WHERE level = ? AND v.key = ?", level, key
        )

    def targets_by_family(self, level: Level, family: str, workload: str) -> list[str]:
        """List the targets of a family for which something of a workload can be chosen, sorted."""
        self.rank(workload)
        return self._keys(
            "SELECT n.key FROM view v JOIN name n ON n.id = v.target WHERE level = ? AND family = ? AND EXISTS "
            "(SELECT 1 FROM trial WHERE workload = (SELECT id FROM name WHERE key = ?) AND target = v.target "
            "AND since IS NOT NULL)",
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
        """Return a line by its digest; a `LogError` says that it was damaged."""
        rows = self._ask("SELECT text FROM line WHERE digest = ?", packed(digest))
        return parse_record(rows[0][0], known=digest) if rows else None

    def find(self, digest: str) -> list[str]:
        """List the digests that begin so, at most three."""
        first, last = (packed(digest.ljust(35, digit)) for digit in "0f")
        between = "SELECT digest FROM line WHERE digest BETWEEN ? AND ? ORDER BY digest LIMIT 3"
        return self._digests(between, first, last)

    def texts(self, type_: str = "") -> Iterator[str]:
        """Yield all lines, or those of a type, as they were added; what is added meanwhile may be among them."""
        self.refresh()
        where = "AND type = ?" if type_ else ""
        rows = self._in_order(
            f"SELECT id, text FROM line WHERE id > ? {where} ORDER BY id LIMIT 1000", *[type_] * bool(type_)
        )
        yield from (text for _, text in rows)

    def sorted_texts(self) -> Iterator[str]:
        """Yield all lines by type and text, so that equal logs give equal bytes; not what is dropped meanwhile."""
        digests = [digest for (digest,) in self._ask("SELECT digest FROM line ORDER BY type, text")]
        for at in range(0, len(digests), _AT_ONCE):
            some = digests[at : at + _AT_ONCE]
            marks = ",".join("?" * len(some))
            texts = dict(self._ask(f"SELECT digest, text FROM line WHERE digest IN ({marks})", *some))
            yield from (texts[digest] for digest in some if digest in texts)

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
        return self._digests("SELECT digest FROM line")

    def pairs(self) -> list[tuple[str, str]]:
        """List the workloads and targets, by key, for which something can be chosen, sorted."""
        self.rank()
        return sorted(
            self._ask(
                "SELECT DISTINCT w.key, t.key FROM trial c "
                "JOIN name w ON w.id = c.workload JOIN name t ON t.id = c.target WHERE c.since IS NOT NULL"
            )
        )

    def beyond(self, best: int) -> list[str]:
        """List the trials, by digest, that are not of the best candidates for their workload and target, sorted."""
        self.rank()
        return self._digests(_BEYOND, best, TIE)

    def dangling(self) -> list[str]:
        """List the keys that trials and pins refer to and no line explains, sorted."""
        return self._keys(
            "SELECT key FROM name WHERE id NOT IN (SELECT name FROM body) AND (id IN (SELECT workload FROM trial) "
            "OR id IN (SELECT target FROM trial) OR id IN (SELECT env FROM trial) OR id IN (SELECT target FROM pin))"
        )

    def check(self) -> list[str]:
        """Return what is wrong with the tables: what SQLite finds, lines that were changed, what else lines say."""
        self.rank()
        wrong = self.damages()
        if wrong:  # what else such a database says is not to be relied on
            return wrong
        left_out = (None,) * len(Measured._fields)
        for number, text, *known in self._in_order(_READ_AGAIN):
            try:
                said = read_entry(text).measured or left_out
            except LogError as error:
                wrong.append(f"record {number}: {error}")
            else:
                if (*said,) != (*known,):
                    wrong.append(f"record {number} is not ranked by what it says; repair the log")
        groups = self._ask("SELECT DISTINCT workload, target, candidate, env FROM trial")
        if not wrong and any(self._to_settle(groups)):
            wrong.append("candidates are not ranked by all their trials; repair the log")
        return wrong

    def damages(self) -> list[str]:
        """Return what SQLite finds wrong with the database, a line each."""
        return [text for (text,) in self._ask("PRAGMA integrity_check") if text != "ok"]

    def mend(self) -> int:
        """Put lines that cannot be read aside, and make all else anew; return how many those were."""
        return 0

    def size(self) -> int:
        """Return how many lines there are."""
        return int(self._ask("SELECT count(*) FROM line")[0][0])

    def problems(self) -> Sequence[Line]:
        """Return the lines that cannot be read: none, as none was let in."""
        return ()

    def _keys(self, sql: str, *values: object) -> list[str]:
        return sorted(key for (key,) in self._ask(sql, *values))

    def _digests(self, sql: str, *values: object) -> list[str]:
        return sorted(spelled(digest) for (digest,) in self._ask(sql, *values))

    def _ask(self, sql: str, *values: object) -> list[tuple]:  # type: ignore[type-arg]
        self.refresh()
        return self._all(sql, *values)
