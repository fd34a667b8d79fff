"""What the tests of every runtime of clusters compare: inputs, the undivided program, equal outputs."""

import numpy as np

import tvmtarget as tt

__all__ = ["assert_same", "images", "whole"]


def images(count=2, seed=0):
    return {"input": np.random.default_rng(seed).normal(size=(count, 1, 8, 8)).astype("float32")}


def whole(model, inputs):
    return tt.build(tt.IRModule.from_onnx(model), "onnxruntime").run(inputs)


def assert_same(actual, expected):
    assert list(actual) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-5)
