"""Functions in several operator set versions: they are kept, converted by ONNX's converter, or rejected."""

import numpy as np
import onnxruntime
import pytest
from models import small
from onnx import TensorProto, helper, parser

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, ModelError
from tvmtarget.ir.inline import inline_calls
from tvmtarget.ir.onnx.opset_versions import convert_opsets
from tvmtarget.ir.structure import structural_hash

X = np.random.default_rng(0).normal(size=(2, 3, 4, 4)).astype("float32")
ONE, TWO = np.ones(3, "float32"), np.full(3, 2, "float32")

# Operations that changed between versions: the old version, the new one, the node, and constants that it reads.
CHANGED = {
    "attribute to operand": (11, 13, helper.make_node("ReduceSum", ["x"], ["y"], axes=[1], keepdims=0), {}),
    "attributes to operands": (9, 17, helper.make_node("Slice", ["x"], ["y"], starts=[1], ends=[3], axes=[2]), {}),
    "bounds": (7, 17, helper.make_node("Clip", ["x"], ["y"], min=-0.5, max=0.5), {}),
    "a default": (11, 17, helper.make_node("Softmax", ["x"], ["y"], axis=1), {}),
    "split": (11, 17, helper.make_node("Squeeze", ["w"], ["y"], axes=[0]), {"w": X[:1]}),
    "normalisation": (
        7,
        17,
        helper.make_node("BatchNormalization", ["x", "a", "b", "a", "b"], ["y"]),
        {"a": ONE, "b": TWO},
    ),
    "pads": (7, 17, helper.make_node("Pad", ["x"], ["y"], pads=[0, 0, 1, 1, 0, 0, 1, 1], value=2.0), {}),
}


def run(model, **inputs):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


@pytest.mark.parametrize("change", CHANGED)
def test_a_function_in_another_version_computes_the_same(change):
    old, new, node, constants = CHANGED[change]
    node.name = "op"
    model = small(node, opset=old, shape=X.shape, **constants)
    main = tt.IRModule.from_onnx(model).constrain("op", "@cpu").main
    converted = convert_opsets(main, {"": new})
    assert dict(converted.opsets)[""] == new
    assert {str(call.constraint) for call in converted.body} == {"@cpu"}
    assert "op" in [call.source for call in converted.body]
    fed = {"x": X} if main.params else {}
    written = tt.IRModule((converted,)).verify().to_onnx()
    np.testing.assert_allclose(run(written, **fed), run(model, **fed), rtol=1e-5, atol=1e-6)


def test_operations_with_the_same_definition_are_not_changed():
    main = tt.IRModule.from_onnx(small(helper.make_node("Relu", ["x"], ["y"], name="r"), opset=14)).main
    assert convert_opsets(main, {"": 22}).body == main.body


def with_function(version, model_version, *nodes, shape=(2, 3)):
    """Return a model whose function F has another operator set version."""
    function = helper.make_function("my", "F", ["a"], ["b"], list(nodes), [helper.make_opsetid("", version)])
    before, after = helper.make_node("Relu", ["x"], ["r"], name="r"), helper.make_node("Neg", ["f"], ["y"], name="n")
    call = helper.make_node("F", ["r"], ["f"], domain="my", name="f")
    model = small(before, call, after, opset=model_version, shape=shape)
    model.opset_import.append(helper.make_opsetid("my", 1))
    model.functions.append(function)
    return model


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize(("version", "model_version"), [(11, 17), (17, 11), (18, 17), (13, 17)])
@pytest.mark.parametrize("keep_functions", [True, False])
def test_functions_in_other_versions_are_kept_and_merged(version, model_version, keep_functions):
    model = with_function(version, model_version, helper.make_node("Softmax", ["a"], ["b"], name="s"), shape=(2, 3, 4))
    module = tt.IRModule.from_onnx(model, keep_functions=keep_functions)
    if keep_functions:
        assert dict(module["F"].opsets)[""] == version
        assert dict(module.main.opsets)[""] == model_version
        assert tt.IRModule.parse(str(module)) == module
    x = X[0, :2, :3].reshape(2, 3, 4)
    relu = np.maximum(x, 0)
    expected = -(softmax(relu, 2) if version >= 13 else softmax(relu.reshape(2, 12), 1).reshape(2, 3, 4))
    np.testing.assert_allclose(run(module.to_onnx(), x=x), expected, rtol=1e-5)
    np.testing.assert_allclose(tt.build(module, "[a=numpy,b=onnxruntime]")(x), expected, rtol=1e-5)
    assert [value.name for value in module.to_onnx().graph.output] == ["y"]


def test_nested_bodies_are_converted_with_their_captures():
    def branch(name, *nodes):
        return helper.make_graph(list(nodes), name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])

    then = branch("t", helper.make_node("ReduceSum", ["x"], ["t"], axes=[1], keepdims=0, name="sum"))
    other = branch("e", helper.make_node("ReduceMax", ["x"], ["e"], axes=[1], keepdims=0, name="max"))
    model = small(helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other, name="if"), opset=11)
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    module = tt.IRModule.from_onnx(model)
    newer = tt.IRModule((convert_opsets(module.main, {"": 18}),)).verify()
    x = X[0, 0, :2, :3]
    for condition in (True, False):
        expected = x.sum(1) if condition else x.max(1)
        np.testing.assert_allclose(run(newer.to_onnx(), x=x, c=np.array(condition)), expected, rtol=1e-6)


def test_operations_without_a_form_in_the_other_version_are_errors():
    text = """func @main(%x: float32[2]) opsets(ai.onnx.ml=4, onnx=17) {
                %y: int64[2] = @f(%x)
                %z = onnx.ai.onnx.ml::LabelEncoder(%y) return %z }
              func @f(%x: float32[2]) opsets(ai.onnx.ml=1) {
                %y: int64[2] = onnx.ai.onnx.ml::LabelEncoder(%x) {classes_strings=["a"]} as labels return %y }"""
    with pytest.raises(
        ModelError,
        match=r"op 'labels' of function 'f' has no form in version 4 of operator set 'ai\.onnx\.ml', only in version 1",
    ):
        tt.IRModule.parse(text).to_onnx()
    own = """func @main(%x) opsets(com.a=2) { %y = @f(%x) return %y }
             func @f(%x) opsets(com.a=1) { %y = onnx.com.a::Own(%x) return %y }"""
    module = tt.IRModule.parse(own)
    with pytest.raises(ModelError, match=r"op 'onnx\.com\.a::Own' of function 'f' has no form in version 2"):
        inline_calls(module.main, module.by_name)


def test_repeated_or_unknown_operator_set_versions_are_rejected():
    model = small(helper.make_node("Relu", ["x"], ["y"]))
    model.opset_import.append(helper.make_opsetid("ai.onnx", 16))
    with pytest.raises(ModelError, match="the model states two versions of operator set 'onnx'"):
        tt.IRModule.from_onnx(model)
    with pytest.raises(ModelError, match="uses version 999 of ONNX's operators, but the installed onnx"):
        tt.IRModule.from_onnx(small(helper.make_node("Relu", ["x"], ["y"]), opset=999))


def test_an_operator_set_stated_twice_alike_counts_once():
    model = small(helper.make_node("Relu", ["x"], ["y"]))
    model.opset_import.append(model.opset_import[0])
    module = tt.IRModule.from_onnx(model)
    assert [domain for domain, _ in module.main.opsets] == [""]
    assert [one.domain for one in module.to_onnx().opset_import] == [""]


def test_versions_enter_the_structural_hash():
    seven, eight = (
        tt.IRModule.from_onnx(small(helper.make_node("Relu", ["x"], ["y"]), opset=opset)) for opset in (7, 8)
    )
    assert structural_hash(seven.main) != structural_hash(eight.main)


def test_the_version_of_a_domain_stays_if_it_has_other_operators_than_functions():
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 18, "my": 1]>
        g (float[2] x) => (float[2] y) { h = my.F(x) y = my.G(h) }
        <domain: "my", opset_import: ["": 18]> G (a) => (b) { b = Relu(a) }""")
    for keep_functions in (True, False):
        module = tt.IRModule.from_onnx(model, keep_functions=keep_functions)
        assert ("my", 1) in module.main.opsets
    with pytest.raises(InfeasibleError, match=r"op 'F_0' .*has no rule for my::F"):
        tt.decompose(module, "llvm")
