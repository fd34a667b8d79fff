"""Sizes that Resize and Upsample return for scales, as engines round them.

ONNX defines the product of size and scale, rounded down, and leaves the arithmetic open: 7 times the float32 next to
13/7 is 12.9999996, and 13 in float32. onnxruntime, OpenVINO and TVM compute it in float32; ONNX's shape inference and
its reference evaluator do not (onnx 1.23).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["resized", "scales_at"]


def resized(size: int, scale: float) -> int:
    """Return how long a dimension is after it is resized.

    >>> resized(7, 13 / 7)
    13

    Args:
        size: its length before.
        scale: by what it is multiplied.

    Returns:
        The product in float32, rounded down.
    """
    return int(np.float32(size) * np.float32(scale))


def scales_at(inputs: Sequence[str]) -> int | None:
    """Find the operand of a Resize or Upsample that holds the scales.

    It is the third since version 11, and the second before.

    Args:
        inputs: the operands.

    Returns:
        Its place; None where the scales are an attribute, as until version 8.
    """
    return min(2, len(inputs) - 1) if len(inputs) > 1 else None
