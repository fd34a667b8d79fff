"""Compare the outputs of a program with those of a reference, by output and element.

An element of a number type agrees where both are NaN, both are the same infinity, or

    |actual - expected| <= atol + rtol * |expected|

By default, `rtol` and `atol` follow from the data type of the output (`DEFAULTS`); `atol` is a share of the scale of
the output, which is the largest finite expected magnitude, or 1 if that is 0. Integers of 8 bits or fewer are quantised
values and may differ by one step; wider integers, booleans and texts have to be equal. Outputs of another type or shape
never agree. Sequences and maps are compared item by item.

Two programs that compute in half precision differ by that, also in outputs of wider types: these have the tolerance of
the narrowest type that they are computed from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from tvmtarget.human_units import counted
from tvmtarget.ir.function import Call, calls_in, reachable_functions
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.types import TensorType

__all__ = ["DEFAULTS", "Comparison", "OutputDifference", "Tolerance", "compare", "halves_of_outputs"]

Array: TypeAlias = "np.ndarray[Any, Any]"

# rtol, and atol as a share of the scale, by type. A float type of n bits of fraction rounds by 2^-(n+1); sums of a
# thousand terms in another order, layer after layer, move results by some ten to a thousand times that.
DEFAULTS: Mapping[str, tuple[float, float]] = {
    "float64": (1e-6, 1e-7),
    "float32": (1e-3, 1e-4),
    "float16": (2e-2, 2e-3),
    "bfloat16": (1e-1, 1e-2),
    "complex128": (1e-6, 1e-7),
    "complex64": (1e-3, 1e-4),
}
_FLOATS = ("float64", "float32", "float16", "bfloat16")  # narrower ones last
_HALVES = _FLOATS[2:]
_NARROW_FLOAT = (0.5, 0.05)  # floats of 8 bits or fewer
_NARROW_INTEGERS = frozenset({"int8", "uint8", "int4", "uint4", "int2", "uint2"})
_STEPS = 1.0  # by which quantised values may differ


@dataclass(frozen=True)
class Tolerance:
    """How far outputs may be from the expected ones.

    Attributes:
        rtol: Relative tolerance; None to use that of the data type.
        atol: Absolute tolerance; None to use that of the data type and the scale.
        defaults: Rows that replace those of `DEFAULTS`, by data type.
        share: The share of the elements of an integer output that may differ by more.
        halves: What `halves_of_outputs` returns for the program.
    """

    rtol: float | None = None
    atol: float | None = None
    defaults: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    share: float = 0.0
    halves: Mapping[str, str] = field(default_factory=dict)

    def for_output(self, name: str) -> Tolerance:
        """Return the tolerance of one output.

        Args:
            name: The name of the output.

        Returns:
            A tolerance; that of `halves` replaces the defaults of wider floats.
        """
        half = self.halves.get(name)
        if half is None:
            return self
        wider = _FLOATS[: _FLOATS.index(half)]
        return replace(self, defaults={**dict.fromkeys(wider, DEFAULTS[half]), **self.defaults})

    def of(self, dtype: str, scale: float) -> tuple[float, float]:
        """Return the tolerance of an output.

        Args:
            dtype: The data type of the output.
            scale: The largest finite expected magnitude.

        Returns:
            rtol and atol.
        """
        if dtype in _NARROW_INTEGERS:
            rtol, atol = 0.0, _STEPS
        elif dtype == "bool" or dtype.startswith(("int", "uint")):
            rtol, atol = 0.0, 0.0
        else:
            rtol, share = self.defaults.get(dtype) or DEFAULTS.get(dtype, _NARROW_FLOAT)
            atol = share * scale
        return rtol if self.rtol is None else self.rtol, atol if self.atol is None else self.atol


@dataclass(frozen=True)
class OutputDifference:
    """The difference of one output, or of one item of a sequence or map, from the expected one.

    Attributes:
        name: The name of the output; items have an index or key behind it.
        dtype: The expected data type.
        shape: The expected shape; None if the output is not a tensor.
        elements: The number of elements.
        different: The number of elements that do not agree, including those of the mismatches.
        nans: The number of expected NaN.
        nan_mismatches: The number of elements that are NaN on one side only.
        infinities: The number of expected infinities.
        infinity_mismatches: The number of elements where an infinity on one side is not on the other.
        max_abs: The largest difference of elements that are finite on both sides; None if there are none.
        max_rel: `max_abs` as a share of the scale.
        rtol: The relative tolerance that was used.
        atol: The absolute tolerance that was used.
        share: The share of elements that may differ.
        reason: Why the two cannot be compared by element; empty if they can.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    elements: int = 0
    different: int = 0
    nans: int = 0
    nan_mismatches: int = 0
    infinities: int = 0
    infinity_mismatches: int = 0
    max_abs: float | None = None
    max_rel: float | None = None
    rtol: float | None = None
    atol: float | None = None
    share: float = 0.0
    reason: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the output is within the tolerance."""
        return not self.reason and self.different <= self.share * self.elements

    def to_json(self) -> dict[str, object]:
        """Return the difference as JSON data."""
        return {**asdict(self), "agrees": self.agrees}

    def __str__(self) -> str:
        if self.reason:
            return f"{self.name}: {self.reason}"
        parts = [f"{self.different} of {self.elements} values differ" if self.elements else "no values"]
        if self.nan_mismatches:
            parts.append(f"{self.nan_mismatches} NaN on one side only")
        if self.infinity_mismatches:
            parts.append(f"{counted(self.infinity_mismatches, 'infinity')} not matched")
        parts += [f"{self.nans} NaN expected"] * bool(self.nans)
        parts += [f"{counted(self.infinities, 'infinity')} expected"] * bool(self.infinities)
        if self.max_abs is not None and self.max_rel is not None:
            parts.append(f"largest difference {self.max_abs:.3g} ({self.max_rel:.2g} of the scale)")
        if self.rtol is not None and self.atol is not None:
            parts.append(f"rtol {self.rtol:.3g}, atol {self.atol:.3g}")
        return f"{self.name}: {'; '.join(parts)}"


@dataclass(frozen=True)
class Comparison:
    """The differences of all outputs, in their order."""

    outputs: tuple[OutputDifference, ...]

    @property
    def agrees(self) -> bool:
        """Whether all outputs are within the tolerance."""
        return all(output.agrees for output in self.outputs)

    @property
    def max_abs(self) -> float | None:
        """The largest difference of finite values; None if no finite values were compared."""
        return max((output.max_abs for output in self.outputs if output.max_abs is not None), default=None)

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each output that does not agree."""
        return tuple(str(output) for output in self.outputs if not output.agrees)

    def to_json(self) -> dict[str, object]:
        """Return the comparison as JSON data."""
        return {"agrees": self.agrees, "max_abs": self.max_abs, "outputs": [one.to_json() for one in self.outputs]}


def compare(
    actual: Mapping[str, object], expected: Mapping[str, object], tolerance: Tolerance | None = None
) -> Comparison:
    """Compare outputs by name.

    Args:
        actual: The outputs to check, by name.
        expected: The outputs of the reference, by name.
        tolerance: The tolerance; by default that of the data type of each output.

    Returns:
        The difference of each expected output, in order, and then of each output that was not expected.
    """
    found: list[OutputDifference] = []
    for name, value in expected.items():
        if name in actual:
            found += _differences(name, actual[name], value, (tolerance or Tolerance()).for_output(name))
        else:
            found.append(_incomparable(name, value, "the output is missing"))
    found += (_incomparable(name, value, "the output is not expected") for name, value in actual.items()
              if name not in expected)  # fmt: skip
    return Comparison(tuple(found))


def halves_of_outputs(module: IRModule) -> dict[str, str]:
    """Return the types of half precision that outputs of a program are computed from.

    Constants and inputs in half precision do not count: all programs read the same values.

    Args:
        module: The program.

    Returns:
        `float16`, or `bfloat16`, which has fewer bits of fraction, by the names of outputs that depend on such values.
    """
    ranks: dict[str, int] = {}
    functions = {function.name: function for function in module}
    for call in module.main.body:
        callees = reachable_functions([call.callee], functions) if call.callee in functions else ()
        bodies = (*(region for _, region in call.regions), *(functions[name] for name in callees))
        nested = [one for body in bodies for one in calls_in(body)]
        rank = max(*map(_rank, (call, *nested)), *(ranks.get(name, 0) for name in call.uses()), 0)
        ranks |= dict.fromkeys((output.name for output in call.outputs), rank)
    return {name: _HALVES[ranks[name] - 1] for name in module.main.results if ranks.get(name)}


def _rank(call: Call) -> int:
    """Return the place of the narrowest result of a call in `_HALVES`, from 1; 0 if it has none of these."""
    types = {output.type.dtype for output in call.outputs if isinstance(output.type, TensorType)}
    return max((number for number, half in enumerate(_HALVES, 1) if half in types), default=0)


def _differences(name: str, actual: object, expected: object, tolerance: Tolerance) -> Iterator[OutputDifference]:
    if _form(actual) != _form(expected):
        yield _incomparable(name, expected, f"it is {_form(actual)}, not {_form(expected)}")
    elif isinstance(expected, Mapping) and isinstance(actual, Mapping):
        if actual.keys() != expected.keys():
            yield _incomparable(name, expected, f"it has other keys than the {len(expected)} expected")
            return
        for key, value in expected.items():
            yield from _differences(f"{name}[{key!r}]", actual[key], value, tolerance)
    elif _is_sequence(expected) and _is_sequence(actual):
        if len(actual) != len(expected):
            yield _incomparable(name, expected, f"it has {counted(len(actual), 'item')}, not {len(expected)}")
            return
        for position, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
            yield from _differences(f"{name}[{position}]", ours, theirs, tolerance)
    elif expected is None:
        yield OutputDifference(name, "none", None)
    else:
        yield _difference(name, np.asarray(actual), np.asarray(expected), tolerance)


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _form(value: object) -> str:
    """Return the kind of a value as a phrase; data types of tensors are compared later."""
    if value is None:
        return "absent"
    if isinstance(value, Mapping):
        return "a map"
    return "a sequence" if _is_sequence(value) else "a tensor"


def _incomparable(name: str, value: object, reason: str) -> OutputDifference:
    if isinstance(value, np.ndarray):
        return OutputDifference(name, str(value.dtype), value.shape, reason=reason)
    return OutputDifference(name, _form(value), None, reason=reason)


def _difference(name: str, actual: Array, expected: Array, tolerance: Tolerance) -> OutputDifference:
    is_text = expected.dtype.kind in "OSUT"
    same_type = actual.dtype == expected.dtype or (is_text and actual.dtype.kind in "OSUT")
    if actual.shape != expected.shape or not same_type:
        types = (f"{array.dtype}{list(array.shape)}" for array in (actual, expected))
        return _incomparable(name, expected, f"it is {', not '.join(types)}")
    dtype, shape, size = str(expected.dtype), expected.shape, expected.size
    if is_text:
        different = sum(ours != theirs for ours, theirs in zip(actual.flat, expected.flat, strict=True))
        return OutputDifference(name, "string", shape, size, different)
    is_whole = dtype == "bool" or dtype.startswith(("int", "uint"))
    # A difference in the type itself could wrap around (unsigned integers) or overflow (narrow floats).
    wide = "complex128" if expected.dtype.kind == "c" else "float64"
    ours, theirs = actual.astype(wide), expected.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(ours - theirs)
    if is_whole:  # two different 64-bit integers may be the same float64
        apart = np.where(actual == expected, 0.0, np.maximum(apart, 1.0))
    scale = float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0)) or 1.0
    finite = np.isfinite(ours) & np.isfinite(theirs)
    nan = np.isnan(ours) != np.isnan(theirs)
    infinite = (np.isinf(ours) | np.isinf(theirs)) & ~nan & (ours != theirs)
    rtol, atol = tolerance.of(dtype, scale)
    magnitude = np.where(finite, np.abs(theirs), 0.0)
    beyond = finite & ~(np.where(finite, apart, 0.0) <= atol + rtol * magnitude)
    largest = float(apart[finite].max()) if finite.any() else None
    return OutputDifference(
        name,
        dtype,
        shape,
        size,
        different=int((beyond | nan | infinite).sum()),
        nans=int(np.isnan(theirs).sum()),
        nan_mismatches=int(nan.sum()),
        infinities=int(np.isinf(theirs).sum()),
        infinity_mismatches=int(infinite.sum()),
        max_abs=largest,
        max_rel=None if largest is None else largest / scale,
        rtol=rtol,
        atol=atol,
        share=tolerance.share if is_whole else 0.0,
    )
