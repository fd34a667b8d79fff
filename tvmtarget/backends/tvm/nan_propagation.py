"""Maxima and minima of NaN and infinity, as ONNX's reference and onnxruntime compute them.

TVM generates `a > b ? a : b` for a maximum, which is `b` if one of the two is NaN; rectifiers and clipped values are
maxima of a value and a scalar. With the scalar as the first operand they propagate NaN, by the same instructions.

TVM starts maxima at the least finite number, so that of infinities they would be finite, and searches for their places
at -1, which it would return where nothing is more. They start at infinity and at the first place here.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

__all__ = ["propagate_nan"]

Module: TypeAlias = Any
Function: TypeAlias = Any
Expr: TypeAlias = Any


def propagate_nan(module: Module) -> Module:
    """Put scalars that are operands of maxima and minima of floats first; start at infinity.

    Scalars whose result is converted to an integer stay, as the conversion of NaN is undefined in C. What is clamped
    before, as quantized values are, becomes the least integer, as on onnxruntime.

    Args:
        module: a TVM module.

    Returns:
        A changed copy.
    """
    from tvm import ir, tirx
    from tvm_ffi import structural_map

    def is_scalar(expr: Expr) -> bool:
        is_load = isinstance(expr, ir.expr.TensorLoad) and not len(expr.indices)
        return is_load or isinstance(expr, tirx.FloatImm)

    def first(expr: Expr) -> Expr:
        return type(expr)(expr.b, expr.a) if is_scalar(expr.b) and not is_scalar(expr.a) else expr

    def last(expr: Expr) -> Expr:
        if isinstance(expr, (tirx.Max, tirx.Min)) and is_scalar(expr.a):
            return type(expr)(last(expr.b), expr.a)
        return expr

    def converted(cast: Expr) -> Expr:
        if "float" in str(cast.ty.dtype):
            return cast
        value = last(cast.value)
        if isinstance(value, tirx.Max) and isinstance(value.a, tirx.Min) and is_scalar(value.b):
            inner = value.a
            value = tirx.Min(tirx.Max(inner.a, value.b), inner.b) if is_scalar(inner.b) else value
        return tirx.Cast(cast.ty, value)

    result = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            function = _start_at_infinity(function)
            changes = [((tirx.Max, tirx.Min), first), (tirx.Cast, converted)]
            result[variable] = function.with_body(structural_map(function.body, changes))
    return result


def _start_at_infinity(function: Function) -> Function:
    """Start maxima and minima of a function at infinity, and searches for their places at 0."""
    from tvm import ir, tirx
    from tvm_ffi import structural_map, structural_walk

    extremes: dict[Any, float] = {}  # the identity of the reduction that is stored in a buffer

    def find(store: Expr) -> None:
        sides = (tirx.Max, tirx.Min)
        value = store.value
        if isinstance(value, sides) and any(
            isinstance(side, ir.expr.TensorLoad) and side.source.same_as(store.buffer) for side in (value.a, value.b)
        ):
            extremes[store.buffer] = -np.inf if isinstance(value, tirx.Max) else np.inf

    def infinite(value: Expr) -> Expr | None:
        """Return the infinity that a largest finite number stands for."""
        dtype = str(value.ty.dtype)
        if not isinstance(value, tirx.FloatImm) or dtype not in ("float16", "float32", "float64"):
            return None
        most = float(np.finfo(dtype).max)
        return tirx.FloatImm(value.ty, float(np.copysign(np.inf, value.value))) if abs(value.value) == most else None

    def started(store: Expr) -> Expr:
        value, identity = store.value, extremes.get(store.buffer)
        is_padded = store.buffer.name.startswith("pad_temp") and extremes
        found = None
        if identity is not None:
            found = infinite(value)
            found = None if found is None or found.value != identity else found
        elif is_padded and isinstance(value, ir.Call) and len(value.args) == 3:
            outside = infinite(value.args[2])
            found = None if outside is None else tirx.if_then_else(*value.args[:2], outside)
        return store if found is None else tirx.BufferStore(store.buffer, found, store.indices)

    def searched(steps: Expr) -> Expr:
        if len(steps.seq) != 2 or not all(isinstance(one, tirx.BufferStore) for one in steps.seq):
            return steps
        place, value = steps.seq
        if not isinstance(place.value, tirx.IntImm) or place.value.value != -1:
            return steps
        first = tirx.BufferStore(place.buffer, tirx.IntImm(place.value.ty, 0), place.indices)
        least = infinite(value.value)
        return tirx.SeqStmt([first, value if least is None else tirx.BufferStore(value.buffer, least, value.indices)])

    structural_walk(function.body, (tirx.BufferStore, find))
    return function.with_body(structural_map(function.body, [(tirx.BufferStore, started), (tirx.SeqStmt, searched)]))
