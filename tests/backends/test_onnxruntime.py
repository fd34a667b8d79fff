"""ONNX Runtime as a code generator: models that its own optimizer wrote, and its execution providers."""

import re

import numpy as np
import onnx
import pytest
from models import small
from onnx import TensorProto, helper, numpy_helper, parser
from tools import derive_onnxruntime

import tvmtarget as tt
from tvmtarget.errors import (
    ArtifactError,
    BackendError,
    CompileError,
    InfeasibleError,
    RunError,
    TargetError,
    TvmTargetWarning,
)

onnxruntime = pytest.importorskip("onnxruntime")


def test_blocked_convolutions_of_the_optimizer_run(tmp_path):
    rng = np.random.default_rng(0)
    model = small(
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv", pads=[1] * 4),
        helper.make_node("MaxPool", ["a"], ["y"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        shape=(1, 16, 8, 8),
        w=rng.normal(size=(16, 16, 3, 3)).astype("float32"),
    )
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimized.onnx"), 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    optimized = onnx.load(tmp_path / "optimized.onnx")
    if not any(node.domain == "com.microsoft.nchwc" for node in optimized.graph.node):
        pytest.skip("onnxruntime does not block channels on this processor")
    x = rng.normal(size=(1, 16, 8, 8)).astype("float32")
    found, right = (tt.build(tt.IRModule.from_onnx(one), "onnxruntime")(x) for one in (optimized, model))
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)


# A provider that wheels of onnxruntime have, and that takes none of ONNX's operators.
NOTHING = "onnxruntime(provider=Azure{})"
CHAIN = """func @main(%x: float32[3]) opsets(onnx=17) { %a: float32[3] = onnx.Abs(%x) as abs
    %y: float32[3] = onnx.Selu(%a) as selu return %y }"""
X = np.float32([-1, 0, 2])


@pytest.fixture
def azure():
    if "AzureExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("onnxruntime has no provider Azure here")


def test_operations_that_the_provider_refuses_are_an_error_instead_of_running_on_the_cpu(azure):
    text = r"provider 'Azure' of onnxruntime refuses 2 ops of function 'main' of @\.: abs, selu; .*cpu-fallback=true"
    with pytest.raises(CompileError, match=text):
        tt.build(tt.IRModule.parse(CHAIN), NOTHING.format(""))


def test_refused_operations_move_to_another_leaf_and_the_refusal_is_the_reason(azure):
    pair = f"[npu={NOTHING.format('')},cpu=numpy](host=@cpu)"
    with pytest.warns(TvmTargetWarning, match="its operations run on other leaves now"):
        exe = tt.build(tt.IRModule.parse(CHAIN), pair)
    np.testing.assert_allclose(exe(X), 1.0507009873554805 * np.abs(X), rtol=1e-6)
    assert "@npu: no, RULE: provider 'Azure' of onnxruntime refuses it" in str(exe.explain("selu"))


def test_with_cpu_fallback_the_report_and_the_explanation_say_what_ran(azure, tmp_path):
    exe = tt.build(tt.IRModule.parse(CHAIN), NOTHING.format(",cpu-fallback=true"))
    (subgraph,) = exe.report()["subgraphs"]
    assert subgraph["ran_by"] == {"CPUExecutionProvider": ["abs", "selu"]}
    assert "of 2 ops, and runs there by CPUExecutionProvider" in str(exe.explain("selu"))
    assert exe.explain("selu").to_json()["ran_by"] == "CPUExecutionProvider"
    exe.save(tmp_path / "p")
    loaded = tt.load(tmp_path / "p")
    np.testing.assert_array_equal(loaded(X), exe(X))
    assert loaded.report()["subgraphs"][0]["ran_by"] == subgraph["ran_by"]
    with pytest.raises(TargetError, match="a loaded program has no plan"):
        loaded.explain("selu")


@pytest.mark.parametrize(
    ("attrs", "text"),
    [
        ("provider=Cuda0", "has no provider 'Cuda0' here.*; it has .*CPU; install"),
        ("provider=npu,provider-library=/none.so", "provider-library '/none.so' is no file"),
        ('provider=npu,provider-library="{here}"', "provider-library .* cannot be loaded: Failed to load library"),
        ("cpu-fallback=true", "cpu-fallback has no effect, as the provider is CPU"),
        ("provider-options=fast", "provider-options has 'fast', which is not name=value"),
        ('provider=CUDA,provider-options=["a=1","a=2"]', "provider-options has 'a' twice"),
    ],
)
def test_a_provider_that_cannot_be_used_is_an_error_that_says_what_is_missing(attrs, text):
    with pytest.raises(BackendError, match=text) as raised:
        tt.build(tt.IRModule.parse(CHAIN), f"onnxruntime({attrs.format(here=__file__)})")
    assert len(str(raised.value).splitlines()) == 1


def test_the_name_of_a_provider_is_read_without_suffix_and_case(azure):
    for name in ("AZURE", "AzureExecutionProvider"):
        assert tt.build(tt.IRModule.parse(CHAIN), f"onnxruntime(provider={name},cpu-fallback=true)")(X) is not None
    exe = tt.build(tt.IRModule.parse(CHAIN), "onnxruntime(provider=cpuexecutionprovider)")
    np.testing.assert_allclose(exe(X)[0], 1.0507, rtol=1e-4)


def test_a_saved_program_loads_no_library_of_a_provider_without_trust(azure, tmp_path):
    exe = tt.build(tt.IRModule.parse(CHAIN), NOTHING.format(',cpu-fallback=true,provider-options="a=b"'))
    exe.save(tmp_path / "p")
    with pytest.raises(ArtifactError, match=r"options of an execution provider \(provider-options\), which need trust"):
        tt.load(tmp_path / "p")
    assert tt.load(tmp_path / "p", trust=True)(X) is not None
    plan = tt.decompose(tt.IRModule.parse(CHAIN), 'onnxruntime(provider=npu,provider-library="/tmp/evil.so")')
    plan.save(tmp_path / "q")
    with pytest.raises(TargetError, match=r"names a library .*'/tmp/evil.so', which would be loaded"):
        tt.Plan.load(tmp_path / "q")


def test_a_plugin_provider_is_loaded_by_its_path_and_takes_what_it_can():
    plugin = pytest.importorskip("onnxruntime_ggml", reason="pip install --no-deps onnxruntime-ggml")
    npu = tt.Target("onnxruntime", {"provider": "ggml", "provider-library": plugin.library_path()})
    rng = np.random.default_rng(0)
    model = small(
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Selu", ["a"], ["b"], name="selu"),
        helper.make_node("MatMul", ["b", "w"], ["y"], name="last"),
        shape=(8, 8),
        w=rng.normal(size=(8, 8)).astype("float32"),
    )
    with pytest.raises(CompileError, match=r"provider 'ggml' of onnxruntime refuses 1 op of function 'main' .*: selu;"):
        tt.build(model, npu)
    with pytest.warns(TvmTargetWarning, match="refuses 1 op"):
        exe = tt.build(model, tt.Target.parse(f"[npu={npu},cpu=numpy](host=@cpu)"))
    ran = [one.get("ran_by") for one in exe.report()["subgraphs"]]
    assert ran == [{"ggml": ["first"]}, None, {"ggml": ["last"]}]
    x = rng.normal(size=(8, 8)).astype("float32")
    np.testing.assert_allclose(exe(x), tt.build(model, "numpy")(x), rtol=1e-2, atol=1e-2)
    with pytest.raises(BackendError, match="provider 'ggml' finds no device 'NPU' here; it finds CPU"):
        tt.build(model, npu.override({"provider-device": "NPU"}))


def test_weights_of_4_bits_are_dequantised_on_onnxruntime_and_nothing_else_of_4_bits_is():
    values = onnx.helper.make_tensor("w", onnx.TensorProto.UINT4, (2, 2), [0, 5, 10, 15])
    scale = onnx.helper.make_tensor("s", onnx.TensorProto.FLOAT, (), [0.5])
    text = '<ir_version: 10, opset_import: ["" : 21]> g (float[2,2] x) => (float[2,2] y) '
    model = onnx.parser.parse_model(f"{text} {{ f = DequantizeLinear(w, s) y = MatMul(x, f) }}")
    model.graph.initializer.extend([values, scale])
    found = tt.build(model, "onnxruntime")(np.eye(2, dtype="float32"))
    np.testing.assert_array_equal(found, [[0, 2.5], [5, 7.5]])
    text = text.replace("float[2,2] y", "uint4[2,2] y")
    model = onnx.parser.parse_model(f"{text} {{ y = QuantizeLinear<output_dtype=21>(x, s) }}")
    model.graph.initializer.append(scale)
    with pytest.raises(InfeasibleError, match="4 bits only in constants of DequantizeLinear, not in QuantizeLinear"):
        tt.decompose(model, "onnxruntime")


def test_half_precision_products_of_transposed_batches_run_on_onnxruntime():
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float16[3,b,8] x) => (float16[b,3,4] y) '
    model = onnx.parser.parse_model(f"{text} {{ t = Transpose<perm = [1, 0, 2]>(x) y = MatMul(t, w) }}")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 4), "float16"), "w"))
    found = tt.build(model, "onnxruntime")(np.ones((3, 2, 8), "float16"))
    np.testing.assert_array_equal(found, np.full((2, 3, 4), 8, "float16"))


def test_a_normalizer_keeps_the_signs_of_an_operand_that_nothing_else_reads():
    text = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 1]> g (float[1,2] x) => (float[1,2] y) '
    nodes = 'n = Neg(x) z = ai.onnx.ml.Normalizer<norm = "L2">(n) y = Neg(z)'
    model = onnx.parser.parse_model(f"{text} <float[1,2] n, float[1,2] z> {{ {nodes} }}")
    x = np.array([[3, -4]], "float32")
    np.testing.assert_allclose(tt.build(model, "onnxruntime")(x), x / 5)


@pytest.mark.parametrize(
    ("mask", "is_taken"),
    [((5, 6), True), ((2, 1, 5, 6), True), ((2, 1, 1, 6), False), ((5, 1), False), (("b", 1, 1, "k"), False)],
)
def test_attention_with_a_broadcast_mask_is_replaced_by_its_definition(mask, is_taken):
    shapes = {"q": (2, 4, 5, 8), "k": (2, 4, 6, 8), "v": (2, 4, 6, 8), "m": mask}
    graph = helper.make_graph(
        [helper.make_node("Attention", [*shapes], ["y"])],
        "masked",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 4, 5, 8))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    assert bool(tt.decompose(model, "onnxruntime").program.replaced) is not is_taken
    if not is_taken:
        with pytest.raises(InfeasibleError, match=r"it broadcasts no mask.*expand the mask"):
            tt.decompose(model, "onnxruntime", fold_constants=False)


@pytest.mark.parametrize(
    ("data", "caches", "is_taken"),
    [
        ((3, 2, 4, 8), (3, 4, 4), True),
        (("b", 2, "s", 8), ("b", "s", 4), True),
        ((1, 2, "s", 8), (1, "s", 4), True),
        (("b", 2, "s", 8), (1, "s", 4), False),
        ((3, 2, 4, 8), (3, 1, 4), False),
        ((3, 4, 16), (1, 4, 4), False),
    ],
)
def test_rotary_embedding_of_broadcast_cosines_is_replaced_by_its_definition(data, caches, is_taken):
    shapes = {"x": data, "cos": caches, "sin": caches}
    graph = helper.make_graph(
        [helper.make_node("RotaryEmbedding", [*shapes], ["y"], num_heads=2)],
        "rotary",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    plan = tt.decompose(model, "onnxruntime")
    assert bool(plan.program.replaced) is not is_taken
    random = np.random.default_rng(0)
    sizes = [[{"b": 3, "s": 4}.get(size, size) for size in shape] for shape in shapes.values()]
    operands = [random.standard_normal(shape).astype("float32") for shape in sizes]
    expected = tt.build(model, "numpy")(*operands)
    np.testing.assert_allclose(tt.build(plan)(*operands), expected, rtol=1e-5, atol=1e-6)


def test_a_product_with_dequantized_weights_of_four_bits_keeps_its_other_operand():
    """ONNX Runtime rounds it to int8 by default, so that results are off by about one percent."""
    random = np.random.default_rng(0)
    weights = helper.make_tensor("w", TensorProto.INT4, (64, 32), random.integers(-8, 8, 64 * 32).tolist())
    scales = onnx.numpy_helper.from_array(random.random((4, 32), dtype="float32"), "scales")
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scales"], ["d"], axis=0, block_size=16),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (3, size)) for name, size in (("x", 64), ("y", 32))]
    graph = helper.make_graph(nodes, "weights", ends[:1], ends[1:], [weights, scales])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = random.standard_normal((3, 64)).astype("float32")
    np.testing.assert_allclose(tt.build(proto, "onnxruntime")(x), tt.build(proto, "numpy")(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("pool", "between"),
    [
        ("MaxPool<kernel_shape = [3, 3]>", ""),
        ("MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>", "i = Identity(p)"),
        ("AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1>", ""),
    ],
)
def test_zeros_around_what_a_pool_reads_are_values(pool, between):
    read = "i" if between else "p"
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[1,2,4,4] x) => (float[1,2,n,m] y)
        <int64[8] pads = {{0, 0, 1, 1, 0, 0, 1, 2}}> {{ p = Pad(x, pads) {between} y = {pool}({read}) }}"""
    module, x = (
        tt.IRModule.from_onnx(parser.parse_model(text)),
        -1 - np.random.default_rng(0).random((1, 2, 4, 4), "f4"),
    )
    found, wanted = (tt.build(module, target)(x) for target in ("onnxruntime", "numpy"))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_cubic_resize_between_transposes_runs_at_all_levels():
    """ONNX Runtime moves the transposes, and has no kernel for what remains."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,12,10,3] x) => (float[1,9,7,3] y)
        <int64[4] sizes = {1, 3, 9, 7}> { t = Transpose<perm = [0, 3, 1, 2]>(x)
        r = Resize<mode = "cubic">(t, , , sizes) y = Transpose<perm = [0, 2, 3, 1]>(r) }"""
    proto = onnx.parser.parse_model(text)
    x = np.random.default_rng(0).standard_normal((1, 12, 10, 3)).astype("float32")
    expected = tt.build(proto, "numpy")(x)
    np.testing.assert_allclose(tt.build(proto, "onnxruntime")(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "opset"), [("LeakyRelu", 20), ("HardSwish", 18), ("Gelu", 20)])
def test_a_function_whose_body_has_newer_operators_is_computed_by_these(kind, opset):
    """ONNX Runtime takes such a function in none of these operator sets, and has a kernel for float32 only."""
    x = np.array([-1.5, 0.5, 4.0])
    proto = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": {opset}]> g (double[3] x) => (double[3] y) {{ y = {kind}(x) }}'
    )
    program, target = tt.IRModule.from_onnx(proto), "[ort=onnxruntime,cpu=numpy](host=@cpu)"
    found = tt.build(tt.decompose(program, target, where={"*": "@ort?"}), target)
    np.testing.assert_allclose(found(x), tt.build(program, "numpy")(x), rtol=1e-12)


def test_a_fast_gelu_of_a_scalar_is_computed_by_operators_of_onnx():
    text = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float x) => (float y) { y = com.microsoft.FastGelu(x) }"""
    found = tt.build(onnx.parser.parse_model(text), "onnxruntime")(np.float32(0.7))
    np.testing.assert_allclose(found, 0.5306, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(not onnxruntime.__version__.startswith("1.32."), reason="the table is that of onnxruntime 1.32")
def test_the_table_of_kernels_is_the_one_of_the_package():
    assert derive_onnxruntime.derived() == derive_onnxruntime.FILE.read_text(encoding="utf-8")


TYPES_OF_OPERATORS = [
    ("LRN", 13, {"size": 3}, [("float32", [1, 3, 2, 2])], True),
    ("LRN", 13, {"size": 3}, [("float64", [1, 3, 2, 2])], False),
    ("GridSample", 20, {}, [("float32", [1, 2, 4, 4]), ("float32", [1, 3, 3, 2])], True),
    ("GridSample", 20, {}, [("float16", [1, 2, 4, 4]), ("float32", [1, 3, 3, 2])], True),
    ("GridSample", 20, {}, [("float32", [1, 2, 4, 4]), ("float64", [1, 3, 3, 2])], False),
    ("RMSNormalization", 23, {}, [("float16", [2, 4]), ("float32", [4])], False),
    ("Add", 6, {"broadcast": 0}, [("float32", [2]), ("float32", [2])], False),
    ("QuantizeLinear", 23, {}, [("float32", [2]), ("float32", [])], True),
    ("QuantizeLinear", 23, {}, [("float32", [2]), ("float16", [])], False),
    ("Identity", 17, {}, [("complex64", [2])], False),
]


@pytest.mark.parametrize(("kind", "opset", "attributes", "operands", "runs"), TYPES_OF_OPERATORS)
def test_operators_run_on_the_types_that_have_kernels_only(kind, opset, attributes, operands, runs):
    values = {name: np.ones(shape, dtype) for name, (dtype, shape) in zip("abc", operands, strict=False)}
    node = helper.make_node(kind, list(values), ["y"], **attributes)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in values.items()
    ]
    type_ = (
        TensorProto.UINT8 if kind == "QuantizeLinear" else inputs[kind == "RMSNormalization"].type.tensor_type.elem_type
    )
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", type_, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    if runs:
        assert np.isfinite(tt.build(model, "onnxruntime").run(values)["y"]).all()
    else:
        with pytest.raises(InfeasibleError, match=kind):
            tt.decompose(model, "onnxruntime")


@pytest.mark.parametrize(
    ("node", "shape", "reason"),
    [
        (
            helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[3], dilations=[2], auto_pad="SAME_UPPER"),
            (1, 1, 7), "it pads AveragePool otherwise than ONNX with auto_pad='SAME_UPPER' here; write pads",
        ),
        (
            helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[1], strides=[3], auto_pad="SAME_LOWER"),
            (1, 1, 7), "it pads MaxPool otherwise than ONNX",
        ),
        (helper.make_node("LRN", ["x"], ["y"], size=3), (1, 4, 5), "it supports LRN of 4 dimensions only, not of 3"),
        (helper.make_node("GlobalMaxPool", ["x"], ["y"]), (1, 4), "of at least 3 dimensions only, not of 2"),
    ],
)  # fmt: skip
def test_what_onnxruntime_computes_otherwise_is_refused(node, shape, reason):
    module = tt.IRModule.from_onnx(small(node, shape=shape, opset=19))
    with pytest.raises(InfeasibleError, match=re.escape(reason)):
        tt.decompose(module, "onnxruntime", fold_constants=False)


@pytest.mark.parametrize(("rank", "is_taken"), [(3, True), (2, False)])
def test_ellipses_of_different_numbers_of_dimensions_go_to_another_leaf(rank, is_taken):
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[2,3,4] a, float[{"2,4,5" if rank == 3 else "4,5"}] b) => (float[2,3,5] y) {{
        y = Einsum<equation = "...ij,...jk->...ik">(a, b) }}"""
    module, target = tt.IRModule.from_onnx(parser.parse_model(text)), "[ort=onnxruntime,np=numpy](host=@np)"
    plan = tt.decompose(module, target, where={"op:Einsum": "@ort?"})
    assert [str(one.site) for one in plan.subgraphs] == ["ort" if is_taken else "np"]


@pytest.mark.parametrize("shape", ["n,m", "2,m", "n,0", "n,m,1"])
def test_slices_without_elements_are_equal(shape):
    """They end the process of onnxruntime."""
    result = shape.replace("n", "k").replace("2", "k")
    program = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[{shape}] x) => (float[{result}] y, int64[q] i, int64[r] j, int64[s] c)
        {{ y, i, j, c = Unique<axis=0>(x) }}""")
    exe = tt.build(program, "onnxruntime")
    rank = shape.count(",") + 1
    found = exe.run({"x": np.zeros((2, 0, 1)[:rank], "float32")})
    assert [found[name].tolist() for name in "ijc"] == [[0], [0, 0], [2]]
    assert found["y"].shape == (1, 0, 1)[:rank]
    if "0" not in shape:
        x = np.float32([[2, 1], [1, 3]]).reshape((2, 2, 1)[:rank])
        found = exe.run({"x": x})
        np.testing.assert_array_equal(found["y"], x[::-1], strict=True)
        assert [found[name].tolist() for name in "ijc"] == [[1, 0], [1, 0], [1, 1]]


@pytest.mark.parametrize(
    ("node", "opset"),
    [
        ("ReduceSum(x, axes)", 13),
        ("ReduceMax<axes=[-1], keepdims=0>(x)", 17),
        ("ReduceL2<keepdims=0>(x, axes)", 18),
        ("ArgMax<axis=-1, keepdims=0>(x)", 18),
    ],
)
@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("size", ["n", "0"])
def test_reductions_of_nothing_remove_axes_counted_from_the_last(node, opset, is_nested, size):
    """Along those, onnxruntime returns its operand if that is empty."""
    element = "int64" if "Arg" in node else "float"
    body = f"{{ y = {node} s = Shape(y) }}"
    if is_nested:
        names = "() => (int64[k] s)"
        body = f"{{ s = If<then_branch = t {names} {body}, else_branch = e {names} {body}>(c) }}"
    program = parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[{size},3] x, bool c) => (int64[k] s) <int64[1] axes = {{-1}}, {element}[m] y> {body}""")
    exe = tt.build(tt.decompose(program, "onnxruntime", fold_constants=False))
    for rows in (0, 2)[: 2 if size == "n" else 1]:
        feeds = {"x": np.ones((rows, 3), "float32"), "c": np.array(True)}
        found = exe.run({name: feeds[name] for name in exe.inputs})["s"]
        np.testing.assert_array_equal(found, [rows, 1] if opset == 13 else [rows])


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("equation", ["bij,bkj->bik", "...ij, ...kj", "bij,bkj->"])
def test_an_einsum_of_nothing_has_no_elements_or_zeros(equation, is_nested):
    """One that transposes an operand without elements ends the process."""
    result = "float" if equation.endswith(">") else "float[b,i,2]"
    body = f'{{ y = Einsum<equation = "{equation}">(x, w) }}'
    if is_nested:
        names = f"() => ({result} y)"
        body = f"{{ y = If<then_branch = t {names} {body}, else_branch = e {names} {body}>(c) }}"
    program = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[b,i,j] x, float[b,2,j] w, bool c) => ({result} y) {body}""")
    exe = tt.build(tt.IRModule.from_onnx(program), "onnxruntime")
    for shape in ((0, 3, 4), (2, 0, 4), (2, 3, 0), (2, 3, 4)):
        x, w = np.ones(shape, "float32"), np.ones((shape[0], 2, shape[2]), "float32")
        feeds = {"x": x, "w": w, "c": np.array(True)}
        found = exe.run({name: feeds[name] for name in exe.inputs})["y"]
        np.testing.assert_array_equal(found, np.einsum(equation.replace(" ", ""), x, w))


@pytest.mark.parametrize(
    ("attributes", "alpha", "beta"),
    [("beta = 2.0", 1, 2), ("alpha = 3.0, transA = 1", 3, 1), ("beta = 0.5, transB = 1", 1, 0.5)],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_sums_of_nothing_have_what_is_added(attributes, alpha, beta, is_nested):
    a = "k, m" if "transA" in attributes else "m, k"
    b = "n, k" if "transB" in attributes else "k, n"
    product = f"y = Gemm<{attributes}>(a, b, c)"
    branches = f"""y = If(is) <then_branch = t () => (float[m,n] y) {{ {product} }},
        else_branch = e () => (float[m,n] y) {{ y = Expand(c, s) }}>"""
    text = f"""<ir_version: 9, opset_import: ["": 19]> g (float[{a}] a, float[{b}] b, float[n] c, bool is, int64[2] s)
        => (float[m,n] y) {{ {branches if is_nested else product} }}"""
    program = tt.build(tt.IRModule.from_onnx(parser.parse_model(text)), "onnxruntime")
    for terms in (3, 0):
        given = {name: np.ones(dims, "float32") for name, dims in (("a", (2, terms)), ("b", (terms, 4)))}
        given["a"] = given["a"].T if "transA" in attributes else given["a"]
        given["b"] = given["b"].T if "transB" in attributes else given["b"]
        given |= {"c": np.arange(4, dtype="float32"), "is": np.array(True), "s": np.array([2, 4])}
        expected = np.full((2, 4), alpha * terms, "float32") + np.float32(beta) * given["c"]
        read = {name: given[name] for name in program.inputs}
        np.testing.assert_array_equal(program.run(read)["y"], expected)


def resizing(dims, given, attributes, dtype="float"):
    """Return a Resize of an input by sizes, or by scales if any is no integer."""
    kind, operands = ("int64", "x, , , s") if all(isinstance(one, int) for one in given) else ("float", "x, , s")
    results = ",".join("abcde"[: dims.count(",") + 1])
    text = f"""<ir_version: 9, opset_import: ["": 19]> g ({dtype}[{dims}] x) => ({dtype}[{results}] y)
        <{kind}[{len(given)}] s = {{{", ".join(map(str, given))}}}> {{ y = Resize<{attributes}>({operands}) }}"""
    return tt.IRModule.from_onnx(parser.parse_model(text))


@pytest.mark.parametrize(
    ("dims", "given", "attributes", "reason"),
    [
        ("1,12,10,3", (1, 9, 7, 3), 'mode = "cubic"', "it has no cubic Resize of these dimensions"),
        ("n,h,w,3", (1, 9, 7, 3), 'mode = "cubic"', "it has no cubic Resize of these dimensions"),
        ("1,12,10,3", (1, 0.5, 2.0, 1), 'mode = "cubic"', "it has no cubic Resize of these dimensions"),
        ("1,12,10,8", (9, 7), 'mode = "cubic", axes = [1, 2]', "it has no cubic Resize of these dimensions"),
        ("3,12,10", (3, 9, 7), 'mode = "cubic"', "it has no cubic Resize of these dimensions"),
        ("1,3,12,10", (1, 5, 9, 7), 'mode = "linear"', "it has no linear Resize of these dimensions"),
        ("5", (3,), 'mode = "linear"', "it has no linear Resize of these dimensions"),
        ("1,3,9,9", (1, 1, 1.05, 1.08), 'mode = "linear"', "it ignores a scale of 1.05 where it leaves a size as"),
        ("1,3,h,w", (1, 1, 1.25, 1.25), 'mode = "linear"', "it ignores a scale of 1.25 where it leaves a size as"),
        ("1,3,9,9", (1, 3, 7, 7), 'mode = "linear", exclude_outside = 1', "exclude_outside=1 and mode='linear'"),
        ("1,3,9,9", (1, 3, 7, 7), 'mode = "nearest", antialias = 1', "antialias=1 to nearest elements"),
        (
            "1,12,10,8", (1, 12, 9, 7), 'mode = "cubic", keep_aspect_ratio_policy = "not_larger"',
            "it has no cubic Resize of these dimensions",
        ),
    ],
)  # fmt: skip
def test_images_that_onnxruntime_does_not_resize_are_refused(dims, given, attributes, reason):
    """It failed at the first run, or returned the image as it was."""
    with pytest.raises(InfeasibleError, match=re.escape(reason)):
        tt.decompose(resizing(dims, given, attributes), "onnxruntime")


def test_bytes_are_not_resized_cubically():
    with pytest.raises(InfeasibleError, match="it does not support cubic Resize on uint8; cast to float32"):
        tt.decompose(resizing("1,3,9,9", (1, 3, 7, 7), 'mode = "cubic"', "uint8"), "onnxruntime")


@pytest.mark.parametrize(
    ("dims", "given", "attributes"),
    [
        ("1,12,10,3", (1, 12, 17, 3), 'mode = "cubic"'),
        ("1,12,10,3", (1, 9, 7, 3), 'mode = "cubic", antialias = 1'),
        ("12,10", (9, 7), 'mode = "cubic"'),
        ("1,12,h,w", (12, 5, 7), 'mode = "cubic", axes = [1, 2, 3]'),
        ("n,3,h,w", (1, 3, 9, 7), 'mode = "linear"'),
        ("n,h,w,3", (1, 9, 7, 3), 'mode = "linear"'),
        ("3,12,10", (4, 9, 7), 'mode = "linear"'),
        ("1,3,12,10", (1, 1, 1.05, 2.0), 'mode = "linear"'),
        ("1,3,h,w", (1, 1, 1.25, 2.0), 'mode = "linear"'),
    ],
)
def test_images_that_onnxruntime_resizes_are_not_refused(dims, given, attributes):
    shape = [int(dim) if dim.isdigit() else {"n": 1, "h": 12, "w": 10}[dim] for dim in dims.split(",")]
    module, x = resizing(dims, given, attributes), np.random.default_rng(0).random(shape).astype("float32")
    np.testing.assert_allclose(tt.build(module, "onnxruntime")(x), tt.build(module, "numpy")(x), atol=1e-5)


def test_bytes_that_are_dequantized_may_be_transposed():
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Transpose", ["d"], ["y"]),
    ]
    model = small(*nodes, opset=21, s=np.float32(0.5), z=np.int8(3))
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(tt.build(tt.IRModule.from_onnx(model), "onnxruntime")(x), x.T)
    alone = tt.build(tt.decompose(model, "[a=onnxruntime,b=numpy](host=@b)", where={"QuantizeLinear_0": "@b"}))
    np.testing.assert_array_equal(alone(x), x.T)


@pytest.mark.parametrize("second", [(0.05, 128), (0.1, 100), (0.03, 200)])
def test_values_that_are_quantized_twice_are_so(second):
    """By default onnxruntime 1.31 quantizes them once, by a third scale."""
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[n] x) => (float[n] y)
        <float s = {{0.1}}, uint8 z = {{128}}, float t = {{{second[0]}}}, uint8 u = {{{second[1]}}}> {{
            a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z)
            c = QuantizeLinear(b, t, u) d = DequantizeLinear(c, t, u) y = Relu(d) }}"""
    module = tt.IRModule.from_onnx(parser.parse_model(text))
    x = np.linspace(-20, 20, 4001, dtype="float32")
    np.testing.assert_array_equal(tt.build(module, "onnxruntime")(x), tt.build(module, "numpy")(x))


@pytest.mark.parametrize(
    ("kind", "shape", "dim"),
    [("LSTM", (3, 0, 3), "batch"), ("GRU", (3, 0, 3), "batch"), ("GRU", (0, 2, 3), "2\\*steps")],
)
def test_recurrent_networks_of_nothing_are_errors(kind, shape, dim):
    """The process ended (onnxruntime 1.31)."""
    gates = {"LSTM": 4, "GRU": 3}[kind]
    constants = [
        numpy_helper.from_array(np.ones((1, 2 * gates, size), "float32"), name) for name, size in (("w", 3), ("r", 2))
    ]
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["twice"], axis=0),
        helper.make_node(kind, ["twice", "w", "r"], ["y"], name="net", hidden_size=2),
    ]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["steps", "batch", 3]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    program = tt.build(tt.IRModule.from_onnx(model), "onnxruntime")
    assert program(np.ones((2, 3, 3), "float32")).shape == (4, 1, 3, 2)
    with pytest.raises(RunError, match=rf"^{dim} is 0 in @\., and onnxruntime does not compute 'net' \({kind}\) of no"):
        program(np.ones(shape, "float32"))
    ends[0].type.tensor_type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, shape).tensor_type)
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(InfeasibleError, match=f"it has no {kind} of no elements, as in 'twice'"):
        tt.decompose(tt.IRModule.from_onnx(model), "onnxruntime")


_OF_COMPUTED_SIZES = {
    "Compress": """(float[s,b,3] x, bool[b] kept) => (float[s,1,k,2] y, float[1,k,2] h) WEIGHTS {
        z = Compress<axis=1>(x, kept) y, h = NET }""",
    "If": """(float[s,b,3] z, bool[b] kept) => (float[s,1,b,2] y, float[1,b,2] h) WEIGHTS {
        size = Size(z) is_large = Greater(size, n) y, h = If(is_large) <
            then_branch = g () => (float[s,1,b,2] y1, float[1,b,2] h1) { y1, h1 = NET },
            else_branch = g () => (float[s,1,b,2] y2, float[1,b,2] h2) { y2, h2 = NET }> }""",
    "Loop": """(float[s,b,3] z, bool[b] kept) => (float[n,s,1,b,2] y, float[n,1,b,2] h) WEIGHTS { y, h = Loop(n, on) <
        body = g (int64 i, bool c) => (bool d, float[s,1,b,2] y1, float[1,b,2] h1) {
            d = Identity(c) y1, h1 = NET }> }""",
}


@pytest.mark.parametrize(
    ("node", "a", "b"),
    [
        ("ConvTranspose", "float[1,1,n,2,2]", "float[1,1,1,1,1]"),
        ("MatMulInteger", "uint8[2,n]", "uint8[n,3]"),
        ("MatMul", "float[3,1,2,n]", "float[1,2,n,3]"),
    ],
)
def test_what_ends_the_process_or_is_no_zero_of_no_elements_is_an_error(node, a, b):
    """Each is another defect of onnxruntime 1.31, in this order; a MatMul has other batches."""
    dtype, result = ("uint8", "int32") if "Int" in node else ("float32", "float")
    program = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g ({a} a, {b} b) => ({result}[{",".join("opqrs"[: a.count(",") + 1])}] y) {{ y = {node}(a, b) }}""")
    exe = tt.build(tt.IRModule.from_onnx(program), "onnxruntime")
    feeds = {
        name: np.ones([0 if size == "n" else int(size) for size in type_[type_.index("[") + 1 : -1].split(",")], dtype)
        for name, type_ in (("a", a), ("b", b))
    }
    with pytest.raises(
        RunError, match=rf"^n is 0 in @\., and onnxruntime does not compute '{node}_0' \({node}\) of no"
    ):
        exe.run(feeds)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("where", _OF_COMPUTED_SIZES)
def test_recurrent_networks_of_computed_sizes_run_of_nothing(kind, where):
    """The process ended (onnxruntime 1.31)."""
    gates = {"LSTM": 4, "GRU": 3}[kind]
    weights = f"<float[1,{2 * gates},3] w, float[1,{2 * gates},2] r, int64 n = {{2}}, bool on = {{1}}>"
    text = _OF_COMPUTED_SIZES[where].replace("NET", f"{kind}<hidden_size = 2>(z, w, r)")
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text.replace("WEIGHTS", weights)}')
    del model.graph.initializer[:]
    random = np.random.default_rng(0)
    model.graph.initializer.extend(
        numpy_helper.from_array(random.standard_normal((1, 2 * gates, size)).astype("float32"), name)
        for name, size in (("w", 3), ("r", 2))
    )
    model.graph.initializer.extend([numpy_helper.from_array(np.int64(2), "n"), numpy_helper.from_array(np.True_, "on")])
    x = random.standard_normal((3, 2, 3)).astype("float32")
    name = "x" if where == "Compress" else "z"
    executable = tt.build(model, "onnxruntime")
    inputs = {name: x, "kept": np.ones(2, "bool")}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for array, expected in zip(executable.run(inputs).values(), session.run(None, inputs), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)
    batch = 2 if where == "Compress" else 0
    found = executable.run({name: x[:, :batch], "kept": np.zeros(batch, "bool")})
    assert {one.size for one in found.values()} == {0}
    assert [one.shape[-2] for one in found.values()] == [0, 0]
    if where == "Loop" and kind == "GRU":
        found = executable.run({name: x[:0], "kept": np.ones(2, "bool")})
        assert (found["y"].shape, found["h"].any()) == ((2, 0, 1, 2, 2), False)


@pytest.mark.parametrize("read", ["t", "u"])
def test_texts_that_a_loop_collects_stay_where_they_are(read):
    body = f"""(int64 i, bool c, string[2] u) => (bool d, string[2] v, string[2] s)
        {{ d = Identity(c) v = Identity(u) s = Identity({read}) }}"""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        g (string[2] t, string[2] q, int64 n) => (string[2] r, string[k,2] y, string[2] z)
        {{ r, y = Loop(n, , q) <body = b {body}> z = Identity(t) }}""")
    t, q = np.array(["a", "b"], object), np.array(["p", "q"], object)
    results = tt.build(model, "onnxruntime").run({"t": t, "q": q, "n": np.array(3)})
    assert [results[name].tolist() for name in "rz"] == [q.tolist(), t.tolist()]
    assert results["y"].tolist() == 3 * [t.tolist() if read == "t" else q.tolist()]


@pytest.mark.parametrize(
    ("axis", "places"), [(0, np.array([2, -1])), (1, np.array(1)), (-2, np.array([[0, 1], [1, 1]], "int32"))]
)
def test_texts_are_gathered_along_each_axis(axis, places):
    """It copied the first text of each block only."""
    node = helper.make_node("Gather", ["x", "i"], ["y"], axis=axis)
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.STRING, ["n", 2, 2]),
        helper.make_tensor_value_info("i", helper.np_dtype_to_tensor_dtype(places.dtype), places.shape),
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.STRING, None)])
    x = np.array(list("abcdefghijkl"), object).reshape(3, 2, 2)
    models = {opset: helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]) for opset in (10, 17)}
    found = tt.build(models[17], "onnxruntime").run({"x": x, "i": places})["y"]
    np.testing.assert_array_equal(found, np.take(x, places, axis), strict=True)
    with pytest.raises(InfeasibleError, match="it gathers texts along the last axis only in operator set 10"):
        tt.decompose(models[10], "onnxruntime")
