"""Products of 8-bit integers: results on llvm and numpy, and the types in which kernels of llvm read their operands."""

from itertools import cycle

import numpy as np
import onnx
import pytest

import tvmtarget as tt
from tvmtarget.backends.machine import native_code_mismatch

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


def schedule(model, target):
    """Return the scheduled functions of a model, and why others are not."""
    import tvm

    from tvmtarget.backends.tvm.backend import _prepared
    from tvmtarget.backends.tvm.cpu_schedule import legal_passes, schedule_functions, vector_unit
    from tvmtarget.backends.tvm.onnx_import import import_onnx

    with target, tvm.transform.PassContext(opt_level=3):
        module = import_onnx(*_prepared(onnx.shape_inference.infer_shapes(model)))
        module = tvm.transform.Sequential(legal_passes(target))(module)
        return schedule_functions(module, vector_unit(target))


def test_kernels_of_integer_products_read_narrow_operands_in_vectors():
    import tvm

    scheduled, unscheduled = schedule(example()[0], tvm.target.Target("llvm"))
    assert unscheduled == {}
    products = [one.script() for name, one in scheduled.functions_items() if "matmul" in name.name_hint]
    assert len(products) == 4
    for text in products:
        signature = text.partition("def ")[2].partition("\n")[0]
        operands = signature.split("T.Buffer")[1:3]
        assert all('"int32"' not in one for one in operands), signature
        assert "T.vectorized" in text


# Products with constant weights, which are summed in pairs

ROWS = [(1,), (2,), (5,), (7,), (3, 5), (1, 13), (4, 1), (2, 1, 3)]


def multiplied(shape, terms, columns, *, kind="uint8", weights="int8", zero=7, sizes=None):
    """Return a model of a MatMulInteger with constant weights, its input, and the exact result."""
    low = 0 if kind == "uint8" else -128
    q = RANDOM.integers(low, low + 256, (*shape, terms)).astype(kind)
    w = RANDOM.integers(*((0, 256) if weights == "uint8" else (-128, 128)), (terms, columns)).astype(weights)
    dims = ",".join(map(str, sizes or shape))
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g ({kind}[{dims},{terms}] q) => (int32[{dims},{columns}] y)'
        "{ y = MatMulInteger(q, w, one, other) }"
    )
    constants = {"w": w, "one": np.array(zero, kind), "other": np.array(3, weights)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    return model, {"q": q}, (q.astype("int64") - zero) @ (w.astype("int64") - 3)


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=x86-64-v4", "llvm -mcpu=x86-64", "llvm -mcpu=znver4"])
@pytest.mark.parametrize("weights", ["int8", "uint8"])
def test_sums_in_pairs_are_exact(target, weights):
    reason = native_code_mismatch(tt.Target.parse(target))
    if reason is not None:
        pytest.skip(reason)
    cases = [*((one, 24, 32) for one in ROWS), ((6,), 33, 16), ((9,), 1, 48), ((5,), 40, 10)]
    # Weights of the other type have the other kind of rows.
    kinds = cycle(("uint8", "int8") if weights == "int8" else ("int8", "uint8"))
    for (shape, terms, columns), kind in zip(cases, kinds, strict=False):
        model, inputs, expected = multiplied(shape, terms, columns, kind=kind, weights=weights)
        found = tt.build(model, target, cache=False).run(inputs)["y"]
        np.testing.assert_array_equal(found, expected, err_msg=f"{shape} {terms} {columns} {kind}")


def test_sums_in_pairs_are_exact_for_open_sizes():
    model = multiplied((2, 3), 24, 32, sizes=("batch", "rows"))[0]
    executable = tt.build(model, "llvm", cache=False)
    w = onnx.numpy_helper.to_array(model.graph.initializer[0]).astype("int64")
    for shape in ((1, 1), (2, 7), (3, 0), (0, 4), (1, 130)):
        q = RANDOM.integers(0, 256, (*shape, 24)).astype("uint8")
        np.testing.assert_array_equal(executable.run({"q": q})["y"], (q.astype("int64") - 7) @ (w - 3))


def convolved(channels, columns, size, window, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), *, opens=False):
    """Return a model of a convolution of dequantized values, and its input."""
    attributes = f"strides={[*strides]}, pads={[*pads]}, dilations={[*dilations]}"
    dims = f"batch, {channels}, height, width" if opens else f"2, {channels}, {size[0]}, {size[1]}"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (uint8[{dims}] q) => (float y)'
        "{ d = DequantizeLinear(q, s, z)  v = DequantizeLinear<axis=0>(w, ws, wz)"
        f"  c = Conv<{attributes}>(d, v, b)  y = Relu(c) }}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    constants = {
        "w": RANDOM.integers(-128, 128, (columns, channels, *window)).astype("int8"),
        "ws": RANDOM.random(columns, "float32") / 64,
        "wz": np.zeros(columns, "int8"),
        "s": np.array(0.03125, "float32"),
        "z": np.array(131, "uint8"),
        "b": RANDOM.standard_normal(columns).astype("float32"),
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    return onnx.shape_inference.infer_shapes(model), RANDOM.integers(0, 256, (2, channels, *size)).astype("uint8")


WINDOWS = {
    "1 x 1": (16, 32, (9, 7), (1, 1)),
    "padded": (16, 16, (9, 14), (3, 3), (2, 2), (1, 1, 1, 1)),
    "odd channels": (5, 32, (8, 11), (3, 2), (1, 1), (0, 1, 2, 0)),
    "dilated": (4, 16, (13, 12), (3, 3), (1, 2), (2, 2, 2, 2), (2, 2)),
    "one column": (8, 16, (10, 3), (3, 3)),
    "one result": (8, 16, (3, 3), (3, 3)),
    "more padding than image": (6, 16, (1, 2), (2, 2), (3, 3), (3, 3, 3, 3)),
}


@pytest.mark.parametrize("opens", [False, True], ids=["static", "open"])
@pytest.mark.parametrize("case", WINDOWS.values(), ids=WINDOWS)
def test_convolutions_of_integers_equal_those_of_floats(case, opens):
    model, q = convolved(*case, opens=opens)
    expected = tt.build(model, "numpy", allow_interpreter=True).run({"q": q})["y"]
    found = tt.build(model, "llvm -disable-winograd=1", cache=False).run({"q": q})["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("mcpu", ["x86-64", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("opens", [False, True], ids=["static", "open"])
def test_kernels_of_pairs_are_scheduled(mcpu, opens):
    import tvm

    target = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu})
    for model in (convolved(*WINDOWS["padded"], opens=opens)[0], multiplied((7,), 24, 32, sizes=("n",) * opens)[0]):
        scheduled, unscheduled = schedule(model, target)
        assert unscheduled == {}
        (text,) = (one.script() for name, one in scheduled.functions_items() if "in_pairs" in name.name_hint)
        assert "T.Shuffle(" in text


def test_other_cpus_have_no_pairs():
    import tvm

    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    scheduled, _ = schedule(convolved(*WINDOWS["padded"])[0], target)
    assert not any("in_pairs" in name.name_hint for name in scheduled.get_global_vars())


def integer_convolution():
    """Return a model of ConvIntegers that Winograd's algorithm could compute, and its inputs."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (uint8[1,32,20,20] q, uint8 z, uint8[1] one)'
        " => (int32[1,32,20,20] y, int32[1,32,20,20] with_one, int32[1,32,20,20] with_constant,"
        " int32[1,32,20,20] without)"
        "{ y = ConvInteger<pads=[1,1,1,1]>(q, w, z, wz)  with_one = ConvInteger<pads=[1,1,1,1]>(q, w, one, wz)"
        "  with_constant = ConvInteger<pads=[1,1,1,1]>(q, w, wz, wz)"
        "  without = ConvInteger<pads=[1,1,1,1]>(q, w) }"
    )
    constants = {"w": RANDOM.integers(0, 256, (32, 32, 3, 3)).astype("uint8"), "wz": np.array(128, "uint8")}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    q = RANDOM.integers(0, 256, (1, 32, 20, 20)).astype("uint8")
    return model, {"q": q, "z": np.array(37, "uint8"), "one": np.array([41], "uint8")}


def test_convolutions_of_integers_are_exact():
    model, inputs = integer_convolution()
    expected = tt.build(model, "numpy", allow_interpreter=True).run(inputs)
    found = tt.build(model, "llvm", cache=False).run(inputs)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("triple", ["aarch64-linux-gnu", "x86_64-linux-gnu"])
def test_minimal_filtering_computes_no_integers(triple):
    import tvm

    target = tvm.target.Target({"kind": "llvm", "mtriple": triple})
    scheduled, _ = schedule(integer_convolution()[0], target)
    assert not any("winograd" in name.name_hint for name in scheduled.get_global_vars())


def test_exact_sums_are_converted_to_integers_in_one_operation():
    """TVM's importer wraps those that do not fit, in nine operations, which take longer to compile than the sums."""
    import tvm

    scheduled, _ = schedule(integer_convolution()[0], tvm.target.Target("llvm"))
    names = [name.name_hint for name in scheduled.get_global_vars()]
    assert any("conv2d" in name for name in names)
    assert not any("isfinite" in name or "floor_mod" in name for name in names)
