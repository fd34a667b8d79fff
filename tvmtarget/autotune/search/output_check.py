"""Whether a program still computes what it should, however it is placed and set: the results of the default decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.building.executable import Executable
from tvmtarget.building.output_comparison import Tolerance, compare

__all__ = ["Check"]

Array: TypeAlias = "np.ndarray[Any, Any]"

# Shares of the largest result by which others may differ, as another order of sums explains, layer after layer; of
# whole numbers, rounding explains a few that differ by more.
_SHARES = {"float16": 0.1, "bfloat16": 0.2}
_USUAL_SHARE = 1e-2
_TOLERANCE = Tolerance(
    defaults={
        name: (0.0, _SHARES.get(name, _USUAL_SHARE))
        for name in ("float64", "float32", "float16", "bfloat16", "complex64", "complex128")
    },
    share=0.01,
)


class Check:
    """The results of a program on some inputs, to be compared with those of others on them."""

    def __init__(self, program: Executable, inputs: Mapping[str, Array]) -> None:
        self._inputs = inputs
        first, again = program.run(inputs), program.run(inputs)
        # What is drawn at random is different every time, which says nothing.
        self._expected = {
            name: value
            for name, value in first.items()
            if compare({name: again[name]}, {name: value}, _TOLERANCE).agrees
        }

    def difference(self, program: Executable) -> str:
        """Run once, and say which result differs and how; nothing if none does."""
        found = program.run(self._inputs)
        actual = {name: found[name] for name in self._expected}
        return next((f"result {problem}" for problem in compare(actual, self._expected, _TOLERANCE).problems), "")
