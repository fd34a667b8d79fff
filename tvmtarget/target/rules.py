"""What a consistent tree is: one table of rules that `resolve` checks, all of them at once.

Names, links and depth are checked when a node is made (`nesting.py`); here is what needs the whole tree.
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


def conflicts(root: TargetNode, driven: Mapping[str, HostChoice]) -> Iterator[str]:
    """Yield every contradiction of a tree, with its place; `driven` says who drives what."""
    for rule in RULES:
        yield from rule(root, driven)


def _kinds_are_registered(root: TargetNode, _: Mapping[str, HostChoice]) -> Iterator[str]:
    for path, node in _with_hosts(root):
        if find_kind(node.kind) is None:
            yield f"kind {shown(node.kind)} is not registered here; install the package that brings it{place(path)}"


def _systems_have_children(root: TargetNode, _: Mapping[str, HostChoice]) -> Iterator[str]:
    for path, node in _with_hosts(root):
        if node.kind == "composite" and not node.targets:
            yield f"a composite has no targets; give it children: composite[cpu=llvm]{place(path)}"


def _references_are_found(root: TargetNode, driven: Mapping[str, HostChoice]) -> Iterator[str]:
    known = [path for path, _ in root.walk() if path]
    for path, node in root.walk():
        if is_reference(node.host) and is_reference(driven[path].effective):
            tail = did_you_mean(str(node.host)[1:], known, listing="it has") or "; write the host itself: host=llvm"
            yield f"host {shown(node.host)} names no node of the tree{tail}{place(path)}"


def _hosts_are_devices(root: TargetNode, driven: Mapping[str, HostChoice]) -> Iterator[str]:
    """A host is one device whose kind can drive others, and which drives itself."""
    for path, node, host in _stated_hosts(root, driven):
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


def _stated_hosts(root: TargetNode, driven: Mapping[str, HostChoice]) -> Iterator[tuple[str, TargetNode, TargetNode]]:
    """Yield the path of each node that states its host, the node and the host; hosts of written hosts too."""
    for path, node in _with_hosts(root):
        if isinstance(node.host, TargetNode):
            yield path, node, node.host
        elif node.host is not None and path in driven and not is_reference(driven[path].effective):
            yield path, node, root.at(driven[path].effective)


def _hosts_go_in_no_circle(_: TargetNode, driven: Mapping[str, HostChoice]) -> Iterator[str]:
    """Who drives whom ends at a node that drives itself; a circle is told once, at its first path."""
    above = {path: unnumbered(driver.effective) for path, driver in driven.items()}
    for path in above:
        way = [path]
        while above.get(way[-1], way[-1]) not in way:
            way.append(above[way[-1]])
        circle = way[way.index(above.get(way[-1], way[-1])) :]
        if len(circle) > 1 and path == min(circle):
            listed = " -> ".join(f"@{step}" for step in [*circle, circle[0]])
            yield f"hosts drive each other in a circle, {listed}; let one drive itself{place(path)}"


def _hosts_agree(root: TargetNode, driven: Mapping[str, HostChoice]) -> Iterator[str]:
    """A host that is written in a device contradicts nothing that drives the system around it."""
    for path, node, system in _devices(root, "", None):
        if system is None or not isinstance(node.host, TargetNode) or node.can_host:
            continue
        driver = driven[system]
        if driver.is_implied or is_reference(driver.effective):
            continue
        host = root.at(driver.effective)
        if node.host.can_host and host.can_host and not _agree(node.host, host):
            yield (
                f"hosts disagree: {path!r} is driven by {node.host}, and {repr(system) if system else 'the root'} by "
                f"{host.replace(name=None)}; leave one out, or name a node: host=@{unnumbered(driver.effective)}"
            )


def _devices(node: TargetNode, path: str, system: str | None) -> Iterator[tuple[str, TargetNode, str | None]]:
    """Walk over the leaves with the path of the system around each; one with a program of its own begins anew."""
    if not node.targets:
        is_apart = node.executor is not None or node.runtime is not None
        yield path, node, None if is_apart else system
    for child in node.targets:
        yield from _devices(child, join(path, child.slot), path)


def _agree(one: TargetNode, other: TargetNode) -> bool:
    """Whether one host can be the other: of one kind, and no attribute has two values."""
    common = one.attrs.keys() & other.attrs.keys()
    return one.kind == other.kind and all(one.attrs[name] == other.attrs[name] for name in common)


def _attributes_agree(root: TargetNode, _: Mapping[str, HostChoice]) -> Iterator[str]:
    for path, node in _with_hosts(root):
        yield from (f"{problem}{place(path)}" for problem in contradictions(node.kind, node.attrs))


def _alignments_agree(root: TargetNode, _: Mapping[str, HostChoice]) -> Iterator[str]:
    """Code reads alignments from its target, the memory plan from the executor: where both say one, it is the same."""
    executors: dict[str, tuple[str, Executor] | None] = {}
    for path, node in _with_hosts(root):
        above = executors.get(path.rpartition("/")[0]) if path else None
        executors[path] = chosen = (path, node.executor) if node.executor is not None else above
        for of_target, of_executor in _ALIGNMENTS if chosen is not None else ():
            one, other = node.attrs.get(of_target), chosen[1].attrs.get(of_executor) if chosen else None
            if node.kind == "c" and chosen is not None and None not in (one, other) and one != other:
                yield (
                    f"{of_target!r} is {one} in 'c'{place(path)}, and {of_executor!r} is {other} in its executor"
                    f" {chosen[1].kind!r}{place(chosen[0])}; make them equal, or leave one out"
                )


# Names of alignments: in target 'c', and in executor 'aot'.
_ALIGNMENTS = (
    ("workspace-byte-alignment", "workspace-byte-alignment"),
    ("constants-byte-alignment", "constant-byte-alignment"),
)


def _with_hosts(root: TargetNode) -> Iterator[tuple[str, TargetNode]]:
    """Walk over the tree and over the trees of hosts that are written in it."""
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
    _hosts_go_in_no_circle,
    _hosts_agree,
    pair_conflicts,
    _alignments_agree,
)
