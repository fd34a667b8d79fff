"""Workarounds for defects of ONNX's reference evaluator; each goes when the defect is fixed upstream."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, ValueInfoProto
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_average_pool import AveragePool_19
from onnx.reference.ops.op_conv_transpose import ConvTranspose as ReferenceConvTranspose
from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_25
from onnx.reference.ops.op_grid_sample import GridSample as ReferenceGridSample
from onnx.reference.ops.op_loop import Loop as ReferenceLoop
from onnx.reference.ops.op_lrn import LRN as ReferenceLRN  # noqa: N811 - the evaluator finds operators by class name
from onnx.reference.ops.op_max_pool import MaxPool as ReferenceMaxPool
from onnx.reference.ops.op_negative_log_likelihood_loss import NegativeLogLikelihoodLoss as ReferenceLoss
from onnx.reference.ops.op_non_max_suppression import NonMaxSuppression as ReferenceNonMaxSuppression
from onnx.reference.ops.op_one_hot import OneHot as ReferenceOneHot
from onnx.reference.ops.op_optional import Optional as ReferenceOptional
from onnx.reference.ops.op_pad import Pad_18
from onnx.reference.ops.op_quantize_linear import QuantizeLinear_25, _reshape_input

from tvmtarget.backends.protocol import Array

__all__ = ["FIXES"]


class LRN(ReferenceLRN):  # type: ignore[misc]
    """Local response normalization, whose loop over channels counts to the number of samples (onnx 1.23).

    The operator works on each position by itself, so the evaluator gets the positions in as many samples as there are
    channels, where both numbers agree.
    """

    def _run(self, x: Array, **attributes: object) -> tuple[Array]:
        channels = x.shape[1]
        positions = np.moveaxis(x, 1, 0).reshape(channels, -1)
        count = positions.shape[1]
        padded = np.pad(positions, ((0, 0), (0, -count % max(1, channels))))
        samples = padded.reshape(channels, channels, 1, -1).swapaxes(0, 1)
        result = super()._run(samples, **attributes)[0]
        positions = result.swapaxes(0, 1).reshape(channels, -1)[:, :count]
        return (np.moveaxis(positions.reshape(channels, x.shape[0], *x.shape[2:]), 0, 1),)


class Loop(ReferenceLoop):  # type: ignore[misc]
    """A loop, which the evaluator never enters without a condition, and whose scan outputs it concatenates (onnx 1.23).

    They are stacked along a new first axis; without iterations, unknown dimensions are 0.
    """

    def _run(
        self,
        M: Any,  # noqa: ANN401, N803 - as the evaluator calls it
        cond: Any,  # noqa: ANN401
        *carried: Any,  # noqa: ANN401
        context: dict[str, Any] | None = None,
        body: Any = None,  # noqa: ANN401
        attributes: Any = None,  # noqa: ANN401
        bindings: Any = None,  # noqa: ANN401
    ) -> tuple[Any, ...]:
        names, number, goes_on = self.body.input_names, 0, cond is None or bool(np.asarray(cond).item())
        collected: list[list[Any]] = [[] for _ in range(self.K)]
        while goes_on and (M is None or number < M):
            flag = np.asarray(goes_on)
            inputs = dict(zip(names, (np.asarray(number, "int64"), flag, *carried), strict=True))
            results = self._run_body({**(context or {}), **inputs}, attributes=attributes, bindings=bindings)
            goes_on, carried = bool(np.asarray(results[0]).item()), tuple(results[1 : 1 + self.N])
            for values, one in zip(collected, results[1 + self.N :], strict=True):
                values.append(one)
            number += 1
        outputs = self.body.proto_.output[1 + self.N :]
        stacked = (np.stack(ones) if ones else _nothing(one) for ones, one in zip(collected, outputs, strict=True))
        return (*carried, *stacked)


class NegativeLogLikelihoodLoss(ReferenceLoss):  # type: ignore[misc]
    """A loss, whose mean counts samples of the ignored class -1 unless there are weights (onnx 1.23)."""

    def _run(self, x: Array, target: Array, weight: Array | None = None, **attributes: object) -> tuple[Array]:
        weight = np.ones(x.shape[1], x.dtype) if weight is None else weight
        return super()._run(x, target, weight, **attributes)  # type: ignore[no-any-return]


def _nothing(value: ValueInfoProto) -> Array:
    """Return the stack of no values of a type."""
    tensor = value.type.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") else 0 for dim in tensor.shape.dim]
    return np.zeros((0, *dims), tensor_dtype_to_np_dtype(tensor.elem_type))


class DequantizeLinear(DequantizeLinear_25):  # type: ignore[misc]
    """Linear dequantization, which the evaluator has only since version 19; earlier versions have the same meaning."""


class QuantizeLinear(QuantizeLinear_25):  # type: ignore[misc]
    """Linear quantization, whose infinities and large numbers do not fit the evaluator's int32 (onnx 1.23).

    NaN becomes the least number, as on onnxruntime; ONNX leaves that open.
    """

    def _run(
        self,
        x: Array,
        y_scale: Array,
        zero_point: Array | None = None,
        axis: int = 1,
        block_size: int = 0,
        output_dtype: int = 0,
        precision: int = 0,
        **attributes: object,
    ) -> tuple[Array]:
        dtype = tensor_dtype_to_np_dtype(output_dtype or TensorProto.UINT8) if zero_point is None else zero_point.dtype
        if dtype.kind not in "iu" or precision:
            stated = {"output_dtype": output_dtype or None, "precision": precision or None, "block_size": block_size}
            found: tuple[Array] = super()._run(x, y_scale, zero_point, axis=axis, **stated, **attributes)
            return found
        scale, zero = (
            None if one is None else _reshape_input(one, x.shape, axis, block_size) for one in (y_scale, zero_point)
        )
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        with np.errstate(all="ignore"):
            rounded = np.rint(x / scale).astype("float64") + (0 if zero is None else zero.astype("float64"))
        return (np.clip(np.nan_to_num(rounded, nan=least), least, most).astype(dtype),)


class Optional(ReferenceOptional):  # type: ignore[misc]
    """An optional value, which the evaluator puts into a list that it never unpacks (onnx 1.23)."""

    def _run(self, *values: Any, **attributes: object) -> tuple[Any]:  # noqa: ANN401
        return (values[0] if values else None,)


class GatherElements(OpRun):  # type: ignore[misc]
    """Elements by index along an axis, of which the evaluator supports fewer than 64 (onnx 1.23)."""

    def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Array]:
        axis %= data.ndim
        ends = (None if one == axis else size for one, size in enumerate(indices.shape))
        return (np.take_along_axis(data[tuple(slice(end) for end in ends)], indices, axis),)


class GridSample(ReferenceGridSample):  # type: ignore[misc]
    """Grid sampling, whose modes the evaluator knows only by the names that they have since version 20 (onnx 1.23)."""

    def _run(self, x: Array, grid: Array, mode: str = "linear", **attributes: object) -> tuple[Array]:
        name = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
        result: tuple[Array] = super()._run(x, grid, mode=name, **attributes)
        return result


class MatMulInteger(OpRun):  # type: ignore[misc]
    """Products of integers, of which the evaluator gives one zero point for each row to the columns (onnx 1.23)."""

    def _run(self, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> tuple[Array]:
        rows, columns = (np.asarray(0 if zero is None else zero, np.int32) for zero in (a_zero, b_zero))
        rows = rows[:, None] if rows.ndim == 1 else rows
        return ((a.astype(np.int32) - rows) @ (b.astype(np.int32) - columns),)


class MaxPool(ReferenceMaxPool):  # type: ignore[misc]
    """Maxima of windows, which the evaluator takes one by one in Python, for many seconds in a network (onnx 1.23).

    What it does with NaN and sizes that are rounded up is left to it, except for the places of the maxima, which it
    computes for some strides only, and for integers, which it pads with NaN.
    """

    def _run(self, x: Array, **attributes: Any) -> tuple[Array, ...]:  # noqa: ANN401
        count = len(self.onnx_node.output)
        if count > 1 or x.dtype.kind in "iu":
            return _maxima_with_places(x, **attributes)[:count]
        windows = _windows(x, **attributes)
        if windows is None:
            results: tuple[Array, ...] = super()._run(x, **attributes)
            return results
        return (_reduced(x, windows, lambda values: values.max(axis=-1)),)


def _maxima_with_places(
    x: Array,
    kernel_shape: Sequence[int] = (),
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str | None = None,
    ceil_mode: int | None = None,
    storage_order: int | None = None,
) -> tuple[Array, Array]:
    """Return maxima of windows, and where the first of equal ones is in the whole tensor."""
    rank, sizes, gaps = len(kernel_shape), x.shape[2:], dilations or [1] * len(kernel_shape)
    starts = _starts(sizes, kernel_shape, strides, gaps, pads, auto_pad, ceil_mode)
    counts = [*map(len, starts)]
    maxima, places = np.zeros((*x.shape[:2], *counts), x.dtype), np.full((*x.shape[:2], *counts), -1)
    images = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * rank) * math.prod(sizes)
    order = range(rank)[::-1] if storage_order else range(rank)
    for offset in np.ndindex(*kernel_shape):
        along = np.ix_(*(np.array(starts[at], "int64") + offset[at] * gaps[at] for at in range(rank)))
        within = math.prod((one >= 0) & (one < size) for one, size in zip(along, sizes, strict=True))
        index = tuple(one.clip(0, size - 1) for one, size in zip(along, sizes, strict=True))
        found, place = x[(..., *index)], np.zeros((), "int64")
        for at in order:
            place = place * sizes[at] + index[at]
        is_more = (within != 0) & ((places < 0) | (found > maxima))
        maxima, places = np.where(is_more, found, maxima), np.where(is_more, images + place, places)
    return maxima, places


class AveragePool(AveragePool_19):  # type: ignore[misc]
    """Averages of windows, as fast as the maxima and equal to those of the evaluator."""

    def _run(self, x: Array, count_include_pad: int | None = None, **attributes: Any) -> tuple[Array]:  # noqa: ANN401
        windows = _windows(x, **attributes)
        if windows is None or (count_include_pad and any(attributes["pads"] or ())):
            result: tuple[Array] = super()._run(x, count_include_pad=count_include_pad, **attributes)
            return result
        return (_reduced(x, windows, lambda values: values.mean(axis=-1)),)


def _windows(
    x: Array,
    kernel_shape: Sequence[int] = (),
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str | None = None,
    ceil_mode: int | None = None,
    storage_order: int | None = None,
) -> list[list[slice]] | None:
    """Return the windows of a pooling operator along each spatial dimension, without padding.

    Returns:
        The indices of each window; None if only the evaluator knows what it does.
    """
    gaps, found = dilations or [1] * len(kernel_shape), []
    if ceil_mode or x.dtype.kind != "f" or not x.size or np.isnan(x).any():
        return None
    every = _starts(x.shape[2:], kernel_shape, strides, gaps, pads, auto_pad, ceil_mode)
    for size, kernel, gap, starts in zip(x.shape[2:], kernel_shape, gaps, every, strict=True):
        length = (kernel - 1) * gap + 1
        # The first element of the input in a window that begins in the padding, and each gap-th after it.
        found.append([slice(start % gap if start < 0 else start, start + length, gap) for start in starts])
        if not starts or any(one.start >= min(one.stop, size) for one in found[-1]):
            return None  # a window of padding alone
    return found


def _starts(
    sizes: Sequence[int],
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int],
    pads: Sequence[int] | None,
    auto_pad: str | None,
    ceil_mode: int | None,
) -> list[range]:
    """Return where the windows of a pooling operator begin along each spatial dimension; negative in the padding."""
    rank, found = len(kernel_shape), []
    steps, edges = strides or [1] * rank, pads or [0] * 2 * rank
    for size, kernel, step, gap, first, last in zip(
        sizes, kernel_shape, steps, dilations, edges[:rank], edges[rank:], strict=True
    ):
        length, before, after = (kernel - 1) * gap + 1, first, last
        is_same = auto_pad in ("SAME_UPPER", "SAME_LOWER")
        if is_same:
            total = max(0, (-(-size // step) - 1) * step + length - size)
            before = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            after = total - before
        last_start = size + after - length
        if ceil_mode and not is_same:
            # A window that would begin behind the image and the padding before it is none.
            rounded = last_start + -(last_start + before) % step
            last_start = rounded if rounded < size else last_start
        found.append(range(-before, last_start + 1, step))
    return found


def _reduced(x: Array, windows: list[list[slice]], reduce: Callable[[Array], Array]) -> Array:
    result = np.empty((*x.shape[:2], *map(len, windows)), x.dtype)
    for position in np.ndindex(*result.shape[2:]):
        window = x[(..., *(along[index] for along, index in zip(windows, position, strict=True)))]
        result[(..., *position)] = reduce(window.reshape(*x.shape[:2], -1))
    return result


class GlobalMaxPool(OpRun):  # type: ignore[misc]
    """Maxima of images, of which the evaluator supports two spatial dimensions only (onnx 1.23)."""

    def _run(self, x: Array) -> tuple[Array]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class GlobalLpPool(OpRun):  # type: ignore[misc]
    """Norms of images, which the evaluator does not have (onnx 1.23)."""

    def _run(self, x: Array, p: int | None = None) -> tuple[Array]:
        order = 2 if p is None else p
        sums = (np.abs(x) ** order).sum(axis=tuple(range(2, x.ndim)), keepdims=True)
        return ((sums ** (1 / order)).astype(x.dtype),)


class LpNormalization(OpRun):  # type: ignore[misc]
    """Division by a norm, of which the evaluator sums numbers with their signs where it is of order 1 (onnx 1.23)."""

    def _run(self, x: Array, axis: int | None = None, p: int | None = None) -> tuple[Array]:
        along, order = -1 if axis is None else axis, 2 if p is None else p
        norm = (np.abs(x) ** order).sum(axis=along, keepdims=True) ** (1 / order)
        return (np.divide(x, norm, out=np.zeros_like(x), where=norm != 0).astype(x.dtype),)


class OneHot(ReferenceOneHot):  # type: ignore[misc]
    """One-hot vectors, whose depth the evaluator takes as a scalar only, of numbers only (onnx 1.23)."""

    def _run(self, indices: Array, depth: Array, values: Array, axis: int | None = None) -> tuple[Array]:
        is_on = super()._run(indices, np.reshape(depth, ()), np.arange(2), axis=-1 if axis is None else axis)[0]
        return (values[is_on],)


class NonMaxSuppression(ReferenceNonMaxSuppression):  # type: ignore[misc]
    """Selection of boxes, whose limits the evaluator takes as vectors, and all of them, only (onnx 1.23)."""

    def _run(self, boxes: Array, scores: Array, *limits: Array | None, **attributes: object) -> tuple[Array]:
        most, *thresholds = (None if one is None else np.reshape(one, -1) for one in [*limits, None, None, None][:3])
        most = np.zeros(1, np.int64) if most is None or not most.size else most
        overlap = np.zeros(1, np.float32) if thresholds[0] is None else thresholds[0]
        result: tuple[Array] = super()._run(boxes, scores, most, overlap, thresholds[1], **attributes)
        return result


class Pad(Pad_18):  # type: ignore[misc]
    """Padding, of which the evaluator does not support negative numbers of elements (onnx 1.23): they are cut off."""

    def _run(self, data: Array, pads: Array, *rest: Array | None, **attributes: object) -> tuple[Array]:
        axes = range(data.ndim) if len(rest) < 2 or rest[1] is None else rest[1]
        kept = [slice(None)] * data.ndim
        for axis, before, after in zip(axes, *pads.reshape(2, -1), strict=True):
            kept[axis] = slice(max(0, -before), data.shape[axis] - max(0, -after))
        result: tuple[Array] = super()._run(data[tuple(kept)], np.maximum(pads, 0), *rest, **attributes)
        return result


class ConvTranspose(ReferenceConvTranspose):  # type: ignore[misc]
    """Transposed convolution, whose groups the evaluator mixes up, and whose shape it does not crop to (onnx 1.23)."""

    def _run(
        self,
        x: Array,
        weights: Array,
        bias: Array | None = None,
        group: int | None = None,
        output_shape: Sequence[int] | None = None,
        **attributes: Any,  # noqa: ANN401
    ) -> tuple[Array]:
        if output_shape is not None:
            rank = len(output_shape)
            steps, gaps, more = (
                attributes.get(name) or [default] * rank
                for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
            )
            sizes = zip(x.shape[2:], weights.shape[2:], steps, gaps, more, output_shape, strict=True)
            ends = [((n - 1) * step + (kernel - 1) * gap + 1 + add, out) for n, kernel, step, gap, add, out in sizes]
            total = [max(0, end - out) for end, out in ends]
            less, rest = [one // 2 for one in total], [one - one // 2 for one in total]
            attributes["pads"] = [*less, *rest] if attributes.get("auto_pad") == "SAME_UPPER" else [*rest, *less]
        count = group or 1
        parts = [
            super(ConvTranspose, self)._run(data, each, group=1, output_shape=output_shape, **attributes)[0]
            for data, each in zip(np.split(x, count, axis=1), np.split(weights, count), strict=True)
        ]
        result = np.concatenate(parts, axis=1)
        return (result if bias is None else result + bias.reshape(-1, *[1] * (x.ndim - 2)),)


class ReduceMean(OpRun):  # type: ignore[misc]
    """Means, of which the evaluator makes NaN of no elements, where ONNX Runtime makes 0 (onnx 1.23)."""

    def _run(
        self,
        x: Array,
        axes: Sequence[int] | Array | None = None,
        keepdims: int | None = None,
        noop_with_empty_axes: int | None = None,
    ) -> tuple[Array]:
        along = tuple(map(int, () if axes is None else axes))
        if not along and noop_with_empty_axes:
            return (x,)
        along = along or tuple(range(x.ndim))
        keeps = keepdims is None or bool(keepdims)
        if 0 in (x.shape[axis] for axis in along):
            return (np.asarray(x.sum(axis=along, keepdims=keeps, dtype=x.dtype)),)
        return (np.asarray(np.mean(x, axis=along, keepdims=keeps, dtype=x.dtype)),)


class Mean(OpRun):  # type: ignore[misc]
    """Means of several arrays, which the evaluator does not broadcast (onnx 1.23)."""

    def _run(self, *arrays: Array) -> tuple[Array]:
        total = functools.reduce(np.add, arrays)
        return ((total / len(arrays)).astype(total.dtype),)


class ZipMap(OpRun):  # type: ignore[misc]
    """Maps from labels to the scores of each row, which the evaluator does not have (onnx 1.23)."""

    op_domain = "ai.onnx.ml"

    def _run(
        self, x: Array, classlabels_int64s: Sequence[int] = (), classlabels_strings: Sequence[str] = ()
    ) -> tuple[list[dict[int | str, float]]]:
        labels: Sequence[int | str] = classlabels_strings or classlabels_int64s
        return ([dict(zip(labels, row, strict=True)) for row in np.atleast_2d(x).tolist()],)


FIXES = [
    LRN,
    Loop,
    DequantizeLinear,
    QuantizeLinear,
    Optional,
    GatherElements,
    GridSample,
    MatMulInteger,
    MaxPool,
    NegativeLogLikelihoodLoss,
    ReduceMean,
    AveragePool,
    GlobalMaxPool,
    GlobalLpPool,
    LpNormalization,
    OneHot,
    NonMaxSuppression,
    Pad,
    ConvTranspose,
    Mean,
    ZipMap,
]
