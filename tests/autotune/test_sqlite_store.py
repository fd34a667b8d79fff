"""Damaged databases, failing disks and killed processes: found, reported, repaired, and nothing is lost."""

import os
import random
import shutil
import sqlite3

import pytest
from logs import HERE, MATMUL, ZNVER4, forked, knobs, known, numbers, ran, trial, with_mounted
from typer.testing import CliRunner

from tvmtarget import TuningLog
from tvmtarget.autotune.log.records import Retraction
from tvmtarget.cli.main import app
from tvmtarget.errors import LogError


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "log.db"
    with TuningLog(str(path)) as log:
        log.extend([*known(ZNVER4), *(trial(at, 1000 + 100 * at) for at in range(5)), trial(0, 3000)])
        log.append(Retraction(of=trial(1, 1100).digest, why="measured beside another job"))
    return path


def damage(path, sql):
    connection = sqlite3.connect(path)
    with connection:
        connection.executescript(sql)
    connection.close()


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("UPDATE trial SET score = 1 WHERE line = 6", "record 6 is not ranked by what it says; repair the log"),
        ("UPDATE trial SET status = 'wrong_output' WHERE line = 4", "record 4 is not ranked by what it says"),
        ("DELETE FROM trial WHERE line = 5", "record 5 is not ranked by what it says"),
        ("DELETE FROM gone", "candidates are not ranked by all their trials; repair the log"),
        ("UPDATE trial SET since = 5", "candidates are not ranked by all their trials; repair the log"),
        ("DELETE FROM body", f"nothing says what {HERE.key!r} is"),
    ],
)
def test_derived_tables_are_checked_and_rebuilt(path, sql, expected):
    with TuningLog(str(path)) as log:
        before = [match.to_json() for match in log.top_k(MATMUL, ZNVER4, 9)]
    damage(path, sql)
    with TuningLog(str(path)) as log:
        assert any(problem.startswith(expected) for problem in log.verify()), log.verify()
        assert log.repair() == 0
        assert log.verify() == []
        assert [match.to_json() for match in log.top_k(MATMUL, ZNVER4, 9)] == before


@pytest.mark.parametrize("stored", ["replace(said, '\"mb\":3', '\"mb\":7')", "NULL", "12", "x'ff00'", "''"])
def test_a_damaged_line_of_a_database_is_reported_and_moved_aside(path, stored):
    if stored == "NULL":
        damage(
            path,
            "PRAGMA writable_schema = 1; UPDATE sqlite_master SET sql = replace(sql, 'said TEXT NOT NULL', 'said')",
        )
    damage(path, f"UPDATE kept SET said = {stored} WHERE id = 7")
    with TuningLog(str(path)) as log:
        try:
            problems = log.verify()
        except LogError as error:
            problems = [f"record 7: {error}"]
        assert any(problem.startswith("record 7: ") for problem in problems)
        assert log.lookup(MATMUL, ZNVER4, env=HERE).candidate == knobs(mb=0)
        assert log.repair() == 1
        assert (numbers(log), log.verify()) == ([0, 0, 1, 2, 4], [])
    assert path.with_name("log.db.rejected").read_bytes().count(b"\n") == 1


LEFT_AHEAD = """
import sys
from pathlib import Path
sys.path.insert(0, "tests/autotune")
from logs import numbers, trial
from tvmtarget import TuningLog
from tvmtarget.errors import LogError
for name in ("closed", "left", "empty", "copied"):
    try:
        with TuningLog(str(Path(sys.argv[1]).with_name(f"{name}.db"))) as log:
            print(name, numbers(log), log.verify() == [])
            log.append(trial(3))
    except LogError as error:
        print(str(error).rpartition(": ")[2].rpartition("' ")[2])
"""


def test_where_nothing_can_be_written_what_a_killed_writer_left_ahead_of_a_database_is_read_too(tmp_path):
    """Or it is refused; not as if the database were empty."""
    with TuningLog(str(tmp_path / "closed.db")) as log:
        log.extend([*known(ZNVER4), trial(1)])

    def left():
        TuningLog(str(tmp_path / "left.db")).extend([*known(ZNVER4), trial(2)])
        os._exit(1)

    os.waitpid(forked(left), 0)
    for name, others in (("empty", ["closed.db"]), ("copied", ["left.db", "left.db-wal"])):
        for other in others:
            shutil.copy(tmp_path / other, tmp_path / other.replace(other.partition(".")[0], name))
    (tmp_path / "empty.db-wal").touch()
    mount = 'mount --bind "${LOG%/*}" "${LOG%/*}" && mount -o remount,ro,bind "${LOG%/*}"'
    done = with_mounted(mount, LEFT_AHEAD, tmp_path / "closed.db")
    assert done.stdout.splitlines() == [
        "closed [1] True",
        "attempt to write a readonly database",
        "left [2] True",
        "attempt to write a readonly database",
        "empty [1] True",
        "attempt to write a readonly database",
        "was not closed; open it once where it can be written",
    ], done.stderr[-2000:]


def test_a_damaged_database_is_not_read_as_a_whole_without_a_word(path):
    damage(path, "UPDATE kept SET said = replace(said, '\"mb\":0', '\"mb\":7') WHERE said LIKE '%\"mb\":0%'")
    with TuningLog(str(path)) as log:
        with pytest.raises(LogError, match=r"a line of '.*log.db' was damaged: .*; `tvmtarget log repair` puts it"):
            list(log)
        with pytest.raises(LogError, match=r"a line to take in was damaged: .*; `tvmtarget log repair` puts it"):
            TuningLog("memory:").merge(log)


def test_a_line_that_was_damaged_in_a_database_is_no_answer_and_the_next_best_is(path):
    damage(path, "UPDATE kept SET said = replace(said, '\"mb\":0', '\"mb\":7') WHERE said LIKE '%\"mb\":0%'")
    with TuningLog(str(path)) as log:
        match = log.lookup(MATMUL, ZNVER4, env=HERE)
        assert match.candidate == knobs(mb=2)
        assert [(tried.tier, tried.what) for tried in match.tried] == [("exact", trial(0, 1000).digest)]
        assert "it was changed or cut; repair" in match.explain()
        assert [found.candidate for found in log.top_k(MATMUL, ZNVER4, 2)] == [knobs(mb=2), knobs(mb=3)]
        assert log.repair() == 2
        assert log.lookup(MATMUL, ZNVER4, env=HERE).tried == ()


def test_whatever_is_damaged_in_a_database_no_error_is_another_than_ours(path, tmp_path):
    data, rng = path.read_bytes(), random.Random(5)
    refused = 0
    for turn in range(60):
        damaged = bytearray(data)
        for _ in range(rng.choice([1, 3, 20])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        copy = tmp_path / f"{turn}.db"
        copy.write_bytes(damaged[: rng.choice([len(data), rng.randrange(len(data))])])
        try:
            with TuningLog(str(copy)) as log:
                log.lookup(MATMUL, ZNVER4, env=HERE)
                log.verify()
                log.append(trial(9, 1))
                TuningLog("memory:").merge(log)
        except LogError:
            refused += 1
    assert 0 < refused < 60


def create(path, number, gate):
    """Open a log in a process of its own, at the same time as others do, and write to it."""

    def work():
        os.read(gate, 1)
        with TuningLog(str(path)) as log:
            log.append(trial(number))

    return forked(work)


def test_processes_that_create_one_log_at_once_make_one(tmp_path):
    for turn in range(5):
        path = tmp_path / f"{turn}.db"
        gate, opener = os.pipe()
        children = [create(path, number, gate) for number in range(6)]
        os.write(opener, b"x" * len(children))
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
        os.close(gate)
        os.close(opener)
        with TuningLog(str(path)) as log:
            assert numbers(log) == list(range(6))


READ_ONLY = """
import sys
sys.path.insert(0, "tests/autotune")
from logs import HERE, MATMUL, ZNVER4, trial
from tvmtarget import TuningLog
from tvmtarget.errors import LogError
for name in ("log.jsonl", "log.db"):
    with TuningLog(f"{sys.argv[1]}/{name}") as log:
        print(log.lookup(MATMUL, ZNVER4, env=HERE).tier, log.verify())
        for change in (lambda: log.append(trial(2)), lambda: log.compact(best=1), log.repair):
            try:
                change()
            except LogError as error:
                print("refused", error)
try:
    TuningLog(f"{sys.argv[1]}/new.db").append(trial(1))
except LogError as error:
    print("refused", error)
"""


def test_a_disk_that_is_really_read_only_is_read_and_writing_is_an_error(tmp_path):
    with TuningLog(str(tmp_path / "log.db")) as log:
        log.extend([*known(ZNVER4), trial(1), trial(2, 5), trial(3, measured=ran(status="run_error"))])
        log.export(tmp_path / "log.jsonl")
    mount = 'mount --bind "$LOG" "$LOG" && mount -o remount,bind,ro "$LOG"'
    done = with_mounted(mount, READ_ONLY, tmp_path)
    assert done.stdout.count("exact []") == 2, done.stderr[-2000:]
    refusals = [line for line in done.stdout.splitlines() if line.startswith("refused")]
    assert len(refusals) == 7, done.stdout
    assert all("cannot be" in line or "only read" in line for line in refusals), refusals


def scrambled(path, seed):
    """Change random bytes, pages or the length of a database."""
    rng, data = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + 40] = rng.randbytes(len(data[at : at + 40]))
            case 2:  # one page in the place of another
                page, other = (8192 * rng.randrange(len(data) // 8192) for _ in range(2))
                data[page : page + 8192] = data[other : other + 8192]
            case 3 if rng.random() < 0.3:
                del data[at:]
    path.write_bytes(data)


@pytest.mark.parametrize("seed", range(60))
def test_a_scrambled_database_is_verified_and_repaired(path, seed):
    """`verify` and `repair` end; after `repair` the log is whole, or it is left alone where nothing of it is left."""
    scrambled(path, seed)
    data = path.read_bytes()
    assert CliRunner().invoke(app, ["log", "verify", str(path)]).exit_code in (0, 1, 2)
    done = CliRunner().invoke(app, ["log", "repair", str(path)])
    if done.exit_code:
        assert isinstance(done.exception, LogError)
        assert "no line of a log can be read" in str(done.exception)
        assert path.read_bytes() == data
        return
    with TuningLog(str(path)) as log:
        assert all(problem.startswith("nothing says what") for problem in log.verify())


def test_pages_in_the_place_of_others_do_not_make_reading_endless(tmp_path):
    """Rows come out of order then, and asking for those beyond the last one begins again and again."""
    path = tmp_path / "log.db"
    with TuningLog(str(path)) as log:
        log.extend([*known(ZNVER4), *(trial(at, 1000 + at) for at in range(3000))])
    data = path.read_bytes()
    pages = [data[at : at + 8192] for at in range(0, len(data), 8192)]
    lines = [at for at, page in enumerate(pages) if page[:1] == b"\x0d" and page.count(b'"t":"trial"') > 2]
    assert len(lines) > 10
    pages[lines[2]], pages[lines[-2]] = pages[lines[-2]], pages[lines[2]]
    path.write_bytes(b"".join(pages))
    with TuningLog(str(path)) as log:
        assert log.verify()
        with pytest.raises(LogError, match=r"line \d+ follows line \d+; `tvmtarget log repair`"):
            list(log)
        with pytest.raises(LogError):
            log.repair()
    assert CliRunner().invoke(app, ["log", "repair", str(path)]).exit_code == 0
    with TuningLog(str(path)) as log:
        assert log.verify() == []
        assert len(numbers(log)) == 3000


ENDLESS = "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) SELECT"


@pytest.mark.parametrize(
    "sql",
    [
        f"DROP VIEW line; CREATE VIEW line AS {ENDLESS} id, x'00' AS digest, '' AS type, 'x' AS text FROM n",
        f"DROP TABLE meta; CREATE VIEW meta AS {ENDLESS} 'views' AS name, '1' AS value FROM n",
        "CREATE TRIGGER t AFTER INSERT ON kept BEGIN DELETE FROM kept; END",
        "CREATE TABLE more(x, y GENERATED ALWAYS AS (zeroblob(1000000000)))",
        "CREATE VIRTUAL TABLE more USING fts5(x)",
        "CREATE TABLE more(x DEFAULT (randomblob(1000000000)))",
    ],
)
def test_a_database_whose_schema_computes_is_rejected_and_its_lines_are_recovered(path, sql):
    damage(path, sql)
    with pytest.raises(LogError, match="no tuning log as this library writes them: it has the"):
        TuningLog(str(path))
    assert CliRunner().invoke(app, ["log", "repair", str(path)]).exit_code == 0
    with TuningLog(str(path)) as log:
        assert len(numbers(log)) == 6


def test_a_lock_that_is_held_is_reported_and_waited_for_some_time(tmp_path, monkeypatch, caplog):
    path = tmp_path / "log.db"
    with TuningLog(str(path)) as log:
        log.append(trial(1))
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        clock = iter(range(0, 10**6, 40))
        monkeypatch.setattr("tvmtarget.autotune.log.tables.time.monotonic", lambda: next(clock))
        with pytest.raises(LogError, match="locked"):
            log.append(trial(2))
        assert "waiting for another process that holds the lock" in caplog.text
        holder.close()
        log.append(trial(3))
    with TuningLog(str(path)) as log:
        assert numbers(log) == [1, 3]
