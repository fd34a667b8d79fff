"""The runtime `dask`: a worker for each machine, of this computer or of a scheduler at an address."""

import os
import signal

import pytest
from clusters import assert_same, images, whole
from models import DIGITS, inputs_of, light

import tvmtarget as tt
from tvmtarget.errors import RunError
from tvmtarget.executors.graph import CallEvent

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
    assert sorted(called) == sorted(region["call"] for region in exe.report()["regions"])
    exe.close()


def test_workers_are_there_while_dask_refreshes_what_it_says_of_them():
    """A client replaces that by an answer without workers every two seconds; here all the time."""
    with dask.config.set({"distributed.client.scheduler-info-interval": "1ms"}):
        exe = tt.build(tt.IRModule.from_onnx(DIGITS), TWO, where=WHERE)
        assert len(list(exe.stream((images(seed=seed) for seed in range(20)), depth=3))) == 20
        exe.close()


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr("tvmtarget.executors.dask.CONNECT", 0.3)
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
    crew = exe._engine._crew
    os.kill(crew.client.run(os.getpid)[crew.workers["n1"]], signal.SIGKILL)
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
        assert exe._engine._crew.workers == {"n.0": names[2], "n.1": names[0], "n.2": names[1]}
        exe.close()
        with pytest.raises(RunError, match=r"Dask has no worker 'five'(.|\n)*need a worker each, not 2"):
            built(["0", "five"]).run(inputs)
