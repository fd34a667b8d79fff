"""The process that builds, checks and runs whole programs, for `programs.Programs`.

Requests, one line of JSON each:

    {"do": "open", "plan": ..., ...}                      load a saved plan
    {"do": "measure", "program": ..., "default": ...}     build, check and run; the answer has the costs of both in
                                                          picoseconds, and those of the program's functions
    {"do": "compare", "programs": [...], "rounds": ...}   build, check against the first, run by turns

A program is described by its sites, its settings, and whether it uses tuned kernels. Programs are kept: a function that
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
from tvmtarget.autotune.search.timing import Inputs, random_inputs, run_alone, run_by_turns
from tvmtarget.autotune.search.worker_protocol import Server, failed, is_out_of_memory, serve
from tvmtarget.backends.protocol import Kernel
from tvmtarget.building.compile_plan import build_plan
from tvmtarget.building.executable import Executable
from tvmtarget.building.output_comparison import Tolerance, compare
from tvmtarget.building.tuned_schedules import LogSchedules, TunedChoices, kernel_target
from tvmtarget.errors import BackendError
from tvmtarget.partition.plan import Plan
from tvmtarget.target.tree import Target

__all__ = ["OutputCheck", "ProgramServer"]

_KEPT = half_of_memory() // 8  # bytes of the functions of programs that are kept, before they are compiled

# Relative to the largest result: another order of summation explains such differences, layer after layer. Of whole
# numbers, rounding explains that a few differ by more.
_RELATIVE_ERRORS = {"float16": 0.1, "bfloat16": 0.2}
_USUAL_RELATIVE_ERROR = 1e-2
_TOLERANCE = Tolerance(
    defaults={
        name: (0.0, _RELATIVE_ERRORS.get(name, _USUAL_RELATIVE_ERROR))
        for name in ("float64", "float32", "float16", "bfloat16", "complex64", "complex128")
    },
    share=0.01,
)


class OutputCheck:
    """The results of a default program on some inputs, which other programs must reproduce.

    Args:
        default: the program.
        inputs: its inputs.
    """

    def __init__(self, default: Executable, inputs: Inputs) -> None:
        self._inputs = inputs
        first, again = default.run(inputs), default.run(inputs)
        # Results that differ between two runs are random, and cannot be compared.
        self._expected = {
            name: value
            for name, value in first.items()
            if compare({name: again[name]}, {name: value}, _TOLERANCE).agrees
        }

    def difference(self, program: Executable) -> str:
        """Run another program once, and compare its results.

        Args:
            program: the program.

        Returns:
            Which result differs and how; empty if none does.
        """
        found = program.run(self._inputs)
        actual = {name: found[name] for name in self._expected}
        return next((f"result {problem}" for problem in compare(actual, self._expected, _TOLERANCE).problems), "")


class ProgramServer(Server):
    """The answers of the process: one plan, and programs built from it."""

    def __init__(self, answers: TextIO, lock: Path) -> None:
        super().__init__(answers, lock)
        self._plan: Plan | None = None
        self._allow_interpreter = False
        self._inputs: Inputs = {}
        self._programs: OrderedDict[str, Executable] = OrderedDict()
        self._checks: dict[str, OutputCheck] = {}

    def _open(self, request: Mapping[str, Any]) -> dict[str, object]:
        self._plan = Plan.load(f"/dev/fd/{request['plan']}", trust=request["trust"], trust_target=True)
        self._allow_interpreter = bool(request["allow_interpreter"])
        self._inputs = random_inputs(self._plan) or {}
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

    def _program(self, description: Mapping[str, Any]) -> Executable:
        """Build a program unless it is kept; drop those that were least recently used if memory is short."""
        name = json.dumps(description, sort_keys=True)
        if name not in self._programs:
            try:
                program = self._built(description)
            except Exception as error:
                if not self._programs or not is_out_of_memory(error):
                    raise
                program = None  # once the error is gone, nothing refers to what was built
            if program is None:
                self._programs.clear()
                self._checks.clear()
                program = self._built(description)
            self._programs[name] = program
        self._programs.move_to_end(name)
        while len(self._programs) > 2 and _nbytes(self._programs.values()) > _KEPT:
            self._programs.popitem(last=False)
        return self._programs[name]

    def _built(self, description: Mapping[str, Any]) -> Executable:
        plan = self._plan
        if plan is None:
            raise BackendError("no plan is open")
        if description["sites"] is not None:
            plan = plan.with_sites([site for site, count in description["sites"] for _ in range(count)])
        advice = _RemoteAdvice(self.request) if description["is_tuned"] else None
        settings, earlier = description["settings"], list(self._programs.values())
        return build_plan(plan, advice, settings, allow_interpreter=self._allow_interpreter, since=earlier)

    def _check(self, description: Mapping[str, Any], default: Executable) -> OutputCheck:
        name = json.dumps(description, sort_keys=True)
        if name not in self._checks:
            self._checks = {name: OutputCheck(default, self._inputs)}
        return self._checks[name]


class _RemoteAdvice(TunedChoices):
    """TunedChoices on kernels from the process that has the log open."""

    def __init__(self, request: Callable[[Mapping[str, object]], Any]) -> None:
        super().__init__(TuningLog("memory:"))
        self._request = request

    def for_leaf(self, leaf: Target) -> LogSchedules:
        return _RemoteLeafAdvice(self._request, self.log, kernel_target(leaf))


class _RemoteLeafAdvice(LogSchedules):
    def __init__(self, request: Callable[[Mapping[str, object]], Any], log: TuningLog, target: Target) -> None:
        super().__init__(log, target)
        self._request = request

    def look_up(self, kernel: Kernel, formats: Sequence[str], refused: Mapping[str, str]) -> Applied:
        fields = ("name", "body", "calls", "default", "equivalents")  # the text and program of a kernel may be large
        question = {
            "kernel": {name: getattr(kernel, name) for name in fields},
            "target": self._target.to_json(),
            "formats": list(formats),
            "refused": dict(refused),
        }
        return Applied.from_json(self._request(question))


def _nbytes(programs: Any) -> int:  # noqa: ANN401
    """Return the bytes of the functions of programs, of which shared ones count once."""
    leaves = (leaf for program in programs for leaf in program.code.values())
    return sum({id(leaf.compiled): len(leaf.request.source) for leaf in leaves}.values())


if __name__ == "__main__":
    sys.exit(serve(ProgramServer, *sys.argv[1:]))
