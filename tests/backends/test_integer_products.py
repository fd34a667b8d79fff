"""Products of 8-bit integers: results on llvm and numpy, and the types in which kernels of llvm read their operands."""

import numpy as np
import onnx
import pytest

import tvmtarget as tt

pytest.importorskip("tvm")

RANDOM = np.random.default_rng(18)
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[5,24] x, uint8[3,5,24] q, uint8[24,8] v, uint8[5] rows, uint8 one)
  => (float[5,8] y, int32[3,5,8] a, int32[3,5,8] b, int32[5,8] c)
{
  p, s, z = DynamicQuantizeLinear(x)
  products = MatMulInteger(p, w, z, columns)
  floats = Cast<to=1>(products)
  scale = Mul(s, ws)
  scaled = Mul(floats, scale)
  y = Add(scaled, bias)
  a = MatMulInteger(q, w, one)
  b = MatMulInteger(q, v)
  first = Gather<axis=0>(q, index)
  c = MatMulInteger(first, v, rows, one)
}
"""


def example():
    """Return a model with zero points in all forms, and its inputs."""
    model = onnx.parser.parse_model(MODEL)
    constants = {
        "w": RANDOM.integers(-127, 128, (24, 8)).astype("int8"),
        "columns": RANDOM.integers(-9, 9, 8).astype("int8"),
        "ws": RANDOM.random(8, "float32"),
        "bias": RANDOM.random(8, "float32"),
        "index": np.array(1),
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    inputs = {
        "x": RANDOM.standard_normal((5, 24)).astype("float32"),
        "q": RANDOM.integers(0, 256, (3, 5, 24)).astype("uint8"),
        "v": RANDOM.integers(0, 256, (24, 8)).astype("uint8"),
        "rows": RANDOM.integers(0, 256, 5).astype("uint8"),
        "one": np.array(131, "uint8"),
    }
    return model, constants, inputs


def test_integer_products_are_exact_with_all_forms_of_zero_points():
    model, constants, inputs = example()
    q, v = inputs["q"].astype("int32"), inputs["v"].astype("int32")
    expected = tt.build(model, "numpy", allow_interpreter=True).run(inputs)
    found = tt.build(model, "llvm", cache=False).run(inputs)
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5, atol=1e-4)
    for one in (expected, found):
        np.testing.assert_array_equal(one["a"], (q - 131) @ constants["w"].astype("int32"))
        np.testing.assert_array_equal(one["b"], q @ v)
        np.testing.assert_array_equal(one["c"], (q[1] - inputs["rows"].astype("int32")[:, None]) @ (v - 131))


def test_kernels_of_integer_products_read_narrow_operands_in_vectors():
    import tvm

    from tvmtarget.backends.tvm.backend import _prepared
    from tvmtarget.backends.tvm.cpu_schedule import legal_passes, schedule_functions, vector_unit
    from tvmtarget.backends.tvm.onnx_import import import_onnx

    target = tvm.target.Target("llvm")
    with target, tvm.transform.PassContext(opt_level=3):
        module = import_onnx(*_prepared(onnx.shape_inference.infer_shapes(example()[0])))
        module = tvm.transform.Sequential(legal_passes(target))(module)
        scheduled, unscheduled = schedule_functions(module, vector_unit(target))
    assert unscheduled == {}
    products = [one.script() for name, one in scheduled.functions_items() if "matmul" in name.name_hint]
    assert len(products) == 4
    for text in products:
        signature = text.partition("def ")[2].partition("\n")[0]
        operands = signature.split("T.Buffer")[1:3]
        assert all('"int32"' not in one for one in operands), signature
        assert "T.vectorized" in text
