"""The tuning space of register tiles: the choices that make a `Tile`, as named integers.

axis      the axis of the vectors             row_axis  the axis of the rows, -1 for none
lanes     values in a vector                  rows      rows of a register block
vectors   vectors side by side                inner     the reduced axis that becomes the innermost
unroll    steps of that which are unrolled
order     1 to compute all columns before the next rows, 0 for the rows first
tasks     iterations that parallel loops should have, 0 for one thread
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping

from tvmtarget.backends.tvm.register_tiling import Layout, Nest, Tile, VectorUnit

__all__ = ["Knobs", "knobs_of", "space", "tile_of"]

Knobs = Mapping[str, int]

UNROLL = 8  # steps that may be written out
TASKS = (0, 2, 16, 64, 512)


def knobs_of(tile: Tile) -> dict[str, int]:
    """Return the choices that make a tile.

    Args:
        tile: the tile.

    Returns:
        Integers by name.
    """
    return {
        "axis": tile.axis,
        "lanes": tile.lanes,
        "vectors": tile.vectors,
        "row_axis": -1 if tile.row_axis is None else tile.row_axis,
        "rows": tile.rows,
        "inner": tile.inner,
        "unroll": tile.unroll,
        "order": int(tile.columns_first),
        "tasks": tile.tasks,
    }


def space(nest: Nest, tile: Tile, unit: VectorUnit) -> dict[str, tuple[int, ...]]:
    """Return the values of each choice for a nest.

    Args:
        nest: the loop nest.
        tile: its default tile.
        unit: the vector registers.

    Returns:
        Values by name; some combinations make no tile.
    """
    width = unit.lanes(nest.bits)
    axes = sorted({tile.axis, *(nest.spatial[-1:] if nest.slides else ())})
    runs = [run for axis in axes if (run := _run(nest, axis)) is not None]
    rows = [axis for axis in nest.spatial if nest.extents[axis] != 1]
    inner = [nest.extents[axis] or 1 for axis in nest.reduced]
    lanes = {count for run in runs for count in _divisors(run, width) if 4 * count >= width}
    return {
        "axis": tuple(axes),
        "lanes": tuple(sorted(lanes | {tile.lanes})),
        "vectors": tuple(sorted({count for run in runs for count in _divisors(run, unit.registers)})),
        "row_axis": tuple(sorted({*rows, -1 if tile.row_axis is None else tile.row_axis})),
        "rows": tuple(range(1, unit.registers)),
        "inner": tuple(range(-len(inner), 0)),
        "unroll": tuple(sorted({count for extent in inner for count in _divisors(extent, UNROLL)})),
        "order": (0, 1),
        "tasks": TASKS,
    }


def tile_of(nest: Nest, knobs: Knobs, unit: VectorUnit) -> Tile | None:
    """Return the tile that choices make.

    Args:
        nest: the loop nest.
        knobs: the choices.
        unit: the vector registers.

    Returns:
        The tile, or None if it does not fit the nest or the registers.
    """
    axis, lanes, vectors, rows = (knobs[name] for name in ("axis", "lanes", "vectors", "rows"))
    if min(lanes, vectors, rows) < 1 or knobs["order"] not in (0, 1):
        return None
    if not 1 <= knobs["unroll"] <= UNROLL or not 0 <= knobs["tasks"] <= TASKS[-1]:
        return None
    row_axis = None if knobs["row_axis"] < 0 else knobs["row_axis"]
    run = _run(nest, axis) if axis in nest.spatial else None
    if run is None or lanes > unit.lanes(nest.bits) or run % (lanes * vectors):
        return None
    if row_axis == axis or (row_axis is None and rows > 1) or vectors * rows + vectors + 1 > unit.registers:
        return None
    if row_axis is not None and (row_axis not in nest.spatial or rows not in _rows(nest, row_axis)):
        return None
    if (
        not -len(nest.reduced) <= knobs["inner"] < 0
        or (nest.extents[nest.reduced[knobs["inner"]]] or 1) % knobs["unroll"]
    ):
        return None
    return Tile(
        axis,
        lanes,
        vectors,
        row_axis,
        rows,
        _pack(nest, axis, vectors * lanes),
        inner=knobs["inner"],
        unroll=knobs["unroll"],
        columns_first=bool(knobs["order"]),
        tasks=knobs["tasks"],
    )


def _rows(nest: Nest, axis: int) -> Collection[int]:
    """Return the possible numbers of rows."""
    extent = nest.extents[axis]
    if extent is None:
        return range(1, 2 if nest.is_in_pairs else sys.maxsize)
    return range(1, extent + 1) if nest.may_leave_rows else _divisors(extent, extent)


def _run(nest: Nest, axis: int) -> int | None:
    """Return the extent for vectors along an axis: contiguous in what is read, or made so; None for none."""
    extent = nest.extents[axis]
    if extent is None:
        return None
    weights = _weights(nest, axis)
    if weights is not None:
        others = [read.run(axis) for at, read in enumerate(nest.reads) if at != weights]
        return math.gcd(extent, *others)
    return extent if nest.slides and axis == nest.spatial[-1] else None


def _weights(nest: Nest, axis: int) -> int | None:
    """Return the only read of a product that moves along an axis, in one dimension, or None."""
    if len(nest.reads) != 2:
        return None
    for at, read in reversed([*enumerate(nest.reads)]):
        dim = read.dimension(axis)
        if dim is not None and read.shape[dim] == nest.extents[axis] and nest.reads[1 - at].run(axis) != 1:
            return at
    return None


def _pack(nest: Nest, axis: int, width: int) -> tuple[int, Layout] | None:
    weights = _weights(nest, axis)
    if weights is None:
        return None
    read = nest.reads[weights]
    dim = read.dimension(axis)
    if dim is None or (dim == len(read.dims) - 1 and read.constant is None):
        return None
    return weights, Layout(dim, width, int(nest.is_in_pairs))


def _divisors(extent: int, most: int) -> list[int]:
    return [count for count in range(1, min(extent, most) + 1) if extent % count == 0]
