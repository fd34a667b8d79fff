"""Queries on the tables of a log, and the writing of records into them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tvmtarget.autotune.log.entries import Entry, TrialColumns, entry_of, packed, read_entry, unpacked
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

# Candidates in the order in which a lookup takes them: first the oldest of those that tie with the best, then by rank.
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


_LINES_WITH_COLUMNS = """
SELECT l.id, l.text, w.key, n.key, e.key, t.candidate, t.status, t.trust, t.score, t.ts, b.key, t.needs
    FROM line l LEFT JOIN trial t ON t.line = l.id LEFT JOIN name w ON w.id = t.workload
    LEFT JOIN name n ON n.id = t.target LEFT JOIN name e ON e.id = t.env LEFT JOIN name b ON b.id = t.beside
    WHERE l.id > ? ORDER BY l.id LIMIT 1000
"""


_CHUNK = 500  # below SQLite's default limit of 999 parameters in a statement


class RankedCandidate(NamedTuple):
    """A candidate of one target; the order of the columns is the order of ranks, the best first.

    Attributes:
        trust: how the candidate was measured, 0 (confirmed, with a baseline) to 5 (estimated, without one).
        score: the cost over that of the baseline in billionths, or the cost where there is no baseline.
        ts: when the candidate was first measured, in seconds since 1970.
        digest: the trial that represents the candidate.
        candidate: the first eight bytes of the candidate's key.
        env: the key of the environment.
        default: the identity of the default that it was compared with: empty if unknown, None without one.
    """

    trust: int
    score: int
    ts: int
    digest: str
    candidate: bytes
    env: str | None
    default: str | None


class Index(Tables):
    """The tables of a log with all queries of the `Store` protocol."""

    def extend(self, records: Iterable[Record]) -> int:
        """Add records, all or none.

        Args:
            records: records of any type.

        Returns:
            How many were new.

        Raises:
            LogError: an item is no record or has too long a line, or the log cannot be written.
        """
        entries = [entry_of(_checked(record)) for record in records]
        return self._insert_and_rank(entries)

    def extend_lines(self, texts: Iterable[str]) -> int:
        """Add lines of another log, all or none.

        Args:
            texts: lines without their ends.

        Returns:
            How many were new.

        Raises:
            LogError: a line is damaged or too long, or the log cannot be written.
        """
        try:
            entries = [read_entry(text) for text in texts]
        except LogError as error:
            raise LogError(f"a line to take in was damaged: {error}; `tvmtarget log repair` puts it aside") from error
        return self._insert_and_rank(entries)

    def _insert_and_rank(self, entries: Sequence[Entry]) -> int:
        _reject_long(entries)
        with self._transaction():
            added, changed = self._insert(entries)
            self._rank(changed)
        return added

    def delete(self, digests: Iterable[str]) -> None:
        """Delete lines for good.

        Args:
            digests: the lines; those that are not there are ignored.
        """
        with self._transaction():
            self._delete(digests)

    # Queries

    def best(self, workload: str, target: str, limit: int) -> list[RankedCandidate]:
        """Return the best candidates for a workload on exactly one target.

        Args:
            workload: the key of the workload.
            target: the digest of the target.
            limit: how many candidates to return at most.

        Returns:
            The candidates, the best first.
        """
        rows = self._query(_BEST, workload, target, limit)
        return [RankedCandidate(trust, score, ts, unpacked(digest), *rest) for trust, score, ts, digest, *rest in rows]

    def trials(self, workload: str, target: str) -> list[str]:
        """Return the lines of the valid trials of a workload on exactly one target.

        Args:
            workload: the key of the workload.
            target: the digest of the target.

        Returns:
            The lines in the order in which they were added.
        """
        return [text for (text,) in self._query(_TRIALS, workload, target)]

    def targets_of(self, workload: str) -> list[str]:
        """List the targets on which a workload was measured or pinned.

        Args:
            workload: the key of the workload.

        Returns:
            Digests of targets, sorted.
        """
        of = "WHERE {0}.workload = (SELECT id FROM name WHERE key = ?)"
        return self._keys(
            f"SELECT n.key FROM trial t JOIN name n ON n.id = t.target {of.format('t')} UNION "
            f"SELECT n.key FROM pin p JOIN name n ON n.id = p.target {of.format('p')}",
            workload, workload,
        )  # fmt: skip

    def targets_by_key(self, level: Level, key: str) -> list[str]:
        """List the targets with a tuning key.

        Args:
            level: the level of the key.
            key: the tuning key.

        Returns:
            Digests of targets, sorted.
        """
        return self._keys(
            "SELECT n.key FROM view v JOIN name n ON n.id = v.target WHERE level = ? AND v.key = ?", level, key
        )

    def targets_by_family(self, level: Level, family: str, workload: str) -> list[str]:
        """List the targets of a family on which a candidate for a workload ran.

        Args:
            level: the level of the workload.
            family: the key of the family, as `distance.family_of` returns it.
            workload: the key of the workload.

        Returns:
            Digests of targets, sorted.
        """
        return self._keys(
            "SELECT n.key FROM view v JOIN name n ON n.id = v.target WHERE level = ? AND family = ? AND EXISTS "
            "(SELECT 1 FROM trial WHERE workload = (SELECT id FROM name WHERE key = ?) AND target = v.target "
            "AND since IS NOT NULL)",
            level, family, workload,
        )  # fmt: skip

    def workloads_by_family(self, family: str) -> list[str]:
        """List the workloads of a family, which differ in their sizes only.

        Args:
            family: the key of the family.

        Returns:
            Keys of workloads, sorted.
        """
        return self._keys("SELECT n.key FROM workload w JOIN name n ON n.id = w.name WHERE family = ?", family)

    def pins(self, workload: str) -> list[Pin]:
        """Return the pins of a workload that were not retracted.

        Args:
            workload: the key of the workload.

        Returns:
            The pins, the latest first.
        """
        rows = self._query(
            "SELECT l.text FROM pin p JOIN line l ON l.id = p.line "
            "WHERE p.workload = (SELECT id FROM name WHERE key = ?) "
            "AND l.digest NOT IN (SELECT digest FROM gone) ORDER BY p.ts DESC, l.digest",
            workload,
        )
        return [record for (text,) in rows if isinstance(record := parse_record(text), Pin)]

    def body_of(self, key: str) -> Record | None:
        """Return the target, workload or environment of a key.

        Args:
            key: the digest of a target, or the key of a workload or environment.

        Returns:
            The record, of several the one whose line sorts first; None if there is none.
        """
        rows = self._query(
            "SELECT min(l.text) FROM name n JOIN body b ON b.name = n.id JOIN line l ON l.id = b.line WHERE n.key = ?",
            key,
        )
        return parse_record(rows[0][0]) if rows and rows[0][0] else None

    def get(self, digest: str) -> Record | None:
        """Return the record of a digest.

        Args:
            digest: the digest of a line.

        Returns:
            The record; None if there is none.

        Raises:
            LogError: the line was damaged.
        """
        rows = self._query("SELECT text FROM line WHERE digest = ?", packed(digest))
        return parse_record(rows[0][0], known=digest) if rows else None

    def digests_with_prefix(self, prefix: str) -> list[str]:
        """List the digests that begin with a prefix.

        Args:
            prefix: the first characters of a digest.

        Returns:
            Three digests at most, sorted: enough to see whether the prefix is ambiguous.
        """
        first, last = (packed(prefix.ljust(35, digit)) for digit in "0f")
        between = "SELECT digest FROM line WHERE digest BETWEEN ? AND ? ORDER BY digest LIMIT 3"
        return self._digests(between, first, last)

    def texts(self, type_: str = "") -> Iterator[str]:
        """Yield all lines, or those of a type.

        Args:
            type_: a type of records; empty for all.

        Yields:
            Lines in the order in which they were added; those that are added meanwhile may be among them.
        """
        where = "AND type = ?" if type_ else ""
        rows = self._rows_by_id(
            f"SELECT id, text FROM line WHERE id > ? {where} ORDER BY id LIMIT 1000", *[type_] * bool(type_)
        )
        yield from (text for _, text in rows)

    def sorted_texts(self) -> Iterator[str]:
        """Yield all lines sorted by type and text, so that equal logs give equal bytes.

        Yields:
            Lines, without those that are deleted meanwhile.
        """
        digests = [digest for (digest,) in self._query("SELECT digest FROM line ORDER BY type, text")]
        for at in range(0, len(digests), _CHUNK):
            chunk = digests[at : at + _CHUNK]
            placeholders = ",".join("?" * len(chunk))
            texts = dict(self._query(f"SELECT digest, text FROM line WHERE digest IN ({placeholders})", *chunk))
            yield from (texts[digest] for digest in chunk if digest in texts)

    def counts(self) -> dict[str, dict[str, int]]:
        """Count lines by type, trials by status, and the distinct names that trials refer to.

        Returns:
            Tables `lines`, `trials` and `names`.
        """
        return {
            "lines": dict(self._query("SELECT type, count(*) FROM line GROUP BY type ORDER BY type")),
            "trials": dict(self._query("SELECT status, count(*) FROM trial GROUP BY status ORDER BY status")),
            "names": dict(
                self._query(
                    "SELECT 'workloads', count(DISTINCT workload) FROM trial UNION "
                    "SELECT 'targets', count(DISTINCT target) FROM trial UNION "
                    "SELECT 'candidates', count(DISTINCT candidate) FROM trial UNION "
                    "SELECT 'retracted', count(*) FROM gone"
                )
            ),
        }

    def digests(self) -> list[str]:
        """List the digests of all lines.

        Returns:
            Digests, sorted.
        """
        return self._digests("SELECT digest FROM line")

    def pairs(self) -> list[tuple[str, str]]:
        """List the workloads and targets for which a candidate ran.

        Returns:
            Pairs of the key of a workload and the digest of a target, sorted.
        """
        return sorted(
            self._query(
                "SELECT DISTINCT w.key, t.key FROM trial c "
                "JOIN name w ON w.id = c.workload JOIN name t ON t.id = c.target WHERE c.since IS NOT NULL"
            )
        )

    def beyond_best(self, count: int) -> list[str]:
        """List the trials of all but the best candidates for each workload and target.

        Args:
            count: how many candidates are the best.

        Returns:
            Digests of trials, sorted.
        """
        return self._digests(_BEYOND, count, TIE)

    def unresolved_keys(self) -> list[str]:
        """List the keys that trials and pins refer to and that no line defines.

        Returns:
            Keys of workloads and environments and digests of targets, sorted.
        """
        return self._keys(
            "SELECT key FROM name WHERE id NOT IN (SELECT name FROM body) AND (id IN (SELECT workload FROM trial) "
            "OR id IN (SELECT target FROM trial) OR id IN (SELECT env FROM trial) OR id IN (SELECT target FROM pin))"
        )

    def check(self) -> list[str]:
        """Compare lines with their digests, and derived columns with the lines.

        Returns:
            A problem each, empty if the tables are intact.
        """
        problems = self.corruptions()
        if problems:  # the content of such a database proves nothing
            return problems
        no_columns = (None,) * len(TrialColumns._fields)
        for line, text, *stored in self._rows_by_id(_LINES_WITH_COLUMNS):
            try:
                columns = read_entry(text).trial or no_columns
            except LogError as error:
                problems.append(f"record {line}: {error}")
            else:
                if (*columns,) != (*stored,):
                    problems.append(f"record {line} is not ranked by what it says; repair the log")
        groups = self._query("SELECT DISTINCT workload, target, candidate, env FROM trial")
        if not problems and any(self._rank_changes(groups)):
            problems.append("candidates are not ranked by all their trials; repair the log")
        return problems

    def corruptions(self) -> list[str]:
        """Run SQLite's own integrity check.

        Returns:
            A problem each, empty if SQLite finds none.
        """
        return [text for (text,) in self._query("PRAGMA integrity_check") if text != "ok"]

    def size(self) -> int:
        """Count the lines.

        Returns:
            The number of lines.
        """
        return int(self._query("SELECT count(*) FROM line")[0][0])

    def problems(self) -> Sequence[Line]:
        """Return the lines that cannot be read: none, as only valid lines are inserted.

        Returns:
            An empty sequence.
        """
        return ()

    def _keys(self, sql: str, *values: object) -> list[str]:
        return sorted(key for (key,) in self._query(sql, *values))

    def _digests(self, sql: str, *values: object) -> list[str]:
        return sorted(unpacked(digest) for (digest,) in self._query(sql, *values))


def _checked(record: Record) -> Record:
    if not isinstance(record, Record):
        raise LogError(f"a log holds records, not {shown(record)}")
    return record


def _reject_long(entries: Iterable[Entry]) -> None:
    """Reject lines that a file of lines could not be read back from."""
    long = [one for one in entries if len(one.text) > MAX_LINE // 4 and len(one.text.encode()) > MAX_LINE]
    raise_all(LogError, [f"{unpacked(one.digest)} has more than {MAX_LINE} bytes, the most of a line" for one in long])
