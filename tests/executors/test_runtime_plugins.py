"""Runtimes and executors of other packages: found by entry point, and rejected if nobody provides them."""

import subprocess
import sys

import pytest
from models import DIGITS

pytest.importorskip("tvmtarget_sample.runtime", reason="pip install ./tests/plugin")

SCRIPT = """
import sys
import numpy as np
import tvmtarget as tt
from tvmtarget import plugins
from tvmtarget.target.kinds import Kind
from tvmtarget_sample.runtime import KINDS

unbuilt = [Kind(name=role + "-unbuilt", role=role) for role in ("executor", "runtime")]
plugins.register("tvmtarget.kinds", "counted", (*KINDS, *unbuilt))
try:
    program = tt.build(tt.IRModule.from_onnx(sys.argv[1]), sys.argv[2])
    program.save(sys.argv[3])
    for exe in (program, tt.load(sys.argv[3])):
        print(exe.run({"input": np.zeros((2, 1, 8, 8), "float32")})["logits"].shape)
except tt.TvmTargetError as error:
    print(error)
"""


def run_on(target, folder):
    command = [sys.executable, "-c", SCRIPT, str(DIGITS), target, str(folder / "program.ttx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_tree_that_names_a_runtime_of_another_package_is_run_by_it(tmp_path):
    printed = run_on("[a=numpy,b=numpy](runtime=counted(first=7))", tmp_path)
    assert printed == ["run 7", "(2, 10)", "run 7", "(2, 10)"]


def test_a_node_with_a_runtime_of_its_own_is_run_by_it(tmp_path):
    printed = run_on("[s=[a=numpy](runtime=counted(first=3)),b=numpy](host=@b)", tmp_path)
    assert printed == ["run 3", "(2, 10)", "run 3", "(2, 10)"]


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("[a=numpy](runtime=counted(colour=red))", "would be ignored: the counted runtime does not honour it"),
        ("[s=[a=numpy](runtime=counted(colour=red)),b=numpy]", "would be ignored: the counted runtime does not"),
    ],
)
def test_a_runtime_that_would_have_no_effect_is_rejected(target, problem, tmp_path):
    (printed,) = run_on(target, tmp_path)
    assert problem in printed


def test_executors_and_runtimes_that_nobody_provides_are_one_error(tmp_path):
    printed = run_on("[a=numpy](executor=executor-unbuilt,runtime=runtime-unbuilt)", tmp_path)
    assert [line.partition("; there is ")[0] for line in printed] == [
        "executor 'executor-unbuilt' of @. cannot be built for yet",
        "runtime 'runtime-unbuilt' of @. cannot be built for yet",
    ]
