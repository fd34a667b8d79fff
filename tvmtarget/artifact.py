"""Saved programs and modules: zip files with a manifest of digests; reading verifies them and executes nothing.

A program is compressed and read as a whole. A module is stored uncompressed with each file at a multiple of 64 bytes,
so that constants are used in place, in a single copy of the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zipfile
from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypeVar, cast

from tvmtarget.errors import ArtifactError, FileError
from tvmtarget.files import atomic_write
from tvmtarget.untrusted import check_limit, open_regular, open_zip, parse_json, private_copy, read_member

__all__ = [
    "CHECKED_FACTS",
    "MODULE",
    "PROGRAM",
    "folder_reader",
    "is_artifact",
    "map_files",
    "read_files",
    "write_files",
]

PROGRAM = "tvmtarget.artifact"
MODULE = "tvmtarget.module"
SCHEMA = 1
CHECKED_FACTS = frozenset({"format", "schema", "files"})  # entries of a manifest that are checked here

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
    """Write an archive of files atomically, with a manifest of their digests.

    Args:
        path: the archive.
        files: contents by name.
        form: PROGRAM or MODULE.
        facts: further entries of the manifest.

    Raises:
        ArtifactError: the archive cannot be written.
    """
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    manifest = {"format": form, "schema": SCHEMA, **facts, "files": digests}
    members = {_MANIFEST: json.dumps(manifest, indent=1, sort_keys=True).encode(), **dict(sorted(files.items()))}
    try:
        with atomic_write(path) as file, zipfile.ZipFile(file, "w") as archive:
            for name, data in members.items():
                info = zipfile.ZipInfo(name, _EPOCH)
                info.compress_type = zipfile.ZIP_DEFLATED if form == PROGRAM else zipfile.ZIP_STORED
                info.extra = b"" if form == PROGRAM else _padding(file.tell(), name, len(data))
                archive.writestr(info, data)
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error


def _padding(offset: int, name: str, size: int) -> bytes:
    """Return the extra field that aligns the data of a member, which begins at `offset`, to 64 bytes."""
    fixed = offset + _LOCAL_HEADER.size + len(name.encode()) + _PADDING.size
    if size * 1.05 > zipfile.ZIP64_LIMIT:
        fixed += _ZIP64_FIELD
    length = -fixed % _ALIGNMENT
    return _PADDING.pack(_PADDING_ID, length) + bytes(length)


def read_files(path: Path, form: str = PROGRAM) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read a saved program and verify its digests.

    Args:
        path: the archive.
        form: PROGRAM or MODULE.

    Returns:
        The manifest, and the contents of the files by name.

    Raises:
        ArtifactError: the archive is missing, damaged, altered, or exceeds a limit of docs/limits.md.
    """
    return _checked(path, form, lambda archive, info, place: read_member(archive, info, place))


def folder_reader(files: Mapping[str, bytes]) -> Callable[[str], dict[str, bytes]]:
    """Return a function that looks up the files of a folder without a walk over all files.

    Args:
        files: contents by name, as `read_files` returns them.

    Returns:
        A function from the name of a folder, with `/` at its end, to contents by names within it.
    """
    names = sorted(files)

    def read(folder: str) -> dict[str, bytes]:
        first = bisect_left(names, folder)
        found = takewhile(lambda name: name.startswith(folder), (names[at] for at in range(first, len(names))))
        return {name.removeprefix(folder): files[name] for name in found}

    return read


def map_files(path: Path, form: str = MODULE) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """Read a saved module as views of one private copy, and verify its digests.

    Changes of the file after the call have no effect on the views.

    Args:
        path: the archive.
        form: MODULE.

    Returns:
        The manifest, and the contents of the files by name.

    Raises:
        ArtifactError: the archive is missing, damaged, altered, or exceeds a limit of docs/limits.md.
    """
    whole: list[memoryview] = []

    def view(archive: zipfile.ZipFile, info: zipfile.ZipInfo, place: str) -> memoryview:
        if not whole:
            stream = cast("BinaryIO", archive.fp)
            try:
                whole.append(private_copy(stream, 0, os.fstat(stream.fileno()).st_size))
            except (OSError, EOFError) as cause:
                raise FileError(f"{place} cannot be read: {cause}") from cause
        return _view(whole[0], info, place)

    return _checked(path, form, view)


def _view(whole: memoryview, info: zipfile.ZipInfo, place: str) -> memoryview:
    problem = f"{place} is damaged: {info.filename!r}"
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise FileError(f"{problem} is compressed; a saved module is not", member=info.filename)
    if info.header_offset + _LOCAL_HEADER.size > len(whole):
        raise FileError(f"{problem} is cut off", member=info.filename, offset=info.header_offset)
    *_, name, extra = _LOCAL_HEADER.unpack_from(whole, info.header_offset)
    begin = info.header_offset + _LOCAL_HEADER.size + name + extra
    if begin + info.file_size > len(whole):
        raise FileError(f"{problem} is cut off", member=info.filename, offset=begin)
    return whole[begin : begin + info.file_size]


def _checked(
    path: Path, form: str, read: Callable[[zipfile.ZipFile, zipfile.ZipInfo, str], _B]
) -> tuple[dict[str, Any], dict[str, _B]]:
    """Read all files of an archive, and compare their digests with those of the manifest."""
    what = _NAMES[form]
    place = f"{what} {str(path)!r}"
    try:
        with open_regular(path, what) as stream, open_zip(stream, place) as archive:
            members = {info.filename: info for info in archive.infolist()}
            manifest = _manifest(archive, members.pop(_MANIFEST, None), form, place)
            files = {name: read(archive, info, place) for name, info in members.items()}
        digests = manifest["files"]
        if set(digests) != set(files):
            name = min(set(digests) ^ set(files))
            raise FileError(f"{place} is damaged: {name!r} is not both in it and in its manifest", member=name)
        for name, data in files.items():
            if hashlib.sha256(data).hexdigest() != digests[name]:
                raise FileError(f"{place} is damaged: {name!r} does not have the digest in the manifest", member=name)
    except FileError as error:
        fix = f"; {_WRITERS[form]}" if isinstance(error.__cause__, FileNotFoundError) else ""
        if not fix and path.suffix == ".onnx":
            fix = "; an ONNX model is read by IRModule.from_onnx, and compiled by tvmtarget compile"
        raise ArtifactError(f"{error}{fix}", path=str(path), member=error.member, offset=error.offset) from error
    return manifest, files


def _manifest(archive: zipfile.ZipFile, info: zipfile.ZipInfo | None, form: str, place: str) -> dict[str, Any]:
    """Read and check the manifest before any other file of the archive."""
    if info is None:
        raise FileError(f"{place} is damaged, or something else: it has no {_MANIFEST!r}")
    check_limit("manifest-bytes", info.file_size, f"{_MANIFEST!r} of {place}")
    manifest = parse_json(read_member(archive, info, place), f"{_MANIFEST!r} of {place}")
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise FileError(f"{place} is damaged: its manifest lists no files", member=_MANIFEST)
    found, schema = manifest.get("format"), manifest.get("schema")
    if isinstance(found, str) and found in _USES.keys() - {form}:
        file = place.removeprefix(f"{_NAMES[form]} ")
        raise FileError(f"{file} is not a {_NAMES[form]} but a {_USES[found]}")
    if found != form or schema != SCHEMA:
        raise FileError(f"{place} is {found!r} schema {schema!r}; this version reads {form!r} schema {SCHEMA}")
    return manifest


_NAMES = {PROGRAM: "saved program", MODULE: "saved module"}
_USES = {
    PROGRAM: "compiled program; tvmtarget inspect describes it, and tvmtarget run and tvmtarget.load read it",
    MODULE: "saved module or plan; tvmtarget explain reports on a plan, tvmtarget compile compiles it, and "
    "IRModule.load and Plan.load read them",
}
_WRITERS = {
    PROGRAM: "write one with tvmtarget compile or Executable.save",
    MODULE: "write one with IRModule.save",
}


def is_artifact(path: Path) -> bool:
    """Whether a file begins like a saved program.

    Such a file is a zip file whose first member is the manifest.

    Args:
        path: the file.

    Returns:
        False also for files that cannot be read.
    """
    name = _MANIFEST.encode()
    try:
        with open_regular(path) as file:
            head = file.read(_LOCAL_HEADER.size + len(name))
            return head.startswith(_ZIP) and head.endswith(name)
    except FileError:
        return False
