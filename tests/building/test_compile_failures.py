"""Functions that a code generator does not compile, or not in time: they move to other leaves, or are one error."""

import json
import platform
import resource
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from models import small
from onnx import helper, parser
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernelError

import tvmtarget as tt
from tvmtarget.backends.tvm import llvm_options
from tvmtarget.errors import BackendError, CompileError, FileError, TvmTargetError, TvmTargetWarning

SELU = """func @main(%x: float32[3]) opsets(onnx=17) { %a: float32[3] = onnx.Abs(%x) as abs
    %y: float32[3] = onnx.Selu(%a) as selu return %y }"""
# Thirty convolutions in one function, which take llvm several seconds.
LONG = """
import signal, sys, warnings
import numpy as np
from onnx import helper
import tvmtarget as tt
from models import small
weights = np.zeros((64, 64, 3, 3), "float32")
nodes = [helper.make_node("Conv", [f"v{i}", "w"], [f"v{i + 1}"], pads=[1 + i, 1, 1 + i, 1]) for i in range(30)]
module = tt.IRModule.from_onnx(small(*nodes, inputs=("v0",), outputs=("v30",), shape=(1, 64, 8, 8), w=weights))
if "Ctrl-C" in sys.argv:
    tt.build(small(helper.make_node("Neg", ["x"], ["y"])), "llvm", cache=False)  # imports TVM
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(1)
    try:
        tt.build(module, "llvm", cache=False)
    except KeyboardInterrupt:
        sys.exit(130)  # while TVM still compiles
try:
    tt.build(module, "llvm", cache=False)
except tt.errors.CompileError as error:
    print(error)
with warnings.catch_warnings(record=True) as found:
    exe = tt.build(module, "[fast=llvm,safe=numpy](host=@safe)", cache=False)
print(found[0].message)
print(exe.run({"v0": np.ones((1, 64, 8, 8), "float32")})["v30"].max())
sys.exit(7)  # while TVM still compiles
"""


@pytest.fixture
def no_selu(monkeypatch):
    """Make onnxruntime fail on Selu as on an operator without a kernel; its rules know all of these."""
    create = onnxruntime.InferenceSession.__init__

    def fail(session, model, *args, **kwargs):
        if isinstance(model, bytes) and b"Selu" in model:
            raise NoKernelError("NOT_IMPLEMENTED : Could not find an implementation for Selu(6)")
        create(session, model, *args, **kwargs)

    monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", fail)


@pytest.mark.usefixtures("no_selu")
def test_a_function_that_fails_to_compile_moves_to_another_leaf_with_a_warning():
    module = tt.IRModule.parse(SELU)
    pair = "[ort=onnxruntime,cpu=numpy](host=@cpu)"
    with pytest.warns(
        TvmTargetWarning, match=r"onnxruntime cannot take .*Selu.*; its operations run on other leaves now"
    ):
        exe = tt.build(module, pair, cache=False)
    np.testing.assert_allclose(
        exe.run({"x": np.float32([-1, 0, 2])})["y"], 1.0507010 * np.float32([1, 0, 2]), rtol=1e-6
    )
    assert {leaf.request.site for leaf in exe.code.values()} == {"cpu"}


@pytest.mark.usefixtures("no_selu")
@pytest.mark.parametrize(
    ("target", "where"),
    [("onnxruntime", None), ("[ort=onnxruntime,cpu=numpy](host=@cpu)", {"selu": "@ort"})],
)
def test_a_function_without_another_leaf_is_an_error_that_names_it_and_the_fix(target, where):
    with pytest.raises(CompileError, match=r"cannot take function '\w+' of @.*Selu.*; place its operations on another"):
        tt.build(tt.IRModule.parse(SELU), target, where=where, cache=False)


@pytest.mark.usefixtures("no_selu")
def test_a_plan_is_built_as_it_is():
    plan = tt.decompose(tt.IRModule.parse(SELU), "[ort=onnxruntime,cpu=numpy](host=@cpu)")
    with pytest.raises(CompileError, match="Selu"):
        tt.build(plan, cache=False)


def test_a_target_that_the_code_generator_rejects_is_an_error():
    with pytest.raises(BackendError, match="LLVM knows no CPU 'none'"):
        tt.build(tt.IRModule.parse(SELU), "llvm(mcpu=none,unchecked=mcpu)", cache=False)


@pytest.mark.parametrize(
    "graph",
    [
        "g (float[n,96,7,7] x) => (uint8[n,96,7,7] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear(x) }",
        "g (float[2] x) => (int64[1] y, float[2] z) <float[3] w = {1,2,3}> { y = Shape(w) z = Neg(x) }",
    ],
)
def test_llvm_compiles_what_its_rules_support(graph):
    module = tt.IRModule.from_onnx(parser.parse_model('<ir_version: 8, opset_import: ["": 17]>' + graph))
    sizes = [dim if isinstance(dim, int) else 2 for dim in module.main.params[0].type.shape]
    x = np.random.default_rng(0).standard_normal(sizes).astype("float32")
    session = onnxruntime.InferenceSession(module.to_onnx().SerializeToString())
    found = tt.build(tt.decompose(module, "llvm", fold_constants=False), cache=False).run({"x": x})
    for actual, expected in zip(found.values(), session.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.slow
def test_a_compilation_that_takes_too_long_is_an_error_or_moves(monkeypatch):
    monkeypatch.setenv("TVMTARGET_MAX_COMPILE_SECONDS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (7, "")
    error, warning, largest = done.stdout.splitlines()
    assert "(30 ops: Conv): it takes longer than 1 seconds" in error
    assert "TVMTARGET_MAX_COMPILE_SECONDS" in error
    assert warning.endswith("its operations run on other leaves now")
    assert largest == "0.0"


@pytest.mark.slow
def test_a_compilation_that_is_interrupted_lets_the_process_end_with_its_status(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    command = [sys.executable, "-c", LONG, "Ctrl-C"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_full_disk_is_an_error_before_llvm_ends_the_process(small_disk, monkeypatch):
    model = small(helper.make_node("Neg", ["x"], ["y"]))
    in_memory = tt.build(model, "llvm -mtriple=aarch64-linux-gnu", cache=False)
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with pytest.raises(BackendError, match="has 1 MiB left, and object files need 32 MiB"):
        in_memory.save(small_disk / "x.tta")
    for target in ("llvm", "llvm -mattr=+sse2"):
        with pytest.raises(BackendError, match="has 1 MiB left, and object files need 32 MiB"):
            tt.build(model, target, cache=False)
    assert not [*small_disk.iterdir()]


@pytest.mark.parametrize(
    ("limited", "message"),
    [
        (resource.RLIMIT_FSIZE, "at most 1 MiB, and object files need 32 MiB; raise the limit by ulimit -f"),
        (resource.RLIMIT_AS, "0 bytes left of 1 MiB of address space, and LLVM needs 256 MiB; raise the .* ulimit -v"),
    ],
)
def test_a_small_limit_of_the_process_is_an_error_before_llvm_ends_it(monkeypatch, limited, message):
    most = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1 << 20 if kind == limited else most, most))
    with pytest.raises(BackendError, match=message):
        tt.build(small(helper.make_node("Neg", ["x"], ["y"])), "llvm", cache=False)


@pytest.mark.parametrize("target", ["c", "llvm(executor=aot,runtime=cpp)"])
def test_a_full_folder_for_temporary_files_is_an_error_that_names_it(target, small_disk, monkeypatch):
    with suppress(OSError):
        (small_disk / "others").write_bytes(bytes(1 << 21))
    model = small(helper.make_node("Neg", ["x"], ["y"]))
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with pytest.raises(TvmTargetError, match=r"temporary files, cannot be written: .*TMPDIR|has 0 bytes left"):
        tt.build(model, target, cache=False).run({"x": np.ones((2, 3), "float32")})
    assert [path.name for path in small_disk.iterdir()] == ["others"]


def test_a_folder_for_temporary_files_that_is_not_there_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "away"))
    with pytest.raises(FileError, match=r"away', the folder for temporary files, cannot be written: No such file"):
        tt.build(small(helper.make_node("Neg", ["x"], ["y"])), "c", cache=False)


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        (
            tt.Target("llvm", {"cl-opt": ["-unroll-threshold:int=7", "-no-such-option"]}),
            "has no option -no-such-option",
        ),
        # TVM would store a text where LLVM has an integer.
        (
            tt.Target("llvm", {"cl-opt": ["-unroll-threshold:string=x"]}),
            "-unroll-threshold is of type uint, not string; write '-unroll-threshold:uint=4'",
        ),
        (tt.Target("llvm", {"cl-opt": ["-regalloc:int=1"]}), "-regalloc is of a type that TVM cannot set"),
        ("llvm(mabi=lp64d)", "mabi has no effect on 'x86_64-.*'; remove it"),
    ],
)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names what this machine ignores")
def test_attributes_that_llvm_ignores_are_errors(target, problem):
    with pytest.raises(BackendError, match=problem):
        tt.build(tt.IRModule.parse(SELU), target)


def test_types_of_options_are_those_of_the_llvm_of_tvm():
    tvm = pytest.importorskip("tvm")
    types = json.loads(llvm_options.DATA.read_bytes())
    assert types.pop("llvm") == tvm.target.codegen.llvm_version_major()
    assert llvm_options.unknown_options(tvm, " ".join(types.values()).split()) == set()
