"""What follows from conditions on one attribute, and when they exclude each other.

Both answers are proofs: True is certain, False means that no proof was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tvmtarget.target.attributes import Value
from tvmtarget.target.constraints.attribute_comparison import ORDERED, Operator, canonical, compare
from tvmtarget.target.constraints.conditions import Condition
from tvmtarget.target.constraints.instructions import all_needed, level, needed, runs_all_of
from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.problems import shown

__all__ = ["contradictions", "excludes", "follows", "refutes"]

_MAX_VALUES = 64  # of a range of numbers that are tried one by one


def contradictions(conditions: Sequence[Condition]) -> Iterator[str]:
    """Yield a message for each attribute whose conditions no value meets."""
    for group in _by_attribute(conditions):
        name, texts = group[0].name, sorted({str(condition) for condition in group})
        if not _excludes(group):
            continue
        if len(texts) > 1 and all(condition.operator == "eq" for condition in group):
            values = "|".join(text.partition("=")[2] for text in texts)
            yield f"{name!r} has one value, so it cannot meet {' and '.join(texts)}; write {name}={values} for either"
        else:
            yield f"no value of {name!r} meets {' and '.join(texts)}"
    yield from (
        f"{wanted} needs {shown(feature)}, which -{feature} refuses"
        if str(wanted.value) != feature
        else f"feature {shown(feature)} is both asked for and refused"
        for wanted in conditions
        for feature in sorted(_had([wanted]) & _lacked(conditions))
    )


def _by_attribute(conditions: Iterable[Condition]) -> Iterable[list[Condition]]:
    groups: dict[str, list[Condition]] = {}
    for condition in conditions:
        groups.setdefault(_subject(condition), []).append(condition)
    return groups.values()


def _subject(condition: Condition) -> str:
    """Return what a condition speaks of: the order of CPUs is one of their features, not of their names."""
    is_level = condition.name == "mcpu" and condition.operator in ORDERED
    return "+mcpu" if is_level else condition.name


def _beside(condition: Condition, given: Iterable[Condition]) -> list[Condition]:
    return [one for one in given if _subject(one) == _subject(condition)]


def excludes(conditions: Sequence[Condition]) -> bool:
    """Whether no node meets all of the conditions."""
    return any(map(_excludes, _by_attribute(conditions))) or bool(_had(conditions) & _lacked(conditions))


def refutes(given: Sequence[Condition], wanted: Condition) -> bool:
    """Whether a node that meets all given conditions is known to fail another."""
    own = _beside(wanted, given)
    if own and _excludes([*own, wanted]):
        return True
    return bool((_had([wanted]) & _lacked(given)) | (_had(given) & _lacked([wanted])))


def follows(wanted: Condition, given: Sequence[Condition]) -> bool:
    """Whether a node that meets all given conditions is known to meet another."""
    own = _beside(wanted, given)
    if wanted in own or excludes(given):
        return True
    if wanted.name == "+":
        feature = str(wanted.value)
        return feature in _had(given) if wanted.operator == "has" else bool(needed(feature) & _lacked(given))
    if not own:
        return False
    values = _values(own)
    if values is not None:
        value_of_wanted = canonical(wanted.name, wanted.value)
        return all(compare(wanted.operator, value, value_of_wanted) is Truth.YES for value in values)
    if wanted.operator == "ne":
        return _excludes([*own, Condition(name=wanted.name, operator="eq", value=wanted.value)])
    return any(_is_stronger(condition, wanted) for condition in own)


def _had(conditions: Iterable[Condition]) -> frozenset[str]:
    """Return the features that a node has which meets conditions."""
    found = all_needed(
        str(condition.value) for condition in conditions if condition.name == "+" and condition.operator == "has"
    )
    return found.union(*(level(str(c.value)) for c in conditions if c.name == "mcpu" and c.operator in ("ge", "gt")))


def _lacked(conditions: Iterable[Condition]) -> frozenset[str]:
    return frozenset(str(c.value) for c in conditions if c.name == "+" and c.operator == "lacks")


def _excludes(conditions: Sequence[Condition]) -> bool:
    """Whether no value meets all of the conditions on one attribute."""
    values = _values(conditions)
    if values is not None:
        return not values
    has = {condition.value for condition in conditions if condition.operator == "has"}
    if has & {condition.value for condition in conditions if condition.operator == "lacks"}:
        return conditions[0].name != "+"
    least, most = _bounds(conditions, ("ge", "gt")), _bounds(conditions, ("le", "lt"))
    return any(_are_apart(low, high) for low in least for high in most)


def _values(conditions: Sequence[Condition]) -> list[Value] | None:
    """Return the values that can meet all conditions, or None where they are not to be counted."""
    found: list[Value] | None = None
    conditions = [condition.replace(value=canonical(condition.name, condition.value)) for condition in conditions]
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
    if wanted.name == "mcpu" and wanted.operator == "ge" and runs_all_of(str(given.value), str(wanted.value)):
        return given.operator in ("ge", "gt")
    if wanted.operator not in ORDERED or given.operator not in ORDERED or given.operator[0] != wanted.operator[0]:
        return False
    given, wanted = _whole(given), _whole(wanted)
    needs_more = wanted.operator in ("gt", "lt") and given.operator in ("ge", "le")
    up = wanted.operator[0] == "g"
    operator: Operator = ("gt" if up else "lt") if needs_more else ("ge" if up else "le")
    return compare(operator, given.value, wanted.value) is Truth.YES


def _whole(condition: Condition) -> Condition:
    """Return a bound of whole numbers with its end in it: `>3` is `>=4`."""
    if type(condition.value) is not int or condition.operator not in ("gt", "lt"):
        return condition
    is_low = condition.operator == "gt"
    return condition.replace(operator="ge" if is_low else "le", value=condition.value + (1 if is_low else -1))
