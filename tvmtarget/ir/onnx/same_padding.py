"""Windows of automatic padding over images of symbolic sizes, defined by a Pad of computed numbers of elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import FunctionProto, NodeProto, numpy_helper

from tvmtarget.ir.function import Call
from tvmtarget.ir.symbolic_shapes import integers_of
from tvmtarget.ir.types import TensorType

__all__ = ["padded_convolution", "padded_maxima"]

_Array: TypeAlias = "np.ndarray[Any, Any]"


def padded_convolution(call: Call, operands: Sequence[TensorType | None], opset: int) -> FunctionProto | None:
    """Return the definition of a Conv with automatic padding.

    Args:
        call: the operation.
        operands: the types of its operands.
        opset: the version of ONNX's operator set.

    Returns:
        A function; None if the operation has other padding, or the size of its windows is not known.
    """
    weights = operands[1]
    sizes = () if weights is None or weights.shape is None else weights.shape[2:]
    kernel = integers_of(call, "kernel_shape", [size for size in sizes if isinstance(size, int)])
    return _padded(call, operands[0], opset, kernel, 0)


def padded_maxima(call: Call, operands: Sequence[TensorType | None], opset: int) -> FunctionProto | None:
    """Return the definition of a MaxPool of floats with automatic padding.

    Args:
        call: the operation.
        operands: the types of its operands.
        opset: the version of ONNX's operator set.

    Returns:
        A function; None if the operation has other padding or operands, or returns where the maxima are.
    """
    data = operands[0]
    if data is None or "float" not in data.dtype or len(call.outputs) > 1:
        return None
    return _padded(call, data, opset, integers_of(call, "kernel_shape"), -np.inf)


def _padded(
    call: Call, data: TensorType | None, opset: int, kernel: Sequence[int], filling: float
) -> FunctionProto | None:
    mode, rank = call.attr("auto_pad"), len(kernel)
    if mode not in ("SAME_LOWER", "SAME_UPPER") or data is None or data.shape is None or len(data.shape) != rank + 2:
        return None
    strides, dilations = (np.array(integers_of(call, name, [1] * rank)) for name in ("strides", "dilations"))
    # What the last window reads beyond a stride; a window that is narrower may need no padding at the end.
    extent = (np.array(kernel) - 1) * dilations + 1 - strides
    # Pad takes computed numbers since version 11, and Max integers since version 12.
    if opset < 11 + int((extent < 0).any()) or call.attr("ceil_mode"):
        return None
    nodes = [*_padding(strides, extent, is_upper=mode == "SAME_UPPER")]
    value = numpy_helper.from_array(np.array(filling, data.dtype))
    nodes.append(onnx.helper.make_node("Constant", [], ["filling"], value=value))
    nodes.append(onnx.helper.make_node("Pad", ["x", "pads", "filling"], ["padded"]))
    names = ["x", "w", "b"][: len(call.inputs)]
    node = onnx.helper.make_node(call.kind, ["padded", *names[1:]], ["y"])
    node.attribute.extend(
        onnx.helper.make_attribute(name, value) for name, value in call.attrs if name not in ("auto_pad", "pads")
    )
    domains = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_function("", call.kind, names, ["y"], [*nodes, node], domains)


def _padding(strides: _Array, extent: _Array, *, is_upper: bool) -> Iterator[NodeProto]:
    """Yield operations that make `pads` of the sizes of `x`, so that a window begins at every stride."""
    constants = {
        "first": np.array([2]),
        "last": np.array([2 + strides.size]),
        "zero": np.array([0]),
        "strides": strides,
        "rest": strides - 1,
        "extent": extent,
        "two": np.array([2]),
        "outer": np.zeros(2, "int64"),
    }
    for name, array in constants.items():
        tensor = numpy_helper.from_array(array.astype("int64"))
        yield onnx.helper.make_node("Constant", [], [name], value=tensor)
    for kind, operands, result in (
        ("Shape", ["x"], "shape"),
        ("Slice", ["shape", "first", "last"], "sizes"),
        ("Add", ["sizes", "rest"], "rounded"),
        ("Div", ["rounded", "strides"], "counts"),
        ("Mul", ["counts", "strides"], "whole"),
        ("Add", ["whole", "extent"], "read"),
        ("Sub", ["read", "sizes"], "missing"),
        ("Max", ["missing", "zero"], "total") if (extent < 0).any() else ("Identity", ["missing"], "total"),
        ("Div", ["total", "two"], "half"),
        ("Sub", ["total", "half"], "other"),
    ):
        yield onnx.helper.make_node(kind, operands, [result])
    sides = ["half", "other"] if is_upper else ["other", "half"]
    yield onnx.helper.make_node("Concat", ["outer", sides[0], "outer", sides[1]], ["pads"], axis=0)
