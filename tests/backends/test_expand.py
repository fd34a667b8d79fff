"""Expand of symbolic dimensions, which may be 1 when a program runs, on llvm, against onnxruntime."""

import numpy as np
import pytest
from onnx import numpy_helper, parser

import tvmtarget as tt

pytest.importorskip("tvm")
ort = pytest.importorskip("onnxruntime")

COMPUTED = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[n, m] x, int64[3] sizes) => (float[a, b, c] y) { y = Expand(x, sizes) }"""
CONSTANT = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[n, m] x) => (float[a, b, c] y) <int64[3] sizes = {2, 3, 4}>
    { p = Relu(x) q = Expand(p, sizes) y = Neg(q) }"""


def agree(program, proto, given):
    expected = ort.InferenceSession(proto.SerializeToString()).run(None, given)[0]
    np.testing.assert_array_equal(program.run(given)["y"], expected)


def image(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def test_dimensions_are_expanded_as_far_as_they_are_1():
    proto = parser.parse_model(COMPUTED)
    program = tt.build(tt.IRModule.from_onnx(proto), "llvm")
    for shape, sizes in [
        ((2, 1), (4, 2, 3)),
        ((2, 3), (1, 1, 1)),
        ((1, 1), (4, 1, 3)),
        ((2, 3), (5, 2, 3)),
        ((0, 3), (5, 1, 3)),
        ((1, 3), (2, 0, 3)),
    ]:
        agree(program, proto, {"x": image(*shape), "sizes": np.array(sizes)})
    with pytest.raises(tt.TvmTargetError, match="sizes do not fit"):
        program.run({"x": image(2, 3), "sizes": np.array([1, 4, 3])})


def test_symbolic_dimensions_are_expanded_to_constant_sizes():
    proto = parser.parse_model(CONSTANT)
    program = tt.build(tt.IRModule.from_onnx(proto), "llvm")
    for shape in ((3, 4), (1, 4), (3, 1), (1, 1)):
        agree(program, proto, {"x": image(*shape)})
    with pytest.raises(tt.TvmTargetError, match="sizes do not fit"):
        program.run({"x": image(2, 4)})


def test_a_gpu_has_to_know_what_it_expands():
    with pytest.raises(tt.TvmTargetError, match="it is not known which dimensions it expands"):
        tt.decompose(tt.IRModule.from_onnx(parser.parse_model(CONSTANT)), "cuda(host=llvm)")


def test_constants_of_computed_shapes_may_be_infinite():
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n, m] x) => (float[n, m] y)
        { s = Shape(x)  c = ConstantOfShape <value = float[1] {0}> (s)  y = Max(x, c) }""")
    (node,) = (node for node in proto.graph.node if node.op_type == "ConstantOfShape")
    node.attribute[0].t.CopyFrom(numpy_helper.from_array(np.float32([-np.inf])))
    agree(tt.build(tt.IRModule.from_onnx(proto), "llvm"), proto, {"x": image(2, 3)})
