"""Graph algorithms of the IR agree with networkx: dataflow, boundaries, convexity, order and cycles of callees."""

from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_modules import functions

import tvmtarget as tt
from tvmtarget import Call, Function
from tvmtarget.errors import ModelError, UnknownNameError
from tvmtarget.ir.def_use import INPUTS, OUTPUTS, boundary, dataflow_graph, detour, readers_of
from tvmtarget.ir.function import callees_first, reachable_functions

BRANCH = """
func @main(%x: float32[n,2], %c: bool[]) -> (float32[n,2]) opsets(onnx=17) {
  const %w: float32[2] = [1.0, 2.0]
  %a: float32[3,2] = onnx.Add(%x, %w) [@npu] as a
  %y: float32[n,2] = onnx.If(%c) as if
    then_branch @then() -> (float32[n,2]) captures(%a) {
      %t: float32[n,2] = onnx.Neg(%a) as neg
      return %t
    }
    else_branch @else() -> (float32[n,2]) captures(%x) {
      %e: float32[n,2] = onnx.Abs(%x) as abs
      return %e
    }
  return %y
}"""


@st.composite
def call_graphs(draw):
    """Return functions by name that call each other at random."""
    names = [f"f{k}" for k in range(draw(st.integers(1, 6)))]
    made = {}
    for name in names:
        callees = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
        made[name] = Function(name, (), tuple(Call(f"@{callee}", (), ()) for callee in callees), ())
    return made


def indexed(function, *, effects=False):
    """Return the dataflow between operations by index; with effects, an edge between each and the next one too."""
    graph = dataflow_graph(function)
    index = nx.get_node_attributes(graph, "index")
    plain = nx.DiGraph((index[a], index[b]) for a, b in graph.edges() if a != INPUTS and b != OUTPUTS)
    plain.add_nodes_from(range(len(function.body)))
    ordered = [k for k, call in enumerate(function.body) if call.has_effect] if effects else []
    plain.add_edges_from(pairwise(ordered))
    return plain


def test_nodes_are_operations_and_edges_are_values():
    graph = tt.IRModule.parse(BRANCH).graph()
    assert list(graph) == ["in", "a", "if", "out"]
    assert graph.nodes["a"] == {"op": "onnx.Add", "index": 0, "constraint": "@npu"}
    assert set(graph.edges(keys=True)) == {
        ("in", "a", "x"), ("in", "if", "c"), ("a", "if", "a"), ("in", "if", "x"), ("if", "out", "y"),
    }  # fmt: skip
    assert graph.edges["in", "a", "x"] == {"value": "x", "type": "float32[n,2]"}
    assert graph.edges["a", "if", "a"] == {"value": "a", "type": "float32[3,2]", "nbytes": 24}


def test_nested_bodies_are_graphs_whose_captures_are_inputs():
    branches = tt.IRModule.parse(BRANCH).graph().nodes["if"]["regions"]
    assert sorted(branches) == ["else_branch", "then_branch"]
    assert list(branches["then_branch"].edges(keys=True)) == [("in", "neg", "a"), ("neg", "out", "t")]


def test_operations_of_one_name_are_separate_nodes():
    graph = tt.IRModule.parse(
        "func @main(%x) opsets(onnx=17) { %a = onnx.Relu(%x) %b = onnx.Relu(%a) as in %c = onnx.Relu(%b) return %c }"
    ).graph()
    assert list(graph) == ["in", "Relu", "in_1", "Relu_1", "out"]


def test_a_graph_of_a_missing_function_is_an_error():
    with pytest.raises(UnknownNameError, match="no function 'mian'"):
        tt.IRModule.parse(BRANCH).graph("mian")


@given(functions(depth=1))
def test_body_order_is_the_topological_order_of_the_graph(function):
    graph = dataflow_graph(function)
    order = nx.lexicographical_topological_sort(graph, key=lambda node: graph.nodes[node]["index"])
    assert [graph.nodes[node]["index"] for node in order] == list(range(-1, len(function.body) + 1))


@given(functions(depth=1))
def test_descendants_are_the_transitive_readers(function):
    readers, graph = readers_of(function), indexed(function)
    for start, call in enumerate(function.body):
        found, waiting = set(), [output.name for output in call.outputs]
        while waiting:
            for index in set(readers.get(waiting.pop(), ())) - found:
                found.add(index)
                waiting += [output.name for output in function.body[index].outputs]
        assert nx.descendants(graph, start) == found


@given(functions(depth=1), st.data())
def test_the_boundary_is_the_edges_that_cross_it(function, data):
    inside = sorted(data.draw(st.sets(st.integers(0, max(0, len(function.body) - 1)))) if function.body else ())
    inputs, outputs = boundary(function, inside, readers_of(function))
    graph = dataflow_graph(function)
    nodes = {node for node, index in graph.nodes(data="index") if index in inside}
    assert set(inputs) == {value for a, b, value in graph.edges(keys=True) if a not in nodes and b in nodes}
    assert set(outputs) == {value for a, b, value in graph.edges(keys=True) if a in nodes and b not in nodes}


@given(functions(depth=1), st.data())
def test_a_set_has_no_detour_exactly_if_it_is_convex(function, data):
    inside = data.draw(st.sets(st.integers(0, max(0, len(function.body) - 1)))) if function.body else set()
    graph = indexed(function, effects=True)
    behind = set().union(*(nx.descendants(graph, index) for index in inside)) - inside
    leaves_and_returns = any(nx.descendants(graph, index) & inside for index in behind)
    path, dependent = detour(function, inside)
    assert bool(path) == leaves_and_returns
    if path:
        assert nx.is_path(graph, path)
        assert {path[0], path[-1]} <= inside
        assert inside.isdisjoint(path[1:-1])
    else:
        assert dependent == behind


@given(call_graphs())
def test_reachable_functions_are_the_descendants_in_the_call_graph(made):
    graph = nx.DiGraph({name: [call.callee for call in function.body] for name, function in made.items()})
    assert set(reachable_functions(["f0"], made)) == {"f0"} | nx.descendants(graph, "f0")


@given(call_graphs())
def test_callees_come_first_unless_the_call_graph_has_a_cycle(made):
    graph = nx.DiGraph({name: [call.callee for call in function.body] for name, function in made.items()})
    if not nx.is_directed_acyclic_graph(graph):
        with pytest.raises(ModelError, match="calls itself"):
            list(callees_first(made.values(), made))
        return
    position = {function.name: at for at, function in enumerate(callees_first(made.values(), made))}
    assert position.keys() == made.keys()
    assert all(position[callee] < position[caller] for caller, callee in graph.edges)


@given(call_graphs())
def test_verification_finds_the_cycles_that_networkx_finds(made):
    graph = nx.DiGraph({name: [call.callee for call in function.body] for name, function in made.items()})
    module = tt.IRModule((*made.values(), Function("main", (), (), ())))
    if nx.is_directed_acyclic_graph(graph):
        module.verify()
        return
    with pytest.raises(ModelError, match=r"functions call each other in a cycle: ") as caught:
        module.verify()
    cycle = str(caught.value).partition("cycle: ")[2].split(" -> ")
    assert cycle[0] == cycle[-1]
    assert nx.is_path(graph, cycle)
