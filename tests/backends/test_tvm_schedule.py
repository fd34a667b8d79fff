"""The default CPU schedule for TVM: what it keeps in registers, and that it computes what TVM alone computes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmtarget.backends.tvm_tiles import Access, Layout, Nest, Tile, VectorUnit, plan

AVX512, AVX2, NEON = VectorUnit(512, 32), VectorUnit(256, 16), VectorUnit(128, 32)


def access(*dims, shape=None, constant=None):
    """Return an access by what moves each dimension: an axis, several, or {axis: steps}."""
    maps = [
        dim if isinstance(dim, dict) else dict.fromkeys(dim if isinstance(dim, tuple) else (dim,), 1) for dim in dims
    ]
    return Access(tuple(maps), shape or (None,) * len(dims), constant)


def convolution(batch, filters, height, width, channels, kernel, *, group=1):
    """Return the nest of a 2-d convolution: axes n f y x, then c i j."""
    per = filters // group
    steps = (4,) if group == 1 else {1: per, 4: 1}
    data = access(0, steps, (2, 5), (3, 6))
    weights = access(1, 4, 5, 6, shape=(filters, channels // group, kernel, kernel), constant=1)
    extents = (batch, filters, height, width, channels // group, kernel, kernel)
    return Nest("SSSSRRR", extents, (data, weights), (access(0, 1, 2, 3),))


def product(rows, columns, inner, *, constant=None):
    """Return the nest of a matrix product: axes i j, then k."""
    left, right = access(0, 2), access(2, 1, shape=(inner, columns), constant=constant)
    return Nest("SSR", (rows, columns, inner), (left, right), (access(0, 1),))


TILES = {
    "columns of a convolution": (convolution(1, 64, 56, 56, 64, 3), Tile(1, 16, 4, 3, 4, (1, Layout(0, 64)))),
    "as many as divide": (convolution(1, 1000, 13, 13, 512, 1), Tile(1, 10, 2, 3, 13, (1, Layout(0, 20)))),
    "inside one group": (convolution(1, 256, 26, 26, 96, 5, group=2), Tile(1, 16, 4, 3, 2, (1, Layout(0, 64)))),
    "rows that leave a remainder": (convolution(1, 128, 37, 37, 128, 1), Tile(1, 16, 4, 3, 5, (1, Layout(0, 64)))),
    "no remainder in symbolic nests": (
        convolution(None, 128, 37, 37, 128, 1),
        Tile(1, 16, 8, 3, 1, (1, Layout(0, 128))),
    ),
    "groups too narrow for vectors": (convolution(1, 272, 14, 14, 272, 1, group=4), Tile(3, 14, 1, 1, 8)),
    "one filter": (convolution(1, 1, 56, 56, 64, 3), Tile(3, 14, 1, 2, 8)),
    "contiguous weights stay": (product(64, 48, 256), Tile(1, 16, 3, 0, 8)),
    "constant weights are packed": (product(64, 48, 256, constant=1), Tile(1, 16, 3, 0, 8, (1, Layout(1, 48)))),
    "a symbolic number of rows": (product(None, 48, 256), Tile(1, 16, 3, 0, 1)),
    "one row": (product(1, 4096, 512), Tile(1, 16, 8, 0, 1)),
}


@pytest.mark.parametrize(("nest", "tile"), TILES.values(), ids=TILES)
def test_a_reduction_is_tiled_by_what_divides_and_what_fits(nest, tile):
    assert plan(nest, AVX512) == tile


def test_pooling_takes_one_vector_along_the_last_axis():
    image = access(0, 1, (2, 4), (3, 5))
    nest = Nest("SSSSRR", (1, 64, 55, 55, 3, 3), (image,), (access(0, 1, 2, 3),))
    assert plan(nest, AVX512) == Tile(3, 11)


@pytest.mark.parametrize("kinds", ["SS", "RR"])
def test_what_is_not_reduced_or_has_no_result_axis_has_no_tile(kinds):
    assert plan(Nest(kinds, (64, 64), (access(0, 1),), (access(0, 1),)), AVX512) is None


@given(
    unit=st.sampled_from([AVX512, AVX2, NEON, VectorUnit(128, 8)]),
    sizes=st.tuples(*[st.integers(1, 300)] * 3),
    constant=st.sampled_from([None, 1]),
)
def test_a_tile_of_a_product_fits_the_registers_and_cuts_columns_evenly(unit, sizes, constant):
    rows, columns, _ = sizes
    tile = plan(product(*sizes, constant=constant), unit)
    if tile is not None:
        assert tile.lanes <= unit.lanes(32)
        assert columns % (tile.lanes * tile.vectors) == 0
        assert tile.vectors * tile.rows + tile.vectors + 1 <= unit.registers
        assert tile.rows <= rows


@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=4), data=st.data())
def test_a_layout_puts_every_element_where_its_index_says(shape, data):
    dim = data.draw(st.integers(0, len(shape) - 1))
    width = data.draw(st.integers(1, 3))
    shape[dim] *= width
    array = np.arange(np.prod(shape)).reshape(shape)
    layout = Layout(dim, width)
    packed = layout.apply(array)
    assert all(packed[tuple(layout.index(*at))] == array[at] for at in np.ndindex(*shape))
