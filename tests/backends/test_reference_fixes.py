"""The ways around defects of the reference evaluator, against ONNX Runtime; and that they are still needed."""

import numpy as np
import pytest
from models import small
from onnx import helper
from onnx.reference import ReferenceEvaluator

import tvmtarget as tt


def lrn(shape, size):
    node = helper.make_node("LRN", ["x"], ["y"], name="lrn", size=size, alpha=0.5, beta=0.75, bias=2.0)
    return small(node, shape=shape)


@pytest.mark.parametrize("shape", [(1, 7, 3, 2), (2, 5, 4, 4), (9, 4, 1, 1), (1, 1, 1, 1), (3, 3, 3, 3)])
@pytest.mark.parametrize("size", [3, 5])
def test_local_response_normalisation_equals_onnxruntime(shape, size):
    module = tt.IRModule.from_onnx(lrn(shape, size))
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    np.testing.assert_allclose(tt.build(module, "numpy")(x), tt.build(module, "onnxruntime")(x), rtol=1e-5)


def test_the_evaluator_still_needs_it():
    model = lrn((1, 7, 3, 2), 3)
    x = np.ones((1, 7, 3, 2), "float32")
    right = tt.build(tt.IRModule.from_onnx(model), "onnxruntime")(x)
    assert not np.allclose(ReferenceEvaluator(model).run(None, {"x": x})[0], right)


@pytest.mark.parametrize("opset", [11, 13, 17, 18, 19, 21])
def test_linear_dequantization_runs_in_every_version(opset):
    axis = {"axis": 0} if opset >= 13 else {}
    model = small(
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"], name="dequantize"),
        helper.make_node("DequantizeLinear", ["w", "scales"], ["r"], name="weight", **axis),
        helper.make_node("Add", ["d", "r"], ["y"], name="add"),
        opset=opset,
        scale=np.float32(0.05),
        zero=np.uint8(128),
        w=np.arange(6, dtype="int32").reshape(2, 3),
        scales=np.float32([0.5, 0.25] if axis else 0.5),
    )
    x = np.random.default_rng(0).normal(size=(2, 3)).astype("float32")
    module = tt.IRModule.from_onnx(model)
    np.testing.assert_allclose(tt.build(module, "numpy")(x), tt.build(module, "onnxruntime")(x), rtol=1e-6)


def test_an_optional_value_crosses_from_one_code_generator_to_another():
    branch = [
        helper.make_graph([helper.make_node(op, ["e"], ["b"])], op, [], [helper.make_tensor_value_info("b", 1, (2, 3))])
        for op in ("Tanh", "Neg")
    ]
    model = small(
        helper.make_node("Optional", ["x"], ["o"], name="optional"),
        helper.make_node("OptionalHasElement", ["o"], ["has"], name="has"),
        helper.make_node("OptionalGetElement", ["o"], ["e"], name="get"),
        helper.make_node("If", ["has"], ["y"], name="if", then_branch=branch[0], else_branch=branch[1]),
    )
    x = np.ones((2, 3), "float32")
    for where in ({}, {"optional": "@cpu"}, {"get": "@cpu"}, {"optional": "@cpu", "has": "@cpu"}):
        exe = tt.build(tt.decompose(model, "[ort=onnxruntime,cpu=numpy](host=@cpu)", where=where))
        np.testing.assert_allclose(exe(x), np.tanh(x), rtol=1e-6)
    np.testing.assert_allclose(tt.build(model, "numpy")(x), np.tanh(x), rtol=1e-6)


def test_what_the_evaluator_has_no_kernel_for_is_rejected_before_it_is_compiled():
    model = small(helper.make_node("GlobalLpPool", ["x"], ["y"], name="pool"), shape=(1, 2, 3, 3))
    with pytest.raises(tt.TvmTargetError, match="it has no kernel for GlobalLpPool"):
        tt.decompose(model, "numpy")
