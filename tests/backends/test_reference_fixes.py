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
