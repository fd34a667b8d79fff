"""Def-use chains of a function: producers and readers of values, the interface of a set of operations, convexity."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from tvmtarget.ir.function import Function
from tvmtarget.ir.names import Names
from tvmtarget.ir.types import TensorType

if TYPE_CHECKING:
    import networkx

__all__ = ["INPUTS", "OUTPUTS", "boundary", "dataflow_graph", "detour", "producers_of", "readers_of"]

# Nodes of a dataflow graph that produce the parameters and read the results; the same as in the graph of a plan.
INPUTS = "in"
OUTPUTS = "out"


def producers_of(function: Function) -> dict[str, int]:
    """Map each computed value to the operation that defines it.

    Args:
        function: the function.

    Returns:
        Index in the body by name of the value; parameters and constants are not in it.
    """
    return dict(function.producers)


def readers_of(function: Function) -> dict[str, tuple[int, ...]]:
    """Map each value to the operations that read it.

    Args:
        function: the function.

    Returns:
        Ascending indices in the body by name of the value; an operation whose nested body captures the value is a
        reader. Results of the function are not counted as reads.
    """
    readers: dict[str, tuple[int, ...]] = {}
    several: dict[str, list[int]] = {}  # most values have one reader
    for index, call in enumerate(function.body):
        for name in call.uses() if call.regions else call.inputs:
            if name not in readers:
                readers[name] = (index,)
                continue
            found = several.get(name) or several.setdefault(name, [*readers[name]])
            # An operation that reads a value twice is listed once.
            if found[-1] != index:
                found.append(index)
    readers |= {name: tuple(found) for name, found in several.items()}
    readers.pop("", None)  # "" is an absent optional operand
    return readers


def boundary(
    function: Function, calls: Sequence[int], readers: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the values that cross the boundary of a set of operations.

    Args:
        function: the function.
        calls: indices of the operations, ascending.
        readers: result of `readers_of`.

    Returns:
        Names of the values read from outside, in order of first use, and of those read outside or returned, in order of
        definition. Constants are not inputs: each function that reads one holds it.
    """
    inside = set(calls)
    body = [function.body[index] for index in calls]
    defined = [output.name for call in body for output in call.outputs if output.name]
    own, constants = set(defined), function.constant_names
    used = dict.fromkeys(name for call in body for name in call.uses())
    inputs = (name for name in used if name not in own and name not in constants)
    results = frozenset(function.results)
    outputs = (name for name in defined if name in results or not inside.issuperset(readers.get(name, ())))
    return tuple(inputs), tuple(outputs)


def detour(function: Function, calls: Collection[int]) -> tuple[tuple[int, ...], frozenset[int]]:
    """Find out whether a set of operations is convex: no path leaves it and comes back.

    Args:
        function: the function.
        calls: indices of the operations.

    Returns:
        Indices along a path that leaves the set and enters it again, or () if the set is convex; and the indices of
        operations outside that depend on the set. An operation with an effect depends on the one with an effect before.
    """
    inside = set(calls)
    producer = producers_of(function)
    # Operations outside that depend on the set, each with one operation that it depends on. One pass suffices, since
    # the body is in topological order; the links lead back to the set and so give the path for the error message.
    came_from: dict[int, int] = {}
    last_effect: int | None = None
    for index, call in enumerate(function.body):
        before = [producer[name] for name in call.uses() if name in producer]
        # Effects form a chain, since they must not be reordered.
        if call.has_effect:
            before += [] if last_effect is None else [last_effect]
            last_effect = index
        if index in inside:
            outside = next((other for other in before if other in came_from), None)
            if outside is not None:
                path = [index, outside]
                while path[-1] not in inside:
                    path.append(came_from[path[-1]])
                return tuple(reversed(path)), frozenset(came_from)
        else:
            found = next((other for other in before if other in inside or other in came_from), None)
            if found is not None:
                came_from[index] = found
    return (), frozenset(came_from)


def dataflow_graph(function: Function) -> networkx.MultiDiGraph:
    """Return the operations of a function as a networkx graph.

    It is a multigraph because an operation may read several results of another one.

    Args:
        function: the function.

    Returns:
        A graph with a node per operation, in order of the body, and the nodes `in` and `out`. An operation is named by
        its source name; one without a name, or whose name is taken, gets a number. Attributes of operations:

        - `op`: operator; `index`: position in the body; `constraint`: text of the constraint, or "".
        - `regions`: graphs of nested bodies by label, if there are any. A nested body's captures come from its `in`.

        An edge leads from the producer of a value to each reader; its key is the name of the value. Attributes of
        edges: `value`: name; `type`: text of the type, "?" if unknown; `nbytes`: size in bytes, if it is static.
        Constants are not in the graph.
    """
    import networkx

    graph = networkx.MultiDiGraph(name=function.name)
    sources = Names((INPUTS, OUTPUTS))
    nodes = [sources.fresh(call.source or call.kind) for call in function.body]
    graph.add_node(INPUTS, op="", index=-1, constraint="")
    for index, (node, call) in enumerate(zip(nodes, function.body, strict=True)):
        graph.add_node(
            node, op=call.op, index=index, constraint="" if call.constraint is None else str(call.constraint)
        )
        if call.regions:
            graph.nodes[node]["regions"] = {label: dataflow_graph(region) for label, region in call.regions}
    graph.add_node(OUTPUTS, op="", index=len(nodes), constraint="")
    producer = {name: nodes[index] for name, index in producers_of(function).items()}
    uses = [(node, call.uses()) for node, call in zip(nodes, function.body, strict=True)]
    for reader, names in (*uses, (OUTPUTS, tuple(dict.fromkeys(function.results)))):
        for name in names:
            if name in function.constant_names:
                continue
            type_ = function.types.get(name)
            graph.add_edge(producer.get(name, INPUTS), reader, key=name, value=name, type=str(type_ or "?"))
            nbytes = type_.nbytes if isinstance(type_, TensorType) else None
            if nbytes is not None:
                graph.edges[producer.get(name, INPUTS), reader, name]["nbytes"] = nbytes
    return graph
