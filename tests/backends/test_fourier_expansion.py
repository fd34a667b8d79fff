"""Fourier transforms on llvm and openvino, which multiply by matrices, beside those of NumPy."""

import numpy as np
import pytest
from onnx import parser

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError

pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")
pytest.importorskip("openvino", reason="pip install 'tvmtarget[openvino]'")

RNG = np.random.default_rng(20)


def module(text, version=20):
    return tt.IRModule.from_onnx(parser.parse_model(f'<ir_version: 9, opset_import: ["": {version}]>\n{text}'))


def transformed(text, x, version=20):
    found, other = (tt.build(module(text, version), leaf)(x) for leaf in ("llvm", "openvino"))
    np.testing.assert_allclose(other, found, rtol=1e-5, atol=1e-5, strict=True)
    return found


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def pairs(values):
    """Return complex values as pairs of floats."""
    return np.stack([values.real, values.imag], axis=-1)


@pytest.mark.parametrize(
    ("attributes", "length", "expected"),
    [
        ("", 12, lambda x: pairs(np.fft.fft(x, axis=1))),
        ("", 9, lambda x: pairs(np.fft.fft(x, 9, axis=1))),
        ("", 20, lambda x: pairs(np.fft.fft(x, 20, axis=1))),
        ("<onesided=1>", 12, lambda x: pairs(np.fft.rfft(x, axis=1))),
        ("<onesided=1>", 7, lambda x: pairs(np.fft.rfft(x, 7, axis=1))),
        ("<inverse=1>", 12, lambda x: pairs(np.fft.ifft(x, axis=1))),
    ],
)
@pytest.mark.parametrize("dims", ["3,12,5,1", "b,12,c,1"])
def test_real_values_are_transformed_along_any_axis(dims, attributes, length, expected):
    text = f"""g (float[{dims}] x) => (float[b,k,c,2] y) <int64 n = {{{length}}}, int64 axis = {{1}}> {{
        y = DFT{attributes}(x, n, axis) }}"""
    x = floats(3, 12, 5, 1)
    np.testing.assert_allclose(transformed(text, x), expected(x[..., 0]), atol=1e-5)


@pytest.mark.parametrize("length", [0, 9, 10, 14])
def test_half_of_the_frequencies_give_real_values(length):
    text = f"""g (float[b,6,2] x) => (float[b,n,1] y) <int64 n = {{{length}}}, int64 axis = {{-2}}> {{
        y = DFT<inverse=1, onesided=1>(x, {"n" if length else ""}, axis) }}"""
    x = floats(3, 6, 2)
    expected = np.fft.irfft(x[..., 0] + 1j * x[..., 1], length or 10)
    np.testing.assert_allclose(transformed(text, x)[..., 0], expected, atol=1e-5)


def test_the_axis_is_an_attribute_in_operator_set_17():
    x = floats(2, 5, 7, 2)
    text = "g (float[2,5,7,2] x) => (float[2,5,7,2] y) { y = DFT<axis=2>(x) }"
    np.testing.assert_allclose(transformed(text, x, 17), pairs(np.fft.fft(x[..., 0] + 1j * x[..., 1])), atol=1e-5)


@pytest.mark.parametrize("dims", ["2,40,1", "b,n,1"])
@pytest.mark.parametrize(("onesided", "bins"), [(1, 9), (0, 16)])
def test_frames_of_a_signal_are_transformed_in_a_window(dims, onesided, bins):
    window = np.hanning(16).astype(np.float32)
    listed = ", ".join(map(str, window.tolist()))
    text = f"""g (float[{dims}] x) => (float[b,f,k,2] y) <int64 step = {{5}}, float[16] window = {{{listed}}}> {{
        y = STFT<onesided={onesided}>(x, step, window) }}"""
    x = floats(2, 40, 1)
    frames = np.stack([x[:, at : at + 16, 0] * window for at in range(0, 25, 5)], axis=1)
    np.testing.assert_allclose(transformed(text, x), pairs(np.fft.fft(frames)[..., :bins]), atol=1e-5)


def test_transforms_that_are_not_computed_are_refused():
    one_sided = module("g (float[1,8,2] x) => (float[1,5,2] y) { y = DFT<onesided=1>(x) }")
    with pytest.raises(InfeasibleError, match="ATTR: it supports one-sided DFT of real values, and of complex ones"):
        tt.decompose(one_sided, "llvm")
    long = module("g (float[1,4096,1] x) => (float[1,4096,2] y) { y = DFT(x) }")
    with pytest.raises(InfeasibleError, match="RULE: it multiplies by a matrix of 4096 x 4096, and supports up to"):
        tt.decompose(long, "llvm")


def test_transforms_of_symbolic_length_are_left_by_openvino():
    with pytest.raises(InfeasibleError, match="how many samples DFT transforms is not known; give the inputs static"):
        tt.decompose(module("g (float[b,n,2] x) => (float[b,n,2] y) { y = DFT(x) }"), "openvino")


@pytest.mark.parametrize(("parts", "inverse"), [(1, 0), (2, 0), (2, 1)])
def test_transforms_of_symbolic_length_are_those_of_numpy(parts, inverse):
    text = f"""<ir_version: 9, opset_import: ["": 20]> g (float[n,k,2,{parts}] x) => (float[n,k,2,2] y)
        <int64 axis = {{1}}> {{ y = DFT<inverse = {inverse}>(x, , axis) }}"""
    program = tt.build(parser.parse_model(text), "llvm")
    for length in (1, 6):
        x = np.random.default_rng(0).standard_normal((3, length, 2, parts)).astype("float32")
        values = x[..., 0] + 1j * x[..., 1] if parts == 2 else x[..., 0]
        expected = (np.fft.ifft if inverse else np.fft.fft)(values, axis=1)
        np.testing.assert_allclose(program(x), np.stack([expected.real, expected.imag], -1), atol=1e-5)
