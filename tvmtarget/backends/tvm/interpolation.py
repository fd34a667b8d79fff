"""Interpolation of images of symbolic sizes, as operations of TE.

Source: ONNX's definition of Resize.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from onnx import NodeProto

from tvmtarget.backends.expansion_builder import attributes_of
from tvmtarget.backends.tvm.compiled_module import import_tvm
from tvmtarget.support.tvm_rules import OF_TENSORFLOW

__all__ = ["interpolation"]

Tensor: TypeAlias = Any  # of TE
Size: TypeAlias = Any  # an integer expression of TIR
Real: TypeAlias = Any  # an expression of TIR of a float type


def interpolation(node: NodeProto, factors: Sequence[float] | None) -> Callable[[Tensor, Sequence[Size]], Tensor]:
    """Return what resizes images: to their nearest elements, linearly, or cubically.

    Args:
        node: a Resize.
        factors: its scales, one for each dimension; None if it has sizes.

    Returns:
        A function of TE of a tensor and the sizes of its resized dimensions.
    """
    attributes = attributes_of(node)
    return _Interpolation(
        tirx=import_tvm().tirx,
        factors=factors,
        method=attributes.get("mode", "nearest"),
        coordinates=attributes.get("coordinate_transformation_mode", "half_pixel"),
        rounding=attributes.get("nearest_mode", "round_prefer_floor"),
        cubic_coefficient=float(attributes.get("cubic_coeff_a", -0.75)),
        excludes_outside=bool(attributes.get("exclude_outside", 0)),
    ).resized


@dataclass(frozen=True, eq=False)
class _Interpolation:
    """The attributes of a Resize, and the expressions of TIR that they mean."""

    tirx: Any
    factors: Sequence[float] | None
    method: str
    coordinates: str
    rounding: str
    cubic_coefficient: float
    excludes_outside: bool

    def resized(self, operand: Tensor, spatial: Sequence[Size]) -> Tensor:
        """Return a tensor, resized in the dimensions behind the first two."""
        after, dtype = [*operand.shape[:2], *spatial], str(operand.dtype)
        is_rounded = "int" in dtype and self.method != "nearest"
        wide = "float32" if dtype == "float16" else "float64" if is_rounded else dtype

        def element(*indices: Size) -> Real:
            return self._element(operand, after, indices, list(indices[:2]), wide).astype(dtype)

        return import_tvm().te.compute(after, element, name="resize")

    def _element(
        self, operand: Tensor, after: Sequence[Size], indices: Sequence[Size], found: list[Size], wide: str
    ) -> Real:
        """Interpolate along the dimensions behind those whose places in the operand are found, in the type `wide`."""
        axis = len(found)
        if axis == len(after):
            return operand(*found).astype(wide)
        before = operand.shape[axis]

        def at(place: Size) -> Real:
            return self._element(operand, after, indices, [*found, place], wide)

        if isinstance(before, self.tirx.IntImm) and int(before) == 1:  # which all coordinates are read from
            return at(self.tirx.IntImm("int64", 0))
        place = self._coordinate(indices[axis], axis, before, after[axis])
        if self.method == "nearest":
            return at(self._within(self._rounded(place).astype("int64"), before))
        if self.method == "cubic":
            first = self.tirx.floor(place).astype("int64")
            weights = self._cubic_weights(place - self.tirx.floor(place), first, before)
            each = [
                at(self._within(first + step, before)) * weight.astype(wide)
                for step, weight in zip(range(-1, 3), weights, strict=True)
            ]
            return each[0] + each[1] + each[2] + each[3]
        place = self.tirx.max(self.tirx.min(place, (before - 1).astype("float32")), self._real(0))
        low = self.tirx.floor(place)
        first, weight = low.astype("int64"), (place - low).astype(wide)
        sides = [at(self._within(first + step, before)) for step in (0, 1)]
        return sides[0] * (self.tirx.const(1, wide) - weight) + sides[1] * weight

    def _coordinate(self, at: Size, axis: int, before: Size, after: Size) -> Real:
        """Return where in the operand an index of the result lies (`coordinate_transformation_mode`)."""
        real, select = self._real, self.tirx.Select
        old, new = (size.astype("float32") for size in (before, after))
        scale, place = new / old if self.factors is None else real(self.factors[axis]), at.astype("float32")
        if self.coordinates == "align_corners":
            return select(after > 1, place * (old - real(1)) / self.tirx.max(new - real(1), real(1)), real(0))
        if self.coordinates == "asymmetric":
            return place / scale
        if (
            self.coordinates == OF_TENSORFLOW
        ):  # which leaves a dimension of the same size as it is, as onnxruntime has it
            return select(before == after, place, (place + real(0.5)) / scale)
        middle = (place + real(0.5)) / scale - real(0.5)
        return select(after > 1, middle, real(0)) if self.coordinates == "pytorch_half_pixel" else middle

    def _rounded(self, place: Real) -> Real:
        if self.rounding == "round_prefer_ceil":
            return self.tirx.floor(place + self._real(0.5))
        if self.rounding == "round_prefer_floor":
            return self.tirx.ceil(place - self._real(0.5))
        return self.tirx.floor(place) if self.rounding == "floor" else self.tirx.ceil(place)

    def _cubic_weights(self, past: Real, first: Size, size: Size) -> list[Real]:
        """Return the weights of four elements (Keys, "Cubic Convolution Interpolation", 1981)."""
        real, coefficient = self._real, self.cubic_coefficient

        def near(at: Real) -> Real:
            return (real(coefficient + 2) * at - real(coefficient + 3)) * at * at + real(1)

        def far(at: Real) -> Real:
            inner = (real(coefficient) * at - real(5 * coefficient)) * at + real(8 * coefficient)
            return inner * at - real(4 * coefficient)

        weights = [far(past + real(1)), near(past), near(real(1) - past), far(real(2) - past)]
        if not self.excludes_outside:
            return weights
        inside = [
            self.tirx.Select(self.tirx.all(first + step >= 0, first + step < size), weight, real(0))
            for step, weight in zip(range(-1, 3), weights, strict=True)
        ]
        total = inside[0] + inside[1] + inside[2] + inside[3]
        return [weight / total for weight in inside]

    def _within(self, place: Size, size: Size) -> Size:
        return self.tirx.max(self.tirx.min(place, size - 1), self.tirx.IntImm("int64", 0))

    def _real(self, value: float) -> Real:
        return self.tirx.const(value, "float32")
