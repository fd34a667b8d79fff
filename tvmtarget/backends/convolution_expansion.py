"""Convolutions written as convolutions that TVM computes faster.

Weights that read padding only are left out, and a transposed convolution becomes a convolution of the image as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from onnx import NodeProto

from tvmtarget.backends.expansion_builder import ExpansionBuilder, attributes_of, operands_of

Array: TypeAlias = "np.ndarray[Any, Any]"
Indices: TypeAlias = "np.ndarray[Any, np.dtype[np.intp]]"

__all__ = ["CONVOLUTION_EXPANSIONS"]

APART = 4  # phases that are convolutions of their own, at most, if some have fewer weights than others
END = int(np.iinfo(np.int64).max)  # of a slice up to the last element


class _Part(NamedTuple):
    """A part of a convolution along an axis: the data and weights that it reads, and the padding around the data."""

    data: range
    weights: range
    before: int = 0
    after: int = 0


def _convolution(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Leave out weights that read padding only, as those of wide dilations over small images do.

    Those at the ends of a kernel are left out for all results. If the others lie far apart, results that read data with
    the same weights are a convolution without padding.
    """
    attributes = attributes_of(node)
    sizes, kernel = (builder.sizes(name)[2:] for name in node.input[:2])
    axes, pads = len(kernel), attributes.get("pads", [])
    strides, dilations = (attributes.get(name) or [1] * axes for name in ("strides", "dilations"))
    is_known = len(pads) == 2 * axes == 2 * len(sizes) and min([*pads, *sizes], default=0) >= 0
    parts = [*map(_parts, sizes, kernel, pads, pads[axes:], strides, dilations)] if is_known else []
    is_shorter = [len(some[0].weights) for some in parts] != kernel or any(len(some) > 1 for some in parts)
    is_possible = bool(parts) and is_shorter and attributes.get("auto_pad", "NOTSET") == "NOTSET"
    weights = builder.array(node.input[1]) if is_possible else None
    if weights is None or not np.isfinite(weights).all():  # infinite ones make NaN of padding
        builder.nodes.append(node)
        return
    if builder.is_read_once(node.input[1]):
        builder.replaced.add(node.input[1])

    def add(chosen: tuple[_Part, ...], result: str | None) -> str:
        used = weights[np.ix_(*map(range, weights.shape[:2]), *(one.weights for one in chosen))]
        changed = {
            "kernel_shape": [len(one.weights) for one in chosen],
            "pads": [*(one.before for one in chosen), *(one.after for one in chosen)],
        }
        data = node.input[0]
        for axis, (one, size) in enumerate(zip(chosen, sizes, strict=True), 2):
            data = data if one.data == range(size) else builder.slice(data, one.data.start, one.data.stop, axis)
        inputs = [data, builder.constant(used, node.input[1]), *node.input[2:]]
        return builder.add("Conv", inputs, result, **attributes | changed)

    def join(chosen: tuple[_Part, ...], result: str | None) -> str:
        if len(chosen) == axes:
            return add(chosen, result)
        first, *others = parts[len(chosen)]
        if not others:
            return join((*chosen, first), result)
        made = [join((*chosen, part), None) for part in (first, *others)]
        return builder.add("Concat", made, result, axis=len(chosen) + 2)

    join((), node.output[0])


def _parts(size: int, count: int, before: int, after: int, stride: int, dilation: int) -> list[_Part]:
    """Divide a convolution along an axis into parts whose results read data with the same weights.

    It is one part, without the weights at the ends of the kernel that read padding only, unless weights lie so far
    apart that few read data. A size that is not known is 0, and all weights are used.
    """
    if not size:
        return [_Part(range(size), range(count), before, after)]
    places = range(-before, size + after - dilation * (count - 1), stride)  # of the first weight
    used = [[at for at in range(count) if 0 <= place + at * dilation < size] for place in places]
    if 3 * dilation >= 2 * size and all(used):
        groups = [[*group] for _, group in groupby(zip(places, used, strict=True), key=lambda one: one[1])]
        return [
            _Part(range(group[0][0] + read[0] * dilation, group[-1][0] + read[-1] * dilation + 1), _span(read))
            for group in groups
            for read in (group[0][1],)
        ]
    kept = sorted({at for some in used for at in some})
    if not kept:
        return [_Part(range(size), range(count), before, after)]
    # So many that no padding becomes negative.
    span = range(min(kept[0], before // dilation), max(kept[-1] + 1, count - after // dilation))
    return [_Part(range(size), span, before - span.start * dilation, after - (count - span.stop) * dilation)]


def _span(numbers: Sequence[int]) -> range:
    return range(numbers[0], numbers[-1] + 1)


class _Phases(NamedTuple):
    """Results of a transposed convolution along an axis that a convolution computes.

    Result o is the sum of x[i] * w[u] over all i * step + u = o + padding. With o + padding = place * step + phase it
    takes the weights phase, phase + step and so on, and is a result of a convolution with these in reverse.

    Attributes:
        weights: indices of the weights by tap and phase; those from the length of the kernel on are zeros.
        left: padding of the convolution before the image.
        right: padding behind it.
        cut: results to leave out at the beginning and the end, when phases lie side by side.
    """

    weights: Indices
    left: int
    right: int
    cut: tuple[int, int]


class _Axis(NamedTuple):
    """A transposed convolution along an axis: length of its kernel, step, and padding that its result lacks."""

    length: int
    step: int
    before: int
    after: int

    def together(self) -> _Phases:
        """Return all phases, as so many results side by side that begin at a multiple of the step."""
        taps, skipped = -(-self.length // self.step), self.before // self.step
        right = -(-(self.length - self.after) // self.step) - 1
        cut = self.before % self.step, (right + 1) * self.step - (self.length - self.after)
        return _Phases(np.arange(taps * self.step).reshape(taps, self.step), taps - 1 - skipped, right, cut)

    def apart(self) -> list[_Phases]:
        """Return each phase, in the order of the results."""
        needed = self.length - self.after - self.before
        least = -(-needed // self.step)
        found = []
        for at in range(self.step):
            skipped, phase = divmod(at + self.before, self.step)
            weights = np.arange(phase, self.length, self.step).reshape(-1, 1)
            found.append(
                _Phases(weights, len(weights) - 1 - skipped, skipped + least - 1, (0, least * self.step - needed))
            )
        return found


def _transposed(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a ConvTranspose by constants as a Conv of its image, whose channels are the phases of the result.

    TVM inserts zeros between the elements instead, and multiplies them. Few phases are convolutions of their own if
    some have fewer weights, or results would have to be cut off.
    """
    x, name, *bias = node.input
    sizes, kernel = builder.sizes(x), builder.sizes(name)[2:]
    attributes = _with_pads(attributes_of(node), sizes[2:], kernel)
    quantized, biases = _quantized(builder, name), [builder.array(one) for one in bias if one]
    weights = builder.array(name) if quantized is None else quantized.numbers
    axes = [] if weights is None or not np.isfinite(weights).all() else _axes(attributes, kernel)
    steps, parts = [axis.step for axis in axes], _convolutions(axes)
    is_known = bool(sizes) and sizes[2:].count(0) <= 1  # as a Reshape computes one size, and keeps that of the batch
    is_placed = is_known or math.prod(steps) == 1 or _is_square(steps, builder.opset)
    if weights is None or not parts or not is_placed or any(one is None for one in biases):
        builder.add("ConvTranspose", node.input, node.output[0], **attributes)
        return
    groups, rank = attributes.get("group", 1), len(axes)
    builder.replaced.update(one for one in (name, *bias) if one and builder.is_read_once(one))

    def convolve(some: Sequence[_Phases]) -> str:
        def arranged(array: Array) -> Array:
            ends = [(0, max(0, one.weights.max() + 1 - axis.length)) for one, axis in zip(some, axes, strict=True)]
            used = np.pad(array, [(0, 0), (0, 0), *ends])
            for at, one in enumerate(some):
                used = used.take(one.weights[::-1], 2 + 2 * at)
            # Dimensions are the group, the channel in it of the result, the phases, the channel of the image, the taps.
            used = used.reshape(groups, -1, *used.shape[1:])
            used = used.transpose(0, 2, *range(4, used.ndim, 2), 1, *range(3, used.ndim, 2))
            return used.reshape(-1, *used.shape[-1 - rank :])

        taps, count = [len(one.weights) for one in some], math.prod(one.weights.shape[1] for one in some)
        if quantized is None:
            kernel = builder.constant(arranged(weights), name)
        else:
            kernel = quantized.arranged(arranged, groups, count).dequantized(builder, name)
        bias = [builder.constant(np.repeat(one, count), name) for one in biases if one is not None]
        pads = [*(one.left for one in some), *(one.right for one in some)]
        return builder.add("Conv", [x, kernel, *bias], kernel_shape=taps, pads=pads, group=groups)

    made = [*map(convolve, parts)]
    result = made[0] if len(made) == 1 else builder.add("Concat", made, axis=1)
    if math.prod(steps) > 1:
        more = [one.left + one.right - len(one.weights) + 1 for one in parts[0]]
        counts = [size + one if size else -1 for size, one in zip(sizes[:1] + sizes[2:], [0, *more], strict=False)]
        counts[0] = 0 if counts.count(-1) > 1 else counts[0]
        result = _interleaved(builder, result, weights.shape[1] * groups, steps, counts, is_apart=len(made) > 1)
    for at, (first, last) in enumerate((one.cut for one in parts[0]), 2):
        result = builder.slice(result, first, -last or END, at) if first or last else result
    builder.add("Identity", [result], node.output[0])


class _Quantized(NamedTuple):
    """Quantized weights, with scales and zero points of the whole array or of each channel of the result."""

    numbers: Array
    scales: Array
    zeros: Array

    def arranged(self, arrange: Callable[[Array], Array], groups: int, phases: int) -> _Quantized:
        """Return the weights of a convolution; what `arrange` adds dequantizes to zero."""
        each = [-1, *[1] * (self.numbers.ndim - 2)]
        differences = arrange(self.numbers.astype("int32") - self.zeros.astype("int32").reshape(each))
        scales, zeros = (
            np.repeat(np.tile(one, groups), phases) if one.ndim else one for one in (self.scales, self.zeros)
        )
        numbers = differences + zeros.astype("int32").reshape([-1, *[1] * (self.numbers.ndim - 1)])
        return _Quantized(numbers.astype(self.numbers.dtype), scales, zeros)

    def dequantized(self, builder: ExpansionBuilder, like: str) -> str:
        """Add their dequantization, by scales of the first dimension."""
        along: dict[str, Any] = {"axis": 0} if self.scales.ndim else {}  # since version 13
        return builder.add("DequantizeLinear", [builder.constant(one, like) for one in self], **along)


def _quantized(builder: ExpansionBuilder, name: str) -> _Quantized | None:
    """Return the weights of a transposed convolution if they are dequantized constants of 8 or 16 bits."""
    node = builder.maker(name)
    if node is None or node.op_type != "DequantizeLinear" or node.domain not in ("", "ai.onnx"):
        return None
    attributes, (x, scale, zero) = attributes_of(node), operands_of(node, 3)
    numbers, scales = builder.array(x), builder.array(scale)
    if numbers is None or scales is None or not {"axis"}.issuperset(attributes):
        return None
    zeros = builder.array(zero) if zero else np.zeros(scales.shape, numbers.dtype)
    if zeros is None or numbers.dtype not in ("int8", "uint8", "int16", "uint16") or not np.isfinite(scales).all():
        return None
    if scales.size > 1 and attributes.get("axis", 1) not in (1, 1 - numbers.ndim):
        return None
    return _Quantized(numbers, *(one if one.size > 1 else one.reshape(()) for one in (scales, zeros)))


def _convolutions(axes: Sequence[_Axis]) -> list[tuple[_Phases, ...]]:
    """Return what convolutions compute along all axes: one all phases, or each one; none if padding were negative.

    Apart, no weight is a zero, and nothing is cut off at the beginning.
    """
    together = [tuple(axis.together() for axis in axes)]
    apart = [*product(*(axis.apart() for axis in axes))] if math.prod(axis.step for axis in axes) <= APART else []
    is_exact = all(
        one.weights.size == axis.length and not one.cut[0] for one, axis in zip(together[0], axes, strict=True)
    )
    for parts in (together, apart) if is_exact else (apart, together):
        if all(min(one.left, one.right) >= 0 for part in parts for one in part) and any(parts):
            return parts
    return []


def _interleaved(
    builder: ExpansionBuilder, x: str, channels: int, steps: Sequence[int], shape: Sequence[int], *, is_apart: bool
) -> str:
    """Put the phases of each channel side by side; if they are apart, those of all channels follow each other.

    The shape is the batch, 0 for that of the operand, and the sizes of a phase; one that is not known is -1.
    """
    rank = len(steps)
    if _is_square(steps, builder.opset):
        return builder.add("DepthToSpace", [x], blocksize=steps[0], mode="DCR" if is_apart else "CRD")
    batch, *counts = shape
    parts = [*steps, channels] if is_apart else [channels, *steps]
    order = [rank + 1 if is_apart else 1]
    for axis in range(rank):
        order += [rank + 2 + axis, axis + (1 if is_apart else 2)]
    split = builder.add("Transpose", [builder.reshape(x, [batch, *parts, *counts])], perm=[0, *order])
    whole = [max(-1, count * step) for count, step in zip(counts, steps, strict=True)]
    return builder.reshape(split, [batch, channels, *whole])


def _is_square(steps: Sequence[int], opset: int) -> bool:
    """Return whether DepthToSpace puts phases side by side; it orders channels since opset 11."""
    return len(steps) == 2 and len({*steps}) == 1 and opset >= 11


def _with_pads(attributes: Mapping[str, Any], sizes: Sequence[int], kernel: Sequence[int]) -> dict[str, Any]:
    """Return attributes of a transposed convolution that state its padding, as ONNX defines it of the other ones.

    Sizes that are not known are 0; `output_shape` is for images whose sizes are.
    """
    result, axes = dict(attributes), len(kernel)
    mode, shape = result.pop("auto_pad", "NOTSET"), result.pop("output_shape", None)
    if not shape and mode in ("NOTSET", "VALID"):
        return result
    steps, gaps, more = (
        np.array(result.get(name) or [default] * axes)
        for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    # Results beyond a step for each element: `auto_pad` leaves them out.
    beyond = (np.array(kernel) - 1) * gaps + 1 + more - steps
    total = beyond + np.array(sizes) * steps - shape if shape else beyond
    less = np.maximum(total, 0) // 2
    rest = np.maximum(total, 0) - less
    pads = (less, rest) if mode == "SAME_UPPER" else (rest, less)
    return result | {"pads": np.concatenate(pads).tolist(), "output_padding": (more - np.minimum(total, 0)).tolist()}


def _axes(attributes: Mapping[str, Any], kernel: Sequence[int]) -> list[_Axis]:
    """Return the axes of a transposed convolution; none if weights are dilated."""
    axes = len(kernel)
    if any(step != 1 for step in attributes.get("dilations", ())):
        return []
    pads = attributes.get("pads") or [0] * 2 * axes
    steps, more = attributes.get("strides") or [1] * axes, attributes.get("output_padding") or [0] * axes
    ends = [end - one for end, one in zip(pads[axes:], more, strict=True)]
    return [*map(_Axis, kernel, steps, pads[:axes], ends)]


CONVOLUTION_EXPANSIONS: Mapping[str, Callable[[ExpansionBuilder, NodeProto], None]] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed,
}
