"""The memories of a target as a graph of links, and the fastest route of a copy between two of them.

Placement, lower bounds, outlining, verification, predictions and reports all use this graph, so that the route whose
time is predicted is the route that runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeAlias

from tvmtarget.errors import InfeasibleError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.ir.types import Type
from tvmtarget.partition.costs.costs import Costs, LinkCost
from tvmtarget.partition.costs.rates import names_of
from tvmtarget.partition.costs.work import nbytes_of
from tvmtarget.target.node import Link
from tvmtarget.target.topology import Site, Topology
from tvmtarget.target.tree_paths import unnumbered

__all__ = ["ASSUMED_NBYTES", "PICOSECONDS", "Length", "MemoryGraph", "Route", "Speed", "length_of"]

PICOSECONDS = 10**12

# Size by which a value of unknown size is routed; the time of the copy remains unknown.
ASSUMED_NBYTES = 1 << 20

# Length of a path, compared in this order: links of unknown time, picoseconds of all others, number of links.
Length: TypeAlias = tuple[int, int, int]

# Picoseconds before the first byte arrives, and bytes a second; None where the link does not state it.
Speed: TypeAlias = tuple[int | None, float | None]

_Speeds: TypeAlias = dict[tuple[str, str], list[Speed]]


@dataclass(frozen=True, slots=True)
class Route:
    """The memories between the two ends of a copy, in order, and its time in picoseconds (None if unknown)."""

    stops: tuple[str, ...]
    time: int | None


class MemoryGraph:
    """Memory domains and the links between them: those that costs measured, else those that the target states.

    A link leads both ways, unless another one states the way back. A measured link replaces those that the target
    states between the same memories; of parallel links the fastest for the size of the value counts. The time of a link
    without a bandwidth is known for empty values only, that of one without a latency never.

    In a system that states no links, every two memories are linked. In one that does, a memory that no link names is
    linked to its host's memory, and a device that no path of links joins to the driver is linked to its host. The
    time of these implied links is unknown.

    Args:
        topology: the sites of the target.
        costs: measured links and assumed sizes of symbolic dimensions.

    Attributes:
        links: the speeds of parallel links by the memories at their ends.
        groups: memories of which every two are linked in unknown time.
        measured: the memories at the ends of the links of the costs.

    Raises:
        InfeasibleError: for memories of sites that drive themselves, if no path joins them to the memory of the driver.
        UnknownNameError: for links of the costs whose ends are not in the target.
    """

    def __init__(self, topology: Topology, costs: Costs | None = None) -> None:
        self.costs = costs or Costs()
        self.links: dict[str, dict[str, list[Speed]]] = {}
        # Cliques of links with unknown speed, stored as groups: n memories would need n * n links.
        self.groups: list[tuple[str, ...]] = []
        self._groups_of: dict[str, list[int]] = {}
        self._trees: dict[tuple[str, int], dict[str, str]] = {}
        self._routes: dict[tuple[str, str, int | None], Route] = {}
        self._sizes: dict[int, tuple[Type, int | None]] = {}  # by identity of the type, which is kept
        self.measured = tuple((a, b) for a, b, _ in _measured(topology, self.costs))
        measured: _Speeds = {}
        for a, b, speed in _measured(topology, self.costs):
            measured.setdefault((a, b), []).append(speed)
        stated: _Speeds = {}
        named: dict[str, set[str]] = {}
        for path, a, b, link in _stated(topology):
            # Links of the target have times, which are no energies.
            stated.setdefault((a, b), []).append((None, None) if self.costs.is_energy else _speed(link))
            named.setdefault(path, set()).update((a, b))
        # `setdefault` ranks the sources of a link: measured before stated, and each of them before its reverse.
        for speeds in (measured, stated):
            for (a, b), found in speeds.items():
                self.links.setdefault(a, {}).setdefault(b, found)
            for (a, b), found in speeds.items():
                self.links.setdefault(b, {}).setdefault(a, found)
        for system in _systems(topology):
            domains = [option.domain for option in topology.options(system.path)]
            if system.path not in named:
                self._join(system.domain, *domains)
            for domain in domains if system.path in named else ():
                if domain not in named[system.path]:
                    self._join(system.domain, domain)
        sites = {leaf.path for leaf in topology.leaves()}
        for leaf in topology.leaves():
            if leaf.host not in sites:  # a host of its own, which is no option of a system
                self._join(topology[leaf.host].domain, leaf.domain)
        # Many targets state the links between their devices alone, though a device is always attached to its host.
        self._attach(topology)

    def route(self, src: str, dst: str, nbytes: int | None) -> Route:
        """Return the fastest route of a value from one memory to another.

        Args:
            src: the domain of the memory that holds the value.
            dst: the domain that needs it.
            nbytes: the size of the value; None if it is unknown, which routes it as one of `ASSUMED_NBYTES`.

        Returns:
            The route with the fewest links of unknown time; of those the fastest, then the one of fewest links, then
            the first by the names of the domains.
        """
        key = src, dst, nbytes
        found = self._routes.get(key)
        if found is None:
            found = self._routes[key] = self._route(src, dst, nbytes)
        return found

    def nbytes(self, type_: Type) -> int | None:
        """Return the size of a value, with the sizes of symbolic dimensions that the costs assume.

        Args:
            type_: the type of the value.

        Returns:
            Bytes; None if a dimension has no size.
        """
        # Values share types: a lookup by identity avoids hashing the same shape for every copy.
        known = self._sizes.get(id(type_))
        if known is None:
            known = self._sizes[id(type_)] = (type_, nbytes_of(type_, self.costs.symbolic_hints))
        return known[1]

    def _route(self, src: str, dst: str, nbytes: int | None) -> Route:
        if src == dst:
            return Route((), 0)
        size = ASSUMED_NBYTES if nbytes is None else nbytes
        tree = self.tree(src, size)
        stops, at, total, is_unknown = [dst], dst, 0, nbytes is None
        while at != src:
            at, after = tree[at], at
            stops.append(at)
            unknown, time, _ = length_of(self.links.get(at, {}).get(after, ()), size)
            total += time
            is_unknown |= unknown > 0
        return Route(tuple(stops[-2:0:-1]), None if is_unknown else total)

    def tree(self, src: str, nbytes: int) -> dict[str, str]:
        """Return the memory before each one on its shortest path; computed once for a size.

        Args:
            src: the domain of the memory where paths begin.
            nbytes: the size of the value.

        Returns:
            Domains by domain, that of `src` for itself, each domain after the one before it.
        """
        key = src, nbytes
        if key not in self._trees:
            self._trees[key] = self._tree(src, nbytes)
        return self._trees[key]

    def reuse_tree(self, src: str, nbytes: int, tree: dict[str, str]) -> None:
        """Take the shortest paths of one size of values for those of another size.

        Args:
            src: the domain of the memory where paths begin.
            nbytes: the other size.
            tree: what `tree` returned for one size, and would return for the other one.
        """
        self._trees[src, nbytes] = tree

    def _tree(self, src: str, nbytes: int) -> dict[str, str]:
        """Return the memory before every memory on the shortest path to it.

        Dijkstra's algorithm (1959), written here because lengths are triples that depend on the size of the value,
        and groups of memories count as cliques.
        """
        found: dict[str, str] = {}
        queue: list[tuple[Length, str, str]] = [((0, 0, 0), src, src)]
        is_unvisited = [True] * len(self.groups)
        while queue:
            length, domain, before = heappop(queue)
            if domain in found:
                continue
            found[domain] = before
            unknown, time, links = length
            edges = {other: length_of(speeds, nbytes) for other, speeds in self.links.get(domain, {}).items()}
            for number in self._groups_of.get(domain, ()):
                # Memories leave the queue by distance, so the first one of a group is the nearest way into it.
                if is_unvisited[number]:
                    is_unvisited[number] = False
                    for other in self.groups[number]:
                        edges[other] = min(edges.get(other, _UNKNOWN), _UNKNOWN)
            for other, (more_unknown, more_time, more_links) in edges.items():
                if other not in found:
                    heappush(queue, ((unknown + more_unknown, time + more_time, links + more_links), other, domain))
        return found

    def _join(self, *domains: str) -> None:
        group = tuple(dict.fromkeys(domains))
        if len(group) > 1:
            for domain in group:
                self._groups_of.setdefault(domain, []).append(len(self.groups))
            self.groups.append(group)

    def _attach(self, topology: Topology) -> None:
        """Link devices that no path joins to the driver to their hosts; raise `InfeasibleError` for the rest."""
        home, sites = topology.home(""), [*_systems(topology), *topology.leaves()]
        reached = self._tree(home, ASSUMED_NBYTES)
        while unreached := [site for site in sites if site.domain not in reached]:
            attached = [site for site in unreached if topology[site.host].domain in reached]
            for domain, host in dict.fromkeys((site.domain, topology[site.host].domain) for site in attached):
                self._join(host, domain)
            if not attached:
                firsts = {site.domain: site for site in reversed(unreached)}
                problems = [
                    f"no link joins memory {domain!r} of @{site.path or '.'} to memory {home!r} of the driver "
                    f"@{topology[''].host or '.'}; state one in the target, or measure one in the costs"
                    for domain, site in reversed(firsts.items())
                ]
                raise InfeasibleError(*problems)
            reached = self._tree(home, ASSUMED_NBYTES)


_UNKNOWN: Length = (1, 0, 1)


def length_of(speeds: Sequence[Speed], nbytes: int) -> Length:
    """Return the length of the fastest of parallel links.

    Args:
        speeds: the speeds of the links; none for a link between memories of a group.
        nbytes: the size of the value.

    Returns:
        The length of a path of that link alone.
    """
    found = _UNKNOWN
    for latency, bandwidth in speeds:
        if latency is not None and (bandwidth or not nbytes):
            more = round(nbytes * PICOSECONDS / bandwidth) if nbytes and bandwidth else 0
            found = min(found, (0, latency + more, 1))
    return found


def _speed(link: Link) -> Speed:
    latency = None if link.latency_ns is None else link.latency_ns * 1000
    return latency, None if link.bandwidth_Bps is None else float(link.bandwidth_Bps)


def _systems(topology: Topology, path: str = "") -> Iterator[Site]:
    """Yield the systems at and below a node."""
    if topology[path].is_system:
        yield topology[path]
        for option in topology.options(path):
            yield from _systems(topology, option.path)


def _stated(topology: Topology) -> Iterator[tuple[str, str, str, Link]]:
    """Yield for every link of the target the path of its system, the memories that it joins, and the link."""
    for system in _systems(topology):
        for link in system.target.links:
            if link.coherent:
                continue
            for a in _ends(topology, system, link.src):
                for b in _ends(topology, system, link.dst):
                    if a != b:
                        yield system.path, a, b, link


def _ends(topology: Topology, system: Site, name: str) -> list[str]:
    """Return the memories of the replicas of a child; that of the host where no child has that name."""
    children = [(option.path.rpartition("/")[2], option) for option in topology.options(system.path)]
    found = [option.domain for slot, option in children if name in (slot, unnumbered(slot))]
    return list(dict.fromkeys(found)) or [system.domain]


def _measured(topology: Topology, costs: Costs) -> Iterator[tuple[str, str, Speed]]:
    """Yield the memories that every link of the costs joins, and its speed."""
    names: dict[str, str] = {}
    for leaf in topology.leaves():
        names |= {leaf.path: leaf.domain, leaf.domain: leaf.domain}
    for system in _systems(topology):
        names |= {system.path: system.domain, system.domain: system.domain}
    given: dict[str, set[str]] = {}
    for name, site in costs.sites.items():
        if site.domain is not None:
            domains = {leaf.domain for leaf in topology.leaves() if name in names_of(leaf)}
            given.setdefault(site.domain, set()).update(domains)
    # A domain may be spelled as the target spells it, but not as the target spells another memory.
    meanings = {name: {names[name]} for name in names} | {
        name: domains | ({names[name]} if name in names else set()) for name, domains in given.items()
    }
    raise_all(UnknownNameError, [problem for link in costs.links for problem in _unclear(link, meanings)])
    for link in costs.links:
        (src,), (dst,) = meanings[link.src], meanings[link.dst]
        yield src, dst, (round(link.latency * 10**6), link.bandwidth)


def _unclear(link: LinkCost, meanings: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield a problem for each end of a link that is no memory, or several ones."""
    known = [name for name in meanings if name]
    for end in (link.src, link.dst):
        if not meanings.get(end):
            yield f"a link of the costs ends at {end!r}, which is no site or memory{did_you_mean(end, known)}"
        elif len(meanings[end]) > 1:
            several = " and ".join(repr(domain) for domain in sorted(meanings[end]))
            yield f"a link of the costs ends at {end!r}, which means memories {several}; name the site of one"
