"""Operators that the llvm backend writes as others: they compute what ONNX Runtime computes."""

import shutil

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser, shape_inference

import tvmtarget as tt
from tvmtarget.backends import operator_expansion
from tvmtarget.errors import InfeasibleError
from tvmtarget.support import tvm_rules

pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")
pytest.importorskip("onnxruntime", reason="pip install 'tvmtarget[onnxruntime]'")

GCC = shutil.which("gcc")
RNG = np.random.default_rng(0)
S, Z = np.float32(0.02), np.uint8(120)


def bytes_of(*shape, dtype=np.uint8):
    # Signed weights have 7 bits: ONNX Runtime's sums of pairs of products saturate at 16 bits on CPUs without VNNI.
    least, most = (-63, 63) if dtype == np.int8 else (0, 255)
    return RNG.integers(least, most, shape, dtype=dtype, endpoint=True)


def floats(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def model(kind, inputs, constants, results=1, domain="", version=17, **attributes):
    """A module of one operation; operands are inputs by name, and constants in the order of the text."""
    names = list(inputs) + [name for name in constants if name not in inputs]
    order = attributes.pop("order", names)
    elem = TensorProto.UINT8 if kind[0] == "Q" and kind != "QuickGelu" else TensorProto.FLOAT
    elem = TensorProto.INT32 if kind == "ConvInteger" else elem
    outputs = [f"y{index}" for index in range(results)]
    node = helper.make_node(kind, order, outputs, domain=domain, name="op", **attributes)
    graph = helper.make_graph(
        [node],
        kind,
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in inputs.items()
        ],
        [helper.make_tensor_value_info(name, elem, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", version), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


W = bytes_of(6, 4, 3, 3, dtype=np.int8)
PER_CHANNEL = np.linspace(0.01, 0.02, 6).astype(np.float32)
X = bytes_of(1, 4, 8, 8)
SCALES = {"xs": S, "xz": Z, "ys": np.float32(0.1), "yz": np.uint8(100)}
QUANTIZED = {
    "QLinearConv": (
        "",
        {"x": X},
        {"xs": S, "xz": Z, "w": W, "ws": PER_CHANNEL, "wz": np.zeros(6, np.int8), "ys": np.float32(0.3), "yz": Z}
        | {"b": RNG.integers(-900, 900, 6, dtype=np.int32)},
        {"pads": [1, 1, 1, 1], "strides": [2, 2]},
    ),
    "QLinearMatMul": (
        "",
        {"a": bytes_of(2, 5, 16)},
        {"as": S, "az": Z, "b": bytes_of(16, 6, dtype=np.int8), "bs": PER_CHANNEL, "bz": np.zeros(6, np.int8)}
        | {"ys": np.float32(0.05), "yz": Z},
        {},
    ),
    "QGemm": (
        "com.microsoft",
        {"a": bytes_of(5, 16)},
        {"as": S, "az": Z, "b": bytes_of(6, 16, dtype=np.int8), "bs": PER_CHANNEL, "bz": np.zeros(6, np.int8)}
        | {"c": RNG.integers(-900, 900, 6, dtype=np.int32), "ys": np.float32(0.05), "yz": Z},
        {"transB": 1, "alpha": 1.0},
    ),
    "QLinearAdd": (
        "com.microsoft",
        {"a": X},
        {"as": S, "az": Z, "b": bytes_of(4, 1, 1), "bs": S, "bz": Z} | SCALES,
        {},
    ),
    "QLinearMul": (
        "com.microsoft",
        {"a": X},
        {"as": S, "az": Z, "b": bytes_of(4, 1, 1), "bs": S, "bz": Z} | SCALES,
        {},
    ),
    "QLinearConcat": (
        "com.microsoft",
        {"x": X},
        {**SCALES},
        {"axis": 1, "order": ["ys", "yz", "x", "xs", "xz", "x", "ys", "yz"]},
    ),
    "QLinearAveragePool": (
        "com.microsoft",
        {"x": X},
        {"xs": S, "xz": Z, "ys": S, "yz": Z},
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]},
    ),
    "QLinearGlobalAveragePool": (
        "com.microsoft",
        {"x": X},
        {"xs": S, "xz": Z, "ys": np.float32(0.002), "yz": Z},
        {"channels_last": 0},
    ),
    "QLinearSigmoid": ("com.microsoft", {"x": X}, {"xs": S, "xz": Z, "ys": np.float32(1 / 256), "yz": np.uint8(0)}, {}),
    "QLinearLeakyRelu": ("com.microsoft", {"x": X}, {"xs": S, "xz": Z, "ys": S, "yz": Z}, {"alpha": 0.2}),
    "QLinearSoftmax": (
        "com.microsoft",
        {"x": X},
        {"xs": S, "xz": Z, "ys": np.float32(1 / 256), "yz": np.uint8(0)},
        {"axis": 1, "opset": 17},
    ),
}
for name in ("QLinearAdd", "QLinearMul"):
    QUANTIZED[name][2].pop("xs")
    QUANTIZED[name][2].pop("xz")


def both(proto, inputs, rtol=1e-5):
    module = tt.IRModule.from_onnx(proto)
    results = [tt.build(tt.decompose(module, kind)).run(inputs) for kind in ("llvm", "onnxruntime")]
    return [(results[0][name], results[1][name]) for name in results[1]]


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_operators_are_within_one_step_of_onnxruntime(kind):
    domain, inputs, constants, attributes = QUANTIZED[kind]
    # Convolutions with a scale for each channel were there before DequantizeLinear had an axis.
    version = 11 if kind == "QLinearConv" else 17
    proto = model(kind, inputs, constants, domain=domain, version=version, **attributes)
    ((found, wanted),) = both(proto, inputs)
    assert found.dtype == wanted.dtype
    assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1
    assert len(np.unique(wanted)) > 3


@pytest.mark.parametrize("kind", ["QLinearConv", "QLinearMatMul", "QGemm"])
def test_weights_of_quantized_operators_stay_quantized(kind):
    from tvmtarget.backends.tvm.backend import _prepared

    domain, inputs, constants, attributes = QUANTIZED[kind]
    made = shape_inference.infer_shapes(model(kind, inputs, constants, domain=domain, **attributes))
    graph = _prepared(made)[0].graph
    constant = {tensor.name for tensor in graph.initializer}
    kept = [node.input[0] for node in graph.node if node.op_type == "DequantizeLinear"]
    assert any(name in constant for name in kept)


@pytest.mark.parametrize("channels", [4, 2000])
def test_convolutions_of_integers_are_exact(channels):
    x, w = bytes_of(1, channels, 4, 4), bytes_of(3, channels, 3, 3, dtype=np.int8)
    proto = model("ConvInteger", {"x": x}, {"w": w, "xz": Z, "wz": np.int8(3)}, pads=[1, 1, 1, 1])
    for zero in ("xz", "wz"):
        assert zero in proto.graph.node[0].input
    ((found, wanted),) = both(proto, {"x": x})
    np.testing.assert_array_equal(found, wanted)


def test_zero_points_that_are_computed_are_subtracted():
    x, w = bytes_of(1, 4, 4, 4), bytes_of(3, 4, 3, 3, dtype=np.int8)
    proto = model("ConvInteger", {"x": x, "xz": np.array(7, np.uint8)}, {"w": w}, order=["x", "w", "xz"])
    ((found, wanted),) = both(proto, {"x": x, "xz": np.array(9, np.uint8)})
    np.testing.assert_array_equal(found, wanted)


FLOATS = {
    "BiasGelu": ({"x": floats(2, 5, 8)}, {"b": floats(8)}, 1, {}),
    "FastGelu": ({"x": floats(2, 5, 8)}, {"b": floats(8)}, 1, {}),
    "Gelu": ({"x": floats(2, 5, 8)}, {}, 1, {}),
    "QuickGelu": ({"x": floats(2, 5, 8)}, {}, 1, {"alpha": 1.5}),
    "FusedMatMul": ({"a": floats(2, 8, 5), "b": floats(2, 6, 8)}, {}, 1, {"transA": 1, "transB": 1, "alpha": 0.125}),
    "CDist": ({"a": floats(7, 5), "b": floats(9, 5)}, {}, 1, {}),
    "CDist of floats": ({"a": floats(3, 40), "b": floats(64, 40)}, {}, 1, {"metric": "euclidean"}),
    "FusedConv": ({"x": floats(1, 4, 8, 8)}, {"w": floats(6, 4, 3, 3), "b": floats(6)}, 1, {"activation": "Relu"}),
    "SkipLayerNormalization": (
        {"x": floats(2, 5, 8), "k": floats(2, 5, 8)},
        {"g": floats(8), "b": floats(8), "c": floats(8)},
        1,
        {"epsilon": 1e-5},
    ),
    "MatMulIntegerToFloat": (
        {"x": bytes_of(2, 5, 16)},
        {
            "w": bytes_of(16, 6),
            "s": np.float32(0.05),
            "t": np.abs(floats(6)),
            "z": np.uint8(3),
            "y": bytes_of(6),
            "b": floats(6),
        },
        1,
        {},
    ),
    "DynamicQuantizeMatMul": (
        {"x": floats(2, 5, 16)},
        {"w": bytes_of(16, 6), "s": np.abs(floats(6)), "z": bytes_of(6), "b": floats(6)},
        1,
        {},
    ),
    "SkipSimplifiedLayerNormalization": (
        {"x": floats(2, 5, 8), "k": floats(2, 5, 8)},
        {"g": floats(8)},
        1,
        {"epsilon": 1e-5},
    ),
}


@pytest.mark.parametrize("kind", FLOATS)
def test_fused_operators_compute_what_onnxruntime_does(kind):
    inputs, constants, results, attributes = FLOATS[kind]
    proto = model(kind.split()[0], inputs, constants, results=results, domain="com.microsoft", **attributes)
    for found, wanted in both(proto, inputs):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def test_the_sum_before_a_normalization_is_a_result():
    inputs = {"x": floats(2, 5, 8), "k": floats(2, 5, 8)}
    proto = model("SkipLayerNormalization", inputs, {"g": floats(8), "b": floats(8)}, results=4, domain="com.microsoft")
    del proto.graph.node[0].output[1:3]
    proto.graph.node[0].output[:] = ["y0", "", "", "y3"]
    del proto.graph.output[1:3]
    for found, wanted in both(proto, inputs):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("bits", "zeros", "dtype"), [(4, True, "float32"), (4, False, "float32"), (8, True, "float32")]
)
def test_products_with_weights_of_few_bits(bits, zeros, dtype):
    rows, columns, block = 6, 40, 16
    blocks = -(-columns // block)
    inputs = {"a": floats(2, 3, columns, dtype=dtype)}
    constants = {
        "b": bytes_of(rows, blocks, block * bits // 8),
        "s": floats(rows * blocks, dtype=dtype) * np.dtype(dtype).type(0.1),
    }
    if zeros:
        constants["z"] = bytes_of(rows * -(-blocks * bits // 8))
    proto = model(
        "MatMulNBits", inputs, constants, domain="com.microsoft", N=rows, K=columns, bits=bits, block_size=block
    )
    ((found, wanted),) = both(proto, inputs)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


def test_an_axis_that_is_a_scalar_is_inserted():
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        g (float[n,1,3] x) => (float[n,1,1,3] y, float[n,3] z) <int64 axis = {1}> {
            y = Unsqueeze(x, axis) z = Squeeze(x, axis) }""")
    found = tt.build(proto, "llvm").run({"x": np.ones((2, 1, 3), "float32")})
    assert [found[name].shape for name in "yz"] == [(2, 1, 1, 3), (2, 3)]


@pytest.mark.parametrize("leaf", ["llvm", "openvino"])
def test_weights_of_few_bits_have_an_order_of_groups(leaf):
    pytest.importorskip(leaf.replace("llvm", "tvm"))
    rows, columns, block = 3, 40, 16
    inputs, groups = {"a": floats(2, columns)}, RNG.permutation(np.arange(3 * block) // block).astype("int32")
    values, zeros = RNG.integers(0, 16, (rows, 3 * block)), RNG.integers(0, 16, (rows, 4))
    constants = {
        "b": (values[:, ::2] | values[:, 1::2] << 4).astype("uint8").reshape(rows, 3, block // 2),
        "s": floats(rows, 3),
        "z": (zeros[:, ::2] | zeros[:, 1::2] << 4).astype("uint8"),
        "g": groups,
    }
    proto = model("MatMulNBits", inputs, constants, domain="com.microsoft", N=rows, K=columns, bits=4, block_size=block)
    order = groups[:columns]
    weights = (values[:, :columns] - zeros[:, order]) * constants["s"][:, order]
    found = tt.build(proto, leaf).run(inputs)["y0"]
    np.testing.assert_allclose(found, inputs["a"] @ weights.T, rtol=1e-3, atol=1e-3)
    with pytest.raises(InfeasibleError, match="it ignores the zero points 'z' of"):
        tt.decompose(proto, "onnxruntime")


@pytest.mark.parametrize(
    ("dtype", "block", "axis", "shape"),
    [
        ("UINT4", 32, 0, (2, 17)),
        ("INT4", 4, 1, (40, 5)),
        ("INT4", 0, 1, (17,)),
        ("UINT4", 0, 1, ()),
        ("INT8", 16, 0, (3, 17)),
    ],
)
def test_constants_of_few_bits_and_of_blocks_are_dequantized(dtype, block, axis, shape):
    element, signed = getattr(TensorProto, dtype), dtype.startswith("INT")
    least = -8 if signed else 0
    values, zeros = (RNG.integers(least, least + 16, size) for size in ((40, 17), shape))
    x, scale = floats(2, 40), np.abs(floats(*shape)) + np.float32(0.1)
    constants = [
        helper.make_tensor("w", element, values.shape, values.reshape(-1).tolist()),
        numpy_helper.from_array(np.asarray(scale), "s"),
        helper.make_tensor("z", element, shape, np.asarray(zeros).reshape(-1).tolist()),
    ]
    nodes = [
        helper.make_node(
            "DequantizeLinear", ["w", "s", "z"], ["d"], axis=axis, **({"block_size": block} if block else {})
        ),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in (("x", x.shape), ("y", (2, 17)))
    ]
    body = helper.make_graph(nodes, "few", ends[:1], ends[1:], constants)
    proto = helper.make_model(body, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    scale, zeros = (np.repeat(one, block, axis)[:40, :17] if block else one for one in (scale, zeros))
    np.testing.assert_allclose(tt.build(proto, "llvm")(x), x @ ((values - zeros) * scale), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["llvm", pytest.param("c", marks=pytest.mark.skipif(not GCC, reason="needs gcc"))])
def test_truth_values_are_compared(kind):
    x, y = np.array([[True], [False]]), np.array([True, False, True])
    proto = model("Equal", {"x": x, "y": y}, {})
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    np.testing.assert_array_equal(tt.build(proto, kind)(x, y), x == y)


@pytest.mark.parametrize(("version", "axis"), [(11, -1), (17, 0), (17, 1)])
@pytest.mark.parametrize("dims", ["2,3", "b,s"])
def test_one_hot_values_are_those_of_onnxruntime(version, axis, dims):
    """An index counts from the end if it is negative; one that is out of range chooses no position."""
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["": {version}]>
        g (int64[{dims}] x) => (float[a,b,c] y) <int64 depth = {{4}}, float[2] values = {{-1.5, 2.0}}> {{
        y = OneHot<axis={axis}>(x, depth, values) }}""")
    ((found, wanted),) = both(proto, {"x": np.array([[0, 3, -1], [4, -4, -5]])})
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dims", ["3,5", "a,b"])
@pytest.mark.parametrize(("attributes", "element"), [("", "int32"), ("<k=1, dtype=1>", "float"), ("<k=-2>", "int32")])
def test_the_diagonal_of_a_matrix_is_that_of_onnxruntime(dims, attributes, element):
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (int32[{dims}] x) => ({element}[{dims}] y) {{ y = EyeLike{attributes}(x) }}""")
    ((found, wanted),) = both(proto, {"x": np.zeros((3, 5), "int32")})
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == wanted.dtype


@pytest.mark.parametrize(("opset", "keepdims", "listed"), [(11, 1, True), (13, 0, True), (18, 0, True), (18, 1, False)])
def test_logarithms_of_sums_of_powers_are_infinite_where_an_element_is(opset, keepdims, listed):
    x = floats(4, 3, 5)
    x[0, 0, 1], x[1, 2], x[2, 1, 3], x[3] = np.inf, -np.inf, -np.inf, 200
    axes = [1, 2] if listed else [0, 1, 2]
    operands, attributes = ["x"], {"axes": axes} if listed and opset < 18 else {}
    constants = [numpy_helper.from_array(np.array(axes), "axes")] if listed and opset > 17 else []
    node = helper.make_node(
        "ReduceLogSumExp", operands + ["axes"] * len(constants), ["y"], keepdims=keepdims, **attributes
    )
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 5])]
    ends.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    proto = helper.make_model(
        helper.make_graph([node], "g", ends[:1], ends[1:], constants),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )
    with np.errstate(over="ignore"):
        exact = x.astype("float64")
        wanted = np.log(np.exp(exact).sum(tuple(axes), keepdims=bool(keepdims)))
    np.testing.assert_allclose(tt.build(proto, "llvm")(x), wanted, rtol=1e-5)


@pytest.mark.parametrize("kind", ["Celu", "ReduceLogSumExp", "com.microsoft.Gelu", "com.microsoft.QuickGelu"])
def test_results_of_scalars_are_scalars(kind):
    from tvmtarget.backends.tvm.backend import _prepared

    made = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float x) => (float y) {{ y = {kind}(x) }}""")
    expanded = _prepared(made)[0]
    assert all(node.op_type != kind.split(".")[-1] for node in expanded.graph.node)
    wanted, found = (
        onnxruntime.InferenceSession(one.SerializeToString()).run(
            None, {one.graph.input[0].name: np.array(0.5, "float32")}
        )[0]
        for one in (made, expanded)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, strict=True)


@pytest.mark.parametrize("kind", ["llvm", "openvino"])
def test_what_is_not_above_a_threshold_is_0(kind):
    """It was multiplied by 0, which is NaN for minus infinity, and OpenVINO takes NaN to be greater."""
    module = tt.IRModule.from_onnx(
        parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[7] x) => (float[7] y) '
            "{ y = ThresholdedRelu<alpha = 1.5>(x) }"
        )
    )
    x = np.array([np.nan, -np.inf, -2, 0, 1.5, 2, np.inf], "float32")
    np.testing.assert_array_equal(tt.build(module, kind)(x), [0, 0, 0, 0, 0, 2, np.inf])


def test_places_of_extremes_along_the_last_axis_are_found_in_old_operator_sets():
    proto = parser.parse_model("""<ir_version: 4, opset_import: ["": 9]>
        g (float[n,3] x) => (int64[n] y) { y = ArgMax<axis = -1, keepdims = 0>(x) }""")
    x = floats(4, 3)
    np.testing.assert_array_equal(tt.build(proto, "llvm")(x), x.argmax(-1))


def test_constants_that_are_results_are_read_as_constants():
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[2,3] x) => (float[2,2] y, int64[1] axis, float[1] s_1) <float[1] s_1 = {2}> {
            begin = Constant<value_ints = [1]>() end = Constant<value_ints = [3]>()
            axis = Constant<value_ints = [1]>() s = Mul(x, s_1) y = Slice(s, begin, end, axis, axis) }""")
    x = floats(2, 3)
    found = tt.build(tt.IRModule.from_onnx(proto), "llvm").run({"x": x})
    np.testing.assert_array_equal(found["y"], 2 * x[:, 1:3])
    assert found["axis"] == [1]
    assert found["s_1"] == [2]


def test_every_expanded_operator_has_a_rule():
    loops, lowered = {"GRU", "LSTM", "RNN"}, {"Col2Im", "ReverseSequence"}
    assert operator_expansion.EXPANSIONS.keys() | loops | lowered == tvm_rules.EXPANDED.keys() | {
        "ArgMax",
        "ArgMin",
        "AveragePool",
        "BatchNormalization",
        "Conv",
        "ConvTranspose",
        "DequantizeLinear",
        "Equal",
        "Hardmax",
        "MatMulInteger",
        "MaxPool",
        "ReduceLogSumExp",
        "Resize",
        "ScatterElements",
        "ScatterND",
        "ThresholdedRelu",
        "Squeeze",
        "Unsqueeze",
    }
    assert operator_expansion.RECURRENT_EXPANSIONS.keys() < loops


def test_generated_c_runs_expanded_operators():
    inputs = {"x": floats(1, 2, 5)}
    constants = {"w": floats(1, 16, 5), "r": floats(1, 16, 4)}
    proto = model("LSTM", inputs, constants, results=3, hidden_size=4)
    module = tt.IRModule.from_onnx(proto)
    found, wanted = (tt.build(tt.decompose(module, kind)).run(inputs) for kind in ("c", "onnxruntime"))
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5)
        assert found[name].shape == array.shape


def test_generated_c_returns_one_value_in_several_shapes():
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Reshape", ["r", "s"], ["a"]),
        helper.make_node("Reshape", ["a", "q"], ["b"]),
    ]
    graph = helper.make_graph(
        nodes,
        "shapes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("r", "a", "b")],
        [numpy_helper.from_array(np.array(shape), name) for name, shape in (("s", [3, 2]), ("q", [6]))],
    )
    module = tt.IRModule.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    x = floats(2, 3)
    found = tt.build(tt.decompose(module, "c")).run({"x": x})
    for name, shape in (("r", (2, 3)), ("a", (3, 2)), ("b", (6,))):
        np.testing.assert_array_equal(found[name], np.maximum(x, 0).reshape(shape))


@pytest.mark.parametrize("target", ["llvm", "openvino", "numpy"])
def test_a_norm_that_only_onnxruntime_has_in_the_domain_of_onnx(target):
    """Exporters of language models write it so."""
    if target == "openvino":
        pytest.importorskip("openvino")
    inputs = {"x": floats(2, 5, 8)}
    proto = model("SimplifiedLayerNormalization", inputs, {"g": floats(8)}, results=1, domain="", axis=-1, stash_type=1)
    module = tt.IRModule.from_onnx(proto)
    (result,) = module.main.body[0].outputs
    assert str(result.type) == "float32[2,5,8]"
    if target == "numpy":
        with pytest.raises(tt.TvmTargetError, match="no kernel for SimplifiedLayerNormalization"):
            tt.decompose(module, target)
        return
    (wanted,) = tt.build(module, "onnxruntime").run(inputs).values()
    (found,) = tt.build(module, target).run(inputs).values()
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


# Convolutions of more padding than data

PADDED = {
    "all but the center": ((1, 4, 4, 4), (6, 4, 3, 3), {"dilations": [12, 12], "pads": [12] * 4}, [1, 1]),
    "the end of one axis": ((1, 4, 5, 9), (6, 4, 3, 5), {"dilations": [3, 1], "pads": [0, 2, 6, 2]}, [2, 5]),
    "the beginning, with strides": ((2, 4, 7), (6, 2, 4), {"strides": [3], "pads": [4, 0], "group": 2}, [4]),
    "as much as padding is left": ((1, 4, 3), (6, 4, 5), {"strides": [9], "pads": [2, 9]}, [3]),
    "of windows in padding": ((1, 4, 2), (6, 4, 3), {"strides": [8], "pads": [8, 1]}, [2]),
    "none": ((1, 4, 8, 8), (6, 4, 3, 3), {"dilations": [5, 5], "pads": [5] * 4}, [3, 3]),
}
FAR_APART = {
    "of both axes": ((1, 4, 8, 9), (6, 4, 3, 3), {"dilations": [6, 6], "pads": [6] * 4}, 9),
    "of one axis": ((2, 4, 12, 4), (6, 2, 3, 3), {"dilations": [1, 3], "pads": [1, 3, 1, 3], "group": 2}, 3),
    "with strides": ((1, 4, 9), (6, 4, 3), {"dilations": [7], "strides": [2], "pads": [6, 7]}, 3),
    "without the end of a kernel": ((1, 4, 9), (6, 4, 5), {"dilations": [7], "pads": [14, 14]}, 3),
    "of a kernel of even size": ((1, 4, 9), (6, 4, 2), {"dilations": [7], "pads": [3, 4]}, 3),
    "of three axes": ((1, 2, 3, 3, 3), (2, 2, 3, 3, 3), {"dilations": [2] * 3, "pads": [2] * 6}, 27),
}


@pytest.mark.parametrize(("shape", "weights", "attributes", "kernel"), PADDED.values(), ids=PADDED)
def test_weights_that_read_padding_only_are_left_out(shape, weights, attributes, kernel):
    from tvmtarget.backends.tvm.backend import _prepared

    inputs, constants = {"x": floats(*shape)}, {"w": floats(*weights), "b": floats(6)}
    made = shape_inference.infer_shapes(model("Conv", inputs, constants, **attributes))
    graph = _prepared(made)[0].graph
    read = {tensor.name: list(tensor.dims[2:]) for tensor in graph.initializer}
    assert read[graph.node[0].input[1]] == kernel
    (wanted,) = tt.build(made, "onnxruntime").run(inputs).values()
    (found,) = tt.build(made, "llvm").run(inputs).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("shape", "weights", "attributes", "parts"), FAR_APART.values(), ids=FAR_APART)
def test_results_that_read_data_with_the_same_weights_far_apart_are_a_convolution(shape, weights, attributes, parts):
    from tvmtarget.backends.tvm.backend import _prepared

    inputs, constants = {"x": floats(*shape)}, {"w": floats(*weights), "b": floats(weights[0])}
    made = shape_inference.infer_shapes(model("Conv", inputs, constants, **attributes))
    expanded = _prepared(made)[0]
    assert [node.op_type for node in expanded.graph.node].count("Conv") == parts
    session = onnxruntime.InferenceSession(expanded.SerializeToString())
    (wanted,) = tt.build(made, "onnxruntime").run(inputs).values()
    np.testing.assert_allclose(session.run(None, inputs)[0], wanted, rtol=1e-4, atol=1e-5)


# Transposed convolutions: of the image, weights, attributes, and so many Conv, 0 where it stays.
SQUARES = {"strides": [2, 2]}
TRANSPOSED = {
    "weights as long as steps": ((2, 4, 3, 5), (4, 3, 2, 2), SQUARES, 1),
    "padding that cuts": ((1, 4, 3, 5), (4, 3, 4, 4), SQUARES | {"pads": [1, 1, 1, 1]}, 4),
    "phases of fewer weights": ((1, 4, 3, 5), (4, 3, 3, 3), SQUARES | {"pads": [1] * 4, "output_padding": [1, 1]}, 4),
    "no steps": ((1, 4, 3, 3), (4, 3, 3, 3), {"pads": [1, 0, 2, 1]}, 1),
    "steps that differ, in groups": (
        (2, 4, 3, 5),
        (4, 3, 5, 7),
        {"strides": [2, 3], "group": 2, "pads": [1, 2, 0, 3]},
        1,
    ),
    "a long kernel over time": ((1, 4, 9), (4, 3, 16), {"strides": [8], "pads": [4, 4]}, 1),
    "volumes": ((1, 4, 2, 3, 3), (4, 2, 2, 3, 3), {"strides": [2, 1, 2], "group": 2}, 4),
    "steps without weights": ((1, 4, 3), (4, 3, 2), {"strides": [3], "output_padding": [1]}, 1),
    "large steps": ((1, 2, 3, 3), (2, 2, 16, 16), {"strides": [8, 8], "pads": [4] * 4}, 1),
    "more padding than weights": ((1, 4, 5), (4, 3, 2), {"pads": [3, 1]}, 0),
    "dilated weights": ((1, 4, 5), (4, 3, 2), {"dilations": [2], "auto_pad": "SAME_LOWER"}, 0),
    "automatic padding": ((1, 4, 5, 4), (4, 3, 3, 3), SQUARES | {"auto_pad": "SAME_UPPER"}, 4),
    "automatic padding before": ((1, 4, 5, 4), (4, 3, 3, 4), SQUARES | {"auto_pad": "SAME_LOWER"}, 4),
}


@pytest.mark.parametrize("is_open", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize(("shape", "weights", "attributes", "parts"), TRANSPOSED.values(), ids=TRANSPOSED)
def test_transposed_convolutions_are_convolutions_of_their_image(shape, weights, attributes, parts, is_open):
    from tvmtarget.backends.tvm.backend import _prepared

    inputs, constants = (
        {"x": floats(*shape)},
        {"w": floats(*weights), "b": floats(weights[1] * attributes.get("group", 1))},
    )
    made = model("ConvTranspose", inputs, constants, **attributes)
    if is_open:
        for axis in (0, *range(2, len(shape))):
            made.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"d{axis}"
        steps = attributes.get("strides", [1])
        parts = parts if np.prod(steps) == 1 or len(shape) == 3 or (len(shape) == 4 and len({*steps}) == 1) else 0
    expanded = _prepared(shape_inference.infer_shapes(made))[0]
    kinds = [node.op_type for node in expanded.graph.node]
    assert (kinds.count("Conv"), kinds.count("ConvTranspose")) == (parts, int(not parts))
    wanted, found = (
        onnxruntime.InferenceSession(one.SerializeToString()).run(None, {one.graph.input[0].name: inputs["x"]})[0]
        for one in (made, expanded)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(10, 9), (11, 12)], ids=str)
@pytest.mark.parametrize("mode", ["NOTSET", "SAME_UPPER"])
def test_the_shape_of_a_transposed_convolution_can_be_stated(shape, mode):
    inputs, constants = {"x": floats(2, 4, 5, 4)}, {"w": floats(4, 3, 3, 4)}
    made = model("ConvTranspose", inputs, constants, strides=[2, 3], output_shape=shape, auto_pad=mode)
    wanted = onnxruntime.InferenceSession(made.SerializeToString()).run(None, inputs)[0]
    assert wanted.shape[2:] == shape
    found = tt.build(tt.IRModule.from_onnx(made), "llvm")(inputs["x"])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    made.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "w"
    with pytest.raises(InfeasibleError, match=r"operand 0 of ConvTranspose, .* is not static"):
        tt.decompose(tt.IRModule.from_onnx(made), "llvm")


@pytest.mark.parametrize(
    ("dtype", "axis", "attributes"),
    [
        ("int8", None, {"strides": [2, 2]}),
        ("uint8", 1, {"strides": [3, 2], "pads": [1] * 4, "group": 2}),  # zeros are added
        ("uint16", -3, {"strides": [2, 2], "group": 2}),
    ],
)
def test_quantized_weights_of_transposed_convolutions_stay_quantized(dtype, axis, attributes):
    from tvmtarget.backends.tvm.backend import _prepared

    rng, count = np.random.default_rng(0), 1 if axis is None else 3
    weights = rng.integers(0, 127, (4, 3, 4, 4)).astype(dtype)
    scales, zeros = floats(count) / 8, rng.integers(0, 127, count).astype(dtype)
    inputs = {"x": floats(2, 4, 3, 5)}
    made = model("ConvTranspose", inputs, {"w": floats(4, 3, 4, 4)}, **attributes)
    del made.graph.initializer[:]
    made.graph.initializer.extend(map(numpy_helper.from_array, (weights, scales, zeros), ("q", "s", "z")))
    along = {} if axis is None else {"axis": axis}
    made.graph.node.insert(0, helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], **along))
    made.opset_import[0].version, made.ir_version = 21, 10
    expanded = _prepared(shape_inference.infer_shapes(made))[0]
    made_by = {name: node for node in expanded.graph.node for name in node.output}
    convolution = next(node for node in expanded.graph.node if node.op_type == "Conv")
    numbers = made_by[convolution.input[1]].input[0]
    assert next(one for one in expanded.graph.initializer if one.name == numbers).data_type == (
        helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    )
    wanted, found = (
        onnxruntime.InferenceSession(one.SerializeToString()).run(None, {one.graph.input[0].name: inputs["x"]})[0]
        for one in (made, expanded)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 8, 5), (2, 8, 5, 7)], ids=["series", "images"])
def test_llvm_computes_transposed_convolutions_of_any_batch_or_none(shape):
    axes = len(shape) - 2
    inputs, constants = {"x": floats(*shape)}, {"w": floats(8, 6, *[4] * axes), "b": floats(6)}
    made = model("ConvTranspose", inputs, constants, strides=[2] * axes, pads=[1] * 2 * axes)
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    built = tt.build(tt.IRModule.from_onnx(made), "llvm")
    wanted = onnxruntime.InferenceSession(made.SerializeToString()).run(None, inputs)[0]
    np.testing.assert_allclose(built(inputs["x"]), wanted, rtol=1e-4, atol=1e-5)
    assert built(inputs["x"][:0]).shape == (0, *wanted.shape[1:])


def test_weights_that_read_padding_only_are_left_out_along_axes_of_known_size():
    from tvmtarget.backends.tvm.backend import _prepared

    inputs, constants = {"x": floats(1, 4, 4, 9)}, {"w": floats(6, 4, 3, 3)}
    made = model("Conv", inputs, constants, dilations=[12, 12], pads=[12] * 4)
    for axis in (0, 3):
        made.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"d{axis}"
    expanded = _prepared(shape_inference.infer_shapes(made))[0]
    (kernel,) = (tensor for tensor in expanded.graph.initializer if tensor.name == expanded.graph.node[0].input[1])
    assert list(kernel.dims) == [6, 4, 1, 3]
    wanted, found = (
        onnxruntime.InferenceSession(one.SerializeToString()).run(None, {one.graph.input[0].name: inputs["x"]})[0]
        for one in (made, expanded)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_infinite_weights_that_read_padding_stay():
    from tvmtarget.backends.tvm.backend import _prepared

    weights = floats(6, 4, 3)
    weights[0, 0, 0] = np.inf
    made = model("Conv", {"x": floats(1, 4, 2)}, {"w": weights}, dilations=[2], pads=[2, 2])
    (tensor,) = _prepared(shape_inference.infer_shapes(made))[0].graph.initializer
    assert list(tensor.dims) == [6, 4, 3]


# Normalizations by constants

NORM = {
    "g": floats(6),
    "c": floats(6),
    "m": floats(6),
    "v": np.abs(floats(6)) + np.float32(0.1),
    "w": floats(6, 4, 3, 3),
    "k": floats(6),
}
BY_CONSTANTS = {
    "behind a convolution": ("t = Conv(x, w, k) y = BatchNormalization(t, g, c, m, v)", ["Conv"]),
    "without a bias": ("t = Conv(x, w) y = BatchNormalization<epsilon=0.1>(t, g, c, m, v)", ["Conv"]),
    "behind another operator": (
        "t = Conv(x, w) r = Relu(t) y = BatchNormalization(r, g, c, m, v)",
        ["Conv", "Relu", "Mul", "Add"],
    ),
    "behind a result": ("y = Conv(x, w) z = BatchNormalization(y, g, c, m, v)", ["Conv", "Mul", "Add"]),
    "of a value with two readers": (
        "t = Conv(x, w) n = BatchNormalization(t, g, c, m, v) y = Add(t, n)",
        ["Conv", "Mul", "Add", "Add"],
    ),
    "of a parameter": (
        "s = Neg(g) t = Conv(x, w) y = BatchNormalization(t, s, c, m, v)",
        ["Neg", "Conv", "BatchNormalization"],
    ),
}


def normalized(body, shape="1,4,8,8"):
    results = ", ".join(f"float[n,6,h,u] {name}" for name in ("y", "z") if f"{name} = " in body)
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[{shape}] x) => ({results}) {{ {body} }}'
    made = parser.parse_model(text)
    made.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in NORM.items() if f"{name}," in body or f"{name})" in body
    )
    return shape_inference.infer_shapes(made)


@pytest.mark.parametrize(("body", "kinds"), BY_CONSTANTS.values(), ids=BY_CONSTANTS)
def test_normalizations_by_constants_are_products_and_sums_or_weights(body, kinds):
    from tvmtarget.backends.tvm.backend import _prepared

    made = normalized(body)
    graph = _prepared(made)[0].graph
    assert [node.op_type for node in graph.node] == kinds
    x = floats(1, 4, 8, 8)
    expected = tt.build(made, "onnxruntime").run({"x": x})
    for name, result in tt.build(made, "llvm").run({"x": x}).items():
        np.testing.assert_allclose(result, expected[name], rtol=1e-4, atol=1e-5)


def test_a_convolution_that_takes_a_normalization_keeps_no_other_weights():
    from tvmtarget.backends.tvm.backend import _prepared

    graph = _prepared(normalized("t = Conv(x, w, k) y = BatchNormalization(t, g, c, m, v)"))[0].graph
    shapes = [tuple(tensor.dims) for tensor in graph.initializer]
    assert shapes.count((6, 4, 3, 3)) == 1
    assert {name for node in graph.node for name in node.input} <= {"x", *(tensor.name for tensor in graph.initializer)}


def test_weights_that_a_body_reads_stay():
    from tvmtarget.backends.tvm.backend import _prepared

    one, other = (f"{name} () => (float[6,4,3,3] r) {{ r = {kind}(w) }}" for name, kind in (("a", "Neg"), ("b", "Abs")))
    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> f (float[1,4,8,8] x, bool p) => (float[1,6,6,6] y, float[6,4,3,3] i)'
        "{ t = Conv(x, w) y = BatchNormalization(t, g, c, m, v)"
        f" i = If(p) <then_branch = {one}, else_branch = {other}> }}"
    )
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in NORM.items() if name != "k")
    graph = _prepared(shape_inference.infer_shapes(made))[0].graph
    assert "w" in {tensor.name for tensor in graph.initializer}


@pytest.mark.parametrize("target", ["llvm", "openvino"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("count", [0, 1, 4])  # one scale, or one for each column
def test_quantization_of_com_microsoft_is_computed_by_its_definition(target, dtype, count):
    if target == "openvino":
        pytest.importorskip("openvino")
    info = np.iinfo(dtype)
    shape = (count,) if count else ()
    constants = {
        "s": RNG.uniform(0.001, 0.1, shape).astype("float32"),
        "z": RNG.integers(info.min // 2, info.max // 2, shape).astype(dtype),
    }
    if target == "openvino":  # it multiplies by the inverse, which is exact of these, so that halves stay halves
        constants["s"] = np.exp2(RNG.integers(-10, -3, shape)).astype("float32")
    attributes = {"axis": 2} if count else {}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], domain="com.microsoft", **attributes),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], domain="com.microsoft", **attributes),
    ]
    float32 = TensorProto.FLOAT
    ends = [helper.make_tensor_value_info(name, float32, ["n", 3, 4]) for name in ("x", "y")]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    q = helper.make_tensor_value_info("q", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), ["n", 3, 4])
    graph = helper.make_graph(nodes, "g", ends[:1], [ends[1], q], initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    exe, expected = tt.build(proto, target), tt.build(proto, "onnxruntime")
    for rows in (2, 5):
        x = floats(rows, 3, 4) * np.float32(20)
        x[0, 0] = constants["s"] * np.array([0.5, 1.5, 2.5, -0.5], "float32")  # halves are rounded to even
        found, wanted = exe.run({"x": x}), expected.run({"x": x})
        np.testing.assert_array_equal(found["q"], wanted["q"], strict=True)
        np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-5, atol=0.01 * constants["s"].min())


@pytest.mark.parametrize("leaf", ["llvm", "openvino"])
@pytest.mark.parametrize(("domain", "opset"), [("com.microsoft", 17), ("", 21)])
def test_weights_of_4_bits_are_dequantized_when_a_function_is_compiled(domain, opset, leaf):
    """ONNX Runtime's quantization writes these before version 21, in its own domain."""
    if leaf == "openvino":
        pytest.importorskip("openvino")
    values, scale = RNG.integers(-8, 8, (4, 3)), np.float32([0.5, 2, 1])
    weights = helper.make_tensor("w", TensorProto.INT4, values.shape, values.reshape(-1).tolist())
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], domain=domain, axis=1),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 4), ("y", 3)))
    graph = helper.make_graph(nodes, "four", [x], [y], [weights, numpy_helper.from_array(scale, "s")])
    opsets = [helper.make_opsetid(*one) for one in {("", opset), (domain, opset if not domain else 1)}]
    program = tt.build(helper.make_model(graph, opset_imports=opsets, ir_version=10), leaf)
    np.testing.assert_allclose(program(np.eye(4, dtype="float32")), values * scale)
