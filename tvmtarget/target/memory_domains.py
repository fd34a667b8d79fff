"""Memory domains: which sites share one address space, and the names of these domains.

Leaves of one device type in one composite share a memory, as do the children that a memory lists or a coherent link
joins. A link that is not coherent, or a memory of its own, keeps a leaf apart. With a distributed runtime, leaves share
a memory only if they have the same host. The name of a domain is the first of these that no other domain can have: a
memory declared for it, `<composite>:<device>`, its first site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from tvmtarget.target.kinds import find_kind
from tvmtarget.target.tree import Target
from tvmtarget.target.tree_paths import join, unnumbered
from tvmtarget.union_find import UnionFind

__all__ = ["memory_domains"]


def memory_domains(targets: Mapping[str, Target], hosts: Mapping[str, str]) -> dict[str, str]:
    """Find the memory domain of every site; that of a composite is its host's.

    Args:
        targets: the sites of a resolved tree by path, in its order.
        hosts: the paths of their hosts.

    Returns:
        The name of the domain by path.
    """
    homes = {path: hosts[path] if node.is_composite else path for path, node in targets.items()}
    scopes = [_scope(path, targets, hosts) for path in targets]
    pools = UnionFind(path for path in targets if homes[path] == path)
    for sites in (sites for scope in scopes for sites in scope.shared()):
        first, *others = sites
        for site in others:
            pools.union(homes[first], homes[site])
    declared: dict[str, list[str]] = {}
    for scope in scopes:
        for name, sites in scope.memories():
            declared.setdefault(pools.find(homes[sites[0]]), []).append(join(scope.path, name))
    members = {group[0]: list(group) for group in pools.groups()}
    names = _names({first: _candidates(members[first], declared.get(first, []), targets) for first in members})
    return {path: names[pools.find(homes[path])] for path in targets}


def _candidates(members: list[str], declared: list[str], targets: Mapping[str, Target]) -> list[str]:
    """List the possible names of a domain, the best first."""
    first = members[0]
    devices = {targets[member].device for member in members}
    by_device = [f"{first.rpartition('/')[0]}:{targets[first].device}"] if len(devices) == 1 else []
    return [*declared, *by_device, first or f":{targets[first].device}"]


def _names(candidates: Mapping[str, list[str]]) -> dict[str, str]:
    """Choose for every domain its first name that no other domain could have, else its first site."""
    uses = Counter(name for names in candidates.values() for name in set(names))
    return {number: next((n for n in names if uses[n] == 1), names[-1]) for number, names in candidates.items()}


@dataclass(frozen=True, slots=True)
class _Scope:
    """One node with the sites directly in it: its children, and a host that is written or implied there."""

    path: str
    node: Target
    children: Mapping[str, Target]
    inside: Mapping[str, Target]
    host: str
    hosts: Mapping[str, str]
    by_name: Mapping[str, list[str]]

    def named(self, end: str) -> list[str]:
        """Return the sites that a link or a memory names: all replicas of a child, or the host."""
        return self.by_name.get(end) or [self.host]

    def memories(self) -> Iterator[tuple[str, list[str]]]:
        """Yield declared memories with the sites that share each; a memory of one child is one for each replica."""
        for memory in self.node.memory:
            sites = [site for end in memory.of for site in self.named(end)]
            if len(memory.of) == 1:
                yield from ((memory.name, [site]) for site in sites)
            else:
                yield memory.name, sites or list(self.children) or [self.path]

    def shared(self) -> Iterator[list[str]]:
        """Yield groups of sites that share a memory."""
        yield from (sites for _, sites in self.memories())
        yield from (self.named(link.src) + self.named(link.dst) for link in self.node.links if link.coherent)
        links = [link for link in self.node.links if not link.coherent]
        apart = {frozenset((a, b)) for link in links for a in self.named(link.src) for b in self.named(link.dst)}
        for leaves in self._leaves_by_device():
            pairs = ([a, b] for a, b in combinations(leaves, 2) if frozenset((a, b)) not in apart)
            yield from pairs if apart else [leaves]

    def _leaves_by_device(self) -> Iterable[list[str]]:
        """Return the leaves by device type, without those that have a memory of their own."""
        own = {site for memory in self.node.memory if len(memory.of) == 1 for site in self.named(memory.of[0])}
        near = {**self.children, **self.inside} | ({} if self.node.is_composite else {self.path: self.node})
        found: dict[tuple[str, str], list[str]] = {}
        for site, target in near.items():
            if not target.is_composite and not target.memory and site not in own:
                # Hosts of a distributed runtime are different machines.
                host = self.hosts[site] if self._is_distributed else ""
                found.setdefault((target.device, host), []).append(site)
        return found.values()

    @property
    def _is_distributed(self) -> bool:
        kind = None if self.node.runtime is None else find_kind(self.node.runtime.kind, "runtime")
        return kind is not None and kind.is_distributed


def _scope(path: str, targets: Mapping[str, Target], hosts: Mapping[str, str]) -> _Scope:
    node, inside = targets[path], join(path, "host")
    children = {join(path, replica): child for child in node.targets for replica in child.replicas}
    is_inside = inside in targets and inside not in children
    by_name: dict[str, list[str]] = {}
    for site in children:
        name = site.rpartition("/")[2]
        for end in {name, unnumbered(name)}:
            by_name.setdefault(end, []).append(site)
    return _Scope(path, node, children, {inside: targets[inside]} if is_inside else {}, hosts[path], hosts, by_name)
