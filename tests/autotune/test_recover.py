"""Databases that SQLite cannot use any more: each damaged line costs itself, and what is whole is found again."""

import random
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import HERE, MATMUL, ZNVER4, knobs, known, numbers, trial
from typer.testing import CliRunner

from tvmtarget import TuningLog
from tvmtarget.autotune.log.records import Foreign, Retraction, Workload
from tvmtarget.autotune.log.recover import recover
from tvmtarget.cli.main import app
from tvmtarget.errors import LogError

LONG = Workload.of({"op": "long", "shapes": []}, payload={"b64": "x" * 40_000})
RECORDS = [
    *known(ZNVER4, workloads=(MATMUL, LONG)),
    *(trial(at, 1000 + 100 * at) for at in range(40)),
    Retraction(of=trial(1, 1100).digest, why="measured beside another job"),
    Foreign(line='{"t":"photo", "v":1,"x":1.5}'),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the bytes of a database."""
    path = tmp_path_factory.mktemp("whole") / "log.db"
    with TuningLog(str(path)) as log:
        log.extend(RECORDS)
    return path.read_bytes()


def found(path):
    with TuningLog(str(path)) as log:
        return {record.text for record in log}


def test_of_a_whole_database_all_lines_are_found(tmp_path, whole):
    path = tmp_path / "log.db"
    path.write_bytes(whole)
    assert recover(path) == (len(RECORDS), tmp_path / "log.db.damaged")
    assert found(path) == {record.text for record in RECORDS}
    assert (tmp_path / "log.db.damaged").read_bytes() == whole
    assert recover(path)[1] == tmp_path / "log.db.damaged1"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["log.db", "log.db.damaged", "log.db.damaged1"]


def test_overflow_pages_that_refer_to_each_other_do_not_make_recovery_endless(tmp_path, whole):
    path, size = tmp_path / "log.db", int.from_bytes(whole[16:18])
    local = (size - 12) * 32 // 255 - 20  # bytes of a row in its page, as the file format computes them
    length = local + 10**8 * (size - 4)
    number = bytes([0x80 | length >> 7 * at & 0x7F for at in range(6, 0, -1)] + [length & 0x7F])
    page = (len(whole) // size + 2).to_bytes(4)
    row = b"\x0d\0\0\0\1\0\0\0\0\x0a" + number + b"\1" + bytes(local) + page
    path.write_bytes(whole + row.ljust(size) + page.ljust(size))
    assert recover(path)[0] == len(RECORDS)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=4))
def test_a_flip_of_any_bit_costs_at_most_one_line(tmp_path_factory, whole, flips):
    path, data = tmp_path_factory.mktemp("flipped") / "log.db", bytearray(whole)
    for place, bit in flips:
        data[int(place * len(data))] ^= 1 << bit
    path.write_bytes(data)
    assert recover(path)[0] >= len(RECORDS) - len(flips)
    assert found(path) <= {record.text for record in RECORDS}


def test_a_database_that_was_cut_has_the_lines_before_the_cut(tmp_path, whole):
    path, counts = tmp_path / "log.db", []
    for size in [*range(0, len(whole), 4096), len(whole)]:
        path.write_bytes(whole[:size])
        try:
            counts.append(recover(path)[0])
        except LogError:
            counts.append(0)
    assert counts == sorted(counts)
    assert counts[-1] == len(RECORDS)
    assert 0 < counts[-2] < len(RECORDS)


def test_what_only_the_log_ahead_of_the_database_has_is_found(tmp_path):
    path, left = tmp_path / "log.db", tmp_path / "left"
    left.mkdir()
    with TuningLog(str(path)) as log:
        log.extend(RECORDS)
        log.append(trial(99, 1))
        for name in ("log.db", "log.db-wal"):
            shutil.copy(tmp_path / name, left / name)
    (left / "log.db").write_bytes((left / "log.db").read_bytes()[:50])
    assert recover(left / "log.db")[0] == len(RECORDS) + 1
    assert 99 in numbers(TuningLog(str(left / "log.db")))


def test_repair_makes_a_damaged_database_anew_and_says_what_it_did(tmp_path, whole):
    path, rng = tmp_path / "log.db", random.Random(3)
    data = bytearray(whole[:-8192])
    for _ in range(3):
        data[rng.randrange(len(data))] ^= 1
    path.write_bytes(data)
    assert CliRunner().invoke(app, ["log", "verify", str(path)]).exit_code == 2
    done = CliRunner().invoke(app, ["log", "repair", str(path)])
    assert (done.exit_code, done.output.count("rebuilt with")) == (0, 1)
    with TuningLog(str(path)) as log:
        assert log.lookup(MATMUL, ZNVER4, env=HERE).tier in ("exact", "default")
        assert len(numbers(log)) > 10
        assert all(problem.startswith("nothing says what") for problem in log.verify())


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04" * 5000, b"not a database at all, " * 500])
def test_what_has_no_line_in_it_is_left_alone(tmp_path, data):
    path = tmp_path / "log.db"
    path.write_bytes(data)
    with pytest.raises(LogError, match="no line of a log can be read"):
        recover(path)
    assert [one.name for one in tmp_path.iterdir()] == ["log.db"]
    assert path.read_bytes() == data


def test_what_is_not_damaged_is_not_made_anew(tmp_path, whole):
    """A newer version's database is refused, not taken apart."""
    path = tmp_path / "log.db"
    data = whole[:60] + (99).to_bytes(4) + whole[64:]
    path.write_bytes(data)
    done = CliRunner().invoke(app, ["log", "repair", str(path)])
    assert "newer version: schema 99" in str(done.exception)
    assert path.read_bytes() == data


def test_older_databases_are_read_too(tmp_path):
    from test_promises import old_log

    path = tmp_path / "log.db"
    old_log(path, 5)
    recover(path)
    with TuningLog(str(path)) as log:
        assert numbers(log) == list(range(5))
        assert log.lookup(MATMUL, ZNVER4, env=HERE).candidate == knobs(mb=0)
