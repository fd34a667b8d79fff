"""A log that fails while tuning writes into it: what was measured is kept, and the error says where."""

import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest
from models import DIGITS

import tvmtarget as tt
from tvmtarget.autotune.log.records import Candidate, Measurement, Trial, Workload
from tvmtarget.autotune.search.result import TuneStoppedError
from tvmtarget.autotune.search.tuning import Journal
from tvmtarget.errors import LogError

pytest.importorskip("onnxruntime", reason="pip install tvmtarget[onnxruntime]")

MATMUL = Workload.of({"op": "matmul", "shapes": [[8, 8]]})
CPU = tt.Target.parse("llvm(num-cores=2)")


def trials(log):
    return [record for record in log if isinstance(record, Trial)]


def measured(log, cost):
    ran = Measurement(status="ok", costs=[cost])
    return log.add(MATMUL, CPU, Candidate(format="knobs/1", body={"a": cost}), ran)


def delete(path):
    path.unlink()


def replace(path):
    path.rename(path.with_name("moved"))
    with tt.TuningLog(path) as log:
        measured(log, 77)


def make_a_folder(path):
    path.unlink()
    path.mkdir()


def damage(path):
    """Overwrite all but the header of a database and what was written ahead."""
    for name in (path, Path(f"{path}-wal")):
        size = name.stat().st_size
        with name.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xee" * max(0, size - 4096))


@pytest.mark.parametrize("fault", [delete, replace])
def test_a_database_that_was_taken_away_takes_nothing_more(tmp_path, fault):
    log = tt.TuningLog(tmp_path / "log.db")
    measured(log, 1)
    fault(tmp_path / "log.db")
    with pytest.raises(LogError, match=r"'.*log\.db' was deleted or replaced since it was opened; open it again"):
        measured(log, 2)


def test_a_journal_notices_that_the_log_was_replaced(tmp_path):
    path = tmp_path / "log.db"
    log = tt.TuningLog(path)
    journal = Journal(log)
    with journal.recording():
        measured(log, 1)
    replace(path)
    with pytest.raises(LogError, match="was deleted or replaced"):
        journal.write_again()


def test_where_the_folder_of_the_log_is_gone_too_trials_are_written_where_temporary_files_are(tmp_path, monkeypatch):
    (tmp_path / "my logs").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    log = tt.TuningLog(tmp_path / "my logs" / "log.db")
    journal = Journal(log)
    assert journal.rescue() == "nothing was measured before"
    with journal.recording():
        measured(log, 1)
    measured(log, 2)
    log.close()
    shutil.rmtree(tmp_path / "my logs")
    saved, sentence = f"{tmp_path}/log-unsaved-{os.getpid()}.jsonl", journal.rescue()
    assert f"1 trial, is in '{saved}' too" in sentence
    assert sentence.endswith(f"tvmtarget log merge '{tmp_path}/my logs/log.db' {saved}")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert journal.rescue() == "what was measured, 1 trial, could not be written elsewhere either"


def tuned_until(path, fault):
    """Tune settings of onnxruntime, and after the first trial have something happen to the log."""
    steps = []

    def progress(step):
        steps.append(step)
        if len(steps) == 1:
            fault(path)

    module = tt.IRModule.from_onnx(DIGITS)
    return tt.tune(module, "onnxruntime", log=path, trials=3, levels=["executor"], progress=progress)


@pytest.mark.parametrize(
    ("name", "fault", "reason"),
    [
        ("log.db", delete, "was deleted or replaced since it was opened"),
        pytest.param("log.db", damage, "cannot be used: ", marks=pytest.mark.slow),
        pytest.param("log.db", make_a_folder, "was deleted or replaced", marks=pytest.mark.slow),
    ],
)
def test_a_log_that_fails_while_tuning_is_one_error_that_says_where_all_trials_are(tmp_path, name, fault, reason):
    with pytest.raises(TuneStoppedError, match=reason) as raised:
        tuned_until(tmp_path / name, fault)
    (unsaved,) = tmp_path.glob("log-unsaved-*.jsonl")
    assert raised.value.problems[-1].endswith(f"merge it with: tvmtarget log merge {tmp_path / name} {unsaved}")
    with tt.TuningLog(unsaved) as log:
        assert log.verify() == []
        assert len(trials(log)) >= raised.value.result.measured >= 1


def test_a_database_that_another_process_does_not_unlock_is_an_error_and_keeps_what_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("tvmtarget.autotune.log.tables.LOCK_TIMEOUT", 1)
    holding = []

    def hold(path):
        holding.append(sqlite3.connect(path, isolation_level=None))
        holding[0].execute("BEGIN IMMEDIATE")

    with pytest.raises(TuneStoppedError, match=r"database is locked\nall that was measured, \d+ trials, is in '"):
        tuned_until(tmp_path / "log.db", hold)
    holding[0].execute("ROLLBACK")
    (unsaved,) = tmp_path.glob("log-unsaved-*.jsonl")
    with tt.TuningLog(tmp_path / "log.db") as log, tt.TuningLog(unsaved) as other:
        assert log.verify() == []
        before = len(trials(log))
        log.merge(other)
        assert len(trials(log)) > before > 0
