"""Plugins of all groups: entry points of installed packages, and objects registered while a program runs.

Everything extensible is found here, the parts of this library included. An entry point is loaded when its name is
first used. Two packages that register one name are an error for the program that uses that name, and a plugin that
does not load is reported and left out; neither stops a program that does not need it.

| group | an entry point is |
|---|---|
| `tvmtarget.kinds` | a tuple of `Kind` |
| `tvmtarget.tags` | a folder of tag files |
| `tvmtarget.registry` | a function that returns the tags that a text may name |
| `tvmtarget.strategies` | a `Strategy`: what a code generator supports |
| `tvmtarget.backends` | a `Backend`: compiles functions and runs them |
| `tvmtarget.executors` | a `ProgramExecutor`: compiles systems of an executor kind |
| `tvmtarget.runtimes` | a `ProgramRuntime`: where a program of a runtime kind runs |
| `tvmtarget.logs` | a function that opens the tuning log at a URL |
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any, NamedTuple, TypeVar, cast

from tvmtarget.errors import BackendError, PluginWarning, TargetError, TvmTargetError, first_line, warn

__all__ = [
    "cached",
    "defining_module",
    "generation",
    "import_registering",
    "is_imported_by_worker",
    "is_registered",
    "load",
    "names",
    "owner_of",
    "register",
    "registering_modules",
    "report",
]

_F = TypeVar("_F", bound=Callable[..., Any])

_registered: dict[tuple[str, str], Any] = {}
_owners: dict[tuple[str, str], str] = {}  # modules, by the keys of `_registered`
_cache_clears: list[Callable[[], None]] = []
_reported: set[str] = set()


def cached(function: _F) -> _F:
    """Cache a function that reads plugins; registering a plugin empties the cache.

    Args:
        function: a function of hashable arguments.

    Returns:
        The function with a cache.
    """
    with_cache = cache(function)
    _cache_clears.append(with_cache.cache_clear)
    return cast(_F, with_cache)


@cached
def generation() -> object:
    """Return an object that stands for the plugins of this process; registering one replaces it.

    Returns:
        The same object at every call until a plugin is registered.
    """
    return object()


def register(group: str, name: str, value: object, *, owner: str = "") -> None:
    """Add a plugin to this process, or replace one that was added so.

    Args:
        group: the entry-point group, such as `tvmtarget.backends`.
        name: the name within the group.
        value: the plugin, as its entry point would load it.
        owner: name of the module whose import registers the plugin; other processes import it to know the plugin.
            By default, the module that defines `value` or its class.

    Raises:
        TargetError: an installed package registers that name.
    """
    if name in _group(group):
        raise TargetError(f"{group} {name!r} is registered already, by {owner_of(group, name)}")
    _registered[group, name] = value
    _owners[group, name] = owner or defining_module(value)
    for clear in _cache_clears:
        clear()


def defining_module(value: object) -> str:
    """Return the module of a program that defines a plugin.

    Args:
        value: a class or function, or an instance of the class to look at.

    Returns:
        The name of the module. It is `__main__` for an object that this library or Python made, such as a strategy
        from an operator table: the main module imports, directly or not, the modules that register plugins.
    """
    module = str((value if hasattr(value, "__qualname__") else type(value)).__module__)
    package = module.partition(".")[0]
    return "__main__" if package == "tvmtarget" or package in sys.stdlib_module_names else module


def is_registered(group: str, name: str) -> bool:
    """Return whether the running program registered a plugin, and no installed package.

    Args:
        group: a group of plugins.
        name: the name of the plugin.

    Returns:
        True if `register` was called for it.
    """
    return (group, name) in _registered


def registering_modules(kinds: Collection[str]) -> list[dict[str, str]]:
    """List the modules of the running program that registered plugins for some kinds.

    Args:
        kinds: names of kinds.

    Returns:
        Modules as `import_registering` takes them, sorted; another process must import them to know the kinds.
    """
    keys = [key for key, value in _registered.items() if not set(kinds).isdisjoint(_kinds_of(*key, value))]
    return [_importable(name) for name in sorted({_owners[key] for key in keys})]


def _importable(name: str) -> dict[str, str]:
    """Describe a module so that another process can import it; the main module by its specification or file."""
    if name != "__main__":
        return {"name": name}
    main = sys.modules[name]
    specification = getattr(main, "__spec__", None)
    if specification is not None:
        return {"main": specification.name}
    return {"file": os.path.abspath(str(getattr(main, "__file__", "")))}


_imports = 0  # modules of the parent process that are being imported


def import_registering(module: Mapping[str, str]) -> None:
    """Import a module of the parent process that registers plugins.

    The main module becomes `__mp_main__`, as `multiprocessing` has it.

    Args:
        module: what `registering_modules` returned there.

    Raises:
        BackendError: it is a main module that is no file.
    """
    global _imports
    import runpy  # only processes that are started by others need it

    _imports += 1
    try:
        if "name" in module:
            import_module(module["name"])
        elif "main" in module:
            runpy.run_module(module["main"], run_name="__mp_main__", alter_sys=True)
        elif os.path.isfile(module["file"]):
            runpy.run_path(module["file"], run_name="__mp_main__")
        else:
            raise BackendError(
                "the main module registers plugins, and is no file that other processes can import; register them in a "
                "module of their own"
            )
    finally:
        _imports -= 1


def is_imported_by_worker() -> bool:
    """Return whether a module of the parent process is imported just now.

    It must not start processes itself, which would import it again.

    Returns:
        True while `import_registering` runs.
    """
    return _imports > 0


def _kinds_of(group: str, name: str, value: Any) -> Collection[str]:  # noqa: ANN401 - each group has its own protocol
    """Return the kinds of a plugin: a backend lists them, and those of other groups are named after their kind."""
    return tuple(value.kinds) if group == "tvmtarget.backends" else (name,)


class _EntryPoint(NamedTuple):
    """One entry point of one of our groups; `value` is `module:object`, `package` the normalized name of its package.

    `importlib.metadata` has a class for it, but takes longer to import than all entry points take to read.
    """

    group: str
    name: str
    value: str
    package: str

    def load(self) -> Any:  # noqa: ANN401 - each group has its own protocol
        """Import the object."""
        module, _, attributes = self.value.partition("[")[0].partition(":")
        found: Any = import_module(module.strip())
        for attribute in filter(None, attributes.strip().split(".")):
            found = getattr(found, attribute)
        return found


@cache
def _installed() -> tuple[_EntryPoint, ...]:
    """Return the entry points of this library's groups; of packages of one name, those of the first on the path.

    Raises:
        BackendError: this library itself is not installed, so that its own kinds and backends are unknown.
    """
    found: dict[str, Sequence[_EntryPoint]] = {}
    for finder in sys.meta_path:
        find = getattr(finder, "find_distributions", None)
        for package, place, content in _files_on_path() if finder is PathFinder else _files_of(find):
            if package not in found:
                try:
                    found[package] = [*_read_points(package, content.decode())]
                except ValueError as error:  # files of other packages can be damaged in any way
                    report(f"the metadata of an installed package cannot be read ({place}): {error}")
    if "tvmtarget" not in found:
        raise BackendError("tvmtarget is imported from a folder but not installed; run `pip install` with that folder")
    return tuple(point for points in found.values() for point in points)


def _files_on_path() -> Iterator[tuple[str, str, bytes]]:
    """Yield the packages with entry points of ours on `sys.path`: normalized name, and place and content of the file.

    They are those that `importlib.metadata` finds. It makes several objects for each installed package, and this runs
    whenever a process reads its first target, mostly among a hundred packages without any entry point of ours.
    """
    for folder in filter(lambda entry: isinstance(entry, str), sys.path):  # as Python does, which ignores others
        try:
            children = os.listdir(folder or ".")
        except OSError:
            if os.path.isfile(folder):
                yield from _files_of_archive(folder)
            continue
        for child in children:
            low = child.lower()
            if low.endswith((".dist-info", ".egg-info")):
                name = child.rpartition(".")[0].partition("-")[0]
            elif low == "egg-info" and folder.lower().endswith(".egg"):
                name = os.path.basename(folder).partition("-")[0]
            else:
                continue
            place = f"{folder or '.'}/{child}/entry_points.txt"
            try:
                with open(place, "rb", buffering=0) as file:
                    content = file.read()
            except OSError:  # most packages have none
                continue
            if b"tvmtarget." in content:
                yield _normalized(name), place, content


def _files_of_archive(path: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield what `_files_on_path` does for an archive of packages, such as a wheel on `sys.path`."""
    from importlib.metadata import DistributionFinder, MetadataPathFinder

    context = DistributionFinder.Context(path=[path])
    yield from _files_of(lambda _: MetadataPathFinder.find_distributions(context))


def _files_of(find: Callable[[Any], Any] | None) -> Iterator[tuple[str, str, bytes]]:
    """Yield what `_files_on_path` does for the packages of another finder of modules, if it finds packages at all."""
    if find is None:
        return
    from importlib.metadata import DistributionFinder

    for package in find(DistributionFinder.Context()):
        place = str(getattr(package, "_path", package))  # the name may be what cannot be read
        try:
            text = package.read_text("entry_points.txt") or ""
            if "tvmtarget." in text:
                yield _normalized(package.name), place, text.encode()
        except Exception as error:  # finders and metadata of others can fail in any way
            report(f"the metadata of an installed package cannot be read ({place}): {error}")


def _normalized(name: str) -> str:
    """Return the name of a package as PEP 503 compares it, without a pattern, whose compilation takes longer."""
    return "-".join(filter(None, name.lower().replace("_", "-").replace(".", "-").split("-")))


def _read_points(package: str, text: str) -> Iterator[_EntryPoint]:
    """Parse a file of entry points (packaging.python.org/specifications/entry-points) as far as groups are ours."""
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif group.startswith("tvmtarget.") and line and not line.startswith(("#", ";")):
            name, sign, value = map(str.strip, line.partition("="))
            if not sign:
                raise ValueError(f"{line!r} in {group} is no entry point")
            yield _EntryPoint(group, name, value, package)


@cache
def _group(group: str) -> dict[str, tuple[_EntryPoint, ...]]:
    """Return the entry points of a group by name; more than one where packages register different objects."""
    found: dict[str, tuple[_EntryPoint, ...]] = {}
    for point in (point for point in _installed() if point.group == group):
        known = found.setdefault(point.name, (point,))
        if point.value not in {one.value for one in known}:
            found[point.name] = (*known, point)
    return found


def report(problem: str) -> None:
    """Warn that a plugin cannot be used and is left out, once for each problem.

    Args:
        problem: what is wrong, naming the plugin and its owner.
    """
    if problem not in _reported:
        _reported.add(problem)
        warn(f"{problem}; it is left out", PluginWarning)


def owner_of(group: str, name: str) -> str:
    """Return who registered a plugin, for messages.

    Args:
        group: the entry-point group.
        name: the name within the group.

    Returns:
        The package and object of each entry point of that name, or the module that registered it at run time.
    """
    points = _group(group).get(name)
    return _owners.get((group, name), name) if points is None else " and by ".join(map(_package_of, points))


def _package_of(point: _EntryPoint) -> str:
    return f"{point.package} ({point.value})"


def names(group: str) -> tuple[str, ...]:
    """List the names registered in an entry-point group, by packages and by this program.

    Args:
        group: the entry-point group.

    Returns:
        The names, sorted.
    """
    added = {name for of, name in _registered if of == group}
    return tuple(sorted(added.union(_group(group))))


@cached
def load(group: str, name: str) -> Any:  # noqa: ANN401 - each group has its own protocol
    """Load one plugin by name.

    Args:
        group: the entry-point group.
        name: the name within the group.

    Returns:
        The object of the entry point, or the one registered at run time.

    Raises:
        KeyError: no package and no module registered it.
        BackendError: it does not import, or two packages registered it.
    """
    if (group, name) in _registered:
        return _registered[group, name]
    point, *others = _group(group)[name]
    if others:
        raise BackendError(f"{group} {name!r} is registered twice: by {owner_of(group, name)}")
    try:
        return point.load()
    except Exception as error:  # a foreign module can raise anything when it is imported
        why = "; ".join(error.problems) if isinstance(error, TvmTargetError) else first_line(error)
        raise BackendError(f"plugin {name!r} of {_package_of(point)} does not load: {why}") from error
