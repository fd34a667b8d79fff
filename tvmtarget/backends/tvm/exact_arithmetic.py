"""Arithmetic that TVM's rules for indices would change: floats, and integers that wrap around.

`Simplify` of TVM 0.27 takes `x == x` and `x < y or y <= x` to be true, `not x < y` to be `y <= x`, `x - x` to be 0 and
`(x + y) - y` to be `x`, for floats, too; LLVM code for `x != y` does not hold for NaN. Sums and products of integers
must fit, as those of indices do: `x * 6 / 6` is `x`. Those of hashes do not fit. C computes with 32 bits what has 8,
and cuts it off when it is stored. Here stand equal expressions that TVM does not know, and compilers reduce.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

__all__ = ["keep_arithmetic"]

Module: TypeAlias = Any
Expr: TypeAlias = Any

_WIDER = {"int32": "int64", "uint32": "uint64", "int64": "int128", "uint64": "uint128"}
_WIDER_IN_C = {
    **dict.fromkeys(("int8", "int16"), "int32"),
    **dict.fromkeys(("uint8", "uint16"), "uint32"),
    "int32": "int64",
    "uint32": "uint64",
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
    ]
    return structural_map(body, changes)


class _Wrapping:
    """Arithmetic of integers in a wider type, of which the lower bits are kept.

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

        def leave_indices(load: Expr) -> None:
            structural_walk(list(load.indices), (arithmetic, self._left.add))

        def leave_sum(store: Expr) -> None:
            structural_walk(list(store.indices), (arithmetic, self._left.add))
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
        wider = self._wider.get(dtype)
        if wider is None or written in self._left or not self._reads(written) or self._fits(written, dtype):
            return written
        if isinstance(written, tirx.Sub):  # which may be negative
            wider = wider.removeprefix("u")
        sides = (tirx.Cast(wider, side) for side in (written.a, written.b))
        value = type(written)(*sides)
        if not self._is_llvm or not isinstance(written, tirx.Mul):
            return tirx.Cast(dtype, value)
        # Of a product TVM knows divisors, also behind a conversion: `x * 6 % 3` would be 0.
        other = dtype.removeprefix("u") if dtype.startswith("u") else f"u{dtype}"
        return tirx.call_intrin(dtype, "tirx.reinterpret", tirx.Cast(other, value))

    def _reads(self, value: Expr) -> bool:
        """Return whether an expression reads a tensor."""
        from tvm_ffi import structural_walk

        found: list[Expr] = []
        structural_walk(value, (self._loads, found.append))
        return bool(found)

    def _fits(self, value: Expr, dtype: str) -> bool:
        known, limits = self._bounds.const_int_bound(value), np.iinfo(dtype)
        return int(known.min_value) > int(limits.min) and int(known.max_value) < int(limits.max)


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
