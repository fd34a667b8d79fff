"""Unique names: the requested name if it is free, else one with a number."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Names"]


class Names:
    """A set of taken names that generates fresh ones.

    Each base continues from its last number, so that n clashes take O(n) time.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._last: dict[str, int] = {}

    def add(self, name: str) -> None:
        """Mark a name as taken.

        Args:
            name: the name.
        """
        self._taken.add(name)

    def __contains__(self, name: object) -> bool:
        return name in self._taken

    def fresh(self, base: str) -> str:
        """Take a free name.

        Args:
            base: requested name.

        Returns:
            `base`, or the first free one of `base_1`, `base_2`, ...
        """
        name = base
        while name in self._taken:
            self._last[base] = self._last.get(base, 0) + 1
            name = f"{base}_{self._last[base]}"
        self._taken.add(name)
        return name
