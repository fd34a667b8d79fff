"""Unknown costs never count against a preference, and never move work away from a preferred site."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import DIGITS, light, random_graph, small
from onnx import TensorProto, helper

import tvmtarget as tt
from tvmtarget.errors import UnknownNameError
from tvmtarget.partition.costs.costs import Costs, LinkCost, OpCost, SiteCost

PAIR = "[npu=onnxruntime,cpu=llvm](host=@cpu)"
KINDS = ("Relu", "Tanh", "Abs", "Neg", "Sigmoid", "Add", "Mul", "Sub")


def sites_of(plan):
    return [plan.site_of(call.source) for call in plan.program.body]


def test_a_roofline_without_rates_moves_no_operation():
    module = tt.IRModule.from_onnx(random_graph(497, 7))
    where = {f"n{index}": "@cpu" for index in range(0, 497, 40)}
    plain = tt.decompose(module, PAIR, where=where)
    plan = tt.decompose(module, PAIR, "roofline", where=where)
    assert sites_of(plan) == sites_of(plain)
    assert len(plan.prediction.unknown) == 497
    assert plan.summary().splitlines()[0].endswith("; prediction mostly unknown (497 of 497 times)")
    assert plan.to_json()["predicted"]["warning"] == "prediction mostly unknown (497 of 497 times)"


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_what_leaves_a_preferred_site_is_known_there_and_where_it_goes(seed):
    """Whatever is stated of whichever site, ops with an unknown time on either site stay where they are preferred."""
    rng = random.Random(seed)
    stated = {(site, kind) for site in "abc" for kind in KINDS if rng.random() < 0.6}
    ops = tuple(OpCost(site, op=kind, time=rng.choice((1.0, 50.0))) for site, kind in sorted(stated))
    target = tt.Target.parse("[a=numpy,b=numpy,c=numpy](host=@a)").replace(
        memory=(tt.Memory(name="mb", of=("b",)), tt.Memory(name="mc", of=("c",)))
    )
    links = tuple(LinkCost(*pair, 1.0, 1e9) for pair in (("a", "b"), ("b", "c")) if rng.random() < 0.7)
    module = tt.IRModule.from_onnx(random_graph(rng.randint(1, 70), seed))
    where = {call.source: "@c" for call in module.main.body if rng.random() < 0.1}
    where |= {call.source: "@b?" for call in module.main.body if rng.random() < 0.1}
    costs = Costs(sites={"numpy": SiteCost(launch=1.0)}, links=links, ops=ops)
    plan, plain = tt.decompose(module, target, costs, where=where), tt.decompose(module, target, where=where)
    joined = {"a": "a", "b": "b", "c": "c"}
    for link in links:
        old, new = joined[link.dst], joined[link.src]
        joined = {site: new if group == old else group for site, group in joined.items()}
    for call, was, now in zip(plan.program.body, sites_of(plain), sites_of(plan), strict=True):
        if was != now:
            assert {(was, call.kind), (now, call.kind)} <= stated
            assert joined[was] == joined[now]


def test_values_of_unknown_size_keep_their_ops_in_the_memory_that_is_preferred():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    nodes = [helper.make_node("Relu", ["x"], ["r"], name="r"), helper.make_node("Tanh", ["r"], ["y"], name="t")]
    graph = helper.make_graph(nodes, "open", [x], [y])
    module = tt.IRModule.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    target = tt.Target.parse("[npu=onnxruntime,cpu=numpy](host=@cpu)")
    target = target.replace(memory=(tt.Memory(name="sram", of=("npu",)),))
    ops = tuple(OpCost(site, op=op, time=time) for site, time in (("npu", 9.0), ("cpu", 1.0)) for op in KINDS)
    costs = Costs(ops=ops, links=(LinkCost("npu", "cpu", 1.0, 1e9),))
    assert sites_of(tt.decompose(module, target, costs)) == ["npu", "npu"]
    sized = Costs(ops=ops, links=costs.links, symbolic_hints={"n": 4})
    assert sites_of(tt.decompose(module, target, sized)) == ["cpu", "cpu"]


def test_in_nested_systems_and_in_streams_unknown_costs_move_nothing_either():
    deep = "[x=[a=numpy,b=onnxruntime](host=@a),y=[c=llvm,d=numpy](host=@c)](host=@x/a)"
    module = tt.IRModule.from_onnx(random_graph(40, 3))
    where = {"n3": "@y", "n9": "@x/b"}
    plain = tt.decompose(module, deep, where=where)
    ops = tuple(OpCost(site, op=op, time=1.0) for site in ("x/b", "y/d") for op in KINDS)
    for costs in ("roofline", Costs(ops=ops)):
        assert sites_of(tt.decompose(module, deep, costs, where=where)) == sites_of(plain)
        stream = tt.decompose(module, deep, costs, where=where, objective="throughput")
        assert sites_of(stream) == sites_of(plain)


def test_models_with_a_few_unknown_ops_are_still_placed_by_what_is_known():
    module = tt.IRModule.from_onnx(light("squeezenet"))
    target = tt.Target.parse("[npu=onnxruntime,cpu=numpy](host=@cpu)")
    ops = tuple(
        OpCost(site, op=op, time=time) for site, time in (("npu", 90.0), ("cpu", 1.0)) for op in ("Conv", "Relu")
    )
    plan = tt.decompose(module, target, Costs(ops=ops))
    by_kind = {(call.kind, plan.site_of(call.source)) for call in plan.program.body}
    assert ("Conv", "cpu") in by_kind
    assert {site for kind, site in by_kind if kind not in ("Conv", "Relu")} == {"npu"}
    assert "mostly" not in plan.summary().splitlines()[0]
    softmax = next(call.source for call in plan.program.body if call.kind == "Softmax")
    assert "as no known time is in favour of another" in str(plan.explain(softmax))


def test_a_bound_is_only_stated_where_all_choices_are_known():
    module = tt.IRModule.from_onnx(small(helper.make_node("Relu", ["x"], ["y"], name="r")))
    half = Costs(ops=(OpCost("npu", op="Relu", time=5.0),))
    plan = tt.decompose(module, "[npu=onnxruntime,cpu=numpy](host=@cpu)", half)
    assert plan.prediction.unknown == ()
    assert plan.prediction.lower_bound is None


def digits(**costs):
    return tt.decompose(tt.IRModule.from_onnx(DIGITS), PAIR, {"schema": "tvmtarget.cost/1"} | costs)


def test_a_size_of_a_dimension_that_the_model_does_not_have_is_rejected():
    with pytest.raises(UnknownNameError, match=r"size of 'btch', a dimension .* did you mean 'batch'"):
        digits(symbolic_hints={"btch": 1})
    with pytest.raises(UnknownNameError, match="size of 'btch'"):
        tt.decompose(tt.IRModule.from_onnx(DIGITS), PAIR).with_costs(Costs(symbolic_hints={"btch": 1}))


def test_sizes_that_a_file_has_for_other_models_are_reported():
    shared = digits(symbolic_hints={"batch": 4, "sequence": 64})
    assert "  unused: sizes of dimensions that the program does not have: 'sequence'" in shared.summary().splitlines()
    assert shared.to_json()["predicted"]["unused"] == ["sizes of dimensions that the program does not have: 'sequence'"]


@pytest.mark.parametrize(
    ("match", "site", "text"),
    [
        ({"op": "Covn"}, "npu", "operator 'Covn', which neither the program nor ONNX has; did you mean 'Conv'"),
        ({"op": "conv"}, "npu", "operator 'conv', which neither the program nor ONNX has; did you mean 'Conv'"),
        ({"op": "LSTM"}, "npu", "costs of operators that the program does not have: LSTM"),
        ({"op": "Conv", "dtype": "float16"}, "npu", "that match none of the program: Conv (float16) on 'npu'"),
        ({"structure": "sha256:0"}, "npu", "costs of ops that match none of the program: sha256:0 on 'npu'"),
        ({"op": "Conv"}, "cuda", "costs of sites that the target does not have: 'cuda'"),
    ],
)
def test_costs_that_match_nothing_are_reported(match, site, text):
    plan = digits(ops=[{"match": match, "site": site, "time": 1}])
    (unused,) = plan.prediction.unused
    assert text in unused
    assert f"  unused: {unused}" in plan.summary().splitlines()


def test_unused_costs_of_one_operator_are_listed_once_with_their_other_fields():
    matches = [{"form": "grouped"}, {"form": "depthwise", "dtype": "int8"}, {"form": "grouped"}, {"shape": [1, 2]}]
    ops = [{"match": {"op": "Conv"} | one, "site": "npu", "time": time} for time, one in enumerate(matches, 1)]
    listed = "Conv (grouped) on 'npu', Conv (depthwise, int8) on 'npu', Conv ([1,2]) on 'npu'"
    assert digits(ops=ops).prediction.unused == (f"costs of ops that match none of the program: {listed}",)


def test_costs_that_match_are_not_reported():
    assert digits(ops=[{"match": {"op": "Conv"}, "site": "npu", "time": 1}]).prediction.unused == ()
