"""Files of logs: what they hold, and what happens when writers die, disks fill up and files are something else."""

import gzip
import itertools
import json
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import HERE, MATMUL, ZNVER4, Writer, forked, known, numbers, trial, write_file

from tvmtarget import Target, TuningLog
from tvmtarget.autotune.log.lines import MAX_LINE
from tvmtarget.autotune.log.match import Policy
from tvmtarget.autotune.log.records import Candidate, Foreign, Measurement, Retraction, Workload
from tvmtarget.autotune.log.store import path_of
from tvmtarget.errors import LogError, TargetError, TvmTargetError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.db"


def test_what_was_written_is_there_for_the_next_process(path):
    records = [*known(ZNVER4), trial(1), trial(2)]
    with TuningLog(str(path)) as log:
        assert (log.extend(records), log.extend(records), len(log)) == (5, 0, 5)
    with TuningLog(str(path)) as log:
        assert list(log) == records
        assert log.lookup(MATMUL, ZNVER4, env=HERE).tier == "exact"


def test_a_reader_sees_what_a_writer_appends_later(path):
    with TuningLog(str(path)) as writer, TuningLog(str(path)) as reader:
        writer.extend([*known(ZNVER4), trial(1)])
        assert reader.lookup(MATMUL, ZNVER4, env=HERE).tier == "exact"
        writer.append(trial(2))
        assert numbers(reader) == [1, 2]


def test_p1_writers_at_once_lose_nothing_and_mix_nothing(path):
    writers = [Writer(path, first, 150) for first in (0, 1000, 2000)]
    assert [len(writer.end()) for writer in writers] == [150, 150, 150]
    with TuningLog(str(path)) as log:
        assert numbers(log) == [first + at for first in (0, 1000, 2000) for at in range(150)]
        assert log.problems() == ()


def kill_writers(path, turns, count, most, seed=7):
    """Start writers, kill most of them while they write, and again; return what they had acknowledged."""
    random.seed(seed)
    acknowledged = set()
    for turn in range(turns):
        writers = [Writer(path, 10_000 * turn + 1000 * at, 150) for at in range(count)]
        for writer in writers:
            acknowledged |= {writer.next() for _ in range(random.randrange(5, most))}
        for at, writer in enumerate(random.sample(writers, count)):
            acknowledged |= set(writer.end(kill=at > 0))
    return acknowledged


def test_p1_a_writer_that_is_killed_loses_nothing_that_it_had_acknowledged(path):
    acknowledged = kill_writers(path, turns=3, count=2, most=40)
    with TuningLog(str(path)) as log:
        assert acknowledged <= set(numbers(log))
        log.append(trial(99_999))
        assert 99_999 in numbers(log)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_p1_eight_writers_of_which_seven_are_killed_lose_nothing_five_times_in_a_row(path, seed):
    acknowledged = kill_writers(path, turns=5, count=8, most=30, seed=seed)
    with TuningLog(str(path)) as log:
        assert acknowledged <= set(numbers(log))
        assert [line.problem[:9] for line in log.problems()] == ["cut short"] * len(log.problems())
        assert sum("nothing says what" not in problem for problem in log.verify()) == len(log.problems())


@pytest.mark.slow
@pytest.mark.parametrize("count", [examples(30_000, 100_000)])
def test_a_large_log_is_read_and_searched(tmp_path, count):
    path = tmp_path / "log.jsonl"
    write_file(path, [*known(ZNVER4), *(trial(at, 10**9 + at * 7 % count) for at in range(count))])
    with TuningLog(str(path)) as log, TuningLog(str(tmp_path / "log.db")) as other:
        assert log.lookup(MATMUL, ZNVER4, env=HERE).record.measured.cost <= 1.03 * 10**9
        assert other.merge(log) == count + 3
        assert not log.diff(other)


def test_p2_a_torn_line_costs_itself_alone(tmp_path):
    path = tmp_path / "log.jsonl"
    whole = "".join(f"{record.text}\n" for record in [trial(1), trial(2), trial(3)]).encode()
    second = whole.index(b"\n") + 1
    third = whole.index(b"\n", second) + 1
    for size in [*range(second, len(whole), 7), *range(third - 3, third + 3), len(whole) - 1, len(whole)]:
        path.write_bytes(whole[:size])
        with TuningLog(str(path)) as log:
            ends = [second, third, len(whole)]
            complete = sum(size >= end - 1 for end in ends)
            assert numbers(log) == [1, 2, 3][:complete]
            torn = size - ([0, *ends][complete])
            assert [line.offset for line in log.problems()] == ([[0, *ends][complete]] if torn > 0 else [])
            assert path.read_bytes() == whole[:size]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_p2_a_line_that_was_damaged_costs_itself_alone(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damaged") / "log.jsonl"
    lines = [f"{trial(at).text}\n".encode() for at in range(3)]
    at, byte = data.draw(st.integers(0, len(lines[1]) - 2)), data.draw(st.integers(0, 255))
    damaged = lines[1][:at] + bytes([byte]) + lines[1][at + 1 :]
    path.write_bytes(lines[0] + damaged + lines[2])
    with TuningLog(str(path)) as log:
        found = numbers(log)
        assert {0, 2} <= set(found)
        is_comment = damaged.startswith(b"#")
        is_foreign = any(isinstance(record, Foreign) for record in log)
        assert found == [0, 1, 2] or is_comment or is_foreign or log.problems()[0].number in (2, 3)
        assert (found == [0, 1, 2]) == (damaged.split() == lines[1].split())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"\x00\x00\x00\n", "not JSON"),
        (b"{\xff}\n", "not UTF-8 at byte"),
        (b"{" + b"x" * (MAX_LINE + 10) + b"}\n", f"{MAX_LINE + 13} bytes long; a line has at most {MAX_LINE}"),
        (b'{"t":"trial","v":1}\n', "a trial needs 'level'"),
        (b"[" * 100_000 + b"\n", "the JSON is nested too deeply"),
        (b"\n\r\n   \n# a comment\n\xef\xbb\xbf\n", "not JSON"),
    ],
)
def test_p2_what_is_no_record_is_reported_with_line_and_byte(tmp_path, text, problem):
    path = tmp_path / "log.jsonl"
    first = f"\ufeff{trial(1).text}\r\n".encode()
    path.write_bytes(first + text + trial(2).text.encode())
    with TuningLog(str(path)) as log:
        assert numbers(log) == [1, 2]
        (line,) = log.problems()
        assert problem in line.problem
        assert path.read_bytes()[line.offset : line.end] in text


def test_a_line_of_a_gigabyte_is_passed_over_in_little_memory(tmp_path):
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        file.write(f"{trial(1).text}\n".encode() + b'{"t":"')
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(f"\n{trial(2).text}\n".encode())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with TuningLog(str(path)) as log:
        assert numbers(log) == [1, 2]
        assert "bytes long" in log.problems()[0].problem
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_a_log_of_which_the_first_line_was_damaged_is_a_log(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\0" * 4096 + b"\n" * 200 + b"x\n" * 50 + f"{trial(1).text}\n".encode())
    with TuningLog(str(path)) as log:
        assert (numbers(log), len(log.problems())) == ([1], 51)
    path.write_bytes(b"x\n" * 500 + f"{trial(1).text}\n".encode())
    with pytest.raises(LogError, match="is not a tuning log: line 1"):
        TuningLog(str(path))


def test_an_export_of_a_damaged_file_has_all_records_and_the_file_itself_is_not_repaired(tmp_path):
    path = tmp_path / "log.jsonl"
    newer = '{"t":"trial","v":9,"x":1.5}'
    text = f'{trial(1).text}\n{{"t":\n{newer}\n{trial(2).text[:-5]}'
    path.write_text(text)
    with TuningLog(str(path)) as log:
        assert (numbers(log), len(log.problems())) == ([1], 2)
        with pytest.raises(LogError, match="`tvmtarget log export` writes its whole lines to a new file"):
            log.repair()
        assert log.export(tmp_path / "new.jsonl") == 2
    assert path.read_text() == text
    assert (tmp_path / "new.jsonl").read_text() == f"{newer}\n{trial(1).text}\n"


def test_a_writer_goes_on_after_another_one_compacted_the_log(path):
    with TuningLog(str(path)) as one, TuningLog(str(path)) as other:
        one.extend([trial(at) for at in range(3)])
        other.append(trial(3))
        one.compact(best=1)
        other.append(trial(4))
        assert numbers(one) == numbers(other) == [0, 4]


def limited(code, size):
    """Run code in a process that may not write files larger than `size`; return what it printed.

    Nor does it write compiled modules, which Python would cut at that size, so that no process could import them again.
    """
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n{code}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=environment)
    return done.stdout + done.stderr[-2000:]


def test_a_full_disk_is_an_error_and_loses_nothing(path):
    printed = limited(
        f"""
import sys
sys.path.insert(0, "tests/autotune")
from logs import trial
from tvmtarget import Target, TuningLog
from tvmtarget.errors import LogError
log = TuningLog({str(path)!r})
log.extend(trial(at) for at in range(3))
for at in range(3, 400):
    try:
        log.append(trial(at))
    except LogError as error:
        print("refused", at, error)
        break
    print("wrote", at)
""",
        300_000,
    )
    wrote = [int(line.split()[1]) for line in printed.splitlines() if line.startswith("wrote")]
    assert "refused" in printed, printed
    with TuningLog(str(path)) as log:
        assert numbers(log) == [0, 1, 2, *wrote]
        assert log.problems() == ()


def test_a_log_that_cannot_be_created_leaves_no_file(path):
    printed = limited(f"from tvmtarget import TuningLog\nTuningLog({str(path)!r})", 10_000)
    assert "LogError" in printed
    assert not path.exists()


def as_nobody(action):
    """Run an action in a process that may not write everywhere; it fails where the action does."""

    def work():
        if os.geteuid() == 0:
            os.setuid(65534)
        action()

    return os.waitpid(forked(work), 0)[1]


def test_a_log_that_cannot_be_written_can_be_read():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.db"
        with TuningLog(str(path)) as log:
            log.extend([*known(ZNVER4), trial(1)])
        with TuningLog(str(path)) as log:  # imports what nobody else may be allowed to read
            assert log.lookup(MATMUL, ZNVER4, env=HERE).tier == "exact"
        path.chmod(0o444)
        path.parent.chmod(0o555)

        def read():
            with TuningLog(str(path)) as log:
                assert log.lookup(MATMUL, ZNVER4, env=HERE).tier == "exact"
                with pytest.raises(LogError, match="cannot be"):
                    log.append(trial(2))

        assert as_nobody(read) == 0


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("log.jsonl", b"PK\x03\x04 zip", "is not a tuning log: line 1"),
        ("log.jsonl", b"mcpu,cost\n1,2\n", "is not a tuning log: line 1"),
        ("log.db", b"not a database at all, " * 100, "file is not a database"),
        ("log.jsonl.gz", b"not gzip", "cannot be read"),
        ("log.txt", b"", "is no log: a log is"),
        ("log.db", "sqlite", "is a database of something else"),
        ("log.db", "newer", "was written by a newer version: schema 99"),
    ],
)
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, name, data, message):
    path = tmp_path / name
    if isinstance(data, bytes):
        path.write_bytes(data)
    elif data == "newer":
        TuningLog(str(path)).close()
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 99")
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE person(name TEXT)")
    before = path.read_bytes()
    with pytest.raises(LogError, match=message):
        TuningLog(str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("/no/such/place/log.db", "there is no directory '/no/such/place'"),
        ("postgres://host/log", "no plugin opens logs at 'postgres://host/log'"),
        ("sqlight:///log.db", "did you mean 'sqlite'"),
        ("sqlite://log.db", "is no log: a log is NAME.db, sqlite:NAME, memory: or, only to be read, NAME.jsonl"),
        ("sqlite:", "is no log"),
        ("file:", "is no log"),
        ("/", "is no log"),
        ("", "is no log"),
        ("a\0.db", "the URL of a log is text that a file can be named by"),
        ("\ud800.jsonl", "the URL of a log is text that a file can be named by"),
        ("x" * 300 + ".db", "cannot be read: File name too long"),
        ("x" * 300 + ".jsonl", "there is no log"),
    ],
)
def test_a_url_that_nothing_opens_says_what_would(url, message):
    with pytest.raises(LogError, match=message):
        TuningLog(url)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sqlite:{}/log", "log"),
        ("sqlite:///{}/a.jsonl", "a.jsonl"),
        ("file:{}/a.db", "a.db"),
        ("file://{}/an%20end.DB", "an end.DB"),
        ("file:{}/an%20end.sqlite3", "an%20end.sqlite3"),
        ("~/ü.DB", "ü.DB"),
        ("sqlite:~/a?b#c.db", "a?b#c.db"),
    ],
)
def test_a_url_names_a_file(tmp_path, monkeypatch, url, name):
    monkeypatch.setenv("HOME", str(tmp_path))
    with TuningLog(url.format(tmp_path)) as log:
        log.append(trial(1))
        assert (tmp_path / name).is_file()
        assert log.problems() == ()
    assert path_of(url.format(tmp_path)) == tmp_path / name


def test_a_log_stays_where_it_was_opened(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with TuningLog("log.db") as log:
        log.append(trial(1))
        monkeypatch.chdir(tmp_path / "other")
        log.append(trial(2))
        assert numbers(log) == [1, 2]
    assert [*Path().iterdir()] == []


def test_a_database_that_was_removed_is_not_written_to(tmp_path):
    path = tmp_path / "log.db"
    with TuningLog(str(path)) as log:
        log.append(trial(1))
        path.unlink()
        with pytest.raises(LogError, match="was deleted or replaced since it was opened; open it again"):
            log.append(trial(2))


@pytest.mark.parametrize("url", ["{}/log.db", "memory:"])
def test_a_log_that_was_closed_says_so(tmp_path, url):
    with TuningLog(url.format(tmp_path)) as log:
        log.append(trial(1))
    for ask in (lambda: len(log), lambda: log.append(trial(2)), lambda: log.lookup(MATMUL, ZNVER4)):
        with pytest.raises(LogError, match="closed"):
            ask()
    log.close()


def test_what_is_no_record_target_or_workload_is_refused_in_one_line(tmp_path):
    log = TuningLog("memory:")
    ran = Measurement(status="ok", costs=[1])
    assert log.add(MATMUL, "llvm(mcpu=znver4)", Candidate(format="k/1", body={}), ran).target
    assert log.lookup(MATMUL, "llvm(mcpu=znver4,opt-level=2)").require("equal")
    for refused, message in [
        (lambda: log.append("a line"), "record of TuningLog.append is a Record, not 'a line'"),
        (lambda: log.extend(iter(["a line"])), "a log holds records, not 'a line'"),
        (lambda: log.lookup({"op": "x"}, ZNVER4), "workload of TuningLog.lookup is a Workload or a Function, not "),
        (lambda: log.lookup(MATMUL, None), "a target is a text, an object or a Target, not None"),
        (lambda: Candidate(format="k/1", body=None), "the body of a candidate is not null"),
        (lambda: log.compact(best=0), "the best of a log are 1 or more candidates, not 0"),
        (lambda: log.export(tmp_path / "x.jsonl", best=-1), "the best of a log are 1 or more candidates, not -1"),
        (lambda: Policy(max_distance="3"), "max_distance of a policy is 0 or more, not '3'"),
        (lambda: Policy(strict="no"), "strict of a policy is true or false, not 'no'"),
        (lambda: Policy(formats="x"), "formats of a policy are functions by format, not 'x'"),
        (lambda: TuningLog("memory:", layers=[tmp_path / "no.db"]), "there is no log '.*no.db' to look into"),
    ]:
        with pytest.raises(TvmTargetError, match=message):
            refused()
    assert (log.top_k(MATMUL, "llvm(mcpu=znver4)", 0), [*tmp_path.iterdir()]) == ([], [])


@pytest.mark.parametrize("url", ["{}/log.db", "memory:"])
def test_a_line_that_no_file_could_hold_is_refused(tmp_path, url):
    with TuningLog(url.format(tmp_path)) as log:
        with pytest.raises(LogError, match="has more than 1048576 bytes, the most of a line"):
            log.extend([trial(1), trial(2, src="x" * 2**20)])
        with pytest.raises(TargetError, match="a line has no line ends in it"):
            log.append(Foreign(line='{"t":"x","v":1}\n{}'))
        assert len(log) == 0


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_files_of_lines_are_only_read(tmp_path, name):
    path = tmp_path / name
    data = f"{trial(1).text}\n".encode()
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    before = path.read_bytes()
    with TuningLog(str(path)) as log:
        assert numbers(log) == [1]
        changes = [lambda: log.append(trial(2)), lambda: log.retract("d1:", "?"), lambda: log.merge(log)]
        for change in changes:
            with pytest.raises(LogError, match=r"is a file of lines, which is only read: .*`tvmtarget log export`"):
                change()
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]


def test_a_new_log_is_not_a_file_of_lines(tmp_path):
    with pytest.raises(LogError, match=r"there is no log '.*log.jsonl'; a new log is a database such as NAME.db"):
        TuningLog(str(tmp_path / "log.jsonl"))
    assert [*tmp_path.iterdir()] == []


def test_names_that_look_like_sql_are_names(path):
    from tvmtarget.autotune.log.records import Workload

    evil = Workload.of({"op": "'; DROP TABLE line; --", "shapes": [[1]]})
    with TuningLog(str(path)) as log:
        log.extend([*known(ZNVER4, workloads=(evil,)), trial(1, workload=evil)])
        assert log.lookup(evil, ZNVER4, env=HERE).tier == "exact"
        with pytest.raises(LogError, match="no line"):
            log.retract("' OR 1=1 --", "evil")


records = st.lists(
    st.sampled_from([
        *known(ZNVER4), *(trial(at, cost) for at in range(3) for cost in (1, 2)),
        Retraction(of=trial(0, 1).digest, why="x"), Foreign(line='{"t":"photo","v":1}'),
    ])
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(records, records, records)
def test_p5_merging_is_a_union_whatever_the_order(one, two, three):
    def log_of(*parts):
        log = TuningLog("memory:")
        for part in parts:
            log.extend(part)
        return log

    def merged(*logs):
        result = TuningLog("memory:")
        result.merge(*logs)
        return result

    a, b, c = log_of(one), log_of(two), log_of(three)
    union = list(log_of(one, two, three).lines())
    for other in (merged(a, b, c), merged(c, a, b, a), merged(merged(b, c), a)):
        assert list(other.lines()) == union


def test_p10_the_keys_of_targets_are_made_anew_when_the_rules_have_changed(tmp_path):
    path = tmp_path / "log.db"
    with TuningLog(str(path)) as log:
        log.extend([*known(ZNVER4), trial(1)])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE view SET key = 't0:old', family = 'f0:old'")
        connection.execute("UPDATE meta SET value = 'other rules'")
    with TuningLog(str(path)) as log:
        assert log.lookup(MATMUL, ZNVER4.override({"opt-level": 1}), env=HERE).tier == "equal"


def test_compaction_keeps_the_best_and_the_pins_and_says_what_goes(path):
    with TuningLog(str(path)) as log:
        log.extend([*known(ZNVER4), *(trial(at, 1000 + at) for at in range(6))])
        log.pin(MATMUL, ZNVER4, trial(5).candidate, "because")
        dropped = log.compact(best=2)
        assert [record.candidate.body["mb"] for record in dropped] == [2, 3, 4, 5]
        assert numbers(log) == [0, 1]
        assert log.lookup(MATMUL, ZNVER4, env=HERE).tier == "pin"


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_an_export_is_sorted_and_a_log_itself(path, name):
    exported = path.with_name(name)
    with TuningLog(str(path)) as log:
        log.extend([trial(2), *known(ZNVER4), trial(1)])
        assert log.export(exported) == 5
        assert not log.diff(TuningLog(str(exported)))
        lines = list(log.lines())
    assert [json.loads(line)["t"] for line in lines] == ["env", "target", "trial", "trial", "workload"]
    assert lines == sorted(lines, key=lambda line: (json.loads(line)["t"], line))


@pytest.mark.parametrize("name", ["out", "out.txt", "out.gz"])
def test_an_export_goes_to_a_file_that_is_read_as_a_log(tmp_path, name):
    with TuningLog("memory:") as log, pytest.raises(LogError, match=f"not to '.*{name}'"):
        log.export(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_an_export_of_a_family_has_what_may_be_carried_over_and_what_that_refers_to(tmp_path):
    near, gpu = ZNVER4.override({"num-cores": 8}), Target.parse("nvidia/nvidia-a100")
    other = Workload.of({"op": "relu", "shapes": [[4]]})
    with TuningLog("memory:") as log:
        log.extend(known(ZNVER4, near, gpu, workloads=[MATMUL, other]))
        log.extend([kept := trial(1, target=near), trial(2, target=gpu), gone := trial(3, workload=other, target=gpu)])
        log.extend([retracted := Retraction(of=kept.digest, why="?"), Retraction(of=gone.digest, why="?")])
        log.export(tmp_path / "cpu.jsonl", family=ZNVER4)
        texts = set((tmp_path / "cpu.jsonl").read_text().splitlines())
        assert texts == {line.text for line in [*known(ZNVER4, near), kept, retracted]}
        with pytest.raises(LogError, match=r"may be carried over to .* it has records of: cuda, llvm"):
            log.lines(family=Target.parse("llvm(mtriple=aarch64-linux-gnu,mcpu=cortex-a72)"))


def test_packed_exports_of_equal_logs_are_equal_files(tmp_path):
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        with TuningLog("memory:") as log:
            log.extend([*known(ZNVER4), trial(1)])
            log.export(tmp_path / name)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl.gz", "b.jsonl.gz"]


def test_threads_share_a_log(path):
    """What reads long, such as an export, does not keep others waiting for ever, nor do they."""
    actions = itertools.cycle(
        [
            lambda log: log.lookup(MATMUL, ZNVER4, env=HERE),
            lambda log: log.top_k(MATMUL, ZNVER4, 3),
            list,
            lambda log: list(log.lines()),
            TuningLog.verify,
            lambda log: log.compact(best=1000),
            TuningLog.repair,
        ]
    )

    def work(first):
        for at in range(first, first + 30):
            log.append(trial(at))
            next(actions)(log)

    with TuningLog(str(path)) as log:
        log.extend(known(ZNVER4))
        with ThreadPoolExecutor(6) as threads:
            list(threads.map(work, range(0, 600, 100)))
        assert len(numbers(log)) == 180
        assert log.verify() == []
