"""The tuning log compared with MetaSchedule's JSONDatabase: the same records, opened, queried and added to.

Records are of 50 workloads on 20 llvm targets, each with a trace of realistic length. A query is "the best for this
workload on this target". JSONDatabase does not look at targets, so it is queried twice: for what it returns (its best,
often of another target), and for the right record (all records, filtered by target). Every row is a process of its own,
all in one run; times are processor times, medians. Ratios and goals are printed below the rows, then what only a log
can do.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._arguments import at_least

if TYPE_CHECKING:
    from tvmtarget import Target
    from tvmtarget.autotune.log.records import Trial

SIDES = ("tvmtarget.db", "tvmtarget.jsonl", "JSONDatabase")
TARGETS, WORKLOADS, BATCH, WRITERS = 20, 50, 64, 8
_SPLITS = [
    ["SamplePerfectTile", [f"l{at % 3 + 1}"], [4, 64], [f"v{4 * at + part}" for part in range(4)]] for at in range(7)
]
TRACE = [
    [["GetSBlock", [], ["C", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]], *_SPLITS],
    [[at, [2, 4, 2, 8]] for at in range(2, 9)],
]

# The columns: heading, name in the figures of a side, format of a cell.
COLUMNS = (
    ("commit us", "commit", ">10.1f"),
    ("open ms", "open_ms", ">11.1f"),
    ("MB", "rss_mb", ">8.1f"),
    ("any us", "any", ">9.0f"),
    ("right us", "right", ">10.0f"),
    ("p95 us", "right_p95", ">9.0f"),
    ("near us", "near", ">9.0f"),
    ("append us", "append", ">10.0f"),
    ("B/record", "bytes", ">9.0f"),
    ("gzip B", "packed", ">8.0f"),
)

# Limits for a database with the most records, and for its ratios to JSONDatabase.
GOALS = (
    ("open ms", "open_ms", 20),
    ("MB after the lookups", "rss_mb", 30),
    ("right us", "right", 150),
    ("right us, p95", "right_p95", 400),
    ("commit us", "commit", 100),
    ("bytes of a record", "bytes", 1300),
)
RATIOS = (("open ms", "open_ms", 1000), ("right us", "right", 400))


def milliseconds(work: Callable[[], object]) -> float:
    """Return the processor time of one call."""
    begin = time.process_time()
    work()
    return (time.process_time() - begin) * 1e3


def rows(count: int) -> Iterator[tuple[int, int, int]]:
    """Yield workload, target and cost in picoseconds of each record, the same for every side."""
    rng = random.Random(0)
    for at in range(count):
        yield at // TARGETS % WORKLOADS, at % TARGETS, int(10 ** rng.uniform(6, 11))


def print_measured(path: Path, count: int, times: Mapping[str, Sequence[float]], **found: float) -> None:
    """Print the figures of one side as JSON: times of calls, in milliseconds, become medians in microseconds."""
    medians = {name: sorted(some)[len(some) // 2] * 1e3 for name, some in times.items()}
    late = sorted(times["right"])[int(0.95 * len(times["right"]))] * 1e3
    size = path.stat().st_size / count
    if path.suffix != ".db":
        found["packed"] = len(gzip.compress(path.read_bytes(), 6)) / count
    print(json.dumps({**found, "right_p95": late, "bytes": size, **medians}))


def megabytes() -> float:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


class Rows:
    """The targets, workloads and trials of the benchmark's logs."""

    def __init__(self, targets: int = TARGETS) -> None:
        from tvmtarget import Target
        from tvmtarget.autotune.log.records import Environment, TargetRecord, Workload
        from tvmtarget.target.identity import identity_of

        self.targets = [Target.parse(f"llvm(mcpu=znver4,num-cores={at + 1})") for at in range(targets)]
        self.workloads = [Workload.of({"op": "matmul", "shapes": [[16 * at + 16] * 3]}) for at in range(WORKLOADS)]
        self.env = Environment.of({"tool": "benchmark"})
        lines = [TargetRecord(key=one.digest, body=identity_of(one)) for one in self.targets]
        self.keys = [one.key for one in lines]
        self.known = [*lines, *self.workloads, self.env]

    def trial(self, at: int, workload: int, target: int, cost: int) -> Trial:
        """Return a trial; each `at` is another candidate."""
        from tvmtarget.autotune.log.records import Candidate, Measurement, Trial

        trace = [TRACE[0], [*TRACE[1], [9, [at, 1]]]]
        return Trial(
            level="kernel",
            workload=self.workloads[workload].key,
            target=self.keys[target],
            env=self.env.key,
            candidate=Candidate(format="tvm.ms.trace/1", body=json.dumps(trace, separators=(",", ":"))),
            measured=Measurement(status="ok", costs=[cost] * 3),
        )


def elsewhere(target: Target) -> Target:
    """Return a near target without records."""
    return target.override({"mcpu": "znver5"})


def ours(folder: Path, suffix: str, count: int, queries: int) -> None:
    """Measure a log: a database, or the file of lines that it exports, which is only read."""
    from tvmtarget import TuningLog

    made, database = Rows(), folder / "log.db"
    path = folder / f"log{suffix}"
    commit = in_a_child(lambda: fill(database, made, count))
    if path != database:
        in_a_child(lambda: TuningLog(str(database)).export(path))
    before = megabytes()
    opened: list[TuningLog] = []
    opening = milliseconds(lambda: opened.append(TuningLog(str(path))))
    (log,), rng = opened, random.Random(1)
    pairs = [(rng.choice(made.workloads), rng.choice(made.targets)) for _ in range(queries)]
    times = {"right": [milliseconds(lambda one=one: log.lookup(*one, env=made.env).require("exact")) for one in pairs]}
    memory = megabytes() - before
    near = [(workload, elsewhere(target)) for workload, target in pairs]
    times["near"] = [milliseconds(lambda one=one: log.lookup(*one, env=made.env).require("near")) for one in near]
    if path != database:
        print_measured(path, count, times, open_ms=opening, rss_mb=memory)
        return
    fresh = [made.trial(10**9 + at, 0, 0, 10**12) for at in range(queries)]
    times["append"] = [milliseconds(lambda one=one: log.append(one)) for one in fresh]
    print_measured(path, count + queries, times, commit=commit, open_ms=opening, rss_mb=memory)


def fill(path: Path, made: Rows, count: int) -> float:
    """Write a database, 64 records a commit; return the microseconds of one, including its key and digest."""
    from tvmtarget import TuningLog

    took, left = 0.0, enumerate(rows(count))
    with TuningLog(str(path)) as log:
        log.extend(made.known)
        while some := [made.trial(at, *row) for at, row in islice(left, BATCH)]:
            took += milliseconds(lambda some=some: log.extend(some))
    return took / count * 1e3


def in_a_child(work: Callable[[], float]) -> float:
    """Run a function in a process of its own, so that this one keeps none of its memory; return the result."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, repr(work()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as result:
        found = float(result.read())
    os.waitpid(child, 0)
    return found


def only_ours(folder: Path, count: int, queries: int) -> None:
    """Measure what JSONDatabase cannot do: carrying records over, reading and merging lines, several writers."""
    from tvmtarget import TuningLog

    made = Rows(200)
    queries = min(queries, 200)
    with TuningLog("memory:") as log:
        log.extend([*made.known, *(made.trial(at, 0, at, 10**9 + at) for at in range(200))])
        targets = [elsewhere(made.targets[at % 200]) for at in range(queries)]
        times = [milliseconds(lambda one=one: log.lookup(made.workloads[0], one, env=made.env)) for one in targets]
        again = [milliseconds(lambda one=one: log.lookup(made.workloads[0], one, env=made.env)) for one in targets]
        first, second = (sorted(some)[len(some) // 2] for some in (times, again))
        print(
            f"near lookup among 200 targets: {first:.2f} ms for a new target, {second:.2f} ms for one looked up before"
        )
    lines, database = folder / "log.jsonl", folder / "log.db"
    with lines.open("w") as file:
        trials = (made.trial(at, *row).text for at, row in enumerate(rows(count)))
        file.writelines(f"{text}\n" for text in chain((one.text for one in made.known), trials))
    opened: list[TuningLog] = []
    took = milliseconds(lambda: opened.append(TuningLog(str(lines)))) / 1e3
    print(f"a file of {count} lines read and checked: {took:.2f} s of the processor, {took / count * 1e6:.1f} us each")
    pairs = [(workload, target) for workload in made.workloads for target in made.targets[:TARGETS]]
    took += milliseconds(lambda: [opened[0].top_k(*pair, 1) for pair in pairs]) / 1e3
    print(f"and its best for {len(pairs)} pairs of workload and target: {took:.2f} s (goal 2 s for 100,000)")
    took = milliseconds(lambda: TuningLog(str(database)).merge(opened[0])) / 1e3
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"and merged into a database in {took:.2f} s, {took / count * 1e6:.1f} us each; {peak} MB at most")
    for batch, each in ((1, 500), (BATCH, 8000)):
        outcome = write_at_once(folder, made, batch, each)
        print(f"{WRITERS} writers of one database, {batch} records a commit: {outcome}")


def write_at_once(folder: Path, made: Rows, batch: int, each: int) -> str:
    """Let processes write into one database at once; return how fast they were and what was lost."""
    from tvmtarget import TuningLog

    path = folder / f"many{batch}.db"
    TuningLog(str(path)).close()
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    children = [os.fork() or _write(path, made, range(each * at, each * at + each), batch) for at in range(WRITERS)]
    ends = [os.waitpid(child, 0)[1] for child in children]
    took, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    count = WRITERS * each
    with TuningLog(str(path)) as log:
        lost = count - len(log) if not any(ends) else "a writer failed, and some"
    each_us = used / count * 1e6
    return f"{count / took:.0f} records/s (goal 3000), {each_us:.0f} us of the processor each, {lost} lost (goal 0)"


def _write(path: Path, made: Rows, numbers: range, batch: int) -> int:
    from tvmtarget import TuningLog

    with TuningLog(str(path)) as log:
        for first in numbers[::batch]:
            some = numbers[first - numbers[0] :][:batch]
            log.extend(made.trial(at, at % WORKLOADS, at % TARGETS, 10**9 + at) for at in some)
    os._exit(0)


def theirs(folder: Path, count: int, queries: int) -> None:
    """Measure TVM's database in its two files, of which most records are written directly to save time."""
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
    begin = time.process_time()
    for record in records:
        for _ in range(queries // TARGETS):
            database.commit_tuning_record(record)
    commit = (time.process_time() - begin) / (queries // TARGETS * TARGETS) * 1e6
    encoded = [json.loads(line)[1] for line in Path(names[1]).read_text().splitlines()[:: queries // TARGETS]]
    with open(names[1], "w") as file:
        for workload, target, cost in rows(count):
            trace, _, *rest = encoded[target]
            file.write(json.dumps([workload, [trace, [cost / 1e12] * 3, *rest]], separators=(",", ":")) + "\n")
    before = megabytes()
    opened: list[object] = []
    opening = milliseconds(lambda: opened.append(ms.database.JSONDatabase(*names)))
    (database,), rng = opened, random.Random(1)
    pairs = [(rng.choice(known), rng.choice(targets)) for _ in range(min(queries, 60))]

    def right(workload: object, target: object) -> object:
        found = database.get_top_k(workload, count)  # type: ignore[attr-defined]
        return next(one for one in found if str(one.target) == str(target))

    times = {
        "any": [milliseconds(lambda one=one: database.get_top_k(one[0], 1)) for one in pairs],  # type: ignore[attr-defined]
        "right": [milliseconds(lambda one=one: right(*one)) for one in pairs],
    }
    memory = megabytes() - before
    print_measured(Path(names[1]), count, times, commit=commit, open_ms=opening, rss_mb=memory)


def main() -> None:
    """Print a row for each size and side, then ratios, growth and goals."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tuning", description=__doc__)
    parser.add_argument("--sizes", type=at_least(TARGETS * WORKLOADS), nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--queries", type=at_least(TARGETS), default=1000)
    parser.add_argument("--side", choices=(*SIDES, "only ours"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), options.side, options.sizes[0], options.queries)
        return
    widths = [form.split(".")[0].strip(">") for _, _, form in COLUMNS]
    heading = "".join(f"{name:>{width}}" for (name, _, _), width in zip(COLUMNS, widths, strict=True))
    print(f"{'records':>8} {'':<15}{heading}")
    found: dict[tuple[str, int], dict[str, float]] = {}
    for size in options.sizes:
        for side in SIDES if importlib.util.find_spec("tvm") else SIDES[:2]:
            found[side, size] = figures = json.loads(run(side, size, options.queries).splitlines()[-1])
            cells = [
                f"{figures[name]:{form}}" if name in figures else f"{'-':>{width}}"
                for (_, name, form), width in zip(COLUMNS, widths, strict=True)
            ]
            print(f"{size:>8} {side:<15}{''.join(cells)}", flush=True)
    print_verdict(found, options.sizes)
    print(f"\n{run('only ours', options.sizes[-1], options.queries)}", end="")


def measure(folder: Path, side: str, size: int, queries: int) -> None:
    """Measure one side in this process."""
    if side == "JSONDatabase":
        theirs(folder, size, queries)
    elif side == "only ours":
        only_ours(folder, size, queries)
    else:
        ours(folder, Path(side).suffix, size, queries)


def run(side: str, size: int, queries: int) -> str:
    """Measure one side in a process of its own; return what it printed."""
    options = ["--side", side, "--sizes", str(size), "--queries", str(queries)]
    command = [sys.executable, "-m", "benchmarks", "tuning", *options]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def print_verdict(found: Mapping[tuple[str, int], Mapping[str, float]], sizes: Sequence[int]) -> None:
    """Print how figures grow, how they compare with JSONDatabase's, and which goals are met at the last size."""
    print()
    for side in SIDES:
        rows = [found[side, size]["right"] for size in sizes if (side, size) in found]
        growth = " ".join(f"x{after / before:.2f}" for before, after in pairwise(rows))
        print(f"growth of the right answer, {side}: {growth or '-'}")
    ours = found[SIDES[0], sizes[-1]]
    for name, key, goal in GOALS:
        print(f"{name}: {ours[key]:.1f}, goal at most {goal}: {'met' if ours[key] <= goal else 'MISSED'}")
    theirs = found.get((SIDES[2], sizes[-1]))
    for name, key, goal in RATIOS if theirs else ():
        ratio = theirs[key] / ours[key]
        print(f"{name}: 1/{ratio:.0f} of JSONDatabase's, goal at most 1/{goal}: {'met' if ratio >= goal else 'MISSED'}")


if __name__ == "__main__":
    main()
