"""Quantized constants in generated C: they stay quantized, and results are those of floats, bit for bit."""

import re
import shutil

import numpy as np
import pytest
from models import inputs_of, small
from onnx import ModelProto, helper, numpy_helper

import tvmtarget as tt

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

HOST = "c(executor=aot,runtime=crt)"
BOARD = "c(mcpu=cortex-m55,executor=aot,runtime=crt)"


def weighted(op, shape, weights, *, scales=1, axis=0, zero=0, after=(), **attributes):
    """Return an operation on x and on weights that are dequantized, by `scales` scales along an axis."""
    rng = np.random.default_rng(0)
    info = np.iinfo(weights.dtype)
    values = rng.integers(info.min, info.max, weights.shape, endpoint=True).astype(weights.dtype)
    scale = (rng.random(scales) / 64 + 0.001).astype("float32")
    zeros = np.full(scales, zero, weights.dtype)
    nodes = [
        helper.make_node(
            "DequantizeLinear", ["w", "scale", "zero"], ["floats"], **({"axis": axis} if scales > 1 else {})
        ),
        *after,
        helper.make_node(op, ["x", after[-1].output[0] if after else "floats"], ["y"], **attributes),
    ]
    flat = [array.reshape(()) if scales == 1 else array for array in (scale, zeros)]
    return small(*nodes, shape=shape, w=values, scale=flat[0], zero=flat[1])


def of(dtype, *shape):
    return np.empty(shape, dtype)


TURNED = [helper.make_node("Transpose", ["floats"], ["turned"], perm=[1, 0])]
MODELS = {
    "convolution": weighted("Conv", (1, 4, 9, 9), of("int8", 8, 4, 3, 3), pads=[1] * 4),
    "convolution, a scale for each channel": weighted("Conv", (2, 4, 9, 9), of("int8", 16, 4, 3, 3), scales=16),
    "convolution, uint8": weighted("Conv", (1, 8, 6, 6), of("uint8", 12, 8, 1, 1), zero=131),
    "convolution, int16": weighted("Conv", (1, 8, 6, 6), of("int16", 12, 8, 1, 1)),
    "convolution, odd channels": weighted("Conv", (1, 3, 7, 7), of("int8", 7, 3, 3, 3), scales=7),
    "depthwise": weighted("Conv", (1, 16, 9, 9), of("int8", 16, 1, 3, 3), group=16, scales=16),
    "groups": weighted("Conv", (1, 16, 9, 9), of("int8", 16, 4, 3, 3), group=4, zero=3),
    "convolution of rows": weighted("Conv", (1, 8, 20), of("int8", 16, 8, 3), pads=[1, 1]),
    "convolution, transposed": weighted("ConvTranspose", (1, 8, 5, 5), of("int8", 8, 12, 2, 2), strides=[2, 2]),
    "product": weighted("MatMul", (1, 24), of("int8", 24, 16)),
    "product of rows": weighted("MatMul", (24, 32), of("int8", 32, 24), scales=24, axis=1, zero=5),
    "product of batches": weighted("MatMul", (3, 4, 32), of("int8", 32, 24)),
    "gemm, transposed": weighted("Gemm", (4, 32), of("int8", 24, 32), transB=1, scales=24),
    "transposed weights": weighted("MatMul", (12, 32), of("int8", 24, 32), after=TURNED),
    "sum": weighted("Add", (4, 32), of("int8", 4, 32)),
}


def sizes_of(executable, folder):
    executable.export(folder)
    header = (folder / "include" / "tvmgen_default.h").read_text()
    return tuple(int(re.search(rf"{name}_SIZE (\d+)", header)[1]) for name in ("CONSTANTS", "WORKSPACE"))


def with_floats(model):
    """Return a model whose weights are floats."""
    copy = ModelProto()
    copy.CopyFrom(model)
    weights, scale, zero = map(numpy_helper.to_array, copy.graph.initializer)
    axis = next((one.i for one in copy.graph.node[0].attribute), 0)
    shape = [-1 if at == axis else 1 for at in range(weights.ndim)] if scale.ndim else []
    floats = (weights.astype("int32") - zero.astype("int32").reshape(shape)) * scale.reshape(shape)
    del copy.graph.initializer[:], copy.graph.node[0]
    copy.graph.initializer.append(numpy_helper.from_array(floats.astype("float32"), "floats"))
    return copy


def check_sizes(name, target, folder, more):
    """Check that constants stay as small as they are, in at most some more bytes of workspace; return both programs."""
    model = MODELS[name]
    executable, floats = (tt.build(one, target) for one in (model, with_floats(model)))
    constants, workspace = sizes_of(executable, folder / "quantized")
    assert constants < numpy_helper.to_array(model.graph.initializer[0]).nbytes + 300
    assert workspace <= sizes_of(floats, folder / "floats")[1] + more
    return executable, floats


FEW = ("convolution", "depthwise", "product of rows", "transposed weights")


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_quantized_constants_stay_quantized_and_results_are_those_of_floats(name, tmp_path):
    model = MODELS[name]
    weights = numpy_helper.to_array(model.graph.initializer[0])
    executable, floats = check_sizes(name, HOST, tmp_path, 4 * weights.size)
    given = inputs_of(model)
    np.testing.assert_array_equal(executable.run(given)["y"], floats.run(given)["y"])


def test_objects_of_llvm_read_quantized_constants_too():
    model = MODELS["product of batches"]
    given, target = inputs_of(model), "llvm(executor=aot,runtime=crt(system-lib=true))"
    quantized, floats = (tt.build(one, target).run(given)["y"] for one in (model, with_floats(model)))
    np.testing.assert_array_equal(quantized, floats)


@pytest.mark.slow
def test_functions_of_constants_are_computed_at_compile_time():
    softmax = [helper.make_node("Softmax", ["floats"], ["turned"])]
    model = weighted("MatMul", (4, 24), of("int8", 24, 16), after=softmax)
    given = inputs_of(model)
    quantized, floats = (tt.build(one, HOST).run(given)["y"] for one in (model, with_floats(model)))
    np.testing.assert_array_equal(quantized, floats)


@pytest.mark.parametrize("name", ["groups", "product of batches"])
def test_boards_dequantize_a_row_of_constants_at_a_time(name, tmp_path):
    weights = numpy_helper.to_array(MODELS[name].graph.initializer[0])
    # A row has as many floats as one result has products; places are aligned to 16 bytes.
    row = weights[0].nbytes // weights.itemsize if name == "groups" else weights.shape[0]
    check_sizes(name, BOARD, tmp_path, 4 * row + 16)
