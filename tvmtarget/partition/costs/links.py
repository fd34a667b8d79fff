"""What copies between memories take: along the cheapest way over the links of a target."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from tvmtarget.errors import UnknownNameError, did_you_mean, raise_all
from tvmtarget.partition.costs.costs import Costs, LinkCost
from tvmtarget.partition.costs.rates import names_of
from tvmtarget.partition.routes import linked_domains, systems_of
from tvmtarget.target.layout import Layout

__all__ = ["Links"]

PICOSECONDS = 10**12


class Links:
    """The links between memory domains: those of the tree, and those of a file of costs, which win.

    A link leads both ways, unless another one leads back. One without a bandwidth or a latency is no way at all,
    as what it takes is not known. `measured` are the ends of those of the file.
    """

    def __init__(self, layout: Layout, costs: Costs) -> None:
        self._ways: dict[str, dict[str, tuple[int, float]]] = {}
        self._found: dict[tuple[str, int], dict[str, int]] = {}
        stated = [*_written(layout)]
        measured = [*_measured(layout, costs)]
        self.measured = tuple((src, dst) for src, dst, _, _ in measured)
        for links in (measured, stated):
            for src, dst, latency, bandwidth in links:
                self._ways.setdefault(src, {}).setdefault(dst, (latency, bandwidth))
            for src, dst, latency, bandwidth in links:
                self._ways.setdefault(dst, {}).setdefault(src, (latency, bandwidth))

    def copy(self, nbytes: int, src: str, dst: str) -> int | None:
        """Return the picoseconds that a copy takes, or None if no way is known."""
        if src == dst:
            return 0
        if (src, nbytes) not in self._found:
            self._found[src, nbytes] = self._from(src, nbytes)
        return self._found[src, nbytes].get(dst)

    def _from(self, src: str, nbytes: int) -> dict[str, int]:
        reached: dict[str, int] = {}
        waiting = [(0, src)]
        while waiting:
            spent, domain = heappop(waiting)
            if domain in reached:
                continue
            reached[domain] = spent
            for target, (latency, bandwidth) in self._ways.get(domain, {}).items():
                if target not in reached:
                    heappush(waiting, (spent + latency + round(nbytes * PICOSECONDS / bandwidth), target))
        return reached


_Way = tuple[str, str, int, float]


def _written(layout: Layout) -> Iterator[_Way]:
    for _, link, a, b in linked_domains(layout):
        if link.bandwidth_Bps and link.latency_ns is not None:
            yield a, b, link.latency_ns * 1000, float(link.bandwidth_Bps)


def _measured(layout: Layout, costs: Costs) -> Iterator[_Way]:
    names: dict[str, str] = {}
    for leaf in layout.leaves():
        names |= {leaf.path: leaf.domain, leaf.domain: leaf.domain}
    for system in systems_of(layout):
        names |= {system.path: system.domain, system.domain: system.domain}
    for name, site in costs.sites.items():
        if site.domain is not None:
            names.update((site.domain, leaf.domain) for leaf in layout.leaves() if name in names_of(leaf))
    raise_all(UnknownNameError, [problem for link in costs.links for problem in _unknown(link, names)])
    for link in costs.links:
        yield names[link.src], names[link.dst], round(link.latency * 10**6), link.bandwidth


def _unknown(link: LinkCost, names: dict[str, str]) -> Iterator[str]:
    known = [name for name in names if name]
    for end in (link.src, link.dst):
        if end not in names:
            yield f"a link of the costs ends at {end!r}, which is no site or memory{did_you_mean(end, known)}"
