"""What a log is kept in: the protocol that files and servers share, and who opens which URL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from tvmtarget import plugins
from tvmtarget.autotune.log.index import RankedCandidate
from tvmtarget.autotune.log.jsonl_store import JsonLinesStore
from tvmtarget.autotune.log.lines import Line
from tvmtarget.autotune.log.records import Level, Pin, Record
from tvmtarget.autotune.log.sqlite_store import SqliteStore
from tvmtarget.errors import LogError, did_you_mean
from tvmtarget.target.problems import shown

__all__ = ["DATABASES", "Store", "open_store", "path_of"]

DATABASES = (".db", ".sqlite", ".sqlite3")


class Store(Protocol):
    """Where records are kept. A plugin of group `tvmtarget.logs` is called by its scheme and returns one for a URL."""

    url: str

    def extend(self, records: Iterable[Record]) -> int:
        """Add records, all or none; return how many were new. They are safe once this returns."""

    def take(self, texts: Iterable[str]) -> int:
        """Add lines of another log, all or none; return how many were new. They are safe once this returns."""

    def texts(self, type_: str = "") -> Iterator[str]:
        """Yield all lines, or those of a type."""

    def problems(self) -> Sequence[Line]:
        """Return the lines that cannot be read."""

    def best(self, workload: str, target: str, limit: int) -> list[RankedCandidate]:
        """Return the best candidates for a workload on exactly one target, by its digest."""

    def trials(self, workload: str, target: str) -> list[str]:
        """Return the lines of all trials of a workload on exactly one target that were not retracted, as added."""

    def targets_of(self, workload: str) -> list[str]:
        """List the targets on which a workload was measured or pinned."""

    def targets_by_key(self, level: Level, key: str) -> list[str]:
        """List the targets with a tuning key."""

    def targets_by_family(self, level: Level, family: str, workload: str) -> list[str]:
        """List the targets of a family for which something of a workload can be chosen."""

    def workloads_by_family(self, family: str) -> list[str]:
        """List the workloads of a family."""

    def pins(self, workload: str) -> list[Pin]:
        """Return the pins of a workload that were not retracted, the latest first."""

    def body_of(self, key: str) -> Record | None:
        """Return the target, workload or environment of a key."""

    def get(self, digest: str) -> Record | None:
        """Return a line by its digest; a `LogError` says that it was damaged."""

    def find(self, digest: str) -> list[str]:
        """List the digests that begin so, at most three."""

    def size(self) -> int:
        """Return how many lines there are."""

    def sorted_texts(self) -> Iterator[str]:
        """Yield all lines by type and text."""

    def tally(self) -> dict[str, dict[str, int]]:
        """Count lines by type, trials by status, and the names that trials refer to."""

    def digests(self) -> list[str]:
        """List the digests of all lines."""

    def pairs(self) -> list[tuple[str, str]]:
        """List the workloads and targets, by key, for which something can be chosen."""

    def beyond(self, best: int) -> list[str]:
        """List the trials, by digest, that are not of the best candidates for their workload and target."""

    def dangling(self) -> list[str]:
        """List the keys that trials and pins refer to and no line explains."""

    def check(self) -> list[str]:
        """Return what is wrong with what the lines are kept in."""

    def mend(self) -> int:
        """Put lines that cannot be read aside, and make all else anew; return how many those were."""

    def drop(self, digests: Iterable[str]) -> None:
        """Forget lines for good."""

    def close(self) -> None:
        """Give back what it holds."""


def open_store(url: str, *, durable: bool = False) -> Store:
    """Open `name.jsonl` (or `.jsonl.gz`, only to be read), `name.db`, `sqlite:name`, `file:name`, or `memory:`.

    Another scheme is asked of the plugin of that name in group `tvmtarget.logs`.
    """
    if not isinstance(url, str) or "\0" in url or any("\ud800" <= letter <= "\udfff" for letter in url):
        raise LogError(f"the URL of a log is text that a file can be named by, not {shown(url)}")
    if url == "memory:":
        return SqliteStore.in_memory()
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
    if path is not None and (suffix in (".jsonl", ".json") or path.name.lower().endswith(".jsonl.gz")):
        return JsonLinesStore(path, durable=durable)
    raise LogError(f"{url!r} is no log: a log is NAME.jsonl, NAME.db, sqlite:NAME or memory:")


def path_of(url: str) -> Path | None:
    """Return the file that a URL of a log names, `~` being the user's folder; None where it names none."""
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite":
        name = rest.removeprefix("///")
        name = "" if name.startswith("//") else name
    elif scheme == "file":
        name = unquote(rest[2:]) if rest.startswith("//") else rest
    else:
        name = "" if "://" in url or url == "memory:" else url
    return Path(os.path.expanduser(name)) if name else None  # pathlib's own raises where there is no such user
