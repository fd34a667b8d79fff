"""The one door for plugins: entry points, read at first use, and what a program registers while it runs.

A duplicate is an error naming both owners, for whom asks for that name. A plugin that is broken is reported and left
out, and stops nothing that does not need it.

Groups: `tvmtarget.kinds` (tables of kinds), `tvmtarget.tags` (folders of tags), `tvmtarget.registry` (which tags a text
may name), `tvmtarget.strategies` (what a code generator takes), `tvmtarget.backends` (who compiles it) and
`tvmtarget.logs` (who opens a tuning log at a URL). The library's own come through the same door.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, distributions
from typing import Any, TypeVar, cast

from tvmtarget.errors import BackendError, PluginWarning, TargetError, warn

__all__ = ["cached", "load", "names", "owner", "register", "registered_in", "report"]

_F = TypeVar("_F", bound=Callable[..., Any])

_registered: dict[tuple[str, str], Any] = {}
_registrants: dict[tuple[str, str], str] = {}
_emptied: list[Callable[[], None]] = []
_reported: set[str] = set()


def cached(function: _F) -> _F:
    """Cache a function that reads plugins: what it returned is forgotten when one is registered."""
    kept = cache(function)
    _emptied.append(kept.cache_clear)
    return cast(_F, kept)


def register(group: str, name: str, value: object) -> None:
    """Add a plugin to this process, or exchange one that was added so; `TargetError` if a package has that name."""
    if name in _group(group):
        raise TargetError(f"{group} {name!r} is registered already, by {owner(group, name)}")
    _registered[group, name] = value
    _registrants[group, name] = _caller()
    for empty in _emptied:
        empty()


def registered_in(kinds: Collection[str]) -> tuple[str, ...]:
    """Return the modules of the running program that registered plugins for some kinds of targets.

    Another process must import these to know the kinds.
    """
    added = _registered.items()
    wanted = [key for key, value in added if key[1] in kinds or set(kinds).intersection(getattr(value, "kinds", ()))]
    return tuple(sorted({_registrants[key] for key in wanted}))


def _caller() -> str:
    """Return the name of the module outside of this library that is calling."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "tvmtarget":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "__main__"))


@cache
def _installed() -> tuple[EntryPoint, ...]:
    """Return the entry points of all packages that have some for us; of one name, the first on the path.

    A package whose metadata cannot be read costs itself alone.
    """
    found: dict[str, EntryPoints] = {}
    for package in distributions():
        try:
            if "tvmtarget." in (package.read_text("entry_points.txt") or ""):
                found.setdefault(package.name, package.entry_points)
        except Exception as error:  # other packages' metadata can be damaged in any way
            place = getattr(package, "_path", None)  # its name may be what cannot be read
            report(f"the metadata of an installed package cannot be read ({place}): {error}")
    return tuple(point for points in found.values() for point in points)


@cache
def _group(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """Return the entry points of a group by name; those of several packages that differ stand under one name."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in (point for point in _installed() if point.group == group):
        known = found.setdefault(point.name, (point,))
        if point.value not in {one.value for one in known}:
            found[point.name] = (*known, point)
    return found


def report(problem: str) -> None:
    """Warn of a plugin that cannot be used; each problem is reported once in a process."""
    if problem not in _reported:
        _reported.add(problem)
        warn(f"{problem}; it is left out", PluginWarning)


def owner(group: str, name: str) -> str:
    """Return who registered a plugin, for messages."""
    points = _group(group).get(name)
    return _registrants.get((group, name), name) if points is None else " and by ".join(map(_owner, points))


def _owner(point: EntryPoint) -> str:
    return f"{point.dist.name} ({point.value})" if point.dist else point.value


def names(group: str) -> tuple[str, ...]:
    """List the names registered in an entry-point group, sorted."""
    added = {name for of, name in _registered if of == group}
    return tuple(sorted(added.union(_group(group))))


@cached
def load(group: str, name: str) -> Any:  # noqa: ANN401 - each group has its own protocol
    """Load one plugin by name.

    Raises:
        KeyError: nobody registered it.
        BackendError: it does not import, or two packages registered it.
    """
    if (group, name) in _registered:
        return _registered[group, name]
    point, *others = _group(group)[name]
    if others:
        raise BackendError(f"{group} {name!r} is registered twice: by {owner(group, name)}")
    try:
        return point.load()
    except Exception as error:  # a foreign module can raise anything when it is imported
        raise BackendError(f"plugin {name!r} of {_owner(point)} does not load: {error}") from error
