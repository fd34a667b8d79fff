"""Reading one attribute value as what its row says it is; a `ValueError` says what it should have been.

Words of a text and strings of JSON are read alike: `"4"` is a whole number where one is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Literal, TypeAlias

from tvmtarget.target.attributes import Value, Word
from tvmtarget.target.cpu.features import table_of
from tvmtarget.target.cpu.riscv import expand_isa, is_isa_string
from tvmtarget.target.problems import shown
from tvmtarget.target.text.grammar import is_word

__all__ = ["MAX_INT", "AttributeType", "read_integer", "read_items", "read_opaque", "read_quantity", "read_value"]

AttributeType: TypeAlias = Literal["int", "bool", "str", "list[str]", "list[int]", "features"]

MAX_INT = 2**53 - 1  # beyond it, readers of JSON do not agree on a number

# Factors from a unit to what an attribute counts.
_SIZES = {
    "bytes": {f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)}
    | {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)},
    "MHz": {"MHz": 1, "GHz": 1000},
}
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s?([KMGT]i?B|[MG]Hz)")
_BYTES = re.compile(r"\bbytes\b")
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_TRUTHS = {"true": True, "false": False, "1": True, "0": False}


def read_value(type_: AttributeType, value: object) -> Value:
    """Read a value as a type of attribute; words of a text are strings until here."""
    match type_:
        case "int":
            return read_integer(value)
        case "bool":
            return _boolean(value)
        case "str":
            return _text(value)
        case "list[str]":
            return tuple(_text(item) for item in read_items(value))
        case "list[int]":
            return tuple(read_integer(item) for item in read_items(value))
        case "features":
            return _features(_text(item) for item in read_items(value))


def read_opaque(value: object) -> Value:
    """Read a value of a kind that nobody knows, as it is; only what some kind could have is read.

    So the identity of a tree stays the same when the package that brings the kind is installed.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return read_integer(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(_text(item) for item in value)
    if isinstance(value, list | tuple) and all(isinstance(item, int) for item in value):
        return tuple(read_integer(item) for item in value)
    raise ValueError(f"is true, false, a whole number, text, or a list of numbers or of texts, not {shown(value)}")


def read_integer(value: object) -> int:
    """Read a whole number that every reader of JSON can hold."""
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"is a whole number, not {shown(value)}")
    if abs(value) > MAX_INT:
        raise ValueError(f"is at most 2**53 - 1, not {shown(value)}")
    return value


def read_quantity(name: str, doc: str, value: object) -> object:
    """Convert a quantity with a unit to the unit of its attribute; return anything else as it is.

    An attribute counts MHz if its name ends in `-mhz`, and bytes if its name or description has the word "bytes".

    Args:
        name: name of the attribute.
        doc: description of the attribute.
        value: value as written, such as `"64KiB"` or `"1.2 GHz"`.

    Returns:
        The whole number of bytes or MHz, or `value` if it has no unit.

    Raises:
        ValueError: the attribute has no unit or another one, or the result is not a whole number.

    >>> read_quantity("vtcm-capacity", "bytes of tightly coupled memory", "64KiB")
    65536
    >>> read_quantity("clock-mhz", "highest clock", "1.2GHz")
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


def _boolean(value: object) -> bool:
    text = str(value).lower() if isinstance(value, bool | int | str) else ""
    if text not in _TRUTHS:
        raise ValueError(f"is true or false, not {shown(value)}")
    return _TRUTHS[text]


def _text(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(read_integer(value))
    if not isinstance(value, str):
        raise ValueError(f"is text, not {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"has half of a surrogate pair in it: {shown(value)}") from None
    return str(value)


def read_items(value: object) -> tuple[object, ...]:
    """Read the items of a list; a text is one item, a word as many as commas and '+' separate."""
    if isinstance(value, Word):
        return tuple(item.strip() for item in re.split(r"[+,]", value) if item.strip())
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple):
        return tuple(value)
    raise ValueError(f"is a list, not {shown(value)}")


def _features(items: Iterable[str]) -> tuple[str, ...]:
    """Sort signed features into a set, '+' before '-'; a bare name means '+', and rv64gc all that it has.

    Features are taken from an instruction set as from a CPU: `+rv64gc,-c` is `+rv64g,-c`.
    """
    words = [word for item in items if item for word in _words(item)]  # TVM's tests write `mattr: [""]` for none
    signed = {feature for word in words for feature in _signed(word)}
    removed = [feature[1:] for feature in signed if feature[0] == "-"]
    table = table_of("riscv") if removed and any(is_isa_string(word.lstrip("+")) for word in words) else None
    if table is not None:
        written = {feature for word in words if not is_isa_string(word.lstrip("+")) for feature in _signed(word)}
        signed = {feature for feature in signed if feature in written or feature[1:] not in table.dependents(removed)}
    for item in sorted(signed):
        if not is_word(item[1:]):
            raise ValueError(f"holds features such as '+avx2', not {shown(item)}")
        if item[0] == "+" and f"-{item[1:]}" in signed:
            raise ValueError(f"has feature {shown(item[1:])} both added and removed")
    return tuple(sorted(signed))


def _words(item: str) -> tuple[str, ...]:
    """Split `+nomve+nodsp`, as TVM takes it in one item; no name of LLVM's has a '+' in it."""
    return tuple(f"+{word}" for word in item[1:].split("+") if word) if item[:1] == "+" and item[1:] else (item,)


def _signed(item: str) -> tuple[str, ...]:
    sign, name = (item[0], item[1:]) if item[:1] in ("+", "-") else ("+", item)
    if not is_isa_string(name):
        return (f"{sign}{name}",)
    if sign == "-":
        raise ValueError(f"removes the instruction set {shown(name)}; remove features, as in '-c'")
    return tuple(f"+{feature}" for feature in expand_isa(name))
