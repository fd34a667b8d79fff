"""The protocol of a measuring process: it answers requests, lines of JSON, from its standard input until that ends.

Crashes and endless loops of a candidate are handled by `process.Process`, which can kill this process with everything
that it started. Timing holds a lock of the device, so that measurements of several processes take turns.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from tvmtarget import plugins
from tvmtarget.autotune.search.device import LockError, half_of_memory, holding
from tvmtarget.errors import first_line
from tvmtarget.python_process import end_with_parent

__all__ = ["Server", "failed", "is_out_of_memory", "is_serving", "serve"]

# Seconds beyond a limit after which this process ends itself: its parent may be gone, and a candidate may hang.
_GRACE = 5

_MOST_LETTERS = 300  # of the reason of a failure

# Messages of native code that ran out of memory.
# Of C++, of engines, of the system, and of protobuf, whose last one may be of messages that are nested too deep.
_OUT_OF_MEMORY = (
    *("bad_alloc", "out of memory", "Cannot allocate memory"),
    *("Arena alloc failed", "Failed to serialize proto"),
)

_SERVERS: list[Server] = []  # of this process, one or none


class Server:
    """Answers requests `{"do": NAME, ...}` by its method `_NAME`.

    Args:
        answers: where to write answers.
        lock: the file that is locked for a device.
    """

    def __init__(self, answers: TextIO, lock: Path) -> None:
        self._answers = answers
        self._lock = lock
        self.limits: Mapping[str, int] = {}

    def answer(self, request: Mapping[str, Any]) -> Mapping[str, object]:
        """Answer a request; the first one, `open`, imports the modules that registered plugins.

        Args:
            request: the request.

        Returns:
            The answer, with a `status`.
        """
        if request["do"] == "open":
            sys.argv[:] = request["argv"]
            sys.path.extend(path for path in request["path"] if path not in sys.path)
            for module in request["modules"]:
                plugins.import_registering(module)
        return dict(getattr(self, f"_{request['do']}")(request))

    def enter(self, phase: str) -> None:
        """Report that a phase begins, and extend the life of this process by its limit.

        Args:
            phase: `build`, `wait` or `run`.
        """
        self.write({"phase": phase})
        signal.alarm(self.limits.get(phase, 0) + _GRACE)

    def write(self, answer: Mapping[str, object]) -> None:
        """Write a line.

        Args:
            answer: an object of JSON.
        """
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    def request(self, question: Mapping[str, object]) -> Any:  # noqa: ANN401 - any JSON
        """Send a question to the process that made the request, and wait for its reply.

        Args:
            question: an object of JSON.

        Returns:
            The reply.
        """
        self.write({"question": question})
        return json.loads(sys.stdin.readline())["reply"]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of the device; the wait for it does not count as time of a candidate.

        Yields:
            Nothing.
        """
        with holding(self._lock, lambda: self.enter("wait")):
            self.enter("run")
            yield


def is_serving() -> bool:
    """Return whether this process is one that measures.

    Returns:
        True after `serve` has begun.
    """
    return bool(_SERVERS)


def failed(status: str, error: Exception) -> dict[str, object]:
    """Return the answer for a candidate that raised an error.

    Args:
        status: the status, unless memory ran out.
        error: the error.

    Returns:
        The status and the reason; `failed` if the candidate is not to blame.
    """
    if isinstance(error, LockError):
        status = "failed"
    status = "over_limit" if is_out_of_memory(error) else status
    return {"status": status, "why": first_line(error)[:_MOST_LETTERS]}


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out.

    Args:
        error: an error of a build or a run, or one that it is the cause of.

    Returns:
        False where that is not certain.
    """
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    return any(isinstance(one, MemoryError) or any(word in str(one) for word in _OUT_OF_MEMORY) for one in causes)


def serve(make: Callable[[TextIO, Path], Server], lock: str, memory: str) -> int:
    """Answer requests until the standard input ends.

    Args:
        make: makes the server of a stream for answers and a lock file.
        lock: the lock file of the device.
        memory: the bytes of memory that the process may allocate; 0 for half of the machine's.

    Returns:
        The exit code.
    """
    # Answers go to a copy of the standard output; what libraries print goes to the error stream.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = int(memory) or half_of_memory()
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    end_with_parent()
    server = make(answers, Path(lock))
    _SERVERS.append(server)
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        server.limits = request["limits"]
        signal.alarm(server.limits["build"] + _GRACE)
        try:
            server.write(server.answer(request))
        except Exception as error:
            server.write({"status": "failed", "why": first_line(error)[:_MOST_LETTERS]})
        signal.alarm(0)
    return 0
