"""OpenVINO as a code generator: types, shapes and order of results, settings that it honours, and refusals."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from models import DIGITS, small
from onnx import NodeProto, TensorProto, helper, numpy_helper, parser

import tvmtarget as tt
from tvmtarget.backends.protocol import backend_named
from tvmtarget.errors import BackendError, InfeasibleError, MissingExtraError, RunError

pytest.importorskip("openvino", reason="pip install tvmtarget[openvino]")


IDENTITY = np.eye(3, dtype="float32")


def model(nodes, inputs, outputs, opset=18):
    """Return a model; inputs and outputs are (type, shape) by name."""
    ends = [
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
         for name, (dtype, shape) in values.items()]
        for values in (inputs, outputs)
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "g", *ends)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def relu(dtype="float32", shape=(2, 3)):
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="relu")]
    return model(nodes, {"x": (dtype, shape)}, {"y": (dtype, shape)})


def test_a_model_of_symbolic_batch_returns_what_onnxruntime_returns():
    pytest.importorskip("onnxruntime")
    exe, expected = tt.build(DIGITS, "openvino"), tt.build(DIGITS, "onnxruntime")
    for batch in (3, 1):
        x = np.random.default_rng(batch).random((batch, 1, 8, 8), "float32")
        np.testing.assert_allclose(exe(x), expected(x), rtol=1e-4, atol=1e-4)
    assert exe(np.zeros((0, 1, 8, 8), "float32")).shape == (0, 10)


def test_an_empty_batch_has_empty_results():
    """OpenVINO computes most operators otherwise than ONNX, or ends the process, where there are no elements."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n,3,h,8] x) => (float[p,2,q,4] y, bool[r,s] b)
        <int64[4] size = {2, 3, 3, 3}, float zero = {0}> { w = ConstantOfShape<value = float[1] {1}>(size)
        y = Conv<pads = [1,1,1,1], strides = [2,2]>(x, w)
        m = GlobalMaxPool(y) f = Flatten(m) t = Concat<axis=0>(f, f) b = Greater(t, zero) }"""
    proto = parser.parse_model(text)
    module = tt.IRModule.from_onnx(proto)
    exe, expected = tt.build(module, "openvino"), tt.build(module, "llvm")
    for batch in (2, 0, 1):
        x = np.ones((batch, 3, 6, 8), "float32")
        for found, wanted in zip(exe.run({"x": x}).values(), expected.run({"x": x}).values(), strict=True):
            np.testing.assert_array_equal(found, wanted, strict=True)
    with pytest.raises(RunError, match=r"^h of input 'x' of @\. is 0, and OpenVINO does not compute '\w+'"):
        exe(np.ones((2, 3, 0, 8), "float32"))


def test_a_run_may_detect_nothing():
    """As in detectors, where tables of boxes have no rows then."""
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        g (float[n,4] boxes, float least, float[9,4] base) => (float[9,4] y, float[m] w, float[4] z, int64[m] c)
        <int64[1] first = {0}, int64[1] second = {1}, int64[2] row = {1, 4}, int64 three = {3}> {
        s = ReduceMax<keepdims = 0>(boxes, second) k = Greater(s, least) found = NonZero(k) i = Squeeze(found, first)
        b = Gather(boxes, i) u = Unsqueeze(i, second) at = Expand(u, row) y = ScatterElements(base, at, b)
        p = Softmax(b) w = ReduceSum<keepdims = 0>(p, second) z = ReduceSum<keepdims = 0>(b, first)
        c = Mod(i, three) }""")
    program, expected = tt.build(proto, "openvino"), tt.build(proto, "numpy")
    boxes, base = np.random.default_rng(0).standard_normal((6, 4), "float32"), np.zeros((9, 4), "float32")
    for least, count in ((0, 6), (9, 6), (-9, 6), (0, 0), (0.9, 6)):
        given = {"boxes": boxes[:count], "least": np.float32(least), "base": base}
        for found, wanted in zip(program.run(given).values(), expected.run(given).values(), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6, strict=True)


@pytest.mark.filterwarnings("error::tvmtarget.errors.TvmTargetWarning")
def test_constants_of_float16_may_be_infinite():
    program = helper.make_node("Attention", ["x", "x", "x"], ["y"], is_causal=1)  # -inf is what later keys have
    x = np.random.default_rng(0).standard_normal((1, 1, 3, 4)).astype("float16")
    built = tt.build(model([program], {"x": ("float16", x.shape)}, {"y": ("float16", None)}, opset=23), "openvino")
    np.testing.assert_allclose(built.run({"x": x})["y"][0, 0, 0], x[0, 0, 0], rtol=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), ()])
def test_results_keep_their_type_and_shape(dtype, shape):
    nodes = [helper.make_node("Concat", ["r", "r"], ["y"], axis=0), helper.make_node("Reshape", ["x", "s"], ["r"])]
    constant = helper.make_node("Constant", [], ["s"], value_ints=[-1] if 0 not in shape else [0])
    program = model([constant, nodes[1], nodes[0]], {"x": (dtype, shape)}, {"y": (dtype, None)})
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    result = tt.build(program, "openvino")(x)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, np.concatenate([x.ravel(), x.ravel()]), strict=True)


def test_results_come_in_order_and_inputs_may_be_unused_or_returned():
    nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Identity", ["x"], ["same"])]
    ends = {name: ("float32", [3]) for name in ("n", "same")}
    program = model(nodes, {"unused": ("float32", [2]), "x": ("float32", [3])}, {"same": ends["same"], "n": ends["n"]})
    x = np.arange(3, dtype="float32")
    x.flags.writeable = False
    results = tt.build(program, "openvino").run({"unused": np.ones(2, "float32"), "x": x})
    assert list(results) == ["same", "n"]
    np.testing.assert_array_equal(results["same"], x)
    np.testing.assert_array_equal(results["n"], -x)


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8"])
@pytest.mark.parametrize("kind", ["Cast", "CastLike"])
def test_inputs_of_open_sizes_may_be_returned_in_the_type_that_they_have(kind, dtype):
    to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    if kind == "Cast":
        cast = helper.make_node("Cast", ["x"], ["y"], to=to)
    else:
        cast = helper.make_node("CastLike", ["x", "x"], ["y"])
    nodes = [cast, helper.make_node("Concat", ["y", "y"], ["z"], axis=0)]
    program = model(nodes, {"x": (dtype, ["n", 32])}, {"y": (dtype, ["n", 32]), "z": (dtype, ["m", 32])})
    exe = tt.build(program, "openvino")
    for rows in (22, 11, 30, 5, 40, 7, 100):
        x = np.random.default_rng(rows).integers(-9, 9, (rows, 32)).astype(dtype)
        results = exe.run({"x": x})
        np.testing.assert_array_equal(results["y"], x)
        np.testing.assert_array_equal(results["z"], np.concatenate([x, x]))


def test_threads_run_one_function_at_once():
    exe = tt.build(relu(shape=(200, 300)), "openvino(num-streams=2)")
    given = [np.full((200, 300), value, "float32") for value in range(-4, 12)]
    with ThreadPoolExecutor(4) as pool:
        for x, result in zip(given, pool.map(exe, given), strict=True):
            np.testing.assert_array_equal(result, np.maximum(x, 0))


def test_subgraphs_of_two_engines_compute_what_one_does():
    pytest.importorskip("onnxruntime")
    x = np.random.default_rng(0).random((2, 1, 8, 8), "float32")
    mixed = tt.build(DIGITS, "[a=openvino,b=onnxruntime]", where={"op:Relu": "@b"})
    assert mixed.report()["backends"] == ["onnxruntime", "openvino"]
    np.testing.assert_allclose(mixed(x), tt.build(DIGITS, "openvino")(x), rtol=1e-4, atol=1e-4)


def test_attributes_reach_the_compiled_model(tmp_path):
    exe = tt.build(relu(), tt.Target("openvino", {"inference-num-threads": 1, "cache-dir": str(tmp_path)}))
    (leaf,) = exe.code.values()
    assert leaf.compiled._compiled.get_property("INFERENCE_NUM_THREADS") == 1  # type: ignore[attr-defined]
    assert any(path.suffix == ".blob" for path in tmp_path.iterdir())
    assert set(leaf.backend.settings(tt.Target("openvino").resolve())) == {"inference-num-threads"}


@pytest.mark.parametrize(
    ("attrs", "text"),
    [
        ("device-name=CPU.7", "function 'main' of @.: OpenVINO finds no device 'CPU.7' here; it finds CPU"),
        ("inference-num-threads=1024", "inference-num-threads 1024 of @. cannot be honoured: OpenVINO uses"),
        ("cache-dir=/proc/none", "cache-dir '/proc/none' of @. cannot be written: No such file or directory; name an"),
        ('cache-dir="pyproject.toml"', "cache-dir 'pyproject.toml' of @. cannot be written: File exists; name another"),
    ],
)
def test_what_openvino_does_not_honour_is_one_line_with_the_place(attrs, text):
    with pytest.raises(BackendError) as raised:
        tt.build(relu(), f"openvino({attrs})")
    assert text in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_integers_beyond_32_bits_are_errors():
    program = model([helper.make_node("Identity", ["x"], ["y"])], {"x": ("int64", [2])}, {"y": ("int64", [2])})
    with pytest.raises(RunError, match=r"input 'x' of @\. holds 4294967296, and OpenVINO computes int64 in 32 bits"):
        tt.build(program, "openvino")(np.array([1, 2**32]))


@pytest.mark.parametrize(
    ("nodes", "x", "largest"),
    [
        ("y = Mod(x, two)", [2**24 + 2], 2**24 + 2),
        ("c = Add(x, two)  y = Div(c, two)", [2**24 - 1], 2**24 + 1),
        ("c = Neg(x)  y = ReduceL1(c)", [2**23, 2**23 + 1], 2**24 + 1),
        ("c = Add(x, two)  y = Pow(two, c)", [22], 2**24 + 1),
    ],
)
def test_integers_that_are_computed_in_floats_are_errors_where_these_round(nodes, x, largest):
    proto = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        g (int32[n] x) => (int32[m] y) <int32[1] two = {{2}}> {{ {nodes} }}""")
    with pytest.raises(RunError, match=rf"reaches {largest}, and OpenVINO computes int32 in float32; place its op"):
        tt.build(proto, "openvino")(np.array(x, "int32"))


def test_limits_and_remainders_of_integers_are_exact():
    ends = np.iinfo("int32")
    nodes = [helper.make_node("Clip", ["x", "least", "most"], ["y"]), helper.make_node("Mod", ["a", "b"], ["r"])]
    x = np.array([[ends.min, -(2**24) - 1, 2**24 + 1, ends.max]], "int32")
    a = np.array([1 - 2**24, 2**24 - 1, -6, 6, 7, -7, 0], "int32")
    b = np.array([2**23 + 5, -(2**23) - 5, 3, -3, -3, 3, -3], "int32")
    bounds = {"least": np.int32(-(2**24) - 3), "most": np.int32(2**24 + 3)}
    compared(nodes, {"x": x, "a": a, "b": b}, {"y": "int32", "r": "int32"}, **bounds)


@pytest.mark.parametrize(
    ("node", "dtype", "reason"),
    [
        (("Relu", ["x"]), "float64", "does not support float64|float64"),
        (("Add", ["x", "x"]), "uint8", "its Add of uint8 saturates"),
        (("Div", ["x", "x"]), "int32", "it computes Div of int32 in float32"),
        (("Equal", ["x", "x"]), "float32", "true of NaN"),
    ],
)
def test_what_it_would_compute_otherwise_is_refused_with_the_reason(node, dtype, reason):
    kind, inputs = node
    result = "bool" if kind == "Equal" else dtype
    program = model([helper.make_node(kind, inputs, ["y"], name="op")], {"x": (dtype, [2, 2])}, {"y": (result, [2, 2])})
    with pytest.raises(tt.errors.TvmTargetError, match=reason):
        tt.decompose(program, "openvino")


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingExtraError, match=r"tvmtarget\[openvino\]"):
        backend_named("openvino").version()
    with pytest.raises(BackendError, match=r"install it with: pip install 'tvmtarget\[openvino\]'"):
        tt.build(relu(), "openvino")


def test_texts_are_refused():
    node = helper.make_node("Identity", ["x"], ["y"])
    ends = [helper.make_tensor_value_info(name, TensorProto.STRING, [2]) for name in "xy"]
    program = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]), opset_imports=relu().opset_import)
    with pytest.raises(tt.errors.TvmTargetError, match="string"):
        tt.decompose(program, "openvino")


def test_integers_that_onnxruntime_computes_are_read():
    nodes = [helper.make_node("Cast", ["x"], ["y"], name="cast", to=TensorProto.FLOAT)]
    x = np.arange(3, dtype="longlong")  # with the other name of int64 on Linux
    found = tt.build(model(nodes, {"x": ("int64", [3])}, {"y": ("float32", [3])}), "openvino")(x)
    np.testing.assert_array_equal(found, x.astype("float32"))


@pytest.mark.parametrize(
    ("shape", "is_taken"), [(["n", "m", 5], False), (["m", 5], False), ([4, "m", 5], True), ([1, 2, 5], True)]
)
def test_weights_of_each_expert_are_not_broadcast_over_symbolic_rows(shape, is_taken):
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="experts")
    proto = model([node], {"x": ("float32", shape)}, {"y": ("float32", None)})
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((4, 5, 2), "float32"), "w"))
    module = tt.IRModule.from_onnx(proto)
    if is_taken:
        assert [
            subgraph.site for subgraph in tt.decompose(module, "[a=openvino,b=onnxruntime](host=llvm)").subgraphs
        ] == ["a"]
    else:
        with pytest.raises(tt.TvmTargetError, match="does not broadcast symbolic dimensions of 'x' over weights"):
            tt.decompose(module, "openvino")


def test_sums_of_products_of_bytes_do_not_saturate():
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["k"]),
        helper.make_node("Conv", ["d", "k"], ["y"]),
    ]
    quantized = model(nodes, {"x": ("float32", (1, 3, 8, 8))}, {"y": ("float32", None)})
    constants = {"s": np.float32(1), "z": np.int8(0), "w": np.full((16, 3, 3, 3), 127, "int8")}
    quantized.graph.initializer.extend(numpy_helper.from_array(np.array(one), name) for name, one in constants.items())
    result = tt.build(quantized, "openvino")(np.full((1, 3, 8, 8), 127, "float32"))
    np.testing.assert_array_equal(result, np.full((1, 16, 6, 6), 27 * 127 * 127, "float32"))


def test_products_with_dequantized_weights_are_those_of_floats():
    random = np.random.default_rng(0)
    weights = random.integers(0, 255, (64, 32), "uint8")
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"]),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    proto = model(nodes, {"x": ("float32", (8, 64))}, {"y": ("float32", (8, 32))})
    constants = {"s": np.float32(0.01), "z": np.uint8(128), "w": weights}
    proto.graph.initializer.extend(numpy_helper.from_array(np.array(one), name) for name, one in constants.items())
    x = random.standard_normal((8, 64), "float32")
    expected = x.astype("float64") @ ((weights - 128.0) * 0.01)
    np.testing.assert_allclose(tt.build(proto, "openvino")(x), expected, rtol=1e-5, atol=1e-5)


def compared(nodes, inputs, outputs, *, opset=18, domain="", **constants):
    """Check that a model of symbolic dimensions returns what ONNX Runtime returns."""
    onnxruntime = pytest.importorskip("onnxruntime")
    ends = {name: (x.dtype, [f"{name}{axis}" for axis in range(x.ndim)]) for name, x in inputs.items()}
    proto = model(nodes, ends, {name: (dtype, None) for name, dtype in outputs.items()}, opset)
    proto.opset_import.extend([helper.make_opsetid(domain, 1)] if domain else [])
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(one), name) for name, one in constants.items())
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    found = tt.build(proto, "openvino").run(inputs)
    for result, expected in zip(found.values(), session.run(None, inputs), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5, strict=True)


@pytest.mark.parametrize("kind", ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_are_compared_exactly(kind, dtype):
    ends = np.iinfo("int32")
    numbers = np.array([ends.min, ends.min + 1, -(2**24) - 1, -(2**24), -1, 0, 1, 2**24, 2**24 + 1, ends.max], dtype)
    a, b = np.meshgrid(numbers, numbers)
    node = helper.make_node(kind, ["a", "b"], ["y"])
    compared([node], {"a": a, "b": b}, {"y": "bool"})
    compared([node], {"a": a.ravel(), "b": b.ravel()}, {"y": "bool"})


@pytest.mark.parametrize("dims", ["n,m", "2,4"])
def test_integers_that_floats_do_not_hold_are_chosen_exactly(dims):
    """OpenVINO computes these operators in float32, some of them next to others only."""
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (int32[{dims}] x) => (int32[{dims}] r, int32[{dims}] p, int32[{dims}] w, int32[{dims}] t, int32[{dims}] c,
        int32[k] v)
        <int32 most = {{2147483647}}, int32[1] slope = {{3}}, int32 high = {{33554433}}, int64[1] all = {{-1}}> {{
        r = Relu(x) p = PRelu(x, slope) same = Equal(x, most) w = Where(same, most, x) t = Trilu(x)
        least = Min(x, high) c = Max(least, slope)
        flat = Reshape(x, all) largest = Equal(flat, most) v = Where(largest, most, flat) }}""")
    x = np.array([[2**24 + 1, -(2**24) - 1, 2**31 - 1, 0], [2**25 + 3, 5, -(2**29) - 1, 2**30 + 1]], "int32")
    found = tt.build(proto, "openvino").run({"x": x})
    right = {"r": np.maximum(x, 0), "p": np.where(x < 0, 3 * x, x), "w": x, "t": np.triu(x), "c": x.clip(3, 2**25 + 1)}
    right["v"] = x.ravel()
    for name, wanted in right.items():
        np.testing.assert_array_equal(found[name], wanted, name, strict=True)


def test_nan_is_neither_less_nor_greater_and_infinities_shrink():
    kinds = ("Greater", "GreaterOrEqual", "Less")
    nodes = [helper.make_node(kind, ["a", "b"], [kind]) for kind in kinds]
    nodes.append(helper.make_node("Shrink", ["a"], ["Shrink"], lambd=0.5, bias=0.25))
    a, b = np.array([np.nan, 1, np.nan, np.inf, -np.inf, 2, -3, 0.5], "float32"), np.ones(8, "float32")
    b[1] = np.nan
    compared(
        nodes, {"a": a, "b": b}, {**dict.fromkeys(("Greater", "GreaterOrEqual", "Less"), "bool"), "Shrink": "float32"}
    )


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_only_zero_is_false(dtype):
    numbers = [np.nan, np.inf, -np.inf, 1e-40, 0.0, -0.0] if dtype == "float32" else [-(2**31), 2**31 - 1, 0, -1]
    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BOOL)
    like = helper.make_node("CastLike", ["x", "truth"], ["z"])
    compared([cast, like], {"x": np.array(numbers, dtype)}, {"y": "bool", "z": "bool"}, truth=np.array(True))


@pytest.mark.parametrize("largest", [0, 1])
def test_of_equal_values_the_first_are_taken(largest):
    x = np.random.default_rng(0).integers(0, 4, (3, 50)).astype("float32")
    node = helper.make_node("TopK", ["x", "k"], ["values", "indices"], largest=largest)
    compared([node], {"x": x}, {"values": "float32", "indices": "int64"}, k=np.array([7]))


def compared_text(text):
    """Check that a model of static dimensions returns what ONNX Runtime returns."""
    onnxruntime = pytest.importorskip("onnxruntime")
    proto = parser.parse_model('<ir_version: 8, opset_import: ["": 18]>' + text)
    random = np.random.default_rng(0)
    shapes = {one.name: [dim.dim_value for dim in one.type.tensor_type.shape.dim] for one in proto.graph.input}
    inputs = {name: random.standard_normal(shape, "float32") for name, shape in shapes.items()}
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, inputs)
    for result, wanted in zip(tt.build(proto, "openvino").run(inputs).values(), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5, strict=True)


@pytest.mark.parametrize(("moved", "pads"), [("Relu(x)", "1, 1, 1, 1"), ("Relu(x) p = Pad(r, margins)", "1, 0, 0, 2")])
def test_convolutions_by_one_weight_for_each_channel_pad_before_strides(moved, pads):
    compared_text(f"""
        g (float[1, 2, 6, 7] x) => (float[1, 3, h, w] y)
        <float[3, 2, 1, 1] k = {{1, 2, 3, 4, 5, 6}}, int64[8] margins = {{0, 0, 1, 0, 0, 0, 0, 2}}>
        {{ r = {moved}  y = Conv <pads = [{pads}], strides = [2, 1]> ({"p" if "Pad" in moved else "r"}, k) }}""")


@pytest.mark.parametrize(
    ("shape", "kernel", "attributes"),
    [
        ("2, 1, 9, 6", "1, 1, 1, 1", "pads = [2, 0, 1, 2]"),
        ("2, 1, 8, 9, 3", "1, 1, 2, 1, 1", "dilations = [1, 2, 1]"),
        ("2, 1, 7, 8, 8", "1, 1, 3, 2, 2", "dilations = [1, 2, 1], pads = [2, 0, 2, 1, 1, 0]"),
    ],
)
def test_convolutions_of_one_channel_read_their_image_only(shape, kernel, attributes):
    numbers = ", ".join(map(str, range(1, 1 + math.prod(map(int, kernel.split(","))))))
    compared_text(f"""
        g (float[{shape}] x) => (float[{", ".join("abcde"[: shape.count(",") + 1])}] y)
        <float[{kernel}] w = {{{numbers}}}> {{ y = Conv <{attributes}> (x, w) }}""")


@pytest.mark.parametrize(
    "activation",
    [
        "y = Abs(p)",
        "s = Sigmoid(p) y = Mul(p, s)",
        "d = Div(p, q) e = Erf(d) o = Add(e, i) m = Mul(p, o) y = Mul(m, h)",
    ],
)
def test_activations_that_fall_follow_pools(activation):
    weights = ", ".join(map(str, np.random.default_rng(1).standard_normal(16)))
    compared_text(f"""
        g (float[1, 4, 12] x) => (float[1, 4, 6] y)
        <float[4, 4, 1] w = {{{weights}}}, float q = {{1.4142135}}, float i = {{1}}, float h = {{0.5}}>
        {{ c = Conv(x, w)  p = MaxPool <kernel_shape = [2], strides = [2]> (c)  {activation} }}""")


@pytest.mark.parametrize("reduced", ["ReduceMean(x, axes)", "GlobalMaxPool(x)"])
def test_values_reduced_by_rows_are_scaled_by_channel(reduced):
    compared_text(f"""
        g (float[3, 5, 4] x) => (float[3, 5, 1] y) <int64[1] axes = {{2}}, float[5, 1] scale = {{1, 2, 3, 4, 5}}>
        {{ r = {reduced}  y = Mul(r, scale) }}""")


def test_attention_over_no_keys_is_an_error():
    """OpenVINO returns the results of the run before."""
    names = {"q": "s", "k": "t", "v": "t"}
    node = helper.make_node("Attention", [*names], ["y"])
    ends = {name: ("float32", ["b", 2, length, 8]) for name, length in names.items()}
    program = tt.build(model([node], ends, {"y": ("float32", None)}, opset=23), "openvino")

    def given(queries, keys):
        return {name: np.ones((1, 2, queries if name == "q" else keys, 8), "float32") for name in names}

    assert program.run(given(3, 4))["y"].all()
    with pytest.raises(RunError, match=r"t of input 'k' of @\. is 0"):
        program.run(given(3, 0))
    assert program.run(given(0, 4))["y"].shape == (1, 2, 0, 8)


@pytest.mark.parametrize("pool", ["AveragePool<count_include_pad = 1,", "MaxPool<"])
def test_the_last_windows_may_end_beyond_the_image(pool):
    compared_text(f"""
        g (float[1, 2, 7, 6] x) => (float[1, 2, 4, 3] y)
        {{ y = {pool} kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(x) }}""")


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_ranges_away_from_their_ends_are_empty(dtype):
    kind = dtype.removesuffix("32")
    proto = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        g ({kind} first, {kind} last, {kind} step) => ({kind}[n] y) {{ y = Range(first, last, step) }}""")
    program = tt.build(proto, "openvino")
    for first, last, step in [(3, 1, 1), (1, 3, -1), (-1, -4, 2), (0, 5, 2), (5, 0, -2), (0, 0, 1)]:
        given = {"first": first, "last": last, "step": step}
        found = program.run({name: np.array(one, dtype) for name, one in given.items()})["y"]
        np.testing.assert_array_equal(found, np.arange(first, last, step).astype(dtype))


@pytest.mark.parametrize("other", ["Add(w, c)", "Tanh(c)"])
def test_an_absolute_value_leaves_the_concatenation_that_it_reads(other):
    compared_text(f"""
        g (float[2] a, float[3] b, float[5] w) => (float[5] y, float[5] z)
        {{ c = Concat<axis = 0>(a, b)  y = Abs(c)  z = {other} }}""")


def test_grids_of_one_aligned_element_are_refused():
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 20]>
        g (float[2, 2, 3] x) => (float[2, 5, 1, 2] y) <int64[4] sizes = {2, 3, 5, 1}>
        { y = AffineGrid <align_corners = 1> (x, sizes) }""")
    for leaf in ("openvino", "llvm"):
        with pytest.raises(InfeasibleError, match="aligns corners of 2 or more elements only"):
            tt.decompose(tt.IRModule.from_onnx(proto), leaf)


@pytest.mark.parametrize("call", ["y = Split<num_outputs = 0>(x)", "y = Resize<axes = [7]>(x, , one)"])
def test_attributes_that_do_not_fit_their_operands_are_left_to_the_compiler(call):
    """Rules of operator support failed on them, which was reported as a defect of the strategy."""
    proto = parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 19]> g (float[1, 1, 5, 5] x) => (float[a, b, c, d] y)
        <float[1] one = {{2}}> {{ {call} }}""")
    with pytest.raises((BackendError, InfeasibleError), match=r"Split|Resize"):
        tt.build(proto, "openvino")


@pytest.mark.parametrize("scale", [0.29, 2.0])
def test_sizes_that_openvino_rounds_up_are_refused_in_the_run(scale):
    proto = parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 19]> g (float[1, 1, n] x) => (float[1, 1, m] y)
        <float[3] scales = {{1, 1, {scale}}}> {{ y = Resize<mode = "nearest">(x, , scales) }}""")
    exe = tt.build(proto, "openvino")
    assert exe(np.ones((1, 1, 7), "float32")).shape == (1, 1, int(7 * scale))
    size = 10031 if scale == 0.29 else 1000003
    with pytest.raises(RunError, match=rf"n of @\. is {size}, and OpenVINO rounds {size} \* {scale} up in 'Resize_\d'"):
        exe(np.ones((1, 1, size), "float32"))


def test_parts_of_a_value_are_convolved_with_strides():
    compared_text("""
        g (float[1, 4, 5, 5] x) => (float[1, 1, 3, 3] y) <float[1, 2, 1, 1] w = {1, 2}>
        { a, b = Split <axis = 1, num_outputs = 2> (x)  c = Mul(a, b)  y = Conv <strides = [2, 2]> (c, w) }""")


def test_strides_stay_behind_convolutions_that_pad():
    compared_text("""
        g (float[2, 1, 4] x) => (float[2, 3, 4] y)
        <float[3, 1, 1] v = {1, 2, 3}, float[3, 3, 1] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}>
        { p = Conv <pads = [2, 2]> (x, v)  y = Conv <strides = [2]> (p, w) }""")


def test_rows_of_a_reduction_are_convolved():
    compared_text("""
        g (float[1, 8, 4] x) => (float[1, 2, 2] y, float[1, 1, 4] r)
        <int64[1] axes = {1}, float[2, 1, 2] w = {1, 2, 3, 4}>
        { r = ReduceMean(x, axes)  y = Conv <strides = [2]> (r, w) }""")


def test_dimensions_of_one_element_keep_their_places_where_others_are_reduced():
    compared_text("""
        g (float[1, 2, 9, 8] x) => (float[9, 1] y) <int64[2] axes = {0, 3}>
        { t = Transpose <perm = [3, 2, 0, 1]> (x)  y = ReduceL2 <keepdims = 0> (t, axes) }""")


@pytest.mark.parametrize("x", [np.zeros((2, 3)), -np.ones((2, 2)), np.linspace(-1, 3, 20).reshape(4, 5)])
def test_quantization_by_the_range_of_values_is_that_of_onnxruntime(x):
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])
    compared([node], {"x": x.astype("float32")}, {"y": "uint8", "s": "float32", "z": "uint8"}, opset=11)


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("x", [np.array(1.3, "float32"), np.float32([1.3, 3])])
def test_scalars_stay_scalars_where_they_are_dequantized(shape, x):
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    scale, zero = np.full(shape, 0.5, "float32"), np.full(shape, 3, "uint8")
    compared(nodes, {"x": x}, {"y": "float32"}, opset=17, s=scale, z=zero)


@pytest.mark.parametrize("zero", [np.uint16(300), np.int16([-4, 5, 9])])
def test_values_are_quantized_to_16_bits(zero):
    x = np.linspace(0, 0.9, 24, dtype="float32").reshape(2, 3, 4)
    scale = np.full(zero.shape, 0.003, "float32")
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
    compared([node], {"x": x}, {"y": zero.dtype}, opset=21, s=scale, z=zero)


def test_weights_of_quantized_convolutions_have_a_scale_for_each_channel():
    draw = np.random.default_rng(0)
    constants = {
        "w": draw.integers(-60, 60, (4, 3, 3, 3)).astype("int8"), "ws": np.float32([0.01, 0.02, 0.03, 0.04]),
        "wz": np.zeros(4, "int8"), "b": np.int32([0, 100, 2000, -3000]), "xs": np.float32(0.02), "xz": np.uint8(3),
        "ys": np.float32(0.5), "yz": np.uint8(100),
    }  # fmt: skip
    node = helper.make_node("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], ["y"])
    compared([node], {"x": draw.integers(0, 255, (2, 3, 9, 9)).astype("uint8")}, {"y": "uint8"}, **constants)


@pytest.mark.parametrize("attributes", [{}, {"axis": 1}])
def test_values_of_any_shape_are_selected_by_a_condition(attributes):
    inputs = {"x": np.arange(12, dtype="float32").reshape(3, 4), "c": np.array([True, False, True])}
    compared([helper.make_node("Compress", ["x", "c"], ["y"], **attributes)], inputs, {"y": "float32"})


@pytest.mark.parametrize(("mode", "absent"), [("nearest", ""), ("linear", "nothing")])
def test_sizes_of_images_may_be_computed(mode, absent):
    """PyTorch passes a constant without elements as region, and as scales, before version 13."""
    nodes = [
        helper.make_node("Shape", ["like"], ["sizes"]),
        helper.make_node("Resize", ["x", absent, absent, "sizes"], ["y"], mode=mode),
    ]
    constants = {absent: np.zeros(0, "float32")} if absent else {}
    x = np.random.default_rng(0).random((1, 3, 8, 9), "float32")
    for size in ((5, 4), (16, 18)):
        compared(nodes, {"x": x, "like": np.zeros((1, 3, *size), "float32")}, {"y": "float32"}, **constants)


def test_computed_sizes_that_keep_channels_are_those_of_cubic_images():
    text = """<ir_version: 9, opset_import: ["": 19]> g (float[n,c,h,w] x, int64[2] size) => (float[n,c,p,q] y) {
        own = Shape<start = 0, end = 2>(x) s = Concat<axis = 0>(own, size) y = Resize<mode = "cubic">(x, , , s) }"""
    module = tt.IRModule.from_onnx(parser.parse_model(text))
    given = {"x": np.random.default_rng(0).random((2, 3, 8, 9), "float32"), "size": np.array([5, 14])}
    found, expected = (tt.build(module, kind).run(given)["y"] for kind in ("openvino", "numpy"))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("dims", "given", "attributes", "axis"),
    [
        ("1,12,10,3", (1, 9, 7, 3), 'mode = "cubic"', 1),
        ("n,h,w,3", (1, 20, 17, 3), 'mode = "cubic"', 0),
        ("n,3,h,w", (1, 1, 2.0, 2.0), 'mode = "cubic"', None),
        ("1,12,10,8", (9, 7), 'mode = "cubic", axes = [1, 2]', None),
        ("12,10,3", (9, 7, 3), 'mode = "cubic"', 0),
        ("3,12,10", (3, 9, 7), 'mode = "cubic"', None),
        ("1,12,10,3", (1, 9, 7, 3), 'mode = "linear"', None),
        ("n,3,h,w", (3, 3, 9, 7), 'mode = "linear"', 0),
        ("n,3,h,w", (3, 3, 9, 7), 'mode = "nearest"', 0),
        ("1,c,d,h,w", (1, 4, 3, 9, 7), 'mode = "linear"', 1),
        ("1,c,3,h,w", (3, 9, 7), 'mode = "linear", axes = [2, 3, 4]', None),
    ],
)
def test_dimensions_that_openvino_resizes_to_what_was_in_memory_are_refused(dims, given, attributes, axis):
    kind, operands = ("int64", "x, , , s") if all(isinstance(one, int) for one in given) else ("float", "x, , s")
    results = ",".join("pqrst"[: dims.count(",") + 1])
    text = f"""<ir_version: 9, opset_import: ["": 19]> g (float[{dims}] x) => (float[{results}] y)
        <{kind}[{len(given)}] s = {{{", ".join(map(str, given))}}}> {{ y = Resize<{attributes}>({operands}) }}"""
    module = tt.IRModule.from_onnx(parser.parse_model(text))
    if axis is not None:
        with pytest.raises(
            InfeasibleError, match=rf"it has no \w+ Resize of dimension {axis} of {dims.count(',') + 1}"
        ):
            tt.decompose(module, "openvino")
        return
    shape = [int(dim) if dim.isdigit() else {"n": 2, "h": 12, "w": 10}.get(dim, 4) for dim in dims.split(",")]
    x = np.random.default_rng(0).random(shape).astype("float32")
    np.testing.assert_allclose(tt.build(module, "openvino")(x), tt.build(module, "numpy")(x), atol=1e-5)


@pytest.mark.parametrize("dims", ["n,4,4,3", "2,4,h,w", "2,4,4,3"])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_transposed_convolutions_are_not_padded_automatically_where_dimensions_are_symbolic(dims, mode):
    """OpenVINO returned an image of (9, 7) instead of (8, 6)."""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[{dims}] x) => (float[p,q,r,s] y)
        <int64[4] size = {{4, 2, 3, 3}}> {{ w = ConstantOfShape<value = float[1] {{1}}>(size)
        y = ConvTranspose<auto_pad = "{mode}", strides = [2, 2]>(x, w) }}"""
    module = tt.IRModule.from_onnx(parser.parse_model(text))
    if mode != "VALID" and dims != "2,4,4,3":
        with pytest.raises(InfeasibleError, match=f"it ignores auto_pad='{mode}' of a ConvTranspose of symbolic dim"):
            tt.decompose(module, "openvino")
    else:
        x = np.random.default_rng(0).random((2, 4, 4, 3), "float32")
        np.testing.assert_allclose(tt.build(module, "openvino")(x), tt.build(module, "numpy")(x), rtol=1e-5)


@pytest.mark.parametrize(
    ("dims", "scales", "reason"),
    [
        ("1,3,12,10", "1, 1, 1.05, 2", "it ignores a scale of 1.05 where it leaves a size as it is"),
        ("1,3,h,w", "1, 1, 2, 1.25", "it ignores a scale of 1.25 where it leaves a size as it is"),
        ("1,2,3,4,5,6", "1, 1, 1, 1, 2, 2", "it supports Resize of at most 5 dimensions"),
    ],
)
def test_scales_that_openvino_does_not_honour_are_refused(dims, scales, reason):
    rank = dims.count(",") + 1
    text = f"""<ir_version: 9, opset_import: ["": 19]> g (float[{dims}] x) => (float[{",".join("pqrstu"[:rank])}] y)
        <float[{rank}] s = {{{scales}}}> {{ y = Resize<mode = "linear">(x, , s) }}"""
    with pytest.raises(InfeasibleError, match=reason):
        tt.decompose(tt.IRModule.from_onnx(parser.parse_model(text)), "openvino")


@pytest.mark.parametrize(
    ("kind", "operands", "attributes"),
    [
        ("BiasGelu", ["x", "v"], {}),
        ("FastGelu", ["x", "v"], {}),
        ("FusedMatMul", ["x", "x"], {"transB": 1, "alpha": 0.5}),
        ("QuickGelu", ["x"], {"alpha": 1.5}),
        ("SkipLayerNormalization", ["x", "x", "v", "v"], {"epsilon": 1e-5}),
    ],
)
def test_operators_that_onnxruntime_fuses_are_computed(kind, operands, attributes):
    node = helper.make_node(kind, operands, ["y"], domain="com.microsoft", **attributes)
    x = np.random.default_rng(0).standard_normal((2, 3, 8), "float32")
    compared([node], {"x": x}, {"y": "float32"}, domain="com.microsoft", **({"v": x[0, 0]} if "v" in operands else {}))


@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearMul"])
def test_quantized_operands_are_broadcast(kind):
    node = helper.make_node(kind, ["a", "s", "z", "b", "s", "z", "t", "z"], ["y"], domain="com.microsoft")
    draw = np.random.default_rng(0)
    a, b = (draw.integers(0, 255, shape).astype("uint8") for shape in ((2, 3, 4), (1, 3, 4)))
    constants = {"s": np.float32(0.02), "z": np.uint8(100), "t": np.float32(0.05)}
    compared([node], {"a": a, "b": b}, {"y": "uint8"}, domain="com.microsoft", **constants)


@pytest.mark.parametrize(
    ("kind", "operands", "attributes"),
    [
        ("ReduceSum", {"axes": np.array([2, 3])}, {}),
        ("ReduceMean", {"axes": np.array([1])}, {}),
        ("AveragePool", {}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        ("Relu", {}, {}),
    ],
)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_operators_between_quantized_values_are_those_of_onnx(kind, operands, attributes, dtype):
    pytest.importorskip("onnxruntime")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node(kind, ["d", *operands], ["y"], **attributes),
    ]
    program = model(nodes, {"x": ("float32", (2, 8, 6, 6))}, {"y": ("float32", None)})
    constants = {"scale": np.float32(0.0224), "zero": np.array(121 if dtype == "uint8" else -7, dtype), **operands}
    program.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    x = np.random.default_rng(0).normal(size=(2, 8, 6, 6)).astype("float32")
    np.testing.assert_allclose(tt.build(program, "openvino")(x), tt.build(program, "onnxruntime")(x), atol=1e-4)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_halves_are_quantized_to_even_before_the_zero_point_is_added(dtype):
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("Sigmoid", ["d"], ["s"]),  # has no low-precision form
        helper.make_node("Mul", ["d", "s"], ["y"]),
    ]
    ends = {"d": ("float32", ["n"]), "y": ("float32", ["n"])}
    program = model(nodes, {"x": ("float32", ["n"])}, ends)
    constants = {"scale": np.float32(1), "zero": np.array(3, dtype)}
    program.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    x = np.arange(-140, 270, dtype="float32") + np.float32(0.5)
    info = np.iinfo(dtype)
    expected = np.clip(np.rint(x) + 3, info.min, info.max) - 3
    np.testing.assert_array_equal(tt.build(program, "openvino").run({"x": x})["d"], expected)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_of_old_versions_runs_over_all_dimensions_from_an_axis_on(axis: int) -> None:
    node = helper.make_node("Softmax", ["x"], ["y"], axis=axis)
    module = tt.IRModule.from_onnx(small(node, shape=(2, 3, 4), opset=11))
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    np.testing.assert_allclose(tt.build(module, "openvino")(x), tt.build(module, "onnxruntime")(x), rtol=1e-5)


@pytest.mark.parametrize("kind", ["ReduceL1", "ReduceLogSum", "ReduceLogSumExp", "ReduceL2", "ReduceMean"])
@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("attributes", [{}, {"axes": [1]}, {"axes": [0, -1], "keepdims": 0}])
def test_reductions_read_axes_that_are_an_attribute(kind, opset, attributes):
    x = np.random.default_rng(0).uniform(1, 3, (2, 3, 4)).astype("float32")
    compared([helper.make_node(kind, ["x"], ["y"], **attributes)], {"x": x}, {"y": "float32"}, opset=opset)


@pytest.mark.parametrize("attributes", [{}, {"sampling_ratio": 2}])
def test_the_number_of_samples_of_a_region_follows_from_its_size_by_default(attributes):
    x, boxes = np.random.default_rng(0).normal(size=(1, 2, 6, 6)).astype("float32"), np.float32([[0, 0, 4, 3]])
    node = helper.make_node("RoiAlign", ["x", "b", "i"], ["y"], output_height=2, output_width=2, **attributes)
    program = small(node, shape=x.shape, opset=16, b=boxes, i=np.array([0]))
    module = tt.IRModule.from_onnx(program)
    np.testing.assert_allclose(
        tt.build(module, "openvino")(x), tt.build(module, "onnxruntime")(x), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("shape", [(1, 2, "h", 4), ("n", 2, 3, 4)])
def test_norms_of_images_have_symbolic_dimensions(shape):
    node = helper.make_node("GlobalLpPool", ["x"], ["y"])
    x = np.random.default_rng(0).normal(size=(1, 2, 3, 4)).astype("float32")
    module = tt.IRModule.from_onnx(small(node, shape=shape, opset=18))
    np.testing.assert_allclose(tt.build(module, "openvino")(x), np.sqrt((x**2).sum((2, 3), keepdims=True)), rtol=1e-5)


def test_an_lstm_with_coupled_gates_is_refused():
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=1, input_forget=1)
    weights = {"w": np.ones((1, 4, 2), "float32"), "r": np.ones((1, 4, 1), "float32")}
    with pytest.raises(InfeasibleError, match="input_forget=1"):
        tt.decompose(tt.IRModule.from_onnx(small(node, shape=(3, 1, 2), opset=14, **weights)), "openvino")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("attributes", [{}, {"keepdims": 0}, {"noop_with_empty_axes": 1}])
@pytest.mark.parametrize("axes", [None, [0, -1]])
def test_integers_are_added_exactly(dtype, attributes, axes):
    x = np.random.default_rng(0).integers(-(2**26), 2**26, (2, 3, 4)).astype(dtype)
    node = helper.make_node("ReduceSum", ["x", "axes"] if axes else ["x"], ["y"], **attributes)
    compared([node], {"x": x}, {"y": dtype}, **({"axes": np.array(axes)} if axes else {}))


def test_quotients_of_static_sizes_are_cut_off():
    compared_text("g (float[4, 1] x) => (int64[2] y) <int64[1] by = {-2}> { s = Shape(x) y = Div(s, by) }")


def test_scalars_are_repeated():
    node = helper.make_node("Tile", ["x", "repeats"], ["y"])
    compared([node], {"x": np.array(2, "float32")}, {"y": "float32"}, repeats=np.zeros(0, "int64"))


@pytest.mark.parametrize(("shape", "is_taken"), [(("n", 3, "m"), True), (("n", 1, "m", 2), False)])
def test_computed_numbers_of_repeats(shape, is_taken):
    program = small(helper.make_node("Tile", ["x", "r"], ["y"]), shape=shape, opset=13)
    program.graph.input.append(helper.make_tensor_value_info("r", TensorProto.INT64, (len(shape),)))
    if not is_taken:
        with pytest.raises(InfeasibleError, match="the repeats 'r' of more than three dimensions are computed"):
            tt.decompose(program, "openvino")
        return
    x, repeats = np.arange(12, dtype="float32").reshape(2, 3, 2), np.array([2, 1, 3])
    np.testing.assert_array_equal(tt.build(program, "openvino").run({"x": x, "r": repeats})["y"], np.tile(x, repeats))


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (
            helper.make_node(
                "AveragePool", ["x"], ["y"], kernel_shape=[3], pads=[0, 1], ceil_mode=1, count_include_pad=1
            ),
            "ceil_mode=1 and count_include_pad=1",
        ),
        (helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2], strides=[3], ceil_mode=1), "begin in padding"),
        (
            helper.make_node("LpPool", ["x"], ["y"], kernel_shape=[8], strides=[3], ceil_mode=1),
            "needs padded images as large as",
        ),
        (helper.make_node("ReduceMax", ["x", "axis"], ["y"]), "the axes 'axis' of ReduceMax are a scalar; make them a"),
        (helper.make_node("Compress", ["x", "none"], ["y"], axis=2), "no Compress that keeps nothing, as 'none' does"),
    ],
)
def test_what_openvino_computes_otherwise_is_refused(node: NodeProto, reason: str) -> None:
    module = tt.IRModule.from_onnx(small(node, shape=(1, 2, 6), opset=18, none=np.zeros(6, bool), axis=np.array(1)))
    with pytest.raises(InfeasibleError, match=reason):
        tt.decompose(module, "openvino", fold_constants=False)


@pytest.mark.parametrize("kind", ["AveragePool", "LpPool", "MaxPool"])
def test_a_dilated_window_of_symbolic_sizes_has_at_most_64_elements(kind):
    fits, exceeds = (
        small(helper.make_node(kind, ["x"], ["y"], kernel_shape=[3], dilations=[gap]), shape=(1, 1, "n"), opset=19)
        for gap in (31, 32)
    )
    assert tt.build(fits, "openvino").run({"x": np.ones((1, 1, 70), "float32")})["y"].shape == (1, 1, 8)
    with pytest.raises(InfeasibleError, match=f"it compiles a dilated {kind} of symbolic sizes for 64 elements"):
        tt.decompose(tt.IRModule.from_onnx(exceeds), "openvino")


def test_an_operation_that_openvino_computes_otherwise_is_replaced_by_its_definition() -> None:
    node = helper.make_node("ReduceLogSum", ["x"], ["y"], noop_with_empty_axes=1)
    x = np.float32([1, 2, 5])
    np.testing.assert_allclose(tt.build(small(node, shape=(3,), opset=18), "openvino")(x), np.log(x), rtol=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_extremes_of_infinities_are_infinite(sign):
    kind = "ReduceMax" if sign > 0 else "ReduceMin"
    program = small(helper.make_node(kind, ["x", "axes"], ["y"], keepdims=0), shape=("n", 3), opset=18, axes=[1])
    x = sign * np.float32([[-np.inf, -np.inf, -np.inf], [-np.inf, 1e-30, -2], [3e38, 0, 1], [np.inf, -np.inf, 0]])
    expected = sign * np.float32([-np.inf, 1e-30, 3e38, np.inf])
    np.testing.assert_array_equal(tt.build(program, "openvino")(x), expected)


def test_attention_has_symbolic_batches_and_lengths_but_not_numbers_of_heads():
    def attention(heads):
        shapes = {"q": ("b", 4, "s", 8), "k": ("b", heads, "t", 8), "v": ("b", heads, "t", 8)}
        node = helper.make_node("Attention", [*shapes], ["y"], name="attention")
        inputs = {name: ("float32", shape) for name, shape in shapes.items()}
        return model([node], inputs, {"y": ("float32", ("b", 4, "s", 8))}, opset=23)

    executable = tt.build(attention(2), "openvino")
    random = np.random.default_rng(0)
    for b, s, t in ((2, 3, 5), (1, 1, 7)):
        q, k, v = (random.standard_normal((b, *size, 8)).astype("float32") for size in ((4, s), (2, t), (2, t)))
        weights = np.exp(q @ k.repeat(2, 1).swapaxes(2, 3) / np.sqrt(8))
        expected = weights / weights.sum(-1, keepdims=True) @ v.repeat(2, 1)
        np.testing.assert_allclose(executable(q, k, v), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(InfeasibleError, match="symbolic numbers of heads"):
        tt.decompose(attention("h"), "openvino", fold_constants=False)


def test_what_is_added_to_a_computed_constant_is_added_once():
    nodes = [
        helper.make_node("Conv", ["image", "kernel", "x"], ["y"]),
        helper.make_node("Cast", ["bytes"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["numbers", "factor"], ["weights"]),
        helper.make_node("MatMul", ["x", "weights"], ["z"]),
    ]
    inputs = {"x": ("float32", [3]), "factor": ("float32", [3, 1])}
    program = model(nodes, inputs, {"y": ("float32", None), "z": ("float32", None)})
    constants = {
        "image": np.ones((1, 1, 2, 2), "float32"), "kernel": np.float32([1, 2, 3]).reshape(3, 1, 1, 1),
        "bytes": np.arange(6, dtype="int8").reshape(3, 2) ,
    }  # fmt: skip
    program.graph.value_info.append(helper.make_tensor_value_info("weights", TensorProto.FLOAT, (3, 2)))
    program.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    exe, x = tt.build(tt.decompose(program, "openvino", fold_constants=False)), np.float32([2, 3, 4])
    for _ in range(3):
        found = exe.run({"x": x, "factor": x[:, None]})
        np.testing.assert_array_equal(found["y"][0, :, 0, 0], [3, 5, 7])
        np.testing.assert_array_equal(found["z"], x**2 @ constants["bytes"])


@pytest.mark.parametrize("kind", ["LRN", "LSTM"])
def test_products_of_computed_constants_read_them_as_they_were_transposed(kind):
    random = np.random.default_rng(0)
    shapes = {"c": (2, 4, 3), "w": (1, 12, 3), "r": (1, 12, 3)} if kind == "LSTM" else {"c": (2, 4, 3, 3)}
    constants = {name: random.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    constants |= {name: random.standard_normal((3, 3)).astype("float32") for name in ("first", "second")}
    settings = {"hidden_size": 3} if kind == "LSTM" else {"size": 3}
    nodes = [
        helper.make_node(kind, list(shapes), ["s"], **settings),
        helper.make_node("Transpose", ["s"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("MatMul", ["t", "first"], ["u"]),
        helper.make_node("Transpose", ["u"], ["v"], perm=[0, 2, 1, 3]),
        helper.make_node("MatMul", ["v", "second"], ["w2"]),
        helper.make_node("Add", ["w2", "x"], ["y"]),
    ]
    program = model(nodes, {"x": ("float32", ["n"])}, {"y": ("float32", None), "u": ("float32", None)})
    program.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    inputs = {"x": np.ones(3, "float32")}
    expected = tt.build(program, "onnxruntime").run(inputs)
    found = tt.build(program, "openvino").run(inputs)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["Floor", "Round", "Ceil"])
def test_exact_quotients_are_rounded(kind):
    a, b = (one.ravel().astype("float32") for one in np.meshgrid(np.arange(1, 60), np.arange(1, 60)))
    nodes = [helper.make_node("Div", ["a", "b"], ["q"]), helper.make_node(kind, ["q"], ["y"])]
    compared(nodes, {"a": a * b, "b": b}, {"y": "float32"})


def test_inverses_behind_reductions_are_not_lost():
    nodes = [helper.make_node("LayerNormalization", ["x", "w"], ["y", "mean", "inverse"], axis=1)]
    x = np.random.default_rng(0).normal(size=(2, 8)).astype("float32")
    compared(nodes, {"x": x}, dict.fromkeys(("y", "mean", "inverse"), "float32"), w=np.ones(8, "float32"))


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("kind", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes_of_reductions_are_those_of_every_version(kind, opset, keepdims):
    x = np.random.default_rng(0).uniform(0.5, 2, (2, 3, 4)).astype("float32")
    operands, attributes = ({"axes": np.array([-1])}, {}) if opset >= 18 else ({}, {"axes": [-1]})
    node = helper.make_node(kind, ["x", *operands], ["y"], keepdims=keepdims, **attributes)
    compared([node], {"x": x}, {"y": "float32"}, opset=opset, **operands)


@pytest.mark.parametrize("kind", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"])
def test_reductions_over_no_axes_compute_what_is_left(kind):
    x = np.float32([[1, 2], [4, 8]]) * (1 if "Log" in kind else -1)
    compared([helper.make_node(kind, ["x"], ["y"], noop_with_empty_axes=1)], {"x": x}, {"y": "float32"})


@pytest.mark.parametrize("shape", [(4,), (1,), (3, 4), (2, 3, 1)])
def test_slopes_are_broadcast_from_the_last_dimension(shape):
    draw = np.random.default_rng(0)
    x, slope = draw.normal(size=(2, 3, 4)).astype("float32"), draw.normal(size=shape).astype("float32")
    node = helper.make_node("PRelu", ["x", "s"], ["y"])
    compared([node], {"x": x}, {"y": "float32"}, s=slope)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_different_slices_of_integers_are_found_elsewhere(dtype):
    """OpenVINO compares other memory (2026.4)."""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g ({dtype}[3,4] x) => ({dtype}[n,4] y, int64[n] i)
        {{ y, i = Unique<axis = 0>(x) }}"""
    with pytest.raises(InfeasibleError, match=f"different slices of float32 only, not of {dtype}"):
        tt.decompose(parser.parse_model(text), "openvino")


@pytest.mark.parametrize(("size", "is_taken"), [("n", True), ("unk__0", False), ("n - 3", False)])
def test_different_elements_of_what_may_be_empty_are_found_elsewhere(size, is_taken):
    program = small(helper.make_node("Unique", ["x"], ["y"]), shape=(size,), opset=18)
    if is_taken:
        tt.decompose(program, "openvino")
    else:
        with pytest.raises(InfeasibleError, match="it finds elements in 'x' where a run has none"):
            tt.decompose(program, "openvino")


@pytest.mark.parametrize("axis", [1, None])
def test_conditions_may_be_longer_than_what_they_select(axis):
    node = helper.make_node("Compress", ["x", "condition"], ["y"], **({} if axis is None else {"axis": axis}))
    x = np.arange(6, dtype="float32").reshape(3, 2)
    compared([node], {"x": x}, {"y": "float32"}, condition=np.array([True, False, True, True, False, True, True, True]))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (int16[n] x) => (int16[n] y) { y = Add(x, x) }", "it computes Add of int16 in 32 bits; cast to int32"),
        ("g (int32[n] x) => (uint16[n] y) { y = Cast<to = 4>(x) }", "it keeps numbers of int32 that uint16 does not"),
        ("g (float x) => (int64[0] y) { y = Shape(x) }", "the shape 'y' of no dimensions is not that of ONNX"),
        (
            'g (int64[2,2] x) => (int64[2,2] y) { y = Einsum<equation = "ij,jk->ik">(x, x) }',
            "it computes Einsum of int64 in float32",
        ),
    ],
)
def test_integers_that_openvino_computes_otherwise_are_left_to_others(text, reason):
    program = parser.parse_model('<ir_version: 8, opset_import: ["": 18]>' + text)
    with pytest.raises(InfeasibleError, match=reason):
        tt.decompose(program, "openvino", fold_constants=False)


@pytest.mark.parametrize("lengths", ["input", "constant", "computed"])
def test_lengths_beyond_the_elements_of_a_run_are_errors(lengths):
    taken = {"input": "n", "constant": "three", "computed": "m"}[lengths]
    program = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[t,2] x, int64[2] n) => (float[t,2] y, int64[2] m) <int64[2] three = {{3, 2}}> {{
            m = Add(n, n) y = ReverseSequence(x, {taken}) }}""")
    built, x = tt.build(program, "openvino"), np.arange(8, dtype="float32").reshape(4, 2)
    n = np.array([1, 2] if lengths == "computed" else [3, 2])
    count = np.array({"input": [3, 2], "constant": [3, 2], "computed": [2, 4]}[lengths])
    expected = np.stack([np.r_[x[:k, at][::-1], x[k:, at]] for at, k in enumerate(count)], axis=1)
    np.testing.assert_array_equal(built.run({"x": x, "n": n})["y"], expected)
    with pytest.raises(RunError, match=r"length \d of .* is not one of up to 1 elements"):
        built.run({"x": x[:1], "n": n})


def test_indices_beyond_sizes_that_follow_from_those_of_inputs_are_errors():
    program = parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        g (float[n,3] x, float[2,3] u) => (float[p,3] y) <int64[4] pads = {1, 0, 1, 0},
            int64[2,3] places = {0, 3, 1, 2, -4, 0}> {
            v = Pad(x, pads) y = ScatterElements<axis = 0>(v, places, u) }""")
    built, updates = tt.build(program, "openvino"), np.ones((2, 3), "float32")
    assert built.run({"x": np.zeros((2, 3), "float32"), "u": updates})["y"].sum() == 6
    with pytest.raises(RunError, match=r"index 3 of 'ScatterElements_1' .* is out of bounds for 3 elements"):
        built.run({"x": np.zeros((1, 3), "float32"), "u": updates})


def test_scattered_truth_values_are_added():
    nodes = [
        helper.make_node("ScatterND", ["x", "places", "updates"], ["s"], reduction="add"),
        helper.make_node("Cast", ["s"], ["y"], to=TensorProto.INT64),
    ]
    constants = {"places": np.array([[1], [1]]), "updates": np.array([True, True])}
    compared(nodes, {"x": np.array([False, True, False])}, {"y": "int64"}, **constants)


def test_truth_values_of_inputs_are_chosen():
    text = """<ir_version: 8, opset_import: ["": 17]> g (bool[n,2] x, bool[2,2] z) => (bool[2,2] y, bool[n,2] w)
        <bool one = {1}> { y = Where(x, z, x) w = Where(x, x, one) }"""
    program, z = tt.build(parser.parse_model(text), "openvino"), np.array([[False, True], [True, False]])
    for x in (np.array([[True, False]]), np.array([[True, False], [True, True]])):
        found = program.run({"x": x, "z": z})
        assert (found["y"] == np.where(x, z, x)).all()
        assert found["w"].shape == x.shape
        assert found["w"].all()


@pytest.mark.parametrize("size", [1, 3, 5])
def test_response_is_normalized_with_a_bias(size):
    x = np.random.default_rng(0).normal(size=(2, 4, 3, 3)).astype("float32")
    node = helper.make_node("LRN", ["x"], ["y"], size=size, alpha=0.5, bias=1.5)
    compared([node], {"x": x}, {"y": "float32"})


@pytest.mark.parametrize("order", [1, 2, 3])
def test_images_of_symbolic_shape_have_norms(order):
    x = np.random.default_rng(0).normal(size=(2, 4, 3, 5)).astype("float32")
    compared([helper.make_node("GlobalLpPool", ["x"], ["y"], p=order)], {"x": x}, {"y": "float32"}, opset=2 + 16)


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("is_constant", [False, True])
def test_fewer_elements_are_gathered_than_there_are(axis, is_constant):
    indices = {"i": np.array([[[0, -1, 1]], [[1, 0, -1]]])}
    node = helper.make_node("GatherElements", ["x", "i"], ["y"], axis=axis)
    x, given = {"x": np.arange(24, dtype="float32").reshape(2, 3, 4)}, {} if is_constant else indices
    compared([node], {**x, **given}, {"y": "float32"}, **(indices if is_constant else {}))


@pytest.mark.parametrize("count", [1, 64, 1000])
@pytest.mark.parametrize("rows", [[], [3]])
def test_products_of_bytes_are_exact(count, rows):
    draw = np.random.default_rng(0)
    a = draw.integers(200, 256, (*rows, count)).astype("uint8")
    b = draw.integers(100, 128, (count, 5)).astype("int8")
    for zeros in ({}, {"z": np.array(3, "uint8")}):
        node = helper.make_node("MatMulInteger", ["a", "b", *zeros], ["y"])
        program = model([node], {"a": (a.dtype, [f"a{axis}" for axis in range(a.ndim)])}, {"y": ("int32", None)})
        program.graph.initializer.extend(numpy_helper.from_array(one, name) for name, one in {"b": b, **zeros}.items())
        # ONNX Runtime saturates such sums on processors without VNNI instructions.
        expected = (a.astype("int32") - int(zeros.get("z", 0))) @ b
        np.testing.assert_array_equal(tt.build(program, "openvino")(a), expected)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16"])
@pytest.mark.parametrize("lowest", [-3.4028235e38, -1e4])
def test_quantized_masks_are_0_or_the_lowest_number(dtype, lowest):
    info = np.iinfo(dtype)
    scale = np.float32(-lowest) / np.float32(int(info.max) - int(info.min))
    constants = {"s": np.nextafter(scale, np.float32(np.inf)), "z": np.array(info.max, dtype)}
    nodes = [
        helper.make_node("QuantizeLinear", ["mask", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["m"]),
        helper.make_node("Add", ["x", "m"], ["sum"]),
        helper.make_node("Softmax", ["sum"], ["y"]),
    ]
    x = np.random.default_rng(0).standard_normal((3, 4), dtype="float32")
    mask = np.where(np.tri(3, 4, 1, dtype=bool), np.float32(0), np.float32(lowest))
    compared(nodes, {"x": x, "mask": mask}, {"y": "float32"}, opset=21, **constants)


def test_sums_of_products_that_are_not_exact_are_refused():
    node = helper.make_node("ConvInteger", ["x", "w"], ["y"])
    program = model([node], {"x": ("uint8", (1, 200, 5, 5))}, {"y": ("int32", None)})
    program.graph.initializer.append(numpy_helper.from_array(np.full((1, 200, 3, 3), 127, "int8"), "w"))
    with pytest.raises(InfeasibleError, match="sums of 58293000 are not exact"):
        tt.decompose(program, "openvino")


def test_windows_of_symbolic_size_are_refused():
    program = parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[1,4,6,6] x, float[o,4,3,3] w) => (float[1,o,4,4] y) {
        y = com.microsoft.FusedConv<activation = "Relu", kernel_shape = [3, 3]>(x, w) }""")
    with pytest.raises(InfeasibleError, match="by weights of static shape only"):
        tt.decompose(program, "openvino")


def test_axes_of_slices_are_constants():
    node = helper.make_node("Slice", ["x", "one", "one", "axes"], ["y"])
    program = model([node], {"x": ("float32", (2, 3)), "axes": ("int64", [1])}, {"y": ("float32", None)})
    program.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    with pytest.raises(InfeasibleError, match="operand 3 of Slice, 'axes', is computed at run time"):
        tt.decompose(program, "openvino")


def test_quantized_products_round_halves_to_even_before_the_zero_point_is_added():
    draw = np.random.default_rng(0)
    constants = {
        "w": draw.integers(-9, 10, (4, 5)).astype("int8"), "s": np.float32(0.125), "z": np.uint8(3),
        "v": np.float32(0.25), "o": np.int8(0), "t": np.float32(0.5), "u": np.uint8(101),
    }  # fmt: skip
    node = helper.make_node("QLinearMatMul", ["x", "s", "z", "w", "v", "o", "t", "u"], ["y"])
    compared([node], {"x": draw.integers(0, 99, (3, 4)).astype("uint8")}, {"y": "uint8"}, **constants)


def test_scales_and_zero_points_of_products_may_be_computed():
    draw = np.random.default_rng(0)
    inputs = {
        "a": draw.integers(0, 256, (3, 4)).astype("uint8"), "s": np.array(0.125, "float32"), "z": np.array(3, "uint8"),
        "t": np.array(0.5, "float32"), "u": np.array(1, "uint8"),
    }  # fmt: skip
    nodes = [
        helper.make_node("QLinearMatMul", ["a", "s", "z", "b", "s", "zero", "t", "u"], ["y"]),
        helper.make_node("DequantizeLinear", ["y", "t", "u"], ["f"]),
        helper.make_node("Sigmoid", ["f"], ["g"]),  # has no low-precision form
        helper.make_node("QuantizeLinear", ["g", "s", "u"], ["h"]),
    ]
    weights = {"b": draw.integers(-9, 10, (4, 2)).astype("int8"), "zero": np.int8(0)}
    compared(nodes, inputs, {"y": "uint8", "h": "uint8"}, **weights)


def test_slices_end_behind_all_elements_of_symbolic_dimensions():
    node = helper.make_node("Slice", ["x", "b", "e", "axes", "steps"], ["y"])
    program = model(
        [node], {"x": ("float32", ["n", 3]), "b": ("int64", [2]), "e": ("int64", [2])}, {"y": ("float32", None)}
    )
    constants = {"axes": np.array([0, 1]), "steps": np.array([1, -1])}
    program.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    x = np.arange(12, dtype="float32").reshape(4, 3)
    found = tt.build(program, "openvino").run({"x": x, "b": np.array([1, 2**62]), "e": np.array([2**63 - 1, -(2**63)])})
    np.testing.assert_array_equal(found["y"], x[1:, ::-1])


def test_operators_of_no_elements_are_refused_unless_tested():
    for operands, shape in ((["x", "none"], (2, 0)), (["x", "w"], (0, 3))):
        program = small(
            helper.make_node("MatMul", operands, ["y"]), shape=shape, none=np.zeros((0, 3), "float32"), w=IDENTITY
        )
        with pytest.raises(InfeasibleError, match="its MatMul of no elements, as in 'x', is not that of ONNX"):
            tt.decompose(program, "openvino")
    x = np.zeros((0, 3), "float32")
    np.testing.assert_array_equal(
        tt.build(small(helper.make_node("Add", ["x", "w"], ["y"]), shape=(0, 3), w=IDENTITY[:1]), "openvino")(x), x
    )


def test_dimensions_are_only_removed_where_their_number_is_known():
    with pytest.raises(InfeasibleError, match="which dimensions are removed is not known; state the axes"):
        tt.decompose(small(helper.make_node("Squeeze", ["x"], ["y"]), shape=("n", 3)), "openvino")


def test_tensors_are_only_repeated_where_their_rank_is_known():
    program = model(
        [helper.make_node("Tile", ["x", "r"], ["y"])],
        {"x": ("float32", ["n", "n"]), "r": ("int64", ["n"])},
        {"y": ("float32", None)},
    )
    with pytest.raises(InfeasibleError, match="how many sizes 'r' holds is not known; give the input a shape"):
        tt.decompose(program, "openvino")


def test_scalars_expand_to_scalars():
    node = helper.make_node("Expand", ["x", "shape"], ["y"])
    compared([node], {"x": np.array(2, "float32")}, {"y": "float32"}, shape=np.zeros(0, "int64"))


@pytest.mark.parametrize("kind", ["ReduceLogSum", "ReduceLogSumExp"])
def test_logarithms_of_integers_are_refused(kind):
    program = model([helper.make_node(kind, ["x"], ["y"])], {"x": ("int32", (3,))}, {"y": ("int32", (1,))})
    with pytest.raises(InfeasibleError, match=f"it does not support {kind} on int32"):
        tt.decompose(program, "openvino")


@pytest.mark.parametrize("kinds", [("LSTM", "GRU"), ("GRU", "RNN"), ("LSTM", "LSTM")])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_recurrent_networks_may_read_one_value(kinds, direction):
    draw, nodes, constants, outputs = np.random.default_rng(0), [], {}, {}
    for at, kind in enumerate(kinds):
        gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
        constants[f"w{at}"] = draw.normal(size=(1, gates * 2, 3)).astype("float32")
        constants[f"r{at}"] = draw.normal(size=(1, gates * 2, 2)).astype("float32")
        names = [f"y{at}", f"h{at}"]
        operands = ["x", f"w{at}", f"r{at}"]
        nodes.append(helper.make_node(kind, operands, names, hidden_size=2, direction=direction))
        outputs |= dict.fromkeys(names, "float32")
    program = model(nodes, {"x": ("float32", (3, 2, 3))}, dict.fromkeys(outputs, ("float32", None)))
    program.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    x = draw.normal(size=(3, 2, 3)).astype("float32")
    found, expected = (tt.build(program, kind).run({"x": x}) for kind in ("openvino", "onnxruntime"))
    for name in outputs:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)


def test_a_run_that_fails_leaves_no_shapes_to_later_ones():
    """OpenVINO 2026.4 would return the shape of the largest values of the run that failed."""
    text = """<ir_version: 8, opset_import: ["": 18]>
        g (float[1,n,3,3] x, int64[2] s) => (float[1,n,1,1] y, float[p,q] z) {
            y = GlobalMaxPool(x) z = Reshape(x, s) }"""
    program = tt.build(tt.IRModule.from_onnx(parser.parse_model(text)), "openvino")
    fitting, shape = np.ones((1, 4, 3, 3), "float32"), np.array([1, 36])
    assert program.run({"x": fitting, "s": shape})["y"].shape == (1, 4, 1, 1)
    with pytest.raises(RunError, match="conflicts with the reshape pattern"):
        program.run({"x": np.ones((1, 5, 3, 3), "float32"), "s": shape})
    assert program.run({"x": fitting, "s": shape})["y"].shape == (1, 4, 1, 1)


@pytest.mark.parametrize("shape", [("n", 1, 2, 3), (2, 1, "n", 3), ("n", 1, 3), ("n", 1, 2, 1, "m")])
@pytest.mark.parametrize("repeats", [[1, 2, 2, 1, 1], [2, 3, 1, 2, 2], [1, 2, 1, 1, 1]])
def test_values_of_open_sizes_are_repeated(shape, repeats):
    """OpenVINO 2026.4 returns other elements where a second dimension of 1 and an open one are repeated."""
    node = helper.make_node("Tile", ["x", "r"], ["y"])
    program = model([node], {"x": ("float32", shape)}, {"y": ("float32", None)})
    times = np.array(repeats[: len(shape)])
    program.graph.initializer.append(numpy_helper.from_array(times, "r"))
    x = np.arange(math.prod(sizes := [4 if isinstance(dim, str) else dim for dim in shape]), dtype="float32")
    found = tt.build(program, "openvino")(x.reshape(sizes))
    np.testing.assert_array_equal(found, np.tile(x.reshape(sizes), times))


@pytest.mark.parametrize(
    ("product", "scale"),
    [("y = Gemm<transB = 1>(a, b, c)", 1), ("t = Transpose(b) d = MatMul(a, t) e = Mul(d, s) y = Add(c, e)", 0.5)],
)
def test_a_bias_tells_how_many_open_columns_there_are(product, scale):
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[n,3] a, float[m,3] b) => (float[n,m] y) <float[4] c = {{1, 2, 3, 4}}, float s = {{0.5}}> {{
            {product} }}"""
    program = tt.build(tt.IRModule.from_onnx(parser.parse_model(text)), "openvino")
    a, b = np.ones((2, 3), "float32"), np.arange(12, dtype="float32").reshape(4, 3)
    np.testing.assert_allclose(program.run({"a": a, "b": b})["y"], a @ b.T * scale + [1, 2, 3, 4])
    with pytest.raises(RunError, match="do not fit"):
        program.run({"a": a, "b": b[:3]})


@pytest.mark.parametrize(
    "between",
    [
        *("b = Identity(a)", "b = Relu(a)", "c = Mul(a, s) b = Add(c, s)"),
        *("b = Gather(a, i)", "b = Reshape(a, shape)", "c = Reshape(a, shape) b = Relu(c)"),
    ],
)
@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMax", "ReduceL2"])
def test_what_reductions_make_is_quantized_by_rows(kind, between):
    """OpenVINO 2026.4 fuses an exact division into the reduction, and computes the first element only."""
    text = f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[4,5,6] x, int64[2] shape) => (uint8[a,b] y)
            <float s = {{0.25}}, uint8 z = {{3}}, int64[1] i = {{1}}> {{
            a = {kind}<keepdims = 0>(x, i) {between} y = QuantizeLinear(b, s, z) }}"""
    module = tt.IRModule.from_onnx(parser.parse_model(text))
    given = {"x": np.random.default_rng(0).normal(size=(4, 5, 6)).astype("float32"), "shape": np.array([3, 8])}
    expected = tt.build(module, "numpy").run(given)["y"]
    np.testing.assert_array_equal(tt.build(module, "openvino").run(given)["y"], expected)


@pytest.mark.parametrize("threads", [0, 1])
def test_a_run_that_stops_in_the_middle_is_an_error(threads):
    """On one thread, `infer` of OpenVINO returned what was in memory, and overwrote that of others."""
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[n] x) => (float[4] y, int64 size)
        <float[4] c = {1, 2, 3, 4}> { u = Unique(x) y = Add(u, c) size = Size(u) }"""
    exe = tt.build(parser.parse_model(text), f"openvino(inference-num-threads={threads})")
    for distinct in (5, 4, 3, 4):
        x = np.arange(8, dtype="float32") % distinct
        if distinct == 4:
            np.testing.assert_array_equal(exe.run({"x": x})["y"], [1, 3, 5, 7])
        else:
            with pytest.raises(RunError, match=r"^openvino fails in @\.: \[CPU\] Add node with name"):
                exe.run({"x": x})


def test_what_is_at_the_zero_point_is_zero():
    """OpenVINO multiplies before it subtracts, which left 7.5e-9."""
    text = """<ir_version: 8, opset_import: ["": 18]> g (int8[4] q) => (int64[1,n] places, float[4] signs)
        <float scale = {0.1}, int8 zero = {3}>
        { x = DequantizeLinear(q, scale, zero) places = NonZero(x) signs = Sign(x) }"""
    found = tt.build(parser.parse_model(text), "openvino").run({"q": np.int8([3, 5, 3, -1])})
    np.testing.assert_array_equal(found["places"], [[1, 3]])
    np.testing.assert_array_equal(found["signs"], [0, 1, 0, -1])
