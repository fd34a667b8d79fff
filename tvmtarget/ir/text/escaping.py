"""Spelling of names, numbers and strings in the text form of a module, shared by printer and parser."""

from __future__ import annotations

import json
import re
from math import isinf, isnan, nan

__all__ = ["NAME", "RESERVED", "SYMBOL", "canonical_nan", "is_symbol", "print_float", "print_name", "quote"]

# A name that needs no quotes: letters and digits of any script, `_ . $ / -`, and `::` inside.
NAME = re.compile(r"[\w.$/\-]+(?:::[\w.$/\-]+)*")
# A symbolic dimension that needs no quotes.
SYMBOL = re.compile(r"[^\W\d][\w.]*")
# Words of the grammar; as names they are quoted.
RESERVED = frozenset({"_", "as", "const", "effect", "return"})


def quote(text: str) -> str:
    r"""Return a JSON string literal in which characters that are not printable are escaped.

    Args:
        text: any text.

    Returns:
        The literal with its quotes; JSON parses it back to the text.

    >>> print(quote("naïve"), quote("a\x07"))
    "naïve" "a\u0007"
    """
    plain = json.dumps(text, ensure_ascii=False)
    # Invisible letters, such as marks of direction, could show a text as another one.
    if plain.isprintable():
        return plain
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in plain)


def print_name(name: str) -> str:
    """Print a name, in quotes only if it is ambiguous without.

    Args:
        name: the name.

    Returns:
        The name, or a JSON string literal.
    """
    return name if NAME.fullmatch(name) and name not in RESERVED else quote(name)


def is_symbol(text: str) -> bool:
    """Return whether a symbolic dimension needs no quotes.

    Args:
        text: the symbol.

    Returns:
        True if it matches `SYMBOL`.
    """
    return SYMBOL.fullmatch(text) is not None


def canonical_nan(value: float) -> float:
    """Replace any NaN by `math.nan`, which equals itself within tuples and lists.

    Args:
        value: a number.

    Returns:
        The number, or `math.nan`.
    """
    return nan if isnan(value) else value


def print_float(value: float) -> str:
    """Print the shortest decimal that reads back as the same number, distinct from an integer.

    Args:
        value: a number.

    Returns:
        The text, such as `1.0`, `1e-07`, `nan` or `-inf`.
    """
    if isnan(value):
        return "nan"
    if isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(float(value))
