"""Draw a plan: its subgraphs as a networkx graph, and that graph as text for Graphviz and Mermaid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tvmtarget.ir.types import Type
from tvmtarget.partition.outline.outlining import DrivenRecord, SubgraphRecord

if TYPE_CHECKING:
    import networkx

from tvmtarget.partition.decomposition import Decomposition

__all__ = ["subgraph_graph", "to_dot", "to_mermaid"]

# Names of operations in the label of a subgraph; the rest is counted.
MAX_NAMED = 3


def subgraph_graph(plan: Decomposition) -> networkx.MultiDiGraph:
    """Return the subgraphs of a plan as a graph.

    Args:
        plan: the plan.

    Returns:
        A new graph. Nodes are the positions of subgraphs, with `function`, `site` and `ops`, then operations whose
        nested bodies a driver runs, and `in` and `out` for the inputs and results of the program. Edges are values,
        with `value`, `type` and `is_copied`.
    """
    import networkx

    # A multigraph, because one subgraph can pass several values to another.
    graph = networkx.MultiDiGraph()
    graph.add_nodes_from(("in", "out"), function="", site="", ops=())
    function, topology = plan.program.function, plan.topology
    producer: dict[str, int | str] = {param.name: "in" for param in function.params}
    parts = _parts(plan)
    for position, subgraph in enumerate(parts):
        graph.add_node(position, function=subgraph.function, site=subgraph.site, ops=subgraph.ops)
        producer |= dict.fromkeys(subgraph.outputs, position)
    homes: dict[int | str, str] = {position: topology.home(subgraph.site) for position, subgraph in enumerate(parts)}
    homes |= dict.fromkeys(("in", "out"), topology.home(""))
    uses: list[tuple[int | str, tuple[str, ...]]] = [(place, subgraph.inputs) for place, subgraph in enumerate(parts)]
    for reader, values in (*uses, ("out", function.results)):
        for value in values:
            if value in producer:
                source = producer[value]
                is_copied = homes[source] != homes[reader]
                type_ = plan.program.types.get(value)
                graph.add_edge(source, reader, value=value, type=type_, is_copied=is_copied)
    return graph


def _parts(plan: Decomposition) -> tuple[SubgraphRecord, ...]:
    """Return the subgraphs, and the operations that drivers run in the same form."""
    return (*plan.subgraphs, *(_driven(plan, one) for one in plan.outlined.driven))


def _driven(plan: Decomposition, one: DrivenRecord) -> SubgraphRecord:
    call, scopes = plan.program.body[one.call], plan.program.bodies[one.call]
    read = (*filter(None, call.inputs), *(name for scope in scopes for name in scope.function.results))
    given = (
        *(output.name for output in call.outputs),
        *(param.name for scope in scopes for param in scope.function.params),
    )
    site = plan.topology[one.system].host
    return SubgraphRecord(f"run by {one.driver}", site, (one.call,), (one.op,), tuple(dict.fromkeys(read)), given)


def to_dot(plan: Decomposition) -> str:
    """Return the subgraphs as text for Graphviz.

    Args:
        plan: the plan.

    Returns:
        A digraph with a cluster for each site; copies between memories are thick edges.
    """
    graph, parts = subgraph_graph(plan), _parts(plan)
    lines = [
        "digraph plan {",
        # By default Graphviz ranks each cluster by itself; this ranks all sites together, so that values flow one way.
        "  newrank=true;",
        "  node [shape=box];",
        "  in [shape=ellipse];",
        "  out [shape=ellipse];",
    ]
    for position, (site, members) in enumerate(_by_site(plan)):
        lines += [f"  subgraph cluster_{position} {{", f"    label={_quoted(site)};"]
        lines += [f"    r{member} [label={_quoted(_label(parts[member]))}];" for member in members]
        lines.append("  }")
    for source, reader, edge in graph.edges(data=True):
        style = ", penwidth=3" if edge["is_copied"] else ""
        label = _quoted(_edge(edge["value"], edge["type"]))
        lines.append(f"  {_node(source)} -> {_node(reader)} [label={label}{style}];")
    return "\n".join([*lines, "}"]) + "\n"


def to_mermaid(plan: Decomposition) -> str:
    """Return the subgraphs as text for Mermaid.

    Args:
        plan: the plan.

    Returns:
        A flowchart with a Mermaid subgraph for each site; copies between memories are thick arrows.
    """
    graph, parts = subgraph_graph(plan), _parts(plan)
    lines = ["flowchart TD", "  in([in])", "  out([out])"]
    for position, (site, members) in enumerate(_by_site(plan)):
        lines.append(f"  subgraph s{position}[{_escaped(site)}]")
        lines += [f"    r{member}[{_escaped(_label(parts[member]))}]" for member in members]
        lines.append("  end")
    for source, reader, edge in graph.edges(data=True):
        arrow = "==>" if edge["is_copied"] else "-->"
        label = _escaped(_edge(edge["value"], edge["type"]))
        lines.append(f"  {_node(source)} {arrow}|{label}| {_node(reader)}")
    return "\n".join(lines) + "\n"


def _by_site(plan: Decomposition) -> Iterator[tuple[str, list[int]]]:
    members: dict[str, list[int]] = {}
    for position, subgraph in enumerate(_parts(plan)):
        members.setdefault(subgraph.site, []).append(position)
    for site, positions in members.items():
        yield f"@{site or '.'} ({plan.topology[site].target.kind})", positions


def _label(subgraph: SubgraphRecord) -> str:
    more = len(subgraph.ops) - MAX_NAMED
    named = ", ".join(subgraph.ops[:MAX_NAMED]) + (f", and {more} more" if more > 0 else "")
    return f"{subgraph.function}\n{named}"


def _edge(value: str, type_: Type) -> str:
    return f"{value}: {type_}" if type_ is not None else value


def _node(node: int | str) -> str:
    return node if isinstance(node, str) else f"r{node}"


def _quoted(text: str) -> str:
    """Return text in quotes as Graphviz reads it, which knows entities there."""
    special = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "&": "&amp;"}
    escaped = "".join(special.get(char, char) for char in text)
    return f'"{escaped}"'


def _escaped(text: str) -> str:
    """Return text in quotes as Mermaid reads it: what would end or mark it up is written as entities."""
    special = {'"': "#quot;", "#": "#35;", "&": "#amp;", "`": "#96;", "<": "#lt;", ">": "#gt;", "\n": "<br>"}
    escaped = "".join(special.get(char, char) for char in text)
    return f'"{escaped}"'
