"""Laws of region forming, against networkx as the oracle."""

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmtarget.partition.regions.waves import lower_bound, topological_order, waves


@st.composite
def coloured_graphs(draw, colours=3):
    size = draw(st.integers(0, 30))
    successors = [
        sorted(draw(st.sets(st.integers(vertex + 1, size - 1), max_size=3))) if vertex + 1 < size else []
        for vertex in range(size)
    ]
    return successors, draw(st.lists(st.integers(0, colours - 1), min_size=size, max_size=size))


def quotient(successors, regions):
    owner = {vertex: number for number, region in enumerate(regions) for vertex in region}
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(regions)))
    graph.add_edges_from((owner[a], owner[b]) for a, targets in enumerate(successors) for b in targets)
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    return graph


@settings(max_examples=300, deadline=None)
@given(coloured_graphs())
def test_regions_cover_have_one_colour_and_no_circle(case):
    successors, colours = case
    regions = waves(successors, colours)
    assert sorted(vertex for region in regions for vertex in region) == list(range(len(successors)))
    assert all(len({colours[vertex] for vertex in region}) == 1 for region in regions)
    graph = quotient(successors, regions)
    assert nx.is_directed_acyclic_graph(graph)
    assert all(a < b for a, b in graph.edges)
    assert len(regions) >= lower_bound(successors, colours)


@settings(max_examples=300, deadline=None)
@given(coloured_graphs(colours=2))
def test_two_colours_are_divided_into_as_few_regions_as_is_possible(case):
    """For two types, typed fusion is optimal (Kennedy and McKinley, 1994): the bound is reached."""
    successors, colours = case
    assert len(waves(successors, colours)) == lower_bound(successors, colours)


@given(coloured_graphs())
def test_orders_agree_with_networkx(case):
    successors, _ = case
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(successors)))
    graph.add_edges_from((a, b) for a, targets in enumerate(successors) for b in targets)
    assert topological_order(successors) == list(nx.lexicographical_topological_sort(graph))


def test_a_circle_is_left_out_of_the_order():
    assert topological_order([[1], [2], [1], []]) == [0, 3]
