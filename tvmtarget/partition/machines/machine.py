"""Group the children of a target into machines, each of which runs a program of its own.

Two children of the root are in one machine if they share a memory, or if one drives anything in the other; the host of
the root counts as a child. So a GPU is in the machine of the CPU that drives it, and the sockets of one board share its
memory, while nodes that drive themselves and have links without coherence are machines. Under a distributed runtime,
equal leaves do not share a memory by default: `[n0=llvm,n1=llvm](runtime=processes)` is two machines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tvmtarget.target.kinds import find_kind
from tvmtarget.target.topology import Site, Topology
from tvmtarget.target.tree import Target
from tvmtarget.union_find import UnionFind

__all__ = ["Machine", "Machines", "is_distributed", "undistributable"]


@dataclass(frozen=True, slots=True)
class Machine:
    """Children of the root that share memories or drivers.

    Attributes:
        path: path of the first child that drives itself; the identity of the machine.
        sites: paths of the children that operations can be assigned to; none for an implied host, which only drives.
        is_one_child: whether it is a single child, with all that drives it and all of its memory.
    """

    path: str
    sites: tuple[str, ...]
    is_one_child: bool


class Machines:
    """The machines of a topology, in the order of their first sites, found by union-find over the root's children."""

    def __init__(self, topology: Topology) -> None:
        """Find the machines.

        Args:
            topology: sites of a resolved target.
        """
        self.topology = topology
        self._is_system = topology[""].is_system
        options = [site.path for site in topology.options("")] if self._is_system else [""]
        tops = list(dict.fromkeys([*options, self._top(topology[""].host)]))
        self._groups = UnionFind(tops)
        seen: dict[str, str] = {}  # first child with a site in each memory domain
        for top in tops:
            for site in self._inside(top):
                self._groups.union(top, seen.setdefault(site.domain, top))
                self._groups.union(top, self._top(site.host))
        self._machines = {group[0]: self._machine(list(group), options) for group in self._groups.groups()}
        self._domains = {domain: self._machines[self._groups.find(top)].path for domain, top in seen.items()}

    def __iter__(self) -> Iterator[Machine]:
        yield from self._machines.values()

    def __len__(self) -> int:
        return len(self._machines)

    @property
    def home(self) -> str:
        """The machine of the root's host, which has the inputs and results of a program."""
        return self.of_domain(self.topology.home(""))

    @property
    def working(self) -> tuple[Machine, ...]:
        """The machines that operations can be assigned to."""
        return tuple(machine for machine in self if machine.sites)

    def of_site(self, path: str) -> str:
        """Find the machine of a site.

        Args:
            path: path of a site below the root.

        Returns:
            Path of its machine.
        """
        return self._machines[self._groups.find(self._top(path))].path

    def of_domain(self, domain: str) -> str:
        """Find the machine of a memory.

        Args:
            domain: memory domain.

        Returns:
            Path of its machine.
        """
        return self._domains[domain]

    def _machine(self, tops: list[str], options: list[str]) -> Machine:
        sites = tuple(top for top in tops if top in options)
        self_driven = (top for top in sites if self._top(self.topology[top].host) == top)
        return Machine(next(self_driven, (*sites, *tops)[0]), sites, len(tops) == 1)

    def _inside(self, top: str) -> Iterator[Site]:
        site = self.topology[top]
        yield site
        for leaf in self.topology.leaves(top) if site.is_system else ():
            yield leaf
            yield self.topology[leaf.host]

    def _top(self, path: str) -> str:
        return path.partition("/")[0] if self._is_system else ""


def is_distributed(root: Target) -> bool:
    """Return whether the runtime of a target runs each machine in a process of its own.

    Args:
        root: resolved target.

    Returns:
        Whether its runtime is distributed.
    """
    kind = None if root.runtime is None else find_kind(root.runtime.kind, "runtime")
    return kind is not None and kind.is_distributed


def undistributable(topology: Topology, used: Collection[str]) -> Iterator[str]:
    """List the distributed runtimes that cannot work: below the root, or with a single machine.

    Args:
        topology: sites of a resolved target.
        used: paths of the nodes with operations, without numbers of replicas; other nodes are not checked.

    Yields:
        Descriptions of problems.
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
