"""Resize: symbolic dimensions on llvm, and sizes of all engines, against onnxruntime."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError

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


def test_aligned_corners_of_an_unknown_rank_are_not_those_of_onnx():
    proto = parser.parse_model("""
        <ir_version: 9, opset_import: ["": 19]> g (float[] x) => (float[] y) <float[2] scales = {1.0, 1.3}>
        { z = Identity(x)  y = Resize<coordinate_transformation_mode = "align_corners">(z, , scales) }""")
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.ClearField("shape")
    with pytest.raises(InfeasibleError, match="where scales give no whole sizes"):
        tt.decompose(tt.IRModule.from_onnx(proto), "onnxruntime")


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
    check(tt.IRModule.from_onnx(parser.parse_model(text % "cubic")), given, [{"mode": "cubic"}])


def test_a_symbolic_batch_is_resized_in_all_modes():
    modes = [*MODES, {"mode": "cubic", "coordinate_transformation_mode": "half_pixel"}]
    check(resized(modes, (2, 2), ["n", 3, 6, 5]), {"x": image(2, 3, 6, 5)}, modes)


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        ("1,10,12,3", 'y = Resize<mode = "cubic">(x, , , sizes)'),
        ("b,h,w,3", 'y = Resize<mode = "linear">(x, , scales)'),
        ("h,w,3", 'y = Resize<mode = "linear">(x, , , sizes3)'),
        ("10,12", "y = Resize(x, , , sizes2)"),
        ("b,4,5,6,3", 'y = Resize<mode = "linear">(x, , scales5)'),
        (
            "1,h,w,3",
            "s = Shape<start = 1, end = 3>(x) d = Add(s, s) t = Concat<axis = 0>(one, d, three) y = Resize(x, , , t)",
        ),
    ],
)
@pytest.mark.parametrize("target", ["llvm", "c"])
def test_channels_may_be_behind_what_is_resized(dims, text, target):
    constants = """int64[4] sizes = {1, 7, 9, 3}, int64[3] sizes3 = {7, 9, 3}, int64[2] sizes2 = {7, 9},
        float[4] scales = {1, 2, 0.5, 1}, float[5] scales5 = {1, 2, 2, 1, 1},
        int64[1] one = {1}, int64[1] three = {3}"""
    results = ",".join("pqrst"[: dims.count(",") + 1])
    graph = f"g (float[{dims}] x) => (float[{results}] y) <{constants}> {{ {text} }}"
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {graph}')
    shape = [{"b": 2, "h": 8, "w": 10}.get(dim) or int(dim) for dim in dims.split(",")]
    if target == "c":
        proto.graph.input[0].type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, shape))
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    np.testing.assert_allclose(tt.build(proto, target)(x), tt.build(proto, "numpy")(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_corners_are_aligned_by_scales_that_are_whole_in_float32_only(mode):
    """TensorFlow's converter writes scales of 20 / 12 and 20 / 14."""
    modes = [{"mode": mode, "coordinate_transformation_mode": "align_corners"}]
    module, x = resized(modes, (20 / 12, 20 / 14), [2, 3, 12, 14]), image(2, 3, 12, 14)
    check(module, {"x": x}, modes)
    np.testing.assert_allclose(tt.build(module, "numpy")(x), tt.build(module, "llvm")(x), atol=1e-5)


def test_bytes_are_resized_to_their_nearest_elements():
    x = np.arange(24, dtype="uint8").reshape(1, 1, 6, 4)
    check(resized(MODES[:2], (2, 2), ["n", 1, "a", "b"], "uint8"), {"x": x}, MODES[:2])


CUBIC = [
    {"mode": "cubic", "coordinate_transformation_mode": transformation, **more}
    for transformation, more in [
        ("half_pixel", {}),
        ("pytorch_half_pixel", {"cubic_coeff_a": -0.5}),
        ("asymmetric", {"exclude_outside": 1}),
        ("half_pixel", {"exclude_outside": 1, "cubic_coeff_a": -0.5}),
        ("align_corners", {}),
    ]
]


@pytest.mark.parametrize("dtype", ["int32", "double"])
def test_numbers_that_single_precision_does_not_hold_are_resized_exactly(dtype):
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g ({dtype}[1,1,2,3] x) => ({dtype}[1,1,4,6] y) <float[4] scales = {{1, 1, 2, 2}}> {{
        y = Resize<mode = "nearest">(x, , scales) }}""")
    x = np.array([2**24 + 1, 2**31 - 1, -(2**30) - 1, -(2**31), 0, 5], "int32").reshape(1, 1, 2, 3)
    x = x if dtype == "int32" else x + 0.125
    np.testing.assert_array_equal(tt.build(proto, "llvm")(x), x.repeat(2, 2).repeat(2, 3), strict=True)


@pytest.mark.parametrize("size", [(13, 4), (1, 20)])
def test_images_of_symbolic_dimensions_are_resized_cubically(size):
    inputs = {"x": image(2, 3, 6, 5), "like": image(2, 3, *size)}
    check(resized(CUBIC, None, ["n", "c", "a", "b"]), inputs, CUBIC)


UNEVEN = [mode for mode in (*MODES, *CUBIC) if mode["coordinate_transformation_mode"] != "align_corners"]


@pytest.mark.parametrize("shape", [["n", 3, "a", "b"], [2, 3, 11, 7]], ids=["open", "static"])
@pytest.mark.parametrize(("scales", "modes"), [((1.7, 2), UNEVEN[::3]), ((0.3, 0.7), UNEVEN[1::3])], ids=str)
def test_scales_need_not_give_whole_sizes(scales, modes, shape):
    """10 times 0.7 is 7 in float32, where 0.7 is 0.69999999."""
    module = resized(modes, scales, shape)
    check(module, {"x": image(2, 3, 11, 7)}, modes)
    if shape[2] == "a":
        check(module, {"x": image(1, 3, 10, 10)}, modes)


def test_half_precision_is_interpolated_in_single_precision():
    modes = [UNEVEN[4], CUBIC[0]]
    x = image(1, 3, 6, 5)
    exact = x.astype("float16").astype("float32")
    found = tt.build(resized(modes, (1.7, 2), ["n", 3, "a", "b"], "float16"), "llvm").run({"x": x.astype("float16")})
    wanted = tt.build(resized(modes, (1.7, 2), ["n", 3, "a", "b"]), "llvm").run({"x": exact})
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array.astype("float16"))


@pytest.mark.parametrize(
    ("mode", "scales", "dtype", "reason"),
    [
        ({"mode": "linear"}, (2, 2), "uint8", "to their nearest elements or floats"),
        (
            {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
            (0.5, 2),
            "float32",
            "aligns no corners",
        ),
    ],
)
def test_other_ways_to_resize_symbolic_dimensions_are_refused(mode, scales, dtype, reason):
    with pytest.raises(tt.TvmTargetError, match=reason):
        tt.decompose(resized([mode], scales, ["n", 3, "a", "b"], dtype), "llvm")


@pytest.mark.parametrize("rounding", ["floor", "round_prefer_ceil"])
@pytest.mark.parametrize("dims", ["1,2,4,6", "1,2,h,w"])
def test_images_are_resized_to_their_nearest_elements_as_in_tensorflow(dims, rounding):
    module = tt.IRModule.from_onnx(
        parser.parse_model(
            f"""<ir_version: 8, opset_import: ["": 17]>
            g (float[{dims}] x) => (float[1,2,k,l] y) <int64[4] sizes = {{1, 2, 8, 6}}> {{
                y = Resize<mode="nearest", nearest_mode="{rounding}",
                    coordinate_transformation_mode="tf_half_pixel_for_nn">(x, , , sizes) }}"""
        )
    )
    x = np.arange(48, dtype="float32").reshape(1, 2, 4, 6)
    np.testing.assert_array_equal(tt.build(module, "llvm")(x), tt.build(module, "onnxruntime")(x))


def stages(*pairs):
    """Return a model that resizes rows from each of some sizes to the next, by the scale that makes it."""
    nodes, constants = [], []
    for at, (before, after) in enumerate(pairs):
        scales = np.array([1, 1, np.float32(after) / np.float32(before), 1], "float32")
        constants.append(numpy_helper.from_array(scales, f"s{at}"))
        attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        nodes.append(helper.make_node("Resize", [f"x{at}", "", f"s{at}"], [f"x{at + 1}"], name=f"r{at}", **attributes))
    nodes.append(helper.make_node("Neg", [f"x{len(pairs)}"], ["y"]))
    ends = [("x0", [1, 1, pairs[0][0], 2]), ("y", None)]
    given, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends)
    graph = helper.make_graph(nodes, "g", [given], [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize(
    "pairs", [[(7, 13)], [(3, 7), (7, 16)], [(9, 20), (20, 9)], [(3, 7), (7, 13), (13, 29)]], ids=str
)
def test_sizes_are_rounded_as_in_float32(pairs):
    """ONNX infers 12 for 7 times 13/7, and its evaluator returns as many (onnx 1.23)."""
    model = stages(*pairs)
    module = tt.IRModule.from_onnx(model)
    assert [call.outputs[0].type.shape[2] for call in module.main.body[:-1]] == [after for _, after in pairs]
    assert module.to_onnx().graph.initializer[0] == model.graph.initializer[0]
    x = np.arange(2 * pairs[0][0], dtype="float32").reshape(1, 1, -1, 2)
    found = {kind: tt.build(module, kind)(x) for kind in ("onnxruntime", "llvm", "numpy", "openvino")}
    for result in found.values():
        np.testing.assert_array_equal(result, found["onnxruntime"])


@pytest.mark.parametrize(("size", "scale"), [(3, 1.333333), (300, 0.333333), ("n", 1.857142)])
def test_openvino_does_not_take_sizes_that_it_rounds_up(size, scale):
    text = f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[1,1,{size},2] x) => (float[1,1,m,2] y) <float[4] s = {{1, 1, {scale}, 1}}> {{ y = Resize(x, , s) }}"""
    module = tt.IRModule.from_onnx(parser.parse_model(text))
    with pytest.raises(InfeasibleError, match=r"it rounds \d+ \* \S+ up to a size of"):
        tt.decompose(module, "openvino")


def test_one_element_is_resized_to_a_size_that_a_value_states():
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[4, 4, 1] x, int64[3] sizes) => (float[a, b, c] y)
        { y = Resize <mode = "linear", coordinate_transformation_mode = "asymmetric"> (x, , , sizes) }""")
    found = tt.build(tt.IRModule.from_onnx(proto), "llvm").run({"x": image(4, 4, 1), "sizes": np.array([4, 4, 8])})
    np.testing.assert_array_equal(found["y"], np.repeat(image(4, 4, 1), 8, axis=2))
