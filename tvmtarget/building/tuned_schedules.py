"""Use a tuning log in a build: schedules of kernels, the placement of a program, and settings of leaves.

Placement and settings are looked up for the whole program, before it is compiled (`TunedChoices`). Schedules are looked
up kernel by kernel, while a backend compiles a leaf function (`LogSchedules`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from tvmtarget.autotune.log.applied import Applied
from tvmtarget.autotune.log.keys import workload_of
from tvmtarget.autotune.log.match import TIERS, Match, Policy
from tvmtarget.autotune.log.records import PROGRAM_FORMATS, Candidate, Level, Workload
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.backends.protocol import Kernel, backends
from tvmtarget.errors import TvmTargetError
from tvmtarget.ir.traces import TRACE_FORMAT, trace_problem
from tvmtarget.partition.plan import Plan
from tvmtarget.target.attributes import Value
from tvmtarget.target.keys import key_of
from tvmtarget.target.renaming import renamed_path
from tvmtarget.target.tree import Target

__all__ = [
    "PLACEMENT",
    "SAME_DEVICE",
    "SETTINGS",
    "LogSchedules",
    "Settings",
    "TunedChoices",
    "kernel_target",
    "kernel_workload",
    "lookup_kernel",
    "lookup_program",
    "opened_log",
    "placement_body",
    "placement_key",
    "program_workload",
    "sites_of",
]

PLACEMENT, SETTINGS = PROGRAM_FORMATS["graph"], PROGRAM_FORMATS["executor"]

# The default policy of a build: records of equal devices only. Times of a merely similar device can mislead.
SAME_DEVICE = Policy(max_distance=0)

Settings: TypeAlias = Mapping[str, Mapping[str, Value]]
_Value = TypeVar("_Value")


@contextmanager
def opened_log(log: TuningLog | str | Path) -> Iterator[TuningLog]:
    """Open a log by its URL and close it after the block; pass an open log through.

    Args:
        log: An open log, which stays open, or a file or URL.

    Yields:
        The open log.
    """
    if isinstance(log, TuningLog):
        yield log
        return
    with TuningLog(str(log)) as opened:
        yield opened


def kernel_target(leaf: Target) -> Target:
    """Return a leaf without its place in a tree, as records of kernels name it.

    Args:
        leaf: A leaf of a resolved tree.

    Returns:
        The same target for equal leaves of all trees.
    """
    return leaf.replace(name=None, host=None, count=1, executor=None, runtime=None)


def kernel_workload(kernel: Kernel) -> Workload:
    """Return the workload under which trials of a kernel are recorded.

    Args:
        kernel: A kernel of a backend.

    Returns:
        The workload, of level `kernel`.
    """
    text = {"text": kernel.text} if kernel.text else {}
    return Workload.of(kernel.body, "kernel", {**kernel.program, **text, "name": kernel.name})


def lookup_kernel(
    log: TuningLog,
    kernel: Kernel,
    target: Target,
    policy: Policy,
    reject: Callable[[Candidate], str | None] = lambda _candidate: None,
) -> Match:
    """Return the best match for a kernel on a leaf.

    Records of workloads that the kernel lists as equivalent for some format of candidates count too.

    Args:
        log: The log to search.
        kernel: The kernel.
        target: The leaf, as `kernel_target` returns it.
        policy: Which records may be used.
        reject: Returns why a candidate cannot be used, or None if it can.

    Returns:
        The match of the best tier; the kernel's own workload wins a tie.
    """

    def reject_unsafe(format_: str | None, candidate: Candidate) -> str | None:
        if format_ is not None and candidate.format != format_:
            return f"only candidates of format {format_!r} fit this kernel as well"
        problem = trace_problem(candidate.body) if candidate.format == TRACE_FORMAT else None
        return reject(candidate) if problem is None else f"the trace may not be applied: {problem}"

    search = partial(log.lookup, target=target, policy=policy, default=kernel.default or None)
    found = [search(kernel_workload(kernel), unusable=partial(reject_unsafe, None))]
    for format_, body in kernel.equivalents.items():
        workload = Workload.of(body, payload={"name": kernel.name})
        found.append(search(workload, unusable=partial(reject_unsafe, format_)))
    # `min` returns the first of equals, and the kernel's own workload was searched first.
    return min(found, key=lambda match: TIERS.index(match.tier))


def program_workload(plan: Plan, level: Level) -> Workload:
    """Return the workload of the unpartitioned program of a plan.

    Args:
        plan: A plan of the program.
        level: `graph` for placements, `executor` for settings.

    Returns:
        The workload.
    """
    return workload_of(plan.program.function, level)


def placement_body(plan: Plan) -> dict[str, object]:
    """Return the sites of a plan as the body of a candidate.

    Args:
        plan: The plan.

    Returns:
        `sites`: pairs of a site and a number of successive operations, in the order of the program.
    """
    return _placement_body(sites_of(plan))


def _placement_body(sites: Sequence[str]) -> dict[str, object]:
    return {"sites": [[site, len(list(group))] for site, group in groupby(sites)]}


def _placement_key(sites: Sequence[str]) -> str:
    return key_of("s1", _placement_body(sites))


def sites_of(plan: Plan) -> tuple[str, ...]:
    """Return the site of every operation; for one that a driver runs, the composite.

    Args:
        plan: The plan.

    Returns:
        Paths in the order of the operations of the program.
    """
    found = plan.sites()
    return tuple(found[call.source] for call in plan.program.body)


def placement_key(plan: Plan) -> str:
    """Return the key of the sites of a plan, by which records name their baseline.

    Args:
        plan: The plan.

    Returns:
        `s1:` and a digest.
    """
    return _placement_key(sites_of(plan))


def lookup_program(
    log: TuningLog,
    plan: Plan,
    level: Level,
    policy: Policy,
    reject: Callable[[Candidate, Mapping[str, str]], str | None] = lambda _candidate, _paths: None,
    *,
    is_default: bool = True,
) -> Match:
    """Return the best match for the placement or the settings of a program.

    If the log has no record for the plan's target, records of a target that differs only in the names of its nodes
    count as equal.

    Args:
        log: The log to search.
        plan: A plan of the program.
        level: `graph` for placements, `executor` for settings.
        policy: Which records may be used.
        reject: Returns why a candidate cannot be used, or None if it can. Its second argument maps paths in the target
            of the record to paths in the target of the plan; it is empty if they are the same.
        is_default: Whether the plan has the sites that records were compared with; a plan with sites from a log has
            not.

    Returns:
        The match; its tier is `default` if nothing was found.
    """
    workload, root = program_workload(plan, level), plan.topology.root
    match = log.lookup(
        workload,
        root,
        policy=policy,
        default=placement_key(plan) if is_default else None,
        unusable=lambda candidate: reject(candidate, {}),
    )
    if match.tier != "default":
        return match
    for source, paths in log.renamed(workload, root):
        # The key of a baseline holds sites, which the record names as in its own target.
        back = {new: old for old, new in paths.items()}
        sites = [renamed_path(site, back) for site in sites_of(plan)]
        found = log.lookup(
            workload,
            source,
            policy=policy,
            default=_placement_key(sites) if is_default else None,
            unusable=partial(_with_paths, reject, paths),
        )
        # Only names differ, so that an exact match of the renamed target is an equal one.
        if found.tier in ("pin", "exact", "equal"):
            return replace(found, target=root, tier="equal" if found.tier == "exact" else found.tier, paths=paths)
    return match


def _with_paths(
    reject: Callable[[Candidate, Mapping[str, str]], str | None], paths: Mapping[str, str], candidate: Candidate
) -> str | None:
    return reject(candidate, paths)


class TunedChoices:
    """Placement and settings of one build, from a log; `applied` records every lookup of them."""

    def __init__(self, log: TuningLog, policy: Policy = SAME_DEVICE) -> None:
        self.log = log
        self.policy = policy
        self.applied: list[Applied] = []

    def placed(self, plan: Plan) -> Plan:
        """Return the plan with the sites that were measured fastest for its program.

        Args:
            plan: A plan of the program.

        Returns:
            A plan with other sites, or the same plan if the log has none for it or the target is a single leaf.
        """
        if not plan.topology.root.is_composite:
            return plan

        def read(body: object, paths: Mapping[str, str]) -> Plan:
            return plan.with_sites([renamed_path(site, paths) for site in _read_sites(body, len(plan.program.body))])

        return self._best(plan, "graph", PLACEMENT, read) or plan

    def settings(self, plan: Plan) -> Settings:
        """Return the settings of leaves that were measured fastest for the program.

        Args:
            plan: A plan of the program.

        Returns:
            Values of attributes by site; empty if the log has none.
        """

        def read(body: object, paths: Mapping[str, str]) -> Settings:
            settings = {renamed_path(site, paths): values for site, values in _read_settings(body).items()}
            _check_settings(plan, settings)
            return settings

        return self._best(plan, "executor", SETTINGS, read) or {}

    def for_leaf(self, leaf: Target) -> LogSchedules:
        """Return the schedules of the kernels of a leaf.

        Args:
            leaf: A leaf of the target.

        Returns:
            Schedules that record the lookups of the backend.
        """
        return LogSchedules(self.log, kernel_target(leaf), self.policy)

    def _best(
        self, plan: Plan, level: Level, format_: str, read: Callable[[object, Mapping[str, str]], _Value]
    ) -> _Value | None:
        """Return the value of the best candidate that can be read, and record the lookup in `applied`."""

        @cache  # reading a placement partitions the program again
        def read_once(candidate: Candidate, paths: tuple[tuple[str, str], ...]) -> _Value:
            return read(candidate.body, dict(paths))

        def problem(candidate: Candidate, paths: Mapping[str, str]) -> str | None:
            if candidate.format != format_:
                return f"the candidate is of format {candidate.format!r}, not {format_!r}"
            try:
                read_once(candidate, tuple(paths.items()))
            # A candidate that cannot be read does not end the build; the next best one is used.
            except (TvmTargetError, ValueError) as error:
                return str(error).splitlines()[0]
            return None

        match = lookup_program(self.log, plan, level, self.policy, problem)
        self.applied.append(Applied.of("whole program", match.workload.key, match))
        return None if match.candidate is None else read_once(match.candidate, tuple(match.paths.items()))


@dataclass(frozen=True, slots=True)
class _Found:
    """A lookup of a backend, and the format and body that it returned."""

    kernel: Kernel
    formats: tuple[str, ...]
    schedule: tuple[str, object] | None

    def to_json(self) -> list[object]:
        return [_kernel_json(self.kernel), list(self.formats), self.schedule and list(self.schedule)]

    @classmethod
    def from_json(cls, kernel: Mapping[str, Any], formats: Sequence[str], schedule: Sequence[Any] | None) -> _Found:
        return cls(Kernel(**kernel), tuple(formats), None if schedule is None else (schedule[0], schedule[1]))


@dataclass(frozen=True, slots=True)
class _Rejected:
    """A backend could not use the last schedule of a kernel."""

    kernel: Kernel
    reason: str

    def to_json(self) -> list[object]:
        return [_kernel_json(self.kernel), self.reason]

    @classmethod
    def from_json(cls, kernel: Mapping[str, Any], reason: str) -> _Rejected:
        return cls(Kernel(**kernel), reason)


def _kernel_json(kernel: Kernel) -> dict[str, object]:
    """Return what lookups depend on; text and program only describe a workload that is recorded."""
    return {name: getattr(kernel, name) for name in ("name", "body", "calls", "default", "equivalents")}


class LogSchedules:
    """The schedules of the kernels of one leaf, which its backend looks up while it compiles a function."""

    def __init__(self, log: TuningLog, target: Target, policy: Policy = SAME_DEVICE) -> None:
        self._log = log
        self._target = target
        self._policy = policy
        self._applied: dict[str, Applied] = {}
        self._rejected: dict[str, dict[str, str]] = {}  # reasons by the keys of kernels and of candidates
        self._events: list[_Found | _Rejected] = []

    @property
    def applied(self) -> tuple[Applied, ...]:
        """The lookups and their results, in order."""
        return tuple(self._applied.values())

    def look_up(self, kernel: Kernel, formats: Sequence[str], rejected: Mapping[str, str]) -> Applied:
        """Search the log for a kernel, without recording the lookup.

        Args:
            kernel: The kernel.
            formats: The formats that the backend reads.
            rejected: Reasons why candidates cannot be used, by their keys.

        Returns:
            The result of the lookup.
        """

        def reject(candidate: Candidate) -> str | None:
            if candidate.format not in formats:
                return f"the candidate is of format {candidate.format!r}, not {' or '.join(map(repr, formats))}"
            return rejected.get(candidate.key) if rejected else None  # a key is a digest: compute it only if needed

        match = lookup_kernel(self._log, kernel, self._target, self._policy, reject)
        return Applied.of(kernel.label, kernel.key, match, kernel.calls)

    def find(self, kernel: Kernel, *formats: str) -> tuple[str, object] | None:
        """Return the best schedule of a kernel that the backend has not rejected.

        Args:
            kernel: The kernel.
            *formats: The formats that the backend reads.

        Returns:
            The format and the body of the schedule; None for the default schedule.
        """
        found = self.look_up(kernel, formats, self._rejected.get(kernel.key, {}))
        known = self._applied.get(kernel.key)
        if known is not None:
            found = replace(found if found.is_used or not known.note else known, calls=known.calls + kernel.calls)
        self._applied[kernel.key] = found
        schedule = (found.format, found.body) if found.is_used else None
        self._events.append(_Found(kernel, formats, schedule))
        return schedule

    def reject(self, kernel: Kernel, reason: str) -> None:
        """Record that the last schedule found for a kernel cannot be used.

        The next lookup returns the next best one.

        Args:
            kernel: The kernel.
            reason: Why the schedule cannot be used.
        """
        found = self._applied[kernel.key]
        self._rejected.setdefault(kernel.key, {})[Candidate(format=found.format, body=found.body).key] = reason
        # `find` adds the calls again when it returns the next best schedule.
        self._applied[kernel.key] = replace(found, body=None, note=reason, calls=found.calls - kernel.calls)
        self._events.append(_Rejected(kernel, reason))

    def repeated(self, earlier: LogSchedules) -> LogSchedules | None:
        """Repeat the lookups of an earlier build, and return them if all results are the same.

        Args:
            earlier: The schedules of an equal function, after it was compiled.

        Returns:
            Schedules with the same lookups as `earlier`, made in this log; None if a result differs.
        """
        return self._repeated(earlier._events)

    def events(self) -> list[list[object]]:
        """Return the lookups and rejections in order, as JSON data, for `replayed`."""
        return [event.to_json() for event in self._events]

    def replayed(self, events: Sequence[Sequence[Any]]) -> LogSchedules | None:
        """Repeat the lookups of another process, and return them if all results are the same.

        Args:
            events: What `events` returned there.

        Returns:
            Schedules with these lookups, made in this log; None if a result differs.
        """
        return self._repeated([(_Rejected if len(event) == 2 else _Found).from_json(*event) for event in events])

    def _repeated(self, events: Sequence[_Found | _Rejected]) -> LogSchedules | None:
        again = copy(self)
        again._applied, again._rejected, again._events = {}, {}, []
        for event in events:
            if isinstance(event, _Rejected):
                again.reject(event.kernel, event.reason)
            elif again.find(event.kernel, *event.formats) != event.schedule:
                return None
        return again


def _read_sites(body: object, count: int) -> list[str]:
    """Read the body of a placement: the sites of `count` operations, as pairs of a site and a number of operations."""
    runs = body.get("sites") if isinstance(body, Mapping) else None
    if not isinstance(runs, list | tuple):
        raise ValueError("the body of the placement has no 'sites'")
    if not all(
        # `type` instead of `isinstance`: a bool is an int in Python.
        isinstance(run, list | tuple) and len(run) == 2 and isinstance(run[0], str) and type(run[1]) is int
        for run in runs
    ):
        raise ValueError("the 'sites' of the placement are not pairs of a path and a number")
    if min((number for _, number in runs), default=1) < 1 or sum(number for _, number in runs) != count:
        raise ValueError(f"the placement is not one of {count} operations")
    return [site for site, number in runs for _ in range(number)]


def _read_settings(body: object) -> dict[str, dict[str, Value]]:
    """Read the body of settings: triples of a site, an attribute and its value."""
    rows = body.get("set") if isinstance(body, Mapping) else None
    if not isinstance(rows, list | tuple) or not all(isinstance(row, list | tuple) and len(row) == 3 for row in rows):
        raise ValueError("the body of the settings has no 'set' of sites, attributes and values")
    found: dict[str, dict[str, Value]] = {}
    for site, name, value in rows:
        found.setdefault(str(site), {})[str(name)] = value
    return found


def _check_settings(plan: Plan, settings: Settings) -> None:
    """Raise `ValueError` for settings that the backends do not offer.

    A log may come from someone else, so it must not set arbitrary attributes, such as options of LLVM that write files.
    """
    for site, values in settings.items():
        if site not in plan.topology:
            raise ValueError(f"the target has no site {site!r}")
        target = plan.topology[site].target
        offered = _offered_settings(target)
        for name, value in values.items():
            # What the user has stated is never replaced by a log.
            if name in target.attrs:
                raise ValueError(f"the target states {name!r} of @{site or '.'} itself")
            # Types are compared too, since True == 1 in Python.
            if not any(type(value) is type(one) and value == one for one in offered.get(name, ())):
                raise ValueError(f"{name}={value!r} of @{site or '.'} is not a setting that a log may choose")
        target.override(dict(values))


def _offered_settings(target: Target) -> Mapping[str, Sequence[Value]]:
    """Return the attributes of a leaf that its backends offer to tune, each with its values."""
    offered: dict[str, list[Value]] = {}
    for backend, lack in backends(target.kind):
        if lack is None:
            for name, values in backend.settings(target).items():
                offered.setdefault(name, []).extend(values)
    return offered
