"""Canonical orders and fingerprints: independent of listing order and names, and equal in every process."""

import random
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tvmtarget as tt
from tvmtarget.ir.function import Call, Constant, Function, Value
from tvmtarget.ir.structure import op_fingerprint
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.outline.canonical_order import CanonicalOrders, CanonicalRanks

FLOAT = TensorType("float32", (4,))
KINDS = ("Relu", "Tanh", "Abs", "Neg")


def calls_of(size, seed):
    """Return operations of a random graph, each of one or two operands."""
    rng = random.Random(seed)
    calls = []
    for index in range(size):
        inputs = [f"v{rng.randrange(index)}" if index and rng.random() < 0.9 else "x" for _ in range(rng.randint(1, 2))]
        op = "onnx.Add" if len(inputs) == 2 else f"onnx.{rng.choice(KINDS)}"
        calls.append(Call(op, tuple(inputs), (Value(f"v{index}", FLOAT),), source=f"op{index}"))
    return calls


def function_of(calls):
    read = {name for call in calls for name in call.inputs}
    results = tuple(sorted({output.name for call in calls for output in call.outputs} - read))
    return Function("main", (Value("x", FLOAT),), tuple(calls), results)


def graph_of(calls):
    producer = {call.outputs[0].name: number for number, call in enumerate(calls)}
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(calls)))
    graph.add_edges_from(
        (producer[name], n) for n, call in enumerate(calls) for name in call.inputs if name in producer
    )
    return graph


def shuffled(calls, seed):
    """Return the operations in another topological order."""
    rng = random.Random(seed)
    key = {number: rng.random() for number in range(len(calls))}
    return [calls[number] for number in nx.lexicographical_topological_sort(graph_of(calls), key=key.__getitem__)]


def fingerprints(calls):
    types = {"x": FLOAT} | {call.outputs[0].name: FLOAT for call in calls}
    return [op_fingerprint(call, types, lambda _: True).text for call in calls]


def kinds_in_order(calls):
    """Return each operation in canonical order as its kind and the positions of its operands."""
    order = CanonicalOrders().order(calls, fingerprints(calls))
    position = {calls[index].outputs[0].name: number for number, index in enumerate(order)}
    return [(calls[index].op, [position.get(name, -1) for name in calls[index].inputs]) for index in order]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 25), st.integers(0, 10**6))
def test_orders_are_topological(size, seed):
    calls = calls_of(size, seed)
    texts = fingerprints(calls)
    ranks = CanonicalRanks(function_of(calls)).ranks(texts.__getitem__)
    position = {index: number for number, index in enumerate(CanonicalOrders().order(calls, texts))}
    assert sorted(ranks) == sorted(position.values()) == list(range(size))
    assert all(ranks[a] < ranks[b] and position[a] < position[b] for a, b in graph_of(calls).edges)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.integers(0, 10**6), st.integers(0, 10**6))
def test_isomorphic_graphs_of_distinct_operations_get_one_order(size, seed, other):
    """Where labels are distinct, the order does not depend on how operations are listed."""
    calls = [
        Call(f"test.op{n}", call.inputs, call.outputs, source=call.source)
        for n, call in enumerate(calls_of(size, seed))
    ]
    again = shuffled(calls, other)
    assert kinds_in_order(calls) == kinds_in_order(again)
    ranks = CanonicalRanks(function_of(calls)).ranks(fingerprints(calls).__getitem__)
    other_ranks = CanonicalRanks(function_of(again)).ranks(fingerprints(again).__getitem__)
    assert {call.op: rank for call, rank in zip(calls, ranks, strict=True)} == {
        call.op: rank for call, rank in zip(again, other_ranks, strict=True)
    }


@pytest.mark.parametrize(
    ("name", "dims", "text"),
    [("Relu", (4,), "5bbd4a383240338a"), ("Tanh", ("n", 4), "1b9d52cf0c2c2632")],
)
def test_fingerprints_do_not_change(name, dims, text):
    """They are part of the names of functions, in every version."""
    type_ = TensorType("float32", dims)
    call = Call(f"onnx.{name}", ("a",), (Value("b", type_),), source="op")
    found = op_fingerprint(call, {"a": type_, "b": type_}, lambda _: True)
    assert found.text == text
    assert found.dims == tuple(dim for dim in dims if isinstance(dim, str)) * 2


def weighted(size, seed):
    """Return a program of few kinds of operations and few weights, in which equal structures with other data abound."""
    rng, floats = random.Random(seed), np.random.default_rng(seed)
    square = TensorType("float32", (4, 4))
    weights = [Constant(f"w{at}", square, floats.random((4, 4), "float32")) for at in range(rng.randint(1, 4))]
    values, calls = ["x"], []
    for index in range(size):
        near = values[-6:]
        kinds = [("MatMul", rng.choice(weights).name), ("Add", rng.choice(weights).name), ("Add", rng.choice(near))]
        kind, *other = rng.choice([*kinds, ("Relu",)])
        out = Value(f"v{index}", square)
        calls.append(Call(f"onnx.{kind}", (rng.choice(near), *other), (out,), source=f"op{index}"))
        values.append(out.name)
    read = {name for call in calls for name in call.inputs}
    results = tuple(name for name in values[1:] if name not in read)
    constants = tuple(one for one in weights if one.name in read)
    return Function("main", (Value("x", square),), tuple(calls), results, constants, opsets=(("", 17),))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(8, 30))
def test_functions_have_the_same_names_however_operations_of_equal_structure_are_listed(seed, size):
    function = weighted(size, seed)
    listed = function.replace(
        body=tuple(shuffled(list(function.body), seed)), constants=tuple(reversed(function.constants))
    )
    target = "[npu=onnxruntime,cpu=numpy](host=@cpu)"
    where = {"*": "@cpu"} | ({"op:MatMul": "@npu"} if any(one.kind == "MatMul" for one in function.body) else {})
    plans = [tt.decompose(tt.IRModule((one,)), target, where=where) for one in (function, listed)]
    names = [{op: one.function for one in plan.subgraphs for op in one.ops} for plan in plans]
    assert names[0] == names[1]


@pytest.mark.parametrize("many", [5, 1000])
def test_an_edit_leaves_the_order_of_the_results_of_many_operations_alone(many, monkeypatch):
    monkeypatch.setattr("tvmtarget.partition.outline.canonical_order.MANY_OPS", many)
    kinds = [("Relu", "x"), ("Abs", "v0"), ("Tanh", "v0"), ("Neg", "v0"), ("Abs", "v0"), ("Exp", "v0"), ("Neg", "x")]
    calls = [Call(f"onnx.{kind}", (read,), (Value(f"v{at}", FLOAT),)) for at, (kind, read) in enumerate(kinds)]
    results = ("v5", "v2", "v1", "v6", "v3")  # v4 is read by nothing

    def order(calls):
        ranks = CanonicalRanks(Function("main", (Value("x", FLOAT),), tuple(calls), results)).ranks
        return sorted(range(7), key=ranks(fingerprints(calls).__getitem__).__getitem__)

    edits = [[*calls[:at], replace(calls[at], op="onnx.Sin"), *calls[at + 1 :]] for at in range(len(calls))]
    orders = {tuple(order(edited)) for edited in [calls, *edits]}
    assert (orders == {(0, 5, 2, 1, 6, 3, 4)}) == (many == 5)
