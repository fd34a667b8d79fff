"""Loader of target trees: reads texts and flat JSON, looks up tags, and reports all problems at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Generic, Protocol, TypeVar, cast

from tvmtarget.errors import TargetError, TextError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.target.attributes import Attributes
from tvmtarget.target.edit import merge_children, override, part, unset
from tvmtarget.target.identity import SCHEMA
from tvmtarget.target.kinds import find_kind, kind_of
from tvmtarget.target.node import opaque_attributes
from tvmtarget.target.problems import Problems, shown
from tvmtarget.target.provenance import Origin
from tvmtarget.target.target_node import TargetNode
from tvmtarget.target.text.forms import Composition, detect, read
from tvmtarget.target.text.grammar import MAX_DEPTH, is_word
from tvmtarget.target.text.printing import RESERVED
from tvmtarget.target.tree_paths import is_reference, join
from tvmtarget.target.tvm import command_line
from tvmtarget.target.tvm.legacy import BuildSettings
from tvmtarget.target.tvm.quoting import split
from tvmtarget.target.values import read_items
from tvmtarget.untrusted import check_limit, limit

__all__ = ["Reader", "TagLookup"]

_N = TypeVar("_N", bound=TargetNode)
_N_co = TypeVar("_N_co", bound=TargetNode, covariant=True)


class TagLookup(Protocol[_N_co]):
    """The tags that a text may name: a mapping of names to trees."""

    def __contains__(self, name: object) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, name: str) -> _N_co: ...


class Reader(Generic[_N]):
    """Reads one tree of a class from texts and flat JSON.

    In every method, `where` is the path of the node that is read, for messages. `allow_unknown` says whether a kind
    that no installed package registers is accepted: JSON keeps it, and in a text it is an error. Settings of the build
    in historic spellings are collected from all nodes and written on the root by `whole`.

    Args:
        node: class of the nodes.
        tags: the tags that texts may name.
        origin: provenance of the values.
    """

    def __init__(self, node: Callable[..., _N], tags: TagLookup[_N], origin: Origin) -> None:
        self._node = node
        self._tags = tags
        self._origin = origin
        self._settings = BuildSettings()
        self._nodes = 0
        self._max_nodes = limit("target-nodes")

    def whole(self, root: _N) -> _N:
        """Put settings of the build in historic spellings, from anywhere in a tree, on its root.

        Args:
            root: the tree that this reader read.

        Returns:
            The tree.

        Raises:
            TargetError: settings contradict each other.
        """
        with_settings = self._settings.settle(root)
        changed = [field for field in ("executor", "runtime") if getattr(with_settings, field) != getattr(root, field)]
        return with_settings.with_origins(dict.fromkeys(changed, self._origin)) if changed else root

    def text(self, source: str, where: str = "") -> _N:
        """Read any form of text.

        Args:
            source: the text.
            where: path of the node.

        Returns:
            The tree.

        Raises:
            TextError: the text does not parse or exceeds a limit.
            UnknownNameError: unknown kinds, attributes or tags.
            TargetError: the tree contradicts itself.
        """
        # JSON is decoded by C code, which reads more in the same time.
        check_limit("text-bytes" if source.lstrip()[:1] == "{" else "target-bytes", len(source), "the text", TextError)
        form = detect(source, self._is_tag)
        found = read(source, form, self._is_tag)
        if isinstance(found, Composition):
            return self._composition(found, where)
        return self.flat(found, where, allow_unknown=form in ("json", "toml"))

    def listed(self, targets: object) -> _N:
        """Read tvmc's list of targets in flat JSON.

        Args:
            targets: objects of flat JSON, whose kind may be a whole command line, or texts.

        Returns:
            The tree.

        Raises:
            TargetError: it is no such list, or the targets do not make a tree.
        """
        if not isinstance(targets, list | tuple) or not targets:
            raise TargetError(f"'targets' is a list of targets, not {shown(targets)}")
        parts, problems = list[dict[str, object]](), Problems()
        for at, target in enumerate(targets):
            with problems.collect(f"targets[{at}]"):
                parts.append(_of_list(target))
        problems.raise_all()
        return self._composition(Composition(tuple(parts)), "") if parts[1:] else self.flat(parts[0])

    def flat(self, data: object, where: str = "", depth: int = 1, *, allow_unknown: bool = True) -> _N:
        """Read flat JSON.

        Args:
            data: an object; a text or a tree is accepted too.
            where: path of the node.
            depth: level of the node, the root being 1.
            allow_unknown: whether unregistered kinds are kept.

        Returns:
            The tree.

        Raises:
            TargetError: the data is not valid; all problems at once.
            UnknownNameError: all problems are unknown names.
        """
        if isinstance(data, TargetNode):
            return cast(_N, data)
        if isinstance(data, str):
            return self.text(data, where)
        problems = Problems()
        with problems.collect(where):
            flat = self._settings.modern(_checked(data, depth), where)
        problems.raise_all()
        # Children are made before their parent, since nodes are frozen.
        children = cast("list[object]", flat.pop("targets", ()))
        self._nodes += len(children)
        if self._nodes > self._max_nodes:
            check_limit("target-nodes", self._nodes, "the target", TargetError)
        below: list[_N] = []
        for at, child in enumerate(children):
            with problems.collect():
                place = join(where, _slot_of(child) or f"targets[{at}]")
                below.append(self.flat(child, place, depth + 1, allow_unknown=allow_unknown))
        host = flat.get("host")
        if host is not None and not is_reference(host):
            with problems.collect():
                flat["host"] = self.flat(host, join(where, "host"), depth + 1, allow_unknown=allow_unknown)
        if problems:  # fields about children or the host cannot be checked without them
            flat = {key: value for key, value in flat.items() if key not in ("host", "links", "memory")}
        with problems.collect(where):
            is_tagged = "kind" not in flat and "tag" in flat
            node = (self._tagged if is_tagged else self._plain)(flat, tuple(below), allow_unknown=allow_unknown)
        problems.raise_all()
        return node

    def _is_tag(self, name: str) -> bool:
        return "/" in name and name in self._tags

    def _plain(self, flat: dict[str, object], children: tuple[_N, ...], *, allow_unknown: bool) -> _N:
        """Make a node of the kind that its JSON states."""
        kind = flat.pop("kind", "composite")
        fields = {field: flat.pop(field) for field in RESERVED if field in flat}
        attrs = _attributes(kind, flat, allow_unknown=allow_unknown)
        node = self._node(kind, attrs, targets=children, **fields)
        return node.with_origins(dict.fromkeys(("kind", *node.attrs, *fields), self._origin))

    def _tagged(self, flat: dict[str, object], children: tuple[_N, ...], *, allow_unknown: bool) -> _N:
        """Look up a tag, and unset, merge and override values as the rest of its JSON says."""
        tree = self._look_up(flat.pop("tag"))
        # Values are unset before others are set, so that `~a,a=1` sets `a`.
        for path in cast("list[str]", flat.pop("~", ())):
            tree = unset(tree, path)
        if children:
            tree = tree.replace(targets=merge_children(tree.targets, children))
        name = flat.pop("name", None)
        tree = override(tree, flat, partial(self.flat, allow_unknown=allow_unknown), self._origin)
        return tree if name is None else tree.replace(name=name)

    def _look_up(self, label: object) -> _N:
        if not isinstance(label, str):
            raise TargetError(f"'tag' is the name of a tag, not {shown(label)}")
        # `name:path` is a part of a tag, unless the whole text is the name of a tag.
        name, _, path = (label, "", "") if label in self._tags else label.partition(":")
        if name not in self._tags:
            tail = did_you_mean(name, self._tags) or "; `tvmtarget tags` lists them"
            raise UnknownNameError(f"unknown tag {shown(name)}{tail}")
        return part(self._tags[name], path)

    def _composition(self, found: Composition, where: str) -> _N:
        """Read tvmc's list: external code generators, then a device, then the host of that device.

        With code generators they become the children of a composite; a device and its host become that device.
        """
        problems, parts = Problems(), list[_N]()
        for one in found.parts:
            with problems.collect():
                parts.append(self.flat(one, where, allow_unknown=False))
        problems.raise_all()
        # Code generators come first, so what is left after them must be the device and its host.
        devices = [one for one in parts if not one.is_external]
        externals = parts[: len(parts) - len(devices)]
        twice = next(
            (one.kind for at, one in enumerate(parts) if one.kind in [other.kind for other in parts[:at]]), None
        )
        if twice is not None:
            raise TargetError(
                f"{twice!r} is given twice in a list; children of one kind have names: [a={twice},b={twice}]"
            )
        if len(devices) > 2 or not all(one.is_external for one in externals):
            listed = ", ".join(one.kind for one in parts)
            raise TargetError(f"a list is of code generators, then at most one device and its host, not {listed}")
        if len(devices) == 2 and devices[0].host is not None:
            raise TargetError(f"two hosts are given for {devices[0].kind!r}: its own, and {devices[1].kind!r} after it")
        if not externals:
            return devices[0].replace(host=devices[1]).with_origins({"host": self._origin})
        host = devices[1] if devices[1:] else None
        whole = self._node("composite", targets=(*externals, *devices[:1]), host=host)
        return whole.with_origins({"kind": self._origin, "host": self._origin})


def _of_list(target: object) -> dict[str, object]:
    """Return an element of tvmc's list as flat JSON; texts are command lines, and values of lists may be texts."""
    if isinstance(target, str):
        return command_line.read(target)
    if not isinstance(target, Mapping):
        raise TargetError(f"a target is a text or an object, not {shown(target)}")
    kind, rest = target.get("kind"), {str(name): value for name, value in target.items() if name != "kind"}
    in_kind = command_line.read(kind) if isinstance(kind, str) else {} if kind is None else {"kind": kind}
    twice = next((name for name in in_kind if name in rest), None)
    if twice is not None:
        raise TargetError(f"{shown(twice)} is given twice, in the kind {shown(kind)} and beside it")
    row = find_kind(str(in_kind.get("kind")))
    for name, value in rest.items():
        attribute = row.attribute(name) if row is not None else None
        if attribute is not None and attribute.is_list and isinstance(value, str):
            rest[name] = [item for _, item in split(value, ",", "plain")]
    return in_kind | rest


def _checked(data: object, depth: int) -> dict[str, object]:
    """Check the shape of one object of flat JSON and return a copy to take apart; all problems at once."""
    if not isinstance(data, Mapping):
        raise TargetError(f"a target is a text or an object, not {shown(data)}")
    if depth > MAX_DEPTH:
        raise TargetError(f"the tree is deeper than {MAX_DEPTH} levels")
    flat = {str(key): value for key, value in data.items()}
    problems: list[str] = []
    if "devices" in flat and "targets" in flat:
        problems.append("'targets' and 'devices' are two names of one field; leave one out")
    elif "devices" in flat:
        flat["targets"] = flat.pop("devices")
    problems += [f"{key!r} is null; leave it out" for key in (*RESERVED, "+", "~") if flat.get(key, key) is None]
    if not flat.keys() & {"kind", "tag", "targets"}:
        problems.append("a target needs a 'kind' or a 'tag'")
    schema = flat.pop("schema", SCHEMA)
    if schema is not None and (schema != SCHEMA or isinstance(schema, bool)):
        problems.append(f"target schema {shown(schema)} is not known here; this version reads schema {SCHEMA}")
    for key, items in (("targets", "targets"), ("+", "features"), ("~", "paths")):
        value = flat.get(key, ())
        is_right = isinstance(value, list | tuple) and (key == "targets" or all(isinstance(x, str) for x in value))
        if not is_right and value is not None:
            problems.append(f"{key!r} is a list of {items}, not {shown(value)}")
    raise_all(TargetError, problems)
    return flat


def _attributes(kind: object, flat: dict[str, object], *, allow_unknown: bool) -> Attributes | dict[str, object]:
    """Return the rest of a node's JSON as attributes; those of a known kind are checked when the node is made."""
    features = cast("list[str]", flat.pop("+", []))
    if flat.pop("~", []):
        raise TargetError(f"nothing to unset in {shown(kind)}; '~' unsets values of a tag")
    path = next((name for name in flat if "/" in name), None)
    if path is not None:
        raise TargetError(
            f"{shown(path)} is a path, and paths override values of a tag; write the attribute inside its node"
        )
    row = find_kind(kind) if isinstance(kind, str) and allow_unknown else kind_of(kind)
    if row is None:
        return opaque_attributes(str(kind), flat | ({"+": features} if features else {}))
    if not features:
        return flat
    if row.features is None:
        raise TargetError(row.without_features(features))
    try:
        given = read_items(flat.get(row.features.name, ()))
    except ValueError:
        return flat  # making the node reports what is wrong with it
    return flat | {row.features.name: [*given, *features]}


def _slot_of(child: object) -> str:
    """Return the slot of a child that is not read yet, as far as its JSON shows it."""
    if isinstance(child, TargetNode):
        return child.slot
    names = [child.get(key) for key in ("name", "kind", "tag")] if isinstance(child, Mapping) else [child]
    return next((name for name in names if isinstance(name, str) and is_word(name)), "")
