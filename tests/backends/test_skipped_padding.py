"""Convolutions that leave out products with wide padding."""

import numpy as np
import pytest
from onnx import helper
from test_cpu_schedule import AVX2, expected, graph, legal, random, runner

pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")


def convolution(padding, shape=("n", 8, "h", "w"), *, is_finite=True, **attributes):
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=padding, **attributes)
    weights = random(24, 8, 3, 3) / 8
    weights[0, 0, 0, 0] = weights[0, 0, 0, 0] if is_finite else np.inf
    return graph([node], {"x": shape}, {"y": [None] * 4}, {"w": weights})


@pytest.mark.parametrize(
    ("padding", "attributes"),
    [([6] * 4, {"dilations": [6, 6]}), ([5, 4, 6, 7], {"dilations": [4, 3], "strides": [2, 1]})],
    ids=["symmetric", "strides"],
)
def test_images_of_any_size_are_convolved(padding, attributes):
    model = convolution(padding, **attributes)
    run = runner(model, mcpu="x86-64-v3")
    for height, width in ((1, 2), (4, 3), (7, 6), (9, 15), (20, 17)):
        x = random(2, 8, height, width)
        for actual, wanted in zip(run(x), expected(model, x), strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("width", "is_finite", "is_conditional"), [(6, True, True), (3, True, False), (6, False, False)]
)
def test_finite_weights_have_conditions_where_padding_is_wide(width, is_finite, is_conditional):
    from tvmtarget.backends.tvm.cpu_schedule import schedule_functions

    model = convolution([width] * 4, dilations=[width, width], is_finite=is_finite)
    scheduled, unscheduled = schedule_functions(legal(model), AVX2)
    text = "".join(str(function) for _, function in scheduled.functions_items() if "pad_temp" in str(function))
    assert unscheduled == {}
    conditions = [line for line in text.splitlines() if line.lstrip().startswith("if ")]
    assert len(conditions) == (5 if is_conditional else 0)  # of padded rows, and of weights in two kinds of tiles
