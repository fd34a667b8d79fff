"""Settings of leaves: the attributes of code generators that change how fast the same function runs, and not what.

Every setting that the target leaves open is tried by itself, then the best of all together; whatever is found is set
by `build`, which says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low

from tvmtarget.advice import SETTINGS, Settings
from tvmtarget.backends.machine import processors
from tvmtarget.building import build
from tvmtarget.errors import BackendError, RunError
from tvmtarget.executable import Executable
from tvmtarget.partition.plan import Plan
from tvmtarget.target.attributes import Value
from tvmtarget.tuner.device import device_lock, holding
from tvmtarget.tuner.result import Finding, Step
from tvmtarget.tuner.whole import WholeTuner, run_by_turns
from tvmtarget.tuning.records import Baseline, Candidate, Measurement

__all__ = ["SettingsTuner", "open_settings"]

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
        default = self._built({})
        helped: dict[tuple[str, str], tuple[float, Value]] = {}
        for site, name, values in choices:
            for value in values:
                if self._budget.is_spent(time.monotonic()):
                    break
                ratio = self._compare(default, {site: {name: value}}, "search")
                if ratio < min(GAIN, helped.get((site, name), (1.0, 0))[0]):
                    helped[site, name] = ratio, value
        together: dict[str, dict[str, Value]] = {}
        for (site, name), (_, value) in helped.items():
            together.setdefault(site, {})[name] = value
        self._compare(default, together, "confirm")

    def _built(self, settings: Settings) -> Executable:
        return build(self._plan, log=self._log, settings=settings)

    def _compare(self, default: Executable, settings: Settings, kind: str) -> float:
        """Run by turns with the default, write what both cost, and return the ratio of the medians."""
        program = self._built(settings)
        with holding(device_lock()):
            base, own = run_by_turns([default, program], self._inputs, rounds=9 if kind == "confirm" else 5)
        rows = [[site, name, value] for site, values in settings.items() for name, value in values.items()]
        digest = self._write([], base, base, kind)
        if rows:
            digest = self._write(rows, own, base, kind)
        self._budget.done += 1
        self.statuses["ok"] += 1
        what = ", ".join(f"{name}={value} of @{site or '.'}" for site, name, value in rows) or "as it is"
        was, now = median_low(base), median_low(own)
        if self._progress is not None:
            self._progress(Step("executor", what, "ok", self._budget.done, self._budget.trials, was, min(was, now)))
        if kind == "confirm" and rows and now < was:
            self._finding = Finding("executor", what, "", was, now, 1, self.statuses["ok"], True, digest)
        return now / was

    def _write(self, rows: Sequence[Sequence[Value]], costs: Sequence[int], baseline: Sequence[int], kind: str) -> str:
        measured = Measurement.model_validate(
            {"status": "ok", "kind": kind, "costs": costs, "baseline": Baseline(costs=tuple(baseline))}
        )
        candidate = Candidate(format=SETTINGS, body={"set": [list(row) for row in rows]})
        return self._log.add(self._workload, self._plan.layout.root, candidate, measured).digest
