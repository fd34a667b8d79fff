"""What a process that measures does: it answers requests, lines of JSON, from its standard input until that ends.

What a candidate does to this process (a crash, an endless loop) is seen by `process.Process`, which can kill it with
all that it started. Timing holds a lock of the device, so that measurements of several processes take turns.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import runpy
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from tvmtarget.autotune.search.device import half_of_memory, holding
from tvmtarget.python_process import end_with_parent

__all__ = ["Server", "failed", "first_line", "is_serving", "serve"]

# Seconds beyond a limit after which this process ends itself: whoever asked may be gone, and a candidate hang.
_GRACE = 5


# What errors of native code say where memory ran out.
_OUT_OF_MEMORY = ("bad_alloc", "out of memory", "Cannot allocate memory")


_SERVERS: list[Server] = []  # of this process, one or none


class Server:
    """Answers requests: `{"do": NAME, ...}` by the method `_NAME`."""

    def __init__(self, answers: TextIO, lock: Path) -> None:
        self._answers = answers
        self._lock = lock
        self.limits: Mapping[str, int] = {}

    def answer(self, request: Mapping[str, Any]) -> Mapping[str, object]:
        """Do what is asked for, which begins with importing what has registered plugins."""
        if request["do"] == "open":
            sys.argv[:] = request["argv"]
            sys.path.extend(path for path in request["path"] if path not in sys.path)
            for module in request["modules"]:
                _import(module)
        return dict(getattr(self, f"_{request['do']}")(request))

    def enter(self, phase: str) -> None:
        """Say that another phase begins, and put off the end of this process accordingly."""
        self.tell({"phase": phase})
        signal.alarm(self.limits.get(phase, 0) + _GRACE)

    def tell(self, answer: Mapping[str, object]) -> None:
        """Write a line."""
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    def ask(self, question: Mapping[str, object]) -> Any:  # noqa: ANN401 - whatever JSON says
        """Ask whoever made the request."""
        self.tell({"ask": question})
        return json.loads(sys.stdin.readline())["reply"]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of the device; for how long others hold it says nothing about a candidate."""
        with holding(self._lock, lambda: self.enter("wait")):
            self.enter("run")
            yield


def is_serving() -> bool:
    """Whether this process is one that measures."""
    return bool(_SERVERS)


def _import(module: Mapping[str, str]) -> None:
    """Import a module of the program that asks; its main one as `__mp_main__`, as processes of Python do."""
    if "name" in module:
        importlib.import_module(module["name"])
    elif "main" in module:
        runpy.run_module(module["main"], run_name="__mp_main__", alter_sys=True)
    else:
        runpy.run_path(module["file"], run_name="__mp_main__")


def failed(status: str, error: Exception) -> dict[str, object]:
    """Say what became of a candidate that raised something."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    is_memory = any(isinstance(one, MemoryError) or any(word in str(one) for word in _OUT_OF_MEMORY) for one in causes)
    return {"status": "over_limit" if is_memory else status, "why": first_line(error)}


def first_line(error: Exception) -> str:
    """Return what an error says, in short."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:300]


def serve(make: Callable[[TextIO, Path], Server], lock: str, memory: str) -> int:
    """Answer requests until the standard input ends; what a library prints goes to the error stream."""
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
            server.tell(server.answer(request))
        except Exception as error:
            server.tell({"status": "failed", "why": first_line(error)})
        signal.alarm(0)
    return 0
