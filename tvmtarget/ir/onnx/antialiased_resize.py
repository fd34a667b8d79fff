"""A Resize with antialiasing, defined by products with matrices of the weights of its filter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import FunctionProto, NodeProto, numpy_helper

from tvmtarget.ir.function import Call
from tvmtarget.ir.types import TensorType

__all__ = ["antialiased_resize", "is_defined"]

_Array: TypeAlias = "np.ndarray[Any, Any]"
# Elements at each side that a filter reads where a size grows.
_RADII = {"linear": 1, "cubic": 2}
# Attributes with the only values that have a definition.
_USUAL = {"coordinate_transformation_mode": "half_pixel", "keep_aspect_ratio_policy": "stretch"}


def is_defined(call: Call, data: TensorType | None) -> bool:
    """Return whether a Resize with antialiasing has a definition once its sizes are known.

    Args:
        call: the operation.
        data: the type of the image.

    Returns:
        True for the usual coordinates of linear and cubic interpolation of float32.
    """
    is_usual = all(call.attr(name) in (None, value) for name, value in _USUAL.items())
    return is_usual and str(call.attr("mode")) in _RADII and data is not None and data.dtype == "float32"


def antialiased_resize(call: Call, operands: Sequence[TensorType | None], opset: int) -> FunctionProto | None:
    """Return the definition of a Resize with antialiasing to sizes that are known.

    Args:
        call: the operation.
        operands: the types of its operands.
        opset: the version of ONNX's operator set.

    Returns:
        A function; None if the operation is another Resize, or its sizes or their meaning are not known.
    """
    data, result, mode = operands[0], call.outputs[0].type, str(call.attr("mode"))
    has_sizes = len(call.inputs) > 3 and bool(call.inputs[3])
    if not call.attr("antialias") or not has_sizes or not is_defined(call, data):
        return None
    if data is None or data.shape is None or not isinstance(result, TensorType):
        return None
    rank, coefficient = len(data.shape), call.attr("cubic_coeff_a")
    nodes: list[NodeProto] = []
    name = "x"
    for axis, (old, new) in enumerate(zip(data.shape, result.shape or (), strict=False)):
        if old == new and old is not None:
            continue
        if not isinstance(old, int) or not isinstance(new, int) or not old or not new:
            return None
        weights = _weights(
            old, new, mode, coefficient if isinstance(coefficient, float) else -0.75,
            excludes_outside=bool(call.attr("exclude_outside")),
        )  # fmt: skip
        order = [*(at for at in range(rank) if at != axis), axis]
        tensor = numpy_helper.from_array(np.ascontiguousarray(weights.T))
        nodes += [
            onnx.helper.make_node("Constant", [], [f"w{axis}"], value=tensor),
            onnx.helper.make_node("Transpose", [name], [f"m{axis}"], perm=order),
            onnx.helper.make_node("MatMul", [f"m{axis}", f"w{axis}"], [f"r{axis}"]),
            onnx.helper.make_node("Transpose", [f"r{axis}"], [f"y{axis}"], perm=np.argsort(order).tolist()),
        ]
        name = f"y{axis}"
    if result.shape is None or len(result.shape) != rank:
        return None
    nodes.append(onnx.helper.make_node("Identity", [name], ["y"]))
    domains = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_function("", "Resize", ["x", "roi", "scales", "sizes"], ["y"], nodes, domains)


def _weights(old: int, new: int, mode: str, coefficient: float, *, excludes_outside: bool) -> _Array:
    """Return what each new element takes of each old one.

    Where a size shrinks, the filter (Keys 1981 for cubic ones) is as much wider. Elements beyond the ends are those at
    the ends, or have no weight.
    """
    scale = new / old
    width = _RADII[mode] / min(scale, 1)
    pad = math.ceil(width) + 1
    centers, places = ((np.arange(new) + 0.5) / scale)[:, None], np.arange(-pad, old + pad)
    x, a = np.abs((places + 0.5 - centers) * min(scale, 1)), coefficient
    if mode == "linear":
        weights = np.maximum(0, 1 - x)
    else:
        outer = np.where(x < 2, (((x - 5) * x + 8) * x - 4) * a, 0)
        weights = np.where(x < 1, ((a + 2) * x - (a + 3)) * x * x + 1, outer)
    weights *= (places >= np.floor(centers - width + 0.5)) & (places < np.floor(centers + width + 0.5))
    inner = weights[:, pad:-pad].copy()
    if not excludes_outside:
        inner[:, 0] += weights[:, :pad].sum(1)
        inner[:, -1] += weights[:, -pad:].sum(1)
    return np.asarray(inner / inner.sum(1, keepdims=True), "float32")
