"""Atomic writes of files, and temporary folders that are removed even after the process was killed.

Temporary files and folders are locked by the process that made them. Those of a killed process have no lock, and are
removed when one of the same name pattern is made next.
"""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
import shutil
import stat
import tarfile
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from tvmtarget.errors import FileError

if TYPE_CHECKING:
    import numpy as np

try:
    import fcntl
except ImportError:  # Windows: nothing is locked, so that leftovers look like files in use, and stay
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "atomic_write",
    "file_identity",
    "has_file",
    "locked_folder",
    "remove_leftovers",
    "sync_folder",
    "tar_archive",
    "temporary_folder",
    "temporary_place",
    "write_arrays",
    "write_folder",
]


def has_file(path: Path) -> bool:
    """Return whether there is a file or folder.

    Args:
        path: its path.

    Returns:
        False also for names that no file can have, for which `Path.exists` may raise an error.
    """
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


@contextmanager
def atomic_write(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a new file that replaces a path once it is complete and on the disk.

    An existing file keeps its permissions, and a link stays a link: the file that it points to is replaced. Anything
    else, such as a terminal or a pipe, is written at once at the end, as it has no positions to return to. New files
    that killed processes left are removed.

    Args:
        path: the file to replace.
        mode: permissions of a new file, less those that the process masks (umask).

    Yields:
        The stream; if the block raises, the old file stays.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        path = path.resolve()
    except (RuntimeError, ValueError) as error:  # links in a circle before Python 3.13, and a null character
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    old = path.stat() if path.exists() else None
    if old is not None and not stat.S_ISREG(old.st_mode):
        with path.open("wb") as stream:
            buffer = io.BytesIO()
            yield buffer
            stream.write(buffer.getbuffer())
        return
    staging, opened = _new_file(path, mode)
    try:
        with opened as stream:
            if old is not None:
                staging.chmod(stat.S_IMODE(old.st_mode))
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            if fcntl is not None:
                staging.replace(path)  # while it is locked, or another process could remove it as a leftover
        if fcntl is None:
            staging.replace(path)  # after the stream is closed: Windows does not rename open files
    except BaseException:
        staging.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _new_file(path: Path, mode: int) -> tuple[Path, BinaryIO]:
    """Remove the files that killed processes left beside a path, and create a locked one there."""
    stem = f".{path.name[:40]}."
    remove_leftovers(path.parent, re.compile(rf"{re.escape(stem)}[0-9a-f]{{8}}\.new"))
    while True:
        new = path.with_name(f"{stem}{secrets.token_hex(4)}.new")
        stream = open(new, "xb", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
        if _lock_new(stream.fileno(), new):
            return new, stream
        stream.close()


@contextmanager
def temporary_place() -> Iterator[Path]:
    """Yield the folder for temporary files (`TMPDIR`), and name it in errors of writing there.

    Yields:
        The path of the folder.

    Raises:
        FileError: there is none, or it is full or cannot be written.
    """
    place: Path | None = None
    try:
        place = Path(tempfile.gettempdir())
        yield place
    except OSError as error:
        # A write to a full disk names no file.
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if place is None:
            raise FileError(f"there is no folder for temporary files ({error.strerror}); name one by TMPDIR") from error
        if not is_full and not (isinstance(error.filename, str) and Path(error.filename).is_relative_to(place)):
            raise
        raise FileError(
            f"{str(place)!r}, the folder for temporary files, cannot be written: {error.strerror}; name another one by "
            "TMPDIR",
            path=str(place),
        ) from error


@contextmanager
def temporary_folder(parent: Path | None = None, prefix: str = "tvmtarget-tmp-") -> Iterator[Path]:
    """Make a folder that only this user can read, and remove it afterwards.

    A fork of the process does not remove it. Folders of the same prefix that killed processes of this user left are
    removed too.

    Args:
        parent: the folder to make it in; by default that of the system for temporary files.
        prefix: the beginning of its name, which ends in `.new`.

    Yields:
        The path of the folder.

    Raises:
        FileError: as `temporary_place`, unless `parent` is given.
    """
    with ExitStack() as stack:
        place = stack.enter_context(temporary_place()) if parent is None else parent
        remove_leftovers(place, re.compile(rf"{re.escape(prefix)}[a-z0-9_]{{8}}\.new"))
        while True:
            name = tempfile.mkdtemp(".new", prefix, place)
            stack.callback(weakref.finalize(stack, _remove_own, name, os.getpid()))
            if fcntl is None:
                break
            with suppress(FileNotFoundError):  # another process removed it as a leftover
                descriptor = os.open(name, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                if _lock_new(descriptor, Path(name)):
                    break
        yield Path(name)


def _remove_own(folder: str, owner: int) -> None:
    """Remove a folder that this process made; the one that was forked from it may still use it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _lock_new(descriptor: int, path: Path) -> bool:
    """Lock a new file or folder; False if another process removed it as a leftover before it was locked."""
    try:
        _lock(descriptor)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, on which nothing is removed
        return True
    try:
        return file_identity(os.fstat(descriptor)) == file_identity(path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _lock(descriptor: int) -> None:
    """Lock a file until it is closed; `OSError` if another process has locked it, or it cannot be locked."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, after waiting for other processes that hold it.

    On Windows, and on file systems without locks, nothing is locked.

    Args:
        folder: an existing folder.

    Yields:
        Nothing; the lock is held while the block runs.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path, name: re.Pattern[str]) -> None:
    """Remove files and folders of this user whose names match, and which no process has locked.

    Args:
        folder: where to look.
        name: matches whole names.
    """
    if fcntl is None:
        return
    with suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            if name.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_leftover(folder / entry.name)


def _remove_leftover(path: Path) -> None:
    # No link of another user is followed, and opening a pipe does not block.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid():
            return
        _lock(descriptor)
        if stat.S_ISDIR(status.st_mode):
            shutil.rmtree(path, ignore_errors=True)
        elif stat.S_ISREG(status.st_mode):
            path.unlink()
    finally:
        os.close(descriptor)


def write_folder(folder: Path, files: Mapping[str, bytes], last: Collection[str]) -> None:
    """Write files that belong together into a folder, which keeps its other files.

    Everything is written into a temporary folder first, so that a full disk or an interruption leaves the old files as
    they were, and no new folder. A new folder is renamed as a whole. In an old one, old files named in `last` are
    removed before the others are replaced, and their new versions come last: so a folder has them only if it is
    complete, even after the process was killed.

    Args:
        folder: the folder.
        files: contents by path in the folder.
        last: the files without which nobody reads the others, such as a manifest.

    Raises:
        OSError: a file cannot be written.
    """
    base = next((place for place in (folder, *folder.parents) if has_file(place)), folder)
    with temporary_folder(base, f".{folder.name[:40]}.") as staging:
        new = staging / "new"
        for name, data in files.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            with (new / name).open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        if base != folder:
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                new.replace(folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # another process made the folder meanwhile
                    raise
            else:
                sync_folder(folder.parent)
                return
        for name in last:
            (folder / name).unlink(missing_ok=True)
        for name in sorted(files, key=lambda name: name in last):
            path = (folder / name).resolve()
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file():
                (new / name).chmod(stat.S_IMODE(path.stat().st_mode))
            (new / name).replace(path)
            sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, on systems that support it.

    Args:
        folder: the folder.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_identity(status: os.stat_result) -> tuple[int, int]:
    """Return the device and inode of a file, which differ for another file of the same name.

    Args:
        status: the result of `os.stat`.

    Returns:
        Two numbers.
    """
    return status.st_dev, status.st_ino


def write_arrays(file: IO[bytes], arrays: Mapping[str, np.ndarray[Any, Any]], *, is_compressed: bool = False) -> None:
    """Write an .npz file; `numpy.savez` takes no arrays that are called `file`.

    Args:
        file: the file.
        arrays: arrays of numbers or texts by name.
        is_compressed: whether to compress them.

    Raises:
        ValueError: an array holds Python objects.
    """
    from numpy.lib import format as npy

    with ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            member = ZipInfo(f"{name}.npy")  # of a fixed date, so that equal arrays make equal files
            member.compress_type = ZIP_DEFLATED if is_compressed else ZIP_STORED
            with archive.open(member, "w", force_zip64=True) as stream:
                npy.write_array(stream, array, allow_pickle=False)


def tar_archive(files: Mapping[str, bytes]) -> bytes:
    """Return a tar archive in which nothing but the files counts: no times, no owners, no order.

    Args:
        files: contents by path in the archive.

    Returns:
        The archive in the ustar format; equal files give equal bytes.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted(files.items()):
            facts = tarfile.TarInfo(name)
            facts.size = len(data)
            archive.addfile(facts, io.BytesIO(data))
    return buffer.getvalue()
