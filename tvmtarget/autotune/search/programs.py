"""Whole programs, built in several variants, checked and run in a process of their own (`program_worker.py`)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvmtarget.autotune.log.records import Status
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.autotune.search.process import USUAL_LIMITS, Limits, LostError, Process
from tvmtarget.autotune.search.timing import seconds_of_turns
from tvmtarget.backends.protocol import Kernel
from tvmtarget.building.tuned_schedules import LogSchedules, Settings, placement_body
from tvmtarget.errors import BackendError
from tvmtarget.files import temporary_folder
from tvmtarget.partition.plan import Plan
from tvmtarget.target.tree import Target

__all__ = ["ProgramRun", "Programs", "Variant"]

HOPELESS = 30  # times the default's run; a program may take that and the usual limit
SLACK = 4  # times what comparing programs takes if each is as fast as the default


@dataclass(frozen=True)
class Variant:
    """How to build a program.

    Attributes:
        plan: a plan with other sites, None for those of the process.
        settings: attributes to set, by leaf.
        is_tuned: whether to use tuned kernels of the log.
    """

    plan: Plan | None = None
    settings: Settings = field(default_factory=dict)
    is_tuned: bool = True

    def to_json(self) -> dict[str, object]:
        """Return the description that the process understands.

        Returns:
            An object of JSON, in which sites are runs of equal ones.
        """
        return {
            "sites": None if self.plan is None else placement_body(self.plan)["sites"],
            "settings": {site: dict(values) for site, values in sorted(self.settings.items())},
            "is_tuned": self.is_tuned,
        }


@dataclass(frozen=True)
class ProgramRun:
    """The outcome of running programs.

    Attributes:
        status: how it ended.
        costs: picoseconds; of `compare`, each program in each round; of `measure`, the fastest run of the program and
            of the default.
        functions: picoseconds of each function of a measured program.
        why: why it failed.
        seconds: the duration of building and running.
    """

    status: Status
    costs: tuple[tuple[int, ...], ...] = ()
    functions: Mapping[str, int] = field(default_factory=dict)
    why: str = ""
    seconds: float = 0.0


class Programs(Process):
    """A process in which one plan is built in several variants; functions that do not differ are compiled once.

    Args:
        plan: the plan.
        log: the log with tuned kernels.
        limits: the time and the memory that it may take.
        allow_interpreter: let numpy interpret leaves without a code generator.
    """

    module = "tvmtarget.autotune.search.program_worker"

    def __init__(
        self, plan: Plan, log: TuningLog, limits: Limits = USUAL_LIMITS, *, allow_interpreter: bool = False
    ) -> None:
        super().__init__(limits)
        self._allow_interpreter = allow_interpreter
        self._plan = plan
        self._log = log
        self._default_cost = 0

    def measure(self, variant: Variant, default: Variant) -> ProgramRun:
        """Build a program, compare its results with those of the default, and run both.

        Args:
            variant: the program.
            default: the default.

        Returns:
            The outcome.
        """
        limit = 2 * HOPELESS * self._default_cost / 1e12
        return self._ran({"do": "measure", "program": variant.to_json(), "default": default.to_json()}, limit, -1)

    def compare(self, variants: Sequence[Variant], rounds: int) -> ProgramRun:
        """Build programs, compare their results with those of the first, and run them by turns.

        Args:
            variants: the programs.
            rounds: the number of turns.

        Returns:
            The outcome.
        """
        listed = [variant.to_json() for variant in variants]
        costs = [self._default_cost] * len(listed)
        # Each may be a few times slower than the default: other work on the machine slows all of them down.
        limit = max(HOPELESS * sum(costs) / 1e12, SLACK * seconds_of_turns(costs, rounds))
        return self._ran({"do": "compare", "programs": listed, "rounds": rounds}, limit, 0)

    def _ran(self, request: Mapping[str, object], seconds: float, default: int) -> ProgramRun:
        """Run programs, once more if the process is killed from outside, or earlier programs left too little memory.

        They may take so many seconds beside the usual limit, once the default was run, whose costs `default` indexes.
        """
        begin = time.monotonic()
        limit = self._limits.run + math.ceil(seconds) if self._default_cost else self._limits.open
        for _ in range(2):
            is_new = self.pid is None
            try:
                answer = self._request(request, self._limits.open, limit)
            except LostError as error:
                if error.cause == "infra":
                    continue
                return ProgramRun(error.status, why=str(error), seconds=time.monotonic() - begin)
            except BackendError as error:
                return ProgramRun("build_error", why=error.problems[0], seconds=time.monotonic() - begin)
            if answer["status"] == "over_limit" and not is_new:
                self.close()
                continue
            if answer["status"] == "failed":
                return ProgramRun("infra_error", why=answer["why"], seconds=time.monotonic() - begin)
            costs = tuple(map(tuple, answer.get("costs", ())))
            self._default_cost = max(costs[default]) if costs else self._default_cost
            functions = answer.get("functions", {})
            return ProgramRun(answer["status"], costs, functions, answer.get("why", ""), time.monotonic() - begin)
        return ProgramRun("infra_error", why="the process of the programs was lost twice, not by what it ran")

    def _open(self) -> dict[str, Any]:
        with temporary_folder() as folder:
            path = folder / "plan"
            self._plan.save(path)
            with path.open("rb") as file:
                path.unlink()  # the open file survives, and a killed process leaves nothing behind
                opening = {
                    "plan": file.fileno(),
                    "allow_interpreter": self._allow_interpreter,
                    "trust": self._plan.request.module.is_trusted,
                }
                answer = self._launch(opening, [file], self._limits.open, self._plan.topology.root)
        if answer["status"] != "ok":
            raise BackendError(f"the program cannot be prepared for tuning: {answer['why']}")
        return answer

    def _reply(self, question: Mapping[str, Any]) -> object:
        """Look up the schedule of a kernel for the process."""
        advice = LogSchedules(self._log, Target.from_json(question["target"]))
        return advice.look_up(Kernel(**question["kernel"]), question["formats"], question["refused"]).to_json()
