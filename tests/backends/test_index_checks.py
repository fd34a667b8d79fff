"""Indices that are data and out of bounds are errors in generated code, where other memory would be read or written."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmtarget as tt
from tvmtarget.errors import BackendError, RunError

DATA = np.arange(12, dtype=np.float32).reshape(4, 3)
RIGHT = {
    "taken": np.array([0, -4]),
    "elements": np.array([[1, 2, -1]]),
    "coordinates": np.array([[-1, 2], [3, -3]]),
    "places": np.array([[0], [-1]]),
    "cells": np.array([[3, -4, 0]]),
    "row": np.array(-1),
}
WRONG = {
    "taken": np.array([0, 4]),
    "elements": np.array([[1, 2, -5]]),
    "coordinates": np.array([[-1, 3], [3, -3]]),
    "places": np.array([[0], [1 << 33]]),
    "cells": np.array([[3, -5, 0]]),
    "row": np.array(-5),
}


def _model(rows: int | str) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Gather", ["x", "taken"], ["y0"]),
        helper.make_node("GatherElements", ["x", "elements"], ["y1"]),
        helper.make_node("GatherND", ["x", "coordinates"], ["y2"]),
        helper.make_node("ScatterND", ["x", "places", "rows"], ["y3"]),
        helper.make_node("ScatterElements", ["x", "cells", "ones"], ["y4"]),
        helper.make_node("Gather", ["x", "row"], ["y5"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 3])]
    inputs += [helper.make_tensor_value_info(name, TensorProto.INT64, one.shape) for name, one in RIGHT.items()]
    constants = [
        onnx.numpy_helper.from_array(np.zeros((2, 3), np.float32), "rows"),
        onnx.numpy_helper.from_array(np.ones((1, 3), np.float32), "ones"),
    ]
    outputs = [helper.make_tensor_value_info(f"y{at}", TensorProto.FLOAT, None) for at in range(len(nodes))]
    graph = helper.make_graph(nodes, "indices", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize(
    ("target", "rows"),
    [
        ("llvm", 4),
        ("llvm", "n"),
        ("llvm(executor=vm)", 4),
        ("llvm(executor=aot, runtime=cpp)", 4),
        ("c(executor=aot, runtime=crt)", 4),
        ("openvino", 4),
        ("openvino", "n"),
    ],
)
def test_an_index_that_is_out_of_bounds_is_an_error(target: str, rows: int | str) -> None:
    model = _model(rows)
    executable = tt.build(model, target=target)
    expected = tt.build(model, target="numpy")
    for found, wanted in zip(executable(DATA, *RIGHT.values()), expected(DATA, *RIGHT.values()), strict=True):
        np.testing.assert_array_equal(found, wanted)
    for name, indices in WRONG.items():
        with pytest.raises(RunError, match=r"out of bounds|indices|32 bits"):
            executable(DATA, *{**RIGHT, name: indices}.values())
    np.testing.assert_array_equal(executable(DATA, *RIGHT.values())[0], DATA[[0, -4]])


def test_a_constant_index_that_is_out_of_bounds_of_a_symbolic_size_is_an_error() -> None:
    node = helper.make_node("Gather", ["x", "at"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"] if name == "x" else [1]) for name in "xy")
    at = onnx.numpy_helper.from_array(np.array([2]), "at")
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], [at]), opset_imports=opsets, ir_version=9)
    executable = tt.build(model, target="llvm")
    assert executable(DATA[:, 0])[0] == 6
    with pytest.raises(RunError, match="an index of take is out of bounds"):
        executable(DATA[:2, 0])


def _relax(constant: bool) -> tt.IRModule:
    from tvm import relax

    builder = relax.BlockBuilder()
    tensor = relax.TensorType
    x, at = relax.Var("x", tensor((4, 3), "float32")), relax.Var("at", tensor((2,), "int64"))
    lengths, regions = relax.Var("lengths", tensor((3,), "int64")), relax.Var("regions", tensor((1, 5), "float32"))
    images = relax.Var("images", tensor((2, 1, 4, 4), "float32"))
    params = [x, at, lengths, images, regions]
    op = relax.op
    with builder.function("main", params):
        with builder.dataflow():
            taken = builder.emit(op.take(x, relax.const(np.array([0, 4])) if constant else at, axis=0))
            cells = builder.emit(op.index_tensor(x, [at, at]))
            turned = builder.emit(op.reverse_sequence(x, lengths, 0, 1))
            regions = builder.emit(op.vision.roi_align(images, regions, (1, 1), 1.0, 1))
            results = builder.emit_output(relax.Tuple([taken, cells, turned, regions]))
        builder.emit_func_output(results)
    return tt.IRModule.from_tvm(builder.get())


def test_a_constant_that_may_be_chosen_is_no_constant_index() -> None:
    """The importer of ONNX counts indices from the end by a choice, too."""
    pytest.importorskip("tvm")
    from tvm import relax

    from tvmtarget.backends.tvm.index_checks import check_indices

    builder = relax.BlockBuilder()
    x, at = relax.Var("x", relax.TensorType((4, 3), "float32")), relax.Var("at", relax.TensorType((2,), "int64"))
    chosen = relax.op.where(relax.op.less(at, at), at, relax.const(np.array([0, 1]), "int64"))
    with builder.function("main", [x, at]):
        builder.emit_func_output(builder.emit(relax.op.take(x, builder.emit(chosen), axis=0)))
    assert "checked_indices" in str(check_indices(builder.get()))


def test_indices_of_operators_of_relax_are_checked() -> None:
    executable = tt.build(_relax(constant=False), target="llvm")
    right = [DATA, np.array([0, 2]), np.array([1, 4, 2]), np.ones((2, 1, 4, 4), np.float32)]
    right.append(np.array([[1, 0, 0, 3, 3]], np.float32))
    taken, cells, turned, regions = executable(*right)
    np.testing.assert_array_equal(taken, DATA[[0, 2]])
    np.testing.assert_array_equal(cells, [0, 8])
    np.testing.assert_array_equal(turned[:, 1], DATA[::-1, 1])
    np.testing.assert_array_equal(regions.reshape(-1), [1])
    wrong = {1: np.array([0, 3]), 2: np.array([1, 5, 2]), 4: np.array([[2, 0, 0, 3, 3]], np.float32)}
    for position, value in wrong.items():
        with pytest.raises(RunError, match=r"is out of bounds for [234] elements"):
            executable(*right[:position], value, *right[position + 1 :])
    with pytest.raises(BackendError, match="an index of take is out of bounds for 4 elements"):
        tt.build(_relax(constant=True), target="llvm")


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_lengths_of_sequences_beyond_the_input_are_an_error(target: str) -> None:
    random = np.random.default_rng(0)
    weights = [random.normal(size=(1, 8, size)).astype(np.float32) for size in (3, 2)]
    constants = [onnx.numpy_helper.from_array(one, name) for name, one in zip("wr", weights, strict=True)]
    node = helper.make_node("LSTM", ["x", "w", "r", "", "lengths"], ["y"], hidden_size=2, direction="reverse")
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 2, 3]),
        helper.make_tensor_value_info("lengths", TensorProto.INT32, [2]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 18)]
    graph = helper.make_graph([node], "g", inputs, [output], constants)
    executable = tt.build(helper.make_model(graph, opset_imports=opsets, ir_version=9), target=target)
    x = random.normal(size=(5, 2, 3)).astype(np.float32)
    assert not np.asarray(executable(x, np.array([0, 5], np.int32)))[:, 0, 0].any()
    for lengths in ([2, 6], [-1, 5]):
        with pytest.raises(RunError, match="is out of bounds"):
            executable(x, np.array(lengths, np.int32))


@pytest.mark.parametrize("constant", [True, False])
def test_known_and_computed_indices_are_checked_on_openvino(constant: bool) -> None:
    nodes = [helper.make_node("Add", ["at", "at"], ["twice"]), helper.make_node("Gather", ["x", "twice"], ["y"])]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
        helper.make_tensor_value_info("at", TensorProto.INT64, [1]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, [output]), opset_imports=opsets, ir_version=9)
    module = tt.IRModule.from_onnx(model)
    for at, fitting, small in ((-2, 4, 3), (2, 5, 4)):
        rest = [] if constant else [np.array([at])]
        executable = tt.build(module.bind({"at": np.array([at])}) if constant else module, target="openvino")
        x = np.resize(DATA, (fitting, 3))
        np.testing.assert_array_equal(executable(x, *rest), x[[2 * at]])
        message = rf"index {2 * at} of .*\(Gather\) in @. is out of bounds for {small} elements"
        with pytest.raises(RunError, match=message):
            executable(x[:small], *rest)


def test_more_indices_than_elements_are_an_error_on_openvino() -> None:
    node = helper.make_node("GatherElements", ["x", "at"], ["y"], axis=0)
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"]),
        helper.make_tensor_value_info("at", TensorProto.INT64, ["k", "l"]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["k", "l"])
    graph = helper.make_graph([node], "g", inputs, [output])
    opsets = [helper.make_opsetid("", 18)]
    executable = tt.build(helper.make_model(graph, opset_imports=opsets, ir_version=9), target="openvino")
    np.testing.assert_array_equal(executable(DATA, np.array([[3, 0]])), [[DATA[3, 0], DATA[0, 1]]])
    with pytest.raises(RunError, match=r"sizes 3 and 4 do not fit in .* \(GatherElements\)"):
        executable(DATA, np.zeros((1, 4), np.int64))


@pytest.mark.parametrize("target", ["llvm", "openvino", "onnxruntime", "numpy"])
def test_indices_of_features_are_not_negative(target: str) -> None:
    node = helper.make_node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain="ai.onnx.ml")
    x, y = (helper.make_tensor_value_info(*one) for one in (("x", TensorProto.FLOAT, [4, 3]), ("y", 1, None)))
    graph = helper.make_graph([node], "g", [x, helper.make_tensor_value_info("i", TensorProto.INT64, [1])], [y])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]
    module = tt.IRModule.from_onnx(helper.make_model(graph, opset_imports=opsets, ir_version=9))
    executable, bound = tt.build(module, target), tt.build(module.bind({"i": np.array([2])}), target)
    for found in (executable.run({"x": DATA, "i": np.array([2])})["y"], bound(DATA)):
        np.testing.assert_array_equal(found, DATA[:, 2:])
    for index in (3, -1):
        with pytest.raises(RunError, match=r"out of bounds for 3 elements|out of range|indices=\[3\]"):
            executable.run({"x": DATA, "i": np.array([index])})
