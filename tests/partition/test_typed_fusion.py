"""Properties of typed fusion, lower bounds and beam search, against networkx and against all orders of labels."""

from heapq import heappop, heappush

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmtarget.partition.subgraphs.beam_search import beam_search
from tvmtarget.partition.subgraphs.lower_bound import least_total, lower_bound, weight_ahead
from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph, LabeledGraph


@st.composite
def labeled_graphs(draw, labels=3, most=30):
    size = draw(st.integers(0, most))
    successors = [
        sorted(draw(st.sets(st.integers(vertex + 1, size - 1), max_size=3))) if vertex + 1 < size else []
        for vertex in range(size)
    ]
    return successors, draw(st.lists(st.integers(0, labels - 1), min_size=size, max_size=size))


def quotient(successors, subgraphs):
    owner = {vertex: number for number, subgraph in enumerate(subgraphs) for vertex in subgraph}
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(subgraphs)))
    graph.add_edges_from((owner[a], owner[b]) for a, targets in enumerate(successors) for b in targets)
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    return graph


def fewest(successors, labels, weights):
    """Return the least total weight of subgraphs over all orders of labels (Dijkstra over finished sets)."""
    before = [{a for a, targets in enumerate(successors) if vertex in targets} for vertex in range(len(successors))]
    found, waiting = {frozenset()}, [(0, 0, frozenset())]
    reached = {frozenset(): 0}
    order = AtomGraph(successors).topological_order
    while True:
        count, _, done = heappop(waiting)
        if len(done) == len(labels):
            return count
        for label in set(labels):
            after = set(done)
            for vertex in order:
                if labels[vertex] == label and before[vertex] <= after:
                    after.add(vertex)
            then = frozenset(after)
            if then != done and count + weights[label] < reached.get(then, 10**9):
                reached[then] = count + weights[label]
                heappush(waiting, (reached[then], len(found), then))
                found.add(then)


def check(successors, labels, subgraphs):
    assert sorted(vertex for subgraph in subgraphs for vertex in subgraph) == list(range(len(successors)))
    assert all(len({labels[vertex] for vertex in subgraph}) == 1 for subgraph in subgraphs)
    graph = quotient(successors, subgraphs)
    assert nx.is_directed_acyclic_graph(graph)
    assert all(a < b for a, b in graph.edges)
    assert len(subgraphs) >= lower_bound(LabeledGraph(AtomGraph(successors), labels))


@settings(max_examples=300, deadline=None)
@given(labeled_graphs())
def test_subgraphs_cover_the_graph_with_one_label_each_and_no_cycle(case):
    successors, labels = case
    check(successors, labels, LabeledGraph(AtomGraph(successors), labels).fused())


@settings(max_examples=300, deadline=None)
@given(labeled_graphs(labels=2))
def test_two_labels_need_as_many_subgraphs_as_the_lower_bound(case):
    """For two types, typed fusion is optimal (Kennedy and McKinley, 1993): the bound is reached."""
    successors, labels = case
    assert len(LabeledGraph(AtomGraph(successors), labels).fused()) == lower_bound(
        LabeledGraph(AtomGraph(successors), labels)
    )


@settings(max_examples=200, deadline=None)
@given(labeled_graphs(labels=5, most=12), st.lists(st.integers(0, 4), min_size=5, max_size=5))
def test_no_order_of_labels_goes_below_the_lower_bounds(case, weights):
    successors, labels = case
    assert lower_bound(LabeledGraph(AtomGraph(successors), labels)) <= fewest(successors, labels, [1] * 5)
    assert least_total(labels, weight_ahead(LabeledGraph(AtomGraph(successors), labels), weights), weights) <= fewest(
        successors, labels, weights
    )


@settings(max_examples=200, deadline=None)
@given(labeled_graphs(labels=4), st.sampled_from([(1, 1, 1, 1), (3, 1, 2, 0)]))
def test_beam_search_returns_subgraphs_in_execution_order(case, weights):
    successors, labels = case
    labeled = LabeledGraph(AtomGraph(successors), labels)
    subgraphs = beam_search(labeled, weights, weight_ahead(labeled, weights))
    check(successors, labels, subgraphs)


@settings(max_examples=100, deadline=None)
@given(labeled_graphs(labels=3, most=14))
def test_beam_search_is_optimal_on_small_graphs(case):
    """A beam of eight holds most prefixes of a graph of so few operations."""
    successors, labels = case
    weights = [1] * 3
    labeled = LabeledGraph(AtomGraph(successors), labels)
    subgraphs = beam_search(labeled, weights, weight_ahead(labeled, weights))
    assert len(subgraphs) == fewest(successors, labels, weights)


def test_beam_search_returns_none_when_the_work_limit_is_exceeded(monkeypatch):
    monkeypatch.setattr("tvmtarget.partition.subgraphs.beam_search.WORK", 0)
    assert beam_search(LabeledGraph(AtomGraph([[1], [2], []]), [0, 1, 2]), [1] * 3, [2, 1, 0]) is None


@given(labeled_graphs())
def test_topological_order_agrees_with_networkx(case):
    successors, _ = case
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(successors)))
    graph.add_edges_from((a, b) for a, targets in enumerate(successors) for b in targets)
    assert list(AtomGraph(successors).topological_order) == list(nx.lexicographical_topological_sort(graph))


def test_a_cycle_is_left_out_of_the_topological_order():
    assert list(AtomGraph([[1], [2], [1], []]).topological_order) == [0, 3]
