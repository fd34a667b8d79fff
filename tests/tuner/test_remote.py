"""Kernels are measured on workers of Dask; a worker that is lost takes no candidate with it."""

import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest
from models import small
from onnx import helper

import tvmtarget as tt
from tvmtarget.tuner.remote import Remotes
from tvmtarget.tuning.records import Trial

pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
distributed = pytest.importorskip("distributed", reason="pip install tvmtarget[dask]")


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as opened:
        yield opened


def napping(opened, key, what, count):
    """Say when a measurement began and ended, and where."""
    begin = time.monotonic()
    time.sleep(count / 10)
    return what, os.getpid(), begin, time.monotonic()


def waiting(opened, key, path, count):
    """End when there is a file, and say where that was."""
    while not path.exists():
        time.sleep(0.01)
    return os.getpid()


@pytest.mark.slow
def test_a_machine_measures_one_thing_at_a_time(cluster):
    with Remotes(cluster.scheduler_address) as remotes:
        results = []
        threads = [
            threading.Thread(target=lambda n=n: results.append(remotes.run(napping, {}, "", n, 2))) for n in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(what for what, *_ in results) == list(range(6))
    for pid in {pid for _, pid, *_ in results}:
        spans = sorted((begin, end) for _, where, begin, end in results if where == pid)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_what_a_lost_machine_measured_is_measured_by_another_one(cluster, tmp_path):
    with Remotes(cluster.scheduler_address) as remotes:
        pids = remotes._client.run(os.getpid)
        found = []
        thread = threading.Thread(target=lambda: found.append(remotes.run(waiting, {}, "", tmp_path / "go", 1)))
        thread.start()
        while not any((busy := remotes._client.processing()).values()):
            time.sleep(0.05)
        lost = next(address for address, keys in busy.items() if keys)
        os.kill(pids[lost], signal.SIGKILL)
        (tmp_path / "go").touch()
        thread.join()
    (pid,) = found
    assert pid != pids[lost]


@pytest.mark.slow
def test_kernels_are_tuned_on_workers_into_the_log_here(cluster):
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
    model = small(helper.make_node("MatMul", ["x", "w"], ["y"]), shape=(48, 64), w=weights)
    log = tt.TuningLog("memory:")
    result = tt.tune(
        tt.IRModule.from_onnx(model),
        "llvm",
        log=log,
        trials=6,
        levels=["kernel"],
        workers=cluster.scheduler_address,
    )
    assert result.measured == 6
    assert {record.measured.status for record in log if isinstance(record, Trial)} == {"ok"}
    tiers = [applied.tier for applied in tt.build(tt.IRModule.from_onnx(model), "llvm", log=log).tuned]
    assert "exact" in tiers


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer_is_one_line():
    with pytest.raises(tt.TvmTargetError, match=r"no Dask scheduler answers at 'tcp://127.0.0.1:1'"):
        Remotes("tcp://127.0.0.1:1")
