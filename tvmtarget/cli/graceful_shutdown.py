"""How a command that takes long ends when it is told to: by Ctrl-C, by `kill`, or as its terminal is closed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["StopRequested", "graceful_shutdown"]

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_TWICE = 1.0  # seconds in which a second signal means the same as the first: a key that was pressed twice


class StopRequested(KeyboardInterrupt):
    """This process was told to end, by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def graceful_shutdown() -> Iterator[None]:
    """Raise `StopRequested` at the first signal to end; one after the second in which ending should be done ends at
    once.

    Signals that are ignored stay so: `nohup` is how people say that a closed terminal is no reason to end. Once that is
    told, which is the last thing that a command does, no signal changes its exit code any more.
    """
    first: float | None = None

    def tell(number: int, _frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if first is None:
            first = now
            raise StopRequested(number)
        if now - first > _TWICE:
            os._exit(128 + number)  # whatever measures ends once this process is gone

    heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, tell) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if first is None else signal.SIG_IGN)
