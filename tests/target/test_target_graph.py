"""A target as a graph of networkx."""

import networkx as nx
import pytest

from tvmtarget import Link, Target
from tvmtarget.tags.registry import default_registry

BOARD = Target.parse("composite[rack=[gpu=cuda(count=2),cpu=llvm](host=@cpu),top=llvm](host=@top)")


def edges(graph, sort):
    return {(source, target) for source, target, key in graph.edges(keys=True) if key == sort}


def test_children_are_a_tree_with_every_node_of_the_target():
    graph = BOARD.graph()
    assert list(graph) == [path for path, _ in BOARD.walk()]
    assert nx.is_arborescence(nx.DiGraph(edges(graph, "child")))
    assert graph.nodes["rack/gpu"] == {"kind": "cuda", "count": 2, "is_leaf": True, "target": BOARD.at("rack/gpu")}


def test_hosts_and_links_are_edges():
    linked = BOARD.replace(links=(Link(src="rack", dst="top", bandwidth_Bps=10**9, latency_ns=500),))
    graph = linked.graph()
    assert edges(graph, "host") == {("", "top"), ("rack", "rack/cpu"), ("rack/gpu", "rack/cpu")}
    assert graph.edges["rack", "top", "link"] == {"bandwidth_Bps": 10**9, "latency_ns": 500, "coherent": False}


def test_an_implied_host_is_a_node_without_facts():
    graph = Target.parse("cuda").graph()
    assert list(graph) == ["", "host"]
    assert graph.nodes["host"] == {}


@pytest.mark.parametrize("tag", ["arm/rasp4b", "nvidia/jetson-nano", "aws/c5"])
def test_tags_are_graphs_in_which_every_node_is_reached_from_the_root(tag):
    graph = default_registry()[tag].graph()
    assert nx.descendants(graph, "") | {""} == set(graph)
