"""Blocks and windows of images, as operations of TE: SpaceToDepth, DepthToSpace, Col2Im and maxima.

Sources: ONNX's definitions of these operators; onnxruntime's for places of equal maxima, of which the first counts.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

from tvmtarget.backends.tvm.compiled_module import import_tvm

__all__ = ["blocks_of_channels", "channels_of_blocks", "maxima_places", "summed_windows"]

Size: TypeAlias = Any  # an integer expression of TIR
Tensor: TypeAlias = Any  # of TE
Attributes: TypeAlias = "dict[str, Any]"

_OUTSIDE = -2


def channels_of_blocks(block: int, channels: int, shape: Sequence[Size]) -> Callable[[Tensor], Tensor]:
    """Return a SpaceToDepth.

    Args:
        block: height and width of a block, which divide the image.
        channels: the number of channels.
        shape: dimensions of the result.

    Returns:
        A function of TE of the images.
    """
    te, tirx = import_tvm().te, import_tvm().tirx

    def moved(data: Tensor) -> Tensor:
        def element(n: Size, c: Size, y: Size, x: Size) -> Any:  # noqa: ANN401
            place = tirx.floordiv(c, channels)
            at = y * block + tirx.floordiv(place, block), x * block + tirx.floormod(place, block)
            return data(n, tirx.floormod(c, channels), *at)

        return te.compute(list(shape), element, name="space_to_depth")

    return moved


def blocks_of_channels(block: int, shape: Sequence[Size], *, is_crd: bool) -> Callable[[Tensor], Tensor]:
    """Return a DepthToSpace.

    Args:
        block: height and width of a block, whose square divides the number of channels.
        shape: dimensions of the result.
        is_crd: whether the channels of a block are next to each other (mode `CRD`).

    Returns:
        A function of TE of the images.
    """
    te, tirx = import_tvm().te, import_tvm().tirx

    def moved(data: Tensor) -> Tensor:
        def element(n: Size, c: Size, y: Size, x: Size) -> Any:  # noqa: ANN401
            place = tirx.floormod(y, block) * block + tirx.floormod(x, block)
            channel = c * (block * block) + place if is_crd else place * shape[1] + c
            return data(n, channel, tirx.floordiv(y, block), tirx.floordiv(x, block))

        return te.compute(list(shape), element, name="depth_to_space")

    return moved


def maxima_places(attributes: Attributes, pads: Sequence[Size], shape: Sequence[Size]) -> Callable[[Tensor], Tensor]:
    """Return the second result of a MaxPool: where the maxima are in the whole tensor.

    Args:
        attributes: those of the MaxPool.
        pads: elements before the first one of each dimension of the images.
        shape: dimensions of the result.

    Returns:
        A function of TE of the images.
    """
    te, tirx = import_tvm().te, import_tvm().tirx
    kernel = attributes["kernel_shape"]
    rank = len(kernel)
    strides, dilations = (attributes.get(name) or [1] * rank for name in ("strides", "dilations"))
    by_columns = bool(attributes.get("storage_order", 0))

    # Places outside of the image are negative, and not -1, at which `nan_propagation` lets no search begin. NaN is not
    # larger, and nothing is larger than it.
    def larger(one: tuple[Any, Any], other: tuple[Any, Any]) -> tuple[Any, Any]:
        is_other = tirx.all(other[0] >= 0, tirx.any(one[0] < 0, other[1] > one[1]))
        return tirx.Select(is_other, other[0], one[0]), tirx.Select(is_other, other[1], one[1])

    def nothing(place: str, dtype: str) -> tuple[Any, Any]:
        return tirx.const(_OUTSIDE, place), import_tvm().te.min_value(dtype)

    def places(data: Tensor) -> Tensor:
        window = [te.reduce_axis((0, size), name=f"k{at}") for at, size in enumerate(kernel)]
        sizes = list(data.shape[2:])
        order = list(range(rank))[::-1] if by_columns else list(range(rank))

        def element(n: Size, c: Size, *indices: Size) -> Any:  # noqa: ANN401
            at = [
                index * strides[axis] + window[axis].var * dilations[axis] - pads[axis]
                for axis, index in enumerate(indices)
            ]
            within = [one >= 0 for one in at] + [one < size for one, size in zip(at, sizes, strict=True)]
            place = n * data.shape[1] + c
            for axis in order:
                place = place * sizes[axis] + at[axis]
            least, is_within = import_tvm().te.min_value(str(data.dtype)), tirx.all(*within)
            found = tirx.if_then_else(is_within, data(n, c, *at), least)
            return largest((tirx.Select(is_within, place, tirx.const(_OUTSIDE, "int64")), found), axis=window)

        largest = te.comm_reducer(larger, nothing, name="largest")
        return te.compute(list(shape), element, name="places")[0]

    return places


def summed_windows(
    image: Sequence[int], block: Sequence[int], attributes: Attributes, batch: Size, channels: Size
) -> tuple[int, Callable[[Tensor], Tensor]]:
    """Return a Col2Im: the sum of columns of windows, where these are in the images.

    Args:
        image: dimensions of an image.
        block: dimensions of a window.
        attributes: those of the Col2Im.
        batch: the number of images.
        channels: the number of channels of an image.

    Returns:
        The number of columns, and a function of TE of them.
    """
    te, tirx = import_tvm().te, import_tvm().tirx
    rank = len(image)
    strides, dilations = (attributes.get(name) or [1] * rank for name in ("strides", "dilations"))
    pads = attributes.get("pads") or [0] * (2 * rank)
    counts = [
        (image[at] + pads[at] + pads[at + rank] - dilations[at] * (block[at] - 1) - 1) // strides[at] + 1
        for at in range(rank)
    ]

    def images(data: Tensor) -> Tensor:
        window = [te.reduce_axis((0, size), name=f"k{at}") for at, size in enumerate(block)]

        def element(n: Size, c: Size, *indices: Size) -> Any:  # noqa: ANN401
            row, column, within = c, 0, []
            for at, index in enumerate(indices):
                before = index + pads[at] - window[at].var * dilations[at]
                number = tirx.floordiv(before, strides[at])
                within += [before >= 0, tirx.floormod(before, strides[at]) == 0, number < counts[at]]
                row, column = row * block[at] + window[at].var, column * counts[at] + number
            nothing = tirx.const(0, data.dtype)
            return te.sum(tirx.if_then_else(tirx.all(*within), data(n, row, column), nothing), axis=window)

        return te.compute([batch, channels, *image], element, name="col2im")

    return prod(counts), images
