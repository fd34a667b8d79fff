"""What the tests of every runtime of clusters compare: inputs, the undivided program, equal outputs."""

from itertools import combinations

import numpy as np
from models import DIGITS

import tvmtarget as tt

__all__ = ["assert_same", "images", "replicated", "whole"]


def images(count=2, seed=0):
    return {"input": np.random.default_rng(seed).normal(size=(count, 1, 8, 8)).astype("float32")}


def whole(model, inputs):
    return tt.build(tt.IRModule.from_onnx(model), "onnxruntime").run(inputs)


def assert_same(actual, expected):
    assert list(actual) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-5)


def replicated(runtime):
    """Build a program that three machines run by turns, and whose driver is a fourth."""
    machines = [":cpu", "n.0", "n.1", "n.2"]
    links = [{"src": a, "dst": b, "latency": 4, "bandwidth": 1e10} for a, b in combinations(machines, 2)]
    facts = {"launch": 20, "flops": {"float32": 1e10}, "mem_bw": 1e10}
    costs = {"schema": "tvmtarget.cost/1", "unit": "us", "sites": {"onnxruntime": facts}, "links": links}
    costs["symbolic_hints"] = {"batch": 64}
    target = f"[n=[a=onnxruntime](host=llvm,count=3)](runtime={runtime})"
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), target, costs, objective="throughput", max_replicas=3)
    return tt.build(plan)
