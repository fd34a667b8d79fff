"""Import and export of long models."""

from itertools import pairwise

import pytest
from models import random_graph, small
from onnx import helper

import tvmtarget as tt


def chain(size):
    """Return a model with a chain of operations."""
    names = ["x", *(f"v{k}" for k in range(size))]
    nodes = [helper.make_node("Abs", [a], [b], name=b) for a, b in pairwise(names)]
    return small(*nodes, outputs=(names[-1],))


MAKERS = {"chain": chain, "graph": lambda size: random_graph(size, 1)}


@pytest.mark.parametrize("name", MAKERS)
def test_ten_thousand_operations_round_trip_without_recursion(name):
    model = MAKERS[name](10_000)
    module = tt.IRModule.from_onnx(model.SerializeToString())
    assert len(module.to_onnx().graph.node) == len(model.graph.node)
    assert module.structural_hash()
