"""Maxima and minima with scalars that propagate NaN, as ONNX's reference and onnxruntime compute them.

TVM generates `a > b ? a : b` for a maximum, which is `b` if one of the two is NaN; rectifiers and clipped values are
maxima of a value and a scalar. With the scalar as the first operand they propagate NaN, by the same instructions.
TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = ["propagate_nan"]

Module: TypeAlias = Any
Function: TypeAlias = Any
Expr: TypeAlias = Any


def propagate_nan(module: Module) -> Module:
    """Put scalars that are operands of floating-point maxima and minima first.

    Those whose result is converted to an integer stay, as the conversion of NaN is undefined in C.

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
        return cast if "float" in str(cast.ty.dtype) else tirx.Cast(cast.ty, last(cast.value))

    result = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            changes = [((tirx.Max, tirx.Min), first), (tirx.Cast, converted)]
            result[variable] = function.with_body(structural_map(function.body, changes))
    return result
