"""Work in a process of its own, which is ended when it takes too much processor time or memory.

What a process holds is read from `/proc`; where there is none, memory is the most that the process ever held, and not
bounded.
"""

from __future__ import annotations

import multiprocessing
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

__all__ = ["Caps", "Ended", "allow", "apart", "held", "peak", "restart_peak"]

POLL = 0.2  # seconds between looks at what a process holds


@dataclass(frozen=True)
class Caps:
    """Seconds of processor time for each stage of some work, and gigabytes for all of it."""

    seconds: int
    gigabytes: float


@dataclass(frozen=True)
class Ended:
    """Why work brought no result; `is_capped` says that it took too much, as it would if there were more to do."""

    reason: str
    is_capped: bool = False


def apart(work: Callable[..., Any], *arguments: Any, caps: Caps) -> Any:
    """Return what a function returns in a process of its own, or an `Ended`."""
    context = multiprocessing.get_context("spawn")
    ours_end, theirs_end = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(work, arguments, caps, theirs_end))
    process.start()
    theirs_end.close()
    try:
        while not ours_end.poll(POLL):
            if held(process.pid) > 1000 * caps.gigabytes:
                return Ended(f"> {caps.gigabytes:g} GB", is_capped=True)
        return ours_end.recv()
    except EOFError:
        process.join()
        if process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
            return Ended(f"> {caps.seconds} s", is_capped=True)
        return Ended(f"failed: its process ended ({process.exitcode})")
    finally:
        process.kill()
        process.join()


def _answer(work: Callable[..., Any], arguments: tuple[Any, ...], caps: Caps, end: Connection) -> None:
    allow(caps.seconds)
    try:
        end.send(work(*arguments))
    except ImportError as error:
        end.send(Ended(f"not installed ({error.name})"))
    except Exception as error:
        end.send(Ended(f"failed: {str(error).splitlines()[0][:60] if str(error) else type(error).__name__}"))


def allow(seconds: int) -> None:
    """Let this process take so many seconds of processor time from now on."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + seconds + 1, hard))


def held(pid: int | None = None) -> float:
    """Return the megabytes that a process holds, by default this one; 0 if that is not known."""
    return _status(pid, "VmRSS:") or 0.0


def peak() -> float:
    """Return the most megabytes that this process held, since `restart_peak` if that is possible."""
    return _status(None, "VmHWM:") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def restart_peak() -> None:
    """Let the peak of memory begin at what this process holds now."""
    switch = Path("/proc/self/clear_refs")
    if switch.exists():
        switch.write_text("5")


def _status(pid: int | None, field: str) -> float | None:
    try:
        lines = Path(f"/proc/{'self' if pid is None else pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(field)), None)
