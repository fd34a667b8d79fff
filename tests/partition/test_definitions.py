"""Operations that ONNX defines by functions are replaced by these where no site of a target takes them."""

from typing import ClassVar

import numpy as np
import onnx
import onnxruntime
import pytest
from models import small
from onnx import TensorProto, helper

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, UnknownNameError
from tvmtarget.ir.onnx.definitions import has_definition
from tvmtarget.support.op import STATIC_INPUTS


def model(node, shapes, opset=23, **constants):
    """Return a model of one operation on floats."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    tensors = [onnx.numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    graph = helper.make_graph([node], "one", inputs, outputs, tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made, data_prop=True)


def attention(*sizes, inputs="q k v", outputs="y", **attributes):
    values = (names.replace("-", "").split(" ") for names in (inputs, outputs))
    node = helper.make_node("Attention", *values, name="att", **attributes)
    names = [name for name in node.input if name]
    return model(node, dict(zip(names, sizes, strict=True)))


Q, K = (1, 2, 4, 8), (1, 2, 6, 8)
CASES = {
    "attention": attention(Q, K, K),
    "attention with a mask": attention(Q, K, K, (4, 6), inputs="q k v mask"),
    "causal attention": attention(Q, Q, Q, is_causal=1),
    "grouped attention of three dimensions": attention(
        (1, 4, 32), (1, 4, 16), (1, 4, 16), q_num_heads=4, kv_num_heads=2
    ),
    "attention with a cache": attention(Q, Q, Q, K, K, inputs="q k v - past_k past_v", outputs="y k2 v2"),
    "rotary embedding": model(
        helper.make_node("RotaryEmbedding", ["x", "c", "s"], ["y"], name="rot"),
        {"x": Q, "c": (1, 4, 4), "s": (1, 4, 4)},
    ),
    "part of a rotary embedding": model(
        helper.make_node("RotaryEmbedding", ["x", "c", "s"], ["y"], rotary_embedding_dim=4, num_heads=2),
        {"x": (1, 4, 16), "c": (1, 4, 2), "s": (1, 4, 2)},
    ),
    "crop and pad": model(helper.make_node("CenterCropPad", ["x", "to"], ["y"]), {"x": (5, 6)}, 18, to=[3, 9]),
    "loss": model(helper.make_node("SoftmaxCrossEntropyLoss", ["x", "to"], ["y"]), {"x": (3, 5)}, 13, to=[0, 4, 1]),
    "root of the sum of squares": model(
        helper.make_node("LpNormalization", ["x"], ["y"], axis=1), {"x": (2, 5, 3)}, 22
    ),
    "sum of magnitudes": model(helper.make_node("LpNormalization", ["x"], ["y"], p=1), {"x": (2, 5, 3)}, 22),
}


@pytest.mark.parametrize("target", ["llvm", "c"])
@pytest.mark.parametrize("name", CASES)
def test_operators_that_only_their_definitions_make_run(name, target):
    random = np.random.default_rng(0)
    shapes = {one.name: [dim.dim_value for dim in one.type.tensor_type.shape.dim] for one in CASES[name].graph.input}
    inputs = {name: random.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    expected = onnxruntime.InferenceSession(CASES[name].SerializeToString()).run(None, inputs)
    for actual, wanted in zip(tt.build(CASES[name], target).run(inputs).values(), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", ["numpy", "onnxruntime", "llvm", "openvino"])
@pytest.mark.parametrize("outputs", [["y", "k2", "v2", "products"], ["y", "", "", "products"]])
def test_products_of_attention_are_as_long_as_past_and_new_keys(outputs, target):
    """ONNX's inference leaves a past of symbolic length out, so that the shape of products was folded wrong."""
    nodes = [
        helper.make_node("Attention", ["q", "k", "v", "", "past_k", "past_v"], outputs, name="att"),
        helper.make_node("Shape", ["products"], ["shape"]),
        helper.make_node("ReduceSum", ["products"], ["sum"]),
    ]
    shapes = {
        "q": (2, 4, 3, 8),
        "k": (2, 2, 5, 8),
        "v": (2, 2, 5, 6),
        "past_k": (2, 2, "p", 8),
        "past_v": (2, 2, "p", 6),
    }
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    types = {"y": TensorProto.FLOAT, "shape": TensorProto.INT64, "sum": TensorProto.FLOAT}
    results = [helper.make_tensor_value_info(name, type_, None) for name, type_ in types.items()]
    graph = helper.make_graph(nodes, "past", inputs, results)
    program = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    random = np.random.default_rng(0)
    for past in (2, 4):
        sizes = {name: [past if size == "p" else size for size in shape] for name, shape in shapes.items()}
        values = {name: random.standard_normal(shape).astype("float32") for name, shape in sizes.items()}
        found = tt.build(program, target).run(values)
        keys = np.concatenate([values["past_k"], values["k"]], 2).repeat(2, 1)
        products = values["q"] @ keys.swapaxes(2, 3) / np.sqrt(8)
        assert found["shape"].tolist() == [2, 4, 3, past + 5]
        np.testing.assert_allclose(found["sum"], products.sum(), rtol=1e-4)


def test_keys_and_values_of_attention_with_a_past_have_a_rank():
    outputs = "y k2 v2 products"
    for past, total in (("p", None), (3, 9)):
        sizes = (("b", "s", 32), ("b", 6, 16), ("b", 6, 12), ("b", 2, past, 8), ("b", 2, past, 6))
        made = attention(*sizes, inputs="q k v - past_k past_v", outputs=outputs, q_num_heads=4, kv_num_heads=2)
        for one in made.graph.output[1:]:
            one.type.tensor_type.ClearField("shape")
        types = tt.IRModule.from_onnx(made).main.types
        assert types["k2"].shape == ("b", 2, total, 8)
        assert types["v2"].shape == ("b", 2, total, 6)
        assert types["products"].shape == ("b", 4, "s", total)


@pytest.mark.parametrize("target", ["llvm", "openvino"])
@pytest.mark.parametrize(
    ("attributes", "sizes"),
    [
        ({"mode": "linear"}, [2, 3, 5, 9]),
        ({"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5}, [2, 3, 13, 4]),
        ({"mode": "cubic"}, [2, 3, 5, 10]),
    ],
)
def test_images_are_resized_with_antialiasing(attributes, sizes, target):
    node = helper.make_node("Resize", ["x", "", "", "to"], ["y"], antialias=1, **attributes)
    made = model(node, {"x": (2, 3, 12, 10)}, 18, to=sizes)
    x = np.random.default_rng(0).standard_normal((2, 3, 12, 10)).astype("float32")
    expected = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(tt.build(made, target)(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["llvm", "openvino"])
@pytest.mark.parametrize(
    ("shape", "inputs", "attributes", "hint"),
    [
        ((1, 2, "h", 9), ("", "to"), {"mode": "linear"}, STATIC_INPUTS),
        ((1, 2, 8, 9), ("by", ""), {"mode": "cubic"}, "give sizes instead of scales"),
        (("b", 2, 8, "w"), ("by", ""), {"mode": "linear"}, f"{STATIC_INPUTS} and give sizes instead of scales"),
        ((1, 2, 8, 9), ("", "to"), {"mode": "linear", "coordinate_transformation_mode": "align_corners"}, ""),
    ],
)
def test_what_antialiasing_needs_is_its_hint(shape, inputs, attributes, hint, target):
    node = helper.make_node("Resize", ["x", "", *inputs], ["y"], antialias=1, **attributes)
    given = {"to": [1, 2, 4, 5], "by": np.float32([1, 1, 0.5, 0.5])}
    made = model(node, {"x": shape}, 18, **{name: given[name] for name in inputs if name})
    hint = hint or "give the target a leaf that supports it, such as onnxruntime"
    with pytest.raises(InfeasibleError, match=f"ATTR: it does not support Resize with antialias=1; {hint}$"):
        tt.decompose(made, target)


def test_attention_keeps_symbolic_features_and_numbers_of_keys():
    """ONNX's inference states 0 for both, so that results without features were returned."""
    sizes = (("b", "s", "f"), ("b", "k", "f"), ("b", "k", "g"))
    made = attention(*sizes, inputs="q k v", outputs="y - - products", q_num_heads=2, kv_num_heads=2)
    for one in made.graph.output:
        one.type.tensor_type.ClearField("shape")
    types = tt.IRModule.from_onnx(made).main.types
    assert types["y"].shape == ("b", "s", "g")
    assert types["products"].shape == ("b", 2, "s", "k")


def test_open_dimensions_stay_open():
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    shapes = {"q": ("b", 2, "n", 8), "k": ("b", 2, "m", 8), "v": ("b", 2, "m", 8)}
    executable = tt.build(model(node, shapes), "llvm")
    random = np.random.default_rng(0)
    for b, n, m in ((1, 4, 6), (3, 1, 2)):
        q, k, v = (random.standard_normal((b, 2, size, 8)).astype("float32") for size in (n, m, m))
        weights = np.exp(q @ k.swapaxes(2, 3) / np.sqrt(8))
        expected = weights / weights.sum(-1, keepdims=True) @ v
        np.testing.assert_allclose(executable(q, k, v), expected, rtol=1e-5, atol=1e-6)


def test_a_leaf_that_knows_the_operator_runs_it_whole():
    plan = tt.decompose(CASES["attention"], "[ort=onnxruntime,cpu=llvm](host=@cpu)")
    assert [(one.site, one.ops) for one in plan.subgraphs] == [("ort", ("att",))]
    assert "replaced" not in plan.summary()


@pytest.fixture(scope="module")
def two_masks():
    """Two operations of one operator, of which ONNX Runtime broadcasts no mask of the second."""
    made = attention(Q, K, K, (4, 6), (1, 6), inputs="q k v full row")
    del made.graph.node[0].input[4:]
    made.graph.node.append(helper.make_node("Attention", ["y", "k", "v", "row"], ["z"], name="broadcast"))
    made.graph.output[0].name = "z"
    return made


def test_only_those_operations_that_no_leaf_takes_are_replaced(two_masks):
    plan = tt.decompose(two_masks, "[ort=onnxruntime,cpu=llvm](host=@cpu)")
    assert plan.program.replaced == {"broadcast"}
    assert {name.partition("/")[0] for one in plan.subgraphs for name in one.ops} == {"att", "broadcast"}
    assert plan.site_of("att") == "ort"


def test_an_operation_that_a_leaf_takes_is_replaced_where_an_option_names_its_parts(two_masks):
    plan = tt.decompose(two_masks, "[ort=onnxruntime,cpu=llvm](host=@cpu)", where={"att/*": "@cpu"})
    assert plan.program.replaced == {"att", "broadcast"}
    assert {plan.site_of(one.source) for one in plan.program.body if one.source.startswith("att/")} == {"cpu"}
    with pytest.raises(UnknownNameError, match="where 'mask/\\*' matches no op"):
        tt.decompose(two_masks, "[ort=onnxruntime,cpu=llvm](host=@cpu)", where={"mask/*": "@cpu"})


def test_a_rule_for_an_operator_keeps_the_operations_that_no_leaf_takes(two_masks):
    for name in ("op:Attention", "broadcast", "*st"):
        with pytest.raises(
            InfeasibleError, match=r"'broadcast'.*broadcasts no mask.*name these, such as 'broadcast/\*'"
        ):
            tt.decompose(two_masks, "[ort=onnxruntime,cpu=llvm](host=@cpu)", where={name: "@ort"})
    plan = tt.decompose(two_masks, "[ort=onnxruntime,cpu=llvm](host=@cpu)", where={"b*": "@cpu"})
    assert {one.site for one in plan.subgraphs} == {"ort", "cpu"}


def test_a_replayed_plan_keeps_rules_for_operations_of_definitions(two_masks):
    plan = tt.decompose(two_masks, "[ort=onnxruntime,cpu=llvm](host=@cpu)", where={"broadcast/*": "@cpu"})
    assert plan.replay(plan.request.module).request.options.where == plan.request.options.where


def test_an_operation_whose_definition_does_not_run_either_is_reported_itself():
    made = model(helper.make_node("Softmax", ["x"], ["y"], name="soft"), {"x": (2, 3)}, 18)
    with pytest.raises(InfeasibleError, match=r"^op 'soft' \(Softmax\) fits no site"):
        tt.decompose(made, "exponential-engine")


def test_a_plan_says_what_was_replaced():
    plan = tt.decompose(CASES["attention"], "llvm")
    assert "  replaced by their definitions in ONNX: 1 op\n" in plan.summary()
    assert all(name.startswith("att/") for one in plan.subgraphs for name in one.ops)
    with pytest.raises(
        UnknownNameError, match=r"'att' was replaced by the operations that define it in ONNX.*att/MatMul_"
    ):
        plan.explain("att")


def test_parts_of_definitions_within_definitions_belong_to_the_operation():
    plan = tt.decompose(CASES["loss"], "llvm")
    [name] = plan.program.replaced
    with pytest.raises(UnknownNameError, match=rf"{name}/NegativeLogLikelihoodLoss_\d+/GatherElements_\d"):
        plan.explain(name)


def test_a_folded_operation_with_a_name_that_begins_those_of_others_was_not_replaced():
    nodes = [
        helper.make_node("Add", ["c", "c"], ["two"], name="block"),
        helper.make_node("Mul", ["x", "two"], ["y"], name="block/scale"),
    ]
    plan = tt.decompose(small(*nodes, c=np.float32(1)), "llvm")
    assert "folded into constants: 1 op" in plan.summary()
    with pytest.raises(UnknownNameError, match="'block' was folded into a constant"):
        plan.explain("block")


@tt.strategy("product-engine")
class ProductEngine:
    patterns: ClassVar = {"dense": "matmul(x, w)"}


@tt.strategy("exponential-engine")
class ExponentialEngine:
    ops = frozenset({"Exp", "ReduceMax", "ReduceSum", "Sub"})


@tt.strategy("head-engine")
class HeadEngine:
    patterns: ClassVar = {"heads": "relu(attention(q, k, v, ...))"}


def test_a_pattern_may_match_operations_of_a_definition():
    plan = tt.decompose(CASES["attention"], "[npu=product-engine,cpu=llvm](host=@cpu)")
    assert {one.site for one in plan.subgraphs} == {"npu", "cpu"}


def test_an_operation_that_a_pattern_matches_stays_whole():
    whole = onnx.ModelProto.FromString(CASES["attention"].SerializeToString())
    whole.graph.node.append(helper.make_node("Relu", ["y"], ["z"], name="relu"))
    whole.graph.output[0].name = "z"
    plan = tt.decompose(whole, "[npu=head-engine,cpu=llvm](host=@cpu)")
    assert [(one.site, one.ops) for one in plan.subgraphs] == [("npu", ("att", "relu"))]
    plan = tt.decompose(CASES["attention"], "[npu=head-engine,cpu=llvm](host=@cpu)")
    assert {one.site for one in plan.subgraphs} == {"cpu"}
    assert plan.program.replaced == {"att"}


def test_an_operation_that_an_option_names_or_that_may_not_fold_stays():
    for options in ({"where": {"att": "@."}}, {"fold_constants": False}):
        with pytest.raises(InfeasibleError, match=r"op 'att' \(Attention\) fits no site"):
            tt.decompose(CASES["attention"], "llvm", **options)


def test_options_name_the_operations_of_a_definition():
    for name in ("att", "op:Attention"):
        with pytest.raises(InfeasibleError, match=r"an option names it.*name these, such as 'att/\*'"):
            tt.decompose(CASES["attention"], "llvm", where={name: "@."})
    plan = tt.decompose(CASES["attention"], "[a=llvm,b=llvm](host=@a)", where={"att/*": "@b"})
    assert {one.site for one in plan.subgraphs} == {"b"}


def test_an_edit_that_needs_a_definition_is_planned_as_a_new_program():
    before = small(helper.make_node("Relu", ["x"], ["h"], name="a"), helper.make_node("Relu", ["h"], ["y"], name="b"))
    after = small(
        helper.make_node("MeanVarianceNormalization", ["x"], ["h"], name="a", axes=[0]),
        helper.make_node("Relu", ["h"], ["y"], name="b"),
    )
    plan = tt.decompose(after, "c", since=tt.decompose(before, "c"))
    assert plan.module == tt.decompose(after, "c").module


def test_only_operators_with_a_function_have_a_definition():
    assert [has_definition(op, 23) for op in ("onnx.Attention", "onnx.Relu", "onnx.Gemm", "onnx.If")] == [
        True,
        True,
        False,
        False,
    ]
    assert not has_definition("onnx.Attention", 22)
    assert has_definition("onnx.com.microsoft::Attention", 17)
    assert not has_definition("onnx.com.microsoft::QAttention", 23)


@pytest.mark.parametrize("target", ["llvm", "c", "openvino"])
def test_operands_without_elements_may_be_all_of_a_concat(target):
    made = small(
        helper.make_node("Concat", ["e", "x", "e"], ["y"], axis=1), shape=(2, 0), e=np.zeros((2, 0), "float32")
    )
    assert tt.build(made, target)(np.zeros((2, 0), "float32")).shape == (2, 0)


@pytest.mark.parametrize("target", ["llvm", "c", "numpy"])
def test_a_program_of_empty_operands_only_has_them_left_out(target):
    graph = helper.make_graph(
        [
            helper.make_node("Split", ["x", "sizes"], ["a", "b"], axis=1),
            helper.make_node("Concat", ["e", "b", "a"], ["y"], axis=1),
        ],
        "empty",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 3))],
        [
            onnx.numpy_helper.from_array(np.array([0, 3]), "sizes"),
            onnx.numpy_helper.from_array(np.zeros((2, 0), "float32"), "e"),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(tt.build(made, target)(x), x)
