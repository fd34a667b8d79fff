"""The choices around the static model: its own tile is one of them, and all that fit compute the same."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import small
from onnx import helper

from tvmtarget import Target
from tvmtarget.backends.protocol import CompileRequest, backend_named
from tvmtarget.backends.tvm.register_tiling import Access, Nest, VectorUnit, plan
from tvmtarget.backends.tvm.schedule_space import knobs_of, space, tile_of

UNITS = st.sampled_from([VectorUnit(512, 32), VectorUnit(256, 16), VectorUnit(128, 32)])


@st.composite
def nests(draw):
    """Draw the nest of a matrix product, or of pooling."""
    rows, columns, inner = (draw(st.integers(1, 130)) for _ in range(3))
    out = Access(({0: 1}, {1: 1}), (rows, columns))
    if draw(st.booleans()):
        left, right = Access(({0: 1}, {2: 1}), (rows, inner)), Access(({2: 1}, {1: 1}), (inner, columns))
        return Nest("SSR", (rows, columns, inner), (left, right), (out,))
    return Nest("SSR", (rows, columns, 3), (Access(({0: 1}, {1: 1, 2: 1}), (rows, columns + 2)),), (out,))


@given(nest=nests(), unit=UNITS)
def test_the_default_is_one_of_the_choices(nest, unit):
    tile = plan(nest, unit)
    if tile is not None:
        knobs = knobs_of(tile)
        assert tile_of(nest, knobs, unit) == tile
        choices = space(nest, tile, unit)
        assert choices.keys() == knobs.keys()
        assert all(knobs[name] in values for name, values in choices.items())


@given(nest=nests(), unit=UNITS, data=st.data())
def test_what_fits_stays_within_loops_and_registers(nest, unit, data):
    tile = plan(nest, unit)
    if tile is None:
        return
    knobs = {name: data.draw(st.sampled_from(values), name) for name, values in space(nest, tile, unit).items()}
    drawn = tile_of(nest, knobs, unit)
    if drawn is not None:
        assert nest.extents[drawn.axis] % (drawn.lanes * drawn.vectors) == 0
        assert drawn.vectors * drawn.rows + drawn.vectors + 1 <= unit.registers
        assert drawn.row_axis is None or drawn.rows <= nest.extents[drawn.row_axis]
        assert knobs_of(drawn) == knobs


def test_rows_leave_no_remainder_in_a_function_of_open_sizes():
    """TVM 0.27 cannot lower the condition that a remainder needs there."""
    left, right = Access(({0: 1}, {1: 1}, {3: 1}), ("n", 6, 8)), Access(({3: 1}, {2: 1}), (8, 16))
    nest = Nest("SSSR", (None, 6, 16, 8), (left, right), (Access(({0: 1}, {1: 1}, {2: 1}), ("n", 6, 16)),))
    unit = VectorUnit(512, 32)
    knobs = knobs_of(plan(nest, unit)) | {"row_axis": 1, "vectors": 1, "lanes": 16}
    fits = [rows for rows in range(1, 9) if tile_of(nest, knobs | {"rows": rows}, unit) is not None]
    assert fits == [1, 2, 3, 6]


def weights(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


MODELS = {
    "strided convolution with a residual": lambda: small(
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1] * 4),
        helper.make_node("Add", ["c", "r"], ["y"]),
        shape=(1, 16, 23, 23),
        w=weights(48, 16, 3, 3),
        r=weights(1, 48, 12, 12),
    ),
    "groups": lambda: small(
        helper.make_node("Conv", ["x", "w"], ["y"], group=4), shape=(2, 32, 9, 9), w=weights(64, 8, 3, 3)
    ),
    "depthwise": lambda: small(
        helper.make_node("Conv", ["x", "w"], ["y"], group=16), shape=(1, 16, 18, 18), w=weights(16, 1, 3, 3)
    ),
    "pooling": lambda: small(
        helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2]), shape=(1, 8, 21, 21)
    ),
    "matrices in a batch": lambda: small(
        helper.make_node("MatMul", ["x", "w"], ["y"]), shape=(3, 17, 24), w=weights(3, 24, 40)
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_whatever_fits_computes_the_same(name):
    pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
    shop = backend_named("tvm").tuning_context(
        CompileRequest("main", MODELS[name]().SerializeToString(), "", Target("llvm"))
    )
    assert shop.spaces
    drawing = random.Random(name)
    for key, found in shop.spaces.items():
        tried = 0
        while tried < 4:
            choices = [{knob: drawing.choice(values) for knob, values in block.items()} for block in found.choices]
            if shop.is_legal(key, choices):
                assert shop.build(key, choices).difference() is None, choices
                tried += 1
