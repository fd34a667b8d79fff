"""Command lines that users of tvmc write for microcontrollers: aot on crt, in C."""

import shutil
import tarfile

import numpy as np
import onnx
import pytest
from onnx import parser

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

UNPACKED = (
    "--target=c",
    "--executor=aot",
    "--executor-aot-unpacked-api=1",
    "--executor-aot-interface-api=c",
    "--runtime=crt",
)


@pytest.fixture
def model(tmp_path):
    """Write a small model of static shape, and its inputs."""
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2,3] x) => (float[2,3] y) { h = Neg(x) y = Tanh(h) }'
    onnx.save(parser.parse_model(text), tmp_path / "model.onnx")
    np.savez(tmp_path / "inputs.npz", x=np.arange(6, dtype="float32").reshape(2, 3))
    return tmp_path / "model.onnx"


@pytest.mark.parametrize(
    "options",
    [
        UNPACKED,
        ("--target=c", "--executor=aot", "--executor-aot-unpacked-api=1", "--runtime=crt"),
        ("--target=c", "--executor=aot", "--runtime=crt", "--runtime-crt-system-lib=1"),
        ("--target=llvm", "--target-llvm-mcpu=x86-64", "--executor=aot", "--runtime=crt", "--runtime-crt-system-lib=1"),
        (
            "--target=llvm",
            "--target-llvm-mcpu=x86-64",
            "--executor=aot",
            "--executor-aot-interface-api=packed",
            "--runtime=cpp",
        ),
    ],
)
def test_a_model_runs_as_a_program_in_c(cli, model, options):
    output = model.parent / "outputs.npz"
    code, _, err = cli("run", model, *options, "--input", model.parent / "inputs.npz", "--output", output)
    assert (code, err) == (0, "")
    with np.load(output) as results:
        np.testing.assert_allclose(results["y"], np.tanh(-np.arange(6, dtype="float32").reshape(2, 3)), rtol=1e-6)


def test_a_compiled_model_is_exported_as_a_project_and_runs(cli, model, tmp_path):
    program, folder = tmp_path / "program.ttx", tmp_path / "project"
    code, _, err = cli("compile", model, *UNPACKED, "--export", folder, "-o", program)
    assert (code, err) == (0, "")
    header = (folder / "include" / "tvmgen_model.h").read_text()
    assert "tvmgen_model_run(const struct tvmgen_model_inputs *" in header
    assert cli("run", program, "--input", tmp_path / "inputs.npz")[0] == 0


def test_system_lib_exports_the_table_of_functions_in_a_model_library(cli, model, tmp_path):
    options = "--target=c", "--executor=aot", "--runtime=crt", "--runtime-crt-system-lib=1"
    code, _, err = cli("compile", model, *options, "--export", tmp_path / "lib.tar", "-o", tmp_path / "program.ttx")
    assert (code, err) == (0, "")
    with tarfile.open(tmp_path / "lib.tar") as archive:
        texts = [archive.extractfile(one).read() for one in archive.getmembers() if one.isfile()]
    assert any(b"tvmgen_model_function" in text for text in texts)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (UNPACKED[:2] + UNPACKED[3:], "needs unpacked-api=true or interface-api=packed"),
        (("--target=llvm", *UNPACKED[1:]), "needs system-lib=true for a host of kind 'llvm'"),
        (
            ("--target=c", "--executor=graph", "--runtime=crt", "--runtime-crt-system-lib=1"),
            "@. cannot be built: executor 'graph' is not built for runtime 'crt'",
        ),
    ],
)
def test_options_that_contradict_each_other_are_one_line_without_output(cli, model, tmp_path, options, problem):
    code, out, err = cli("compile", model, *options, "-o", tmp_path / "program.ttx")
    assert (code, out) == (1, "")
    assert problem in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "program.ttx").exists()
