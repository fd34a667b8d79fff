"""Whether a program still computes what it should, however it is placed and set: the results of the default decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.executable import Executable

__all__ = ["Check"]

Array: TypeAlias = "np.ndarray[Any, Any]"

# Parts of the largest result by which others may differ, as another order of sums explains, layer after layer.
TOLERANCE = {"float16": 0.1, "bfloat16": 0.2}
USUAL_TOLERANCE = 1e-2
STEPS, SHARE = 1, 0.01  # by how much whole numbers may differ, as rounding explains, and the share that may more


class Check:
    """The results of a program on some inputs, to be compared with those of others on them."""

    def __init__(self, program: Executable, inputs: Mapping[str, Array]) -> None:
        self._inputs = inputs
        first, again = program.run(inputs), program.run(inputs)
        # What is drawn at random is different every time, which says nothing.
        self._expected = {name: value for name, value in first.items() if not _difference(value, again[name])}

    def difference(self, program: Executable) -> str:
        """Run once, and say which result differs and how; nothing if none does."""
        found = program.run(self._inputs)
        for name, expected in self._expected.items():
            how = _difference(found[name], expected)
            if how:
                return f"result {name!r} {how}"
        return ""


def _difference(actual: Array, expected: Array) -> str:
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        return f"is {actual.dtype} {list(actual.shape)}, not {expected.dtype} {list(expected.shape)}"
    if not expected.size:
        return ""
    if expected.dtype.kind in "biu":
        apart = np.abs(actual.astype("float64") - expected.astype("float64")) > STEPS
        return f"differs in {apart.sum()} of {apart.size} values" if apart.mean() > SHARE else ""
    if expected.dtype.kind in "OSU":
        return "" if np.array_equal(actual, expected) else "differs"
    wide = "complex128" if expected.dtype.kind == "c" else "float64"
    ours, theirs = actual.astype(wide), expected.astype(wide)
    finite = np.isfinite(theirs)
    if not np.array_equal(finite, np.isfinite(ours)):
        return "is not finite where it should be, or the other way round"
    scale = float(np.abs(theirs[finite]).max(initial=0.0)) or 1.0
    error = float(np.abs(ours[finite] - theirs[finite]).max(initial=0.0)) / scale
    allowed = TOLERANCE.get(str(expected.dtype), USUAL_TOLERANCE)
    return f"differs by {error:.1e} of its largest value" if error > allowed else ""
