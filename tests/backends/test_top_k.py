"""TopK of a number that is computed when a program runs, against onnxruntime."""

import numpy as np
import pytest
from onnx import parser

import tvmtarget as tt

pytest.importorskip("tvm")
ort = pytest.importorskip("onnxruntime")

TEXT = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[{shape}] x, int64[1] k) => (float[a, b] y, int64[c, d] i)
    {{ y, i = TopK <axis: int = {axis}, largest: int = {largest}> (x, k) }}"""


def agree(program, proto, given):
    expected = ort.InferenceSession(proto.SerializeToString()).run(None, given)
    actual = program.run(given)
    for value, array in zip(proto.graph.output, expected, strict=True):
        np.testing.assert_array_equal(actual[value.name], array)


@pytest.mark.parametrize(("axis", "largest"), [(-1, 1), (0, 0)])
@pytest.mark.parametrize("shape", ["n, m", "5, 9"])
def test_as_many_elements_as_a_value_says(axis, largest, shape):
    proto = parser.parse_model(TEXT.format(shape=shape, axis=axis, largest=largest))
    program = tt.build(tt.IRModule.from_onnx(proto), "llvm")
    x = np.random.default_rng(0).integers(0, 4, (5, 9)).astype("float32")  # of which many are equal
    for k in (0, 1, 3, 5):
        agree(program, proto, {"x": x, "k": np.array([k])})
    for k in (10, -1):
        with pytest.raises(tt.TvmTargetError):
            program.run({"x": x, "k": np.array([k])})


def test_at_most_as_many_elements_as_there_are():
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[2, n] x) => (float[2, m] y, int64[2, m] i) <int64[1] most = {4}>
        { s = Shape <start: int = 1> (x)  k = Min(s, most)  y, i = TopK(x, k) }""")
    program = tt.build(tt.IRModule.from_onnx(proto), "llvm")
    for count in (1, 4, 9):
        agree(program, proto, {"x": np.random.default_rng(count).random((2, count), dtype="float32")})


@pytest.mark.parametrize("shape", ["n, m", "5, 9"])
@pytest.mark.parametrize("leaf", ["llvm", "openvino", "onnxruntime", "numpy"])
def test_no_elements(shape, leaf):
    proto = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[{shape}] x) => (float[a, b] y, int64[c, d] i) <int64[1] k = {{0}}> {{ y, i = TopK (x, k) }}""")
    if leaf == "openvino":
        with pytest.raises(tt.TvmTargetError, match="of no elements"):
            tt.decompose(tt.IRModule.from_onnx(proto), leaf)
    else:
        agree(tt.build(tt.IRModule.from_onnx(proto), leaf), proto, {"x": np.zeros((5, 9), "float32")})


@pytest.mark.parametrize("k", ["int64[1] k = {3}", "int64[1] k"])
def test_elements_in_any_order_are_sorted(k):
    given, fixed = ("", f"<{k}>") if "=" in k else (f", {k}", "")
    proto = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[2, 9] x{given}) => (float[a, b] y, int64[c, d] i) {fixed}
        {{ y, i = TopK <sorted: int = 0> (x, k) }}""")
    x = np.random.default_rng(0).random((2, 9), dtype="float32")
    found = tt.build(tt.IRModule.from_onnx(proto), "llvm").run({"x": x} | ({"k": np.array([3])} if given else {}))
    np.testing.assert_array_equal(found["y"], -np.sort(-x)[:, :3])
    np.testing.assert_array_equal(np.take_along_axis(x, found["i"], 1), found["y"])
