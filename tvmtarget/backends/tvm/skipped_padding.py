"""Convolutions that leave out products with padding, as most are where weights lie far apart (dilations of 12 to 36).

A convolution pads its image into a buffer, and reads this for all weights. Where padding is wide, `skip_padding` puts
conditions into the loops over weights: those that read nothing but zeros for all results of a tile are left out. Rows
of the buffer that nothing reads then are not written. `convolution_expansion` does this for images of known size.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvmtarget.backends.tvm.call_sites import Use

__all__ = ["skip_padding"]

Function: TypeAlias = Any
Loop: TypeAlias = Any
Realize: TypeAlias = Any  # a block with the values of its axes
Variable: TypeAlias = Any
Expr: TypeAlias = Any

LEAST_PADDING = 4  # elements at a side, below which conditions take longer than the products that they save
LEAST_STEP = 4  # elements from a weight to the next: with 11 x 11 weights side by side, 64 x 64 take 1.2 times as long


@dataclass(frozen=True)
class _Padding:
    """A block that pads an image with zeros.

    Attributes:
        realize: the block.
        inside: by dimension, the first place of the image in the buffer and that behind its last one.
    """

    realize: Realize
    inside: Mapping[int, tuple[Expr, Expr]]


def skip_padding(function: Function, use: Use) -> Function:
    """Leave out products of finite weights with wide padding.

    Products of infinities with zeros are NaN.

    Args:
        function: a scheduled function.
        use: how the module calls it.

    Returns:
        The function; the same one if it has no wide padding.
    """
    from tvm import tirx
    from tvm.s_tir import SBlockRealize
    from tvm_ffi import structural_map, structural_walk

    realized: list[Realize] = []
    structural_walk(function.body, (SBlockRealize, realized.append))
    paddings = {realize.block.body.buffer: padding for realize in realized if (padding := _padding(realize))}
    if not paddings:
        return function
    loops: dict[Variable, Loop] = {}  # the outer ones first
    structural_walk(function.body, (tirx.For, lambda loop: loops.update({loop.loop_var: loop})), order="pre")
    conditions: dict[Variable, list[Expr]] = {}  # of the bodies of loops, by their variables
    for buffer, padding in paddings.items():
        unread = set(padding.inside)  # dimensions along which padding is not read any more
        readers = [one for one in realized if any(read.source.same_as(buffer) for read in one.block.reads)]
        for reader in readers:
            factors = _factors(reader, buffer)
            is_finite = factors is not None and all(map(use.is_finite, _parameters(factors[1], function, realized)))
            for dim, (first, behind) in padding.inside.items():
                found = _places(reader, factors[0].indices[dim], loops) if factors and is_finite else None
                if found is None:
                    unread.discard(dim)
                    continue
                loop, least, most = found
                conditions.setdefault(loop.loop_var, []).extend((most >= first, least < behind))
                if not least.same_as(most):
                    unread.discard(dim)
        for dim in unread if readers else ():
            place, (first, behind) = padding.realize.iter_values[dim], padding.inside[dim]
            loop = loops[_moved(place, loops)[-1]]
            if loop.kind in (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL) and _holds_one(loop):
                conditions.setdefault(loop.loop_var, []).extend((place >= first, place < behind))

    def conditional(loop: Loop) -> Loop:
        if loop.loop_var not in conditions:
            return loop
        body = tirx.IfThenElse(tirx.all(*conditions[loop.loop_var]), loop.body, None)
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, None, loop.annotations)

    return function.with_body(structural_map(function.body, (tirx.For, conditional))) if conditions else function


def _padding(realize: Realize) -> _Padding | None:
    """Return what a block pads with zeros, if that is wide; None for another block."""
    from tvm import ir, tirx

    store, axes = realize.block.body, [axis.var for axis in realize.block.iter_vars]
    is_choice = isinstance(store, tirx.BufferStore) and isinstance(store.value, ir.Call) and len(store.value.args) == 3
    if not is_choice or not store.value.op.same_as(ir.Op.get("prim.if_then_else")) or len(axes) != len(store.indices):
        return None
    condition, _, outside = store.value.args
    is_zero = isinstance(outside, tirx.IntImm | tirx.FloatImm) and not float(outside.value)
    if not is_zero or not all(axis.same_as(index) for axis, index in zip(axes, store.indices, strict=True)):
        return None
    bounds: dict[int, dict[bool, Expr]] = {}
    for check in _conjuncts(condition):
        known = _bound(check, axes)
        if known is None:
            return None
        dim, is_first, bound = known
        bounds.setdefault(dim, {})[is_first] = bound
    wide = {
        dim: (one[True], one[False])
        for dim, one in bounds.items()
        if len(one) == 2 and isinstance(one[True], tirx.IntImm) and int(one[True]) >= LEAST_PADDING
    }
    return _Padding(realize, wide) if wide else None


def _bound(check: Expr, axes: Sequence[Variable]) -> tuple[int, bool, Expr] | None:
    """Return the axis that `first <= axis` or `axis < behind` is about, whether it is the former, and the bound."""
    from tvm import tirx

    for kind, variable, bound, is_first in (
        (tirx.LE, "b", "a", True),
        (tirx.GE, "a", "b", True),
        (tirx.LT, "a", "b", False),
        (tirx.GT, "b", "a", False),
    ):
        if isinstance(check, kind):
            at = next((at for at, axis in enumerate(axes) if axis.same_as(getattr(check, variable))), None)
            return None if at is None else (at, is_first, getattr(check, bound))
    return None


def _conjuncts(check: Expr) -> Iterator[Expr]:
    from tvm import tirx

    if isinstance(check, tirx.And):
        yield from _conjuncts(check.a)
        yield from _conjuncts(check.b)
    else:
        yield check


def _factors(realize: Realize, buffer: Variable) -> tuple[Expr, Expr] | None:
    """Return the load of a buffer and its factor in a block that adds their product to a sum; None for other blocks."""
    from tvm import ir, tirx
    from tvm_ffi import structural_walk

    store, loads = realize.block.body, list[Expr]()
    structural_walk(store, (ir.expr.TensorLoad, loads.append))
    loads = [load for load in loads if load.source.same_as(buffer)]
    is_sum = isinstance(store, tirx.BufferStore) and isinstance(store.value, tirx.Add) and realize.block.init is None
    if not is_sum or len(loads) != 1 or not isinstance(store.value.b, tirx.Mul):
        return None
    before, product = store.value.a, store.value.b
    if not isinstance(before, ir.expr.TensorLoad) or not before.source.same_as(store.buffer):
        return None
    sides = (product.a, product.b), (product.b, product.a)
    return next(((load, other) for load, other in sides if load.same_as(loads[0])), None)


def _parameters(value: Expr, function: Function, realized: Sequence[Realize]) -> set[int]:
    """Return the positions of the parameters with floats that a value is computed from, also by other blocks."""
    from tvm import ir
    from tvm_ffi import structural_walk

    buffers = {param: at for at, param in enumerate(function.params)}
    found, seen, waiting = set[int](), set[Variable](), [value]
    while waiting:
        loads: list[Expr] = []
        structural_walk(waiting.pop(), (ir.expr.TensorLoad, loads.append))
        for source in {load.source for load in loads} - seen:
            seen.add(source)
            if source in buffers and "float" in str(source.ty.dtype):
                found.add(buffers[source])
            waiting += [
                one.block for one in realized if any(write.source.same_as(source) for write in one.block.writes)
            ]
    return found


def _places(realize: Realize, index: Expr, loops: Mapping[Variable, Loop]) -> tuple[Loop, Expr, Expr] | None:
    """Return the loop over weights that an index moves along, and the least and most of it in one step of the loop.

    Returns:
        The loop, and the bounds, which are one object if they are equal; None if there is no such loop, or it holds
        more than the block.
    """
    from tvm import sym, tirx
    from tvm_ffi import structural_map

    axes = [*zip(realize.block.iter_vars, realize.iter_values, strict=True)]
    values = {axis.var: value for axis, value in axes}
    place = structural_map(index, (tirx.Var, lambda one: values.get(one, one)))
    reduced = {
        variable
        for axis, value in axes
        if axis.iter_type == tirx.IterVar.CommReduce
        for variable in _moved(value, loops)
    }
    moved = _moved(place, loops)
    along = [variable for variable in moved if variable in reduced]
    if len(along) != 1 or loops[along[0]].kind != tirx.ForKind.SERIAL:
        return None
    loop = loops[along[0]]
    inner = [loops[variable] for variable in moved[moved.index(along[0]) + 1 :]]
    if not _holds_one(loop) or not all(isinstance(one.extent, tirx.IntImm) for one in inner):
        return None

    def at(values: Mapping[Variable, Expr]) -> Expr:
        return structural_map(place, (tirx.Var, lambda one: values.get(one, one)))

    def is_at_least(difference: Expr, least: int) -> bool:
        found = sym.Analyzer().simplify(difference)
        return isinstance(found, tirx.IntImm) and int(found) >= least

    if not is_at_least(at({loop.loop_var: loop.loop_var + 1}) - place, LEAST_STEP):
        return None
    if not inner:
        return loop, place, place
    least = at({one.loop_var: one.min for one in inner})
    most = at({one.loop_var: one.min + one.extent - 1 for one in inner})
    return (loop, least, most) if is_at_least(most - least, 0) else None


def _moved(place: Expr, loops: Mapping[Variable, Loop]) -> list[Variable]:
    """Return the variables of loops in an expression, that of the innermost one last."""
    from tvm import tirx

    found = set(tirx.analysis.undefined_vars(tirx.Evaluate(place), []))
    return [variable for variable in loops if variable in found]


def _holds_one(loop: Loop) -> bool:
    """Return whether a loop holds a single block."""
    from tvm.s_tir import SBlockRealize
    from tvm_ffi import structural_walk

    held: list[Realize] = []
    structural_walk(loop.body, (SBlockRealize, held.append))
    return len(held) == 1
