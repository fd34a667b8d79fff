"""The promises of a log that take more than one process, or all of its parts, to test; P is for promise."""

import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import HERE, MATMUL, ZNVER4, Writer, forked, knobs, known, numbers, ran, trial, write_file

from tvmtarget import Constraint, Target, TuningLog
from tvmtarget.autotune.log.distance import differences, distance, least_needs
from tvmtarget.autotune.log.entries import entry_of, quick_entry
from tvmtarget.autotune.log.lines import parse_record, raw_lines
from tvmtarget.autotune.log.match import TIERS, Policy
from tvmtarget.autotune.log.records import Foreign, Retraction, Trial, Workload
from tvmtarget.autotune.log.tables import SCHEMA
from tvmtarget.errors import LogError

ROOT = Path(__file__).parents[2]

TARGETS = [
    ZNVER4,
    *(ZNVER4.override(change) for change in ({"opt-level": 1}, {"num-cores": 8}, {"num-cores": 4, "mcpu": "znver3"})),
    Target.parse("llvm(mcpu=haswell,mtriple=x86_64-linux-gnu,num-cores=8)"),
    Target.parse("nvidia/nvidia-a100"),
    Target.parse("cuda(arch=sm_80)"),
    Target.parse("c"),
]
LEGAL = [None, "llvm(+avx2)", "llvm(+avx512f)", "llvm(num-cores>=8)", "cuda", "llvm(num-cores>=64)"]

rows = st.tuples(
    st.sampled_from(range(len(TARGETS))),
    st.integers(0, 3),
    st.integers(1, 9),
    st.sampled_from(LEGAL),
    st.sampled_from(["ok", "ok", "ok", "wrong_output", "run_timeout", "infra_error"]),
)


def record_of(at, number, cost, legal, status):
    requires = None if legal is None else Constraint.parse(legal).to_json()
    measured = ran(cost * 1000, baseline=9000) if status == "ok" else ran(status=status)
    return trial(number, target=TARGETS[at], requires=requires, measured=measured)


def log_of(records):
    log = TuningLog("memory:")
    log.extend([*known(*TARGETS), *records])
    return log


@pytest.mark.slow
def test_p1_a_durable_log_waits_for_the_disk_at_each_commit(tmp_path):
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    code = (
        "import sys; sys.path.insert(0, 'tests/autotune')\nfrom logs import trial\nfrom tvmtarget import TuningLog\n"
        f"log = TuningLog({str(tmp_path / 'log.db')!r}, durable=True)\nprint('opened', file=sys.stderr, flush=True)\n"
        "for at in range(10): log.append(trial(at))\n"
    )
    command = [strace, "-f", "-e", "trace=fsync,fdatasync,write", sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    if "Operation not permitted" in done.stderr:
        pytest.skip("strace may not trace here")
    assert len(re.findall(r"f(?:data)?sync\(", done.stderr.partition("opened")[2])) >= 10, done.stderr[-2000:]


def test_p2_a_file_cut_at_every_byte_has_all_lines_before_the_cut():
    lines = [f"{trial(at).text}\n".encode() for at in range(3)]
    whole = b"".join(lines)
    starts = [0, *itertools.accumulate(map(len, lines))]
    for size in range(len(whole) + 1):
        read = [raw.read() for raw in raw_lines(BytesIO(whole[:size]))]
        complete = sum(size >= end - 1 for end in starts[1:])
        assert [line.record for line in read if line.record] == [trial(at) for at in range(complete)]
        is_torn = size > starts[complete]
        assert [line.offset for line in read if not line.record] == [starts[complete]] * is_torn
        assert all(line.problem.startswith("cut short: ") for line in read if not line.record)


def test_p2_a_flip_of_any_bit_affects_one_line_and_is_reported_with_its_place():
    lines = [f"{trial(at).text}\n".encode() for at in range(3)]
    first = len(lines[0])
    for at in range(len(lines[1]) - 1):
        flipped = bytearray(b"".join(lines))
        flipped[first + at] ^= 1 << at % 8
        read = [raw.read() for raw in raw_lines(BytesIO(flipped))]
        known = [line.record for line in read if line.record and not isinstance(line.record, Foreign)]
        assert known == [trial(0), trial(2)], at
        rejected = [line.offset for line in read if not line.record]
        is_of_others = len(known) + len(rejected) < len(read)  # its type or version is another: it is kept, unread
        is_cut_in_two = flipped[first + at] == ord("\n")
        assert rejected == ([] if is_of_others else [first, first + at + 1][: 1 + is_cut_in_two]), at


@pytest.mark.slow
def test_p2_a_log_that_was_cut_or_flipped_at_any_byte_has_all_other_lines(tmp_path):
    """As the tests above say of lines, but through a log, which reads most of them in a quicker way."""
    path, lines = tmp_path / "log.jsonl", [f"{trial(at).text}\n".encode() for at in range(3)]
    whole, ends = b"".join(lines), [*itertools.accumulate(map(len, lines))]
    for at in range(len(whole)):
        complete = sum(at >= end - 1 for end in ends)
        flipped = whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
        lost = next(number for number, end in enumerate(ends) if at < end)
        is_end = whole[at] == ord("\n")
        for data, left in ((whole[:at], [*range(complete)]), (flipped, [one for one in range(3) if one != lost])):
            path.write_bytes(data)
            with TuningLog(str(path)) as log:
                found = numbers(log)
                assert found == left if not (is_end and data is flipped) else set(found) <= {0, 1, 2}, at
                assert all(data[line.offset - 1 : line.offset] in (b"", b"\n") for line in log.problems())
            assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("between", "offsets"),
    [
        (b"\n", []),
        (b"  \r\n", []),
        (b"# a word\n", []),
        (b"\x00\n", [0]),
        (b"\xef\xbb\xbf\n", [0]),
        (b"\xff\n\n\x00\n", [0, 3]),
    ],
    ids=["blank", "spaces and CRLF", "comment", "NUL", "BOM", "two bad lines"],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_p2_bytes_between_lines_affect_no_line_and_are_reported_with_their_place(tmp_path, between, offsets, end):
    """Reading changes no byte."""
    path, lines = tmp_path / "log.jsonl", [trial(at).text.encode() + end for at in range(3)]
    data = between.join([b"\xef\xbb\xbf" + lines[0], *lines[1:]])
    path.write_bytes(data)
    places = [data.index(line) + len(line) for line in lines[:2]]
    with TuningLog(str(path)) as log:
        assert numbers(log) == [0, 1, 2]
        assert [line.offset for line in log.problems()] == [place + offset for place in places for offset in offsets]
        log.verify()
    assert path.read_bytes() == data


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_p2_the_fast_reader_agrees_with_the_records(data):
    """However a line is mutated, the quick way knows no other records than the careful one, and says the same."""
    number = data.draw(st.integers(0, 3))
    one = trial(
        number,
        requires={"kind": "llvm", "mattr": {"has": ["avx2"]}},
        search={"i": 1},
        src='é\u2028\x7f\x00\b\t\n\f\r\x1f/\\"\U0001f600',
    )
    flat = json.loads(one.text)
    del flat["d"]
    where = data.draw(st.sampled_from([flat, flat["m"], flat["cand"], flat["m"]["baseline"], flat["requires"]]))
    name = data.draw(st.sampled_from([*where, "other", "identity", "name"]))
    value = data.draw(
        st.sampled_from([None, 1, -1, 1.0, True, 2**53, "", "kernel", [], [1], [0.5], {}, {"b": 1, "a": 2}, ...])
    )
    if value is ...:
        where.pop(name, None)
    else:
        where[name] = value
    is_sorted = data.draw(st.booleans())
    content = json.dumps(flat, sort_keys=is_sorted, separators=(",", ":"), ensure_ascii=data.draw(st.booleans()))
    text = f'{content[:-1]},"d":"d1:{hashlib.sha256(content.encode()).hexdigest()[:32]}"}}'
    quick = quick_entry(text.encode())
    try:
        careful = parse_record(text)
    except LogError:
        careful = None
    if quick is not None:
        assert careful is not None
        assert careful.text == text
        assert quick == entry_of(careful)._replace(record=None)
    elif isinstance(careful, Trial) and careful.text == text:
        parts = [careful, careful.candidate, careful.measured, careful.measured.baseline]
        assert any(part.__pydantic_extra__ for part in parts if part is not None)


@pytest.mark.parametrize("level", ["kernel", "graph", "executor"])
def test_p3_a_store_with_a_fast_gpu_and_a_slow_cpu_answers_each_with_its_own(level):
    """TVM's own database gives the record of the GPU to all three, and drops that of the CPU when it is pruned."""
    gpu, cpu, workload = Target.parse("nvidia/nvidia-a100"), Target.parse("llvm"), Workload.of(MATMUL.body, level)
    rows = [trial(1, 10**6, target=gpu, workload=workload), trial(2, 5 * 10**9, target=cpu, workload=workload)]
    with TuningLog("memory:") as log:
        log.extend([*known(gpu, cpu, workloads=[workload]), *rows])
        for _ in range(2):
            answers = [log.lookup(workload, target, env=HERE) for target in (gpu, cpu, Target.parse("c"))]
            assert [answer.record for answer in answers] == [*rows, None]
            assert [answer.tier for answer in answers] == ["exact", "exact", "default"]
            assert log.compact(best=1) == ()


@settings(max_examples=40, deadline=None)
@given(st.lists(rows, max_size=10), st.sampled_from(range(len(TARGETS))), st.sampled_from(["kernel", "graph"]))
def test_p3_no_match_is_of_another_device_or_illegal(found, index, level):
    target, workload = TARGETS[index], Workload.of(MATMUL.body, level)
    records = [record_of(*row).replace(workload=workload.key, level=level) for row in found]
    log = log_of([workload, *records])
    match = log.lookup(workload, target, policy=Policy(max_distance=100), env=HERE)
    if match.record is None:
        return
    source = next(one for one in TARGETS if one.digest == match.record.target)
    if match.tier in ("exact", "equal"):
        assert source.tuning_key(level) == target.tuning_key(level)
    else:
        assert (match.tier, level, source.kind) == ("near", "kernel", target.kind)
        assert target.satisfies(match.record.needs or least_needs(source))
    assert match.record.needs is None or target.satisfies(match.record.needs)
    assert match.record.measured.status == "ok"


SPELLINGS = [
    "llvm(+avx2,+fma,mcpu=znver4,mtriple=x86_64-linux-gnu,num-cores=16)",
    "llvm( num-cores = 16, mtriple=x86_64-conda-linux-gnu, +fma, mcpu=znver4, +avx2 )",
    "llvm -mtriple=x86_64-unknown-linux-gnu -num-cores=16 -mattr=+fma,+avx2 -mcpu=znver4",
    '{"kind": "llvm", "num-cores": 16, "mcpu": "znver4", "mattr": [], "mtriple": "x86_64-apple-darwin", "tag": "a/b"}',
    '{"mtriple": "x86_64-linux-gnu", "host": {"kind": "c"}, "mcpu": "znver4", "num-cores": 16, "kind": "llvm"}',
    'llvm(mcpu=znver4,mtriple=x86_64-linux-gnu,num-cores=16,opt-level=3,clock-mhz=3000,libs=["cblas"])',
]
OTHERS = {
    "hard": {"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"},
    "isa": {"mattr": ["-avx512f"]},
    "a model of another": {"mcpu": "znver5"},
    "scale": {"num-cores": 8},
}


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SPELLINGS), st.sampled_from(SPELLINGS), st.sampled_from([*OTHERS]))
def test_p4_keys_are_free_of_spelling_and_not_of_what_matters(one, other, change):
    target = Target.parse(one)
    assert target.tuning_key() == Target.parse(other).tuning_key()
    assert target.tuning_key() != target.override(OTHERS[change]).tuning_key()


def test_p4_a_tag_and_its_expansion_have_one_key_and_a_capacity_another():
    tag = Target.parse("nvidia/nvidia-a100")
    spelled = Target.from_json(tag.to_json() | {"tag": "acme/renamed"})
    less = tag.override({"max_shared_memory_per_block": tag["max_shared_memory_per_block"] // 2})
    assert tag.tuning_key() == spelled.tuning_key() == tag.replace(tag=None, host="llvm").tuning_key()
    assert len({tag.tuning_key(), less.tuning_key(), tag.override({"arch": "sm_86"}).tuning_key()}) == 3


@given(st.permutations(["a=llvm(mcpu=znver4)", "b=cuda(arch=sm_80)", "c=onnxruntime"]))
def test_p4_the_order_of_children_is_no_part_of_the_key_of_a_graph(children):
    keys = {
        Target.parse(f"[{','.join(order)}](host=@a{executor})").tuning_key("graph")
        for order in (sorted(children), children)
        for executor in ("", ",executor=vm")
    }
    assert len(keys) == 1


def test_p5_shards_merge_to_equal_files_in_any_order(tmp_path):
    shards = []
    for at in range(3):
        shard = TuningLog(str(tmp_path / f"{at}.db"))
        shard.extend(
            [*known(ZNVER4), *(trial(number) for number in range(at, at + 3)), Foreign(line='{"t":"x","v":7}')]
        )
        shards.append(shard)
    files = set()
    for order in itertools.permutations(shards):
        merged = TuningLog("memory:")
        merged.merge(*order, order[0])
        merged.export(tmp_path / "out.jsonl")
        files.add((tmp_path / "out.jsonl").read_bytes())
    assert len(files) == 1


@settings(max_examples=15, deadline=None)
@given(st.lists(rows, max_size=10), st.sampled_from(range(len(TARGETS))), st.randoms())
def test_p7_a_lookup_is_total_and_does_not_depend_on_the_order_or_the_form(tmp_path_factory, found, index, shuffle):
    records = [record_of(*row) for row in found] + known(*TARGETS)
    answers = []
    for name in ("a.jsonl", "b.db"):
        shuffle.shuffle(records)
        path = tmp_path_factory.mktemp("p7") / name
        if name.endswith("jsonl"):
            write_file(path, records)
        with TuningLog(str(path)) as log:
            if name.endswith("db"):
                log.extend(records)
            answers.append(log.lookup(MATMUL, TARGETS[index], env=HERE).to_json() | {"log": ""})
    assert answers[0] == answers[1]
    assert answers[0]["tier"] in TIERS


def test_p7_the_seed_of_hashes_does_not_matter(tmp_path):
    path = tmp_path / "log.db"
    with TuningLog(str(path)) as log:
        log.extend([*known(*TARGETS), *(record_of(at % 8, at % 4, at + 1, LEGAL[at % 6], "ok") for at in range(40))])
    code = (
        "import sys\nfrom tvmtarget import Target, TuningLog\n"
        f"log = TuningLog({str(path)!r})\n"
        "for text in ('c', 'cuda', 'llvm(mcpu=znver4,mtriple=x86_64-linux-gnu,num-cores=12)'):\n"
        "    print(log.lookup(log.workloads()[0], Target.parse(text)).to_json())\n"
    )
    content = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in (0, 1)
    }  # fmt: skip
    assert len(content) == 1


def test_p9_a_failure_of_the_machine_leaves_the_best_candidate_eligible():
    log = log_of([trial(1, 10), trial(2, 20)])
    for at, status in enumerate(("infra_error", "cancelled") * 5):
        log.append(trial(1, measured=ran(status=status)).replace(ts=1_700_000_000 + at))
    assert log.lookup(MATMUL, ZNVER4, env=HERE).candidate == knobs(mb=1)
    assert [match.candidate for match in log.top_k(MATMUL, ZNVER4, 5)] == [knobs(mb=1), knobs(mb=2)]


OLD = """
CREATE TABLE old(id INTEGER PRIMARY KEY, digest TEXT UNIQUE NOT NULL, type TEXT NOT NULL, text TEXT NOT NULL);
INSERT INTO old SELECT id, 'd1:' || lower(substr(hex(digest), 3)), type, text FROM line;
DROP VIEW line; DROP TABLE kept; ALTER TABLE old RENAME TO line; DROP TABLE trial; DROP TABLE gone;
CREATE TABLE trial(line INTEGER PRIMARY KEY, workload INTEGER, target INTEGER, env INTEGER, candidate BLOB, status TEXT,
    trust INTEGER, score INTEGER, ts INTEGER);
PRAGMA user_version = 1;
"""
OLD_2 = """
CREATE TABLE choice(workload INTEGER, target INTEGER, candidate BLOB, env INTEGER, trust INTEGER, score INTEGER,
    ts INTEGER, line INTEGER, PRIMARY KEY(workload, target, candidate, env)) WITHOUT ROWID;
CREATE TABLE gone(digest TEXT PRIMARY KEY) WITHOUT ROWID; INSERT INTO gone VALUES ('d1:00');
PRAGMA user_version = 2;
"""
OLD_3 = "ALTER TABLE trial DROP COLUMN beside; PRAGMA user_version = 3;"


def old_log(path, count, schema=1):
    """Write a database as an older version would have left it."""
    with TuningLog(str(path)) as log:
        log.extend(
            [*known(ZNVER4), *(trial(at, 1000 + 100 * at) for at in range(count)), Retraction(of="d1:00", why="?")]
        )
    connection = sqlite3.connect(path)
    for script in {1: (OLD,), 2: (OLD, OLD_2), 3: (OLD_3,)}[schema]:
        connection.executescript(script)
    connection.close()


@pytest.mark.parametrize("schema", [1, 2, 3])
def test_p10_a_database_of_an_older_version_is_brought_up_to_date(tmp_path, schema):
    path = tmp_path / "log.db"
    old_log(path, 5, schema)
    with TuningLog(str(path)) as log:
        assert log.lookup(MATMUL, ZNVER4, env=HERE).candidate == knobs(mb=0)
        assert numbers(log) == list(range(5))
        assert log.verify() == []


def open_and_die(path, steps):
    """Open a log in a process that is killed once SQLite has taken so many steps of a statement."""
    connect = sqlite3.connect

    def connected(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.set_progress_handler(lambda: os.kill(os.getpid(), signal.SIGKILL), steps)
        return connection

    sqlite3.connect = connected
    TuningLog(str(path))


def test_p10_an_upgrade_that_is_killed_leaves_the_old_database(tmp_path):
    path = tmp_path / "log.db"
    old_log(path, 3000)
    versions = []
    for steps in (1000, 10_000, 50_000, 10**9):
        os.waitpid(forked(lambda steps=steps: open_and_die(path, steps)), 0)
        connection = sqlite3.connect(path)
        versions += connection.execute("PRAGMA user_version").fetchone()
        assert connection.execute("SELECT count(*) FROM line").fetchone() == (3004,)
        connection.close()
    assert versions == [1, 1, 1, SCHEMA]
    with TuningLog(str(path)) as log:
        assert len(numbers(log)) == 3000


@pytest.mark.parametrize("schema", [1, 2, 3])
def test_p10_processes_that_bring_one_database_up_to_date_at_once_do_it_once(tmp_path, schema):
    path = tmp_path / "log.db"
    old_log(path, 100, schema)
    children = [forked(lambda at=at: TuningLog(str(path)).append(trial(1000 + at))) for at in range(4)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    with TuningLog(str(path)) as log:
        assert numbers(log) == [*range(100), *range(1000, 1004)]
        assert log.verify() == []


@pytest.mark.slow
def test_p1_a_compaction_that_is_killed_loses_nothing_while_others_write(tmp_path):
    def compact_for_ever():
        while True:
            with TuningLog(str(path)) as log:
                log._store.delete([])
                log.repair()

    for at in range(5):
        path = tmp_path / str(at) / "log.db"
        path.parent.mkdir()
        with TuningLog(str(path)) as log:
            log.extend([*known(ZNVER4), *(trial(number) for number in range(100))])
        compacting, writer = forked(compact_for_ever), Writer(path, 1000, 40)
        acknowledged = [writer.next() for _ in range(10 * at // 2)]
        os.kill(compacting, signal.SIGKILL)
        os.waitpid(compacting, 0)
        acknowledged += writer.end()
        with TuningLog(str(path)) as log:
            assert {*range(100), *acknowledged} <= {*numbers(log)}
            assert log.verify() == []


def test_p10_lines_of_newer_versions_outlive_compaction_and_merging(tmp_path):
    newer = ['{"t":"trial", "v":2,"costs":[1.5]}', '{"t":"photo","v":1,"x":null}']
    extra = json.loads(trial(2, 5).text) | {"colour": "red"}
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f"{line}\n" for line in [*newer, trial(1).text, trial(2, 5).text]))
    with TuningLog(str(tmp_path / "log.db")) as log, TuningLog(str(tmp_path / "other.db")) as other:
        log.merge(TuningLog(str(path)))
        red = Trial(**{name: value for name, value in extra.items() if name not in ("t", "v", "d")})
        log.append(red)
        assert len(log.compact(best=1)) == 1
        assert list(log._store.texts()) == [*newer, trial(2, 5).text, red.text]
        other.merge(log)
        other.export(tmp_path / "out.jsonl")
    assert {*newer, red.text} <= set((tmp_path / "out.jsonl").read_text().splitlines())
    assert '"colour":"red"' in red.text


def test_p11_a_reader_in_the_middle_of_reading_does_not_hold_up_a_writer(tmp_path):
    path = tmp_path / "log.db"
    with TuningLog(str(path)) as log:
        log.extend(trial(at) for at in range(3000))
    readers = [sqlite3.connect(path) for _ in range(4)]
    cursors = [reader.execute("SELECT text FROM line") for reader in readers]
    assert all(cursor.fetchone() for cursor in cursors)
    with TuningLog(str(path)) as log:
        # To wait for another process would be an error.
        log._store._connection.execute("PRAGMA busy_timeout = 0")  # type: ignore[attr-defined]
        assert [log.append(trial(at)) for at in range(3000, 3050)] == [True] * 50
    assert [len(cursor.fetchall()) for cursor in cursors] == [2999] * 4
    for reader in readers:
        reader.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(rows, max_size=8), st.sampled_from(range(len(TARGETS))))
def test_p12_an_explanation_is_true(found, index):
    """Its terms add up to the distance, which is that of the two targets; who was not taken does not fit."""
    target = TARGETS[index]
    log = log_of([record_of(*row) for row in found])
    match = log.lookup(MATMUL, target, env=HERE)
    if match.tier == "near":
        assert match.terms == differences(match.source, target)
        assert match.distance == distance(match.terms) <= match.limit
    printed = [float(number) for number in re.findall(r"\(\+([0-9.]+)\)", match.explain().partition("differs")[2])]
    assert match.tier != "near" or round(sum(printed), 2) == match.distance
    by_digest = {record.digest: record for record in log if isinstance(record, Trial)}
    for tried in match.tried:
        if tried.reason.startswith("beyond the limit"):
            assert tried.distance > match.limit
            continue
        record = by_digest[tried.what.split()[0]]
        source = next(one for one in TARGETS if one.digest == record.target)
        assert not target.satisfies(record.needs or least_needs(source))
