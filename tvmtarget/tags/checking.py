"""Checking a file of tags as a whole: every row is read, built, resolved, and read back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tvmtarget.errors import TvmTargetError, did_you_mean
from tvmtarget.tags.discovery import shipped_folder
from tvmtarget.tags.files import at, is_project_file
from tvmtarget.tags.layers import Files
from tvmtarget.tags.registry import Registry, default_registry
from tvmtarget.target.tree import Target

__all__ = ["check_file"]


def check_file(path: Path | str) -> list[str]:
    """Return all that is wrong with a file, on top of the tags that come with the library."""
    path = Path(path)
    layer = _layer(path)
    is_shipped = path.resolve().parent == shipped_folder().resolve()
    registry = Registry(*default_registry().layers[:1], *([] if is_shipped else [layer]))
    found = [*layer.problems()]
    for name in layer.names():
        info = registry.info_anyway(name)
        if info is not None and info.name == name:
            found += _problems(registry, name, f" (tag {name!r} in {at(info)})", is_abstract=info.is_abstract)
    return list(dict.fromkeys(found))


def _layer(path: Path) -> Files:
    if is_project_file(path):
        return Files(str(path), files=[path])
    return Files(str(path), folder=path.parent, only=path)


def _problems(registry: Registry, name: str, place: str, *, is_abstract: bool) -> Iterator[str]:
    try:
        tree = registry.tree(name)
    except TvmTargetError as error:
        yield from error.problems
        return
    if is_abstract:
        return
    info = registry.info(name)
    if not info.sources:
        yield f"a tag needs a source, of which this has none{place}"
    elif not info.confidence:
        yield f"a tag needs a confidence: measured, vendor, derived or assumed{place}"
    try:
        tree.resolve()
    except TvmTargetError as error:
        yield from (f"{problem}{place}" for problem in error.problems)
    if Target.parse(str(tree)) != tree:
        yield f"its text is not read back as the same tree{place}"
    try:
        tree.part((info.tvm or "").removeprefix(":"))
    except TvmTargetError as error:
        yield from (f"'tvm' names no part: {problem}{place}" for problem in error.problems)
    instead = info.deprecated.partition(":")[0]
    if instead and instead not in registry:
        yield f"'deprecated' names the tag to use instead, not {instead!r}{did_you_mean(instead, registry)}{place}"
