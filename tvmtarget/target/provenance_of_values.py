"""What a tree states, by path, and where it comes from."""

from __future__ import annotations

from tvmtarget.errors import UnknownNameError, did_you_mean
from tvmtarget.target.attributes import fold
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.provenance import Origin
from tvmtarget.target.text.printing import RESERVED
from tvmtarget.target.tree_paths import NestedNode, checked_path

__all__ = ["origin_at"]


def origin_at(root: NestedNode, path: str) -> Origin:
    """Return where a node, an attribute, a field, or an attribute of an executor or runtime comes from."""
    if not checked_path(path) or _names_node(root, path):
        return root.at(path).origin_of("kind")
    above, _, name = path.rpartition("/")
    around, _, role = above.rpartition("/")
    if role in ("executor", "runtime"):
        return _origin_of_option(root.at(around), role, name)
    return _origin_of_value(root.at(above), name)


def _names_node(root: NestedNode, path: str) -> bool:
    try:
        root.locate(path)
    except UnknownNameError:
        return False
    return True


def _origin_of_value(node: NestedNode, name: str) -> Origin:
    """Return where an attribute or a field of a node comes from."""
    kind = find_kind(node.kind)
    row = kind.attribute(name) if kind is not None else None
    if kind is not None and row is None and name not in RESERVED:
        raise UnknownNameError(kind.unknown(name))
    stated = row.name if row is not None else name
    if stated in node.attrs or getattr(node, name, None) not in (None, (), 1):
        return node.origin_of(stated)
    if row is not None and row.default_beside(node.attrs) is not None:
        return Origin("default", f"of kind {node.kind!r}")
    raise UnknownNameError(f"{name!r} is not stated{did_you_mean(name, node.attrs, listing='stated are')}")


def _origin_of_option(node: NestedNode, role: str, name: str) -> Origin:
    """Return where an attribute of a node's executor or runtime comes from."""
    chosen = node.executor if role == "executor" else node.runtime
    if chosen is None:
        raise UnknownNameError(f"{role!r} is not stated")
    if chosen.attrs.get(name) is not None:
        return node.origin_of(f"{role}/{fold(name)}")
    if chosen[name] is None:
        raise UnknownNameError(f"{role}/{name} is not stated{did_you_mean(name, chosen.attrs, listing='stated are')}")
    return Origin("default", f"of {role} {chosen.kind!r}")
