"""Our graph algorithms beside those of networkx: `python -m benchmarks graphs [SIZE ...]`.

Both get the same random graph and must agree. Each runs for at least a quarter of a second, and the mean counts. The
last column is the time to make a networkx graph of the arrays that the engine has; it is not part of the fourth. A peer
that took six seconds is left out at larger sizes.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import networkx as nx
import numpy as np

from benchmarks._arguments import at_least
from tvmtarget.partition.placement.maxflow import Budget, Network
from tvmtarget.partition.subgraphs.components import components_of
from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph, graph_from_edges

SIZES = (1_000, 10_000, 100_000)
BRIEF = 0.25  # seconds for which each is done again
CAP = 6.0  # seconds; a peer that took longer is left out at larger sizes
DEGREE = 2  # edges for each vertex


@dataclass(frozen=True)
class Case:
    """One algorithm on one graph: what makes the peer's graph, both algorithms, and whether their results agree."""

    name: str
    graph: Callable[[], nx.Graph]
    ours: Callable[[], object]
    peer: Callable[[nx.Graph], object]
    agree: Callable[[object, object], bool]


def cases(size: int) -> list[Case]:
    """Return the cases of a size: a random acyclic graph of so many vertices, with short and long edges."""
    rng = random.Random(size)
    edges = [
        (max(0, v - rng.randint(1, 50 if rng.random() < 0.9 else size)), v)
        for v in range(1, size)
        for _ in range(DEGREE)
    ]
    starts, ends = (np.array(side, dtype=np.int64) for side in zip(*edges, strict=True))
    sparse = [edge for edge in edges if rng.random() < 0.3]
    few_starts, few_ends = np.array(sparse, dtype=np.int64).reshape(-1, 2).T
    successors = [list(targets) for targets in graph_from_edges(size, starts, ends).successors]
    unary = [rng.randint(-1000, 1000) for _ in range(size)]
    costs = [rng.randint(1, 100) for _ in edges]

    def directed() -> nx.DiGraph:
        graph = nx.DiGraph()
        graph.add_nodes_from(range(size))
        graph.add_edges_from(edges)
        return graph

    def undirected() -> nx.Graph:
        graph = nx.Graph()
        graph.add_nodes_from(range(size))
        graph.add_edges_from(sparse)
        return graph

    def network() -> nx.DiGraph:
        graph = nx.DiGraph()
        graph.add_nodes_from((-1, -2))
        for vertex, cost in enumerate(unary):
            graph.add_edge(*((-1, vertex) if cost > 0 else (vertex, -2)), capacity=abs(cost))
        for (first, second), cost in zip(edges, costs, strict=True):
            for pair in ((first, second), (second, first)):
                more = graph.edges[pair]["capacity"] if graph.has_edge(*pair) else 0
                graph.add_edge(*pair, capacity=more + cost)
        return graph

    def cut_of(side: object) -> int:
        assert isinstance(side, list)
        return (
            sum(cost for cost, yes in zip(unary, side, strict=True) if yes and cost > 0)
            + sum(-cost for cost, yes in zip(unary, side, strict=True) if not yes and cost < 0)
            + sum(cost for (a, b), cost in zip(edges, costs, strict=True) if side[a] != side[b])
        )

    def minimum_cut() -> object:
        firsts, seconds = zip(*edges, strict=True)
        return Network(unary, firsts, seconds, costs, costs).sink_side(Budget(10**12))

    return [
        Case(
            "topological order",
            directed,
            lambda: AtomGraph(successors).topological_order,
            lambda graph: list(nx.topological_sort(graph)),
            lambda ours, peer: len(ours) == len(peer) == size,  # type: ignore[arg-type]
        ),
        Case(
            "connected components",
            undirected,
            lambda: components_of(size, few_starts, few_ends),
            lambda graph: list(nx.connected_components(graph)),
            lambda ours, peer: len(np.unique(ours)) == len(peer),  # type: ignore[arg-type, call-overload]
        ),
        Case(
            "minimum cut",
            network,
            minimum_cut,
            lambda graph: nx.minimum_cut(graph, -1, -2, flow_func=nx.algorithms.flow.boykov_kolmogorov),
            lambda ours, peer: cut_of(ours) == peer[0],  # type: ignore[index]
        ),
    ]


def seconds(work: Callable[[], object]) -> tuple[float, object]:
    """Return the mean time of some work, done again until it took BRIEF seconds, and its result."""
    began, rounds = time.perf_counter(), 0
    while True:
        found = work()
        rounds += 1
        took = time.perf_counter() - began
        if took > BRIEF:
            return took / rounds, found


def main() -> None:
    """Print a row for each algorithm and size."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("sizes", nargs="*", type=at_least(2), default=SIZES)
    given = options.parse_args()
    left_out: set[str] = set()
    print("| algorithm | vertices | tvmtarget | networkx | ratio | networkx graph |")
    print("|---|---:|---:|---:|---:|---:|")
    for size in sorted(given.sizes):
        for case in cases(size):
            ours, found = seconds(case.ours)
            row = f"| {case.name} | {size:,} | {1000 * ours:.3g} ms "
            if case.name in left_out:
                print(f"{row}| left out | | |")
                continue
            building, graph = seconds(case.graph)
            assert isinstance(graph, nx.Graph)
            peer, expected = seconds(lambda case=case, graph=graph: case.peer(graph))  # type: ignore[misc]
            if not case.agree(found, expected):
                raise SystemExit(f"{case.name} of {size} vertices: results differ")
            print(f"{row}| {1000 * peer:.3g} ms | {peer / ours:.1f} | {1000 * building:.3g} ms |", flush=True)
            if peer > CAP:
                left_out.add(case.name)
