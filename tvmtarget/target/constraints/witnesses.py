"""Nodes that show what a constraint allows: built from the values that it and its counterpart speak of.

They are tried, not trusted: whoever asks checks what each of them meets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, product
from typing import TYPE_CHECKING, Any, TypeAlias

from tvmtarget.errors import TvmTargetError
from tvmtarget.target.attributes import Attributes, Value
from tvmtarget.target.constraints.attribute_comparison import canonical, compare
from tvmtarget.target.constraints.conditions import FIELDS, Condition
from tvmtarget.target.constraints.node_context import NodeContext
from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.constraints.satisfaction import Wanted, wanted_children
from tvmtarget.target.kinds import Kind, find_kind, kind_names
from tvmtarget.target.node import Executor, Memory, Runtime, opaque_attributes
from tvmtarget.target.text.printing import write_value
from tvmtarget.target.tree_paths import NestedNode

if TYPE_CHECKING:
    from tvmtarget.target.constraints.constraint import Constraint

__all__ = ["Literal", "label", "witnesses"]

Literal: TypeAlias = "tuple[Constraint, bool]"  # a word or a path, and whether it is met

_MAX_KINDS = 6
_MAX_NODES = 60  # of one kind
_MAX_CHILDREN = 3  # different nodes for one child


def witnesses(option: Sequence[Literal], contrast: Iterable[Literal]) -> Iterator[NodeContext]:
    """Yield nodes that may meet one option of a constraint, with values on both sides of what `contrast` asks."""
    positive = [atom for atom, is_met in option if is_met]
    others = [*(atom for atom, is_met in option if not is_met), *(atom for atom, _ in contrast)]
    paths = sorted((atom.path for atom in positive if atom.path is not None), key=len)
    path = paths[-1] if paths else ""
    words = [str(atom.word) for atom in positive if atom.word is not None]
    kinds = 0
    for kind, keys in _kinds(words, others):
        nodes = list(islice(_nodes(kind, keys, positive, others), _MAX_NODES))
        yield from (NodeContext(node, path) for node in nodes)
        kinds += bool(nodes)
        if kinds == _MAX_KINDS:
            return


def label(place: NodeContext) -> str:
    """Return a short text for a node that nobody wrote."""
    return _label(place.node) + (f" at @{place.path}" if place.path else "")


def _label(node: NestedNode) -> str:
    items = [f"{name}={write_value(value)}" for name, value in node.attrs.to_json().items()]
    items += [f"keys={'+'.join(node.keys)}"] if node.keys else []
    items += [f"count={node.count}"] if node.count > 1 else []
    items += [f"memory of {memory.bytes} bytes" for memory in node.memory]
    items += [f"host={_label(node.host)}"] if isinstance(node.host, NestedNode) else []
    items += [f"executor={node.executor.kind}"] if node.executor is not None else []
    items += [f"runtime={node.runtime.kind}"] if node.runtime is not None else []
    children = [f"{child.slot}={_label(child)}" for child in node.targets]
    brackets = f"[{','.join(children)}]" if children else ""
    return f"{node.kind}{brackets}" + (f"({','.join(items)})" if items else "")


def _kinds(words: Sequence[str], others: Iterable[Constraint]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield kinds, and keys to give them, that answer to all words; where there is no word, kinds of all sorts."""
    if words:
        found: list[tuple[str, tuple[str, ...]]] = []
        for name in dict.fromkeys([*(word for word in words if find_kind(word) is not None), *kind_names(), *words]):
            kind = find_kind(name)
            known = {name, *(kind.keys if kind is not None else ())}
            missing = tuple(dict.fromkeys(word for word in words if word not in known))
            if not any(find_kind(word) for word in missing):
                found.append((name, missing))
        yield from sorted(found, key=lambda pair: len(pair[1]))
        return
    yield from ((name, ()) for name in ("numpy", "ext_dev", "cuda", "llvm"))
    yield from ((str(atom.word), ()) for atom in others if atom.word is not None)


def _nodes(
    kind: str, keys: tuple[str, ...], positive: Sequence[Constraint], others: Sequence[Constraint]
) -> Iterator[NestedNode]:
    row = find_kind(kind)
    asked = [condition for atom in positive for condition in atom.conditions]
    contrast = [condition for atom in others for condition in atom.conditions]
    try:
        children = list(_children(positive))
    except TvmTargetError:  # a path or a replica, which is no name for a child
        return
    parts = list(_parts(positive))
    for values in _values(row, asked, contrast):
        for targets in islice(product(*children), _MAX_CHILDREN**2):
            try:
                yield _node(kind, row, keys, values, tuple(targets), dict(parts))
            except TvmTargetError:
                continue


def _node(
    kind: str,
    row: Kind | None,
    keys: tuple[str, ...],
    values: dict[str, Value | None],
    targets: tuple[NestedNode, ...],
    parts: dict[str, object],
) -> NestedNode:
    stated = {name: value for name, value in values.items() if value is not None}
    count, size, own = stated.pop("count", 1), stated.pop("memory", None), stated.pop("keys", ())
    fields: dict[str, Any] = {"count": count, "targets": targets, **parts}
    if keys or own:
        fields["keys"] = (*keys, *(own if isinstance(own, tuple) else ()))
    if isinstance(size, int):
        fields["memory"] = (Memory(name="ram", bytes=size),)
    attrs = opaque_attributes(kind, stated) if row is None else Attributes(row.normalise(stated))
    return NestedNode(kind=kind, attrs=attrs, **fields)


def _values(
    row: Kind | None, asked: Sequence[Condition], contrast: Sequence[Condition]
) -> Iterator[dict[str, Value | None]]:
    """Yield values by attribute; what nobody asks for may be left out, which comes first."""
    names = dict.fromkeys(condition.name for condition in (*asked, *contrast))
    choices: list[list[tuple[str, Value | None]]] = []
    for name in names:
        given = [condition for condition in asked if condition.name == name]
        against = [condition for condition in contrast if condition.name == name]
        attribute = FIELDS.get(name) or (row.attribute(name) if row is not None else None)
        if name == "+":
            features = row.features.name if row is not None and row.features is not None else "mattr"
            choices.append([(features, signs) for signs in _features(given, against)])
        elif row is None or attribute is not None:
            found = [value for value in _near(given, against) if all(_may_meet(value, one) for one in given)]
            missing: list[Value | None] = [] if given else [None]
            choices.append([(name, value) for value in (*missing, *found)])
        elif given:
            return
    yield from (dict(chosen) for chosen in product(*choices))


def _may_meet(value: Value, condition: Condition) -> bool:
    wanted = canonical(condition.name, condition.value)
    return compare(condition.operator, canonical(condition.name, value), wanted) is not Truth.NO


def _near(given: Iterable[Condition], against: Iterable[Condition]) -> list[Value]:
    """Return the values that conditions name, and those beside them."""
    found: dict[Value, None] = {}
    for condition in (*given, *against):
        values = condition.value if condition.operator == "in" and isinstance(condition.value, tuple) else None
        for value in values if values is not None else (condition.value,):
            found |= dict.fromkeys(_around(condition, value))
    return list(found)


def _around(condition: Condition, value: Value) -> tuple[Value, ...]:
    if condition.operator == "has" and not isinstance(value, tuple):
        return ((str(value),), ())
    if condition.operator == "lacks" and not isinstance(value, tuple):
        return ((), (str(value),))
    if isinstance(value, bool):
        return value, not value
    if isinstance(value, int):
        return value, value + 1, max(value - 1, 0)
    return (value, f"{value}-x", *_SERIES) if isinstance(value, str) else (value, ())


# Names that stand in an order, for constraints that ask for more or for less than one of them.
_SERIES = ("sm_53", "sm_80", "sm_90", "sm_100", "x86-64-v2", "x86-64-v4")


def _features(given: Iterable[Condition], against: Iterable[Condition]) -> Iterator[Value]:
    own = {str(condition.value): "+" if condition.operator == "has" else "-" for condition in given}
    names = dict.fromkeys(str(condition.value) for condition in against)
    for sign in ("", "-", "+"):
        signs = (dict.fromkeys(names, sign) if sign else {}) | own
        yield tuple(sorted(sign + name for name, sign in signs.items()))


def _children(positive: Iterable[Constraint]) -> Iterator[list[NestedNode]]:
    """Yield the choices for each child that is asked for; those of one name become one, as often as most want it."""
    named: dict[str, list[Wanted]] = {}
    for number, wanted in enumerate(one for atom in positive for one in wanted_children(atom)):
        named.setdefault(wanted.name or f"child-{number}", []).append(wanted)
    for name, several in named.items():
        found = islice(_nodes_of(_joined([wanted.constraint for wanted in several])), _MAX_CHILDREN)
        count = max(wanted.number for wanted in several)
        yield [node.replace(name=name, count=max(count, node.count)) for node in found]


def _joined(constraints: Sequence[Constraint]) -> Constraint:
    """Return the conjunction of constraints."""
    joined = constraints[0]
    for one in constraints[1:]:
        joined &= one
    return joined


def _nodes_of(constraint: Constraint) -> Iterator[NestedNode]:
    """Yield nodes for a constraint that stands inside another: its first option is enough."""
    atoms = _first_option(constraint, is_met=True)
    yield from (place.node for place in witnesses(atoms, ()))


def _first_option(constraint: Constraint, *, is_met: bool) -> list[Literal]:
    is_met = is_met != constraint.is_negated
    parts = constraint.all_of or constraint.any_of
    if not parts:
        return [(constraint.replace(is_negated=False, weight=None), is_met)]
    chosen = parts[:1] if bool(constraint.any_of) == is_met else parts
    return [one for part in chosen for one in _first_option(part, is_met=is_met)]


def _parts(positive: Iterable[Constraint]) -> Iterator[tuple[str, object]]:
    """Yield a host, an executor and a runtime as they are asked for."""
    asked: dict[str, list[Constraint]] = {}
    for role, part in (pair for atom in positive for pair in atom.parts()):
        asked.setdefault(role, []).append(part)
    for name, parts in asked.items():
        if name == "host":
            host = next(_nodes_of(_joined(parts)), None)
            yield from [] if host is None else [("host", host)]
        else:
            yield from _configured(
                name, [atom for atom, is_met in _first_option(_joined(parts), is_met=True) if is_met]
            )


def _configured(role: str, atoms: Sequence[Constraint]) -> Iterator[tuple[str, object]]:
    attrs = {condition.name: condition.value for atom in atoms for condition in atom.conditions}
    try:
        if atoms:
            yield role, (Executor if role == "executor" else Runtime)(str(atoms[0].word), attrs)
    except TvmTargetError:
        return
