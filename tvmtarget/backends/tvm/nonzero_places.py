"""Places of the elements that are not 0, by two kernels: one counts them, one writes their coordinates.

TVM calls a function of Python for `nonzero` (0.27), which takes 25 us for a few elements.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tvmtarget.backends.tvm.call_sites import Producer, operator_of, rewrite_calls
from tvmtarget.backends.tvm.tir_builder import OPAQUE, TirBuilder

__all__ = ["write_nonzero_places"]

Buffer: TypeAlias = Any
Builder: TypeAlias = Any
Expr: TypeAlias = Any
Module: TypeAlias = Any
Stmt: TypeAlias = Any

_NONZERO = "relax.nonzero"


def write_nonzero_places(module: Module) -> Module:
    """Replace each `nonzero` of a tensor of known rank by kernels.

    Args:
        module: TVM's module.

    Returns:
        The changed module.
    """
    return rewrite_calls(module, _by_kernels, {_NONZERO})


def _by_kernels(call: Expr, builder: Builder, _producer: Producer) -> Expr:
    from tvm import relax, te, tirx

    shape = getattr(getattr(call.args[0].ty, "shape", None), "values", None) if operator_of(call) == _NONZERO else None
    if not shape:
        return call

    def emitted(name: str, sizes: Sequence[Expr], code: Callable[[Buffer, Buffer], Stmt]) -> Expr:
        def compute(x: Any) -> Any:  # noqa: ANN401
            return te.extern([sizes], [x], lambda ins, outs: code(ins[0], outs[0]), name=name, dtype=["int64"])

        attributes = {"op_pattern": OPAQUE}
        return builder.emit(builder.call_te(compute, call.args[0], primfunc_name_hint=name, primfunc_attrs=attributes))

    count = tirx.Var("nonzero_count", "int64")
    total = emitted("count_nonzero", [tirx.IntImm("int64", 1)], _Code().count)
    builder.match_cast(builder.emit(relax.op.tensor_to_shape(total)), relax.ShapeType([count]))
    return emitted("nonzero", [tirx.IntImm("int64", len(shape)), count], _Code().places)


class _Code(TirBuilder):
    """Statements of the kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.zero = self.number(0)
        self.declared, self.found = self.local(1, "int64", "found")

    def count(self, source: Buffer, result: Buffer) -> Stmt:
        """Return what counts the elements of a tensor that are not 0."""

        def element(at: Sequence[Expr]) -> Stmt:
            added = self._is_nonzero(source, at).astype("int64")
            return self.store(self.found, self.found[self.zero] + added, self.zero)

        return self._over(source, element, self.store(result, self.found[self.zero], self.zero))

    def places(self, source: Buffer, result: Buffer) -> Stmt:
        """Return what writes their coordinates, one column for each of them."""

        def element(at: Sequence[Expr]) -> Stmt:
            place = self.found[self.zero]
            written = [self.store(result, one, self.number(axis), place) for axis, one in enumerate(at)]
            counted = self.store(self.found, place + self.number(1), self.zero)
            return self.tirx.IfThenElse(self._is_nonzero(source, at), self.sequence([*written, counted]), None)

        return self._over(source, element)

    def _is_nonzero(self, source: Buffer, at: Sequence[Expr]) -> Expr:
        value, dtype = source[tuple(at)], str(source.dtype)
        return value if dtype == "bool" else value != self.tirx.const(0, dtype)

    def _over(self, source: Buffer, element: Callable[[Sequence[Expr]], Stmt], *after: Stmt) -> Stmt:
        """Return loops over the elements of a tensor, in order, with a counter from 0."""

        def rows(*at: Expr) -> Stmt:
            if len(at) == len(source.shape):
                return element(at)
            return self.loop(source.shape[len(at)], lambda index: rows(*at, index))

        return self.sequence([self.declared, self.store(self.found, self.zero, self.zero), rows(), *after])
