"""Sizes of symbolic dimensions that llvm reads when a program runs."""

import numpy as np
import pytest
from onnx import parser

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError


def model(text):
    return tt.IRModule.from_onnx(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}'))


@pytest.mark.parametrize(
    "text",
    [
        "g (float[n,3,m] x) => (int64[3] y, int64 z) { y = Shape(x) z = Size(x) }",
        "g (float[n,3,m] x) => (int64[2] y, int64[1] z) { y = Shape<start=1>(x) z = Shape<start=-3, end=-2>(x) }",
        "g (float[n,3,m] x) => (int64[0] y) { y = Shape<start=2, end=1>(x) }",
        """g (float[n,3,m] x) => (int64 y, bool z) <int64 last = {2}, int64 four = {4}> {
            s = Shape(x) y = Gather(s, last) z = Equal(y, four) }""",
        """g (float[n,3,m] x) => (float[n,3,m] z) {
            s = Shape(x) a = Size(x) b = Add(s, a) c = Cast<to=1>(b) d = ReduceSum<keepdims=0>(c) z = Add(x, d) }""",
    ],
    ids=["whole", "parts", "none", "condition", "number"],
)
def test_llvm_computes_with_sizes_that_are_not_known_before(text):
    module = model(text)
    program, expected = tt.build(module, "llvm"), tt.build(module, "numpy")
    for shape in ((2, 3, 4), (1, 3, 1)):
        given = {"x": np.ones(shape, "float32")}
        for name, array in expected.run(given).items():
            np.testing.assert_array_equal(program.run(given)[name], array)
            assert program.run(given)[name].dtype == array.dtype


@pytest.mark.parametrize("shape", ["n,3", "0,n", "0,3"])
def test_an_empty_tensor_has_a_shape(shape):
    module = model(f"g (float[{shape}] x) => (int64[2] y, int64 z) {{ y = Shape(x) z = Size(x) }}")
    results = tt.build(module, "llvm").run({"x": np.zeros((0, 3), "float32")})
    assert (results["y"].tolist(), int(results["z"])) == ([0, 3], 0)


def test_a_gpu_leaves_sizes_that_are_not_known_before_to_its_host():
    module = model("g (float[n,3] x) => (int64[2] y, float[n,3] z) { y = Shape(x) z = Relu(x) }")
    with pytest.raises(InfeasibleError, match="SHAPE_DYNAMIC: its code for Shape of symbolic shapes runs on the host"):
        tt.decompose(module, "cuda(arch=sm_80,host=llvm)", where={"op:Shape": "cuda"})
