"""Where tags come from, lowest layer first: the library's, packages', the user's, `TVMTARGET_PATH`, the project's."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tvmtarget import plugins
from tvmtarget.errors import FileError, TargetError, TvmTargetError
from tvmtarget.tags.compiled import Compiled
from tvmtarget.tags.layers import Files, Given, Layer
from tvmtarget.untrusted import read_bytes

__all__ = ["layers", "shipped_folder", "user_folder"]

PROJECT_FILE = "tvmtarget.toml"


def layers(cwd: Path | None, environ: Mapping[str, str]) -> Iterator[Layer]:
    """Yield the layers that are seen from a folder, with the environment's variables.

    What is not there as it should be is a layer without tags, so that the others are found; without a folder, as
    where it has been removed, there is no project.
    """
    shipped = shipped_folder()
    yield Compiled("tvmtarget", shipped, is_checked=shipped.name == "tags")
    yield from _packages()
    yield Files("user", folder=user_folder(environ))
    for folder in filter(None, environ.get("TVMTARGET_PATH", "").split(os.pathsep)):
        yield _folder("TVMTARGET_PATH", Path(folder))
    project = None if cwd is None else _project_file(cwd)
    if project is not None:
        yield Files(f"project {project}", files=[project])


def _packages() -> Iterator[Layer]:
    try:
        names = plugins.names("tvmtarget.tags")
    except TvmTargetError as error:
        yield Given("packages", {}, error.problems)
        return
    for name in names:
        try:
            yield _folder(f"package {name}", _folder_of(name))
        except TvmTargetError as error:
            yield Given(f"package {name}", {}, error.problems)


def _folder(label: str, folder: Path) -> Layer:
    """Return the tags of a folder that somebody named, so that it should be there."""
    if not os.path.isdir(folder):
        return Given(label, {}, [f"{label} names {str(folder)!r}, which is no folder"])
    return Files(f"{label} {folder}", folder=folder)


def shipped_folder() -> Path:
    """A checkout's own `tags/` wins over the copy in the wheel, which an editable install leaves stale."""
    package = Path(__file__).resolve().parents[1]
    own = package.parent / "tags"
    return own if (package.parent / "pyproject.toml").is_file() and own.is_dir() else package / "_tags"


def user_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of a user's own tag files, as the system's conventions have it; it need not be there."""
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or Path.home())
    if sys.platform == "darwin":
        return home / "Library/Application Support/tvmtarget/tags"
    if sys.platform == "win32":
        return Path(environ.get("APPDATA") or home / "AppData/Roaming") / "tvmtarget/tags"
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "tvmtarget/tags"


def _folder_of(plugin: str) -> Path:
    """Return the folder that a package's entry point gives."""
    folder = plugins.load("tvmtarget.tags", plugin)
    if not isinstance(folder, str | os.PathLike):
        raise TargetError(f"entry point {plugin!r} of tvmtarget.tags is the path of a folder, not {folder!r}")
    return Path(folder)


def _project_file(cwd: Path) -> Path | None:
    """Return the nearest `tvmtarget.toml`, or `pyproject.toml` with a part for us, of a folder and those above."""
    for folder in (cwd, *cwd.parents):
        if (folder / PROJECT_FILE).is_file():
            return folder / PROJECT_FILE
        project = folder / "pyproject.toml"
        if project.is_file():
            return project if _is_ours(project) else None
    return None


def _is_ours(project: Path) -> bool:
    try:
        return b"[tool.tvmtarget" in read_bytes(project, most="target-bytes")
    except FileError:
        return False
