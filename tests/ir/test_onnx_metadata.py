"""Metadata of ONNX models: it round-trips, and does not enter the structural hash."""

import re
import warnings

import numpy as np
import onnx
import pytest
from models import small
from onnx import TensorProto, helper

import tvmtarget as tt
from tvmtarget.ir.rewrite import outline
from tvmtarget.ir.structure import structural_hash


def plain():
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="r"), helper.make_node("Add", ["a", "w"], ["y"], name="p")]
    return small(*nodes, w=np.ones(3, "float32"))


def noted():
    model = plain()
    model.domain, model.model_version, model.doc_string = "org.example", 7, "a model"
    helper.set_model_props(model, {"author": 'naïve \n"quoted"', "": "empty"})
    model.training_info.add().algorithm.name = "steps"
    graph = model.graph
    graph.doc_string = "a graph"
    graph.metadata_props.add(key="layer", value="0")
    annotation = graph.quantization_annotation.add(tensor_name="a")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    graph.node[0].doc_string = "a node"
    graph.node[1].metadata_props.add(key="namespace", value="layers/1")
    graph.input[0].doc_string = "an input"
    graph.output[0].metadata_props.add(key="unit", value="m")
    graph.initializer[0].doc_string = "a weight"
    return model


def test_documentation_and_metadata_round_trip():
    model = noted()
    module = tt.IRModule.from_onnx(model)
    assert tt.IRModule.parse(str(module), module.constants()) == module
    written = tt.IRModule.from_json(module.to_json(), module.constants()).to_onnx()
    for field in ("domain", "model_version", "doc_string", "metadata_props", "training_info"):
        assert getattr(written, field) == getattr(model, field)
    for field in ("doc_string", "metadata_props", "quantization_annotation"):
        assert getattr(written.graph, field) == getattr(model.graph, field)
    assert [(node.doc_string, list(node.metadata_props)) for node in written.graph.node] == [
        (node.doc_string, list(node.metadata_props)) for node in model.graph.node
    ]
    assert written.graph.input[0].doc_string == "an input"
    assert written.graph.output[0].metadata_props == model.graph.output[0].metadata_props
    assert written.graph.initializer[0].doc_string == "a weight"
    assert len(written.graph.input) == len(written.graph.output) == len(written.graph.initializer) == 1


def test_decisions_that_onnx_has_no_place_for_are_listed_in_a_warning(tmp_path):
    text = """target [cpu=llvm]
    attr version = 3
    func @main(%x: float32[2] in "global") -> (float32[2]) opsets(onnx=17) [@cpu] {
      %y: float32[2] in "global" = @f(%x) as c
      return %y
    }
    func @f(%x: float32[2]) -> (float32[2]) opsets(onnx=17) { %y: float32[2] = onnx.Relu(%x) [cpu] as r return %y }"""
    module = tt.IRModule.parse(text)
    omitted = re.escape(
        "the target, 2 constraints (@cpu of function 'main', cpu of op 'r'), the memories of 2 values, "
        "attributes of the module (version); text, JSON, a saved module and to_tvm keep them"
    )
    with pytest.warns(tt.errors.TvmTargetWarning, match=f"to_onnx leaves out what ONNX has no place for: {omitted}$"):
        module.to_onnx()
    with pytest.warns(tt.errors.TvmTargetWarning, match=f"save_onnx leaves out .*: {omitted}$"):
        module.save_onnx(tmp_path / "m.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tt.IRModule.from_onnx(tmp_path / "m.onnx").to_onnx()


def test_a_warning_of_many_lost_constraints_lists_some_of_them():
    calls = " ".join(f"%y{k + 1} = onnx.Relu(%y{k}) [cpu] as r{k}" for k in range(7))
    module = tt.IRModule.parse(f"func @main(%y0: float32[2]) opsets(onnx=17) {{ {calls} return %y7 }}")
    with pytest.warns(tt.errors.TvmTargetWarning, match=r"7 constraints \(cpu of op 'r0', .* 'r4', and 2 more\);"):
        module.to_onnx()


def test_metadata_of_nested_bodies_round_trips():
    then, other = (
        helper.make_graph(
            [helper.make_node(op, ["x"], [name], doc_string=f"of {name}")],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
        for op, name in (("Relu", "t"), ("Neg", "e"))
    )
    model = small(helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other))
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    written = tt.IRModule.from_onnx(model).to_onnx()
    docs = {attribute.name: attribute.g.node[0].doc_string for attribute in written.graph.node[0].attribute}
    assert docs == {"then_branch": "of t", "else_branch": "of e"}


def test_metadata_does_not_enter_the_structural_hash():
    one, other = tt.IRModule.from_onnx(plain()), tt.IRModule.from_onnx(noted())
    assert one != other
    assert structural_hash(one.main) == structural_hash(other.main)
    assert one.structural_hash() == other.structural_hash()
    assert one.main.attrs == ()


def test_metadata_of_removed_elements_is_left_out():
    module = outline(tt.IRModule.from_onnx(noted()), ["r"], "part")
    part = module.to_onnx("part")
    assert part.graph.quantization_annotation == []
    assert [node.doc_string for node in module.to_onnx().graph.node] == ["a node", ""]


def test_models_with_metadata_are_built():
    x = np.array([[-1, 2, 3], [1, -4, 0]], "float32")
    np.testing.assert_array_equal(
        tt.build(tt.IRModule.from_onnx(noted()), "[a=numpy,b=onnxruntime]", where={"p": "@b"})(x), np.maximum(x, 0) + 1
    )
    onnx.checker.check_model(tt.IRModule.from_onnx(noted()).to_onnx())
