"""Tiles of rows whose number only a run knows: whole ones, then single rows."""

import numpy as np
import pytest
from onnx import helper
from test_cpu_schedule import AVX2, expected, graph, legal, random, runner

pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")

MODELS = {
    "product": (
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])],
        ["n", "s", 24],
        {"w": random(24, 40)},
    ),
    "convolution before a math function": (
        [helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4), helper.make_node("Sigmoid", ["c"], ["y"])],
        [1, 8, "h", "w"],
        {"w": random(16, 8, 3, 3) / 8, "b": random(16)},
    ),
    "convolution of squares with strides": (
        [helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2], pads=[1] * 4)],
        ["n", 8, "s", "s"],
        {"w": random(24, 8, 3, 3) / 8},
    ),
    "two results": (
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["y"])],
        ["s", 8],
        {"w": random(8, 16)},
    ),
}


def model_of(name):
    nodes, shape, constants = MODELS[name]
    results = {"y": [None] * len(shape)} | ({"m": [None] * len(shape)} if name == "two results" else {})
    return graph(nodes, {"x": shape}, results, constants), shape


@pytest.mark.parametrize("name", MODELS)
def test_any_number_of_rows_is_computed(name):
    model, shape = model_of(name)
    run = runner(model, mcpu="x86-64-v2")
    for size in (1, 3, 4, 5, 8, 11):
        x = random(*(size if isinstance(dim, str) else dim for dim in shape))
        for actual, wanted in zip(run(x), expected(model, x), strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_no_row_is_checked_and_sums_stay_in_registers(name):
    import tvm

    from tvmtarget.backends.tvm.cpu_schedule import schedule_functions

    model, _ = model_of(name)
    scheduled, unscheduled = schedule_functions(legal(model), AVX2)
    assert unscheduled == {}
    (function,) = (
        one for _, one in scheduled.functions_items() if "_update_rest" in str(one) or "_rest in" in str(one)
    )
    text = function.script()
    assert "T.where" not in text
    assert "T.vectorized" in text
    passes = tvm.s_tir.transform
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    for lower in (passes.LowerInitBlock, passes.PlanAndUpdateBufferAllocationLocation, passes.ConvertBlocksToOpaque):
        module = lower()(module)
    compact = passes.CompactBufferAllocation()(module).script()
    allocated = [line for line in compact.splitlines() if "alloc_buffer" in line and "pad" not in line]
    assert len(allocated) == 2, allocated
    assert not [line for line in allocated if "T.min" in line or "T.max" in line]


def test_other_functions_stay():
    from tvmtarget.backends.tvm.open_rows import divide_tiles

    nodes, _, constants = MODELS["product"]
    module = legal(graph(nodes, {"x": [2, 9, 24]}, {"y": [2, 9, 40]}, constants))
    functions = [one for _, one in module.functions_items() if hasattr(one, "buffer_map") or hasattr(one, "ret_type")]
    assert all(divide_tiles(one) is one for one in functions if "sblock" in str(one))
