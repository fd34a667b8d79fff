"""Replacement of written hosts by references to equal nodes of the tree.

This is the updating half of the pass that TVM's RFC calls CheckAndUpdateHostConsistency; `rules.py` is the checking
half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from tvmtarget.target.edit import with_hosts
from tvmtarget.target.target_node import HostChoice, TargetNode, hosts_by_path
from tvmtarget.target.tree_paths import covers, is_reference, join, unnumbered

__all__ = ["share_equal_hosts"]

_N = TypeVar("_N", bound=TargetNode)


def share_equal_hosts(root: _N, identity: Callable[[TargetNode], str]) -> _N:
    """Replace every written host that equals a node of the tree by a reference to that node.

    A device may share the node that is its host by default, its siblings, and the host written in the node around it. A
    composite may share only its own children, because an equal CPU elsewhere can be another machine. A device that
    equals its own host loses the host, as it drives itself. A host stays as it is if no reference could name the equal
    node from there.

    Args:
        root: a tree whose references may be wrong.
        identity: the text by which two trees are equal (`identity.digest_of`).

    Returns:
        The tree with references in place of equal hosts; the same object if there are none.
    """
    if not root.targets and not root.can_host:
        return root  # a device alone has no other node that could be its host
    written = [*_written(root, "")]
    if not written:
        return root
    sites = dict(_Shared(root, identity).found(written))
    shared = with_hosts(root, {path: _reference(path, site) for path, site in sites.items()})
    # A name between a node and the site can shadow the reference; those hosts are put back.
    now = hosts_by_path(shared)
    shadowed = {path: root.at(path).host for path, site in sites.items() if unnumbered(now[path].effective) != site}
    return with_hosts(shared, shadowed) if shadowed else shared


def _written(node: TargetNode, path: str) -> Iterator[str]:
    """Yield the paths of the nodes in which a host is written."""
    if isinstance(node.host, TargetNode):
        yield path
    for child in node.targets:
        if child.targets or isinstance(child.host, TargetNode):
            yield from _written(child, join(path, child.slot))


class _Shared:
    """Finds the equal nodes of written hosts; the candidates around each node are collected once."""

    def __init__(self, root: TargetNode, identity: Callable[[TargetNode], str]) -> None:
        self._root = root
        self._identity_of = identity
        self._hosts: Mapping[str, HostChoice] = hosts_by_path(root)
        self._sites: dict[str, str] = {}
        self._by_identity: dict[str, dict[str, str]] = {}

    def found(self, written: list[str]) -> Iterator[tuple[str, str]]:
        """Yield the path of each node with an equal host, and the path of the node that equals it; parents first."""
        for path in written:
            host = self._root.at(path).host
            assert isinstance(host, TargetNode)  # the caller looked for these
            site = self._site(path, self._identity_of(host))
            if site is not None:
                self._sites[join(path, "host")] = site
                yield path, site

    def _site(self, path: str, identity: str) -> str | None:
        node = self._root.at(path)
        default = unnumbered(self._hosts[path].default)
        default = self._sites.get(default, default)
        is_outside = node.is_composite and not covers(path, default)
        is_candidate = not (is_outside or is_reference(default) or default == join(path, "host"))
        if is_candidate and self._identity(default) == identity:
            return default
        site = self._hosts_in(path if node.is_composite else path.rpartition("/")[0]).get(identity)
        return None if site in (None, join(path, "host")) else self._sites.get(site, site)

    def _hosts_in(self, path: str) -> dict[str, str]:
        """Return the first host of each identity among the children of a node and the host written there."""
        if path not in self._by_identity:
            node = self._root.at(path)
            sites = [join(path, child.slot) for child in node.targets if child.can_host]
            sites += [join(path, "host")] if isinstance(node.host, TargetNode) else []
            found: dict[str, str] = {}
            for site in sites:
                found.setdefault(self._identity(site), site)
            self._by_identity[path] = found
        return self._by_identity[path]

    def _identity(self, path: str) -> str:
        above, _, name = path.rpartition("/")
        if name == "host" and (around := self._root.at(above)).child("host") is None:
            host = around.host
            return self._identity_of(host) if isinstance(host, TargetNode) else ""
        node = self._root.at(path)
        if not node.can_host:
            return ""
        # The name of a root is not part of its identity.
        is_alone = node.host is None and node.count == 1
        return self._identity_of(node if is_alone else node.with_checked(host=None, count=1))


def _reference(path: str, site: str) -> str | None:
    """Return the reference by which a node names a site; None for the node itself."""
    if path == site:
        return None
    # References are resolved in the innermost node around both, so the names up to that node are left out.
    here, there = path.split("/"), site.split("/")
    common = 0
    while common < min(len(here), len(there) - 1) and here[common] == there[common]:
        common += 1
    return "@" + "/".join(there[common:])
