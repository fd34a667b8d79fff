"""Orders of atoms, components and label changes, against networkx."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_typed_fusion import labeled_graphs

from tvmtarget.partition.subgraphs.components import components_of
from tvmtarget.partition.subgraphs.topological_orders import breadth_first, depth_first_backwards, fewest_new_inputs
from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph, LabeledGraph, graph_from_edges


def digraph(successors):
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(successors)))
    graph.add_edges_from((a, b) for a, targets in enumerate(successors) for b in targets)
    return graph


def greedy_order(after):
    """Return the greedy order where every atom passes one value to its successors."""
    reads = [[a for a in after if b in after[a]] for b in range(len(after))]
    return fewest_new_inputs(after, reads, [[a] for a in after], [after[a] for a in range(len(after))], 3)


@pytest.mark.parametrize("order_of", [breadth_first, depth_first_backwards, greedy_order])
@given(case=labeled_graphs())
def test_orders_are_topological(order_of, case):
    successors, _ = case
    order = order_of(dict(enumerate(successors)))
    position = {atom: number for number, atom in enumerate(order)}
    assert sorted(order) == list(range(len(successors)))
    assert all(position[a] < position[b] for a, b in digraph(successors).edges)


@given(labeled_graphs())
def test_components_are_those_of_networkx(case):
    successors, _ = case
    graph = AtomGraph(successors)
    found = components_of(len(graph), graph.starts, graph.ends).tolist()
    expected = {atom: min(part) for part in nx.weakly_connected_components(digraph(successors)) for atom in part}
    assert found == [expected[atom] for atom in range(len(graph))]


@given(labeled_graphs())
def test_label_changes_are_longest_paths(case):
    """Weights of edges are 1 between labels and 0 within one."""
    successors, labels = case
    graph = digraph(successors)
    for a, b in graph.edges:
        graph.edges[a, b]["weight"] = int(labels[a] != labels[b])
    found = LabeledGraph(AtomGraph(successors), labels).label_changes_ahead
    for atom in graph:
        ahead = graph.subgraph({atom} | nx.descendants(graph, atom))
        assert found[atom] == nx.dag_longest_path_length(ahead, default_weight=1)


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30))
def test_graphs_from_edges_hold_each_edge_once_and_no_loops(count, pairs):
    edges = [(a % count, b % count) for a, b in pairs]
    starts, ends = (np.array([edge[end] for edge in edges], dtype=np.int64) for end in (0, 1))
    expected = nx.DiGraph((a, b) for a, b in edges if a != b)
    graph = graph_from_edges(count, starts, ends)
    assert {(a, b) for a, targets in enumerate(graph.successors) for b in targets} == set(expected.edges)
    assert len(graph.ends) == expected.number_of_edges()
