"""Products of 8-bit integers, and extrema of whole tensors, in the form that the CPU schedule runs fast.

The operands of a product of 8-bit integers are widened to 32 bits before it, so that a kernel loads up to four times
the bytes. Here such a product gets its operands as they were before, constants in the narrowest type that holds them,
and widens each element where it multiplies.

The maximum or minimum of all elements is a chain of dependent comparisons; that of each row first has vectors of them.
TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

__all__ = ["narrow_products"]

Module: TypeAlias = Any
Expr: TypeAlias = Any

_NARROW = ("int8", "int16")


def narrow_products(module: Module) -> Module:
    """Rewrite products of widened integers, and extrema of whole tensors.

    Args:
        module: TVM's module of functions of Relax.

    Returns:
        A module that computes the same; the same one if it has none.
    """
    from tvm import relax
    from tvm.relax.dpl import is_const, is_op, rewrite_call, wildcard

    tensor = wildcard()
    operands = [(is_op("relax.astype")(narrow), narrow, is_const()) for narrow in (wildcard(), wildcard())]
    product = is_op("relax.matmul")(*(widened | constant for widened, _, constant in operands))
    extremum = is_op("relax.max")(tensor) | is_op("relax.min")(tensor)

    def multiply(call: Expr, found: Any) -> Expr:  # noqa: ANN401
        if call.ty.dtype.dtype != "int32":
            return call
        narrow = [found[tensor] if tensor in found else _narrow(found[constant]) for _, tensor, constant in operands]
        is_narrow = all(one is not None and one.ty.dtype.dtype in (*_NARROW, "uint8") for one in narrow)
        return relax.op.matmul(*narrow, out_dtype="int32") if is_narrow else call

    def reduce(call: Expr, found: Any) -> Expr:  # noqa: ANN401
        if call.attrs.axis is not None or call.attrs.keepdims or found[tensor].ty.ndim < 2:
            return call
        compute = relax.op.max if call.op.name == "relax.max" else relax.op.min
        return compute(compute(found[tensor], axis=-1))

    result = module
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            changed = rewrite_call(extremum, reduce, rewrite_call(product, multiply, function))
            if not changed.same_as(function):
                result = module.clone() if result is module else result
                result[variable] = changed
    return result


def _narrow(constant: Expr) -> Expr | None:
    """Return a constant in the narrowest type that holds it; None if that is too wide."""
    from tvm import relax
    from tvm.runtime import tensor

    array = constant.value.numpy()
    for dtype in _NARROW:
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        if array.dtype.kind in "iu" and least <= array.min(initial=0) and array.max(initial=0) <= most:
            return relax.const(tensor(array.astype(dtype)))
    return None
