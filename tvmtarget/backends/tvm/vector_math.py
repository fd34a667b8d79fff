"""Math functions as arithmetic that LLVM vectorizes: exp, log, tanh, erf, sigmoid and powers of float32.

LLVM calls the C library once per lane, which makes loops with such functions ten to twenty times slower than those of
onnxruntime. Results are within 4 units in the last place, of tanh and erf within 6; infinities and NaN are those of the
C library; subnormal results of exp and sigmoid are 0. Polynomials interpolate at Chebyshev points; those of tanh and
erf are quotients (Eigen 3.4, `generic_fast_tanh_float`; XLA, `ErfImpl32`). TVM is imported late and ships no types: its
objects are Any, under names that say what they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.backends.tvm.exact_arithmetic import is_nan

__all__ = ["library_calls", "vectorisable"]

Function: TypeAlias = Any
Statement: TypeAlias = Any
Expr: TypeAlias = Any

LN2 = math.log(2)
LN2_HIGH = 355 / 512  # a product of this and an exponent has no rounding error in float32
LN2_LOW = LN2 - LN2_HIGH
BIAS, MANTISSA = 127, 23  # of the exponent in float32, and the bits behind it
LEAST_EXP, MOST_EXP = -87.33, 88.722839  # exp is a normal number between these
MOST_SIGMOID = 88.0  # sigmoid of its opposite is no normal number
LEAST_NORMAL = 2.0**-126
SMALL_TANH = 0.0004  # up to where tanh(x) is x
MOST_POWER = 4  # written as products
TWO_THIRDS = 0x3F2AAAAB  # in float32
_OF_LIBRARY = ("cosh", "sinh")  # TVM vectorizes these calls, and cannot lower those of vectors
_SUFFIXES = {"float32": "f", "float64": ""}  # of names in the C library
MOST_LOADS = 4  # in a value that is written twice
MOST_NAMES = 5  # in an argument: TVM takes exponential time for names in values of names


def vectorisable(function: Function) -> Function:
    """Replace calls of the C library by arithmetic in a scheduled tensor function.

    Args:
        function: the function.

    Returns:
        The function with its float32 math functions replaced, as far as they are known here.
    """
    from tvm import ir, tirx
    from tvm_ffi import structural_map

    names = {ir.Op.get(f"tirx.{name}"): name for name in _OF_LIBRARY}
    isnan = ir.Op.get("tirx.isnan")

    def spelled(call: Expr) -> Expr:
        if call.op in names and str(call.ty) in _SUFFIXES:
            return tirx.call_pure_extern(str(call.ty), names[call.op] + _SUFFIXES[str(call.ty)], *call.args)
        return is_nan(call.args[0]) if call.op == isnan and _is_short(call.args[0]) else call

    function = structural_map(function, (ir.Call, spelled))
    written = {ir.Op.get(f"tirx.{name}"): write for name, write in _WRITTEN.items()}
    nested = _in_nested_scalar_calls(function, {*written})

    def expanded(call: Expr) -> Expr:
        write = written.get(call.op)
        if write is None or str(call.ty) != "float32" or call in nested or _names(call) > MOST_NAMES:
            return call
        result = write(*call.args)
        return call if result is None else result

    return structural_map(function, (ir.Call, expanded))


def _is_short(value: Expr) -> bool:
    """Return whether an expression may be written twice, also where it is in another one that is."""
    from tvm import ir, tirx
    from tvm_ffi import structural_walk

    loads: list[Expr] = []
    choices: list[Expr] = []
    structural_walk(value, [(ir.expr.TensorLoad, loads.append), (tirx.Select, choices.append)])
    return len(loads) <= MOST_LOADS and not choices and not library_calls(value)


def _in_nested_scalar_calls(function: Function, written: set[Expr]) -> set[Expr]:
    """Return the calls in those that TVM does not vectorize, and that contain others of that type.

    TVM may visit what two such calls contain twice, and fails at the second definition of a name.

    Args:
        function: the function.
        written: the operators that are replaced.
    """
    from tvm import ir
    from tvm_ffi import structural_walk

    def calls_in(value: Any) -> list[Expr]:  # noqa: ANN401
        found: list[Expr] = []
        structural_walk(value, (ir.Call, found.append))
        return found

    def is_scalar(call: Expr) -> bool:
        return call.op not in written and not (isinstance(call.op, ir.Op) and call.op.get_attr("TVectorizable"))

    scalar = {call for call in calls_in(function.body) if is_scalar(call)}
    if len(scalar) < 2:
        return set()
    inside = [calls_in(list(call.args)) for call in scalar]
    return {call for calls in inside if not scalar.isdisjoint(calls) for call in calls}


def library_calls(statement: Statement) -> int:
    """Count the calls of functions that `vectorisable` expands.

    Args:
        statement: a statement of TIR.

    Returns:
        The number of such calls in the text of the statement; powers do not count.
    """
    from tvm import ir
    from tvm_ffi import structural_walk

    written = {ir.Op.get(f"tirx.{name}") for name in _WRITTEN if name != "pow"}
    found: list[bool] = []
    structural_walk(statement, (ir.Call, lambda call: found.append(call.op in written and str(call.ty) == "float32")))
    return sum(found)


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


# By name: a function, the ends of its interval, and the degree of the polynomial.
_POLYNOMIALS: dict[str, tuple[Callable[[float], float], float, float, int]] = {
    "exp": (math.exp, 0, LN2, 6),
    "log": (lambda x: (math.log1p(x) - x + x * x / 2) / x**3, -1 / 3, 1 / 3, 9),
}

# By name: from where the function is 1, and the coefficients of an odd numerator and an even denominator.
_QUOTIENTS: dict[str, tuple[float, tuple[float, ...], tuple[float, ...]]] = {
    "tanh": (
        7.90531110763549805,
        (
            -2.76076847742355e-16,
            2.00018790482477e-13,
            -8.60467152213735e-11,
            5.12229709037114e-08,
            1.48572235717979e-05,
            6.37261928875436e-04,
            4.89352455891786e-03,
        ),
        (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
    ),
    "erf": (
        3.832506856900711,
        (
            0.00022905065861350646,
            0.0034082910107109506,
            0.050955695062380861,
            0.18520832239976145,
            1.128379143519084,
        ),
        (
            -1.1791602954361697e-7,
            0.000023547966471313185,
            0.0010179625278914885,
            0.014070470171167667,
            0.11098505178285362,
            0.49746925110067538,
            1.0,
        ),
    ),
}


@cache
def _coefficients(name: str) -> tuple[float, ...]:
    """Return the coefficients of a polynomial, the highest power first."""
    function, low, high, degree = _POLYNOMIALS[name]
    fit = np.polynomial.Chebyshev.interpolate(np.vectorize(function), degree, domain=[low, high])
    return tuple(float(each) for each in fit.convert(kind=np.polynomial.Polynomial, domain=[-1, 1]).coef[::-1])


def _polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """Return the value of a polynomial, its highest power first, by Estrin's scheme.

    It takes the time of log2(n) dependent multiply-adds, where Horner's method takes that of n.
    """
    terms: list[Expr] = [_float(each) for each in reversed(coefficients)]
    power = x  # LLVM computes equal products once
    while len(terms) > 1:
        odd = terms[-1:] if len(terms) % 2 else []
        terms = [low + high * power for low, high in zip(terms[::2], terms[1::2], strict=False)] + odd
        power = power * power
    return terms[0]


def _at_most(x: Expr, most: float) -> Expr:
    """Return the smaller of a value and a number; NaN stays."""
    from tvm import tirx

    return tirx.Select(x > _float(most), _float(most), x)


def _within(x: Expr, least: float, most: float) -> Expr:
    """Return the nearest number between two; NaN stays."""
    from tvm import tirx

    return tirx.Select(x < _float(least), _float(least), _at_most(x, most))


def _normal_exp(x: Expr, most: float) -> Expr:
    """Return exp of a number from `LEAST_EXP` to `most`: a power of 2 times exp of the rest, which is below ln 2.

    NaN propagates through the rest, as an integer cannot be NaN. Below `LEAST_EXP` the result is any number or NaN.
    """
    from tvm import tirx

    number = x * _float(1 / LN2) + _float(BIAS)
    exponent = tirx.Cast("int32", tirx.Select(number > _float(1), number, _float(1)))
    if most / LN2 + BIAS > 2 * BIAS:  # rounding may give an exponent that is infinity
        exponent = tirx.Min(exponent, tirx.const(2 * BIAS, "int32"))
    power = tirx.Cast("float32", exponent - BIAS)
    rest = x - power * _float(LN2_HIGH) - power * _float(LN2_LOW)
    scale = tirx.reinterpret("float32", tirx.shift_left(exponent, tirx.const(MANTISSA, "int32")))
    return _named(rest, lambda rest: _polynomial(_coefficients("exp"), rest)) * scale


def _exp(x: Expr) -> Expr:
    from tvm import tirx

    def whole(x: Expr) -> Expr:
        normal = _named(_at_most(x, MOST_EXP), lambda inside: _normal_exp(inside, MOST_EXP))
        not_small = tirx.Select(x > _float(MOST_EXP), _float(math.inf), normal)
        return tirx.Select(x < _float(LEAST_EXP), _float(0), not_small)

    return _named(x, whole)


def _sigmoid(x: Expr) -> Expr:
    """Return sigmoid."""
    from tvm import tirx

    def whole(x: Expr) -> Expr:
        # LLVM writes the two bounds of one number as a minimum and a choice, which takes four instructions of SSE.
        opposite = _at_most(_float(0) - _at_most(x, -LEAST_EXP), MOST_SIGMOID)
        result = _float(1) / (_float(1) + _named(opposite, lambda inside: _normal_exp(inside, MOST_SIGMOID)))
        return tirx.Select(x < _float(-MOST_SIGMOID), _float(0), result)

    return _named(x, whole)


def _quotient(name: str, x: Expr) -> Expr:
    """Return an odd function of a name that is 1 from a number on as a quotient of polynomials."""
    from tvm import tirx

    bound, numerator, denominator = _QUOTIENTS[name]

    def of(inside: Expr) -> Expr:
        return _named(
            inside * inside, lambda square: inside * _polynomial(numerator, square) / _polynomial(denominator, square)
        )

    # The quotient at the bound is less than 1, of which what is left would be multiplied by x, as in Gelu of -1e4.
    inside = _named(_within(x, -bound, bound), of)
    return tirx.Select(x > _float(bound), _float(1), tirx.Select(x < _float(-bound), _float(-1), inside))


def _tanh(x: Expr) -> Expr:
    from tvm import tirx

    return _named(x, lambda x: tirx.Select(tirx.abs(x) < _float(SMALL_TANH), x, _quotient("tanh", x)))


def _erf(x: Expr) -> Expr:
    return _named(x, lambda x: _named(_quotient("erf", x), lambda result: _within(result, -1, 1)))


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
        tail = rest * rest * (rest * _polynomial(_coefficients("log"), rest) - _float(0.5))
        return power * _float(LN2_HIGH) + (power * _float(LN2_LOW) + tail + rest)

    def whole(x: Expr) -> Expr:
        is_small = x < _float(LEAST_NORMAL)
        scaled = tirx.Select(is_small, x * _float(2.0**MANTISSA), x)
        more = tirx.Select(is_small, _float(MANTISSA), _float(0))
        normal = _named(scaled, lambda scaled: split(scaled, more))
        beside = tirx.Select(x == _float(0), _float(-math.inf), _float(math.nan))
        return tirx.Select(x > _float(0), tirx.Select(x < _float(math.inf), normal, x), beside)

    return _named(x, whole)


def _root(x: Expr) -> Expr:
    from tvm import tirx

    return tirx.sqrt(x)


# By exponent: the power of a number, made of its square root.
_ROOTS: dict[float, Callable[[Expr], Expr]] = {
    0.25: _root,
    0.5: lambda root: root,
    0.75: lambda root: root * _root(root),
}


def _power(x: Expr, exponent: Expr) -> Expr | None:
    """Return a small integral power as a product, one of 1/4 to 3/4 by square roots, None for others."""
    from tvm import tirx

    if not isinstance(exponent, tirx.FloatImm):
        return None
    power = float(exponent.value)
    if power in range(2, MOST_POWER + 1):
        return _named(x, lambda x: math.prod([x] * (int(power) - 1), start=x))
    if abs(power) not in _ROOTS:
        return None

    def of_root(x: Expr) -> Expr:
        # A square root of -0 is -0, and of minus infinity NaN, of which powers are 0 and infinity.
        root = tirx.abs(_root(x))
        result = tirx.Select(x == _float(-math.inf), _float(math.inf), _ROOTS[abs(power)](root))
        return result if power > 0 else _float(1) / result

    return _named(x, of_root)


_WRITTEN: dict[str, Callable[..., Expr | None]] = {
    "exp": _exp,
    "log": _log,
    "tanh": _tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "pow": _power,
}
