"""How targets nest: the fields of a node, paths through a tree, and who drives what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from pydantic import Field

from tvmtarget.errors import TargetError, UnknownNameError, did_you_mean
from tvmtarget.target.attributes import Attributes
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.node import Executor, Link, Memory, Node, Runtime

__all__ = ["MAX_DEPTH", "Driver", "NestedNode", "drivers", "join"]

MAX_DEPTH = 64

_NOT_IN_NAMES = frozenset("/@,()[]{}|\"'=<>!?~:")


def join(path: str, segment: str) -> str:
    """Append a segment to a path; the root's path is empty."""
    return f"{path}/{segment}" if path else segment


class NestedNode(Node):
    """The fields of a target and the questions that need nothing but the tree; users see `Target`."""

    kind: str
    attrs: Attributes = Attributes()
    name: str | None = None
    host: Self | str | None = None
    targets: tuple[Self, ...] = ()
    count: int = Field(default=1, ge=1)
    links: tuple[Link, ...] = ()
    memory: tuple[Memory, ...] = ()
    executor: Executor | None = None
    runtime: Runtime | None = None
    keys: tuple[str, ...] | None = None
    tag: str | None = None

    def model_post_init(self, _context: object) -> None:
        """Refuse trees whose parts cannot be told apart, or that are deeper than 64 levels."""
        problems = [*_name_problems(self), *_link_problems(self)]
        if self.depth > MAX_DEPTH:
            problems.append(f"the tree is deeper than {MAX_DEPTH} levels")
        if problems:
            raise TargetError(*problems)

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
        """Levels of the tree, 1 for a leaf."""
        return 1 + max((child.depth for child in self.targets), default=0)

    @property
    def device(self) -> str:
        """TVM's device type by name; a kind that nobody knows counts as its own device."""
        kind = find_kind(self.kind)
        return kind.device if kind else self.kind

    @property
    def all_keys(self) -> tuple[str, ...]:
        """Dispatch keys: the device, then the authored ones, else the kind's; each once, in order."""
        kind = find_kind(self.kind)
        device = self.attrs.get("device")
        own = self.keys if self.keys is not None else (kind.keys if kind else ())
        return tuple(dict.fromkeys([*([str(device)] if device else []), *own]))

    @property
    def can_host(self) -> bool:
        """Whether this node's kind drives other devices."""
        kind = find_kind(self.kind)
        return kind is not None and kind.can_host

    @property
    def replicas(self) -> tuple[str, ...]:
        """Names of the sites this node stands for: its slot, or `slot.0` ... when there are several."""
        return (self.slot,) if self.count == 1 else tuple(f"{self.slot}.{k}" for k in range(self.count))

    def walk(self, path: str = "") -> Iterator[tuple[str, Self]]:
        """Yield (path, node) for this node and all below it, parents first."""
        yield path, self
        for child in self.targets:
            yield from child.walk(join(path, child.slot))

    def at(self, path: str) -> Self:
        """Return the node at a path of child names (else a unique kind, else `host`), separated by '/'."""
        return self.locate(path)[1]

    def locate(self, path: str) -> tuple[str, Self]:
        """Return the canonical path of a node and the node; `UnknownNameError` with the nearest paths."""
        here, node = "", self
        for segment in path.split("/") if path else ():
            child = node.child(segment)
            if child is not None:
                here, node = join(here, segment if segment in child.replicas else child.slot), child
            elif segment == "host":
                here, node = self._locate_host(here, node)
            else:
                raise UnknownNameError(f"no node {path!r} in target {self.tag or self.kind!r}{self._nearest(path)}")
        return here, node

    def child(self, segment: str) -> Self | None:
        """Return the child of that name, replica name or unique kind, or None."""
        for child in self.targets:
            if segment == child.slot or segment in child.replicas:
                return child
        same = [child for child in self.targets if child.kind == segment]
        return same[0] if len(same) == 1 else None

    def _locate_host(self, path: str, node: Self) -> tuple[str, Self]:
        host = drivers(self)[path].effective
        if host != join(path, "host"):
            return self.locate(host)
        return host, node.host if isinstance(node.host, type(self)) else type(self)(kind="llvm")

    def _nearest(self, path: str) -> str:
        paths = [found for found, _ in self.walk() if found]
        same = [found for found in paths if found.rsplit("/", 1)[-1] == path.rsplit("/", 1)[-1]]
        if same:
            return "; did you mean " + " or ".join(map(repr, same[:3])) + "?"
        return did_you_mean(path, paths, listing="it has")


def _name_problems(node: NestedNode) -> list[str]:
    problems: list[str] = []
    taken: set[str] = set()
    for child in node.targets:
        slots = {child.slot, *child.replicas}
        if taken & slots:
            problems.append(
                f"two children are called {min(taken & slots)!r}; name them, as in a={child.kind},b={child.kind}"
            )
        if set(child.slot) & _NOT_IN_NAMES or child.slot.split() != [child.slot]:
            problems.append(f"{child.slot!r} is no name for a child; use letters, digits, '-', '_' and '.'")
        taken |= slots
    return problems


def _link_problems(node: NestedNode) -> list[str]:
    known = {name for child in node.targets for name in (child.slot, *child.replicas)} | {"host"}
    ends = {end for link in node.links for end in (link.src, link.dst)}
    ends |= {owner for memory in node.memory for owner in memory.of}
    return [f"links or memory name {end!r}, which is no child{did_you_mean(end, known)}" for end in sorted(ends - known)]


@dataclass(frozen=True, slots=True)
class Driver:
    """Who drives a node: `effective` with its own host, `default` without it; both are paths.

    A reference that names no node of this tree stays as it is written, with its '@'. The path `<node>/host` means a host that is no child: one written inside the node, or, when `is_implied`,
    the llvm that stands in because nobody said.
    """

    effective: str
    default: str
    is_implied: bool


def drivers(root: NestedNode) -> dict[str, Driver]:
    """Return the driver of every node by path.

    A node is driven by its own host, else it drives itself if its kind can, else by whoever drives the node
    around it, else by the first child whose kind can host, else by an implied llvm, which no node inherits
    that has a child to drive it.
    """
    found: dict[str, Driver] = {}
    _drive(root, "", None, [], found)
    return found


def _drive(
    node: NestedNode, path: str, inherited: Driver | None, scopes: list[tuple[str, NestedNode]], found: dict[str, Driver]
) -> None:
    scopes = [*scopes, (path, node)]
    default = _default_driver(node, path, inherited)
    own = _own_driver(node, path, scopes)
    passed = inherited is not None and default == inherited.effective and inherited.is_implied
    found[path] = Driver(own or default, default, own is None and (passed or default == join(path, "host")))
    for child in node.targets:
        _drive(child, join(path, child.slot), found[path], scopes, found)


def _default_driver(node: NestedNode, path: str, inherited: Driver | None) -> str:
    if node.can_host:
        return path
    first = next((child for child in node.targets if child.can_host), None)
    if inherited is not None and (first is None or not inherited.is_implied):
        return inherited.effective
    return join(path, "host" if first is None else first.slot)


def _own_driver(node: NestedNode, path: str, scopes: list[tuple[str, NestedNode]]) -> str | None:
    """Resolve a host reference in the innermost node around it that knows its first name; keep it if none does."""
    if node.host is None:
        return None
    if not isinstance(node.host, str):
        return join(path, "host")
    reference = node.host.removeprefix("@")
    for scope_path, scope in reversed(scopes):
        if scope.child(reference.split("/")[0]) is not None:
            return join(scope_path, scope.locate(reference)[0])
    return f"@{reference}"
