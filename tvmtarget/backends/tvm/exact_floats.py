"""Floats that TVM's rules for integers would change: NaN, infinities, and sums that round.

`Simplify` of TVM 0.27 takes `x == x` and `x < y or y <= x` to be true, `not x < y` to be `y <= x`, `x - x` to be 0 and
`(x + y) - y` to be `x`, for floats, too; and LLVM code for `x != y` does not hold for NaN. Here stand equal expressions
that it does not know, which LLVM and compilers of C reduce to the same instructions.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

__all__ = ["keep_float_arithmetic"]

Module: TypeAlias = Any
Expr: TypeAlias = Any


def keep_float_arithmetic(module: Module) -> Module:
    """Write comparisons and differences of floats so that TVM does not simplify them.

    Args:
        module: a TVM module, whose tensor functions are scheduled and not lowered yet.

    Returns:
        A changed copy.
    """
    from tvm import tirx
    from tvm_ffi import structural_map

    changes = [
        (tirx.EQ, _equality),
        (tirx.NE, _inequality),
        (tirx.Not, lambda negated: _negation(negated.a, negated)),
        (tirx.Or, _disjunction),
        (tirx.Sub, _difference),
    ]
    result = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            result[variable] = function.with_body(structural_map(function.body, changes))
    return result


def _inequality(compared: Expr) -> Expr:
    from tvm import tirx

    return _negation(_equality(tirx.EQ(compared.a, compared.b)), compared)


def _equality(compared: Expr) -> Expr:
    """Return `x <= x` for `x == x`."""
    from tvm import tirx
    from tvm_ffi import structural_equal

    is_same = _is_float(compared.a) and structural_equal(compared.a, compared.b)
    return tirx.LE(compared.a, compared.b) if is_same else compared


def _negation(condition: Expr, written: Expr) -> Expr:
    """Return the negation of a condition by arithmetic; what is written if it compares no floats."""
    return _truth(_number(condition) ^ _one()) if _compares_floats(condition) else written


def _disjunction(either: Expr) -> Expr:
    if not (_compares_floats(either.a) and _compares_floats(either.b)):
        return either
    return _truth(_number(either.a) | _number(either.b))


def _difference(difference: Expr) -> Expr:
    """Return `a + b * -1` for `a - b` if the two have a term in common."""
    from tvm import tirx
    from tvm_ffi import structural_equal

    if not _is_float(difference):
        return difference
    others = [*_terms(difference.b)]
    if not any(structural_equal(one, other) for one in _terms(difference.a) for other in others):
        return difference
    return tirx.Add(difference.a, tirx.Mul(difference.b, tirx.const(-1.0, difference.b.ty.dtype)))


def _terms(value: Expr) -> Iterator[Expr]:
    """Yield the terms of a sum, and those of each side of a choice."""
    from tvm import tirx

    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, (tirx.Add, tirx.Sub)):
            waiting += [one.a, one.b]
        elif isinstance(one, tirx.Select):
            waiting += [one.true_value, one.false_value]
        else:
            yield one


def _compares_floats(condition: Expr) -> bool:
    """Return whether a condition contains a comparison of floats."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    found: list[bool] = []
    comparisons = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
    structural_walk(condition, (comparisons, lambda one: found.append(_is_float(one.a))))
    return any(found)


def _is_float(value: Expr) -> bool:
    return "float" in str(value.ty.dtype)


def _one() -> Expr:
    from tvm import tirx

    return tirx.IntImm("int8", 1)


def _number(condition: Expr) -> Expr:
    from tvm import tirx

    return tirx.Cast("int8", condition)


def _truth(number: Expr) -> Expr:
    from tvm import tirx

    return tirx.Cast("bool", number)
