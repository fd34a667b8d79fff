"""Import of AutoTVM logs of format 0.2, such as those of TopHub: one measurement per line.

The format is that of `python/tvm/autotvm/record.py` (TVM v0.6 to v0.19), the numbers of errors those of
`python/tvm/autotvm/measure/measure.py`. A configuration is kept as its text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tvmtarget.autotune.log.importers.import_common import (
    OWN_LOG,
    Imported,
    device_lookup,
    import_lines,
    leaf_of,
    opened,
    picoseconds,
    target_record,
)
from tvmtarget.autotune.log.records import Candidate, Environment, Measurement, Record, Status, Trial, Workload
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.errors import LogError
from tvmtarget.target.problems import shown
from tvmtarget.target.tree import Target

__all__ = ["import_autotvm"]

_FORMAT = "autotvm.config/0.2"

# MeasureErrorNo: none, template, compile for host, for device, run, wrong answer, build timeout, run timeout, unknown.
_STATUS: Sequence[Status] = (
    "ok",
    "rejected",
    "build_error",
    "build_error",
    "run_error",
    "wrong_output",
    "build_timeout",
    "run_timeout",
    "infra_error",
)


def import_autotvm(log: TuningLog, path: str | Path, *, targets: Iterable[Target] = ()) -> Imported:
    """Add the records of an AutoTVM log; a second import of it adds nothing.

    Args:
        log: the log to write.
        path: the file, which may be compressed by gzip.
        targets: devices; records of a target that TVM writes like one of them are of that device.

    Returns:
        The outcome.
    """
    with opened(Path(path)) as stream:
        return import_lines(log, stream, partial(_records, device_lookup(targets)))


def _records(device: Callable[[Target], Target], line: object) -> list[Record]:
    if not isinstance(line, dict):
        raise LogError(f"a record of AutoTVM is an object, not {shown(line)}")
    if line.keys() >= {"t", "v", "d"}:
        raise LogError(f"it is of {OWN_LOG}")
    if line.get("version") != 0.2:
        raise LogError(f"a record of AutoTVM has version 0.2, not {shown(line.get('version'))}")
    target_text, task, args = _several(line, "input", 3)
    costs, error, _, stamp = _several(line, "result", 4)
    config = line.get("config")
    if not isinstance(target_text, str) or not isinstance(task, str) or not isinstance(config, dict):
        raise LogError("a record of AutoTVM has a target and a task in 'input', and an object in 'config'")
    if not isinstance(error, int) or isinstance(error, bool) or not 0 <= error < len(_STATUS):
        raise LogError(f"the number of an error is 0 to {len(_STATUS) - 1}, not {shown(error)}")
    target, workload = target_record(device(leaf_of(target_text))), _workload(task, args)
    env = Environment.of({"tool": "autotvm", "apache-tvm": str(line.get("tvm_version", "unknown"))})
    trial = Trial(
        level="kernel",
        workload=workload.key,
        target=target.key,
        env=env.key,
        candidate=Candidate(format=_FORMAT, body=json.dumps(config, separators=(",", ":"), sort_keys=True)),
        measured=_measured(_STATUS[error], costs),
        src={"format": "autotvm/0.2"},
        ts=int(stamp) if isinstance(stamp, int | float) and 0 <= stamp < 2**53 else None,
    )
    return [target, workload, env, trial]


def _measured(status: Status, costs: object) -> Measurement:
    if status != "ok":
        return Measurement(status=status)
    ran = picoseconds(costs)
    if not ran:
        raise LogError(f"a measurement without an error has costs, not {shown(costs)}")
    return Measurement(status="ok", costs=ran)


def _several(line: Mapping[str, object], name: str, least: int) -> list[object]:
    found = line.get(name)
    if not isinstance(found, list) or len(found) < least:
        raise LogError(f"{name!r} of a record of AutoTVM is a list of {least}, not {shown(found)}")
    return found[:least]


def _workload(task: str, args: object) -> Workload:
    """Return the workload of a task; the sizes of its tensors stand apart, so that a family has any sizes."""
    shapes: list[object] = []
    return Workload.of({"op": task, "tool": "autotvm", "args": _plain(args, shapes), "shapes": shapes})


def _plain(value: object, shapes: list[object]) -> object:
    match value:
        case ["TENSOR", [*shape], str() as dtype]:
            shapes.append([_plain(size, []) for size in shape])
            return ["TENSOR", dtype]
        case list():
            return [_plain(item, shapes) for item in value]
        case dict():
            return {name: _plain(item, shapes) for name, item in value.items()}
        case float():
            return {"float": repr(value)}
        case None:
            return {"none": True}
        case _:
            return value
