"""Code for several instruction sets in one library: each machine runs the best that it has, with equal results."""

import ctypes
import platform
import shutil
import subprocess

import numpy as np
import pytest
from models import DIGITS, EXAMPLES, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.backends.tvm import cpu_versions
from tvmtarget.backends.tvm.compiled_module import import_tvm
from tvmtarget.backends.tvm.cpu_versions import CHECKS, LEVEL_VARIABLE, _in_threads, _lowered, _parts, has_versions
from tvmtarget.errors import BackendError

pytest.importorskip("tvm")
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="several versions are for x86-64")

CPP = pytest.param("llvm(executor=graph,runtime=cpp)", marks=pytest.mark.slow)


@pytest.mark.parametrize("target", ["llvm", "llvm(executor=vm)", CPP])
def test_both_versions_of_a_saved_program_compute_the_same(target, tmp_path, monkeypatch):
    inputs = np.load(EXAMPLES / "digits.npz")["input"]
    tt.build(DIGITS, target).save(tmp_path / "digits.tta")
    newest = tt.load(tmp_path / "digits.tta", trust=True)(inputs)
    monkeypatch.setenv(LEVEL_VARIABLE, "1")
    oldest = tt.load(tmp_path / "digits.tta", trust=True)(inputs)
    expected = tt.build(DIGITS, "onnxruntime")(inputs)
    np.testing.assert_allclose(oldest, expected, rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(newest, expected, rtol=1e-5, atol=2e-5)
    # Products that are rounded before they are added differ in some of the 4,500 results.
    assert np.array_equal(oldest, newest) != has_avx2()


def has_avx2():
    return tt.Target.detect().features.covers("x86-64-v3")


def test_a_library_has_a_function_of_each_version_and_one_that_chooses(tmp_path):
    model = small(helper.make_node("Relu", ["x"], ["y"], name="relu"))
    (leaf,) = tt.build(model, "llvm").code.values()
    (tmp_path / "lib.so").write_bytes(leaf.code.native_files()["lib.so"])
    library = ctypes.CDLL(str(tmp_path / "lib.so"))
    assert [hasattr(library, f"__tvm_ffi_relu{suffix}") for suffix in ("", "_v3", "_v1", "_v2")] == [True] * 3 + [False]


@pytest.mark.parametrize("variable", [LEVEL_VARIABLE, "TVM_NUM_THREADS"])
def test_a_variable_of_the_environment_that_has_no_meaning_is_named(variable, monkeypatch):
    monkeypatch.setenv(variable, "seven")
    with pytest.raises(tt.TvmTargetError, match=f"environment variable {variable} is 'seven'; expected"):
        import_tvm.__wrapped__()


MAIN = """
#include <stdio.h>
int __tvm_ffi_f(void *, void *, int, void *);
int __tvm_ffi_f3(void *self, void *args, int count, void *result) { return count + 3; }
int __tvm_ffi_f1(void *self, void *args, int count, void *result) { return count + 1; }
int main(void) {
  int first = __tvm_ffi_f(NULL, NULL, 10, NULL);
  return printf("%d %d", first, __tvm_ffi_f(NULL, NULL, 20, NULL)) < 0;
}
"""


@pytest.mark.skipif(shutil.which("qemu-x86_64") is None or shutil.which("gcc") is None, reason="needs gcc and QEMU")
def test_a_processor_runs_the_version_that_it_has_instructions_for(tmp_path):
    cpu_versions._choosing({"f": ("f3", "f1")}, tmp_path / "choosing")
    (tmp_path / "main.c").write_text(MAIN)
    subprocess.run(["gcc", "-static", "main.c", "choosing.o", "-o", "main"], cwd=tmp_path, check=True)

    def ran(cpu, *options):
        command = ["qemu-x86_64", "-cpu", cpu, *options, "./main"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    # The first has only what every x86-64 has; the third has AVX and no AVX2.
    found = {cpu: ran(cpu) for cpu in ("qemu64", "Nehalem", "IvyBridge", "Haswell", "EPYC")}
    assert found == dict.fromkeys(("qemu64", "Nehalem", "IvyBridge"), "11 21") | dict.fromkeys(
        ("Haswell", "EPYC"), "13 23"
    )
    assert ran("Haswell", "-E", f"{LEVEL_VARIABLE}=1") == "11 21"


@pytest.mark.parametrize(
    "target", ["c", "llvm -mcpu=x86-64", "llvm -mattr=+avx", "llvm -mtriple=aarch64-linux-gnu", "onnxruntime"]
)
def test_leaves_that_state_their_instructions_have_one_version(target):
    assert has_versions(tt.Target("llvm"))
    assert not has_versions(tt.Target.parse(target))


@pytest.mark.parametrize("compiler", ["", "false"])
@pytest.mark.parametrize("target", ["llvm", "llvm(executor=vm)"])
def test_without_a_linker_that_works_code_is_for_any_machine(compiler, target, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", compiler) if compiler else monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    model = small(helper.make_node("Relu", ["x"], ["y"]))
    x = np.float32([[-1, 2, 3], [4, -5, 6]])
    if "executor" in target:
        with pytest.raises(BackendError, match="needs a linker for shared libraries that works, such as gcc"):
            tt.build(model, target, cache=False)(x)
    else:
        np.testing.assert_array_equal(tt.build(model, target, cache=False)(x), np.maximum(x, 0))


def test_options_of_llvm_are_set_by_one_thread_at_a_time(monkeypatch):
    counts, run = [], cpu_versions._in_threads
    monkeypatch.setattr(cpu_versions, "_in_threads", lambda tasks, count: counts.append(count) or run(tasks, count))
    monkeypatch.setattr(cpu_versions, "processors", lambda: 8)
    model, x = small(helper.make_node("Relu", ["x"], ["y"])), np.float32([[-1, 2, 3], [4, -5, 6]])
    for target in ("llvm", 'llvm(cl-opt=["-unroll-threshold:uint=100"])'):
        np.testing.assert_array_equal(tt.build(model, target, cache=False)(x), np.maximum(x, 0))
    assert counts == [8, 8, 1, 1]  # to lower functions, then to compile them


def test_functions_that_call_each_other_are_in_one_object_file():
    import tvm
    from tvm.script import tirx as script

    @script.prim_func
    def one(a: script.Buffer((4,), "float32")):
        for i in range(4):
            a[i] = script.float32(0)

    alone = {tvm.ir.GlobalVar(f"f{number}"): one for number in range(9)}
    parts = _parts(alone)
    assert [len(part) for part in parts] == [3, 3, 3]
    assert {variable.name_hint for part in parts for variable in part} == {f"f{number}" for number in range(9)}
    caller = one.with_body(tvm.tirx.Evaluate(tvm.ir.Call(next(iter(alone)), [])))
    assert [len(part) for part in _parts({**alone, tvm.ir.GlobalVar("g"): caller})] == [10]
    assert [len(part) for part in _parts({tvm.ir.GlobalVar(f"f{number}"): one for number in range(50)})] == [
        13,
        13,
        12,
        12,
    ]


def test_functions_check_the_layout_of_inputs_and_what_they_state():
    import tvm
    from tvm.script import tirx as script

    @script.prim_func
    def known(a: script.Buffer((4,), "float32")):
        for i in range(4):
            a[i] = script.float32(0)

    @script.prim_func
    def symbolic(a: script.handle):
        n = script.int64()
        buffer = script.match_buffer(a, (n,), "float32")
        for i in range(n):
            buffer[i] = script.float32(0)

    @script.prim_func
    def stated(a: script.Buffer((4,), "float32")):
        assert a[0] > script.float32(0), "not positive"
        a[0] = script.float32(0)

    named = {"k": known, "n": symbolic, "s": stated, "i": known.with_attr(CHECKS, True)}
    functions = {tvm.ir.GlobalVar(name): one.with_attr("global_symbol", name) for name, one in named.items()}
    lowered = _lowered(functions, tvm.target.Target("llvm"), tvm.transform.PassContext.current())
    found = {variable.name_hint: checks_of(function) for variable, function in lowered.functions_items()}
    assert (found["k"], found["n"], len(found["i"]), found["s"][-1]) == ([], [], 2, "not positive")
    assert all("a.strides" in check or "a.byte_offset" in check for check in found["i"])


def checks_of(function):
    """Return the messages of the assertions in a function."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    checks = []
    structural_walk(function.body, (tirx.AssertStmt, checks.append))
    return ["".join(part.value for part in check.message_parts) for check in checks]


def test_an_error_in_a_thread_reaches_the_caller():
    assert _in_threads([lambda number=number: number for number in range(20)], 3) == [*range(20)]
    assert _in_threads([], 2) == []

    def fails():
        raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        _in_threads([lambda: 1, fails, lambda: 2], 2)
