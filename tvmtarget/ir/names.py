"""Fresh names: the one that is wanted if it is free, else that with a number."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Names"]


class Names:
    """A set of taken names; each base counts on from its last number, so that many clashes stay cheap."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._last: dict[str, int] = {}

    def add(self, name: str) -> None:
        """Take a name that is given."""
        self._taken.add(name)

    def __contains__(self, name: object) -> bool:
        return name in self._taken

    def fresh(self, base: str) -> str:
        """Return `base`, or `base_1`, `base_2`, ..., and take it."""
        name = base
        while name in self._taken:
            self._last[base] = self._last.get(base, 0) + 1
            name = f"{base}_{self._last[base]}"
        self._taken.add(name)
        return name
