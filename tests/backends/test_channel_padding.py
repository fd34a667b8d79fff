"""Convolutions are widened to whole vectors, and compute the same."""

import numpy as np
import pytest
from models import small
from onnx import helper

import tvmtarget as tt
from tvmtarget.backends.tvm.channel_padding import widen_channels
from tvmtarget.backends.tvm.register_tiling import VectorUnit

tvm = pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")

from tvm.relax.frontend.onnx import from_onnx  # noqa: E402

UNIT = VectorUnit(512, 32)
SHAPE = (1, 8, 7, 7)


def weights(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


CONV, BIASED = helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Conv", ["x", "w", "b"], ["c"])
RELU = helper.make_node("Relu", ["c"], ["y"])
TWICE = (RELU, helper.make_node("Sigmoid", ["c"], ["s"]), helper.make_node("Add", ["y", "s"], ["z"]))

MODELS = {
    "bias and rectifier": (small(BIASED, RELU, shape=SHAPE, w=weights(58, 8, 3, 3), b=weights(58)), 64),
    "nothing after it": (small(CONV, outputs=["c"], shape=SHAPE, w=weights(58, 8, 1, 1)), 64),
    "a residual": (
        small(CONV, helper.make_node("Add", ["c", "r"], ["y"]), shape=SHAPE, w=weights(58, 8, 1, 1), r=weights(7)),
        64,
    ),
    "read twice": (small(BIASED, *TWICE, outputs=["z"], shape=SHAPE, w=weights(58, 8, 1, 1), b=weights(58)), 64),
    "open sizes": (small(BIASED, RELU, shape=("n", 8, 7, 7), w=weights(58, 8, 1, 1), b=weights(58)), 64),
    "two in a row": (
        small(
            BIASED,
            helper.make_node("Conv", ["c", "v"], ["d"]),
            outputs=["d"],
            shape=SHAPE,
            w=weights(58, 8, 1, 1),
            b=weights(58),
            v=weights(58, 58, 1, 1),
        ),
        64,
    ),
    "channels that divide": (small(CONV, RELU, shape=SHAPE, w=weights(48, 8, 1, 1)), 48),
    "groups": (
        small(helper.make_node("Conv", ["x", "w"], ["c"], group=2), RELU, shape=SHAPE, w=weights(58, 4, 1, 1)),
        58,
    ),
    "too few": (small(CONV, RELU, shape=SHAPE, w=weights(3, 8, 1, 1)), 3),
}


def convolved(module):
    """Return the channels of each convolution in a module."""
    found = []

    def visit(expr):
        if isinstance(expr, tvm.relax.Call) and getattr(expr.op, "name", "") == "relax.nn.conv2d":
            found.append(int(expr.ty.shape[1]))

    tvm.relax.analysis.post_order_visit(module["main"], visit)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_channels_are_filled_up_where_that_is_worth_it(name):
    model, channels = MODELS[name]
    module = widen_channels(from_onnx(model), UNIT)
    tvm.relax.analysis.well_formed(module)
    assert set(convolved(module)) == {channels}


@pytest.mark.parametrize("name", MODELS)
def test_results_are_the_same(name):
    model, _ = MODELS[name]
    module = tt.IRModule.from_onnx(model)
    x = np.random.default_rng(1).standard_normal(SHAPE).astype("float32")
    exe = tt.build(module, "llvm(mcpu=x86-64)")
    np.testing.assert_allclose(exe(x), tt.build(module, "numpy")(x), rtol=1e-3, atol=1e-4)


def test_a_bias_and_a_rectifier_are_computed_with_the_convolution_before_the_cut():
    model = small(BIASED, RELU, helper.make_node("GlobalAveragePool", ["y"], ["z"]), outputs=["z"], shape=SHAPE,
                  w=weights(58, 8, 3, 3), b=weights(58))  # fmt: skip
    text = widen_channels(from_onnx(model), UNIT).script(show_meta=False)
    assert text.index("R.nn.conv2d") < text.index("R.add") < text.index("R.nn.relu") < text.index("R.strided_slice")
    assert text.count("R.strided_slice") == 1
