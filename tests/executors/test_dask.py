"""The runtime `dask`: a worker for each machine, of this computer or of a scheduler at an address."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from clusters import assert_same, images, replicated, whole
from models import DIGITS, inputs_of, light
from onnx import parser
from processes import is_gone, wait

import tvmtarget as tt
from tvmtarget.errors import BackendError, RunError
from tvmtarget.executors.protocol import CallEvent
from tvmtarget.runtimes.dask import connected

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
pytest.importorskip("onnxruntime")

TWO = "[n0=[a=onnxruntime,b=numpy](host=@b),n1=[a=onnxruntime,b=numpy](host=@b)](runtime=dask)"
THREE = "[n=[a=onnxruntime,b=numpy](host=@b,count=3)](host=@n.0/b)"
WHERE = {"fc*": "@n1", "relu*": "@n0/b"}


def test_two_machines_compute_what_one_does():
    exe = tt.build(tt.IRModule.from_onnx(DIGITS), TWO, where=WHERE)
    assert_same(exe.run(images()), whole(DIGITS, images()))
    batches = [images(seed=seed) for seed in range(6)]
    for batch, output in zip(batches, exe.stream(batches, depth=3), strict=True):
        assert_same(output, whole(DIGITS, batch))
    called = [event.call for event in exe.profile(images()) if isinstance(event, CallEvent)]
    assert sorted(called) == sorted(subgraph["call"] for subgraph in exe.report()["subgraphs"])
    exe.close()


def test_results_that_dask_transfers_can_be_written():
    proto = parser.parse_model("""<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => (seq(float[2]) y)
        { n = Neg(x)  e = Abs(n)  y = SequenceConstruct(e, n) }""")
    where = {"op:SequenceConstruct": "@n1/b", "op:Neg": "@n0/b", "op:Abs": "@n0/b"}
    exe = tt.build(proto, TWO, where=where)
    for array in exe.run({"x": np.ones(2, "float32")})["y"]:
        array += 1
    exe.close()


@pytest.mark.slow
def test_replicas_run_the_inputs_of_a_stream_by_turns():
    exe = replicated("dask")
    batches = [images(seed=seed) for seed in range(7)]
    for batch, output in zip(batches, exe.stream(batches), strict=True):
        assert_same(output, whole(DIGITS, batch))
    group = exe._engine._workers  # type: ignore[attr-defined]
    assert [*group.workers] == ["n.0", "n.1", "n.2"]
    exe.close()


def test_workers_are_there_while_dask_refreshes_what_it_says_of_them():
    """A client replaces that by an answer without workers every two seconds; here all the time."""
    with dask.config.set({"distributed.client.scheduler-info-interval": "1ms"}):
        exe = tt.build(tt.IRModule.from_onnx(DIGITS), TWO, where=WHERE)
        assert len(list(exe.stream((images(seed=seed) for seed in range(20)), depth=3))) == 20
        exe.close()


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("localhost", "'localhost' is no address of a Dask scheduler, such as 'tls://"),
        ("http://127.0.0.1:1", "'http://127.0.0.1:1' cannot be reached: unknown address scheme"),
        ("inproc://x", "'inproc://x' cannot be reached: "),
    ],
)
def test_an_address_that_is_none_is_named(address, problem):
    with pytest.raises(RunError) as caught:
        connected(distributed, address, insecure=True, seconds=1)
    assert problem in str(caught.value)


@pytest.mark.slow
def test_a_function_that_fails_is_named_with_its_machine_and_not_that_of_its_reader():
    proto = parser.parse_model("""<ir_version: 9, opset_import: ["": 18]> g (float[2] x, int64[1] at) => (float[1] y)
        { n = Neg(x)  t = Gather(n, at)  e = Exp(t)  y = Abs(e) }""")
    exe = tt.build(proto, TWO, where={"op:Gather": "@n1/b", "op:Neg": "@n0/b", "op:Exp": "@n0/b", "op:Abs": "@n1/b"})
    for _ in range(4):
        with pytest.raises(RunError, match=r"@n1/b.*\(on machine 'n1'\)"):
            exe.run({"x": np.ones(2, "float32"), "at": np.array([7])})
    exe.close()


def test_dask_is_refused_in_a_fork_of_a_process_that_used_it(monkeypatch):
    exe = tt.build(tt.IRModule.from_onnx(DIGITS), TWO, where=WHERE)
    monkeypatch.setattr("tvmtarget.runtimes.dask._used_by", 1)
    with pytest.raises(RunError, match="Dask ran in process 1, and this is a fork of it"):
        exe.run(images())


def test_insecure_has_no_effect_without_an_address():
    with pytest.raises(BackendError, match="'insecure' would be ignored: without an address"):
        tt.build(DIGITS, TWO.replace("dask", "dask(insecure=true)"), where=WHERE)


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setenv("TVMTARGET_MAX_SILENCE_SECONDS", "1")
    exe = tt.build(
        tt.IRModule.from_onnx(DIGITS), TWO.replace("dask", "dask(address=tcp://127.0.0.1:1,insecure=true)"), where=WHERE
    )
    with pytest.raises(RunError, match=r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:1'"):
        exe.run(images())


@pytest.mark.slow
def test_a_worker_that_dies_is_named_and_the_next_run_begins_anew(tmp_path):
    exe = tt.build(tt.IRModule.from_onnx(DIGITS), TWO, where=WHERE)
    exe.save(tmp_path / "digits.tt")
    exe = tt.load(tmp_path / "digits.tt")
    exe.run(images())
    group = exe._engine._workers  # type: ignore[attr-defined]
    os.kill(group.client.run(os.getpid)[group.workers["n1"]], signal.SIGKILL)
    with pytest.raises(RunError, match="machine 'n1' is gone"):
        exe.run(images())
    assert_same(exe.run(images()), whole(DIGITS, images()))
    exe.close()


@pytest.mark.slow
def test_squeezenet_on_three_workers_of_a_running_cluster():
    model = light("squeezenet")
    module, inputs = tt.IRModule.from_onnx(model), inputs_of(model)
    third = len(module.main.body) // 3
    where = {call.source: f"@n.{min(2, place // third)}/a" for place, call in enumerate(module.main.body)}
    with distributed.LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None) as cluster:
        address = cluster.scheduler_address

        def built(workers):
            runtime = tt.Runtime("dask", {"address": address, "workers": workers, "insecure": True})
            return tt.build(module, THREE, where=where, runtime=runtime)

        exe = built(["2", "0", "1"])
        assert_same(exe.run(inputs), whole(model, inputs))
        names = {fact["name"]: worker for worker, fact in cluster.scheduler_info["workers"].items()}
        assert exe._engine._workers.workers == {"n.0": names[2], "n.1": names[0], "n.2": names[1]}
        exe.close()
        with pytest.raises(RunError, match=r"Dask has no worker 'five'(.|\n)*need a worker each, not 2"):
            built(["0", "five"]).run(inputs)
        where = {source: site.replace("n.1", "n.0") for source, site in where.items()}
        exe = built(["2", "0", "1"])  # of all machines, of which one has no operations
        assert_same(exe.run(inputs), whole(model, inputs))
        assert exe._engine._workers.workers == {"n.0": names[2], "n.2": names[1]}
        exe.close()
        with pytest.raises(RunError, match=r"2 machines \(n\.0, n\.2\) need a worker each, not 4"):
            built(["2", "0", "1", "0"]).run(inputs)


def test_a_worker_with_another_version_of_the_library_is_named(monkeypatch):
    monkeypatch.setattr("tvmtarget.runtimes.dask.__version__", "0.0.9")
    with distributed.LocalCluster(n_workers=2, processes=False, dashboard_address=None) as cluster:
        runtime = tt.Runtime("dask", {"address": cluster.scheduler_address, "insecure": True})
        exe = tt.build(tt.IRModule.from_onnx(DIGITS), TWO, where=WHERE, runtime=runtime)
        with pytest.raises(
            RunError, match=rf"machine 'n1' has tvmtarget {tt.__version__}, and this process 0\.0\.9; inst"
        ):
            exe.run(images())
        exe.close()


def test_a_worker_of_this_computer_that_is_stopped_is_named_and_ended(monkeypatch):
    monkeypatch.setenv("TVMTARGET_MAX_SILENCE_SECONDS", "2")
    exe = tt.build(tt.IRModule.from_onnx(DIGITS), TWO, where=WHERE)
    exe.run(images())
    group = exe._engine._workers  # type: ignore[attr-defined]
    pid = group._processes()[group.workers["n1"]]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(RunError, match=r"machine 'n1' is stopped: .* 2 s; .*TVMTARGET_MAX_SILENCE_SECONDS raises"):
        exe.run(images())
    wait(lambda: is_gone(pid))


CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("stop", "problem"),
    [
        (signal.SIGKILL, "is gone"),
        pytest.param(signal.SIGSTOP, "has been silent for 6 s", marks=pytest.mark.slow),
    ],
)
def test_a_scheduler_that_is_killed_or_stopped_is_named(tmp_path, stop, problem, monkeypatch):
    if stop == signal.SIGSTOP:  # a worker that imports TVM on a busy machine may be silent for some seconds
        monkeypatch.setenv("TVMTARGET_MAX_SILENCE_SECONDS", "6")
    (tmp_path / "cluster.py").write_text(CLUSTER)
    command = [sys.executable, str(tmp_path / "cluster.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        address = process.stdout.readline().decode().strip()
        try:
            runtime = tt.Runtime("dask", {"address": address, "insecure": True})
            exe = tt.build(tt.IRModule.from_onnx(DIGITS), TWO, where=WHERE, runtime=runtime)
            exe.run(images())
            process.send_signal(stop)
            with pytest.raises(RunError, match=f"the Dask scheduler at '{address}' {problem}"):
                exe.run(images())
            exe.close()
        finally:
            process.kill()


def test_somebody_silent_at_the_address_of_a_scheduler_is_named(monkeypatch):
    monkeypatch.setenv("TVMTARGET_MAX_SILENCE_SECONDS", "1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        runtime = tt.Runtime("dask", {"address": address, "insecure": True})
        exe = tt.build(tt.IRModule.from_onnx(DIGITS), TWO, where=WHERE, runtime=runtime)
        with pytest.raises(RunError, match=f"no Dask scheduler answers at '{address}'"):
            exe.run(images())


OPEN = f"""
import asyncio, sys, threading
import numpy as np, tvmtarget as tt
beating = threading.Event()
async def beat(**_values):
    beating.set()
    await asyncio.sleep(60)
if __name__ == "__main__":
    exe = tt.build(tt.IRModule.from_onnx({str(DIGITS)!r}), {TWO!r}, where={WHERE!r})
    print(exe(np.zeros((1, 1, 8, 8), np.float32)).shape)
    if "busy" in sys.argv:
        exe._engine._workers._own.scheduler.handlers["heartbeat_worker"] = beat
        beating.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["idle", "busy"])  # a busy one has not answered a heartbeat
def test_a_process_that_ends_with_a_program_open_reports_nothing_of_dask(tmp_path, scheduler):
    (tmp_path / "open.py").write_text(OPEN)
    command = [sys.executable, tmp_path / "open.py", scheduler]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(1, 10)\n", "")


def test_what_fails_on_a_worker_is_raised_and_not_logged_too(capfd):
    proto = parser.parse_model("""<ir_version: 9, opset_import: ["": 18]> g (float[2] x, int64[1] i) => (float[1] y)
        { n = Neg(x)  y = Gather(n, i) }""")
    exe = tt.build(proto, TWO, where={"op:Neg": "@n0/b", "op:Gather": "@n1/b"})
    with pytest.raises(RunError, match=r"Gather_1\) failed: index 7 is out of bounds .* \(on machine 'n1'\)"):
        exe.run({"x": np.ones(2, "float32"), "i": np.array([7])})
    exe.close()
    assert capfd.readouterr().err == ""


KILLED = f"""
import sys
import numpy as np, tvmtarget as tt
if __name__ == "__main__":
    exe = tt.build(tt.IRModule.from_onnx({str(DIGITS)!r}), {TWO!r}, where={WHERE!r})
    exe.run({{"input": np.zeros((1, 1, 8, 8), np.float32)}})
    print(*exe._engine._workers._processes().values(), flush=True)
    sys.stdin.read()
    exe.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks into /proc")
def test_workers_end_with_a_killed_process_and_the_next_start_removes_its_files(tmp_path):
    script, temporary = tmp_path / "script.py", tmp_path / "tmp"
    script.write_text(KILLED)
    temporary.mkdir()

    def files():
        return sorted(found.name for found in temporary.iterdir() if "tvmtarget" in found.name or "dask" in found.name)

    for is_killed in (True, False):
        command, environment = [sys.executable, str(script)], os.environ | {"TMPDIR": str(temporary)}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
            pids = [int(word) for word in process.stdout.readline().split()]
            assert len(pids) == 2
            assert len(files()) == 1
            if is_killed:
                process.kill()
        wait(lambda pids=pids: all(map(is_gone, pids)))
    assert files() == []
