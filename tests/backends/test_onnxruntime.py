"""Models that ONNX Runtime's own optimizer wrote, on leaves of ONNX Runtime."""

import numpy as np
import onnx
import pytest
from models import small
from onnx import helper

import tvmtarget as tt

onnxruntime = pytest.importorskip("onnxruntime")


def test_blocked_convolutions_of_the_optimizer_run(tmp_path):
    rng = np.random.default_rng(0)
    model = small(
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv", pads=[1] * 4),
        helper.make_node("MaxPool", ["a"], ["y"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        shape=(1, 16, 8, 8),
        w=rng.normal(size=(16, 16, 3, 3)).astype("float32"),
    )
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimized.onnx"), 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    optimized = onnx.load(tmp_path / "optimized.onnx")
    if not any(node.domain == "com.microsoft.nchwc" for node in optimized.graph.node):
        pytest.skip("onnxruntime does not block channels on this processor")
    x = rng.normal(size=(1, 16, 8, 8)).astype("float32")
    found, right = (tt.build(tt.IRModule.from_onnx(one), "onnxruntime")(x) for one in (optimized, model))
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)
