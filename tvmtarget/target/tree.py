"""The one value: a target tree, read from any text, changed by overrides, compared by what it says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from tvmtarget import plugins
from tvmtarget.errors import TargetError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.target import text
from tvmtarget.target.attributes import Attributes, Value, fold
from tvmtarget.target.identity import SCHEMA, digest_of, identity_of
from tvmtarget.target.kinds import Kind, find_kind, kind_of
from tvmtarget.target.nesting import NestedNode, drivers
from tvmtarget.target.node import Executor, Link, Memory, Runtime, read_attribute

__all__ = ["TagLookup", "Target"]


class TagLookup(Protocol):
    """What a tree needs of a tag registry: names, and the tree behind a name."""

    def __contains__(self, name: object) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, name: str) -> Target: ...


_FIELDS = ("host", "count", "links", "memory", "executor", "runtime", "keys")


class Target(NestedNode):
    """A device, an external code generator, or a whole system of them.

    Args:
        kind: registered name (llvm, cuda, onnxruntime, ..., composite); text is read by `Target.parse`.
        attrs: attributes of the kind, in TVM's spelling, '-' or '_'.
        name: slot among siblings; the kind unless given.
        host: what drives this device: a Target, or '@path' for a node of the tree.
        targets: children in order of preference.
        count: how many identical replicas this node stands for.
        links, memory: facts about how the children hang together.
        executor, runtime: how the program of this node is driven; a child with its own is a sub-system.
        keys: dispatch keys; the kind's unless given.
        tag: the tag this tree came from: a label, never identity.

    Equality, hash and `digest` look at what was authored, normalised; not at tag, defaults or derived facts.
    """

    def __init__(
        self,
        kind: str,
        attrs: Mapping[str, object] | None = None,
        *,
        name: str | None = None,
        host: Target | str | Mapping[str, object] | None = None,
        targets: Sequence[Target | str] = (),
        count: int = 1,
        links: Sequence[Link] = (),
        memory: Sequence[Memory] = (),
        executor: Executor | str | Mapping[str, object] | None = None,
        runtime: Runtime | str | Mapping[str, object] | None = None,
        keys: Sequence[str] | None = None,
        tag: str | None = None,
    ) -> None:
        super().__init__(
            kind=kind,
            attrs=_read_attributes(kind, attrs, name),
            name=name,
            host=_read_host(host),
            targets=tuple(Target.parse(child) if isinstance(child, str) else child for child in targets),
            count=count,
            links=tuple(links),
            memory=tuple(memory),
            executor=None if executor is None else Executor.from_json(executor),
            runtime=None if runtime is None else Runtime.from_json(runtime),
            keys=None if keys is None else tuple(keys),
            tag=tag,
        )

    # Reading and printing

    @classmethod
    def parse(cls, source: str, *, tags: TagLookup | None = None) -> Target:
        """Read a tag, JSON, TVM's or tvmc's command-line form, or the one-line form.

        Raises `TextError` with a column, `UnknownNameError` with the nearest names, or `TargetError`.

        >>> Target.parse("cuda(arch=sm_53)")["arch"]
        'sm_53'
        """
        if not isinstance(source, str):
            raise TargetError(f"a target is read from text, not {source!r}")
        lookup = _lookup(tags)
        flat = text.read(source, lambda name: "/" in name and name in lookup)
        return _from_flat(flat, lookup, "", is_known=not source.lstrip().startswith("{"))

    @classmethod
    def from_json(cls, data: Mapping[str, object], *, tags: TagLookup | None = None) -> Target:
        """Read flat JSON; a kind that no installed package knows is kept as it is."""
        return _from_flat(data, _lookup(tags), "", is_known=False)

    def to_json(self) -> dict[str, object]:
        """Return flat JSON; `Target.from_json` reads it back to an equal tree."""
        flat: dict[str, object] = {} if self.tag is None else {"tag": self.tag}
        flat["kind"] = self.kind
        flat |= {"name": self.name} if self.name not in (None, self.kind) else {}
        flat |= {name: list(value) if isinstance(value, tuple) else value for name, value in self.attrs.items()}
        flat |= {"keys": list(self.keys)} if self.keys is not None else {}
        flat |= {"count": self.count} if self.count != 1 else {}
        if self.host is not None:
            flat["host"] = self.host if isinstance(self.host, str) else self.host.to_json()
        if self.targets:
            flat["targets"] = [child.to_json() for child in self.targets]
        if self.links:
            flat["links"] = [link.model_dump(mode="json", exclude_defaults=True) for link in self.links]
        if self.memory:
            flat["memory"] = [memory.model_dump(mode="json", exclude_defaults=True) for memory in self.memory]
        flat |= {"executor": self.executor.to_json()} if self.executor is not None else {}
        flat |= {"runtime": self.runtime.to_json()} if self.runtime is not None else {}
        return flat

    def __str__(self) -> str:
        return text.write(self.to_json())

    def __repr__(self) -> str:
        return f"Target.parse({str(self)!r})"

    def __getitem__(self, name: str) -> Value | None:
        """Return an attribute, else its default, else None; an unknown one is an error."""
        kind = find_kind(self.kind)
        return self.attrs.get(name) if kind is None else read_attribute(kind, self.attrs, name)

    # Identity

    @property
    def digest(self) -> str:
        """`tt1:` and the SHA-256 of the canonical identity, without the root's name."""
        return digest_of(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Target) and self.slot == other.slot and identity_of(self) == identity_of(other)

    def __hash__(self) -> int:
        return hash((self.kind, self.count, tuple(child.slot for child in self.targets)))

    # Changing

    def override(self, changes: Mapping[str, object]) -> Target:
        """Return the tree with values at paths changed: `t.override({"cpu/num-cores": 8, "executor": "aot"})`.

        Scalars and lists replace, feature sets add and remove; an unknown path is an error with the nearest name.
        """
        result = self
        for path, value in changes.items():
            parent, _, name = path.rpartition("/")
            found, node = result.locate(parent)
            result = result._put(found, node._with(name, path, value))
        return result

    def unset(self, path: str) -> Target:
        """Return the tree without the attribute at a path, so that its default applies again."""
        parent, _, name = path.rpartition("/")
        found, node = self.locate(parent)
        kept = {key: value for key, value in node.attrs.items() if fold(key) != fold(name)}
        if len(kept) == len(node.attrs):
            raise UnknownNameError(f"{path!r} is not set{did_you_mean(name, node.attrs, listing='set are')}")
        return self._put(found, node.replace(attrs=Attributes(kept)))

    def _with(self, name: str, path: str, value: object) -> Target:
        """Change one attribute or field of this very node; `path` is for messages."""
        if name in _FIELDS:
            return _from_flat(self.to_json() | {name: value}, _lookup(None), "", is_known=False)
        kind = kind_of(self.kind)
        row = kind.features if name == "+" else kind.attribute(name)
        if row is None:
            names = [*(known.name for known in kind.attributes), *(f"{child.slot}/" for child in self.targets)]
            raise UnknownNameError(f"no attribute {path!r} in kind {self.kind!r}{did_you_mean(name, names)}")
        new = kind.normalise({row.name: value}, where=f" (in {path!r})")[row.name]
        if row.type == "features":
            new = _merge_features(self.attrs.get(row.name), new)
        return self.replace(attrs=Attributes({**self.attrs, row.name: new}))

    def _put(self, path: str, node: Target) -> Target:
        """Return the tree with the node at a canonical path exchanged."""
        if not path:
            return node
        segment, _, rest = path.partition("/")
        if not any(child.slot == segment for child in self.targets):
            if isinstance(self.host, Target):
                return self.replace(host=self.host._put(rest, node))
            raise TargetError(f"{path!r} stands for several or is not written here, so it cannot be changed alone")
        return self.replace(
            targets=tuple(child._put(rest, node) if child.slot == segment else child for child in self.targets)
        )

    def part(self, path: str) -> Target:
        """Return one node as a tree of its own: what it inherits (host, executor, runtime) is written on it."""
        if not path:
            return self
        found, node = self.locate(path)
        driven, executor, runtime = drivers(self), self.executor, self.runtime
        above, prefix = self, ""
        for segment in found.split("/"):
            above, prefix = above.at(segment), f"{prefix}/{segment}".lstrip("/")
            executor, runtime = above.executor or executor, above.runtime or runtime
        driver = driven.get(_without_replicas(self, found))
        host = None
        if driver is not None and not driver.is_implied and not driver.effective.startswith(f"{found}/"):
            host = self.at(driver.effective).replace(name=None, host=None, count=1)
        drives_itself = driver is not None and driver.effective in (found, _without_replicas(self, found))
        tag = f"{self.tag}:{path}" if self.tag else None
        own = node.host if host is None or drives_itself else host
        count = node.count if found.rsplit("/", 1)[-1] == node.slot else 1
        return node.replace(name=None, host=own, executor=executor, runtime=runtime, tag=tag, count=count)

    def resolve(self) -> Target:
        """Return the tree with the root's host, executor and runtime filled in; all conflicts in one error.

        A host that nobody wrote and no child can be stays unwritten: an llvm stands in for it, but gets no work.

        Later stages rely on what this checks: every kind is known, every host reference names a node.
        """
        problems = [
            f"kind {node.kind!r} is not registered here; install the plugin that brings it{_place(path)}"
            for path, node in self.walk()
            if find_kind(node.kind) is None
        ]
        driven = drivers(self)
        problems += [
            f"host {driver.effective!r} names no node of the tree; it has: "
            + ", ".join(known for known, _ in self.walk() if known)
            + _place(path)
            for path, driver in driven.items()
            if driver.effective.startswith("@")
        ]
        problems += [
            f"a composite has no targets; give it children: composite[cpu=llvm]{_place(path)}"
            for path, node in self.walk()
            if node.kind == "composite" and not node.targets
        ]
        raise_all(TargetError, problems)
        root = driven[""]
        host = self.host if self.host is not None or root.is_implied or not root.effective else f"@{root.effective}"
        return self.replace(
            name=None, host=host, executor=self.executor or Executor("graph"), runtime=self.runtime or Runtime("python")
        )


def _without_replicas(root: Target, path: str) -> str:
    """Turn a path of sites (`gpu.3`) into the path of the node that stands for them (`gpu`)."""
    node, slots = root, []
    for segment in path.split("/"):
        child = node.child(segment)
        if child is None:
            return path
        slots.append(child.slot)
        node = child
    return "/".join(slots)


def _lookup(tags: TagLookup | None) -> TagLookup:
    """Return the tags to read with: those given, else the registry that comes in by the plugin door."""
    if tags is not None:
        return tags
    default: TagLookup = plugins.load("tvmtarget.registry", "default")()
    return default


def _read_attributes(kind: str, attrs: Mapping[str, object] | None, name: str | None) -> Attributes:
    if isinstance(attrs, Attributes) or not isinstance(kind, str):
        return attrs if isinstance(attrs, Attributes) else Attributes()
    return Attributes(kind_of(kind).normalise(attrs or {}, where=_place(name or "")))


def _merge_features(base: Value | None, new: Value) -> tuple[str, ...]:
    """Add and remove signed features; a later sign wins over an earlier one."""
    signs = {str(item)[1:]: str(item)[0] for value in (base, new) if isinstance(value, tuple) for item in value}
    return tuple(sorted(sign + feature for feature, sign in signs.items()))


def _read_host(host: Target | str | Mapping[str, object] | None) -> Target | str | None:
    if isinstance(host, str) and not host.startswith("@"):
        return Target.parse(host)
    return Target.from_json(host) if isinstance(host, Mapping) else host


def _from_flat(data: object, tags: TagLookup, where: str, *, is_known: bool) -> Target:
    """Build a tree from flat JSON; `known` refuses kinds without a row, `where` is the path for messages."""
    if isinstance(data, str):
        return Target.parse(data, tags=tags)
    if not isinstance(data, Mapping):
        raise TargetError(f"a target is an object or a text, not {data!r}{_place(where)}")
    flat = dict(data)
    if "kind" not in flat and "tag" in flat:
        return _from_tag(flat, tags, where)
    kind_name = flat.pop("kind", "composite" if "targets" in flat else None)
    if not isinstance(kind_name, str):
        raise TargetError(f"a target needs a 'kind' or a 'tag'{_place(where)}")
    schema = flat.pop("schema", SCHEMA)
    if schema != SCHEMA:
        raise TargetError(f"target schema {schema!r} is not known here; this version reads schema {SCHEMA}")
    features, unset = flat.pop("+", ()), flat.pop("~", ())
    children = flat.pop("targets", flat.pop("devices", ()))
    fields = {field: flat.pop(field) for field in text.RESERVED if field in flat}
    kind = kind_of(kind_name, where=_place(where)) if is_known else find_kind(kind_name)
    if kind is None:
        attrs = Attributes({name: _frozen(value) for name, value in flat.items()})
    else:
        attrs = Attributes(kind.normalise(_with_features(kind, flat, features, where), where=_place(where)))
    if unset:
        raise TargetError(f"nothing to unset in {kind_name!r}; '~' changes a tag{_place(where)}")
    return _build(kind_name, attrs, fields, children, tags, where, is_known=is_known)


def _build(
    kind: str, attrs: Attributes, fields: dict[str, Any], children: object, tags: TagLookup, where: str, *, is_known: bool
) -> Target:
    if not isinstance(children, list | tuple):
        raise TargetError(f"'targets' is a list, not {children!r}{_place(where)}")
    targets = tuple(
        _from_flat(child, tags, f"{where}/{_slot_of(child)}".lstrip("/"), is_known=is_known) for child in children
    )
    host = fields.get("host")
    if host is not None and not (isinstance(host, str) and host.startswith("@")) and not isinstance(host, Target):
        host = _from_flat(host, tags, f"{where}/host".lstrip("/"), is_known=is_known)
    keys = fields.get("keys")
    return Target(
        kind,
        attrs,
        name=fields.get("name"),
        host=host,
        targets=targets,
        count=_count(fields.get("count", 1), where),
        links=tuple(Link(**_strict(link, "links", where)) for link in _sequence(fields, "links", where)),
        memory=tuple(Memory(**_strict(memory, "memory", where)) for memory in _sequence(fields, "memory", where)),
        executor=fields.get("executor"),
        runtime=fields.get("runtime"),
        keys=None if keys is None else ((keys,) if isinstance(keys, str) else tuple(keys)),
        tag=fields.get("tag"),
    )


def _from_tag(flat: dict[str, Any], tags: TagLookup, where: str) -> Target:
    label = flat.pop("tag")
    name, _, part = str(label).partition(":")
    if label in tags:
        name, part = label, ""
    if name not in tags:
        raise UnknownNameError(f"unknown tag {name!r}{did_you_mean(name, tags)}{_place(where)}")
    target = tags[name].part(part)
    for path in flat.pop("~", ()):
        target = target.unset(path)
    slot = flat.pop("name", None)
    children = flat.pop("targets", ())
    if children:
        raise TargetError(f"tag {label!r} cannot be given children here; override them by path: cpu/num-cores=8")
    changed = target.override(flat)
    return changed if slot is None else changed.replace(name=slot)


def _with_features(kind: Kind, flat: dict[str, Any], features: Sequence[str], where: str) -> dict[str, Any]:
    if not features:
        return flat
    if kind.features is None:
        raise TargetError(f"kind {kind.name!r} has no features, so {features[0]!r} says nothing{_place(where)}")
    given = flat.get(kind.features.name, ())
    both = [*((given,) if isinstance(given, str) else given), *features]
    return flat | {kind.features.name: both}


def _count(value: object, where: str) -> int:
    try:
        count = int(str(value))
    except ValueError:
        raise TargetError(f"'count' is a whole number, not {value!r}{_place(where)}") from None
    if count < 1:
        raise TargetError(f"'count' is at least 1, not {count}{_place(where)}")
    return count


def _sequence(fields: dict[str, Any], name: str, where: str) -> list[Any]:
    value = fields.get(name, [])
    if not isinstance(value, list | tuple):
        raise TargetError(f"{name!r} is a list of objects, not {value!r}{_place(where)}")
    return list(value)


def _strict(data: object, field: str, where: str) -> dict[str, Any]:
    if isinstance(data, Link | Memory):
        return data.model_dump()
    if not isinstance(data, Mapping):
        raise TargetError(f"{field!r} holds objects, not {data!r}{_place(where)}")
    return {str(key): tuple(value) if isinstance(value, list) else value for key, value in data.items()}


def _slot_of(child: object) -> str:
    return str(child.get("name") or child.get("kind") or child.get("tag")) if isinstance(child, Mapping) else str(child)


def _frozen(value: object) -> Value:
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, bool | int | str):
        return value
    return json.dumps(value, sort_keys=True)


def _place(where: str) -> str:
    return f" (at {where!r})" if where else ""
