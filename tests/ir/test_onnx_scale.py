"""Import and export take linear time, measured by ratios of processor time."""

import time
from itertools import pairwise

import pytest
from effort import examples
from models import random_graph, small
from onnx import helper

import tvmtarget as tt


def chain(size):
    """Return a model with a chain of operations."""
    names = ["x", *(f"v{k}" for k in range(size))]
    nodes = [helper.make_node("Abs", [a], [b], name=b) for a, b in pairwise(names)]
    return small(*nodes, outputs=(names[-1],))


def seconds(model):
    data = model.SerializeToString()
    begin = time.process_time()
    module = tt.IRModule.from_onnx(data)
    written = module.to_onnx()
    module.structural_hash()
    taken = time.process_time() - begin
    assert len(written.graph.node) == len(model.graph.node)
    return taken


MAKERS = {"chain": chain, "graph": lambda size: random_graph(size, 1)}


@pytest.mark.parametrize("name", MAKERS)
def test_ten_thousand_operations_round_trip_without_recursion(name):
    assert seconds(MAKERS[name](10_000)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", examples(["chain"], [*MAKERS]))
def test_a_hundred_thousand_operations_take_ten_times_as_long_as_ten_thousand(name):
    """Quadratic time would take a hundred times as long; a factor of 30 allows for caches and noise."""
    make = MAKERS[name]
    assert seconds(make(100_000)) < 30 * max(seconds(make(10_000)) for _ in range(2))
