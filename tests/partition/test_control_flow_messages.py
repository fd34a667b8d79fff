"""What is said of control flow that a target cannot run."""

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
    ("kind", "written"), [("llvm", "[leaf=llvm](host=@leaf)"), ("openvino", "[leaf=openvino](host=llvm)")]
)
def test_control_flow_on_a_single_leaf_is_refused_with_the_target_that_runs_it(kind, written):
    model = onnx.parser.parse_model(MODEL)
    with pytest.raises(InfeasibleError, match="nothing drives a single leaf") as refused:
        tt.decompose(model, kind)
    assert f"write it as {written}, whose host runs If" in str(refused.value)
    assert tt.decompose(model, written).subgraphs
