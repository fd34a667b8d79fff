"""ScatterElements with fewer indices than elements, and of truth values, on llvm."""

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


def test_torch_writes_maxima_before_onnx_has_them():
    text = 'g (float[4] x, int64[6] i, float[6] u) => (float[4] y) { y = ScatterElements<reduction="max">(x, i, u) }'
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    given = {"x": np.zeros(4, "float32"), "i": np.array([0, 1, 1, 3, 3, 3]), "u": np.arange(-2, 4, dtype="float32")}
    np.testing.assert_array_equal(tt.build(tt.IRModule.from_onnx(proto), "llvm").run(given)["y"], [0, 0, 0, 3])


@pytest.mark.parametrize(("version", "first", "second"), [(16, "add", "mul"), (18, "max", "min")])
def test_truth_values_are_reduced(version, first, second):
    proto = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {version}]>
        g (bool[n, 3] x, int64[4, 3] i, int64[4, 1] j, bool[4, 3] u) => (bool[n, 3] y, bool[n, 3] z) {{
            y = ScatterElements <reduction = "{first}"> (x, i, u)
            z = ScatterND <reduction = "{second}"> (x, j, u) }}""")
    random = np.random.default_rng(0)
    given = {name: random.random((rows, 3)) < 0.5 for name, rows in (("x", 5), ("u", 4))}
    given |= {"i": random.integers(-5, 5, (4, 3)), "j": random.integers(-5, 5, (4, 1))}
    found = tt.build(tt.IRModule.from_onnx(proto), "llvm").run(given)
    for name, expected in zip("yz", ReferenceEvaluator(proto).run(None, given), strict=True):
        np.testing.assert_array_equal(found[name], expected)
