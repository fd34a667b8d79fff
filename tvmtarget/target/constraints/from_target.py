"""A target read as a constraint: at least this.

What a value asks for follows from the class of its attribute: hard is equal; legal instructions are a superset;
capacities and scales are at least as large; model, soft and none ask for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from tvmtarget.target.attributes import Attributes
from tvmtarget.target.constraints.attribute_comparison import required_operator
from tvmtarget.target.constraints.conditions import Condition
from tvmtarget.target.constraints.instructions import is_cpu, is_cpu_kind, is_reduced, known_features, needed
from tvmtarget.target.constraints.node_context import NodeContext
from tvmtarget.target.cpu.features import table_of
from tvmtarget.target.kinds import Kind, find_kind
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.target_node import TargetNode

if TYPE_CHECKING:
    from tvmtarget.target.constraints.constraint import Constraint

__all__ = ["constraint_of"]

_Read: TypeAlias = "Callable[[type[Constraint], NodeContext], Constraint]"


def constraint_of(make: type[Constraint], place: NodeContext) -> Constraint:
    """Return what a node of a tree asks for, with its children and what drives it as far as it is stated there."""
    node = place.node
    return _counted(make, place, constraint_of).replace(
        host=_host(make, place),
        executor=None if node.executor is None else _configured(make, node.executor),
        runtime=None if node.runtime is None else _configured(make, node.runtime),
    )


def _undriven(make: type[Constraint], place: NodeContext) -> Constraint:
    """Return the same without hosts, executors and runtimes, so that hosts in a circle end."""
    return _counted(make, place, _undriven)


def _counted(make: type[Constraint], place: NodeContext, of_child: _Read) -> Constraint:
    asked = _of_node(make, place, of_child)
    if place.node.count == 1:
        return asked
    count = Condition(name="count", operator="ge", value=place.node.count)
    return asked.replace(conditions=_sorted([*asked.conditions, count]))


def _of_node(make: type[Constraint], place: NodeContext, of_child: _Read) -> Constraint:
    """Return what a node asks for, whatever drives it and however many there are."""
    conditions = [*_instructions(place.node), *_conditions(find_kind(place.node.kind), place.node.attrs)]
    sizes = [memory.bytes for memory in place.own_memories() if memory.bytes is not None]
    if sizes:
        conditions.append(Condition(name="memory", operator="ge", value=sum(sizes)))
    names = (child.node.name if child.node.name != child.node.kind else None for child in place.children())
    children = tuple((name, of_child(make, child)) for name, child in zip(names, place.children(), strict=True))
    return make(word=place.node.kind, conditions=_sorted(conditions), children=children)


def _host(make: type[Constraint], place: NodeContext) -> Constraint | None:
    """Return what a host that is written asks for; a reference to nowhere asks for nothing."""
    host = place.host() if place.node.host is not None else None
    return None if host is None or host is place else _of_node(make, host, _undriven)


def _configured(make: type[Constraint], actual: Executor | Runtime) -> Constraint:
    return make(word=actual.kind, conditions=_sorted(_conditions(find_kind(actual.kind, actual.role), actual.attrs)))


def _instructions(node: TargetNode) -> Iterator[Condition]:
    """Yield what a CPU's node asks for: its CPU and more, but feature by feature where some are taken away."""
    if not is_cpu_kind(node.kind):
        return
    cpu, written = node.attrs.get("mcpu"), node.attrs.get("mattr")
    names = {str(item)[1:] for item in (written if isinstance(written, tuple) else ()) if str(item)[0] == "+"}
    features = known_features(node) if is_reduced(node) else None
    if isinstance(cpu, str) and not is_reduced(node):
        yield Condition(name="mcpu", operator="ge" if is_cpu(cpu) else "eq", value=cpu)
    elif isinstance(cpu, str) and (features is None or not features.is_complete):
        yield Condition(name="mcpu", operator="eq", value=cpu)
    elif features is not None:  # a level that lost a feature asks for what is left of it
        table = table_of(features.family)
        closed = features.names - (table.system if table is not None else frozenset())
        left = {one for one in closed if not any(one in needed(other) for other in closed - {one})}
        names = left | {one for one in names if one in features}
    yield from (Condition(name="+", operator="has", value=name) for name in names)


def _conditions(kind: Kind | None, attrs: Attributes) -> Iterator[Condition]:
    """Yield what attributes ask for by their class; of a kind that nobody knows, all must be equal."""
    for name, value in attrs.items():
        row = None if kind is None else kind.attribute(name)
        if row is None:
            yield Condition(name=name, operator="eq", value=value)
        elif kind is not None and is_cpu_kind(kind.name) and row.name in ("mcpu", "mattr"):
            continue
        elif row.type == "features" and isinstance(value, tuple):
            for feature in map(str, value):
                yield Condition(name="+", operator="has" if feature[0] == "+" else "lacks", value=feature[1:])
        elif (operator := required_operator(row, value)) is not None:
            yield Condition(name=row.name, operator=operator, value=value)


def _sorted(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    return tuple(sorted(conditions, key=lambda condition: condition.order))
