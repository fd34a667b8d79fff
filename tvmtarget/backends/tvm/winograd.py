"""Convolutions of 3 x 3 with stride 1, dilated or not, by Winograd's minimal filtering, for the CPU schedule.

F(m x m, 3 x 3) computes m x m results of a channel from a tile of (m+2) x (m+2) values (Lavin and Gray, "Fast
Algorithms for Convolutional Neural Networks", CVPR 2016). With d the tile and g the filter,

    Y = A^T [ sum over channels of (G g G^T) * (B^T d B) ] A

where * multiplies elements: (m+2)^2 products for m^2 results in place of 9 m^2, a fourth for m = 4 and 4/9 for m = 2.
Over all tiles and channels the sums are (m+2)^2 matrix products, which `register_tiling` blocks like any other.

The matrices are those of Toom and Cook for a list of points. For m = 4 these are 0, 1, -1, 1/2 and -2 and infinity, the
most accurate ones that Barabasz et al. found ("Error Analysis and Improving the Accuracy of Winograd Convolution for
Deep Neural Networks", ACM TOMS 2020): beside float64 the largest error, over the largest result, is 1.3e-6 with 32
channels and 5e-6 with 512, where summing directly has 5e-7 and 2.6e-6, and the points 0, 1, -1, 2 and -2 of Lavin and
Gray 6e-6 and 1.2e-5. The error for m = 2 is below that of summing directly, so what is quantized again behind a
convolution of dequantized values uses m = 2: an error that rounds to another integer is no more frequent.

Sums of converted integers, as of ConvInteger, stay as they are, since they are exact in floats.

An infinity or NaN in the input makes the results of its tiles NaN, not only those of its window, and values above 1e37
may overflow. TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.backends.protocol import Array
from tvmtarget.backends.tvm.call_sites import Producer, constant_of, operator_of, rewrite_calls
from tvmtarget.backends.tvm.integer_products import DEQUANTIZE, converted_product, is_plain
from tvmtarget.backends.tvm.register_tiling import VectorUnit, divisor
from tvmtarget.backends.tvm.tir_builder import FUSES_WHAT_FOLLOWS

__all__ = ["ROWS", "Convolution", "minimal_filtering", "run_in_strips", "use_winograd"]

Module: TypeAlias = Any
Builder: TypeAlias = Any
Function: TypeAlias = Any
Expr: TypeAlias = Any
Tensor: TypeAlias = Any
Schedule: TypeAlias = Any
Block: TypeAlias = Any

ROWS = "rows_of_constant_product"  # annotation: the axis of a block that numbers the rows of a constant matrix

FILTER = 3
POINTS = {2: (0, 1, -1), 4: (0, 1, -1, Fraction(1, 2), -2)}  # by m, without infinity
LEAST_CHANNELS = 8  # of the input and the result: 4 to 16 channels of 32 x 32 are 1.2 times as fast, 3 to 16 no faster
PAIRED_BITS = 512  # of registers from which on `multiply_in_pairs` is faster: 64 channels of 56 x 56 take 1.28 ms, not
# 1.42 ms; with 256 bits 1.77 ms, not 1.40 ms
LEAST_BITS = 128  # of vector registers, without which the matrix products have no register block
DILATED_CHANNELS = 64  # of dilated convolutions: 64 of 112 x 112 take 0.72 of the time, 32 of 128 x 128 1.1 times as
# long; 2048 of 65 x 65 with weights 24 apart a fourth
DILATED_PRODUCTS = 0.75  # at most, of those of the convolution itself: of short phases, tiles compute too much
DILATED_BYTES = 2**28  # of transformed values, as they are not made in strips
LARGE = 8  # the greatest height and width that has tiles of 2 x 2: it fills few of 4 x 4, and weights of small images
# are many, which these make 4 times as large, those of 2 x 2 only 1.8 times
LEAST_TILES = 2  # of 2 x 2 in all images: a single one reads 16 weights in place of 9, and 960 to 1024 channels take
# 7.1 ms, not 1.7
STRIP_BYTES = 2**19  # of transformed values, which a core's cache holds
LEAST_STRIPS = 8  # that are worth it, as they are what runs in parallel
ROW_STEP = 4  # tiles that the matrix products take at once


def minimal_filtering(m: int) -> tuple[Array, Array, Array]:
    """Return the matrices of F(m, 3) for `POINTS`.

    Args:
        m: number of results.

    Returns:
        B^T of shape [m+2, m+2], G of [m+2, 3], A^T of [m, m+2], in float64.
    """
    points = [Fraction(point) for point in POINTS[m]]

    def from_roots(roots: Sequence[Fraction]) -> list[Fraction]:
        """Return the coefficients of the polynomial with some roots, that of the constant term first."""
        found = [Fraction(1)]
        for root in roots:
            found = [high - root * low for high, low in pairwise([Fraction(0), *found, Fraction(0)])]
        return found + [Fraction(0)] * (len(points) + 1 - len(found))

    others = [[other for other in points if other != point] for point in points]
    scales = [prod(point - other for other in rest) for point, rest in zip(points, others, strict=True)]
    infinity = [Fraction(0)] * (FILTER - 1) + [Fraction(1)]
    input_transform = [*map(from_roots, others), from_roots(points)]
    filter_transform = [
        *([point**power / scale for power in range(FILTER)] for point, scale in zip(points, scales, strict=True)),
        infinity,
    ]
    output_transform = [[*(point**power for point in points), Fraction(power == m - 1)] for power in range(m)]
    b, g, a = (np.array(rows, float) for rows in (input_transform, filter_transform, output_transform))
    return b, g, a


@dataclass(frozen=True)
class Convolution:
    """A convolution of 3 x 3 with stride 1.

    Attributes:
        batch: number of images.
        channels: channels of the input.
        height: height of the input.
        width: width of the input.
        results: channels of the result.
        padding: zeros above, left of, below and right of the input.
        dilation: lines and columns from a weight to the next. The results whose numbers have the same remainders by
            these are a convolution without dilation, of the values of the input that they read: a phase.
        is_quantized: whether the input is dequantized, so that the result is quantized again.
    """

    batch: int
    channels: int
    height: int
    width: int
    results: int
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    is_quantized: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the result."""
        (top, left, bottom, right), (down, across) = self.padding, self.dilation
        return self.height + top + bottom - (FILTER - 1) * down, self.width + left + right - (FILTER - 1) * across

    @property
    def phase(self) -> tuple[int, int]:
        """Height and width of the result of the first phase, the largest."""
        height, width = (-(-size // step) for size, step in zip(self.size, self.dilation, strict=True))
        return height, width

    def tiles(self, m: int) -> tuple[int, int]:
        """Return how many tiles of m x m results of a phase lie below and beside each other.

        Args:
            m: height and width of a tile's result.

        Returns:
            The numbers of rows and of columns.
        """
        height, width = self.phase
        return -(-height // m), -(-width // m)

    def products(self, m: int) -> int:
        """Return the number of products for each pair of channels.

        Args:
            m: height and width of a tile's result.

        Returns:
            Those of all tiles.
        """
        return prod(self.tiles(m)) * prod(self.dilation) * (m + FILTER - 1) ** 2

    def tile(self, unit: VectorUnit) -> int | None:
        """Return m for the fastest F(m x m, 3 x 3).

        Args:
            unit: the vector registers.

        Returns:
            2 or 4; None if summing directly is faster.
        """
        lanes, counts = unit.lanes(32), (self.channels, self.results)
        if min(counts) < LEAST_CHANNELS or min(self.size) < 2 or unit.bits < LEAST_BITS:
            return None
        if any(2 * divisor(count, lanes) < lanes for count in counts):
            return None
        if self.is_quantized and unit.multiplies_pairs and unit.bits >= PAIRED_BITS:
            return None
        if self.dilation == (1, 1):
            if self.batch * prod(self.tiles(2)) < LEAST_TILES:
                return None
            return 4 if min(self.size) > LARGE and not self.is_quantized else 2
        m = 2 if self.is_quantized else min((4, 2), key=self.products)
        products, own = self.products(m), FILTER**2 * prod(self.size)
        is_small = 4 * self.batch * products * max(counts) <= DILATED_BYTES
        return m if min(counts) >= DILATED_CHANNELS and products < DILATED_PRODUCTS * own and is_small else None

    def strip(self, m: int) -> int:
        """Return how many rows of tiles are transformed, multiplied and transformed back at once.

        All of an image, unless its transformed values are much more than a cache holds, and than the transformed
        weights, which each strip reads. All if weights are dilated: TVM 0.27 does not see which phases a strip needs.

        Args:
            m: height and width of a tile's result.

        Returns:
            A divisor of the number of rows, or the number of rows of all phases.
        """
        rows, columns = self.tiles(m)
        if self.dilation != (1, 1):
            return rows * self.dilation[0]
        products = 4 * (m + FILTER - 1) ** 2
        weights, row = products * self.channels * self.results, products * columns * (self.channels + self.results)
        some = divisor(rows, max(1, min(rows, -(-max(STRIP_BYTES, weights // 2) // row))))
        return some if self.batch * rows // some >= LEAST_STRIPS else rows

    def transformed(self, weights: Array, m: int) -> Array:
        """Return weights as the elementwise products need them.

        Args:
            weights: an array of shape [results, channels, 3, 3].
            m: height and width of a tile's result.

        Returns:
            An array of shape [m+2, m+2, channels, results], computed in float64.
        """
        _, g, _ = minimal_filtering(m)
        columns = weights.transpose(2, 3, 1, 0).astype(np.float64)
        both = np.tensordot(g, np.tensordot(g, columns, (1, 1)), (1, 1))
        return np.ascontiguousarray(both, weights.dtype)

    def compute(self, x: Tensor, weights: Tensor, m: int) -> Tensor:
        """Define the result in TVM's tensor expressions.

        Channels are the last dimension in between, so that all transforms have vectors along memory.

        Args:
            x: the input, of shape [batch, channels, height, width].
            weights: those of `transformed`.
            m: height and width of a tile's result.

        Returns:
            The result, of shape [batch, results, height, width].
        """
        from tvm import te, tirx

        (b, _, a), size = minimal_filtering(m), m + FILTER - 1
        (rows, columns), strip, (down, across) = self.tiles(m), self.strip(m), self.dilation
        (top, left, _, _), in_row, count = self.padding, columns * across, strip * columns * across
        high, wide = m * min(rows, strip) + FILTER - 1, m * columns + FILTER - 1  # what a strip reads of a phase
        padded_count = -(-count // ROW_STEP) * ROW_STEP  # repeats of the last tile, which nothing reads
        outer, zero = (self.batch, rows * down // strip), tirx.const(0.0, x.dtype)

        def pad(n: Expr, s: Expr, y: Expr, z: Expr, c: Expr) -> Expr:
            (below, y), (right, z) = _divided(y, high, down), _divided(z, wide, across)
            line, column = (s * strip * m + y) * down + below - top, z * across + right - left
            inside = tirx.all(line >= 0, line < self.height, column >= 0, column < self.width)
            return tirx.if_then_else(inside, x[n, c, line, column], zero)

        padded = te.compute((*outer, down * high, across * wide, self.channels), pad, "winograd_pad")

        def input_row(n: Expr, s: Expr, t: Expr, i: Expr, z: Expr, c: Expr) -> Expr:
            below, row = _divided(t, rows, down)
            return _row(b, i, lambda k: padded[n, s, below * high + row * m + k, z, c])

        input_rows = te.compute(
            (*outer, strip, size, across * wide, self.channels), input_row, "winograd_input_rows", attrs={ROWS: 3}
        )

        def input_column(n: Expr, s: Expr, i: Expr, j: Expr, p: Expr, c: Expr) -> Expr:
            at = p if padded_count == count else te.min(p, count - 1)
            right, column = _divided(at % in_row, columns, across)
            return _row(b, j, lambda k: input_rows[n, s, at // in_row, i, right * wide + column * m + k, c])

        transformed = te.compute(
            (*outer, size, size, padded_count, self.channels), input_column, "winograd_input", attrs={ROWS: 3}
        )
        over = te.reduce_axis((0, self.channels), "c")
        products = te.compute(
            (*outer, size, size, padded_count, self.results),
            lambda n, s, i, j, p, k: te.sum(transformed[n, s, i, j, p, over] * weights[i, j, over, k], axis=over),
            "winograd_products",
        )
        result_rows = te.compute(
            (*outer, m, size, padded_count, self.results),
            lambda n, s, i, j, p, k: _row(a, i, lambda q: products[n, s, q, j, p, k]),
            "winograd_result_rows",
            attrs={ROWS: 2},
        )
        tiles = te.compute(
            (*outer, strip, m, in_row, m, self.results),
            lambda n, s, t, i, z, j, k: _row(a, j, lambda q: result_rows[n, s, i, q, t * in_row + z, k]),
            "winograd_tiles",
            attrs={ROWS: 5},
        )

        def result(n: Expr, k: Expr, y: Expr, z: Expr) -> Expr:
            (y, below), (z, right) = (y // down, y % down), (z // across, z % across)
            t, column = below * rows + y // m % min(rows, strip), right * columns + z // m
            return tiles[n, y // (m * strip), t, y % m, column, z % m, k]

        return te.compute((self.batch, self.results, *self.size), result, "winograd_result")


def _divided(index: Expr, width: int, count: int) -> tuple[Expr, Expr]:
    """Return the number of a part and the place in it, for an index over parts side by side; plainly for one part."""
    return (0, index) if count == 1 else (index // width, index % width)


def _row(matrix: Array, row: Expr, vector: Callable[[int], Expr]) -> Expr:
    """Return an element of a constant matrix times a vector, for a loop over its rows that is unrolled."""
    from tvm import tirx

    def element(row: int) -> Expr:
        total: Expr = None
        for column, factor in enumerate(matrix[row]):
            if factor:
                value, size = vector(column), abs(factor) if total is not None else factor
                term = value if size == 1 else value * tirx.const(float(size), "float32")
                total = term if total is None else total + term if factor > 0 else total - term
        return total

    *first, last = map(element, range(len(matrix)))
    for number, one in reversed([*enumerate(first)]):
        last = tirx.Select(row == number, one, last)
    return last


def use_winograd(module: Module, unit: VectorUnit) -> Module:
    """Compute convolutions with constant weights by minimal filtering, where it is faster.

    Args:
        module: a TVM module of Relax functions.
        unit: the vector registers.

    Returns:
        A changed copy, or the same module.
    """
    import tvm
    from tvm import relax

    def rewrite(call: Expr, builder: Builder, producer: Producer) -> Expr:
        if operator_of(call) != "relax.nn.conv2d":
            return call
        weights = _value(producer(call.args[1]))
        # Sums of the transforms make NaN of two infinities.
        found = _convolution(call, weights) if weights is not None and np.isfinite(weights).all() else None
        if found is None or weights is None:
            return call
        made = producer(call.args[0])
        if converted_product(made, weights, producer) is not None:
            return call
        if operator_of(made) == DEQUANTIZE:
            found = replace(found, is_quantized=True)
        m = found.tile(unit)
        if m is None:
            return call
        return builder.call_te(
            found.compute,
            call.args[0],
            relax.const(tvm.runtime.tensor(found.transformed(weights, m))),
            m,
            primfunc_name_hint="conv2d_winograd",
            primfunc_attrs={"op_pattern": FUSES_WHAT_FOLLOWS},
        )

    return rewrite_calls(module, rewrite)


def _value(weights: Expr) -> Array | None:
    """Return weights that are constants, or constants that are dequantized; None for others."""
    if operator_of(weights) != DEQUANTIZE:
        return constant_of(weights)
    values, scale, zero = map(constant_of, weights.args)
    if values is None or scale is None or zero is None:
        return None
    along = [-1 if axis == int(weights.attrs.axis) % values.ndim else 1 for axis in range(values.ndim)]
    scale, zero = (one.reshape(along if one.size > 1 else ()) for one in (scale, zero))
    dequantized: Array = (values.astype(np.int32) - zero.astype(np.int32)).astype(np.float32) * scale
    return dequantized


def _convolution(call: Expr, weights: Array) -> Convolution | None:
    """Return the convolution of a call; None if it is not of 3 x 3 with stride 1, or its sizes are not known."""
    from tvm import tirx

    (data, _), attrs = call.args, call.attrs
    sizes, strides, dilation = [*(data.ty.shape or ())], map(int, attrs.strides), map(int, attrs.dilation)
    if not is_plain(call) or any(stride != 1 for stride in strides):
        return None
    types = {str(one.ty.dtype.dtype) for one in (data, call)} | {str(weights.dtype)}
    if weights.shape[2:] != (FILTER, FILTER) or types != {"float32"}:
        return None
    if not all(isinstance(size, tirx.IntImm) for size in sizes):
        return None
    top, left, bottom, right = (int(size) for size in attrs.padding)
    batch, channels, height, width = map(int, sizes)
    down, across = dilation
    return Convolution(
        batch, channels, height, width, weights.shape[0], (top, left, bottom, right), dilation=(down, across)
    )


def run_in_strips(schedule: Schedule, root: Block) -> Block | None:
    """Compute all blocks of a convolution in a parallel loop over its strips, if it has several.

    Args:
        schedule: a schedule of a function; changed.
        root: its root block.

    Returns:
        The block that writes the result, if there is such a loop around all blocks; else None.
    """
    blocks = {schedule.get(block).name_hint: block for block in schedule.get_child_blocks(root)}
    stages = [block for name, block in blocks.items() if name.startswith("winograd_") and name != "winograd_result"]
    if not stages:
        return None
    images, strips, rows, m, *_ = (int(size) for size in schedule.get(stages[-1]).writes[0].source.shape)
    readers = schedule.get_consumers(stages[-1])
    loops = schedule.get_loops(readers[0])
    if strips == 1 or len(readers) != 1 or len(loops) != len("NCHW") or schedule.get(loops[0]).extent != images:
        return None
    image, channel, line, column = loops
    strip, line = schedule.split(line, [None, rows * m])
    schedule.reorder(image, strip, channel, line, column)
    outer = schedule.fuse(image, strip)
    for stage in reversed(stages):
        schedule.compute_at(stage, outer, preserve_unit_loops=True)
    schedule.parallel(outer)
    return readers[0]
