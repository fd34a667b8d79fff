"""Suspend the search for reference cycles while many objects are made that stay."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_garbage_collection"]

_lock = threading.Lock()
_entered: list[bool] = []  # for each block that is entered, in any thread, whether collection was enabled before it


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Suspend garbage collection, which visits all objects again and again while many are made.

    Yields:
        Nothing; once no thread is in such a block, collection is as it was before the first one. Objects that are in no
        cycle are freed as always.
    """
    with _lock:
        _entered.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            was_enabled = _entered.pop()
            if _entered:
                _entered[0] |= was_enabled
            elif was_enabled:
                gc.enable()
