"""What plans tell beside themselves: differences, suppositions, blockers, pictures, files, replays."""

import doctest
import html
import json
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import networkx
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import DIGITS, random_graph, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.errors import ArtifactError, InfeasibleError, TargetError, UnknownNameError
from tvmtarget.partition.costs.costs import OpCost

ROOT = Path(__file__).parents[2]
TWO = "[ort=onnxruntime,cpu=numpy](host=@cpu)"
BLOCKED = "[npu=llvm,cpu=numpy](host=@cpu)"


def digits(where=None):
    return tt.decompose(tt.IRModule.from_onnx(DIGITS), TWO, where=where)


def blocked():
    """Return a plan in which one operation that LLVM's importer lacks lies between two that it takes."""
    nodes = (("Relu", "x", "a"), ("Det", "a", "b"), ("Relu", "b", "y"))
    model = small(*(helper.make_node(op, [i], [o], name=f"{op}_{o}") for op, i, o in nodes), shape=(4, 3, 3))
    return tt.decompose(tt.IRModule.from_onnx(model), BLOCKED)


def test_summary_and_data_say_why_operations_run_on_a_less_preferred_site():
    plan = blocked()
    assert "  @npu does not support 1 Det: NO_RULE: it has no rule for Det" in plan.summary()
    reason = {"site": "npu", "code": "NO_RULE", "reason": "NO_RULE: it has no rule for Det", "ops": ["Det_b"]}
    assert plan.to_json()["unsupported"] == [reason]
    whole = tt.decompose(tt.IRModule.from_onnx(DIGITS), "[npu=ethos-u,dsp=hexagon,cpu=llvm](host=@cpu)")
    assert [line for line in whole.summary().splitlines() if "@npu does" in line] == [
        "  @npu does not support 4 Relu, 3 Conv, 2 Gemm, 1 MaxPool, 1 Flatten: NO_RULE: no installed package describes "
        "what 'ethos-u' supports; install its plugin"
    ]
    assert "unsupported" not in digits({"fc1": "@cpu"}).to_json()  # the user excluded the other site


def test_alternatives_are_single_leaves_and_the_order_of_preference():
    """Predicted time stands beside all on the host and offloading everything."""
    costs = {
        "schema": "tvmtarget.cost/1",
        "sites": {
            "ort": {"launch": 400, "flops": {"float32": 1e10}, "mem_bw": 1e10},
            "cpu": {"launch": 1, "flops": {"float32": 1e9}, "mem_bw": 1e10, "roofline": 1},
        },
        "symbolic_hints": {"batch": 1},
    }
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), TWO, costs, where={"fc2": "@cpu"})
    found = {one.name: one for one in plan.alternatives()}
    assert list(found) == ["as planned", "in order of preference", "all on @ort", "all on @cpu"]
    assert found["as planned"].totals.time == plan.prediction.total == min(one.totals.time for one in found.values())
    assert (found["all on @ort"].share, found["all on @cpu"].share) == (10 / 11, 1)
    assert str(found["all on @cpu"]).startswith("all on @cpu (100 % of ops there): 1 subgraph, 0 copies, ")
    assert found["all on @cpu"].to_json()["subgraphs"] == 1


def test_functions_of_no_site_are_an_error():
    with pytest.raises(UnknownNameError, match="no site of the target is or has 'gpu'"):
        digits().functions("gpu")


def test_a_difference_names_what_moved_and_what_it_changed():
    difference = digits().diff(digits({"fc1": "@cpu"}))
    assert str(difference).splitlines() == ["fc1: @ort -> @cpu", "subgraphs: 1 -> 3"]
    assert difference.to_json()["moved"] == {"fc1": {"before": "ort", "after": "cpu"}}
    assert not digits().diff(digits())
    assert str(digits().diff(digits())) == "no difference"


def test_what_if_supposes_support_and_nothing_else():
    plan = blocked()
    assert str(plan.diff(plan.what_if("op:Det", "npu"))).splitlines() == [
        "Det_b: @cpu -> @npu",
        "subgraphs: 3 -> 1",
        "hypothetical: @npu does not support 'Det_b' (NO_RULE: it has no rule for Det)",
    ]
    assert plan.what_if("Det_b", "llvm").site_of("Det_b") == "npu"
    pinned = tt.decompose(plan.request.module, BLOCKED, where={"op:Det": "@cpu"})
    assert not pinned.diff(pinned.with_support("op:Det", "npu"))
    with pytest.raises(
        InfeasibleError, match=r"drop or change one of: @cpu \(.*\), @npu \(required by what-if 'op:Det'\)"
    ):
        pinned.what_if("op:Det", "npu")
    with pytest.raises(UnknownNameError, match="no op 'op:Dett'"):
        plan.what_if("op:Dett", "npu")
    with pytest.raises(UnknownNameError, match="no site of the target is or has 'npuu'"):
        plan.what_if("op:Det", "npuu")


def test_blockers_are_operators_that_would_gain_something():
    assert [str(blocker) for blocker in blocked().blockers()] == ["Det on @npu (1 op, NO_RULE): 2 subgraphs fewer"]
    assert digits().blockers() == ()
    apart = tt.Target.parse(BLOCKED).replace(memory=(tt.Memory(name="sram", of=("npu",)),))
    reported = [str(blocker) for blocker in tt.decompose(blocked().request.module, apart).blockers()]
    assert reported == ["Det on @npu (1 op, NO_RULE): 2 subgraphs fewer, 160 bytes fewer copied"]
    costly = tt.decompose(blocked().request.module, BLOCKED, "roofline")
    assert all(blocker.after.time < blocker.before.time for blocker in costly.blockers())


@settings(max_examples=20, deadline=None)
@given(
    size=st.integers(3, 12), seed=st.integers(0, 10**6), option=st.sampled_from(["same_site", "apart", "max_subgraphs"])
)
def test_a_saved_plan_comes_back_as_it_was(size, seed, option, tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "a.plan"
    module = tt.IRModule.from_onnx(random_graph(size, seed))
    names = [call.source for call in module.main.body]
    where = {
        name: f"@{('ort', 'cpu')[place * seed % 3 % 2]}?" for place, name in enumerate(names) if seed % (place + 2)
    }
    options = {option: {"cpu": 2} if option == "max_subgraphs" else [random.Random(seed).sample(names, 2)]}
    plan = tt.decompose(module, TWO, (None, "roofline")[seed % 2], where=where, **options)
    plan.save(path)
    loaded = tt.Plan.load(path)
    assert loaded.module == plan.module
    assert tt.IRModule.load(path).main == module.main
    for report in (
        *(lambda one, name=name: str(one.explain(name)) for name in names),
        tt.Plan.to_json,
        tt.Plan.summary,
        tt.Plan.rules,
        tt.Plan.alternatives,
        tt.Plan.blockers,
        lambda one: str(one.diff(one.what_if(names[-1], "ort"))),
    ):
        assert _answer(report, loaded) == _answer(report, plan)


def _answer(question: Callable[[tt.Plan], object], plan: tt.Plan) -> object:
    """Return what a question answers, or why it has no answer."""
    try:
        return question(plan)
    except InfeasibleError as error:
        return str(error)


def test_a_plan_by_costs_keeps_them_in_its_file(tmp_path):
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), TWO, "roofline", where={"op:Gemm": "cpu?"})
    plan.save(tmp_path / "a.plan")
    loaded = tt.Plan.load(tmp_path / "a.plan")
    assert loaded.options.costs == plan.options.costs
    assert loaded.prediction == plan.prediction


def test_files_without_a_plan_are_refused(tmp_path):
    module = tt.IRModule.from_onnx(DIGITS)
    module.save(tmp_path / "module")
    with pytest.raises(ArtifactError, match=r"is a saved module without a plan; write one with Plan\.save"):
        tt.Plan.load(tmp_path / "module")
    module.with_target(TWO).with_attrs(**{"tvmtarget.plan": '{"schema": "tvmtarget.plan/9"}'}).save(tmp_path / "newer")
    with pytest.raises(ArtifactError, match=r"no plan that can be read: it is .tvmtarget\.plan/9.; this version reads"):
        tt.Plan.load(tmp_path / "newer")
    file = {"schema": "tvmtarget.plan/1", "where": {}, "sites": {"fc1": "cpu"}}
    cases = (
        ({"apert": []}, "unknown option 'apert'; did you mean 'apart'"),
        ({"sites": {"fc1": "cpo"}}, "no site 'cpo'"),
    )
    for change, expected in cases:
        with_plan = module.with_target(TWO).with_attrs(**{"tvmtarget.plan": json.dumps(file | change)})
        with_plan.save(tmp_path / "changed")
        with pytest.raises((ArtifactError, UnknownNameError), match=expected):
            tt.Plan.load(tmp_path / "changed")


def test_an_edited_program_is_divided_alike():
    """Facts: an assignment by stable names of operations; what is new is placed, what is gone is no error."""
    module = tt.IRModule.from_onnx(DIGITS)
    plan = tt.decompose(module, TWO, where={"op:Relu": "@cpu"})
    unruled = tt.Plan.replay(digits(), module)
    assert not unruled.diff(digits())
    *body, last = module.main.body
    edited = module.replace(functions=(module.main.replace(body=(*body, last), results=("relu4",)),))
    again = plan.replay(edited)
    assert {op: site for op, site in plan.sites().items() if op in again.sites()} == again.sites()


def test_what_was_asked_of_operations_that_are_gone_no_longer_counts():
    module = tt.IRModule.from_onnx(DIGITS)
    plan = tt.decompose(module, TWO, where={"fc2": "@cpu", "fc1": "@cpu"}, same_site=[["fc2", "fc1"]])
    shorter = module.replace(functions=(module.main.replace(body=module.main.body[:-1], results=("relu4",)),))
    again = plan.replay(shorter)
    assert (plan.diff(again).gone, plan.diff(again).moved, again.site_of("fc1")) == (("fc2",), {}, "cpu")


def test_operations_in_bodies_are_explained_by_what_is_around_them():
    text = """func @main(%c: bool[], %x: float32[2]) opsets(onnx=17) {
      %y: float32[2] = onnx.If(%c) as if
        then_branch @t() -> (float32[2]) captures(%x) { %t: float32[2] = onnx.Abs(%x) as abs return %t }
        else_branch @e() -> (float32[2]) captures(%x) { %e: float32[2] = onnx.Neg(%x) as neg return %e }
      return %y }"""
    plan = tt.decompose(tt.IRModule.parse(text), BLOCKED)
    assert plan.explain("neg").reason == "it is in a body of 'if', which runs there whole"


def test_sites_of_no_target_are_named():
    with pytest.raises(UnknownNameError, match="no site 'gpu' in the target; did you mean 'npu'"):
        blocked().with_sites(["cpu", "gpu", "cpu"])


def test_pictures_show_sites_subgraphs_and_copies():
    board = tt.Target.parse(TWO).replace(memory=(tt.Memory(name="sram", of=("ort",)),))
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), board, where={"fc1": "@cpu"})
    graph = plan.graph()
    assert networkx.is_directed_acyclic_graph(graph)
    assert [(source, reader) for source, reader, edge in graph.edges(data=True) if edge["is_copied"]] == [
        ("in", 0),
        (0, 1),
        (1, 2),
        (2, "out"),
    ]
    assert f'r1 [label="{plan.subgraphs[1].function}\\nfc1"];' in plan.dot()
    assert "penwidth=3" in plan.dot()
    assert 'r0 ==>|"flatten: float32[batch,256]"| r1' in plan.mermaid()


@pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed")
def test_graphviz_draws_names_of_any_kind():
    odd = 'a "quoted" \\ name → <b> &lt;\n'
    model = small(helper.make_node("Relu", ["x"], ["y"], name=odd))
    plan = tt.decompose(tt.IRModule.from_onnx(model), "numpy")
    drawn = subprocess.run(["dot", "-Tsvg"], input=plan.dot(), capture_output=True, text=True, check=True)
    assert html.escape('a "quoted" \\ name → <b> &lt;') in drawn.stdout
    assert "a #quot;quoted#quot; \\ name → #lt;b#gt; #amp;lt;<br>" in plan.mermaid()
    assert drawn.stderr == ""


@pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed")
def test_graphviz_draws_sites_that_take_turns():
    """It ranks clusters one by one by default, and gives up where they depend on each other."""
    module = tt.IRModule.from_onnx(random_graph(120, 0, reach=8))
    rng = random.Random(0)
    where = {call.source: f"@{rng.choice('abc')}" for call in module.main.body}
    text = tt.decompose(module, "[a=numpy,b=onnxruntime,c=numpy]", where=where).dot()
    assert subprocess.run(["dot", "-Tplain"], input=text, capture_output=True, text=True, check=True).stderr == ""


def test_models_bear_sites_for_viewers():
    plan = digits({"fc1": "@cpu"})
    model = plan.marked()
    onnx.checker.check_model(model, full_check=True)
    reported = {node.name: {prop.key: prop.value for prop in node.metadata_props} for node in model.graph.node}
    assert reported["fc1"] == {"tvmtarget.site": "@cpu", "tvmtarget.function": plan.subgraphs[1].function}
    assert reported["conv1"]["tvmtarget.site"] == "@ort"


def test_the_document_on_plans(monkeypatch):
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(str(ROOT / "docs" / "plans.md"), module_relative=False)
    assert tried
    assert not failed


COSTS = {
    "schema": "tvmtarget.cost/1",
    "sites": {
        "ort": {"launch": 20, "flops": {"float32": 2e12}, "mem_bw": 1e11, "roofline": 0.5},
        "cpu": {"launch": 1, "flops": {"float32": 1e11}, "mem_bw": 2e10, "roofline": 0.5},
    },
    "links": [{"src": "cpu", "dst": "ort", "latency": 10, "bandwidth": 1e10}],
    "symbolic_hints": {"batch": 64},
}


@pytest.mark.parametrize("op", ["conv1", "pool", "conv3", "fc1", "fc2"])
def test_a_decision_stands_within_its_interval(op):
    board = tt.Target.parse(TWO).replace(memory=(tt.Memory(name="sram", of=("ort",)),))
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), board, COSTS)
    sensitivity = plan.sensitivity(op)
    assert (sensitivity.site, set(sensitivity.longer)) == ("ort", {"cpu"})
    structure = plan.explain(op).structure
    for share, site in ((0.99, "ort"), (1.01, "cpu")):
        measured = OpCost(site="ort", structure=structure, time=share * sensitivity.most / 10**6)
        assert plan.with_costs([measured]).site_of(op) == site


def test_intervals_need_costs():
    with pytest.raises(TargetError, match="'fc1' has no sensitivity, as sites were not chosen by costs"):
        digits().sensitivity("fc1")
    with pytest.raises(UnknownNameError, match="did you mean 'fc1'"):
        digits().sensitivity("fc11")


def test_operations_without_a_name_of_their_own_get_one(tmp_path):
    text = """func @main(%x: float32[4,3,3]) opsets(onnx=17) {
      %a: float32[4,3,3] = onnx.Relu(%x) %b: float32[4] = onnx.Det(%a) as a %c: float32[4] = onnx.Relu(%b) as a
      return %c }"""
    plan = tt.decompose(tt.IRModule.parse(text), BLOCKED)
    assert plan.sites() == {"Relu": "npu", "a": "cpu", "a_1": "npu"}
    plan.save(tmp_path / "a.plan")
    assert tt.Plan.load(tmp_path / "a.plan").module == plan.module
