"""Discrete Fourier transforms as products with constant matrices, as TVM has no operator for them.

A product takes n * n steps where the fast transform takes n * log(n), but frames of audio are short (400 samples).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import NodeProto

from tvmtarget.backends.expansion_builder import ExpansionBuilder, attributes_of, operands_of

__all__ = ["FOURIER_EXPANSIONS"]

Array: TypeAlias = "np.ndarray[Any, Any]"


def _matrix(samples: int, length: int, bins: int, parts: int, *, is_inverse: bool = False) -> Array:
    """Return the matrix of a transform.

    Args:
        samples: values that are transformed; the first `length` of them, or with zeros behind them.
        length: the length of the transform.
        bins: frequencies of the result, from 0.
        parts: 1 for real samples, 2 for complex ones.
        is_inverse: whether frequencies become samples.

    Returns:
        Float64 of shape (samples, parts, bins, 2): real and imaginary parts of both.
    """
    # Multiplied as integers: an angle of many turns would lose digits.
    turns = np.outer(np.arange(samples), np.arange(bins)) % length / length
    sign, scale = (1, 1 / length) if is_inverse else (-1, 1)
    cos, sin = scale * np.cos(2 * np.pi * turns), sign * scale * np.sin(2 * np.pi * turns)
    cos[length:], sin[length:] = 0, 0
    matrix = np.stack([np.stack([cos, sin], axis=-1), np.stack([-sin, cos], axis=-1)], axis=1)
    return matrix[:, :parts]


def _real_matrix(bins: int, length: int) -> Array:
    """Return the matrix from the first half of the frequencies of real samples to these.

    Args:
        bins: frequencies, from 0; the first `length // 2 + 1` of them are read.
        length: the number of samples.

    Returns:
        Float64 of shape (bins, 2, length, 1).
    """
    read = length // 2 + 1
    whole = _matrix(bins, length, length, 2, is_inverse=True)[..., :1]
    # The other half are the conjugates of these, of all but the first and, of an even number, the last.
    whole[1 : (length + 1) // 2] *= 2
    whole[read:] = 0
    return whole


def _transform(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a DFT: the axis is moved behind the others, where it is multiplied by the matrix."""
    x, length_name, axis_name = operands_of(node, 3)
    attributes, rank = attributes_of(node), builder.rank(x)
    # The axis was an attribute before operator set 20.
    default = 1 if builder.opset < 20 else -2
    axis = int(builder.known(axis_name).item()) if axis_name else attributes.get("axis", default)
    axis %= rank
    samples, parts = (builder.types[x].shape.dim[at].dim_value for at in (axis, rank - 1))
    is_inverse, is_half = bool(attributes.get("inverse")), bool(attributes.get("onesided"))
    order = [*(at for at in range(rank - 1) if at != axis), axis, rank - 1]
    columns = builder.add("Transpose", [x], perm=order)
    elem_type = builder.types[x].elem_type
    if builder.types[x].shape.dim[axis].HasField("dim_value"):
        stated = int(builder.known(length_name).item()) if length_name else None
        if is_inverse and is_half:
            matrix = _real_matrix(samples, 2 * (samples - 1) if stated is None else stated)
        else:
            length = samples if stated is None else stated
            matrix = _matrix(samples, length, length // 2 + 1 if is_half else length, parts, is_inverse=is_inverse)
        _, _, *made = matrix.shape
        kept, dtype = [0] * (rank - 2), onnx.helper.tensor_dtype_to_np_dtype(elem_type)
        rows = builder.reshape(columns, [*kept, samples * parts])
        constant = builder.constant(matrix.reshape(samples * parts, -1).astype(dtype), x)
        result = builder.reshape(builder.add("MatMul", [rows, constant]), [*kept, *made])
    else:
        result = _symbolic_transform(builder, columns, elem_type, parts, is_inverse=is_inverse)
    builder.add("Transpose", [result], node.output[0], perm=[order.index(at) for at in range(rank)])


def _symbolic_transform(builder: ExpansionBuilder, x: str, dtype: int, parts: int, *, is_inverse: bool) -> str:
    """Return the transform along the last dimension but one, by a matrix that is computed when the program runs."""
    add = builder.add

    def number(value: float, kind: str = "int64") -> str:
        return builder.constant(np.array(value, kind), x)

    size = add("Gather", [add("Shape", [x]), number(-2)])
    places = add("Range", [number(0), size, number(1)])
    rows, columns = (builder.unsqueeze(places, axis) for axis in (1, 0))
    # The remainder of integers: an angle of many turns would lose digits.
    turns = add("Cast", [add("Mod", [add("Mul", [rows, columns]), size])], to=dtype)
    count, real = add("Cast", [size], to=dtype), onnx.helper.tensor_dtype_to_np_dtype(dtype).name
    angles = add("Mul", [add("Div", [turns, count]), number(2 * np.pi, real)])
    cosines, sines = (add("MatMul", [add(kind, [angles]), x]) for kind in ("Cos", "Sin"))
    if parts == 1:
        result = add("Concat", [cosines, sines if is_inverse else add("Neg", [sines])], axis=-1)
    else:
        signs = builder.constant(np.array([-1, 1] if is_inverse else [1, -1], real), x)
        imaginary, other = (builder.slice(sines, at, at + 1, -1) for at in (1, 0))
        turned = add("Mul", [add("Concat", [imaginary, other], axis=-1), signs])
        result = add("Add", [cosines, turned])
    return add("Div", [result, count]) if is_inverse else result


def _frames(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write an STFT: a convolution of the signal with the rows of the matrix, each multiplied by the window."""
    signal, step, window_name, length_name = operands_of(node, 4)
    parts = builder.types[signal].shape.dim[2].dim_value if builder.rank(signal) == 3 else 1
    window = builder.known(window_name).astype("float64") if window_name else None
    samples = 0 if window is None else window.size
    length = int(builder.known(length_name).item()) if length_name else samples
    bins = length // 2 + 1 if attributes_of(node).get("onesided", 1) else length
    matrix = _matrix(length, length, bins, parts)
    if window is not None:
        matrix *= window.reshape(-1, 1, 1, 1)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(builder.types[signal].elem_type)
    kernel = matrix.reshape(length, parts, bins * 2).transpose(2, 1, 0).astype(dtype)
    if builder.rank(signal) == 3:
        channels = builder.add("Transpose", [signal], perm=[0, 2, 1])
    else:
        channels = builder.reshape(signal, [0, 1, -1])
    strides = [int(builder.known(step).item())]
    sums = builder.add("Conv", [channels, builder.constant(kernel, signal)], strides=strides)
    builder.reshape(builder.add("Transpose", [sums], perm=[0, 2, 1]), [0, 0, bins, 2], node.output[0])


FOURIER_EXPANSIONS: Mapping[str, Callable[[ExpansionBuilder, NodeProto], None]] = {"DFT": _transform, "STFT": _frames}
