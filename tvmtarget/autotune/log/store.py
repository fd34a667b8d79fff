"""The protocol of what keeps the lines of a log, and the opening of a store by its URL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from tvmtarget import plugins
from tvmtarget.autotune.log.index import RankedCandidate
from tvmtarget.autotune.log.jsonl_store import STDIN, JsonLinesStore
from tvmtarget.autotune.log.lines import Line
from tvmtarget.autotune.log.records import Level, Pin, Record
from tvmtarget.autotune.log.sqlite_store import SqliteStore
from tvmtarget.errors import LogError, did_you_mean
from tvmtarget.target.problems import shown

__all__ = ["DATABASES", "Store", "is_line_file", "open_store", "path_of"]

DATABASES = (".db", ".sqlite", ".sqlite3")


class Store(Protocol):
    """A store of lines, with the queries that a lookup needs.

    A plugin of group `tvmtarget.logs` is called with a URL of its scheme and returns a store. Workloads and
    environments are named by their keys, targets and lines by their digests.

    Attributes:
        url: the URL, for messages.
    """

    url: str

    def extend(self, records: Iterable[Record]) -> int:
        """Add records, all or none; they are safe once this returns.

        Args:
            records: records of any type.

        Returns:
            How many were new.

        Raises:
            LogError: an item is no record or has too long a line, or the log cannot be written.
        """

    def extend_lines(self, texts: Iterable[str]) -> int:
        """Add lines of another log, all or none; they are safe once this returns.

        Args:
            texts: lines without their ends.

        Returns:
            How many were new.

        Raises:
            LogError: a line is damaged or too long, or the log cannot be written.
        """

    def texts(self, type_: str = "") -> Iterator[str]:
        """Yield all lines, or those of a type.

        Args:
            type_: a type of records; empty for all.

        Yields:
            Lines in the order in which they were added; those that are added meanwhile may be among them.
        """

    def problems(self) -> Sequence[Line]:
        """Return the lines that cannot be read.

        Returns:
            The lines with what is wrong, in their order.
        """

    def best(self, workload: str, target: str, limit: int) -> list[RankedCandidate]:
        """Return the best candidates for a workload on exactly one target.

        Args:
            workload: the key of the workload.
            target: the digest of the target.
            limit: how many candidates to return at most.

        Returns:
            The candidates, the best first.
        """

    def trials(self, workload: str, target: str) -> list[str]:
        """Return the lines of the valid trials of a workload on exactly one target.

        Args:
            workload: the key of the workload.
            target: the digest of the target.

        Returns:
            The lines in the order in which they were added.
        """

    def targets_of(self, workload: str) -> list[str]:
        """List the targets on which a workload was measured or pinned.

        Args:
            workload: the key of the workload.

        Returns:
            Digests of targets, sorted.
        """

    def targets_by_key(self, level: Level, key: str) -> list[str]:
        """List the targets with a tuning key.

        Args:
            level: the level of the key.
            key: the tuning key.

        Returns:
            Digests of targets, sorted.
        """

    def targets_by_family(self, level: Level, family: str, workload: str) -> list[str]:
        """List the targets of a family on which a candidate for a workload ran.

        Args:
            level: the level of the workload.
            family: the key of the family, as `distance.family_of` returns it.
            workload: the key of the workload.

        Returns:
            Digests of targets, sorted.
        """

    def workloads_by_family(self, family: str) -> list[str]:
        """List the workloads of a family, which differ in their sizes only.

        Args:
            family: the key of the family.

        Returns:
            Keys of workloads, sorted.
        """

    def pins(self, workload: str) -> list[Pin]:
        """Return the pins of a workload that were not retracted.

        Args:
            workload: the key of the workload.

        Returns:
            The pins, the latest first.
        """

    def body_of(self, key: str) -> Record | None:
        """Return the target, workload or environment of a key.

        Args:
            key: the digest of a target, or the key of a workload or environment.

        Returns:
            The record, of several the one whose line sorts first; None if there is none.
        """

    def get(self, digest: str) -> Record | None:
        """Return the record of a digest.

        Args:
            digest: the digest of a line.

        Returns:
            The record; None if there is none.

        Raises:
            LogError: the line was damaged.
        """

    def digests_with_prefix(self, prefix: str) -> list[str]:
        """List the digests that begin with a prefix.

        Args:
            prefix: the first characters of a digest.

        Returns:
            Three digests at most, sorted: enough to see whether the prefix is ambiguous.
        """

    def size(self) -> int:
        """Count the lines.

        Returns:
            The number of lines.
        """

    def sorted_texts(self) -> Iterator[str]:
        """Yield all lines sorted by type and text, so that equal logs give equal bytes.

        Yields:
            Lines, without those that are deleted meanwhile.
        """

    def counts(self) -> dict[str, dict[str, int]]:
        """Count lines by type, trials by status, and the distinct names that trials refer to.

        Returns:
            Tables `lines`, `trials` and `names`.
        """

    def digests(self) -> list[str]:
        """List the digests of all lines.

        Returns:
            Digests, sorted.
        """

    def pairs(self) -> list[tuple[str, str]]:
        """List the workloads and targets for which a candidate ran.

        Returns:
            Pairs of the key of a workload and the digest of a target, sorted.
        """

    def beyond_best(self, count: int) -> list[str]:
        """List the trials of all but the best candidates for each workload and target.

        Args:
            count: how many candidates are the best.

        Returns:
            Digests of trials, sorted.
        """

    def unresolved_keys(self) -> list[str]:
        """List the keys that trials and pins refer to and that no line defines.

        Returns:
            Keys of workloads and environments and digests of targets, sorted.
        """

    def check(self) -> list[str]:
        """Compare lines with their digests, and derived columns with the lines.

        Returns:
            A problem each, empty if the tables are intact.
        """

    def repair(self) -> int:
        """Move unreadable lines aside, and rebuild everything derived from the others.

        Returns:
            How many lines were moved.
        """

    def delete(self, digests: Iterable[str]) -> None:
        """Delete lines for good.

        Args:
            digests: the lines; those that are not there are ignored.
        """

    def close(self) -> None:
        """Release files and connections."""


def open_store(url: str, *, durable: bool = False) -> Store:
    """Open the store of a URL.

    Args:
        url: `NAME.db` or `sqlite:NAME` for a database; `NAME.jsonl` or `NAME.jsonl.gz` for a file of lines, which is
            only read; `file:` before such a name; `-` for lines on standard input; `memory:`; or the scheme of a plugin
            of group `tvmtarget.logs`.
        durable: wait for the disk at each commit.

    Returns:
        The store.

    Raises:
        LogError: the URL names no log, or the log cannot be opened.
    """
    if "\0" in url or any("\ud800" <= letter <= "\udfff" for letter in url):
        raise LogError(f"the URL of a log is text that a file can be named by, not {shown(url)}")
    if url == "memory:":
        return SqliteStore.in_memory()
    if url == STDIN:
        return JsonLinesStore(Path(url))
    scheme, path = url.partition(":")[0], path_of(url)
    if path is None and "://" in url and scheme != "sqlite":
        schemes = plugins.names("tvmtarget.logs")
        if scheme not in schemes:
            raise LogError(f"no plugin opens logs at {url!r}{did_you_mean(scheme, [*schemes, 'sqlite', 'file'])}")
        store: Store = plugins.load("tvmtarget.logs", scheme)(url)
        return store
    suffix = "" if path is None else path.suffix.lower()
    if path is not None and (scheme == "sqlite" or suffix in DATABASES):
        return SqliteStore(path, durable=durable)
    if path is not None and is_line_file(path):
        return JsonLinesStore(path)
    raise LogError(f"{url!r} is no log: a log is NAME.db, sqlite:NAME, memory: or, only to be read, NAME.jsonl")


def is_line_file(path: Path) -> bool:
    """Return whether a file is read as lines of a log, by its name.

    Args:
        path: the file, which need not exist.

    Returns:
        True for `NAME.jsonl`, `NAME.jsonl.gz` and `NAME.json`.
    """
    return path.name.lower().endswith((".jsonl", ".jsonl.gz", ".json"))


def path_of(url: str) -> Path | None:
    """Return the file that the URL of a log names.

    Args:
        url: a URL, or a path with `~` for the user's folder.

    Returns:
        The path; None if the URL names no file.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite":
        name = rest.removeprefix("///")
        name = "" if name.startswith("//") else name
    elif scheme == "file":
        name = unquote(rest[2:]) if rest.startswith("//") else rest
    else:
        name = "" if "://" in url or url == "memory:" else url
    return Path(os.path.expanduser(name)) if name else None  # `Path.expanduser` raises for an unknown user
