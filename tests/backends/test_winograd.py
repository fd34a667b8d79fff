"""Convolutions by Winograd's minimal filtering: the transforms, the results on llvm, and where they are used."""

import numpy as np
import onnx
import pytest

import tvmtarget as tt
from tvmtarget.backends.tvm.register_tiling import VectorUnit
from tvmtarget.backends.tvm.winograd import Convolution, minimal_filtering, use_winograd
from tvmtarget.errors import CompileError

tvm = pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")

from tvm.relax.frontend.onnx import from_onnx  # noqa: E402

RANDOM = np.random.default_rng(18)
UNIT = VectorUnit(128, 16)


def convolved(x, w, pads, dilations=(1, 1)):
    """Return a convolution in float64, as a sum over the window of the weights."""
    result = np.zeros(())
    top, left, bottom, right = pads
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (top, bottom), (left, right)])
    height, width = x.shape[2] - 2 * dilations[0], x.shape[3] - 2 * dilations[1]
    for i in range(3):
        for j in range(3):
            line, column = i * dilations[0], j * dilations[1]
            window = x[:, :, line : line + height, column : column + width]
            result = result + np.einsum("nchw,kc->nkhw", window, w[:, :, i, j].astype(np.float64))
    return result


def model(x, w, *, nodes="y = Conv<pads={pads}>(x, w)", pads=(1, 1, 1, 1), dims=None, **more):
    """Return a model of a convolution, and of what follows it."""
    shape = ",".join(str(size) for size in dims or x.shape)
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[{shape}] x) => (float[n,c,h,w] y) {{ {nodes.format(pads=list(pads))} }}""")
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(one, name) for name, one in {"w": w, **more}.items())
    onnx.checker.check_model(proto)
    return proto


def random(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def kernels(proto):
    return [str(name.name_hint) for name in use_winograd(from_onnx(proto), UNIT).get_global_vars()]


def is_used(proto):
    return any(name.startswith("conv2d_winograd") for name in kernels(proto))


@pytest.mark.parametrize("m", [2, 4])
def test_the_transforms_filter_any_row_of_values(m):
    b, g, a = minimal_filtering(m)
    for position in range(m + 2):
        for tap in range(3):
            result = a @ ((g @ np.eye(3)[tap]) * (b @ np.eye(m + 2)[position]))
            assert result == pytest.approx([float(position - tap == at) for at in range(m)], abs=1e-15)


SIZES = {
    "tiles of 4 x 4": ((1, 16, 12, 12), 16, (1, 1, 1, 1)),
    "tiles of 2 x 2": ((1, 16, 7, 7), 24, (1, 1, 1, 1)),
    "tiles that the result does not fill": ((1, 8, 13, 10), 12, (1, 1, 1, 1)),
    "padding that differs by side": ((1, 12, 9, 17), 8, (0, 2, 1, 3)),
    "no padding": ((1, 8, 15, 11), 8, (0, 0, 0, 0)),
    "a batch": ((3, 8, 9, 9), 8, (1, 1, 1, 1)),
    "a batch in strips": ((2, 32, 42, 48), 32, (1, 1, 1, 1)),
    "strips that the result does not fill": ((1, 32, 62, 30), 48, (1, 1, 1, 1)),
    "rows only": ((1, 8, 3, 40), 8, (1, 1, 1, 1)),
}


@pytest.mark.parametrize(("name", "target"), [*((name, "llvm") for name in SIZES),
                                              ("a batch in strips", "llvm(vector-width=256)")])  # fmt: skip
def test_results_are_those_of_float64(name, target):
    shape, results, pads = SIZES[name]
    x, w = random(*shape), random(results, shape[1], 3, 3)
    proto = model(x, w, pads=pads)
    assert is_used(proto)
    expected = convolved(x, w, pads)
    actual = tt.build(tt.IRModule.from_onnx(proto), target)(x)
    assert np.abs(actual - expected).max() <= 3e-6 * np.abs(expected).max()


# The input, padding and dilations. Lines or columns of some phases are fewer than those of others.
DILATED = {
    "phases of one size": ((1, 64, 16, 24), (2, 2, 2, 2), (2, 2)),
    "phases that tiles do not fill": ((2, 64, 15, 22), (3, 2, 3, 2), (3, 2)),
    "dilated columns": ((1, 64, 9, 30), (1, 5, 1, 5), (1, 5)),
    "dilated lines without padding": ((1, 64, 30, 9), (0, 0, 0, 0), (4, 1)),
    "padding that differs by side": ((1, 64, 17, 19), (4, 1, 0, 7), (3, 3)),
}


@pytest.mark.parametrize("name", DILATED)
def test_results_of_dilated_weights_are_those_of_float64(name):
    shape, pads, dilations = DILATED[name]
    x, w, r = random(*shape), random(64, shape[1], 3, 3), random(64)
    nodes = "c = Conv<pads={pads}, dilations=%s>(x, w, r)  y = Relu(c)" % [*dilations]
    proto = model(x, w, nodes=nodes, pads=pads, r=r)
    assert is_used(proto)
    expected = np.maximum(convolved(x, w, pads, dilations) + r[:, None, None], 0)
    actual = tt.build(tt.IRModule.from_onnx(proto), "llvm")(x)
    assert np.abs(actual - expected).max() <= 4e-6 * np.abs(expected).max()


@pytest.mark.parametrize("size", [14, 62])
def test_what_follows_is_computed_with_the_result(size):
    x, w, r = random(1, 32, size, 32), random(32, 32, 3, 3), random(1, 32, size, 32)
    bias = random(32)
    nodes = "c = Conv<pads={pads}>(x, w, bias)  s = Add(c, r)  y = Relu(s)"
    module = tt.IRModule.from_onnx(model(x, w, nodes=nodes, bias=bias, r=r))
    expected = np.maximum(convolved(x, w, (1, 1, 1, 1)) + bias[:, None, None] + r, 0)
    actual = tt.build(module, "llvm")(x)
    assert np.abs(actual - expected).max() <= 3e-6 * np.abs(expected).max()


@pytest.mark.parametrize("nodes", ["c = Conv<pads={pads}>(x, w)  y = Add(c, r)", "c = Conv<pads={pads}>(x, w) "
                                   " a = Sigmoid(c)  b = Tanh(c)  d = Add(a, b)  y = Add(d, r)"])  # fmt: skip
def test_a_result_that_is_broadcast_or_read_twice_is_the_same(nodes):
    x, w, r = random(1, 32, 62, 32), random(32, 32, 3, 3) / np.float32(17), random(3, 32, 62, 32)
    module = tt.IRModule.from_onnx(model(x, w, nodes=nodes, r=r))
    expected = tt.build(module, "numpy")(x)
    assert np.abs(tt.build(module, "llvm")(x) - expected).max() <= 3e-6 * np.abs(expected).max()


QUANTIZED = """
    p = QuantizeLinear(x, xs, zero)
    d = DequantizeLinear(p, xs, zero)
    v = DequantizeLinear<axis=0>(w, ws)
    c = Conv<pads={pads}>(d, v)
    y = Relu(c)
"""


def test_weights_that_are_dequantized_by_channel_are_transformed():
    x, xs = random(1, 16, 12, 12), np.float32(0.03)
    w, ws = RANDOM.integers(-127, 128, (24, 16, 3, 3), np.int8), RANDOM.random(24, np.float32) / 100 + 0.01
    zero = np.array(130, np.uint8)
    proto = model(x, w, nodes=QUANTIZED, xs=np.array(xs), ws=ws, zero=zero)
    assert is_used(proto)
    quantized = np.clip(np.rint(x / xs) + 130, 0, 255) - 130
    exact = convolved(quantized, w, (1, 1, 1, 1)) * ws[:, None, None].astype(np.float64) * xs
    actual = tt.build(tt.IRModule.from_onnx(proto), "llvm")(x)
    assert np.abs(actual - np.maximum(exact, 0)).max() <= 1e-6 * exact.max()


def test_what_is_far_from_an_infinity_stays_finite():
    x, w = random(1, 8, 12, 12), random(8, 8, 3, 3)
    x[0, 0, 1, 1] = np.inf
    result = np.asarray(tt.build(tt.IRModule.from_onnx(model(x, w)), "llvm")(x))
    assert not np.isfinite(result[:, :, :3, :3]).any()
    assert np.isfinite(result[:, :, 4:, 4:]).all()


DIRECT = {
    "stride 2": (16, 16, "y = Conv<pads={pads}, strides=[2, 2]>(x, w)"),
    "few channels of dilated weights": (16, 16, "y = Conv<pads={pads}, dilations=[2, 2]>(x, w)"),
    "groups": (32, 16, "y = Conv<pads={pads}, group=2>(x, w)"),
    "few channels": (3, 3, "y = Conv<pads={pads}>(x, w)"),
    "channels that fill no vectors": (13, 13, "y = Conv<pads={pads}>(x, w)"),
    "weights that are computed": (16, 16, "v = Mul(w, x)  y = Conv<pads={pads}>(x, v)"),
}


@pytest.mark.parametrize("name", DIRECT)
def test_other_convolutions_are_summed_directly(name):
    channels, filtered, nodes = DIRECT[name]
    x, w = random(16, channels, 3, 3), random(16, filtered, 3, 3)
    assert not is_used(model(x, w, nodes=nodes))


def test_convolutions_of_symbolic_sizes_are_summed_directly():
    assert not is_used(model(random(1, 16, 12, 12), random(16, 16, 3, 3), dims=("batch", 16, 12, 12)))


@pytest.mark.parametrize(
    ("convolution", "m"),
    [
        (Convolution(1, 64, 56, 56, 64, (1, 1, 1, 1)), 4),
        (Convolution(1, 512, 7, 7, 512, (1, 1, 1, 1)), 2),
        (Convolution(1, 64, 56, 56, 64, (1, 1, 1, 1), is_quantized=True), 2),
        (Convolution(1, 8, 3, 3, 8), None),
        (Convolution(1, 512, 2, 2, 512, (1, 1, 1, 1)), None),
        (Convolution(1, 64, 56, 56, 7), None),
        (Convolution(1, 64, 28, 28, 64, (2, 2, 2, 2), (2, 2)), 4),
        (Convolution(1, 64, 65, 65, 64, (36, 36, 36, 36), (36, 36)), 2),
        (Convolution(1, 64, 33, 33, 64, (2, 2, 2, 2), (2, 2), is_quantized=True), 2),
        (Convolution(1, 64, 33, 33, 64, (24, 24, 24, 24), (24, 24)), None),
        (Convolution(1, 64, 1024, 1024, 64, (2, 2, 2, 2), (2, 2)), None),
        (Convolution(1, 32, 28, 28, 64, (2, 2, 2, 2), (2, 2)), None),
    ],
)
def test_tiles_are_as_large_as_is_fast(convolution, m):
    assert convolution.tile(UNIT) == m


@pytest.mark.parametrize(
    ("convolution", "rows"),
    [
        (Convolution(1, 64, 224, 224, 64, (1, 1, 1, 1)), 1),
        (Convolution(1, 64, 56, 56, 64, (1, 1, 1, 1)), 14),
        (Convolution(1, 512, 28, 28, 512, (1, 1, 1, 1)), 7),
    ],
)
def test_images_with_much_to_transform_are_computed_in_strips(convolution, rows):
    assert convolution.strip(4) == rows


def test_programs_in_c_sum_directly_to_save_memory():
    from tvmtarget.backends.tvm.cpu_schedule import legal_passes

    module = from_onnx(model(random(1, 16, 12, 12), random(16, 16, 3, 3)))
    target = tvm.target.Target("llvm")
    with target:
        names = [
            {one.name_hint for one in tvm.transform.Sequential(passes)(module).get_global_vars()}
            for passes in (legal_passes(target), legal_passes(target, saves_memory=True))
        ]
    assert [any("winograd" in name for name in some) for some in names] == [True, False]


def test_functions_for_a_scarce_memory_keep_weights_as_they_are():
    """Of 16 x 16 channels, weights take 9 KiB, and 36 KiB as Winograd's algorithm reads them."""
    proto = model(random(1, 16, 12, 12), random(16, 16, 3, 3))
    for kib, is_saving in ((48, True), (96, False)):
        device = {"kind": "llvm", "memory": [{"name": "dram", "bytes": kib << 10}]}
        (leaf,) = tt.build(proto, device, cache=False).code.values()
        assert leaf.request.target.attrs.get("disable-winograd", False) is is_saving


def test_a_target_may_disable_winograds_algorithm_or_keep_it():
    x, w = random(1, 16, 12, 12), random(16, 16, 3, 3)
    results = []
    for text in ("llvm", "llvm -disable-winograd=true", "llvm -disable-winograd=false"):
        executable = tt.build(model(x, w), text, cache=False)
        results.append(executable.run({"x": x})["y"])
        np.testing.assert_allclose(results[-1], convolved(x, w, (1, 1, 1, 1)), atol=1e-4)
    assert (results[0] == results[2]).all()
    assert (results[0] != results[1]).any()
    device = {"kind": "llvm", "memory": [{"name": "dram", "bytes": 48 << 10}]}
    (leaf,) = tt.build(model(x, w), device, cache=False).code.values()
    assert leaf.request.target.attrs["disable-winograd"] is True
    with pytest.raises(CompileError, match=r"kernel 'conv2d_winograd.*' allocates .* and memory 'dram' of 48 KiB"):
        tt.build(model(x, w), device | {"disable-winograd": False}, cache=False)
