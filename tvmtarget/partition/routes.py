"""Over which memories a value gets from one to another: along the links of the tree, and nothing twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import TypeAlias

from tvmtarget.target.layout import Layout, Site
from tvmtarget.target.nesting import unnumbered
from tvmtarget.target.node import Link

__all__ = ["Routes", "linked_domains", "systems_of"]

PICOSECONDS = 10**12

# Bytes of the copy by which ways are compared.
_NBYTES = 1 << 20

# What a link takes: how many of what is taken are not known, picoseconds, and links.
_Length: TypeAlias = tuple[int, int, int]


class Routes:
    """The ways between memory domains, each the fastest for a copy of 1 MiB, of equal ones that of fewest links.

    In a system that states no links every memory is joined to every other one; in one that does, those that no link
    speaks of are joined to its host's. `more` are pairs of domains that are joined too, as a file of costs knows.
    Links lead both ways. Between memories that nothing joins, values are copied straight.
    """

    def __init__(self, layout: Layout, more: Iterable[tuple[str, str]] = ()) -> None:
        self._ways: dict[str, dict[str, _Length]] = {}
        self._before: dict[str, dict[str, str]] = {}
        linked: dict[str, set[str]] = {}
        for path, link, a, b in linked_domains(layout):
            linked.setdefault(path, set()).update((a, b))
            self._join(a, b, _length(link))
        for a, b in more:
            self._join(a, b, (0, 0, 1))
        for system in systems_of(layout):
            domains = dict.fromkeys(option.domain for option in layout.options(system.path))
            told = linked.get(system.path)
            for domain in domains:
                ends = (system.domain, *domains) if told is None else (system.domain,) * (domain not in told)
                for end in ends:
                    self._join(domain, end, (0, 0, 1))

    def between(self, src: str, dst: str) -> tuple[str, ...]:
        """Return the domains that a value comes through from one to another, in order, both ends left out."""
        if src not in self._before:
            self._before[src] = self._from(src)
        before = self._before[src]
        found: list[str] = []
        at = before.get(dst, src)
        while at != src:
            found.append(at)
            at = before[at]
        return tuple(reversed(found))

    def _join(self, a: str, b: str, length: _Length) -> None:
        if a != b:
            for src, dst in ((a, b), (b, a)):
                ways = self._ways.setdefault(src, {})
                ways[dst] = min(length, ways.get(dst, length))

    def _from(self, src: str) -> dict[str, str]:
        """Return, for every domain that can be reached, the one before it on the way there."""
        before: dict[str, str] = {}
        waiting: list[tuple[_Length, str, str]] = [((0, 0, 0), src, src)]
        while waiting:
            length, domain, previous = heappop(waiting)
            if domain in before:
                continue
            before[domain] = previous
            for target, (unknown, time, links) in self._ways.get(domain, {}).items():
                if target not in before:
                    further = (length[0] + unknown, length[1] + time, length[2] + links)
                    heappush(waiting, (further, target, domain))
        return before


def linked_domains(layout: Layout) -> Iterator[tuple[str, Link, str, str]]:
    """Yield for every link that joins two memories the path of its system, the link, and the memories."""
    for system in systems_of(layout):
        for link in system.target.links:
            if link.coherent:
                continue
            for a in _ends(layout, system, link.src):
                for b in _ends(layout, system, link.dst):
                    if a != b:
                        yield system.path, link, a, b


def systems_of(layout: Layout, path: str = "") -> Iterator[Site]:
    """Yield the systems at and below a node."""
    if layout[path].is_system:
        yield layout[path]
        for option in layout.options(path):
            yield from systems_of(layout, option.path)


def _ends(layout: Layout, system: Site, name: str) -> list[str]:
    """Return the memories of the replicas of a child, or of the host where no child has that name."""
    children = [(option.path.rpartition("/")[2], option) for option in layout.options(system.path)]
    found = [option.domain for slot, option in children if name in (slot, unnumbered(slot))]
    return list(dict.fromkeys(found)) or [system.domain]


def _length(link: Link) -> _Length:
    if not link.bandwidth_Bps or link.latency_ns is None:
        return 1, 0, 1
    return 0, link.latency_ns * 1000 + round(_NBYTES * PICOSECONDS / link.bandwidth_Bps), 1
