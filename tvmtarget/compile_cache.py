"""The compile cache: compiled code by key, in a folder of this user, for all processes.

An entry is one file, named by the SHA-256 of its key. It begins with a magic line and the SHA-256 of all that follows:
the key, facts for listings, and the files of the entry. Reading takes no lock. A writer renames a complete file into
place, so that of two writers of one key either may win. What is cut off, changed, of another key or owner is a miss,
and is removed.

Code of the cache runs as this user. Therefore folders are private (0700), as are files (0600), and a folder or file
that another user owns or may write is never used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from tvmtarget.errors import CacheWarning, FileError, warn
from tvmtarget.files import atomic_write, remove_leftovers
from tvmtarget.untrusted import limit, open_regular, parse_json

__all__ = ["CacheEntry", "CacheLike", "CompileCache", "default_folder", "open_cache"]

_MAGIC = b"tvmtarget.cache/1\n"
_DIGEST = 32  # bytes of a SHA-256
_HEAD = struct.Struct("<Q")  # length of the JSON before the files
_WHAT = "entry of the compile cache"
_SUFFIX = ".entry"
_NAME = re.compile(rf"[0-9a-f]{{62}}{re.escape(_SUFFIX)}")
_LEFTOVER = re.compile(r"\..*\.new")
_FOLDER = re.compile("[0-9a-f]{2}")
_MOST_HEAD = 1 << 20  # bytes of the JSON that a listing reads
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def default_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of the cache.

    It is `$TVMTARGET_CACHE`, else `tvmtarget` in the user's folder for caches: `$XDG_CACHE_HOME` or `~/.cache`,
    `~/Library/Caches` on macOS, `%LOCALAPPDATA%` on Windows.

    Args:
        environ: The environment variables.

    Returns:
        The folder, which need not exist; None if `TVMTARGET_CACHE` is `off`, or the user has no home folder.
    """
    stated = environ.get("TVMTARGET_CACHE")
    if stated:
        return None if stated.casefold() == "off" else Path(stated).absolute()
    home = environ.get("HOME") or environ.get("USERPROFILE")
    if sys.platform == "win32":
        place, below = environ.get("LOCALAPPDATA"), "AppData/Local"
    elif sys.platform == "darwin":
        place, below = environ.get("XDG_CACHE_HOME"), "Library/Caches"
    else:
        place, below = environ.get("XDG_CACHE_HOME"), ".cache"
    # The XDG Base Directory Specification says to ignore relative paths.
    if place is not None and Path(place).is_absolute():
        return Path(place) / "tvmtarget"
    return Path(home) / below / "tvmtarget" if home else None


@dataclass(frozen=True)
class CacheEntry:
    """An entry in a listing.

    Attributes:
        path: Its file.
        nbytes: Size of the file.
        used: When it was last used, in seconds since 1970.
        facts: What its writer says of it; empty if the file is damaged.
    """

    path: Path
    nbytes: int
    used: float
    facts: Mapping[str, str] = field(default_factory=dict)


class CompileCache:
    """Compiled code by key, in a folder.

    Args:
        folder: The folder, which is made when the first entry is written.
        most: Bytes of all entries, beyond which those that were not used longest are removed; by default
            `TVMTARGET_MAX_CACHE_BYTES`.
    """

    def __init__(self, folder: str | Path, most: int | None = None) -> None:
        self.folder = Path(folder).absolute()
        self.most = limit("cache-bytes") if most is None else most
        self._space: int | None = None  # bytes that may be written before the folder is looked through again
        self._is_writable = True

    def problem(self) -> str | None:
        """Return why the folder may not be used; None if it may, or does not exist yet."""
        try:
            found = self.folder.stat()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # the latter for a null character in its name
            return f"compile cache {str(self.folder)!r} cannot be used: {getattr(error, 'strerror', None) or error}"
        if not stat.S_ISDIR(found.st_mode):
            return f"compile cache {str(self.folder)!r} is no folder; name another one by TVMTARGET_CACHE"
        reason = _not_private(found)
        fix = "make it yours alone (chmod go-w), or name another folder by TVMTARGET_CACHE"
        return f"compile cache {str(self.folder)!r} is not used: {reason}; {fix}" if reason else None

    def get(self, key: str) -> dict[str, bytes] | None:
        """Return the files of a key, and note that they were used.

        Args:
            key: All that the files depend on, as text.

        Returns:
            Contents by name; None if there is no intact entry.
        """
        path = self._path(key)
        try:
            with open_regular(path, _WHAT, most="artifact-bytes") as stream:
                files = _read(stream, key)
            with suppress(OSError):  # a folder that is only read
                os.utime(path)
            return files
        except FileError:
            self._remove(path)
            return None

    def put(self, key: str, files: Mapping[str, bytes], **facts: str) -> None:
        """Store the files of a key; if that fails, warn once, and store nothing more.

        Args:
            key: All that the files depend on, as text.
            files: Contents by name.
            **facts: What a listing prints of the entry.
        """
        if not self._is_writable:
            return
        head = json.dumps({"key": key, "facts": facts, "files": {name: len(data) for name, data in files.items()}})
        parts = (_HEAD.pack(len(head.encode())), head.encode(), *files.values())
        size = len(_MAGIC) + _DIGEST + sum(map(len, parts))
        if size > self.most:
            return
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        path = self._path(key)
        try:
            for folder in (self.folder, path.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with atomic_write(path, mode=0o600) as stream:
                stream.writelines((_MAGIC, digest.digest(), *parts))
            if self._space is None or self._space < size:
                self._space = self.most - self.prune(self.most)
            else:
                self._space -= size
        except OSError as error:
            self._is_writable = False
            warn(
                f"compile cache {str(self.folder)!r} cannot be written: {error.strerror or error}; "
                "the build goes on without storing code",
                CacheWarning,
            )

    def remove(self, key: str) -> None:
        """Remove the entry of a key, if there is one.

        Args:
            key: The key.
        """
        self._remove(self._path(key))

    def entries(self) -> list[CacheEntry]:
        """List the entries; nothing is verified.

        Returns:
            The entries, the one that was used last first.
        """
        found = (CacheEntry(path, size, used, _facts(path)) for path, size, used in self._files())
        return sorted(found, key=lambda entry: (-entry.used, entry.path))

    def prune(self, most: int) -> int:
        """Remove the entries that were not used longest, and what killed writers left.

        Args:
            most: Bytes that all entries may have together.

        Returns:
            Bytes of the entries that stay.
        """
        for folder in self._folders():
            remove_leftovers(folder, _LEFTOVER)
        files = sorted(self._files(), key=lambda file: (file[2], file[0]))
        total = sum(size for _, size, _ in files)
        for path, size, _ in files:
            if total <= most:
                break
            if self._remove(path):
                total -= size
        return total

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        return self.folder / name[:2] / f"{name[2:]}{_SUFFIX}"

    def _folders(self) -> Iterator[Path]:
        with suppress(OSError), os.scandir(self.folder) as found:
            yield from (Path(entry.path) for entry in found if _FOLDER.fullmatch(entry.name))

    def _files(self) -> Iterator[tuple[Path, int, float]]:
        """Yield the path, size and time of the last use of each entry."""
        for folder in self._folders():
            with suppress(OSError), os.scandir(folder) as found:
                for entry in found:
                    if _NAME.fullmatch(entry.name):
                        with suppress(OSError):  # another process removed it
                            status = entry.stat(follow_symlinks=False)
                            yield Path(entry.path), status.st_size, status.st_mtime

    def _remove(self, path: Path) -> bool:
        """Remove a file; False if that is not possible, as in a folder that is only read."""
        try:
            path.unlink(missing_ok=True)
        except OSError:
            return False
        return True


CacheLike: TypeAlias = "bool | str | Path | CompileCache"


def open_cache(cache: CacheLike) -> CompileCache | None:
    """Return the cache that an argument or option names.

    Args:
        cache: True for the default folder, a folder, an open cache, or False for none.

    Returns:
        The cache; None for False, and, with a warning, if the default folder may not be used.

    Raises:
        FileError: A folder is named that may not be used, or the argument is of another type.
    """
    if isinstance(cache, CompileCache):
        return cache
    if cache is False:
        return None
    if not isinstance(cache, bool | str | Path) or cache == "":
        raise FileError(f"cache is {cache!r}; it is True, False for none, a folder, or a CompileCache")
    folder = default_folder() if cache is True else Path(cache)
    if folder is None:
        return None
    opened = CompileCache(folder)
    problem = opened.problem()
    if problem is None:
        return opened
    if cache is not True:
        raise FileError(problem, path=str(folder))
    warn(problem, CacheWarning)
    return None


def _not_private(found: os.stat_result) -> str | None:
    """Return why others could have written a file or folder."""
    if not hasattr(os, "getuid"):  # Windows: folders of a user's profile are private
        return None
    if found.st_uid != os.getuid():
        return f"user {found.st_uid} owns it"
    return "others may write to it" if found.st_mode & _OTHERS_WRITE else None


def _read(stream: BinaryIO, key: str) -> dict[str, bytes]:
    """Return the files of an entry; `FileError` if it is damaged, of another key, or not private."""
    found = os.fstat(stream.fileno())
    if (reason := _not_private(found)) is not None:
        raise FileError(f"{_WHAT}: {reason}")
    start = stream.read(len(_MAGIC) + _DIGEST)
    data = stream.read(found.st_size)
    if start != _MAGIC + hashlib.sha256(data).digest():
        raise FileError(f"{_WHAT} is damaged")
    head, at = _head(data)
    if head.get("key") != key:
        raise FileError(f"{_WHAT} is of another key")
    if at + sum(head["files"].values()) != len(data):
        raise FileError(f"{_WHAT} is damaged")
    files: dict[str, bytes] = {}
    for name, size in head["files"].items():
        files[name] = data[at : at + size]
        at += size
    return files


def _head(data: bytes) -> tuple[dict[str, Any], int]:
    """Return the JSON at the start of an entry, and where the files begin."""
    if len(data) < _HEAD.size:
        raise FileError(f"{_WHAT} is cut off")
    at = _HEAD.size + _HEAD.unpack_from(data)[0]
    head = parse_json(data[_HEAD.size : at], _WHAT)
    if not isinstance(head, dict) or not isinstance(head.get("files"), dict):
        raise FileError(f"{_WHAT} is damaged")
    return head, at


def _facts(path: Path) -> dict[str, str]:
    """Return the facts of an entry; empty if it is damaged."""
    try:
        with open_regular(path, _WHAT) as stream:
            start = stream.read(len(_MAGIC) + _DIGEST + _MOST_HEAD)
        if not start.startswith(_MAGIC):
            return {}
        facts = _head(start[len(_MAGIC) + _DIGEST :])[0].get("facts")
        return {str(name): str(value) for name, value in facts.items()} if isinstance(facts, dict) else {}
    except FileError:
        return {}
