"""Compiled form of the shipped tags: an index of names and a file of rows, so that a lookup parses no TOML.

`python -m tvmtarget.tags.compiled` writes both from `tags/`; a test compares them. In a checkout, a namespace whose
files have changed since is read from these files.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from tvmtarget.tags.files import TagInfo, TagRow, namespace_of
from tvmtarget.tags.layers import FileLayer

__all__ = ["CompiledLayer", "compile_tags"]

FORMAT = 1
INDEX, ROWS = "index.json", "rows.jsonl"
DATA = Path(__file__).parent / "data"

# Defaults of metadata, which rows omit.
_DEFAULTS = {"doc": "", "confidence": "", "tvm": None, "family": None, "deprecated": "", "overrides": False}


class CompiledLayer:
    """Layer of compiled tags."""

    def __init__(self, label: str, folder: Path, *, is_checked: bool, data: Path = DATA) -> None:
        """Open the compiled tags of a folder.

        Args:
            label: The name of the layer, for messages.
            folder: The folder of the tag files that were compiled.
            is_checked: Whether to compare the files with the compiled form, and to read those that have changed.
            data: The folder of the compiled form.
        """
        self.label = label
        self._folder = folder
        self._data = data
        self._authored = FileLayer(label, folder=folder)
        self._is_checked = is_checked
        self._is_fresh: dict[str, bool] = {}
        self._read: dict[str, dict[str, Any]] = {}

    @cached_property
    def _index(self) -> dict[str, Any]:
        """Index of names; each namespace is a JSON text in it, so that unused namespaces are not parsed."""
        index: dict[str, Any] = json.loads((self._data / INDEX).read_bytes())
        return index

    def _namespace(self, name: str) -> dict[str, Any]:
        if name not in self._read:
            self._read[name] = json.loads(self._index["namespaces"][name])
        return self._read[name]

    def find(self, name: str) -> TagRow | None:
        """Look up a tag.

        Args:
            name: A name or alias.

        Returns:
            Its row, or None if there is none.
        """
        namespace, _, short = name.partition("/")
        # A stale or unknown namespace (of a new file) is read from its files.
        if not self._fresh(namespace):
            return self._authored.find(name)
        of_namespace = self._namespace(namespace)
        location = of_namespace["tags"].get(of_namespace["aliases"].get(short, short))
        return None if location is None else self._row(location)

    def names(self) -> Iterator[str]:
        """List all names.

        Yields:
            Names, aliases and abstract tags.
        """
        for namespace in self.namespaces():
            if self._fresh(namespace):
                of_namespace = self._namespace(namespace)
                yield from (f"{namespace}/{short}" for short in (*of_namespace["tags"], *of_namespace["aliases"]))
            else:
                yield from (name for name in self._authored.names() if name.partition("/")[0] == namespace)

    def listed(self) -> Iterator[str]:
        """List the names of concrete tags.

        Yields:
            Names without aliases and abstract tags.
        """
        for namespace in self.namespaces():
            if self._fresh(namespace):
                tags = self._namespace(namespace)["tags"]
                yield from (f"{namespace}/{short}" for short, (_, _, is_listed) in tags.items() if is_listed)
            else:
                yield from (name for name in self._authored.listed() if name.partition("/")[0] == namespace)

    def namespaces(self) -> Iterable[str]:
        """List the namespaces.

        Returns:
            The first parts of the names, before '/'.
        """
        return self._authored.namespaces() if self._is_checked else self._index["namespaces"]

    def problems(self, name: str | None = None) -> Sequence[str]:
        """List the problems of the files that have changed since they were compiled.

        Args:
            name: A name, to check only the files that could define it.

        Returns:
            The problems; compiled files have none.
        """
        namespaces = self.namespaces() if name is None else [name.partition("/")[0]]
        stale = [namespace for namespace in namespaces if not self._fresh(namespace)]
        return [problem for namespace in stale for problem in self._authored.problems(f"{namespace}/")]

    def _fresh(self, namespace: str) -> bool:
        if namespace not in self._is_fresh:
            is_fresh = namespace in self._index["namespaces"]
            if is_fresh and self._is_checked:
                digests = {path.name: _digest(path) for path in _files(self._folder, namespace)}
                is_fresh = self._namespace(namespace)["files"] == digests
            self._is_fresh[namespace] = is_fresh
        return self._is_fresh[namespace]

    @cached_property
    def _rows(self) -> mmap.mmap:
        """Memory map of all rows, from which single rows are parsed."""
        with (self._data / ROWS).open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def _row(self, location: Sequence[int]) -> TagRow:
        offset, length, _ = location
        row = json.loads(self._rows[offset : offset + length])
        cites = self._index["cites"]
        info = {**_DEFAULTS, **row["info"], "file": self._folder / row["info"]["file"]}
        info["sources"] = tuple(cites[at] for at in info["sources"])
        info["aliases"] = tuple(info.get("aliases", ()))
        return TagRow(TagInfo(**info), row.get("base"), row["flat"])


def compile_tags(folder: Path, data: Path = DATA) -> None:
    """Compile the tag files of a folder.

    Args:
        folder: The folder of tag files.
        data: The folder to write to, as a whole or not at all.

    Raises:
        SystemExit: A file or a row has problems.
    """
    index, rows = _compile(folder)
    data.mkdir(exist_ok=True)
    (data / ROWS).write_bytes(rows)
    (data / INDEX).write_text(_compact(index) + "\n", encoding="utf-8")


def _compile(folder: Path) -> tuple[dict[str, Any], bytes]:
    authored = FileLayer("tags", folder=folder)
    cites: dict[str, int] = {}
    lines: list[bytes] = []
    offset = 0
    namespaces: dict[str, Any] = {}
    for name in sorted(authored.names()):  # sorted, so that equal files compile to equal bytes
        row = authored.find(name)
        if row is None or row.problems:
            raise SystemExit("\n".join(row.problems if row else [f"{name!r} is not found"]))
        namespace, _, short = name.partition("/")
        if namespace not in namespaces:
            # Digests instead of times, as installers and version control do not preserve times.
            files = {path.name: _digest(path) for path in _files(folder, namespace)}
            namespaces[namespace] = {"files": files, "tags": {}, "aliases": {}}
        if row.info.name != name:
            namespaces[namespace]["aliases"][short] = row.info.name.partition("/")[2]
            continue
        line = _line(row, cites)
        namespaces[namespace]["tags"][short] = [offset, len(line), int(not row.info.is_abstract)]
        lines.append(line)
        offset += len(line)
    problems = authored.problems()
    if problems:
        raise SystemExit("\n".join(problems))
    texts = {namespace: _compact(of_namespace) for namespace, of_namespace in namespaces.items()}
    return {"format": FORMAT, "cites": list(cites), "namespaces": texts}, b"".join(lines)


def _compact(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _line(row: TagRow, cites: dict[str, int]) -> bytes:
    info = {key: value for key, value in asdict(row.info).items() if _DEFAULTS.get(key, ...) != value and value != ()}
    info["file"] = row.info.file.name
    info["sources"] = [cites.setdefault(cite, len(cites)) for cite in row.info.sources]
    flat: Mapping[str, object] = {"info": info, "flat": row.flat} | ({"base": row.base} if row.base else {})
    return (_compact(flat) + "\n").encode()


def _files(folder: Path, namespace: str) -> list[Path]:
    return sorted(
        path for path in folder.glob(f"{namespace}.*") if path.suffix == ".toml" and namespace_of(path) == namespace
    )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


if __name__ == "__main__":
    compile_tags(Path(__file__).resolve().parents[2] / "tags")
