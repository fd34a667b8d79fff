"""Contradictions between the conditions of one constraint, such as `num-cores>=8,num-cores<8` and `+avx512f,-avx2`.

The check is conservative: conditions are reported only where it is certain that no value meets all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvmtarget.target.attributes import Value
from tvmtarget.target.constraints.attribute_comparison import ORDERED, Operator, canonical, compare
from tvmtarget.target.constraints.conditions import Condition
from tvmtarget.target.constraints.instructions import all_implied_features, level_features
from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.problems import shown

__all__ = ["contradictions"]

_MAX_VALUES = 64  # integers of a range that are tried one by one


def contradictions(conditions: Sequence[Condition]) -> Iterator[str]:
    """Find conditions that no node can meet together.

    Args:
        conditions: The conditions of one constraint, in any order.

    Yields:
        A message for each attribute whose conditions no value meets, then one for each feature that is both
        required and excluded.
    """
    groups: dict[str, list[Condition]] = {}
    for condition in conditions:
        # `mcpu>=haswell` compares features, while `mcpu=haswell` compares names, so the two are independent.
        is_level = condition.name == "mcpu" and condition.operator in ORDERED
        groups.setdefault("mcpu by level" if is_level else condition.name, []).append(condition)
    for group in groups.values():
        if not _exclude(group):
            continue
        name, texts = group[0].name, sorted({str(condition) for condition in group})
        if len(texts) > 1 and all(condition.operator == "eq" for condition in group):
            values = "|".join(text.partition("=")[2] for text in texts)
            yield f"{name!r} has one value, so it cannot meet {' and '.join(texts)}; write {name}={values} for either"
        else:
            yield f"no value of {name!r} meets {' and '.join(texts)}"
    excluded = {str(c.value) for c in conditions if c.name == "+" and c.operator == "lacks"}
    for condition in conditions:
        for feature in sorted(_required_features(condition) & excluded):
            if str(condition.value) == feature:
                yield f"feature {shown(feature)} is both required and excluded"
            else:
                yield f"{condition} needs {shown(feature)}, which -{feature} excludes"


def _required_features(condition: Condition) -> frozenset[str]:
    """Return the features that every node has which meets a condition."""
    if condition.name == "+" and condition.operator == "has":
        return all_implied_features([str(condition.value)])
    is_level = condition.name == "mcpu" and condition.operator in ("ge", "gt")
    return level_features(str(condition.value)) if is_level else frozenset()


def _exclude(conditions: Sequence[Condition]) -> bool:
    """Whether no value meets all of the conditions on one attribute."""
    values = _candidates(conditions)
    if values is not None:
        return not values
    has = {condition.value for condition in conditions if condition.operator == "has"}
    if has & {condition.value for condition in conditions if condition.operator == "lacks"}:
        return conditions[0].name != "+"  # features are compared with all that they need, by the caller
    lower = [condition for condition in conditions if condition.operator in ("ge", "gt")]
    upper = [condition for condition in conditions if condition.operator in ("le", "lt")]
    return any(_are_disjoint(low, high) for low in lower for high in upper)


def _candidates(conditions: Sequence[Condition]) -> list[Value] | None:
    """Return the values that can meet all conditions, or None where they cannot be listed."""
    conditions = [condition.replace(value=canonical(condition.name, condition.value)) for condition in conditions]
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
    """Return the integers between the bounds, or None where a bound is absent or there are too many."""
    low = [c.value + (c.operator == "gt") for c in conditions if c.operator in ("ge", "gt") and type(c.value) is int]
    high = [c.value - (c.operator == "lt") for c in conditions if c.operator in ("le", "lt") and type(c.value) is int]
    if not low or not high or min(high) - max(low) > _MAX_VALUES:
        return None
    return list(range(max(low), min(high) + 1))


def _are_disjoint(low: Condition, high: Condition) -> bool:
    """Whether a lower bound is above an upper bound."""
    is_strict = low.operator == "gt" or high.operator == "lt"
    operator: Operator = "lt" if is_strict else "le"
    return compare(operator, low.value, high.value) is Truth.NO
