"""Topology of a resolved target: its sites, their hosts, and the memory domain of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tvmtarget.errors import TargetError
from tvmtarget.target.memory_domains import memory_domains
from tvmtarget.target.node import Memory
from tvmtarget.target.target_node import hosts_by_path
from tvmtarget.target.tree import Target
from tvmtarget.target.tree_paths import join, same_replica
from tvmtarget.untrusted import check_limit

__all__ = ["Site", "Topology"]


@dataclass(frozen=True, slots=True)
class Site:
    """A node of a resolved tree on which functions run.

    `path` is its path with replica numbers (`node0/gpu.1`), `host` the path of the site that drives it, and `domain`
    the name of the memory that holds its tensors (of a composite, that of its host). Sites of one domain need no
    copies. `is_system` says whether it is a composite, whose functions are partitioned further.
    """

    path: str
    target: Target
    host: str
    domain: str
    is_system: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_system", self.target.is_composite)


class Topology:
    """The sites of a resolved tree by path; `memory_domains.py` finds out which of them share a memory."""

    def __init__(self, root: Target) -> None:
        self.root = root
        self._host_choices = hosts_by_path(root)
        # Counts multiply over the levels, so that a short text can mean billions of sites.
        check_limit("target-sites", _sites(root), "the target", TargetError)
        self._targets: dict[str, Target] = {}
        self._hosts: dict[str, str] = {}
        self._options: dict[str, tuple[str, ...]] = {}
        self._add("", "", root)
        names = memory_domains(self._targets, self._hosts)
        self._sites = {path: Site(path, node, self._hosts[path], names[path]) for path, node in self._targets.items()}

    def __getitem__(self, path: str) -> Site:
        return self._sites[path]

    def __contains__(self, path: object) -> bool:
        return path in self._sites

    def options(self, path: str) -> tuple[Site, ...]:
        """Return the sites on which work of a composite can be placed.

        Args:
            path: path of the composite.

        Returns:
            Its children in order of preference, then its host if that is written.
        """
        return tuple(self._sites[option] for option in self._options[path])

    def leaves(self, path: str = "") -> Iterator[Site]:
        """Yield the leaf sites at and below a path on which work can be placed.

        Args:
            path: path of a site.

        Yields:
            Sites in order of preference.
        """
        site = self._sites[path]
        if not site.is_system:
            yield site
            return
        for option in self.options(path):
            yield from self.leaves(option.path)

    def home(self, path: str) -> str:
        """Return the memory domain of the inputs and outputs of a site.

        Args:
            path: path of the site.

        Returns:
            The name of the domain; of a composite, that of its host.
        """
        return self._sites[path].domain

    def domains(self) -> frozenset[str]:
        """Return the names of all memory domains."""
        return self._domains

    @cached_property
    def _domains(self) -> frozenset[str]:
        return frozenset(site.domain for site in self._sites.values())

    @cached_property
    def memories(self) -> Mapping[str, Memory]:
        """The memories that the target states, by memory domain."""
        return {
            f"{path}/{memory.name}" if path else memory.name: memory
            for path, node in self.root.walk()
            for memory in node.memory
        }

    def canonical(self, path: str) -> str:
        """Return the canonical path of a node.

        Args:
            path: a path as `Target.at` reads it.

        Returns:
            The path with the names of children and replica numbers.

        Raises:
            UnknownNameError: there is no such node; the message has the nearest paths.
        """
        return self.root.locate(path)[0]

    def named(self, name: str) -> tuple[str, ...]:
        """Find the nodes that have a name of their own, at the highest level at which there are any.

        Args:
            name: a name, or that of a replica; the kind of a child without a name is none.

        Returns:
            Their paths.
        """
        found = [
            join(path.rpartition("/")[0], name)
            for path, node in self.root.walk()
            if path and node.name is not None and (name == node.name or node.has_replica(name))
        ]
        # A name at a higher level hides equal names below it.
        least = min((path.count("/") for path in found), default=0)
        return tuple(path for path in found if path.count("/") == least)

    def _add(self, path: str, slots: str, node: Target) -> None:
        """Add a node, its children, and its host if that is no child; `slots` is the path without replica numbers."""
        choice = self._host_choices[slots]
        self._targets[path] = node
        self._hosts[path] = same_replica(choice.effective, path)
        children = [join(path, replica) for child in node.targets for replica in child.replicas]
        self._options[path] = tuple(children)
        for child in node.targets:
            for replica in child.replicas:
                self._add(join(path, replica), join(slots, child.slot), child)
        # A host that is written or implied here is a site too; one that is a child was added above.
        host = join(path, "host")
        if self._hosts[path] == host and host not in children:
            self._targets[host] = node.host if isinstance(node.host, Target) else Target("llvm")
            self._hosts[host], self._options[host] = host, ()
            self._options[path] += () if choice.is_implied else (host,)


def _sites(node: Target) -> int:
    """Return the number of sites of a node and of the nodes below it."""
    return 1 + sum(child.count * _sites(child) for child in node.targets)
