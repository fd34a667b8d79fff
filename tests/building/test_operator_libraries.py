"""A program of one leaf function of ONNX operators becomes a shared library with a header."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
from models import small
from onnx import helper

import tvmtarget as tt
from tvmtarget.errors import ArtifactError

pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

X = np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)
MAIN = """
#include "neg.h"
#include <stdio.h>
int main(void) {
  static float x[6] = {1, 2, 3, 4, 5, 6}, y[6];
  struct tvmgen_neg_inputs in = {x};
  struct tvmgen_neg_outputs out = {y};
  if (TVMGEN_NEG_X_SIZE != sizeof x || tvmgen_neg_run(&in, &out)) return 1;
  printf("%g %g", y[0], y[5]);
  return 0;
}
"""


def operator(shape=(2, 3)):
    return small(helper.make_node("Neg", ["x"], ["y"]), shape=shape)


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_programs_in_c_call_an_operator_by_its_header(tmp_path, target):
    tt.build(operator(), target, cache=False).export(tmp_path / "libneg.so")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["libneg.so", "neg.h"]
    (tmp_path / "main.c").write_text(MAIN)
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    words = ["gcc", *strict, "main.c", "libneg.so", "-Wl,-rpath,.", "-o", "main"]
    subprocess.run(words, cwd=tmp_path, check=True)
    done = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "-1 -6"


def test_python_calls_an_operator_by_ctypes(tmp_path):
    tt.build(operator(), "llvm", cache=False).export(tmp_path / "libneg.so")
    y = np.empty_like(X)
    given, made = ((ctypes.c_void_p * 1)(array.ctypes.data) for array in (X, y))
    assert ctypes.CDLL(str(tmp_path / "libneg.so")).tvmgen_neg_run(given, made) == 0
    np.testing.assert_array_equal(y, -X)


def test_headers_are_valid_cpp(tmp_path):
    tt.build(operator(), "c", cache=False).export(tmp_path / "libneg.so")
    (tmp_path / "main.cc").write_text('#include "neg.h"\n#include "neg.h"\n')
    subprocess.run(["g++", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "main.cc"], cwd=tmp_path, check=True)


@pytest.mark.parametrize(
    ("model", "target", "name", "reason"),
    [
        (operator(), "onnxruntime", "libneg.so", "links code in C or in object files"),
        (operator(("n", 3)), "llvm", "libneg.so", "dynamic-shapes"),
        (operator(), "llvm", "lib.so", "name it libNAME.so"),
        (operator(), "llvm", "neg.c", "exports shared libraries only, NAME.so; build for executor=aot"),
    ],
)
def test_what_is_no_library_is_refused_with_the_fix(tmp_path, model, target, name, reason):
    with pytest.raises(ArtifactError, match=reason):
        tt.build(model, target, cache=False).export(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_programs_of_several_functions_are_refused_with_the_fix(tmp_path):
    model = small(helper.make_node("Relu", ["x"], ["h"], name="r"), helper.make_node("Neg", ["h"], ["y"], name="n"))
    exe = tt.build(model, "[a=llvm,b=onnxruntime](host=@a)", where={"r": "@a", "n": "@b"}, cache=False)
    with pytest.raises(ArtifactError, match="one leaf function; build for executor=aot"):
        exe.export(tmp_path / "libneg.so")
