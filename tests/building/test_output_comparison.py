"""Comparison of outputs: tolerances by type and scale, NaN and infinities by position, no silent skips."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tvmtarget as tt
from tvmtarget.building.output_comparison import DEFAULTS, Tolerance, compare, halves_of_outputs

NAN, INF = float("nan"), float("inf")


def one(actual, expected, **tolerance):
    (found,) = compare({"y": actual}, {"y": expected}, Tolerance(**tolerance)).outputs
    return found


def f32(*values):
    return np.array(values, "float32")


def test_nan_and_infinities_are_compared_by_position_and_counted():
    found = one(f32(NAN, 1, INF, 2, -INF), f32(1, NAN, INF, 2, INF))
    assert (found.different, found.nans, found.nan_mismatches, found.infinity_mismatches) == (3, 1, 2, 1)
    assert (found.infinities, found.max_abs, found.agrees) == (2, 0, False)
    same = one(f32(NAN, INF), f32(NAN, INF))
    assert same.agrees
    assert same.max_abs is None
    assert "1 NaN expected; 1 infinity expected" in str(same)


@pytest.mark.parametrize(
    ("dtype", "small", "large"),
    [
        ("float64", 1e-8, 1e-5),
        ("float32", 1e-5, 1e-2),
        ("float16", 1e-3, 1e-1),
        (ml_dtypes.bfloat16, 8e-3, 0.5),
        ("complex64", 1e-5, 1e-2),
        ("int8", 0.01, 0.02),
        ("uint8", 0.01, 0.02),
    ],
)
def test_tolerances_follow_the_type_and_the_scale_of_the_output(dtype, small, large):
    for scale in (100,) if "int" in str(dtype) else (1, 1000):
        exact = np.array([1, 0.5, 0]) * scale
        expected, near, far = ((exact + share * scale).astype(dtype) for share in (0, small, large))
        assert one(near, expected).agrees
        assert not one(far, expected).agrees
        assert one(far, expected, rtol=0, atol=scale).agrees


def test_wide_integers_and_booleans_have_no_tolerance():
    big = np.array([2**63 - 1, 0])
    found = one(big - 1, big)
    assert (found.different, found.max_abs) == (2, 1)
    assert not one(np.array([True]), np.array([False])).agrees
    assert one(np.arange(200, dtype="int32"), np.arange(200, dtype="int32") + (np.arange(200) == 0), share=0.01).agrees


def test_a_given_tolerance_replaces_that_of_the_type():
    assert one(f32(1, 2), f32(1.5, 2.5), atol=0.5, rtol=0).agrees
    assert not one(f32(1.0001), f32(1), atol=0, rtol=0).agrees


@pytest.mark.parametrize(
    ("actual", "expected", "reason"),
    [
        (f32(1, 2), f32(1, 2, 3), "it is float32[2], not float32[3]"),
        (np.zeros((0, 2), "float32"), np.zeros((2, 0), "float32"), "it is float32[0, 2], not float32[2, 0]"),
        (np.array([1.0]), f32(1), "it is float64[1], not float32[1]"),
        ([f32(1)], [f32(1), f32(2)], "it has 1 item, not 2"),
        ({"a": f32(1)}, {"b": f32(1)}, "it has other keys than the 1 expected"),
        (None, f32(1), "it is absent, not a tensor"),
        ([f32(1)], f32(1), "it is a sequence, not a tensor"),
    ],
)
def test_outputs_that_cannot_be_compared_do_not_agree(actual, expected, reason):
    found = one(actual, expected)
    assert (found.reason, found.agrees) == (reason, False)


def test_sequences_and_maps_are_compared_item_by_item():
    found = compare({"s": [f32(1), {"k": f32(1)}]}, {"s": [f32(1), {"k": f32(2)}]})
    assert [(output.name, output.agrees) for output in found.outputs] == [("s[0]", True), ("s[1]['k']", False)]


def test_text_empty_and_absent_outputs_are_compared():
    assert one(np.array(["a", "b"], object), np.array(["a", "c"], object)).different == 1
    assert one(np.array(["a"], object), np.array(["a"])).agrees
    empty = one(np.zeros((0, 3), "float32"), np.zeros((0, 3), "float32"))
    assert empty.agrees
    assert str(empty).startswith("y: no values")
    assert one(None, None).agrees


def test_an_output_that_one_side_lacks_is_reported():
    found = compare({"a": f32(1)}, {"b": f32(1)})
    assert [(output.name, output.reason) for output in found.outputs] == [
        ("b", "the output is missing"),
        ("a", "the output is not expected"),
    ]
    assert compare({}, {}).agrees


def test_the_documented_tolerances_are_those_of_the_table():
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    for dtype, bounds in DEFAULTS.items():
        (line,) = (line for line in page.splitlines() if line.startswith("|") and dtype in re.findall(r"\w+", line))
        assert tuple(float(number) for number in re.findall(r"\d+e-\d+", line)) == bounds


HALVES = """
func @main(%c: bool[], %x: float32[2], %h: float16[2])
    -> (float32[2], float32[2], float32[2], float32[2], float32[2]) opsets(onnx=18) {
  %read: float32[2] = onnx.Cast(%h) {to=1}
  %half: float16[2] = onnx.Cast(%x) {to=10}
  %less: bfloat16[2] = onnx.Cast(%half) {to=16}
  %wide: float32[2] = onnx.Cast(%less) {to=1}
  %called: float32[2] = @rounded(%x)
  %either: float32[2] = onnx.If(%c)
    then @t() { %a: float32[2] = onnx.Cast(%half) {to=1} return %a }
    else @e() { %b: float32[2] = onnx.Identity(%x) return %b }
  %plain: float32[2] = onnx.Add(%x, %read)
  return %read, %wide, %called, %either, %plain
}
func @rounded(%x: float32[2]) -> (float32[2]) opsets(onnx=18) {
  %half: float16[2] = onnx.Cast(%x) {to=10}
  %y: float32[2] = onnx.Cast(%half) {to=1}
  return %y
}
"""


def test_an_output_has_the_tolerance_of_the_halves_that_it_is_computed_from():
    """Not that of other outputs, nor of inputs, which both programs read."""
    halves = halves_of_outputs(tt.IRModule.parse(HALVES))
    assert halves == {"wide": "bfloat16", "called": "float16", "either": "float16"}
    tolerance = Tolerance(halves=halves)
    assert [tolerance.for_output(name).of("float32", 1.0) for name in ("wide", "called", "plain")] == [
        DEFAULTS[dtype] for dtype in ("bfloat16", "float16", "float32")
    ]
