"""External code generators with children: what the generator takes limits what its children get."""

import pytest
from models import DIGITS

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, TargetError

MODULE = tt.IRModule.from_onnx(DIGITS)
BOARD = "[byoc=system-npu[a=onnxruntime,b=numpy](executor=graph,host=@b),cpu=numpy](host=@cpu)"


def declare(**tables):
    return tt.strategy("system-npu")(type("System", (), tables))


def on_byoc(plan):
    return {op for op, site in plan.sites().items() if site.startswith("byoc/")}


def test_the_support_of_a_generator_limits_its_children():
    declare(ops={"Conv", "Relu"})
    plan = tt.decompose(MODULE, BOARD)
    assert on_byoc(plan) == {"conv1", "relu1", "conv2", "relu2", "conv3", "relu3", "relu4"}
    assert "@byoc/a: no, NO_RULE: of @byoc, it has no rule for Gemm" in str(plan.explain("fc1"))
    with pytest.raises(InfeasibleError, match="of @byoc, it has no rule for Gemm"):
        tt.decompose(MODULE, BOARD, where={"fc1": "byoc"})


def test_it_holds_at_any_depth_and_for_a_root():
    declare(ops={"Conv", "Relu"})
    deep = "[r=[byoc=system-npu[x=[a=onnxruntime,b=numpy](host=@b)](host=@x/b),c=numpy](host=@c),cpu=numpy](host=@cpu)"
    plan = tt.decompose(MODULE, deep)
    assert plan.site_of("conv1") == "r/byoc/x/a"
    assert plan.site_of("fc1") == "r/c"
    with pytest.raises(InfeasibleError, match=r"of @\., it has no rule for"):
        tt.decompose(MODULE, "system-npu[a=onnxruntime,b=numpy](host=@b)")


def test_limits_and_caps_of_a_generator_hold_for_its_children():
    declare(ops={"Conv", "Relu"}, dtypes={"int8"})
    assert on_byoc(tt.decompose(MODULE, BOARD)) == set()
    declare(ops={"Conv", "Relu"}, max_ops=1)
    plan = tt.decompose(MODULE, BOARD)
    assert on_byoc(plan)
    assert all(len(subgraph.ops) == 1 for subgraph in plan.subgraphs if subgraph.site.startswith("byoc/"))


def test_patterns_of_a_generator_stay_together_in_one_child():
    declare(patterns={"conv_relu": "relu(conv(x, w, ...))"})
    plan = tt.decompose(MODULE, BOARD)
    assert on_byoc(plan) == {"conv1", "relu1", "conv2", "relu2", "conv3", "relu3"}
    moved = tt.decompose(MODULE, BOARD, where={"conv1": "b"})
    assert moved.site_of("relu1") == moved.site_of("conv1") == "byoc/b"
    parted = tt.decompose(MODULE, BOARD, where={"conv1": "@cpu"})
    assert parted.site_of("relu1") == "cpu"
    by_cost = tt.decompose(MODULE, BOARD, "roofline")
    assert on_byoc(by_cost) <= on_byoc(plan)


def test_a_child_takes_no_more_than_it_does_itself():
    declare(ops={"Conv", "Relu", "Det"})

    @tt.strategy("system-child")
    class Child:
        ops = frozenset({"Conv"})

    board = "[byoc=system-npu[a=system-child](executor=graph),cpu=numpy](host=@cpu)"
    assert on_byoc(tt.decompose(MODULE, board)) == {"conv1", "conv2", "conv3"}


def test_a_match_that_no_child_takes_whole_goes_elsewhere():
    declare(patterns={"conv_relu": "relu(conv(x, w, ...))"})
    tt.strategy("system-conv")(type("Convolutions", (), {"ops": {"Conv"}}))
    tt.strategy("system-relu")(type("Activations", (), {"ops": {"Relu"}}))
    board = "[byoc=system-npu[a=system-conv,b=system-relu](executor=graph),cpu=numpy](host=@cpu)"
    assert set(tt.decompose(MODULE, board).sites().values()) == {"cpu"}


def test_vetoes_of_a_generator_hold_for_what_it_is_given():
    def check_subgraph(strategy, ops):
        return tt.reject("RULE", "two at most") if len(ops) > 2 else None

    declare(ops={"Conv", "Relu"}, check_subgraph=check_subgraph)
    plan = tt.decompose(MODULE, BOARD)
    assert all(len(subgraph.ops) <= 2 for subgraph in plan.subgraphs if subgraph.site.startswith("byoc/"))


def test_a_plan_is_kept_when_it_is_divided_again():
    declare(ops={"Conv", "Relu"})
    plan = tt.decompose(MODULE, BOARD)
    assert tt.decompose(plan.module, plan.topology.root).module == plan.module


@pytest.mark.parametrize(
    "tables", [{"subgraphs": "program"}, {"accepts": "device"}, {"constants": "lift"}, {"constants": "share"}]
)
def test_what_cannot_hold_for_children_is_refused_with_the_path(tables):
    declare(ops={"Conv", "Relu"}, **tables)
    with pytest.raises(TargetError, match="@byoc is of kind 'system-npu', whose strategy has"):
        tt.decompose(MODULE, BOARD)
