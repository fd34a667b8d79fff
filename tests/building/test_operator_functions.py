# ruff: noqa: N803, N805, N806
"""REQUIREMENTS N1: functions of operators are called with tensors of the caller, here and in foreign programs."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from toolchains.machines import BOARDS, LINUX, command_or_skip, target_or_skip

import tvmtarget as tt
from tvmtarget.errors import ArtifactError, RunError
from tvmtarget.toolchains.compilers import toolchain_for
from tvmtarget.toolchains.programs import ProgramProcess, TensorFrame, build_program
from tvmtarget.toolchains.runners import find_runner, runner_for

tvm = pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")

from tvm.script import ir as I  # noqa: E402, N812
from tvm.script import tirx as T  # noqa: E402, N812

from tvmtarget.backends.aligned import aligned  # noqa: E402


@I.ir_module
class Operators:
    """Two public functions, a private one, a workspace, and a parallel loop."""

    @T.prim_func(private=True)
    def more(data: T.handle("float32"), i: T.int32):
        B = T.decl_buffer((16,), "float32", data=data)
        B[i] = B[i] + T.float32(1)

    @T.prim_func
    def scale(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32"), n: T.int32):
        C = T.alloc_buffer((64, 64), "float32")
        for i in T.parallel(64):
            for j in range(64):
                C[i, j] = A[j % 16] * T.Cast("float32", n)
        for i in range(16):
            B[i] = C[63, i]
            Operators.more(B.data, i)

    @T.prim_func
    def exponential(x: T.handle, y: T.handle):
        n = T.int32()
        X = T.match_buffer(x, (n,), "float32")
        Y = T.match_buffer(y, (n,), "float32")
        for i in range(n):
            Y[i] = T.exp(X[i])


X = np.arange(16, dtype="float32")


class Tensor:
    """A tensor of another library: nothing but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def zeros(count=16):
    """Return an array that begins at a multiple of 64 bytes."""
    array = aligned(np.zeros(count, "float32"))
    array.flags.writeable = True
    return array


def built(target="llvm"):
    return tt.build(Operators, target, entry="scale")


def test_public_functions_write_into_tensors_of_the_caller():
    functions = built().functions
    assert [repr(one) for one in functions.values()] == [
        "exponential(X: float32[?], Y: float32[?] (written))",
        "scale(A: float32[16], B: float32[16] (written), n: int32)",
    ]
    for output in (np.zeros(16, "float32"), np.zeros(17, "float32")[1:], zeros(), np.zeros(32, "float32")[::2]):
        functions["scale"](X, output, 3)
        np.testing.assert_array_equal(output, 3 * X + 1)
    read_only, output = X.copy(), zeros(5)
    read_only.flags.writeable = False
    functions["exponential"](read_only[:5], Tensor(output))
    np.testing.assert_allclose(output, np.exp(X[:5]), rtol=1e-6)


def test_one_function_is_built_under_its_own_name():
    exe = tt.build(Operators["exponential"], "llvm")
    assert list(exe.functions) == ["exponential"]
    np.testing.assert_allclose(exe.run({"X": X, "Y": np.zeros(16, "float32")})["Y"], np.exp(X), rtol=1e-6)


def test_functions_of_a_saved_program_are_called_again(tmp_path):
    built().save(tmp_path / "operators")
    loaded = tt.load(tmp_path / "operators", trust=True)
    loaded.functions["scale"](X, output := zeros(), 2)
    np.testing.assert_array_equal(output, 2 * X + 1)
    np.testing.assert_array_equal(loaded.run({"A": X, "B": zeros(), "n": 2})["B"], 2 * X + 1)
    for exe, name in ((built(), "first"), (loaded, "second")):
        (tmp_path / name).mkdir()
        exe.export(tmp_path / name / "ops.o")
    assert (tmp_path / "first/ops.h").read_bytes() == (tmp_path / "second/ops.h").read_bytes()


def test_arguments_that_do_not_fit_are_errors():
    scale = built().functions["scale"]
    for arguments, problem in (
        ((X, zeros()), r"scale\(A: .*\) takes 3 arguments, not 2"),
        ((X, [0.0] * 16, 3), r"@\.: 'B' is a tensor, not list"),
        ((X, zeros(15), 3), r"@\.: .*B\.shape\[0\].*expected 16"),
        ((X.astype("float64"), zeros(), 3), r"@\.: .*A\.dtype.*expected float32"),
        ((X, aligned(X), 3), r"@\.: 'B' is written, and its array is read-only"),
        ((X, Tensor(zeros(17)[1:]), 3), r"@\.: 'B' cannot be read by DLPack: .*64 bytes"),
        ((X, zeros(), 1 << 40), r"@\.: 'n' is int32, which 1099511627776 does not fit"),
        ((X, zeros(), np.int64(-(1 << 31) - 1)), r"@\.: 'n' is int32, which -2147483649 does not fit"),
    ):
        with pytest.raises(RunError, match=problem):
            scale(*arguments)


def test_programs_of_operations_have_no_functions(tmp_path):
    module = tt.IRModule.parse(
        "func @main(%x: float32[4]) opsets(onnx=17) { %y: float32[4] = onnx.Relu(%x) return %y }"
    )
    exe = tt.build(module, "numpy")
    assert exe.functions == {}
    with pytest.raises(ArtifactError, match="generates its driver for a host of kind c or llvm"):
        exe.export(tmp_path / "relu.so")


C_PROGRAM = """
#include <stdio.h>
#include "ops.h"
static float a[17] __attribute__((aligned(64))), b[16] __attribute__((aligned(64)));
int main(void) {
  int64_t shape[] = {16}, wrong[] = {3};
  DLTensor x = {a, {1, 0}, 1, {2, 32, 1}, shape, 0, 0}, y = {b, {1, 0}, 1, {2, 32, 1}, shape, 0, 0};
  int i;
  for (i = 0; i < 16; ++i) a[i] = (float)i;
  if (ops_scale_data(a, b, 3)) return 1;
  printf("%g %g\\n", b[0], b[15]);
  if (ops_exponential(&x, &y)) return 2;
  printf("%.4f\\n", b[2]);
  y.shape = wrong;
  printf("%d %s\\n", ops_exponential(&x, &y), ops_error());
  printf("%d %s\\n", ops_scale_data(a + 1, b, 3), ops_error());
  return 0;
}
"""
PRINTED = [
    "1 46",
    "7.3891",
    "-1 ValueError: Mismatched Y.shape[0] on argument #1 when calling:",
    "-1 scale: A does not begin at a multiple of 64 bytes",
]
WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]


def check_printed(text):
    lines = text.splitlines()
    assert [line for line in lines if line in PRINTED] == PRINTED, text


@pytest.mark.parametrize("language", ["c", "cxx"])
def test_a_program_in_c_calls_an_exported_library(language, tmp_path):
    compiler = command_or_skip("gcc" if language == "c" else "g++")
    built().export(tmp_path / "libops.so")
    source = tmp_path / f"main.{language}"
    source.write_text(C_PROGRAM)
    warnings = WARNINGS if language == "c" else [*WARNINGS[1:], "-std=c++17"]
    link = ["-L", str(tmp_path), "-lops", f"-Wl,-rpath,{tmp_path}"]
    subprocess.run([compiler, *warnings, str(source), "-o", str(tmp_path / "main"), *link], check=True)
    check_printed(subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout)
    needed = subprocess.run(["ldd", tmp_path / "libops.so"], capture_output=True, text=True, check=True).stdout
    assert "tvm" not in needed


def test_null_tensors_and_null_data_are_errors_of_an_exported_library(tmp_path):
    command_or_skip("gcc")
    built().export(tmp_path / "libops.so")
    library = ctypes.CDLL(str(tmp_path / "libops.so"))
    library.ops_error.restype = ctypes.c_char_p
    assert library.ops_exponential(None, None) == -1
    assert library.ops_error() == b"exponential: X is NULL"
    assert library.ops_scale_data(None, None, 16) == -1
    assert b"A data pointer is NULL" in library.ops_error()


def test_python_calls_an_exported_library_without_this_package(tmp_path):
    built().export(tmp_path / "libops.so")
    script = """
import ctypes, sys
ops = ctypes.CDLL(sys.argv[1])
ops.ops_error.restype = ctypes.c_char_p
memory = ctypes.create_string_buffer(3 * 64)
begin = -ctypes.addressof(memory) % 64
a, b = ((ctypes.c_float * 16).from_buffer(memory, begin + at) for at in (0, 64))
a[:] = range(16)
print(ops.ops_scale_data(a, b, 2), b[15], ops.ops_error())
print(ops.ops_scale_data(a, None, 2), ops.ops_error().decode().split("`,")[0].replace(chr(10), " "))
assert not {"tvmtarget", "tvm"} & sys.modules.keys()
"""
    command = [sys.executable, "-I", "-S", "-c", script, str(tmp_path / "libops.so")]
    first, second = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert first == "0 31.0 b''"
    assert second.startswith("-1 ValueError: B data pointer is NULL")


def test_tvm_ffi_loads_an_exported_library(tmp_path):
    import tvm_ffi

    built().export(tmp_path / "libops.so")
    module = tvm_ffi.load_module(str(tmp_path / "libops.so"))
    output = zeros()
    module["scale"](tvm_ffi.from_dlpack(aligned(X).__dlpack__(max_version=(1, 0))), tvm_ffi.from_dlpack(output), 3)
    np.testing.assert_array_equal(output, 3 * X + 1)
    with pytest.raises(ValueError, match=r"B\.shape"):
        module["scale"](tvm_ffi.from_dlpack(output), tvm_ffi.from_dlpack(zeros(15)), 3)


@pytest.mark.parametrize("name", LINUX)
def test_a_library_for_another_machine_is_called_there(name, tmp_path):
    target = target_or_skip(LINUX[name])
    exe = built(target)
    with pytest.raises(RunError, match="cannot run on this machine"):
        exe.functions  # noqa: B018 - raises
    exe.export(tmp_path / "libops.so")
    (tmp_path / "main.c").write_text(C_PROGRAM)
    options = ["-L", str(tmp_path), "-lops", f"-Wl,-rpath,{tmp_path}"]
    toolchain_for(target).compile([tmp_path / "main.c"], tmp_path / "main", options)
    done = subprocess.run([*runner_for(target).command, tmp_path / "main"], capture_output=True, text=True, check=True)
    check_printed(done.stdout)


@pytest.mark.parametrize("name", BOARDS)
def test_an_object_file_for_a_board_is_called_there(name, tmp_path):
    target_or_skip(BOARDS[name])
    cpu = {"m4": "cortex-m4", "m55": "cortex-m55"}[name]
    target = tt.Target.parse(f"llvm(mtriple=thumbv7em-none-eabihf,mcpu={cpu})")
    with pytest.raises(ArtifactError, match=r"has no shared libraries; name an object file"):
        built(target).export(tmp_path / "libops.so")
    tt.build(Operators["exponential"], target).export(tmp_path / "ops.o")
    entry = """
#include "ops.h"
int32_t entry(void *const *inputs, void *const *outputs) {
  int64_t shape[] = {16};
  const DLTensor x = {inputs[0], {1, 0}, 1, {2, 32, 1}, shape, 0, 0};
  const DLTensor y = {outputs[0], {1, 0}, 1, {2, 32, 1}, shape, 0, 0};
  return ops_exponential(&x, &y);
}
"""
    files = {"entry.c": entry, **{name: (tmp_path / name).read_bytes() for name in ("ops.h", "ops.o")}}
    frames = (TensorFrame("float32", (16,)),)
    process = ProgramProcess(build_program(target, files, "entry", frames, frames), find_runner(target))
    try:
        np.testing.assert_allclose(process.run([X])[0], np.exp(X), rtol=1e-6)
    finally:
        process.close()


def test_the_python_of_the_page_runs(tmp_path):
    command_or_skip("gcc")
    page = Path(__file__).parents[2] / "docs" / "foreign.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "page.py").write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search("does not begin at a multiple of 64 bytes|B data pointer is NULL", done.stdout)
    header, call = re.findall(r"```c\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert set(header.splitlines()) <= set((tmp_path / "ops.h").read_text().splitlines())
    code = f'#include "relu.h"\nvoid f(const float *x, float *y) {{\n{call}}}\n'
    check = ["gcc", "-std=c99", "-Wall", "-Werror", "-fsyntax-only", f"-I{tmp_path}", "-x", "c", "-"]
    subprocess.run(check, input=code, text=True, check=True)
