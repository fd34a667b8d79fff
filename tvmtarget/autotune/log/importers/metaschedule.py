"""Import and export of MetaSchedule databases: a file of workloads, and a file of records that refer to their lines.

The format is that of `src/s_tir/meta_schedule/database/json_database.cc` (v0.9 to v0.27). Positions are valid in one
pair of files only, so they are not imported. Traces and programs are kept as texts, which need not be parsed.
MetaSchedule ignores the target of a record; an export therefore has one pair of files for each tuning key, so that TVM
finds the records of that device only.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tvmtarget.autotune.log.importers.import_common import (
    Imported,
    device_lookup,
    import_lines,
    leaf_of,
    opened,
    picoseconds,
    target_record,
    writable,
)
from tvmtarget.autotune.log.importers.tvm_programs import Programs
from tvmtarget.autotune.log.records import (
    Alias,
    Candidate,
    Environment,
    Measurement,
    Record,
    Retraction,
    TargetRecord,
    Trial,
    Workload,
)
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.errors import LogError, TvmTargetError
from tvmtarget.files import write_folder
from tvmtarget.human_units import counted
from tvmtarget.ir.traces import TRACE_FORMAT, trace_problem
from tvmtarget.target.problems import shown
from tvmtarget.target.tree import Target

__all__ = ["RECORDS", "WORKLOADS", "candidate_problem", "export_metaschedule", "import_metaschedule", "left_out"]

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"

# Instructions of traces that have another name today (since TVM 0.24, apache/tvm#18689); a log may know more of them.
_ALIASES: Mapping[str, str] = {"GetBlock": "GetSBlock"}
_ENV = Environment.of({"tool": "metaschedule"})


def import_metaschedule(log: TuningLog, folder: str | Path, *, targets: Iterable[Target] = ()) -> Imported:
    """Add the database of a folder; a second import of it adds nothing.

    With TVM installed, a program that it can read is identified by what it computes, like the kernels of a build, so
    that builds find it; otherwise by its bytes.

    Args:
        log: the log to write.
        folder: the folder with both files.
        targets: devices; records of a target that TVM writes like one of them are of that device, with the caches and
            memories that TVM leaves out.

    Returns:
        The outcome.
    """
    folder, device = Path(folder), device_lookup(targets)
    workloads: list[Workload | str] = []
    with opened(folder / WORKLOADS) as stream, Programs() as tvm:
        programs = import_lines(log, stream, partial(_workload, tvm, workloads))
    with opened(folder / RECORDS) as stream:
        records = import_lines(log, stream, partial(_records, workloads, device))
    return Imported(programs.read + records.read, programs.added + records.added, programs.rejected + records.rejected)


def _workload(tvm: Programs, found: list[Workload | str], line: object) -> Sequence[Record]:
    """Parse a line of the file of workloads; one that is rejected keeps its position."""
    found.append("its workload was rejected")
    match line:
        case [str() as structural_hash, str() as encoded]:
            pass
        case _:
            raise LogError(f"a workload of MetaSchedule is a hash and a program, not {shown(line)}")
    try:
        program = base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise LogError(f"the program is not base64: {error}") from error
    payload: dict[str, object] = {"format": "tvm.ir.json", "hash": structural_hash, "b64": encoded}
    name, body = tvm.read([structural_hash, encoded]) or ("", {"op": "tvm.program", "bytes": _digest(program)})
    workload = Workload.of(body, payload=payload | ({"name": name} if name else {}))
    made = writable([workload])
    found[-1] = workload
    return made


def _records(workloads: Sequence[Workload | str], device: Callable[[Target], Target], line: object) -> list[Record]:
    match line:
        case [int() as at, [trace, costs, dict() as target, args]] if not isinstance(at, bool):
            pass
        case _:
            raise LogError(f"a record of MetaSchedule is a number and a list of four, not {shown(line)}")
    if not 0 <= at < len(workloads):
        raise LogError(f"there is no workload {at}; the other file has {len(workloads)}")
    workload = workloads[at]
    if isinstance(workload, str):
        raise LogError(f"workload {at}: {workload}")
    problem = trace_problem(trace)
    if problem is not None:
        raise LogError(f"its trace may not be applied: {problem}")
    known = target_record(device(leaf_of(json.dumps(target))))
    ran = () if costs is None else picoseconds(costs)
    trial = Trial(
        level="kernel",
        workload=workload.key,
        target=known.key,
        env=_ENV.key,
        candidate=Candidate(format=TRACE_FORMAT, body=_compact(trace)),
        measured=Measurement(status="ok", costs=ran) if ran else Measurement(status="infra_error"),
        src={"format": "metaschedule/1", "rest": _compact([target, args])},
    )
    return [known, _ENV, trial]


def export_metaschedule(log: TuningLog, folder: str | Path, *, best: int = 1) -> dict[str, Path]:
    """Write a database of TVM for each tuning key in a log.

    Instructions that TVM has renamed, or that aliases in the log rename, are written with their new names.

    Args:
        log: the log.
        folder: where to make a folder for each key.
        best: how many traces to write for each workload.

    Returns:
        The folders by tuning key.

    Raises:
        LogError: no record can be written, or a folder cannot be made.
    """
    targets: dict[str, Target] = {}
    programs: dict[str, Workload] = {}
    for record in log:
        if isinstance(record, Workload) and _program(record) is not None:
            programs.setdefault(record.key, record)
        elif isinstance(record, TargetRecord):
            try:
                target = Target.from_json(record.body, tags={})
                target.to_tvm()
                targets.setdefault(target.tuning_key(), target)
            except TvmTargetError:  # a composite, or a kind that TVM does not have
                continue
    workloads, aliases = [programs[key] for key in sorted(programs)], _aliases(log)
    written = {}
    for key, target in sorted(targets.items()):
        place = Path(folder) / key.replace(":", "-")
        if _export_pair(place, workloads, [_best(log, one, target, best) for one in workloads], target, aliases):
            written[key] = place
    if not written:
        reasons = [f"{counted(count, 'trial')}: {reason}" for reason, count in left_out(log).items()]
        raise LogError("no record of the log can be written for MetaSchedule", *(reasons or ["it has no trial"]))
    return written


def left_out(log: TuningLog) -> dict[str, int]:
    """Count the trials that an export for MetaSchedule leaves out.

    Args:
        log: the log.

    Returns:
        Counts by reason.
    """
    records = list(log)
    gone = {record.of for record in records if isinstance(record, Retraction)}
    programs = {one.key for one in records if isinstance(one, Workload) and _program(one) is not None}
    targets = {one.key: _tvm_problem(one) for one in records if isinstance(one, TargetRecord)}
    found = Counter[str]()
    for trial in (one for one in records if isinstance(one, Trial) and one.digest not in gone):
        reason = candidate_problem(trial.candidate)
        unknown = "the log has no record of the target"
        if trial.measured.status != "ok":
            found[f"the measurement failed with status {trial.measured.status!r}"] += 1
        elif reason is not None:
            found[reason] += 1
        elif trial.workload not in programs:
            found["the log has no TVM program of the workload"] += 1
        elif targets.get(trial.target, unknown):
            found[targets.get(trial.target, unknown)] += 1
    return dict(sorted(found.items()))


def _tvm_problem(record: TargetRecord) -> str:
    """Return why TVM cannot represent a target; empty if it can."""
    try:
        target = Target.from_json(record.body, tags={})
        target.to_tvm()
        target.tuning_key()
    except TvmTargetError as error:
        return str(error).splitlines()[0]
    return ""


def _program(workload: Workload) -> list[str] | None:
    """Return the hash and the program of a workload as MetaSchedule stores them; None if it has none."""
    match workload.payload:
        case {"format": "tvm.ir.json", "hash": str() as structural_hash, "b64": str() as encoded}:
            return [structural_hash, encoded]
        case _:
            return None


def _aliases(log: TuningLog) -> dict[str, str]:
    """Return the new names of instructions by the old ones; aliases in the log override ours."""
    retracted = {record.of for record in log if isinstance(record, Retraction)}
    renames = {one for one in log if isinstance(one, Alias) and one.kind == "inst" and one.digest not in retracted}
    aliases = {**_ALIASES, **{one.old: one.new for one in sorted(renames, key=lambda one: one.text)}}
    return {name: _last(name, aliases) for name in aliases}


def _last(name: str, aliases: Mapping[str, str]) -> str:
    seen = {name}
    while (following := aliases.get(name, name)) not in seen:
        seen.add(name := following)
    return name


def _best(log: TuningLog, workload: Workload, target: Target, count: int) -> list[Trial]:
    found = log.top_k(workload, target, count, unusable=candidate_problem)
    return [match.record for match in found if isinstance(match.record, Trial)]


def candidate_problem(candidate: Candidate) -> str | None:
    """Return why MetaSchedule cannot replay a candidate.

    Args:
        candidate: the candidate of a trial.

    Returns:
        The reason; None if it can.
    """
    if candidate.format != TRACE_FORMAT:
        return f"MetaSchedule replays candidates of format {TRACE_FORMAT!r}, not {candidate.format!r}"
    problem = trace_problem(candidate.body)
    return None if problem is None else f"the candidate is not a valid trace: {problem}"


def _export_pair(
    place: Path,
    workloads: Sequence[Workload],
    trials: Sequence[Sequence[Trial]],
    target: Target,
    aliases: Mapping[str, str],
) -> bool:
    if not any(trials):
        return False
    rest = _compact([target.to_tvm().config, []])
    programs: list[str] = []
    records: list[str] = []
    for workload, best in zip(workloads, trials, strict=True):
        records += [_record_line(len(programs), trial, rest, aliases) for trial in best]
        if best:
            programs.append(_compact(_program(workload)))
    files = {WORKLOADS: programs, RECORDS: records}
    try:
        write_folder(
            place, {name: "".join(f"{line}\n" for line in lines).encode() for name, lines in files.items()}, [RECORDS]
        )
    except OSError as error:
        raise LogError(f"{str(place)!r} cannot be made: {error.strerror or error}") from error
    return True


def _record_line(at: int, trial: Trial, rest: str, aliases: Mapping[str, str]) -> str:
    """Return a line of the file of records; `rest` is its target and arguments, unless the trial was imported."""
    costs = "[" + ",".join(f"{cost / 10**12:.12g}" for cost in trial.measured.costs) + "]"
    if isinstance(trial.src, dict) and _is_rest(imported := str(trial.src.get("rest"))):
        rest = imported
    return f"[{at},[{_renamed(str(trial.candidate.body), aliases)},{costs},{rest[1:]}]"


def _is_rest(text: str) -> bool:
    try:
        match json.loads(text):
            case [dict(), list()]:
                return True
    except (ValueError, RecursionError):
        pass
    return False


def _renamed(trace: str, aliases: Mapping[str, str]) -> str:
    """Return a trace with the new names of instructions."""
    instructions, decisions = json.loads(trace)
    return _compact([[[aliases.get(name, name), *rest] for name, *rest in instructions], decisions])


def _compact(data: object) -> str:
    return json.dumps(data, separators=(",", ":"))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
