"""Arithmetic of dimensions: sums, products, quotients and minima of symbols, as text in a canonical form.

A dimension that follows from others has the text of an expression, `past + sequence` or `2*batch`; equal texts are
equal sizes. PyTorch's exporter states such texts, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Container, Iterable, Mapping
from functools import lru_cache
from math import gcd
from types import MappingProxyType
from typing import TypeAlias

from tvmtarget.ir.types import Dim

__all__ = [
    "add_dims",
    "divide_dims",
    "least_dim",
    "min_dims",
    "multiply_dims",
    "product_of_dims",
    "size_of",
    "subtract_dims",
    "symbols_of",
]

# A sum of products: the coefficient of each product, which is a sorted tuple of symbols, quotients and minima.
_Sum: TypeAlias = "dict[tuple[str, ...], int]"

_SYMBOL = re.compile(r"[^\W\d]\w*")
_MOST_TERMS = 12
_MOST_PRODUCTS = 256  # of one multiplication: a text of a file could require exponentially many
_MOST_CHARACTERS = 400


def add_dims(first: Dim, second: Dim) -> Dim:
    """Add two sizes.

    >>> add_dims("sequence", "past")
    'past + sequence'

    Args:
        first: a number, symbol or expression; None if it is not known.
        second: likewise.

    Returns:
        The sum, None if an operand is not known or the expression would be too long.
    """
    return _computed(_add, first, second)


def subtract_dims(first: Dim, second: Dim) -> Dim:
    """Subtract a size from another.

    Args:
        first: a number, symbol or expression; None if it is not known.
        second: likewise.

    Returns:
        The difference, None if it is not known.
    """
    return _computed(_subtract, first, second)


def multiply_dims(first: Dim, second: Dim) -> Dim:
    """Multiply two sizes.

    Args:
        first: a number, symbol or expression; None if it is not known.
        second: likewise.

    Returns:
        The product, None if it is not known.
    """
    return _computed(_multiply, first, second)


def product_of_dims(dims: Iterable[Dim]) -> Dim:
    """Multiply sizes.

    Args:
        dims: numbers, symbols and expressions; None for what is not known.

    Returns:
        The product, 1 of none; None if it is not known.
    """
    product: Dim = 1
    for dim in dims:
        product = multiply_dims(product, dim)
    return product


def divide_dims(first: Dim, second: Dim) -> Dim:
    """Divide a size by another, rounding down.

    >>> divide_dims("12*batch", 4), divide_dims("width", 2)
    ('3*batch', '((width)//2)')

    Args:
        first: a number, symbol or expression; None if it is not known.
        second: likewise; a quotient by an expression is known only if it is exact.

    Returns:
        The quotient, None if it is not known.
    """
    return _computed(_divide, first, second)


def min_dims(first: Dim, second: Dim) -> Dim:
    """Return the smaller of two sizes.

    Args:
        first: a number, symbol or expression; None if it is not known.
        second: likewise.

    Returns:
        The minimum, None if it is not known.
    """
    return _computed(_least, first, second)


def least_dim(dim: Dim, symbol: int, zeros: Container[str] = ()) -> int | None:
    """Return a lower bound of a size.

    Args:
        dim: a number, symbol or expression; None if it is not known.
        symbol: lower bound of each symbol, 0 or 1.
        zeros: symbols whose lower bound is 0.

    Returns:
        The bound; quotients count as 0 or more, as those of negative numbers are no sizes. None if there is no bound.
    """
    terms = _sum(dim)
    return None if terms is None else _bound(terms, symbol, zeros)


def size_of(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    """Return a size where those that it follows from are known.

    >>> size_of("2*batch + 1", {"batch": 3})
    7

    Args:
        dim: a number, symbol or expression; None if it is not known.
        sizes: numbers by symbol, or by the text of an expression.

    Returns:
        The number, None if it is not known.
    """
    if not isinstance(dim, str):
        return dim
    if dim in sizes:
        return sizes[dim]
    terms = _parsed_with(dim, sizes)
    found = None if terms is None else _text(terms)
    return found if isinstance(found, int) else None


def symbols_of(dim: Dim) -> frozenset[str]:
    """Return the symbols of a size.

    Args:
        dim: a number, symbol or expression; None if it is not known.

    Returns:
        Names; the whole text if it is no expression.
    """
    if not isinstance(dim, str):
        return frozenset()
    return frozenset({dim} if _sum(dim) is None else set(_SYMBOL.findall(dim)) - {"min"})


def _computed(compute: Callable[[_Sum, _Sum], _Sum | None], first: Dim, second: Dim) -> Dim:
    a, b = _sum(first), _sum(second)
    found = None if a is None or b is None else compute(a, b)
    return None if found is None else _text(found)


def _add(first: _Sum, second: _Sum) -> _Sum:
    return {term: times for term in {**first, **second} if (times := first.get(term, 0) + second.get(term, 0))}


def _subtract(first: _Sum, second: _Sum) -> _Sum:
    return _add(first, {term: -times for term, times in second.items()})


def _multiply(first: _Sum, second: _Sum) -> _Sum | None:
    if len(first) * len(second) > _MOST_PRODUCTS:
        return None
    product: _Sum = {}
    for one, times in first.items():
        for other, factor in second.items():
            product = _add(product, {tuple(sorted((*one, *other))): times * factor})
    return product


def _divide(first: _Sum, second: _Sum) -> _Sum | None:
    if len(second) != 1:
        return None
    ((divisor, factor),) = second.items()
    if factor <= 0:
        return None
    exact: _Sum = {}
    for term, times in first.items():
        rest = _without(term, divisor)
        if rest is None or times % factor:
            break
        exact[rest] = times // factor
    else:
        # A symbol that is divided by itself may be 0, where the quotient is not defined: nothing is lost.
        return exact
    if divisor:
        return None
    common = gcd(factor, *first.values())
    inner = _text({term: times // common for term, times in first.items()})
    if isinstance(inner, int):
        return _number(inner // (factor // common))
    return None if inner is None else {(f"(({inner})//{factor // common})",): 1}


def _without(term: tuple[str, ...], divisor: tuple[str, ...]) -> tuple[str, ...] | None:
    rest = list(term)
    for symbol in divisor:
        if symbol not in rest:
            return None
        rest.remove(symbol)
    return tuple(rest)


def _least(first: _Sum, second: _Sum) -> _Sum | None:
    for less, more in ((first, second), (second, first)):
        bound = _bound(_subtract(more, less), 0)
        if bound is not None and bound >= 0:
            return less
    texts = [_text(first), _text(second)]
    return None if None in texts else {(f"min({', '.join(sorted(map(str, texts)))})",): 1}


def _bound(terms: _Sum, symbol: int, zeros: Container[str] = ()) -> int | None:
    if any(times < 0 for term, times in terms.items() if term):
        return None

    def is_positive(term: tuple[str, ...]) -> bool:
        return all(bool(symbol) and _SYMBOL.fullmatch(one) is not None and one not in zeros for one in term)

    return sum(times for term, times in terms.items() if is_positive(term))


def _number(value: int) -> _Sum:
    return {(): value} if value else {}


def _text(terms: _Sum) -> Dim:
    """Return a sum as a number or text; None if it is too long."""
    if not any(terms):
        return sum(terms.values())
    if len(terms) > _MOST_TERMS:
        return None
    # Numbers are last, as people write them, and what is added is before what is subtracted.
    ordered = sorted(terms.items(), key=lambda one: (not one[0], one[1] < 0, one[0]))
    parts = []
    for term, times in ordered:
        factors = [*([str(abs(times))] if abs(times) != 1 or not term else []), *term]
        parts.append(("-" if times < 0 else "+", "*".join(factors)))
    text = ("-" if parts[0][0] == "-" else "") + parts[0][1] + "".join(f" {sign} {one}" for sign, one in parts[1:])
    return text if len(text) <= _MOST_CHARACTERS else None


def _sum(dim: Dim) -> _Sum | None:
    if isinstance(dim, str):
        return _parsed(dim)
    return None if dim is None else _number(int(dim))


@lru_cache(maxsize=4096)
def _parsed(text: str) -> _Sum | None:
    """Parse a symbol or expression; None for any other text, which names a size but is no part of an expression."""
    return {(text,): 1} if _SYMBOL.fullmatch(text) else _parsed_with(text, MappingProxyType({}))


def _parsed_with(text: str, sizes: Mapping[str, int]) -> _Sum | None:
    if len(text) > _MOST_CHARACTERS:
        return None
    try:
        return _evaluated(ast.parse(text, mode="eval").body, sizes)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


_OPERATORS: dict[type[ast.operator], Callable[[_Sum, _Sum], _Sum | None]] = {
    ast.Add: _add,
    ast.Sub: _subtract,
    ast.Mult: _multiply,
    ast.FloorDiv: _divide,
}


def _evaluated(node: ast.expr, sizes: Mapping[str, int]) -> _Sum | None:
    match node:
        case ast.Name(id=name):
            return _number(sizes[name]) if name in sizes else {(name,): 1}
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return _number(number)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _applied(_OPERATORS[type(op)], left, right, sizes)
        case ast.Call(func=ast.Name(id="min"), args=[left, right], keywords=[]):
            return _applied(_least, left, right, sizes)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            found = _evaluated(operand, sizes)
            return None if found is None else _subtract({}, found)
        case _:
            return None


def _applied(
    compute: Callable[[_Sum, _Sum], _Sum | None], left: ast.expr, right: ast.expr, sizes: Mapping[str, int]
) -> _Sum | None:
    a, b = _evaluated(left, sizes), _evaluated(right, sizes)
    return None if a is None or b is None else compute(a, b)
