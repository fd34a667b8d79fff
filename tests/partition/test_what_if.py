"""What-if questions: operations that are required to be elsewhere, and what that changes."""

import json

import pytest
from models import DIGITS
from typer.testing import CliRunner

import tvmtarget as tt
from tvmtarget.building.compile_plan import build
from tvmtarget.cli.main import app
from tvmtarget.errors import InfeasibleError, TargetError, UnknownNameError
from tvmtarget.partition.costs.costs import Costs, LinkCost, OpCost

MODULE = tt.IRModule.from_onnx(DIGITS)
BOARD = "[ort=onnxruntime,cpu=llvm]"
APART = tt.Target.parse(BOARD).replace(memory=(tt.Memory(name="sram", of=("ort",)),))
RACK = "[node0=[ort=onnxruntime,cpu=numpy](host=@cpu),node1=[ort=onnxruntime,cpu=numpy](host=@cpu)](host=@node0/cpu)"


def requested(plan, *moves, **named):
    return str(plan.diff(plan.what_if(*moves, **named))).splitlines()


@pytest.mark.parametrize("site", ["cpu", "@cpu", "llvm", "!ort", "cpu(count>=1)&!ort", tt.Constraint.at("cpu")])
def test_an_operation_moves_however_the_site_is_named(site):
    plan = tt.decompose(MODULE, BOARD)
    assert plan.what_if("conv1", site).site_of("conv1") == "cpu"
    assert requested(plan, "conv1", site) == ["conv1: @ort -> @cpu", "subgraphs: 1 -> 2"]


@pytest.mark.parametrize("site", ["node1/cpu", "@node1/cpu", "@node1&cpu"])
def test_a_path_names_a_site_deep_in_the_tree(site):
    assert tt.decompose(MODULE, RACK).what_if("conv1", site).site_of("conv1") == "node1/cpu"


def test_copies_bytes_and_predicted_time_are_compared():
    plan = tt.decompose(MODULE, APART, where={"*": "ort"})
    with pytest.raises(
        InfeasibleError, match=r"drop or change one of: @ort \(required by where '\*'\), @cpu \(required by"
    ):
        plan.what_if("conv1", "cpu")
    found = requested(tt.decompose(MODULE, APART), "conv2", "cpu")
    assert [line.partition(":")[0] for line in found] == ["conv2", "subgraphs", "copies"]
    costs = {
        "schema": "tvmtarget.cost/1",
        "sites": {
            site: {"launch": 1, "flops": {"float32": 1e9}, "mem_bw": 1e9, "roofline": 1} for site in ("ort", "cpu")
        },
        "symbolic_hints": {"batch": 1},
    }
    by_cost = tt.decompose(MODULE, BOARD, costs)
    home = by_cost.site_of("conv2")
    moved = by_cost.what_if("conv2", "ort" if home == "cpu" else "cpu")
    difference = by_cost.diff(moved).to_json()
    assert difference["after"]["us"] >= difference["before"]["us"]
    assert difference["moved"]["conv2"]["before"] == home


def test_several_operations_move_at_once():
    plan = tt.decompose(MODULE, BOARD)
    moved = plan.what_if({"conv1": "cpu", "fc*": "@cpu", "op:MaxPool": "llvm"})
    assert {op for op, site in moved.sites().items() if site == "cpu"} == {"conv1", "fc1", "fc2", "pool"}
    assert moved.what_if("conv2", "cpu").site_of("conv1") == "cpu"


def test_an_operation_that_is_there_already_makes_no_difference():
    plan = tt.decompose(MODULE, BOARD)
    assert requested(plan, "conv1", "ort") == ["no difference"]


def test_what_belongs_together_moves_together():
    plan = tt.decompose(MODULE, BOARD, same_site=[["conv1", "fc1"]])
    assert plan.what_if("fc1", "cpu").site_of("conv1") == "cpu"
    apart = tt.decompose(MODULE, BOARD, apart=[["conv1", "fc1"]])
    home = apart.site_of("fc1")
    assert apart.what_if("conv1", home).site_of("fc1") != home


def test_why_a_move_is_impossible_is_told_by_the_smallest_conflict():
    plan = tt.decompose(MODULE.constrain("conv1", "@ort"), BOARD)
    with pytest.raises(
        InfeasibleError, match=r"drop or change one of: @ort \(.*op 'conv1'\), @cpu \(.*what-if 'conv1'\)"
    ):
        plan.what_if("conv1", "cpu")


def test_support_that_is_supposed_is_called_hypothetical():
    text = """func @main(%x: float32[4,3,3]) opsets(onnx=17) {
      %b: float32[4] = onnx.Det(%x) as det
      return %b
    }"""
    plan = tt.decompose(tt.IRModule.parse(text), "[npu=llvm,cpu=numpy](host=@cpu)")
    moved = plan.what_if("det", "npu")
    assert moved.site_of("det") == "npu"
    assert "hypothetical: @npu does not support 'det' (NO_RULE: it has no rule for Det)" in str(plan.diff(moved))
    assert plan.diff(moved).to_json()["hypothetical"]
    assert moved.hypotheses()
    assert not plan.hypotheses()
    with pytest.raises(TargetError, match="supposes"):
        build(moved)


def test_support_that_is_supposed_counts_where_constraints_conflict():
    text = """func @main(%x: float32[4,3,3]) opsets(onnx=17) {
      %b: float32[4] = onnx.Det(%x) as det
      %c: float32[4] = onnx.Relu(%b) as relu
      return %c
    }"""
    target, module = "[npu=llvm,cpu=numpy](host=@cpu)", tt.IRModule.parse(text)
    plan = tt.decompose(module, target, where={"relu": "@cpu"}, same_site=[["det", "relu"]])
    with pytest.raises(
        InfeasibleError, match=r"drop or change one of: @npu \(.*what-if 'det'\), @cpu \(.*where 'relu'\)$"
    ):
        plan.what_if("det", "npu")


def test_questions_that_name_nothing_are_refused():
    plan = tt.decompose(MODULE, BOARD)
    for name, site, problem in [
        ("conv9", "cpu", "no op 'conv9' in the model"),
        ("conv1", "npuu", "no site of the target is or has 'npuu'"),
        ("conv1", "@npu", "no node 'npu'"),
    ]:
        with pytest.raises(UnknownNameError, match=problem):
            plan.what_if(name, site)
    with pytest.raises(TargetError, match="what-if 'conv1' has no site"):
        plan.what_if("conv1")


def test_the_plan_of_a_question_is_not_saved(tmp_path):
    with pytest.raises(TargetError, match="use 'where' for the same requirements"):
        tt.decompose(MODULE, BOARD).what_if("conv1", "cpu").save(tmp_path / "a.plan")


def test_the_command_line_moves_several_operations():
    arguments = ["explain", DIGITS, "-t", BOARD, "--what-if", "conv1=cpu", "--what-if", "op:Gemm=@cpu"]
    found = CliRunner().invoke(app, list(map(str, arguments)))
    assert found.exit_code == 0, found.output
    assert "conv1: @ort -> @cpu" in found.output
    assert "fc1: @ort -> @cpu" in found.output
    found = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert json.loads(found.output)["after"]["subgraphs"] > 1
    found = CliRunner().invoke(app, ["explain", str(DIGITS), "-t", BOARD, "--what-if", "conv1"])
    assert found.exit_code != 0


@pytest.mark.parametrize("times", [(2, 1), (1, 1)])  # different nodes, and identical ones
def test_sensitivity_is_what_a_requirement_to_be_elsewhere_costs_in_a_nested_tree(times):
    ops = tuple(
        OpCost(f"node{node}/{site}", op=kind, time=time * times[node])
        for node in (0, 1)
        for site, time in (("ort", 3.0), ("cpu", 5.0))
        for kind in ("Conv", "Relu", "MaxPool", "Flatten", "Gemm")
    )
    links = (LinkCost("node0/cpu", "node1/cpu", 1.0, 1e10),)
    plan = tt.decompose(MODULE, RACK, Costs(ops=ops, links=links, symbolic_hints={"batch": 1}))
    for op in ("conv1", "fc2"):
        found = plan.sensitivity(op).longer
        assert len(found) == 3
        for site, longer in found.items():
            assert longer == plan.what_if(op, site).prediction.total - plan.prediction.total
