"""The registry: a lazy mapping from tag names to target trees, read from TOML files.

One file per namespace (`tags/nvidia.toml` holds `nvidia/...`), read when a name of that namespace is asked for.
A tag is a target in flat JSON, or a `base` and overrides by path; `[family.x.sizes]` makes a tag `x.size` of
each row of overrides. Files are described in `docs/tags.md`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tvmtarget.errors import TargetError, TvmTargetError, UnknownNameError, did_you_mean
from tvmtarget.target.tree import Target

__all__ = ["Registry", "TagInfo", "default_registry"]

SCHEMA = 1
MAX_BASES = 8

_NOTES = frozenset({"doc", "source", "confidence", "abstract", "aliases", "base", "tvm"})


@dataclass(frozen=True, slots=True)
class TagInfo:
    """What a file says about a tag besides its tree."""

    name: str
    doc: str
    sources: tuple[str, ...]
    confidence: str
    aliases: tuple[str, ...]
    is_abstract: bool
    file: Path


class Registry(Mapping[str, Target]):
    """An immutable, lazily loaded mapping of tag names to trees.

    >>> default_registry()["nvidia/jetson-nano"].at("gpu")["arch"]
    'sm_53'
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._namespaces = tuple(sorted(path.stem for path in folder.glob("*.toml")))
        self._files: dict[str, dict[str, dict[str, Any]]] = {}
        self._sources: dict[str, dict[str, str]] = {}
        self._trees: dict[str, Target] = {}

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._entry(name) is not None

    def __iter__(self) -> Iterator[str]:
        """List all names that stand for themselves, sorted; aliases and abstract tags are left out."""
        for namespace in self.namespaces():
            rows = self._load(namespace)
            yield from sorted(name for name, row in rows.items() if not row.get("abstract") and row["name"] == name)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Target:
        if name not in self._trees:
            self._trees[name] = self._build(name, ())
        return self._trees[name]

    def __repr__(self) -> str:
        return f"Registry({str(self._folder)!r})"

    def namespaces(self) -> tuple[str, ...]:
        """List the namespaces there is a file for, sorted; the folder is read once."""
        return self._namespaces

    def info(self, name: str) -> TagInfo:
        """Return the notes on a tag; `UnknownNameError` if there is none."""
        row = self._row(name)
        namespace = name.partition("/")[0]
        return TagInfo(
            name=row["name"],
            doc=row.get("doc", ""),
            sources=tuple(self._sources[namespace][key] for key in row.get("source", ())),
            confidence=row.get("confidence", ""),
            aliases=tuple(f"{namespace}/{alias}" for alias in row.get("aliases", ())),
            is_abstract=bool(row.get("abstract")),
            file=self._folder / f"{namespace}.toml",
        )

    def _row(self, name: str) -> dict[str, Any]:
        row = self._entry(name)
        if row is None:
            raise UnknownNameError(f"unknown tag {name!r}{did_you_mean(name, self)}")
        return row

    def _entry(self, name: str) -> dict[str, Any] | None:
        namespace, slash, _ = name.partition("/")
        if not slash or namespace not in self.namespaces():
            return None
        return self._load(namespace).get(name)

    def _load(self, namespace: str) -> dict[str, dict[str, Any]]:
        if namespace not in self._files:
            path = self._folder / f"{namespace}.toml"
            try:
                data = tomllib.loads(path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
                raise TargetError(f"tag file {str(path)!r} cannot be read: {error}") from error
            if data.get("schema") != SCHEMA:
                raise TargetError(f"tag file {str(path)!r} has schema {data.get('schema')!r}; this version reads 1")
            self._sources[namespace] = {key: source["cite"] for key, source in data.get("source", {}).items()}
            self._files[namespace] = _expand(namespace, data, path)
        return self._files[namespace]

    def _build(self, name: str, below: tuple[str, ...]) -> Target:
        """Fold a chain of bases and overrides into one tree; `below` are the tags that are built from this one."""
        if name in below or len(below) >= MAX_BASES:
            raise TargetError(f"tags are based on each other: {' -> '.join([*below, name])}")
        row = self._row(name)
        flat = {key: value for key, value in row.items() if key not in _NOTES and key != "name"}
        try:
            if "base" in row:
                return self._build(row["base"], (*below, name)).override(flat).replace(tag=row["name"])
            return Target.from_json(flat, tags=self).replace(tag=row["name"])
        except TvmTargetError as error:
            raise TargetError(*(f"{problem} (tag {name!r})" for problem in error.problems)) from error


def _expand(namespace: str, data: dict[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    """Return rows by full name: the tags, their aliases, and the sizes of the families."""
    rows: dict[str, dict[str, Any]] = {}

    def add(name: str, row: dict[str, Any]) -> None:
        if name in rows:
            raise TargetError(f"tag {name!r} is defined twice in {str(path)!r}")
        rows[name] = row

    for short, tag in data.get("tag", {}).items():
        row = {**tag, "name": f"{namespace}/{short}"}
        add(row["name"], row)
        for alias in tag.get("aliases", ()):
            add(f"{namespace}/{alias}", row)
    for family, table in data.get("family", {}).items():
        base = rows[f"{namespace}/{family}"]
        notes = {key: base[key] for key in ("source", "confidence") if key in base}
        for size, changes in table["sizes"].items():
            name = f"{namespace}/{family}.{size}"
            doc = f"{base.get('doc', '')} ({size})".strip()
            add(name, {**notes, **changes, "base": base["name"], "doc": doc, "name": name})
    return rows


def _shipped_folder() -> Path:
    """A checkout's own `tags/` wins over the copy in the wheel, which an editable install leaves stale."""
    package = Path(__file__).resolve().parents[1]
    own = package.parent / "tags"
    return own if (package.parent / "pyproject.toml").is_file() and own.is_dir() else package / "_tags"


@cache
def default_registry() -> Registry:
    """Return the registry of the tags that come with the library."""
    return Registry(_shipped_folder())
