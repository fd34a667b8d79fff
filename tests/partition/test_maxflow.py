"""Minimum cuts, list colourings and connected components against networkx and exhaustive search."""

import random
from itertools import product

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmtarget.partition.placement.graph_coloring import list_coloring
from tvmtarget.partition.placement.maxflow import Budget, Network
from tvmtarget.partition.subgraphs.components import components_of


@pytest.mark.parametrize("seed", range(60))
def test_a_cut_costs_what_the_minimum_cut_of_networkx_costs(seed):
    rng = random.Random(seed)
    count = rng.randint(1, 12)
    unary = [rng.randint(-20, 20) for _ in range(count)]
    ends = [rng.sample(range(count), 2) for _ in range(rng.randint(0, 3 * count))] if count > 1 else []
    pairs = [(a, b, rng.randint(0, 15), rng.randint(0, 15)) for a, b in ends]
    graph = nx.DiGraph()
    graph.add_nodes_from(["source", "sink"])

    def add(start, end, capacity):
        known = graph.get_edge_data(start, end, {"capacity": 0})["capacity"]
        graph.add_edge(start, end, capacity=known + capacity)

    for vertex, cost in enumerate(unary):
        add("source", vertex, max(0, cost))
        add(vertex, "sink", max(0, -cost))
    for a, b, rising, falling in pairs:
        add(a, b, rising)
        add(b, a, falling)
    columns = [list(column) for column in zip(*pairs, strict=True)] or [[], [], [], []]
    decisions = Network(unary, *columns).sink_side(Budget(10**6))
    cut = sum(cost for cost, yes in zip(unary, decisions, strict=True) if yes and cost > 0)
    cut += sum(-cost for cost, yes in zip(unary, decisions, strict=True) if not yes and cost < 0)
    cut += sum(rising * (not decisions[a] and decisions[b]) for a, b, rising, _ in pairs)
    cut += sum(falling * (decisions[a] and not decisions[b]) for a, b, _, falling in pairs)
    assert cut == nx.minimum_cut_value(graph, "source", "sink")


def test_a_cut_beyond_the_budget_is_given_up():
    assert Network([5, -5], [0], [1], [3], [3]).sink_side(Budget(1)) is None


@given(st.lists(st.sets(st.sampled_from("abc")), min_size=1, max_size=5), st.data())
def test_a_list_colouring_is_found_exactly_if_there_is_one(lists, data):
    vertex = st.integers(0, len(lists) - 1)
    pairs = data.draw(st.lists(st.tuples(vertex, vertex).filter(lambda pair: pair[0] != pair[1])))
    found = list_coloring({number: sorted(colours) for number, colours in enumerate(lists)}, pairs)
    possible = any(all(colours[a] != colours[b] for a, b in pairs) for colours in product(*lists))
    assert (found is not None) == possible
    if found is not None:
        assert all(found[number] in colours for number, colours in enumerate(lists))
        assert all(found[a] != found[b] for a, b in pairs)


@given(st.integers(1, 20), st.data())
def test_components_are_those_of_networkx(count, data):
    vertex = st.integers(0, count - 1)
    edges = data.draw(st.lists(st.tuples(vertex, vertex)))
    starts, ends = (np.array([edge[place] for edge in edges], dtype=np.int64) for place in (0, 1))
    graph = nx.Graph(edges)
    graph.add_nodes_from(range(count))
    smallest = {vertex: min(found) for found in nx.connected_components(graph) for vertex in found}
    assert components_of(count, starts, ends).tolist() == [smallest[vertex] for vertex in range(count)]
