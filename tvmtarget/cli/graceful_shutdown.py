"""Let a long command end cleanly on Ctrl-C, `kill`, or a closed terminal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["StopRequested", "graceful_shutdown"]

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
# Seconds in which a second signal counts as the first: terminals and process groups often deliver Ctrl-C twice.
_SAME_REQUEST = 1.0


# Like KeyboardInterrupt it is no `Exception`, so code that catches all errors of plugins does not swallow it.
class StopRequested(KeyboardInterrupt):
    """A signal requested this process to end; `number` is the number of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def graceful_shutdown() -> Iterator[None]:
    """Raise `StopRequested` at the first signal, and end the process at a later one.

    Signals that are ignored stay ignored: `nohup` ignores SIGHUP so that a command outlives its terminal. Once a
    signal has been handled, all signals are ignored after the block, because a command then only prints its result,
    and no signal may change its exit code.

    Yields:
        Nothing; the handlers are installed while the block runs.
    """
    first: float | None = None

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if first is None:
            first = now
            raise StopRequested(number)
        if now - first > _SAME_REQUEST:
            os._exit(128 + number)  # worker processes end by themselves once this process is gone

    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if first is None else signal.SIG_IGN)
