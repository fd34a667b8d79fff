"""`tvmtarget check`, and that the command line is the same as a module of Python, and in any encoding."""

import json
import os
import subprocess
import sys

import pytest

from tvmtarget import Target


def test_a_target_without_constraints_is_consistent_or_its_problems_are_printed(cli):
    assert cli("check", "llvm(num-cores=4)") == (0, "consistent: llvm(num-cores=4)\n", "")
    code, out, err = cli("check", "aws/c5", "--executor", "aot", "--runtime", "python")
    assert (code, out) == (1, "")
    assert err == "error: executor 'aot' does not run on runtime 'python'; it runs on: cpp, crt\n"


def test_a_constraint_is_reported_with_reasons_and_the_nearest_tags(cli):
    code, out, _ = cli("check", "nvidia/jetson-nano", "--satisfies", "gpu(arch>=sm_80)", "--satisfies", "cpu")
    assert code == 1
    assert "    NO arch>=sm_80: it is sm_53\nnearest tags that satisfy it: nvidia/" in out
    assert "YES nvidia/jetson-nano satisfies cpu" in out


@pytest.mark.parametrize(("options", "code"), [((), 1), (("--unknown",), 0)])
def test_unknown_counts_as_no_without_the_option(cli, options, code):
    found, out, _ = cli("check", "llvm", "--satisfies", "llvm(num-cores>=4)", *options, "--json")
    (answer,) = json.loads(out)["constraints"]
    assert found == code
    assert answer["is_met"] is (code == 0)
    assert answer["reason"]["truth"] == "UNKNOWN"
    assert answer["reason"]["parts"][0]["parts"][0]["text"] == "num-cores>=4: the target does not state it"
    assert answer["nearest"]


def test_accepting_what_is_unknown_needs_a_constraint(cli):
    assert cli("check", "llvm", "--unknown")[0] == 2


def test_the_edited_target_is_checked(cli):
    command = "check", "llvm", "--set", "num-cores=8", "--satisfies", "llvm(num-cores>=4)"
    assert cli(*command)[0] == 0
    assert "as in 'cpu(num-cores>=4)', at column" in cli(*command, "--satisfies", "num-cores>=4")[2]
    assert cli(*command, "--satisfies", "gppu")[2].startswith("error: no target kind or key 'gppu'; did you mean 'gpu'")


def test_python_dash_m_returns_the_same_exit_code():
    command = [sys.executable, "-m", "tvmtarget", "check", "llvm", "--satisfies", "gpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("consistent: llvm\nNO llvm does not satisfy gpu\n")


@pytest.mark.parametrize("command", ["show", "check"])
def test_characters_that_standard_output_cannot_encode_are_escaped(command):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    line = [sys.executable, "-m", "tvmtarget", command, 'llvm(model="é→")']
    done = subprocess.run(line, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "é→" in done.stdout.decode() or r"\xe9\u2192" in done.stdout.decode()


def test_this_machine_is_compared_with_its_detected_facts(cli):
    """A triple of a machine leaves open what the constraint does not say; a tree that is written says it all."""
    here = Target.detect()
    triple = next(node["mtriple"] for _, node in here.walk() if node.kind == "llvm")
    constraint = f"llvm(mtriple={triple.rpartition('-')[0]})"
    assert cli("check", "native", "--satisfies", constraint)[0] == 0
    assert cli("check", str(here), "--satisfies", constraint)[0] == 1
    assert cli("check", "native", "--set", "model=x", "--satisfies", constraint)[0] == 1
