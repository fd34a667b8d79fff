"""Checks of data: a program fails where TVM's code would access memory outside of a tensor, or divide by 0.

TVM's operators trust their operands. In front of such an operator stands a tensor function here that hands its indices
or divisors on, and fails if one is out of bounds or 0. TVM is imported late and ships no types: its objects are Any,
under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.backends.protocol import Array
from tvmtarget.backends.tvm.call_sites import Producer, constant_of, rewrite_calls
from tvmtarget.backends.tvm.tir_builder import OPAQUE, TirBuilder
from tvmtarget.errors import BackendError

__all__ = ["check_divisors", "check_indices", "check_lengths"]

Module: TypeAlias = Any
Builder: TypeAlias = Any
Attributes: TypeAlias = Any
Buffer: TypeAlias = Any
Expr: TypeAlias = Any
Size: TypeAlias = Any
Stmt: TypeAlias = Any


@dataclass(frozen=True)
class _Bound:
    """The least and the largest number that an index may be, among some elements."""

    elements: Size
    least: Size
    most: Size

    @classmethod
    def of(cls, elements: Size, *, is_negative: bool = False) -> _Bound:
        """Return the bound of places, counted from the start, or also from the end."""
        return cls(elements, -elements if is_negative else 0, elements - 1)

    def excludes(self, index: Expr) -> Expr:
        """Return whether an index is out of bounds."""
        from tvm import tirx

        return tirx.any(index < self.least, index > self.most)

    def message(self, name: str) -> str:
        """Return what an operator of a name fails with."""
        from tvm import tirx

        size = f" for {int(self.elements)} elements" if isinstance(self.elements, tirx.IntImm) else ""
        return f"an index of {name} is out of bounds{size}"


class _NotZero(_Bound):
    """What a divisor may be."""

    def excludes(self, index: Expr) -> Expr:
        return index == self.least

    def message(self, name: str) -> str:
        return f"a divisor of {name} is 0"


# One bound for all indices, or one for each element of their last axis; None for what is no index.
_Bounds: TypeAlias = "list[_Bound | None]"


def check_indices(module: Module) -> Module:
    """Check the indices of operators that access single elements of a tensor.

    Args:
        module: a TVM module of Relax functions, before their operators are lowered.

    Returns:
        A changed copy, whose code fails with an IndexError if an index is out of bounds.

    Raises:
        BackendError: a constant index is out of bounds.
    """
    from tvm import ir, relax

    def rewrite(call: Expr, builder: Builder, producer: Producer) -> Expr:
        name = getattr(call.op, "name", "").removeprefix("relax.")
        if name not in _BOUNDS:
            return call

        def checked(indices: Expr, field: int = 0) -> Expr:
            data, known = (_with_sizes(builder, one) for one in (call.args[0], indices))
            if data is None or known is None:
                return indices

            def bounds_of(shape: Sequence[Size]) -> _Bounds:
                return _BOUNDS[name](call.attrs, list(shape), list(known.ty.shape.values), field)

            return _checked(builder, name, known, _written(known, producer), data, bounds_of)

        data, indices, *rest = call.args
        if isinstance(indices, ir.Tuple):
            indices = ir.Tuple([checked(one, field) for field, one in enumerate(indices.fields)])
        else:
            indices = checked(indices)
        return relax.Call(call.op, [data, indices, *rest], call.attrs, call.ty_args)

    return rewrite_calls(module, rewrite)


def _with_sizes(builder: Builder, value: Expr) -> Expr | None:
    """Return a tensor whose sizes have names; None for what is no tensor, or of unknown rank."""
    from tvm import ir, relax

    if not isinstance(value.ty, relax.TensorType) or value.ty.ndim < 0:
        return None
    if isinstance(value.ty.shape, relax.ShapeExpr):
        return value
    sizes = [ir.Var(f"size_{axis}", ir.PrimType("int64")) for axis in range(value.ty.ndim)]
    return builder.match_cast(value, relax.TensorType(sizes, value.ty.dtype))


def _written(indices: Expr, producer: Producer) -> Expr:
    """Return what yields indices, before negative ones were counted from the end."""
    found = producer(indices)
    is_counted = getattr(getattr(found, "op", None), "name", "") == "relax.where"
    return producer(found.args[2]) if is_counted else found


def check_lengths(builder: Builder, operator: str, lengths: Expr, data: Expr) -> Expr:
    """Check the lengths of sequences.

    Args:
        builder: TVM's builder of Relax functions.
        operator: name of the operator that takes them, for the message.
        lengths: the lengths, (rows,) of integers.
        data: the sequences, (steps, rows, columns).

    Returns:
        The lengths, in a program that fails if one is negative or above the number of steps.
    """
    return _checked(builder, operator, lengths, lengths, data, lambda shape: [_Bound(shape[0], 0, shape[0])])


def check_divisors(builder: Builder, operator: str, divisors: Expr) -> Expr:
    """Check that divisors are not 0.

    Args:
        builder: TVM's builder of Relax functions.
        operator: name of the operator that divides by them, for the message.
        divisors: a tensor of integers.

    Returns:
        The divisors, in a program that fails if one is 0.
    """
    from tvm import tirx

    zero = tirx.IntImm("int64", 0)
    return _checked(builder, operator, divisors, divisors, divisors, lambda _: [_NotZero(zero, zero, zero)])


def _checked(
    builder: Builder,
    name: str,
    indices: Expr,
    written: Expr,
    data: Expr,
    bounds_of: Callable[[Sequence[Size]], _Bounds],
) -> Expr:
    """Return indices that are checked when the program runs, or constant ones that are in bounds."""
    from tvm import te, tirx

    bounds = bounds_of(data.ty.shape.values)
    if not any(bounds):
        return indices
    is_static = all(one is None or isinstance(one.elements, tirx.IntImm) for one in bounds)
    array = constant_of(written) if is_static else None
    if array is not None:
        _require_within(array, bounds, name)
        return indices

    def compute(places: Any, *tensors: Any) -> Any:  # noqa: ANN401
        known = bounds_of(tensors[0].shape) if tensors else bounds  # symbols are those of the operands in TE

        def code(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
            return _Code(known, name).function(ins[0], outs[0])

        types = [str(places.dtype)]
        return te.extern([places.shape], [places, *tensors], code, name="checked_indices", dtype=types)

    operands = [indices] if is_static else [indices, data]
    attributes = {"op_pattern": OPAQUE}
    call = builder.call_te(compute, *operands, primfunc_name_hint="checked_indices", primfunc_attrs=attributes)
    return builder.emit(call)


def _require_within(indices: Array, bounds: _Bounds, name: str) -> None:
    """Raise an error for a constant that is out of bounds; negative indices count from the end."""
    columns = [indices] if len(bounds) == 1 else np.moveaxis(indices, -1, 0)
    for column, bound in zip(columns, bounds, strict=True):
        if bound is not None and ((column < -int(bound.elements)) | (column > int(bound.most))).any():
            raise BackendError(bound.message(name))


class _Code(TirBuilder):
    """Statements of a check.

    Args:
        bounds: what the indices may be.
        name: name of the operator.
    """

    def __init__(self, bounds: _Bounds, name: str) -> None:
        super().__init__()
        self.bounds, self.name = bounds, name
        self.declared, self.wrong = self.local(len(bounds), "int32", "wrong")

    def function(self, source: Buffer, result: Buffer) -> Stmt:
        """Return the whole function.

        Args:
            source: the indices.
            result: where they are copied to.
        """
        shape = list(source.shape) if len(self.bounds) == 1 else list(source.shape)[:-1]

        def rows(*at: Expr) -> Stmt | list[Stmt]:
            if len(at) < len(shape):
                return self.loop(shape[len(at)], lambda index: rows(*at, index))
            if len(self.bounds) == 1:
                return self.element(source, result, 0, at)
            return [
                one
                for column in range(len(self.bounds))
                for one in self.element(source, result, column, (*at, self.number(column)))
            ]

        columns = [self.number(column) for column in range(len(self.bounds))]
        begin = [self.store(self.wrong, self.number(0, "int32"), column) for column in columns]
        pairs = zip(columns, self.bounds, strict=True)
        ends = [self.end(column, bound) for column, bound in pairs if bound is not None]
        return self.sequence([self.declared, *begin, self.sequence(rows()), *ends])

    def element(self, source: Buffer, result: Buffer, column: int, at: Sequence[Expr]) -> list[Stmt]:
        """Return what copies an index, and notes whether it is out of bounds."""
        copied, bound = self.store(result, source[tuple(at)], *at), self.bounds[column]
        if bound is None:
            return [copied]
        index, place = source[tuple(at)].astype("int64"), self.number(column)
        is_wrong = bound.excludes(index).astype("int32")
        return [copied, self.store(self.wrong, self.wrong[place] | is_wrong, place)]

    def end(self, column: Expr, bound: _Bound) -> Stmt:
        """Return what fails if an index of a column was out of bounds."""
        is_right = self.wrong[column] == self.number(0, "int32")
        text = self.tvm.ir.StringImm
        parts = {"error_kind": text("IndexError"), "message_parts": [text(bound.message(self.name))]}
        return self.tvm.ir.make_node("tirx.AssertStmt", condition=is_right, **parts, span=None)


# TVM counts negative indices of scatter_elements from the end itself; importers do so for the other operators.


def _gathered(attributes: Attributes, shape: list[Size], _places: list[Size], _field: int) -> _Bounds:
    return [_Bound.of(shape[int(attributes.axis)])]


def _scattered(attributes: Attributes, shape: list[Size], _places: list[Size], _field: int) -> _Bounds:
    return [_Bound.of(shape[int(attributes.axis)], is_negative=True)]


def _taken(attributes: Attributes, shape: list[Size], _places: list[Size], _field: int) -> _Bounds:
    if attributes.mode != "fast":  # the others change indices that are out of bounds
        return [None]
    count = reduce(lambda a, b: a * b, shape) if attributes.axis is None else shape[int(attributes.axis)]
    return [_Bound.of(count)]


def _coordinates(attributes: Attributes, shape: list[Size], places: list[Size], _field: int) -> _Bounds:
    from tvm import tirx

    if not isinstance(places[-1], tirx.IntImm):  # TVM does not lower it
        return []
    first = int(getattr(attributes, "batch_dims", 0))
    return [_Bound.of(size) for size in shape[first : first + int(places[-1])]]


def _along_field(_attributes: Attributes, shape: list[Size], _places: list[Size], field: int) -> _Bounds:
    return [_Bound.of(shape[field])]


def _images(_attributes: Attributes, shape: list[Size], places: list[Size], _field: int) -> _Bounds:
    return [_Bound.of(shape[0]), *[None] * (int(places[-1]) - 1)]  # behind the number of an image are coordinates


def _lengths(attributes: Attributes, shape: list[Size], _places: list[Size], _field: int) -> _Bounds:
    size = shape[int(attributes.seq_axis)]
    return [_Bound(size, 0, size)]


_BOUNDS: Mapping[str, Callable[[Attributes, list[Size], list[Size], int], _Bounds]] = {
    "take": _taken,
    "gather_elements": _gathered,
    "scatter_elements": _scattered,
    "gather_nd": _coordinates,
    "scatter_nd": _coordinates,
    "index_tensor": _along_field,
    "index_put": _along_field,
    "reverse_sequence": _lengths,
    "vision.roi_align": _images,
    "vision.roi_pool": _images,
}
