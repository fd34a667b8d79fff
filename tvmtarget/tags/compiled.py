"""Compiled form of the shipped tags: an index of names and a file of rows, so that a lookup parses no TOML.

`python -m tvmtarget.tags.compiled` writes both from `tags/`, and the index of their trees (`tree_index.py`); a test
compares them. In a checkout, a namespace whose files have changed since is read from these files.

The first line of the index names the places of its parts, so that a lookup parses neither the index nor the names of a
namespace: it searches the text of the names for one of them.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtarget.tags.files import TagInfo, TagRow, namespace_of
from tvmtarget.tags.layers import FileLayer, tag_files
from tvmtarget.target.tree import Target

if TYPE_CHECKING:
    from tvmtarget.tags.tree_index import TreeIndex

__all__ = ["CompiledLayer", "compile_tags"]

FORMAT = 2
INDEX, ROWS, TREES = "index.jsonl", "rows.jsonl", "trees.json"
DATA = Path(__file__).parent / "data"

# Defaults of metadata, which rows omit.
_DEFAULTS = {
    "doc": "",
    "confidence": "",
    "tvm": None,
    "family": None,
    "deprecated": "",
    "overrides": False,
    "same_as": "",
}


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
        self._is_checked = is_checked
        self._is_fresh: dict[str, bool] = {}
        self._read: dict[tuple[str, str], dict[str, Any]] = {}
        self._files: dict[str, Path] = {}

    @cached_property
    def _authored(self) -> FileLayer:
        """The files that were compiled."""
        return FileLayer(self.label, folder=self._folder)

    @cached_property
    def _parts(self) -> tuple[dict[str, Any], bytes]:
        """The header of the index, and its parts, whose places the header has."""
        header, _, parts = (self._data / INDEX).read_bytes().partition(b"\n")
        return json.loads(header), parts

    @cached_property
    def _namespaces(self) -> dict[str, dict[str, Any]]:
        namespaces: dict[str, dict[str, Any]] = self._parts[0]["namespaces"]
        return namespaces

    @cached_property
    def _cites(self) -> list[str]:
        begin, end = self._parts[0]["cites"]
        cites: list[str] = json.loads(self._parts[1][begin:end])
        return cites

    def _namespace(self, namespace: str, part: str) -> dict[str, Any]:
        """Parse the names or the aliases of a namespace."""
        if (namespace, part) not in self._read:
            begin, end = self._namespaces[namespace][part]
            self._read[namespace, part] = json.loads(self._parts[1][begin:end])
        return self._read[namespace, part]

    def _entry(self, namespace: str, part: str, key: str, ends: tuple[bytes, bytes]) -> Any:  # noqa: ANN401 - of JSON
        """Find an entry of the names or the aliases of a namespace by its text, which is faster than parsing all.

        The values are lists of numbers or names without quotes, so that a quoted text before a colon is always a key.
        """
        if (namespace, part) in self._read:
            return self._read[namespace, part].get(key)
        (begin, end), text = self._namespaces[namespace][part], self._parts[1]
        entry = json.dumps(key, ensure_ascii=False).encode("utf-8", "surrogatepass") + b":" + ends[0]
        at = max(text.find(before + entry, begin, end) for before in (b"{", b","))
        start = at + len(entry)
        return None if at < 0 else json.loads(text[start : text.index(ends[1], start + 1) + 1])

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
        place = self._entry(namespace, "tags", short, (b"[", b"]"))
        if place is None:
            alias = self._entry(namespace, "aliases", short, (b'"', b'"'))
            place = None if alias is None else self._entry(namespace, "tags", alias, (b"[", b"]"))
        return None if place is None else self._row(place)

    def names(self) -> Iterator[str]:
        """List all names.

        Yields:
            Names, aliases and abstract tags.
        """
        for namespace in self.namespaces():
            if self._fresh(namespace):
                known = (*self._namespace(namespace, "tags"), *self._namespace(namespace, "aliases"))
                yield from (f"{namespace}/{short}" for short in known)
            else:
                yield from (name for name in self._authored.names() if name.partition("/")[0] == namespace)

    def listed(self) -> Iterator[str]:
        """List the names of concrete tags.

        Yields:
            Names without aliases and abstract tags.
        """
        for namespace in self.namespaces():
            if self._fresh(namespace):
                tags = self._namespace(namespace, "tags")
                yield from (f"{namespace}/{short}" for short, (_, _, is_listed) in tags.items() if is_listed)
            else:
                yield from (name for name in self._authored.listed() if name.partition("/")[0] == namespace)

    def namespaces(self) -> Iterable[str]:
        """List the namespaces.

        Returns:
            The first parts of the names, before '/'.
        """
        return self._authored.namespaces() if self._is_checked else self._namespaces

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

    def trees(self) -> TreeIndex | None:
        """Return the index of the trees of the tags.

        Returns:
            The index, or None if files have changed since they were compiled.
        """
        return _read_trees(self._data / TREES) if self._is_unchanged else None

    def boards(self) -> Mapping[str, str]:
        """Find the tags that state to be of the same board as another tag.

        Returns:
            The other tag by the name of each.
        """
        boards: Mapping[str, str] = self._parts[0]["boards"] if self._is_unchanged else self._authored.boards()
        return boards

    @cached_property
    def _is_unchanged(self) -> bool:
        namespaces = set(self.namespaces())
        return namespaces == set(self._namespaces) and all(map(self._fresh, namespaces))

    def _fresh(self, namespace: str) -> bool:
        if namespace not in self._is_fresh:
            is_fresh = namespace in self._namespaces
            if is_fresh and self._is_checked:
                files, compiled = self._files_by_namespace.get(namespace, []), self._namespaces[namespace]["files"]
                is_fresh = {path.name for path in files} == compiled.keys() and all(
                    # As for make, a file that is older than what was made of it has not changed.
                    path.stat().st_mtime_ns < self._compiled_at or _digest(path) == compiled[path.name]
                    for path in files
                )
            self._is_fresh[namespace] = is_fresh
        return self._is_fresh[namespace]

    @cached_property
    def _compiled_at(self) -> int:
        return (self._data / INDEX).stat().st_mtime_ns

    @cached_property
    def _files_by_namespace(self) -> dict[str, list[Path]]:
        return _by_namespace(self._folder)

    @cached_property
    def _rows(self) -> mmap.mmap:
        """Memory map of all rows, from which single rows are parsed."""
        with (self._data / ROWS).open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def _row(self, location: Sequence[int]) -> TagRow:
        offset, length, _ = location
        row = json.loads(self._rows[offset : offset + length])
        file = row["info"]["file"]
        if file not in self._files:
            self._files[file] = self._folder / file
        info = {**_DEFAULTS, **row["info"], "file": self._files[file]}
        info["sources"] = tuple(self._cites[at] for at in info["sources"])
        info["aliases"] = tuple(info.get("aliases", ()))
        return TagRow(TagInfo(**info), row.get("base"), row["flat"])


@cache
def _read_trees(file: Path) -> TreeIndex:
    from tvmtarget.tags.tree_index import TreeIndex  # what constraints need is not imported to look up a tag

    return TreeIndex(file)


class _Trees(dict[str, Target]):
    """Trees of the tags of a layer, each built when it is used first."""

    def __init__(self, layer: FileLayer) -> None:
        super().__init__()
        self._layer = layer

    def __missing__(self, name: str) -> Target:
        row = self._layer.find(name)
        if row is None:
            raise KeyError(name)
        flat = row.flat if row.base is None else {**row.flat, "tag": row.base}
        self[name] = Target.from_json(flat, tags=self)
        return self[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._layer.find(name) is not None


def compile_tags(folder: Path, data: Path = DATA) -> None:
    """Compile the tag files of a folder.

    Args:
        folder: The folder of tag files.
        data: The folder to write to, as a whole or not at all.

    Raises:
        SystemExit: A file or a row has problems.
    """
    from tvmtarget.tags.tree_index import write_index

    index, rows = _compile(folder)
    layer = FileLayer("tags", folder=folder)
    built = _Trees(layer)
    trees = write_index({name: built[name] for name in layer.listed()})
    data.mkdir(exist_ok=True)
    (data / TREES).write_bytes(trees)
    (data / ROWS).write_bytes(rows)
    (data / INDEX).write_bytes(index)


def _compile(folder: Path) -> tuple[bytes, bytes]:
    authored = FileLayer("tags", folder=folder)
    cites: dict[str, int] = {}
    lines: list[bytes] = []
    offset = 0
    files = _by_namespace(folder)
    namespaces: dict[str, Any] = {}
    for name in sorted(authored.names()):  # sorted, so that equal files compile to equal bytes
        row = authored.find(name)
        if row is None or row.problems:
            raise SystemExit("\n".join(row.problems if row else [f"{name!r} is not found"]))
        namespace, _, short = name.partition("/")
        if namespace not in namespaces:
            # Digests instead of times, as installers and version control do not preserve times.
            digests = {path.name: _digest(path) for path in files[namespace]}
            namespaces[namespace] = {"files": digests, "tags": {}, "aliases": {}}
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
    parts = bytearray()
    header = {
        "format": FORMAT,
        "cites": _append(parts, list(cites)),
        "boards": authored.boards(),
        "namespaces": {
            namespace: {
                "files": of["files"],
                "tags": _append(parts, of["tags"]),
                "aliases": _append(parts, of["aliases"]),
            }
            for namespace, of in namespaces.items()
        },
    }
    return _compact(header).encode() + b"\n" + parts, b"".join(lines)


def _append(parts: bytearray, data: object) -> tuple[int, int]:
    """Append JSON to the parts of an index, and return its place."""
    begin = len(parts)
    parts += _compact(data).encode() + b"\n"
    return begin, len(parts)


def _compact(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _line(row: TagRow, cites: dict[str, int]) -> bytes:
    info = {key: value for key, value in row.info._asdict().items() if _DEFAULTS.get(key, ...) != value and value != ()}
    info["file"] = row.info.file.name
    info["sources"] = [cites.setdefault(cite, len(cites)) for cite in row.info.sources]
    flat: Mapping[str, object] = {"info": info, "flat": row.flat} | ({"base": row.base} if row.base else {})
    return (_compact(flat) + "\n").encode()


def _by_namespace(folder: Path) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for path in tag_files(folder):
        files.setdefault(namespace_of(path), []).append(path)
    return files


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


if __name__ == "__main__":
    compile_tags(Path(__file__).resolve().parents[2] / "tags")
