"""Saved programs: one zip file with a manifest of digests; reading parses and verifies, and executes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvmtarget.errors import ArtifactError

__all__ = ["is_artifact", "read_files", "write_files"]

FORMAT = "tvmtarget.artifact"
SCHEMA = 1

_MANIFEST = "manifest.json"
_ZIP = b"PK\x03\x04"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_files(path: Path, files: Mapping[str, bytes], **facts: Any) -> None:  # noqa: ANN401
    """Write files with a manifest of their digests; the old file stays until the new one is complete."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    manifest = {"format": FORMAT, "schema": SCHEMA, **facts, "files": digests}
    members = {_MANIFEST: json.dumps(manifest, indent=1, sort_keys=True).encode(), **dict(sorted(files.items()))}
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, data in members.items():
                    archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def read_files(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the manifest and the files of a saved program; `ArtifactError` if anything is missing or altered."""
    name = repr(str(path))
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member: archive.read(member) for member in archive.namelist()}
    except FileNotFoundError:
        raise ArtifactError(f"no saved program {name}; write one with tvmtarget compile or Executable.save") from None
    except (OSError, zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise ArtifactError(f"{name} is not a saved program, or is damaged: {error}") from error
    try:
        manifest = json.loads(members.pop(_MANIFEST))
        digests = dict(manifest["files"])
        form, schema = manifest["format"], manifest["schema"]
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{name} is not a saved program: it has no manifest that can be read") from error
    if form != FORMAT or schema != SCHEMA:
        raise ArtifactError(f"{name} is {form!r} schema {schema!r}; this version reads {FORMAT!r} schema {SCHEMA}")
    if set(digests) != set(members):
        raise ArtifactError(f"{name} is damaged: it does not hold the files that its manifest lists")
    altered = [member for member, data in members.items() if hashlib.sha256(data).hexdigest() != digests[member]]
    if altered:
        raise ArtifactError(f"{name} is damaged: {altered[0]!r} does not have the digest in the manifest")
    return manifest, members


def is_artifact(path: Path) -> bool:
    """Whether a file begins like a saved program, a zip file, rather than like a model."""
    try:
        with path.open("rb") as file:
            return file.read(len(_ZIP)) == _ZIP
    except OSError:
        return False
