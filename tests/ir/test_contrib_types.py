"""Types of ONNX Runtime's own operators, compared with the values that it returns."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmtarget as tt
from tvmtarget.ir.function import Call, Value
from tvmtarget.ir.onnx.contrib_types import contrib_types
from tvmtarget.ir.types import TensorType

RANDOM = np.random.default_rng(0)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype("float32")


def octets(*shape):
    return RANDOM.integers(0, 9, shape).astype("uint8")


X, SCALE, ZERO = floats(2, 5, 16), np.float32(0.1), np.uint8(3)
# Operands of each operator by its name, results of which an operation of ONNX reads the first; attributes.
CASES = {
    "MatMulNBits": ([X, octets(8, 1, 8), floats(8)], {"K": 16, "N": 8, "bits": 4, "block_size": 16}),
    "Gelu": ([X], {}),
    "FastGelu": ([X, floats(16)], {}),
    "BiasGelu": ([X, floats(16)], {}),
    "CDist": ([floats(3, 5), floats(7, 5)], {"metric": "euclidean"}),
    "QuickGelu": ([X], {}),
    "SkipLayerNormalization": ([X, X, floats(16), floats(16)], {}),
    "SkipSimplifiedLayerNormalization": ([X, X, floats(16)], {}),
    "FusedMatMul": ([X, floats(2, 16, 7)], {"transA": 0}),
    "FusedMatMul transposed": ([X, floats(2, 7, 16)], {"transB": 1}),
    "Attention": ([X, floats(16, 24), floats(24)], {"num_heads": 2}),
    "MultiHeadAttention": ([X, floats(2, 7, 16), floats(2, 7, 8)], {"num_heads": 2}),
    "RotaryEmbedding": ([X, np.arange(5)[None].repeat(2, 0), floats(8, 4), floats(8, 4)], {"num_heads": 2}),
    "GroupQueryAttention": (
        [X, floats(2, 5, 8), floats(2, 5, 8), None, None, np.int32([4, 4]), np.int32(5)],
        {"num_heads": 2, "kv_num_heads": 1},
    ),
    "EmbedLayerNormalization": (
        [np.ones((2, 5), "int32"), None, floats(9, 16), floats(8, 16), None, floats(16), floats(16)],
        {},
    ),
    "DynamicQuantizeMatMul": ([X, octets(16, 6), SCALE, ZERO], {}),
    "MatMulIntegerToFloat": ([octets(2, 5, 16), octets(16, 6), SCALE, SCALE, ZERO, ZERO], {}),
    "QLinearAdd": ([octets(2, 1, 4), SCALE, ZERO, octets(3, 1), SCALE, ZERO, SCALE, ZERO], {}),
    "QLinearAveragePool": (
        [octets(2, 4, 7, 6), SCALE, ZERO, SCALE, ZERO],
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "count_include_pad": 1},
    ),
    "QLinearConcat": (
        [np.asarray(SCALE), np.asarray(ZERO), octets(2, 4), SCALE, ZERO, octets(2, 3), SCALE, ZERO],
        {"axis": 1},
    ),
    "QLinearGlobalAveragePool": ([octets(2, 4, 5, 6), SCALE, ZERO, SCALE, ZERO], {"channels_last": 0}),
    "QGemm": ([octets(5, 16), SCALE, ZERO, octets(6, 16), SCALE, ZERO, None, SCALE, ZERO], {"transB": 1}),
    "QGemm of floats": ([octets(5, 16), SCALE, ZERO, octets(16, 6), SCALE, ZERO], {}),
    "FusedConv": (
        [floats(1, 4, 9, 8), floats(6, 2, 3, 3), floats(6)],
        {"group": 2, "strides": [2, 1], "pads": [1, 0, 1, 2], "dilations": [1, 2], "activation": "Relu"},
    ),
    "QLinearSigmoid": ([octets(2, 4), SCALE, ZERO, SCALE, ZERO], {}),
    "QuantizeLinear": ([X, SCALE, ZERO], {}),
    "DequantizeLinear": ([octets(2, 4), SCALE, ZERO], {}),
}
COUNTS = {"GroupQueryAttention": 3, "EmbedLayerNormalization": 2}


def model(kind):
    """Return a model of one operator, whose first operand is an input and whose result is returned by Identity."""
    operands, attributes = CASES[kind]
    names = ["" if value is None else f"v{at}" for at, value in enumerate(operands)]
    outputs = [f"r{at}" for at in range(COUNTS.get(kind, 1))]
    node = helper.make_node(kind.split()[0], names, outputs, "node", domain="com.microsoft", **attributes)
    values = {name: value for name, value in zip(names, operands, strict=True) if name}
    first = helper.make_tensor_value_info("v0", helper.np_dtype_to_tensor_dtype(values["v0"].dtype), values["v0"].shape)
    graph = helper.make_graph(
        [node, helper.make_node("Identity", ["r0"], ["y"])],
        kind.replace(" ", "_"),
        [first],
        [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items() if name != "v0"],
    )
    graph.output[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(_run(graph, values["v0"]).dtype)
    return _model(graph), values["v0"]


def _model(graph):
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _run(graph, x):
    copy = _model(graph)
    del copy.graph.output[:]
    copy.graph.output.add(name="y")
    return onnxruntime.InferenceSession(copy.SerializeToString()).run(None, {"v0": x})[0]


@pytest.mark.parametrize("kind", CASES)
def test_the_type_is_that_of_the_value(kind):
    proto, x = model(kind)
    (value,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"v0": x})
    types = tt.IRModule.from_onnx(proto).main.types
    assert (types["r0"].dtype, types["r0"].shape) == (str(value.dtype), value.shape)
    assert types["y"].shape == value.shape


def test_a_size_reaches_what_such_operators_compute():
    proto, _ = model("MatMulNBits")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    module = tt.specialize(tt.IRModule.from_onnx(proto), {"batch": 3})
    assert [str(one.type) for call in module.main.body for one in call.outputs] == ["float32[3,5,8]"] * 2


def test_other_engines_take_what_is_computed_from_such_operators():
    proto, x = model("MatMulNBits")
    module = tt.IRModule.from_onnx(proto)
    exe = tt.build(module, "[ort=onnxruntime,cpu=numpy](host=@cpu)", where={"op:Identity": "@cpu"}, cache=False)
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"v0": x})[0]
    np.testing.assert_allclose(exe.run({"v0": x})["y"], expected, rtol=1e-5)


TREE = {
    "nodes_nodeids": [0, 1, 2],
    "nodes_treeids": [0, 0, 0],
    "nodes_featureids": [0, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_values": [0.0, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}
CLASSES = {f"class_{name}": [*values] for name, values in {"ids": (0, 1), "nodeids": (1, 2), "treeids": (0, 0)}.items()}
TARGETS = {
    f"target_{name}": [*values] for name, values in {"ids": (0, 1), "nodeids": (1, 2), "treeids": (0, 0)}.items()
}
ROWS = floats(3, 2)
CLASSICAL = {
    "TreeEnsembleClassifier": (
        [ROWS],
        {**TREE, **CLASSES, "class_weights": [1.0, 1.0], "classlabels_strings": ["a", "b"]},
    ),
    "TreeEnsembleRegressor": ([ROWS], {**TREE, **TARGETS, "target_weights": [1.0, 1.0], "n_targets": 2}),
    "LinearClassifier": ([ROWS], {"coefficients": [1.0] * 6, "intercepts": [0.0] * 3, "classlabels_ints": [0, 1, 2]}),
    "LinearRegressor": ([ROWS], {"coefficients": [1.0] * 4, "intercepts": [0.0] * 2, "targets": 2}),
    "Normalizer": ([ROWS], {"norm": "L2"}),
    "Scaler": ([ROWS.astype("int64")], {"offset": [0.0], "scale": [2.0]}),
    "Binarizer": ([ROWS], {"threshold": 0.5}),
    "Imputer": ([ROWS], {"imputed_value_floats": [1.0, 2.0], "replaced_value_float": 0.0}),
    "ArrayFeatureExtractor": ([ROWS, np.array([1, 0, 1])], {}),
    "OneHotEncoder": ([np.array([[0], [1], [0]])], {"cats_int64s": [0, 1, 2]}),
    "FeatureVectorizer": ([ROWS, ROWS], {"inputdimensions": [2, 2]}),
    "LabelEncoder": ([np.array([[0], [1]])], {"keys_int64s": [0, 1], "values_floats": [1.0, 2.0]}),
    "SVMClassifier": (
        [ROWS],
        {
            "coefficients": [1.0] * 12,
            "rho": [0.0] * 6,
            "vectors_per_class": [1] * 4,
            "support_vectors": [1.0] * 8,
            "kernel_type": "RBF",
            "kernel_params": [1.0, 0.0, 3.0],
            "classlabels_ints": [0, 1, 2, 3],
        },
    ),
}


@pytest.mark.parametrize("kind", CLASSICAL)
def test_results_of_classical_models_have_the_types_of_their_values(kind):
    operands, attributes = CLASSICAL[kind]
    names = [f"x{index}" for index in range(len(operands))]
    outputs = ["y", "z"] if "Classifier" in kind else ["y"]
    node = helper.make_node(kind, names, outputs, domain="ai.onnx.ml", name="op", **attributes)
    reads = [helper.make_node("Identity", [name], [f"{name}_read"]) for name in outputs]
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, operands, strict=True)
    ]
    is_text = "classlabels_strings" in attributes
    elem = (
        TensorProto.INT64
        if "Classifier" in kind and not is_text
        else TensorProto.STRING
        if is_text
        else TensorProto.FLOAT
    )
    results = [
        helper.make_tensor_value_info(f"{name}_read", elem if name == "y" else TensorProto.FLOAT, None)
        for name in outputs
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(
        helper.make_graph([node, *reads], kind, values, results), opset_imports=opsets, ir_version=8
    )
    types = tt.IRModule.from_onnx(model).main.types
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, value in zip(outputs, session.run(None, dict(zip(names, operands, strict=True))), strict=True):
        assert types[name].shape == value.shape
        assert types[name].dtype == ("string" if value.dtype == object else str(value.dtype))


@pytest.mark.parametrize(("dims", "inner"), [("2,4,3,3", (2, 4, 3, 3)), ("n,4,h,w", ("n", 4, "h", "w"))])
def test_a_group_normalization_keeps_the_shape(dims, inner):
    """ONNX (1.23) infers nothing for it."""
    nodes = "g = GroupNormalization<num_groups = 2>(x, s, s) y = Neg(g)"
    text = (
        f'<ir_version: 9, opset_import: ["": 21]> f (float[{dims}] x, float[4] s) => (float[a,b,c,d] y) {{ {nodes} }}'
    )
    module = tt.IRModule.from_onnx(onnx.parser.parse_model(text))
    assert module.main.types["g"].shape == inner
    x, s = floats(2, 4, 3, 3), floats(4)
    pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")
    np.testing.assert_allclose(tt.build(module, "llvm")(x, s), tt.build(module, "numpy")(x, s), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("dims", "attribute", "inner"),
    [
        ("b,n,1", "", ("b", None, 5, 2)),
        ("b,n,1", "<onesided = 0>", ("b", None, 8, 2)),
        ("3,20,1", "", (3, 7, 5, 2)),
    ],
)
def test_spectra_have_as_many_frequencies_as_engines_return(dims, attribute, inner):
    """ONNX (1.23) infers nothing where the length is symbolic, and ignores the default of `onesided`."""
    window = ", ".join(map(str, range(1, 9)))
    text = f"""<ir_version: 9, opset_import: ["": 17]> f (float[{dims}] x) => (float[a,b,c,d] y) <int64 step = {{2}},
        float[8] window = {{{window}}}> {{ s = STFT{attribute}(x, step, window) y = Mul(s, s) }}"""
    module = tt.IRModule.from_onnx(onnx.parser.parse_model(text))
    assert module.main.types["s"].shape == inner
    x = floats(3, 20, 1)
    pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")
    np.testing.assert_allclose(tt.build(module, "llvm")(x), tt.build(module, "numpy")(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "attrs", [{"pads": (1,)}, {"strides": (0, 0)}, {"strides": (2,)}, {"auto_pad": "VALID"}, {"ceil_mode": 1}]
)
def test_attributes_that_fit_no_windows_leave_sizes_open(attrs):
    image, scalar = TensorType("uint8", (1, 2, 5, 5)), TensorType("float32", ())
    call = Call("onnx.com.microsoft::QLinearAveragePool", ("x", "s"), (), (("kernel_shape", (3, 3)), *attrs.items()))
    assert contrib_types(call, [image, scalar]) == (TensorType("uint8", (1, 2, None, None)),)


@pytest.mark.parametrize(
    ("past", "attrs", "cached"),
    [
        (TensorType("int8", (2, 1, 3, 8)), {"k_quant_type": "PER_TENSOR"}, [TensorType("int8", (2, 1, None, 8))] * 2),
        (None, {"k_quant_type": "PER_TENSOR"}, []),
        (None, {}, [TensorType("float32", (2, 1, None, 8))] * 2),
    ],
)
def test_keys_and_values_so_far_are_of_the_type_of_the_past(past, attrs, cached):
    query, key = TensorType("float32", (2, 5, 16)), TensorType("float32", (2, 5, 8))
    call = Call(
        "onnx.com.microsoft::GroupQueryAttention",
        ("q", "k", "v", "p"),
        (Value("y", None), Value("keys", None), Value("values", None)),
        (("num_heads", 2), ("kv_num_heads", 1), *attrs.items()),
    )
    assert list(contrib_types(call, [query, key, key, past])) == [query, *cached]
