"""Register tiling: choose the part of a loop nest to keep in vector registers, by a static model without TVM.

A CPU has a number of registers with a number of lanes. A block of sums is better the more multiply-adds it does per
loaded value, as long as its sums and operands fit the registers (the analytical model of Low et al., "Analytical
Modeling Is Enough for High-Performance BLIS", 2016). The constants come from sweeps over convolutions of ResNet-50,
ShuffleNet and SqueezeNet on one machine with AVX-512, and on one with AVX2 (Zen 3); `python -m benchmarks.tvm_schedule`
measures their effect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvmtarget.backends.protocol import Array

__all__ = [
    "PARALLEL_TASKS",
    "Access",
    "Layout",
    "Nest",
    "Strip",
    "Tile",
    "VectorUnit",
    "chunk_axes",
    "divisor",
    "panel",
    "plan",
    "strip",
]

TAIL_WORTH = 0.7  # of a block whose rows leave a remainder, beside one whose rows do not
CHAINS = 8  # independent sums that hide the latency of adding: 4 cycles on 2 units
# Of 16 registers of 256 bits, as AVX2 has. Blocks of 4 vectors take 1.4 times as long as those of 2 if their weights
# exceed the nearest cache; of more than 8 rows, LLVM reads vectors and takes them apart (13 rows: 1.5 times as long).
FEW_REGISTERS, FEW_VECTORS, FEW_ROWS = 16, 3, 8
OPEN_ROWS = 4  # of a tile of rows whose number only a run knows: few, as those that are left take twice as long each
LONG_SUM = 25  # terms from which on a sum gains by that
LEAST_LANES = 4  # of partial sums that are worth it
FEW_WEIGHTS = 1 << 15  # bytes that stay in the nearest cache of a core
# Bits. If more weights are used for all rows, ResNet-50 takes 0.87 of the time, with vectors of 128 bits 1.12 (Zen 3).
LONG_VECTOR = 256
# Of what a product reads, and of a part of it that is copied, which a core's second cache holds.
FAR_TERMS, FAR_DATA, PANEL_BYTES = 128, 1 << 21, 3 << 17
LARGEST_CHUNK = 4096  # results that are computed before math functions run over them: 16 KiB of a core's cache
PARALLEL_TASKS = 64  # iterations of a parallel loop that are enough for any machine


@dataclass(frozen=True)
class VectorUnit:
    """The vector registers of a CPU.

    Attributes:
        bits: their width.
        registers: their number.
        broadcast: instructions that load a value into all lanes. SSE loads it to one lane and copies it to the others.
        is_fused: whether one instruction multiplies and adds. Else the product takes a register before it is added.
        multiplies_pairs: whether an instruction adds the products of two pairs of 16-bit integers, as `pmaddwd` does.
    """

    bits: int
    registers: int
    broadcast: int = 1
    is_fused: bool = True
    multiplies_pairs: bool = False

    def lanes(self, bits: int) -> int:
        """Return how many values fit a register.

        Args:
            bits: width of a value; narrow ones are computed in 32 bits.

        Returns:
            At least 1.
        """
        return max(1, self.bits // max(32, bits))


@dataclass(frozen=True)
class Access:
    """How a block reads or writes a tensor.

    Attributes:
        dims: for each dimension, the axes of the block that move its index, with the number of steps that it takes: an
            index f // 68 * 68 + c is {f: 68, c: 1}.
        shape: sizes of the tensor, None for symbolic ones.
        constant: position of the function's argument, if the tensor is a constant that nothing else reads.
    """

    dims: tuple[Mapping[int, int], ...]
    shape: tuple[int | None, ...]
    constant: int | None = None

    def run(self, axis: int) -> int:
        """Return for how many steps along an axis the accessed element stays the same.

        Args:
            axis: number of the axis.

        Returns:
            The number of steps; 0 for always.
        """
        return math.gcd(*(steps.get(axis, 0) for steps in self.dims))

    def dimension(self, axis: int) -> int | None:
        """Return the dimension that an axis indexes alone.

        Args:
            axis: number of the axis.

        Returns:
            The dimension; None if the axis indexes several, or shares one.
        """
        used = [dim for dim, steps in enumerate(self.dims) if axis in steps]
        return used[0] if len(used) == 1 and self.dims[used[0]] == {axis: 1} else None

    def is_flat(self, axes: Sequence[int], extents: Sequence[int | None]) -> bool:
        """Return whether several axes run through contiguous memory, or stay in place.

        Args:
            axes: the last axes of a block, in order.
            extents: extents of all axes.

        Returns:
            True if the axes can be fused.
        """
        if not any(self.run(axis) for axis in axes):
            return True
        first = len(self.dims) - len(axes)
        if first < 0 or [self.dimension(axis) for axis in axes] != list(range(first, len(self.dims))):
            return False
        return list(self.shape[first + 1 :]) == [extents[axis] for axis in axes[1:]]


@dataclass(frozen=True)
class Nest:
    """A loop nest over one block.

    Attributes:
        kinds: a letter per axis: S spatial, R reduced, P a pair of terms that one instruction multiplies and adds.
        extents: sizes of the axes, None for symbolic ones.
        reads: tensors that are read.
        writes: tensors that are written.
        bits: width of the widest result.
        writes_math: whether its result is written by a math function, such as exp.
    """

    kinds: str
    extents: tuple[int | None, ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    bits: int = 32
    writes_math: bool = False

    @property
    def spatial(self) -> tuple[int, ...]:
        """Axes of the result."""
        return tuple(axis for axis, kind in enumerate(self.kinds) if kind == "S")

    @property
    def reduced(self) -> tuple[int, ...]:
        """Axes that are reduced, such as summed over."""
        return tuple(axis for axis, kind in enumerate(self.kinds) if kind == "R")

    @property
    def is_in_pairs(self) -> bool:
        """Whether one instruction multiplies and adds two terms."""
        return "P" in self.kinds

    @property
    def may_leave_rows(self) -> bool:
        """Whether a tile's rows may leave a remainder.

        In a function with symbolic extents TVM 0.27 cannot lower the condition that this needs, nor where one
        instruction computes several terms. `open_rows` divides tiles of rows whose number is a symbol itself.
        """
        return None not in self.extents and not self.is_in_pairs

    @property
    def work(self) -> float:
        """Number of iterations; infinite if an extent is symbolic."""
        return math.inf if None in self.extents else math.prod(extent or 0 for extent in self.extents)

    @property
    def slides(self) -> bool:
        """Whether the last dimension of some read moves step by step with the last axis of the result."""
        return any(read.dims and read.dims[-1].get(axis) == 1 for read in self.reads for axis in self.spatial[-1:])

    @property
    def flat_writes(self) -> int:
        """Number of last axes that run through contiguous memory of the results."""
        tails = [self.spatial[start:] for start in range(len(self.spatial))]
        return max(
            (len(tail) for tail in tails if all(one.is_flat(tail, self.extents) for one in self.writes)), default=0
        )

    @property
    def flat_axes(self) -> int:
        """Number of last axes that can be fused to one loop along memory."""
        accesses = (*self.reads, *self.writes)
        tails = [self.spatial[start:] for start in range(len(self.spatial))]
        return max((len(tail) for tail in tails if all(a.is_flat(tail, self.extents) for a in accesses)), default=0)


@dataclass(frozen=True)
class Layout:
    """A layout of a tensor split along one dimension: blocks of `width` outermost, their elements innermost.

    Attributes:
        dim: the dimension.
        width: elements of a block.
        within: number of last dimensions that stay behind the elements of a block.
    """

    dim: int
    width: int
    within: int = 0

    def index(self, *at: Any) -> list[Any]:  # noqa: ANN401 - numbers or TVM's expressions
        """Return the index of an element in this layout.

        Args:
            *at: the index in the usual layout: numbers, or expressions of TVM.

        Returns:
            One index more.
        """
        others = [*at[: self.dim], *at[self.dim + 1 :]]
        cut = len(others) - self.within
        return [at[self.dim] // self.width, *others[:cut], at[self.dim] % self.width, *others[cut:]]

    def apply(self, array: Array) -> Array:
        """Return an array in this layout.

        Args:
            array: an array whose dimension `dim` is divisible by `width`.

        Returns:
            A contiguous array of one dimension more.
        """
        size = array.shape[self.dim]
        pieces = array.reshape(*array.shape[: self.dim], size // self.width, self.width, *array.shape[self.dim + 1 :])
        blocks = np.moveaxis(pieces, self.dim, 0)
        return np.ascontiguousarray(np.moveaxis(blocks, self.dim + 1, blocks.ndim - 1 - self.within))


@dataclass(frozen=True)
class Tile:
    """A register block: `vectors` of `lanes` along `axis`, times `rows` along `row_axis`.

    Attributes:
        axis: axis of the vectors.
        lanes: values in a vector.
        vectors: vectors side by side.
        row_axis: axis of the rows, or None.
        rows: number of rows.
        pack: a read, and the layout in which its vectors are contiguous, or None.
        inner: the reduced axis that becomes the innermost, counted from the last.
        unroll: steps of that axis that are unrolled.
        columns_first: whether all columns are computed before the next rows, instead of all rows before the next
            columns.
        tasks: number of iterations that parallel loops should have, 0 for none.
    """

    axis: int
    lanes: int
    vectors: int = 1
    row_axis: int | None = None
    rows: int = 1
    pack: tuple[int, Layout] | None = None
    inner: int = -1
    unroll: int = 1
    columns_first: bool = False
    tasks: int = PARALLEL_TASKS


def plan(nest: Nest, unit: VectorUnit) -> Tile | None:
    """Choose the register block of a reduction.

    A product of rows x and columns w, as in convolutions, has vectors along the columns:

    >>> x, w = Access(({0: 1}, {2: 1}), (64, 256)), Access(({2: 1}, {1: 1}), (256, 48))
    >>> plan(Nest("SSR", (64, 48, 256), (x, w), (Access(({0: 1}, {1: 1}), (64, 48)),)), VectorUnit(512, 32))
    Tile(axis=1, lanes=16, vectors=3, row_axis=0, rows=8, pack=None, inner=-1, unroll=1, columns_first=False, tasks=64)

    Args:
        nest: the loop nest.
        unit: the vector registers.

    Returns:
        The tile; None if the nest has no result axes, no axis makes good vectors, or there are two results, such as a
        maximum and its place: vectors of these lose all lanes but one (TVM 0.27).
    """
    if not nest.reduced or not nest.spatial or 0 in nest.extents or len(nest.writes) > 1:
        return None
    if len(nest.reads) == 2:
        for weights in (1, 0):
            tile = _plan_product(nest, weights, unit)
            if tile is not None:
                return tile
    return _plan_window(nest, unit)


@dataclass(frozen=True)
class Strip:
    """Partial sums side by side: the last `axes` reduced axes, which are contiguous, in vectors of `lanes`."""

    axes: int
    lanes: int


def strip(nest: Nest, unit: VectorUnit) -> Strip | None:
    """Choose how to reduce along memory.

    >>> image = Access(({0: 1}, {1: 1}, {2: 1}), (64, 56, 56))
    >>> strip(Nest("SRR", (64, 56, 56), (image,), (Access(({0: 1},), (64,)),)), VectorUnit(512, 32))
    Strip(axes=2, lanes=16)

    Args:
        nest: the loop nest.
        unit: the vector registers.

    Returns:
        The strip; None if no reduced axis is contiguous, or its extent fits no vector. TVM 0.27 also fails on partial
        sums of a reduction to a scalar.
    """
    last = nest.reduced[-1:]
    moving = [read for read in nest.reads for axis in last if read.run(axis)]
    if not nest.spatial or not moving or 0 in nest.extents:
        return None
    if any(dict(read.dims[-1]) != {last[0]: 1} for read in moving):
        return None
    for axes in range(len(nest.reduced), 0, -1):
        tail = nest.reduced[-axes:]
        extents = [nest.extents[axis] for axis in tail]
        if None in extents or (axes > 1 and not all(read.is_flat(tail, nest.extents) for read in nest.reads)):
            continue
        lanes = divisor(math.prod(extent or 0 for extent in extents), unit.lanes(nest.bits))
        if lanes >= LEAST_LANES:
            return Strip(axes, lanes)
    return None


def _plan_product(nest: Nest, weights: int, unit: VectorUnit) -> Tile | None:
    """Tile a product of two tensors: vectors along an axis of the weights only, rows along one they lack."""
    width = unit.lanes(nest.bits)
    read, other = nest.reads[weights], nest.reads[1 - weights]
    for axis in reversed(nest.spatial):
        dim, extent = read.dimension(axis), nest.extents[axis]
        if dim is None or extent is None or read.shape[dim] != extent or other.run(axis) == 1:
            continue
        run = math.gcd(extent, other.run(axis))
        lanes = math.gcd(run, width) if nest.is_in_pairs else divisor(run, width)
        if lanes == 1 or 2 * lanes < width:
            continue
        row_axis, rows = _rows(nest, [row for row in nest.spatial if other.run(row) and not read.run(row)])
        # What is written with many operations is best written in vectors along its last dimension: of many rows.
        is_along_rows = nest.writes_math and row_axis in nest.writes[0].dims[-1] and divisor(rows, width) > 1
        broadcast = 1 if is_along_rows else unit.broadcast
        block_unit = replace(unit, broadcast=broadcast)
        if nest.is_in_pairs:
            block_unit = replace(block_unit, registers=unit.registers - 1, is_fused=False)  # one widens the weights
        vectors, height = _block(run // lanes, rows, block_unit, may_leave_rows=nest.may_leave_rows)
        is_contiguous = dim == len(read.dims) - 1 and read.constant is None
        pack = None if is_contiguous else (weights, Layout(dim, vectors * lanes, int(nest.is_in_pairs)))
        # Few weights stay in the cache, so that all columns of a row are computed while its data are there; of many,
        # those of one block do, while they are used for all rows. Short vectors never wait for weights, but then for
        # data. Further axes are left to be run in parallel.
        others = [nest.extents[other] for other in nest.spatial if other not in (axis, row_axis)]
        nbytes = math.prod(size or 0 for size in read.shape) * (1 if nest.is_in_pairs else nest.bits // 8)
        is_by_rows = nbytes <= FEW_WEIGHTS or unit.bits < LONG_VECTOR
        columns_first = is_by_rows and any(size != 1 for size in others)
        return Tile(axis, lanes, vectors, row_axis, height, pack, columns_first=columns_first)
    return None


def chunk_axes(nest: Nest, tile: Tile) -> tuple[int, ...]:
    """Choose the axes of the results of a window that are computed before math functions run.

    Tiles of 2 values side by side would make vectors of 2, and few operations that do not wait for each other. 480
    images of 14 x 14 take 0.27 ms instead of 0.62 ms for 3 x 3 weights and x * sigmoid(x), with vectors of 4.

    Args:
        nest: the loop nest.
        tile: its tile.

    Returns:
        The last axes of the result, which are contiguous; none if the tile is no window's, or results are too many.
    """
    rows = 1 if tile.row_axis is None else nest.extents[tile.row_axis] or 1
    if tile.axis != nest.spatial[-1] or not nest.slides or tile.pack is not None or rows % tile.rows:
        return ()
    for count in range(min(len(nest.spatial) - 1, nest.flat_writes), 0, -1):
        axes = nest.spatial[-count:]
        size = math.prod(nest.extents[axis] or LARGEST_CHUNK + 1 for axis in axes)
        if size <= LARGEST_CHUNK and tile.row_axis in (None, *axes):
            return axes
    return ()


def panel(nest: Nest, tile: Tile) -> tuple[int, int] | None:
    """Choose which part of a product's data is copied before all columns read it.

    If channels are summed, the terms of a sum lie an image apart: each in a page of its own, and 2048 fill the TLB.
    A 1 x 1 convolution of 2048 channels of 65 x 65 to 256 takes 84 ms with such copies and 380 ms without, one of 256
    channels of 100 x 168 to 256 35 ms and 55 ms (Zen 3, one thread). Data of less than `FAR_DATA`, or less than the
    weights, gain nothing.

    >>> x, w = Access(({}, {3: 1}, {1: 1}, {2: 1}), (1, 2048, 25, 42)), Access(({0: 1}, {3: 1}), (256, 2048))
    >>> nest = Nest("SSSR", (256, 25, 42, 2048), (x, w), (Access(({}, {0: 1}, {1: 1}, {2: 1}), (1, 256, 25, 42)),))
    >>> panel(nest, Tile(axis=0, lanes=8, vectors=2, row_axis=2, rows=6, pack=(1, Layout(0, 16))))
    (1, 1)

    Args:
        nest: the loop nest.
        tile: its tile.

    Returns:
        An axis of the result, and how many steps along it a copy is for; None if the data are not to be copied.
    """
    summed = [axis for axis in nest.reduced if nest.extents[axis] != 1]
    if tile.pack is None or tile.row_axis is None or tile.columns_first or nest.is_in_pairs or len(summed) != 1:
        return None
    weights, read = nest.reads[tile.pack[0]], nest.reads[1 - tile.pack[0]]
    if None in (*nest.extents, *read.shape, *weights.shape):
        return None
    terms, rows = ((nest.extents[axis] or 1) for axis in (*summed, tile.row_axis))
    data = replace(
        read, dims=tuple({axis: dims[axis] for axis in dims if nest.extents[axis] != 1} for dims in read.dims)
    )
    moving = [axis for axis in nest.spatial if data.run(axis)]
    around = [axis for axis in moving if axis != tile.row_axis]
    if tile.axis in moving or not around or None in map(data.dimension, (*moving, *summed)):
        return None
    first = data.dimension(summed[0])
    nbytes = nest.bits // 8 * math.prod(size or 1 for size in data.shape[first:])
    if terms < FAR_TERMS or nbytes < max(FAR_DATA, nest.bits // 8 * math.prod(size or 1 for size in weights.shape)):
        return None
    most = PANEL_BYTES // (nest.bits // 8 * terms * rows)
    return around[-1], divisor(nest.extents[around[-1]] or 1, max(1, most))


def _rows(nest: Nest, axes: Sequence[int]) -> tuple[int | None, int]:
    """Return the last of some axes that is longer than 1, else the last, with the rows to choose a block for."""
    axis = max(axes, key=lambda axis: (nest.extents[axis] != 1, axis), default=None)
    open_rows = 1 if nest.is_in_pairs else OPEN_ROWS
    return axis, 1 if axis is None else nest.extents[axis] or open_rows


def _plan_window(nest: Nest, unit: VectorUnit) -> Tile | None:
    """Tile a reduction that slides along the last axis (depthwise convolution, pooling): vectors along that axis.

    They are independent sums that share a weight. Rows, which may read other values, are worth it where sums are long.
    """
    *others, axis = nest.spatial
    extent, width = nest.extents[axis] or 1, unit.lanes(nest.bits)
    moving = [read for read in nest.reads if read.run(axis)]
    # What is read in one piece at each step takes a load for each power of 2 in its lanes: 14 of them are 8 + 4 + 2.
    even = math.gcd(extent, width)
    is_dense = all(read.dims and (read.shape[-1] or 0) < 2 * extent for read in moving)
    lanes = even if is_dense and 2 * even >= width else divisor(extent, width)
    if lanes == 1 or 4 * lanes < width or not nest.slides:
        return None
    chains = max(1, min(CHAINS, unit.registers - 3))
    vectors = divisor(extent // lanes, chains)
    rows = [row for row in others if all(read.run(row) != 1 for read in moving)]
    if math.prod(nest.extents[reduced] or LONG_SUM for reduced in nest.reduced) >= LONG_SUM:
        rows += others[-1:]
    height, row_axis = max(
        ((divisor(nest.extents[row] or 1, chains // vectors), row) for row in rows), default=(1, None)
    )
    return Tile(axis, lanes, vectors, row_axis if height > 1 else None, height)


def _block(columns: int, rows: int, unit: VectorUnit, *, may_leave_rows: bool) -> tuple[int, int]:
    """Choose vectors and rows for the most multiply-adds per load.

    v vectors times r rows occupy v * r registers for sums, v for weights, one for a broadcast value, and one for a
    product that is not added by the same instruction; a step of the sums loads v vectors and broadcasts r values for
    v * r multiply-adds, which wait for each other if they are few. Where registers are few, so that rows leave
    remainders, blocks are chosen by the cycles that all rows take.
    """

    def worth(size: tuple[int, int]) -> float:
        vectors, height = size
        used = 1 if rows % height == 0 else TAIL_WORTH * rows / (math.ceil(rows / height) * height)
        busy = min(1, vectors * height / CHAINS)
        return used * busy * vectors * height / (vectors + unit.broadcast * height)

    registers = unit.registers if unit.is_fused else unit.registers - 1
    vectors = [count for count in range(1, min(columns, registers) + 1) if columns % count == 0]
    heights = [count for count in range(1, min(rows, registers) + 1) if may_leave_rows or rows % count == 0]
    fitting = [(v, r) for v in vectors for r in heights if v * r + v + 1 <= registers]
    if unit.is_fused and unit.bits >= LONG_VECTOR and unit.registers <= FEW_REGISTERS:
        # One or two rows have enough independent sums in many vectors only, and 13 without a remainder in 13 rows.
        most_vectors = FEW_VECTORS if rows > 2 else registers
        most_rows = FEW_ROWS if may_leave_rows else registers
        small = [(v, r) for v, r in fitting if v <= most_vectors and r <= most_rows]
        return min(small, key=lambda size: _cycles(size[0], size[1], rows))
    return max(fitting, key=worth)


def _cycles(vectors: int, height: int, rows: int) -> float:
    """Return the cycles of a step of the sums of all rows, per vector.

    A core begins two multiply-adds a cycle, which take `CHAINS` / 2 cycles; to broadcast a value takes an eighth, as
    most of that is hidden. On 25 convolutions the block that this chooses took 1.02 of the best one, that of the most
    multiply-adds per load 1.13 (Zen 3).
    """
    whole, rest = divmod(rows, height)
    blocks = [(whole, height), (1, rest)] if rest else [(whole, height)]
    return sum(count * (max(CHAINS, vectors * size) / 2 + size / 8) for count, size in blocks) / vectors


def divisor(extent: int, most: int) -> int:
    """Return the largest divisor of an extent up to a limit.

    Any number of lanes that fits one register is good: 15 of 16 are nearly as fast as 16. With more than one register
    per vector LLVM keeps the sums in memory, at a tenth of the speed.

    Args:
        extent: a number from 1.
        most: the limit.

    Returns:
        At least 1.
    """
    return max(count for count in range(1, most + 1) if extent % count == 0)
