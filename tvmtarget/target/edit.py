"""Changes to target trees: override values at paths, merge two trees, unset values, and cut out a part.

Every function returns a new tree, made by the checked `replace` of its nodes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, TypeGuard, TypeVar

from tvmtarget.errors import TargetError, UnknownNameError, did_you_mean
from tvmtarget.target.attributes import Attributes, Value, fold
from tvmtarget.target.kinds import find_kind, kind_of
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.problems import Problems, shown
from tvmtarget.target.provenance import OVERRIDE, Origin
from tvmtarget.target.target_node import HostChoice, TargetNode, hosts_by_path
from tvmtarget.target.tree_paths import checked_path, covers, is_reference, join, unnumbered
from tvmtarget.target.values import read_value

__all__ = ["merge", "merge_children", "override", "part", "unset", "with_hosts"]

_N = TypeVar("_N", bound=TargetNode)

ReadTarget: TypeAlias = Callable[[object], _N]

# Fields that an override can set, with their defaults; `targets` is changed by the names of the children instead.
_FIELDS = {"host": None, "count": 1, "links": (), "memory": (), "executor": None, "runtime": None, "keys": None}


def override(root: _N, changes: Mapping[str, object], read: ReadTarget[_N], origin: Origin = OVERRIDE) -> _N:
    """Set values at paths, one after the other.

    Args:
        root: the tree.
        changes: new values by path. Scalars and lists replace, features are added and removed, and a target at the path
            of a child is merged with it.
        read: reads a target from a text, flat JSON or a tree.
        origin: provenance of the new values.

    Returns:
        The changed tree.

    Raises:
        TargetError: `changes` is no mapping, or some changes cannot be made; all problems at once.
        UnknownNameError: all problems are unknown paths; the message has the nearest ones.
    """
    if not isinstance(changes, Mapping):
        raise TargetError(f"changes are a mapping of paths to values, not {shown(changes)}")
    problems, changed = Problems(), dict[str, str]()
    # `unchecked` comes first wherever it is written: the attributes that it exempts are checked when they are set.
    for path, value in sorted(changes.items(), key=lambda change: not str(change[0]).endswith("unchecked")):
        with problems.collect(loc=(str(path),)):
            for written in _changed_paths(root, str(path), value):
                where = _canonical(root, written)
                if where in changed:
                    raise TargetError(f"{changed[where]!r} and {shown(written)} are one value, which is given twice")
                changed[where] = written
            root = _override_one(root, str(path), value, read, origin)
    problems.raise_all()
    return root


def _changed_paths(root: TargetNode, path: str, value: object) -> Iterator[str]:
    """Yield the path of a change; those of its parts if it is an object of overrides for a child."""
    above, _, name = path.rpartition("/")
    if not _is_overrides(value) or not any(child.slot == name for child in root.at(above).targets):
        yield path
        return
    for inner, part_of_value in value.items():
        yield from _changed_paths(root, f"{path}/{inner}", part_of_value)


def _is_overrides(value: object) -> TypeGuard[Mapping[str, object]]:
    """Whether the new value of a child is an object of overrides, and not a target to merge."""
    return isinstance(value, Mapping) and "kind" not in value and "tag" not in value


def _canonical(root: TargetNode, path: str) -> str:
    """Return the canonical spelling of a path: nodes by their names, attributes as TVM spells them."""
    above, _, name = path.rpartition("/")
    around, _, role = above.rpartition("/")
    if role in ("executor", "runtime"):
        return join(root.locate(around)[0], role, fold(name))
    found, _ = root.locate(above)
    return join(found, name if name in _FIELDS else fold(name))


def _override_one(root: _N, path: str, value: object, read: ReadTarget[_N], origin: Origin) -> _N:
    above, _, name = path.rpartition("/")
    if value is None:
        raise TargetError(f"{shown(path)} cannot be nothing; take it back with unset, or with ~{path} in a text")
    around, _, role = above.rpartition("/")
    if role in ("executor", "runtime"):
        found, node = root.locate(around)
        changed = node.replace(**{role: _with_option(node, role, name, value)})
        origins = {role: origin if getattr(node, role) is None else node.origin_of(role)}
        origins[f"{role}/{fold(name)}"] = origin
        return _put(root, found, changed.with_origins(origins))
    found, node = root.locate(above)
    if name == "host" and not is_reference(value):
        value = read(value)
    if name in _FIELDS:
        return _put(root, found, node.replace(**{name: value}).with_origins({name: origin}))
    if any(child.slot == name for child in node.targets):
        path = join(found, name)
        return _put(root, path, _changed(root.at(path), value, read, origin))
    return _put(root, found, _with_attribute(node, name, path, value, origin))


def _changed(child: _N, value: object, read: ReadTarget[_N], origin: Origin) -> _N:
    if _is_overrides(value):
        return override(child, value, read, origin)
    return merge(child, read(value))


def _with_option(node: TargetNode, role: str, name: str, value: object) -> Executor | Runtime:
    """Set one attribute of a node's executor or runtime; a node without one gets the default kind."""
    chosen = (node.executor or Executor("graph")) if role == "executor" else (node.runtime or Runtime("python"))
    others = {key: old for key, old in chosen.attrs.items() if fold(key) != fold(name)}
    return type(chosen)(chosen.kind, {**others, name: value})


def _with_attribute(node: _N, name: str, path: str, value: object, origin: Origin) -> _N:
    kind = kind_of(node.kind)
    row = kind.features if name == "+" else kind.attribute(name)
    if row is None and name == "+":
        raise TargetError(kind.without_features(value if isinstance(value, list) else [str(value)]))
    if row is None:
        names = [*(known.name for known in kind.attributes), *(f"{child.slot}/" for child in node.targets)]
        raise UnknownNameError(f"no attribute {shown(path)} in kind {kind.name!r}{did_you_mean(name, names)}")
    try:
        new = read_value(row.type, value)
    except ValueError as error:
        raise TargetError(f"attribute {shown(path)} of kind {kind.name!r} {error}") from error
    if row.type == "features":
        new = _merge_features(node.attrs.get(row.name), new)
    return node.replace(attrs=Attributes({**node.attrs, row.name: new})).with_origins({row.name: origin})


def _merge_features(base: Value | None, new: Value) -> tuple[str, ...]:
    """Add and remove signed features; a later sign overrides an earlier one."""
    # By feature, so that the sign of a later item replaces that of an earlier one.
    signs = {str(item)[1:]: str(item)[0] for value in (base, new) if isinstance(value, tuple) for item in value}
    return tuple(sorted(sign + feature for feature, sign in signs.items()))


def unset(root: _N, path: str) -> _N:
    """Remove the value at a path, so that its default applies again.

    Args:
        root: the tree.
        path: path of an attribute, also of an executor or runtime, or of a field such as `host`.

    Returns:
        The changed tree.

    Raises:
        TargetError: the path is that of a node.
        UnknownNameError: the value is not set, or there is no such node.
    """
    above, _, name = checked_path(path).rpartition("/")
    around, _, role = above.rpartition("/")
    if role in ("executor", "runtime"):
        found, node = root.locate(around)
        chosen: Executor | Runtime | None = getattr(node, role)
        if chosen is None:
            raise UnknownNameError(f"{shown(path)} is not set, because no {role} is")
        return _put(root, found, node.replace(**{role: type(chosen)(chosen.kind, _without(chosen.attrs, path, name))}))
    found, node = root.locate(above)
    if name in _FIELDS and node.stated(name) != _FIELDS[name]:
        return _put(root, found, node.replace(**{name: _FIELDS[name]}))
    if any(child.slot == name for child in node.targets):
        raise TargetError(f"{shown(path)} is a node, and only values can be unset, as in {name}/ATTRIBUTE")
    return _put(root, found, node.replace(attrs=_without(node.attrs, path, name)))


def _without(attrs: Attributes, path: str, name: str) -> Attributes:
    others = {key: value for key, value in attrs.items() if fold(key) != fold(name)}
    if len(others) == len(attrs):
        raise UnknownNameError(f"{shown(path)} is not set{did_you_mean(name, attrs, listing='set are')}")
    return Attributes(others)


def merge(base: _N, other: _N) -> _N:
    """Merge two trees; values of the second override those of the first.

    Children are merged by name. A target of another kind replaces the first. A composite without children is no system
    but a partial configuration, such as the tag `config/aot-crt`: it overrides values of a target of any kind.

    Args:
        base: the first tree.
        other: the second tree.

    Returns:
        The merged tree, with the name of the first.

    Raises:
        TargetError: the merged tree is not valid.
    """
    is_partial = other.kind == "composite" and not other.targets
    if other.kind != base.kind and not is_partial:
        # The name belongs to the slot in the parent, not to the node in it.
        return other.replace(name=base.name)
    attrs: dict[str, Value] = {**base.attrs, **other.attrs}
    kind = find_kind(base.kind)
    if kind is not None and kind.features is not None and kind.features.name in attrs:
        name = kind.features.name
        attrs[name] = _merge_features(base.attrs.get(name), other.attrs.get(name, ()))
    stated = {field: value for field, unset in _FIELDS.items() if (value := other.stated(field)) != unset}
    merged = base.replace(attrs=Attributes(attrs), targets=merge_children(base.targets, other.targets), **stated)
    return merged.with_origins({name: other.origin_of(name) for name in (*other.attrs, *stated)})


def merge_children(base: tuple[_N, ...], other: tuple[_N, ...]) -> tuple[_N, ...]:
    """Merge two lists of children by name; new children follow in their own order.

    Args:
        base: the first list.
        other: the second list, whose values override those of the first.

    Returns:
        The merged list.
    """
    by_slot = {child.slot: child for child in base}
    for child in other:
        known = by_slot.get(child.slot)
        by_slot[child.slot] = child if known is None else merge(known, child)
    return tuple(by_slot.values())


def _put(root: _N, path: str, node: _N) -> _N:
    """Return the tree with the node at a canonical path replaced."""
    if not path:
        return node
    segment, _, rest = path.partition("/")
    if any(child.slot == segment for child in root.targets):
        children = (_put(child, rest, node) if child.slot == segment else child for child in root.targets)
        return root.replace(targets=tuple(children))
    if segment != "host":
        slot, count = segment.rpartition(".")[0], root.at(segment).count
        raise TargetError(f"{shown(segment)} is one of {count} identical replicas; change {slot!r}")
    if not isinstance(root.host, TargetNode):
        raise TargetError("no host is written here to be changed, only an implied llvm; write one: host=llvm")
    return root.replace(host=_put(root.host, rest, node))


def part(root: _N, path: str) -> _N:
    """Cut out one node as a tree of its own, with its effective host, executor and runtime.

    A host outside the part is written into it, and references to that host name it there. Any other host outside the
    part is copied to the nodes that refer to it.

    Args:
        root: the tree.
        path: path of the node.

    Returns:
        The part; `root` itself for the empty path.

    Raises:
        UnknownNameError: there is no such node.
    """
    found, node = root.locate(path)
    if not found:
        return root
    segments = found.split("/")
    around = [root.at("/".join(segments[:end])) for end in range(len(segments) + 1)]
    slots, hosts = unnumbered(found), hosts_by_path(root)
    configured = {"executor": _nearest(around, "executor"), "runtime": _nearest(around, "runtime")}
    from tvmtarget.target.executor_compatibility import effective_pair

    executor, runtime = effective_pair(around)
    cut = node.replace(
        name=None,
        tag=f"{root.tag}:{path}" if root.tag else None,
        # A path with a replica number names one of the replicas.
        count=node.count if segments[-1] == node.slot else 1,
        host=_host_of_part(root, node, slots, hosts.get(slots)),
        executor=executor if configured["executor"].executor is not None else None,
        runtime=runtime if configured["runtime"].runtime is not None else None,
    ).with_origins({role: above.origin_of(role) for role, above in configured.items()})
    return _with_same_hosts(root, cut, slots, hosts) if slots in hosts else cut


def _nearest(around: list[_N], role: str) -> _N:
    """Return the innermost node that has an executor or runtime of its own, else the root."""
    return next((above for above in reversed(around) if getattr(above, role) is not None), around[0])


def _host_of_part(root: _N, node: _N, slots: str, choice: HostChoice | None) -> TargetNode | str | None:
    """Return the field `host` of a part: its host, if that is outside the part."""
    if choice is not None and unnumbered(choice.effective) == slots:
        return None
    if choice is None or choice.is_implied or covers(slots, choice.effective):
        return node.host
    return choice.effective if is_reference(choice.effective) else _alone(root, choice.effective)


def _alone(root: _N, path: str) -> _N:
    return root.at(path).replace(name=None, host=None, count=1)


def _with_same_hosts(root: _N, cut: _N, slots: str, hosts: Mapping[str, HostChoice]) -> _N:
    """Rewrite the references in a part so that each names the same host; hosts outside the part are copied."""
    expected = dict(_hosts_in_part(cut, slots, hosts))
    now = hosts_by_path(cut)
    inside = {path: host for path, host in expected.items() if host not in (None, now[path].effective)}
    cut = with_hosts(cut, {path: f"@{host}" if host else None for path, host in inside.items()})
    # The new references can be shadowed by names between them and the hosts that they mean, so they are resolved again.
    now = hosts_by_path(cut)
    lost = [path for path, host in expected.items() if host != now[path].effective]
    return with_hosts(cut, {path: _alone(root, hosts[join(slots, path)].effective) for path in lost})


def _hosts_in_part(cut: TargetNode, slots: str, hosts: Mapping[str, HostChoice]) -> Iterator[tuple[str, str | None]]:
    """Yield the path in a part of the host of each node with a reference; None for a host outside the part."""
    for path, node in cut.walk():
        host = hosts[join(slots, path)].effective
        if not is_reference(node.host) or is_reference(host):
            continue
        if covers(slots, host):
            yield path, "/".join(host.split("/")[slots.count("/") + 1 :])
        else:
            yield path, "host" if host == hosts[slots].effective else None


def with_hosts(node: _N, hosts: Mapping[str, TargetNode | str | None], path: str = "") -> _N:
    """Return a tree with other hosts at some paths.

    Args:
        node: the tree.
        hosts: the new fields `host` by path; None removes one.
        path: path of `node`, which begins those in `hosts`.

    Returns:
        The changed tree; the same object if there is nothing to change. A new host has the provenance of the old one.
    """
    if not hosts:
        return node
    targets = tuple(with_hosts(child, hosts, join(path, child.slot)) for child in node.targets)
    if path not in hosts and all(map(operator.is_, targets, node.targets)):
        return node
    host = hosts.get(path, node.host)
    # A reference to a node of this tree breaks no rule that is checked when a node is made.
    is_checked = host is node.host or isinstance(host, str)
    changed = (node.with_checked if is_checked else node.replace)(targets=targets, host=host)
    return changed if changed.host is None else changed.with_origins({"host": node.origin_of("host")})
