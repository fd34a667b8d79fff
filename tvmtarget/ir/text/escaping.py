"""How names, numbers and texts are spelled in the text form of a module; the printer and the parser share it."""

from __future__ import annotations

import json
import re
from math import isinf, isnan, nan

__all__ = ["NAME", "RESERVED", "SYMBOL", "canonical_nan", "is_symbol", "print_float", "print_name", "quote"]

# A name that stands without quotes: letters and digits of any script, `_ . $ / -`, and `::` inside.
NAME = re.compile(r"[\w.$/\-]+(?:::[\w.$/\-]+)*")
# A symbolic dimension that stands without quotes.
SYMBOL = re.compile(r"[^\W\d][\w.]*")
# Words of the grammar; as names they are quoted.
RESERVED = frozenset({"_", "as", "const", "effect", "return"})


def quote(text: str) -> str:
    """Return a JSON string; what cannot be printed is escaped, so that any text survives any file.

    >>> print(quote("naïve"), quote("a\\x07"))
    "naïve" "a\\u0007"
    """
    plain = json.dumps(text, ensure_ascii=False)
    if plain.isprintable():
        return plain
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in plain)


def print_name(name: str) -> str:
    """Return a name as it is where that is unambiguous, else quoted."""
    return name if NAME.fullmatch(name) and name not in RESERVED else quote(name)


def is_symbol(text: str) -> bool:
    """Whether a symbolic dimension needs no quotes."""
    return SYMBOL.fullmatch(text) is not None


def canonical_nan(value: float) -> float:
    """Return the number, and of all NaNs the same one: what holds it then is equal to what was written from it."""
    return nan if isnan(value) else value


def print_float(value: float) -> str:
    """Return the shortest decimal that reads back as the same number, never mistaken for a whole number."""
    if isnan(value):
        return "nan"
    if isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(float(value))
