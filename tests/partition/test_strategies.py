"""What strategies support, and that the table of TVM's operators covers the installed importer."""

import numpy as np
import pytest
from models import LIGHT, light, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.flat_program import normalise
from tvmtarget.support import tvm_rules
from tvmtarget.support.registry import strategy_for
from tvmtarget.support.strategy import Op, Reject, Strategy, reject


def verdicts(model, kind):
    """Return what a kind says of each operation of a model, by name."""
    program = normalise(tt.IRModule.from_onnx(model), tt.Target(kind), {})
    strategy = strategy_for(kind)
    return {call.source: strategy.check(program.op(index)) for index, call in enumerate(program.body)}


def test_tvm_has_a_converter_for_every_operator_in_the_table():
    frontend = pytest.importorskip("tvm.relax.frontend.onnx.onnx_frontend", reason="pip install 'tvmtarget[tvm]'")
    assert set(tvm_rules.RULES) <= set(frontend._get_convert_map())


@pytest.mark.parametrize("name", LIGHT)
@pytest.mark.parametrize("kind", ["llvm", "numpy", "onnxruntime"])
def test_every_kind_takes_the_light_models(name, kind):
    assert set(verdicts(light(name), kind).values()) == {None}


@pytest.mark.parametrize(
    ("node", "constants", "code"),
    [
        (helper.make_node("Unsqueeze", ["x", "z"], ["y"], name="op"), {}, "NEED_CONST"),
        (helper.make_node("RNN", ["x", "x", "x"], ["y"], name="op", hidden_size=2), {}, "NEED_CONST"),
        (helper.make_node("DFT", ["x"], ["y"], name="op", onesided=1, inverse=1), {}, "ATTR"),
    ],
)
def test_tvm_is_not_given_what_it_cannot_do(node, constants, code):
    model = small(node, inputs=("x",), **constants)
    if "z" in node.input:
        model.graph.input.append(helper.make_tensor_value_info("z", 7, [2]))
    rejection = verdicts(model, "llvm")["op"]
    assert isinstance(rejection, Reject)
    assert rejection.code == code


@pytest.mark.parametrize(("operand", "is_decided"), [("%t", True), ("%z", False)])
def test_operands_that_sizes_decide_have_static_shapes_as_their_fix(operand, is_decided):
    """Static sizes do not help where the operand is an input."""
    text = f"""func @main(%x: float32[n,6], %z: int64[1]) -> (float32[?,?,?]) opsets(onnx=17) {{
      %t: int64[1] = onnx.Shape(%x) {{end=1}} as shape
      %y: float32[?,?,?] = onnx.Unsqueeze(%x, {operand}) as op
      return %y
    }}"""
    with pytest.raises(InfeasibleError, match="make it an initializer") as error:
        tt.decompose(tt.IRModule.parse(text), "llvm")
    assert ("--dim NAME=N" in str(error.value)) is is_decided


def test_operators_of_foreign_domains_are_not_taken_for_onnx():
    model = small(helper.make_node("Relu", ["x"], ["y"], name="op", domain="my.own"))
    model.opset_import.append(helper.make_opsetid("my.own", 1))
    for kind in ("llvm", "numpy", "onnxruntime"):
        assert verdicts(model, kind)["op"].code == "NO_RULE"


def test_a_strategy_is_a_few_lines():
    """The example of `docs/plugins.md`."""

    class Npu(Strategy):
        ops = frozenset({"Relu", "MatMul"})
        dtypes = frozenset({"float32"})

        def check_op(self, op: Op) -> Reject | None:
            if op.kind == "MatMul" and not op.is_constant(1):
                return reject("NEED_CONST", "the second operand is computed at run time")
            return None

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="fixed"),
        helper.make_node("MatMul", ["a", "a"], ["b"], name="free"),
        helper.make_node("Tanh", ["b"], ["y"], name="tanh"),
    ]
    program = normalise(
        tt.IRModule.from_onnx(small(*nodes, shape=(3, 3), w=np.eye(3, dtype="float32"))), tt.Target("numpy"), {}
    )
    codes = [getattr(Npu().check(program.op(index)), "code", None) for index in range(3)]
    assert codes == [None, "NEED_CONST", "NO_RULE"]
