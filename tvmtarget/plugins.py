"""The one door for plugins: entry points, read at first use, and what a program registers while it runs.

A duplicate is an error naming both owners.

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

from tvmtarget.errors import BackendError, TargetError

__all__ = ["cached", "load", "names", "register", "registered_in"]

_F = TypeVar("_F", bound=Callable[..., Any])

_registered: dict[tuple[str, str], Any] = {}
_registrants: dict[tuple[str, str], str] = {}
_emptied: list[Callable[[], None]] = []


def cached(function: _F) -> _F:
    """Cache a function that reads plugins: what it returned is forgotten when one is registered."""
    kept = cache(function)
    _emptied.append(kept.cache_clear)
    return cast(_F, kept)


def register(group: str, name: str, value: object) -> None:
    """Add a plugin to this process, or exchange one that was added so; `TargetError` if a package has that name."""
    if name in _group(group):
        raise TargetError(f"{group} {name!r} is registered already, by {_owner(_group(group)[name])}")
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
    added = {name for of, name in _registered if of == group}
    return tuple(sorted(added.union(_group(group))))


@cached
def load(group: str, name: str) -> Any:  # noqa: ANN401 - each group has its own protocol
    """Load one plugin by name; `KeyError` if nobody registered it, `BackendError` if it does not import."""
    if (group, name) in _registered:
        return _registered[group, name]
    point = _group(group)[name]
    try:
        return point.load()
    except Exception as error:  # whatever somebody else's module does when it is imported
        raise BackendError(f"plugin {name!r} of {_owner(point)} does not load: {error}") from error
