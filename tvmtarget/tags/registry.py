"""Registry of tags: a lazy, immutable mapping from names to target trees, in layers.

A tag is a target in flat JSON, or a `base` and overrides by path; `[family.x.sizes]` defines a tag `x.size` for each of
its rows. `docs/tags.md` describes the files, `discovery.py` finds them. A tag replaces one of a lower layer only with
`override = true`. Problems of a file or a row do not affect other tags.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tvmtarget.errors import TargetError, TvmTargetError, UnknownNameError, did_you_mean, raise_all, warn
from tvmtarget.tags import discovery
from tvmtarget.tags.compiled import CompiledLayer
from tvmtarget.tags.files import TagInfo, TagRow, is_project_file, location
from tvmtarget.tags.layers import CodeLayer, FileLayer, Layer, defined_twice
from tvmtarget.target.argument_types import check_methods
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.problems import shown
from tvmtarget.target.provenance import Origin
from tvmtarget.target.tree import Target, TargetLike
from tvmtarget.target.trusted_attributes import reject_trusted, trusted_attributes

if TYPE_CHECKING:
    from tvmtarget.tags.tree_index import TreeIndex

__all__ = ["Registry", "TagInfo", "default_registry"]

MAX_BASES = 8

# Fields whose objects are not nodes of the tree, or are visited separately.
_FIELDS = frozenset({"executor", "runtime", "links", "memory", "host", "targets"})


@check_methods("find_info", "find_row")
class Registry(Mapping[str, Target]):
    """Immutable, lazily loaded mapping from the names of tags to their trees.

    >>> default_registry()["nvidia/jetson-nano"].at("gpu")["arch"]
    'sm_53'
    """

    def __init__(self, *layers: Layer | Path | str) -> None:
        """Combine layers.

        Args:
            layers: Layers or folders of tag files, lowest first.

        Raises:
            TargetError: A layer is neither.
        """
        self._layers = tuple(map(_layer_of, layers))
        self._found: dict[str, TagRow] = {}
        # Rows and trees never change once read, so these caches do not affect the immutability of the registry.
        self._trees: dict[str, Target] = {}
        self._deprecated: dict[str, str] = {}
        self._warned: set[str] = set()

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers, lowest first."""
        return self._layers

    @classmethod
    def discover(cls, cwd: Path | str | None, environ: Mapping[str, str]) -> Registry:
        """Combine the layers that apply in a folder (`discovery.py`).

        Args:
            cwd: The working folder, where the search for a project starts; None for no project.
            environ: The environment variables.

        Returns:
            The registry.
        """
        return cls(*discovery.discover_layers(None if cwd is None else Path(cwd), environ))

    def with_tags(self, tags: Mapping[str, TargetLike], *, override: bool = False) -> Registry:
        """Add a layer of tags on top.

        Args:
            tags: Targets by full name, as trees, texts or flat JSON.
            override: Whether the tags may replace those of other layers.

        Returns:
            A new registry.

        Raises:
            TargetError: A name has no namespace, or a text is not a target.

        >>> tags = default_registry().with_tags({"acme/box": "arm/rasp4b(cpu/num-cores=2)"})
        >>> tags["acme/box"].at("cpu")["num-cores"]
        2
        """
        problems = [
            f"{shown(name)} is not a full name of a tag; add the vendor, as in acme/box"
            for name in tags
            if "/" not in name
        ]
        raise_all(TargetError, problems)
        rows = {name: self._row_in_code(name, target, overrides=override) for name, target in tags.items()}
        return Registry(*self._layers, CodeLayer("code", rows))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find_row(name) is not None

    def __iter__(self) -> Iterator[str]:
        """List the names of all concrete tags, sorted, without aliases and abstract tags."""
        # Most tags are in the lowest layer, which lists them without reading rows; only the others are looked up.
        lowest, *others = self._layers or (CodeLayer("nothing", {}),)
        listed = set(lowest.listed())
        for name in {name for layer in others for name in layer.names()}:
            row = self.find_row(name)
            is_listed = row is not None and row.info.name == name and not row.info.is_abstract and not row.problems
            (listed.add if is_listed else listed.discard)(name)
        yield from sorted(listed)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Target:
        tree = self.tree(name)
        if name in self._deprecated:
            warn(f"tag {name!r} is deprecated; use {self._deprecated[name]}")
        # A file that cannot be read may define this tag anew. The lowest layer is shipped, and tests check its files.
        files = (layer for layer in self._layers[1:] if isinstance(layer, FileLayer))
        unread = {problem for layer in files for problem in layer.problems(name)}
        for problem in sorted(unread - self._warned):
            warn(f"{problem}; what it defines is ignored")
        self._warned |= unread
        return tree

    def __repr__(self) -> str:
        return f"Registry({', '.join(layer.label for layer in self._layers)})"

    def namespaces(self) -> tuple[str, ...]:
        """List the namespaces.

        Returns:
            The first parts of the names, before '/', sorted.
        """
        return tuple(sorted({namespace for layer in self._layers for namespace in layer.namespaces()}))

    def info(self, name: str) -> TagInfo:
        """Return the metadata of a tag.

        Args:
            name: A name or alias.

        Returns:
            The metadata.

        Raises:
            UnknownNameError: There is no such tag; the message suggests the nearest names.
        """
        return self._row(name).info

    def tree(self, name: str) -> Target:
        """Return the tree of a tag like `self[name]`, but without a warning for deprecated tags.

        Args:
            name: A name or alias.

        Returns:
            The tree.

        Raises:
            UnknownNameError: There is no such tag; the message suggests the nearest names.
            TargetError: The tag has problems.
        """
        return self._tree(name, ())

    def kinds(self, name: str) -> frozenset[str] | None:
        """Return the kinds in the tree of a tag without building it.

        Args:
            name: A name or alias.

        Returns:
            The kinds, or None if the rows of the tag and its bases do not determine them.
        """
        found: set[str] = set()
        for _ in range(MAX_BASES):  # a bound instead of a set of seen names, as longer chains are errors anyway
            row = self._row(name)
            if not _collect_kinds(row.flat, found):
                return None
            if row.base is None:
                return frozenset(found)
            name = row.base
        return None

    def find_info(self, name: str) -> TagInfo | None:
        """Look up the metadata of a tag, which may have problems.

        Args:
            name: A name or alias.

        Returns:
            The metadata, or None if there is no such tag.
        """
        row = self.find_row(name)
        return row.info if row is not None else None

    def abstract(self, namespace: str | None = None) -> tuple[str, ...]:
        """List the abstract tags: bases of others, and partial configurations.

        Args:
            namespace: The namespace to list, such as `config`; None for all.

        Returns:
            The names, sorted.
        """
        names = {name for layer in self._layers for name in layer.names()}
        if namespace is not None:
            names = {name for name in names if name.startswith(f"{namespace}/")}
        rows = ((name, self.find_row(name)) for name in names)
        return tuple(sorted(name for name, row in rows if row and row.info.name == name and row.info.is_abstract))

    def boards(self) -> Mapping[str, str]:
        """Find the tags that state to be of the same board as another tag.

        Returns:
            The other tag by the name of each, sorted.
        """
        return dict(sorted(pair for layer in self._layers for pair in layer.boards().items()))

    def tree_index(self) -> TreeIndex | None:
        """Return the index of the trees of the shipped tags.

        Returns:
            The index, or None if files have changed since they were compiled, or a higher layer replaces shipped tags,
            on which others may be based.
        """
        if not self._layers or not isinstance(self._layers[0], CompiledLayer):
            return None
        lowest, *others = self._layers
        is_replaced = any(lowest.find(name) is not None for layer in others for name in layer.names())
        return None if is_replaced else self._layers[0].trees()

    def problems(self, *, shipped: bool = True) -> tuple[str, ...]:
        """Read all layers and list their problems.

        Args:
            shipped: Whether to include the lowest layer, which the library ships and its tests check.

        Returns:
            Problems of files and rows, and names that two layers define.
        """
        layers = self._layers if shipped else self._layers[1:]
        found = [problem for layer in layers for problem in layer.problems()]
        for layer in layers:
            for name in layer.names():
                row = self.find_row(name)
                found += row.problems if row is not None else ()
        return tuple(dict.fromkeys(found))

    def _row(self, name: str) -> TagRow:
        row = self.find_row(name)
        if row is None:
            tail = did_you_mean(name, [*self, *self.abstract()]) or "; `tvmtarget tags` lists them"
            # The name may be unknown because the file that defines it cannot be read.
            broken = [problem for layer in self._layers for problem in layer.problems(name)]
            raise UnknownNameError(f"unknown tag {shown(name)}{tail}", *broken)
        return row

    def find_row(self, name: str) -> TagRow | None:
        """Look up a tag in the highest layer that defines it.

        Args:
            name: A name or alias.

        Returns:
            The row, which may have problems, or None if there is no such tag.
        """
        # Without a namespace it is a kind or a word, and no file needs to be read.
        if "/" not in name:
            return None
        if name not in self._found:
            row = self._search_layers(name)
            if row is None:
                return None
            self._found[name] = row
        return self._found[name]

    def _search_layers(self, name: str) -> TagRow | None:
        # Highest layer first. The row of a conflict is kept with its problem, so that only this name fails.
        rows = [row for layer in reversed(self._layers) if (row := layer.find(name)) is not None]
        if len(rows) < 2 or rows[0].info.overrides:
            return rows[0] if rows else None
        problem = f"{defined_twice(name, rows[1].info, rows[0].info)}; set override = true in the second"
        return TagRow(rows[0].info, rows[0].base, rows[0].flat, (*rows[0].problems, problem))

    def _row_in_code(self, name: str, target: TargetLike, *, overrides: bool) -> TagRow:
        info = TagInfo(name, "", ("code",), "", (), is_abstract=False, file=Path("code"), overrides=overrides)
        return TagRow(info, None, target if isinstance(target, Mapping) else Target.parse(target, tags=self).to_json())

    def _tree(self, name: str, below: tuple[str, ...]) -> Target:
        """Return the tree of a tag; `below` are the tags under construction that use it."""
        if name not in self._trees:
            row = self._row(name)
            if row.info.deprecated:
                self._deprecated[name] = row.info.deprecated
            self._trees[name] = self._build(row, below)
        return self._trees[name]

    def _build(self, row: TagRow, below: tuple[str, ...]) -> Target:
        """Build the tree of a row: its base with overrides, or flat JSON, which may contain other tags."""
        name = row.info.name
        chain = " -> ".join([*below, name])
        try:
            raise_all(TargetError, row.problems)
            if name in below:
                raise TargetError(f"tags form a cycle: {chain}")
            if len(below) >= MAX_BASES:
                raise TargetError(f"a chain of more than {MAX_BASES} tags: {chain}")
            tags = _RegistryUnderConstruction(self, (*below, name))
            flat = row.flat if row.base is None else {**row.flat, "tag": row.base}
            origin = Origin("tag", f"{name} in {row.info.file.name}")
            tree = Target.from_json(flat, tags=tags, origin=origin).replace(tag=name)
            # The user may not have reviewed the repository of a project, so it must not name machines to connect to.
            if is_project_file(row.info.file):
                base = trusted_attributes(tags[row.base]) if row.base is not None else frozenset()
                reject_trusted(tree, f"tag {name!r}", base)
            return tree
        except TvmTargetError as error:
            where = f" (tag {name!r} in {location(row.info)})"
            raise TargetError(*(_with_location(problem, where) for problem in error.problems)) from error


def _layer_of(given: object) -> Layer:
    """Return a layer as it is, or the layer of a folder, which may be missing."""
    if not isinstance(given, str | Path):
        # The first check against a protocol takes as long as reading a tag, and most layers are of these classes.
        if not isinstance(given, CompiledLayer | FileLayer | CodeLayer) and not isinstance(given, Layer):
            raise TargetError(f"a layer of a registry is a folder of tag files or a Layer, not {shown(given)}")
        return given
    folder = Path(given)
    if "\0" in str(given) or not str(given) or (folder.exists() and not folder.is_dir()):
        raise TargetError(f"{str(given)!r} is not a folder; name the one with tag files such as acme.toml")
    return FileLayer(str(folder), folder=folder)


def _collect_kinds(flat: Mapping[str, object], found: set[str]) -> bool:
    """Add the kinds in flat JSON to `found`; return False if a part is a text or a tag."""
    kind, children = flat.get("kind"), flat.get("targets", ())
    if kind is not None:
        found.add(str(kind))
    if "tag" in flat or (kind is not None and find_kind(str(kind)) is None) or not isinstance(children, list | tuple):
        return False
    found |= {"composite"} if children and kind is None else set()
    below = [*children, *(value for key, value in flat.items() if key == "host" and not _is_reference(value))]
    below += [value for key, value in flat.items() if key not in _FIELDS and isinstance(value, Mapping)]
    return all(isinstance(node, Mapping) and _collect_kinds(node, found) for node in below)


def _is_reference(value: object) -> bool:
    """Whether a host is a reference such as `@cpu`, whose node is visited anyway."""
    return isinstance(value, str) and value.startswith("@")


def _with_location(problem: str, where: str) -> str:
    """Append the location to a problem, unless it has the location of an inner tag or of a file."""
    has_location = " (tag '" in problem or " in tag file " in problem or "defined twice" in problem
    return problem if has_location else problem + where


class _RegistryUnderConstruction(Mapping[str, Target]):
    """Registry for the construction of a tag, which remembers the tags under construction to detect cycles."""

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
    """Return the registry of the folder in which this process first called this function.

    Returns:
        The registry, the same at every call.
    """
    try:
        cwd = Path.cwd()
    except FileNotFoundError:  # the working folder was removed
        return Registry.discover(None, os.environ)
    return Registry.discover(cwd, os.environ)
