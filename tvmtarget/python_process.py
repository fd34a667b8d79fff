"""Safe start and end of Python processes.

Processes do not import modules from the current folder, which anyone may have written, and end with the process that
started them, however that ends.
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
    "WITHOUT_DEVICES",
    "end_with_parent",
    "ending_of",
    "fork_problem",
    "is_stopped",
    "never_free_in_forks",
    "path_without_current_folder",
    "python_command",
    "python_environment",
]

# A quarter of the time of importing TVM is what it registers for GPUs and other devices, which few processes need.
# `load_device` (`ir/relax/tvm_library.py`) loads it there.
WITHOUT_DEVICES = {"TVM_DEVICE_BACKEND_AUTOLOAD": "0"} if sys.platform == "linux" else {}

_POLL_SECONDS = 0.5  # between checks of the parent


def python_command(*arguments: str) -> list[str]:
    """Return the command that runs this Python without the current folder on its path.

    Args:
        arguments: arguments of Python. Without `-P`, `-m` and `-c` would put the current folder first on the path.

    Returns:
        The words of the command.
    """
    return [sys.executable, "-P", *arguments]


def python_environment(**changes: str) -> dict[str, str]:
    """Return an environment in which Python leaves the current folder out of its path.

    Processes that the Python process starts inherit it. TVM is imported without what it registers for devices there.

    Args:
        changes: variables to set.

    Returns:
        The variables of this process with the changes.
    """
    return WITHOUT_DEVICES | os.environ | {"PYTHONSAFEPATH": "1"} | changes


def path_without_current_folder() -> list[str]:
    """Return `sys.path` without the empty entry, which means the current folder."""
    return [folder for folder in sys.path if folder]


def end_with_parent() -> None:
    """Kill this process and the others of its group when its parent ends.

    This process must be the leader of the group. Linux could send a signal instead (PR_SET_PDEATHSIG), but does so when
    the thread that started the process ends.
    """
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def ending_of(code: int) -> str:
    """Return how a process ended, as the end of a sentence about it.

    Args:
        code: its return code: the negative number of the signal that ended it, as from `subprocess`, or its exit code.

    Returns:
        The text.

    >>> ending_of(-9), ending_of(-40), ending_of(3)
    ('was ended by SIGKILL', 'was ended by signal 40', 'ended with code 3')
    """
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal, which has no name
        return f"was ended by signal {-code}"


def is_stopped(pid: int) -> bool:
    """Whether a child of this process is stopped by a signal such as SIGSTOP.

    Args:
        pid: process number of the child.

    Returns:
        False also if it has ended, or on systems without `os.waitid`.
    """
    if not hasattr(os, "waitid"):
        return False
    try:
        found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # it has ended, and was waited for
        return False
    return found is not None and found.si_code == os.CLD_STOPPED


def fork_problem(ran: str, process: int) -> str:
    """Return an error message for a fork of a process whose threads a library needs.

    Args:
        ran: what took place in the process, such as `TVM ran`.
        process: the number of the process.

    Returns:
        The message, with the way out.
    """
    return (
        f"{ran} in process {process}, and this is a fork of it, which has none of its threads; start processes by "
        "multiprocessing.get_context('spawn') or 'forkserver', or fork before anything runs"
    )


def never_free_in_forks(value: object) -> None:
    """Keep forks of this process from freeing a value that owns threads.

    A fork has only the thread that forked. Freeing a thread pool waits for its threads to end, which blocks forever
    there.

    Args:
        value: an object that can be weakly referenced.
    """
    _WITH_THREADS.add(value)


_WITH_THREADS: weakref.WeakSet[object] = weakref.WeakSet()


def _keep_all() -> None:
    for value in list(_WITH_THREADS):
        # A reference that is never dropped keeps the value alive at the exit of the interpreter too.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_all)
