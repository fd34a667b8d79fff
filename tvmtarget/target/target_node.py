"""Nodes of a target tree: their fields, how to find one by its path, and which host drives each of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeAlias, TypeVar

from pydantic import Field, InstanceOf, PrivateAttr

from tvmtarget.errors import Problem, TargetError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.target.argument_types import check_arguments
from tvmtarget.target.attributes import Attributes, fold
from tvmtarget.target.device_types import device_type_of
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.node import Executor, JsonNode, Link, Memory, Runtime
from tvmtarget.target.node_facts import computed_once
from tvmtarget.target.problems import shown
from tvmtarget.target.provenance import CODE, Origin
from tvmtarget.target.text.words import MAX_DEPTH, RESERVED, is_word
from tvmtarget.target.tree_paths import checked_path, is_numbered, join, same_replica
from tvmtarget.target.values import MAX_COUNT, is_utf8

if TYPE_CHECKING:
    from tvmtarget.target.cpu.isa import Features

__all__ = ["HostChoice", "TargetNode", "hosts_by_path", "origin_at"]

_N = TypeVar("_N", bound="TargetNode")

_REPLICA_NUMBER = re.compile("0|[1-9][0-9]{0,4}").fullmatch  # with at most as many digits as `MAX_COUNT`
# Most names of nodes and kinds; those with dots or other letters are looked at more closely.
_PLAIN_NAME = re.compile(r"[A-Za-z_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?").fullmatch


class _Children(Generic[_N]):
    """The children of one node by their names, and by their kinds where a kind has one child only."""

    def __init__(self, children: Sequence[_N]) -> None:
        self._by_slot = {child.slot: child for child in children}
        self._children = children

    @cached_property
    def _by_kind(self) -> Mapping[str, _N]:
        uses = Counter(child.kind for child in self._children)
        return {child.kind: child for child in self._children if uses[child.kind] == 1}

    def find(self, segment: str) -> _N | None:
        """Return the child of a name, a replica's name or a unique kind, or None."""
        found = self._by_slot.get(segment)
        if found is None:
            stem = self._by_slot.get(segment.rpartition(".")[0])
            found = stem if stem is not None and stem.has_replica(segment) else self._by_kind.get(segment)
        return found


class TargetNode(JsonNode):
    """Fields of a target and what follows from the tree alone; the public class is `Target`.

    Operations on trees (`edit`, `identity`, `hosts`, ...) work on this class, and `Target` calls them, so that no
    import is circular.
    """

    __slots__ = ("_facts",)
    if TYPE_CHECKING:
        _facts: tuple[object, dict[str, Any]]  # what `node_facts.computed_once` remembers

    kind: str
    attrs: InstanceOf[Attributes] = Attributes()
    name: str | None = None
    host: Self | str | None = None
    targets: tuple[Self, ...] = ()
    count: int = Field(default=1, ge=1, le=MAX_COUNT)
    links: tuple[Link, ...] = ()
    memory: tuple[Memory, ...] = ()
    executor: Executor | None = None
    runtime: Runtime | None = None
    # `keys` in JSON and as an argument; the property of that name adds those of device and kind, as TVM does.
    own_keys: tuple[str, ...] | None = Field(default=None, alias="keys")
    tag: str | None = None
    _origins: Mapping[str, Origin] = PrivateAttr(default_factory=dict)  # provenance is no part of the value

    def model_post_init(self, _context: object) -> None:
        """Check what fields say about each other, which their types do not show."""
        self._check()

    def _check(self) -> None:
        """Check names, siblings, links and depth; all problems at once."""
        is_plain = _PLAIN_NAME(self.kind) and (self.name is None or _PLAIN_NAME(self.name))
        problems: list[str] = [] if is_plain and not isinstance(self.host, str) else [*_name_problems(self)]
        if self.tag is not None and not is_utf8(self.tag):
            problems.append(Problem(f"'tag' has half of a surrogate pair in it: {shown(self.tag)}", ("tag",)))
        if self.targets:
            problems += _sibling_problems(self)
        if self.links or self.memory:
            problems += _link_problems(self)
        # Leaves are most of the nodes of a tree.
        if (self.targets or self.host is not None) and self.depth > MAX_DEPTH:
            problems.append(f"the tree is deeper than {MAX_DEPTH} levels")
        raise_all(TargetError, problems)

    def replace(self, **changes: object) -> Self:
        """Return a copy with some fields changed, checked like a new node.

        Args:
            changes: values by the names of fields.

        Returns:
            The copy; values that stay the same keep their provenance.

        Raises:
            TargetError: no such field, or values that a new node could not have.
        """
        new = super().replace(**changes)
        unchanged = {name: origin for name, origin in self._recorded().items() if self._is_unchanged(new, name)}
        return new._copied({}, unchanged) if unchanged else new

    def _is_unchanged(self, new: Self, name: str) -> bool:
        if name in self.attrs:
            return new.attrs.get(name) == self.attrs[name]
        field = name.partition("/")[0]
        mine, other = self.stated(field), new.stated(field)
        return mine is other or (field != "host" and mine == other)  # an equal host can be of another origin

    def with_checked(self, **fields: object) -> Self:
        """Return a copy with some fields changed to values that need no check.

        Args:
            fields: values by the names of fields that follow from a checked tree, such as references to its hosts.

        Returns:
            The copy, with the provenance of this node.
        """
        return self._copied(fields, {})

    @check_arguments
    def with_origins(self, origins: Mapping[str, Origin]) -> Self:
        """Return a copy that records where some of its values come from.

        Args:
            origins: origin by the name of a value: an attribute, a field, or `executor/<attribute>`.

        Returns:
            The copy, equal to this node.
        """
        return self._copied({}, origins)

    def record_origins(self, origins: Mapping[str, Origin]) -> None:
        """Record where the values of a new node come from, before anything else knows the node.

        Args:
            origins: as for `with_origins`.

        Raises:
            TargetError: the argument is no mapping.
        """
        if not isinstance(origins, Mapping):
            raise TargetError(f"origins are a mapping of names of values to their origins, not {shown(origins)}")
        object.__setattr__(self, "__pydantic_private__", {"_origins": origins})

    def _copied(self, fields: Mapping[str, object], origins: Mapping[str, Origin]) -> Self:
        """Return a copy with other fields, which need no check, and more origins."""
        new = object.__new__(type(self))
        known = self._recorded()
        new._fill({**vars(self), **fields}, {"_origins": {**known, **origins} if origins else known})
        return new

    def _recorded(self) -> Mapping[str, Origin]:
        """Return the recorded origins; pydantic's look-up of private attributes takes longer than a copy of a node."""
        found: Mapping[str, Origin] = (self.__pydantic_private__ or {})["_origins"]
        return found

    def origin_of(self, name: str) -> Origin:
        """Return where a value of this node comes from.

        Args:
            name: an attribute, a field, or `executor/<attribute>`.

        Returns:
            The origin of the value, else that of the field that holds it, else "code".

        Raises:
            TargetError: the name is no text.
        """
        origins = self._recorded()
        if not isinstance(name, str):
            raise TargetError(f"the name of a value is a text, not {shown(name)}")
        found = origins.get(name) or origins.get(name.partition("/")[0])
        # Values that no reader recorded were set by a program.
        return found or CODE

    def origins(self) -> Iterator[tuple[str, Origin]]:
        """Yield the origin of every value that the tree states.

        Yields:
            Path and origin, parents first; the path of a node ends in `/kind`.
        """
        for path, node in self.walk():
            yield join(path, "kind"), node.origin_of("kind")
            yield from ((join(path, name), node.origin_of(name)) for name in node.attrs)
            for field in ("keys", "count", "host", "links", "memory", "executor", "runtime"):
                if node.stated(field) not in (None, (), 1):
                    yield join(path, field), node.origin_of(field)

    @property
    def slot(self) -> str:
        """The name among siblings."""
        return self.name or self.kind

    @property
    def is_composite(self) -> bool:
        """Whether this node is a system of other targets."""
        return bool(self.targets) or self.kind == "composite"

    @property
    def depth(self) -> int:
        """Levels of the tree: 1 for a leaf; a host written in a node is one level below it."""
        below = [child.depth for child in self.targets if child.targets or child.host is not None]
        if self.host is not None and not isinstance(self.host, str):
            below.append(self.host.depth)
        return 1 + max(below, default=1 if self.targets else 0)

    @property
    def device(self) -> str:
        """TVM's device type by name: `target_device_type`, else that of the kind, else the name of an unknown kind."""
        return device_type_of(self.kind, self.attrs.get("target_device_type"))

    def stated(self, field: str) -> object:
        """Return the value of a field as the tree states it.

        Args:
            field: its name in JSON; `keys` are those that are written.

        Returns:
            The value, or None if there is no such field.

        Raises:
            TargetError: the name is no text.
        """
        if not isinstance(field, str):
            raise TargetError(f"the name of a field is a text, not {shown(field)}")
        if field == "keys":
            return self.own_keys
        return getattr(self, field) if field in self._names_of_fields and field != "own_keys" else None

    @property
    def keys(self) -> tuple[str, ...]:
        """The dispatch keys, in order and without duplicates: those written, then the device, then those of the kind.

        As in TVM since v0.10, the keys of the kind are for targets that write none. An Arm CPU of llvm or c also has
        `arm_cpu` and `cpu`, after those written.
        """
        from tvmtarget.target.cpu.isa import is_arm

        kind = find_kind(self.kind)
        device = self.attrs.get("device")
        derived = ("arm_cpu", "cpu") if is_arm(self.kind, self.attrs) else ()
        defaults = kind.keys if kind and self.own_keys is None else ()
        return tuple(dict.fromkeys([*(self.own_keys or ()), *derived, *([str(device)] if device else []), *defaults]))

    @property
    def features(self) -> Features:
        """The instructions that code for this node may use, derived from its attributes.

        Raises:
            TargetError: features that are written contradict each other.
        """
        from tvmtarget.target.cpu.isa import features_of

        return features_of(self.kind, self.attrs)

    @property
    def can_host(self) -> bool:
        """Whether the kind of this node can drive other devices."""
        kind = find_kind(self.kind)
        return kind is not None and kind.can_host

    @property
    def is_external(self) -> bool:
        """Whether the kind of this node is an external code generator, for a device driven by another target."""
        kind = find_kind(self.kind)
        return kind is not None and kind.is_external

    @property
    def replicas(self) -> tuple[str, ...]:
        """Names of the sites of this node: its slot, or `slot.0`, `slot.1`, ... if `count` is above 1."""
        return (self.slot,) if self.count == 1 else tuple(f"{self.slot}.{k}" for k in range(self.count))

    def has_replica(self, name: str) -> bool:
        """Whether a name is one of `replicas`.

        Args:
            name: a name as in `gpu.0`.

        Returns:
            True if this node has that replica.
        """
        if self.count == 1:
            return name == self.slot
        stem, _, number = name.rpartition(".")
        return stem == self.slot and _REPLICA_NUMBER(number) is not None and int(number) < self.count

    def walk(self, path: str = "") -> Iterator[tuple[str, Self]]:
        """Yield this node and all nodes below it, parents first.

        Args:
            path: the path of this node, which begins the paths of the others.

        Yields:
            Path and node; hosts written in nodes are not visited.
        """
        # A list instead of recursion: generators in generators would pass each node up through all levels.
        waiting = [(path, self)]
        while waiting:
            at, node = waiting.pop()
            yield at, node
            waiting.extend((join(at, child.slot), child) for child in reversed(node.targets))

    def at(self, path: str) -> Self:
        """Return the node at a path.

        Args:
            path: names separated by '/': of children, else their kinds if unique, else `host`.

        Returns:
            The node.

        Raises:
            UnknownNameError: there is no such node; the message has the nearest paths.
        """
        return self.locate(path)[1]

    def locate(self, path: str) -> tuple[str, Self]:
        """Return the canonical path of a node, and the node.

        Args:
            path: as for `at`.

        Returns:
            The path with the names of the children, and replica numbers where `path` has them; the node.

        Raises:
            UnknownNameError: there is no such node; the message has the nearest paths.
        """
        site, slots, node = "", "", self  # `slots` is the path without replica numbers
        # Replica numbers stay in `site`, and `slots` goes by the names in the tree, which have none.
        segments = path.split("/") if checked_path(path) else []
        for at, segment in enumerate(segments):
            child = node.child(segment)
            if child is not None:
                site = join(site, segment if child.has_replica(segment) else child.slot)
                slots, node = join(slots, child.slot), child
            elif segment == "host":
                return self._locate_host(site, slots, node, "/".join(segments[at + 1 :]))
            else:
                raise UnknownNameError(
                    f"no node {shown(path)} in target {self.tag or self.kind!r}{self._nearest(path)}"
                )
        return site, node

    def child(self, segment: str) -> Self | None:
        """Return a child of this node.

        Args:
            segment: its name, the name of a replica, or its kind if no other child is of that kind.

        Returns:
            The child, or None.

        Raises:
            TargetError: the name is no text.
        """
        if not isinstance(segment, str):
            raise TargetError(f"the name of a child is a text, not {shown(segment)}")
        # Finding each of 10,000 children by a scan would be quadratic.
        return self._children().find(segment) if self.targets else None

    @computed_once
    def _children(self) -> _Children[Self]:
        return _Children(self.targets)

    def _locate_host(self, site: str, slots: str, node: Self, rest: str) -> tuple[str, Self]:
        """Locate the host of a node, or what is below it; a host written inside a node is a tree of its own."""
        host_choice = hosts_by_path(self)[slots]
        if host_choice.effective == join(slots, "host"):
            host = node.host if isinstance(node.host, type(self)) else type(self)(kind="llvm")
            below, found = host.locate(rest)
            return join(site, "host", below), found
        if host_choice.effective.startswith("@"):
            raise UnknownNameError(
                f"host {shown(host_choice.effective)} of {site or 'the root'!r} names no node of the tree"
            )
        return self.locate(join(same_replica(host_choice.effective, site), rest))

    def _nearest(self, path: str) -> str:
        paths = [found for found, _ in self.walk() if found]
        same = [found for found in paths if found.rsplit("/", 1)[-1] == path.rsplit("/", 1)[-1]]
        if same:
            return "; did you mean " + " or ".join(map(repr, same[:3])) + "?"
        return did_you_mean(path, paths, listing="it has")


def _name_problems(node: TargetNode) -> Iterator[Problem]:
    for what, name in (("kind", node.kind), ("name", node.name)):
        if name is not None and (not is_word(name) or "/" in name):
            line = f"{shown(name)} is no {what}; use letters and digits, with '-', '+', '_' and '.' between them"
            yield Problem(line, (what,))
    if is_numbered(node.slot):
        line = f"{shown(node.slot)} is no name; a dot and a number at its end mean a replica, as in gpu.0"
        yield Problem(line, ("name" if node.name else "kind",))
    if isinstance(node.host, str) and not (node.host.startswith("@") and is_word(node.host[1:])):
        line = f"{shown(node.host)} is no reference to a host; write '@' and a path of names: @cpu, @node0/cpu"
        yield Problem(line, ("host",))


def _sibling_problems(node: TargetNode) -> Iterator[Problem]:
    by_slot = {child.slot: child for child in node.targets}
    if len(by_slot) < len(node.targets):
        seen = Counter[str]()
        for at, child in enumerate(node.targets):
            seen[child.slot] += 1
            if seen[child.slot] == 2:
                kind = by_slot[child.slot].kind
                line = f"two children are called {shown(child.slot)}; name them, as in a={kind},b={kind}"
                yield Problem(line, ("targets", at))
    host = by_slot.get("host")
    if host is None:
        return
    place = ("targets", next(at for at, child in enumerate(node.targets) if child is host))
    if isinstance(node.host, TargetNode):
        line = "a child called 'host' and a host of its own are in one node; give the child another name"
        yield Problem(line, place)
    elif not host.can_host and find_kind(host.kind) is not None:
        line = f"a child called 'host' drives its siblings, which a {host.kind!r} cannot; give it another name"
        yield Problem(line, place)


def _link_problems(node: TargetNode) -> Iterator[Problem]:
    ends: dict[str, tuple[str | int, ...]] = {}  # where each name is first
    for at, link in enumerate(node.links):
        ends.setdefault(link.src, ("links", at, "src"))
        ends.setdefault(link.dst, ("links", at, "dst"))
    for at, memory in enumerate(node.memory):
        for index, owner in enumerate(memory.of):
            ends.setdefault(owner, ("memory", at, "of", index))
    slots = {child.slot: child for child in node.targets}
    # A link may end at the host, which need not be a child.
    known = {*slots, "host"}
    names = Counter[str]()
    for at, memory in enumerate(node.memory):
        names[memory.name] += 1
        if names[memory.name] == 2:
            yield Problem(f"two memories are called {shown(memory.name)}", ("memory", at, "name"))
    for end in sorted(ends.keys() - known):
        several = slots.get(end.rpartition(".")[0])
        if several is None or not several.has_replica(end):
            line = f"links or memory name {shown(end)}, which is no child{did_you_mean(end, known, listing='it has')}"
            yield Problem(line, ends[end])


def origin_at(root: TargetNode, path: str) -> Origin:
    """Return where a node or one of its values comes from.

    Args:
        root: the tree.
        path: path of a node, or of a value in one: `gpu`, `gpu/arch`, `executor/link-params`.

    Returns:
        The origin; that of a node is the origin of its kind. A default of the kind is an origin too.

    Raises:
        UnknownNameError: there is no such node or value, or the value has no default and is not stated.
    """
    if not checked_path(path) or _names_node(root, path):
        return root.at(path).origin_of("kind")
    above, _, name = path.rpartition("/")
    around, _, role = above.rpartition("/")
    if role in ("executor", "runtime"):
        return _origin_of_option(root.at(around), role, name)
    return _origin_of_value(root.at(above), name)


def _names_node(root: TargetNode, path: str) -> bool:
    try:
        root.locate(path)
    except UnknownNameError:
        return False
    return True


def _origin_of_value(node: TargetNode, name: str) -> Origin:
    """Return where an attribute or a field of a node comes from."""
    kind = find_kind(node.kind)
    row = kind.attribute(name) if kind is not None else None
    if kind is not None and row is None and name not in RESERVED:
        raise UnknownNameError(kind.unknown(name))
    stated = row.name if row is not None else name
    if stated in node.attrs or node.stated(name) not in (None, (), 1):
        return node.origin_of(stated)
    if row is not None and row.default_beside(node.attrs) is not None:
        return Origin("default", f"of kind {node.kind!r}")
    raise UnknownNameError(f"{name!r} is not stated{did_you_mean(name, node.attrs, listing='stated are')}")


def _origin_of_option(node: TargetNode, role: str, name: str) -> Origin:
    """Return where an attribute of a node's executor or runtime comes from."""
    chosen = node.executor if role == "executor" else node.runtime
    if chosen is None:
        raise UnknownNameError(f"{role!r} is not stated")
    if chosen.attrs.get(name) is not None:
        return node.origin_of(f"{role}/{fold(name)}")
    if chosen[name] is None:
        raise UnknownNameError(f"{role}/{name} is not stated{did_you_mean(name, chosen.attrs, listing='stated are')}")
    return Origin("default", f"of {role} {chosen.kind!r}")


class HostChoice(NamedTuple):
    """The host of a node: `effective` is the path of the actual host, `default` the one without its own field `host`.

    A reference that names no node of the tree stays as it is written, with its '@'. The path `<node>/host` is a host
    that is no child: one written inside the node, or, if `is_implied`, the default llvm of a tree without a host.
    Replicas are numbered (`cpu.0`) where a path leaves the nodes around the driven one.
    """

    effective: str
    default: str
    is_implied: bool


@computed_once
def hosts_by_path(root: TargetNode) -> Mapping[str, HostChoice]:
    """Find the host of every node of a tree.

    The host of a node is the one it states; else the node itself, if its kind can host; else the host of the node
    around it; else its first child whose kind can host; else an implied llvm. A node does not inherit an implied llvm
    if it has a child that can host. A reference is resolved in the innermost node around it, itself included, that
    knows its first name: the name of a child, or `host` for a host that is written there.

    Args:
        root: the tree; its references may be wrong.

    Returns:
        The choice by the path of the node, parents first.
    """
    found: dict[str, HostChoice] = {}
    _add_hosts(root, "", None, (), found)
    return found


_Scope: TypeAlias = tuple[str, TargetNode]


def _add_hosts(
    node: TargetNode, path: str, inherited: HostChoice | None, scopes: tuple[_Scope, ...], found: dict[str, HostChoice]
) -> None:
    scopes = (*scopes, (path, node))
    kinds = map(find_kind, {child.kind for child in node.targets})
    able = {kind.name for kind in kinds if kind is not None and kind.can_host}
    default = _default_host(node, path, inherited, able)
    stated = _stated_host(node, path, scopes)
    is_inherited = inherited is not None and default == inherited.effective and inherited.is_implied
    is_missing = default == join(path, "host") and node.child("host") is None
    own = HostChoice(stated or default, default, stated is None and (is_inherited or is_missing))
    found[path] = own
    # Devices that drive nothing and state no host share one choice: a tree can have 100,000 of them.
    of_device = HostChoice(own.effective, own.effective, own.is_implied)
    for child in node.targets:
        below = f"{path}/{child.slot}" if path else child.slot
        if child.host is not None or child.targets:
            _add_hosts(child, below, own, scopes, found)
        else:
            found[below] = HostChoice(below, below, False) if child.kind in able else of_device


def _default_host(node: TargetNode, path: str, inherited: HostChoice | None, able: Set[str]) -> str:
    """Return the default host of a node, whose children of the kinds `able` can host."""
    if node.can_host:
        return path
    first = next((child for child in node.targets if child.kind in able), None) if able else None
    if inherited is not None and (first is None or not inherited.is_implied):
        return inherited.effective
    return join(path, "host" if first is None else first.replicas[0])


def _stated_host(node: TargetNode, path: str, scopes: tuple[_Scope, ...]) -> str | None:
    """Resolve a host reference in the innermost node around it that knows its first name; keep it if none does."""
    if node.host is None:
        return None
    if not isinstance(node.host, str):
        return join(path, "host")
    first, *rest = node.host.removeprefix("@").split("/")
    # Lexical scoping: an inner name shadows an outer one, so that a subtree can be moved with its references.
    for scope_path, scope in reversed(scopes):
        known = _step(scope, first)
        if known is not None:
            return _descend(join(scope_path, known[0]), known[1], rest) or node.host
    return node.host


def _descend(path: str, node: TargetNode, segments: list[str]) -> str | None:
    for segment in segments:
        known = _step(node, segment)
        if known is None:
            return None
        path, node = join(path, known[0]), known[1]
    return path


def _step(node: TargetNode, segment: str) -> _Scope | None:
    """Follow one name of a reference to a child (the first replica of several), or to a host written here."""
    child = node.child(segment)
    if child is not None:
        return (segment if child.has_replica(segment) else child.replicas[0]), child
    return ("host", node.host) if segment == "host" and isinstance(node.host, TargetNode) else None
