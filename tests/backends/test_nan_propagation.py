"""Rectifiers and clipped values of NaN are NaN."""

import shutil

import numpy as np
import pytest
from models import small
from onnx import TensorProto, helper

import tvmtarget as tt

X = np.array([[np.nan, -1, 2], [3, np.nan, 0.25]], "float32")
IDENTITY = np.eye(3, dtype="float32")
LOW, HIGH = np.float32(-0.5), np.float32(2.5)
MODELS = {
    "Relu": small(helper.make_node("Relu", ["x"], ["y"])),
    "MatMul and Relu": small(
        helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"]), w=IDENTITY
    ),
    "Clip": small(helper.make_node("Clip", ["x", "low", "high"], ["y"]), low=LOW, high=HIGH),
    "Clip from below": small(helper.make_node("Clip", ["x", "low"], ["y"]), low=LOW),
    "LeakyRelu": small(helper.make_node("LeakyRelu", ["x"], ["y"])),
    "Elu": small(helper.make_node("Elu", ["x"], ["y"])),
    "HardSigmoid": small(helper.make_node("HardSigmoid", ["x"], ["y"])),
}
TARGETS = ["llvm", pytest.param("c", marks=pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"))]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_rectifiers_and_clipped_values_of_nan_are_nan(name, target):
    expected = tt.build(MODELS[name], "numpy").run({"x": X})["y"]
    np.testing.assert_allclose(tt.build(MODELS[name], target).run({"x": X})["y"], expected, rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_quantized_nan_is_the_largest_number(target):
    # ONNX leaves it open, and so does C for the conversion of NaN; here it is a number, the same on both.
    model = small(
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"]), scale=np.float32(0.5), zero=np.int8(1)
    )
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT8
    np.testing.assert_array_equal(tt.build(model, target).run({"x": X})["y"], [[127, -1, 5], [7, 127, 1]])
