"""What the machines of a target are.

Two children of the root are in one machine if they share a memory, or if one drives anything in the other; so is the
host of the root. A GPU is in the machine of the CPU that drives it, and sockets of one board share its memory; nodes
that drive themselves and are joined by links that are not coherent are machines. Under a distributed runtime, leaves
share no memory because they are alike, so that `[n0=llvm,n1=llvm](runtime=processes)` is two machines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tvmtarget.target.kinds import find_kind
from tvmtarget.target.topology import Site, Topology
from tvmtarget.target.tree import Target

__all__ = ["Machine", "Machines", "is_distributed", "undistributable"]


@dataclass(frozen=True, slots=True)
class Machine:
    """Children of the root that share memories and drivers; `path` is that of the first one that drives itself.

    `sites` are those that work may be given to: none for an implied host, which only drives.
    """

    path: str
    sites: tuple[str, ...]


class Machines:
    """The machines of a topology, in the order of their first sites, and to which of them a site or memory belongs."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._is_system = topology[""].is_system
        options = [site.path for site in topology.options("")] if self._is_system else [""]
        tops = list(dict.fromkeys([*options, self._top(topology[""].host)]))
        self._leader = {top: top for top in tops}
        self._place = {top: place for place, top in enumerate(tops)}
        seen: dict[str, str] = {}
        for top in tops:
            for site in self._inside(top):
                self._unite(top, seen.setdefault(site.domain, top))
                self._unite(top, self._top(site.host))
        members: dict[str, list[str]] = {}
        for top in tops:
            members.setdefault(self._find(top), []).append(top)
        self._machines = {leader: self._machine(found, options) for leader, found in members.items()}
        self._domains = {domain: self._machines[self._find(top)].path for domain, top in seen.items()}

    def __iter__(self) -> Iterator[Machine]:
        yield from self._machines.values()

    def __len__(self) -> int:
        return len(self._machines)

    @property
    def home(self) -> str:
        """The machine of the root's host, where a program's inputs and results are."""
        return self.of_domain(self.topology.home(""))

    @property
    def working(self) -> tuple[Machine, ...]:
        """The machines that work may be given to."""
        return tuple(machine for machine in self if machine.sites)

    def of_site(self, path: str) -> str:
        """Return the machine of a site below the root."""
        return self._machines[self._find(self._top(path))].path

    def of_domain(self, domain: str) -> str:
        """Return the machine that a memory is in."""
        return self._domains[domain]

    def _machine(self, tops: list[str], options: list[str]) -> Machine:
        sites = tuple(top for top in tops if top in options)
        driving = (top for top in sites if self._top(self.topology[top].host) == top)
        return Machine(next(driving, (*sites, *tops)[0]), sites)

    def _inside(self, top: str) -> Iterator[Site]:
        site = self.topology[top]
        yield site
        for leaf in self.topology.leaves(top) if site.is_system else ():
            yield leaf
            yield self.topology[leaf.host]

    def _top(self, path: str) -> str:
        return path.partition("/")[0] if self._is_system else ""

    def _find(self, top: str) -> str:
        while self._leader[top] != top:
            self._leader[top] = top = self._leader[self._leader[top]]
        return top

    def _unite(self, one: str, other: str) -> None:
        first, last = sorted((self._find(one), self._find(other)), key=self._place.__getitem__)
        self._leader[last] = first


def is_distributed(root: Target) -> bool:
    """Whether the runtime of a resolved target runs each machine in a process of its own."""
    kind = None if root.runtime is None else find_kind(root.runtime.kind, "runtime")
    return kind is not None and kind.is_distributed


def undistributable(topology: Topology, used: Collection[str]) -> Iterator[str]:
    """Yield why distributed runtimes of a tree cannot be what they say: below the root, or with one machine only.

    `used` are the paths of the nodes that have work, without the numbers of replicas; others are not looked at.
    """
    for path, node in topology.root.walk():
        if path and path in used and is_distributed(node) and node.runtime is not None:
            kind = node.runtime.kind
            yield f"runtime {kind!r} of @{path} runs machines, which are children of the root; state it there"
    options = topology.options("") if topology[""].is_system else ()
    runtime = topology.root.runtime
    if runtime is not None and is_distributed(topology.root) and len(options) > 1 and len(Machines(topology)) == 1:
        names = ", ".join(f"@{option.path}" for option in options)
        yield (
            f"runtime {runtime.kind!r} runs machines, but {names} are one, as they share a memory or a driver; "
            "give each machine a host of its own: n0=[...](host=@...)"
        )
