"""Values are copied along the links of a tree, from memory to memory where none leads straight."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import random_graph, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.executors.graph import CopyEvent
from tvmtarget.ir.function import COPY
from tvmtarget.partition.costs.costs import Costs, LinkCost
from tvmtarget.partition.routes import Routes
from tvmtarget.target.layout import Layout


def board(*links, children=("a", "b", "c")):
    """Return a board of leaves that each have a memory of their own, and links between some."""
    tree = tt.Target.parse(f"[{','.join(f'{name}=numpy' for name in children)},cpu=numpy](host=@cpu)")
    memory = tuple(tt.Memory(name=f"m{name}", bytes=1 << 30, of=(name,)) for name in children)
    return tree.replace(memory=memory, links=tuple(map(link, links)))


def link(ends, bandwidth=10**9, latency=1000):
    src, dst = ends.split("-")
    return tt.Link(src=src, dst=dst, bandwidth_Bps=bandwidth, latency_ns=latency)


CHAIN = small(
    helper.make_node("Relu", ["x"], ["r"], name="relu"),
    helper.make_node("Tanh", ["r"], ["t"], name="tanh"),
    helper.make_node("Abs", ["r"], ["u"], name="abs"),
    helper.make_node("Add", ["t", "u"], ["y"], name="add"),
)
WHERE = {"relu": "@a", "tanh": "@b", "abs": "@cpu", "add": "@b"}


def copies(plan):
    return [(copy.value, copy.src, copy.dst) for copy in plan.copies]


def test_without_a_link_between_them_a_value_comes_through_the_host_once():
    plan = tt.decompose(CHAIN, board("a-cpu", "b-cpu"), where=WHERE)
    cpu = plan.layout.home("")
    assert copies(plan) == [("x", cpu, "ma"), ("r", "ma", cpu), ("r", cpu, "mb"), ("u", cpu, "mb"), ("y", "mb", cpu)]
    made = {call.outputs[0].name: call.inputs[0] for call in plan.module.main.body if call.op == COPY}
    assert (made["r.copy"], made["r.copy_1"]) == ("r", "r.copy")
    assert tt.decompose(plan.module).module == plan.module
    exe, x = tt.build(plan), np.ones((2, 3), "float32")
    events = [(e.src, e.dst) for e in exe.profile({"x": x}) if isinstance(e, CopyEvent)]
    assert events == [(src, dst) for _, src, dst in copies(plan)]
    np.testing.assert_allclose(exe(x), tt.build(CHAIN, "numpy")(x))


@pytest.mark.parametrize(
    ("links", "stops"),
    [
        ((), ()),
        (("a-b", "a-cpu", "b-cpu"), ()),
        (("a-cpu", "b-cpu"), ("cpu",)),
        (("a-c", "c-b", "a-cpu"), ("mc",)),
        ((("a-b", 10**6), "a-cpu", "b-cpu"), ("cpu",)),
        (("a-cpu",), ("cpu",)),
    ],
)
def test_the_fastest_way_over_the_links_that_there_are_is_taken(links, stops):
    layout = Layout(board(*(one if isinstance(one, str) else one[0] for one in links)).resolve())
    if any(isinstance(one, tuple) for one in links):
        slow = tuple(link(one) if isinstance(one, str) else link(*one) for one in links)
        layout = Layout(board().replace(links=slow).resolve())
    wanted = tuple(layout.home("") if stop == "cpu" else stop for stop in stops)
    assert Routes(layout).between("ma", "mb") == wanted
    assert Routes(layout).between("mb", "ma") == wanted[::-1]


def test_what_a_copy_takes_is_the_sum_of_its_links():
    target = board("a-cpu", "b-cpu")
    plan = tt.decompose(CHAIN, target, Costs(), where=WHERE)
    assert len(plan.copies) == 5
    assert plan.prediction.copies == 5 * (1_000_000 + 24_000)  # picoseconds: 1 us each, and 24 bytes at 1 GB/s


def test_a_link_that_only_the_costs_know_is_used():
    plan = tt.decompose(CHAIN, board("a-cpu", "b-cpu"), Costs(links=(LinkCost("a", "b", 1.0, 1e9),)), where=WHERE)
    assert ("r", "ma", "mb") in copies(plan)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(2, 20), joined=st.sets(st.sampled_from(["a-b", "b-c", "a-c"])))
def test_no_value_comes_back_and_every_copy_follows_a_link(seed, size, joined):
    """Facts I7: one copy for each value and memory, none to where it was made; the results stay the same."""
    target = board("a-cpu", *sorted(joined))
    model = random_graph(size, seed)
    module = tt.IRModule.from_onnx(model)
    sites = ("@a", "@b", "@c", "@cpu")
    where = {call.source: sites[(seed >> (2 * number)) % 4] for number, call in enumerate(module.main.body)}
    plan = tt.decompose(module, target, where=where)
    made = [(copy.value, copy.dst) for copy in plan.copies]
    assert len(set(made)) == len(made)
    routes = Routes(plan.layout)
    assert not any(routes.between(copy.src, copy.dst) for copy in plan.copies)
    origin = {output.name: output.scope for call in plan.module.main.body for output in call.outputs}
    assert not any(origin.get(copy.value) == copy.dst for copy in plan.copies)
