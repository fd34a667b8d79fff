"""Pads that are computed when a program runs, on llvm, against onnxruntime."""

import numpy as np
import pytest
from onnx import numpy_helper, parser

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, TvmTargetError

pytest.importorskip("tvm")
ort = pytest.importorskip("onnxruntime")

TEXT = """
    <ir_version: 8, opset_import: ["": 19]>
    g ({dtype}[{shape}] x, int64[{count}] pads) => ({dtype}[{result}] y)
    <{dtype} value = {{3}}, int64[2] axes = {{-1, 1}}>
    {{ y = Pad <mode: string = "{mode}"> (x, pads, {operands}) }}"""


def model(mode, *, shape="n, c, h, w", dtype="float", operands="value"):
    sizes = {"count": 4 if "axes" in operands else 8, "result": "a, b, d, e"}
    text = TEXT.format(mode=mode, shape=shape, dtype=dtype, operands=operands, **sizes)
    return parser.parse_model(text.replace(', ""', "") if operands == '""' else text)


def agree(program, proto, *given):
    inputs = dict(zip(("x", "pads"), given, strict=True))
    expected = ort.InferenceSession(proto.SerializeToString()).run(None, inputs)[0]
    np.testing.assert_array_equal(program.run(inputs)["y"], expected)


def image(*shape, dtype="float32"):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype) + np.asarray(1, dtype)


CONSTANT = [[0] * 8, [0, 0, 1, 2, 0, 0, 3, 0], [1, 0, 0, 0, 0, 2, 0, 0], [0, 0, -1, -2, 0, 0, 1, -1]]
OTHERS = [[0] * 8, [0, 0, 1, 2, 0, 0, 3, 0], [0, 1, 0, 2, 0, 1, 0, 4]]


@pytest.mark.parametrize(
    ("mode", "every"), [("constant", CONSTANT), ("edge", OTHERS), ("reflect", OTHERS)], ids=lambda one: str(one)[:8]
)
@pytest.mark.parametrize("shape", ["n, c, h, w", "2, 3, 5, 7"], ids=["open", "static"])
def test_pads_are_computed_when_a_program_runs(mode, every, shape):
    proto = model(mode, shape=shape)
    program = tt.build(tt.IRModule.from_onnx(proto), "llvm")
    for pads in every:
        agree(program, proto, image(2, 3, 5, 7), np.array(pads))


@pytest.mark.parametrize("dtype", ["float16", "int64", "uint8"])
def test_pads_of_some_axes_of_other_types(dtype):
    proto = model("constant", dtype=dtype, operands="value, axes")
    agree(tt.build(tt.IRModule.from_onnx(proto), "llvm"), proto, image(2, 3, 5, 7, dtype=dtype), np.array([1, 2, 0, 3]))


def test_an_empty_image_is_padded_by_a_constant_only():
    pads = np.array([0, 0, 1, 2, 0, 0, 3, 0])
    proto = model("constant")
    agree(tt.build(tt.IRModule.from_onnx(proto), "llvm"), proto, image(2, 3, 0, 7), pads)
    for mode in ("edge", "reflect"):
        program = tt.build(tt.IRModule.from_onnx(model(mode)), "llvm")
        with pytest.raises(TvmTargetError):
            program.run({"x": image(2, 3, 0, 7), "pads": pads})


def test_an_axis_that_is_not_padded_may_be_empty():
    """It needs an element only where one is repeated."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[b,2,5] x) => (float[b,2,9] y)
        <int64[6] pads = {0, 0, 1, 0, 0, 3}> { y = Pad<mode = "reflect">(x, pads) }"""
    program = tt.build(parser.parse_model(text), "llvm")
    for count in (0, 2):
        x = image(count, 2, 5)
        np.testing.assert_array_equal(program.run({"x": x})["y"], np.pad(x, ((0, 0), (0, 0), (1, 3)), "reflect"))


@pytest.mark.parametrize("opset", [18, 19])
@pytest.mark.parametrize(("shape", "target"), [("n, 4", "llvm"), ("3, 4", "llvm"), ("3, 4", "openvino")])
def test_pads_around_the_end_are_constant(opset, shape, target):
    """PyTorch writes this mode in version 18, too."""
    pytest.importorskip("tvm" if target == "llvm" else target)
    proto = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {opset}]>
        g (float[{shape}] x) => (float[a, b] y) <int64[4] pads = {{1, 3, 2, 4}}>
        {{ y = Pad<mode = "wrap">(x, pads) }}""")
    program = tt.build(tt.IRModule.from_onnx(proto), target)
    expected = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": image(3, 4)})[0]
    np.testing.assert_array_equal(program.run({"x": image(3, 4)})["y"], expected)


def test_openvino_wraps_around_static_dimensions_only():
    pytest.importorskip("openvino")
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 19]>
        g (float[n, 4] x) => (float[a, b] y) <int64[2] pads = {1, 2}, int64[1] axes = {-1}>
        { y = Pad<mode = "wrap">(x, pads, , axes) }""")
    x = image(3, 4)
    found = tt.build(tt.IRModule.from_onnx(proto), "openvino").run({"x": x})["y"]
    np.testing.assert_array_equal(found, np.pad(x, ((0, 0), (1, 2)), "wrap"))
    proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.array([0]), "axes"))
    with pytest.raises(InfeasibleError, match="wraps around static dimensions only, not 'n'"):
        tt.build(tt.IRModule.from_onnx(proto), "openvino")


@pytest.mark.parametrize(("shape", "target"), [("n, 2", "llvm"), ("3, 2", "llvm"), ("3, 2", "c"), ("3, 1", "llvm")])
def test_reflections_go_there_and_back_as_often_as_needed(shape, target):
    """TVM's importer reflects once, and read beyond memory."""
    proto = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 19]>
        g (float[{shape}] x) => (float[a, b] y) <int64[4] pads = {{2, 5, 1, 4}}>
        {{ y = Pad<mode = "reflect">(x, pads) }}""")
    x = image(3, int(shape[-1]))
    found = tt.build(tt.IRModule.from_onnx(proto), target).run({"x": x})["y"]
    np.testing.assert_array_equal(found, np.pad(x, ((2, 1), (5, 4)), "reflect"))


@pytest.mark.parametrize(("mode", "target", "reason"), [("wrap", "llvm", "constant pads"), ("edge", "c", "not static")])
def test_what_is_not_supported_is_refused(mode, target, reason):
    with pytest.raises(TvmTargetError, match=reason):
        tt.decompose(tt.IRModule.from_onnx(model(mode)), target)


@pytest.mark.parametrize("mode", ["constant", "reflect"])
@pytest.mark.parametrize(("shape", "pads"), [("n, 3", "int64[4] pads"), ("2, 3", "")], ids=["open", "static"])
def test_what_fills_is_computed_when_a_program_runs(mode, shape, pads):
    given, constant = (f", {pads}", "") if pads else ("", "<int64[4] pads = {0, 1, 1, -1}>")
    proto = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 19]>
        g (float[{shape}] x, float v{given}) => (float[a, b] y) {constant}
        {{ w = Neg(v) y = Pad<mode = "{mode}">(x, pads, w) }}""")
    inputs = {"x": image(2, 3), "v": np.array(7, "float32")} | ({"pads": np.array([0, 1, 1, -1])} if pads else {})
    expected = ort.InferenceSession(proto.SerializeToString()).run(None, inputs)[0]
    np.testing.assert_array_equal(tt.build(tt.IRModule.from_onnx(proto), "llvm").run(inputs)["y"], expected)


def test_openvino_refuses_to_fill_by_a_computed_value():
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 19]>
        g (float[2, 3] x, float v) => (float[a, b] y) <int64[4] pads = {0, 1, 1, -1}> { y = Pad(x, pads, v) }""")
    with pytest.raises(InfeasibleError, match="'v', is computed at run time"):
        tt.build(tt.IRModule.from_onnx(proto), "openvino")


@pytest.mark.parametrize("leaf", ["llvm", "c"])
def test_padding_behind_the_elements_of_a_product_is_written(leaf):
    """It was what was in memory, as products were padded tile by tile of their own elements."""
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[2,3] x, float[1,2,2,2] u) => (float[4,2] y, float[1,3,2,2] z)
        <float[3,2] w = {1, 2, 3, 4, 5, 6}, int64[4] rows = {0, 0, 2, 0}, float seven = {7},
         float[2,2,1,1] k = {1, 0, 0, 2}, int64[8] channels = {0, 0, 0, 0, 0, 1, 0, 0}> {
            m = MatMul(x, w) y = Pad(m, rows, seven) c = Conv(u, k) z = Pad(c, channels, seven) }"""
    x, u = np.ones((2, 3), "float32"), np.arange(8, dtype="float32").reshape(1, 2, 2, 2)
    found = tt.build(parser.parse_model(text), leaf).run({"x": x, "u": u})
    assert found["y"].tolist() == [[9, 12], [9, 12], [7, 7], [7, 7]]
    assert found["z"][0].tolist() == [[[0, 1], [2, 3]], [[8, 10], [12, 14]], [[7, 7], [7, 7]]]
