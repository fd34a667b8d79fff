"""Files that are written anew: whole and on the disk, or not at all; temporary folders; which file a name stands for.

What is temporary is locked by the process that made it, so that the leavings of a killed process are known by their
missing lock, and removed when something of that name is made next.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows: nothing is locked, and nothing of others removed
    fcntl = None  # type: ignore[assignment]

__all__ = ["atomic_write", "file_identity", "sync_folder", "temporary_folder"]


@contextmanager
def atomic_write(path: Path, name: str = "") -> Iterator[BinaryIO]:
    """Give a stream to a fresh file beside `path`, which takes its place if all goes well; `OSError` otherwise.

    A file that is there keeps its permissions, and a link stays a link: what it points to is replaced. What is no
    regular file (a terminal, a pipe) is written to as it is. The fresh file has a name of its own, and those that
    killed processes left are removed; with `name` it has that one, and what is there is overwritten: for those who take
    turns.
    """
    path = path.resolve()
    old = path.stat() if path.exists() else None
    if old is not None and not stat.S_ISREG(old.st_mode):
        with path.open("wb") as stream:
            yield stream
        return
    fresh, opened = (path.with_name(name), path.with_name(name).open("wb")) if name else _fresh_file(path)
    try:
        with opened as stream:
            if old is not None:
                fresh.chmod(stat.S_IMODE(old.st_mode))
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            if fcntl is not None:
                fresh.replace(path)  # while it is locked
        if fcntl is None:
            fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _fresh_file(path: Path) -> tuple[Path, BinaryIO]:
    """Create a locked file beside a path, after those that processes which are gone left there."""
    stem = f".{path.name[:40]}."
    _remove_leftovers(path.parent, re.compile(rf"{re.escape(stem)}[0-9a-f]{{8}}\.new"))
    while True:
        fresh = path.with_name(f"{stem}{secrets.token_hex(4)}.new")
        stream = fresh.open("xb")
        if _is_ours(stream.fileno(), fresh):
            return fresh, stream
        stream.close()


@contextmanager
def temporary_folder(parent: Path | None = None, prefix: str = "tvmtarget-tmp-") -> Iterator[Path]:
    """Make a folder that only this user can read, and remove it afterwards.

    Folders that killed processes of this user left by this prefix are removed too.

    Args:
        parent: where it is made; by default where the system has temporary files.
        prefix: what its name begins with; it ends in `.new`.
    """
    place = Path(tempfile.gettempdir()) if parent is None else parent
    _remove_leftovers(place, re.compile(rf"{re.escape(prefix)}[a-z0-9_]{{8}}\.new"))
    with ExitStack() as stack:
        while True:
            name = stack.enter_context(tempfile.TemporaryDirectory(".new", prefix, place, ignore_cleanup_errors=True))
            if fcntl is None:
                break
            with suppress(FileNotFoundError):  # somebody took it for a leftover
                descriptor = os.open(name, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                if _is_ours(descriptor, Path(name)):
                    break
        yield Path(name)


def _is_ours(descriptor: int, path: Path) -> bool:
    """Lock what was just made; whether nobody took it for a leftover before it was locked."""
    try:
        _lock(descriptor)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, on which nothing is removed
        return True
    return file_identity(os.fstat(descriptor)) == _which_is_there(path)


def _lock(descriptor: int) -> None:
    """Lock a file until it is closed; `OSError` if somebody else has, or it cannot be locked."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _which_is_there(path: Path) -> tuple[int, int] | None:
    try:
        return file_identity(path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return None


def _remove_leftovers(folder: Path, name: re.Pattern[str]) -> None:
    """Remove files and folders of this user whose names match, and which no process has locked."""
    if fcntl is None:
        return
    with suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            if name.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_leftover(folder / entry.name)


def _remove_leftover(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        there = os.fstat(descriptor)
        if there.st_uid != os.getuid():
            return
        _lock(descriptor)
        if stat.S_ISDIR(there.st_mode):
            shutil.rmtree(path, ignore_errors=True)
        elif stat.S_ISREG(there.st_mode):
            path.unlink()
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until names of a folder have reached the disk, where the system can do that."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_identity(found: os.stat_result) -> tuple[int, int]:
    """Return by what a file is known that is there: another one by the same name differs."""
    return found.st_dev, found.st_ino
