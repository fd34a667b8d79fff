"""The comparison of two values of one attribute, by the class of the attribute.

    hard              equal; triples by what their spellings have in common; versions of an API at least as new
    isa               the instructions of GPUs by `gpu_archs.py`, of CPUs by their features (`instructions.py`)
    capacity, scale   at least as large
    model, soft, none not compared

`measured` says that the left value was measured on this machine, and not written by somebody: a chip has the features
of its own capability whatever the suffix, firmware keeps a part of the memory, and a triple may leave words open.
`satisfies`, `why_not`, the search for tags and the distance of devices all come here.

Numbers compare by size, names of a series by their number, lists as sets. Lists of whole numbers are versions:
`[8, 6]` is after `[8, 5, 3]`.
"""

from __future__ import annotations

import re
from math import log2
from typing import Literal, TypeAlias, TypeGuard

from tvmtarget.errors import TargetError
from tvmtarget.target.attributes import Value
from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.cpu.triples import Triple
from tvmtarget.target.gpu_archs import NvidiaArch, has_instructions, is_ordered
from tvmtarget.target.kinds import Attribute

__all__ = [
    "ORDERED",
    "Operator",
    "canonical",
    "compare",
    "compare_attribute",
    "compare_feature",
    "compare_memory",
    "doublings",
    "has_order",
    "required_operator",
]

Operator: TypeAlias = Literal["has", "lacks", "eq", "ne", "in", "ge", "le", "gt", "lt"]

ORDERED: tuple[Operator, ...] = ("ge", "le", "gt", "lt")

_LEVEL = re.compile(r"x86-64-v([0-9]+)")

_UNCOMPARED = frozenset({"model", "soft", "none"})
_GROWING = frozenset({"isa", "capacity", "scale"})

# Versions of an interface, each of which has all of the older ones (Vulkan specification, "Version Numbers").
_VERSIONS = frozenset({"vulkan_api_version", "max_spirv_version"})

# Firmware and kernel keep some of the memory that a data sheet counts: at most one part in so many.
_KEPT = 8


def required_operator(row: Attribute, value: Value) -> Operator | None:
    """Return the comparison that a value of a target requires by the class of its attribute, or None for none."""
    if row.class_ in _UNCOMPARED:
        return None
    grows = row.class_ in _GROWING or row.name in _VERSIONS
    return "ge" if grows and has_order("ge", value) else "eq"


def compare_attribute(name: str, operator: Operator, actual: Value, wanted: Value, *, measured: bool = False) -> Truth:
    """Say whether the value of an attribute meets a comparison; `measured` is explained at the top."""
    if name == "mtriple" and measured and operator in ("eq", "ne"):
        return _truth(_runs_triple(str(actual), str(wanted)) == (operator == "eq"))
    if name == "mtriple" and measured and operator == "in" and isinstance(wanted, tuple):
        return _truth(any(_runs_triple(str(actual), str(one)) for one in wanted))
    return compare(operator, canonical(name, actual), canonical(name, wanted), measured=measured)


def compare_memory(operator: Operator, actual: int, wanted: Value, *, measured: bool = False) -> Truth:
    """Compare bytes of memory; what a system keeps of a measured one is not missed."""
    is_kept = measured and operator == "ge" and isinstance(wanted, int) and wanted <= actual * _KEPT // (_KEPT - 1)
    return Truth.YES if is_kept else compare(operator, actual, wanted)


def compare_feature(operator: Operator, actual: Value, wanted: Value) -> Truth:
    """Compare with signed features; one that is neither added nor removed is not known."""
    signs = actual if isinstance(actual, tuple) else ()
    sign, other = ("+", "-") if operator == "has" else ("-", "+")
    if f"{sign}{wanted}" in signs:
        return Truth.YES
    return Truth.NO if f"{other}{wanted}" in signs else Truth.UNKNOWN


def doublings(one: object, other: object) -> float | None:
    """Return how many factors of two are between two positive numbers or compute capabilities; None for other values.

    >>> doublings(4, 16), doublings("sm_80", "sm_90a") is not None, doublings("skylake", "znver3")
    (2.0, True, None)
    """
    left, right = _size(one), _size(other)
    return abs(log2(left / right)) if left and right else None


def _size(value: object) -> int | None:
    if isinstance(value, str) and (arch := NvidiaArch.parse(value)) is not None:
        return 10 * arch.major + arch.minor
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def compare(operator: Operator, actual: Value, wanted: Value, *, measured: bool = False) -> Truth:
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
        return _compare_names(operator, actual, wanted, measured=measured)
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
    if not isinstance(value, str):
        return False
    arch = NvidiaArch.parse(value)
    if operator == "ge" and is_ordered(value):
        return True
    return _LEVEL.fullmatch(value) is not None or (arch is not None and not arch.suffix)


def _truth(holds: bool) -> Truth:
    return Truth.YES if holds else Truth.NO


def _is_equal(one: Value, other: Value) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _is_version(value: Value) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(isinstance(item, int) for item in value)


def _holds(operator: Operator, left: tuple[int, ...], right: tuple[int, ...]) -> Truth:
    holds = {"ge": left >= right, "le": left <= right, "gt": left > right, "lt": left < right}[operator]
    return _truth(holds)


def _compare_names(operator: Operator, actual: str, wanted: str, *, measured: bool) -> Truth:
    """Compare two names of one series; names that are in no series are not comparable."""
    if actual == wanted and operator in ("ge", "le"):
        return Truth.YES
    if operator == "ge" and (answer := has_instructions(actual, wanted, measured=measured)) is not None:
        return _truth(answer)
    here, there = NvidiaArch.parse(actual), NvidiaArch.parse(wanted)
    if here is not None and there is not None and not there.suffix:
        return _holds(operator, here.capability, there.capability)
    levels = _LEVEL.fullmatch(actual), _LEVEL.fullmatch(wanted)
    if levels[0] is not None and levels[1] is not None:
        return _holds(operator, (int(levels[0][1]),), (int(levels[1][1]),))
    return Truth.UNKNOWN


def _runs_triple(actual: str, wanted: str) -> bool:
    """Whether two triples are of one architecture and system; what either leaves open is no difference."""
    try:
        here, there = Triple.parse(actual), Triple.parse(wanted)
    except TargetError:
        return actual == wanted
    systems = ["macos" if triple.os == "darwin" else triple.os for triple in (here, there)]
    environments = [here.environment, there.environment]
    return here.arch == there.arch and all("" in pair or pair[0] == pair[1] for pair in (systems, environments))
