"""The process that builds, checks and times kernels, for `measuring.Worker`.

Requests, one line of JSON each:

    {"do": "open", "backend": ..., "part": {...}}         the kernels of a leaf function, and their choices
    {"do": "legal", "key": ..., "candidates": [...]}      which candidates are legal
    {"do": "propose", "key": ..., "known": [...], ...}    traces to measure
    {"do": "program", "key": ...}                         a kernel in the form of other tools
    {"do": "measure", "key": ..., "choices": [...], ...}  build, check, and time by turns with `beside`, unless that is
                                                          null; the answer has a status, and costs in picoseconds
    {"do": "compare", "key": ..., "candidates": [...]}    time candidates by turns
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from tvmtarget.autotune.search.worker_protocol import Server, failed, serve
from tvmtarget.backends.protocol import CompileRequest, KernelRunner, KernelTuningContext, backend_named
from tvmtarget.errors import BackendError
from tvmtarget.target.tree import Target

__all__ = ["KernelServer"]

_ENOUGH = 3.0  # seconds after which no further round begins


class KernelServer(Server):
    """The answers of the process: the kernels of one leaf function."""

    def __init__(self, answers: TextIO, lock: Path) -> None:
        super().__init__(answers, lock)
        self._context: KernelTuningContext | None = None
        self._defaults: dict[str, KernelRunner] = {}

    def _open(self, request: Mapping[str, Any]) -> dict[str, object]:
        backend = backend_named(request["backend"])
        if "tuning" not in backend.supports:
            raise BackendError(f"backend {request['backend']!r} has no kernels to tune")
        flat = request["part"]
        with os.fdopen(flat["source"], "rb") as file:
            source = file.read()
        self._context = backend.tuning_context(
            CompileRequest(flat["name"], source, flat["site"], Target.from_json(flat["target"]))
        )
        spaces = [
            {
                "name": space.kernel.name,
                "body": space.kernel.body,
                "text": space.kernel.text,
                "calls": space.kernel.calls,
                "identity": space.kernel.default,
                "equivalents": space.kernel.equivalents,
                "choices": space.choices,
                "default": space.default,
            }
            for space in self._context.spaces.values()
        ]
        return {"status": "ok", "format": backend.format, "trace_format": backend.trace_format, "spaces": spaces}

    def _legal(self, request: Mapping[str, Any]) -> dict[str, object]:
        shop = self._opened()
        return {"status": "ok", "legal": [shop.is_legal(request["key"], choices) for choices in request["candidates"]]}

    def _propose(self, request: Mapping[str, Any]) -> dict[str, object]:
        known = [(trace, cost) for trace, cost in request["known"]]
        try:
            traces = self._opened().propose(request["key"], known, request["count"], request["seed"])
        except Exception:  # MetaSchedule cannot make a space of some kernels, such as those of symbolic sizes
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
            return failed("build_error", error)
        build_ms = round(1000 * (time.perf_counter() - begin))
        try:
            with self.alone():
                difference = bench.difference()
                costs, *others = [[]] if difference else _by_turns([bench, *beside], request["repeats"])
        except Exception as error:
            return failed("run_error", error)
        if difference:
            return {"status": "wrong_output", "why": difference, "build_ms": build_ms}
        return {"status": "ok", "costs": costs, "beside": [cost for each in others for cost in each]}

    def _default(self, key: str, choices: Sequence[Mapping[str, int]] | str | None) -> list[KernelRunner]:
        """Return the kernel that candidates are compared with, in a list, if there is one."""
        if choices is None:
            return []
        if key not in self._defaults:
            self._defaults[key] = self._opened().build(key, choices)
        return [self._defaults[key]]

    def _compare(self, request: Mapping[str, Any]) -> dict[str, object]:
        shop = self._opened()
        benches = [shop.build(request["key"], choices) for choices in request["candidates"]]
        with self.alone():
            return {"status": "ok", "costs": _by_turns(benches, request["rounds"])}

    def _opened(self) -> KernelTuningContext:
        if self._context is None:
            raise BackendError("no leaf function is open")
        return self._context


def _by_turns(benches: Sequence[KernelRunner], rounds: int) -> list[list[int]]:
    """Return picoseconds of each kernel in each round; slow kernels run fewer rounds."""
    costs: list[list[int]] = [[] for _ in benches]
    until = time.monotonic() + _ENOUGH
    while len(costs[0]) < rounds and (time.monotonic() < until or not costs[0]):
        for each, bench in zip(costs, benches, strict=True):
            each.append(min(bench.time(2)))
    return costs


if __name__ == "__main__":
    sys.exit(serve(KernelServer, *sys.argv[1:]))
