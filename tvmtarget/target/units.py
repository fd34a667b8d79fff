"""Numbers with a unit: `64KiB` and `2GHz` are read into the unit of their attribute and printed without it."""

from __future__ import annotations

import re
from fractions import Fraction

from tvmtarget.target.problems import shown

__all__ = ["without_unit"]

# What one of a unit is, in bytes or in MHz.
_SIZES = {
    "bytes": {f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)}
    | {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)},
    "MHz": {"MHz": 1, "GHz": 1000},
}
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s?([KMGT]i?B|[MG]Hz)")
_BYTES = re.compile(r"\bbytes\b")


def without_unit(name: str, doc: str, value: object) -> object:
    """Return a quantity as a whole number of what the attribute counts; what has no unit as it is.

    An attribute counts bytes or MHz if its name or the words that describe it say so.

    >>> without_unit("vtcm-capacity", "bytes of tightly coupled memory", "64KiB")
    65536
    >>> without_unit("clock-mhz", "highest clock", "1.2GHz")
    1200
    """
    found = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return value
    number, unit = found.groups()
    counted = _counted(name, doc)
    if counted is None:
        raise ValueError(f"counts no bytes and no MHz, so {shown(value)} says nothing; write a plain number")
    if unit not in _SIZES[counted]:
        raise ValueError(f"is in {counted}, which {shown(value)} is not; use one of {', '.join(_SIZES[counted])}")
    total = Fraction(number) * _SIZES[counted][unit]
    if total.denominator != 1:
        raise ValueError(f"is a whole number of {counted}, which {shown(value)} is not")
    return int(total)


def _counted(name: str, doc: str) -> str | None:
    if re.search(r"[-_]mhz$", name):
        return "MHz"
    return "bytes" if _BYTES.search(f"{name.replace('-', ' ').replace('_', ' ')} {doc}") else None
