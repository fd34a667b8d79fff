"""`tvmtarget inspect`, and the self-tests that `compile` stores and `run` makes."""

import json
from io import BytesIO

import numpy as np
import pytest
from models import DIGITS, EXAMPLES

import tvmtarget as tt
from tvmtarget.artifact import read_files, write_files
from tvmtarget.building.executable import load


@pytest.fixture
def compiled(cli, tmp_path):
    """Return a function that compiles the digits with options, and returns the file."""

    def run(*options):
        path = tmp_path / "digits.tta"
        code, _, error = cli("compile", DIGITS, "-t", "onnxruntime", "--output", path, *options)
        assert code == 0, error
        return path

    return run


def with_outputs(path, outputs):
    """Write a program anew with other outputs of its self-test."""
    facts, files = read_files(path)
    buffer = BytesIO()
    np.savez(buffer, **outputs)
    kept = {name: value for name, value in facts.items() if name not in ("format", "schema", "files")}
    write_files(path, files | {"self-test/outputs.npz": buffer.getvalue()}, **kept)


def test_a_program_is_described_with_the_verdict_of_each_function(cli, compiled):
    code, printed, _ = cli("inspect", compiled())
    assert code == 0
    assert printed.startswith("digits: 1 function, ")
    assert "@. " in printed
    assert ": fits\n" in printed
    assert printed.endswith("this machine: fits\n")


def test_json_has_the_fields_of_the_python_function(cli, compiled):
    found = json.loads(cli("inspect", compiled("--self-test"), "--json")[1])
    assert [leaf["verdict"] for leaf in found["leaves"]] == ["fits"]
    assert (found["verdict"], found["self_test"]) == ("fits", "numpy")
    assert found["files"]["self-test/inputs.npz"] > 0


def test_the_exit_code_is_1_if_this_machine_cannot_run_the_program(cli, compiled):
    path = compiled()
    facts, files = read_files(path)
    facts["leaves"][0]["backend"] = "glow"
    kept = {name: value for name, value in facts.items() if name not in ("format", "schema", "files")}
    write_files(path, files, **kept)
    code, printed, _ = cli("inspect", path)
    assert code == 1
    assert "cannot: no backend 'glow' is installed" in printed


def test_a_model_or_plan_in_place_of_a_program_is_reported_with_the_command_for_it(cli, tmp_path):
    code, _, error = cli("inspect", DIGITS)
    assert (code, error.count("\n")) == (1, 1)
    assert "is not a compiled program" in error
    assert "for a model, use tvmtarget explain MODEL" in error
    tt.decompose(tt.IRModule.from_onnx(DIGITS), "onnxruntime").save(tmp_path / "p.plan")
    for words in (("inspect",), ("run", "--input", EXAMPLES / "digits.npz"), ("run", "-t", "llvm", "--self-test")):
        code, _, error = cli(words[0], tmp_path / "p.plan", *words[1:])
        assert code == 1
        assert "is not a saved program but a saved module or plan; tvmtarget explain reports on a plan" in error


def test_a_self_test_compares_with_the_reference_evaluator(cli, compiled):
    path = compiled("--self-test")
    code, printed, error = cli("run", path, "--self-test")
    assert (code, error) == (0, "")
    assert "largest difference from" in printed
    report = json.loads(cli("run", path, "--self-test", "--json")[1])
    assert report["reference"] == "numpy"
    assert report["check"]["agrees"] is True


def test_a_self_test_may_have_inputs_of_the_user(compiled, tmp_path):
    with np.load(EXAMPLES / "digits.npz") as stored:
        expected = stored["input"][:5]
    np.savez(tmp_path / "x.npz", input=expected, labels=np.zeros(5))  # `run` takes them for the accuracy
    stored = load(compiled("--self-test-input", tmp_path / "x.npz")).self_test
    np.testing.assert_array_equal(stored.inputs["input"], expected)


def test_a_self_test_has_inputs_of_the_sizes_that_the_program_was_compiled_for(cli, compiled):
    path = compiled("--self-test", "--dim", "batch=4")
    assert load(path).self_test.inputs["input"].shape == (4, 1, 8, 8)
    assert cli("run", path, "--self-test")[0] == 0


def test_a_self_test_that_fails_names_the_output_and_exits_with_1(cli, compiled):
    path = compiled("--self-test")
    stored = load(path).self_test
    with_outputs(path, {name: array + 1 for name, array in stored.outputs.items()})
    code, _, error = cli("run", path, "--self-test")
    assert code == 1
    assert error.startswith("error: differs from the self-test: ")
    assert cli("run", path, "--self-test", "--atol", "2")[0] == 0


def test_equal_self_tests_give_equal_bytes(compiled):
    first = compiled("--self-test").read_bytes()
    assert compiled("--self-test").read_bytes() == first


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--self-test", "--input", "x.npz"), "--self-test runs on the inputs that are stored in the program"),
        ((), "pass inputs by --input, or --self-test"),
        (("--self-test",), "has no self-test; compile it with --self-test"),
    ],
)
def test_a_run_without_a_self_test_or_with_two_kinds_of_inputs_is_refused(cli, compiled, words, problem):
    code, _, error = cli("run", compiled(), *words)
    assert code == (1 if problem.startswith("has no") else 2)
    assert problem in error


def test_a_model_has_no_self_test(cli):
    code, _, error = cli("run", DIGITS, "-t", "onnxruntime", "--self-test")
    assert code == 2
    assert "--self-test needs a compiled program" in error


def test_a_loaded_program_keeps_its_self_test(compiled, tmp_path):
    exe = load(compiled("--self-test"))
    exe.save(tmp_path / "again.tta")
    assert load(tmp_path / "again.tta").self_test.reference == "numpy"
