"""Reshape of open sizes on llvm: views of the same memory."""

import numpy as np
import onnx
import pytest

import tvmtarget as tt

pytest.importorskip("tvm")

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, rows, 24] x) => (float y, float z)
  <int64[4] parts = {0, 0, 4, 6}, int64[3] joined = {0, 0, 24}, int64[2] flat = {-1, 6}>
{
  a = Relu(x)
  b = Reshape(a, parts)
  c = Transpose<perm = [0, 2, 1, 3]>(b)
  d = Reshape(c, flat)
  e = Softmax<axis = -1>(d)
  f = Shape(c)
  h = Reshape(e, f)
  i = Transpose<perm = [0, 2, 1, 3]>(h)
  j = Reshape(i, joined)
  y = Neg(j)
  z = Reshape(a, flat)
}
"""


def model():
    made = onnx.parser.parse_model(MODEL)
    for output in made.graph.output:
        output.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(made, data_prop=True)


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (3, 16), (0, 4)])
def test_views_have_the_elements_of_copies(shape):
    x = np.random.default_rng(0).standard_normal((*shape, 24)).astype("float32")
    expected = tt.build(model(), "numpy", allow_interpreter=True).run({"x": x})
    found = tt.build(model(), "llvm").run({"x": x})
    for name in ("y", "z"):
        assert found[name].shape == expected[name].shape
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)


def test_no_kernel_only_reshapes():
    import tvm

    from tvmtarget.backends.tvm.backend import _prepared
    from tvmtarget.backends.tvm.cpu_schedule import PASS_CONFIG, cpu_pipeline
    from tvmtarget.backends.tvm.onnx_import import import_onnx

    target = tvm.target.Target("llvm")
    with target, tvm.transform.PassContext(opt_level=3, config=PASS_CONFIG):
        module = cpu_pipeline(target)(import_onnx(*_prepared(model())))
    assert not any("reshape" in name.name_hint for name in module.get_global_vars())
