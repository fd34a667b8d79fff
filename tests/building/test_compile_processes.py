"""Functions are compiled by several processes: equal results, the first error, and nothing that outlives a build."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from models import small
from onnx import helper

import tvmtarget as tt
from tvmtarget.backends.compile_worker import CompileWorker, compile_in_processes
from tvmtarget.backends.protocol import CompileRequest, FixedSchedules, Kernel
from tvmtarget.building import leaf_compilation
from tvmtarget.errors import BackendError, TvmTargetError

pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")

X = np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)
KINDS = ("Relu", "Tanh", "Abs", "Neg", "Sigmoid", "Exp")


def chain():
    """Return a program in which each operation is a function of its own."""
    names = ["x", *(f"v{number}" for number in range(len(KINDS) - 1)), "y"]
    nodes = [
        helper.make_node(kind, [names[number]], [names[number + 1]], name=f"n{number}")
        for number, kind in enumerate(KINDS)
    ]
    return tt.IRModule.from_onnx(small(*nodes))


TREE = "[a=llvm,b=llvm](host=@a)"
WHERE = {f"n{number}": "@b" if number % 2 else "@a" for number in range(len(KINDS))}


def request(op="Relu", name="f", site=""):
    model = small(helper.make_node(op, ["x"], ["y"]))
    return "tvm", CompileRequest(name, model.SerializeToString(), site, tt.Target("llvm"), ("n",), ("x",), ("y",))


def test_processes_compile_what_one_process_compiles():
    reports = []
    one = tt.build(chain(), TREE, where=WHERE, jobs=1, cache=False)
    two = tt.build(chain(), TREE, where=WHERE, jobs=2, cache=False, progress=lambda *step: reports.append(step))
    np.testing.assert_array_equal(one(X), two(X))
    assert len(two.backends) == len(KINDS)
    assert reports[0] == ("compile 6 functions in 2 processes", 0, 6)
    assert [done for _, done, _ in reports] == [0, 1, 2, 3, 4, 5, 6, 6]


def test_code_of_processes_is_stored_and_saved(tmp_path):
    first = tt.build(chain(), TREE, where=WHERE, jobs=2, cache=tmp_path / "cache")
    second = tt.build(chain(), TREE, where=WHERE, jobs=1, cache=tmp_path / "cache")
    for number, exe in enumerate((first, second)):
        exe.save(tmp_path / f"{number}.tta")
    assert (tmp_path / "0.tta").read_bytes() == (tmp_path / "1.tta").read_bytes()
    np.testing.assert_array_equal(tt.load(tmp_path / "0.tta", trust=True)(X), second(X))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"mod_name": ""}, "mod_name is '', which names no program"),
        ({"cache": ""}, "cache is ''; it is True, False for none, a folder, or a CompileCache"),
        ({"jobs": 0}, "jobs is 0; it is a number of processes, at least 1"),
        ({"jobs": "2"}, "jobs of build is a whole number or None, not '2'"),
        ({"mod_name": None}, "mod_name of build is a text, not None"),
        ({"cache": None}, "cache is None; it is True, False for none, a folder"),
    ],
)
def test_invalid_arguments_of_a_build_are_rejected(given, problem):
    with pytest.raises(TvmTargetError, match=problem):
        tt.build(chain(), "llvm", **given)


@pytest.mark.parametrize(
    ("functions", "seconds", "jobs", "expected"),
    [(10, 0.1, None, 1), (1000, 0.1, None, 4), (3, 60.0, None, 3), (10, 0.1, 2, 2), (2, 60.0, 8, 2), (10, 60.0, 1, 1)],
)
def test_processes_are_started_if_that_saves_more_time_than_it_takes(monkeypatch, functions, seconds, jobs, expected):
    monkeypatch.setattr(leaf_compilation, "processors", lambda: 4)
    assert leaf_compilation._processes(functions, seconds, jobs) == expected


def test_functions_are_handed_to_processes_once_that_saves_time(monkeypatch):
    monkeypatch.setattr(leaf_compilation, "processors", lambda: 2)
    monkeypatch.setattr(leaf_compilation, "_START_SECONDS", 0.0)
    reports = []
    exe = tt.build(chain(), TREE, where=WHERE, cache=False, progress=lambda *step: reports.append(step))
    assert ("compile 4 functions in 2 processes", 2, 6) in reports
    np.testing.assert_array_equal(exe(X), tt.build(chain(), TREE, where=WHERE, jobs=1, cache=False)(X))


def test_the_first_error_in_the_order_of_the_plan_is_returned():
    broken = replace(request(name="g", site="b")[1], source=b"no model")
    requests = [request(), ("tvm", broken), ("tvm", replace(broken, name="h", site="c")), request(), request()]
    outcomes = compile_in_processes(requests, 3, lambda _: None)
    assert not outcomes[0].problem
    assert "'g'" in outcomes[1].problem


def test_an_error_names_the_path_of_the_leaf(monkeypatch):
    plan = tt.decompose(chain(), TREE, where=WHERE)
    real = leaf_compilation.compile_in_processes

    def damaged(requests, count, report):
        name, wrong = requests[3]
        unknown = tt.Target("llvm", {"mcpu": "no-such-cpu", "unchecked": ("mcpu",)})
        return real([*requests[:3], (name, replace(wrong, target=unknown)), *requests[4:]], count, report)

    monkeypatch.setattr(leaf_compilation, "compile_in_processes", damaged)
    with pytest.raises(BackendError, match=r"function '.*' of @b .*no-such-cpu"):
        tt.build(plan, jobs=2, cache=False)


def test_a_process_that_crashes_is_an_error():
    worker = CompileWorker()
    os.kill(worker._process.pid, signal.SIGSEGV)
    outcome = worker.compile(*request())
    assert (outcome.problem, outcome.has_ended) == ("ends its compiler, which was ended by SIGSEGV", True)


def test_a_process_that_takes_too_long_is_ended():
    worker = CompileWorker()
    os.kill(worker._process.pid, signal.SIGSTOP)
    assert worker.compile(*request(), seconds=0.2).problem == "takes too long to compile"


def test_schedules_are_looked_up_by_the_process_that_has_the_log():
    names = []

    class Recorded(FixedSchedules):
        def find(self, kernel: Kernel, *formats):
            names.append((kernel.name, formats))
            return super().find(kernel, *formats)

    model = small(helper.make_node("MatMul", ["x", "w"], ["y"]), shape=(16, 64), w=np.ones((64, 32), "float32"))
    worker = CompileWorker()
    one = replace(request()[1], source=model.SerializeToString(), schedules=Recorded({}))
    assert worker.compile("tvm", one).files
    worker.close()
    assert names


HERE = Path(__file__).parent
SCRIPT = """
import sys
sys.path[:0] = sys.argv[1:]
from test_compile_processes import *
def report(label, done, total):
    print(label, flush=True)
tt.build(chain(), TREE, where=WHERE, jobs=2, cache=False, progress=report)
"""


def children(pid):
    """Return the processes whose parent is a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if path.read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(int(path.parent.name))
        except OSError:  # it ended
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_a_build_that_is_interrupted_or_killed(number):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, HERE, HERE.parent], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout.readline().startswith(b"compile 6 functions in 2")
    workers = children(process.pid)
    while len(workers) < 2:
        workers = children(process.pid)
    process.send_signal(number)
    process.wait()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()]
