"""Arithmetic that TVM's rules for indices would change: floats, and integers that wrap around.

`Simplify` of TVM 0.27 takes `x == x` and `x < y or y <= x` to be true, `not x < y` to be `y <= x`, `x - x` to be 0 and
`(x + y) - y` to be `x`, for floats, too; LLVM code for `x != y` does not hold for NaN. Sums and products of integers
must fit, as those of indices do, and so must conversions: `x * 6 / 6` is `x`, and an unsigned integer that becomes a
signed one is not negative. Those of hashes do not fit. C computes with 32 bits what has 8, and cuts it off when it is
stored. Here stand equal expressions that TVM does not know, and compilers reduce.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

__all__ = ["is_nan", "keep_arithmetic"]

Module: TypeAlias = Any
Expr: TypeAlias = Any

_INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_INFINITE = (1 << 63) - 1  # a bound of an integer of which TVM knows none
_WIDER = {"int32": "int64", "uint32": "uint64", "int64": "int128", "uint64": "uint128"}
_WIDER_IN_C = {
    **dict.fromkeys(("int8", "int16"), "int32"),
    **dict.fromkeys(("uint8", "uint16"), "uint32"),
    "int32": "int64",
    **dict.fromkeys(("uint32", "int64", "uint64"), "uint64"),
}


def keep_arithmetic(module: Module, *, is_llvm: bool) -> Module:
    """Write arithmetic of floats and integers so that TVM does not simplify it.

    Args:
        module: a TVM module, whose tensor functions are scheduled and not lowered yet.
        is_llvm: whether LLVM generates all of the code, which has integers of 128 bits.

    Returns:
        A changed copy.
    """
    from tvm import tirx

    result = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            result[variable] = function.with_body(_kept(function.body, is_llvm=is_llvm))
    return result


def is_nan(value: Expr) -> Expr:
    """Return whether a float is NaN, as arithmetic that TVM vectorizes.

    Args:
        value: the float.

    Returns:
        A boolean expression.
    """
    from tvm import tirx

    return _negation(ordered := tirx.LE(value, value), ordered)


def _kept(body: Any, *, is_llvm: bool) -> Any:  # noqa: ANN401
    from tvm import tirx
    from tvm_ffi import structural_map

    wrapping = _Wrapping(body, is_llvm=is_llvm)

    def difference(written: Expr) -> Expr:
        return _difference(written) if _is_float(written) else wrapping.wrapped(written)

    changes = [
        (tirx.EQ, _equality),
        (tirx.NE, _inequality),
        (tirx.Not, lambda negated: _negation(negated.a, negated)),
        (tirx.Or, _disjunction),
        (tirx.Sub, difference),
        ((tirx.Add, tirx.Mul), wrapping.wrapped),
        (tirx.Cast, wrapping.converted),
        ((tirx.LShift, tirx.BitwiseNot), wrapping.shortened),
    ]
    return structural_map(body, changes)


class _Wrapping:
    """Arithmetic of integers in a type that does not overflow, of which the lower bits are kept.

    Args:
        body: the body of a function.
        is_llvm: whether LLVM generates the code.
    """

    def __init__(self, body: Any, *, is_llvm: bool) -> None:  # noqa: ANN401
        from tvm import ir, sym, tirx
        from tvm_ffi import structural_walk

        self._is_llvm = is_llvm
        self._wider = _WIDER if is_llvm else _WIDER_IN_C
        self._bounds = sym.Analyzer()
        self._loads = ir.expr.TensorLoad
        self._left: set[Expr] = set()  # indices, and sums of a reduction, of which nothing else is computed
        arithmetic = (tirx.Add, tirx.Sub, tirx.Mul)

        def leave_indices(access: Expr) -> None:
            structural_walk(list(access.indices), ((*arithmetic, tirx.Cast), self._left.add))

        def leave_sum(store: Expr) -> None:
            leave_indices(store)
            value = store.value
            sides = (value.a, value.b) if isinstance(value, arithmetic) else ()
            if any(isinstance(side, self._loads) and side.source.same_as(store.buffer) for side in sides):
                self._left.add(value)

        structural_walk(body, [(self._loads, leave_indices), (tirx.BufferStore, leave_sum)])

    def wrapped(self, written: Expr) -> Expr:
        """Make arithmetic wrap around.

        Args:
            written: a sum, difference or product.

        Returns:
            An expression; what is written if it fits, or computes no data.
        """
        from tvm import tirx

        dtype = str(written.ty.dtype)
        if dtype not in _INTEGERS or written in self._left or not self._reads(written) or self._fits(written, dtype):
            return written
        wider = self._wider.get(dtype, dtype)
        if isinstance(written, tirx.Sub) and wider.removeprefix("u") != dtype.removeprefix("u"):
            wider = wider.removeprefix("u")  # the difference may be negative
        return self._unknown(written if wider == dtype else _computed_in(wider, written))

    def converted(self, written: Expr) -> Expr:
        """Make a conversion of integers keep the lower bits.

        Args:
            written: a conversion.

        Returns:
            An expression; what is written if the value fits, or is no data.
        """
        dtype, before = str(written.ty.dtype), str(written.value.ty.dtype)
        is_exact = dtype not in _INTEGERS or before not in _INTEGERS or self._fits(written.value, dtype)
        return written if is_exact or written in self._left or not self._reads(written) else self._unknown(written)

    def shortened(self, written: Expr) -> Expr:
        """Cut off what C makes of bits, which are more than the operand has: `~x` of 8 bits is negative.

        Args:
            written: a shift to the left, or a complement.

        Returns:
            An expression; what is written if it has no other bits, or is no data.
        """
        dtype = str(written.ty.dtype)
        if self._is_llvm or dtype not in ("uint8", "uint16") or not self._reads(written):
            return written
        return self._unknown(_computed_in(self._wider[dtype], written))

    def _unknown(self, value: Expr) -> Expr:
        """Return a value of which TVM knows no limits and no divisors, which it knows behind conversions, too."""
        from tvm import tirx

        return tirx.bitwise_xor(value, tirx.const(0, value.ty.dtype))

    def _reads(self, value: Expr) -> bool:
        """Return whether an expression reads a tensor."""
        from tvm_ffi import structural_walk

        found: list[Expr] = []
        structural_walk(value, (self._loads, found.append))
        return bool(found)

    def _fits(self, value: Expr, dtype: str) -> bool:
        known, limits = self._bounds.const_int_bound(value), np.iinfo(dtype)
        low, high = int(known.min_value), int(known.max_value)
        return max(abs(low), abs(high)) < _INFINITE and int(limits.min) <= low and high <= int(limits.max)


def _computed_in(dtype: str, written: Expr) -> Expr:
    """Return what an operator computes of operands of another type, in the type of the operator's own operands."""
    from tvm import tirx

    operands = [written.a, written.b] if hasattr(written, "b") else [written.a]
    return tirx.Cast(written.ty.dtype, type(written)(*(_as_type(operand, dtype) for operand in operands)))


def _as_type(value: Expr, dtype: str) -> Expr:
    """Return an integer in a wider type, of whose results the lower bits are kept.

    TVM makes no unsigned constant of a negative one, and no code of LLVM for a signed constant of 2^63 and more: it
    becomes the negative one with the same 64 bits.
    """
    from tvm import tirx

    if not isinstance(value, tirx.IntImm):
        return tirx.Cast(dtype, value)
    number = int(value.value)
    if dtype.startswith("u"):
        return tirx.const(number % (1 << int(dtype.removeprefix("uint"))), dtype)
    return tirx.const(number - (1 << 64) if number >> 63 > 0 else number, dtype)


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
