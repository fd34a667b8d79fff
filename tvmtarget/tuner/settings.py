"""Settings of leaves: the attributes of code generators that change how fast the same function runs, and not what.

Every setting that the target leaves open is tried by itself, then the best of all together; whatever is found is set
by `build`, which says so. What the log knows is not measured again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low
from typing import Literal, TypeAlias

from tvmtarget.advice import SETTINGS, Settings
from tvmtarget.backends.machine import processors
from tvmtarget.building import build
from tvmtarget.errors import BackendError, RunError
from tvmtarget.executable import Executable
from tvmtarget.partition.plan import Plan
from tvmtarget.target.attributes import Value
from tvmtarget.tuner.device import device_lock, holding
from tvmtarget.tuner.result import Budget, Finding, Progress, Step
from tvmtarget.tuner.whole import Inputs, WholeTuner, run_by_turns
from tvmtarget.tuning.log import TuningLog
from tvmtarget.tuning.records import Baseline, Candidate, Measurement, Trial

__all__ = ["SettingsTuner", "open_settings"]

# Costs of the default, own costs, and the digest of the record.
_Compared: TypeAlias = tuple[Sequence[int], Sequence[int], str]

GAIN = 0.97  # of the default's time, above which a setting is left as it is


def open_settings(plan: Plan) -> Iterator[tuple[str, str, tuple[Value, ...]]]:
    """Yield the leaves that are used, attributes that the target leaves open there, and values worth trying."""
    for site in dict.fromkeys(region.site for region in plan.regions):
        target = plan.layout[site].target
        for name, values in _choices(target.kind).items():
            if name not in target.attrs and values:
                yield site, name, values


def _choices(kind: str) -> Mapping[str, tuple[Value, ...]]:
    if kind != "onnxruntime":
        return {}
    counts = {1, processors()} | {2**power for power in range(1, 7) if 2**power < processors()}
    return {"intra-op-threads": tuple(sorted(counts)), "optimization-level": (1, 2)}


class SettingsTuner(WholeTuner):
    """Tunes the settings of the leaves of one plan into a log; where nothing helps, that no setting is best."""

    level = "executor"

    def __init__(self, plan: Plan, log: TuningLog, budget: Budget, inputs: Inputs, progress: Progress | None) -> None:
        super().__init__(plan, log, budget, inputs, progress)
        self._default: Executable | None = None
        self._known: dict[tuple[str, str], Trial] = {}

    def run(self) -> None:
        """Try every open setting beside the default, then what helped together."""
        choices = list(open_settings(self._plan))
        if not choices:
            kinds = sorted({self._plan.layout[region.site].target.kind for region in self._plan.regions})
            self.left_out.append(f"settings: {', '.join(kinds)} has none that the target leaves open")
            return
        try:
            self._search(choices)
        except (BackendError, RunError) as error:
            self.left_out.append(f"settings: {error.problems[0]}")

    def _search(self, choices: Sequence[tuple[str, str, tuple[Value, ...]]]) -> None:
        for trial in self.recalled():
            self._known[trial.measured.kind, trial.candidate.key] = trial
        helped: dict[tuple[str, str], tuple[float, Value]] = {}
        for site, name, values in choices:
            for value in values:
                ratio = self._ratio({site: {name: value}}, "search")
                if ratio < min(GAIN, helped.get((site, name), (1.0, 0))[0]):
                    helped[site, name] = ratio, value
        together: dict[str, dict[str, Value]] = {}
        for (site, name), (_, value) in helped.items():
            together.setdefault(site, {})[name] = value
        self._ratio(together, "confirm")

    def _ratio(self, settings: Settings, kind: Literal["search", "confirm"]) -> float:
        """Return what settings cost over what the default does: as the log has it, else measured; 1 if time is up."""
        rows = [[site, name, value] for site, values in settings.items() for name, value in values.items()]
        what = ", ".join(f"{name}={value} of @{site or '.'}" for site, name, value in rows) or "as it is"
        known = self._known.get((kind, _candidate(rows).key))
        if known is not None and known.measured.baseline is not None:
            self.reused += 1
            measured: _Compared = known.measured.baseline.costs, known.measured.costs, known.digest
        elif kind == "search" and self._budget.is_spent(time.monotonic()):
            return 1.0
        else:
            measured = self._compare(settings, rows, kind)
            self._tell(what, median_low(measured[0]), median_low(measured[1]))
        was, now, digest = median_low(measured[0]), median_low(measured[1]), measured[2]
        if kind == "confirm" and rows and now < was:
            self._finding = Finding("executor", what, "", was, now, 1, self.statuses["ok"], True, digest)
        return now / max(1, was)

    def _compare(self, settings: Settings, rows: Sequence[Sequence[Value]], kind: str) -> _Compared:
        """Run by turns with the default; return what both cost, and the record of it."""
        if self._default is None:
            self._default = build(self._plan, log=self._log, settings={})
        program = build(self._plan, log=self._log, settings=settings) if rows else self._default
        with holding(device_lock()):
            base, own = run_by_turns([self._default, program], self._inputs, rounds=9 if kind == "confirm" else 5)
        digest = self._write([], base, base, kind)
        if rows:
            digest = self._write(rows, own, base, kind)
        self._budget.done += 1
        self.statuses["ok"] += 1
        return base, own if rows else base, digest

    def _tell(self, what: str, was: int, now: int) -> None:
        if self._progress is not None:
            step = Step("executor", what, "ok", self._budget.done, self._budget.trials, was, min(was, now))
            self._progress(step)

    def _write(self, rows: Sequence[Sequence[Value]], costs: Sequence[int], baseline: Sequence[int], kind: str) -> str:
        measured = Measurement.model_validate(
            {"status": "ok", "kind": kind, "costs": costs, "baseline": Baseline(costs=tuple(baseline))}
        )
        return self._log.add(self._workload, self._plan.layout.root, _candidate(rows), measured).digest


def _candidate(rows: Sequence[Sequence[Value]]) -> Candidate:
    return Candidate(format=SETTINGS, body={"set": [list(row) for row in rows]})
