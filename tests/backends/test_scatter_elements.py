"""ScatterElements with fewer indices than elements, on llvm."""

import numpy as np
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import tvmtarget as tt

pytest.importorskip("tvm")


@pytest.mark.parametrize(
    ("data", "updates", "axis"), [("4, 3, 5", "2, 1, 5", 2), ("n, 3, m", "n, a, b", 0)], ids=["static", "symbolic"]
)
def test_indices_that_are_fewer_along_other_axes(data, updates, axis):
    proto = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[{data}] x, int64[{updates}] i, float[{updates}] u) => (float[{data}] y)
        {{ y = ScatterElements <axis: int = {axis}, reduction: string = "add"> (x, i, u) }}""")
    random = np.random.default_rng(0)
    shape, few = (4, 3, 5), (2, 1, 5) if axis else (4, 2, 3)
    given = {
        "x": random.standard_normal(shape, "float32"),
        "i": random.integers(-shape[axis], shape[axis], few),
        "u": random.standard_normal(few, "float32"),
    }
    program = tt.build(tt.IRModule.from_onnx(proto), "llvm")
    np.testing.assert_allclose(program.run(given)["y"], ReferenceEvaluator(proto).run(None, given)[0], rtol=1e-5)
    given["i"][0, 0, 0] = shape[axis]
    with pytest.raises(tt.TvmTargetError, match="out of bounds"):
        program.run(given)
