"""What is kept of one decomposition for the next: results by everything that they follow from.

A result is only found again for what is equal, so that a plan is the same text with a memo and without. A memo lives in
memory, with the plan that it came with; it holds what that plan asked for, and nothing older.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar, cast

import numpy as np

__all__ = ["NOTHING", "CacheUse", "PlanCache", "digest"]

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How many results were asked for, and how many of them an earlier plan had: by what they are."""

    counts: tuple[tuple[str, int, int], ...] = ()

    def __str__(self) -> str:
        return ", ".join(f"{had} of {asked} {what}" for what, had, asked in self.counts)


# Of a plan that was made without an earlier one.
NOTHING = CacheUse()


class PlanCache:
    """Results by what they follow from, those of an earlier memo included."""

    def __init__(self, older: PlanCache | None = None) -> None:
        self._older = {} if older is None else older._known
        self._known: dict[Hashable, object] = {}
        self._asked: Counter[str] = Counter()
        self._had: Counter[str] = Counter()

    def find(self, what: str, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """Return a result that is known by its key, else make it; results are never changed."""
        key = (what, key)
        if key not in self._known:
            self._asked[what] += 1
            self._had[what] += key in self._older
            self._known[key] = self._older[key] if key in self._older else make()
        return cast("_Result", self._known[key])

    def reused(self) -> CacheUse:
        """Tell what was asked for, each once, and what of that the earlier memo had."""
        return CacheUse(tuple((what, self._had[what], asked) for what, asked in self._asked.items()))


def digest(*parts: object) -> str:
    """Return digits that stand for arrays by their elements, and for all else by its representation."""
    found = blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, np.ndarray):
            found.update(f"{part.dtype}{part.shape}".encode())
            found.update(np.ascontiguousarray(part).data)
        else:
            found.update(repr(sorted(part) if isinstance(part, frozenset) else part).encode())
        found.update(b";")
    return found.hexdigest()
