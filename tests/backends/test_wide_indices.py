"""Indices of llvm that begin again: remainders by powers of two."""

import numpy as np
import pytest
from onnx import parser

import tvmtarget as tt

pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")


def test_repeated_elements_are_read_again():
    """LLVM vectorizes such loops with indices of 32 bits as if the elements followed each other."""
    program = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[6,2,16] x, int32[6,4,4] whole) => (float[18,2,64] a, float[n,2,64] b, int32[18,8,4] c)
        <int64[3] along = {3, 1, 4}, int64[3] across = {3, 2, 1}> {
            wide = Tile(x, along) a = Neg(wide)
            single = Max(x, x) again = Tile(single, along) b = Abs(again)
            high = Tile(whole, across) c = Abs(high) }""")
    random = np.random.default_rng(0)
    feeds = {"x": random.normal(size=(6, 2, 16)).astype("float32"), "whole": random.integers(-9, 9, (6, 4, 4), "int32")}
    found = tt.build(program, "llvm").run(feeds)
    wide = np.tile(feeds["x"], (3, 1, 4))
    expected = {"a": -wide, "b": np.abs(wide), "c": np.abs(np.tile(feeds["whole"], (3, 2, 1)))}
    for name, one in expected.items():
        np.testing.assert_array_equal(found[name], one, name)
