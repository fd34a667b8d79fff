"""Rectifiers and clipped values of NaN are NaN, maxima of infinities are infinite, and data is no index."""

import shutil

import numpy as np
import pytest
from models import small
from onnx import helper, parser

import tvmtarget as tt

X = np.array([[np.nan, -1, 2], [3, np.nan, 0.25]], "float32")
IDENTITY = np.eye(3, dtype="float32")
LOW, HIGH = np.float32(-0.5), np.float32(2.5)
MODELS = {
    "Relu": small(helper.make_node("Relu", ["x"], ["y"])),
    "MatMul and Relu": small(
        helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"]), w=IDENTITY
    ),
    "Clip": small(helper.make_node("Clip", ["x", "low", "high"], ["y"]), low=LOW, high=HIGH),
    "Clip from below": small(helper.make_node("Clip", ["x", "low"], ["y"]), low=LOW),
    "LeakyRelu": small(helper.make_node("LeakyRelu", ["x"], ["y"])),
    "Elu": small(helper.make_node("Elu", ["x"], ["y"])),
    "HardSigmoid": small(helper.make_node("HardSigmoid", ["x"], ["y"])),
}
TARGETS = ["llvm", pytest.param("c", marks=pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"))]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_rectifiers_and_clipped_values_of_nan_are_nan(name, target):
    expected = tt.build(MODELS[name], "numpy").run({"x": X})["y"]
    np.testing.assert_allclose(tt.build(MODELS[name], target).run({"x": X})["y"], expected, rtol=1e-6)


@pytest.mark.parametrize("target", [*TARGETS, "numpy"])
@pytest.mark.parametrize("element", ["int8", "uint16"])
def test_quantized_nan_is_the_least_number_as_on_onnxruntime(target, element):
    """ONNX leaves it open; models mask by infinities, whose products with 0 are NaN."""
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[7] x) => ({element}[7] y) <float scale = {{0.5}}, {element} zero = {{1}}> {{
        y = QuantizeLinear(x, scale, zero) }}""")
    x = np.array([np.nan, -1, 2, 1e12, -1e12, np.inf, -np.inf], "float32")
    results = [tt.build(model, one).run({"x": x})["y"] for one in (target, "onnxruntime")]
    np.testing.assert_array_equal(*results)


EXTREMES = """<ir_version: 8, opset_import: ["": 17]>
g (float[3,40] x, float[1,1,4,4] p, uint32[2,5] n) => (float[3] high, float[40] low, float[1,1,4,4] pooled,
    int64[3] at, int64[3] last, int64[40] least, int64[2] first) {
  high = ReduceMax<axes = [1], keepdims = 0>(x)
  low = ReduceMin<axes = [0], keepdims = 0>(x)
  pooled = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(p)
  at = ArgMax<axis = 1, keepdims = 0>(x)
  last = ArgMax<axis = 1, keepdims = 0, select_last_index = 1>(x)
  least = ArgMin<axis = 0, keepdims = 0>(x)
  first = ArgMax<axis = 1, keepdims = 0>(n)
}"""


@pytest.mark.parametrize("target", TARGETS)
def test_maxima_of_infinities_and_least_numbers_are_these_and_have_a_place(target):
    model = tt.IRModule.from_onnx(parser.parse_model(EXTREMES))
    x = np.full((3, 40), -np.inf, "float32")
    x[1], x[2, 7] = np.inf, np.finfo("float32").min
    given = {"x": x, "p": x[:1, :16].reshape(1, 1, 4, 4), "n": np.zeros((2, 5), "uint32")}
    expected = tt.build(model, "numpy").run(given)
    for name, array in tt.build(model, target).run(given).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.parametrize("target", TARGETS)
def test_the_sign_of_nan_is_nan(target):
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[7] x, int32[3] n) => (float[7] y, int32[3] m) { y = Sign(x) m = Sign(n) }""")
    x, n = np.array([np.nan, -2, -0.0, 0, 3, np.inf, -np.inf], "float32"), np.array([-4, 0, 9], "int32")
    results = tt.build(model, target).run({"x": x, "n": n})
    np.testing.assert_array_equal(results["y"], np.sign(x))
    np.testing.assert_array_equal(results["m"], np.sign(n))


def test_infinities_of_one_sign_or_none_are_found():
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (bool[4] a, bool[4] b, bool[4] c, bool[4] d) {
        a = IsInf(x) b = IsInf<detect_negative = 0>(x) c = IsInf<detect_positive = 0>(x)
        d = IsInf<detect_negative = 0, detect_positive = 0>(x) }"""
    x = np.array([1, np.inf, -np.inf, np.nan], "float32")
    found = tt.build(parser.parse_model(text), "llvm").run({"x": x})
    expected = {"a": np.isinf(x), "b": x == np.inf, "c": x == -np.inf, "d": np.zeros(4, bool)}
    assert {name: one.tolist() for name, one in found.items()} == {name: one.tolist() for name, one in expected.items()}


FLOATS = """<ir_version: 8, opset_import: ["": 17]>
g (float[5] x, float[5] y) => (bool[5] same, bool[5] not_less, bool[5] not_equal, bool[5] either, float[5] nothing,
    float[5] kept, float[5] rounded, float[5] more, float[5] least, float[5] scaled, float[5] part, float[5] whole,
    float none) <float c = {12582912}, float zero = {0}> {
  same = Equal(x, x)
  less = Less(x, y) not_less = Not(less)
  equal = Equal(x, y) not_equal = Not(equal)
  reached = LessOrEqual(y, x) either = Or(less, reached)
  copy = Add(x, zero) nothing = Sub(x, copy)
  sum = Add(x, y) kept = Sub(sum, y)
  shifted = Add(x, c) rounded = Sub(shifted, c)
  more = Max(x, y, zero) least = Min(zero, x)
  scaled = Mul(x, zero) part = Div(zero, x) whole = Div(x, zero)
  total = ReduceSum <keepdims = 0> (x) none = Mul(zero, total)
}"""


@pytest.mark.parametrize("target", TARGETS)
def test_floats_are_not_simplified_like_integers(target):
    model = tt.IRModule.from_onnx(parser.parse_model(FLOATS))
    given = {"x": np.array([np.nan, 1.3, np.inf, 2, -1], "float32"), "y": np.array([1, 1e8, 3, np.nan, -1], "float32")}
    expected = tt.build(model, "onnxruntime").run(given)
    assert expected["rounded"][1] == 1
    for name, array in tt.build(model, target).run(given).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


INTEGERS = """<ir_version: 8, opset_import: ["": 18]>
g (int32[4] x, uint32[4] u, int64[4] w, int8[4] s, uint8[4] b) => (int32[4] hash, int32[4] third, bool[4] more,
    uint32[4] less, int32[4] sixth, int64[4] wide, int64[4] wide_third, bool[4] wide_more, int8[4] short,
    int32[4] short_third, bool[4] low, bool[4] negative, bool[4] none, uint8[4] shifted, bool[4] inverse)
    <int32 p = {1540483477}, int32 m = {1000}, int32 one = {1}, int32 six = {6}, int32 three = {3}, uint32 v = {5},
    int64 q = {6}, int64 q3 = {3}, int8 t = {3}, int32 least = {-2147483647}, int32 zero = {0}, uint8 k = {3}> {
  a = Mul(x, p) hash = Mod(a, m)
  b6 = Mul(x, six) third = Mod(b6, three) sixth = Div(b6, six)
  c = Add(x, one) more = Greater(c, x) low = Less(c, least)
  d = Sub(v, u) e = Div(d, v) less = Min(e, u)
  f = Mul(w, q) wide = Div(f, q) wide_third = Mod(f, q3)
  g = Add(w, q) wide_more = Greater(g, w)
  h = Add(s, s) short = Div(h, t)
  i = Mul(s, t) j = Cast<to = 6>(i) short_third = Mod(j, three)
  l = Cast<to = 6>(u) negative = Less(l, zero)
  n = Neg(x) none = Less(n, zero)
  o = BitShift<direction = "LEFT">(b, k) shifted = BitShift<direction = "RIGHT">(o, k)
  r = BitwiseNot(b) inverse = Greater(r, k)
}"""


@pytest.mark.parametrize("target", TARGETS)
def test_integers_wrap_around_as_hashes_need(target):
    model = tt.IRModule.from_onnx(parser.parse_model(INTEGERS))
    given = {
        "x": [3, -(2**31), 2**31 - 1, 1 << 30],
        "u": [3, 7, 0, 2**32 - 1],
        "w": [3, 2**63 - 1, 1 << 62, -5],
        "s": [100, -100, 43, 127],
        "b": [0, 1, 200, 255],
    }
    types = {value.name: value.type.dtype for value in model["main"].params}
    feeds = {name: np.array(values, types[name]) for name, values in given.items()}
    expected = tt.build(model, "numpy").run(feeds)
    for name, array in tt.build(model, target).run(feeds).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


LARGE = """<ir_version: 8, opset_import: ["": 18]>
g (uint64[4] x) => (uint64[4] less, uint64[4] rest, uint64[4] more, uint64[4] product, uint64[4] both,
    uint64[4] quarter, bool[4] above)
    <uint64 c = {9223372036854775813}, uint64 m = {18446744073709551615}, uint64 four = {4}> {
  less = Sub(x, c) rest = Sub(m, x) more = Add(x, c) product = Mul(x, m)
  a = Sub(c, x) b = Sub(a, m) both = Max(b, c) e = Sub(x, m) quarter = Div(e, four) above = Greater(e, c)
}"""


@pytest.mark.parametrize("target", TARGETS)
def test_scalars_from_half_the_range_of_uint64_on_wrap_around(target):
    model = tt.IRModule.from_onnx(parser.parse_model(LARGE))
    feeds = {"x": np.array([0, 1, 2**63 + 6, 2**64 - 1], "uint64")}
    expected = tt.build(model, "numpy").run(feeds)
    assert expected["less"].tolist() == [2**63 - 5, 2**63 - 4, 1, 2**63 - 6]
    for name, array in tt.build(model, target).run(feeds).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_nan_is_not_zero():
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[n, 3] x) => (int64[2, m] y) { y = NonZero(x) }""")
    program = tt.build(model, "llvm")
    for x in (np.array([[np.nan, 0, -0.0], [1e-45, -2, 0]], "float32"), np.zeros((0, 3), "float32")):
        np.testing.assert_array_equal(program.run({"x": x})["y"], np.nonzero(x))
