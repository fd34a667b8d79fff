"""How two values of one attribute compare: numbers by size, names of a series by their number, lists as sets.

Lists of whole numbers are versions: `[8, 6]` is after `[8, 5, 3]`.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, TypeGuard

from tvmtarget.errors import TargetError
from tvmtarget.target.attributes import Value
from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.cpu.triples import Triple

__all__ = ["ORDERED", "Operator", "canonical", "compare", "has_order"]

Operator: TypeAlias = Literal["has", "lacks", "eq", "ne", "in", "ge", "le", "gt", "lt"]

ORDERED: tuple[Operator, ...] = ("ge", "le", "gt", "lt")

# Names that are numbered in an order: NVIDIA's compute capabilities and the levels of x86-64. A suffix means
# features of one chip (a) or one family (f), so `>=sm_90a` is not met by sm_100
# (CUDA C++ programming guide, "Feature set compiler targets").
_SERIES = (re.compile(r"(sm_)([0-9]+)([af]?)"), re.compile(r"(x86-64-v)([0-9]+)()"))


def compare(operator: Operator, actual: Value, wanted: Value) -> Truth:
    """Say whether a value meets a comparison; values that have no order between them are not known to."""
    match operator:
        case "has" | "lacks":
            is_there = isinstance(actual, tuple) and wanted in actual
            return _truth(is_there == (operator == "has"))
        case "eq" | "ne":
            return _truth(_is_equal(actual, wanted) == (operator == "eq"))
        case "in":
            return _truth(isinstance(wanted, tuple) and any(_is_equal(actual, one) for one in wanted))
    if isinstance(actual, int) and isinstance(wanted, int):
        return _holds(operator, (actual,), (wanted,))
    if isinstance(actual, str) and isinstance(wanted, str):
        return _compare_names(operator, actual, wanted)
    if _is_version(actual) and _is_version(wanted):
        return _holds(operator, actual, wanted)
    return Truth.UNKNOWN


def canonical(name: str, value: Value) -> Value:
    """Return a value so that what means the same is equal: a triple as what its spellings have in common."""
    if name != "mtriple":
        return value
    if isinstance(value, tuple):
        return tuple(str(canonical(name, str(one))) for one in value)
    try:
        return Triple.parse(str(value)).key
    except TargetError:
        return value


def has_order(operator: Operator, value: Value) -> bool:
    """Whether values can be compared by size with this one: numbers, versions, and names of a series."""
    if isinstance(value, bool | int):
        return not isinstance(value, bool)
    if _is_version(value):
        return bool(value)
    series = _numbered(value) if isinstance(value, str) else None
    return series is not None and (not series[2] or operator == "ge")


def _truth(holds: bool) -> Truth:
    return Truth.YES if holds else Truth.NO


def _is_equal(one: Value, other: Value) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _is_version(value: Value) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(isinstance(item, int) for item in value)


def _holds(operator: Operator, left: tuple[int, ...], right: tuple[int, ...]) -> Truth:
    holds = {"ge": left >= right, "le": left <= right, "gt": left > right, "lt": left < right}[operator]
    return _truth(holds)


def _compare_names(operator: Operator, actual: str, wanted: str) -> Truth:
    """Compare two names of one series by number; names that are in no series are not comparable."""
    if actual == wanted and operator in ("ge", "le"):
        return Truth.YES
    left, right = _numbered(actual), _numbered(wanted)
    if left is None or right is None or left[0] != right[0] or not has_order(operator, wanted):
        return Truth.UNKNOWN
    if right[2] == "a":  # features of one chip: no other has them
        return _truth(actual == wanted)
    if right[2] == "f":  # features of one family: chips of the same ten, from this one on
        is_family = left[2] != "" and left[1] // 10 == right[1] // 10
        return _truth(is_family and left[1] >= right[1])
    return _holds(operator, (left[1],), (right[1],))


def _numbered(name: str) -> tuple[str, int, str] | None:
    found = next((match for series in _SERIES if (match := series.fullmatch(name))), None)
    return None if found is None else (found.group(1), int(found.group(2)), found.group(3))
