"""The other end of a process that measures: requests with a time limit, and what it means when the process is lost."""

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
from dataclasses import dataclass
from typing import IO, Any, ClassVar, Self

from tvmtarget import plugins
from tvmtarget.autotune.log.records import Status
from tvmtarget.autotune.search.device import device_lock
from tvmtarget.python_process import path_without_current_folder, python_command, python_environment
from tvmtarget.target.tree import Target

__all__ = ["USUAL_LIMITS", "Limits", "LostError", "Process"]

# Signals by which a process dies of what it does itself; any other came from outside. Whoever ends without one, or
# closes its pipe, did that itself too.
_OWN_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGBUS, signal.SIGABRT, signal.SIGTRAP})


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that opening a leaf function, building a candidate, running it, and waiting for the device may take.

    A whole program may take as long to build as a leaf function to open. `memory` is the bytes that the process with
    all of that may take; 0 means half of what this machine has.
    """

    open: int = 300
    build: int = 20
    run: int = 20
    wait: int = 600
    memory: int = 0


USUAL_LIMITS = Limits()


class LostError(Exception):
    """The process is gone: in which phase, and whether by what it did itself, by a limit, or from outside.

    The cause is `crash`, `limit`, `infra`, or `cancelled` where the time of all tuning was up.
    """

    def __init__(self, phase: str, cause: str) -> None:
        text = "the time was up" if cause == "cancelled" else cause
        super().__init__(f"{text} while it was to {phase}")
        self.phase = phase
        self.cause = cause

    @property
    def status(self) -> Status:
        """What became of the candidate that was measured."""
        if self.cause in ("cancelled", "infra"):
            return "cancelled" if self.cause == "cancelled" else "infra_error"
        if self.cause == "limit":
            return "run_timeout" if self.phase == "run" else "build_timeout"
        return "run_error" if self.phase == "run" else "build_error"


class Process(ABC):
    """A process with a group of its own; it is started when needed, and again when it was lost.

    `until` is a time of the monotonic clock at which whatever it does is ended.
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
        """The process, None while there is none."""
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
        """Start the process and have it open what it is for."""

    def _reply(self, question: Mapping[str, Any]) -> object:
        """Answer what the process asks while it works on a request."""
        raise NotImplementedError(f"nobody answers {question}")

    def _launch(
        self, opening: Mapping[str, object], files: Sequence[IO[bytes]], limit: int, target: Target
    ) -> dict[str, Any]:
        """Start the process with some open files, and send it the first request.

        It imports what this one has registered plugins in for the kinds of the target.
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
        modules = [_importable(name) for name in plugins.registered_in(kinds)]
        request = {"do": "open", "path": path_without_current_folder(), "argv": sys.argv, "modules": modules, **opening}
        answer = self._exchange(request, limit)
        if answer["status"] != "ok":
            self.close()
        self.open_seconds = time.monotonic() - begin
        return answer

    def _request(
        self, request: Mapping[str, object], limit: int | None = None, run: int | None = None
    ) -> dict[str, Any]:
        """Send a request and wait for the answer; raise `LostError` if there will be none.

        `limit` and `run` are the seconds that it may take to build and to run something, if not the usual ones.
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
            if "ask" in answer:
                self._send({"reply": self._reply(answer["ask"])}, phase)
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
        """Return the next line, nothing at the end of the stream; raise `LostError` at the deadline."""
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
        """Say why the process is gone."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = 0
        self.close()
        if code == -signal.SIGALRM:
            return LostError(phase, "limit")
        return LostError(phase, "crash" if code >= 0 or -code in _OWN_SIGNALS else "infra")


def _importable(name: str) -> dict[str, str]:
    """Return a module by its name, the main one by that of its specification or by its file."""
    if name != "__main__":
        return {"name": name}
    main = sys.modules[name]
    specification = getattr(main, "__spec__", None)
    if specification is not None:
        return {"main": specification.name}
    return {"file": os.path.abspath(str(getattr(main, "__file__", "")))}
