"""The runtime `processes`: one process for each machine, and what becomes of failures."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest
from clusters import assert_same, images, replicated, whole
from models import DIGITS, inputs_of, light, small
from onnx import helper
from processes import is_gone, wait

import tvmtarget as tt
from tvmtarget.artifact import read_files, write_files
from tvmtarget.errors import ArtifactError, RunError
from tvmtarget.executors.protocol import CallEvent
from tvmtarget.runtimes.messages import receive, send
from tvmtarget.runtimes.worker import _PeerNetwork, _problems

pytest.importorskip("onnxruntime")

ROOT = Path(__file__).parents[2]
TWO = "[n0=[a=onnxruntime,b=numpy](host=@b),n1=[a=onnxruntime,b=numpy](host=@b)](runtime=processes)"
THREE = "[n=[a=onnxruntime,b=numpy](host=@b,count=3)](host=@n.0/b,runtime=processes)"


def digits():
    return tt.build(tt.IRModule.from_onnx(DIGITS), TWO, where={"fc*": "@n1", "relu*": "@n0/b"})


@pytest.fixture(scope="module")
def running():
    exe = digits()
    yield exe
    exe.close()


def test_two_machines_compute_what_one_does(running):
    for count in (1, 3):
        assert_same(running.run(images(count)), whole(DIGITS, images(count)))


def test_inputs_that_follow_each_other_come_out_in_order(running):
    batches = [images(seed=seed) for seed in range(20)]
    outputs = list(running.stream(batches, depth=5))
    assert len(outputs) == 20
    for batch, output in zip(batches[::7], outputs[::7], strict=True):
        assert_same(output, whole(DIGITS, batch))


def test_every_call_of_the_plan_is_made_once(running):
    events = running.profile(images())
    called = [event.call for event in events if isinstance(event, CallEvent)]
    assert sorted(called) == sorted(subgraph["call"] for subgraph in running.report()["subgraphs"])


# A code generator that the program registers, and programs of it over two machines.
REGISTERED = """
import numpy as np
import tvmtarget as tt
from models import small
from onnx import helper
from tvmtarget import plugins
from tvmtarget.backends.protocol import Backend, Compiled

class Negates(Compiled):
    def run(self, inputs):
        return [-inputs[0]]

class Negating(Backend):
    name, kinds = "negating", ("negating",)
    def version(self):
        return "1"
    def compile(self, request):
        return Negates()

tt.strategy("negating")(type("Negation", (), {"ops": {"Neg"}}))
plugins.register("tvmtarget.backends", "negating", Negating())
GUARD
    model = small(helper.make_node("Neg", ["x"], ["h"]), helper.make_node("Abs", ["h"], ["y"]))
    node = "[a=negating,b=numpy](host=@b)"
    exe = tt.build(model, f"[n0={node},n1={node}](runtime=processes)", where={"op:Abs": "@n1"}, cache=False)
    print(exe.run({"x": np.full((2, 3), -2, "float32")})["y"].max())
"""


@pytest.mark.parametrize(
    ("guard", "printed"),
    [
        ("if __name__ == '__main__':", "2.0"),
        pytest.param("if True:", "put that under if __name__ == '__main__' (on machine '", marks=pytest.mark.slow),
    ],
)
def test_machines_know_the_plugins_that_the_program_registers(tmp_path, guard, printed):
    (tmp_path / "program.py").write_text(REGISTERED.replace("GUARD", guard))
    command = [sys.executable, str(tmp_path / "program.py")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert printed in (done.stdout or done.stderr.splitlines()[-1])


@pytest.mark.parametrize("machine", ["n0", "n1", "host"])
def test_a_machine_that_dies_is_named_and_the_next_run_starts_anew(running, machine):
    running.run(images())
    started = dict(running._engine._workers._processes)
    os.kill(started[machine].pid, signal.SIGKILL)
    with pytest.raises(RunError, match=f"machine '{machine}' was ended by SIGKILL"):
        running.run(images())
    assert all(process.poll() is not None for process in started.values())
    assert_same(running.run(images()), whole(DIGITS, images()))


def test_a_machine_that_dies_is_named_though_one_that_lost_it_is_missed_first(running):
    running.run(images())
    workers = running._engine._workers
    os.kill(workers._processes["n0"].pid, signal.SIGKILL)
    workers._arrived.put(("host", {"failed": ["a machine is gone"], "lost": "n1", "run": None}, []))
    with pytest.raises(RunError, match="machine 'n0' was ended by SIGKILL"):
        running.run(images())


def test_a_function_that_fails_is_named_with_its_machine():
    nodes = [helper.make_node("Reshape", ["x", "to"], ["z"], name="shape"), helper.make_node("Abs", ["z"], ["y"])]
    model = small(*nodes, shape=("n",), to=np.array([2, 3]))
    exe = tt.build(tt.IRModule.from_onnx(model), TWO, where={"shape": "@n1/a"})
    inputs = [{"x": np.arange(size, dtype=np.float32)} for size in (6, 6, 5, 6)]
    stream = exe.stream(inputs)
    np.testing.assert_array_equal(next(stream)["y"], [[0, 1, 2], [3, 4, 5]])
    with pytest.raises(RunError, match=r"of @n1/a \(shape\) failed: .* \(on machine 'n1'\)"):
        list(stream)
    exe.close()


VALUES = {
    "float16": np.float16([[1, np.nan]]),
    "bfloat16": np.array([1, 2], "bfloat16"),
    "int4": np.array([-8, 7], "int4"),
    "other byte order": np.array([1, 2], ">i4"),
    "every other one": np.arange(6.0)[::2],
    "texts": np.array([["é", ""], ["a\0b", "x" * 99]], object),
    "no elements": np.empty((2, 0), np.float32),
    "no dimensions": np.array(True),
    "sequence": [np.float32([1]), [], None],
    "map": [{1: "a"}, {"b": 0.5}],
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_messages_carry_values_of_every_type(value):
    incoming, outgoing = Pipe(duplex=False)
    send(outgoing, {"run": 1}, [value, np.int8([7])])
    message, (found, last) = receive(incoming)
    assert (message, last.tolist()) == ({"run": 1}, [7])
    np.testing.assert_equal(found, value)
    if isinstance(value, np.ndarray):
        assert (found.dtype, found.shape) == (value.dtype.newbyteorder("="), value.shape)
        assert found.flags.writeable


def test_what_a_machine_cannot_read_is_a_failure_and_not_waited_for():
    incoming, outgoing = Pipe(duplex=False)
    failures = queue.SimpleQueue()
    _PeerNetwork(failures.put).add_source("other", incoming)
    outgoing.send_bytes(b'{"message": {}, "values": [{"dtype": "float64", "shape": [1000000000000]}]}')
    assert _problems(failures.get(timeout=30))[0].startswith("the memory does not suffice: ")


def test_a_stream_that_is_left_ends_the_processes(running):
    stream = running.stream(images(seed=seed) for seed in range(10))
    next(stream)
    started = running._engine._workers._processes
    stream.close()
    assert all(process.poll() is not None for process in started.values())


def test_runs_and_streams_take_place_within_a_stream(running):
    batches = [images(seed=seed) for seed in range(4)]
    inner = running.stream(batches, depth=3)
    next(inner)
    for batch, output in zip(batches, running.stream(batches, depth=2), strict=True):
        assert_same(output, whole(DIGITS, batch))
        assert_same(running.run(images()), whole(DIGITS, images()))
    outer = running.stream(batches, depth=2)
    next(outer)
    started = running._engine._workers
    inner.close()  # its results are dropped, and the machines go on with those of the other one
    assert_same(next(outer), whole(DIGITS, batches[1]))
    assert running._engine._workers is started


def test_a_stream_whose_machines_were_stopped_ends(running):
    stream = running.stream((images(seed=seed) for seed in range(4)), depth=2)
    next(stream)
    running.close()
    with pytest.raises(RunError, match=r"the stream cannot go on: .* the machines were stopped"):
        next(stream)
    stream = running.stream((images(seed=seed) for seed in range(4)), depth=2)
    next(stream)
    running._engine._workers.close()  # as another thread does during a run
    with pytest.raises(RunError, match=r"stopped by close\(\) while they ran"):
        next(stream)


def test_a_saved_cluster_runs_again(tmp_path, running):
    running.save(tmp_path / "digits.tt")
    again = tt.load(tmp_path / "digits.tt")
    assert_same(again.run(images()), whole(DIGITS, images()))
    again.save(tmp_path / "again.tt")
    assert (tmp_path / "again.tt").read_bytes() == (tmp_path / "digits.tt").read_bytes()
    again.close()


def test_a_saved_cluster_that_would_hang_is_rejected(tmp_path, running):
    running.save(tmp_path / "digits.tt")
    manifest, files = read_files(tmp_path / "digits.tt")
    program = json.loads(files["machines/n1.json"])
    steps = program["drivers"]["main"]["steps"]
    del steps[next(place for place, step in enumerate(steps) if step["to"])]
    files["machines/n1.json"] = json.dumps(program).encode()
    facts = {name: value for name, value in manifest.items() if name not in ("files", "format", "schema")}
    write_files(tmp_path / "broken.tt", files, **facts)
    with pytest.raises(ArtifactError, match=r"transfer . from 'n1' to '.*' has one end only"):
        tt.load(tmp_path / "broken.tt")


def test_squeezenet_on_three_machines():
    model = light("squeezenet")
    module, inputs = tt.IRModule.from_onnx(model), inputs_of(model)
    third = len(module.main.body) // 3
    where = {call.source: f"@n.{min(2, place // third)}/a" for place, call in enumerate(module.main.body)}
    exe = tt.build(module, THREE, where=where)
    assert {subgraph["site"] for subgraph in exe.report()["subgraphs"]} == {"n.0/a", "n.1/a", "n.2/a"}
    assert_same(exe.run(inputs), whole(model, inputs))
    exe.close()


def processes_of(exe):
    return exe._engine._workers._processes


def test_replicas_run_the_inputs_of_a_stream_by_turns(tmp_path):
    exe = replicated("processes")
    exe.save(tmp_path / "digits.tt")
    exe.close()
    again = tt.load(tmp_path / "digits.tt")
    batches = [images(seed=seed) for seed in range(7)]
    for batch, output in zip(batches, again.stream(batches), strict=True):
        assert_same(output, whole(DIGITS, batch))
    assert [*processes_of(again)] == ["n.0", "n.1", "n.2", "host"]
    assert len([event for event in again.profile(images()) if isinstance(event, CallEvent)]) == 1
    # Run 8 is the turn of the third.
    os.kill(processes_of(again)["n.2"].pid, signal.SIGKILL)
    with pytest.raises(RunError, match=r"machine 'n\.2' was ended by SIGKILL"):
        again.run(images())
    assert_same(again.run(images()), whole(DIGITS, images()))
    again.close()


@pytest.mark.parametrize(
    ("replicas", "problem"),
    [
        ({"n.0": ["n.0", "n.9"]}, "it has no machine 'n.9'"),
        ({"n.0": ["n.1", "n.0"]}, "machine 'n.0' is not the first of its replicas"),
        ({"n.1": ["n.1", "n.2"]}, "machine 'n.1' is not the first of its replicas, which has a program"),
        ({"n.0": ["n.0", "host"]}, "replica 'host' has a program of its own"),
        ({"n.0": ["n.0", "n.1", "n.1"]}, "machine 'n.1' takes turns with two others"),
        ({"n.0": []}, "machine 'n.0' is not the first of its replicas"),
        (["n.0"], "at replicas"),
    ],
)
def test_replicas_of_a_damaged_file_are_rejected(tmp_path, replicas, problem):
    exe = replicated("processes")
    exe.save(tmp_path / "digits.tt")
    manifest, files = read_files(tmp_path / "digits.tt")
    facts = {name: value for name, value in manifest.items() if name not in ("files", "format", "schema")}
    write_files(tmp_path / "broken.tt", files, **facts | {"replicas": replicas})
    with pytest.raises(ArtifactError, match=problem):
        tt.load(tmp_path / "broken.tt")


def stopping(exe, machine):
    process = processes_of(exe)[machine]
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    return process


@pytest.mark.parametrize("machine", ["n0", "n1", "host"])
@pytest.mark.parametrize("count", [1, 40_000], ids=["small", "larger than what a connection buffers"])
def test_a_machine_that_is_stopped_is_named_within_a_limit(running, machine, count, monkeypatch):
    monkeypatch.setenv("TVMTARGET_MAX_SILENCE_SECONDS", "1")
    running.close()
    running.run(images())
    process = stopping(running, machine)
    with pytest.raises(RunError, match=f"machine '{machine}' has been stopped.* 1 s.*TVMTARGET_MAX_SILENCE_SECONDS"):
        running.run(images(count))
    assert process.poll() == -signal.SIGKILL


def test_a_machine_that_goes_on_in_time_is_waited_for(running):
    running.run(images())
    process = stopping(running, "n1")
    threading.Timer(0.5, process.send_signal, [signal.SIGCONT]).start()
    assert_same(running.run(images()), whole(DIGITS, images()))


def test_close_ends_machines_that_are_stopped(running):
    running.run(images())
    process = stopping(running, "n0")
    running.close()
    assert process.poll() == -signal.SIGKILL


def test_a_start_that_takes_too_long_is_ended(running, monkeypatch):
    monkeypatch.setenv("TVMTARGET_MAX_START_SECONDS", "1")
    monkeypatch.setenv("PYTHONPATH", "")
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr("tvmtarget.runtimes.processes.python_command", lambda *_: command)
    running.close()
    with pytest.raises(RunError, match=r"'n0', 'n1' did not start within 1 s; TVMTARGET_MAX_START_SECONDS raises"):
        running.run(images())


def test_processes_that_cannot_be_started_are_one_error(running, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/none/python")
    running.close()
    with pytest.raises(RunError, match="the processes of the machines cannot be started: No such file or directory"):
        running.run(images())


def test_no_port_is_opened(running):
    running.run(images())
    pids = [os.getpid(), *(process.pid for process in running._engine._workers._processes.values())]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    for pid in pids:
        assert not listening & {os.readlink(found) for found in Path(f"/proc/{pid}/fd").iterdir() if found.is_symlink()}


def test_a_fork_leaves_the_machines_to_its_parent_and_starts_its_own(running):
    expected = running.run(images())
    pids = {process.pid for process in running._engine._workers._processes.values()}
    child = os.fork()
    if child == 0:
        code = 1
        try:
            np.testing.assert_array_equal(running.run(images())["logits"], expected["logits"])
            code = 2 if pids & {process.pid for process in running._engine._workers._processes.values()} else 0
            running.close()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert not any(map(is_gone, pids))
    assert_same(running.run(images()), expected)


_SCRIPT = """
import numpy as np, tvmtarget as tt
exe = tt.build(tt.IRModule.from_onnx({model!r}), {target!r}, where={{"fc*": "@n1"}})
inputs = {{"input": np.zeros((1, 1, 8, 8), np.float32)}}
exe.run(inputs)
print(*(process.pid for process in exe._engine._workers._processes.values()), flush=True)
while {forever}:
    exe.run(inputs)
"""


def started_script(forever):
    """Start a script without a guard for `__main__`; return its process and those of its machines."""
    script = _SCRIPT.format(model=str(DIGITS), target=TWO, forever=forever)
    running = subprocess.Popen([sys.executable, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    running.stdin.write(script.encode())
    running.stdin.close()
    return running, [int(word) for word in running.stdout.readline().split()]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks into /proc")
@pytest.mark.parametrize(
    ("forever", "stop"),
    [
        pytest.param(True, signal.SIGINT, id="Ctrl-C"),
        pytest.param(True, signal.SIGKILL, id="kill", marks=pytest.mark.slow),
        pytest.param(False, None, id="end", marks=pytest.mark.slow),
    ],
)
def test_no_process_outlives_the_one_that_started_it(forever, stop):
    running, pids = started_script(forever)
    assert len(pids) == 3
    if stop is not None:
        running.send_signal(stop)
    running.wait(60)
    wait(lambda: all(map(is_gone, pids)))
