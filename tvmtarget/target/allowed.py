"""What follows from conditions on one attribute, and when they exclude each other.

Both answers are proofs: True is certain, False means that no proof was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tvmtarget.target.attributes import Value
from tvmtarget.target.comparing import ORDERED, Operator, compare
from tvmtarget.target.conditions import Condition
from tvmtarget.target.reasons import Truth

__all__ = ["contradictions", "excludes", "follows"]

_MAX_VALUES = 64  # of a range of numbers that are tried one by one


def contradictions(conditions: Sequence[Condition]) -> Iterator[str]:
    """Yield a message for each attribute whose conditions no value meets."""
    for group in _by_attribute(conditions):
        if not excludes(group):
            continue
        name, texts = group[0].name, sorted({str(condition) for condition in group})
        if name == "+":
            both = sorted(
                {str(c.value) for c in group if c.operator == "has"}
                & {str(c.value) for c in group if c.operator == "lacks"}
            )
            yield from (f"feature {feature!r} is both asked for and refused" for feature in both)
        elif len(texts) > 1 and all(condition.operator == "eq" for condition in group):
            values = "|".join(text.partition("=")[2] for text in texts)
            yield f"{name!r} has one value, so it cannot meet {' and '.join(texts)}; write {name}={values} for either"
        else:
            yield f"no value of {name!r} meets {' and '.join(texts)}"


def _by_attribute(conditions: Iterable[Condition]) -> Iterable[list[Condition]]:
    groups: dict[str, list[Condition]] = {}
    for condition in conditions:
        groups.setdefault(condition.name, []).append(condition)
    return groups.values()


def excludes(conditions: Sequence[Condition]) -> bool:
    """Whether no value meets all of the conditions on one attribute."""
    values = _values(conditions)
    if values is not None:
        return not values
    has = {condition.value for condition in conditions if condition.operator == "has"}
    if has & {condition.value for condition in conditions if condition.operator == "lacks"}:
        return True
    least, most = _bounds(conditions, ("ge", "gt")), _bounds(conditions, ("le", "lt"))
    return any(_are_apart(low, high) for low in least for high in most)


def follows(wanted: Condition, given: Sequence[Condition]) -> bool:
    """Whether a value that meets all given conditions, of which there is one or more, meets another."""
    if not given:
        return False
    if wanted in given or excludes(given):
        return True
    values = _values(given)
    if values is not None:
        return all(compare(wanted.operator, value, wanted.value) is Truth.YES for value in values)
    if wanted.operator == "ne":
        return excludes([*given, Condition(name=wanted.name, operator="eq", value=wanted.value)])
    return any(_is_stronger(condition, wanted) for condition in given)


def _values(conditions: Sequence[Condition]) -> list[Value] | None:
    """Return the values that can meet all conditions, or None where they are not to be counted."""
    found: list[Value] | None = None
    for condition in conditions:
        if condition.operator == "eq":
            found = [condition.value]
        elif condition.operator == "in" and isinstance(condition.value, tuple) and found is None:
            found = list(condition.value)
    found = _range(conditions) if found is None else found
    if found is None:
        return None
    return [value for value in found if all(compare(c.operator, value, c.value) is not Truth.NO for c in conditions)]


def _range(conditions: Sequence[Condition]) -> list[Value] | None:
    low = [c.value + (c.operator == "gt") for c in conditions if c.operator in ("ge", "gt") and type(c.value) is int]
    high = [c.value - (c.operator == "lt") for c in conditions if c.operator in ("le", "lt") and type(c.value) is int]
    if not low or not high or min(high) - max(low) > _MAX_VALUES:
        return None
    return list(range(max(low), min(high) + 1))


def _bounds(conditions: Sequence[Condition], operators: tuple[Operator, ...]) -> list[Condition]:
    return [condition for condition in conditions if condition.operator in operators]


def _are_apart(low: Condition, high: Condition) -> bool:
    is_strict = low.operator == "gt" or high.operator == "lt"
    return compare("lt" if is_strict else "le", low.value, high.value) is Truth.NO


def _is_stronger(given: Condition, wanted: Condition) -> bool:
    """Whether one bound implies another: `>=8` says more than `>=4`, and `>4` than `>=4`."""
    if wanted.operator not in ORDERED or given.operator not in ORDERED or given.operator[0] != wanted.operator[0]:
        return False
    needs_more = wanted.operator in ("gt", "lt") and given.operator in ("ge", "le")
    up = wanted.operator[0] == "g"
    operator: Operator = ("gt" if up else "lt") if needs_more else ("ge" if up else "le")
    return compare(operator, given.value, wanted.value) is Truth.YES
