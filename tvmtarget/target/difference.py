"""Differences between two target trees, by path; there are none exactly if the trees are equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tvmtarget.target.identity import identity_of
from tvmtarget.target.target_node import TargetNode
from tvmtarget.target.text.printing import write_value
from tvmtarget.target.tree_paths import join

__all__ = ["Difference", "Differences", "differences"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The values of two trees at one path, in flat JSON; None where a tree states nothing."""

    path: str
    left: object
    right: object

    def __str__(self) -> str:
        where = self.path or "the root"
        if self.left is None:
            return f"+ {where}: {_spelled(self.right)}"
        if self.right is None:
            return f"- {where}: {_spelled(self.left)}"
        return f"~ {where}: {_spelled(self.left)} -> {_spelled(self.right)}"

    def to_json(self) -> dict[str, object]:
        """Return the path and the values; one that is not stated is left out."""
        values = {"left": self.left, "right": self.right}
        return {"path": self.path} | {name: value for name, value in values.items() if value is not None}


class Differences(tuple[Difference, ...]):
    """All differences of two trees, in the order of the left one; empty, and so false, if the trees are equal."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def to_json(self) -> list[dict[str, object]]:
        """Return the differences as JSON objects."""
        return [difference.to_json() for difference in self]


def differences(left: TargetNode, right: TargetNode) -> Differences:
    """Compare the identities of two trees; children are matched by name.

    Args:
        left: the first tree.
        right: the second tree.

    Returns:
        The differences, of the order of children too.
    """
    return Differences(_compare("", identity_of(left), identity_of(right)))


def _compare(path: str, left: object, right: object) -> Iterator[Difference]:
    """Compare two values; objects of one kind are compared entry by entry."""
    if left == right:
        return
    if not (isinstance(left, Mapping) and isinstance(right, Mapping) and left["kind"] == right["kind"]):
        yield Difference(path, left, right)
        return
    for key in dict.fromkeys([*left, *right]):
        if key == "targets":
            yield from _compare_children(path, _by_name(left), _by_name(right))
        elif key not in ("kind", "name"):
            yield from _compare(join(path, key), left.get(key), right.get(key))


def _compare_children(path: str, left: dict[str, object], right: dict[str, object]) -> Iterator[Difference]:
    for name in dict.fromkeys([*left, *right]):
        yield from _compare(join(path, name), left.get(name), right.get(name))
    orders = [name for name in left if name in right], [name for name in right if name in left]
    # Order is preference, so that trees that differ in nothing else are not equal.
    if orders[0] != orders[1]:
        yield Difference(join(path, "targets"), *orders)


def _by_name(node: Mapping[str, object]) -> dict[str, object]:
    children = node.get("targets", [])
    assert isinstance(children, list)  # an identity's
    return {child["name"]: child for child in children}


def _spelled(value: object) -> str:
    if isinstance(value, Mapping) and "kind" in value:
        return write_value({key: item for key, item in value.items() if key != "name"})
    return write_value(value)
