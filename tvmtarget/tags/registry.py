"""The registry: a lazy, immutable mapping from tag names to target trees, in layers.

A tag is a target in flat JSON, or a `base` and overrides by path; `[family.x.sizes]` makes a tag `x.size` of each
row of overrides. Files are described in `docs/tags.md`, where they are looked for in `discovery.py`. A tag of a
higher layer stands for one of a lower layer only if it says so (`override = true`). A file or a row that is wrong
hides no other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tvmtarget.errors import TargetError, TvmTargetError, UnknownNameError, did_you_mean, raise_all, warn
from tvmtarget.tags import discovery
from tvmtarget.tags.files import TagInfo, TagRow, at, is_project_file
from tvmtarget.tags.layers import Files, Given, Layer, defined_twice
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.problems import shown
from tvmtarget.target.provenance import Origin
from tvmtarget.target.scheduler_addresses import addresses, reject_addresses
from tvmtarget.target.tree import Target

__all__ = ["Registry", "TagInfo", "default_registry"]

MAX_BASES = 8

# Fields that hold objects which are no nodes of the tree.
_FIELDS = frozenset({"executor", "runtime", "links", "memory", "host", "targets"})


class Registry(Mapping[str, Target]):
    """An immutable, lazily loaded mapping of tag names to trees, from layers, the lowest first.

    A layer may be given as a folder of tag files, by its path.

    >>> default_registry()["nvidia/jetson-nano"].at("gpu")["arch"]
    'sm_53'
    """

    def __init__(self, *layers: Layer | Path | str) -> None:
        self._layers = tuple(map(_layer_of, layers))
        self._found: dict[str, TagRow] = {}
        self._trees: dict[str, Target] = {}
        self._deprecated: dict[str, str] = {}

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, the lowest first."""
        return self._layers

    @classmethod
    def discover(cls, cwd: Path | str | None, environ: Mapping[str, str]) -> Registry:
        """Return the registry that is seen from a folder, if any, with the environment's variables."""
        return cls(*discovery.layers(None if cwd is None else Path(cwd), environ))

    def with_tags(self, tags: Mapping[str, Target | str | Mapping[str, object]], *, override: bool = False) -> Registry:
        """Return a registry with a layer of tags on top: trees, texts or flat JSON by name.

        >>> tags = default_registry().with_tags({"acme/box": "arm/rasp4b(cpu/num-cores=2)"})
        >>> tags["acme/box"].at("cpu")["num-cores"]
        2
        """
        problems = [
            f"{shown(name)} is no name for a tag; write the vendor too, as in acme/box"
            for name in tags
            if "/" not in name
        ]
        raise_all(TargetError, problems)
        rows = {name: self._row_in_code(name, target, overrides=override) for name, target in tags.items()}
        return Registry(*self._layers, Given("code", rows))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __iter__(self) -> Iterator[str]:
        """List all names that stand for themselves, sorted; aliases and abstract tags are left out."""
        lowest, *others = self._layers or (Given("nothing", {}),)
        listed = set(lowest.listed())
        for name in {name for layer in others for name in layer.names()}:
            row = self._find(name)
            is_listed = row is not None and row.info.name == name and not row.info.is_abstract and not row.problems
            (listed.add if is_listed else listed.discard)(name)
        yield from sorted(listed)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Target:
        tree = self.tree(name)
        if name in self._deprecated:
            warn(f"tag {name!r} is deprecated; use {self._deprecated[name]}")
        return tree

    def __repr__(self) -> str:
        return f"Registry({', '.join(layer.label for layer in self._layers)})"

    def namespaces(self) -> tuple[str, ...]:
        """List what names begin with, sorted."""
        return tuple(sorted({namespace for layer in self._layers for namespace in layer.namespaces()}))

    def info(self, name: str) -> TagInfo:
        """Return the notes on a tag; `UnknownNameError` if there is none."""
        return self._row(name).info

    def tree(self, name: str) -> Target:
        """Return the tree of a tag as `self[name]` does, without a warning where the tag is deprecated."""
        return self._tree(name, ())

    def kinds(self, name: str) -> frozenset[str] | None:
        """Return the kinds in the tree of a tag, without building it; None where its row alone does not say."""
        found: set[str] = set()
        for _ in range(MAX_BASES):
            row = self._row(name)
            if not _collect_kinds(row.flat, found):
                return None
            if row.base is None:
                return frozenset(found)
            name = row.base
        return None

    def info_anyway(self, name: str) -> TagInfo | None:
        """Return the notes on a tag, even of one that is wrong; None if there is no such name."""
        row = self._find(name)
        return row.info if row is not None else None

    def abstract(self) -> tuple[str, ...]:
        """List the tags that are no systems, sorted: bases of others, and partial configurations."""
        names = {name for layer in self._layers for name in layer.names()}
        rows = ((name, self._find(name)) for name in names)
        return tuple(sorted(name for name, row in rows if row and row.info.name == name and row.info.is_abstract))

    def problems_of_others(self) -> tuple[str, ...]:
        """List what is wrong with the layers above the lowest, which comes with the library and is tested."""
        return self._problems(self._layers[1:])

    def problems(self) -> tuple[str, ...]:
        """Read everything and list what is wrong: files, rows, and names that two layers have."""
        return self._problems(self._layers)

    def _problems(self, layers: tuple[Layer, ...]) -> tuple[str, ...]:
        found = [problem for layer in layers for problem in layer.problems()]
        for layer in layers:
            for name in layer.names():
                row = self._find(name)
                found += row.problems if row is not None else ()
        return tuple(dict.fromkeys(found))

    def _row(self, name: str) -> TagRow:
        row = self._find(name)
        if row is None:
            tail = did_you_mean(name, [*self, *self.abstract()]) or "; `tvmtarget tags` lists them"
            broken = [problem for layer in self._layers for problem in layer.problems(name)]
            raise UnknownNameError(f"unknown tag {name!r}{tail}", *broken)
        return row

    def _find(self, name: str) -> TagRow | None:
        """Return the row of the highest layer that has a name; what stands for another must say so."""
        if "/" not in name:
            return None
        if name not in self._found:
            row = self._look_through(name)
            if row is None:
                return None
            self._found[name] = row
        return self._found[name]

    def _look_through(self, name: str) -> TagRow | None:
        rows = [row for layer in reversed(self._layers) if (row := layer.find(name)) is not None]
        if len(rows) < 2 or rows[0].info.overrides:
            return rows[0] if rows else None
        problem = f"{defined_twice(name, rows[1].info, rows[0].info)}; set override = true in the second"
        return TagRow(rows[0].info, rows[0].base, rows[0].flat, (*rows[0].problems, problem))

    def _row_in_code(self, name: str, target: Target | str | Mapping[str, object], *, overrides: bool) -> TagRow:
        tree = Target.parse(target, tags=self) if isinstance(target, str) else target
        info = TagInfo(name, "", ("code",), "", (), is_abstract=False, file=Path("code"), overrides=overrides)
        return TagRow(info, None, tree.to_json() if isinstance(tree, Target) else tree)

    def _tree(self, name: str, below: tuple[str, ...]) -> Target:
        """Return the tree of a tag; `below` are the tags that are being built from it."""
        if name not in self._trees:
            row = self._row(name)
            if row.info.deprecated:
                self._deprecated[name] = row.info.deprecated
            self._trees[name] = self._build(row, below)
        return self._trees[name]

    def _build(self, row: TagRow, below: tuple[str, ...]) -> Target:
        """Lay what a row says over its base, or read it as flat JSON, in which there may be tags again."""
        name = row.info.name
        chain = " -> ".join([*below, name])
        try:
            raise_all(TargetError, row.problems)
            if name in below:
                raise TargetError(f"tags are made of each other: {chain}")
            if len(below) >= MAX_BASES:
                raise TargetError(f"more than {MAX_BASES} tags are built on each other: {chain}")
            tags = _Below(self, (*below, name))
            flat = row.flat if row.base is None else {**row.flat, "tag": row.base}
            origin = Origin("tag", f"{name} in {row.info.file.name}")
            tree = Target.from_json(flat, tags=tags, origin=origin).replace(tag=name)
            if is_project_file(row.info.file):
                base = addresses(tags[row.base]) if row.base is not None else frozenset()
                reject_addresses(tree, f"tag {name!r}", base)
            return tree
        except TvmTargetError as error:
            place = f" (tag {name!r} in {at(row.info)})"
            raise TargetError(*(_placed(problem, place) for problem in error.problems)) from error


def _layer_of(given: object) -> Layer:
    """Return a layer, or that of a folder, which may be missing; `TargetError` for anything else."""
    if not isinstance(given, str | Path):
        if not isinstance(given, Layer):
            raise TargetError(f"a layer of a registry is a folder of tag files or a Layer, not {shown(given)}")
        return given
    folder = Path(given)
    if "\0" in str(given) or not str(given) or (folder.exists() and not folder.is_dir()):
        raise TargetError(f"{str(given)!r} is no folder; give the one that holds tag files such as acme.toml")
    return Files(str(folder), folder=folder)


def _collect_kinds(flat: Mapping[str, object], found: set[str]) -> bool:
    """Add the kinds in flat JSON; False where a text or a tag stands for a part of it."""
    kind, children = flat.get("kind"), flat.get("targets", ())
    if kind is not None:
        found.add(str(kind))
    if "tag" in flat or (kind is not None and find_kind(str(kind)) is None) or not isinstance(children, list | tuple):
        return False
    found |= {"composite"} if children and kind is None else set()
    below = [*children, *(value for key, value in flat.items() if key == "host" and not _is_reference(value))]
    below += [value for key, value in flat.items() if key not in _FIELDS and isinstance(value, Mapping)]
    return all(isinstance(one, Mapping) and _collect_kinds(one, found) for one in below)


def _is_reference(value: object) -> bool:
    return isinstance(value, str) and value.startswith("@")


def _placed(problem: str, place: str) -> str:
    """Add the place to a problem, unless it has one: of the tag in which it was found, or of the file."""
    return (
        problem if " (tag '" in problem or " in tag file " in problem or "defined twice" in problem else problem + place
    )


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


@cache
def default_registry() -> Registry:
    """Return the registry that is seen from the folder in which this process first asked for it."""
    try:
        cwd = Path.cwd()
    except FileNotFoundError:  # somebody removed it while we are in it
        return Registry.discover(None, os.environ)
    return Registry.discover(cwd, os.environ)
