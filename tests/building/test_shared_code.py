"""Builds share code of functions only if the TIR functions that these call are equal too."""

# ruff: noqa: N805 - TVMScript has no self

import numpy as np
import pytest

pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")

from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812
from tvm.script import tirx as T  # noqa: N812

import tvmtarget as tt


@I.ir_module
class AddsOne:
    @T.prim_func(private=True, s_tir=True)
    def add(x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")):
        for i in range(4):
            with T.sblock("b"):
                y[i] = x[i] + T.float32(1)

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        cls = AddsOne
        with R.dataflow():
            y = R.call_tir(cls.add, (x,), out_ty=R.Tensor((4,), dtype="float32"))
            R.output(y)
        return y


@I.ir_module
class AddsTwo:
    @T.prim_func(private=True, s_tir=True)
    def add(x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")):
        for i in range(4):
            with T.sblock("b"):
                y[i] = x[i] + T.float32(2)

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        cls = AddsTwo
        with R.dataflow():
            y = R.call_tir(cls.add, (x,), out_ty=R.Tensor((4,), dtype="float32"))
            R.output(y)
        return y


X = np.zeros(4, "float32")


def test_a_later_build_does_not_take_code_that_calls_another_function_of_the_same_name():
    first = tt.build(AddsOne, "llvm", cache=False)
    np.testing.assert_array_equal(tt.build(AddsTwo, "llvm", since=first, cache=False)(X), X + 2)


def test_the_compile_cache_has_code_of_its_own_for_each(tmp_path):
    for module, more in ((AddsOne, 1), (AddsTwo, 2), (AddsOne, 1)):
        np.testing.assert_array_equal(tt.build(module, "llvm", cache=tmp_path / "cache")(X), X + more)
