"""Conversion of attribute values to their types, with units, lists and CPU features.

Words of a text and strings of JSON are converted in the same way: `"4"` is an integer where the type is `int`. A
`ValueError` completes a sentence that begins with the name of the attribute: "is a whole number, not 'x'".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Literal, TypeAlias

from tvmtarget.target.cpu.riscv import expand_isa, is_isa_string
from tvmtarget.target.json_value import Value, Word
from tvmtarget.target.problems import shown
from tvmtarget.target.text.words import is_word

__all__ = [
    "MAX_COUNT",
    "MAX_INT",
    "READERS",
    "SCHEMA",
    "AttributeType",
    "is_utf8",
    "read_integer",
    "read_items",
    "read_opaque",
    "read_quantity",
    "read_value",
]

AttributeType: TypeAlias = Literal["int", "bool", "str", "list[str]", "list[int]", "features"]

MAX_INT = 2**53 - 1  # beyond it, readers of JSON do not agree on a number

MAX_COUNT = 65536  # replicas of one node

SCHEMA = 1  # version of the flat JSON of targets

# Factors of units, by the base units that attributes count.
_FACTORS = {
    "bytes": {f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)}
    | {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)},
    "MHz": {"MHz": 1, "GHz": 1000},
}
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s?([KMGT]i?B|[MG]Hz)")
_BYTES = re.compile(r"\bbytes\b")
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")  # Python converts no more than 4300 digits by default
_TRUTHS = {"true": True, "false": False, "1": True, "0": False}


def read_value(type_: AttributeType, value: object) -> Value:
    """Convert a value to the type of its attribute.

    Args:
        type_: the type.
        value: a value of JSON, or a word of a text.

    Returns:
        The value; lists become tuples, and features a sorted tuple of signed names.

    Raises:
        ValueError: the value is not of that type.
    """
    return READERS[type_](value)


def read_opaque(value: object) -> Value:
    """Check a value of an attribute of an unregistered kind.

    The value is not converted, so that the identity of a tree stays the same when the package with the kind is
    installed.

    Args:
        value: a value of JSON.

    Returns:
        The same value; a list as a tuple.

    Raises:
        ValueError: no type of attributes has such a value.
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


def is_utf8(text: str) -> bool:
    """Whether a text can be written in UTF-8.

    Halves of surrogate pairs, which the texts of Python and JSON may contain, cannot.

    Args:
        text: the text.

    Returns:
        True if it can.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_integer(value: object) -> int:
    """Convert a value to an integer.

    Args:
        value: an integer, or a text of digits with or without a sign.

    Returns:
        An integer of at most 53 bits, which every reader of JSON can hold.

    Raises:
        ValueError: it is neither, or larger.
    """
    if type(value) is int and -MAX_INT <= value <= MAX_INT:
        return value
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"is a whole number, not {shown(value)}")
    if abs(value) > MAX_INT:
        raise ValueError(f"is at most 2**53 - 1, not {shown(value)}")
    return value


def read_quantity(name: str, doc: str, value: object) -> object:
    """Convert a quantity such as `64KiB` to the unit of its attribute.

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
    base = _base_unit(name, doc)
    if base is None:
        raise ValueError(f"counts no bytes and no MHz, so {shown(value)} has no meaning; write a plain number")
    if unit not in _FACTORS[base]:
        raise ValueError(f"is in {base}, which {shown(value)} is not; use one of {', '.join(_FACTORS[base])}")
    total = Fraction(number) * _FACTORS[base][unit]  # exact, where floats would round 1.1GHz
    if total.denominator != 1:
        raise ValueError(f"is a whole number of {base}, which {shown(value)} is not")
    return int(total)


def _base_unit(name: str, doc: str) -> str | None:
    if re.search(r"[-_]mhz$", name):
        return "MHz"
    return "bytes" if _BYTES.search(f"{name.replace('-', ' ').replace('_', ' ')} {doc}") else None


def _boolean(value: object) -> bool:
    if type(value) is bool:
        return value
    text = str(value).lower() if isinstance(value, bool | int | str) else ""
    if text not in _TRUTHS:
        raise ValueError(f"is true or false, not {shown(value)}")
    return _TRUTHS[text]


def _text(value: object) -> str:
    if type(value) is str and value.isascii():
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(read_integer(value))
    if not isinstance(value, str):
        raise ValueError(f"is text, not {shown(value)}")
    if not is_utf8(value):
        raise ValueError(f"has half of a surrogate pair in it: {shown(value)}")
    return str(value)


def read_items(value: object) -> tuple[object, ...]:
    """Split a value into the items of a list.

    Args:
        value: a list; a text, which is one item; or a word of a target text, in which ',' and '+' separate items.

    Returns:
        The items.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(value, Word):
        return tuple(item.strip() for item in re.split(r"[+,]", value) if item.strip())
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple):
        return tuple(value)
    raise ValueError(f"is a list, not {shown(value)}")


def _features(items: Iterable[str]) -> tuple[str, ...]:
    """Normalise CPU features to a sorted set of signed names; a bare name means '+'.

    An ISA string such as rv64gc is replaced by all its features. Features can be removed from it, as from a CPU:
    `+rv64gc,-c` is `+rv64g,-c`.
    """
    words = [word for item in items if item for word in _words(item)]  # TVM's tests write `mattr: [""]` for none
    signed = {feature for word in words for feature in _signed(word)}
    removed = [feature[1:] for feature in signed if feature[0] == "-"]
    if removed and any(is_isa_string(word.lstrip("+")) for word in words):
        from tvmtarget.target.cpu.features import table_of

        table = table_of("riscv")
        assert table is not None  # shipped with the library
        # A removed feature takes those that need it out of the expanded ISA string, but not those written one by one:
        # these contradict it, which is an error below.
        written = {feature for word in words if not is_isa_string(word.lstrip("+")) for feature in _signed(word)}
        signed = {feature for feature in signed if feature in written or feature[1:] not in table.dependents(removed)}
    for item in sorted(signed):
        if not is_word(item[1:]) or "+" in item[1:]:
            raise ValueError(f"holds features such as '+avx2', not {shown(item)}")
        if item[0] == "+" and f"-{item[1:]}" in signed:
            raise ValueError(f"has feature {shown(item[1:])} both added and removed")
    return tuple(sorted(signed))


def _words(item: str) -> tuple[str, ...]:
    """Split `+nomve+nodsp`, which TVM accepts as one item; no feature of LLVM has a '+' in its name."""
    return tuple(f"+{word}" for word in item[1:].split("+") if word) if item[:1] == "+" and item[1:] else (item,)


def _signed(item: str) -> tuple[str, ...]:
    sign, name = (item[0], item[1:]) if item[:1] in ("+", "-") else ("+", item)
    if not is_isa_string(name):
        return (f"{sign}{name}",)
    if sign == "-":
        raise ValueError(f"removes the instruction set {shown(name)}; remove features, as in '-c'")
    return tuple(f"+{feature}" for feature in expand_isa(name))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(_text, read_items(value)))


# What converts a value to each type of attributes.
READERS: Mapping[AttributeType, Callable[[object], Value]] = {
    "int": read_integer,
    "bool": _boolean,
    "str": _text,
    "list[str]": _texts,
    "list[int]": lambda value: tuple(map(read_integer, read_items(value))),
    "features": lambda value: _features(_texts(value)),
}
