"""Forks of a process that has built and run programs: they run them too, or refuse; none waits for ever."""

import subprocess
import sys

import pytest

SCRIPT = """
import multiprocessing, os, sys
import numpy as np, tvmtarget as tt
x = {"input": np.ones((64, 1, 8, 8), np.float32)}
exe = tt.build(tt.IRModule.from_onnx("examples/digits.onnx"), sys.argv[1])
if sys.argv[2] == "after a run":
    exe.run(x)

def use():
    try:
        again = tt.build(tt.IRModule.from_onnx("examples/digits.onnx"), sys.argv[1])
        print(exe.run(x)["logits"].shape, again.run(x)["logits"].shape)
    except tt.errors.RunError as error:
        print(error)
    except tt.errors.BackendError as error:
        print(error)

if sys.argv[3] == "fork":
    if os.fork() == 0:
        use()
        sys.exit()
    os.wait()
else:
    process = multiprocessing.get_context("fork").Process(target=use)
    process.start()
    process.join()
print("the parent goes on", exe.run(x)["logits"].shape)
"""


def forked(kind, when, how):
    command = [sys.executable, "-c", SCRIPT, kind, when, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    *child, parent = done.stdout.splitlines()
    assert parent == "the parent goes on (64, 10)"
    return child


@pytest.mark.parametrize("how", ["fork", "multiprocessing"])
@pytest.mark.parametrize("when", ["after a run", "before a run"])
@pytest.mark.parametrize("kind", ["onnxruntime", "numpy"])
def test_a_fork_runs_what_its_parent_built(kind, when, how):
    pytest.importorskip("onnxruntime")
    assert forked(kind, when, how) == ["(64, 10) (64, 10)"]


@pytest.mark.parametrize(
    ("kind", "how"), [("llvm", "fork"), ("llvm", "multiprocessing"), ("llvm(executor=graph,runtime=cpp)", "fork")]
)
def test_a_fork_of_a_process_in_which_tvm_ran_cannot_run_it(kind, how):
    pytest.importorskip("tvm")
    [line] = forked(kind, "after a run", how)
    assert "this is a fork of it" in line
    assert "multiprocessing.get_context('spawn')" in line


def test_a_fork_of_a_process_that_has_only_compiled_runs_llvm():
    pytest.importorskip("tvm")
    assert forked("llvm", "before a run", "fork") == ["(64, 10) (64, 10)"]


def test_a_fork_of_a_process_in_which_openvino_compiled_cannot_run_it():
    pytest.importorskip("openvino")
    [line] = forked("openvino", "after a run", "fork")
    assert "this is a fork of it" in line
