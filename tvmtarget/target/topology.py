"""Where everything in a resolved tree is: the sites, who drives them, and which memory each of them sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvmtarget.errors import TargetError
from tvmtarget.target.memory_domains import memory_domains
from tvmtarget.target.target_node import hosts_by_path
from tvmtarget.target.tree import Target
from tvmtarget.target.tree_paths import join, same_replica
from tvmtarget.untrusted import check_limit

__all__ = ["Site", "Topology", "is_below"]


@dataclass(frozen=True, slots=True)
class Site:
    """One place where functions run.

    `path` names it in the tree (`node0/gpu.1`); `host` is the path of the site that drives it; `domain` names
    the memory its tensors are in, for a system that of its host: two sites of one domain need no copy.
    """

    path: str
    target: Target
    host: str
    domain: str

    @property
    def is_system(self) -> bool:
        """Whether this is a system of other sites, to be decomposed further."""
        return self.target.is_composite


class Topology:
    """The sites of a resolved tree by path, computed once; `memory_domains.py` says which of them share a memory."""

    def __init__(self, root: Target) -> None:
        self.root = root
        self._host_choices = hosts_by_path(root)
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
        return self._sites[path].domain

    def domains(self) -> frozenset[str]:
        """Return the names of all memory domains."""
        return frozenset(site.domain for site in self._sites.values())

    def canonical(self, path: str) -> str:
        """Return the path of a node as this topology spells it; `UnknownNameError` with the nearest ones."""
        return self.root.locate(path)[0]

    def named(self, name: str) -> tuple[str, ...]:
        """Return the paths of the nodes that a tree gives a name, or of one replica; of several levels the first.

        A child without a name of its own is not called by its kind.
        """
        found = [
            join(path.rpartition("/")[0], name)
            for path, node in self.root.walk()
            if path and node.name is not None and (name == node.name or node.has_replica(name))
        ]
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
        host = join(path, "host")
        if self._hosts[path] == host and host not in children:
            self._targets[host] = node.host if isinstance(node.host, Target) else Target("llvm")
            self._hosts[host], self._options[host] = host, ()
            self._options[path] += () if choice.is_implied else (host,)


def _sites(node: Target) -> int:
    """Return how many sites a node and those below it stand for."""
    return 1 + sum(child.count * _sites(child) for child in node.targets)


def is_below(path: str, ancestor: str) -> bool:
    """Whether a site is another one, one of its replicas, or below it; by their paths."""
    return ancestor in ("", path) or path.startswith((f"{ancestor}/", f"{ancestor}."))
