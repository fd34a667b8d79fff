"""Checks of data: a program fails where TVM's code would access memory outside of a tensor, or divide by 0.

TVM's operators trust their operands. In front of such an operator stands a tensor function here that hands its indices
or divisors on, and fails if one is out of bounds or 0. TVM is imported late and ships no types: its objects are Any,
under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.backends.protocol import Array
from tvmtarget.backends.tvm.call_sites import Producer, constant_of, is_constant, operator_of, rewrite_calls
from tvmtarget.backends.tvm.tir_builder import OPAQUE, TirBuilder
from tvmtarget.errors import BackendError

__all__ = ["Bound", "check_divisors", "check_indices", "check_lengths"]

Module: TypeAlias = Any
Builder: TypeAlias = Any
Attributes: TypeAlias = Any
Buffer: TypeAlias = Any
Expr: TypeAlias = Any
Size: TypeAlias = Any
Stmt: TypeAlias = Any


@dataclass(frozen=True)
class Bound:
    """The least and the largest number that an index may be, among some elements."""

    elements: Size
    least: Size
    most: Size

    @classmethod
    def of(cls, elements: Size, *, is_negative: bool = False) -> Bound:
        """Return the bound of places, counted from the start, or also from the end.

        Args:
            elements: the number of elements.
            is_negative: whether negative indices count from the end.

        Returns:
            The bound.
        """
        return cls(elements, -elements if is_negative else 0, elements - 1)

    def excludes(self, index: Expr) -> Expr:
        """Return whether an index is out of bounds.

        Args:
            index: the index.

        Returns:
            A condition.
        """
        from tvm import tirx

        return tirx.any(index < self.least, index > self.most)

    def message(self, name: str) -> str:
        """Return what an operator fails with.

        Args:
            name: name of the operator.

        Returns:
            The text of the error.
        """
        from tvm import tirx

        size = f" for {int(self.elements)} elements" if isinstance(self.elements, tirx.IntImm) else ""
        return f"an index of {name} is out of bounds{size}"


class _NotZero(Bound):
    """What a divisor may be."""

    def excludes(self, index: Expr) -> Expr:
        return index == self.least

    def message(self, name: str) -> str:
        return f"a divisor of {name} is 0"


_MOST_TAKEN = 1024  # elements of a row that is copied by the function that checks its index

# One bound for all indices, or one for each element of their last axis; None for what is no index.
_Bounds: TypeAlias = "list[Bound | None]"


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

            written, extent = _before_counting(known, producer)
            return _checked(builder, name, known, data, bounds_of, written=written, extent=extent)

        data, indices, *rest = call.args
        if name == "take" and _takes_one_row(call) and not is_constant(_before_counting(indices, producer)[0]):
            return _checked_row(builder, call, *_before_counting(indices, producer))
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


def _before_counting(indices: Expr, producer: Producer) -> tuple[Expr, int | None]:
    """Return indices before negative ones were counted from the end, and the number that was added, if it is known.

    TVM's importer writes `where(x < 0, x + size, x)`.
    """
    chosen = producer(indices)
    if operator_of(chosen) != "relax.where":
        return indices, None
    compared, added = map(producer, chosen.args[:2])
    written = chosen.args[2]
    is_counted = (
        operator_of(compared) == "relax.less"
        and operator_of(added) == "relax.add"
        and written.same_as(compared.args[0])
        and written.same_as(added.args[0])
    )
    if not is_counted:
        return indices, None
    zero = constant_of(compared.args[1])
    if zero is None or zero.any():
        return indices, None
    return written, _known_size(added.args[1], producer)


def _sizes_of(value: Expr) -> Sequence[Size] | None:
    """Return the dimensions of a tensor; None if they are not known."""
    return getattr(getattr(value.ty, "shape", None), "values", None)


def _takes_one_row(call: Expr) -> bool:
    """Return whether a `take` copies few elements at one index: then a check of its own would be half of the work."""
    from tvm import tirx

    shapes = [_sizes_of(one) for one in call.args]
    if call.attrs.axis is None or call.attrs.mode != "fast":
        return False
    if not all(shape is not None and all(isinstance(size, tirx.IntImm) for size in shape) for shape in shapes):
        return False
    data, indices = ([int(size) for size in shape or ()] for shape in shapes)
    return prod(indices) == 1 and prod(data) <= _MOST_TAKEN * data[int(call.attrs.axis)]


def _checked_row(builder: Builder, call: Expr, written: Expr, extent: int | None) -> Expr:
    """Return what a `take` copies at one index, by a function that checks the index.

    Args:
        builder: TVM's builder of Relax functions.
        call: the call.
        written: the index, before it was counted from the end if it was.
        extent: the number that was added to it then, if it is known.
    """
    from tvm import te

    data, index = call.args
    axis = int(call.attrs.axis) % data.ty.ndim
    size = data.ty.shape.values[axis]
    counts = extent == int(size)

    def compute(data: Any, index: Any) -> Any:  # noqa: ANN401
        def code(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
            return _row(ins[0], ins[1], outs[0], axis, Bound.of(size, is_negative=counts))

        shape = [*data.shape[:axis], *index.shape, *data.shape[axis + 1 :]]
        return te.extern([shape], [data, index], code, name="checked_row", dtype=[str(data.dtype)])

    attributes = {"op_pattern": OPAQUE}
    operands = [data, written if counts else index]
    return builder.emit(
        builder.call_te(compute, *operands, primfunc_name_hint="checked_row", primfunc_attrs=attributes)
    )


def _row(data: Buffer, index: Buffer, result: Buffer, axis: int, bound: Bound) -> Stmt:
    code = TirBuilder()
    zero = code.number(0)
    written = index[(zero,) * len(index.shape)].astype("int64")
    place = code.tirx.Select(written < zero, written + bound.elements, written)
    sizes = [*data.shape[:axis], *data.shape[axis + 1 :]]

    def copied(*at: Expr) -> Stmt:
        if len(at) < len(sizes):
            return code.loop(sizes[len(at)], lambda one: copied(*at, one))
        before, after = at[:axis], at[axis:]
        there = (*before, *[zero] * len(index.shape), *after)
        return code.store(result, data[(*before, place, *after)], *there)

    return code.sequence(
        [code.require(code.tirx.Not(bound.excludes(written)), "IndexError", bound.message("take")), copied()]
    )


def _known_size(value: Expr, producer: Producer) -> int | None:
    """Return the number that a scalar is: a dimension of a tensor, as TVM's importer computes it; None if unknown."""
    from tvm import tirx

    found = producer(value)
    if operator_of(found) == "relax.astype":
        found = producer(found.args[0])
    if operator_of(found) != "relax.take":
        return None
    axis, sizes = constant_of(found.args[1]), producer(found.args[0])
    if axis is None or axis.size != 1 or operator_of(sizes) != "relax.shape_to_tensor":
        return None
    shape = producer(sizes.args[0])
    known = _sizes_of(shape.args[0]) if operator_of(shape) == "relax.shape_of" else None
    size = None if known is None else known[int(axis.item())]
    return int(size) if isinstance(size, tirx.IntImm) else None


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
    return _checked(builder, operator, lengths, data, lambda shape: [Bound(shape[0], 0, shape[0])])


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
    return _checked(builder, operator, divisors, divisors, lambda _: [_NotZero(zero, zero, zero)])


def _checked(
    builder: Builder,
    name: str,
    indices: Expr,
    data: Expr,
    bounds_of: Callable[[Sequence[Size]], _Bounds],
    *,
    written: Expr | None = None,
    extent: int | None = None,
) -> Expr:
    """Return indices that are checked when the program runs, or constant ones that are in bounds.

    Args:
        builder: TVM's builder of Relax functions.
        name: name of the operator.
        indices: the indices.
        data: what they are indices of.
        bounds_of: returns what they may be, from the shape of the data.
        written: the indices before negative ones were counted from the end; these themselves by default.
        extent: the number that was added to these, if it is known.
    """
    from tvm import te, tirx

    written = indices if written is None else written
    bounds = bounds_of(data.ty.shape.values)
    if not any(bounds):
        return indices
    is_static = all(one is None or isinstance(one.elements, tirx.IntImm) for one in bounds)
    array = constant_of(written) if is_static else None
    if array is not None:
        _require_within(array, bounds, name)
        return indices
    # The check counts them itself: one function instead of two.
    first = bounds[0]
    counts = len(bounds) == 1 and first is not None and is_static and extent == int(first.elements)
    if first is not None and counts:
        indices, bounds = written, [Bound.of(first.elements, is_negative=True)]

    def compute(places: Any, *tensors: Any) -> Any:  # noqa: ANN401
        known = bounds_of(tensors[0].shape) if tensors else bounds  # symbols are those of the operands in TE

        def code(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
            return _Code(known, name, counts=counts).function(ins[0], outs[0])

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
        counts: whether negative indices are counted from the end.
    """

    def __init__(self, bounds: _Bounds, name: str, *, counts: bool) -> None:
        super().__init__()
        self.bounds, self.name, self.counts = bounds, name, counts
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
        """Return what copies or counts an index, and notes whether it is out of bounds."""
        written, bound = source[tuple(at)], self.bounds[column]
        if bound is None:
            return [self.store(result, written, *at)]
        index, place, dtype = written.astype("int64"), self.number(column), str(source.dtype)
        is_wrong = bound.excludes(index).astype("int32")
        counted = self.tirx.Select(index < 0, index + bound.elements, index).astype(dtype) if self.counts else written
        return [self.store(result, counted, *at), self.store(self.wrong, self.wrong[place] | is_wrong, place)]

    def end(self, column: Expr, bound: Bound) -> Stmt:
        """Return what fails if an index of a column was out of bounds."""
        return self.require(self.wrong[column] == self.number(0, "int32"), "IndexError", bound.message(self.name))


# TVM counts negative indices of scatter_elements from the end itself; importers do so for the other operators.


def _gathered(attributes: Attributes, shape: list[Size], _places: list[Size], _field: int) -> _Bounds:
    return [Bound.of(shape[int(attributes.axis)])]


def _scattered(attributes: Attributes, shape: list[Size], _places: list[Size], _field: int) -> _Bounds:
    return [Bound.of(shape[int(attributes.axis)], is_negative=True)]


def _taken(attributes: Attributes, shape: list[Size], _places: list[Size], _field: int) -> _Bounds:
    if attributes.mode != "fast":  # the others change indices that are out of bounds
        return [None]
    count = reduce(lambda a, b: a * b, shape) if attributes.axis is None else shape[int(attributes.axis)]
    return [Bound.of(count)]


def _coordinates(attributes: Attributes, shape: list[Size], places: list[Size], _field: int) -> _Bounds:
    from tvm import tirx

    if not isinstance(places[-1], tirx.IntImm):  # TVM does not lower it
        return []
    first = int(getattr(attributes, "batch_dims", 0))
    return [Bound.of(size) for size in shape[first : first + int(places[-1])]]


def _along_field(_attributes: Attributes, shape: list[Size], _places: list[Size], field: int) -> _Bounds:
    return [Bound.of(shape[field])]


def _images(_attributes: Attributes, shape: list[Size], places: list[Size], _field: int) -> _Bounds:
    return [Bound.of(shape[0]), *[None] * (int(places[-1]) - 1)]  # behind the number of an image are coordinates


def _lengths(attributes: Attributes, shape: list[Size], _places: list[Size], _field: int) -> _Bounds:
    size = shape[int(attributes.seq_axis)]
    return [Bound(size, 0, size)]


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
