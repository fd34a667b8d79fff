"""The one door for plugins: entry points, read at first use; a duplicate is an error naming both owners.

Groups: `tvmtarget.kinds` (tables of kinds), `tvmtarget.tags` (folders of tags), `tvmtarget.registry` (which tags a text
may name), `tvmtarget.strategies` (what a code generator takes), `tvmtarget.backends` (who compiles it) and
`tvmtarget.logs` (who opens a tuning log at a URL). The library's own come through the same door.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, distributions
from typing import Any

from tvmtarget.errors import BackendError, TargetError

__all__ = ["load", "names"]


@cache
def _installed() -> tuple[EntryPoint, ...]:
    """Return the entry points of all packages that have some for us; of one name, the first on the path."""
    found: dict[str, EntryPoints] = {}
    for package in distributions():
        if "tvmtarget." in (package.read_text("entry_points.txt") or ""):
            found.setdefault(package.name, package.entry_points)
    return tuple(point for points in found.values() for point in points)


@cache
def _group(group: str) -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for point in (point for point in _installed() if point.group == group):
        known = found.setdefault(point.name, point)
        if known.value != point.value:
            raise TargetError(f"{group} {point.name!r} is registered twice: by {_owner(known)} and by {_owner(point)}")
    return found


def _owner(point: EntryPoint) -> str:
    return f"{point.dist.name} ({point.value})" if point.dist else point.value


def names(group: str) -> tuple[str, ...]:
    """List the names registered in an entry-point group, sorted."""
    return tuple(sorted(_group(group)))


@cache
def load(group: str, name: str) -> Any:  # noqa: ANN401 - each group has its own protocol
    """Load one plugin by name; `KeyError` if nobody registered it, `BackendError` if it does not import."""
    point = _group(group)[name]
    try:
        return point.load()
    except Exception as error:  # whatever somebody else's module does when it is imported
        raise BackendError(f"plugin {name!r} of {_owner(point)} does not load: {error}") from error
