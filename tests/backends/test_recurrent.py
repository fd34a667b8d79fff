"""Recurrent networks on llvm and c, against onnxruntime."""

from shutil import which

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmtarget as tt

pytest.importorskip("tvm")
pytest.importorskip("onnxruntime")

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, ROWS, INPUTS, HIDDEN = 5, 3, 6, 11


def floats(rng, *shape):
    # Sums of many terms are as large as sums of few, so that no error grows from step to step.
    return rng.uniform(-1, 1, shape).astype("float32") * np.float32(min(1, 5 / shape[-1]))


def network(
    kind, *, hidden=HIDDEN, dims=("steps", "rows"), lengths=False, peepholes=False, dtype="float32", **attributes
):
    """Return a model of one recurrent operator, and inputs for it."""
    rng = np.random.default_rng(1)
    count = 2 if attributes.get("direction") == "bidirectional" else 1
    states = ["h", "c"][: 2 if kind == "LSTM" else 1]
    constants = {
        "w": floats(rng, count, GATES[kind] * hidden, INPUTS),
        "r": floats(rng, count, GATES[kind] * hidden, hidden),
        "b": floats(rng, count, 2 * GATES[kind] * hidden),
        "p": floats(rng, count, 3 * hidden),
    }
    inputs = {"x": floats(rng, STEPS, ROWS, INPUTS)} | {name: floats(rng, count, ROWS, hidden) for name in states}
    shapes = {"x": [*dims, INPUTS]} | {name: [count, dims[1], hidden] for name in states}
    names = ["x", "w", "r", "b", "lengths" if lengths else "", *states, *["p"] * peepholes]
    constants, inputs = ({name: one.astype(dtype) for name, one in each.items()} for each in (constants, inputs))
    if lengths:
        inputs["lengths"], shapes["lengths"] = np.array([2, 5, 0], "int32"), [dims[1]]
    results = ["y", "h_last", "c_last"][: len(states) + 1]
    node = helper.make_node(kind, names, results, hidden_size=hidden, **attributes)
    dtypes = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in inputs.items()}
    graph = helper.make_graph(
        [node],
        "network",
        [helper.make_tensor_value_info(name, dtypes[name], shapes[name]) for name in inputs],
        [helper.make_tensor_value_info(name, dtypes["x"], None) for name in results],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name in names],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(proto), inputs


def check(proto, inputs, target="llvm", tolerance=1e-5):
    module = tt.IRModule.from_onnx(proto)
    found, wanted = (tt.build(module, kind).run(inputs) for kind in (target, "onnxruntime"))
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("kind", GATES)
def test_steps_and_rows_may_be_symbolic(kind):
    check(*network(kind, direction="reverse"))


@pytest.mark.parametrize("kind", GATES)
def test_sequences_end_at_their_lengths(kind):
    check(*network(kind, direction="bidirectional", lengths=True))


def test_a_gru_may_apply_its_reset_gate_behind_the_product():
    check(*network("GRU", linear_before_reset=1, direction="bidirectional", lengths=True))


def test_peepholes_are_added_to_the_gates():
    check(*network("LSTM", peepholes=True, direction="bidirectional"))


@pytest.mark.parametrize(
    ("kind", "activations"),
    [("LSTM", ["Tanh", "Relu", "Sigmoid"]), ("GRU", ["Relu", "Sigmoid"]), ("RNN", ["Relu"])],
)
def test_each_direction_has_activations_of_its_own(kind, activations):
    both = [*activations, *(["Sigmoid", "Tanh", "Tanh"][: len(activations)])]
    check(*network(kind, direction="bidirectional", activations=both))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_large_networks_run_their_units_in_parallel(kind):
    check(*network(kind, hidden=440, dims=(STEPS, ROWS)))


def test_float16_is_computed_in_float32():
    check(*network("LSTM", dtype="float16"), tolerance=1e-3)


@pytest.mark.parametrize("kind", ["LSTM", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("GRU", "RNN"))])
def test_generated_c_has_the_loops_too(kind):
    check(*network(kind, dims=(STEPS, ROWS), direction="bidirectional", lengths=True), target="c")


def test_one_of_the_results_is_enough():
    proto, inputs = network("GRU", dims=(STEPS, ROWS))
    del proto.graph.output[0]
    proto.graph.node[0].output[0] = ""
    check(proto, inputs)


@pytest.mark.parametrize("target", ["numpy", "openvino"])
@pytest.mark.parametrize("kind", GATES)
def test_engines_that_ignore_lengths_are_not_given_them(kind, target):
    proto, _ = network(kind, lengths=True)
    with pytest.raises(tt.TvmTargetError, match=f"it ignores the lengths of sequences of {kind}"):
        tt.decompose(tt.IRModule.from_onnx(proto), target)


@pytest.mark.parametrize(
    ("target", "kind", "change", "reason"),
    [
        ("numpy", "GRU", {"clip": 1.0}, "GRU with clip=1.0"),
        ("numpy", "LSTM", {"activations": ["Relu", "Tanh", "Tanh"]}, "the usual activations only, Sigmoid, Tanh, Tanh"),
        ("openvino", "RNN", {"activations": ["HardSigmoid"]}, "its RNN lacks the activations HardSigmoid"),
    ],
)
def test_other_engines_refuse_what_they_compute_otherwise(target, kind, change, reason):
    proto, _ = network(kind, **change)
    with pytest.raises(tt.TvmTargetError, match=reason):
        tt.decompose(tt.IRModule.from_onnx(proto), target)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"clip": 1.0}, "GRU with clip=1.0"),
        ({"activations": ["HardSigmoid", "Tanh"]}, "GRU with the activations HardSigmoid"),
        ({"activation_alpha": [0.5]}, "GRU with activation_alpha"),
    ],
)
def test_networks_of_other_forms_are_refused(change, reason):
    proto, _ = network("GRU", **change)
    with pytest.raises(tt.TvmTargetError, match=reason):
        tt.decompose(tt.IRModule.from_onnx(proto), "llvm")


@pytest.mark.parametrize(
    "kind", ["llvm", pytest.param("c", marks=pytest.mark.skipif(not which("gcc"), reason="needs gcc"))]
)
def test_an_lstm_of_quantized_weights_rounds_inputs_and_states_as_onnxruntime_does(kind):
    random = np.random.default_rng(3)
    steps, rows, inputs, hidden = 4, 1, 6, 10
    sizes = {"w": (2, inputs, 4 * hidden), "r": (2, hidden, 4 * hidden)}
    constants = {name: random.integers(0, 256, size).astype("uint8") for name, size in sizes.items()}
    constants |= {"b": random.standard_normal((2, 8 * hidden)).astype("float32")}
    for name in "wr":
        constants |= {f"{name}s": np.float32([0.004, 0.003]), f"{name}z": np.uint8([128, 120])}
    node = helper.make_node(
        "DynamicQuantizeLSTM",
        ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"],
        ["y", "h"],
        domain="com.microsoft",
        direction="bidirectional",
        hidden_size=hidden,
    )
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yh"]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, rows, inputs])
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(
        helper.make_graph([node], "q", [given], ends, weights), opset_imports=domains, ir_version=8
    )
    x = random.standard_normal((steps, rows, inputs)).astype("float32")
    found, wanted = (tt.build(proto, one).run({"x": x}) for one in (kind, "onnxruntime"))
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5)
