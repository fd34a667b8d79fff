"""Indices of llvm and c that begin again: remainders by powers of two."""

import re

import numpy as np
import pytest
from onnx import parser

import tvmtarget as tt
from tvmtarget.backends.c.backend import BACKEND
from tvmtarget.backends.protocol import CompileRequest

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


@pytest.mark.parametrize(("target", "type_"), [("c(mcpu=cortex-a72)", "int64_t"), ("c(mcpu=cortex-m55)", "int32_t")])
def test_c_has_indices_of_the_width_of_a_pointer(target, type_):
    """Clang 22 vectorizes those of 32 bits wrongly where pointers are wider."""
    program = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[6,2,16] x) => (float[6,2,64] y) <int64[3] n = {1, 1, 4}> { wide = Tile(x, n) y = Neg(wide) }""")
    request = CompileRequest("main", program.SerializeToString(), "", tt.Target.parse(target))
    (code,) = BACKEND.static_function(request, "kernel").code.values()
    assert re.search(rf"for \({type_} (\w+) .*\n.*\(\1 & (\(int64_t\))?15\)", code.decode())


@pytest.mark.parametrize(("kind", "columns"), [("c", 7), ("llvm", 11)])
def test_columns_of_products_may_leave_a_part_of_a_tile(kind, columns):
    program = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[2,8,64] a, float[2,8,{columns}] b) => (float[2,64,{columns}] y) {{
            rows = Transpose<perm = [0, 2, 1]>(a) y = MatMul(rows, b) }}""")
    random = np.random.default_rng(0)
    a, b = (random.normal(size=(2, 8, size)).astype("float32") for size in (64, columns))
    found = tt.build(program, kind).run({"a": a, "b": b})["y"]
    np.testing.assert_allclose(found, a.swapaxes(1, 2) @ b, rtol=1e-5, atol=1e-5)
