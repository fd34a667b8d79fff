"""Find the layers of tags, lowest first: library, packages, user, `TVMTARGET_PATH`, project."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tvmtarget import plugins
from tvmtarget.errors import FileError, TargetError, TvmTargetError
from tvmtarget.tags.compiled import CompiledLayer
from tvmtarget.tags.layers import CodeLayer, FileLayer, Layer
from tvmtarget.untrusted import read_bytes

if TYPE_CHECKING:
    from tvmtarget.tags.commands import CommandRow

__all__ = ["configured_commands", "discover_layers", "shipped_folder", "user_folder"]

PROJECT_FILE = "tvmtarget.toml"


def discover_layers(cwd: Path | None, environ: Mapping[str, str]) -> Iterator[Layer]:
    """Find the layers of tags that apply in a folder.

    Args:
        cwd: The working folder, where the search for a project starts; None if it no longer exists.
        environ: The environment variables.

    Yields:
        The layers, lowest first. A layer that cannot be found has no tags but a problem, so that it does not disable
        the others.
    """
    shipped = shipped_folder()
    yield CompiledLayer("tvmtarget", shipped, is_checked=shipped.name == "tags")
    yield from _packages()
    yield FileLayer("user", folder=user_folder(environ))
    for folder in filter(None, environ.get("TVMTARGET_PATH", "").split(os.pathsep)):
        yield _folder("TVMTARGET_PATH", Path(folder))
    project = None if cwd is None else _project_file(cwd)
    if project is not None:
        yield FileLayer(f"project {project}", files=[project])


def configured_commands(cwd: Path | None, environ: Mapping[str, str]) -> tuple[CommandRow, ...]:
    """Read the commands for code of other machines that apply in a folder.

    Args:
        cwd: The working folder, where the search for a project starts; None if it no longer exists.
        environ: The environment variables.

    Returns:
        The rows of the project's file, then those of `tvmtarget.toml` beside the user's tags.

    Raises:
        TargetError: A file cannot be read, or a row is no command of a triple.
    """
    from tvmtarget.tags.commands import read_commands

    project = None if cwd is None else _project_file(cwd)
    own = user_folder(environ).parent / PROJECT_FILE
    rows = () if project is None else read_commands(project, project.parent)
    return (*rows, *(read_commands(own, None) if own.is_file() else ()))


def _packages() -> Iterator[Layer]:
    try:
        names = plugins.names("tvmtarget.tags")
    except TvmTargetError as error:
        yield CodeLayer("packages", {}, error.problems)
        return
    for name in names:
        try:
            yield _folder(f"package {name}", _folder_of(name))
        except TvmTargetError as error:
            yield CodeLayer(f"package {name}", {}, error.problems)


def _folder(label: str, folder: Path) -> Layer:
    """Return the layer of a configured folder; a missing one is a problem."""
    if not os.path.isdir(folder):
        return CodeLayer(label, {}, [f"{label} names {str(folder)!r}, which is not a folder"])
    return FileLayer(f"{label} {folder}", folder=folder)


def shipped_folder() -> Path:
    """Find the folder of the library's tag files.

    Returns:
        `tags/` of a checkout, else the copy in the installed package.
    """
    # An editable install leaves a stale copy of the tags in the package, so a checkout's own folder has priority.
    package = Path(__file__).resolve().parents[1]
    own = package.parent / "tags"
    return own if (package.parent / "pyproject.toml").is_file() and own.is_dir() else package / "_tags"


def user_folder(environ: Mapping[str, str]) -> Path:
    """Find the folder of the user's own tag files.

    Args:
        environ: The environment variables.

    Returns:
        The folder by the conventions of the operating system, which need not exist.
    """
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or Path.home())
    if sys.platform == "darwin":
        return home / "Library/Application Support/tvmtarget/tags"
    if sys.platform == "win32":
        return Path(environ.get("APPDATA") or home / "AppData/Roaming") / "tvmtarget/tags"
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "tvmtarget/tags"


def _folder_of(plugin: str) -> Path:
    """Return the folder that the entry point of a package names."""
    folder = plugins.load("tvmtarget.tags", plugin)
    if not isinstance(folder, str | os.PathLike):
        raise TargetError(f"entry point {plugin!r} of tvmtarget.tags is the path of a folder, not {folder!r}")
    return Path(folder)


def _project_file(cwd: Path) -> Path | None:
    """Return the nearest `tvmtarget.toml`, or `pyproject.toml` with our table, in a folder or one above."""
    for folder in (cwd, *cwd.parents):
        if (folder / PROJECT_FILE).is_file():
            return folder / PROJECT_FILE
        project = folder / "pyproject.toml"
        if project.is_file():
            # The nearest pyproject.toml marks the root of the project, so the search ends there in any case.
            return project if _is_ours(project) else None
    return None


def _is_ours(project: Path) -> bool:
    # A search for the bytes costs much less than parsing TOML, at the price of a match in a comment, which is harmless.
    try:
        return b"[tool.tvmtarget" in read_bytes(project, most="target-bytes")
    except FileError:
        return False
