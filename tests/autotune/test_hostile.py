"""What is no log, disks that are full, processes that are interrupted: an error that says so, and nothing is lost."""

import gzip
import os
import random
import signal
import sqlite3
import time
import zipfile
from pathlib import Path

import pytest
from logs import HERE, MATMUL, ZNVER4, Writer, forked, knobs, known, numbers, trial, with_mounted

from tvmtarget import TuningLog
from tvmtarget.autotune.log.records import Workload
from tvmtarget.errors import LogError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.db"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: path.symlink_to(path), "cannot be (read|used)"),
        (os.mkfifo, "is no regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is no regular file"),
        (lambda path: path.symlink_to("/dev/full"), "is no regular file"),
    ],
    ids=["a directory", "a link to itself", "a pipe", "a device without an end", "a full device"],
)
@pytest.mark.parametrize("name", ["log.jsonl", "log.db"])
def test_a_path_that_is_no_file_is_refused_at_once(tmp_path, name, make, message):
    path = tmp_path / name
    make(path)
    with pytest.raises(LogError, match=message):
        TuningLog(str(path))


def a_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("log.jsonl", trial(1).text)


def a_database(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE person(name TEXT)")


def a_cut_gzip(path):
    path.write_bytes(gzip.compress(trial(1).text.encode())[:-9])


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("log.jsonl", a_zip, "is not a tuning log: line 1"),
        ("log.db", a_zip, "file is not a database"),
        ("log.jsonl", a_database, "is not a tuning log: line 1"),
        ("log.db", a_database, "is a database of something else"),
        ("log.jsonl.gz", a_cut_gzip, "cannot be read"),
        ("log.jsonl", lambda path: path.write_bytes(b"\xff\xfe{\x00"), "is not a tuning log: line 1"),
        ("log.db", lambda path: path.write_bytes(b"SQLite format 3\x00" + b"\xff" * 5000), "cannot be used"),
    ],
)
def test_a_file_of_another_kind_is_refused_and_not_written(tmp_path, name, make, message):
    path = tmp_path / name
    make(path)
    before = path.read_bytes()
    with pytest.raises(LogError, match=message):
        TuningLog(str(path)).append(trial(1))
    assert path.read_bytes() == before


EVIL = [
    "'; DROP TABLE line; --",
    '") OR 1=1',
    "w1:%",
    "*",
    "\u202e\u0000",
    "\x1b[2J",
    "💥" * 50,
]


def test_names_that_look_like_commands_are_names(path):
    workloads = [Workload.of({"op": name, "shapes": [[1]]}) for name in EVIL]
    with TuningLog(str(path)) as log:
        log.extend([*known(ZNVER4, workloads=workloads), *(trial(1, workload=one) for one in workloads)])
        log.extend(trial(2, workload=one, src=name) for one, name in zip(workloads, EVIL, strict=True))
        for one in workloads:
            assert log.lookup(one, ZNVER4, env=HERE).tier == "exact"
        for name in EVIL:
            with pytest.raises(LogError, match=r"no line|more than one line"):
                log.retract(name, name)
    with TuningLog(str(path)) as log:
        assert len(log) == 2 + 3 * len(EVIL)
        assert log.verify() == []


FULL = """
import sys
sys.path.insert(0, "tests/autotune")
from logs import ZNVER4, known, trial
from tvmtarget import TuningLog
from tvmtarget.errors import LogError
log = TuningLog(sys.argv[1])
log.extend(known(ZNVER4))
for at in range(10_000):
    try:
        log.append(trial(at, src="x" * 2000))
    except LogError as error:
        print(at, error)
        break
again = TuningLog(sys.argv[1])
found = sorted(record.candidate.body["mb"] for record in again if record.type == "trial")
print(found == list(range(at)), again.verify())
try:
    print(again.compact(best=1)[:0])
except LogError as error:
    print("not compacted", error)
print(len(TuningLog(sys.argv[1])) in (4, 3 + at))
"""


def test_a_disk_that_is_really_full_is_an_error_and_loses_nothing(path):
    done = with_mounted('mount -t tmpfs -o size=512k none "${LOG%/*}"', FULL, path)
    refused, is_whole, _, is_there = done.stdout.splitlines()
    assert "No space left on device" in refused or "disk is full" in refused
    assert (is_whole, is_there) == ("True []", "True"), done.stderr[-2000:]


def test_a_writer_that_is_interrupted_leaves_whole_lines_only(path):
    random.seed(3)
    acknowledged = set()
    for turn in range(4):
        writer = Writer(path, 1000 * turn, 500)
        acknowledged |= {writer.next() for _ in range(random.randrange(1, 30))}
        os.kill(writer.process, signal.SIGINT)
        acknowledged |= set(writer.end())
    with TuningLog(str(path)) as log:
        assert acknowledged <= set(numbers(log))
        assert log.verify() == [
            f"nothing says what {key!r} is" for key in sorted([MATMUL.key, ZNVER4.digest, HERE.key])
        ]


def test_a_log_is_compacted_while_others_append(path):
    """What is appended are trials of one candidate, which is the best; what is dropped are others."""
    with TuningLog(str(path)) as log:
        log.extend(trial(1000 + at, 10**6 + at) for at in range(12))

    def append():
        with TuningLog(str(path)) as log:
            for at in range(150):
                log.append(trial(1, 1).replace(ts=at))

    child = forked(append)
    with TuningLog(str(path)) as log:
        for best in range(12, 0, -1):
            log.compact(best=best)
            time.sleep(0.005)
        assert os.waitpid(child, 0)[1] == 0
        log.compact(best=1)
        assert sorted(record.ts for record in log) == list(range(150))  # type: ignore[attr-defined]
        assert log.top_k(MATMUL, ZNVER4, 9)[0].candidate == knobs(mb=1)
