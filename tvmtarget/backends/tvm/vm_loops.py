"""Functions that loops of a driver call in TVM's virtual machine: count, compare, slice and stack.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tvmtarget.backends.tvm.compiled_module import import_tvm

__all__ = ["LoopFunction", "loop_module"]

Expr: TypeAlias = Any
Tensor: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class LoopFunction:
    """A function of a kind for tensors of an element type and rank.

    Numbers are int64 scalars. Stacked slices are in a buffer, whose first dimension is its capacity.

    Attributes:
        kind: `increment` a number; `less`, whether a number is less than another; `length` of the cut axes, which must
            be equal; `slice` number n of a value; `begin` a buffer with its first slice; `is_full`, whether n slices
            fill a buffer; `grow` a buffer to twice its capacity; `write` slice n; `join` the first n slices, n given as
            a shape; `not_empty`, which fails for a value without elements.
        dtype: element type of the value, or of the stacked result.
        rank: its rank.
        axis: its axis that is cut or joined.
        is_reversed: whether slices are numbered from its end.
        cuts: for `length`, these four facts for each value.
    """

    kind: Literal["increment", "less", "length", "slice", "begin", "is_full", "grow", "write", "join", "not_empty"]
    dtype: str = ""
    rank: int = 0
    axis: int = 0
    is_reversed: bool = False
    cuts: tuple[tuple[str, int, int, bool], ...] = ()

    @property
    def name(self) -> str:
        """Name in the executable; equal functions have equal names."""
        facts = [f"{dtype}_{rank}_{axis}" for dtype, rank, axis, _ in self.cuts]
        if self.dtype:
            facts += [self.dtype, str(self.rank)]
        if self.kind in ("slice", "join"):
            facts += [str(self.axis), "reversed" if self.is_reversed else "forward"]
        return "_".join(["loop", self.kind, *facts])


def loop_module(functions: Iterable[LoopFunction]) -> Any:  # noqa: ANN401
    """Return functions of loops.

    Args:
        functions: the functions.

    Returns:
        A module of TVM, not lowered.
    """
    builder = import_tvm().relax.BlockBuilder()
    for function in functions:
        _Writer(builder, function).write()
    return builder.get()


class _Writer:
    def __init__(self, builder: Any, function: LoopFunction) -> None:  # noqa: ANN401
        self._tvm = import_tvm()
        self._builder = builder
        self._function = function
        self._rank = function.rank
        self._number = self._param("n", (), "int64")
        self._dims = self._symbols("d", function.rank - 1 if function.kind != "slice" else function.rank)
        self._buffer = self._param("buffer", [self._symbols("c", 1)[0], *self._dims])

    def write(self) -> None:
        """Add the function to the module."""
        relax, number = self._tvm.relax, self._number
        kind = self._function.kind
        if kind == "increment":
            self._relax([number], lambda: relax.op.add(number, relax.const(1, "int64")))
        elif kind == "less":
            other = self._param("m", (), "int64")
            self._relax([number, other], lambda: relax.op.less(number, other))
        elif kind == "length":
            self._write_length()
        elif kind == "slice":
            value = self._param("value", self._dims)
            self._relax([value, number], lambda: self._builder.call_te(self._slice, value, number))
        elif kind == "begin":
            value = self._param("value", self._dims)
            self._relax([value], lambda: self._builder.call_te(self._begin, value))
        elif kind == "is_full":
            capacity = relax.ShapeExpr([self._buffer.ty.shape[0]])
            self._relax(
                [self._buffer, number],
                lambda: relax.op.less_equal(self._builder.emit(relax.op.shape_to_tensor(capacity)), number),
            )
        elif kind == "grow":
            self._relax([self._buffer], lambda: relax.op.concat([self._buffer, self._buffer], 0))
        elif kind == "join":
            count = self._symbols("n", 1)[0]
            shape = relax.Var("count", relax.ShapeType([count]))
            self._relax(
                [self._buffer, shape],
                lambda: self._builder.call_te(lambda buffer: self._join(buffer, count), self._buffer),
            )
        elif kind == "write":
            self._tensor_function(self._write_code())
        else:
            self._tensor_function(self._not_empty_code())

    def _relax(self, params: list[Expr], body: Callable[[], Expr]) -> None:
        with self._builder.function(self._function.name, params):
            with self._builder.dataflow():
                result = self._builder.emit_output(body())
            self._builder.emit_func_output(result)

    def _tensor_function(self, function: Any) -> None:  # noqa: ANN401
        name = self._function.name
        self._builder.add_func(function.with_attr("global_symbol", name), name)

    def _write_length(self) -> None:
        relax = self._tvm.relax
        length = self._symbols("length", 1)[0]
        values = []
        for number, (dtype, rank, axis, _) in enumerate(self._function.cuts):
            dims = self._symbols(f"v{number}_", rank)
            dims[axis] = length
            values.append(relax.Var(f"value{number}", relax.TensorType(dims, dtype)))
        self._relax(values, lambda: relax.op.shape_to_tensor(relax.ShapeExpr([length])))

    def _slice(self, value: Tensor, number: Tensor) -> Tensor:
        axis, length = self._function.axis, value.shape[self._function.axis]

        def at(*index: Expr) -> Expr:
            place = length - 1 - number() if self._function.is_reversed else number()
            return value(*index[:axis], place, *index[axis:])

        shape = [size for one, size in enumerate(value.shape) if one != axis]
        return self._tvm.te.compute(shape, at, name="slice")

    def _begin(self, value: Tensor) -> Tensor:
        return self._tvm.te.compute([1, *value.shape], lambda _, *index: value(*index), name="begin")

    def _join(self, buffer: Tensor, count: Expr) -> Tensor:
        axis = self._function.axis

        def at(*index: Expr) -> Expr:
            place = count - 1 - index[axis] if self._function.is_reversed else index[axis]
            return buffer(place, *index[:axis], *index[axis + 1 :])

        shape = list(buffer.shape[1:])
        shape.insert(axis, count)
        return self._tvm.te.compute(shape, at, name="join")

    def _write_code(self) -> Any:  # noqa: ANN401
        """Return code that writes a slice into the buffer, in place."""
        tirx, dtype = self._tvm.tirx, self._function.dtype
        buffer = tirx.decl_buffer([self._symbols("c", 1)[0], *self._dims], dtype, "buffer")
        number = tirx.decl_buffer((), "int64", "n")
        value = tirx.decl_buffer(self._dims, dtype, "value")
        index = self._symbols("i", len(self._dims))
        body = tirx.BufferStore(buffer, value[tuple(index)], [number[()], *index])
        for at, size in zip(reversed(index), reversed(self._dims), strict=True):
            body = tirx.For(at, 0, size, tirx.ForKind.SERIAL, body)
        return self._code([buffer, number, value], body)

    def _not_empty_code(self) -> Any:  # noqa: ANN401
        """Return code that fails if a dimension is 0."""
        tirx, text = self._tvm.tirx, self._tvm.ir.StringImm
        dims = self._symbols("d", self._function.rank)
        message = "a value has no elements, and tvm would compute no result from it"
        is_not_empty = tirx.all(*(size > 0 for size in dims)) if dims else tirx.const(True)
        body = tirx.AssertStmt(is_not_empty, text("RuntimeError"), [text(message)])
        return self._code([tirx.decl_buffer(dims, self._function.dtype, "value")], body)

    def _code(self, buffers: list[Any], body: Any) -> Any:  # noqa: ANN401
        return self._tvm.tirx.PrimFunc(buffers, body)

    def _symbols(self, stem: str, count: int) -> list[Expr]:
        return [self._tvm.tirx.Var(f"{stem}{number}", "int64") for number in range(count)]

    def _param(self, name: str, shape: Any, dtype: str = "") -> Expr:  # noqa: ANN401
        relax = self._tvm.relax
        return relax.Var(name, relax.TensorType(list(shape), dtype or self._function.dtype or "float32"))
