"""Programs in C are taken from the compile cache if their sources, compiler and options are equal."""

import shutil

import numpy as np
import pytest
from models import small
from onnx import helper

import tvmtarget as tt
from tvmtarget.compile_cache import CompileCache
from tvmtarget.errors import BackendError
from tvmtarget.toolchains.compilers import Toolchain, toolchain_for

pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

X = np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)
CRT = "executor=aot(interface-api=c,unpacked-api=true),runtime=crt"
FOREIGN = shutil.which("qemu-aarch64") and shutil.which("aarch64-linux-gnu-gcc")


def model(op="Tanh"):
    return small(helper.make_node("Neg", ["x"], ["h"]), helper.make_node(op, ["h"], ["y"]))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def linked(monkeypatch):
    """Return the list of the files that C compilers write, from now on."""
    names, compile_ = [], Toolchain.compile

    def counted(self, sources, output, options=()):
        names.append(output.name)
        compile_(self, sources, output, options)

    monkeypatch.setattr(Toolchain, "compile", counted)
    return names


@pytest.mark.parametrize(
    "target",
    [
        "c",
        f"c({CRT})",
        "llvm(executor=aot,runtime=cpp)",
        pytest.param(
            "llvm(mtriple=aarch64-linux-gnu,executor=aot,runtime=cpp)",
            marks=pytest.mark.skipif(not FOREIGN, reason="needs qemu-aarch64 and aarch64-linux-gnu-gcc"),
        ),
    ],
)
def test_a_second_build_starts_no_c_compiler_and_computes_the_same(folder, linked, target):
    results = []
    for _ in range(2):
        exe = tt.build(model(), target, cache=folder)
        results.append(exe(X))
        exe.close()
        assert len(linked) == 1
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[0], np.tanh(-X), rtol=1e-5, atol=1e-6)


def test_functions_of_kind_c_are_run_from_the_cache_without_tvm(folder, monkeypatch):
    from tvmtarget.backends.tvm.backend import BACKEND

    tt.build(model(), "c", cache=folder)
    monkeypatch.setattr(type(BACKEND), "static_function", None)
    np.testing.assert_allclose(tt.build(model(), "c", cache=folder)(X), np.tanh(-X), rtol=1e-5, atol=1e-6)


def test_another_source_compiler_or_option_is_another_program(folder, linked, monkeypatch):
    for op, compiler in (("Tanh", "gcc"), ("Sigmoid", "gcc"), ("Tanh", "gcc -fno-math-errno")):
        monkeypatch.setenv("CC", compiler)
        tt.build(model(op), f"c({CRT})", cache=folder)(X)
    assert len(linked) == 3


def test_without_a_cache_each_build_compiles(folder, linked):
    for _ in range(2):
        tt.build(model(), f"c({CRT})", cache=False)(X)
    assert len(linked) == 2


def test_exported_libraries_are_cached(folder, linked, tmp_path):
    for name in ("one.so", "two.so"):
        tt.build(model(), f"c({CRT})", cache=folder).export(tmp_path / name)
    assert len(linked) == 1
    assert (tmp_path / "one.so").read_bytes() == (tmp_path / "two.so").read_bytes()


def test_listings_name_the_program_and_its_target(folder):
    tt.build(model(), f"c({CRT})", cache=folder)(X)
    (entry,) = CompileCache(folder).entries()
    assert (entry.facts["function"], entry.facts["target"][:1]) == ("default", "c")


def test_a_damaged_entry_is_compiled_again(folder, linked):
    tt.build(model(), f"c({CRT})", cache=folder)(X)
    (entry,) = CompileCache(folder).entries()
    entry.path.write_bytes(entry.path.read_bytes()[:-1])
    tt.build(model(), f"c({CRT})", cache=folder)(X)
    assert len(linked) == 2


def test_code_for_the_cpu_that_compiles_it_is_not_stored(folder, monkeypatch):
    monkeypatch.setenv("CC", "gcc -march=native")
    assert toolchain_for(tt.Target("c")).key() is None
    for target in ("c", f"c({CRT})"):
        tt.build(model(), target, cache=folder)(X)
    assert not CompileCache(folder).entries()


def test_several_processes_compile_functions_of_kind_c(folder):
    node = [
        helper.make_node(op, [given], [made], name=op) for op, given, made in (("Neg", "x", "h"), ("Tanh", "h", "y"))
    ]
    where = {"Neg": "@a", "Tanh": "@b"}
    exe = tt.build(small(*node), "[a=c,b=c](host=@a)", where=where, cache=folder, jobs=2)
    assert len(CompileCache(folder).entries()) == 2
    np.testing.assert_allclose(exe(X), np.tanh(-X), rtol=1e-5, atol=1e-6)


def test_a_changed_pass_context_is_an_error_as_for_llvm(folder):
    import tvm

    tt.build(model(), "c", cache=folder)
    with (
        tvm.transform.PassContext(disabled_pass=["tirx.CommonSubexprElim"]),
        pytest.raises(BackendError, match="PassContext"),
    ):
        tt.build(model(), "c", cache=folder)
