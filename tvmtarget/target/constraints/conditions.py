"""Conditions on one attribute of a node: reading, printing and checking them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from tvmtarget.errors import TargetError, TvmTargetError, UnknownNameError, did_you_mean
from tvmtarget.target.attributes import Attributes, Value, Word, fold
from tvmtarget.target.constraints.attribute_comparison import (
    ORDERED,
    Operator,
    compare_attribute,
    compare_feature,
    compare_memory,
    has_order,
)
from tvmtarget.target.constraints.instructions import (
    check_cpu,
    check_feature,
    check_vector_width,
    cpu_names,
    is_known_cpu,
)
from tvmtarget.target.constraints.node_context import NodeContext
from tvmtarget.target.constraints.reasons import Reason, Truth
from tvmtarget.target.cpu.isa import is_cpu
from tvmtarget.target.kinds import Attribute, Kind, Role, find_kind, kind_names
from tvmtarget.target.node import Node
from tvmtarget.target.problems import shown
from tvmtarget.target.text.printing import write_value
from tvmtarget.target.text.words import is_word
from tvmtarget.target.values import read_items, read_opaque

__all__ = ["FIELDS", "Condition", "conditions_from_json", "conditions_to_json", "read_conditions"]

# Facts of every node that conditions can name besides the attributes of its kind.
FIELDS = {
    row.name: row
    for row in (
        Attribute(name="count", type="int", class_="capacity", least=1, doc="identical replicas"),
        Attribute(name="memory", type="int", class_="capacity", doc="bytes of all memories for tensors that it sees"),
        Attribute(name="keys", type="list[str]", class_="hard", doc="dispatch keys, the kind's and its own"),
    )
}

_PRINTED: dict[Operator, str] = {
    "eq": "=",
    "ne": "!=",
    "ge": ">=",
    "le": "<=",
    "gt": ">",
    "lt": "<",
    "has": "+=",
    "lacks": "-=",
}
_OPERATORS: tuple[Operator, ...] = ("has", "lacks", "eq", "ne", "in", *ORDERED)


class Condition(Node):
    """Comparison of one attribute with a value: `num-cores>=4`, `arch=sm_80|sm_90`, `libs+=cblas`.

    The name `+` means the instruction set features of a kind: `+avx2` (has), `-sse4a` (lacks).
    """

    name: str
    operator: Operator
    value: bool | int | str | tuple[str, ...] | tuple[int, ...]

    def __str__(self) -> str:
        if self.name == "+":
            return f"{'+' if self.operator == 'has' else '-'}{self.value}"
        if self.operator != "in" or not isinstance(self.value, tuple):
            value = list(self.value) if isinstance(self.value, tuple) else self.value
            return f"{self.name}{_PRINTED[self.operator]}{write_value(value)}"
        options = [str(option) for option in self.value]
        if len(options) > 1 and all(map(is_word, options)):
            return f"{self.name}={'|'.join(options)}"
        # The grammar has no alternatives of one value or with spaces; JSON is part of it, so the text parses again.
        return f"{self.name}={json.dumps({'in': list(self.value)}, ensure_ascii=False, separators=(',', ':'))}"

    @property
    def order(self) -> tuple[int, str, str]:
        """Sort key in canonical order: features first, then attributes by name."""
        return _OPERATORS.index(self.operator) if self.name == "+" else len(_OPERATORS), self.name, str(self)

    def check(self, context: NodeContext) -> Reason:
        """Compare the condition with what a node states, inherits or has by default.

        Args:
            context: The node with its ancestors.

        Returns:
            The answer; UNKNOWN where the target does not state the attribute.
        """
        match self.name:
            case "count":
                return self._compare(context.node.count)
            case "keys":
                return self._check_keys(context)
            case "memory":
                return self._check_memory(context)
        kind = find_kind(context.node.kind)
        if self.name == "vector-width" and self.operator == "ge" and isinstance(self.value, int):
            truth, finding = check_vector_width(context.node, self.value)
            return Reason(truth=truth, text=f"{self}: {finding}")
        if kind is not None and is_cpu(kind.name) and self._is_on_cpu_features():
            return self._check_instructions(context)
        return self.check_attributes(context.node.kind, kind, context.node.attrs, measured=context.measured)

    def _is_on_cpu_features(self) -> bool:
        """Whether the closed feature set of a CPU decides this, and not one attribute alone."""
        is_level = self.name == "mcpu" and self.operator in ORDERED and is_known_cpu(str(self.value))
        return is_level or self.name == "+"

    def _check_instructions(self, context: NodeContext) -> Reason:
        if self.name != "+":
            truth, finding = check_cpu(context.node, self.operator, str(self.value), measured=context.measured)
        else:
            truth, finding = check_feature(context.node, str(self.value), measured=context.measured)
            truth = truth.negated if self.operator == "lacks" else truth
        return Reason(truth=truth, text=f"{self}: {finding}")

    def check_attributes(self, name: str, kind: Kind | None, attrs: Attributes, *, measured: bool = False) -> Reason:
        """Compare the condition with an attribute or its default.

        A default holds for generated code and is no measurement, so it is not used where `measured` is set.

        Args:
            name: The name of the kind, for the message.
            kind: The kind, or None if it is not registered.
            attrs: The attributes of a node, an executor or a runtime.
            measured: Whether the attributes were measured on a machine.

        Returns:
            The answer; NO if the kind has no such attribute, UNKNOWN if no value is stated.
        """
        row = None
        if kind is not None:
            row = kind.features if self.name == "+" else kind.attribute(self.name)
            if row is None:
                return Reason(truth=Truth.NO, text=f"{self}: kind {name!r} has no such attribute")
        # Keys and kinds of other packages have no rows: the value is compared as it was read.
        default = row.default_beside(attrs) if row is not None and not measured else None
        actual = attrs.get(self.name if row is None else row.name, default)
        if actual is None:
            return Reason(truth=Truth.UNKNOWN, text=f"{self}: the target does not state it")
        return self._compare(actual, row, measured=measured)

    def _compare(self, actual: Value, row: Attribute | None = None, *, measured: bool = False) -> Reason:
        if self.name == "+" and self.operator in ("has", "lacks"):
            truth = compare_feature(self.operator, actual, self.value)
        else:
            required = self.value if row is None else self._value_as(row)
            truth = compare_attribute(self.name, self.operator, actual, required, measured=measured)
        return Reason(truth=truth, text=f"{self}: it is {_value_text(actual)}")

    def _check_keys(self, context: NodeContext) -> Reason:
        kind = find_kind(context.node.kind)
        keys = tuple(dict.fromkeys([*context.node.keys, *(kind.keys if kind else ())]))
        if kind is None and context.node.own_keys is None:
            return Reason(truth=Truth.UNKNOWN, text=f"{self}: the keys of {context.node.kind} are unknown")
        return self._compare(keys)

    def _check_memory(self, context: NodeContext) -> Reason:
        sizes = [memory.bytes for memory in context.memories()]
        if not sizes:
            return Reason(truth=Truth.UNKNOWN, text=f"{self}: the target does not state it")
        total = sum(size for size in sizes if size is not None)
        truth = compare_memory(self.operator, total, self.value, measured=context.measured)
        reason = Reason(truth=truth, text=f"{self}: it is {total}")
        # Memories of unknown size can only add to the total, which settles some answers.
        settled = {"ge": Truth.YES, "gt": Truth.YES, "le": Truth.NO, "lt": Truth.NO}.get(self.operator)
        if None not in sizes or reason.truth is settled:
            return reason
        return Reason(truth=Truth.UNKNOWN, text=f"{self}: it is {total} and more")

    def _value_as(self, row: Attribute) -> Value:
        """Return the value in the type of an attribute; a condition on a key was read before its kind was known."""
        if row.type == "features" or self.operator in ("has", "lacks"):
            return self.value
        try:
            if self.operator == "in" and isinstance(self.value, tuple):
                return cast(Value, tuple(_read_as(row, option) for option in self.value))
            return _read_as(row, self.value)
        except ValueError:
            return self.value


def _read_as(row: Attribute, value: object) -> Value:
    return row.read(str(value).lower() if isinstance(value, bool) else value)


def _value_text(value: Value) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def read_conditions(
    word: str, name: str, operator: Operator, value: object, role: Role = "target"
) -> tuple[Condition, ...]:
    """Read conditions on one attribute from its written value.

    Args:
        word: A kind, or a key of several kinds; of an unknown word every attribute is accepted.
        name: The attribute in any spelling, or `+` for features.
        operator: The comparison.
        value: The value as text or JSON gives it; a list of items (`has`, `lacks`) or of alternatives (`in`).
        role: Whether the word is a kind of targets, executors or runtimes.

    Returns:
        One condition for each item of `has` and `lacks`, else one condition.

    Raises:
        UnknownNameError: The kinds have no such attribute.
        TargetError: The value has the wrong type, is out of range, or has no order that the operator needs.
    """
    if operator in ("has", "lacks") and _means_features(word, name, role):
        return tuple(_feature_condition(word, operator, item) for item in _items(value))
    row = _row(word, name, role)
    try:
        return tuple(_conditions(name, row, operator, value))
    except TvmTargetError:
        raise
    except ValueError as error:
        raise TargetError(f"attribute {shown(name)} of {shown(word)} {error}") from error


def _conditions(name: str, row: Attribute | None, operator: Operator, value: object) -> Iterator[Condition]:
    name = name if row is None else row.name
    if operator in ("has", "lacks"):
        if row is not None and not row.is_list:
            raise ValueError(f"is one value, so {name}{_PRINTED[operator]} has no meaning; use = or !=")
        for item in _items(value):
            yield Condition(name=name, operator=operator, value=_item(row, item))
    elif operator == "in":
        yield Condition(name=name, operator="in", value=_options(row, value))
    else:
        read = _read(row, value)
        # CPUs have an order too, that of their feature sets, which is only known by their names.
        if operator in ORDERED and not has_order(operator, read) and not (name == "mcpu" and is_known_cpu(str(read))):
            raise TargetError(_without_order(name, row, operator, read))
        if operator == "eq" and row is not None and (wrong := row.out_of_range(read)):
            raise ValueError(wrong)
        yield Condition(name=name, operator=operator, value=read)


def _without_order(name: str, row: Attribute | None, operator: Operator, value: Value) -> str:
    problem = f"{shown(_value_text(value))} has no order, so {name}{_PRINTED[operator]} has no meaning"
    near = did_you_mean(str(value), cpu_names()) if name == "mcpu" else ""
    return problem + (near or f"; use {'+= or -=' if row is not None and row.is_list else '= or !='}")


def _items(value: object) -> tuple[object, ...]:
    try:
        return read_items(value)
    except ValueError:
        return (value,)


def _item(row: Attribute | None, item: object) -> int | str:
    if row is None:
        read = _scalar(item)
    else:
        read = row.read([item])
        assert isinstance(read, tuple)  # the row is a list
        read = read[0]
    if not isinstance(read, int | str) or isinstance(read, bool):
        raise ValueError(f"holds numbers or texts, not {shown(item)}")
    return read


def _options(row: Attribute | None, values: object) -> tuple[str, ...] | tuple[int, ...]:
    """Read alternative values, sorted and without duplicates."""
    if row is not None and (row.is_list or row.type == "bool"):
        raise ValueError("is a list, which has items: use +=" if row.is_list else "is true or false; use = or !=")
    if not isinstance(values, list | tuple) or not values:
        raise ValueError(f"is one of a list of values, not of {shown(values)}")
    read = [_read(row, value) for value in values]
    if all(isinstance(option, int) and not isinstance(option, bool) for option in read):
        return tuple(sorted({cast(int, option) for option in read}))
    return tuple(sorted({str(option) for option in read}))


def _read(row: Attribute | None, value: object) -> Value:
    return _literal(value) if row is None else row.read(value)


def _means_features(word: str, name: str, role: Role) -> bool:
    kinds = _kinds_of(word, role)
    if name == "+" or (fold(name) == "mattr" and (not kinds or any(is_cpu(kind.name) for kind in kinds))):
        return True
    return any(row.type == "features" for kind in kinds if (row := kind.attribute(name)) is not None)


def _feature_condition(word: str, operator: Operator, value: object) -> Condition:
    if not isinstance(value, str) or not is_word(value):
        raise TargetError(f"a feature is a word such as 'avx2', not {shown(value)}")
    kinds = _kinds_of(word, "target")
    if kinds and not any(kind.features or is_cpu(kind.name) for kind in kinds):
        raise TargetError(kinds[0].without_features([f"{'+' if operator == 'has' else '-'}{value}"]))
    return Condition(name="+", operator=operator, value=str(value))


def _kinds_of(word: str, role: Role) -> list[Kind]:
    """Return the kind that a word names, else all kinds with that key; an empty list for an unknown word."""
    named = find_kind(word, role)
    if named is not None:
        return [named]
    return [kind for name in kind_names(role) if (kind := find_kind(name, role)) and word in kind.keys]


def _row(word: str, name: str, role: Role) -> Attribute | None:
    """Return the attribute of the first kind that a word means; None for an unknown word."""
    if role == "target" and name in FIELDS:
        return FIELDS[name]
    kinds = _kinds_of(word, role)
    row = next((row for kind in kinds if (row := kind.attribute(name)) is not None), None)
    if row is None and len(kinds) == 1:
        raise UnknownNameError(kinds[0].unknown(name))
    if row is None and kinds:
        near = did_you_mean(name, (row.name for kind in kinds for row in kind.attributes))
        near = near or "; `tvmtarget kinds NAME` lists those of a kind"
        raise UnknownNameError(f"no kind with key {shown(word)} has an attribute {shown(name)}{near}")
    return row


def _literal(value: object) -> Value:
    """Read a value of unknown type: an integer or a boolean where it looks like one, as the kind is not known yet."""
    if isinstance(value, Word) and "+" in value.strip("+"):
        value = value.split("+")
    if isinstance(value, list | tuple):
        return read_opaque([_scalar(item) for item in value])
    return read_opaque(_scalar(value))


def _scalar(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,16}", value):
        return int(value)
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def conditions_to_json(word: str, conditions: Iterable[Condition]) -> dict[str, object]:
    """Convert conditions to JSON, by attribute.

    Args:
        word: The kind or key that the conditions belong to; it names the attribute of features, else `mattr`.
        conditions: Conditions in canonical order.

    Returns:
        For each attribute a plain value (equal), an object of operators, or a list of such objects.
    """
    kind = find_kind(word)
    features = kind.features.name if kind is not None and kind.features is not None else "mattr"
    flat: dict[str, list[dict[str, object]]] = {}
    for condition in conditions:
        name = features if condition.name == "+" else condition.name
        value: object = list(condition.value) if isinstance(condition.value, tuple) else condition.value
        objects = flat.setdefault(name, [{}])
        if condition.operator in ("has", "lacks"):
            cast("list[object]", objects[0].setdefault(condition.operator, [])).append(value)
        elif condition.operator in objects[-1]:
            # An operator can occur twice, as in `arch!=sm_80,arch!=sm_90`: each time starts another object.
            objects.append({condition.operator: value})
        else:
            objects[-1][condition.operator] = value
    return {name: _shortest(objects) for name, objects in flat.items()}


def _shortest(objects: list[dict[str, object]]) -> object:
    if len(objects) > 1:
        return objects
    return objects[0]["eq"] if objects[0].keys() == {"eq"} else objects[0]


def conditions_from_json(word: str, name: str, value: object, role: Role = "target") -> Iterator[Condition]:
    """Read the conditions on one attribute that `conditions_to_json` writes.

    Args:
        word: The kind or key that the conditions belong to.
        name: The attribute in any spelling.
        value: A value, an object of operators, or a list of such objects.
        role: Whether the word is a kind of targets, executors or runtimes.

    Yields:
        Conditions in the order of the data.

    Raises:
        TargetError: An operator is unknown, or `read_conditions` rejects a value.
    """
    objects = value if isinstance(value, list) and value and isinstance(value[0], Mapping) else [value]
    for item in objects:
        for operator, operand in (item if isinstance(item, Mapping) else {"eq": item}).items():
            if operator not in _OPERATORS:
                known = ", ".join(_OPERATORS)
                raise TargetError(f"unknown operator {shown(operator)} of {shown(name)}; use one of {known}")
            yield from read_conditions(word, name, operator, operand, role)
