"""The other end of a worker process: requests with a time limit, and what it means when the process is lost."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Self

from tvmtarget.backends.protocol import Kernel, Part, Space
from tvmtarget.errors import BackendError, RunError
from tvmtarget.tuner.device import device_lock
from tvmtarget.tuner.search import as_json
from tvmtarget.tuning.records import Environment, Status

__all__ = ["USUAL_LIMITS", "Choices", "Limits", "Outcome", "Worker"]

Choices = Sequence[Mapping[str, int]] | str

# Signals by which a process dies of what it does itself; any other came from outside. Whoever ends without one, or
# closes its pipe, did that itself too.
_OWN_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGBUS, signal.SIGABRT, signal.SIGTRAP})


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that opening a leaf function, building a candidate, running it, and waiting for the device may take.

    `memory` is the bytes that the process with all of that may take; 0 means half of what this machine has.
    """

    open: int = 300
    build: int = 20
    run: int = 20
    wait: int = 600
    memory: int = 0


USUAL_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a candidate: a status of the log, costs in picoseconds, those of what it was measured beside.

    Also why not, and where, unless it was here.
    """

    status: Status
    costs: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()
    why: str = ""
    env: Environment | None = None


class _LostError(Exception):
    """The process is gone: in which phase, and whether by what it did itself, by the limit, or from outside."""

    def __init__(self, phase: str, cause: str) -> None:
        super().__init__(f"{cause} while it was to {phase}")
        self.phase = phase
        self.cause = cause


class Worker:
    """A process that holds one leaf function; it is started when needed, and again when it was lost."""

    def __init__(self, backend: str, part: Part, limits: Limits = USUAL_LIMITS) -> None:
        self._backend = backend
        self._part = part
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self.format = ""
        self.trace_format = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and all that it started."""
        if self._process is not None:
            self._kill()

    @property
    def pid(self) -> int | None:
        """The process, None while there is none."""
        return None if self._process is None else self._process.pid

    def spaces(self) -> tuple[Space, ...]:
        """Return the kernels of the leaf function; `BackendError` says why it cannot be opened."""
        try:
            answer = self._start()
        except _LostError as error:
            raise BackendError(f"function {self._part.name!r} cannot be prepared for tuning: {error}") from error
        return tuple(
            Space(
                Kernel(flat["name"], flat["body"], flat["text"], flat["calls"], default=flat["identity"]),
                tuple({name: tuple(values) for name, values in block.items()} for block in flat["choices"]),
                tuple(flat["default"]),
            )
            for flat in answer["spaces"]
        )

    def legal(self, key: str, candidates: Sequence[Choices]) -> list[bool]:
        """Say which candidates fit a kernel."""
        if not candidates:
            return []
        return list(self._asked({"do": "legal", "key": key, "candidates": list(map(as_json, candidates))})["legal"])

    def propose(self, key: str, known: Sequence[tuple[str, int]], count: int, seed: int) -> list[str]:
        """Return traces for a kernel to be measured; none where its space cannot be made."""
        return list(self._asked({"do": "propose", "key": key, "known": known, "count": count, "seed": seed})["traces"])

    def program(self, key: str) -> dict[str, object]:
        """Return a kernel as other tools that read its traces know it."""
        return dict(self._asked({"do": "program", "key": key})["program"])

    def measure(self, key: str, choices: Choices, repeats: int = 3, beside: Choices | None = None) -> Outcome:
        """Build, check and time a candidate, by turns with another; if the process is lost from outside, once more."""
        other = None if beside is None else as_json(beside)
        request = {"do": "measure", "key": key, "choices": as_json(choices), "beside": other, "repeats": repeats}
        for _ in range(2):
            try:
                answer = self._request(request)
            except _LostError as error:
                if error.cause == "infra" or error.phase == "open":
                    continue
                return Outcome(_lost_status(error), why=str(error))
            status: Status = "infra_error" if answer["status"] == "failed" else answer["status"]
            return Outcome(
                status, tuple(answer.get("costs", ())), tuple(answer.get("beside", ())), answer.get("why", "")
            )
        return Outcome("infra_error", why="the measuring process was lost twice, not by what it measured")

    def compare(self, key: str, candidates: Sequence[Choices], rounds: int) -> list[Outcome]:
        """Time candidates by turns and return what became of each; nothing if the process was lost over it."""
        listed = list(map(as_json, candidates))
        try:
            answer = self._request({"do": "compare", "key": key, "candidates": listed, "rounds": rounds})
        except _LostError:
            return []
        return [Outcome("ok", tuple(costs)) for costs in answer.get("costs", ())]

    def _asked(self, request: Mapping[str, object]) -> dict[str, Any]:
        """Ask what no candidate has a part in; if the process is lost, once more."""
        try:
            answer = self._request(request)
        except _LostError:
            try:
                answer = self._request(request)
            except _LostError as error:
                raise RunError(f"the measuring process was lost twice: {error}") from error
        if answer["status"] != "ok":
            raise RunError(f"the measuring process refused: {answer['why']}")
        return answer

    def _request(self, request: Mapping[str, object]) -> dict[str, Any]:
        """Send a request and wait for the answer; raise `_LostError` if there will be none."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        limit = self._limits.open if request["do"] == "propose" else self._limits.build
        return self._exchange(request, limit)

    def _start(self) -> dict[str, Any]:
        """Start the process and open the leaf function in it."""
        self.close()
        self._buffer = b""
        with tempfile.TemporaryFile() as source:  # without a name, so that whoever is killed leaves none behind
            source.write(self._part.source)
            source.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tvmtarget.tuner.worker", str(device_lock()), str(self._limits.memory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=[source.fileno()],
                start_new_session=True,
            )
            part = {
                "name": self._part.name,
                "source": source.fileno(),
                "site": self._part.site,
                "target": self._part.target.to_json(),
            }
            request = {"do": "open", "backend": self._backend, "part": part}
            answer = self._exchange(request, self._limits.open)
        if answer["status"] != "ok":
            raise BackendError(f"function {self._part.name!r} cannot be tuned: {answer['why']}")
        self.format, self.trace_format = answer["format"], answer["trace_format"]
        return answer

    def _exchange(self, request: Mapping[str, object], limit: int) -> dict[str, Any]:
        assert self._process is not None
        stdin = self._process.stdin
        assert stdin is not None
        phase = str(request["do"])
        limits = {"build": limit, "wait": self._limits.wait, "run": self._limits.run}
        try:
            stdin.write(json.dumps({**request, "limits": limits}).encode() + b"\n")
            stdin.flush()
        except OSError:
            raise self._lost(phase) from None
        while True:
            line = self._line(time.monotonic() + limit)
            if line is None:
                self._kill()
                raise _LostError(phase, "infra" if phase == "wait" else "limit")
            if not line:
                raise self._lost(phase)
            answer: dict[str, Any] = json.loads(line)
            if "phase" not in answer:
                return answer
            phase = answer["phase"]
            limit = limits[phase]

    def _line(self, deadline: float) -> bytes | None:
        """Return the next line; nothing at the end of the stream, None at the deadline."""
        assert self._process is not None
        stream: IO[bytes] | None = self._process.stdout
        assert stream is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                data = os.read(stream.fileno(), 1 << 16)
                if not data:
                    return b""
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _lost(self, phase: str) -> _LostError:
        """Say why the process is gone."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = 0
        self._kill()
        if code == -signal.SIGALRM:
            return _LostError(phase, "limit")
        return _LostError(phase, "crash" if code >= 0 or -code in _OWN_SIGNALS else "infra")

    def _kill(self) -> None:
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


def _lost_status(error: _LostError) -> Status:
    is_built = error.phase == "run"
    if error.cause == "limit":
        return "run_timeout" if is_built else "build_timeout"
    return "run_error" if is_built else "build_error"
