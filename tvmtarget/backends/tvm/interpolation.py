"""Interpolation of images of symbolic sizes, as operations of TE.

Source: ONNX's definition of Resize.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from onnx import NodeProto

from tvmtarget.backends.expansion_builder import attributes_of
from tvmtarget.backends.tvm.compiled_module import import_tvm
from tvmtarget.support.tvm_rules import OF_TENSORFLOW

__all__ = ["interpolation"]

Size: TypeAlias = Any  # an integer expression of TIR


def interpolation(node: NodeProto, factors: Sequence[float] | None) -> Callable[[Any, Sequence[Size]], Any]:
    """Return what resizes images: to their nearest elements, linearly, or cubically.

    Args:
        node: a Resize.
        factors: its scales, one for each dimension; None if it has sizes.

    Returns:
        A function of TE of a tensor and the sizes of its resized dimensions.
    """
    te, tirx = import_tvm().te, import_tvm().tirx
    attributes = attributes_of(node)
    mode = attributes.get("coordinate_transformation_mode", "half_pixel")
    nearest = attributes.get("nearest_mode", "round_prefer_floor")
    method = attributes.get("mode", "nearest")
    coefficient = float(attributes.get("cubic_coeff_a", -0.75))
    excludes = bool(attributes.get("exclude_outside", 0))

    def real(value: float) -> Any:  # noqa: ANN401
        return tirx.const(value, "float32")

    def coordinate(at: Size, axis: int, before: Size, after: Size) -> Any:  # noqa: ANN401
        old, new = (size.astype("float32") for size in (before, after))
        scale, place = new / old if factors is None else real(factors[axis]), at.astype("float32")
        if mode == "align_corners":
            return tirx.Select(after > 1, place * (old - real(1)) / tirx.max(new - real(1), real(1)), real(0))
        if mode == "asymmetric":
            return place / scale
        if mode == OF_TENSORFLOW:  # which leaves a dimension of the same size as it is, as onnxruntime has it
            return tirx.Select(before == after, place, (place + real(0.5)) / scale)
        middle = (place + real(0.5)) / scale - real(0.5)
        return tirx.Select(after > 1, middle, real(0)) if mode == "pytorch_half_pixel" else middle

    def within(place: Any, size: Size) -> Any:  # noqa: ANN401
        return tirx.max(tirx.min(place, size - 1), tirx.IntImm("int64", 0))

    def rounded(place: Any) -> Any:  # noqa: ANN401
        if nearest == "round_prefer_ceil":
            return tirx.floor(place + real(0.5))
        if nearest == "round_prefer_floor":
            return tirx.ceil(place - real(0.5))
        return tirx.floor(place) if nearest == "floor" else tirx.ceil(place)

    def cubic(past: Any, first: Size, size: Size) -> list[Any]:  # noqa: ANN401
        """Return the weights of four elements (Keys, "Cubic Convolution Interpolation", 1981)."""

        def near(at: Any) -> Any:  # noqa: ANN401
            return (real(coefficient + 2) * at - real(coefficient + 3)) * at * at + real(1)

        def far(at: Any) -> Any:  # noqa: ANN401
            inner = (real(coefficient) * at - real(5 * coefficient)) * at + real(8 * coefficient)
            return inner * at - real(4 * coefficient)

        weights = [far(past + real(1)), near(past), near(real(1) - past), far(real(2) - past)]
        if not excludes:
            return weights
        inside = [
            tirx.Select(tirx.all(first + step >= 0, first + step < size), weight, real(0))
            for step, weight in zip(range(-1, 3), weights, strict=True)
        ]
        total = inside[0] + inside[1] + inside[2] + inside[3]
        return [weight / total for weight in inside]

    def compute(operand: Any, spatial: Sequence[Size]) -> Any:  # noqa: ANN401
        before, after = operand.shape, [*operand.shape[:2], *spatial]
        dtype = str(operand.dtype)
        wide = "float32" if dtype == "float16" else "float64" if "int" in dtype and method != "nearest" else dtype

        def interpolated(indices: Sequence[Size], found: list[Size]) -> Any:  # noqa: ANN401
            axis = len(found)
            if axis == len(after):
                return operand(*found).astype(wide)
            if isinstance(before[axis], tirx.IntImm) and int(before[axis]) == 1:  # which all coordinates are read from
                return interpolated(indices, [*found, tirx.IntImm("int64", 0)])
            place = coordinate(indices[axis], axis, before[axis], after[axis])
            if method == "nearest":
                return interpolated(indices, [*found, within(rounded(place).astype("int64"), before[axis])])
            if method == "cubic":
                first = tirx.floor(place).astype("int64")
                weights = cubic(place - tirx.floor(place), first, before[axis])
                each = [
                    interpolated(indices, [*found, within(first + step, before[axis])]) * weight.astype(wide)
                    for step, weight in zip(range(-1, 3), weights, strict=True)
                ]
                return each[0] + each[1] + each[2] + each[3]
            place = tirx.max(tirx.min(place, (before[axis] - 1).astype("float32")), real(0))
            low = tirx.floor(place)
            first = low.astype("int64")
            weight = (place - low).astype(wide)
            sides = [interpolated(indices, [*found, within(first + step, before[axis])]) for step in (0, 1)]
            return sides[0] * (tirx.const(1, wide) - weight) + sides[1] * weight

        def element(*indices: Size) -> Any:  # noqa: ANN401
            return interpolated(indices, list(indices[:2])).astype(operand.dtype)

        return te.compute(after, element, name="resize")

    return compute
