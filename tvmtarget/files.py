"""Files that are written anew: whole and on the disk, or not at all; and which file a name stands for."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["replacing", "sync_folder", "which_file"]


@contextmanager
def replacing(path: Path, name: str = "") -> Iterator[BinaryIO]:
    """Give a stream to a fresh file beside `path`, which takes its place if all goes well; `OSError` otherwise.

    A file that is there keeps its permissions, and a link stays a link: what it points to is replaced. What is no
    regular file (a terminal, a pipe) is written to as it is. The fresh file has a name of its own; with `name` it has
    that one, and what a process that was killed left there is overwritten: for those who take turns.
    """
    path = path.resolve()
    old = path.stat() if path.exists() else None
    if old is not None and not stat.S_ISREG(old.st_mode):
        with path.open("wb") as stream:
            yield stream
        return
    fresh = path.with_name(name or f".{path.name[:40]}.{secrets.token_hex(4)}.new")
    try:
        with fresh.open("wb") as stream:
            if old is not None:
                fresh.chmod(stat.S_IMODE(old.st_mode))
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until names of a folder have reached the disk, where the system can do that."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def which_file(found: os.stat_result) -> tuple[int, int]:
    """Return by what a file is known that is there: another one by the same name differs."""
    return found.st_dev, found.st_ino
