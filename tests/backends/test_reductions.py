"""Reductions along memory: what the model chooses, the schedule that comes of it, and that results are right."""

import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmtarget.backends.tvm.register_tiling import Access, Nest, Strip, VectorUnit, strip

AVX512 = VectorUnit(512, 32)

needs_tvm = pytest.mark.skipif(importlib.util.find_spec("tvm") is None, reason="pip install tvmtarget[tvm]")


def reduction(kinds, extents):
    """Return the nest of a reduction of one tensor over some of its axes, which are in order."""
    image = Access(tuple({axis: 1} for axis in range(len(kinds))), tuple(extents))
    spatial = [axis for axis, kind in enumerate(kinds) if kind == "S"]
    result = Access(tuple({axis: 1} for axis in spatial), tuple(extents[axis] for axis in spatial))
    return Nest(kinds, tuple(extents), (image,), (result,))


STRIPS = {
    "the last axis": (("SSR", (32, 64, 80)), Strip(1, 16)),
    "the last two, one piece of memory": (("SRR", (64, 7, 7)), Strip(2, 7)),
    "an axis between": (("RSR", (32, 64, 80)), Strip(1, 16)),
    "an open axis before": (("SRR", (64, None, 64)), Strip(1, 16)),
    "not along memory": (("SRS", (32, 64, 80)), None),
    "an open extent": (("SR", (32, None)), None),
    "a prime": (("SR", (32, 197)), None),
    "nothing": (("SR", (32, 0)), None),
    "no axis of a result": (("RR", (32, 64)), None),
}


@pytest.mark.parametrize(("given", "expected"), STRIPS.values(), ids=STRIPS)
def test_a_reduction_along_memory_takes_as_many_lanes_as_divide(given, expected):
    assert strip(reduction(*given), AVX512) == expected


def function_of(shape, axes, reduce):
    """Return a tensor function that reduces an input."""
    import tvm
    from tvm import te, topi

    x = te.placeholder(shape, "float32", name="x")
    function = te.create_prim_func([x, getattr(topi, reduce)(x, axis=list(axes))])
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def scheduled(module):
    from tvmtarget.backends.tvm.cpu_schedule import schedule_functions

    result, unscheduled = schedule_functions(module, AVX512)
    assert unscheduled == {}
    return result


@needs_tvm
def test_lanes_hold_partial_sums():
    text = scheduled(function_of((64, 96), [1], "sum"))["main"].script()
    assert "T.sblock_alloc_buffer(" in text
    assert "T.vectorized(16)" in text.replace("T.int64(16)", "16")


@needs_tvm
@pytest.mark.parametrize(
    ("shape", "axes", "reduce"),
    [((4000, 160), [1], "sum"), ((8, 128, 28, 28), [2, 3], "max"), ((64, 20, 800), [2], "argmax")],
)
def test_large_ones_are_parallel_over_results_too(shape, axes, reduce):
    import tvm

    module = scheduled(function_of(shape, axes, reduce))
    text = module["main"].script()
    assert "T.parallel(" in text
    assert "T.sblock_alloc_buffer(" in text
    compiled = tvm.compile(module, target=tvm.target.Target("llvm"))
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    expected = getattr(np, reduce)(x, axis=axes[0] if reduce == "argmax" else tuple(axes))
    result = tvm.runtime.tensor(np.zeros_like(expected, "int32" if reduce == "argmax" else "float32"))
    compiled["main"](tvm.runtime.tensor(x), result)
    assert np.allclose(result.numpy(), expected, rtol=1e-4, atol=1e-4)


@needs_tvm
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_reductions_compute_what_numpy_computes(data):
    import tvm

    shape = data.draw(st.lists(st.sampled_from([1, 3, 7, 16, 40]), min_size=1, max_size=3).map(tuple))
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    reduce = data.draw(st.sampled_from(["sum", "max", "argmax"]))
    if reduce == "argmax":
        axes = {max(axes)}
    module = scheduled(function_of(shape, axes, reduce))
    compiled = tvm.compile(module, target=tvm.target.Target("llvm"))
    x = np.random.default_rng(len(shape)).standard_normal(shape).astype("float32")
    expected = getattr(np, reduce)(x, axis=max(axes) if reduce == "argmax" else tuple(axes))
    result = tvm.runtime.tensor(np.zeros(np.shape(expected), "int32" if reduce == "argmax" else "float32"))
    compiled["main"](tvm.runtime.tensor(x), result)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-4)
