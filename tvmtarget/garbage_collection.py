"""Suspend the search for reference cycles while many objects are made that stay."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_garbage_collection"]

# New objects above which a collection of them takes so long that they count as old at once.
MANY = 100_000

_lock = threading.Lock()
_entered: list[bool] = []  # for each block that is entered, in any thread, whether collection was enabled before it


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Suspend garbage collection, which visits all objects again and again while many are made.

    Objects that are many once the block ends are left to the next full collection, which visits all objects.

    Yields:
        Nothing; once no thread is in such a block, collection is as it was before the first one. Objects that are in no
        cycle are freed as always.
    """
    is_finished = False
    with _lock:
        _entered.append(gc.isenabled())
        gc.disable()
    try:
        yield
        is_finished = True
    finally:
        with _lock:
            was_enabled = _entered.pop()
            if _entered:
                _entered[0] |= was_enabled
            elif was_enabled:
                # An exception keeps frames alive, whose objects are often in cycles.
                if is_finished and gc.get_count()[0] > MANY and not gc.get_freeze_count():
                    # Together these two move all objects to the oldest generation, without visiting them.
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()
