"""A log in a file of lines, which people can read, mail and merge; the index is a temporary database.

Writers append whole lines under a lock on the file, so that none is torn or mixed with another's; what a writer that
was killed left behind is closed off by the next. A reader takes in what was added since it last looked, and writes
nothing.
"""

from __future__ import annotations

import gzip
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from tvmtarget.errors import LogError, raise_all
from tvmtarget.tuning.index import Index
from tvmtarget.tuning.lines import MAX_LINE, Line, read_lines
from tvmtarget.tuning.records import Record

try:
    import fcntl
except ImportError:  # Windows: appends are still whole, but compaction has to be alone
    fcntl = None  # type: ignore[assignment]

__all__ = ["JsonLinesStore"]

_BATCH = 1000


class JsonLinesStore(Index):
    """A `.jsonl` file, or a `.jsonl.gz` that is only read; it need not exist before something is written."""

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        self.url = str(path)
        self._path = path
        self._durable = durable
        super().__init__(_temporary())
        self.create()
        self._forget()
        self.refresh()

    def _forget(self) -> None:
        self._seen: tuple[int, int] | None = None  # inode and size of the file when it was read
        self._end, self._number = 0, 1  # where the next line begins
        self._problems: list[Line] = []
        self._tail: list[Line] = []

    # Reading

    def refresh(self) -> None:
        """Read what was appended since; all of the file where it was replaced."""
        with self._lock:
            seen = self._look()
            if seen is None or seen == self._seen:
                return
            if self._seen is not None and (seen[0] != self._seen[0] or seen[1] < self._seen[1]):
                self._start_anew()
            with self._opened() as stream:
                self._read(stream)
            self._seen = seen

    def problems(self) -> Sequence[Line]:
        """Return the lines that cannot be read."""
        self.refresh()
        return (*self._problems, *self._tail)

    def _look(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LogError(f"{self.url!r} cannot be read: {error.strerror}") from error
        return found.st_ino, found.st_size

    def _start_anew(self) -> None:
        self._connection.close()
        self._connection = _temporary()
        self._names.clear()
        self.create()
        self._forget()

    def _read(self, stream: BinaryIO) -> None:
        stream.seek(self._end)
        batch: list[Record] = []
        self._tail = []
        for line in read_lines(stream, number=self._number, offset=self._end):
            if not line.is_ended:
                self._tail = [line] if line.record is None else []
            elif line.record is None:
                self._problems.append(line)
            if line.is_ended:
                self._end, self._number = line.end, line.number + 1
            if line.record is not None:
                batch.append(line.record)
            if len(batch) == _BATCH:
                super().extend(batch)
                batch = []
            self._refuse_foreign_file(line)
        super().extend(batch)

    def _refuse_foreign_file(self, line: Line) -> None:
        """Refuse a file that begins with what was never a record, so that nobody appends to it."""
        if line.offset == 0 and line.record is None and not line.looks_like_json:
            raise LogError(f"{self.url!r} is not a tuning log: {line}")

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        try:
            with gzip.open(self._path) if self._path.suffix == ".gz" else self._path.open("rb") as stream:
                yield cast("BinaryIO", stream)
        except (OSError, EOFError) as error:
            raise LogError(f"{self.url!r} cannot be read: {error}") from error

    # Writing

    def extend(self, records: Iterable[Record]) -> int:
        """Append what was not there when the file was last read, all of it or nothing; a line twice is a line once."""
        with self._lock:
            fresh = list({record.digest: record for record in records if not self._has(record.digest)}.values())
            long = [record for record in fresh if len(record.text.encode()) > MAX_LINE]
            raise_all(
                LogError, [f"{record.digest} has more than {MAX_LINE} bytes, the most of a line" for record in long]
            )
            if fresh:
                self._append(fresh)
            return len(fresh)

    def _has(self, digest: str) -> bool:
        return bool(self._all("SELECT 1 FROM line WHERE digest = ?", digest))

    def _append(self, records: Sequence[Record]) -> None:
        data = "".join(f"{record.text}\n" for record in records).encode()
        with self._locked() as descriptor:
            before = os.fstat(descriptor).st_size
            if before and os.pread(descriptor, 1, before - 1) != b"\n":
                data = b"\n" + data
            try:
                _write(descriptor, data)
                if self._durable:
                    os.fsync(descriptor)
            except OSError as error:
                os.ftruncate(descriptor, before)
                raise LogError(f"{self.url!r} cannot be written: {error.strerror}") from error
            if before == self._end:
                super().extend(records)
                self._end, self._number = before + len(data), self._number + len(records)
                self._seen = (os.fstat(descriptor).st_ino, self._end)

    def drop(self, digests: Iterable[str]) -> None:
        """Write the file anew without some lines; those that cannot be read go to `NAME.rejected`."""
        with self._lock, self._locked() as descriptor:
            self.refresh()
            self._save_rejected()
            gone = set(digests)
            fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
            try:
                with fresh.open("wb") as stream:
                    rows = self._connection.execute("SELECT digest, text FROM line ORDER BY id")
                    stream.writelines(f"{text}\n".encode() for digest, text in rows if digest not in gone)
                    stream.flush()
                    os.fsync(stream.fileno())
                fresh.chmod(os.fstat(descriptor).st_mode & 0o777)
                fresh.replace(self._path)
            except OSError as error:
                fresh.unlink(missing_ok=True)
                raise LogError(f"{self.url!r} cannot be written: {error.strerror}") from error

    def _save_rejected(self) -> None:
        problems = self.problems()
        if not problems:
            return
        with self._opened() as stream, self._path.with_name(f"{self._path.name}.rejected").open("ab") as rejected:
            for line in problems:
                stream.seek(line.offset)
                rejected.write(stream.read(line.end - line.offset).rstrip(b"\r\n") + b"\n")
            rejected.flush()
            os.fsync(rejected.fileno())

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file for appending and hold its lock; again if it was replaced meanwhile."""
        if self._path.suffix == ".gz":
            raise LogError(f"{self.url!r} is compressed, so that nothing is appended to it")
        while True:
            descriptor = self._open()
            try:
                if fcntl is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                found = self._look()
                if found is not None and found[0] == os.fstat(descriptor).st_ino:
                    yield descriptor
                    return
            finally:
                os.close(descriptor)

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise LogError(f"{self.url!r} cannot be written: {error.strerror}") from error


def _temporary() -> sqlite3.Connection:
    """Return a database that spills to disk where it is large, and goes with the process."""
    connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = MEMORY")
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
