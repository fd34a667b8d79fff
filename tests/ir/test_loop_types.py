"""Sizes in bodies of loops that state none: those of the first iteration, where the body keeps them."""

import numpy as np
import onnx
import onnxruntime
import pytest
from models import small
from onnx import TensorProto, helper

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError
from tvmtarget.ir.constant_folding import fold_constants

node = helper.make_node


def loop(nodes, states, stacked=(), shape=None):
    """Return a Loop over `n` of values that all begin with `x`: its body reads `s_in`, and computes `s_out`."""

    def value(name, dtype=TensorProto.FLOAT, dims=None):
        return helper.make_tensor_value_info(name, dtype, dims)

    params = [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, [])]
    params += [value(f"{one}_in", dims=shape) for one in states]
    results = [value("kept", TensorProto.BOOL, []), *(value(f"{one}_out") for one in (*states, *stacked))]
    body = helper.make_graph([node("Identity", ["c"], ["kept"]), *nodes], "body", params, results)
    return node("Loop", ["n", "", *["x"] * len(states)], [*states, *stacked], name="loop", body=body)


def model(operation, shape=(2, 3), **constants):
    made = small(operation, outputs=operation.output, shape=shape, opset=18, n=np.int64(4), **constants)
    return onnx.shape_inference.infer_shapes(made)


def branches(*kinds):
    return {
        f"{name}_branch": helper.make_graph(
            [node(kind, ["s_in"], [name])], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
        )
        for name, kind in zip(("then", "else"), kinds, strict=True)
    }


WEIGHTS = np.random.default_rng(0).normal(size=(3, 3)).astype("float32")
KEEPING = {
    "a product": model(loop([node("MatMul", ["s_in", "w"], ["h"]), node("Tanh", ["h"], ["s_out"])], ["s"]), w=WEIGHTS),
    "two states and a stack": model(
        loop(
            [
                node("Add", ["s_in", "t_in"], ["s_out"]),
                node("Neg", ["t_in"], ["t_out"]),
                node("Identity", ["s_out"], ["all_out"]),
            ],
            ["s", "t"],
            ["all"],
        )
    ),
    "a branch": model(
        loop(
            [node("Greater", ["i", "one"], ["q"]), node("If", ["q"], ["s_out"], **branches("Neg", "Exp"))],
            ["s"],
        ),
        one=np.int64(1),
    ),
}
GROWING = loop([node("Concat", ["s_in", "w"], ["s_out"], axis=0)], ["s"])
BROADCAST = loop([node("Add", ["s_in", "w"], ["s_out"])], ["s"])


def types(made, name="s_in"):
    folded = fold_constants(tt.IRModule.from_onnx(made)).verify()
    ((_, body),) = next(call for call in folded.main.body if call.regions).regions
    return str(body.types[name]), str(folded.main.types["s"])


@pytest.mark.parametrize("name", KEEPING)
def test_a_body_that_keeps_the_first_shape_runs_where_all_sizes_have_to_be_known(name):
    x = np.random.default_rng(1).normal(size=(2, 3)).astype("float32")
    expected = onnxruntime.InferenceSession(KEEPING[name].SerializeToString()).run(None, {"x": x})
    for actual, wanted in zip(tt.build(KEEPING[name], "c").run({"x": x}).values(), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-6)
    assert types(KEEPING[name]) == ("float32[2,3]", "float32[2,3]")


@pytest.mark.parametrize(
    ("operation", "shape", "expected"), [(GROWING, (2, 3), "float32[?,3]"), (BROADCAST, (1, 3), "float32[?,3]")]
)
def test_dimensions_that_an_iteration_changes_stay_open(operation, shape, expected):
    made = model(operation, shape, w=WEIGHTS)
    assert types(made) == (expected, expected)
    x = np.ones(shape, "float32")
    (wanted,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(tt.build(made, "llvm")(x), wanted)
    with pytest.raises(InfeasibleError, match="the shape of 's_in' is not static"):
        tt.decompose(made, "c")


def test_symbols_hold_in_all_iterations_and_get_sizes():
    operation = loop([node("MatMul", ["s_in", "w"], ["h"]), node("Tanh", ["h"], ["s_out"])], ["s"])
    made = model(operation, ("b", 3), w=WEIGHTS)
    assert types(made, "h") == ("float32[b,3]", "float32[b,3]")
    sized = tt.specialize(tt.IRModule.from_onnx(made), {"b": 2})
    x = np.ones((2, 3), "float32")
    np.testing.assert_allclose(tt.build(sized, "c")(x), tt.build(made, "onnxruntime")(x), rtol=1e-5)


@pytest.mark.parametrize(("stated", "expected"), [((None, 3), "float32[2,3]"), ((1, 3), "float32[1,3]")])
def test_sizes_that_a_body_states_stay(stated, expected):
    assert types(model(loop([node("Neg", ["s_in"], ["s_out"])], ["s"], shape=stated)))[0] == expected


def test_bodies_within_bodies_are_folded_a_bounded_number_of_times():
    def nest(depth):
        names = [f"{name}{depth}" for name in ("i", "c", "s", "kept", "r")]
        types = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT, TensorProto.BOOL, TensorProto.FLOAT
        scalar = [None if one == TensorProto.FLOAT else [] for one in types]
        values = list(map(helper.make_tensor_value_info, names, types, scalar))
        inner = node("Concat", [names[2], "w"], [names[4]], axis=0)
        if depth:
            inner = node("Loop", ["n", "", names[2]], [names[4]], name=f"loop{depth}", body=nest(depth - 1))
        nodes = [node("Identity", [names[1]], [names[3]]), inner]
        return helper.make_graph(nodes, "body", values[:3], values[3:])

    assert types(model(node("Loop", ["n", "", "x"], ["s"], name="loop", body=nest(14)), w=WEIGHTS), "s14")
