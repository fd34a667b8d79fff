"""Where everything in a resolved tree is: the sites, who drives them, and which memory each of them sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from tvmtarget.target.nesting import drivers, join
from tvmtarget.target.tree import Target

__all__ = ["Layout", "Site"]


@dataclass(frozen=True, slots=True)
class Site:
    """One place where functions run.

    `path` names it in the tree (`node0/gpu.1`); `host` is the path of the site that drives it; `domain` names
    the memory its tensors are in: two sites of one domain need no copy between them.
    """

    path: str
    target: Target
    host: str
    domain: str

    @property
    def is_system(self) -> bool:
        """Whether this is a system of other sites, to be decomposed further."""
        return self.target.is_composite


class Layout:
    """The sites of a tree by path, computed once."""

    def __init__(self, root: Target) -> None:
        self.root = root
        self._sites: dict[str, Site] = {}
        self._options: dict[str, tuple[str, ...]] = {}
        self._drivers = drivers(root)
        self._add("", "", root, f":{root.device}")

    def __getitem__(self, path: str) -> Site:
        return self._sites[path]

    def __contains__(self, path: object) -> bool:
        return path in self._sites

    def options(self, path: str) -> tuple[Site, ...]:
        """Return the sites that work of a system may be given to: its children, then its host if it is written."""
        return tuple(self._sites[option] for option in self._options[path])

    def leaves(self, path: str = "") -> Iterator[Site]:
        """Yield the leaf sites at and below a path that work may be given to, in order of preference."""
        site = self._sites[path]
        if not site.is_system:
            yield site
            return
        for option in self.options(path):
            yield from self.leaves(option.path)

    def home(self, path: str) -> str:
        """Return the memory domain in which a site takes its inputs and leaves its outputs: a system's host's."""
        site = self._sites[path]
        return self._sites[site.host].domain if site.is_system else site.domain

    def canonical(self, path: str) -> str:
        """Return the path of a node as this layout spells it; `UnknownNameError` with the nearest ones."""
        return self.root.locate(path)[0]

    def _add(self, path: str, node_path: str, node: Target, domain: str) -> None:
        """Add a node, its host if that is no child, and its children; `node_path` has no replica numbers."""
        driver = self._drivers[node_path]
        host = _site_path(driver.effective, path)
        is_inside = driver.effective == join(node_path, "host")
        stand_in = (node.host if isinstance(node.host, Target) else Target("llvm")) if is_inside else None
        domains = _domains(path, node, stand_in)
        self._sites[path] = Site(path, node, host, domain)
        if stand_in is not None:
            self._sites[host] = Site(host, stand_in, host, domains["host"])
        children = [join(path, replica) for child in node.targets for replica in child.replicas]
        self._options[path] = tuple([*children, host] if is_inside and not driver.is_implied else children)
        for child in node.targets:
            for replica in child.replicas:
                self._add(join(path, replica), join(node_path, child.slot), child, domains[replica])


def _site_path(driver: str, path: str) -> str:
    """Put the replica numbers of `path` into the path of its driver where the two run together."""
    here, there = path.split("/"), driver.split("/") if driver else []
    for at, segment in enumerate(there):
        if at >= len(here) or here[at].rpartition(".")[0] not in (segment, "") and here[at] != segment:
            break
        there[at] = here[at] if here[at].rpartition(".")[0] == segment else segment
    return "/".join(there)


def _domains(path: str, node: Target, stand_in: Target | None) -> dict[str, str]:
    """Name the memory domain of each child, and of a host that is no child.

    Leaves of one device type share a memory, and so do those that a memory lists or a coherent link joins; a
    link that is not coherent, or a memory of its own, keeps a leaf apart.
    """
    members = {replica: child for child in node.targets for replica in child.replicas}
    if stand_in is not None:
        members["host"] = stand_in

    def named(name: str) -> list[str]:
        return [member for member, child in members.items() if name in (member, child.slot)]

    own = {member for memory in node.memory if len(memory.of) == 1 for member in named(memory.of[0])}
    apart = {
        frozenset((a, b)) for link in node.links if not link.coherent for a in named(link.src) for b in named(link.dst)
    }
    groups = [[name for end in memory.of for name in named(end)] for memory in node.memory if len(memory.of) > 1]
    groups += [named(link.src) + named(link.dst) for link in node.links if link.coherent]
    groups += [
        [a, b]
        for a, b in combinations([name for name, child in members.items() if not child.is_composite], 2)
        if members[a].device == members[b].device and not {a, b} & own and frozenset((a, b)) not in apart
    ]
    first = {member: member for member in members}
    for group in groups:
        names = {first[member] for member in group}
        kept = min(names, key=list(members).index, default="")
        first = {member: kept if name in names else name for member, name in first.items()}
    devices = {name: {members[member].device for member, kept in first.items() if kept == name} for name in first.values()}
    shared = [next(iter(found)) for found in devices.values() if len(found) == 1]
    return {
        member: f"{path}:{next(iter(devices[name]))}"
        if len(devices[name]) == 1 and shared.count(next(iter(devices[name]))) == 1
        else join(path, name)
        for member, name in first.items()
    }
