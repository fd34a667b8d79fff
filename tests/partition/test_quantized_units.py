"""Quantized units (DequantizeLinear, operation, QuantizeLinear): cuts between sites cross quantized values."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmtarget as tt

BOARD = "[npu=float-npu,cpu=numpy](host=@cpu)"
QUANT = "[npu=int8-npu,cpu=numpy](host=@cpu)"


@tt.strategy("int8-npu")
class QuantizingNpu:
    """Takes quantization and convolutions; no other operation."""

    def check_op(self, op):
        if op.kind.rpartition("::")[2] in ("QuantizeLinear", "DequantizeLinear", "Conv", "Relu"):
            return None
        return tt.reject("NO_RULE", f"{op.kind} is not taken")


@tt.strategy("float-npu")
class FloatNpu:
    """Takes convolutions, but no quantization."""

    def check_op(self, op):
        return None if op.kind == "Conv" else tt.reject("NO_RULE", f"{op.kind} is not taken")


def quantized(nodes, *, results, dtype=np.int8, channels=4, opset=21, domain=""):
    """A module of `(kind, inputs, outputs, attrs)`; `x` is its input, `s` and `z` are scale and zero point.

    What quantizes and dequantizes is of `domain`.
    """
    elem = dtype if isinstance(dtype, int) else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    rng = np.random.default_rng(0)
    axis = np.linspace(0.01, 0.02, channels).astype(np.float32)
    zero = helper.make_tensor("z", elem, [], [0])
    constants = [
        numpy_helper.from_array(np.float32(0.05), "s"),
        zero,
        numpy_helper.from_array(rng.integers(-99, 99, (channels, channels, 1, 1), dtype=np.int8), "w8"),
        numpy_helper.from_array(axis, "ws"),
        numpy_helper.from_array(np.zeros(channels, np.int8), "wz"),
    ]
    made = [
        helper.make_node(
            kind,
            inputs,
            outputs,
            name=outputs[0],
            domain=domain if kind.endswith("uantizeLinear") else "",
            **(attrs[0] if attrs else {}),
        )
        for kind, inputs, outputs, *attrs in nodes
    ]
    shape = [1, channels, 3, 3]
    graph = helper.make_graph(
        made,
        "quantized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results],
        constants,
    )
    contrib = [helper.make_opsetid(domain, 1)] if domain else []
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *contrib], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)
    return tt.IRModule.from_onnx(model)


def q(value, out):
    return ("QuantizeLinear", [value, "s", "z"], [out])


def dq(value, out):
    return ("DequantizeLinear", [value, "s", "z"], [out])


W = ("DequantizeLinear", ["w8", "ws", "wz"], ["w"], {"axis": 0})


def conv_chain(**options):
    nodes = [q("x", "xq"), dq("xq", "xd"), W, ("Conv", ["xd", "w"], ["c"]), ("Relu", ["c"], ["r"]), q("r", "rq")]
    nodes += [dq("rq", "rd"), ("Softmax", ["rd"], ["t"]), q("t", "tq"), dq("tq", "y")]
    return quantized(nodes, results=["y"], **options)


def crossing(plan):
    """The element types of values that pass between subgraphs of different sites."""
    sites, body = plan.sites(), plan.program.body
    found = set()
    for index, call in enumerate(body):
        for output in call.outputs:
            readers = plan.program.consumers.get(output.name, ())
            if any(sites[body[one].source] != sites[body[index].source] for one in readers):
                found.add(output.type.dtype)
    return found


def unit_sites(plan, *names):
    return {plan.sites()[name] for name in names}


@pytest.mark.parametrize("costs", [None, "roofline"])
def test_a_unit_follows_its_operation_to_the_site_that_takes_it(costs):
    plan = tt.decompose(conv_chain(), QUANT, costs)
    assert unit_sites(plan, "xd", "w", "c", "r", "rq") == {"npu"}
    assert unit_sites(plan, "rd", "t", "tq") == {"cpu"}
    assert crossing(plan) == {"int8"}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT8E4M3FN])
def test_units_of_every_quantized_type_stay_together(dtype):
    plan = tt.decompose(conv_chain(dtype=dtype), QUANT)
    assert crossing(plan) <= {"int8", "uint8", "int4", "uint4", "float8e4m3fn"}
    assert unit_sites(plan, "rd", "t", "tq") == {"cpu"}


def test_units_of_the_operators_of_com_microsoft_stay_together():
    plan = tt.decompose(conv_chain(domain="com.microsoft"), "[npu=int8-npu,cpu=onnxruntime,own=numpy](host=@own)")
    assert unit_sites(plan, "xd", "w", "c", "r", "rq") == {"npu"}
    assert unit_sites(plan, "rd", "t", "tq") == {"cpu"}
    assert crossing(plan) == {"int8"}


def test_explain_says_which_operation_a_unit_follows():
    plan = tt.decompose(conv_chain(), QUANT)
    text = str(plan.explain("tq"))
    assert "it stays with 't', so that quantized values pass between sites, not float copies" in text
    assert "stays with" not in str(plan.explain("c"))


def test_an_operation_keeps_its_preferred_site_where_the_rest_of_its_unit_cannot_follow():
    plan = tt.decompose(conv_chain(), BOARD)
    assert plan.sites()["c"] == "npu"
    assert unit_sites(plan, "xd", "w", "rq", "rd") == {"cpu"}
    text = str(plan.explain("xd"))
    assert (
        "apart from 'c': SITE, it runs on @npu; a float copy of a quantized value passes, since 'xd' cannot run on @npu"
        in text
    )


def test_requirements_on_parts_of_a_unit_divide_it():
    plan = tt.decompose(conv_chain(), "[a=numpy,b=onnxruntime](host=@a)", where={"c": "@b", "xd": "@a"})
    assert plan.sites()["c"] == "b"
    assert plan.sites()["xd"] == "a"
    assert unit_sites(plan, "w") == {"b"}


def test_preferences_on_parts_of_a_unit_divide_it():
    plan = tt.decompose(conv_chain(), "[a=numpy,b=onnxruntime](host=@a)", where={"c": "@b?", "xd": "@a?"})
    assert (plan.sites()["c"], plan.sites()["xd"], plan.sites()["w"]) == ("b", "a", "b")


def residual():
    nodes = [q("x", "xq"), dq("xq", "xd"), W, ("Conv", ["xd", "w"], ["c"]), q("c", "cq"), dq("cq", "cd")]
    nodes += [("Softmax", ["cd"], ["t"]), q("t", "tq"), dq("tq", "td"), ("Add", ["td", "cd"], ["a"]), q("a", "aq")]
    nodes += [dq("aq", "y")]
    return quantized(nodes, results=["y"])


@pytest.mark.parametrize("where", [{"t": "@b"}, {"a": "@b"}, {"c": "@b"}, {"op:Add": "@b?", "op:Conv": "@b"}])
def test_a_shared_dequantization_is_computed_where_each_reader_runs(where):
    module = residual()
    plan = tt.decompose(module, "[a=numpy,b=onnxruntime](host=@a)", where=where)
    assert crossing(plan) == {"int8"}
    names = [call.source for call in plan.program.body if call.kind == "DequantizeLinear"]
    assert sorted(names) == ["cd", "cd_1", "td", "w", "xd", "y"]


def test_a_shared_dequantization_that_a_rule_names_is_not_copied():
    plan = tt.decompose(residual(), "[a=numpy,b=onnxruntime](host=@a)", where={"cd": "@b"})
    assert [name for name in plan.sites() if name.startswith("cd")] == ["cd"]


def test_one_leaf_keeps_the_module_as_it_is():
    plan = tt.decompose(residual(), "numpy")
    assert len(plan.program.body) == len(residual().main.body)


def test_decomposing_a_divided_module_changes_nothing():
    target = "[a=numpy,b=onnxruntime](host=@a)"
    plan = tt.decompose(residual(), target, where={"t": "@b"})
    assert tt.decompose(plan.module, target).module == plan.module


def test_units_with_two_results_and_two_operands_stay_together():
    nodes = [q("x", "xq"), dq("xq", "xd"), ("Split", ["xd"], ["l", "h"], {"axis": 1, "num_outputs": 2})]
    nodes += [q("l", "lq"), q("h", "hq"), dq("lq", "ld"), dq("hq", "hd"), ("Concat", ["ld", "hd"], ["k"], {"axis": 1})]
    nodes += [q("k", "kq"), dq("kq", "y")]
    module = quantized(nodes, results=["y"])
    plan = tt.decompose(module, "[a=numpy,b=onnxruntime](host=@a)", where={"l": "@b"})
    assert unit_sites(plan, "xd", "l", "lq", "hq") == {"b"}
    assert unit_sites(plan, "ld", "hd", "k", "kq") == {"a"}
    assert crossing(plan) == {"int8"}


def test_moved_data_between_dequantization_and_operation_belongs_to_the_unit():
    nodes = [q("x", "xq"), dq("xq", "xd"), ("Transpose", ["xd"], ["xt"], {"perm": [0, 1, 3, 2]}), W]
    nodes += [("Conv", ["xt", "w"], ["c"]), ("Relu", ["c"], ["r"]), ("Transpose", ["r"], ["rt"]), q("rt", "rq")]
    nodes += [dq("rq", "y")]
    module = quantized(nodes, results=["y"])
    plan = tt.decompose(module, "[a=numpy,b=onnxruntime](host=@a)", where={"c": "@b"})
    assert unit_sites(plan, "xd", "xt", "w", "c", "r", "rt", "rq") == {"b"}


def test_a_float_island_is_divided_between_its_operations():
    nodes = [q("x", "xq"), dq("xq", "xd"), ("Softmax", ["xd"], ["t"]), ("LpNormalization", ["t"], ["n"]), q("n", "nq")]
    nodes += [dq("nq", "y")]
    module = quantized(nodes, results=["y"])
    plan = tt.decompose(module, "[a=numpy,b=onnxruntime](host=@a)", where={"n": "@b"})
    assert unit_sites(plan, "xd", "t") == {"a"}
    assert unit_sites(plan, "n", "nq") == {"b"}


def test_a_computed_scale_does_not_bind_a_quantization():
    nodes = [("ReduceMax", ["x"], ["m"], {"keepdims": 0}), ("QuantizeLinear", ["x", "m", "z"], ["xq"])]
    nodes += [("DequantizeLinear", ["xq", "m", "z"], ["y"])]
    module = quantized(nodes, results=["y"])
    plan = tt.decompose(module, "[a=numpy,b=onnxruntime](host=@a)", where={"m": "@b"})
    assert plan.sites()["xq"] == "a"


def test_a_quantization_whose_scale_depends_on_its_operation_makes_no_cycle():
    nodes = [("Relu", ["x"], ["r"]), ("ReduceMax", ["r"], ["m"], {"keepdims": 0})]
    nodes += [("QuantizeLinear", ["r", "m", "z"], ["rq"]), ("DequantizeLinear", ["rq", "m", "z"], ["y"])]
    module = quantized(nodes, results=["y"])
    plan = tt.decompose(module, "[a=numpy,b=onnxruntime](host=@a)", where={"m": "@b"})
    assert plan.sites()["m"] == "b"


def test_a_boundary_in_a_unit_is_kept():
    plan = tt.decompose(conv_chain(), "[a=numpy,b=onnxruntime](host=@a)", where={"c": "@b"}, boundary_before=["c"])
    assert (plan.sites()["c"], plan.sites()["rq"], plan.sites()["xd"]) == ("b", "b", "a")


def test_operations_of_a_unit_that_are_required_apart_are_apart():
    plan = tt.decompose(conv_chain(), "[a=numpy,b=onnxruntime](host=@a)", apart=[["xd", "c"]])
    assert plan.sites()["xd"] != plan.sites()["c"]


def test_a_divided_program_computes_what_the_whole_one_does():
    module = residual()
    x = np.random.default_rng(1).normal(size=(1, 4, 3, 3)).astype(np.float32)
    plan = tt.decompose(module, "[a=numpy,b=onnxruntime](host=@a)", where={"t": "@b"})
    (whole,) = tt.build(tt.decompose(module, "onnxruntime")).run({"x": x}).values()
    (parts,) = tt.build(plan).run({"x": x}).values()
    assert np.abs(whole - parts).max() <= 0.0501  # one step of quantization
