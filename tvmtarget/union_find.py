"""Disjoint sets: which items are connected, directly or over others (union-find)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

__all__ = ["UnionFind"]

_Item = TypeVar("_Item", bound=Hashable)


class UnionFind(Generic[_Item]):
    """Disjoint sets of items, each represented by its first item in the order given.

    Args:
        items: all items, each of which is a set of its own at first.

    >>> sets = UnionFind("abcd")
    >>> sets.union("d", "b")
    >>> sets.find("d"), sets.groups()
    ('b', [('a',), ('b', 'd'), ('c',)])
    """

    def __init__(self, items: Iterable[_Item]) -> None:
        self._parent = {item: item for item in items}
        self._order = {item: number for number, item in enumerate(self._parent)}

    def __contains__(self, item: object) -> bool:
        return item in self._parent

    def find(self, item: _Item) -> _Item:
        """Return the representative of the set of an item.

        Args:
            item: one of the items.

        Returns:
            The first item of the set.
        """
        parent = self._parent
        while parent[item] != item:
            # Path halving (Tarjan and van Leeuwen, 1984) keeps chains short.
            parent[item] = item = parent[parent[item]]
        return item

    def union(self, a: _Item, b: _Item) -> None:
        """Merge the sets of two items.

        Args:
            a: one of the items.
            b: another one.
        """
        # The earlier representative wins, not the larger set: results do not depend on the order of unions.
        a, b = self.find(a), self.find(b)
        if self._order[a] > self._order[b]:
            a, b = b, a
        self._parent[b] = a

    def groups(self) -> list[tuple[_Item, ...]]:
        """Return the sets.

        Returns:
            Sets by their representatives, and the items of each, in the order given.
        """
        members: dict[_Item, list[_Item]] = {}
        for item in self._parent:
            members.setdefault(self.find(item), []).append(item)
        return [tuple(group) for group in members.values()]
