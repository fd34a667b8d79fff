"""Check a tag file: read, build, resolve and print every row, and read it back."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from tvmtarget.errors import TvmTargetError, did_you_mean
from tvmtarget.tags.discovery import shipped_folder
from tvmtarget.tags.files import TagInfo, is_project_file, locations
from tvmtarget.tags.layers import FileLayer
from tvmtarget.tags.registry import Registry, default_registry
from tvmtarget.target.tree import Target

__all__ = ["check_file"]


def check_file(path: Path | str) -> list[str]:
    """Check a tag file together with the tags of the library.

    Args:
        path: A file of a namespace, or a project's file.

    Returns:
        All problems, each with its tag, file and line; empty if there are none.
    """
    path = Path(path)
    if is_project_file(path):
        layer = FileLayer(str(path), files=[path])
    else:
        layer = FileLayer(str(path), folder=path.parent, only=path)
    is_shipped = path.resolve().parent == shipped_folder().resolve()
    # Only the lowest layer, so that the result does not depend on the user's own tags.
    registry = Registry(*default_registry().layers[:1], *([] if is_shipped else [layer]))
    found = [*layer.problems()]
    location = functools.cache(locations)
    for name in layer.names():
        info = registry.find_info(name)
        if info is not None and info.name == name:
            where = f" (tag {name!r} in {location(info.file)(info)})"
            found += _problems(registry, name, where, is_abstract=info.is_abstract)
            found += [f"{problem}{where}" for problem in _problems_of_aliases(registry, info)]
    return list(dict.fromkeys(found))


def _problems_of_aliases(registry: Registry, info: TagInfo) -> Iterator[str]:
    """Yield the problems of looking a tag up by its aliases, which may be names of tags of the library."""
    own = registry.find_row(info.name)
    for alias in info.aliases:
        row = registry.find_row(alias)
        yield from (problem for problem in (row.problems if row else ()) if own is None or problem not in own.problems)


def _problems(registry: Registry, name: str, where: str, *, is_abstract: bool) -> Iterator[str]:
    try:
        tree = registry.tree(name)
    except TvmTargetError as error:
        yield from error.problems
        return
    if is_abstract:
        return
    info = registry.info(name)
    if not info.sources:
        yield f"a tag needs a source; this tag has none{where}"
    elif not info.confidence:
        yield f"a tag needs a confidence: measured, vendor, derived or assumed{where}"
    try:
        tree.resolve()
    except TvmTargetError as error:
        yield from (f"{problem}{where}" for problem in error.problems)
    # Saved programs and logs store targets as text, so a tag must survive printing.
    if Target.parse(str(tree)) != tree:
        yield f"its text does not read back as an equal tree{where}"
    try:
        tree.part((info.tvm or "").removeprefix(":"))
    except TvmTargetError as error:
        yield from (f"'tvm' names no part: {problem}{where}" for problem in error.problems)
    instead = info.deprecated.partition(":")[0]
    if instead and (instead not in registry or instead == name):
        yield f"'deprecated' names the tag to use instead, not {instead!r}{did_you_mean(instead, registry)}{where}"
    same = info.same_as
    if same and (same not in registry or same == name):
        yield f"'same-as' names another tag of the same board, not {same!r}{did_you_mean(same, registry)}{where}"
