"""Layers of tags, read on demand: folders of files, a project's file, and tags from code."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

from tvmtarget.tags.files import TagFile, TagInfo, TagRow, location, namespace_of, read_tag_file

__all__ = ["CodeLayer", "FileLayer", "Layer", "tag_files"]


@runtime_checkable
class Layer(Protocol):
    """One source of tags; a name may be defined only once in it. Higher layers of a registry override lower ones."""

    label: str

    def find(self, name: str) -> TagRow | None:
        """Look up a tag.

        Args:
            name: A name or alias.

        Returns:
            Its row, or None if there is none.
        """

    def names(self) -> Iterable[str]:
        """List all names.

        Returns:
            Names, aliases and abstract tags.
        """

    def listed(self) -> Iterable[str]:
        """List the names of concrete tags.

        Returns:
            Names without aliases, abstract tags and tags with problems.
        """

    def boards(self) -> Mapping[str, str]:
        """Find the tags that state to be of the same board as another tag.

        Returns:
            The other tag by the name of each.
        """

    def namespaces(self) -> Iterable[str]:
        """List the namespaces.

        Returns:
            The first parts of the names, before '/'.
        """

    def problems(self, name: str | None = None) -> Sequence[str]:
        """List the problems of the files.

        Args:
            name: A name, to check only the files that could define it.

        Returns:
            Problems of whole files; those of a single tag are in its row.
        """


class FileLayer:
    """Layer of TOML files: those of a folder by namespace, or a project's file with full names."""

    def __init__(
        self, label: str, *, folder: Path | None = None, files: Sequence[Path] = (), only: Path | None = None
    ) -> None:
        """Collect files without reading them.

        Args:
            label: The name of the layer, for messages.
            folder: A folder of files by namespace; a missing one has no files.
            files: Files with full names.
            only: A file of a namespace that is used instead of the folder.
        """
        self.label = label
        self._by_namespace: dict[str | None, list[Path]] = {None: list(files)} if files else {}
        found = [only] if only else tag_files(folder) if folder else ()
        for path in found:
            self._by_namespace.setdefault(namespace_of(path), []).append(path)
        self._read: dict[str | None, TagFile] = {}

    def find(self, name: str) -> TagRow | None:
        """Look up a tag, reading only the files of its namespace.

        Args:
            name: A name or alias.

        Returns:
            Its row, or None if there is none.
        """
        return next((found for key in self._keys(name) if (found := self._load(key).rows.get(name))), None)

    def names(self) -> Iterator[str]:
        """List all names, reading every file.

        Yields:
            Names, aliases and abstract tags.
        """
        for key in self._by_namespace:
            yield from self._load(key).rows

    def listed(self) -> Iterator[str]:
        """List the names of concrete tags, reading every file.

        Yields:
            Names without aliases, abstract tags and tags with problems.
        """
        for key in self._by_namespace:
            for name, row in self._load(key).rows.items():
                if row.info.name == name and not row.info.is_abstract and not row.problems:
                    yield name

    def boards(self) -> Mapping[str, str]:
        """Find the tags that state to be of the same board as another tag, reading every file.

        Returns:
            The other tag by the name of each.
        """
        rows = (row for key in self._by_namespace for row in self._load(key).rows.values())
        return {row.info.name: row.info.same_as for row in rows if row.info.same_as}

    def namespaces(self) -> Iterator[str]:
        """List the namespaces.

        Yields:
            Those of the files of a folder, and of the tags in files with full names.
        """
        for key in self._by_namespace:
            yield from [key] if key is not None else sorted({name.partition("/")[0] for name in self._load(key).rows})

    def problems(self, name: str | None = None) -> Sequence[str]:
        """List the problems of the files.

        Args:
            name: A name, to check only the files that could define it.

        Returns:
            Problems of whole files.
        """
        keys = self._by_namespace if name is None else self._keys(name)
        return [problem for key in keys for problem in self._load(key).problems]

    def _keys(self, name: str) -> list[str | None]:
        # Files with full names, under None, may define tags of any namespace.
        return [key for key in (None, name.partition("/")[0]) if key in self._by_namespace]

    def _load(self, key: str | None) -> TagFile:
        if key not in self._read:
            self._read[key] = _merge_files([read_tag_file(path, key) for path in self._by_namespace[key]])
        return self._read[key]


class CodeLayer:
    """Layer of rows that exist in memory, or of the problems that prevented a layer from being found."""

    def __init__(self, label: str, rows: Mapping[str, TagRow], problems: Sequence[str] = ()) -> None:
        """Make a layer.

        Args:
            label: The name of the layer, for messages.
            rows: Rows by full name.
            problems: Why the layer has no tags.
        """
        self.label = label
        self._rows = rows
        self._problems = problems

    def find(self, name: str) -> TagRow | None:
        """Look up a tag.

        Args:
            name: A name.

        Returns:
            Its row, or None if there is none.
        """
        return self._rows.get(name)

    def names(self) -> Iterable[str]:
        """List all names.

        Returns:
            The names, in order.
        """
        return self._rows

    def listed(self) -> Iterable[str]:
        """List the names of concrete tags, which are all.

        Returns:
            The names, in order.
        """
        return self._rows

    def boards(self) -> Mapping[str, str]:
        """Find the tags that state to be of the same board as another tag.

        Returns:
            The other tag by the name of each.
        """
        return {name: row.info.same_as for name, row in self._rows.items() if row.info.same_as}

    @cached_property
    def _namespaces(self) -> list[str]:
        return sorted({name.partition("/")[0] for name in self._rows})

    def namespaces(self) -> Iterable[str]:
        """List the namespaces.

        Returns:
            The first parts of the names, sorted.
        """
        return self._namespaces

    def problems(self, name: str | None = None) -> Sequence[str]:
        """List why there are no tags.

        Args:
            name: Ignored, as the names that the layer would have had are unknown.

        Returns:
            The problems.
        """
        return self._problems


def tag_files(folder: Path) -> list[Path]:
    """List the tag files of a folder.

    Args:
        folder: The folder; a missing one has no files.

    Returns:
        The files, by namespace, and those of a namespace by name.
    """
    try:
        names = os.listdir(folder)
    except OSError:  # a folder that cannot be read has no files
        return []
    shown = [name for name in names if name.endswith(".toml") and not name.startswith(".")]
    return [folder / name for name in sorted(shown, key=lambda name: name.split("."))]


def _merge_files(files: Sequence[TagFile]) -> TagFile:
    """Merge the rows of several files; a name in two of them is a problem of both tags."""
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
            name: row._replace(problems=(*row.problems, twice[row.info.name])) if row.info.name in twice else row
            for name, row in rows.items()
        }
    return TagFile(rows, tuple(problem for file in files for problem in file.problems))


def defined_twice(name: str, first: TagInfo, second: TagInfo) -> str:
    """Write the message that a name is defined twice.

    Args:
        name: A name or alias.
        first: The first definition.
        second: The second definition.

    Returns:
        The message, with both files and lines.
    """
    return f"tag {name!r} is defined twice: in {location(first)} and in {location(second)}"
