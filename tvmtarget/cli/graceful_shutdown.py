"""Let a command end cleanly on Ctrl-C, and a long one also on `kill` or a closed terminal."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["StopRequested", "graceful_shutdown", "persistent_interrupt"]

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
# Seconds in which a second signal counts as the first: terminals and process groups often deliver Ctrl-C twice.
_SAME_REQUEST = 1.0
# Seconds after which code that goes on after Ctrl-C is interrupted again.
_REPEAT = 1.0


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


@contextmanager
def persistent_interrupt() -> Iterator[None]:
    """Interrupt the block at Ctrl-C, and again while code goes on that swallowed the exception.

    Compiled libraries lose an exception that a callback raises, and the initialization of an extension module turns it
    into an `ImportError`. Once Ctrl-C was pressed, the block ends by a `KeyboardInterrupt` in any case.

    Yields:
        Nothing; the handler is installed while the block runs, unless Ctrl-C has another one already.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    main = threading.main_thread()
    if threading.current_thread() is not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    is_over = threading.Event()
    repeats: list[threading.Thread] = []
    is_repeated = False

    def repeat() -> None:
        nonlocal is_repeated
        while not is_over.wait(_REPEAT):
            is_repeated = True
            # To the main thread, where it also ends a system call that waits.
            signal.pthread_kill(main.ident or 0, signal.SIGINT)

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_repeated
        is_ending = is_over.is_set() or (is_repeated and _is_interrupt(sys.exception()))
        is_repeated = False
        if is_ending:  # what handles the exception, such as a `finally`, may take its time
            return
        if not repeats:
            repeats.append(threading.Thread(target=repeat, name="interrupt", daemon=True))
            repeats[0].start()
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    except BaseException as error:
        if repeats and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
    else:
        if repeats:
            raise KeyboardInterrupt
    finally:
        is_over.set()
        for thread in repeats:
            thread.join()
        if signal.getsignal(signal.SIGINT) is stop:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether an exception is a `KeyboardInterrupt`, or was raised while one was handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
