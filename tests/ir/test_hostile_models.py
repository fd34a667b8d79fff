"""Small ONNX files that expand: they are rejected before memory and time are spent."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmtarget as tt
from tvmtarget.errors import BackendError, ModelError, ModelFileError


def value(name, shape=("n",)):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model_of(nodes, functions=(), **graph):
    return helper.make_model(
        helper.make_graph(nodes, "g", [value("x")], [value("y")], **graph),
        functions=functions,
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)],
    )


def doubling(count, *, calls=2, first=0):
    """Return functions each of which calls the next one several times."""
    functions = []
    for at in range(first, first + count):
        last = at == first + count - 1
        nodes = [
            helper.make_node("Relu" if last else f"f{at + 1}", ["x"] if not step else [f"v{step - 1}"], [f"v{step}"],
                             domain="" if last else "mine")
            for step in range(calls)
        ]  # fmt: skip
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
        functions.append(helper.make_function("mine", f"f{at}", ["x"], [f"v{calls - 1}"], nodes, opsets))
    return functions


CALL = helper.make_node("f0", ["x"], ["y"], domain="mine")


@pytest.mark.parametrize("keep", [False, True])
def test_functions_whose_calls_multiply_are_rejected(tmp_path, keep):
    path = tmp_path / "m.onnx"
    onnx.save(model_of([CALL], doubling(28)), path)
    assert path.stat().st_size < 10_000
    problem = r"'f\d+' of '.*m.onnx' has 1,048,574 operations, more than the limit of 1,000,000; TVMTARGET_MAX_MODEL_OP"
    with pytest.raises(ModelFileError, match=problem):
        tt.IRModule.from_onnx(path, keep_functions=keep)


def test_functions_that_call_each_other_are_rejected():
    functions = doubling(3, calls=1)
    functions[-1].node[0].domain, functions[-1].node[0].op_type = "mine", "f0"
    with pytest.raises(ModelError, match="calls itself"):
        tt.IRModule.from_onnx(model_of([CALL], functions))


def test_functions_that_call_each_other_deeply_are_rejected():
    with pytest.raises(ModelFileError, match="levels, more than the limit of 64"):
        tt.IRModule.from_onnx(model_of([CALL], doubling(300, calls=1)))


def test_functions_whose_calls_multiply_within_the_limit_are_read():
    module = tt.IRModule.from_onnx(model_of([CALL], doubling(6)))
    assert len(module.main.body) == 64


def test_bodies_that_are_nested_deeply_are_rejected():
    """Protobuf itself rejects such bytes."""
    model = model_of([])
    graph = model.graph
    for _ in range(1000):
        node = graph.node.add(op_type="If", input=["c"], output=["y"])
        attribute = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH)
        graph = attribute.g
        graph.name = "body"
    with pytest.raises(ModelFileError, match="has 65 levels, more than the limit of 64"):
        tt.IRModule.from_onnx(model)


@pytest.mark.parametrize("target", ["llvm", "numpy", "onnxruntime", "[a=llvm,b=numpy]"])
def test_a_tensor_that_exceeds_all_memory_is_rejected_at_build(target):
    shape = helper.make_tensor("s", TensorProto.INT64, [1], [2**60])
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["z"], name="huge"), helper.make_node("Relu", ["z"], ["y"])]
    model = model_of(nodes, initializer=[shape])
    with pytest.raises((BackendError, ModelError), match=r"op 'huge' .*4 EiB, more than"):
        tt.build(tt.IRModule.from_onnx(model), target)


def test_limits_of_models_are_raised_by_the_environment(monkeypatch):
    model = model_of([CALL], doubling(6))
    monkeypatch.setenv("TVMTARGET_MAX_MODEL_OPERATIONS", "63")
    with pytest.raises(ModelFileError, match="limit of 63"):
        tt.IRModule.from_onnx(model)
    monkeypatch.setenv("TVMTARGET_MAX_MODEL_OPERATIONS", "200")
    exe = tt.build(tt.IRModule.from_onnx(model), "numpy")
    assert np.array_equal(exe(np.float32([-1, 2])), np.float32([0, 2]))


MUL = [helper.make_node("Mul", [f"n{at}", f"n{at}"], [f"n{at + 1}"]) for at in range(6)]
LONG = {
    "a result": ([helper.make_node("ConstantOfShape", ["s"], ["z"])], [2**60]),
    "a computed result": ([*MUL, helper.make_node("ConstantOfShape", ["n6"], ["z"])], [1000]),
    "a range": ([*MUL, helper.make_node("Squeeze", ["n6"], ["l"]), helper.make_node("Range", ["o", "l", "i"], ["r"]),
                 helper.make_node("Cast", ["r"], ["z"], to=1)], [1000]),
    "expanded": ([*MUL, helper.make_node("Expand", ["f", "n6"], ["z"])], [1000]),
}  # fmt: skip


@pytest.mark.parametrize("kind", LONG)
def test_vectors_of_any_length_are_not_propagated(kind):
    """ONNX's data propagation keeps a message for each of their elements."""
    nodes, length = LONG[kind]
    constants = [helper.make_tensor(name, TensorProto.INT64, [1], length) for name in ("s", "n0")]
    constants += [helper.make_tensor(name, TensorProto.INT64, [], [at]) for at, name in enumerate("oi")]
    constants.append(helper.make_tensor("f", TensorProto.FLOAT, [1], [1.0]))
    model = model_of([*nodes, helper.make_node("Add", ["x", "z"], ["y"])], initializer=constants)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert tt.IRModule.from_onnx(model).main.types["z"] is not None


def test_an_input_of_any_length_is_not_propagated():
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])], "g", [value("x", [2**60])], [value("y", [2**60])]
    )
    assert tt.IRModule.from_onnx(helper.make_model(graph)).main.types["y"].shape == (2**60,)


def test_computed_shapes_are_propagated_in_a_process_of_their_own():
    """The products could be large, but are not: 3 * 3 elements."""
    nodes = [
        helper.make_node("Mul", ["a", "big"], ["p"]),
        helper.make_node("Div", ["p", "big"], ["q"]),
        helper.make_node("Mul", ["a", "a"], ["n"]),
        helper.make_node("Reshape", ["m", "n"], ["z"]),
        helper.make_node("Relu", ["z"], ["y"]),
    ]
    constants = [helper.make_tensor(name, TensorProto.INT64, [1], [size]) for name, size in (("a", 3), ("big", 2**20))]
    graph = helper.make_graph(nodes, "g", [value("m", [3, 3])], [value("y", ["k"])], initializer=constants)
    assert tt.IRModule.from_onnx(helper.make_model(graph)).main.types["z"].shape == (9,)
