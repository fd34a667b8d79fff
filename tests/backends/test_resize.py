"""Resize of symbolic dimensions on llvm, against onnxruntime."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import tvmtarget as tt

pytest.importorskip("tvm")
pytest.importorskip("onnxruntime")

MODES = [
    {"mode": "nearest", "coordinate_transformation_mode": transformation, "nearest_mode": nearest}
    for transformation, nearest in [
        ("asymmetric", "floor"),
        ("half_pixel", "round_prefer_floor"),
        ("half_pixel", "round_prefer_ceil"),
        ("align_corners", "ceil"),
    ]
] + [
    {"mode": "linear", "coordinate_transformation_mode": transformation}
    for transformation in ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
]


def resized(modes, sizes, shape, dtype="float32"):
    """Return a module that resizes one input in all modes, by scales (floats) or like its second input."""
    constants = {"two": np.array([2]), "end": np.array([9])}
    nodes, inputs = [], {"x": shape}
    operands = ["x", "", "scales"]
    if sizes is None:
        inputs["like"] = ["n", "c", "h", "w"]
        nodes = [
            helper.make_node("Shape", ["like"], ["s"], name="shape"),
            helper.make_node("Slice", ["s", "two", "end"], ["hw"], name="last"),
            helper.make_node("Shape", ["x"], ["xs"], name="own", start=0, end=2),
            helper.make_node("Concat", ["xs", "hw"], ["sizes"], name="sizes", axis=0),
        ]
        operands = ["x", "", "", "sizes"]
    else:
        constants["scales"] = np.array([1, 1, *sizes], "float32")
    results = [f"y{number}" for number in range(len(modes))]
    nodes += [
        helper.make_node("Resize", operands, [result], name=f"resize_{result}", **mode)
        for mode, result in zip(modes, results, strict=True)
    ]
    of = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "resize",
        [
            helper.make_tensor_value_info(name, of if name == "x" else TensorProto.FLOAT, dims)
            for name, dims in inputs.items()
        ],
        [helper.make_tensor_value_info(name, of, None) for name in results],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return tt.IRModule.from_onnx(proto)


def check(module, inputs, modes):
    found, wanted = (tt.build(module, kind).run(inputs) for kind in ("llvm", "onnxruntime"))
    for mode, (name, array) in zip(modes, wanted.items(), strict=True):
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5, err_msg=str(mode))


def image(*shape):
    return np.random.default_rng(0).random(shape).astype("float32")


@pytest.mark.parametrize("scales", [(2, 3), (0.5, 2)])
def test_symbolic_dimensions_are_scaled_by_whole_numbers(scales):
    # ONNX Runtime aligns corners otherwise where it shrinks by a scale.
    modes = [mode for mode in MODES if min(scales) > 1 or mode["coordinate_transformation_mode"] != "align_corners"]
    check(resized(modes, scales, ["n", 3, "a", "b"]), {"x": image(2, 3, 6, 5)}, modes)


@pytest.mark.parametrize("size", [(13, 4), (1, 20)])
def test_symbolic_dimensions_become_those_of_another_value(size):
    inputs = {"x": image(2, 3, 6, 5), "like": image(2, 3, *size)}
    check(resized(MODES, None, ["n", "c", "a", "b"]), inputs, MODES)


def test_sizes_that_are_given_when_a_program_runs_are_symbolic_also_if_the_result_states_them():
    text = """<ir_version: 8, opset_import: ["": 18]>
        g (float[1,1,4,4] x, int64[4] sizes) => (float[1,1,9,10] y) { y = Resize<mode = "%s">(x, , , sizes) }"""
    given = {"x": image(1, 1, 4, 4), "sizes": np.array([1, 1, 9, 10])}
    modes = [{"mode": "nearest"}]
    check(tt.IRModule.from_onnx(parser.parse_model(text % "nearest")), given, modes)
    with pytest.raises(tt.TvmTargetError, match="it resizes symbolic dimensions to their nearest elements"):
        tt.decompose(tt.IRModule.from_onnx(parser.parse_model(text % "cubic")), "llvm")


def test_a_symbolic_batch_is_resized_in_all_modes():
    modes = [*MODES, {"mode": "cubic", "coordinate_transformation_mode": "half_pixel"}]
    check(resized(modes, (2, 2), ["n", 3, 6, 5]), {"x": image(2, 3, 6, 5)}, modes)


def test_bytes_are_resized_to_their_nearest_elements():
    x = np.arange(24, dtype="uint8").reshape(1, 1, 6, 4)
    check(resized(MODES[:2], (2, 2), ["n", 1, "a", "b"], "uint8"), {"x": x}, MODES[:2])


@pytest.mark.parametrize(
    ("mode", "scales", "reason"),
    [
        ({"mode": "cubic"}, (2, 2), "it resizes symbolic dimensions to their nearest elements, and floats linearly"),
        ({"mode": "nearest"}, (1.7, 2), "it resizes spatial dimensions only, all of them, to whole sizes"),
    ],
)
def test_other_ways_to_resize_symbolic_dimensions_are_refused(mode, scales, reason):
    with pytest.raises(tt.TvmTargetError, match=reason):
        tt.decompose(resized([mode], scales, ["n", 3, "a", "b"]), "llvm")
