"""In-memory cache of the intermediate results of a decomposition, for planning an edited program again.

Results are found by a key that holds everything they depend on, so a plan is the same text with a cache and without.
A plan keeps the cache that it was made with; that cache holds the results which this plan needed, and no older ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar, cast

import numpy as np

__all__ = ["NOTHING", "CacheUse", "PlanCache", "digest"]

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Cache statistics of one plan: (kind of result, results reused, results needed) for every kind."""

    counts: tuple[tuple[str, int, int], ...] = ()

    def __str__(self) -> str:
        return ", ".join(f"{reused} of {needed} {kind}" for kind, reused, needed in self.counts)


# The statistics of a plan that was made without an earlier one.
NOTHING = CacheUse()


class PlanCache:
    """Results by kind and key, including those of the cache of an earlier plan.

    Args:
        older: the cache of an earlier plan; only its own results are reused, not those of its predecessors, so that
            a chain of edits does not keep every version in memory.
    """

    def __init__(self, older: PlanCache | None = None) -> None:
        self._older = {} if older is None else older._known
        # What the earlier plan, then this one, was prepared from (`preparation.prepare`).
        self.prepared: object = None if older is None else older.prepared
        # The first partition by kind of chooser, of this plan and the earlier one (`known_partition.py`).
        self.partitions: dict[str, object] = {}
        self.earlier_partitions: Mapping[str, object] = {} if older is None else older.partitions
        # The latest plan that was verified (`verify.py`).
        self.proven: object = None if older is None else older.proven
        # The latest flat partition that was outlined (`outline/outlining.py`).
        self.outlined: object = None if older is None else older.outlined
        self._known: dict[tuple[str, Hashable], object] = {}
        self._needed: Counter[str] = Counter()
        self._reused: Counter[str] = Counter()

    def find(self, kind: str, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """Return a cached result, or compute and store it.

        Args:
            kind: what the result is, in the plural, as `CacheUse` prints it.
            key: everything that the result depends on.
            make: computes the result.

        Returns:
            The result; callers must not change it.
        """
        found = self.recall(kind, key)
        if found is None:
            found = make()
            self.store(kind, key, found)
        return cast("_Result", found)

    def recall(self, kind: str, key: Hashable) -> object | None:
        """Return a cached result.

        Args:
            kind: as in `find`.
            key: as in `find`.

        Returns:
            The result; None if there is none yet, which `store` is to be called with then.
        """
        full_key = (kind, key)
        found = self._known.get(full_key)
        if found is None:
            found = self._older.get(full_key)
            if found is not None:
                self._needed[kind] += 1
                self._reused[kind] += 1
                self._known[full_key] = found
        return found

    def store(self, kind: str, key: Hashable, result: object) -> None:
        """Keep a result that `recall` did not find.

        Args:
            kind: as in `find`.
            key: as in `find`.
            result: the result, which is not None.
        """
        self._needed[kind] += 1
        self._known[kind, key] = result

    def keep(self, *kinds: str) -> None:
        """Keep results of the earlier plan that led to what is reused of it as a whole.

        Args:
            *kinds: as in `find`.
        """
        self._known |= {key: found for key, found in self._older.items() if key[0] in kinds}

    def count(self, kind: str, reused: int, needed: int) -> None:
        """Count results of an earlier plan that are not found by keys.

        Args:
            kind: as in `find`.
            reused: how many of them were reused.
            needed: how many were needed.
        """
        self._needed[kind] += needed
        self._reused[kind] += reused

    def reused(self) -> CacheUse:
        """Count the results that were needed so far, and how many the earlier plan already had.

        Returns:
            The counts by kind; a result that is needed several times counts once.
        """
        return CacheUse(tuple((kind, self._reused[kind], needed) for kind, needed in self._needed.items()))


def digest(*parts: object) -> str:
    """Hash the parts of a cache key.

    Arrays count by type, shape and elements, frozen sets by their sorted elements, all else by `repr`.

    Args:
        *parts: the parts of a cache key, in order.

    Returns:
        32 hexadecimal digits (BLAKE2b).
    """
    state = blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, np.ndarray):
            # `dtype.str` is an attribute, while `str` of a dtype takes microseconds.
            state.update(f"{part.dtype.str}{part.shape}".encode())
            state.update(np.ascontiguousarray(part).data)
        else:
            state.update(repr(sorted(part) if isinstance(part, frozenset) else part).encode())
        state.update(b";")
    return state.hexdigest()
