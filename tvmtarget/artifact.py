"""Saved programs and modules: one zip file with a manifest of digests; reading verifies, and executes nothing.

A program is compressed and read whole. A module is stored as it is, each file at a multiple of 64 bytes, so that
constants are mapped into memory where they lie.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from tvmtarget.errors import ArtifactError
from tvmtarget.files import replacing

__all__ = ["MODULE", "PROGRAM", "is_artifact", "map_files", "read_files", "write_files"]

PROGRAM = "tvmtarget.artifact"
MODULE = "tvmtarget.module"
SCHEMA = 1

_MANIFEST = "manifest.json"
_ZIP = b"PK\x03\x04"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_ALIGNMENT = 64  # bytes
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")  # of a member; the last two are the lengths of name and extra field
_PADDING = struct.Struct("<HH")  # an extra field: its number, as Android's zipalign uses it, and its length
_PADDING_ID = 0xD935
_ZIP64_FIELD = 20  # bytes that a member of more than 2 GB adds to its extra field

Bytes: TypeAlias = "bytes | memoryview"
_B = TypeVar("_B", bytes, memoryview)


def write_files(path: Path, files: Mapping[str, Bytes], *, form: str = PROGRAM, **facts: Any) -> None:  # noqa: ANN401
    """Write files with a manifest of their digests; the old file stays until the new one is complete."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    manifest = {"format": form, "schema": SCHEMA, **facts, "files": digests}
    members = {_MANIFEST: json.dumps(manifest, indent=1, sort_keys=True).encode(), **dict(sorted(files.items()))}
    try:
        with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
            for name, data in members.items():
                info = zipfile.ZipInfo(name, _EPOCH)
                info.compress_type = zipfile.ZIP_DEFLATED if form == PROGRAM else zipfile.ZIP_STORED
                info.extra = b"" if form == PROGRAM else _padding(file.tell(), name, len(data))
                archive.writestr(info, data)
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error


def _padding(offset: int, name: str, size: int) -> bytes:
    """Return the extra field that puts the data of a member, which begins at `offset`, on a multiple of 64 bytes."""
    fixed = offset + _LOCAL_HEADER.size + len(name.encode()) + _PADDING.size
    if size * 1.05 > zipfile.ZIP64_LIMIT:
        fixed += _ZIP64_FIELD
    length = -fixed % _ALIGNMENT
    return _PADDING.pack(_PADDING_ID, length) + bytes(length)


def read_files(path: Path, form: str = PROGRAM) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the manifest and the files of a saved program; `ArtifactError` if anything is missing or altered."""
    return _checked(path, form, lambda archive: {info.filename: archive.read(info) for info in _members(archive, path)})


def map_files(path: Path, form: str = MODULE) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """Return the manifest and the files of a saved module as they lie in memory; `ArtifactError` as `read_files`.

    The digests are checked, which reads the file once; nothing of it is copied.
    """

    def views(archive: zipfile.ZipFile) -> dict[str, memoryview]:
        with path.open("rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return {info.filename: _view(whole, info) for info in _members(archive, path)}

    return _checked(path, form, views)


def _members(archive: zipfile.ZipFile, path: Path) -> list[zipfile.ZipInfo]:
    """Return the members of an archive, which must not share bytes: all are read at most once over."""
    members = archive.infolist()
    if len({info.filename for info in members}) != len(members):
        raise ValueError("two files in it bear one name")
    if sum(info.compress_size for info in members) > path.stat().st_size:
        raise ValueError("the files in it overlap")
    return members


def _view(whole: memoryview, info: zipfile.ZipInfo) -> memoryview:
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size or info.flag_bits & 1:
        raise ValueError(f"{info.filename!r} is not stored as it is")
    *_, name, extra = _LOCAL_HEADER.unpack_from(whole, info.header_offset)
    begin = info.header_offset + _LOCAL_HEADER.size + name + extra
    if begin + info.file_size > len(whole):
        raise ValueError(f"{info.filename!r} is cut off")
    return whole[begin : begin + info.file_size]


def _checked(
    path: Path, form: str, read: Callable[[zipfile.ZipFile], dict[str, _B]]
) -> tuple[dict[str, Any], dict[str, _B]]:
    name, what = repr(str(path)), _WORDS[form]
    try:
        with zipfile.ZipFile(path) as archive:
            members = read(archive)
    except FileNotFoundError:
        raise ArtifactError(f"no {what} {name}; {_WRITERS[form]}") from None
    except (
        OSError,
        zipfile.BadZipFile,
        EOFError,
        ValueError,
        NotImplementedError,
        RuntimeError,
        struct.error,
    ) as error:
        raise ArtifactError(f"{name} is not a {what}, or is damaged: {error}") from error
    try:
        manifest = json.loads(bytes(members.pop(_MANIFEST)))
        digests = dict(manifest["files"])
        found, schema = manifest["format"], manifest["schema"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{name} is not a {what}: it has no manifest that can be read") from error
    if found != form or schema != SCHEMA:
        raise ArtifactError(f"{name} is {found!r} schema {schema!r}; this version reads {form!r} schema {SCHEMA}")
    if set(digests) != set(members):
        raise ArtifactError(f"{name} is damaged: it does not hold the files that its manifest lists")
    altered = [member for member, data in members.items() if hashlib.sha256(data).hexdigest() != digests[member]]
    if altered:
        raise ArtifactError(f"{name} is damaged: {altered[0]!r} does not have the digest in the manifest")
    return manifest, members


_WORDS = {PROGRAM: "saved program", MODULE: "saved module"}
_WRITERS = {
    PROGRAM: "write one with tvmtarget compile or Executable.save",
    MODULE: "write one with IRModule.save",
}


def is_artifact(path: Path) -> bool:
    """Whether a file begins like a saved program, a zip file, rather than like a model."""
    try:
        with path.open("rb") as file:
            return file.read(len(_ZIP)) == _ZIP
    except OSError:
        return False
