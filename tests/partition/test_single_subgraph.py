"""Sites whose code generator compiles a single program: the best convex set stays, everything else moves."""

import itertools
import random
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import DIGITS, inputs_of, random_graph

import tvmtarget as tt
from tvmtarget import plugins
from tvmtarget.backends.protocol import Backend, backend_named
from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.memory_use import memory_uses
from tvmtarget.partition.subgraphs.convexity import best_convex_subset

BOARD = "[npu=whole-npu,cpu=numpy](host=@cpu)"
REFUSED = ("Tanh", "Sub", "MaxPool")


@tt.strategy("whole-npu", subgraphs="program")
class WholeNpu:
    """An NPU whose compiler takes one network, of some operators."""

    def check_op(self, op):
        return tt.reject("RULE", "not on it") if op.kind in REFUSED else None


class _ByNumpy(Backend):
    """Runs what the NPU would."""

    name, kinds = "whole-npu", ("whole-npu",)

    def version(self):
        return "1"

    def compile(self, request):
        return backend_named("numpy").compile(replace(request, target=tt.Target("numpy")))


plugins.register("tvmtarget.backends", "whole-npu", _ByNumpy())


def is_convex(part, edges, count):
    after = [{b for a, b in edges if a == vertex} for vertex in range(count)]
    left = {b for vertex in part for b in after[vertex]} - part
    while left - part:
        more = left | {b for vertex in left - part for b in after[vertex]}
        if more & part:
            return False
        if more == left:
            return True
        left = more
    return True


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(0, 10**6))
def test_the_best_convex_set_is_found(count, seed):
    """Against all subsets: no convex set of allowed vertices and whole groups has a larger gain."""
    rng = random.Random(seed)
    edges = [(a, b) for b in range(count) for a in range(b) if rng.random() < 0.3]
    gains = {vertex: rng.randint(-2, 6) for vertex in range(count) if rng.random() < 0.7}
    group = sorted(rng.sample(sorted(gains), 2)) if len(gains) > 3 and rng.random() < 0.5 else []
    found = best_convex_subset(edges, count, gains, [group] if group else [])
    assert found is not None
    assert found <= gains.keys()
    assert is_convex(found, edges, count)
    assert not group or len(found & set(group)) in (0, 2)
    subsets = (set(one) for size in range(len(gains) + 1) for one in itertools.combinations(sorted(gains), size))
    valid = (one for one in subsets if is_convex(one, edges, count) and len(one & set(group)) in (0, len(group)))
    assert sum(map(gains.get, found)) == max(sum(map(gains.get, one)) for one in valid)


def of_npu(plan):
    return [subgraph for subgraph in plan.subgraphs if subgraph.site == "npu"]


@settings(max_examples=40, deadline=None)
@given(size=st.integers(2, 40), seed=st.integers(0, 10**6), by_cost=st.booleans())
def test_a_site_gets_one_program_at_most_and_the_best_one(size, seed, by_cost):
    """Without costs it has the most operations that one function can have, of those that the strategy takes."""
    model = random_graph(size, seed)
    module = tt.IRModule.from_onnx(model)
    plan = tt.decompose(module, BOARD, COSTS if by_cost else None)
    assert len(of_npu(plan)) <= 1
    body = plan.program.body
    edges = [(before, index) for index in plan.program.top for before in plan.program.predecessors(index)]
    gains = {index: 1 for index, call in enumerate(body) if call.kind not in REFUSED}
    best = best_convex_subset(edges, len(body), gains)
    assert by_cost or sum(len(subgraph.calls) for subgraph in of_npu(plan)) == len(best)
    assert tt.decompose(plan.module).module == plan.module
    inputs = inputs_of(model)
    expected = tt.build(module, "numpy").run(inputs)
    for name, value in tt.build(plan).run(inputs).items():
        np.testing.assert_array_equal(value, expected[name])


COSTS = {
    "schema": "tvmtarget.cost/1",
    "sites": {"npu": {"launch": 4}, "cpu": {"launch": 1}},
    "ops": [
        {"match": {"op": op}, "site": site, "time": time, "from": "log"}
        for op in ("Relu", "Tanh", "Abs", "Neg", "Sigmoid", "Add", "Mul", "Sub")
        for site, time in (("npu", 1), ("cpu", 6))
    ],
}


@pytest.mark.parametrize("seed", [1, 4, 5])
def test_a_site_of_a_small_memory_gets_one_program_too(seed):
    """Plans that memories hold are compared without what moved operations off the site."""
    module = tt.IRModule.from_onnx(random_graph(6, seed))
    size = max(output.type.nbytes for call in module.main.body for output in call.outputs)
    sites = {"npu": {"launch": 1, "capacity": 3 * size}, "cpu": {"launch": 1}}
    links = [{"src": "cpu", "dst": "npu", "latency": 1, "bandwidth": 1e12}]
    board = tt.Target.parse(BOARD).replace(memory=(tt.Memory(name="sram", of=("npu",)),))
    plan = tt.decompose(module, board, {**COSTS, "sites": sites, "links": links})
    assert len(of_npu(plan)) <= 1
    assert not any(use.missing for use in memory_uses(plan))


def test_moved_operations_are_explained_and_kept_in_files(tmp_path):
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), BOARD)
    assert [(subgraph.site, subgraph.ops[0], subgraph.ops[-1]) for subgraph in plan.subgraphs] == [
        ("cpu", "conv1", "pool"),
        ("npu", "conv3", "fc2"),
    ]
    assert "!@npu (required by a site that takes one program)" in str(plan.explain("conv1"))
    assert "RULE: not on it" in str(plan.explain("pool"))
    plan.save(tmp_path / "a.plan")
    assert tt.Plan.load(tmp_path / "a.plan").module == plan.module
    assert not plan.diff(plan.replay(tt.IRModule.from_onnx(DIGITS)))


def test_operations_without_an_alternative_stay_or_are_named_in_the_error():
    module = tt.IRModule.from_onnx(DIGITS)
    kept = tt.decompose(module, BOARD, where={"conv1": "@npu"})
    assert of_npu(kept)[0].ops == ("conv1", "relu1", "conv2", "relu2")
    with pytest.raises(
        InfeasibleError, match=r"@npu takes one whole program, .* 2 subgraphs, as ops 'conv1', 'fc1' can go"
    ):
        tt.decompose(module, BOARD, where={"conv1": "@npu", "fc1": "@npu"})


def test_caps_and_bodies_of_control_flow_leave_one_subgraph():
    @tt.strategy("small-npu", subgraphs="program", max_ops=3)
    class SmallNpu:
        ops = {"Conv", "Relu", "Gemm"}

    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), "[npu=small-npu,cpu=numpy](host=@cpu)")
    assert [len(subgraph.ops) for subgraph in of_npu(plan)] == [3]
    graph = """g (float[2] x, bool c) => (float[2] y) {
        a = Relu(x)
        y = If(c) <then_branch = t () => (e) { d = Relu(a) e = Abs(d) }, else_branch = f () => (g) { g = Tanh(a) }> }"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')
    plan = tt.decompose(tt.IRModule.from_onnx(model), BOARD, where={"op:Abs": "@npu"})
    assert [len(subgraph.ops) for subgraph in of_npu(plan)] == [2]
    assert plan.site_of("Relu_0") == "cpu"
