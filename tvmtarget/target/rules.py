"""Consistency rules of target trees: one table, checked by `Target.resolve`, all problems at once.

Names, links and depth are checked when a node is made (`target_node.py`); these rules need the whole tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tvmtarget.errors import did_you_mean
from tvmtarget.target.cpu.consistency import contradictions
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
    for rule in RULES:
        yield from rule(root, hosts)


def _kinds_are_registered(root: TargetNode, _: Mapping[str, HostChoice]) -> Iterator[str]:
    for path, node in _with_hosts(root):
        if find_kind(node.kind) is None:
            yield f"kind {shown(node.kind)} is not registered here; install the package that brings it{place(path)}"


def _systems_have_children(root: TargetNode, _: Mapping[str, HostChoice]) -> Iterator[str]:
    for path, node in _with_hosts(root):
        if node.kind == "composite" and not node.targets:
            yield f"a composite has no targets; give it children: composite[cpu=llvm]{place(path)}"


def _references_are_found(root: TargetNode, hosts: Mapping[str, HostChoice]) -> Iterator[str]:
    known = [path for path, _ in root.walk() if path]
    for path, node in root.walk():
        # A reference that was resolved has lost its '@'.
        if is_reference(node.host) and is_reference(hosts[path].effective):
            tail = did_you_mean(str(node.host)[1:], known, listing="it has") or "; write the host itself: host=llvm"
            yield f"host {shown(node.host)} names no node of the tree{tail}{place(path)}"


def _hosts_are_devices(root: TargetNode, hosts: Mapping[str, HostChoice]) -> Iterator[str]:
    """A host is one device whose kind can drive others, and which drives itself."""
    for path, node, host in _stated_hosts(root, hosts):
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


def _stated_hosts(root: TargetNode, hosts: Mapping[str, HostChoice]) -> Iterator[tuple[str, TargetNode, TargetNode]]:
    """Yield path, node and host of each node that states its host; also those inside written hosts."""
    for path, node in _with_hosts(root):
        if isinstance(node.host, TargetNode):
            yield path, node, node.host
        elif node.host is not None and path in hosts and not is_reference(hosts[path].effective):
            yield path, node, root.at(hosts[path].effective)


def _hosts_have_no_cycle(_: TargetNode, hosts: Mapping[str, HostChoice]) -> Iterator[str]:
    """Every chain of hosts ends at a node that drives itself; a cycle is reported once, at its first path."""
    host_of = {path: unnumbered(choice.effective) for path, choice in hosts.items()}
    for path in host_of:
        chain = [path]
        while host_of.get(chain[-1], chain[-1]) not in chain:
            chain.append(host_of[chain[-1]])
        cycle = chain[chain.index(host_of.get(chain[-1], chain[-1])) :]
        if len(cycle) > 1 and path == min(cycle):
            listed = " -> ".join(f"@{step}" for step in [*cycle, cycle[0]])
            yield f"hosts drive each other in a cycle, {listed}; let one drive itself{place(path)}"


def _hosts_agree(root: TargetNode, hosts: Mapping[str, HostChoice]) -> Iterator[str]:
    """A host written in a device does not contradict the host of the composite around it."""
    for path, node, system in _devices(root, "", None):
        if system is None or not isinstance(node.host, TargetNode) or node.can_host:
            continue
        # An implied host is a default, which a written one may replace; a reference to nothing has a rule of its own.
        choice = hosts[system]
        if choice.is_implied or is_reference(choice.effective):
            continue
        host = root.at(choice.effective)
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


def _attributes_agree(root: TargetNode, _: Mapping[str, HostChoice]) -> Iterator[str]:
    for path, node in _with_hosts(root):
        yield from (f"{problem}{place(path)}" for problem in contradictions(node.kind, node.attrs))


def _alignments_agree(root: TargetNode, _: Mapping[str, HostChoice]) -> Iterator[str]:
    """Alignments of a target and of its executor are equal where both state one.

    The generated code takes them from the target, and the memory plan from the executor.
    """
    executors: dict[str, tuple[str, Executor] | None] = {}
    for path, node in _with_hosts(root):
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


def _with_hosts(root: TargetNode) -> Iterator[tuple[str, TargetNode]]:
    """Yield the nodes of the tree, and those of the trees of written hosts."""
    for path, node in root.walk():
        yield path, node
        if isinstance(node.host, TargetNode):
            yield from ((join(path, "host", below), host) for below, host in _with_hosts(node.host))


RULES: tuple[Callable[[TargetNode, Mapping[str, HostChoice]], Iterator[str]], ...] = (
    _kinds_are_registered,
    _systems_have_children,
    _attributes_agree,
    _references_are_found,
    _hosts_are_devices,
    _hosts_have_no_cycle,
    _hosts_agree,
    pair_conflicts,
    _alignments_agree,
)
