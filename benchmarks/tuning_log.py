"""The tuning log beside MetaSchedule's JSONDatabase: the same records, opened, asked and added to, at growing sizes.

Records are of 50 workloads on 20 llvm targets, a trace of real length each. A question is "the best for this workload
on this target". JSONDatabase does not look at targets, so it is asked twice: for what it answers (its best, often of
another target), and for the right answer (all it has, filtered by target). Every row is a process of its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

SIDES = ("tvmtarget.db", "tvmtarget.jsonl", "JSONDatabase")
TARGETS, WORKLOADS = 20, 50
_SPLITS = [
    ["SamplePerfectTile", [f"l{at % 3 + 1}"], [4, 64], [f"v{4 * at + part}" for part in range(4)]] for at in range(7)
]
TRACE = [
    [["GetSBlock", [], ["C", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]], *_SPLITS],
    [[at, [2, 4, 2, 8]] for at in range(2, 9)],
]

# What is printed: a heading, the name in what a side tells, and the format of a cell.
COLUMNS = (
    ("commit us", "commit", ">10.1f"),
    ("open ms", "open_ms", ">10.1f"),
    ("MB", "rss_mb", ">8.1f"),
    ("any us", "any", ">9.0f"),
    ("right us", "right", ">9.0f"),
    ("near us", "near", ">9.0f"),
    ("append us", "append", ">10.0f"),
    ("B/record", "bytes", ">9d"),
)


def milliseconds(work: Callable[[], object]) -> float:
    """Return how long one call takes."""
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3


def rows(count: int) -> Iterator[tuple[int, int, int]]:
    """Yield (workload, target, cost in picoseconds), the same for every side."""
    rng = random.Random(0)
    for at in range(count):
        yield at // TARGETS % WORKLOADS, at % TARGETS, int(10 ** rng.uniform(6, 11))


def print_measured(commit: float, opening: float, rss: float, times: dict[str, Sequence[float]], size: int) -> None:
    """Print one side's figures as JSON, times in microseconds."""
    middle = {name: sorted(found)[len(found) // 2] * 1e3 for name, found in times.items()}
    print(json.dumps({"commit": commit * 1e3, "open_ms": opening, "rss_mb": rss, "bytes": size} | middle))


def megabytes() -> float:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def ours(folder: Path, suffix: str, count: int, questions: int) -> None:
    """Measure a log in a file."""
    from tvmtarget import Target, TuningLog
    from tvmtarget.target.identity import identity_of
    from tvmtarget.tuning.records import Candidate, Environment, Measurement, TargetRecord, Trial, Workload

    targets = [Target.parse(f"llvm(mcpu=znver4,num-cores={at + 1})") for at in range(TARGETS)]
    workloads = [Workload.of({"op": "matmul", "shapes": [[16 * at + 16] * 3]}) for at in range(WORKLOADS)]
    env, url = Environment.of({"tool": "benchmark"}), str(folder / f"log{suffix}")
    known = [*(TargetRecord(key=one.digest, body=identity_of(one)) for one in targets), *workloads, env]

    def trial(at: int, row: tuple[int, int, int]) -> Trial:
        trace = [TRACE[0], [*TRACE[1], [9, [at, 1]]]]
        return Trial(
            level="kernel",
            workload=workloads[row[0]].key,
            target=known[row[1]].key,
            env=env.key,
            candidate=Candidate(format="tvm.ms.trace/1", body=json.dumps(trace, separators=(",", ":"))),
            measured=Measurement(status="ok", costs=[row[2]] * 3),
        )

    with TuningLog(url) as log:
        log.extend(known)
        begin = time.perf_counter()
        log.extend(trial(at, row) for at, row in enumerate(rows(count)))
        commit = (time.perf_counter() - begin) / count * 1e3
    before = megabytes()
    opened: list[TuningLog] = []
    opening = milliseconds(lambda: opened.append(TuningLog(url)))
    (log,), rng = opened, random.Random(1)
    asked = [(rng.choice(workloads), rng.choice(targets)) for _ in range(questions)]
    elsewhere = [(workload, target.override({"mcpu": "znver5"})) for workload, target in asked]
    times = {
        "right": [milliseconds(lambda one=one: log.lookup(*one, env=env).require("exact")) for one in asked],
        "near": [milliseconds(lambda one=one: log.lookup(*one, env=env).require("near")) for one in elsewhere],
    }
    fresh = [trial(10**9 + at, (0, 0, 10**12)) for at in range(questions)]
    times["append"] = [milliseconds(lambda one=one: log.append(one)) for one in fresh]
    print_measured(commit, opening, megabytes() - before, times, Path(url).stat().st_size // count)


def theirs(folder: Path, count: int, questions: int) -> None:
    """Measure TVM's database in its two files; they are written by hand where it would take long."""
    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule as ms

    def program(size: int) -> tvm.IRModule:
        one, other = (te.placeholder((size, size), name=name) for name in "AB")
        k = te.reduce_axis((0, size), name="k")
        product = te.compute((size, size), lambda i, j: te.sum(one[i, k] * other[k, j], axis=k), name="C")
        return tvm.IRModule({"main": te.create_prim_func([one, other, product])})

    def traced(module: tvm.IRModule) -> object:
        schedule = tvm.s_tir.Schedule(module)
        for loop in schedule.get_loops(schedule.get_sblock("C")):
            schedule.split(loop, schedule.sample_perfect_tile(loop, 4))
        return schedule.trace

    targets = [tvm.target.Target({"kind": "llvm", "mcpu": "znver4", "num-cores": at + 1}) for at in range(TARGETS)]
    names = [str(folder / name) for name in ("workloads.json", "records.json")]
    database, programs = ms.database.JSONDatabase(*names), [program(16 * at + 16) for at in range(WORKLOADS)]
    known = [database.commit_workload(one) for one in programs]
    arguments = ms.arg_info.ArgInfo.from_prim_func(programs[0]["main"])
    trace = traced(programs[0])
    records = [ms.database.TuningRecord(trace, known[0], [1.0] * 3, target, arguments) for target in targets]
    begin = time.perf_counter()
    for record in records:
        for _ in range(questions // TARGETS):
            database.commit_tuning_record(record)
    commit = (time.perf_counter() - begin) / (questions // TARGETS * TARGETS) * 1e3
    spelled = [json.loads(line)[1] for line in Path(names[1]).read_text().splitlines()[:: questions // TARGETS]]
    with open(names[1], "w") as file:
        for workload, target, cost in rows(count):
            trace, _, *rest = spelled[target]
            file.write(json.dumps([workload, [trace, [cost / 1e12] * 3, *rest]], separators=(",", ":")) + "\n")
    before = megabytes()
    opened: list[object] = []
    opening = milliseconds(lambda: opened.append(ms.database.JSONDatabase(*names)))
    (database,), rng = opened, random.Random(1)
    asked = [(rng.choice(known), rng.choice(targets)) for _ in range(min(questions, 60))]

    def right(workload: object, target: object) -> object:
        found = database.get_top_k(workload, count)
        return next(one for one in found if str(one.target) == str(target))

    times = {
        "any": [milliseconds(lambda one=one: database.get_top_k(one[0], 1)) for one in asked],
        "right": [milliseconds(lambda one=one: right(*one)) for one in asked],
    }
    print_measured(commit, opening, megabytes() - before, times, Path(names[1]).stat().st_size // count)


def main() -> None:
    """Print a row for each size and side."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tuning_log", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        with tempfile.TemporaryDirectory() as folder:
            place, size = Path(folder), given.sizes[0]
            if given.side == "JSONDatabase":
                theirs(place, size, given.questions)
            else:
                ours(place, Path(given.side).suffix, size, given.questions)
        return
    sides = SIDES if importlib.util.find_spec("tvm") else SIDES[:2]
    widths = [form.split(".")[0].strip(">d") for _, _, form in COLUMNS]
    heading = "".join(f"{name:>{width}}" for (name, _, _), width in zip(COLUMNS, widths, strict=True))
    print(f"{'records':>8} {'':<15}{heading}")
    for size in given.sizes:
        for side in sides:
            command = [sys.executable, "-m", "benchmarks", "tuning_log", "--side", side, "--sizes", str(size),
                       "--questions", str(given.questions)]  # fmt: skip
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            cells = [
                f"{found[name]:{form}}" if name in found else f"{'-':>{width}}"
                for (_, name, form), width in zip(COLUMNS, widths, strict=True)
            ]
            print(f"{size:>8} {side:<15}{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
