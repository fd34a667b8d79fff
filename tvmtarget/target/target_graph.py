"""A target as a networkx graph: nodes, the children of each, the host of each, and the links between children."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtarget.target.target_node import TargetNode, hosts_by_path
from tvmtarget.target.tree_paths import is_reference, join

if TYPE_CHECKING:
    import networkx

__all__ = ["target_graph"]


def target_graph(root: TargetNode) -> networkx.MultiDiGraph:
    """Return a tree as a graph.

    Args:
        root: the tree.

    Returns:
        A new graph. Nodes are paths, '' for the root, with the attributes `kind`, `count`, `is_leaf` and `target`.
        The key of an edge is its sort: `child` from a node to its children, `host` from a node to another one that
        drives it, and `link` between linked children, with `bandwidth_Bps`, `latency_ns` and `coherent`. A host that
        is no node of the tree (`<path>/host`) is a node with its path and nothing else.
    """
    import networkx

    graph = networkx.MultiDiGraph()
    for path, node in root.walk():
        graph.add_node(path, kind=node.kind, count=node.count, is_leaf=not node.is_composite, target=node)
    for path, node in root.walk():
        for child in node.targets:
            graph.add_edge(path, join(path, child.slot), key="child")
        for link in node.links:
            facts = {"bandwidth_Bps": link.bandwidth_Bps, "latency_ns": link.latency_ns, "coherent": link.coherent}
            graph.add_edge(join(path, link.src), join(path, link.dst), key="link", **facts)
    for path, choice in hosts_by_path(root).items():
        if choice.effective != path and not is_reference(choice.effective):
            graph.add_edge(path, choice.effective, key="host")
    return graph
