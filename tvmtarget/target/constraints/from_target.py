"""Convert a target to the constraint "at least this target".

The class of an attribute determines the condition: hard attributes are equal, instruction sets are supersets,
capacities and scales are at least as large; model, soft and none give no condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from tvmtarget.target.attributes import Attributes
from tvmtarget.target.constraints.attribute_comparison import required_operator
from tvmtarget.target.constraints.conditions import Condition
from tvmtarget.target.constraints.instructions import implied_features, is_known_cpu, is_reduced, known_features
from tvmtarget.target.constraints.node_context import NodeContext
from tvmtarget.target.cpu.features import table_of
from tvmtarget.target.cpu.isa import is_cpu
from tvmtarget.target.kinds import Kind, find_kind
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.target_node import TargetNode

if TYPE_CHECKING:
    from tvmtarget.target.constraints.constraint import Constraint

__all__ = ["constraint_of"]

_Convert: TypeAlias = "Callable[[type[Constraint], NodeContext], Constraint]"


def constraint_of(make: type[Constraint], context: NodeContext) -> Constraint:
    """Convert a node of a tree to a constraint.

    Args:
        make: The class `Constraint`, whose module imports this one.
        context: The node with its ancestors.

    Returns:
        The constraint, with those of the children, host, executor and runtime that the node states.
    """
    node = context.node
    # A reference to a node outside of the tree has no context, and so gives no constraint.
    host = context.host() if node.host is not None else None
    return _counted(make, context, constraint_of).replace(
        host=None if host is None or host is context else _of_node(make, host, _without_host),
        executor=None if node.executor is None else _configured(make, node.executor),
        runtime=None if node.runtime is None else _configured(make, node.runtime),
    )


def _without_host(make: type[Constraint], context: NodeContext) -> Constraint:
    """Convert without hosts, executors and runtimes, so that the recursion ends where hosts form a cycle."""
    return _counted(make, context, _without_host)


def _counted(make: type[Constraint], context: NodeContext, of_child: _Convert) -> Constraint:
    single = _of_node(make, context, of_child)
    if context.node.count == 1:
        return single
    count = Condition(name="count", operator="ge", value=context.node.count)
    return single.replace(conditions=_sorted([*single.conditions, count]))


def _of_node(make: type[Constraint], context: NodeContext, of_child: _Convert) -> Constraint:
    """Convert a node without its count, host, executor and runtime."""
    conditions = [*_instructions(context.node), *_conditions(find_kind(context.node.kind), context.node.attrs)]
    sizes = [memory.bytes for memory in context.own_memories() if memory.bytes is not None]
    if sizes:
        conditions.append(Condition(name="memory", operator="ge", value=sum(sizes)))
    # A child without a name of its own is called like its kind, which is no requirement on the name.
    names = (child.node.name if child.node.name != child.node.kind else None for child in context.children())
    children = tuple((name, of_child(make, child)) for name, child in zip(names, context.children(), strict=True))
    return make(word=context.node.kind, conditions=_sorted(conditions), children=children)


def _configured(make: type[Constraint], actual: Executor | Runtime) -> Constraint:
    return make(word=actual.kind, conditions=_sorted(_conditions(find_kind(actual.kind, actual.role), actual.attrs)))


def _instructions(node: TargetNode) -> Iterator[Condition]:
    """Yield conditions on the instruction set of a CPU: `mcpu>=` of its CPU, or one by one where some are removed."""
    if not is_cpu(node.kind):
        return
    cpu, written = node.attrs.get("mcpu"), node.attrs.get("mattr")
    names = {str(item)[1:] for item in (written if isinstance(written, tuple) else ()) if str(item)[0] == "+"}
    # `mcpu>=haswell` would require what `mattr=-avx2` removes, so a reduced CPU is stated feature by feature.
    features = known_features(node) if is_reduced(node) else None
    if isinstance(cpu, str) and not is_reduced(node):
        yield Condition(name="mcpu", operator="ge" if is_known_cpu(cpu) else "eq", value=cpu)
    elif isinstance(cpu, str) and (features is None or not features.is_complete):
        yield Condition(name="mcpu", operator="eq", value=cpu)
    elif features is not None:
        # The remaining features, reduced to those that no other remaining one implies.
        table = table_of(features.family)
        closed = features.names - (table.system if table is not None else frozenset())
        maximal = {name for name in closed if not any(name in implied_features(other) for other in closed - {name})}
        names = maximal | {name for name in names if name in features}
    yield from (Condition(name="+", operator="has", value=name) for name in names)


def _conditions(kind: Kind | None, attrs: Attributes) -> Iterator[Condition]:
    """Yield conditions on attributes by their class; for an unregistered kind all attributes must be equal."""
    for name, value in attrs.items():
        row = None if kind is None else kind.attribute(name)
        if row is None:
            yield Condition(name=name, operator="eq", value=value)
        elif kind is not None and is_cpu(kind.name) and row.name in ("mcpu", "mattr"):
            continue
        elif row.type == "features" and isinstance(value, tuple):
            for feature in map(str, value):
                yield Condition(name="+", operator="has" if feature[0] == "+" else "lacks", value=feature[1:])
        elif (operator := required_operator(row, value)) is not None:
            yield Condition(name=row.name, operator=operator, value=value)


def _sorted(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    return tuple(sorted(conditions, key=lambda condition: condition.order))
