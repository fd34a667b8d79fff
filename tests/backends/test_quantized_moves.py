"""Moves of quantized elements: they are moved as integers, where the scales before and after them are equal."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import tvmtarget as tt

pytest.importorskip("tvm")

MOVES = {
    "reshape": "y = Reshape(d, sizes)",
    "several": "a = Transpose<perm = [0, 2, 1]>(d) b = Slice(a, one, two, one) y = Unsqueeze(b, one)",
    "nothing": "y = Identity(d)",
}
CONSTANTS = {"s": np.float32(0.013), "z": np.uint8(7), "t": np.float32(0.026), "sizes": np.int64([6, 4])} | {
    "one": np.int64([1]),
    "two": np.int64([2]),
}


def quantized(move, after="s"):
    """Return a model of a move between quantized values."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]> g (uint8[2,3,4] x) => (uint8[k] r) {{
        d = DequantizeLinear(x, s, z) {move} r = QuantizeLinear(y, {after}, z) }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(one), name) for name, one in CONSTANTS.items())
    return onnx.shape_inference.infer_shapes(model)


def operators_of(model):
    import tvm

    from tvmtarget.backends.tvm.backend import _prepared
    from tvmtarget.backends.tvm.onnx_import import import_onnx
    from tvmtarget.backends.tvm.quantized_moves import move_quantized

    module = tvm.relax.transform.DeadCodeElimination()(move_quantized(import_onnx(*_prepared(model))))
    return module.script()


@pytest.mark.parametrize("move", MOVES)
def test_moves_between_equal_scales_are_of_integers(move):
    assert "quantize" not in operators_of(quantized(MOVES[move]))


def test_moves_between_other_scales_and_other_operators_stay():
    for model in (quantized(MOVES["reshape"], after="t"), quantized("y = Relu(d)")):
        assert operators_of(model).count("quantize(") == 2


def test_all_integers_are_kept():
    model, x = quantized(MOVES["several"]), np.arange(24, dtype="uint8").reshape(2, 3, 4) * 11
    (found,) = tt.build(model, "llvm").run({"x": x}).values()
    np.testing.assert_array_equal(found, x.transpose(0, 2, 1)[:, 1:2][:, None], strict=True)
