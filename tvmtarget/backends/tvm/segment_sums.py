"""Sums and means of the rows between two bounds that are computed when a program runs, as one tensor function.

PyTorch writes an EmbeddingBag as a Slice of indices, a Gather of rows and a reduction for each bag. Their sizes, which
only a run knows, would each be read, checked and allocated by TVM's virtual machine. TVM is imported late and ships no
types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from onnx import NodeProto, TensorProto

from tvmtarget.backends.expansion_builder import ExpansionBuilder, attributes_of, operands_of, stated_axes
from tvmtarget.backends.tvm.index_checks import Bound
from tvmtarget.backends.tvm.tir_builder import OPAQUE, TirBuilder

__all__ = ["SEGMENT_EXPANSIONS", "SEGMENT_SUM", "segment_sum"]

Builder: TypeAlias = Any
Buffer: TypeAlias = Any
Expr: TypeAlias = Any
Stmt: TypeAlias = Any

SEGMENT_SUM = "SegmentSum"  # an operator of this package, of the rows, their indices or "", the start and the end

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)


def _segment(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write the sum or mean of a slice of rows, or of the rows that a slice of indices chooses, as one operator."""
    reduced, attributes = node.input[0], attributes_of(node)
    gather = builder.maker(reduced)
    sliced, rows = reduced, ""
    if gather is not None and gather.op_type == "Gather" and attributes_of(gather).get("axis", 0) == 0:
        rows, sliced = gather.input
    bounds = _bounds(builder, sliced)
    is_fit = (
        bounds is not None
        and reduced in builder.types
        and builder.types[reduced].elem_type in _FLOATS
        and builder.is_read_once(reduced)
        and builder.is_read_once(sliced)
        and (not rows or builder.rank(sliced) == 1)
        and stated_axes(node, builder.array) == [0]
    )
    if bounds is None or not is_fit:
        builder.nodes.append(node)
        return
    data, *ends = bounds
    # What nothing reads any more would be computed.
    unread = {reduced, sliced}
    for at, name in enumerate(ends):
        maker = builder.maker(name)
        if maker is not None and maker.op_type == "Unsqueeze" and builder.is_read_once(name):
            unread.add(name)
            ends[at] = maker.input[0]
    builder.nodes[:] = [one for one in builder.nodes if unread.isdisjoint(one.output)]
    given = [rows, data, *ends] if rows else [data, "", *ends]
    keeps, is_mean = attributes.get("keepdims", 1), node.op_type == "ReduceMean"
    builder.add(SEGMENT_SUM, given, node.output[0], keepdims=keeps, is_mean=int(is_mean))


def _bounds(builder: ExpansionBuilder, name: str) -> tuple[str, str, str] | None:
    """Return what a Slice of rows reads, and its bounds if these are computed; None for anything else."""
    node = builder.maker(name)
    if node is None or node.op_type != "Slice" or len(node.input) < 3:
        return None
    data, start, end, axes, steps = operands_of(node, 5)
    is_along_rows = not axes or _is_constant(builder, axes, 0)
    is_computed = builder.array(start) is None or builder.array(end) is None
    if not is_along_rows or not is_computed or (steps and not _is_constant(builder, steps, 1)):
        return None
    return (data, start, end) if builder.sizes(start) == [1] else None


def _is_constant(builder: ExpansionBuilder, name: str, value: int) -> bool:
    array = builder.array(name)
    return array is not None and array.ravel().tolist() == [value]


SEGMENT_EXPANSIONS = {"ReduceMean": _segment, "ReduceSum": _segment}


def segment_sum(builder: Builder, operands: Sequence[Expr | None], *, keepdims: bool, is_mean: bool) -> Expr:
    """Return the sum or mean of some rows of a tensor.

    Args:
        builder: TVM's builder of Relax functions.
        operands: rows (rows, ...) of floats; indices (count,) of integers that choose rows, or None; the bounds of the
            rows or indices that are summed, as those of a Slice, one integer each.
        keepdims: whether the result has a first dimension of 1.
        is_mean: whether the sum is divided by the number of rows; the mean of none is 0.

    Returns:
        The result.
    """
    from tvm import te, tirx

    rows = operands[0]

    def compute(*given: Any) -> Any:  # noqa: ANN401
        sizes = [*[tirx.IntImm("int64", 1)] * keepdims, *given[0].shape[1:]]

        def code(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
            return _Code(ins, outs[0], is_mean=is_mean).function()

        return te.extern([sizes], list(given), code, name="segment_sum", dtype=[str(given[0].dtype)])

    return builder.call_te(
        compute,
        rows,
        *(one for one in operands[1:] if one is not None),
        primfunc_name_hint="segment_sum",
        primfunc_attrs={"op_pattern": OPAQUE},
    )


class _Code(TirBuilder):
    """Statements of a sum.

    Args:
        operands: buffers of the rows, of the indices if there are any, and of the bounds.
        result: the buffer of the result.
        is_mean: whether the sum is divided.
    """

    def __init__(self, operands: Sequence[Buffer], result: Buffer, *, is_mean: bool) -> None:
        super().__init__()
        self.rows, *self.indices, self.start, self.end = operands
        self.result, self.is_mean = result, is_mean
        self.zero, self.one = self.number(0), self.number(1)
        self.declared, self.state = self.local(3, "int64", "state")
        self.first, self.count, self.wrong = map(self.number, range(3))

    def function(self) -> Stmt:
        """Return the whole function."""
        size = (*self.indices, self.rows)[0].shape[0]
        last = self.bound(self.end, size)
        count = self.tirx.max(last - self.state[self.first], self.zero)
        dtype = str(self.result.dtype)
        body = [
            self.declared,
            self.store(self.state, self.bound(self.start, size), self.first),
            self.store(self.state, count, self.count),
            *self.checks(),
            self.over(lambda *_: self.tirx.const(0, dtype)),
            self.loop(self.state[self.count], self.added),
        ]
        if self.is_mean:
            divisor = self.tirx.max(self.state[self.count], self.one).astype(dtype)
            body.append(self.over(lambda at, _: self.result[tuple(at)] / divisor))
        return self.sequence(body)

    def bound(self, bound: Buffer, size: Expr) -> Expr:
        """Return a bound, counted from the start and within the rows."""
        value = bound[(self.zero,) * len(bound.shape)].astype("int64")
        return self.tirx.max(self.tirx.min(self.tirx.Select(value < self.zero, value + size, value), size), self.zero)

    def checks(self) -> list[Stmt]:
        """Return what fails if an index is out of bounds."""
        if not self.indices:
            return []
        known = Bound.of(self.rows.shape[0], is_negative=True)

        def noted(at: Expr) -> Stmt:
            wrong = known.excludes(self.index(at)).astype("int64")
            return self.store(self.state, self.state[self.wrong] | wrong, self.wrong)

        return [
            self.store(self.state, self.zero, self.wrong),
            self.loop(self.state[self.count], noted),
            self.require(self.state[self.wrong] == self.zero, "IndexError", known.message("Gather")),
        ]

    def index(self, at: Expr) -> Expr:
        """Return an index between the bounds."""
        return self.indices[0][self.state[self.first] + at].astype("int64")

    def added(self, at: Expr) -> Stmt:
        """Return what adds a row."""
        row = self.state[self.first] + at
        if self.indices:
            index = self.index(at)
            row = self.tirx.Select(index < self.zero, index + self.rows.shape[0], index)
        return self.over(lambda place, own: self.result[tuple(place)] + self.rows[(row, *own)])

    def over(self, value: Callable[[Sequence[Expr], Sequence[Expr]], Expr]) -> Stmt:
        """Return loops that assign to all elements of the result, by their places in it and in a row."""
        sizes = list(self.rows.shape)[1:]
        outer = [self.zero] * (len(self.result.shape) - len(sizes))

        def rows(*at: Expr) -> Stmt:
            if len(at) < len(sizes):
                return self.loop(sizes[len(at)], lambda index: rows(*at, index))
            place = [*outer, *at]
            return self.store(self.result, value(place, at), *place)

        return rows()
