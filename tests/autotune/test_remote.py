"""Kernels are measured on workers of Dask; one that is lost, unlike or outdated takes no candidate with it."""

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from models import small
from onnx import helper

import tvmtarget as tt
from tvmtarget.autotune.log.environment import environment
from tvmtarget.autotune.log.records import Trial
from tvmtarget.autotune.search import dask_worker
from tvmtarget.autotune.search.dask_worker import Reply
from tvmtarget.autotune.search.measuring import Worker
from tvmtarget.autotune.search.process import Limits, LostError
from tvmtarget.autotune.search.remote import Remotes
from tvmtarget.autotune.search.result import TuneStoppedError
from tvmtarget.backends.protocol import CompileRequest

pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
distributed = pytest.importorskip("distributed", reason="pip install tvmtarget[dask]")

DASK = [sys.executable, "-m", "dask"]


def product():
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
    return small(helper.make_node("MatMul", ["x", "w"], ["y"]), shape=(48, 64), w=weights)


# What a machine does with the seconds that are left.


def napping(what, seconds, count):
    """Say when a measurement began and ended, and where."""
    begin = time.monotonic()
    time.sleep(count / 10)
    return Reply("", (what, os.getpid(), begin, time.monotonic()))


def forgetful(opened, seconds, folder):
    """Say what was sent, and forget it once."""
    (folder / f"{time.monotonic_ns()} {'source' in opened}").touch()
    return Reply("", len(list(folder.iterdir())), lacks_source=len(list(folder.iterdir())) == 2)


def waiting(path, seconds):
    """End when there is a file, and say where that was."""
    while not path.exists():
        time.sleep(0.01)
    return Reply("", os.getpid())


def picky(folder, seconds, how):
    """Refuse on the machine that comes first, in one of the ways in which machines do."""
    (folder / str(os.getpid())).touch()
    is_first = len(list(folder.iterdir())) == 1
    if how == "unlike":
        return Reply(f"number {os.getpid()}", os.getpid())
    if how == "raises" and is_first:
        raise ModuleNotFoundError("No module named 'tvm'")
    return Reply("", os.getpid(), "it is old" if is_first or how == "never" else "")


# What refuses, loses and keeps


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as opened:
        yield opened


def test_what_a_lost_machine_measured_is_measured_by_another_one(cluster, tmp_path):
    with Remotes(cluster.scheduler_address, insecure=True) as remotes:
        pids = remotes._client.run(os.getpid)
        found = []
        thread = threading.Thread(target=lambda: found.append(remotes.run(waiting, tmp_path / "go")))
        thread.start()
        while not any((busy := remotes._client.processing()).values()):
            time.sleep(0.05)
        lost = next(address for address, keys in busy.items() if keys)
        os.kill(pids[lost], signal.SIGKILL)
        (tmp_path / "go").touch()
        thread.join()
    (pid,) = found
    assert pid != pids[lost]


@pytest.mark.parametrize("how", ["refuses", "raises"])
def test_a_machine_that_cannot_measure_is_not_used_again_and_another_one_measures(cluster, tmp_path, how):
    with Remotes(cluster.scheduler_address, insecure=True) as remotes:
        pids = {remotes.run(picky, tmp_path, how) for _ in range(3)}
        assert len(pids) == remotes.size == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_where_all_machines_refuse_each_says_why(cluster, tmp_path):
    with Remotes(cluster.scheduler_address, insecure=True) as remotes:
        with pytest.raises(tt.TvmTargetError, match=r"tcp://\S+ cannot measure this: it is old") as raised:
            remotes.run(picky, tmp_path, "never")
        assert len(raised.value.problems) == 2


def test_a_machine_unlike_the_one_that_measured_first_is_refused(cluster, tmp_path):
    with Remotes(cluster.scheduler_address, insecure=True) as remotes:
        results, threads = [], []
        for _ in range(4):
            work = lambda: results.append(remotes.run(picky, tmp_path, "unlike"))  # noqa: E731
            threads.append(threading.Thread(target=work))
            threads[-1].start()
        for thread in threads:
            thread.join()
        if len(list(tmp_path.iterdir())) == 2:
            (why,) = remotes._refused.values()
            assert re.fullmatch(r"it is number \d+, and the others are number \d+", why)
    assert len(set(results)) == 1
    assert len(results) == 4


def test_a_source_is_sent_once_and_again_to_a_machine_that_has_it_no_more(tmp_path):
    with (
        distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as one,
        Remotes(one.scheduler_address, insecure=True) as remotes,
    ):
        opened = {"target": "llvm", "digest": "a digest", "source": b"large"}
        assert [remotes.run(forgetful, opened, tmp_path) for _ in range(3)] == [1, 3, 4]
    sent = [path.name.split()[1] for path in sorted(tmp_path.iterdir())]
    assert sent == ["True", "False", "True", "False"]


def test_nothing_is_waited_for_when_the_time_is_up(cluster, tmp_path):
    with Remotes(cluster.scheduler_address, insecure=True) as remotes:
        for until in (time.monotonic() - 1, time.monotonic() + 0.3):
            with pytest.raises(LostError, match="the time of tuning was up") as raised:
                remotes.run(waiting, tmp_path / "go", until=until)
            assert raised.value.status == "cancelled"
        (tmp_path / "go").touch()


# What a worker does


@pytest.fixture
def opened():
    part = CompileRequest("main", product().SerializeToString(), "", tt.Target.parse("llvm"))
    yield dask_worker.leaf_description("tvm", part, Limits(), "a session")
    dask_worker.close_session("a session")


def test_a_worker_measures_within_the_seconds_that_are_left_and_keeps_its_process(opened):
    with Worker("tvm", CompileRequest("main", opened["source"], "", tt.Target.parse("llvm"))) as here:
        (space,) = here.spaces()
    choices = list(map(dict, space.default))
    reply = dask_worker.measure_on_worker(opened, None, space.kernel.key, choices, 2, None)
    assert (reply.value.status, reply.value.env, reply.refusal) == ("ok", environment(), "")
    (worker,) = dask_worker._OPEN.values()
    pid = worker.pid
    assert dask_worker.measure_on_worker(opened, 0.0, space.kernel.key, choices, 2, None).value.status == "cancelled"
    short = {name: value for name, value in opened.items() if name != "source"}
    assert dask_worker.measure_on_worker(short, 0.0, space.kernel.key, choices, 2, None).value.status == "cancelled"
    assert dask_worker.measure_on_worker({**short, "digest": "other"}, None, "k1:", [], 1, None).lacks_source
    dask_worker.close_session("another session")
    assert len(dask_worker._OPEN) == 1
    dask_worker.close_session("a session")
    assert not dask_worker._OPEN
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tvmtarget": "0.0"}, f"it has tvmtarget {tt.__version__}, not 0.0"),
        ({"version": "TVM 0.1"}, "it has .*, not TVM 0.1"),
        ({"backend": "tvn"}, "no backend 'tvn' is installed; did you mean 'tvm'"),
        ({"target": tt.Target.parse("llvm(mcpu=cortex-a72)").to_json()}, "aarch64|x86"),
        ({"target": tt.Target.parse("llvm(num-cores=4096)").to_json()}, "4096"),
    ],
)
def test_a_worker_that_would_measure_something_else_says_why_it_does_not(opened, changes, why):
    reply = dask_worker.measure_on_worker({**opened, **changes}, None, "k1:", [], 1, None)
    assert reply.value is None
    assert re.search(why, reply.refusal)
    assert not dask_worker._OPEN


# The loop


@pytest.mark.slow
def test_a_machine_measures_one_thing_at_a_time(cluster):
    with Remotes(cluster.scheduler_address, insecure=True) as remotes:
        results = []
        threads = [threading.Thread(target=lambda n=n: results.append(remotes.run(napping, n, 2))) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(what for what, *_ in results) == list(range(6))
    for pid in {pid for _, pid, *_ in results}:
        spans = sorted((begin, end) for _, where, begin, end in results if where == pid)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def tuned(address, log, trials=6, **options):
    module = tt.IRModule.from_onnx(product())
    return tt.tune(module, "llvm", log=log, trials=trials, levels=["kernel"], workers=address, insecure=True, **options)


def statuses(log):
    return Counter(record.measured.status for record in log if isinstance(record, Trial))


@pytest.mark.slow
def test_kernels_are_tuned_on_workers_into_the_log_here_and_no_process_is_left_there(cluster):
    log = tt.TuningLog("memory:")
    assert tuned(cluster.scheduler_address, log).measured == 6
    assert set(statuses(log)) == {"ok"}
    tiers = [applied.tier for applied in tt.build(tt.IRModule.from_onnx(product()), "llvm", log=log).tuned]
    assert "exact" in tiers
    with Remotes(cluster.scheduler_address, insecure=True) as remotes:
        assert set(remotes._client.run(lambda: len(dask_worker._OPEN)).values()) == {0}


class Machines:
    """A scheduler and workers, each a process of its own as people start them."""

    def __init__(self, folder):
        self._folder = folder
        self._file = folder / "scheduler.json"
        self.scheduler = self._start("scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", self._file)
        while not self._file.exists():
            time.sleep(0.1)
        self.workers = []

    def _start(self, *words):
        with (self._folder / "dask.log").open("a") as file:
            return subprocess.Popen([*DASK, *map(str, words)], stdout=file, stderr=file, cwd=self._folder)

    def add(self):
        words = ("--no-nanny", "--nthreads", "1", "--no-dashboard", "--scheduler-file", self._file)
        self.workers.append(self._start("worker", *words))

    def close(self):
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


@pytest.fixture
def machines(tmp_path, monkeypatch):
    monkeypatch.setattr("tvmtarget.autotune.search.remote._PATIENCE", 3.0)
    opened = Machines(tmp_path)
    opened.add()
    with distributed.Client(scheduler_file=str(tmp_path / "scheduler.json"), set_as_default=False) as client:
        client.wait_for_workers(1)
        opened.address = client.scheduler.address  # type: ignore[attr-defined]
    yield opened
    opened.close()


def losing(*processes):
    """Return a `progress` that kills processes after the third trial."""

    def progress(step):
        if step.done == 3:
            for process in processes:
                process.kill()

    return progress


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "why"),
    [
        ("workers", r"no measuring machine is left at 'tcp://\S+', and none came in 3 seconds"),
        ("scheduler", r"the Dask scheduler at 'tcp://\S+' does not answer any more"),
    ],
)
def test_if_all_workers_or_the_scheduler_are_lost_the_error_has_the_result_so_far(machines, lost, why):
    log = tt.TuningLog("memory:")
    processes = machines.workers if lost == "workers" else [machines.scheduler]
    with pytest.raises(TuneStoppedError, match=why) as raised:
        tuned(machines.address, log, trials=1000, progress=losing(*processes))
    assert raised.value.result.measured >= 3
    assert set(statuses(log)) == {"ok"}


@pytest.mark.slow
def test_a_worker_that_comes_while_another_one_is_lost_goes_on(machines):
    log = tt.TuningLog("memory:")

    def progress(step):
        if step.done == 2:
            machines.add()
        losing(*machines.workers[:1])(step)

    assert tuned(machines.address, log, trials=8, progress=progress).measured == 8
    assert set(statuses(log)) == {"ok"}


@pytest.mark.slow
def test_seconds_are_kept_on_workers_too(machines):
    log = tt.TuningLog("memory:")
    begin = time.monotonic()
    result = tuned(machines.address, log, trials=None, seconds=8)
    assert time.monotonic() - begin < 60, "what is being measured is not cut at all"
    assert set(statuses(log)) <= {"ok", "cancelled"}
    assert result.measured == sum(result.statuses.values())


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer_is_one_line():
    with pytest.raises(tt.TvmTargetError, match=r"no Dask scheduler answers at 'tcp://127.0.0.1:1'"):
        Remotes("tcp://127.0.0.1:1", insecure=True)
