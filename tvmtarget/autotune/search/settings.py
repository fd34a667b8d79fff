"""Tuning of settings: attributes of leaves that change how fast the same function runs, and not its results.

Backends list such attributes and the values worth trying. Every setting that the target leaves open is tried in turn,
together with the best settings before it, until none improves the time (coordinate descent). A build applies what was
found, and reports it. What the log knows is not measured again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low
from typing import Literal, TypeAlias

from tvmtarget.autotune.log.records import TIE, Baseline, Candidate, Measurement, Trial
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.autotune.search.program_tuner import ProgramTuner
from tvmtarget.autotune.search.programs import Programs, Variant
from tvmtarget.autotune.search.result import Budget, Finding, Progress, TuneProgress
from tvmtarget.autotune.search.timing import ROUNDS, SLOW_ROUNDS
from tvmtarget.building.backend_choice import choose_backend
from tvmtarget.building.tuned_schedules import SETTINGS, Settings
from tvmtarget.errors import BackendError, RunError
from tvmtarget.partition.plan import Plan
from tvmtarget.target.attributes import Value

__all__ = ["SettingsTuner", "open_settings"]

# A leaf and an attribute of it.
_Slot: TypeAlias = tuple[str, str]
_Row: TypeAlias = tuple[str, str, Value]
_Kind: TypeAlias = Literal["search", "confirm"]
# Costs of the default, own costs, and the digest of the record.
_Compared: TypeAlias = tuple[Sequence[int], Sequence[int], str]

GAIN = 1 - TIE / 100  # of the time without a setting; one that takes more is not applied
PASSES = 2  # over all settings, because the best value of one may depend on later ones


def open_settings(plan: Plan, *, allow_interpreter: bool = False) -> Iterator[tuple[str, str, tuple[Value, ...]]]:
    """Yield the settings that a target leaves open on the leaves that a plan uses.

    Args:
        plan: the plan.
        allow_interpreter: let numpy interpret leaves without a code generator.

    Yields:
        The path of a leaf, an attribute, and the values worth trying.
    """
    for site in dict.fromkeys(subgraph.site for subgraph in plan.subgraphs):
        target = plan.topology[site].target
        backend, _ = choose_backend(plan.topology, site, allow_interpreter=allow_interpreter)
        choices = backend.settings(target)
        for name, values in choices.items():
            if name not in target.attrs and values:
                yield site, name, tuple(values)


class SettingsTuner(ProgramTuner):
    """Tunes the settings of the leaves of one plan.

    Args:
        plan: the plan.
        log: the log to write.
        budget: the trials and the time for this tuner.
        programs: the process that builds and runs programs.
        progress: is called with every trial.
        is_own: whether the plan is that of the process, not another one of the same program.
        allow_interpreter: let numpy interpret leaves without a code generator.
    """

    level = "executor"

    def __init__(
        self,
        plan: Plan,
        log: TuningLog,
        budget: Budget,
        programs: Programs,
        progress: Progress | None,
        *,
        is_own: bool = True,
        allow_interpreter: bool = False,
    ) -> None:
        super().__init__(plan, log, budget, programs, progress)
        self._placed = None if is_own else plan
        self._allow_interpreter = allow_interpreter
        self._known: dict[tuple[str, str], Trial] = {}
        self._unused: set[tuple[str, str]] = set()

    def run(self) -> None:
        """Try every open setting, and compare the best settings with the default."""
        try:
            choices = list(open_settings(self._plan, allow_interpreter=self._allow_interpreter))
            if choices:
                self._search(choices)
                return
            kinds = sorted({self._plan.topology[subgraph.site].target.kind for subgraph in self._plan.subgraphs})
            self.left_out.append(f"settings: {', '.join(kinds)} has none that the target leaves open")
        except (BackendError, RunError) as error:
            self.left_out.append(f"settings: {error.problems[0]}")

    def _search(self, choices: Sequence[tuple[str, str, tuple[Value, ...]]]) -> None:
        for trial in self.valid_trials():
            self._known[trial.measured.kind, trial.candidate.key] = trial
        self._unused = set(self._known)
        best, least = dict[_Slot, Value](), 1.0
        for _ in range(PASSES):
            before = best
            for site, name, values in choices:
                for value in values:
                    tried = {**best, (site, name): value}
                    if value == self._plan.topology[site].target[name]:
                        del tried[site, name]
                    ratio = self._ratio(tried, "search") if tried not in ({}, best) else 1.0
                    if ratio <= GAIN * least:
                        best, least = tried, ratio
            if best == before:
                break
        self._ratio(best, "confirm")

    def _ratio(self, settings: Mapping[_Slot, Value], kind: _Kind) -> float:
        """Return the cost of settings over that of the default, known or measured; 1 if time is up."""
        rows = [(site, name, settings[site, name]) for site, name in sorted(settings)]
        what = ", ".join(f"{name}={value} of @{site or '.'}" for site, name, value in rows) or "as it is"
        key = kind, _candidate(rows).key
        known = self._known.get(key)
        if known is not None and known.measured.baseline is not None:
            self.reused += kind == "search" and key in self._unused
            self._unused.discard(key)
            measured: _Compared = known.measured.baseline.costs, known.measured.costs, known.digest
        elif key[1] in self._failed or not self._may_try(kind):
            return 1.0
        else:
            compared = self._compare(what, rows, kind)
            if compared is None:
                return 1.0
            measured = compared
            status = "ok" if kind == "search" else "confirmed"
            self._report_progress(what, status, median_low(measured[0]), median_low(measured[1]))
        was, now, digest = median_low(measured[0]), median_low(measured[1]), measured[2]
        if kind == "confirm" and rows and now < was:
            self._finding = Finding("executor", what, "", was, now, 1, self.statuses["ok"], True, digest)
        return now / max(1, was)

    def _compare(self, what: str, rows: Sequence[_Row], kind: _Kind) -> _Compared | None:
        """Run by turns with the default; return the costs of both and the record, None for a failure."""
        candidate = _candidate(rows)
        variants = [Variant(self._placed), *([Variant(self._placed, _settings(rows))] if rows else [])]
        ran = self._programs.compare(variants, ROUNDS if kind == "confirm" else SLOW_ROUNDS)
        if not self.count_run(f"settings {what}", candidate, ran, is_trial=kind == "search"):
            return None
        base = own = ran.costs[0]
        trial = self._write([], base, base, kind)
        if rows:
            own = ran.costs[1]
            trial = self._write(rows, own, base, kind)
        return base, own, trial.digest

    def _may_try(self, kind: _Kind) -> bool:
        """Whether there is time; a confirmation needs no trial."""
        return self.has_time(self._longest) if kind == "search" else self._budget.seconds_left() > 0

    def _report_progress(self, what: str, status: str, was: int, now: int) -> None:
        if self._progress is not None:
            step = TuneProgress("executor", what, status, self._budget.done, self._budget.trials, was, min(was, now))
            self._progress(step)

    def _write(self, rows: Sequence[_Row], costs: Sequence[int], beside: Sequence[int], kind: _Kind) -> Trial:
        baseline = Baseline(costs=tuple(beside), identity=self._identity)
        measured = Measurement(status="ok", kind=kind, costs=tuple(costs), baseline=baseline)
        trial = self._log.add(self._workload, self._plan.topology.root, _candidate(rows), measured)
        self._known[kind, trial.candidate.key] = trial
        return trial


def _candidate(rows: Sequence[_Row]) -> Candidate:
    return Candidate(format=SETTINGS, body={"set": [list(row) for row in rows]})


def _settings(rows: Sequence[_Row]) -> Settings:
    """Return settings by leaf and attribute."""
    found: dict[str, dict[str, Value]] = {}
    for site, name, value in rows:
        found.setdefault(site, {})[name] = value
    return found
