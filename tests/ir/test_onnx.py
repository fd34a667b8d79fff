"""Reading and writing ONNX: round trips without loss, and errors in one line."""

import contextlib

import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf.message import EncodeError
from models import DIGITS, LIGHT, inputs_of, light, random_graph, small
from onnx import AttributeProto, TensorProto, helper, numpy_helper, parser

import tvmtarget as tt
from tvmtarget.errors import ModelError, TvmTargetWarning
from tvmtarget.ir.inference import infer_shapes
from tvmtarget.ir.onnx import writer
from tvmtarget.ir.types import SequenceType, TensorType


def run(model, inputs):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


@pytest.mark.parametrize("name", LIGHT)
def test_light_models_round_trip(name):
    model = light(name)
    module = tt.IRModule.from_onnx(model)
    assert all(isinstance(param.type, TensorType) for param in module.main.params)
    if name not in ("vgg19", "bvlc_alexnet"):
        for a, b in zip(run(model, inputs_of(model)), run(module.to_onnx(), inputs_of(model)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_opset_names_and_symbolic_dimensions_are_kept():
    main = tt.IRModule.from_onnx(DIGITS).main
    assert main.opsets == (("", 17),)
    assert str(main.params[0]) == "%input: float32[batch,1,8,8]"
    assert str(main.types["conv3"]) == "float32[batch,64,2,2]"
    assert [call.source for call in main.body][:3] == ["conv1", "relu1", "conv2"]


def test_initializers_are_held_by_reference():
    module = tt.IRModule.from_onnx(DIGITS)
    plan = tt.decompose(module, "[a=numpy,b=onnxruntime]", where={"op:Gemm": "@b"})
    whole = {constant.name: constant for constant in module.main.constants}
    parts = [constant for function in plan.module for constant in function.constants]
    assert {constant.name for constant in parts} == set(whole)
    assert all(constant.data is whole[constant.name].data for constant in parts)


def test_operations_without_a_name_or_with_a_taken_one_get_one():
    nodes = [
        helper.make_node("Relu", [a], [b], name=n) for a, b, n in (("x", "a", ""), ("a", "b", "r"), ("b", "y", "r"))
    ]
    sources = [call.source for call in tt.IRModule.from_onnx(small(*nodes)).main.body]
    assert sources == ["Relu_0", "r", "r_3"]


def test_operations_that_are_listed_before_their_operands_are_sorted_with_a_warning():
    """As converters to float16 write casts of inputs; ONNX Runtime sorts them, too."""
    branch = helper.make_graph(
        [helper.make_node("Neg", ["h"], ["b"])], "b", [], [helper.make_tensor_value_info("b", 1, [2, 3])]
    )
    model = small(
        helper.make_node("Add", ["g", "x"], ["y"], name="last"),
        helper.make_node("If", ["c"], ["g"], name="choice", then_branch=branch, else_branch=branch),
        helper.make_node("Abs", ["x"], ["h"], name="first"),
        c=np.array(True),
    )
    with pytest.warns(TvmTargetWarning, match="lists operations before others that compute their operands"):
        module = tt.IRModule.from_onnx(model)
    assert [call.source for call in module.main.body] == ["first", "choice", "last"]


def test_unicode_names_survive():
    model = small(helper.make_node("Relu", ["x"], ["ÿ→"], name="naïve 漢字"), outputs=("ÿ→",))
    module = tt.IRModule.from_onnx(tt.IRModule.from_onnx(model).to_onnx())
    assert module.main.body[0].source == "naïve 漢字"
    assert module.main.results == ("ÿ→",)


def test_control_flow_keeps_its_bodies_and_captures():
    def branch(name, op):
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [2, 3])
        return helper.make_graph([helper.make_node(op, ["x"], [f"{name}_y"], name=f"{name}_op")], name, [], [out])

    node = helper.make_node(
        "If", ["c"], ["y"], name="if", then_branch=branch("t", "Relu"), else_branch=branch("e", "Neg")
    )
    model = small(node)
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    module = tt.IRModule.from_onnx(model)
    call = module.main.body[0]
    assert call.uses() == ("c", "x")
    assert [label for label, _ in call.regions] == ["else_branch", "then_branch"]
    x = np.full((2, 3), -2, "float32")
    for condition in (True, False):
        inputs = {"x": x, "c": np.array(condition)}
        expected = run(model, inputs)[0]
        np.testing.assert_array_equal(run(module.to_onnx(), inputs)[0], expected)
        np.testing.assert_array_equal(tt.build(module, "[a=onnxruntime,b=llvm]").run(inputs)["y"], expected)


def test_sequences_round_trip():
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"], name="make"),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], name="join", axis=0),
    ]
    module = tt.IRModule.from_onnx(small(*nodes))
    assert module.main.types["s"] == SequenceType(TensorType("float32", (2, 3)))
    exe = tt.build(module, "[a=onnxruntime,b=numpy]", where={"join": "@b"})
    assert exe(np.ones((2, 3), "float32")).shape == (4, 3)


def test_model_local_functions_are_inlined():
    body = [helper.make_node("Relu", ["a"], ["b"], name="inner")]
    function = helper.make_function("my", "F", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    model = small(helper.make_node("F", ["x"], ["y"], domain="my"))
    model.opset_import.append(helper.make_opsetid("my", 1))
    model.functions.append(function)
    assert [call.op for call in tt.IRModule.from_onnx(model).main.body] == ["onnx.Relu"]


def test_unnamed_dimensions_of_inputs_get_names_that_no_other_has():
    nodes = [helper.make_node("Relu", ["x-y"], ["a"]), helper.make_node("Add", ["a", "x-y"], ["b"])]
    values = [
        helper.make_tensor_value_info("x-y", TensorProto.FLOAT, [None, "n", 3]),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, ["x_y_0", None]),
    ]
    result = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    graph = helper.make_graph([*nodes, helper.make_node("Neg", ["z"], ["c"])], "g", values, [result])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    types = tt.IRModule.from_onnx(proto).main.types
    assert types["b"] == types["x-y"] == TensorType("float32", ("x_y_0_1", "n", 3))
    assert types["c"] == TensorType("float32", ("x_y_0", "z_1"))


@pytest.mark.parametrize("version", [18, 17])  # functions of other versions are inlined by the IR
def test_values_of_branches_of_functions_may_have_names_of_the_model(version):
    branches = {
        "then_branch": [helper.make_node("Neg", ["x"], ["X"]), helper.make_node("Sub", ["X", "x"], ["y"])],
        "else_branch": [helper.make_node("Identity", ["x"], ["y"])],
    }
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graphs = {name: helper.make_graph(nodes, name, [], [y]) for name, nodes in branches.items()}
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    chosen = helper.make_node("If", ["c"], ["z"], **graphs)
    function = helper.make_function("local", "f", ["c", "x"], ["z"], [chosen], [helper.make_opsetid("", version)])
    types = {"c": (TensorProto.BOOL, []), "X": (TensorProto.FLOAT, [2]), "z": (TensorProto.FLOAT, [2])}
    values = {name: helper.make_tensor_value_info(name, *one) for name, one in types.items()}
    nodes = [
        helper.make_node("f", ["c", "X"], ["t"], domain="local"),
        helper.make_node("f", ["c", "t"], ["z"], domain="local"),
    ]
    graph = helper.make_graph(nodes, "g", [values["c"], values["X"]], [values["z"]])
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=9)
    exe, x = tt.build(tt.IRModule.from_onnx(model), "numpy"), np.array([1, -2], "float32")
    np.testing.assert_array_equal(exe(np.array(True), x), 4 * x)
    np.testing.assert_array_equal(exe(np.array(False), x), x)


@pytest.mark.parametrize("version", [18, 17])  # functions of other versions are inlined by the IR
def test_sizes_that_functions_compute_are_others_in_each_call(version):
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    chosen = helper.make_node("Compress", ["x", "c"], ["y"], axis=0)
    function = helper.make_function("local", "f", ["x", "c"], ["y"], [chosen], [helper.make_opsetid("", version)])
    nodes = [
        helper.make_node("f", ["x", "c"], ["a"], domain="local"),
        helper.make_node("f", ["x", "d"], ["b"], domain="local"),
        helper.make_node("Compress", ["x", "d"], ["e"], axis=0),
        helper.make_node("Neg", ["a"], ["na"]),
        helper.make_node("Neg", ["b"], ["nb"]),
        helper.make_node("Neg", ["e"], ["ne"]),
    ]
    types = {"x": (TensorProto.FLOAT, [3, 2]), "c": (TensorProto.BOOL, [3]), "d": (TensorProto.BOOL, [3])}
    inputs = [helper.make_tensor_value_info(name, *one) for name, one in types.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("na", "nb", "ne")]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=9)
    functions = tt.decompose(tt.IRModule.from_onnx(model), "numpy").module.by_name.values()
    calls = [call for function in functions for call in function.body if call.op == "onnx.Compress"]
    assert len({call.outputs[0].type.shape[0] for call in calls}) == len(calls) == 3
    x, c, d = np.arange(6, dtype="float32").reshape(3, 2), np.array([True, True, False]), np.array([True, False, False])
    for found, wanted in zip(
        tt.build(model, "onnxruntime").run({"x": x, "c": c, "d": d}).values(), (c, d, d), strict=True
    ):
        np.testing.assert_array_equal(found, -x[wanted])


def model_with_functions():
    """Return a model that calls Scale with two shapes and two factors, and Scale calls Twice."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    alpha = helper.make_node("Constant", [], ["f"])
    alpha.attribute.append(onnx.AttributeProto(name="value_float", ref_attr_name="factor", type=AttributeProto.FLOAT))
    then = helper.make_graph(
        [helper.make_node("Mul", ["t", "f"], ["u"])], "then", [], [helper.make_tensor_value_info("u", 1, None)]
    )
    other = helper.make_graph(
        [helper.make_node("Sub", ["t", "o"], ["v"])], "else", [], [helper.make_tensor_value_info("v", 1, None)]
    )
    body = [
        alpha,
        helper.make_node("Twice", ["a"], ["t"], domain="my"),
        helper.make_node("If", ["c"], ["b"], then_branch=then, else_branch=other),
    ]
    scale = helper.make_function("my", "Scale", ["a", "c", "o"], ["b", "t"], body, opsets, ["factor"])
    twice = helper.make_function("my", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], opsets[:1])
    model = small(
        helper.make_node("Scale", ["x", "c", "x"], ["p"], domain="my", factor=2.0, name="one"),
        helper.make_node("Scale", ["p", "c", "x"], ["q"], domain="my", factor=3.0, name="two"),
        helper.make_node("Scale", ["q", "c", "x"], ["r", "s"], domain="my", factor=2.0, name="three"),
        helper.make_node("Add", ["r", "s"], ["y"], name="add"),
    )
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    model.opset_import.append(opsets[1])
    model.functions.extend([scale, twice])
    return model


def test_model_local_functions_are_kept_on_request():
    model = model_with_functions()
    module = tt.IRModule.from_onnx(model, keep_functions=True)
    assert [call.op for call in module.main.body] == ["@Scale", "@Scale_1", "@Scale", "onnx.Add"]
    assert sorted(function.name for function in module) == ["Scale", "Scale_1", "Twice", "main"]
    assert str(module["Scale"].params[0]) == "%a: float32[2,3]"
    assert [constant.data.item() for constant in module["Scale_1"].constants] == [3.0]
    x = np.arange(6, dtype="float32").reshape(2, 3)
    for condition in (True, False):
        inputs, value = {"x": x, "c": np.array(condition)}, x
        for factor in (2, 3, 2):
            twice = value + value
            value = twice * factor if condition else twice - x
        np.testing.assert_array_equal(run(module.to_onnx(), inputs)[0], value + twice)
        np.testing.assert_array_equal(tt.build(module, "onnxruntime").run(inputs)["y"], value + twice)


def test_absent_operands_of_functions_are_absent_in_them():
    body = [helper.make_node("Clip", ["a", "low", "high"], ["b"])]
    clip = helper.make_function("my", "F", ["a", "low", "high"], ["b"], body, [helper.make_opsetid("", 17)])
    zero = np.array(0, "float32")
    model = small(helper.make_node("F", ["x", "", "z"], ["y"], domain="my", name="f"), z=zero)
    model.opset_import.append(helper.make_opsetid("my", 1))
    model.functions.append(clip)
    module = tt.IRModule.from_onnx(model, keep_functions=True)
    assert module["F"].body[0].inputs == ("a", "", "high")
    x = np.array([[-1, 2, 3], [1, -4, 0]], "float32")
    np.testing.assert_array_equal(run(module.to_onnx(), {"x": x})[0], np.minimum(x, 0))


def test_external_data_is_read_from_the_folder_of_the_model(tmp_path):
    weights = np.arange(3000, dtype="float32").reshape(3, 1000)
    model = small(helper.make_node("MatMul", ["x", "w"], ["y"], name="mm"), w=weights)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    module = tt.IRModule.from_onnx(tmp_path / "m.onnx")
    assert not module.main.constants[0].data.flags.writeable
    np.testing.assert_array_equal(tt.build(module, "onnxruntime")(np.ones((2, 3), "float32"))[0], weights.sum(0))


def test_external_data_outside_the_folder_is_rejected(tmp_path):
    model = small(helper.make_node("MatMul", ["x", "w"], ["y"], name="mm"), w=np.ones((3, 1000), "float32"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    loaded = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    loaded.graph.initializer[0].external_data[0].value = "../w.bin"
    (tmp_path / "n.onnx").write_bytes(loaded.SerializeToString())
    with pytest.raises(ModelError, match=r"tensor 'w' of .* is outside the model's folder"):
        tt.IRModule.from_onnx(tmp_path / "n.onnx")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "is not an ONNX model"),
        (b"hello world", "is not an ONNX model"),
        (b"\x00" * 100, "is not an ONNX model"),
        (b"PK\x03\x04 a zip file", "is not an ONNX model"),
        (small(helper.make_node("Nope", ["x"], ["y"])).SerializeToString(), "No Op registered for Nope"),
        (small(helper.make_node("Relu", ["q"], ["y"])).SerializeToString(), "q"),
        (small(helper.make_node("Relu", ["x", "x", "x"], ["y"])).SerializeToString(), "is not a valid ONNX model"),
    ],
)
def test_files_that_are_not_models_are_rejected_in_one_line(tmp_path, data, text):
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        tt.IRModule.from_onnx(path)
    assert text in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_cast_whose_result_is_stated_with_another_element_type_is_an_error():
    x, y, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT16, [2]) for name in "xyz")
    cast = helper.make_node("Cast", ["x"], ["y"], "widen", to=TensorProto.FLOAT)
    graph = helper.make_graph([cast, helper.make_node("Add", ["x", "y"], ["z"])], "g", [x], [z], value_info=[y])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(ModelError, match=r"states type float16\[2\] for 'y', but Cast 'widen' makes float32"):
        tt.IRModule.from_onnx(model)


def test_element_types_round_trip():
    for name in ("float16", "float64", "int8", "uint64", "bool", "int32"):
        value = np.ones((2,), name)
        info = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(value.dtype), [2])
        graph = helper.make_graph([], "g", [], [info], [numpy_helper.from_array(value, "y")])
        module = tt.IRModule.from_onnx(
            helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
        )
        assert str(module.main.types["y"]) == f"{name}[2]"
        np.testing.assert_array_equal(tt.build(module, "onnxruntime")(), value)


def test_the_text_form_of_a_model_is_golden(golden):
    module = tt.IRModule.from_onnx(DIGITS)
    plan = tt.decompose(module, "demo/rack", where={"op:Gemm": "@node1/cpu", "relu1": "@node0/cpu"})
    golden("ir/digits_on_rack.golden", f"{plan.module}\n\n{plan.summary()}\n\n{plan.explain('fc1')}\n")


def test_a_random_graph_round_trips_through_text_and_onnx():
    module = tt.IRModule.from_onnx(random_graph(50, 5))
    assert str(tt.IRModule.from_onnx(module.to_onnx())) == str(module)


@pytest.mark.parametrize(
    ("given", "stated", "is_wrong"),
    [
        ("float[n,6]", "float[1,6]", True),
        ("float[40,6]", "float[1,6]", True),
        ("float[40,6]", "float[6]", True),
        ("float[n,6]", "float[m,6]", False),
        ("float[n,6]", "float[n,6]", False),
    ],
)
def test_sizes_of_results_that_no_run_gives_are_ignored_with_a_warning(given, stated, is_wrong):
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({given} x) => ({stated} y) {{ y = Relu(x) }}'
    model = parser.parse_model(text)
    with pytest.warns(TvmTargetWarning, match="wrong sizes of results.*'y'") if is_wrong else contextlib.nullcontext():
        main = tt.IRModule.from_onnx(model)["main"]
    assert (main.types["y"] == main.params[0].type) == (is_wrong or given == stated)


def test_predictions_that_are_stated_to_be_a_vector_are_a_matrix():
    text = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 2]> g (float[n,6] x) => (float[n] y) {
        y = ai.onnx.ml.LinearRegressor<coefficients = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]>(x) }"""
    with pytest.warns(TvmTargetWarning, match="wrong sizes of results.*'y'"):
        main = tt.IRModule.from_onnx(parser.parse_model(text))["main"]
    assert main.types["y"].shape == ("n", 1)


@pytest.mark.filterwarnings("ignore:.*wrong sizes of results")
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("opset", [11, 21, 22])
def test_pools_of_all_versions_leave_out_windows_that_begin_in_padding(kind, opset):
    text = f"""<ir_version: 8, opset_import: ["": {opset}]> g (float[1,1,h,5] x) => (float[a,b,c,d] y) {{
        p = {kind}<ceil_mode=1, kernel_shape=[2,2], strides=[3,1]>(x) y = Neg(p) }}"""
    model = parser.parse_model(text)
    symbolic = tt.IRModule.from_onnx(model)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 3
    # Files state what ONNX infers.
    stated = tt.IRModule.from_onnx(onnx.shape_inference.infer_shapes(model))
    x = np.arange(15, dtype="float32").reshape(1, 1, 3, 5)
    (expected,) = run(model, {"x": x})
    for module in (tt.IRModule.from_onnx(model), stated, tt.specialize(symbolic, {"h": 3})):
        assert module.main.types["p"].shape == module.main.types["y"].shape == expected.shape
    np.testing.assert_array_equal(tt.build(stated, "numpy(runtime=processes)")(x), expected)


@pytest.mark.filterwarnings("error::tvmtarget.errors.TvmTargetWarning")
def test_types_that_do_not_fit_are_not_called_shapes_that_take_too_long():
    """Where shapes may be long, ONNX propagates them in a process with limits, which fails for other reasons, too."""
    products = " ".join(f"s{at + 1} = Mul(s{at}, s{at})" for at in range(30))
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (int64[1] s0, float[6] f, double[6] d) => (float[n] y) {{
        {products} z = Mul(f, d) r = Reshape(z, s30) y = Neg(r) }}"""
    model = parser.parse_model(text)
    with pytest.raises(onnx.shape_inference.InferenceError, match="inconsistent type"):
        infer_shapes(model, check_type=True, strict_mode=True)


def test_a_message_that_protobuf_cannot_write_is_not_called_invalid(monkeypatch):
    def fail(_model):
        raise EncodeError("Failed to serialize proto")

    module = tt.IRModule.from_onnx(small(helper.make_node("Relu", ["x"], ["y"])))
    monkeypatch.setattr(writer, "check_model", fail)
    with pytest.raises(ModelError, match="'main' cannot be written as an ONNX model: out of memory, or"):
        module.to_onnx()
