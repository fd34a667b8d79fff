"""Math functions as arithmetic that LLVM vectorizes: exp, log, tanh, erf, sigmoid and powers of float32.

LLVM calls the C library once per lane, which makes loops with such functions ten to twenty times slower than those of
onnxruntime. Results are within 4 units in the last place; infinities and NaN are those of the C library; subnormal
results of exp are 0. Polynomials interpolate at Chebyshev points. TVM is imported late and ships no types: its objects
are Any, under names that say what they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np

__all__ = ["calls_library", "vectorisable"]

Function: TypeAlias = Any
Statement: TypeAlias = Any
Expr: TypeAlias = Any

LN2 = math.log(2)
LN2_HIGH = 355 / 512  # a product of this and an exponent has no rounding error in float32
LN2_LOW = LN2 - LN2_HIGH
BIAS, MANTISSA = 127, 23  # of the exponent in float32, and the bits behind it
LEAST_EXP, MOST_EXP = -87.33, 88.722839  # exp is a normal number between these
LEAST_NORMAL = 2.0**-126
LARGE_TANH = 0.625  # from where exp gives all digits
LARGE_ERF, MOST_ERF = 1.0, 3.95  # from where exp gives all digits, and from where the result is 1
MIDDLE_ERF = (LARGE_ERF + MOST_ERF) / 2
MOST_POWER = 4  # written as products
TWO_THIRDS = 0x3F2AAAAB  # in float32
MOST_NAMES = 5  # in an argument: TVM takes exponential time for names in values of names


def vectorisable(function: Function) -> Function:
    """Replace calls of the C library by arithmetic in a scheduled tensor function.

    Args:
        function: the function.

    Returns:
        The function with its float32 math functions replaced, as far as they are known here.
    """
    from tvm import ir
    from tvm_ffi import structural_map

    written = {ir.Op.get(f"tirx.{name}"): write for name, write in _WRITTEN.items()}

    def visit(call: Expr) -> Expr:
        write = written.get(call.op)
        if write is None or str(call.ty) != "float32" or _names(call) > MOST_NAMES:
            return call
        result = write(*call.args)
        return call if result is None else result

    return structural_map(function, (ir.Call, visit))


def calls_library(statement: Statement) -> bool:
    """Return whether a statement calls a function that `vectorisable` expands.

    Args:
        statement: a statement of TIR.

    Returns:
        True if it has such a call; powers do not count.
    """
    from tvm import ir
    from tvm_ffi import structural_walk

    written = {ir.Op.get(f"tirx.{name}") for name in _WRITTEN if name != "pow"}
    found: list[bool] = []
    structural_walk(statement, (ir.Call, lambda call: found.append(call.op in written and str(call.ty) == "float32")))
    return any(found)


def _names(value: Expr) -> int:
    from tvm import tirx
    from tvm_ffi import structural_walk

    found: list[Expr] = []
    structural_walk(value, (tirx.Let, found.append))
    return len(found)


def _named(value: Expr, use: Callable[[Expr], Expr]) -> Expr:
    """Return an expression of a float that is computed once.

    TVM's analysis fails on names of integers in what is converted to an integer; LLVM finds equal ones by itself.
    """
    from tvm import tirx

    name = tirx.Var("t", str(value.ty))
    return tirx.Let(name, value, use(name))


def _float(value: float) -> Expr:
    from tvm import tirx

    return tirx.const(value, "float32")


def _of_root(function: Callable[[float], float]) -> Callable[[float], float]:
    """Return the even function f(x) / x as a function of x * x."""
    return lambda square: function(math.sqrt(square)) / math.sqrt(square)


# By name: a function, the ends of its interval, and the degree of the polynomial.
_POLYNOMIALS: dict[str, tuple[Callable[[float], float], float, float, int]] = {
    "exp": (math.exp, 0, LN2, 6),
    "log": (lambda x: (math.log1p(x) - x + x * x / 2) / x**3, -1 / 3, 1 / 3, 9),
    "tanh": (_of_root(math.tanh), 0, LARGE_TANH**2, 5),
    "erf": (_of_root(math.erf), 0, LARGE_ERF**2, 7),
    "log erfc": (lambda x: math.log(math.erfc(x + MIDDLE_ERF)), LARGE_ERF - MIDDLE_ERF, MOST_ERF - MIDDLE_ERF, 9),
}


@cache
def _coefficients(name: str) -> tuple[float, ...]:
    """Return the coefficients of a polynomial, the highest power first."""
    function, low, high, degree = _POLYNOMIALS[name]
    fit = np.polynomial.Chebyshev.interpolate(np.vectorize(function), degree, domain=[low, high])
    return tuple(float(each) for each in fit.convert(kind=np.polynomial.Polynomial, domain=[-1, 1]).coef[::-1])


def _polynomial(name: str, x: Expr) -> Expr:
    """Return the value of a polynomial by Horner's method."""
    highest, *rest = map(_float, _coefficients(name))
    for coefficient in rest:
        highest = highest * x + coefficient
    return highest


def _normal_exp(x: Expr) -> Expr:
    """Return exp between `LEAST_EXP` and `MOST_EXP`: a power of 2 times exp of the rest, which is below ln 2.

    NaN propagates through the rest, as an integer cannot be NaN.
    """
    from tvm import tirx

    inside = tirx.Max(tirx.Min(x, _float(MOST_EXP)), _float(LEAST_EXP))
    exponent = tirx.Min(tirx.Cast("int32", inside * _float(1 / LN2) + _float(BIAS)), tirx.const(2 * BIAS, "int32"))

    power = tirx.Cast("float32", exponent - BIAS)
    rest = x - power * _float(LN2_HIGH) - power * _float(LN2_LOW)
    scale = tirx.reinterpret("float32", tirx.shift_left(exponent, tirx.const(MANTISSA, "int32")))
    return _named(rest, lambda rest: _polynomial("exp", rest)) * scale


def _exp(x: Expr) -> Expr:
    from tvm import tirx

    def whole(x: Expr) -> Expr:
        not_small = tirx.Select(x > _float(MOST_EXP), _float(math.inf), _normal_exp(x))
        return tirx.Select(x < _float(LEAST_EXP), _float(0), not_small)

    return _named(x, whole)


def _sigmoid(x: Expr) -> Expr:
    return _float(1) / (_float(1) + _exp(_float(0) - x))


def _tanh(x: Expr) -> Expr:
    from tvm import tirx

    def whole(x: Expr) -> Expr:
        small = x * _named(x * x, lambda square: _polynomial("tanh", square))
        large = _float(1) - _float(2) / (_exp(x + x) + _float(1))
        return tirx.Select(tirx.abs(x) < _float(LARGE_TANH), small, large)

    return _named(x, whole)


def _erf(x: Expr) -> Expr:
    """Return erf; large values by exp of a polynomial for log(erfc)."""
    from tvm import tirx

    def whole(x: Expr) -> Expr:
        small = x * _named(x * x, lambda square: _polynomial("erf", square))
        distance = tirx.Min(tirx.abs(x), _float(MOST_ERF)) - _float(MIDDLE_ERF)
        logarithm = _named(distance, lambda distance: _polynomial("log erfc", distance))
        large = _named(_named(logarithm, _normal_exp), lambda missing: sided(x, missing))
        return tirx.Select(tirx.abs(x) >= _float(LARGE_ERF), large, small)

    def sided(x: Expr, missing: Expr) -> Expr:
        return tirx.Select(x > _float(0), _float(1) - missing, missing - _float(1))

    return _named(x, whole)


def _log(x: Expr) -> Expr:
    """Return log: that of the nearest power of 2, and that of the rest, which is near 1."""
    from tvm import tirx

    shift = tirx.const(MANTISSA, "int32")

    def split(scaled: Expr, more: Expr) -> Expr:
        bits = tirx.reinterpret("int32", scaled)
        exponent = tirx.shift_right(bits - tirx.const(TWO_THIRDS, "int32"), shift)
        rest = tirx.reinterpret("float32", bits - tirx.shift_left(exponent, shift)) - _float(1)
        power = tirx.Cast("float32", exponent) - more
        return _named(rest, lambda rest: logarithm(rest, power))

    def logarithm(rest: Expr, power: Expr) -> Expr:
        tail = rest * rest * (rest * _polynomial("log", rest) - _float(0.5))
        return power * _float(LN2_HIGH) + (power * _float(LN2_LOW) + tail + rest)

    def whole(x: Expr) -> Expr:
        is_small = x < _float(LEAST_NORMAL)
        scaled = tirx.Select(is_small, x * _float(2.0**MANTISSA), x)
        more = tirx.Select(is_small, _float(MANTISSA), _float(0))
        normal = _named(scaled, lambda scaled: split(scaled, more))
        beside = tirx.Select(x == _float(0), _float(-math.inf), _float(math.nan))
        return tirx.Select(x > _float(0), tirx.Select(x < _float(math.inf), normal, x), beside)

    return _named(x, whole)


def _power(x: Expr, exponent: Expr) -> Expr | None:
    """Return a small integral power as a product, None for others."""
    from tvm import tirx

    if not isinstance(exponent, tirx.FloatImm) or float(exponent.value) not in range(2, MOST_POWER + 1):
        return None
    count = int(exponent.value)
    return _named(x, lambda x: math.prod([x] * (count - 1), start=x))


_WRITTEN: dict[str, Callable[..., Expr | None]] = {
    "exp": _exp,
    "log": _log,
    "tanh": _tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "pow": _power,
}
