"""Shared resources of measurements: the lock of a device, and the memory of the machine."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from tvmtarget.errors import RunError

__all__ = ["LockError", "device_lock", "half_of_memory", "holding"]


# Files of Linux with the memory limit of a container; 'max' is no limit.
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class LockError(RunError):
    """A device that cannot be locked, which says nothing about what was to be measured on it."""


def device_lock(device: str = "cpu") -> Path:
    """Return the file that is locked while something is timed on a device.

    Args:
        device: the name of the device.

    Returns:
        A path in the folder for temporary files, which depends on the user.
    """
    name = hashlib.sha256(device.encode()).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"tvmtarget-{os.getuid()}-{name}.lock"


def half_of_memory() -> int:
    """Return half of the memory of this machine, or of the container of this process.

    Returns:
        Bytes.
    """
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CONTAINER_LIMITS:
        with suppress(OSError, ValueError):
            found.append(int(Path(path).read_text()))
    return min(found) // 2


@contextmanager
def holding(lock: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a lock.

    Args:
        lock: the file.
        waiting: is called before the lock is waited for.

    Yields:
        Nothing.

    Raises:
        LockError: the file cannot be opened.
    """
    with _opened(lock) as file:
        if waiting is not None:
            waiting()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _opened(lock: Path) -> TextIO:
    try:
        return lock.open("a")
    except OSError as error:
        what = f"the device cannot be locked by {str(lock)!r}: {error.strerror or error}"
        raise LockError(f"{what}; remove it, or set TMPDIR to another folder") from error
