"""A target read as a constraint: at least this.

What a value asks for follows from the class of its attribute: hard is equal; legal instructions are a superset;
capacities and scales are at least as large; model, soft and none ask for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tvmtarget.target.attributes import Attributes
from tvmtarget.target.comparing import has_order
from tvmtarget.target.conditions import Condition
from tvmtarget.target.kinds import Kind, find_kind
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.place import Place

if TYPE_CHECKING:
    from tvmtarget.target.constraint import Constraint

__all__ = ["constraint_of"]

_UNCOMPARED = frozenset({"model", "soft", "none"})
_GROWING = frozenset({"isa", "capacity", "scale"})


def constraint_of(make: type[Constraint], place: Place) -> Constraint:
    """Return what a node of a tree asks for, with its children and what drives it as far as it is stated there."""
    node = place.node
    asked = _of_node(make, place)
    if node.count > 1:
        count = Condition(name="count", operator="ge", value=node.count)
        asked = asked.replace(conditions=_sorted([*asked.conditions, count]))
    return asked.replace(
        host=_host(make, place),
        executor=None if node.executor is None else _configured(make, node.executor),
        runtime=None if node.runtime is None else _configured(make, node.runtime),
    )


def _of_node(make: type[Constraint], place: Place) -> Constraint:
    """Return what a node asks for, whatever drives it and however many there are."""
    conditions = [*_conditions(find_kind(place.node.kind), place.node.attrs)]
    sizes = [memory.bytes for memory in place.own_memories() if memory.bytes is not None]
    if sizes:
        conditions.append(Condition(name="memory", operator="ge", value=sum(sizes)))
    names = (child.node.name if child.node.name != child.node.kind else None for child in place.children())
    children = tuple((name, constraint_of(make, child)) for name, child in zip(names, place.children(), strict=True))
    return make(word=place.node.kind, conditions=_sorted(conditions), children=children)


def _host(make: type[Constraint], place: Place) -> Constraint | None:
    """Return what a host that is written asks for; a reference to nowhere asks for nothing."""
    host = place.host() if place.node.host is not None else None
    return None if host is None or host is place else _of_node(make, host)


def _configured(make: type[Constraint], actual: Executor | Runtime) -> Constraint:
    return make(word=actual.kind, conditions=_sorted(_conditions(find_kind(actual.kind, actual.role), actual.attrs)))


def _conditions(kind: Kind | None, attrs: Attributes) -> Iterator[Condition]:
    """Yield what attributes ask for by their class; of a kind that nobody knows, all must be equal."""
    for name, value in attrs.items():
        row = None if kind is None else kind.attribute(name)
        if row is None:
            yield Condition(name=name, operator="eq", value=value)
        elif row.type == "features" and isinstance(value, tuple):
            for feature in map(str, value):
                yield Condition(name="+", operator="has" if feature[0] == "+" else "lacks", value=feature[1:])
        elif row.class_ not in _UNCOMPARED:
            grows = row.class_ in _GROWING and has_order("ge", value)
            yield Condition(name=row.name, operator="ge" if grows else "eq", value=value)


def _sorted(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    return tuple(sorted(conditions, key=lambda condition: condition.order))
