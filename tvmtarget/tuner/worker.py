"""The process in which candidates are built, checked and timed: requests and answers are lines of JSON.

    {"do": "open", "backend": ..., "part": {...}}         the kernels of a leaf function, and their choices
    {"do": "legal", "key": ..., "candidates": [...]}      which candidates fit
    {"do": "propose", "key": ..., "known": [...], ...}    traces to be measured
    {"do": "program", "key": ...}                         a kernel as other tools know it
    {"do": "measure", "key": ..., "choices": [...], ...}  built, checked, timed by turns with `beside`, if that is not
                                                          null: a status, and costs of both in picoseconds
    {"do": "compare", "key": ..., "candidates": [...]}    candidates timed by turns

What a candidate does to this process (a crash, an endless loop) is seen by `measuring.Worker`, which can kill it with
all that it started. Timing holds a lock of the device, so that measurements of several processes take turns.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from tvmtarget.backends.protocol import Bench, Part, TunableBackend, Workshop, backend_named
from tvmtarget.errors import BackendError
from tvmtarget.target.tree import Target
from tvmtarget.tuner.device import half_of_memory, holding

__all__ = ["main"]

# Seconds beyond a limit after which this process ends itself: whoever asked may be gone, and a candidate hang.
_GRACE = 5

_ENOUGH = 3.0  # seconds of running after which no further round begins

# What errors of native code say where memory ran out.
_OUT_OF_MEMORY = ("bad_alloc", "out of memory", "Cannot allocate memory")


class _Server:
    def __init__(self, answers: TextIO, lock: Path) -> None:
        self._answers = answers
        self._lock = lock
        self._workshop: Workshop | None = None
        self._defaults: dict[str, Bench] = {}
        self.limits: Mapping[str, int] = {}

    def answer(self, request: Mapping[str, Any]) -> Mapping[str, object]:
        return dict(getattr(self, f"_{request['do']}")(request))

    def enter(self, phase: str) -> None:
        """Say that another phase begins, and put off the end of this process accordingly."""
        self.tell({"phase": phase})
        signal.alarm(self.limits.get(phase, 0) + _GRACE)

    def tell(self, answer: Mapping[str, object]) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    def _open(self, request: Mapping[str, Any]) -> dict[str, object]:
        backend = backend_named(request["backend"])
        if not isinstance(backend, TunableBackend):
            raise BackendError(f"backend {request['backend']!r} has no kernels to tune")
        flat = request["part"]
        with os.fdopen(flat["source"], "rb") as file:
            source = file.read()
        self._workshop = backend.workshop(Part(flat["name"], source, flat["site"], Target.from_json(flat["target"])))
        spaces = [
            {
                "name": space.kernel.name,
                "body": space.kernel.body,
                "text": space.kernel.text,
                "calls": space.kernel.calls,
                "identity": space.kernel.default,
                "choices": space.choices,
                "default": space.default,
            }
            for space in self._workshop.spaces.values()
        ]
        return {"status": "ok", "format": backend.format, "trace_format": backend.trace_format, "spaces": spaces}

    def _legal(self, request: Mapping[str, Any]) -> dict[str, object]:
        shop = self._opened()
        return {"status": "ok", "legal": [shop.is_legal(request["key"], choices) for choices in request["candidates"]]}

    def _propose(self, request: Mapping[str, Any]) -> dict[str, object]:
        known = [(trace, cost) for trace, cost in request["known"]]
        try:
            traces = self._opened().propose(request["key"], known, request["count"], request["seed"])
        except Exception:  # whatever MetaSchedule cannot make a space of, such as open sizes
            traces = []
        return {"status": "ok", "traces": traces}

    def _program(self, request: Mapping[str, Any]) -> dict[str, object]:
        return {"status": "ok", "program": dict(self._opened().program(request["key"]))}

    def _measure(self, request: Mapping[str, Any]) -> dict[str, object]:
        beside = self._default(request["key"], request["beside"])
        begin = time.perf_counter()
        try:
            bench = self._opened().build(request["key"], request["choices"])
        except Exception as error:
            return _failed("build_error", error)
        build_ms = round(1000 * (time.perf_counter() - begin))
        try:
            with self._alone():
                difference = bench.difference()
                costs, *others = [[]] if difference else _by_turns([bench, *beside], request["repeats"])
        except Exception as error:
            return _failed("run_error", error)
        if difference:
            return {"status": "wrong_output", "why": difference, "build_ms": build_ms}
        return {"status": "ok", "costs": costs, "beside": [cost for each in others for cost in each]}

    def _default(self, key: str, choices: Sequence[Mapping[str, int]] | str | None) -> list[Bench]:
        """Return the kernel built in the way that others are compared with, if there is one."""
        if choices is None:
            return []
        if key not in self._defaults:
            self._defaults[key] = self._opened().build(key, choices)
        return [self._defaults[key]]

    def _compare(self, request: Mapping[str, Any]) -> dict[str, object]:
        shop = self._opened()
        benches = [shop.build(request["key"], choices) for choices in request["candidates"]]
        with self._alone():
            return {"status": "ok", "costs": _by_turns(benches, request["rounds"])}

    def _opened(self) -> Workshop:
        if self._workshop is None:
            raise BackendError("no leaf function is open")
        return self._workshop

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of the device; for how long others hold it says nothing about a candidate."""
        with holding(self._lock, lambda: self.enter("wait")):
            self.enter("run")
            yield


def _by_turns(benches: Sequence[Bench], rounds: int) -> list[list[int]]:
    """Return picoseconds of each kernel in each round; of slow ones there are fewer rounds."""
    costs: list[list[int]] = [[] for _ in benches]
    until = time.monotonic() + _ENOUGH
    while len(costs[0]) < rounds and (time.monotonic() < until or not costs[0]):
        for each, bench in zip(costs, benches, strict=True):
            each.append(min(bench.time(2)))
    return costs


def _failed(status: str, error: Exception) -> dict[str, object]:
    """Say what became of a candidate that raised something."""
    text = str(error)
    is_memory = isinstance(error, MemoryError) or any(word in text for word in _OUT_OF_MEMORY)
    return {"status": "over_limit" if is_memory else status, "why": _first_line(error)}


def _first_line(error: Exception) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:300]


def main(lock: str, memory: str) -> int:
    """Answer requests from standard input until it ends; what a library prints goes to the error stream."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = int(memory) or half_of_memory()
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    server = _Server(answers, Path(lock))
    for line in sys.stdin:
        request = json.loads(line)
        server.limits = request["limits"]
        signal.alarm(server.limits["build"] + _GRACE)
        try:
            server.tell(server.answer(request))
        except Exception as error:
            server.tell({"status": "failed", "why": _first_line(error)})
        signal.alarm(0)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
