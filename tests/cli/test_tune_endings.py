"""`tvmtarget tune` is interrupted, or loses its terminal: no worker stays, and no measurement is lost."""

import os
import pty
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from models import small
from onnx import helper
from processes import is_gone, processes, wait

import tvmtarget as tt
from tvmtarget.autotune.log.records import Trial

pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")

WORKER = "tvmtarget.autotune.search.kernel_worker"
COMMAND = [sys.executable, "-m", "tvmtarget.cli.main", "tune"]


@pytest.fixture
def model(tmp_path):
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
    path = tmp_path / "matmul.onnx"
    product = small(helper.make_node("MatMul", ["x", "w"], ["y"]), shape=(48, 64), w=weights)
    path.write_bytes(product.SerializeToString())
    return path


def words(model, log, trials=100000):
    return [*COMMAND, str(model), "-t", "llvm", "--log", str(log), "--level", "kernel", "--trials", str(trials)]


def started(model, log, **options):
    """Start tuning, and return the process after a few trials."""
    # The tests may run in a process that ignores SIGHUP, as under nohup.
    process = subprocess.Popen(
        words(model, log),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        **options,
    )
    for line in process.stderr:
        if line.startswith("trial 4"):
            break
    return process


def trials(log):
    with tt.TuningLog(log) as opened:
        assert opened.verify() == []
        return len([record for record in opened if isinstance(record, Trial)])


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        pytest.param([signal.SIGINT, signal.SIGINT], 130, id="Ctrl-C twice"),
        pytest.param([signal.SIGTERM], 143, id="kill", marks=pytest.mark.slow),
        pytest.param([signal.SIGHUP], 129, id="no terminal", marks=pytest.mark.slow),
    ],
)
def test_after_a_signal_it_prints_the_result_and_how_to_continue_and_leaves_no_worker(model, numbers, code):
    log = model.with_name("log.db")
    process = started(model, log)
    workers = processes(WORKER, parent=process.pid)
    for number in numbers:
        os.kill(process.pid, number)
        time.sleep(0.05)
    found, rest = process.communicate()
    assert process.returncode == code
    assert found.startswith(tuple(f"{count} candidates measured, 0 known" for count in range(4, 100)))
    assert "kernel matmul[48,64]" in found
    (message,) = [line for line in rest.splitlines() if not line.startswith("trial ")]
    assert message.startswith(f"interrupted; all measurements are in {log}; continue with: tvmtarget tune ")
    assert trials(log) >= 4
    assert workers
    wait(lambda: all(map(is_gone, workers)))


@pytest.mark.slow
@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_closed_terminal_ends_it_unless_sighup_is_ignored(model, is_ignored):
    log = model.with_name("log.db")
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
        os.execv(sys.executable, words(model, log, 12 if is_ignored else 100000))
    seen = b""
    while b"trial 2" not in seen and b"trial 3" not in seen:
        seen += os.read(terminal, 65536)
    workers = processes(WORKER, parent=pid)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == (1 if is_ignored else 129)
    assert trials(log) >= (12 if is_ignored else 2)
    assert workers
    wait(lambda: all(map(is_gone, workers)))


@pytest.mark.slow
def test_tuning_finishes_without_a_reader_of_its_output(model):
    log = model.with_name("log.db")
    process = subprocess.Popen(words(model, log, 6), stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stderr.close()
    process.stdout.close()
    assert process.wait() == 1
    assert trials(log) >= 6


@pytest.mark.slow
def test_on_a_full_disk_the_log_stays_valid_and_lost_trials_are_reported(model):
    log = model.with_name("log.db")
    process = started(model, log)
    workers = processes(WORKER, parent=process.pid)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (log.stat().st_size + 500,) * 2)
    found, rest = process.communicate()
    assert process.returncode == 1
    assert " candidates measured, 0 known" in found
    errors = [line for line in rest.splitlines() if not line.startswith("trial ")]
    assert errors[0].startswith(f"error: the log '{log}' cannot be used: ")
    assert errors[1].startswith(
        f"error: all that was measured, {found.split()[0]} trials, is in '{log.parent}/log-unsaved-"
    )
    assert trials(log) >= 4
    assert workers
    wait(lambda: all(map(is_gone, workers)))


@pytest.mark.slow
def test_after_a_kill_no_worker_runs_the_log_is_valid_and_the_same_command_continues(cli, model):
    log = model.with_name("log.db")
    process = started(model, log)
    workers = processes(WORKER, parent=process.pid)
    process.kill()
    process.communicate()
    assert workers
    wait(lambda: all(map(is_gone, workers)))
    assert cli("log", "verify", log)[0] == 0
    code, out, err = cli(*words(model, log, 2)[3:])
    assert code == 0, err
    measured, known = out.split(" candidates measured, ")
    assert int(measured) == 2
    assert int(known.split()[0]) >= 4
