"""What is said of control flow that a target cannot run."""

import numpy as np
import onnx
import pytest

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (bool c, float[2] x) => (float[2] y) {
  y = If (c) <
    then_branch = t () => (float[2] a) { a = Neg(x) },
    else_branch = e () => (float[2] b) { b = Abs(x) }
  >
}
"""


@pytest.mark.parametrize(
    ("leaf", "system"),
    [
        ("llvm", "composite[llvm](host=@llvm)"),
        ("openvino", "composite[openvino](host=llvm)"),
        ("llvm(name=a,executor=vm)", "composite[a=llvm](host=@a,executor=vm)"),
        ("llvm(host=llvm(num-cores=2))", "composite[llvm](host=llvm(num-cores=2))"),
    ],
)
def test_a_leaf_that_takes_no_control_flow_is_planned_as_a_system_of_it(leaf, system):
    model = onnx.parser.parse_model(MODEL)
    plan = tt.decompose(model, leaf)
    assert plan.topology.root == tt.Target.parse(system).resolve()
    given = {"c": np.array(False), "x": np.float32([1, -2])}
    np.testing.assert_array_equal(tt.build(model, leaf).run(given)["y"], [1, 2])


def test_an_operation_of_a_body_that_a_leaf_does_not_take_is_the_reason():
    model = onnx.parser.parse_model(MODEL.replace("Neg(x)", "com.own.Unknown(x)").replace("17]", '17, "com.own": 1]'))
    with pytest.raises(InfeasibleError, match="Unknown") as refused:
        tt.decompose(model, "llvm")
    assert "single leaf" not in str(refused.value)
