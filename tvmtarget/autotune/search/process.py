"""A measuring process as seen by its parent: requests with time limits, and what the loss of the process means."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import IO, Any, ClassVar, Self

from tvmtarget import plugins
from tvmtarget.autotune.log.records import Status
from tvmtarget.autotune.search.device import device_lock
from tvmtarget.errors import ArgumentError, raise_all
from tvmtarget.python_process import path_without_current_folder, python_command, python_environment
from tvmtarget.target.problems import shown
from tvmtarget.target.tree import Target

__all__ = ["USUAL_LIMITS", "Limits", "LostError", "Process"]

# Signals by which a process dies by its own fault; any other came from outside. An exit without a signal, or a closed
# pipe, is its own fault too.
_OWN_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGBUS, signal.SIGABRT, signal.SIGTRAP})


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a measuring process.

    Attributes:
        open: seconds to open a leaf function, or to build a whole program.
        build: seconds to build a candidate.
        run: seconds to run it.
        wait: seconds to wait for the lock of the device.
        memory: bytes that the process may allocate; 0 for half of the memory of the machine.
    """

    open: int = 300
    build: int = 20
    run: int = 20
    wait: int = 600
    memory: int = 0

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        raise_all(
            ArgumentError,
            [
                f"{name} of Limits is a whole number that is not negative, not {shown(value)}"
                for name, value in given.items()
                if type(value) is not int or value < 0
            ],
        )


USUAL_LIMITS = Limits()


_CAUSES = {
    "cancelled": "the time of tuning was up",
    "crash": "the process crashed",
    "infra": "the process was killed from outside",
    "limit": "the process exceeded its time limit",
}
# What the process was doing: a phase that it reported, or else the request itself.
_PHASES = {
    "build": "while a candidate was built",
    "compare": "while candidates were compared",
    "legal": "while candidates were checked",
    "measure": "while a candidate was measured",
    "open": "while it started",
    "program": "while a kernel was exported",
    "propose": "while candidates were proposed",
    "run": "while a candidate ran",
    "wait": "while a candidate waited for the device",
}


class LostError(Exception):
    """A measuring process is gone.

    Attributes:
        phase: what it was doing.
        cause: `crash` by its own fault, `limit` if it was too slow, `infra` if it was killed from outside, `cancelled`
            if the time of all tuning is up.
    """

    def __init__(self, phase: str, cause: str) -> None:
        super().__init__(f"{_CAUSES[cause]} {_PHASES[phase]}")
        self.phase = phase
        self.cause = cause

    @property
    def status(self) -> Status:
        """The status of the candidate that was being measured."""
        if self.cause in ("cancelled", "infra"):
            return "cancelled" if self.cause == "cancelled" else "infra_error"
        if self.cause == "limit":
            return "run_timeout" if self.phase == "run" else "build_timeout"
        return "run_error" if self.phase == "run" else "build_error"


class Process(ABC):
    """A process with its own process group, which is started by the first request, and again after it was lost.

    Attributes:
        until: a time of the monotonic clock at which any request ends.
        open_seconds: the duration of the last start.
    """

    module: ClassVar[str]

    def __init__(self, limits: Limits = USUAL_LIMITS) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self.until: float | None = None
        self.open_seconds = 0.0  # that the last start took

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The id of the process, None if there is none."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the process and all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    @abstractmethod
    def _open(self) -> dict[str, Any]:
        """Start the process, and open what it measures."""

    def _reply(self, question: Mapping[str, Any]) -> object:
        """Answer a question that the process has while it works on a request."""
        raise NotImplementedError(f"no answer to {question}")

    def _launch(
        self, opening: Mapping[str, object], files: Sequence[IO[bytes]], limit: int, target: Target
    ) -> dict[str, Any]:
        """Start the process with some open files, and send it the first request.

        It imports the modules that registered plugins for the kinds of the target in this process.
        """
        self.close()
        self._buffer = b""
        self._process = subprocess.Popen(
            python_command("-m", self.module, str(device_lock()), str(self._limits.memory)),
            env=python_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[file.fileno() for file in files],
            start_new_session=True,
        )
        begin = time.monotonic()
        kinds = {node.kind for _, node in target.walk()}
        modules = plugins.registering_modules(kinds)
        request = {"do": "open", "path": path_without_current_folder(), "argv": sys.argv, "modules": modules, **opening}
        answer = self._exchange(request, limit)
        if answer["status"] != "ok":
            self.close()
        self.open_seconds = time.monotonic() - begin
        return answer

    def _request(
        self, request: Mapping[str, object], limit: int | None = None, run: int | None = None
    ) -> dict[str, Any]:
        """Send a request and return the answer; raise `LostError` if there will be none.

        `limit` and `run` are seconds to build and to run something, instead of the usual limits.
        """
        if self._process is None or self._process.poll() is not None:
            self._open()
        return self._exchange(request, self._limits.build if limit is None else limit, run)

    def _exchange(self, request: Mapping[str, object], limit: int, run: int | None = None) -> dict[str, Any]:
        phase = str(request["do"])
        limits = {"build": limit, "wait": self._limits.wait, "run": self._limits.run if run is None else run}
        self._send({**request, "limits": limits}, phase)
        begin = time.monotonic()
        while True:
            line = self._line(begin + limit, phase)
            if not line:
                raise self._lost(phase)
            answer: dict[str, Any] = json.loads(line)
            if "question" in answer:
                self._send({"reply": self._reply(answer["question"])}, phase)
            elif "phase" in answer:
                phase = answer["phase"]
                begin, limit = time.monotonic(), limits[phase]
            else:
                return answer

    def _send(self, message: Mapping[str, object], phase: str) -> None:
        assert self._process is not None
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()
        except OSError:
            raise self._lost(phase) from None

    def _line(self, deadline: float, phase: str) -> bytes:
        """Return the next line, empty at the end of the stream; raise `LostError` at the deadline."""
        assert self._process is not None
        stream: IO[bytes] | None = self._process.stdout
        assert stream is not None
        is_last = self.until is not None and self.until < deadline
        end = deadline if self.until is None else min(deadline, self.until)
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = end - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self.close()
                    raise LostError(phase, "cancelled" if is_last else "infra" if phase == "wait" else "limit")
                data = os.read(stream.fileno(), 1 << 16)
                if not data:
                    return b""
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _lost(self, phase: str) -> LostError:
        """Return the error for a process that is gone."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = 0
        self.close()
        if code == -signal.SIGALRM:
            return LostError(phase, "limit")
        return LostError(phase, "crash" if code >= 0 or -code in _OWN_SIGNALS else "infra")
