"""Each rule of the IR refuses the module that breaks it, and names function, op and value."""

from dataclasses import replace

import pytest
from models import DIGITS, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.errors import ModelError, UnknownNameError
from tvmtarget.ir.types import TensorType

FLOAT = TensorType("float32", (2, 3))


def module():
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="r"), helper.make_node("Tanh", ["a"], ["y"], name="t")]
    return tt.IRModule.from_onnx(small(*nodes))


def changed(**changes):
    return tt.IRModule((module().main.replace(**changes),))


def body(*calls):
    return changed(body=calls)


RELU, TANH = module().main.body


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (body(TANH, RELU), "op 't' reads 'a' before it is computed (function 'main')"),
        (body(TANH), "op 't' reads 'a' but nothing defines it (function 'main')"),
        (body(RELU, RELU, TANH), "value 'a' is defined again by op 'r' (function 'main')"),
        (changed(results=("z",)), "result 'z' is not defined"),
        (changed(opsets=()), "operators of domain '' are used, but no version of it is stated"),
        (changed(name="other"), "the module has no function 'main'"),
        (body(RELU, replace(TANH, op="@f")), "op 't' calls '@f', which is not in the module"),
        (body(RELU, replace(TANH, op="@main")), "functions call each other in a circle: main -> main"),
        (body(RELU, replace(TANH, op="tt.copy")), "copy 't' is not from one memory to another"),
        (
            changed(constraint=tt.Constraint.parse("@gpu")).with_target("[cpu=llvm]"),
            "no node 'gpu' in target",
        ),
    ],
)
def test_a_broken_rule_is_named(broken, text):
    with pytest.raises(ModelError) as caught:
        broken.verify()
    assert text in str(caught.value)


def test_calls_must_fit_their_callee():
    callee = module().main.replace(name="f")
    call = tt.Call("@f", ("x", "x"), (tt.Value("y", FLOAT),), source="c")
    with pytest.raises(ModelError, match="'@f' takes 1 and returns 1 values, not 2 and 1"):
        tt.IRModule((module().main.replace(body=(call,)), callee)).verify()
    wide = callee.replace(params=(tt.Value("x", TensorType("float64", (2, 3))),))
    call = replace(call, inputs=("x",))
    with pytest.raises(ModelError, match=r"'@f' takes float64\[2,3\] as 'x', but 'x' is float32\[2,3\]"):
        tt.IRModule((module().main.replace(body=(call,)), wide)).verify()


def test_all_problems_come_at_once_but_not_more_than_five():
    calls = [replace(TANH, inputs=(f"q{k}",), outputs=(tt.Value(f"z{k}", FLOAT),)) for k in range(9)]
    with pytest.raises(ModelError) as caught:
        body(RELU, TANH, *calls).verify()
    lines = str(caught.value).splitlines()
    assert len(lines) == 6
    assert lines[-1] == "... and 4 more problems"


def test_modules_are_frozen_and_changed_by_replacement():
    m = module()
    with pytest.raises(AttributeError):
        m.target = None
    assert m.with_attrs(woof="woof").attrs["woof"] == "woof"
    assert m.with_target("llvm").target == tt.Target("llvm")
    assert str(m.constrain("r", "@cpu").main.body[0].constraint) == "@cpu"
    with pytest.raises(UnknownNameError, match="no op 'rr' in function 'main'; did you mean 'r'"):
        m.constrain("rr", "@cpu")
    with pytest.raises(UnknownNameError, match="no function 'mian' in the module; did you mean 'main'"):
        m["mian"]


def test_constraints_written_by_a_pass_hold():
    """REQUIREMENTS G1: a pass slices, constrains and hands the module back to build."""
    m = tt.IRModule.from_onnx(DIGITS).constrain("fc1", "numpy").constrain("fc2", "@b")
    plan = tt.decompose(m, "[a=onnxruntime,b=llvm,c=numpy]")
    assert plan.site_of("fc1") == "c"
    assert plan.site_of("fc2") == "b"
