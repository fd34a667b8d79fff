"""Loader of target trees: reads texts and flat JSON, looks up tags, and reports all problems at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from pathlib import PurePath
from typing import Generic, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from tvmtarget.errors import Problem, TargetError, TextError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.target import builtin_kinds  # noqa: F401 - every tree needs them, and garbage is not collected now
from tvmtarget.target.attributes import Attributes, fold
from tvmtarget.target.edit import merge_children, override, part, unset
from tvmtarget.target.kinds import find_kind, kind_names, kind_of
from tvmtarget.target.node import read_attributes
from tvmtarget.target.problems import REPORTED, Problems, shown
from tvmtarget.target.provenance import Origin
from tvmtarget.target.target_node import TargetNode
from tvmtarget.target.text.forms import Composition, detect, read
from tvmtarget.target.text.words import MAX_DEPTH, RESERVED, is_word
from tvmtarget.target.tree_paths import is_reference, join
from tvmtarget.target.tvm import command_line
from tvmtarget.target.tvm.legacy import BuildSettings
from tvmtarget.target.tvm.quoting import split
from tvmtarget.target.tvm.versions import is_live
from tvmtarget.target.values import SCHEMA, read_items
from tvmtarget.untrusted import check_limit

__all__ = ["Reader", "TagLookup", "TreeView", "instead_of_target"]

_N = TypeVar("_N", bound=TargetNode)
_N_co = TypeVar("_N_co", bound=TargetNode, covariant=True)

# Children of a tree up to which equal ones are not looked for: comparing costs as much as reading.
_FEW = 64

# Words that are no kinds, and the kinds that people mean by them.
_MEANT = {
    **dict.fromkeys(("cpu", "tvm", "x86", "arm"), ("llvm",)),
    **dict.fromkeys(("onnx", "ort"), ("onnxruntime",)),
    "amd": ("rocm",),
    "apple": ("metal",),
    "gpu": ("cuda", "rocm", "opencl"),
    "intel": ("openvino", "llvm"),
    "npu": ("openvino", "ethos-u"),
    "nvidia": ("cuda",),
    "ov": ("openvino",),
    "trt": ("tensorrt",),
}

# Types whose values are equal exactly if they and their types are.
_ATOMS = frozenset({str, int, bool})

# The place of a node: that of the node around it, and its own JSON and index there; None for the root. Its path is
# spelled out in messages only.
_Where: TypeAlias = "tuple[_Where, object, int] | None"


@runtime_checkable
class TagLookup(Protocol[_N_co]):
    """The tags that a text may name: a mapping of names to trees."""

    def __contains__(self, name: object) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, name: str) -> _N_co: ...


@runtime_checkable
class TreeView(Protocol):
    """Another view of a tree, such as `CompilationConfig`."""

    def as_target(self) -> TargetNode:
        """Return the tree.

        Raises:
            TargetError: a tree cannot express the view.
        """
        ...


class Reader(Generic[_N]):
    """Reads one tree of a class from texts and flat JSON.

    In every method, `where` is the place of the node that is read, for messages. `allow_unknown` says whether a kind
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
        self._attributes: dict[tuple[object, ...], Attributes] = {}
        self._origins: dict[tuple[str, ...], Mapping[str, Origin]] = {}

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
        if with_settings is root:
            return root
        changed = [field for field in ("executor", "runtime") if getattr(with_settings, field) != getattr(root, field)]
        return with_settings.with_origins(dict.fromkeys(changed, self._origin)) if changed else root

    def text(self, source: str, where: _Where = None) -> _N:
        """Read any form of text.

        Args:
            source: the text.
            where: place of the node.

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

    def listed(self, targets: object, host: object = None) -> _N:
        """Read a list of targets: tvmc's, or devices with a host.

        Args:
            targets: targets in any form; the kind of an object may be a whole command line.
            host: the host of all targets, in any form, or a reference to one of them.

        Returns:
            The tree.

        Raises:
            TargetError: it is no such list, or the targets do not make a tree.
        """
        if not isinstance(targets, list | tuple) or not targets:
            raise TargetError(f"'targets' is a list of targets, not {shown(targets)}")
        parts, problems = list[_N](), Problems()
        for at, target in enumerate(targets):
            with problems.collect(f"targets[{at}]", (at,)):
                parts.append(self.flat(_of_list(target), allow_unknown=not targets[1:]))
        if host is not None and not is_reference(host):
            with problems.collect("host"):
                host = self.flat(host)
        problems.raise_all()
        return self._composed(parts, host)

    def flat(self, data: object, where: _Where = None, depth: int = 1, *, allow_unknown: bool = True) -> _N:
        """Read flat JSON.

        Args:
            data: an object; a text, a tree, another view of a tree or a live target of TVM is accepted too.
            where: place of the node.
            depth: level of the node, the root being 1.
            allow_unknown: whether unregistered kinds are kept.

        Returns:
            The tree.

        Raises:
            TargetError: the data is not valid; all problems at once.
            UnknownNameError: all problems are unknown names.
        """
        problems = Problems()
        if (type(data) is dict or isinstance(data, Mapping)) and "devices" in data and "targets" not in data:
            # TVM's name of the children.
            data = {"targets" if key == "devices" else key: value for key, value in data.items()}
        fields = _plain_fields(data) if type(data) is dict and depth <= MAX_DEPTH else None
        if fields is not None:
            flat = cast("dict[str, object]", data).copy()
        elif isinstance(data, TargetNode):
            return cast(_N, data)
        elif isinstance(data, str):
            return self.text(data, where)
        elif not isinstance(data, Mapping) and isinstance(data, TreeView):
            return cast(_N, data.as_target())
        else:
            if is_live(data):
                from tvmtarget.target.tvm import bridge

                data = bridge.read(data)
            with problems.collect(_path(where)):
                flat = self._settings.modern(_checked(data, depth), _path(where))
            problems.raise_all()
        # Children are made before their parent, since nodes are frozen.
        below: list[_N] = []
        children = cast("list[object]", flat.pop("targets", ()))
        if children:
            self._nodes += len(children)
            check_limit("target-nodes", self._nodes, "the target", TargetError)
        for at, child in enumerate(children):
            try:
                below.append(self.flat(child, (where, child, at), depth + 1, allow_unknown=allow_unknown))
            except REPORTED as error:
                problems.add(error, loc=("targets", at))
        host = flat.get("host")
        if host is not None and not is_reference(host):
            try:
                flat["host"] = self.flat(host, (where, "host", 0), depth + 1, allow_unknown=allow_unknown)
            except REPORTED as error:
                problems.add(error, loc=("host",))
        if problems:  # fields about children or the host cannot be checked without them
            flat = {key: value for key, value in flat.items() if key not in ("host", "links", "memory")}
        try:
            if fields is None and "kind" not in flat and "tag" in flat:
                node = self._tagged(flat, tuple(below), allow_unknown=allow_unknown)
            else:
                node = self._plain(flat, fields, tuple(below), allow_unknown=allow_unknown)
        except REPORTED as error:
            problems.add(error, _path(where))
        problems.raise_all()
        return node

    def _is_tag(self, name: str) -> bool:
        return "/" in name and name in self._tags

    def _plain(
        self, flat: dict[str, object], fields: Set[str] | None, children: tuple[_N, ...], *, allow_unknown: bool
    ) -> _N:
        """Make a node of the kind that its JSON states; all keys but `fields` are attributes, if these are known."""
        kind = flat.pop("kind", "composite")
        stated = {field: flat.pop(field) for field in (RESERVED if fields is None else sorted(fields)) if field in flat}
        if fields is None and isinstance(kind, str) and not allow_unknown and find_kind(kind) is None:
            raise self._unknown_kind(kind)
        attrs: Mapping[str, object] = flat
        if fields is None:
            attrs = _attributes(kind, flat, allow_unknown=allow_unknown)
        elif self._nodes > _FEW:
            attrs = self._shared_attributes(kind, flat)
        node = self._node(kind, attrs, targets=children, **stated)
        names = ("kind", *node.attrs, *stated)
        origins = self._origins.get(names)
        if origins is None:
            origins = self._origins[names] = dict.fromkeys(names, self._origin)
        node.record_origins(origins)
        return node

    def _shared_attributes(self, kind: object, flat: dict[str, object]) -> Mapping[str, object]:
        """Return the attributes of a node; those of equal nodes are read once and share their memory."""
        types = tuple(map(type, flat.values()))
        if not _ATOMS.issuperset(types):
            return flat
        # True equals 1, but is another value.
        key = (kind, *flat.items(), types)
        found = self._attributes.get(key)
        if found is None:
            try:
                found = self._attributes[key] = read_attributes(kind_of(kind), flat)
            except REPORTED:
                return flat  # making the node reports this with what else is wrong with it
        return found

    def _tagged(self, flat: dict[str, object], children: tuple[_N, ...], *, allow_unknown: bool) -> _N:
        """Look up a tag, and unset, merge and override values as the rest of its JSON says."""
        tree = self._look_up(flat.pop("tag"))
        # Values are unset before others are set, so that `~a,a=1` sets `a`.
        problems = Problems()
        for at, path in enumerate(cast("list[str]", flat.pop("~", ()))):
            with problems.collect(loc=("~", at)):
                tree = unset(tree, path)
        problems.raise_all()
        if children:
            tree = tree.replace(targets=merge_children(tree.targets, children))
        name = flat.pop("name", None)
        tree = override(tree, flat, partial(self.flat, allow_unknown=allow_unknown), self._origin)
        return tree if name is None else tree.replace(name=name)

    def _unknown_kind(self, name: str) -> UnknownNameError:
        """Return the error about a text whose kind is not registered: it may be a part of the name of a tag."""
        names = {tag: fold(tag).lower() for tag in self._tags}
        by_fold: dict[str, list[str]] = {}
        for tag, one in names.items():
            by_fold.setdefault(one.rpartition("/")[2], []).append(tag)
        folded = fold(name).lower()
        if folded == "native":
            tail = "; this machine is `native` alone in commands, Target.detect() in Python"
            return UnknownNameError(Problem(f"unknown kind {shown(name)}{tail}", ("kind",)))
        if folded in _MEANT:
            tail = f"; did you mean {' or '.join(map(repr, _MEANT[folded]))}?"
            return UnknownNameError(Problem(f"unknown kind {shown(name)}{tail}", ("kind",)))
        having = sorted(tag for tag, one in names.items() if folded in one.replace("/", "-").split("-"))
        if having and len(folded) > 3 and folded not in by_fold:
            more = "" if len(having) <= 3 else f" `tvmtarget tags {name}` lists all"
            tail = f"; did you mean the tag {' or '.join(map(repr, having[:3]))}?{more}"
            return UnknownNameError(Problem(f"unknown kind {shown(name)}{tail}", ("kind",)))
        tail = "" if folded in by_fold else did_you_mean(name, kind_names())
        if not tail:
            import difflib  # only messages need it, and reading a target is to start fast

            near = difflib.get_close_matches(folded, by_fold, n=1, cutoff=0.85)
            tags = [repr(tag) for tag in by_fold[near[0]][:3]] if near else []
            is_part = len(folded) > 2 and any(folded in one for one in names.values())
            listed = f"`tvmtarget tags {name}` lists tags with it" if is_part else "`tvmtarget kinds` lists them"
            tail = f"; did you mean the tag {' or '.join(tags)}?" if tags else f"; {listed}"
        return UnknownNameError(Problem(f"unknown kind {shown(name)}{tail}", ("kind",)))

    def _look_up(self, label: object) -> _N:
        if not isinstance(label, str):
            raise TargetError(Problem(f"'tag' is the name of a tag, not {shown(label)}", ("tag",)))
        # `name:path` is a part of a tag, unless the whole text is the name of a tag.
        name, _, path = (label, "", "") if label in self._tags else label.partition(":")
        try:
            return part(self._tags[name], path)
        except UnknownNameError as error:  # a registry also names the files that it cannot read
            raise UnknownNameError(*(Problem.within(("tag",), line) for line in error.problems)) from error
        except KeyError:
            tail = did_you_mean(name, self._tags) or "; `tvmtarget tags` lists them"
            raise UnknownNameError(Problem(f"unknown tag {shown(name)}{tail}", ("tag",))) from None

    def _composition(self, found: Composition, where: _Where) -> _N:
        """Read tvmc's list in a text."""
        problems, parts = Problems(), list[_N]()
        for one in found.parts:
            with problems.collect():
                parts.append(self.flat(one, where, allow_unknown=False))
        problems.raise_all()
        return self._composed(parts)

    def _composed(self, parts: list[_N], host: object = None) -> _N:
        """Make a tree of a list: external code generators, then a device, then the host of that device.

        With code generators they become the children of a composite; a device and its host become that device. If a
        host is given, or all devices state the same one, the last device is a device too, and all become children.
        """
        if not parts[1:] and host is None:
            return parts[0]
        stated = [one.host for one in parts if not one.is_external]
        if host is not None or (
            stated[1:] and isinstance(stated[0], TargetNode) and stated.count(stated[0]) == len(stated)
        ):
            return self._driven(parts, stated[0] if host is None else host)
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

    def _driven(self, parts: list[_N], host: object) -> _N:
        """Make a tree of targets that one host drives: the only target, or a composite."""
        differ = [one for one in parts if one.host not in (None, host)]
        if differ:
            raise TargetError(
                f"two hosts are given for {differ[0].kind!r}: its own, {str(differ[0].host)!r}, and {str(host)!r}"
            )
        if len(parts) == 1:
            return parts[0].replace(host=host).with_origins({"host": self._origin})
        children = [one if one.host is None else one.replace(host=None) for one in parts]
        whole = self._node("composite", targets=children, host=host)
        return whole.with_origins({"kind": self._origin, "host": self._origin})


_INSTEAD = {
    "Constraint": "tvmtarget.select(trees, constraint) returns the targets that satisfy a constraint",
    "Executor": "pass it as executor=",
    "Runtime": "pass it as runtime=",
    "Kind": "make a target of the kind: Target(kind.name)",
    "VirtualDevice": "pass its target: device.target",
}


def instead_of_target(value: object) -> str:
    """Return the end of a message about a value that is no target: what to write instead.

    Args:
        value: the value.

    Returns:
        A clause that begins with "; ", or the empty string.
    """
    if isinstance(value, PurePath):
        return "; read the file first: Target.parse(path.read_text())"
    clause = _INSTEAD.get(type(value).__name__)
    return f"; {clause}" if clause else ""


def _of_list(target: object) -> object:
    """Return an element of a list; of an object, the kind may be a command line, and values of lists may be texts."""
    if not isinstance(target, Mapping):
        return target
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


# The fields that are read as they are written: the name of a runtime can be historic, and a schema is checked.
_PLAIN_FIELDS = frozenset(RESERVED) - {"runtime", "schema"}


def _plain_fields(data: Mapping[str, object]) -> Set[str] | None:
    """Return the keys of an object that are fields, if all others are attributes of its kind in present spelling.

    Args:
        data: flat JSON of one node.

    Returns:
        The keys; None if some keys or values have to be converted, or are wrong.
    """
    kind = data.get("kind")
    row = find_kind(kind) if type(kind) is str else None
    if row is None:
        return None
    fields = data.keys() - row.by_spelling.keys()
    if not fields <= _PLAIN_FIELDS:
        return None
    for field in fields:  # a loop, because a generator costs more than the rest of this function
        if data[field] is None:
            return None
    return fields if "targets" not in fields or isinstance(data["targets"], list | tuple) else None


def _checked(data: object, depth: int) -> dict[str, object]:
    """Check the shape of one object of flat JSON and return a copy to take apart; all problems at once."""
    if not isinstance(data, Mapping):
        raise TargetError(f"a target is a text or an object, not {shown(data)}{instead_of_target(data)}")
    if depth > MAX_DEPTH:
        raise TargetError(f"the tree is deeper than {MAX_DEPTH} levels")
    flat = {str(key): value for key, value in data.items()}
    problems: list[str] = []
    if "devices" in flat and "targets" in flat:
        problems.append(Problem("'targets' and 'devices' are two names of one field; leave one out", ("devices",)))
    problems += [
        Problem(f"{key!r} is null; leave it out", (key,)) for key in (*RESERVED, "+", "~") if flat.get(key, key) is None
    ]
    if not flat.keys() & {"kind", "tag", "targets"}:
        problems.append("a target needs a 'kind' or a 'tag'")
    schema = flat.pop("schema", SCHEMA)
    if schema is not None and (schema != SCHEMA or isinstance(schema, bool)):
        line = f"target schema {shown(schema)} is not known here; this version reads schema {SCHEMA}"
        problems.append(Problem(line, ("schema",)))
    for key, items in (("targets", "targets"), ("+", "features"), ("~", "paths")):
        value = flat.get(key, ())
        is_right = isinstance(value, list | tuple) and (key == "targets" or all(isinstance(x, str) for x in value))
        if not is_right and value is not None:
            problems.append(Problem(f"{key!r} is a list of {items}, not {shown(value)}", (key,)))
    raise_all(TargetError, problems)
    return flat


def _attributes(kind: object, flat: dict[str, object], *, allow_unknown: bool) -> Attributes | dict[str, object]:
    """Return the rest of a node's JSON as attributes; those of a known kind are checked when the node is made."""
    features = cast("list[str]", flat.pop("+", []))
    if flat.pop("~", []):
        raise TargetError(Problem(f"nothing to unset in {shown(kind)}; '~' unsets values of a tag", ("~",)))
    path = next((name for name in flat if "/" in name), None)
    if path is not None:
        line = f"{shown(path)} is a path, and paths override values of a tag; write the attribute inside its node"
        raise TargetError(Problem(line, (path,)))
    row = find_kind(kind) if isinstance(kind, str) and allow_unknown else kind_of(kind)
    if row is None:
        return Attributes.read(flat | ({"+": features} if features else {}), f" of kind {shown(kind)}")
    if not features:
        return flat
    if row.features is None:
        raise TargetError(Problem(row.without_features(features), ("+",)))
    try:
        given = read_items(flat.get(row.features.name, ()))
    except ValueError:
        return flat  # making the node reports what is wrong with it
    return flat | {row.features.name: [*given, *features]}


def _path(where: _Where) -> str:
    """Return the path of a place, as far as the JSON of the nodes shows their names."""
    slots: list[str] = []
    while where is not None:
        where, child, at = where
        slots.append(_slot_of(child) or f"targets[{at}]")
    return join(*reversed(slots))


def _slot_of(child: object) -> str:
    """Return the slot of a child that is not read yet, as far as its JSON shows it."""
    if isinstance(child, TargetNode):
        return child.slot
    names = [child.get(key) for key in ("name", "kind", "tag")] if isinstance(child, Mapping) else [child]
    return next((name for name in names if isinstance(name, str) and is_word(name)), "")
