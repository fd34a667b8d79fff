"""A module in one file: its JSON form and the bytes of its constants, each once, named by digest.

The file is a zip with uncompressed members. Constants have the layout of `tensors.py`, so that arrays are views of one
copy of the file. No pickle is read or written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmtarget.artifact import CHECKED_FACTS, MODULE, map_files, write_files
from tvmtarget.errors import ArtifactError, TvmTargetError
from tvmtarget.ir.function import Function
from tvmtarget.ir.json_form import read_module
from tvmtarget.ir.tensors import bytes_of
from tvmtarget.target.tree import Target

__all__ = ["read_archive", "write_archive"]

_MODULE = "module.json"
_CONSTANTS = "constants/"


def write_archive(path: Path, module: dict[str, object], constants: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write a module into a file; the previous file stays until the new one is complete.

    Args:
        path: file to write.
        module: JSON form of the module.
        constants: arrays by SHA-256 digest.
    """
    # Sorted and without blanks, so that equal modules give equal bytes.
    text = json.dumps(module, sort_keys=True, separators=(",", ":"))
    files: dict[str, bytes | memoryview] = {_MODULE: text.encode()}
    files |= {f"{_CONSTANTS}{digest}": bytes_of(array) for digest, array in constants.items()}
    write_files(path, files, form=MODULE)


def read_archive(path: Path) -> tuple[tuple[Function, ...], Target | None, dict[str, object]]:
    """Read a saved module.

    Args:
        path: file written by `write_archive`.

    Returns:
        Functions, target and attributes; constants are views of a private copy of the file.

    Raises:
        ArtifactError: the file is damaged, has members that do not belong to a module, or holds no valid module.
    """
    manifest, files = map_files(path)
    name = repr(str(path))
    if unknown := sorted(manifest.keys() - CHECKED_FACTS):
        raise ArtifactError(f"{name} cannot be read: its manifest has the unknown field {unknown[0]!r}")
    constants: dict[str, np.ndarray[Any, Any]] = {}
    for member, data in files.items():
        digest = member.removeprefix(_CONSTANTS)
        if digest == member and member != _MODULE:
            raise ArtifactError(f"{name} is damaged: {member!r} does not belong to a saved module")
        if digest != member:
            if manifest["files"][member] != digest:
                raise ArtifactError(f"{name} is damaged: {member!r} does not have the digest it is named by")
            constants[digest] = np.frombuffer(data, np.uint8)
    if _MODULE not in files:
        raise ArtifactError(f"{name} is damaged: it holds no {_MODULE!r}")
    try:
        return read_module(bytes(files[_MODULE]), constants)
    except TvmTargetError as error:
        raise ArtifactError(f"{name} holds no module that can be read: {error}") from error
