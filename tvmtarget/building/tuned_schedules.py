"""What a tuning log advises for a build: schedules of kernels, the placement of a program, settings of leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import TypeAlias, TypeVar

from tvmtarget.autotune.log.applied import Applied
from tvmtarget.autotune.log.keys import workload_of
from tvmtarget.autotune.log.match import TIERS, Match, Policy
from tvmtarget.autotune.log.records import Candidate, Level, Workload
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.backends.protocol import ConfigurableBackend, Kernel, backends
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

PLACEMENT = "tvmtarget.placement/1"
SETTINGS = "tvmtarget.settings/1"

# A build takes only what was measured on this device or one equal to it, unless it is told otherwise.
SAME_DEVICE = Policy(max_distance=0)

Settings: TypeAlias = Mapping[str, Mapping[str, Value]]
_Read = TypeVar("_Read")


@contextmanager
def opened_log(log: TuningLog | str | Path) -> Iterator[TuningLog]:
    """Give a log; one that is given by its URL is opened, and closed again."""
    if isinstance(log, TuningLog):
        yield log
        return
    with TuningLog(str(log)) as opened:
        yield opened


def kernel_target(leaf: Target) -> Target:
    """Return a leaf without what it inherits, as kernels are tuned on it: the same in every tree."""
    return leaf.replace(name=None, host=None, count=1, executor=None, runtime=None)


def kernel_workload(kernel: Kernel) -> Workload:
    """Return the workload that a kernel is."""
    text = {"text": kernel.text} if kernel.text else {}
    return Workload.of(kernel.body, "kernel", {**kernel.program, **text, "name": kernel.name})


def lookup_kernel(
    log: TuningLog,
    kernel: Kernel,
    target: Target,
    policy: Policy,
    refuses: Callable[[Candidate], str | None] = lambda _candidate: None,
) -> Match:
    """Return the best that a log knows for a kernel on a leaf, be it of a workload that is alike for its candidates."""

    def refused(format_: str | None, candidate: Candidate) -> str | None:
        if format_ is not None and candidate.format != format_:
            return f"only what is of format {format_!r} is as good for this kernel"
        problem = trace_problem(candidate.body) if candidate.format == TRACE_FORMAT else None
        return refuses(candidate) if problem is None else f"the trace may not be applied: {problem}"

    ask = partial(log.lookup, target=target, policy=policy, default=kernel.default or None)
    found = [ask(kernel_workload(kernel), unusable=partial(refused, None))]
    for format_, body in kernel.alike.items():
        found.append(ask(Workload.of(body, payload={"name": kernel.name}), unusable=partial(refused, format_)))
    return min(found, key=lambda match: TIERS.index(match.tier))


def program_workload(plan: Plan, level: Level) -> Workload:
    """Return the workload that the undivided program of a plan is."""
    return workload_of(plan.program.function, level)


def placement_body(plan: Plan) -> dict[str, object]:
    """Return a placement as the log holds it: sites, and for how many operations in a row each stands."""
    return _body(sites_of(plan))


def _body(sites: Sequence[str]) -> dict[str, object]:
    return {"sites": [[site, len(list(group))] for site, group in groupby(sites)]}


def _identity(sites: Sequence[str]) -> str:
    return key_of("s1", _body(sites))


def sites_of(plan: Plan) -> tuple[str, ...]:
    """Return the site of every operation, in the order of the program; of what a driver runs, the driver's system."""
    found = plan.sites()
    return tuple(found[call.source] for call in plan.program.body)


def placement_key(plan: Plan) -> str:
    """Return `s1:` and a digest of where a plan has what: the default beside which placement and settings count."""
    return _identity(sites_of(plan))


def lookup_program(
    log: TuningLog,
    plan: Plan,
    level: Level,
    policy: Policy,
    refuses: Callable[[Candidate, Mapping[str, str]], str | None] = lambda _candidate, _paths: None,
    *,
    is_default: bool = True,
) -> Match:
    """Return the best that a log knows for the placement or the settings of a program.

    Where nothing is known on the plan's target, what was measured on one with other names of children counts as equal.
    `refuses` gets the paths in the plan's target by those of the record; none where they are the same. A plan that is
    not `is_default`, as it has been placed by a log, is not what records were compared with.
    """
    workload, root = program_workload(plan, level), plan.topology.root
    match = log.lookup(
        workload,
        root,
        policy=policy,
        default=placement_key(plan) if is_default else None,
        unusable=lambda candidate: refuses(candidate, {}),
    )
    if match.tier != "default":
        return match
    for source, paths in log.renamed(workload, root):
        back = {new: old for old, new in paths.items()}
        sites = [renamed_path(site, back) for site in sites_of(plan)]
        found = log.lookup(
            workload,
            source,
            policy=policy,
            default=_identity(sites) if is_default else None,
            unusable=partial(_refused_as, refuses, paths),
        )
        if found.tier in ("pin", "exact", "equal"):
            return replace(found, target=root, tier="equal" if found.tier == "exact" else found.tier, paths=paths)
    return match


def _refused_as(
    refuses: Callable[[Candidate, Mapping[str, str]], str | None], paths: Mapping[str, str], candidate: Candidate
) -> str | None:
    return refuses(candidate, paths)


class TunedChoices:
    """Asks a log for one build, and remembers what it said in `applied`, without that for kernels."""

    def __init__(self, log: TuningLog, policy: Policy = SAME_DEVICE) -> None:
        self.log = log
        self.policy = policy
        self.applied: list[Applied] = []

    def placed(self, plan: Plan) -> Plan:
        """Return the plan with the sites that were measured best for its program; itself if nothing is known."""
        if not plan.topology.root.is_composite:
            return plan

        def read(body: object, paths: Mapping[str, str]) -> Plan:
            return plan.with_sites([renamed_path(site, paths) for site in _sites(body, len(plan.program.body))])

        return self._whole(plan, "graph", PLACEMENT, read) or plan

    def settings(self, plan: Plan) -> Settings:
        """Return the attributes to set by leaf, as they were measured best for the program."""

        def read(body: object, paths: Mapping[str, str]) -> Settings:
            return _checked(plan, {renamed_path(site, paths): values for site, values in _settings(body).items()})

        return self._whole(plan, "executor", SETTINGS, read) or {}

    def for_leaf(self, leaf: Target) -> LogSchedules:
        """Return what is known of the kernels of a leaf."""
        return LogSchedules(self.log, kernel_target(leaf), self.policy)

    def _whole(
        self, plan: Plan, level: Level, format_: str, read: Callable[[object, Mapping[str, str]], _Read]
    ) -> _Read | None:
        """Parse the best candidate that can be parsed, and record the match in `applied`."""

        @cache  # parsing a placement plans the program again
        def parsed(candidate: Candidate, paths: tuple[tuple[str, str], ...]) -> _Read:
            return read(candidate.body, dict(paths))

        def reason(candidate: Candidate, paths: Mapping[str, str]) -> str | None:
            if candidate.format != format_:
                return f"the candidate is of format {candidate.format!r}, not {format_!r}"
            try:
                parsed(candidate, tuple(paths.items()))
            except (TvmTargetError, ValueError) as error:
                return str(error).splitlines()[0]
            return None

        match = lookup_program(self.log, plan, level, self.policy, reason)
        self.applied.append(Applied.of("whole program", match.workload.key, match))
        return None if match.candidate is None else parsed(match.candidate, tuple(match.paths.items()))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a backend asked for, and what it was told."""

    kernel: Kernel
    formats: tuple[str, ...]
    answer: tuple[str, object] | None


@dataclass(frozen=True, slots=True)
class _Refused:
    """That a backend could not use what it was told last, and why."""

    kernel: Kernel
    reason: str


class LogSchedules:
    """The schedules of the kernels of one leaf, as its backend asks for them."""

    def __init__(self, log: TuningLog, target: Target, policy: Policy = SAME_DEVICE) -> None:
        self._log = log
        self._target = target
        self._policy = policy
        self._applied: dict[str, Applied] = {}
        self._refused: dict[str, dict[str, str]] = {}  # why, by the keys of kernels and of candidates
        self._events: list[_Asked | _Refused] = []

    @property
    def applied(self) -> tuple[Applied, ...]:
        """What was asked for and what was found, in order."""
        return tuple(self._applied.values())

    def look_up(self, kernel: Kernel, formats: Sequence[str], refused: Mapping[str, str]) -> Applied:
        """Return what the log has for a kernel among candidates of some formats; `refused` says of others why not."""

        def reason(candidate: Candidate) -> str | None:
            if candidate.format not in formats:
                return f"the candidate is of format {candidate.format!r}, not {' or '.join(map(repr, formats))}"
            return refused.get(candidate.key) if refused else None

        match = lookup_kernel(self._log, kernel, self._target, self._policy, reason)
        return Applied.of(kernel.name, kernel.key, match, kernel.calls)

    def find(self, kernel: Kernel, *formats: str) -> tuple[str, object] | None:
        """Return the best schedule of a kernel that was not refused, None for the default."""
        found = self.look_up(kernel, formats, self._refused.get(kernel.key, {}))
        known = self._applied.get(kernel.key)
        if known is not None:
            found = replace(found if found.is_used or not known.note else known, calls=known.calls + kernel.calls)
        self._applied[kernel.key] = found
        answer = (found.format, found.body) if found.is_used else None
        self._events.append(_Asked(kernel, formats, answer))
        return answer

    def refuse(self, kernel: Kernel, reason: str) -> None:
        """Remember that what was found for a kernel cannot be used, and why; `find` may know something else."""
        found = self._applied[kernel.key]
        self._refused.setdefault(kernel.key, {})[Candidate(format=found.format, body=found.body).key] = reason
        self._applied[kernel.key] = replace(found, body=None, note=reason, calls=found.calls - kernel.calls)
        self._events.append(_Refused(kernel, reason))

    def repeats(self, earlier: LogSchedules) -> bool:
        """Ask what was asked earlier; return whether the answers are the same, and if so take them for one's own."""
        again = copy(self)
        again._applied, again._refused, again._events = {}, {}, []
        for event in earlier._events:
            if isinstance(event, _Refused):
                again.refuse(event.kernel, event.reason)
            elif again.find(event.kernel, *event.formats) != event.answer:
                return False
        self._applied, self._refused, self._events = again._applied, again._refused, again._events
        return True


def _sites(body: object, count: int) -> list[str]:
    """Read the body of a placement of so many operations: pairs of a site and for how many in a row it stands."""
    runs = body.get("sites") if isinstance(body, Mapping) else None
    if not isinstance(runs, list | tuple):
        raise ValueError("the body of the placement has no 'sites'")
    if not all(
        isinstance(run, list | tuple) and len(run) == 2 and isinstance(run[0], str) and type(run[1]) is int
        for run in runs
    ):
        raise ValueError("the 'sites' of the placement are not pairs of a path and a number")
    if min((number for _, number in runs), default=1) < 1 or sum(number for _, number in runs) != count:
        raise ValueError(f"the placement is not one of {count} operations")
    return [site for site, number in runs for _ in range(number)]


def _settings(body: object) -> dict[str, dict[str, Value]]:
    """Read the body of settings: triples of a site, an attribute and its value."""
    rows = body.get("set") if isinstance(body, Mapping) else None
    if not isinstance(rows, list | tuple) or not all(isinstance(row, list | tuple) and len(row) == 3 for row in rows):
        raise ValueError("the body of the settings has no 'set' of sites, attributes and values")
    found: dict[str, dict[str, Value]] = {}
    for site, name, value in rows:
        found.setdefault(str(site), {})[str(name)] = value
    return found


def _checked(plan: Plan, settings: Settings) -> Settings:
    """Return settings that are among those which backends say are worth trying; `ValueError` for any other."""
    for site, values in settings.items():
        if site not in plan.topology:
            raise ValueError(f"the target has no site {site!r}")
        target = plan.topology[site].target
        known = _settings_of(target)
        for name, value in values.items():
            if name in target.attrs:
                raise ValueError(f"the target says itself what {name!r} of @{site or '.'} is")
            if not any(type(value) is type(one) and value == one for one in known.get(name, ())):
                raise ValueError(f"{name}={value!r} of @{site or '.'} is no setting that a log may choose")
        target.override(dict(values))
    return settings


def _settings_of(target: Target) -> Mapping[str, Sequence[Value]]:
    """Return the settings of the backends for a leaf, each with the values that it may have."""
    known: dict[str, list[Value]] = {}
    for backend, lack in backends(target.kind):
        if lack is None and isinstance(backend, ConfigurableBackend):
            for name, values in backend.settings(target).items():
                known.setdefault(name, []).extend(values)
    return known
