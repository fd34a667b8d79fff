"""Sums of 16-bit floats, against ONNX's reference evaluator in float64."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tvmtarget as tt
from tvmtarget.backends.float_accumulation import ACCUMULATING, accumulate_in_float32
from tvmtarget.backends.operator_expansion import EXPANSIONS
from tvmtarget.backends.reference_fixes import FIXES

ROWS, SIDE = (2, 4096), 64
DTYPES = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: ml_dtypes.bfloat16, TensorProto.DOUBLE: "float64"}
REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Mean", "Prod", "Sum", "SumSquare")
# name: (operator, operands, attributes)
CASES = {
    **{f"Reduce{name}": (f"Reduce{name}", ["rows", "last"], {}) for name in REDUCTIONS},
    "MatMul": ("MatMul", ["rows", "column"], {}),
    "MatMul of inputs": ("MatMul", ["rows", "transposed"], {}),
    "Gemm": ("Gemm", ["rows", "column", "one"], {}),
    "Conv": ("Conv", ["image", "kernel"], {}),
    "ConvTranspose": ("ConvTranspose", ["image", "small"], {}),
    "AveragePool": ("AveragePool", ["image"], {"kernel_shape": [SIDE, SIDE]}),
    "GlobalAveragePool": ("GlobalAveragePool", ["image"], {}),
    "LpPool": ("LpPool", ["image"], {"kernel_shape": [SIDE, SIDE]}),
    "LayerNormalization": ("LayerNormalization", ["rows", "scales"], {}),
    "RMSNormalization": ("RMSNormalization", ["rows", "scales"], {}),
    "GroupNormalization": ("GroupNormalization", ["image", "pair", "pair"], {"num_groups": 1}),
    "InstanceNormalization": ("InstanceNormalization", ["image", "pair", "pair"], {}),
    "BatchNormalization": ("BatchNormalization", ["image", *["pair"] * 4], {}),
    "LpNormalization": ("LpNormalization", ["rows"], {}),
    "Softmax": ("Softmax", ["rows"], {}),
    "LogSoftmax": ("LogSoftmax", ["rows"], {}),
    "CumSum": ("CumSum", ["rows", "axis"], {}),
    "Einsum": ("Einsum", ["rows", "rows"], {"equation": "ab,cb->ac"}),
    "Attention": ("Attention", ["heads", "heads", "heads"], {}),
    # Generated code computes these in float32 for another reason.
    "Atan": ("Atan", ["rows"], {}),
    "Elu": ("Elu", ["rows"], {}),
    "LRN": ("LRN", ["image"], {"size": 3}),
}


def values(dtype):
    """Return inputs and constants; they are exact in all types, and sums of 1.5 stop growing early in 16 bits."""
    inputs = {
        "rows": np.full(ROWS, 1.5),
        "transposed": np.full(ROWS[::-1], 0.25),
        "image": np.full((1, 2, SIDE, SIDE), 1.5) * np.resize([1, 3, 0.5], SIDE),
        "heads": np.full((1, 1, 1024, 16), 1.5),
    }
    constants = {
        "column": np.full((ROWS[1], 1), 0.5),
        "one": np.ones(1),
        "kernel": np.full((1, 2, SIDE, SIDE), 0.25),
        "small": np.full((2, 1, 3, 3), 0.25),
        "scales": np.full(ROWS[1], 2.0),
        "pair": np.array([1.0, 2.0]),
    }
    converted = [{name: array.astype(DTYPES[dtype]) for name, array in kind.items()} for kind in (inputs, constants)]
    return converted[0], converted[1] | {"last": np.array([1]), "axis": np.array(1)}


def model(names, dtype):
    inputs, constants = values(dtype)
    nodes = [helper.make_node(CASES[name][0], CASES[name][1], [name], name=name, **CASES[name][2]) for name in names]
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, dtype, array.shape) for name, array in inputs.items() if name in used],
        [helper.make_tensor_value_info(name, dtype, None) for name in names],
        [numpy_helper.from_array(array, name) for name, array in constants.items() if name in used],
    )
    opset = 23 if any(CASES[name][0] in ("Attention", "RMSNormalization") for name in names) else 22
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def expected(names):
    wide = model(names, TensorProto.DOUBLE)
    inputs, _ = values(TensorProto.DOUBLE)
    evaluator = ReferenceEvaluator(wide, new_ops=FIXES)
    with np.errstate(over="ignore"):
        return dict(zip(names, evaluator.run(None, {one: inputs[one] for one in evaluator.input_names}), strict=True))


def check(names, dtype, target):
    narrow, (inputs, _) = model(names, dtype), values(dtype)
    program = tt.build(tt.IRModule.from_onnx(narrow), target)
    found = program.run({value.name: inputs[value.name] for value in narrow.graph.input})
    for name, right in expected(names).items():
        assert found[name].dtype == DTYPES[dtype]
        with np.errstate(over="ignore"):
            right = right.astype(DTYPES[dtype]).astype("float64")
        share = float(ml_dtypes.finfo(DTYPES[dtype]).eps) * 2
        scale = np.abs(right[np.isfinite(right)]).max(initial=0)
        np.testing.assert_allclose(found[name].astype("float64"), right, share, share * scale, err_msg=name)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_numpy_adds_in_float32(dtype):
    check(list(CASES), dtype, "numpy")


def test_generated_code_adds_in_float32():
    names = ["MatMul", "GlobalAveragePool", "InstanceNormalization", "Softmax", "Atan", "LRN"]
    check(names, TensorProto.FLOAT16, "llvm")


@pytest.mark.slow
def test_all_operators_of_generated_code_add_in_float32():
    names = [name for name in CASES if llvm_supports(name)]
    assert len(names) > 18, names
    check(names, TensorProto.FLOAT16, "llvm")


def llvm_supports(name):
    try:
        tt.decompose(tt.IRModule.from_onnx(model([name], TensorProto.FLOAT16)), "llvm")
    except tt.TvmTargetError:
        return False
    return True


def test_shared_constants_and_bodies_are_widened_and_other_models_kept():
    def value(name, dtype=TensorProto.FLOAT16, shape=(2,)):
        return helper.make_tensor_value_info(name, dtype, shape)

    body = helper.make_graph([helper.make_node("ReduceSum", ["w"], ["s"], keepdims=0)], "b", [], [value("s", shape=())])
    nodes = [
        helper.make_node("Softmax", ["w"], ["a"]),
        helper.make_node("Add", ["a", "w"], ["y"]),
        helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body),
    ]
    weight = numpy_helper.from_array(np.array([1, 2], "float16"), "w")
    graph = helper.make_graph(
        nodes, "g", [value("c", TensorProto.BOOL, ())], [value("y"), value("z", shape=())], [weight]
    )
    narrow = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    wide = accumulate_in_float32(narrow)
    onnx.checker.check_model(wide, full_check=True)
    assert [node.op_type for node in wide.graph.node] == ["Softmax", "Cast", "Add", "If"]
    assert [node.op_type for node in wide.graph.node[3].attribute[0].g.node] == ["Cast", "ReduceSum", "Cast"]
    assert accumulate_in_float32(wide) is wide
    y, z = ReferenceEvaluator(wide).run(None, {"c": np.array(True)})
    assert (y.dtype, z.dtype, float(z)) == (np.float16, np.float16, 3.0)


def test_every_accumulating_operator_is_one_of_onnx_or_written_as_others():
    assert {schema.name for schema in onnx.defs.get_all_schemas()} | set(EXPANSIONS) >= ACCUMULATING


@pytest.mark.parametrize(
    ("kind", "operands", "attributes"),
    [
        ("ReduceLogSumExp", ["zeros", "last"], {}),
        ("LpNormalization", ["rows"], {"p": 1}),
        ("com.microsoft::SkipLayerNormalization", ["rows", "zeros", "scales"], {}),
        ("com.microsoft::SkipSimplifiedLayerNormalization", ["rows", "zeros", "scales"], {}),
        ("com.microsoft::FusedMatMul", ["rows", "column"], {"alpha": 1 / 1024}),
    ],
)
def test_what_is_between_the_steps_of_an_expansion_does_not_overflow(kind, operands, attributes):
    rows = np.tile(np.array([900, -700, 20, 20], "float16"), (2, 17500))
    arrays = {"rows": rows, "zeros": np.zeros_like(rows), "column": np.resize(np.float16([40, 0]), (70000, 1))}
    constants = {"last": np.array([1]), "scales": np.ones(70000, "float16")}
    domain, _, name = kind.rpartition("::")
    node = helper.make_node(name, operands, ["y"], domain=domain, **attributes)
    inputs = [
        helper.make_tensor_value_info(one, TensorProto.FLOAT16, arrays[one].shape) for one in operands if one in arrays
    ]
    initializers = [numpy_helper.from_array(constants[one], one) for one in operands if one in constants]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", inputs, outputs, initializers)
    module = tt.IRModule.from_onnx(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    feeds = {one.name: arrays[one.name] for one in inputs}
    (found,), (right,) = (tt.build(module, kind).run(feeds).values() for kind in ("llvm", "onnxruntime"))
    np.testing.assert_allclose(found.astype("float32"), right.astype("float32"), rtol=2e-3)
