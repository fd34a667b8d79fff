"""Layers of tags: folders of files, a project's own file, and tags given in code; read when they are asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

from tvmtarget.tags.files import TagFile, TagInfo, TagRow, at, namespace_of, read_file

__all__ = ["Files", "Given", "Layer"]


@runtime_checkable
class Layer(Protocol):
    """Tags that may not be defined twice among each other; the layers of a registry lie over each other."""

    label: str

    def find(self, name: str) -> TagRow | None:
        """Return the row of a name or alias."""

    def names(self) -> Iterable[str]:
        """List all names, aliases and abstract tags too."""

    def listed(self) -> Iterable[str]:
        """List the names that stand for themselves: no aliases, no abstract tags, none that is wrong."""

    def namespaces(self) -> Iterable[str]:
        """List what comes before the '/' of its names."""

    def problems(self, name: str | None = None) -> Sequence[str]:
        """List what is wrong with the files: with all, or with those in which a name could be."""


class Files:
    """TOML files: those of a folder by namespace, or some whose tags have their whole names."""

    def __init__(
        self, label: str, *, folder: Path | None = None, files: Sequence[Path] = (), only: Path | None = None
    ) -> None:
        self.label = label
        self._by_namespace: dict[str | None, list[Path]] = {None: list(files)} if files else {}
        found = [only] if only else folder.glob("[!.]*.toml") if folder else ()
        for path in sorted(found, key=lambda path: path.name.split(".")):
            self._by_namespace.setdefault(namespace_of(path), []).append(path)
        self._read: dict[str | None, TagFile] = {}

    def find(self, name: str) -> TagRow | None:
        """Return the row of a name or alias; only the files of its namespace are read."""
        return next((found for key in self._keys(name) if (found := self._load(key).rows.get(name))), None)

    def names(self) -> Iterator[str]:
        """List all names; every file is read."""
        for key in self._by_namespace:
            yield from self._load(key).rows

    def listed(self) -> Iterator[str]:
        """List the names that stand for themselves; every file is read."""
        for key in self._by_namespace:
            for name, row in self._load(key).rows.items():
                if row.info.name == name and not row.info.is_abstract and not row.problems:
                    yield name

    def namespaces(self) -> Iterator[str]:
        """List the namespaces of the folder's files, and those of the tags of the others."""
        for key in self._by_namespace:
            yield from [key] if key is not None else sorted({name.partition("/")[0] for name in self._load(key).rows})

    def problems(self, name: str | None = None) -> Sequence[str]:
        """List what is wrong with the files: with all, or with those in which a name could be."""
        keys = self._by_namespace if name is None else self._keys(name)
        return [problem for key in keys for problem in self._load(key).problems]

    def _keys(self, name: str) -> list[str | None]:
        return [key for key in (None, name.partition("/")[0]) if key in self._by_namespace]

    def _load(self, key: str | None) -> TagFile:
        if key not in self._read:
            self._read[key] = _together([read_file(path, key) for path in self._by_namespace[key]])
        return self._read[key]


class Given:
    """Tags that are given in code: rows by name; or none, and why there are none."""

    def __init__(self, label: str, rows: Mapping[str, TagRow], problems: Sequence[str] = ()) -> None:
        self.label = label
        self._rows = rows
        self._problems = problems

    def find(self, name: str) -> TagRow | None:
        """Return the row of a name."""
        return self._rows.get(name)

    def names(self) -> Iterable[str]:
        """List all names."""
        return self._rows

    def listed(self) -> Iterable[str]:
        """List all names."""
        return self._rows

    @cached_property
    def _namespaces(self) -> list[str]:
        return sorted({name.partition("/")[0] for name in self._rows})

    def namespaces(self) -> Iterable[str]:
        """List what comes before the '/' of its names."""
        return self._namespaces

    def problems(self, name: str | None = None) -> Sequence[str]:
        """List why there are no tags; whose they would have been is not known."""
        return self._problems


def _together(files: Sequence[TagFile]) -> TagFile:
    """Put the rows of several files together; a name that two of them have is a problem of both tags."""
    rows: dict[str, TagRow] = {}
    twice: dict[str, str] = {}
    for file in files:
        for name, row in file.rows.items():
            if name in rows:
                problem = defined_twice(name, rows[name].info, row.info)
                twice |= {rows[name].info.name: problem, row.info.name: problem}
            rows.setdefault(name, row)
    if twice:
        rows = {
            name: replace(row, problems=(*row.problems, twice[row.info.name])) if row.info.name in twice else row
            for name, row in rows.items()
        }
    return TagFile(rows, tuple(problem for file in files for problem in file.problems))


def defined_twice(name: str, one: TagInfo, other: TagInfo) -> str:
    """Say that two files define a name."""
    return f"tag {name!r} is defined twice: in {at(one)} and in {at(other)}"
