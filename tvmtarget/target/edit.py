"""Changing a tree: overrides by path, merging trees, and cutting a part out so that it stands alone.

Every function returns a new tree, made by the checked `replace` of its nodes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, TypeVar

from tvmtarget.errors import TargetError, UnknownNameError, did_you_mean
from tvmtarget.target.attributes import Attributes, Value, fold
from tvmtarget.target.executor_compatibility import effective_pair
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

_FIELDS = {"host": None, "count": 1, "links": (), "memory": (), "executor": None, "runtime": None, "keys": None}


def override(root: _N, changes: Mapping[str, object], read: ReadTarget[_N], origin: Origin = OVERRIDE) -> _N:
    """Fold changes into a tree, one after the other; all that cannot be made are told in one error."""
    if not isinstance(changes, Mapping):
        raise TargetError(f"changes are a mapping of paths to values, not {shown(changes)}")
    problems, changed = Problems(), dict[str, str]()
    # What is not to be checked is said first, wherever it stands, or the check would come before it.
    for path, value in sorted(changes.items(), key=lambda change: not str(change[0]).endswith("unchecked")):
        with problems.collect():
            where = _canonical(root, str(path))
            if where in changed:
                raise TargetError(f"{changed[where]!r} and {shown(str(path))} are one value, which is given twice")
            changed[where] = str(path)
            root = _override_one(root, str(path), value, read, origin)
    problems.raise_all()
    return root


def _canonical(root: TargetNode, path: str) -> str:
    """Return the one spelling of a path that has several: nodes by their names, attributes as TVM spells them."""
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
    """Change a whole child: an object without a kind holds overrides, anything else is a target to merge."""
    if isinstance(value, Mapping) and "kind" not in value and "tag" not in value:
        return override(child, value, read, origin)
    return merge(child, read(value))


def _with_option(node: TargetNode, role: str, name: str, value: object) -> Executor | Runtime:
    """Change one attribute of a node's executor or runtime; a node without one gets the usual one."""
    chosen = (node.executor or Executor("graph")) if role == "executor" else (node.runtime or Runtime("python"))
    kept = {key: old for key, old in chosen.attrs.items() if fold(key) != fold(name)}
    return type(chosen)(chosen.kind, {**kept, name: value})


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
    """Add and remove signed features; a later sign wins over an earlier one."""
    signs = {str(item)[1:]: str(item)[0] for value in (base, new) if isinstance(value, tuple) for item in value}
    return tuple(sorted(sign + feature for feature, sign in signs.items()))


def unset(root: _N, path: str) -> _N:
    """Take back what a path says (an attribute, or a field such as host), so that its default applies again."""
    above, _, name = checked_path(path).rpartition("/")
    found, node = root.locate(above)
    if name in _FIELDS and getattr(node, name) != _FIELDS[name]:
        return _put(root, found, node.replace(**{name: _FIELDS[name]}))
    kept = {key: value for key, value in node.attrs.items() if fold(key) != fold(name)}
    if len(kept) == len(node.attrs):
        raise UnknownNameError(f"{shown(path)} is not set{did_you_mean(name, node.attrs, listing='set are')}")
    return _put(root, found, node.replace(attrs=Attributes(kept)))


def merge(base: _N, other: _N) -> _N:
    """Lay one tree over another: what `other` states wins, children go by name; another kind replaces all.

    A composite without children is no system, so it is taken as what it states alone: a partial configuration.
    """
    is_partial = other.kind == "composite" and not other.targets
    if other.kind != base.kind and not is_partial:
        return other.replace(name=base.name)
    attrs: dict[str, Value] = {**base.attrs, **other.attrs}
    kind = find_kind(base.kind)
    if kind is not None and kind.features is not None and kind.features.name in attrs:
        name = kind.features.name
        attrs[name] = _merge_features(base.attrs.get(name), other.attrs.get(name, ()))
    stated = {field: getattr(other, field) for field, unset in _FIELDS.items() if getattr(other, field) != unset}
    merged = base.replace(attrs=Attributes(attrs), targets=merge_children(base.targets, other.targets), **stated)
    return merged.with_origins({name: other.origin_of(name) for name in (*other.attrs, *stated)})


def merge_children(base: tuple[_N, ...], other: tuple[_N, ...]) -> tuple[_N, ...]:
    """Lay children over those of the same name; new ones follow in their own order."""
    by_slot = {child.slot: child for child in base}
    for child in other:
        known = by_slot.get(child.slot)
        by_slot[child.slot] = child if known is None else merge(known, child)
    return tuple(by_slot.values())


def _put(root: _N, path: str, node: _N) -> _N:
    """Return the tree with the node at a canonical path exchanged."""
    if not path:
        return node
    segment, _, rest = path.partition("/")
    if any(child.slot == segment for child in root.targets):
        children = (_put(child, rest, node) if child.slot == segment else child for child in root.targets)
        return root.replace(targets=tuple(children))
    if segment != "host":
        slot, count = segment.rpartition(".")[0], root.at(segment).count
        raise TargetError(f"{shown(segment)} is one of {count} replicas, which are all alike; change {slot!r}")
    if not isinstance(root.host, TargetNode):
        raise TargetError("no host is written here to be changed, an llvm stands in for it; write one: host=llvm")
    return root.replace(host=_put(root.host, rest, node))


def part(root: _N, path: str) -> _N:
    """Cut out one node as a tree of its own, with the host, executor and runtime that it has in this tree.

    A host outside of the part is written into it, and nodes below that refer to it refer to that; any other
    node outside that one below refers to as its host is copied to where it is referred to.
    """
    if not path:
        return root
    found, node = root.locate(path)
    segments = found.split("/")
    around = [root.at("/".join(segments[:end])) for end in range(len(segments) + 1)]
    slots, driven = unnumbered(found), hosts_by_path(root)
    configured = {"executor": _nearest(around, "executor"), "runtime": _nearest(around, "runtime")}
    executor, runtime = effective_pair(around)
    cut = node.replace(
        name=None,
        tag=f"{root.tag}:{path}" if root.tag else None,
        count=node.count if segments[-1] == node.slot else 1,
        host=_host_of_part(root, node, slots, driven.get(slots)),
        executor=executor if configured["executor"].executor is not None else None,
        runtime=runtime if configured["runtime"].runtime is not None else None,
    ).with_origins({role: above.origin_of(role) for role, above in configured.items()})
    return _settled(root, cut, slots, driven) if slots in driven else cut


def _nearest(around: list[_N], role: str) -> _N:
    """Return the innermost node that has an executor or runtime of its own, else the root."""
    return next((above for above in reversed(around) if getattr(above, role) is not None), around[0])


def _host_of_part(root: _N, node: _N, slots: str, driver: HostChoice | None) -> TargetNode | str | None:
    """Return the host to write on a part: what drives it, if that is outside. No driver: it drives itself."""
    if driver is not None and unnumbered(driver.effective) == slots:
        return None
    if driver is None or driver.is_implied or covers(slots, driver.effective):
        return node.host
    return driver.effective if is_reference(driver.effective) else _alone(root, driver.effective)


def _alone(root: _N, path: str) -> _N:
    return root.at(path).replace(name=None, host=None, count=1)


def _settled(root: _N, cut: _N, slots: str, driven: Mapping[str, HostChoice]) -> _N:
    """Make every reference in a part lead where it did; what it cannot lead to any more is copied."""
    wanted = dict(_drivers_in_part(cut, slots, driven))
    now = hosts_by_path(cut)
    inside = {path: driver for path, driver in wanted.items() if driver not in (None, now[path].effective)}
    cut = with_hosts(cut, {path: f"@{driver}" if driver else None for path, driver in inside.items()})
    now = hosts_by_path(cut)
    lost = [path for path, driver in wanted.items() if driver != now[path].effective]
    return with_hosts(cut, {path: _alone(root, driven[join(slots, path)].effective) for path in lost})


def _drivers_in_part(cut: TargetNode, slots: str, driven: Mapping[str, HostChoice]) -> Iterator[tuple[str, str | None]]:
    """Yield where in a part the drivers of nodes with a reference should be; None for one that is left outside."""
    for path, node in cut.walk():
        driver = driven[join(slots, path)].effective
        if not is_reference(node.host) or is_reference(driver):
            continue
        if covers(slots, driver):
            yield path, "/".join(driver.split("/")[slots.count("/") + 1 :])
        else:
            yield path, "host" if driver == driven[slots].effective else None


def with_hosts(node: _N, hosts: Mapping[str, TargetNode | str | None], path: str = "") -> _N:
    """Return the tree with other hosts at some paths, each of the origin of the host that it replaces."""
    if not hosts:
        return node
    targets = tuple(with_hosts(child, hosts, join(path, child.slot)) for child in node.targets)
    if path not in hosts and all(map(operator.is_, targets, node.targets)):
        return node
    changed = node.replace(targets=targets, host=hosts.get(path, node.host))
    return changed if changed.host is None else changed.with_origins({"host": node.origin_of("host")})
