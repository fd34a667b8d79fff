"""Compare two values of one device attribute by the class of the attribute.

    hard              equal; triples by their normalized form; API versions at least as new
    isa               GPU instruction sets by `gpu_archs.py`, those of CPUs by their features (`instructions.py`)
    capacity, scale   at least as large
    model, soft, none not compared

`measured` marks a left value that was measured on a machine rather than written in a target. A measured chip has the
features of its own compute capability even if its name has no suffix, firmware reserves a part of a measured memory,
and a measured triple may omit the system or the environment. `Target.satisfies`, `why_not`, the search for tags and the
distance between devices in the tuning log all use these functions.

Integers compare by size, names of a series by their number, lists as sets. Lists of integers are versions: `[8, 6]` is
newer than `[8, 5, 3]`.
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

_LEVEL = re.compile(r"x86-64-v([0-9]{1,4})")

_UNCOMPARED = frozenset({"model", "soft", "none"})
_GROWING = frozenset({"isa", "capacity", "scale"})

# Versions of an interface, each of which has all of the older ones (Vulkan specification, "Version Numbers").
_VERSIONS = frozenset({"vulkan_api_version", "max_spirv_version"})

# Firmware and kernel reserve at most an eighth of the memory that a data sheet states.
_RESERVED_SHARE = 8


def required_operator(row: Attribute, value: Value) -> Operator | None:
    """Return the operator with which a machine must compare to a value of a target.

    Args:
        row: The attribute.
        value: The value that the target states.

    Returns:
        `ge` for capacities, scales, instruction sets and API versions that have an order, `eq` for other compared
        attributes, None for attributes that are not compared.
    """
    if row.class_ in _UNCOMPARED:
        return None
    grows = row.class_ in _GROWING or row.name in _VERSIONS
    return "ge" if grows and has_order("ge", value) else "eq"


def compare_attribute(
    name: str, operator: Operator, actual: Value, required: Value, *, measured: bool = False
) -> Truth:
    """Decide whether the value of an attribute meets a comparison.

    Args:
        name: The canonical name of the attribute.
        operator: The comparison.
        actual: The value that the device has.
        required: The value to compare with; a tuple of alternatives for `in`.
        measured: Whether `actual` was measured (see the module docstring).

    Returns:
        YES or NO, or UNKNOWN for values without an order between them.
    """
    # A measured triple may omit components, so the normalized forms can differ on the same platform.
    if name == "mtriple" and measured and operator in ("eq", "ne"):
        return Truth.of(_is_same_platform(str(actual), str(required)) == (operator == "eq"))
    if name == "mtriple" and measured and operator == "in" and isinstance(required, tuple):
        return Truth.of(any(_is_same_platform(str(actual), str(option)) for option in required))
    return compare(operator, canonical(name, actual), canonical(name, required), measured=measured)


def compare_memory(operator: Operator, actual: int, required: Value, *, measured: bool = False) -> Truth:
    """Compare memory capacities; a measured one may lack what firmware and kernel reserve.

    Args:
        operator: The comparison.
        actual: The capacity of the device, in bytes.
        required: The capacity to compare with, in bytes.
        measured: Whether `actual` was measured.

    Returns:
        YES or NO, or UNKNOWN if `required` is not an integer.
    """
    nominal = actual * _RESERVED_SHARE // (_RESERVED_SHARE - 1)
    is_enough = measured and operator == "ge" and isinstance(required, int) and required <= nominal
    return Truth.YES if is_enough else compare(operator, actual, required)


def compare_feature(operator: Operator, actual: Value, required: Value) -> Truth:
    """Look up a feature in a list of signed features.

    Args:
        operator: `has` or `lacks`.
        actual: Signed features, such as `("+neon", "-sve")`.
        required: The feature without a sign.

    Returns:
        YES or NO by the sign of the feature, UNKNOWN if it is not in the list.
    """
    signs = actual if isinstance(actual, tuple) else ()
    sign, opposite = ("+", "-") if operator == "has" else ("-", "+")
    if f"{sign}{required}" in signs:
        return Truth.YES
    return Truth.NO if f"{opposite}{required}" in signs else Truth.UNKNOWN


def doublings(left: object, right: object) -> float | None:
    """Return the distance of two values in powers of two.

    Args:
        left: A positive integer or a compute capability such as `sm_80`.
        right: The value to compare with.

    Returns:
        The absolute binary logarithm of the ratio, or None for values of other types.

    >>> doublings(4, 16), doublings("sm_80", "sm_90a") is not None, doublings("skylake", "znver3")
    (2.0, True, None)
    """
    sizes = _size(left), _size(right)
    return abs(log2(sizes[0] / sizes[1])) if sizes[0] and sizes[1] else None


def _size(value: object) -> int | None:
    if isinstance(value, str) and (arch := NvidiaArch.parse(value)) is not None:
        return 10 * arch.major + arch.minor
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def compare(operator: Operator, actual: Value, required: Value, *, measured: bool = False) -> Truth:
    """Decide whether a canonical value meets a comparison.

    Args:
        operator: The comparison.
        actual: The value on the left.
        required: The value on the right; a tuple of alternatives for `in`.
        measured: Whether `actual` was measured.

    Returns:
        YES or NO, or UNKNOWN for values without an order between them.
    """
    match operator:
        case "has" | "lacks":
            is_item = isinstance(actual, tuple) and required in actual
            return Truth.of(is_item == (operator == "has"))
        case "eq" | "ne":
            return Truth.of(_is_equal(actual, required) == (operator == "eq"))
        case "in":
            return Truth.of(isinstance(required, tuple) and any(_is_equal(actual, option) for option in required))
    if isinstance(actual, int) and isinstance(required, int):
        return _holds(operator, (actual,), (required,))
    if isinstance(actual, str) and isinstance(required, str):
        return _compare_names(operator, actual, required, measured=measured)
    if _is_version(actual) and _is_version(required):
        return _holds(operator, actual, required)
    return Truth.UNKNOWN


def canonical(name: str, value: Value) -> Value:
    """Return a form of a value in which equivalent spellings are equal.

    Args:
        name: The canonical name of the attribute.
        value: A value, or a tuple of alternatives.

    Returns:
        The key of a triple (`Triple.key`); other values unchanged.
    """
    if name != "mtriple":
        return value
    if isinstance(value, tuple):
        return tuple(str(canonical(name, str(option))) for option in value)
    try:
        return Triple.parse(str(value)).key
    except TargetError:
        return value


def has_order(operator: Operator, value: Value) -> bool:
    """Whether an ordered comparison with a value has a meaning.

    Args:
        operator: The comparison; `ge` also orders GPU architectures with feature suffixes and AMD's generic names.
        value: The value to compare with.

    Returns:
        True for integers, versions, x86-64 levels and GPU architectures that have an order.
    """
    if isinstance(value, bool | int):
        return not isinstance(value, bool)  # a bool is an int in Python
    if _is_version(value):
        return bool(value)
    if not isinstance(value, str):
        return False
    arch = NvidiaArch.parse(value)
    if operator == "ge" and is_ordered(value):
        return True
    # Names with a suffix have no order downwards: sm_100 is later than sm_90a and does not run its code.
    return _LEVEL.fullmatch(value) is not None or (arch is not None and not arch.suffix)


def _is_equal(left: Value, right: Value) -> bool:
    # True == 1 in Python, but a flag is no number.
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _is_version(value: Value) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(isinstance(item, int) for item in value)


def _holds(operator: Operator, left: tuple[int, ...], right: tuple[int, ...]) -> Truth:
    holds = {"ge": left >= right, "le": left <= right, "gt": left > right, "lt": left < right}[operator]
    return Truth.of(holds)


def _compare_names(operator: Operator, actual: str, required: str, *, measured: bool) -> Truth:
    """Compare two names of one series (GPU architectures, x86-64 levels); other names have no order."""
    if actual == required and operator in ("ge", "le"):
        return Truth.YES
    if operator == "ge" and (answer := has_instructions(actual, required, measured=measured)) is not None:
        return Truth.of(answer)
    left, right = NvidiaArch.parse(actual), NvidiaArch.parse(required)
    if left is not None and right is not None and not right.suffix:
        return _holds(operator, left.capability, right.capability)
    # Levels of the x86-64 psABI, each of which contains the lower ones.
    levels = _LEVEL.fullmatch(actual), _LEVEL.fullmatch(required)
    if levels[0] is not None and levels[1] is not None:
        return _holds(operator, (int(levels[0][1]),), (int(levels[1][1]),))
    return Truth.UNKNOWN


def _is_same_platform(actual: str, required: str) -> bool:
    """Whether two triples have one architecture, system and environment; a component that either omits matches."""
    try:
        left, right = Triple.parse(actual), Triple.parse(required)
    except TargetError:
        return actual == required
    systems = ["macos" if triple.os == "darwin" else triple.os for triple in (left, right)]
    environments = [left.environment, right.environment]
    return left.arch == right.arch and all("" in pair or pair[0] == pair[1] for pair in (systems, environments))
