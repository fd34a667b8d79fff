"""Calls of tensor functions that read constants only are computed when a program is compiled."""

import numpy as np
import pytest
from models import small
from onnx import helper

tvm = pytest.importorskip("tvm")


def lowered(*nodes, shape=(2, 3), **constants):
    from tvm.relax.frontend.onnx import from_onnx

    return tvm.relax.transform.LegalizeOps()(from_onnx(small(*nodes, shape=shape, **constants)))


def folded(module, *before):
    after = tvm.relax.transform.FoldConstant(), tvm.relax.transform.DeadCodeElimination()
    return tvm.transform.Sequential([*before, *after])(module)


WEIGHTS = {
    "w": np.arange(-6, 6, dtype="int8").reshape(3, 4),
    "scale": np.float32([0.5, 0.25, 2, 1]),
    "zero": np.int8([0, 1, -1, 3]),
}
QUANTIZED = [
    helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["floats"], axis=1),
    helper.make_node("Transpose", ["floats"], ["turned"], perm=[1, 0]),
    helper.make_node("Transpose", ["turned"], ["again"], perm=[1, 0]),
    helper.make_node("MatMul", ["x", "again"], ["y"]),
]


def test_constants_are_those_of_tvm():
    from tvmtarget.backends.tvm.call_sites import folding_calls

    module = lowered(*QUANTIZED, **WEIGHTS)
    tvm.ir.assert_structural_equal(folded(module, folding_calls()), folded(module), map_free_vars=True)


def test_all_functions_are_compiled_as_one_module(monkeypatch):
    from tvmtarget.backends.tvm.call_sites import folding_calls

    built, build = [], tvm.tirx.build

    def recorded(module, **named):
        built.append({variable.name_hint for variable in module.get_global_vars()})
        return build(module, **named)

    monkeypatch.setattr(tvm.tirx, "build", recorded)
    module = folding_calls()(lowered(*QUANTIZED, **WEIGHTS))
    assert built == [{"dequantize", "transpose", "transpose1"}]
    constants = [one for one in bound(module) if hasattr(one, "value")]
    np.testing.assert_array_equal(constants[0].value.numpy(), (WEIGHTS["w"] - WEIGHTS["zero"]) * WEIGHTS["scale"])


def bound(module):
    return [binding.value for block in module["main"].body.blocks for binding in block.bindings]


def test_a_function_that_cannot_be_compiled_leaves_all_to_tvm(monkeypatch):
    from tvmtarget.backends.tvm.call_sites import folding_calls

    def fails(*_, **__):
        raise RuntimeError("no code")

    monkeypatch.setattr(tvm.tirx, "build", fails)
    module = lowered(*QUANTIZED, **WEIGHTS)
    assert folding_calls()(module).same_as(module)


def test_what_reads_parameters_stays():
    from tvmtarget.backends.tvm.call_sites import folding_calls

    module = lowered(helper.make_node("Relu", ["x"], ["y"]))
    assert folding_calls()(module).same_as(module)
