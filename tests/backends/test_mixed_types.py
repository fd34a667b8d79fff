"""Operations on several element types at once: results of the type that ONNX gives them, or a refusal."""

from itertools import product

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError


def model(kind, operands, result, opset=23, **attributes):
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in operands.items()
    ]
    node = helper.make_node(kind, list(operands), ["y"], **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", result, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.parametrize("target", ["llvm", "c", "numpy"])
def test_samples_have_the_type_of_the_data(target):
    rng = np.random.default_rng(0)
    data, places = rng.standard_normal((1, 2, 5, 6)), rng.uniform(-1, 1, (1, 3, 4, 2))
    expected = None
    for data_type, type_of_places in product(("float64", "float32"), repeat=2):
        operands = {"x": data.astype(data_type), "g": places.astype(type_of_places)}
        result = helper.np_dtype_to_tensor_dtype(np.dtype(data_type))
        found = tt.build(model("GridSample", operands, result), target).run(operands)["y"]
        expected = found if expected is None else expected
        assert found.dtype == data_type
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def test_one_hot_vectors_may_be_booleans():
    operands = {"x": np.array([0, -1, 3]), "d": np.array(3), "v": np.array([True, False])}
    found = tt.build(model("OneHot", operands, TensorProto.BOOL), "numpy").run(operands)["y"]
    np.testing.assert_array_equal(found, ~np.array([[1, 0, 0], [0, 0, 1], [0, 0, 0]], bool))


RESULTS = [
    ("ReduceSumSquare", {"x": np.full((2, 3), 3, "int32")}, TensorProto.INT32, {}, [[54]]),
    (
        "MaxPool",
        {"x": -np.arange(1, 5, dtype="int8").reshape(1, 1, 4)},
        TensorProto.INT8,
        {"kernel_shape": [2], "pads": [1, 0]},
        [[[-1, -1, -2, -3]]],
    ),
]


@pytest.mark.parametrize(("kind", "operands", "result", "attributes", "expected"), RESULTS)
def test_results_of_the_evaluator_have_the_types_of_onnx(kind, operands, result, attributes, expected):
    found = tt.build(model(kind, operands, result, 22, **attributes), "numpy").run(operands)["y"]
    assert found.dtype == helper.tensor_dtype_to_np_dtype(result)
    np.testing.assert_array_equal(found, expected)


def test_means_of_doubles_are_single():
    operands = {"x": np.arange(8.0).reshape(2, 4), "s": np.ones(4)}
    program = model("LayerNormalization", operands, TensorProto.DOUBLE)
    program.graph.node[0].output.append("mean")
    program.graph.output.append(helper.make_tensor_value_info("mean", TensorProto.FLOAT, [2, 1]))
    found = tt.build(program, "numpy").run(operands)
    assert (found["y"].dtype, found["mean"].dtype) == ("float64", "float32")


@pytest.mark.parametrize(
    ("target", "kind", "types"),
    [
        ("openvino", "RMSNormalization", ("float16", "float32")),
        ("llvm", "RMSNormalization", ("float32", "float64")),
        ("onnxruntime", "RMSNormalization", ("float32", "float64")),
        ("openvino", "BatchNormalization", ("float16", "float32")),
    ],
)
def test_normalizations_of_two_types_are_refused(target, kind, types):
    operands = {"x": np.ones((2, 4), types[0]), "s": np.ones(4, types[1])}
    if kind == "BatchNormalization":
        operands |= dict.fromkeys("bmv", operands["s"])
    result = helper.np_dtype_to_tensor_dtype(operands["s" if kind == "RMSNormalization" else "x"].dtype)
    with pytest.raises(InfeasibleError, match=f"{kind}.*DTYPE"):
        tt.decompose(model(kind, operands, result), target)


@pytest.mark.parametrize("target", ["llvm", "onnxruntime"])
def test_scales_of_integers_are_refused(target):
    operands = {"x": np.ones(3, "float32"), "s": np.array(2, "int32")}
    with pytest.raises(InfeasibleError, match=r"QuantizeLinear.*int32"):
        tt.decompose(model("QuantizeLinear", operands, TensorProto.UINT8), target)


def test_attention_of_two_types_has_no_definition_to_run_by():
    """ONNX's own definition multiplies the scores, of the type of the queries, by the values, of another type."""
    operands = {
        "q": np.ones((1, 2, 3, 4), "float32"),
        "k": np.ones((1, 2, 3, 4), "float32"),
        "v": np.ones((1, 2, 3, 4)),
    }
    for target in ("llvm", "onnxruntime"):
        with pytest.raises(InfeasibleError, match="Attention"):
            tt.decompose(model("Attention", operands, TensorProto.FLOAT), target)


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_integers_and_floats_have_powers_of_other_types(target):
    text = """<ir_version: 8, opset_import: ["": 15]>
        g (int64[3] x, float[3] z, int32[3] e) => (int64[3] y, int64[3] v, float[3] w, float[3] u)
        <int64 two = {2}, float three = {3}> {
            y = Pow(x, two) v = Pow(x, e) w = Pow(z, e) u = Pow(z, two) }"""
    x, z, e = np.array([-3, 2, 1 << 31]), np.array([-1.5, 2, 0.5], "float32"), np.array([3, 10, 1], "int32")
    found = tt.build(parser.parse_model(text), target).run({"x": x, "z": z, "e": e})
    for name, expected in {"y": x**2, "v": x**e, "w": z ** e.astype("float32"), "u": z**2}.items():
        np.testing.assert_array_equal(found[name], expected, strict=True)


def test_a_divisor_of_minus_one_changes_the_sign():
    """Processors have no quotient of the least number and -1."""
    text = """<ir_version: 8, opset_import: ["": 15]> g (int32[3] x) => (int32[3] y, int32[3] z, int32[3] w)
        <int32[3] by = {-1, 2, -1}> { y = Div(x, by) z = Mod(x, by) w = Mod<fmod = 1>(x, by) }"""
    found = tt.build(parser.parse_model(text), "llvm").run({"x": np.array([-(2**31), 7, 5], "int32")})
    assert [one.tolist() for one in found.values()] == [[-(2**31), 3, -5], [0, 1, 0], [0, 1, 0]]


def test_unsigned_integers_have_a_sign_and_scalars_are_filled():
    text = """<ir_version: 8, opset_import: ["": 15]> g (uint8[3] x) => (uint8[3] y) <int64[0] shape = {}> {
        s = Sign(x) c = ConstantOfShape<value = uint8[1] {5}>(shape) y = Mul(s, c) }"""
    assert tt.build(parser.parse_model(text), "llvm").run({"x": np.uint8([0, 1, 200])})["y"].tolist() == [0, 5, 5]


def test_a_lower_bound_is_left_out_where_the_upper_one_is_computed():
    program = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[4] x, float q) => (float[4] y) { most = Neg(q) y = Clip(x, , most) }""")
    found = tt.build(program, "llvm").run({"x": np.float32([1, 9, -5, 3]), "q": np.float32(-2)})["y"]
    np.testing.assert_array_equal(found, [1, 2, -5, 2])
