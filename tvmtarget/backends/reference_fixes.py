"""Workarounds for defects of ONNX's reference evaluator; each goes when the defect is fixed upstream."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from onnx import TensorProto, ValueInfoProto
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference.op_run import OpRun
from onnx.reference.ops.aionnxml.op_array_feature_extractor import ArrayFeatureExtractor as ReferenceFeatureExtractor
from onnx.reference.ops.aionnxml.op_tree_ensemble import TreeEnsemble as ReferenceTreeEnsemble
from onnx.reference.ops.op_attention import Attention_24
from onnx.reference.ops.op_average_pool import AveragePool_19
from onnx.reference.ops.op_batch_normalization import BatchNormalization_14
from onnx.reference.ops.op_conv import Conv as ReferenceConv
from onnx.reference.ops.op_conv import _conv_implementation
from onnx.reference.ops.op_conv_integer import ConvInteger as ReferenceConvInteger
from onnx.reference.ops.op_conv_transpose import ConvTranspose as ReferenceConvTranspose
from onnx.reference.ops.op_cum_sum import CumSum as ReferenceCumSum
from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_25
from onnx.reference.ops.op_dynamic_quantize_linear import DynamicQuantizeLinear as ReferenceDynamicQuantization
from onnx.reference.ops.op_grid_sample import GridSample as ReferenceGridSample
from onnx.reference.ops.op_gru import CommonGRU as ReferenceGRU
from onnx.reference.ops.op_instance_normalization import InstanceNormalization as ReferenceInstanceNormalization
from onnx.reference.ops.op_layer_normalization import LayerNormalization as ReferenceLayerNormalization
from onnx.reference.ops.op_log_softmax import LogSoftmax as ReferenceLogSoftmax
from onnx.reference.ops.op_loop import Loop as ReferenceLoop
from onnx.reference.ops.op_lrn import LRN as ReferenceLRN  # noqa: N811 - the evaluator finds operators by class name
from onnx.reference.ops.op_lstm import CommonLSTM as ReferenceLSTM
from onnx.reference.ops.op_max_pool import MaxPool as ReferenceMaxPool
from onnx.reference.ops.op_negative_log_likelihood_loss import NegativeLogLikelihoodLoss as ReferenceLoss
from onnx.reference.ops.op_negative_log_likelihood_loss import _compute_negative_log_likelihood_loss
from onnx.reference.ops.op_non_max_suppression import NonMaxSuppression as ReferenceNonMaxSuppression
from onnx.reference.ops.op_one_hot import OneHot as ReferenceOneHot
from onnx.reference.ops.op_optional import Optional as ReferenceOptional
from onnx.reference.ops.op_pad import Pad_18
from onnx.reference.ops.op_quantize_linear import QuantizeLinear_25, _reshape_input
from onnx.reference.ops.op_resize import Resize as ReferenceResize
from onnx.reference.ops.op_rms_normalization import RMSNormalization as ReferenceRMSNormalization
from onnx.reference.ops.op_rnn import CommonRNN as ReferenceRNN
from onnx.reference.ops.op_roi_align import RoiAlign as ReferenceRoiAlign
from onnx.reference.ops.op_scan import Scan as ReferenceScan
from onnx.reference.ops.op_scatternd import ScatterND as ReferenceScatterND
from onnx.reference.ops.op_slice import Slice_10
from onnx.reference.ops.op_softmax_cross_entropy_loss import SoftmaxCrossEntropyLoss as ReferenceCrossEntropy

from tvmtarget.backends.protocol import Array
from tvmtarget.ir.resized_sizes import resized
from tvmtarget.ir.symbolic_shapes import least_sizes
from tvmtarget.support.tree_ensembles import read_ensemble

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


class Attention(Attention_24):  # type: ignore[misc]
    """Attention of empty sequences, which the evaluator (onnx 1.23) cannot reshape and finds no maximum of.

    Without keys the result is 0, as that of queries whose keys are all masked: they get one key, which is masked.
    """

    def _run(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None = None,
        past_key: Array | None = None,
        past_value: Array | None = None,
        *lengths: Array | None,
        q_num_heads: int | None = None,
        kv_num_heads: int | None = None,
        **attributes: object,
    ) -> tuple[Array, ...]:
        heads = {"q_num_heads": q_num_heads, "kv_num_heads": kv_num_heads}
        if query.size and key.size and value.size:
            results: tuple[Array, ...] = super()._run(
                query, key, value, mask, past_key, past_value, *lengths, **heads, **attributes
            )
            return results
        is_joined = query.ndim == 3  # the heads of a position stand in one axis
        if is_joined:
            query, key, value = map(_with_heads, (query, key, value), (q_num_heads, kv_num_heads, kv_num_heads))
        has_keys = key.shape[2] or (past_key is not None and past_key.shape[2])
        if not has_keys:
            key, value = (np.zeros((*x.shape[:2], 1, x.shape[3]), x.dtype) for x in (key, value))
            mask = np.zeros((query.shape[2], 0), bool) if mask is None else mask
        y, *caches, products = super()._run(query, key, value, mask, past_key, past_value, *lengths, **attributes)
        if not has_keys:
            caches, products = [cache[:, :, :0] for cache in caches], products[..., :0]
        if is_joined:
            y = np.moveaxis(y, 1, 2)
            y = y.reshape(*y.shape[:2], y.shape[2] * y.shape[3])
        return y, *caches, products


def _with_heads(x: Array, heads: int | None) -> Array:
    count = heads or 1
    return np.moveaxis(x.reshape(*x.shape[:2], count, x.shape[2] // count), 2, 1)


class NegativeLogLikelihoodLoss(ReferenceLoss):  # type: ignore[misc]
    """A loss, whose mean counts samples of the ignored class -1 unless there are weights (onnx 1.23)."""

    def _run(self, x: Array, target: Array, weight: Array | None = None, **attributes: object) -> tuple[Array]:
        weight = np.ones(x.shape[1], x.dtype) if weight is None else weight
        return super()._run(x, target, weight, **attributes)  # type: ignore[no-any-return]


class LogSoftmax(ReferenceLogSoftmax):  # type: ignore[misc]
    """Logarithms of a softmax, which the evaluator rounds to 0 before: -200 becomes minus infinity (onnx 1.23)."""

    def _run(self, x: Array) -> tuple[Array]:
        return (_log_softmax(x, self.axis),)


class SoftmaxCrossEntropyLoss(ReferenceCrossEntropy):  # type: ignore[misc]
    """A loss of logarithms, which the evaluator computes as those of `LogSoftmax` (onnx 1.23)."""

    def _run(
        self,
        x: Array,
        target: Array,
        weight: Array | None = None,
        ignore_index: int | None = None,
        reduction: str = "mean",
    ) -> tuple[Array, ...]:
        logarithms = _log_softmax(x, 1)
        weight = np.ones(x.shape[1], x.dtype) if weight is None else weight
        (loss,) = _compute_negative_log_likelihood_loss(logarithms, target, weight, reduction, ignore_index)
        return (loss.astype(x.dtype), logarithms)[: len(self.onnx_node.output)]


def _log_softmax(x: Array, axis: int) -> Array:
    shifted = x - x.max(axis=axis, keepdims=True) if x.size else x
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return result


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


class DynamicQuantizeLinear(ReferenceDynamicQuantization):  # type: ignore[misc]
    """Quantization by the range of the elements, which the evaluator does not find of none (onnx 1.23).

    The scale of zeros and of no elements is 1, as on ONNX Runtime; ONNX leaves that open.
    """

    def _run(self, x: Array) -> tuple[Array, Array, Array]:
        if x.any():
            return super()._run(x)  # type: ignore[no-any-return]
        return np.zeros(x.shape, "uint8"), np.array(1, x.dtype), np.array(0, "uint8")


class Optional(ReferenceOptional):  # type: ignore[misc]
    """An optional value, which the evaluator puts into a list that it never unpacks (onnx 1.23)."""

    def _run(self, *values: Any, **attributes: object) -> tuple[Any]:  # noqa: ANN401
        return (values[0] if values else None,)


class GatherElements(OpRun):  # type: ignore[misc]
    """Elements by index along an axis, of which the evaluator supports fewer than 64 (onnx 1.23)."""

    def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Array]:
        axis %= data.ndim
        if any(size > data.shape[one] for one, size in enumerate(indices.shape) if one != axis):
            raise ValueError(f"indices of {list(indices.shape)} elements do not fit data of {list(data.shape)}")
        ends = (None if one == axis else size for one, size in enumerate(indices.shape))
        return (np.take_along_axis(data[tuple(slice(end) for end in ends)], indices, axis),)


class GridSample(ReferenceGridSample):  # type: ignore[misc]
    """Grid sampling, also of no images and at no places, by modes of all versions.

    The evaluator (onnx 1.23) knows the names that modes have since version 20, and returns no tuple of nothing.
    """

    def _run(self, x: Array, grid: Array, mode: str = "linear", **attributes: object) -> tuple[Array]:
        if len(x) != len(grid):
            raise ValueError(f"a batch of {len(x)} images and a grid of {len(grid)} do not fit")
        nothing = np.empty((*x.shape[:2], *grid.shape[1:-1]), x.dtype)
        if not nothing.size:
            return (nothing,)
        name = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
        result: tuple[Array] = super()._run(x, grid, mode=name, **attributes)
        return result

    def _gs_reflect(self, x: float, x_min: float, x_max: float) -> float:
        """Reflect a place between corners, for which the evaluator divides by 0 if they are one element."""
        return x_min if x_min == x_max else float(super()._gs_reflect(x, x_min, x_max))


class Scan(ReferenceScan):  # type: ignore[misc]
    """Steps of a Scan; without any, which the evaluator does not support, unknown dimensions are 0 (onnx 1.23)."""

    def _run(self, *args: Any, **attributes: Any) -> tuple[Any, ...]:  # noqa: ANN401
        states = len(args) - self.num_scan_inputs
        if len(args[states]):
            results: tuple[Any, ...] = super()._run(*args, **attributes)
            return results
        return (*args[:states], *(_nothing(value) for value in self.body.proto_.output[states:]))


class ScatterND(ReferenceScatterND):  # type: ignore[misc]
    """Updates of slices, to which the evaluator broadcasts them (onnx 1.23)."""

    def _run(self, data: Array, indices: Array, updates: Array, **attributes: object) -> tuple[Array]:
        shape = (*indices.shape[:-1], *data.shape[indices.shape[-1] :])
        if updates.shape != shape:
            raise ValueError(f"updates of {list(updates.shape)} elements do not fit places of {list(shape)}")
        result: tuple[Array] = super()._run(data, indices, updates, **attributes)
        return result


class MatMulInteger(OpRun):  # type: ignore[misc]
    """Products of integers, of which the evaluator gives one zero point for each row to the columns (onnx 1.23)."""

    def _run(self, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> tuple[Array]:
        rows, columns = (np.asarray(0 if zero is None else zero, np.int32) for zero in (a_zero, b_zero))
        _check_sizes(a, b, [rows], [columns])
        rows = rows[:, None] if rows.ndim == 1 else rows
        return ((a.astype(np.int32) - rows) @ (b.astype(np.int32) - columns),)


class MaxPool(ReferenceMaxPool):  # type: ignore[misc]
    """Maxima of windows, which the evaluator takes one by one in Python, for many seconds in a network (onnx 1.23).

    What it does with NaN is left to it, except for the places of the maxima, which it computes for some strides only,
    for integers, which it pads with NaN, and for sizes that are rounded up or those of `auto_pad`, some of which are
    wrong.
    """

    def _run(self, x: Array, **attributes: Any) -> tuple[Array, ...]:  # noqa: ANN401
        count = len(self.onnx_node.output)
        windows = _windows(x, **attributes) if count == 1 else None
        if windows is not None:
            return (_reduced(x, windows, lambda values: values.max(axis=-1)),)
        if count > 1 or not _is_plain(x, **attributes):
            return _maxima_with_places(x, **attributes)[:count]
        results: tuple[Array, ...] = super()._run(x, **attributes)
        return results


def _is_plain(x: Array, auto_pad: str | None = None, ceil_mode: int | None = None, **attributes: object) -> bool:
    """Whether the evaluator pools as ONNX defines it."""
    return bool(x.size and x.dtype.kind == "f" and not ceil_mode and auto_pad in (None, "NOTSET"))


def _maxima_with_places(x: Array, storage_order: int | None = None, **attributes: Any) -> tuple[Array, Array]:  # noqa: ANN401
    """Return maxima of windows, and where the first of equal ones is in the whole tensor."""
    sizes, windows = x.shape[2:], _Elements(x, **attributes)
    rank, shape = len(sizes), (*x.shape[:2], *map(len, windows.starts))
    maxima, places = np.zeros(shape, x.dtype), np.full(shape, -1)
    images = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * rank) * math.prod(sizes)
    order = range(rank)[::-1] if storage_order else range(rank)
    for found, index, within, _ in windows:
        place = np.zeros((), "int64")
        for at in order:
            place = place * sizes[at] + index[at]
        is_more = (
            (within != 0) & ((places < 0) | (found > maxima) | np.isnan(maxima)) & ((places < 0) | (found == found))
        )
        maxima, places = np.where(is_more, found, maxima), np.where(is_more, images + place, places)
    return maxima, places


class AveragePool(AveragePool_19):  # type: ignore[misc]
    """Averages of windows, as fast as the maxima and equal to those of the evaluator, where these are those of ONNX."""

    def _run(self, x: Array, count_include_pad: int | None = None, **attributes: Any) -> tuple[Array]:  # noqa: ANN401
        is_plain = _is_plain(x, **attributes)
        windows = None if count_include_pad and not is_plain else _windows(x, **attributes)
        if windows is not None and not (count_include_pad and any(attributes.get("pads") or ())):
            return (_reduced(x, windows, lambda values: values.mean(axis=-1)),)
        if is_plain:
            result: tuple[Array] = super()._run(x, count_include_pad=count_include_pad, **attributes)
            return result
        total, count = np.zeros((), "float64"), np.zeros((), "int64")
        for found, _, within, is_padded in _Elements(x, **attributes):
            total = total + np.where(within != 0, found, 0)
            count = count + (is_padded if count_include_pad else within)
        return ((total / np.maximum(count, 1)).astype(x.dtype),)


class LpPool(OpRun):  # type: ignore[misc]
    """Norms of windows, which the evaluator computes from averages, without the padding (onnx 1.23)."""

    def _run(self, x: Array, p: int | None = None, **attributes: Any) -> tuple[Array]:  # noqa: ANN401
        order, total = 2 if p is None else p, np.zeros((), "float64")
        for found, _, within, _ in _Elements(x, **attributes):
            total = total + np.where(within != 0, np.abs(found.astype("float64")) ** order, 0)
        return ((total ** (1 / order)).astype(x.dtype),)


class _Elements:
    """The elements of windows: for each place of a window, those of all windows.

    Attributes:
        starts: where the windows begin along each spatial dimension; negative in the padding.
    """

    def __init__(
        self,
        x: Array,
        kernel_shape: Sequence[int] = (),
        strides: Sequence[int] | None = None,
        dilations: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
    ) -> None:
        self._x, self._kernel, self._gaps = x, kernel_shape, dilations or [1] * len(kernel_shape)
        found = _starts(x.shape[2:], kernel_shape, strides, self._gaps, pads, auto_pad, ceil_mode)
        self.starts, self._ends = [one[0] for one in found], [one[1] for one in found]

    def __iter__(self) -> Iterator[tuple[Array, list[Array], Array, Array]]:
        """Yield elements, their indices along each axis, and whether each is in the image, and in the padded image."""
        sizes, rank = self._x.shape[2:], len(self._kernel)
        for offset in np.ndindex(*self._kernel):
            along = np.ix_(*(np.array(self.starts[at], "int64") + offset[at] * self._gaps[at] for at in range(rank)))
            within = math.prod((one >= 0) & (one < size) for one, size in zip(along, sizes, strict=True))
            is_padded = math.prod(one < end for one, end in zip(along, self._ends, strict=True))
            index = [one.clip(0, max(0, size - 1)) for one, size in zip(along, sizes, strict=True)]
            yield self._x[(..., *index)], index, within, is_padded


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
    for size, kernel, gap, (starts, _) in zip(x.shape[2:], kernel_shape, gaps, every, strict=True):
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
) -> list[tuple[range, int]]:
    """Return where the windows of a pooling operator begin along each spatial dimension, and where its padding ends.

    What begins in the padding before an image is negative. The sizes are those of the specification of AveragePool,
    where windows beyond the image of an `auto_pad` are none.
    """
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
        elif auto_pad == "VALID":
            before = after = 0
        last_start = size + after - length
        if ceil_mode and not is_same:
            # A window that would begin behind the image and the padding before it is none.
            rounded = last_start + -(last_start + before) % step
            last_start = rounded if rounded < size else last_start
        found.append((range(-before, last_start + 1, step), size + after))
    return found


def _reduced(x: Array, windows: list[list[slice]], reduce: Callable[[Array], Array]) -> Array:
    result = np.empty((*x.shape[:2], *map(len, windows)), x.dtype)
    for position in np.ndindex(*result.shape[2:]):
        window = x[(..., *(along[index] for along, index in zip(windows, position, strict=True)))]
        result[(..., *position)] = reduce(window.reshape(*x.shape[:2], -1))
    return result


class QLinearMatMul(OpRun):  # type: ignore[misc]
    """Products of quantized matrices, where the evaluator rounds after the zero point is added (onnx 1.23).

    The scales of rows and columns may be vectors.
    """

    def _run(
        self,
        a: Array,
        a_scale: Array,
        a_zero: Array,
        b: Array,
        b_scale: Array,
        b_zero: Array,
        scale: Array,
        zero: Array,
    ) -> tuple[Array]:
        _check_sizes(a, b, [a_scale, a_zero], [b_scale, b_zero])
        rows, shift = (one[:, None] if one.ndim == 1 and one.size > 1 else one for one in (a_scale, a_zero))
        product = np.matmul(a.astype("int32") - shift.astype("int32"), b.astype("int32") - b_zero.astype("int32"))
        return (_quantized(product.astype("float32") * (rows * b_scale / scale).astype("float32"), zero),)


def _check_sizes(a: Array, b: Array, rows: Sequence[Array], columns: Sequence[Array]) -> None:
    """Raise ValueError unless each vector of parameters of a product has an element for each row, or column, or one."""
    of_rows, of_columns = ("rows", a.shape[-2] if a.ndim > 1 else 1), ("columns", b.shape[-1] if b.ndim > 1 else 1)
    for (what, count), given in ((of_rows, rows), (of_columns, columns)):
        for one in given:
            if one.ndim == 1 and one.size not in (1, count):
                raise ValueError(f"scales or zero points of {one.size} elements do not fit {count} {what}")


def _quantized(x: Array, zero: Array) -> Array:
    info = np.iinfo(zero.dtype)
    result: Array = np.clip(np.rint(x) + zero.astype("float64"), info.min, info.max).astype(zero.dtype)
    return result


class QLinearConv(OpRun):  # type: ignore[misc]
    """Convolutions of quantized images, where the evaluator rounds after the zero point is added (onnx 1.23)."""

    def _run(
        self,
        x: Array,
        x_scale: Array,
        x_zero: Array,
        w: Array,
        w_scale: Array,
        w_zero: Array,
        scale: Array,
        zero: Array,
        bias: Array | None = None,
        **attributes: Any,  # noqa: ANN401
    ) -> tuple[Array]:
        _check_windows(x, w, [bias, *(one for one in (w_scale, w_zero) if one.size > 1)], **attributes)
        weights = w.astype("float64") - w_zero.reshape(-1, *[1] * (w.ndim - 1) * (w_zero.size > 1))
        given = [
            None if one is None else one.astype("float64") for one in (x - x_zero.astype("float64"), weights, bias)
        ]
        product = _conv_implementation(
            *given,
            *(attributes.get(name) for name in ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")),
        )
        factors = x_scale * w_scale / scale
        if factors.size > 1:
            factors = factors.reshape(-1, *[1] * (w.ndim - 2))
        return (_quantized(product.astype("float32") * factors.astype("float32"), zero),)


_LARGEST_DENOMINATOR = 4096  # of scales, such as 13/7


def _exact(size: int, scale: np.floating[Any]) -> float:
    """Return the fraction that a scale stands for in float32, or one that makes the size that engines return."""
    fraction = float(Fraction(float(scale)).limit_denominator(_LARGEST_DENOMINATOR))
    exact = fraction if np.float32(fraction) == scale else float(scale)
    wanted = resized(size, float(scale))
    if int(size * exact) == wanted:
        return exact
    exact = wanted / size
    return exact if int(size * exact) == wanted else math.nextafter(exact, math.inf)


class Resize(ReferenceResize):  # type: ignore[misc]
    """Resizing, to the sizes that engines return for scales (onnx 1.23).

    The evaluator also takes a length below 2 that is rounded to 1 not to be 1. `pytorch_half_pixel` defines the
    coordinate to be 0 there. It has no negative axes, and moves integers of 64 bits as float64.
    """

    def _run(
        self,
        x: Array,
        roi: Array | None = None,
        scales: Array | None = None,
        sizes: Array | None = None,
        **attributes: Any,  # noqa: ANN401
    ) -> tuple[Array]:
        mode, policy = (attributes.get(name) for name in ("coordinate_transformation_mode", "keep_aspect_ratio_policy"))
        axes = [axis % x.ndim for axis in attributes.get("axes") or range(x.ndim)]
        attributes["axes"] = axes if attributes.get("axes") else None
        if scales is not None and scales.size:
            scales = np.array([_exact(x.shape[axis], scale) for axis, scale in zip(axes, scales, strict=True)])
        if mode == "pytorch_half_pixel" and not attributes.get("antialias") and policy in (None, "stretch"):
            sizes = np.zeros(0) if sizes is None else sizes
            scales = None if scales is None or not scales.size else scales
            for at, axis in enumerate(axes):
                length = int(sizes[at] if scales is None else scales[at] * x.shape[axis])
                if length == 1 and x.shape[axis]:
                    x = x.take([0], axis)
                    if scales is not None:
                        scales[at] = 1
            sizes = sizes if scales is None else None
        moves = attributes.get("mode") in (None, "nearest") and mode != "tf_crop_and_resize"
        if x.dtype not in ("int64", "uint64") or not moves:
            result: tuple[Array] = super()._run(x, roi, scales, sizes, **attributes)
            return result
        (places,) = super()._run(np.arange(x.size, dtype="float64").reshape(x.shape), roi, scales, sizes, **attributes)
        return (x.reshape(-1)[places.astype(np.intp)],)


class RoiAlign(ReferenceRoiAlign):  # type: ignore[misc]
    """Means of regions, which the evaluator also computes of five columns and of batches that are not there (1.23)."""

    def _run(self, x: Array, regions: Array, batches: Array, **attributes: object) -> tuple[Array]:
        if regions.shape != (len(batches), 4):
            raise ValueError(f"regions of shape {regions.shape} are not 4 numbers for each of {len(batches)} batches")
        wrong = batches[(batches < 0) | (batches >= len(x))]
        if wrong.size:
            raise ValueError(f"batch {wrong[0]} of a region is out of bounds for {len(x)} elements")
        result: tuple[Array] = super()._run(x, regions, batches, **attributes)
        return result


class CumSum(ReferenceCumSum):  # type: ignore[misc]
    """Sums along an axis that is a tensor of one element, as PyTorch writes it and engines take it, or a scalar."""

    def _run(self, x: Array, axis: Array, **attributes: object) -> tuple[Array]:
        results: tuple[Array] = super()._run(x, np.reshape(axis, ()), **attributes)
        return results


class ReduceLogSum(OpRun):  # type: ignore[misc]
    """Logarithms of sums, which the evaluator does not compute of integers (onnx 1.23)."""

    def _run(
        self,
        x: Array,
        axes: Sequence[int] | Array | None = None,
        keepdims: int | None = None,
        noop_with_empty_axes: int | None = None,
    ) -> tuple[Array]:
        total = x.astype("float64").sum(axis=_axes(x, axes, noop_with_empty_axes), keepdims=keepdims != 0)
        with np.errstate(all="ignore"):
            return (np.asarray(np.log(total)).astype(x.dtype),)


class ReduceLogSumExp(OpRun):  # type: ignore[misc]
    """Logarithms of sums of exponentials, which the evaluator does not compute of integers (onnx 1.23)."""

    def _run(
        self,
        x: Array,
        axes: Sequence[int] | Array | None = None,
        keepdims: int | None = None,
        noop_with_empty_axes: int | None = None,
    ) -> tuple[Array]:
        along, keeps = _axes(x, axes, noop_with_empty_axes), keepdims != 0
        wide = x.astype("float64")
        most = wide.max(axis=along, keepdims=True, initial=-np.inf)
        most = np.where(np.isfinite(most), most, 0)
        with np.errstate(all="ignore"):
            total = np.log(np.exp(wide - most).sum(axis=along, keepdims=keeps))
        return (np.asarray(total + most.reshape(total.shape)).astype(x.dtype),)


def _axes(x: Array, axes: Sequence[int] | Array | None, noop_with_empty_axes: int | None) -> tuple[int, ...]:
    """Return the axes of a reduction, all by default."""
    along = tuple(map(int, () if axes is None else axes))
    return along if along or noop_with_empty_axes else tuple(range(x.ndim))


class Flatten(OpRun):  # type: ignore[misc]
    """Flattening, which the evaluator does not do to tensors without elements (onnx 1.23)."""

    def _run(self, x: Array, axis: int | None = None) -> tuple[Array]:
        first = 1 if axis is None else axis
        rows = x.shape[: first if first >= 0 else first + x.ndim]
        return (x.reshape(math.prod(rows), math.prod(x.shape[len(rows) :])),)


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
    """One-hot vectors, which the evaluator makes of whole indices, scalar depths and numbers only (onnx 1.23)."""

    def _run(self, indices: Array, depth: Array, values: Array, axis: int | None = None) -> tuple[Array]:
        places = indices.astype(np.int64)
        is_on = super()._run(places, np.reshape(depth, ()), np.arange(2), axis=-1 if axis is None else axis)[0]
        return (values[is_on],)


class Slice(Slice_10):  # type: ignore[misc]
    """Slices, which are empty in the evaluator if they begin before the first element and go backwards (onnx 1.23)."""

    def _run(
        self, data: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
    ) -> tuple[Array]:
        if steps is not None:
            places = range(len(starts)) if axes is None else axes
            sizes = [data.shape[axis] for axis in places]
            starts = np.where(steps < 0, np.maximum(starts, np.negative(sizes)), starts)
        result: tuple[Array] = super()._run(data, starts, ends, axes, steps)
        return result


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
            if before + after + data.shape[axis] < 0:
                raise ValueError(f"{data.shape[axis]} elements are fewer than pads of {before} and {after} cut off")
            kept[axis] = slice(max(0, -before), data.shape[axis] - max(0, -after))
        result: tuple[Array] = super()._run(data[tuple(kept)], np.maximum(pads, 0), *rest, **attributes)
        return result


class Conv(ReferenceConv):  # type: ignore[misc]
    """Convolution, of which the evaluator does not compare bias and images with the weights (onnx 1.23)."""

    def _run(self, x: Array, weights: Array, bias: Array | None = None, **attributes: Any) -> tuple[Array]:  # noqa: ANN401
        _check_windows(x, weights, [bias], **attributes)
        result: tuple[Array] = super()._run(x, weights, bias, **attributes)
        return result


class ConvInteger(ReferenceConvInteger):  # type: ignore[misc]
    """Convolution of integers, of which the evaluator does not compare images with the weights (onnx 1.23)."""

    def _run(
        self,
        x: Array,
        weights: Array,
        x_zero: Array | None = None,
        w_zero: Array | None = None,
        **attributes: Any,  # noqa: ANN401
    ) -> tuple[Array]:
        _check_windows(x, weights, [w_zero if w_zero is not None and w_zero.size > 1 else None], **attributes)
        weights = weights.astype(np.int32)
        if w_zero is not None:
            weights -= w_zero.reshape(-1, *[1] * (weights.ndim - 1)).astype(np.int32)
        result: tuple[Array] = super()._run(x, weights, x_zero, **attributes)
        return result


def _check_windows(
    x: Array,
    weights: Array,
    params: Iterable[Array | None],
    *,
    auto_pad: str | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    **_: object,
) -> None:
    """Raise ValueError unless images hold the windows, and each parameter has an element for each channel."""
    for one in params:
        if one is not None and one.size != len(weights):
            raise ValueError(f"a bias, scales or zero points of {one.size} elements do not fit {len(weights)} channels")
    if auto_pad in (None, "NOTSET", "VALID"):
        least = least_sizes(weights.shape[2:], strides or (), dilations or (), pads or ())
        if any(size < needed for size, needed in zip(x.shape[2:], least, strict=True)):
            raise ValueError(f"windows that need {least} elements do not fit images of {list(x.shape[2:])}")


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
        rank, channels = x.ndim - 2, weights.shape[1] * (group or 1)
        if bias is not None and bias.size != channels:
            raise ValueError(f"a bias of {bias.size} elements does not fit {channels} channels")
        steps, gaps, more = (
            attributes.get(name) or [default] * rank
            for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
        )
        sizes = zip(x.shape[2:], weights.shape[2:], steps, gaps, more, strict=True)
        ends = [(n - 1) * step + (kernel - 1) * gap + 1 + add for n, kernel, step, gap, add in sizes]
        if output_shape is not None:
            total = [max(0, end - out) for end, out in zip(ends, output_shape, strict=True)]
            less, rest = [one // 2 for one in total], [one - one // 2 for one in total]
            attributes["pads"] = [*less, *rest] if attributes.get("auto_pad") == "SAME_UPPER" else [*rest, *less]
        count = group or 1
        if not x.size:  # the evaluator infers sizes from those of the elements
            pads = attributes.get("pads") or [0] * (2 * rank)
            lengths = [end - pads[at] - pads[at + rank] for at, end in enumerate(ends)]
            if attributes.get("auto_pad") in ("SAME_LOWER", "SAME_UPPER"):
                lengths = [size * step for size, step in zip(x.shape[2:], steps, strict=True)]
            shape = (x.shape[0], channels, *(output_shape or lengths))
            return (np.zeros(shape, x.dtype) + (0 if bias is None else bias.reshape(-1, *[1] * rank)),)
        parts = [
            super(ConvTranspose, self)._run(data, each, group=1, output_shape=output_shape, **attributes)[0]
            for data, each in zip(np.split(x, count, axis=1), np.split(weights, count), strict=True)
        ]
        result = np.concatenate(parts, axis=1)
        return (result if bias is None else result + bias.reshape(-1, *[1] * rank),)


class ReduceMean(OpRun):  # type: ignore[misc]
    """Means, of which the evaluator makes NaN of no elements, where ONNX Runtime makes 0 (onnx 1.23)."""

    def _run(
        self,
        x: Array,
        axes: Sequence[int] | Array | None = None,
        keepdims: int | None = None,
        noop_with_empty_axes: int | None = None,
    ) -> tuple[Array]:
        along = _axes(x, axes, noop_with_empty_axes)
        keeps = keepdims is None or bool(keepdims)
        if 0 in (x.shape[axis] for axis in along):
            return (np.asarray(x.sum(axis=along, keepdims=keeps, dtype=x.dtype)),)
        return (np.asarray(np.mean(x, axis=along, keepdims=keeps, dtype=x.dtype)),)


class Softsign(OpRun):  # type: ignore[misc]
    """Softsign, which the evaluator does not compute of scalars (onnx 1.23)."""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(x / (np.abs(x) + x.dtype.type(1))),)


class Mean(OpRun):  # type: ignore[misc]
    """Means of several arrays, which the evaluator does not broadcast (onnx 1.23)."""

    def _run(self, *arrays: Array) -> tuple[Array]:
        total = functools.reduce(np.add, arrays)
        return ((total / len(arrays)).astype(total.dtype),)


class Split(OpRun):  # type: ignore[misc]
    """Parts of an array, whose sizes the evaluator does not compare with the array's (onnx 1.23)."""

    def _run(
        self,
        x: Array,
        split: Sequence[int] | Array | None = None,
        axis: int | None = None,
        num_outputs: int | None = None,
    ) -> tuple[Array, ...]:
        axis = axis or 0
        extent, count = x.shape[axis], num_outputs or len(self.onnx_node.output)
        if split is None:
            if num_outputs is None and extent % count:
                raise ValueError(f"{extent} elements do not divide into {count} equal parts")
            size = -(-extent // count)
            split = [max(0, min(size, extent - size * part)) for part in range(count)]
        if sum(split) != extent or min(split) < 0:
            raise ValueError(f"parts of {', '.join(map(str, split))} elements do not fit {extent}")
        return tuple(np.split(x, np.cumsum(split)[:-1], axis))


class BatchNormalization(BatchNormalization_14):  # type: ignore[misc]
    """Normalization of channels, to whose parameters the evaluator broadcasts its operand (onnx 1.23)."""

    def _run(self, x: Array, *params: Array, **attributes: object) -> tuple[Array, ...]:
        _check_channels(x, params)
        results: tuple[Array, ...] = super()._run(x, *params, **attributes)
        return results


class InstanceNormalization(ReferenceInstanceNormalization):  # type: ignore[misc]
    """Normalization of images, to whose parameters the evaluator broadcasts its operand (onnx 1.23)."""

    def _run(self, x: Array, *params: Array, **attributes: object) -> tuple[Array]:
        _check_channels(x, params)
        result: tuple[Array] = super()._run(x, *params, **attributes)
        return result


def _check_channels(x: Array, params: Sequence[Array]) -> None:
    """Raise ValueError unless each parameter has an element for each channel; a vector is of one channel."""
    channels = x.shape[1] if x.ndim > 1 else 1
    for param in params:
        if param.shape != (channels,):
            raise ValueError(f"parameters of {param.size} elements do not fit {channels} channels")


class LayerNormalization(ReferenceLayerNormalization):  # type: ignore[misc]
    """Layer normalization, to whose scale the evaluator broadcasts its operand (onnx 1.23)."""

    def _run(self, x: Array, scale: Array, bias: Array | None = None, **attributes: object) -> tuple[Array, ...]:
        _check_broadcast(x, scale, bias)
        results: tuple[Array, ...] = super()._run(x, scale, bias, **attributes)
        return results


class RMSNormalization(ReferenceRMSNormalization):  # type: ignore[misc]
    """Normalization by a root of a mean square, to whose scale the evaluator broadcasts its operand (onnx 1.23)."""

    def _run(self, x: Array, scale: Array, **attributes: object) -> tuple[Array]:
        _check_broadcast(x, scale)
        result: tuple[Array] = super()._run(x, scale, **attributes)
        return result


def _check_broadcast(x: Array, *params: Array | None) -> None:
    """Raise ValueError unless each parameter is broadcast to the operand."""
    for param in params:
        if param is not None and np.broadcast_shapes(x.shape, param.shape) != x.shape:
            raise ValueError(f"parameters of {list(param.shape)} elements do not fit an operand of {list(x.shape)}")


class Unique(OpRun):  # type: ignore[misc]
    """Different elements, which the evaluator takes from other places where they are not sorted (onnx 1.23)."""

    def _run(self, x: Array, axis: int | None = None, sorted: int | None = None) -> tuple[Array, ...]:
        found, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
        inverse = inverse.ravel()
        if sorted == 0:
            order = np.argsort(first)
            found, first, counts = found.take(order, axis or 0), first[order], counts[order]
            inverse = np.argsort(order)[inverse]
        results = (found, *(one.astype("int64") for one in (first, inverse, counts)))
        return results[: len(self.onnx_node.output)]


class _Recurrent:
    """A recurrent network, of which the evaluator does not compute sequences of no steps (onnx 1.23).

    The states after them are those of before, as the loop over steps that ONNX states has it. ONNX Runtime returns
    zeros.
    """

    _states: tuple[int, ...] = (5,)  # positions of the operands

    def _run(self, *operands: Array | None, **attributes: Any) -> tuple[Array, ...]:  # noqa: ANN401
        x, weights, recurrent, *_ = (one for one in operands if one is not None)
        is_batch_first = bool(attributes.get("layout") or getattr(self, "layout", 0))
        steps, batch = x.shape[:2][::-1] if is_batch_first else x.shape[:2]
        if steps:
            return super()._run(*operands, **attributes)  # type: ignore[misc, no-any-return]
        directions, hidden = len(weights), recurrent.shape[-1]
        every, state = (0, directions, batch, hidden), (directions, batch, hidden)
        if is_batch_first:
            every, state = (batch, 0, directions, hidden), (batch, directions, hidden)
        given = (operands[at] if at < len(operands) else None for at in self._states)
        states = [np.zeros(state, x.dtype) if one is None else one.astype(x.dtype) for one in given]
        return (np.zeros(every, x.dtype), *states)[: self.n_outputs]  # type: ignore[attr-defined]


class LSTM(_Recurrent, ReferenceLSTM):  # type: ignore[misc]
    """A network of cells with a state of their own."""

    _states = (5, 6)


class GRU(_Recurrent, ReferenceGRU):  # type: ignore[misc]
    """A network of gated recurrent units."""


class RNN(_Recurrent, ReferenceRNN):  # type: ignore[misc]
    """A network of one activation."""


class ArrayFeatureExtractor(ReferenceFeatureExtractor):  # type: ignore[misc]
    """Features by index, where the evaluator counts negative ones from the end (onnx 1.23)."""

    def _run(self, x: Array, indices: Array) -> tuple[Array]:
        if (indices < 0).any():
            raise IndexError(f"index {indices.min()} is out of bounds for {x.shape[-1]} elements")
        (result,) = super()._run(x, indices)
        return (result,)


class ZipMap(OpRun):  # type: ignore[misc]
    """Maps from labels to the scores of each row, which the evaluator does not have (onnx 1.23)."""

    op_domain = "ai.onnx.ml"

    def _run(
        self, x: Array, classlabels_int64s: Sequence[int] = (), classlabels_strings: Sequence[str] = ()
    ) -> tuple[list[dict[int | str, float]]]:
        labels: Sequence[int | str] = classlabels_strings or classlabels_int64s
        return ([dict(zip(labels, row, strict=True)) for row in np.atleast_2d(x).tolist()],)


class TreeEnsemble(ReferenceTreeEnsemble):  # type: ignore[misc]
    """Trees, whose members end at 0, whose extremes are float64, and whose post-transform is ignored (onnx 1.23)."""

    def _run(self, x: Array, **attributes: object) -> tuple[Array]:
        given = {name: value for name, value in attributes.items() if value is not None}
        ensemble = read_ensemble("TreeEnsemble", given, str(x.dtype))
        if ensemble.post_transform != "NONE":
            raise NotImplementedError(f"post_transform {ensemble.post_transform} of TreeEnsemble")
        at = np.tile(ensemble.roots, (len(x), 1))
        for _ in range(ensemble.depths.max(initial=0)):
            values = np.take_along_axis(x, ensemble.features[at], axis=1)
            side = (values <= ensemble.thresholds[at]).astype("int64")
            if ensemble.children.shape[1] > 2:
                side[np.isnan(values)] = 2
            at = ensemble.children[at, side]
        kind, nothing = {"MIN": (np.minimum, np.inf), "MAX": (np.maximum, -np.inf)}.get(
            ensemble.aggregate, (np.add, 0.0)
        )
        weights = np.full((len(ensemble.features), ensemble.targets), nothing, x.dtype)
        weights[np.repeat(np.arange(len(weights)), np.diff(ensemble.first)), ensemble.weighted] = ensemble.weights
        result = kind.reduce(weights[at], axis=1)
        return ((result / len(ensemble.roots)).astype(x.dtype) if ensemble.aggregate == "AVERAGE" else result,)


FIXES = [
    Attention,
    CumSum,
    LRN,
    LogSoftmax,
    Loop,
    DequantizeLinear,
    DynamicQuantizeLinear,
    QuantizeLinear,
    Optional,
    GatherElements,
    GridSample,
    Scan,
    ScatterND,
    MatMulInteger,
    Flatten,
    LpPool,
    MaxPool,
    NegativeLogLikelihoodLoss,
    QLinearConv,
    QLinearMatMul,
    ReduceLogSum,
    ReduceLogSumExp,
    Resize,
    RoiAlign,
    ReduceMean,
    AveragePool,
    GlobalMaxPool,
    GlobalLpPool,
    LpNormalization,
    OneHot,
    Slice,
    NonMaxSuppression,
    Pad,
    Conv,
    ConvInteger,
    ConvTranspose,
    Mean,
    SoftmaxCrossEntropyLoss,
    Softsign,
    Split,
    BatchNormalization,
    InstanceNormalization,
    LayerNormalization,
    RMSNormalization,
    Unique,
    LSTM,
    GRU,
    RNN,
    ArrayFeatureExtractor,
    ZipMap,
    TreeEnsemble,
]
