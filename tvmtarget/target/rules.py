"""Consistency rules of target trees: one table, checked by `Target.resolve`, all problems at once.

Names, links and depth are checked when a node is made (`target_node.py`); these rules need the whole tree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from tvmtarget.errors import did_you_mean
from tvmtarget.target.cpu.consistency import contradictions, has_rules
from tvmtarget.target.executor_compatibility import pair_conflicts
from tvmtarget.target.kinds import find_kind, kind_names, kind_of
from tvmtarget.target.node import Executor
from tvmtarget.target.problems import place, shown
from tvmtarget.target.target_node import HostChoice, TargetNode, hosts_by_path
from tvmtarget.target.tree_paths import is_reference, join, unnumbered

__all__ = ["RULES", "conflicts"]


def conflicts(root: TargetNode, hosts: Mapping[str, HostChoice]) -> Iterator[str]:
    """Yield every contradiction in a tree.

    Args:
        root: the tree.
        hosts: the hosts by path, of `hosts_by_path`.

    Yields:
        One message per problem, with the path of the node.
    """
    tree = _Tree(root, hosts)
    for rule in RULES:
        yield from rule(tree)


class _Tree:
    """What the rules look at.

    Attributes:
        root: the tree.
        hosts: the host of each node of the tree by path.
        paths: paths of the nodes of the tree, and of the nodes in the trees of written hosts.
        nodes: these nodes; in a list beside that of the paths, as 100,000 pairs would slow down garbage collections.
        kinds: the kinds of these nodes.
        stating: paths and nodes that state their host.
        linked: paths and nodes that state links.
    """

    def __init__(self, root: TargetNode, hosts: Mapping[str, HostChoice]) -> None:
        self.root = root
        self.hosts = hosts
        self.paths: list[str] = []
        self.nodes: list[TargetNode] = []
        self.stating: list[tuple[str, TargetNode]] = []
        self.linked: list[tuple[str, TargetNode]] = []
        self._add(root, "")
        self.kinds = {node.kind for node in self.nodes}

    def _add(self, node: TargetNode, path: str) -> None:
        self.paths.append(path)
        self.nodes.append(node)
        if node.host is not None:
            self.stating.append((path, node))
        if node.links:
            self.linked.append((path, node))
        if isinstance(node.host, TargetNode):
            self._add(node.host, join(path, "host"))
        for child in node.targets:
            below = f"{path}/{child.slot}" if path else child.slot
            if child.targets or child.host is not None:
                self._add(child, below)
            else:
                self.paths.append(below)
                self.nodes.append(child)

    def of_kinds(self, kinds: Collection[str]) -> Iterator[tuple[str, TargetNode]]:
        """Yield the paths and nodes of some kinds."""
        if not self.kinds.isdisjoint(kinds):
            yield from (found for found in zip(self.paths, self.nodes, strict=True) if found[1].kind in kinds)


def _kinds_are_registered(tree: _Tree) -> Iterator[str]:
    for path, node in tree.of_kinds([kind for kind in tree.kinds if find_kind(kind) is None]):
        tail = did_you_mean(str(node.kind), kind_names()) or "; install the package that brings it"
        yield f"kind {shown(node.kind)} is not registered here{tail}{place(path)}"


def _systems_have_children(tree: _Tree) -> Iterator[str]:
    for path, node in tree.of_kinds(["composite"]):
        if not node.targets:
            yield f"a composite has no targets; give it children: composite[cpu=llvm]{place(path)}"


def _references_are_found(tree: _Tree) -> Iterator[str]:
    for path, node in tree.stating:
        # The paths of nodes inside written hosts are not in `hosts`; a reference that was resolved has lost its '@'.
        if is_reference(node.host) and path in tree.hosts and is_reference(tree.hosts[path].effective):
            known = [path for path, _ in tree.root.walk() if path]
            tail = did_you_mean(str(node.host)[1:], known, listing="it has") or "; write the host itself: host=llvm"
            yield f"host {shown(node.host)} names no node of the tree{tail}{place(path)}"


def _hosts_are_devices(tree: _Tree) -> Iterator[str]:
    """A host is one device whose kind can drive others, and which drives itself."""
    for path, node, host in _stated_hosts(tree):
        what = f"host {node.host if isinstance(node.host, str) else host.kind!r}"
        if host.is_composite:
            yield f"{what} is a system of several devices; name the one that drives, as in @node0/cpu{place(path)}"
            continue
        if find_kind(host.kind) is not None and not host.can_host:
            able = ", ".join(name for name in kind_names() if kind_of(name).can_host)
            is_kind = f"is of kind {host.kind!r}, which" if isinstance(node.host, str) else "is a kind that"
            yield f"{what} {is_kind} drives no other device; kinds that do: {able}{place(path)}"
        if isinstance(node.host, TargetNode) and host.host is not None and hosts_by_path(host)[""].effective:
            yield f"{what} has a host of its own, but a host drives itself{place(path)}"


def _stated_hosts(tree: _Tree) -> Iterator[tuple[str, TargetNode, TargetNode]]:
    """Yield path, node and host of each node that states its host; also those inside written hosts."""
    for path, node in tree.stating:
        if isinstance(node.host, TargetNode):
            yield path, node, node.host
        elif path in tree.hosts and not is_reference(tree.hosts[path].effective):
            yield path, node, tree.root.at(tree.hosts[path].effective)


def _hosts_have_no_cycle(tree: _Tree) -> Iterator[str]:
    """Every chain of hosts ends at a node that drives itself; a cycle is reported once, at its first path."""
    if not tree.stating:
        return  # a default host drives itself
    # A node that drives nothing is in no cycle.
    drivers = {effective: unnumbered(effective) for effective in {choice.effective for choice in tree.hosts.values()}}
    names = set(drivers.values())
    host_of = {path: drivers[choice.effective] for path, choice in tree.hosts.items() if path in names}
    settled: set[str] = set()
    for path in host_of:
        chain, at = dict[str, int](), path
        while at not in settled and at not in chain:
            chain[at] = len(chain)
            at = host_of.get(at, at)
        cycle = [*chain][chain[at] :] if at in chain else []
        settled.update(chain)
        if len(cycle) > 1:
            first = cycle.index(min(cycle))
            cycle = [*cycle[first:], *cycle[:first]]
            listed = " -> ".join(f"@{step}" for step in [*cycle, cycle[0]])
            yield f"hosts drive each other in a cycle, {listed}; let one drive itself{place(cycle[0])}"


def _hosts_agree(tree: _Tree) -> Iterator[str]:
    """A host written in a device does not contradict the host of the composite around it."""
    if not tree.stating:
        return
    for path, node, system in _devices(tree.root, "", None):
        if system is None or not isinstance(node.host, TargetNode) or node.can_host:
            continue
        # An implied host is a default, which a written one may replace; a reference to nothing has a rule of its own.
        choice = tree.hosts[system]
        if choice.is_implied or is_reference(choice.effective):
            continue
        host = tree.root.at(choice.effective)
        if node.host.can_host and host.can_host and not _agree(node.host, host):
            yield (
                f"hosts disagree: {path!r} is driven by {node.host}, and {repr(system) if system else 'the root'} by "
                f"{host.replace(name=None)}; leave one out, or name a node: host=@{unnumbered(choice.effective)}"
            )


def _devices(node: TargetNode, path: str, system: str | None) -> Iterator[tuple[str, TargetNode, str | None]]:
    """Yield the leaves with the path of the composite around each; None for a leaf with a program of its own."""
    if not node.targets:
        is_apart = node.executor is not None or node.runtime is not None
        yield path, node, None if is_apart else system
    for child in node.targets:
        yield from _devices(child, join(path, child.slot), path)


def _agree(one: TargetNode, other: TargetNode) -> bool:
    """Whether two hosts can be the same: of one kind, with no attribute of two values."""
    # Attributes that only one of them states are not known of the other.
    common = one.attrs.keys() & other.attrs.keys()
    return one.kind == other.kind and all(one.attrs[name] == other.attrs[name] for name in common)


def _links_join_two_children(tree: _Tree) -> Iterator[str]:
    for path, node in tree.linked:
        for end in dict.fromkeys(link.src for link in node.links if link.src == link.dst):
            # The name of several replicas is both ends of the links between them.
            if all(child.slot != end or child.count == 1 for child in node.targets):
                yield f"a link joins two children, and both of its ends are {shown(end)}{place(path)}"


def _unchecked_are_attributes(tree: _Tree) -> Iterator[str]:
    stating = ((path, node) for path, node in zip(tree.paths, tree.nodes, strict=True) if "unchecked" in node.attrs)
    for path, node in stating:
        names, kind = node.attrs["unchecked"], find_kind(node.kind)
        if kind is not None and isinstance(names, tuple):
            wrong = [str(name) for name in names if kind.attribute(str(name)) is None]
            yield from (f"'unchecked' names no attribute: {kind.unknown(name)}{place(path)}" for name in wrong)


def _attributes_agree(tree: _Tree) -> Iterator[str]:
    for path, node in tree.of_kinds([kind for kind in tree.kinds if has_rules(kind)]):
        for problem in contradictions(node.kind, node.attrs):
            yield f"{problem}{place(path)}"


def _pairs_run(tree: _Tree) -> Iterator[str]:
    yield from pair_conflicts(tree.root, tree.hosts)


def _alignments_agree(tree: _Tree) -> Iterator[str]:
    """Alignments of a target and of its executor are equal where both state one.

    The generated code takes them from the target, and the memory plan from the executor.
    """
    if "c" not in tree.kinds:
        return
    executors: dict[str, tuple[str, Executor] | None] = {}
    for path, node in zip(tree.paths, tree.nodes, strict=True):
        above = executors.get(path.rpartition("/")[0]) if path else None
        executors[path] = nearest = (path, node.executor) if node.executor is not None else above
        if nearest is None or node.kind != "c":
            continue
        owner, executor = nearest
        for of_target, of_executor in _ALIGNMENTS:
            one, other = node.attrs.get(of_target), executor.attrs.get(of_executor)
            if None not in (one, other) and one != other:
                yield (
                    f"{of_target!r} is {one} in 'c'{place(path)}, and {of_executor!r} is {other} in its executor"
                    f" {executor.kind!r}{place(owner)}; make them equal, or leave one out"
                )


# Names of alignments: in target 'c', and in executor 'aot'.
_ALIGNMENTS = (
    ("workspace-byte-alignment", "workspace-byte-alignment"),
    ("constants-byte-alignment", "constant-byte-alignment"),
)


RULES: tuple[Callable[[_Tree], Iterator[str]], ...] = (
    _kinds_are_registered,
    _systems_have_children,
    _unchecked_are_attributes,
    _attributes_agree,
    _links_join_two_children,
    _references_are_found,
    _hosts_are_devices,
    _hosts_have_no_cycle,
    _hosts_agree,
    _pairs_run,
    _alignments_agree,
)
