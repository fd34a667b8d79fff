"""The process in which whole programs are built, checked and run: what `programs.Programs` asks.

    {"do": "open", "plan": ...}                           the file of a saved plan, and whether its leaves may be
                                                          interpreted
    {"do": "measure", "program": ..., "default": ...}     built, checked, run; costs of both in picoseconds, and of its
                                                          functions
    {"do": "compare", "programs": [...], "rounds": ...}   built, checked against the first, run by turns

A program is told by its sites, its settings, and whether kernels are asked for. Programs are kept, and a function that
is the same in an earlier one, on the same site and with the same schedules, is not compiled again.
"""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from tvmtarget.autotune.log.applied import Applied
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.autotune.search.device import half_of_memory
from tvmtarget.autotune.search.output_check import Check
from tvmtarget.autotune.search.timing import Inputs, made_up_inputs, run_alone, run_by_turns
from tvmtarget.autotune.search.worker_protocol import Server, failed, serve
from tvmtarget.backends.protocol import Kernel
from tvmtarget.building.compile_plan import build_plan
from tvmtarget.building.executable import Executable
from tvmtarget.building.tuned_schedules import LogSchedules, TunedChoices, kernel_target
from tvmtarget.errors import BackendError
from tvmtarget.partition.plan import Plan
from tvmtarget.target.tree import Target

__all__ = ["ProgramServer"]

_KEPT = half_of_memory() // 8  # bytes of the functions of programs that are kept, before they are compiled


class ProgramServer(Server):
    """Holds one plan, and programs made of it."""

    def __init__(self, answers: TextIO, lock: Path) -> None:
        super().__init__(answers, lock)
        self._plan: Plan | None = None
        self._allow_interpreter = False
        self._inputs: Inputs = {}
        self._programs: OrderedDict[str, Executable] = OrderedDict()
        self._checks: dict[str, Check] = {}

    def _open(self, request: Mapping[str, Any]) -> dict[str, object]:
        self._plan = Plan.load(f"/dev/fd/{request['plan']}", trust=request["trust"])
        self._allow_interpreter = bool(request["allow_interpreter"])
        self._inputs = made_up_inputs(self._plan) or {}
        return {"status": "ok"}

    def _measure(self, request: Mapping[str, Any]) -> dict[str, object]:
        try:
            program = self._program(request["program"])
        except Exception as error:
            return failed("build_error", error)
        default = self._program(request["default"])
        try:
            with self.alone():
                difference = self._check(request["default"], default).difference(program)
                if difference:
                    return {"status": "wrong_output", "why": difference}
                cost, functions = run_alone(program, self._inputs)
                beside = cost if program is default else run_alone(default, self._inputs)[0]
        except Exception as error:
            return failed("run_error", error)
        return {"status": "ok", "costs": [[cost], [beside]], "functions": functions}

    def _compare(self, request: Mapping[str, Any]) -> dict[str, object]:
        try:
            programs = [self._program(one) for one in request["programs"]]
        except Exception as error:
            return failed("build_error", error)
        first, *others = programs
        try:
            with self.alone():
                check = self._check(request["programs"][0], first)
                difference = next(filter(None, map(check.difference, others)), "")
                if difference:
                    return {"status": "wrong_output", "why": difference}
                costs = run_by_turns(programs, self._inputs, request["rounds"])
        except Exception as error:
            return failed("run_error", error)
        return {"status": "ok", "costs": costs}

    def _program(self, told: Mapping[str, Any]) -> Executable:
        """Build a program, if it is not there from before; those that were not asked for long are forgotten."""
        if self._plan is None:
            raise BackendError("no plan is open")
        name = json.dumps(told, sort_keys=True)
        if name not in self._programs:
            plan = self._plan
            if told["sites"] is not None:
                plan = plan.with_sites([site for site, count in told["sites"] for _ in range(count)])
            advice = _AskedAdvice(self.ask) if told["is_tuned"] else None
            earlier = list(self._programs.values())
            self._programs[name] = build_plan(
                plan, advice, told["settings"], allow_interpreter=self._allow_interpreter, since=earlier
            )
        self._programs.move_to_end(name)
        while len(self._programs) > 2 and _nbytes(self._programs.values()) > _KEPT:
            self._programs.popitem(last=False)
        return self._programs[name]

    def _check(self, told: Mapping[str, Any], default: Executable) -> Check:
        name = json.dumps(told, sort_keys=True)
        if name not in self._checks:
            self._checks = {name: Check(default, self._inputs)}
        return self._checks[name]


class _AskedAdvice(TunedChoices):
    """What a log has for kernels, asked of the process that has the log."""

    def __init__(self, ask: Callable[[Mapping[str, object]], Any]) -> None:
        super().__init__(TuningLog("memory:"))
        self._ask = ask

    def for_leaf(self, leaf: Target) -> LogSchedules:
        return _AskedLeafAdvice(self._ask, self.log, kernel_target(leaf))


class _AskedLeafAdvice(LogSchedules):
    def __init__(self, ask: Callable[[Mapping[str, object]], Any], log: TuningLog, target: Target) -> None:
        super().__init__(log, target)
        self._ask = ask

    def look_up(self, kernel: Kernel, formats: Sequence[str], refused: Mapping[str, str]) -> Applied:
        said = ("name", "body", "calls", "default", "alike")
        question = {
            "kernel": {name: getattr(kernel, name) for name in said},
            "target": self._target.to_json(),
            "formats": list(formats),
            "refused": dict(refused),
        }
        return Applied.from_json(self._ask(question))


def _nbytes(programs: Any) -> int:  # noqa: ANN401
    """Return the bytes of the functions of programs, those counted once that several share."""
    leaves = (leaf for program in programs for leaf in program.code.values())
    return sum({id(leaf.compiled): len(leaf.part.source) for leaf in leaves}.values())


if __name__ == "__main__":
    sys.exit(serve(ProgramServer, *sys.argv[1:]))
