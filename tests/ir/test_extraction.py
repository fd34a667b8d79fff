"""Extraction of operations and nested bodies as models: reads become inputs, sizes are computed inside."""

import numpy as np
import onnx
import onnxruntime
import pytest
from models import DIGITS, small
from onnx import TensorProto, helper, numpy_helper

import tvmtarget as tt
from tvmtarget.errors import ModelError, UnknownNameError
from tvmtarget.ir.extraction import extract_body, extract_operations, with_types


def run(model, **inputs):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip((value.name for value in session.get_outputs()), session.run(None, inputs), strict=True))


RESHAPED = """
func @main(%x: float32[batch,6]) opsets(onnx=17) {
  const %zero: int64[1] = [0]
  const %one: int64[1] = [1]
  const %rest: int64[2] = [2, 3]
  %a: float32[batch,6] = onnx.Relu(%x) as a
  %shape: int64[2] = onnx.Shape(%a) as shape
  %first: int64[1] = onnx.Slice(%shape, %zero, %one) as first
  %sizes: int64[3] = onnx.Concat(%first, %rest) {axis=0} as sizes
  %b: float32[?,2,3] = onnx.Reshape(%a, %sizes) as b
  %c: float32[?,2,3] = onnx.Neg(%b) as c
  return %c, %sizes
}
"""


def test_extracted_operations_are_a_model_with_their_reads_as_inputs():
    part = extract_operations(tt.IRModule.from_onnx(DIGITS), ["conv2", "relu2"]).to_onnx()
    onnx.checker.check_model(part, full_check=True)
    assert [value.name for value in part.graph.input] == ["relu1"]
    assert [value.name for value in part.graph.output] == ["relu2"]
    assert len(part.graph.initializer) == 2


def test_sizes_are_computed_inside():
    module = tt.IRModule.parse(RESHAPED)
    part = extract_operations(module, ["b", "c"])
    assert [param.name for param in part.main.params] == ["a"]
    assert [call.source for call in part.main.body] == ["shape", "first", "sizes", "b", "c"]
    assert part.main.results == ("c",)
    a = np.arange(24, dtype="float32").reshape(4, 6)
    np.testing.assert_array_equal(run(part.to_onnx(), a=a)["c"], -a.reshape(4, 2, 3))


def test_sizes_of_computed_values_stay_inside():
    """Without the copied shape computations, this set of operations would not be convex."""
    part = extract_operations(tt.IRModule.parse(RESHAPED), ["a", "b"])
    assert [param.name for param in part.main.params] == ["x"]
    x = np.arange(12, dtype="float32").reshape(2, 6)
    np.testing.assert_array_equal(run(part.to_onnx(), x=x)["b"], x.reshape(2, 2, 3))


def test_sizes_of_other_values_are_inputs():
    module = tt.IRModule.parse(RESHAPED.replace("onnx.Shape(%a)", "onnx.Shape(%x)"))
    part = extract_operations(module, ["b"])
    assert [param.name for param in part.main.params] == ["a", "sizes"]
    pinned = tt.IRModule.parse(RESHAPED.replace("as first", "[@cpu] as first").replace("{axis=0}", "{axis=0}"))
    assert [param.name for param in extract_operations(pinned, ["b"]).main.params] == ["a", "sizes"]


def test_nested_bodies_are_models_with_captures_as_inputs():
    branches = (
        helper.make_graph(
            [helper.make_node("Add", ["x", "w"], [name], name=f"add {name}")],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3])],
        )
        for name in ("t", "e")
    )
    then, other = branches
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other, name="if")
    model = small(node, w=np.ones(3, "float32"))
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    part = extract_body(tt.IRModule.from_onnx(model), "if", "then_branch").to_onnx()
    assert [value.name for value in part.graph.input] == ["x"]
    x = np.zeros((2, 3), "float32")
    np.testing.assert_array_equal(run(part, x=x)["t"], x + 1)
    with pytest.raises(UnknownNameError, match="op 'if' has no body 'then'; known: else_branch, then_branch"):
        extract_body(tt.IRModule.from_onnx(model), "if", "then")
    with pytest.raises(UnknownNameError, match="no op 'iff' in function 'main'; did you mean 'if'"):
        extract_body(tt.IRModule.from_onnx(model), "iff", "then")


def test_a_result_that_onnx_cannot_type_is_an_error_unless_its_type_is_stated():
    model = small(
        helper.make_node("Own", ["x"], ["h"], domain="com.own", name="own"),
        helper.make_node("Relu", ["h"], ["y"], name="r"),
    )
    model.opset_import.append(helper.make_opsetid("com.own", 1))
    module = tt.IRModule.from_onnx(model)
    reason = (
        r"the type of 'h' of function 'main' is not known: op 'own' \(onnx\.com\.own::Own\) yields what ONNX's shape "
    )
    with pytest.raises(ModelError, match=reason):
        extract_operations(module, ["own"]).to_onnx()
    typed = with_types(module, {"h": "float32[n,3]"})
    part = extract_operations(typed, ["r"]).to_onnx()
    np.testing.assert_array_equal(run(part, h=-np.ones((2, 3), "float32"))["y"], np.zeros((2, 3)))
    assert extract_operations(typed, ["own"]).to_onnx().graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    with pytest.raises(ModelError, match=r"value 'x' of function 'main' is float32\[2,3\], not float32\[3,3\]"):
        with_types(module, {"x": "float32[3,3]"})
    with pytest.raises(UnknownNameError, match="no value 'z' in function 'main'"):
        with_types(module, {"z": "float32[3,3]"})


def test_values_of_unknown_rank_are_inputs_and_outputs():
    body = helper.make_graph(
        [
            helper.make_node("Unsqueeze", ["v", "axes"], ["w"], name="grow"),
            helper.make_node("Identity", ["go"], ["more"], name="go"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("more", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, None),
        ],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["l"], body=body, name="loop")
    model = small(loop, helper.make_node("Neg", ["l"], ["y"], name="neg"), axes=np.array([0]), n=np.array(2))
    module = tt.IRModule.from_onnx(model)
    assert str(module.main.types["l"]) == "float32[...]"
    x = np.ones((2, 3), "float32")
    assert run(module.to_onnx(), x=x)["y"].shape == (1, 1, 2, 3)
    assert run(extract_operations(module, ["loop"]).to_onnx(), x=x)["l"].shape == (1, 1, 2, 3)
    assert run(extract_operations(module, ["neg"]).to_onnx(), l=x)["y"].shape == (2, 3)


def test_invalid_sets_are_rejected():
    module = tt.IRModule.from_onnx(DIGITS)
    with pytest.raises(ModelError, match="'conv1' -> 'relu1' -> 'conv2' leaves it and comes back"):
        extract_operations(module, ["conv1", "conv2"])
    with pytest.raises(UnknownNameError, match="no op 'conv' in function 'main'; did you mean 'conv"):
        extract_operations(module, ["conv"])
    with pytest.raises(ModelError, match="no operations of function 'main' are given"):
        extract_operations(module, [])


def test_constants_that_are_results_keep_their_names():
    graph = helper.make_graph(
        [],
        "g",
        [],
        [helper.make_tensor_value_info("w", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.ones(2, "float32"), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    module = tt.IRModule.from_onnx(model)
    assert tt.IRModule.from_onnx(module.to_onnx()) == module
    np.testing.assert_array_equal(run(module.to_onnx())["w"], [1, 1])


def test_bodies_that_return_captures_are_written_with_a_copy():
    module = tt.IRModule.parse(
        """func @main(%c: bool[], %x: float32[2]) -> (float32[2]) opsets(onnx=17) {
             %y: float32[2] = onnx.If(%c) as if
               then_branch @then() { return %x }
               else_branch @else() { %z: float32[2] = onnx.Neg(%x) return %z }
             return %y }"""
    )
    x = np.array([1, -2], "float32")
    for condition in (True, False):
        result = run(module.to_onnx(), c=np.array(condition), x=x)["y"]
        np.testing.assert_array_equal(result, x if condition else -x)
