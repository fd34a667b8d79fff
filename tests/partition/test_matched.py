"""Strategies that take several operations together: matches of patterns go to one site as a whole."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from models import DIGITS, inputs_of, random_graph, small
from onnx import helper

import tvmtarget as tt

BOARD = "[npu=matching-npu,cpu=numpy](host=@cpu)"


@tt.strategy("matching-npu")
class Matching:
    """An engine of two fused operations; what it is given alone, it does not take."""

    patterns = {"conv_relu": "relu(conv(x, w, ...))", "gemm": "gemm(x, w, ...)"}

    def conv_relu(self, match):
        if match.w.shape[0] > 32:
            return tt.reject("ATTR", f"{match.w.shape[0]} filters, not 32 or fewer", hint="split the convolution")
        return None

    def gemm(self, match):
        return None if match.w.is_constant else tt.reject("NEED_CONST", "the weights are computed")


def digits(where=None):
    return tt.decompose(tt.IRModule.from_onnx(DIGITS), BOARD, where=where)


def test_matches_are_taken_whole_and_named_in_the_function():
    plan = digits()
    on_npu = ["conv1", "relu1", "conv2", "relu2", "fc1", "fc2"]
    assert [op for op, site in plan.sites().items() if site == "npu"] == on_npu
    matches = [match for function in plan.functions("npu") for match in function.attr("matches")]
    assert matches == [
        ("conv_relu", "conv1", "relu1"),
        ("conv_relu", "conv2", "relu2"),
        ("gemm", "fc1"),
        ("gemm", "fc2"),
    ]
    assert tt.IRModule.parse(str(plan.module), plan.module.constants()) == plan.module


def test_the_reason_for_a_rejected_match_is_reported():
    plan = digits()
    assert "@npu: no, ATTR: 64 filters, not 32 or fewer; split the convolution" in str(plan.explain("conv3"))
    assert "@npu: no, NO_RULE: no pattern of it matches MaxPool here" in str(plan.explain("pool"))


def test_weights_of_matches_are_lifted_where_the_strategy_matches_without_them():
    model = tt.IRModule.from_onnx(DIGITS)
    bound, lifted = tt.decompose(model, BOARD), tt.decompose(model, BOARD, constants="lift")
    assert lifted.sites() == bound.sites()
    conv, gemm = (
        next(one for one in lifted.functions("npu") if any(match[0] == name for match in one.attr("matches")))
        for name in ("conv_relu", "gemm")
    )
    assert {"conv1.weight", "conv1.bias"} <= {param.name for param in conv.params}
    assert not conv.constants
    assert {"fc1.weight", "fc1.bias"} <= {constant.name for constant in gemm.constants}
    assert "not lifted: 4 weights such as 'fc1.weight' of 'npu_gemm_" in lifted.summary()
    assert "not lifted" not in bound.summary()
    assert tt.decompose(lifted.module, constants="lift").module == lifted.module
    assert "not lifted: 10 weights" in tt.decompose(model, "numpy", constants="lift").summary()


def test_no_match_violates_a_requirement():
    plan = digits({"relu1": "@cpu"})
    assert plan.site_of("conv1") == "cpu"
    assert plan.site_of("conv2") == "npu"
    again = tt.decompose(plan.module, plan.topology.root)
    assert again.module == plan.module


def test_a_result_that_others_read_is_the_end_of_a_match():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Add", ["r", "c"], ["y"], name="add"),
    ]
    model = small(*nodes, shape=(1, 1, 4, 4), w=np.ones((1, 1, 1, 1), "float32"))
    assert set(tt.decompose(tt.IRModule.from_onnx(model), BOARD).sites().values()) == {"cpu"}


def test_the_pattern_of_an_earlier_child_comes_first():
    @tt.strategy("matching-other")
    class Other:
        """An engine of its own."""

        patterns = {"relu": "relu(x)"}

    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), "[a=matching-other,b=matching-npu,cpu=numpy](host=@cpu)")
    assert plan.site_of("relu1") == "a"
    assert plan.site_of("conv1") == "cpu"
    assert "@b: no, OVERLAP: pattern 'relu' of matching-other has it" in str(plan.explain("relu1"))


@tt.strategy("matching-fuser")
class Fuser:
    """Another engine of convolutions that are followed by Relu."""

    patterns = {"fused": "relu(conv(x, w, ...))"}


@tt.strategy("matching-conv")
class Convolving:
    """An engine of convolutions alone."""

    patterns = {"conv": "conv(x, w, ...)"}


def timed(**times):
    """Return costs with a time for every operation of a site, and quick copies; one on the CPU takes 50 us."""
    kinds = {call.kind for call in tt.IRModule.from_onnx(DIGITS).main.body}
    times |= {"cpu": 50}
    return {
        "schema": "tvmtarget.cost/1",
        "sites": {site: {"launch": 1} for site in times},
        "links": [{"src": site, "dst": "cpu", "latency": 1, "bandwidth": 1e10} for site in times if site != "cpu"],
        "ops": [
            {"match": {"op": op}, "site": site, "time": time} for op in sorted(kinds) for site, time in times.items()
        ],
        "symbolic_hints": {"batch": 1},
    }


def sites_of(plan, *ops):
    return [plan.site_of(op) for op in ops]


def test_what_several_engines_support_goes_to_the_best_of_them():
    module, board = tt.IRModule.from_onnx(DIGITS), "[npu=matching-npu,fuser=matching-fuser,cpu=numpy](host=@cpu)"
    assert sites_of(tt.decompose(module, board), "conv1", "relu1", "conv3") == ["npu", "npu", "fuser"]
    plan = tt.decompose(module, board, timed(npu=20, fuser=1))
    assert sites_of(plan, "conv1", "relu1", "conv3", "fc1") == ["fuser", "fuser", "fuser", "npu"]
    matches = [match for function in plan.functions("fuser") for match in function.attr("matches")]
    assert matches == [("fused", "conv1", "relu1"), ("fused", "conv2", "relu2"), ("fused", "conv3", "relu3")]
    assert sites_of(tt.decompose(module, board, timed(npu=1, fuser=20)), "conv1", "conv3") == ["npu", "fuser"]


def test_of_matches_that_overlap_those_count_by_which_the_whole_takes_least(tmp_path):
    module, board = tt.IRModule.from_onnx(DIGITS), "[c=matching-conv,f=matching-fuser,cpu=numpy](host=@cpu)"
    assert sites_of(tt.decompose(module, board), "conv1", "relu1") == ["c", "cpu"]
    plan = tt.decompose(module, board, timed(c=20, f=1))
    assert sites_of(plan, "conv1", "relu1") == ["f", "f"]
    assert sites_of(tt.decompose(module, board, timed(c=1, f=40)), "conv1", "relu1") == ["c", "cpu"]
    assert "c" in plan.sensitivity("conv1").longer
    plan.save(tmp_path / "a.plan")
    for again in (tt.Plan.load(tmp_path / "a.plan"), plan.replay(module), plan.with_support("conv1", "c")):
        assert again.module == plan.module


def test_an_earlier_match_gives_way_where_something_would_fit_nowhere():
    text = """func @main(%x: float32[1,1,4,4]) opsets(onnx=17) {
      %c: float32[1,1,4,4] = onnx.Conv(%x, %x) as c
      %r: float32[1,1,4,4] = onnx.Relu(%c) as r
      return %r }"""
    board = "[c=matching-conv,f=matching-fuser,cpu=numpy](host=@cpu)"
    assert tt.decompose(tt.IRModule.parse(text), board, where={"*": "!@cpu"}).sites() == {"c": "f", "r": "f"}


@tt.strategy("matching-pairs")
class Pairs:
    """An engine of pairs of elementwise operations."""

    patterns = {"add_tanh": "tanh(add(x, y))", "mul_add": "add(mul(x, y), z)", "relu_sub": "sub(relu(x), y)"}


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_what_is_matched_computes_the_same(size, seed):
    model = random_graph(size, seed)
    module = tt.IRModule.from_onnx(model)
    rng = random.Random(seed)
    where = {call.source: "@cpu" for call in module.main.body if rng.random() < 0.2}
    plan = tt.decompose(module, "[npu=matching-pairs,cpu=numpy](host=@cpu)", where=where)
    for function in plan.functions("npu"):
        assert sorted(op for _, *ops in function.attr("matches") for op in ops) == sorted(
            c.source for c in function.body
        )
    inputs = inputs_of(model)
    expected = tt.build(module, "numpy").run(inputs)
    actual = tt.build(tt.IRModule.from_onnx(plan.module.to_onnx()), "numpy").run(inputs)
    for one, other in zip(expected.values(), actual.values(), strict=True):
        np.testing.assert_array_equal(one, other)
