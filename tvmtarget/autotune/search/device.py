"""What measurements share: a lock of the device, which whoever times something on it holds, and the memory."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["device_lock", "half_of_memory", "holding"]


# Where Linux says how many bytes a container may take; 'max' is no limit.
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def device_lock(device: str = "cpu") -> Path:
    """Return the file that is locked for a device of this machine."""
    name = hashlib.sha256(device.encode()).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"tvmtarget-{os.getuid()}-{name}.lock"


def half_of_memory() -> int:
    """Return half of the bytes of memory that this machine has, or the container that this process is in."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CONTAINER_LIMITS:
        with suppress(OSError, ValueError):
            found.append(int(Path(path).read_text()))
    return min(found) // 2


@contextmanager
def holding(lock: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a lock; `waiting` is called before it is waited for."""
    with lock.open("a") as file:
        if waiting is not None:
            waiting()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
