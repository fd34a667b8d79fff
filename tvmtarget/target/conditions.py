"""Conditions on one attribute of a target, and answers of three values with their reasons."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Literal, TypeAlias, cast

from tvmtarget.errors import TargetError, UnknownNameError, did_you_mean
from tvmtarget.target.attributes import Value, Word
from tvmtarget.target.grammar import is_word
from tvmtarget.target.kinds import Attribute, Kind, find_kind, kind_names
from tvmtarget.target.node import Node
from tvmtarget.target.problems import shown
from tvmtarget.target.text import write_value
from tvmtarget.target.tree import Target
from tvmtarget.target.values import read_opaque, read_value

__all__ = [
    "Condition",
    "Operator",
    "Reason",
    "Truth",
    "conditions_from_json",
    "conditions_to_json",
    "read_condition",
]

Operator: TypeAlias = Literal["has", "lacks", "eq", "ne", "ge", "le", "gt", "lt"]

_PRINTED: dict[Operator, str] = {"eq": "=", "ne": "!=", "ge": ">=", "le": "<=", "gt": ">", "lt": "<"}
_ORDERED: tuple[Operator, ...] = ("ge", "le", "gt", "lt")
_OPERATORS: tuple[Operator, ...] = ("has", "lacks", "eq", "ne", *_ORDERED)

# Names that are numbered in an order: NVIDIA's compute capabilities and the levels of x86-64. A suffix means
# features of one chip (a) or one family (f), so `>=sm_90a` is not met by sm_100
# (CUDA C++ programming guide, "Feature set compiler targets").
_SERIES = (re.compile(r"(sm_)([0-9]+)([af]?)"), re.compile(r"(x86-64-v)([0-9]+)()"))


class Truth(IntEnum):
    """The three values of an answer, ordered so that `min` is "and" and `max` is "or"."""

    NO = 0
    UNKNOWN = 1
    YES = 2


class Reason(Node):
    """An answer and what it rests on."""

    truth: Truth
    text: str
    parts: tuple[Reason, ...] = ()

    def __bool__(self) -> bool:
        return self.truth is Truth.YES

    def lines(self, depth: int = 0) -> Iterator[str]:
        """Yield the tree of reasons, one line each, indented."""
        yield f"{'  ' * depth}{self.truth.name} {self.text}"
        for part in self.parts:
            yield from part.lines(depth + 1)

    def __str__(self) -> str:
        return "\n".join(self.lines())


class Condition(Node):
    """A comparison with one attribute: `num-cores>=4`, or a feature that is there (`has`) or not (`lacks`)."""

    name: str
    operator: Operator
    value: bool | int | str | tuple[str, ...] | tuple[int, ...]

    def __str__(self) -> str:
        if self.operator in ("has", "lacks"):
            return f"{'+' if self.operator == 'has' else '-'}{self.value}"
        value = list(self.value) if isinstance(self.value, tuple) else self.value
        return f"{self.name}{_PRINTED[self.operator]}{write_value(value)}"

    @property
    def order(self) -> tuple[int, str, str]:
        """Where it stands among others: features first, then by attribute."""
        return _OPERATORS.index(self.operator) if self.name == "+" else len(_OPERATORS), self.name, str(self)

    def check(self, target: Target) -> Reason:
        """Compare with a target's own or default value."""
        kind = find_kind(target.kind)
        row = self._row(kind) if kind is not None else None
        if kind is not None and row is None:
            return Reason(truth=Truth.NO, text=f"{self}: kind {target.kind!r} has no such attribute")
        actual = target.attrs.get(self.name) if row is None else target[row.name]
        if actual is None:
            return Reason(truth=Truth.UNKNOWN, text=f"{self}: the target does not say")
        truth = _compare(self.operator, actual, self.value if row is None else self._as(row))
        return Reason(truth=truth, text=f"{self}: it is {_shown(actual)}")

    def _row(self, kind: Kind) -> Attribute | None:
        return kind.features if self.name == "+" else kind.attribute(self.name)

    def _as(self, row: Attribute) -> Value:
        """Return the value as a row's type, which was not known if the condition is on a key."""
        if row.type == "features":
            return self.value
        try:
            return read_value(row.type, str(self.value).lower() if isinstance(self.value, bool) else self.value)
        except ValueError:
            return self.value


def _shown(value: Value) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def _compare(operator: Operator, actual: Value, wanted: Value) -> Truth:
    if operator in ("has", "lacks"):
        sign, other = ("+", "-") if operator == "has" else ("-", "+")
        features = actual if isinstance(actual, tuple) else ()
        if f"{sign}{wanted}" in features:
            return Truth.YES
        return Truth.NO if f"{other}{wanted}" in features else Truth.UNKNOWN
    if operator in ("eq", "ne"):
        return Truth.YES if (actual == wanted) == (operator == "eq") else Truth.NO
    if isinstance(actual, int) and isinstance(wanted, int):
        return _holds(operator, actual, wanted)
    if isinstance(actual, str) and isinstance(wanted, str):
        return _compare_names(operator, actual, wanted)
    return Truth.UNKNOWN


def _holds(operator: Operator, left: int, right: int) -> Truth:
    holds = {"ge": left >= right, "le": left <= right, "gt": left > right, "lt": left < right}[operator]
    return Truth.YES if holds else Truth.NO


def _compare_names(operator: Operator, actual: str, wanted: str) -> Truth:
    """Compare two names of one series by number; names that are in no series are not comparable."""
    left, right = _numbered(actual), _numbered(wanted)
    if left is None or right is None or left[0] != right[0] or not _has_order(operator, wanted):
        return Truth.UNKNOWN
    if right[2] == "a":  # features of one chip: no other has them
        return Truth.YES if actual == wanted else Truth.NO
    if right[2] == "f":  # features of one family: chips of the same ten, from this one on
        is_family = left[2] != "" and left[1] // 10 == right[1] // 10
        return Truth.YES if is_family and left[1] >= right[1] else Truth.NO
    return _holds(operator, left[1], right[1])


def _numbered(name: str) -> tuple[str, int, str] | None:
    found = next((match for series in _SERIES if (match := series.fullmatch(name))), None)
    return None if found is None else (found.group(1), int(found.group(2)), found.group(3))


def read_condition(word: str, name: str, operator: Operator, value: object) -> Condition:
    """Read a condition on targets of a kind or with a key; `TargetError` or `UnknownNameError` says what is wrong."""
    kind = find_kind(word)
    if operator in ("has", "lacks"):
        return _read_feature(kind, operator, value)
    row = _row(word, name)
    try:
        read = _literal(value) if kind is None or row is None else read_value(row.type, value)
    except ValueError as error:
        raise TargetError(f"attribute {name!r} of {word!r} {error}") from error
    if operator in _ORDERED and not _has_order(operator, read):
        raise TargetError(f"{_shown(read)!r} has no order, so {name}{_PRINTED[operator]} says nothing; use = or !=")
    return Condition(name=row.name if row else name, operator=operator, value=read)


def _read_feature(kind: Kind | None, operator: Operator, value: object) -> Condition:
    if not isinstance(value, str) or not is_word(value):
        raise TargetError(f"a feature is a word such as 'avx2', not {shown(value)}")
    if kind is not None and kind.features is None:
        raise TargetError(kind.without_features([f"{'+' if operator == 'has' else '-'}{value}"]))
    return Condition(name="+", operator=operator, value=str(value))


def _row(word: str, name: str) -> Attribute | None:
    """Return the row of an attribute in the kind, or in the first kind with the key; None for an unknown word."""
    kinds = [kind for known in kind_names() if (kind := find_kind(known)) and word in (kind.name, *kind.keys)]
    kinds = [kind for kind in kinds if kind.name == word] or kinds
    row = next((row for kind in kinds if (row := kind.attribute(name))), None)
    if row is None and len(kinds) == 1:
        raise UnknownNameError(kinds[0].unknown(name))
    if row is None and kinds:
        near = did_you_mean(name, (row.name for kind in kinds for row in kind.attributes))
        near = near or "; `tvmtarget kinds NAME` lists those of a kind"
        raise UnknownNameError(f"no kind with key {word!r} has an attribute {name!r}{near}")
    return row


def _literal(value: object) -> Value:
    """Read a value whose type is not known before it meets a target: a number or a truth where it looks like one."""
    if isinstance(value, Word) and "+" in value.strip("+"):
        value = value.split("+")
    if isinstance(value, list | tuple):
        return read_opaque([_scalar(item) for item in value])
    return read_opaque(_scalar(value))


def _scalar(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,16}", value):
        return int(value)
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def _has_order(operator: Operator, value: Value) -> bool:
    """Whether values can be compared by size with this one: numbers, and names of a series."""
    if isinstance(value, bool | int):
        return not isinstance(value, bool)
    series = _numbered(value) if isinstance(value, str) else None
    return series is not None and (not series[2] or operator == "ge")


def conditions_to_json(word: str, conditions: Iterable[Condition]) -> dict[str, object]:
    """Return conditions by attribute: a value alone must be equal, an object holds operators.

    Of features the attribute's name is the kind's, or `mattr` where the word is a key.
    """
    kind = find_kind(word)
    features = kind.features.name if kind is not None and kind.features is not None else "mattr"
    flat: dict[str, list[dict[str, object]]] = {}
    for condition in conditions:
        is_feature = condition.operator in ("has", "lacks")
        name = features if is_feature else condition.name
        value: object = list(condition.value) if isinstance(condition.value, tuple) else condition.value
        objects = flat.setdefault(name, [{}])
        if is_feature:
            cast("list[object]", objects[0].setdefault(condition.operator, [])).append(value)
        elif condition.operator in objects[-1]:
            objects.append({condition.operator: value})
        else:
            objects[-1][condition.operator] = value
    return {name: _shortest(objects) for name, objects in flat.items()}


def _shortest(objects: list[dict[str, object]]) -> object:
    if len(objects) > 1:
        return objects
    return objects[0]["eq"] if objects[0].keys() == {"eq"} else objects[0]


def conditions_from_json(word: str, flat: Mapping[str, object]) -> Iterator[Condition]:
    """Yield the conditions that `conditions_to_json` writes."""
    for name, value in flat.items():
        several = value if isinstance(value, list) and value and isinstance(value[0], Mapping) else [value]
        for item in several:
            for operator, wanted in (item if isinstance(item, Mapping) else {"eq": item}).items():
                if operator not in _OPERATORS:
                    known = ", ".join(_OPERATORS)
                    raise TargetError(f"{shown(operator)} of {name!r} is no comparison; use one of {known}")
                is_several = operator in ("has", "lacks") and isinstance(wanted, list)
                for one in cast("list[object]", wanted) if is_several else [wanted]:
                    yield read_condition(word, name, operator, one)
