"""Paths through a target tree: names of children joined by '/', with replica numbers as in `node.1/gpu.0`."""

from __future__ import annotations

import re

from tvmtarget.errors import TargetError
from tvmtarget.target.problems import shown

__all__ = ["checked_path", "covers", "is_numbered", "is_reference", "join", "same_replica", "unnumbered"]

# The number of a replica ends a name, so no name of a node may end so itself.
_REPLICA_NUMBER = re.compile(r"\.[0-9]+(?=/|$)")


def join(*segments: str) -> str:
    """Join paths with '/'; empty ones, such as the root's, are left out.

    Args:
        segments: names or paths.

    Returns:
        The joined path.
    """
    return "/".join(filter(None, segments))


def is_reference(host: object) -> bool:
    """Whether a host is written as `@path`, a reference to a node of the tree.

    Args:
        host: the value of a field `host`.

    Returns:
        True for a reference.
    """
    return isinstance(host, str) and host.startswith("@")


def covers(path: str, site: str) -> bool:
    """Whether a site is the node at a path, one of its replicas, or below it.

    Args:
        path: a path, with or without replica numbers: `gpu` covers its replicas `gpu.0`, `gpu.1`, ...
        site: the path of a site.

    Returns:
        True if every name of `path` is that of `site` at the same level, or that without its replica number.

    >>> covers("rack", "rack/node.1/gpu"), covers("rack/node", "rack/node.1/gpu"), covers("rack/node.0", "rack")
    (True, True, False)
    """
    if not path or site == path or site.startswith(f"{path}/"):
        return True
    required, actual = path.split("/"), site.split("/") if site else []
    return len(required) <= len(actual) and all(map(_is_or_has, required, actual))


def _is_or_has(slot: str, replica: str) -> bool:
    return slot in (replica, unnumbered(replica))


def checked_path(path: object) -> str:
    """Return a path given by a user.

    Args:
        path: the argument.

    Returns:
        The same text.

    Raises:
        TargetError: it is no text.
    """
    if not isinstance(path, str):
        raise TargetError(f"a path is names with '/' between them, not {shown(path)}")
    return path


def unnumbered(path: str) -> str:
    """Remove the replica numbers from a path.

    Args:
        path: the path of a site.

    Returns:
        The path of the node that the site is a replica of.

    >>> unnumbered("node.1/gpu.0")
    'node/gpu'
    """
    return _REPLICA_NUMBER.sub("", path) if "." in path else path


def same_replica(path: str, site: str) -> str:
    """Copy replica numbers from a site into another path, as far as both share nodes.

    Args:
        path: a path without those numbers.
        site: the path of a site.

    Returns:
        `path` with the numbers.

    >>> same_replica("node/cpu", "node.1/gpu.0")
    'node.1/cpu'
    """
    here, there = site.split("/"), path.split("/")
    for at, (segment, mine) in enumerate(zip(there, here, strict=False)):
        if not _is_or_has(segment, mine):
            break
        there[at] = mine
    return "/".join(there)


def is_numbered(name: str) -> bool:
    """Whether a name ends like that of a replica: in a dot and a number.

    Args:
        name: the name of a node.

    Returns:
        True for names such as `gpu.0`.
    """
    return "." in name and _REPLICA_NUMBER.search(name) is not None
