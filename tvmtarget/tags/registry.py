"""The registry: a lazy mapping from tag names to target trees, read from TOML files.

The files of a namespace (`nvidia.toml`, `nvidia.geforce.toml` hold `nvidia/...`) are read when one of its names is
asked for.
A tag is a target in flat JSON, or a `base` and overrides by path; `[family.x.sizes]` makes a tag `x.size` of
each row of overrides. Files are described in `docs/tags.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tvmtarget.errors import TargetError, TvmTargetError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.tags.files import TagInfo, TagRow, namespace_of, read_file
from tvmtarget.target.origin import Origin
from tvmtarget.target.tree import Target

__all__ = ["Registry", "TagInfo", "default_registry"]

MAX_BASES = 8


class Registry(Mapping[str, Target]):
    """An immutable, lazily loaded mapping of tag names to trees.

    >>> default_registry()["nvidia/jetson-nano"].at("gpu")["arch"]
    'sm_53'
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._of_namespace = _by_namespace(folder)
        self._files: dict[str, dict[str, TagRow]] = {}
        self._trees: dict[str, Target] = {}

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __iter__(self) -> Iterator[str]:
        """List all names that stand for themselves, sorted; aliases and abstract tags are left out."""
        for namespace in self.namespaces():
            rows = self._load(namespace)
            yield from sorted(name for name, row in rows.items() if not row.info.is_abstract and row.info.name == name)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Target:
        return self._tree(name, ())

    def __repr__(self) -> str:
        return f"Registry({str(self._folder)!r})"

    def namespaces(self) -> tuple[str, ...]:
        """List the namespaces there is a file for, sorted; the folder is read once."""
        return tuple(self._of_namespace)

    def info(self, name: str) -> TagInfo:
        """Return the notes on a tag; `UnknownNameError` if there is none."""
        return self._row(name).info

    def _row(self, name: str) -> TagRow:
        row = self._find(name)
        if row is None:
            tail = did_you_mean(name, self) or "; `tvmtarget tags` lists them"
            raise UnknownNameError(f"unknown tag {name!r}{tail}")
        return row

    def _find(self, name: str) -> TagRow | None:
        namespace, slash, _ = name.partition("/")
        return self._load(namespace).get(name) if slash and namespace in self._of_namespace else None

    def _load(self, namespace: str) -> dict[str, TagRow]:
        if namespace not in self._files:
            self._files[namespace] = _together([read_file(path) for path in self._of_namespace[namespace]])
        return self._files[namespace]

    def _tree(self, name: str, below: tuple[str, ...]) -> Target:
        """Return the tree of a tag; `below` are the tags that are being built from it."""
        if name not in self._trees:
            self._trees[name] = self._build(self._row(name), below)
        return self._trees[name]

    def _build(self, row: TagRow, below: tuple[str, ...]) -> Target:
        """Lay what a row says over its base, or read it as flat JSON, in which there may be tags again."""
        name = row.info.name
        chain = " -> ".join([*below, name])
        try:
            if name in below:
                raise TargetError(f"tags are made of each other: {chain}")
            if len(below) >= MAX_BASES:
                raise TargetError(f"more than {MAX_BASES} tags are built on each other: {chain}")
            tags = _Below(self, (*below, name))
            flat = row.flat if row.base is None else {**row.flat, "tag": row.base}
            origin = Origin("tag", f"{name} in {row.info.file.name}")
            return Target.from_json(flat, tags=tags, origin=origin).replace(tag=name)
        except TvmTargetError as error:
            place = f" (tag {name!r} in {str(row.info.file)!r})"
            raise TargetError(*(_placed(problem, place) for problem in error.problems)) from error


def _by_namespace(folder: Path) -> dict[str, list[Path]]:
    """Return the tag files of a folder by namespace, both sorted."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.toml"), key=lambda path: path.name.split(".")):
        found.setdefault(namespace_of(path), []).append(path)
    return found


def _together(files: list[dict[str, TagRow]]) -> dict[str, TagRow]:
    """Put the rows of several files together; a name that two of them have is an error."""
    rows: dict[str, TagRow] = {}
    for file in files:
        twice = sorted(rows.keys() & file.keys())
        raise_all(
            TargetError,
            [
                f"{name!r} is defined in {str(rows[name].info.file)!r} and {str(file[name].info.file)!r}"
                for name in twice
            ],
        )
        rows |= file
    return rows


def _placed(problem: str, place: str) -> str:
    """Add the place to a problem, unless the tag in which it was found did so before."""
    return problem if " (tag '" in problem else problem + place


class _Below(Mapping[str, Target]):
    """The registry as a tag sees it that is being built: who asks is remembered, so that a circle ends."""

    def __init__(self, registry: Registry, below: tuple[str, ...]) -> None:
        self._registry = registry
        self._below = below

    def __contains__(self, name: object) -> bool:
        return name in self._registry

    def __iter__(self) -> Iterator[str]:
        return iter(self._registry)

    def __len__(self) -> int:
        return len(self._registry)

    def __getitem__(self, name: str) -> Target:
        return self._registry._tree(name, self._below)


def _shipped_folder() -> Path:
    """A checkout's own `tags/` wins over the copy in the wheel, which an editable install leaves stale."""
    package = Path(__file__).resolve().parents[1]
    own = package.parent / "tags"
    return own if (package.parent / "pyproject.toml").is_file() and own.is_dir() else package / "_tags"


@cache
def default_registry() -> Registry:
    """Return the registry of the tags that come with the library."""
    return Registry(_shipped_folder())
