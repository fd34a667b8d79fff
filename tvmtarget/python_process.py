"""How this library starts Python: without modules of the current folder, which may be anybody's.

Processes that it starts end with the one that started them, however that ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import weakref

__all__ = [
    "end_with_parent",
    "is_stopped",
    "keep_in_forks",
    "python_command",
    "python_environment",
    "without_current_folder",
]

_LOOK = 0.5  # seconds between looks at the parent


def python_command(*arguments: str) -> list[str]:
    """Return the command that runs this Python; `-m` finds no module in the current folder.

    Without `-P`, `-m` and `-c` put the current folder before everything else on the path.
    """
    return [sys.executable, "-P", *arguments]


def python_environment(**changes: str) -> dict[str, str]:
    """Return the environment for a process of Python, in which further ones keep the current folder out, too."""
    return os.environ | {"PYTHONSAFEPATH": "1"} | changes


def without_current_folder() -> list[str]:
    """Return the path of this process without the entry that stands for the folder it happens to be in."""
    return [folder for folder in sys.path if folder]


def end_with_parent() -> None:
    """End this process, which leads a group, and all of its group once its parent is gone.

    Linux could send a signal instead (PR_SET_PDEATHSIG), but does so as soon as the thread that started it ends.
    """
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def is_stopped(pid: int) -> bool:
    """Whether a child of this process is stopped by a signal (SIGSTOP); False where the system cannot say."""
    if not hasattr(os, "waitid"):
        return False
    try:
        found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # it has ended
        return False
    return found is not None and found.si_code == os.CLD_STOPPED


def keep_in_forks(value: object) -> None:
    """Have forks of this process never free a value that owns threads.

    A fork has one thread. What frees a pool of threads waits for them to end, for ever in a fork.
    """
    _WITH_THREADS.add(value)


_WITH_THREADS: weakref.WeakSet[object] = weakref.WeakSet()


def _keep_all() -> None:
    for value in list(_WITH_THREADS):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))  # so that it is not freed at the end either


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_all)
