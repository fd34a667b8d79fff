"""Running sums along symbolic dimensions, which may be 0.

TVM's kernel writes the first sum also where there is none (0.27), behind the memory of a tensor without elements.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from tvmtarget.backends.tvm.call_sites import Producer, operator_of, rewrite_calls
from tvmtarget.backends.tvm.tir_builder import OPAQUE, TirBuilder

__all__ = ["bound_running_sums"]

Buffer: TypeAlias = Any
Builder: TypeAlias = Any
Expr: TypeAlias = Any
Module: TypeAlias = Any
Stmt: TypeAlias = Any


def bound_running_sums(module: Module) -> Module:
    """Write running sums along dimensions that may be 0 by a kernel that writes nothing then.

    Args:
        module: TVM's module.

    Returns:
        The changed module.
    """
    return rewrite_calls(module, _rewritten, {"relax.cumsum"})


def _rewritten(call: Expr, builder: Builder, _producer: Producer) -> Expr:
    return _bounded(builder, call) if _may_be_empty(call) else call


def _may_be_empty(call: Expr) -> bool:
    from tvm import tirx

    if operator_of(call) != "relax.cumsum" or call.attrs.axis is None:
        return False
    shape = getattr(call.args[0].ty.shape, "values", None)
    if shape is None:
        return False
    size = shape[int(call.attrs.axis)]
    return not isinstance(size, tirx.IntImm) or int(size) == 0


def _bounded(builder: Builder, call: Expr) -> Expr:
    from tvm import te

    axis = int(call.attrs.axis) % len(call.args[0].ty.shape.values)
    dtype = call.attrs.dtype or call.args[0].ty.dtype

    def compute(x: Any) -> Any:  # noqa: ANN401
        def code(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
            return _sums(ins[0], outs[0], axis, is_exclusive=bool(call.attrs.exclusive))

        return te.extern([x.shape], [x], code, name="running_sum", dtype=[str(dtype)])

    attributes = {"op_pattern": OPAQUE}
    return builder.call_te(compute, call.args[0], primfunc_name_hint="running_sum", primfunc_attrs=attributes)


def _sums(source: Buffer, result: Buffer, axis: int, *, is_exclusive: bool) -> Stmt:
    code = TirBuilder()
    others = [at for at in range(len(source.shape)) if at != axis]
    zero = code.tirx.const(0, result.dtype)

    def rows(*at: Expr) -> Stmt | list[Stmt]:
        if len(at) < len(others):
            kind = "SERIAL" if at else "PARALLEL"
            return code.loop(source.shape[others[len(at)]], lambda index: rows(*at, index), kind)
        return code.loop(source.shape[axis], lambda step: element(at, step))

    def element(at: Sequence[Expr], step: Expr) -> Stmt:
        here, before = ([*at[:axis], place, *at[axis:]] for place in (step, step - code.number(1)))
        added = source[tuple(before if is_exclusive else here)].astype(result.dtype)
        first = zero if is_exclusive else added
        total = code.tirx.if_then_else(step > code.number(0), result[tuple(before)] + added, first)
        return code.store(result, total, *here)

    return code.sequence(rows())
