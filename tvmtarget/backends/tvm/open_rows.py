"""Tiles of rows whose number only a run knows: whole tiles without conditions, then the rows that are left.

A loop over n rows that a schedule splits into tiles of r rows checks each row: `tile * r + row < n`. Where n is a
number, TVM moves that out of the loops (`LoopPartition`). Where it is a symbol, TVM 0.27 does so for whole tiles only,
and the last one checks each row in its innermost loop: a product with one row takes 2.5 times as long. `divide_tiles`
puts two loops in place of such a one: over n // r tiles without conditions, and over n % r tiles of a single row.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

__all__ = ["TILE_ROWS", "divide_tiles"]

Function: TypeAlias = Any
Loop: TypeAlias = Any
Stmt: TypeAlias = Any
Variable: TypeAlias = Any
Expr: TypeAlias = Any

TILE_ROWS = "tvmtarget.tile_rows"  # annotation of a loop over tiles: the rows of a tile


def divide_tiles(function: Function) -> Function:
    """Divide the loops that have the annotation `TILE_ROWS`.

    Args:
        function: a scheduled function.

    Returns:
        The function; the same one if it has no such loop.

    Raises:
        ValueError: a loop over tiles uses its variable in another way than for the numbers of rows.
    """
    from tvm import tirx
    from tvm.s_tir import SBlock, SBlockRealize
    from tvm_ffi import structural_map, structural_walk

    loops: list[Loop] = []
    structural_walk(function.body, (tirx.For, loops.append))
    if not any(TILE_ROWS in loop.annotations for loop in loops):
        return function
    realize = function.body
    root, buffers = realize.block, [*realize.block.alloc_buffers]

    def divided(loop: Loop) -> Stmt:
        if TILE_ROWS not in loop.annotations:
            return loop
        own = [buffer for buffer in buffers if _uses(loop, buffer) == _uses(root.body, buffer)]
        parts, copies = _divided(loop, own)
        buffers[:] = [*(one for one in buffers if one not in own), *copies]
        return tirx.SeqStmt(parts)

    body = structural_map(root.body, (tirx.For, divided))
    parts = root.iter_vars, root.reads, root.writes, root.name_hint, body, root.init, buffers
    block = SBlock(*parts, root.match_buffers, root.annotations)
    return function.with_body(SBlockRealize(realize.iter_values, realize.predicate, block))


def _uses(statement: Stmt, variable: Variable) -> int:
    """Return how often a statement names a variable."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    found: list[Variable] = []
    structural_walk(statement, (tirx.Var, lambda one: found.append(one) if one.same_as(variable) else None))
    return len(found)


def _divided(loop: Loop, own: Sequence[Variable]) -> tuple[list[Loop], list[Variable]]:
    """Return the loop over whole tiles and that over the rows that they leave, and the buffers of both.

    Args:
        loop: a loop over tiles.
        own: the buffers that are used in it only.
    """
    from tvm import ir, tirx
    from tvm.s_tir import SBlockRealize
    from tvm_ffi import structural_map

    tile, rows = loop.loop_var, int(loop.annotations[TILE_ROWS])
    dtype = str(tile.ty.dtype)
    count, in_tile, defined = _rows_of_tiles(loop)
    whole_tiles = tirx.floordiv(count, tirx.const(rows, dtype))
    first = whole_tiles * tirx.const(rows, dtype)
    rest = {variable: ir.Var(f"{variable.name}_rest", variable.ty) for variable in defined}
    row = first + rest[tile]

    def unchecked(each: Stmt, row: Expr | None = None) -> Stmt:
        """Drop the conditions on rows, and put `row` in place of their numbers."""
        values = [row if row is not None and _uses(value, tile) else value for value in each.iter_values]
        checks = [check for check in _conjuncts(each.predicate) if not _uses(check, tile)]
        return SBlockRealize(values, tirx.all(*checks) if checks else True, each.block)

    def of_one_row(inner: Loop) -> Loop:
        extent = tirx.const(1, str(inner.extent.ty.dtype)) if inner.loop_var in in_tile else inner.extent
        return tirx.For(inner.loop_var, inner.min, extent, inner.kind, inner.body, None, inner.annotations)

    def local(buffer: Variable, suffix: str) -> Variable:
        # TVM allocates no more for a tile than for all rows: a symbol, unless these are at least a tile.
        least = tirx.const(rows, dtype)
        shape = [size if isinstance(size, tirx.IntImm) else tirx.max(size, least) for size in buffer.shape]
        return tirx.decl_buffer(shape, str(buffer.dtype), f"{buffer.name}{suffix}", scope=buffer.scope(), layout=None)

    def with_variables(statement: Stmt, names: Mapping[Variable, Variable]) -> Stmt:
        return structural_map(statement, (tirx.Var, lambda one: names.get(one, one)))

    whole_buffers = {buffer: local(buffer, "") for buffer in own}
    whole = with_variables(structural_map(loop.body, (SBlockRealize, unchecked)), whole_buffers)
    rest_buffers = {buffer: local(buffer, "_rest") for buffer in own}
    changes = [(SBlockRealize, lambda each: unchecked(each, row)), (tirx.For, of_one_row)]
    single = with_variables(structural_map(loop.body, changes), {**rest, **rest_buffers})
    parts = [
        tirx.For(tile, loop.min, whole_tiles, loop.kind, whole),
        tirx.For(rest[tile], loop.min, count - first, loop.kind, single),
    ]
    return parts, [*whole_buffers.values(), *rest_buffers.values()]


def _rows_of_tiles(loop: Loop) -> tuple[Expr, set[Variable], list[Variable]]:
    """Return how many rows a loop over tiles has, the variables that count them in a tile, and all that it defines."""
    from tvm import ir, sym, tirx
    from tvm.s_tir import SBlockRealize
    from tvm_ffi import structural_walk

    tile, rows = loop.loop_var, int(loop.annotations[TILE_ROWS])
    bounds = sym.Analyzer()
    defined, realized = [tile], list[Stmt]()  # the block of the reduction comes first, and all others have its rows

    def enter(inner: Loop) -> None:
        bounds.bind(inner.loop_var, ir.Range.from_min_extent(inner.min, inner.extent))
        defined.append(inner.loop_var)

    structural_walk(loop.body, [(tirx.For, enter), (SBlockRealize, realized.append)], order="pre")
    counts: list[Expr] = []
    in_tile, others = set[Variable](), set[Variable]()
    for each in realized:
        defined += (axis.var for axis in each.block.iter_vars)
        for axis, value in zip(each.block.iter_vars, each.iter_values, strict=True):
            if not _uses(value, tile):
                others.update(tirx.analysis.undefined_vars(value))
                continue
            within = bounds.simplify(value - tile * tirx.const(rows, str(tile.ty.dtype)))
            bound = bounds.const_int_bound(within)
            if _uses(within, tile) or (bound.min_value, bound.max_value) != (0, rows - 1):
                raise ValueError(f"{value} is no number of a row in tiles of {rows}")
            counts.append(axis.dom.extent)
            in_tile.update(tirx.analysis.undefined_vars(within))
    if not counts or in_tile & others:
        raise ValueError(f"loops in tiles of {rows} rows run over other axes, too")
    return counts[0], in_tile, defined


def _conjuncts(check: Expr) -> Iterator[Expr]:
    from tvm import tirx

    if isinstance(check, tirx.And):
        yield from _conjuncts(check.a)
        yield from _conjuncts(check.b)
    elif not isinstance(check, tirx.IntImm):
        yield check
