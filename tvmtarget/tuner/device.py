"""The lock of a device: whoever times something on it holds the lock, so that measurements take turns."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["device_lock", "holding"]


def device_lock(device: str = "cpu") -> Path:
    """Return the file that is locked for a device of this machine."""
    name = hashlib.sha256(device.encode()).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"tvmtarget-{os.getuid()}-{name}.lock"


@contextmanager
def holding(lock: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a lock; `waiting` is called before it is waited for."""
    with lock.open("a") as file:
        if waiting is not None:
            waiting()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
