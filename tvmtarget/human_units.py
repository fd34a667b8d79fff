"""Text of quantities for people: `2 subgraphs`, `32 GiB`, `450 GB/s`, `110 us`.

Reports, error messages and the command line print quantities with these functions. Data formats (JSON, TOML, plans,
logs) hold plain numbers instead, because a rounded text cannot be read back.
"""

from __future__ import annotations

import re

__all__ = ["bytes_text", "counted", "rate_text", "seconds_text"]

_BINARY_PREFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_SECOND_PREFIXES = ("p", "n", "u", "m", "")


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number and its noun, in the plural unless the number is one.

    Args:
        number: How many there are.
        noun: The singular; it may begin with adjectives, as in `"lifted constant"`.
        plural: The plural, for nouns that do not follow the regular spelling.

    Returns:
        The number in digits, a space and the noun.

    >>> counted(1, "subgraph"), counted(0, "subgraph"), counted(3, "copy"), counted(2, "axis", "axes")
    ('1 subgraph', '0 subgraphs', '3 copies', '2 axes')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number} {plural or _plural(noun)}"


def bytes_text(count: float) -> str:
    """Return a number of bytes in binary units, with three significant digits.

    Args:
        count: A number of bytes; a difference may be negative.

    Returns:
        The text; below 1 KiB a number of `bytes`.

    >>> bytes_text(1), bytes_text(640), bytes_text(1536), bytes_text(32 * 1024**3)
    ('1 byte', '640 bytes', '1.5 KiB', '32 GiB')
    """
    if abs(count) >= 1024 ** len(_BINARY_PREFIXES):
        return f"{count:,} bytes"  # beyond every prefix, and perhaps beyond what a float holds
    if abs(count) < 1024:
        return f"{_three_digits(count)} {'byte' if abs(count) == 1 else 'bytes'}"
    return _scaled(count, 1024, _BINARY_PREFIXES, "B")


def rate_text(bytes_per_second: float) -> str:
    """Return a bandwidth in decimal units, as data sheets do, with three significant digits.

    Args:
        bytes_per_second: The bandwidth.

    Returns:
        The text, from `B/s` to `EB/s`.

    >>> rate_text(450e9), rate_text(1.25e6), rate_text(80)
    ('450 GB/s', '1.25 MB/s', '80 B/s')
    """
    return _scaled(bytes_per_second, 1000, _DECIMAL_PREFIXES, "B/s")


def seconds_text(seconds: float) -> str:
    """Return a duration in the largest fitting unit, with three significant digits.

    Args:
        seconds: The duration; a difference may be negative.

    Returns:
        The text, from `ps` to `s`.

    >>> seconds_text(110e-6), seconds_text(0.0025), seconds_text(3600), seconds_text(0)
    ('110 us', '2.5 ms', '3600 s', '0 s')
    """
    if seconds == 0:
        return "0 s"
    return _scaled(seconds * 1e12, 1000, _SECOND_PREFIXES, "s")


def _scaled(value: float, base: int, prefixes: tuple[str, ...], unit: str) -> str:
    """Return a value of the first prefix with the largest prefix that leaves a number of at least one."""
    at = 0
    # Compare what is printed: 1023.7 KiB would print as 1024 KiB, which is 1 MiB.
    while at + 1 < len(prefixes) and abs(float(_three_digits(value))) >= base:
        value, at = value / base, at + 1
    return f"{_three_digits(value)} {prefixes[at]}{unit}"


def _three_digits(value: float) -> str:
    """Return three significant digits, and all digits of a larger whole number; never an exponent above one."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _plural(noun: str) -> str:
    if re.search("[^aeiou]y$", noun):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if re.search("(s|x|ch|sh)$", noun) else f"{noun}s"
