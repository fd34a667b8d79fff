"""A module in one file: its JSON form, and the bytes of its constants, each once, named by their digest.

The file is a zip whose members are stored as they are; the layout within is that of `tensors.py`, so that constants
of any element type are used where they lie in a copy of the file, and no pickle is ever read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmtarget.artifact import MODULE, map_files, write_files
from tvmtarget.errors import ArtifactError, TvmTargetError
from tvmtarget.ir.function import Function
from tvmtarget.ir.json_form import read_module
from tvmtarget.ir.tensors import bytes_of
from tvmtarget.target.tree import Target

__all__ = ["read_archive", "write_archive"]

_MODULE = "module.json"
_CONSTANTS = "constants/"


def write_archive(path: Path, module: dict[str, object], constants: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write the JSON form and the constants, by digest; the old file stays until the new one is complete."""
    text = json.dumps(module, sort_keys=True, separators=(",", ":"))
    files: dict[str, bytes | memoryview] = {_MODULE: text.encode()}
    files |= {f"{_CONSTANTS}{digest}": bytes_of(array) for digest, array in constants.items()}
    write_files(path, files, form=MODULE)


def read_archive(path: Path) -> tuple[tuple[Function, ...], Target | None, dict[str, object]]:
    """Return functions, target and attributes of a saved module; its constants are views of the file."""
    manifest, files = map_files(path)
    name = repr(str(path))
    constants: dict[str, np.ndarray[Any, Any]] = {}
    for member, data in files.items():
        digest = member.removeprefix(_CONSTANTS)
        if digest == member and member != _MODULE:
            raise ArtifactError(f"{name} is damaged: {member!r} is nothing that a saved module holds")
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
