"""Blocks and windows of images on llvm, against onnxruntime: symbolic sizes, columns, and places of maxima."""

import numpy as np
import pytest
from onnx import parser

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, RunError

pytest.importorskip("tvm")
ort = pytest.importorskip("onnxruntime")

OPEN = "float[n,{channels},h,w] x) => (float[a,b,c,d] y)"


def model(text):
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')


def agree(proto, *arrays, kind="llvm"):
    program = tt.build(tt.IRModule.from_onnx(proto), kind)
    session = ort.InferenceSession(proto.SerializeToString())
    for array in arrays:
        for expected, found in zip(session.run(None, {"x": array}), program.run({"x": array}).values(), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, strict=True)
    return program


def images(*shape, dtype="float32"):
    return np.random.default_rng(0).permutation(np.prod(shape)).reshape(shape).astype(dtype)


def test_blocks_of_symbolic_sizes_become_channels_if_they_divide_the_image():
    proto = model(f"g ({OPEN.format(channels=3)} {{ z = SpaceToDepth<blocksize = 2>(x) y = Neg(z) }}")
    program = agree(proto, images(2, 3, 4, 6), images(1, 3, 2, 2))
    with pytest.raises(RunError, match="5 elements along axis 2"):
        program.run({"x": images(1, 3, 5, 6)})


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_channels_become_blocks_of_symbolic_sizes(mode):
    proto = model(f'g ({OPEN.format(channels=8)} {{ y = DepthToSpace<blocksize = 2, mode = "{mode}">(x) }}')
    agree(proto, images(2, 8, 5, 3), images(1, 8, 1, 1))


def test_blocks_there_and_back_have_the_sizes_of_the_image():
    proto = model(f"""g ({OPEN.format(channels=3)} {{
        z = SpaceToDepth<blocksize = 3>(x) u = DepthToSpace<blocksize = 3>(z) y = Add(u, x) }}""")
    agree(proto, images(2, 3, 3, 6))


@pytest.mark.parametrize(
    ("rows", "columns", "image", "block", "attributes"),
    [
        (12, 12, (5, 4), (2, 2), ""),
        (12, 9, (5, 4), (2, 2), "<strides = [2, 1], pads = [1, 0, 0, 1], dilations = [1, 2]>"),
        (16, 12, (3, 3, 4), (2, 2, 2), ""),
        (6, 3, (8,), (3,), "<strides = [2]>"),
    ],
)
def test_columns_of_open_batches_become_images(rows, columns, image, block, attributes):
    rank = len(image)
    sizes = ", ".join("abcde"[: rank + 2])
    listed = [f"int64[{rank}] {name} = {{{', '.join(map(str, one))}}}" for name, one in (("i", image), ("k", block))]
    proto = model(f"""g (float[n,{rows},{columns}] x) => (float[{sizes}] y) <{", ".join(listed)}>
        {{ y = Col2Im{attributes}(x, i, k) }}""")
    agree(proto, images(2, rows, columns))


def test_columns_that_are_no_windows_of_an_image_are_refused():
    proto = model("""g (float[n,12,9] x) => (float[a,b,c,d] y) <int64[2] i = {5, 4}, int64[2] k = {2, 2}>
        { y = Col2Im(x, i, k) }""")
    with pytest.raises(InfeasibleError, match="not the windows of an image"):
        tt.build(tt.IRModule.from_onnx(proto), "llvm")


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ("2,3,6,6", "kernel_shape = [2, 2], strides = [2, 2]"),
        ("n,3,h,w", "kernel_shape = [3, 2], strides = [2, 1], pads = [1, 0, 1, 1], ceil_mode = 1, dilations = [1, 2]"),
        ("n,3,h,w", "kernel_shape = [3, 2], storage_order = 1"),
        ("1,2,16,16", "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"),
        ("2,3,7", 'kernel_shape = [3], auto_pad = "SAME_UPPER", strides = [2]'),
    ],
)
def test_places_of_maxima_are_those_of_the_first_ones(shape, attributes):
    proto, given = places(shape, attributes)
    for kind in ("llvm", "numpy"):
        agree(proto, given, np.round(given / 20), np.full_like(given, -np.inf), kind=kind)


@pytest.mark.parametrize(
    ("shape", "attributes", "reason"),
    [
        ("n,3,h,w", "kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]", ""),
        ("2,3,7,8", 'kernel_shape = [3, 3], auto_pad = "SAME_UPPER", strides = [2, 2]', ""),
        ("n,3,h,w", 'kernel_shape = [3, 3], auto_pad = "SAME_UPPER"', "symbolic shapes wrongly; state its pads"),
        ("2,3,6,6", "kernel_shape = [3, 2], storage_order = 1", "storage_order=0 only"),
    ],
)
def test_openvino_computes_usual_places_of_maxima(shape, attributes, reason):
    pytest.importorskip("openvino")
    proto, given = places(shape, attributes)
    if not reason:
        agree(proto, given, np.round(given / 20), kind="openvino")
        return
    with pytest.raises(InfeasibleError, match=reason):
        tt.build(tt.IRModule.from_onnx(proto), "openvino")


def places(shape, attributes):
    """Return a MaxPool with two results, and images."""
    sizes = ",".join("abcd"[: shape.count(",") + 1])
    proto = model(f"""g (float[{shape}] x) => (float[{sizes}] y, int64[{sizes}] z)
        {{ y, z = MaxPool<{attributes}>(x) }}""")
    return proto, images(*(int(one) if one.isdecimal() else 6 for one in shape.split(",")))


def test_places_of_maxima_of_bytes_are_those_of_the_first_ones():
    proto = model("""g (uint8[n,3,h,w] x) => (int64[a,b,c,d] z) { y, z = MaxPool<kernel_shape = [2, 2]>(x) }""")
    for kind in ("llvm", "numpy"):
        agree(proto, images(1, 3, 7, 8, dtype="uint8") % 4, kind=kind)


def test_a_bias_that_may_not_fit_is_refused():
    proto = model("g (float[2,3,4] x, float[n,3,3] w, float[m] v) => (float[a,b,c] y) { y = Conv(x, w, v) }")
    with pytest.raises(InfeasibleError, match="whether these fit"):
        tt.build(tt.IRModule.from_onnx(proto), "llvm")


@pytest.mark.parametrize("kind", ["llvm", "c"])
def test_the_last_window_may_begin_in_the_data_and_end_beyond(kind):
    proto = model("""g (float[2,3,1,5] x) => (float[a,b,c,d] y, float[a,b,c,d] z) {
        y = MaxPool<kernel_shape = [2, 1], strides = [2, 1], ceil_mode = 1>(x)
        z = AveragePool<kernel_shape = [3, 2], strides = [3, 2], ceil_mode = 1>(x) }""")
    agree(proto, images(2, 3, 1, 5), kind=kind)


def test_sizes_that_are_rounded_up_several_times_may_be_symbolic():
    """TVM compiled their choices for minutes, or not at all; windows of the outer pools may begin in padding."""
    pool = "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1"
    proto = model(f"""g (float[n,2,h,w] x) => (float[n,2,a,b] y) <float[2,2,1,1] k = {{1, 2, 3, -4}}> {{
        c = Conv<strides = [2, 2]>(x, k) p = MaxPool<kernel_shape = [2, 1], strides = [3, 2], ceil_mode = 1>(c)
        m = AveragePool<{pool}, pads = [0, 1, 1, 0], count_include_pad = 1>(p)
        s = AveragePool<{pool}, pads = [1, 0, 1, 2], count_include_pad = 1>(m)
        t = AveragePool<{pool}, pads = [1, 1, 0, 1], count_include_pad = 1>(s)
        y = MaxPool<kernel_shape = [1, 2], strides = [2, 2], pads = [0, 1, 0, 1], ceil_mode = 1>(t) }}""")
    agree(proto, *(images(1, 2, size, 20) for size in (23, 22, 16, 13)))


@pytest.mark.parametrize("is_aligned", [0, 1])
def test_images_of_any_size_are_reflected_cubically(is_aligned):
    """Those of no elements divided by zero, which ended the process."""
    proto = model(f"""g (float[n,c,h,w] x, float[n,p,q,2] grid) => (float[n,c,p,q] y) {{
        y = GridSample<mode = "cubic", padding_mode = "reflection", align_corners = {is_aligned}>(x, grid) }}""")
    proto.opset_import[0].version = 20
    program, reference = tt.build(proto, "llvm"), ort.InferenceSession(proto.SerializeToString())
    grid = np.random.default_rng(0).uniform(-4, 4, (2, 4, 3, 2)).astype("float32")
    for shape in ((2, 3, 5, 4), (2, 1, 2, 7)):
        given = {"x": images(*shape), "grid": grid}
        np.testing.assert_allclose(program.run(given)["y"], reference.run(None, given)[0], rtol=1e-4, atol=1e-4)
    one = program.run({"x": np.full((2, 1, 1, 1), 3, "float32"), "grid": grid})["y"]
    np.testing.assert_allclose(one, 3, rtol=1e-5)
    assert program.run({"x": np.ones((2, 1, 0, 3), "float32"), "grid": grid})["y"].shape == (2, 1, 4, 3)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_images_of_one_row_are_not_reflected_between_aligned_corners(mode):
    attributes = f'mode = "{mode}", padding_mode = "reflection"'
    text = "g (float[1,1,{0},4] x, float[1,3,2,2] grid) => (float[1,1,3,2] y) {{ y = GridSample<{1}>(x, grid) }}"
    for rows in ("1", "h"):
        proto = model(text.format(rows, f"{attributes}, align_corners = 1"))
        proto.opset_import[0].version = 20
        with pytest.raises(InfeasibleError, match="it reflects between aligned corners of 2 or more elements"):
            tt.decompose(tt.IRModule.from_onnx(proto), "llvm")
    proto = model(text.format(1, f"{attributes}, align_corners = 0"))
    proto.opset_import[0].version = 20
    given = {"x": images(1, 1, 1, 4), "grid": np.linspace(-2.03, 2.11, 12, dtype="float32").reshape(1, 3, 2, 2)}
    (expected,) = ort.InferenceSession(proto.SerializeToString()).run(None, given)
    found = tt.build(tt.IRModule.from_onnx(proto), "llvm").run(given)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
