"""A log in a file of lines, which people can read, mail and merge; the index is a temporary database.

Writers append whole lines under a lock on the file, so that none is torn or mixed with another's; what a writer that
was killed left behind is closed off by the next. A reader takes in what was added since it last looked, and writes
nothing.
"""

from __future__ import annotations

import gc
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import BinaryIO, cast

from tvmtarget.autotune.log.entries import Entry, entry_of, packed, quick_entry
from tvmtarget.autotune.log.index import Index
from tvmtarget.autotune.log.lines import MAX_LINE, Line, RawLine, raw_lines
from tvmtarget.autotune.log.tables import OF_TRIALS, PATIENCE, Group, patiently
from tvmtarget.errors import LogError
from tvmtarget.files import atomic_write, file_identity, sync_folder

try:
    import fcntl
except ImportError:  # Windows: appends are still whole, but compaction has to be alone
    fcntl = None  # type: ignore[assignment]
from tvmtarget.untrusted import unpack_gzip

__all__ = ["JsonLinesStore"]

_BATCH = 1000
_MOST_WRITTEN = 100_000
_MOST_FOREIGN = 100  # lines that are none of a log, after which a file that began with such a one is not read on
_REMEMBERED = 64  # bytes before the end, to notice a file that was written anew in its place

_ONE = "CREATE UNIQUE INDEX one ON kept(digest)"

# The candidates of a workload for which it is not clear that their one trial stands for them.
_CONTESTED = """
SELECT workload, target, candidate, env FROM trial WHERE workload = ?1 GROUP BY 1, 2, 3, 4 HAVING count(*) > 1 UNION
SELECT workload, target, candidate, env FROM gone JOIN kept USING (digest) JOIN trial ON line = id WHERE workload = ?1
"""


class JsonLinesStore(Index):
    """A `.jsonl` file, or a `.jsonl.gz` that is only read; it need not exist before something is written.

    The index holds where a line stands in the file, and the text of one only if it is spelled in another way there.
    """

    _LINES = f"""
CREATE TABLE kept(id INTEGER PRIMARY KEY, digest BLOB NOT NULL, type TEXT NOT NULL, other TEXT, place, size);
{_ONE};
CREATE VIEW line AS SELECT id, digest, type, ifnull(other, text_at(place, size)) AS text FROM kept
"""
    _KEEP = "INSERT INTO kept VALUES (?, ?, ?, ?, ?, ?)"

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        self._path = path.absolute()  # whatever the working directory becomes
        self._durable = durable
        self._is_packed = path.suffix.lower() == ".gz"
        self._is_closed = False
        self._file: BinaryIO | None = None
        super().__init__(str(path), self._temporary())
        self.create()
        self._forget_file()
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file and the index."""
        self._is_closed = True
        if self._file is not None:
            self._file.close()
        super().close()

    def _temporary(self) -> sqlite3.Connection:
        """Return a database that spills to disk where it is large, and goes with the process."""
        connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -16000")
        connection.create_function("text_at", 2, self._text_at, deterministic=True)
        return connection

    def _text_at(self, place: int, size: int) -> str:
        return os.pread(cast("BinaryIO", self._file).fileno(), size, place).decode()

    def _forget_file(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
        self._seen: os.stat_result | None = None  # the file when it was read
        self._place: tuple[int, int] | None = None  # which file was read or written last
        self._end, self._number = 0, 1  # where the next line begins
        self._behind = b""  # what stands before that
        self._foreign: Line | None = None  # the first line, if it was never one of a log
        self._is_log = False  # whether any other line is
        self._problems: list[Line] = []
        self._tail: list[Line] = []
        self._written: set[bytes] = set()  # digests of what was appended and not read yet
        self._is_in_bulk = False
        self._waiting: set[int | bytes] = set()  # workloads with trials that were not ranked

    # Reading

    def refresh(self) -> None:
        """Read what was appended since; all of the file where it was replaced."""
        with self._lock, self._explained():
            found = self._look()
            if found is None:
                return
            if self._file is not None and not self._is_same(self._file, found):
                self._begin_anew()
            if self._file is None:
                self._file = self._opened()
                with self._in_bulk():
                    self._read(self._file)
            elif self._seen is None or found.st_size != self._seen.st_size:
                self._read(self._file)
            self._seen = found
            self._place = file_identity(found)

    def _begin_anew(self) -> None:
        self._connection.close()
        self._connection = self._temporary()
        self._names.clear()
        self.create()
        self._forget_file()

    def _notice_another_file(self) -> None:
        """Read again, if the file is not the one that was read or written last: what that had may not be in it."""
        with self._explained():
            found = self._look()
            if self._place is None or (found is not None and file_identity(found) == self._place):
                return
            self._begin_anew()
            self.refresh()

    @contextmanager
    def _in_bulk(self) -> Iterator[None]:
        """Fill empty tables, and make the indexes of what is filled last, which is faster."""
        for name in ("one", "measured", "best"):
            self._connection.execute(f"DROP INDEX {name}")
        self._is_in_bulk = True
        with _without_collecting():
            yield
        self._is_in_bulk = False
        with self._transaction():
            try:
                self._connection.execute(_ONE)
            except sqlite3.IntegrityError:
                self._forget_doubles()
                self._connection.execute(_ONE)
            self._make(OF_TRIALS)
        self._waiting.update(key for (key,) in self._all("SELECT DISTINCT workload FROM trial"))

    def _forget_doubles(self) -> None:
        """Delete all but the first of equal lines."""
        again = self._all("SELECT id FROM kept WHERE id NOT IN (SELECT min(id) FROM kept GROUP BY digest)")
        for table in ("trial", "pin", "body"):
            self._connection.executemany(f"DELETE FROM {table} WHERE line = ?", again)
        self._connection.executemany("DELETE FROM kept WHERE id = ?", again)

    def _groups_of(self, digest: str) -> list[Group]:
        return [] if self._is_in_bulk else super()._groups_of(digest)  # all are waiting to be ranked then

    def _is_same(self, file: BinaryIO, found: os.stat_result) -> bool:
        """Whether a file is the one that was read, with nothing but new lines behind what was read."""
        seen = self._seen
        if seen is None or file_identity(found) != file_identity(seen) or found.st_size < seen.st_size:
            return False
        if found.st_size == seen.st_size and found.st_mtime_ns != seen.st_mtime_ns:
            return False
        if self._is_packed:
            return found.st_size == seen.st_size
        return os.pread(file.fileno(), len(self._behind), self._end - len(self._behind)) == self._behind

    def _opened(self) -> BinaryIO:
        stream = self._path.open("rb")
        return unpack_gzip(stream, f"the log {self.url!r}", error=LogError) if self._is_packed else stream

    def problems(self) -> Sequence[Line]:
        """Return the lines that cannot be read."""
        self.refresh()
        return (*self._problems, *self._tail)

    def rank(self, workload: str | None = None) -> None:
        """Rank what was read and not ranked yet, of a workload or of all."""
        with self._lock:
            self.refresh()
            known = self._waiting
            if workload is not None:
                known = known.intersection(key for (key,) in self._all("SELECT id FROM name WHERE key = ?", workload))
            if groups := [group for key in sorted(known) for group in self._all(_CONTESTED, key)]:
                with self._transaction():
                    self._settle(groups)
            self._waiting -= known

    def _look(self) -> os.stat_result | None:
        if self._is_closed:
            raise LogError(f"{self.url!r} was closed")
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        if not S_ISREG(found.st_mode):  # a pipe would be waited for, a device may have no end
            raise LogError(f"{self.url!r} is {'a directory' if S_ISDIR(found.st_mode) else 'no regular file'}")
        return found

    def _read(self, file: BinaryIO) -> None:
        file.seek(self._end)
        self._tail = []
        self._written.clear()
        last: list[RawLine] = []  # the last line of a batch that has an end
        entries = self._entries(raw_lines(file, number=self._number, offset=self._end), last)
        while some := list(islice(entries, _BATCH)):
            with self._transaction():
                _, touched = self._add(some)
            self._waiting.update(group[0] for group in touched)
            self._reach(last)
        self._reach(last)
        self._refuse_foreign_file()

    def _reach(self, last: Sequence[RawLine]) -> None:
        for ended in last:
            self._end, self._number = ended.end, ended.number + 1
            self._behind = ended.data[-_REMEMBERED:]

    def _entries(self, lines: Iterable[RawLine], last: list[RawLine]) -> Iterator[Entry]:
        for raw in lines:
            if raw.is_ended:
                last[:] = (raw,)
            if (entry := self._entry(raw)) is not None:
                yield entry

    def _entry(self, raw: RawLine) -> Entry | None:
        text = raw.data.rstrip(b"\r\n")
        place = (None, raw.offset, len(text))
        quick = None if self._is_packed else quick_entry(text, place)
        if quick is not None:
            self._is_log = True
            return quick
        line = raw.read()
        if line.record is None:
            (self._problems if line.is_ended else self._tail).append(line)
            if line.offset == 0 and not line.looks_like_json:
                self._foreign = line
            if len(self._problems) > _MOST_FOREIGN:
                self._refuse_foreign_file()
            return None
        self._is_log = True
        is_spelled_so = not self._is_packed and line.record.text.encode() == text
        return entry_of(line.record, place if is_spelled_so else (line.record.text, None, None))

    def _refuse_foreign_file(self) -> None:
        """Refuse a file that begins with what was never a record, and has none, so that nobody appends to it."""
        if self._foreign is not None and not self._is_log:
            raise LogError(f"{self.url!r} is not a tuning log: {self._foreign}")

    @contextmanager
    def _explained(self, what: str = "read") -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, zlib.error) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise LogError(f"{self.url!r} cannot be {what}: {reason}") from error

    # Writing

    def _extend(self, entries: Iterable[Entry]) -> int:
        """Append what was not there when the file was last read, all of it or nothing; a line twice is a line once.

        Only who asks reads what others wrote meanwhile, unless the file was deleted or replaced.
        """
        with self._lock:
            self._notice_another_file()
            fresh = {entry.digest: f"{entry.kept[0]}\n".encode() for entry in entries}
            for digest in {*self._there(list(fresh)), *self._written.intersection(fresh)}:
                del fresh[digest]
            if fresh:
                self._append(b"".join(fresh.values()))
                self._written.update(fresh)
            if len(self._written) > _MOST_WRITTEN:
                self.refresh()
            return len(fresh)

    def _append(self, data: bytes) -> None:
        with self._locked() as descriptor, self._explained("written"):
            found = os.fstat(descriptor)
            before = found.st_size
            if before and os.pread(descriptor, 1, before - 1) != b"\n":
                data = b"\n" + data
            try:
                _write(descriptor, data)
                if self._durable:
                    os.fsync(descriptor)
                    if not before:
                        sync_folder(self._path.parent)
            except BaseException:
                os.ftruncate(descriptor, before)
                raise
            self._place = file_identity(found)

    def mend(self) -> int:
        """Write the file anew without the lines that cannot be read; return how many those were."""
        bad = len(self.problems())
        if bad:
            self.drop([])
        return bad

    def drop(self, digests: Iterable[str]) -> None:
        """Write the file anew without some lines; those that cannot be read go to `NAME.rejected`."""
        with self._lock, self._locked(), self._explained("written"):
            self._save_rejected()
            gone = set(map(packed, digests))
            with atomic_write(self._path, f"{self._path.name}.new") as stream:
                rows = self._connection.execute("SELECT digest, text FROM line ORDER BY id")
                stream.writelines(f"{text}\n".encode() for digest, text in rows if digest not in gone)

    def _save_rejected(self) -> None:
        problems = self.problems()
        if not problems:
            return
        with self._path.open("rb") as stream, Path(f"{self._path}.rejected").open("ab") as rejected:
            for line in problems:
                stream.seek(line.offset)
                left = line.end - line.offset
                while left and (data := stream.read(min(left, MAX_LINE))):
                    left -= len(data)
                    rejected.write(data)
                if not line.is_ended:
                    rejected.write(b"\n")
            rejected.flush()
            os.fsync(rejected.fileno())

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file for appending and hold its lock; again if it was replaced meanwhile."""
        if self._is_packed:
            raise LogError(f"{self.url!r} is compressed, so that nothing is appended to it")
        while True:
            descriptor = self._open()
            try:
                self._lock_file(descriptor)
                found = self._look()
                if found is not None and found.st_ino == os.fstat(descriptor).st_ino:
                    yield descriptor
                    return
            finally:
                os.close(descriptor)

    def _lock_file(self, descriptor: int) -> None:
        """Take the lock of the file, within the patience of `patiently`."""
        if fcntl is None:
            return
        try:
            patiently(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB), self.url)
        except BlockingIOError as error:
            raise LogError(f"{self.url!r} is locked by another process for more than {PATIENCE:.0f} s") from error
        except OSError as error:  # ENOLCK, EOPNOTSUPP: some network file systems
            reason = error.strerror or error
            raise LogError(f"{self.url!r} cannot be locked: {reason}; keep it on a file system with locks") from error

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise LogError(f"{self.url!r} cannot be written: {error.strerror}") from error


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Let no circles of objects be looked for: of many that are made and soon forgotten, none is in one."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
