"""Partitioned control flow: drivers run If, Loop and Scan, and the partitioned program computes the same."""

import doctest
import random
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from control_models import inputs_for, random_program
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import parser

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, ModelError, UnknownNameError
from tvmtarget.ir.function import COPY, Call, Function, Value, calls_in
from tvmtarget.ir.inline import inline_calls
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.control.carried_dimensions import with_open_carried_dimensions
from tvmtarget.partition.costs.costs import Costs, LinkCost, OpCost, SiteCost
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.verify import verify_plan
from tvmtarget.support.strategy import Strategy

ROOT = Path(__file__).parents[2]

# The probe has a memory of its own and takes no control flow; the driver is on the CPU.
PAIR = "[gpu=probe,cpu=numpy](host=@cpu)"
FLAT = "[a=numpy,b=onnxruntime,gpu=probe](host=@a)"
DEEP = "[x=[n=numpy,g=probe](host=@n),o=onnxruntime](host=@x/n)"
X = np.array([-1, 2], "float32")


def module_of(graph, opset=17):
    return tt.IRModule.from_onnx(parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {graph}'))


def same_everywhere(module, plan, **inputs):
    """Run the divided and the whole program, and the divided one written as one ONNX model, on the same inputs."""
    whole = tt.build(module, "onnxruntime").run(inputs)
    divided = tt.build(plan).run(inputs)
    written = tt.build(tt.IRModule.from_onnx(plan.module.to_onnx()), "onnxruntime").run(inputs)
    assert list(whole) == list(divided)
    for name, other in zip(whole, written, strict=True):
        assert whole[name].dtype == divided[name].dtype
        np.testing.assert_allclose(divided[name], whole[name], rtol=1e-5, strict=True)
        np.testing.assert_allclose(written[other], whole[name], rtol=1e-5)
    return divided


def copies_in(function, path=()):
    """Yield source and path of every copy that a driver makes, in nested bodies too."""
    for call in function.body:
        if call.op == COPY:
            yield call.inputs[0], path
        for label, region in call.regions:
            yield from copies_in(region, (*path, label))


BRANCH = """g (float[2] x, bool c) => (float[2] z) {
    t = Relu(x) u = Tanh(x)
    y = If(c) <then_branch = th () => (y1) { a = Abs(t) b = Tanh(a) y1 = Add(b, u) },
               else_branch = el () => (y2) { y2 = Neg(u) }>
    z = Exp(y) }"""
LOOP = """g (float[2] x, int64 n, bool c) => (float[2] y, float[s,2] z) {
    k = Constant<value = float {3.0}>()
    t = Tanh(x)
    y, z = Loop(n, c, x) <body = b (int64 i, bool ci, float[2] v) => (bool co, float[2] w, float[2] s) {
        co = Identity(ci) q = Neg(v) w = Add(q, k) s = Abs(t) }> }"""
SCAN = """g (float[2] x, float[3,2] seq) => (float[2] y, float[3,2] z) {
    y, z = Scan<num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1],
        body = b (float[2] s, float[2] e) => (float[2] so, float[2] o) { so = Add(s, e) t = Tanh(so) o = Mul(t, s) }>
        (x, seq) }"""
NESTED = """g (float[2] x, int64 n) => (float[2] y) {
    t = Tanh(x)
    yes = Constant<value = bool {1}>() one = Constant<value = int64 {1}>()
    y = Loop(n, yes, x) <body = b (int64 i, bool ci, float[2] v) => (bool co, float[2] w) {
        co = Identity(ci) p = Greater(i, one)
        w = If(p) <then_branch = tb () => (float[2] r) { r0 = Exp(t) r = Add(r0, v) },
                   else_branch = eb () => (float[2] r2) { r2 = Sub(v, t) }> }> }"""


def test_a_branch_whose_operations_are_on_two_sites_is_run_by_the_driver():
    module = module_of(BRANCH)
    plan = tt.decompose(module, PAIR, where={"op:Tanh": "@gpu", "op:Abs": "@cpu"})
    (driven,) = (call for call in plan.module.main.body if call.op == "onnx.If")
    assert all(call.callee or call.op == COPY for _, region in driven.regions for call in region.body)
    for flag in (True, False):
        same_everywhere(module, plan, x=X, c=np.array(flag))


@pytest.mark.parametrize("trips", [0, 1, 4])
@pytest.mark.parametrize("flag", [True, False])
def test_loops_carry_and_collect_across_sites_even_without_an_iteration(trips, flag):
    module = module_of(LOOP)
    plan = tt.decompose(module, PAIR, where={"op:Abs": "@cpu", "op:Neg": "@gpu"})
    same_everywhere(module, plan, x=X, c=np.array(flag), n=np.array(trips))


def test_scans_are_cut_and_joined_by_the_driver():
    module = module_of(SCAN)
    plan = tt.decompose(module, PAIR, where={"op:Tanh": "@gpu", "op:Mul": "@cpu"})
    same_everywhere(module, plan, x=X, seq=np.arange(6, dtype="float32").reshape(3, 2))


@pytest.mark.parametrize("target", [PAIR, FLAT, DEEP])
def test_a_branch_in_a_loop_is_partitioned_at_any_depth(target):
    module = module_of(NESTED)
    gpu = "@x/g" if target == DEEP else "@gpu"
    plan = tt.decompose(module, target, where={"op:Tanh": gpu, "op:Exp": gpu})
    for trips in (0, 1, 3):
        same_everywhere(module, plan, x=X, n=np.array(trips))


def test_a_value_that_a_loop_does_not_change_is_copied_once_before_it():
    """Facts I7: no copy of an invariant value inside a loop."""
    plan = tt.decompose(module_of(LOOP), PAIR, where={"op:Tanh": "@gpu", "op:Abs": "@cpu", "op:Neg": "@gpu"})
    paths = [path for value, path in copies_in(plan.module.main) if value == "t"]
    assert paths == [()]


def test_a_capture_that_one_branch_needs_elsewhere_is_copied_in_that_branch_only():
    plan = tt.decompose(module_of(BRANCH), PAIR, where={"op:Tanh": "@gpu", "op:Abs": "@cpu"})
    assert [path for value, path in copies_in(plan.module.main) if value == "t"] == [("then_branch",)]


def test_conditions_and_counts_are_computed_where_the_driver_reads_them():
    plan = tt.decompose(module_of(NESTED), PAIR, where={"op:Tanh": "@gpu"})
    steering = [call.source for call in plan.program.body if call.kind in ("Greater", "Identity")]
    assert {plan.site_of(op) for op in steering} == {"cpu"}
    assert not {"ci", "i", "p", "co"} & {copy.value for copy in plan.copies}


def test_a_condition_on_a_device_is_copied_once():
    graph = """g (float[2] x) => (float[2] y) {
        s = ReduceSum<keepdims = 0>(x) zero = Constant<value = float {0.0}>() c = Less(s, zero)
        y = If(c) <then_branch = a () => (y1) { y1 = Abs(x) }, else_branch = b () => (y2) { y2 = Tanh(x) }> }"""
    module = module_of(graph)
    plan = tt.decompose(module, PAIR, where={"op:Less": "@gpu", "op:Abs": "@cpu"})
    assert [copy.value for copy in plan.copies].count("c") == 1
    same_everywhere(module, plan, x=X)


def test_a_site_that_runs_it_whole_is_preferred_unless_a_constraint_says_otherwise():
    module = module_of(BRANCH)
    assert tt.decompose(module, PAIR).site_of("If_2") == "cpu"
    assert not tt.decompose(module, PAIR).outlined.driven
    preferred = tt.decompose(module, PAIR, where={"op:Abs": "npu?", "op:Tanh": "npu?"})
    assert [driven.op for driven in preferred.outlined.driven] == ["If_2"]


def test_constraints_on_control_flow_hold_for_all_in_it_except_for_rules_of_inner_operations():
    module = module_of(BRANCH)
    plan = tt.decompose(module, PAIR, where={"If_2": "@gpu"})
    assert {plan.site_of(op) for op in ("Abs_0", "Neg_0", "Add_2")} == {"gpu"}
    plan = tt.decompose(module, PAIR, where={"If_2": "@gpu", "Abs_0": "@cpu"})
    assert plan.site_of("Abs_0") == "cpu"
    assert plan.site_of("Neg_0") == "gpu"


def test_reports_include_operations_in_regions():
    plan = tt.decompose(module_of(NESTED), PAIR, where={"op:Exp": "@gpu"})
    names = {call.kind: call.source for call in plan.program.body}
    assert plan.site_of(names["Exp"]) == "gpu"
    assert plan.site_of(names["Loop"]) == "cpu"
    assert "run by driver 'main'" in str(plan.explain(names["Loop"]))
    assert "must meet @gpu" in str(plan.explain(names["Exp"]))
    data = plan.to_json()
    assert [entry["op"] for entry in data["driven"]] == [names["Loop"], names["If"]]
    assert {entry.get("runs") for entry in data["subgraphs"]} == {None, 10.0, 5.0}
    with pytest.raises(UnknownNameError, match="no op 'nowhere'"):
        plan.explain("nowhere")


def test_operations_of_one_name_in_two_regions_have_distinct_paths():
    graph = """g (float[2] x, bool c) => (float[2] y) {
        y = If(c) <then_branch = a () => (y1) { [same] y1 = Abs(x) },
                   else_branch = b () => (y2) { [same] y2 = Tanh(x) }> }"""
    plan = tt.decompose(module_of(graph), PAIR, where={"same": "@gpu"})
    sources = [call.source for call in plan.program.body if call.kind in ("Abs", "Tanh")]
    assert len(set(sources)) == 2
    assert {plan.site_of(op) for op in sources} == {"gpu"}


def test_an_unsupported_operation_in_a_region_is_named_in_the_error():
    graph = """g (float[2] x, bool c) => (float[2] y) {
        y = If(c) <then_branch = a () => (y1) { y1 = Abs(x) }, else_branch = b () => (y2) { y2 = Tanh(x) }> }"""
    with pytest.raises(InfeasibleError, match=r"op 'Abs_0' \(Abs\) fits no site .*CONSTRAINT"):
        tt.decompose(module_of(graph), PAIR, where={"op:Abs": "llvm"})


UNKNOWN_RANK = """g (float[2] x, int64 n) => (float[a] y, float[b] z) {
    k = Constant<value = float {3.0}>()
    y, z = Loop(n, , x) <body = b (i, ci, v) => (co, w, s) {
        co = Identity(ci) t = Concat<axis = 0>(v, v) w = Tanh(t) f = Cast<to = 1>(i) s = Add(f, k) }> }"""
CONSTANT_BRANCH = """g (float[2] x, bool c) => (float[2] y) {
    y = If(c) <then_branch = a () => (y1) { y1 = Constant<value = float[2] {5.0, 6.0}>() },
               else_branch = b () => (y2) { y2 = Tanh(x) }> }"""
SHARED = """g (float[2] x, bool c) => (float[2] y)
    <float[2] w = {1.0, 2.0}> {
    p = Tanh(w) q = Neg(w) r = Add(p, q)
    y = If(c) <then_branch = a () => (y1) { s = Tanh(w) y1 = Add(s, r) },
               else_branch = b () => (w2) { w2 = Identity(w) }> }"""
SEQUENCE = """g (float[2] x, int64 n) => (float[m] y) {
    none = SequenceEmpty<dtype = 1>()
    c = Constant<value = bool {1}>()
    all = Loop(n, c, none) <body = b (int64 i, bool ci, seq(float[2]) v) => (bool co, seq(float[2]) w) {
        co = Identity(ci) t = Tanh(x) w = SequenceInsert(v, t) }>
    more = SequenceInsert(all, x)
    y = ConcatFromSequence<axis = 0>(more) }"""
CYCLE = """g (float[2] x, int64 n, bool c) => (float[2] y) {
    y = Loop(n, c, x) <body = b (int64 i, bool ci, float[2] v) => (bool co, float[2] w) {
        co = Identity(ci) v0 = Relu(v) v1 = Relu(v) v2 = Tanh(v1) v3 = Tanh(v0) v4 = Add(v1, v3) v5 = Add(v0, v2)
        w = Add(v4, v5) }> }"""


@pytest.mark.parametrize(
    ("graph", "where", "inputs"),
    [
        (UNKNOWN_RANK, {"op:Tanh": "@gpu", "op:Concat": "@cpu"}, {"n": np.array(2)}),
        (CONSTANT_BRANCH, {"op:Tanh": "@gpu"}, {"c": np.array(True)}),
        (CONSTANT_BRANCH, {"op:Tanh": "@gpu"}, {"c": np.array(False)}),
        (SHARED, {"op:Tanh": "@gpu", "op:Neg": "@cpu"}, {"c": np.array(True)}),
        (SHARED, {"op:Tanh": "@gpu", "op:Neg": "@cpu"}, {"c": np.array(False)}),
        (SEQUENCE, {"op:Tanh": "@gpu"}, {"n": np.array(0)}),
        (SEQUENCE, {"op:Tanh": "@gpu"}, {"n": np.array(3)}),
        (CYCLE, {"op:Tanh": "@cpu", "op:Relu": "@gpu", "op:Add": "@gpu"}, {"n": np.array(2), "c": np.array(True)}),
    ],
)
def test_corner_cases_of_control_flow_are_computed_right(graph, where, inputs):
    module = module_of(graph)
    plan = tt.decompose(module, PAIR, where=where)
    assert plan.outlined.driven
    if "x" in {param.name for param in module.main.params}:
        inputs = {"x": X, **inputs}
    same_everywhere(module, plan, **inputs)


def branching(then, otherwise):
    """Return a module whose branches are made by functions of a builder, which return a result each."""
    f = tt.FunctionBuilder("main")
    x, c = f.param("x", "float32[2]"), f.param("c", "bool[]")
    t = f.call("Tanh", x, name="t")
    bodies = []
    for make in (then, otherwise):
        body = tt.FunctionBuilder("body", outer=f)
        bodies.append(body.build(make(body, t)))
    y = f.call("If", c, then_branch=bodies[0], else_branch=bodies[1], name="if")
    return tt.IRModule((f.build(f.call("Neg", y, name="n")),))


def test_branches_may_return_values_around_them_and_constants_without_computing_anything():
    module = branching(lambda body, t: t, lambda body, t: body.constant(np.float32([7, 8]), "k"))
    driven = tt.decompose(module, "[gpu=probe,cpu=llvm](host=@cpu)", where={"t": "@gpu", "n": "@gpu"})
    assert [one.op for one in driven.outlined.driven] == ["if"]
    exe = tt.build(driven)
    np.testing.assert_allclose(exe(X, np.array(True)), -np.tanh(X), rtol=1e-6)
    np.testing.assert_array_equal(exe(X, np.array(False)), [-7, -8])


def test_values_that_hide_others_are_errors_at_import():
    """ONNX wants the names of a body to differ from those around it; its checker and onnxruntime insist."""
    graph = """g (float[2] x, bool c) => (float[2] z) { t = Relu(x)
        z = If(c) <then_branch = a () => (t2) { t = Neg(x) t2 = Abs(t) },
                   else_branch = b () => (y2) { y2 = Tanh(t) }> }"""
    with pytest.raises(ModelError, match="'t' has been used as output names multiple times"):
        module_of(graph)


def test_bodies_may_use_one_name_for_different_values():
    graph = """g (float[2] x, bool c) => (float[2] z) {
        y = If(c) <then_branch = a () => (u) { t = Neg(x) u = Tanh(t) },
                   else_branch = b () => (u) { t = Abs(x) u = Tanh(t) }>
        z = Exp(y) }"""
    module = module_of(graph)
    plan = tt.decompose(module, PAIR, where={"op:Tanh": "@gpu", "op:Neg": "@cpu", "op:Abs": "@cpu"})
    same_everywhere(module, plan, x=X, c=np.array(False))


def test_what_a_driver_cannot_run_says_why():
    graph = """g (float[2] x, seq(float[2]) s) => (seq(float[2]) y) {
        y = SequenceMap(s) <body = b (float[2] e) => (float[2] o) { a = Abs(e) o = Tanh(a) }> }"""
    where = {"op:Tanh": "@gpu", "op:Abs": "@cpu"}
    with pytest.raises(InfeasibleError, match=r"driven by @cpu: CONTROL_FLOW: drivers run onnx\.If, .* not onnx\.Seq"):
        tt.decompose(module_of(graph), PAIR, where=where)


def test_numpy_takes_no_body_of_a_sequence_map_that_reads_other_values():
    graph = """g (float[2] x, seq(float[2]) s) => (seq(float[2]) y) {
        y = SequenceMap(s) <body = b (float[2] e) => (float[2] o) { o = Add(e, x) }> }"""
    with pytest.raises(InfeasibleError, match="the body of its SequenceMap cannot read 'x' from outside; make it an"):
        tt.decompose(module_of(graph), "numpy")


def test_saved_programs_with_control_flow_run_after_loading(tmp_path):
    plan = tt.decompose(module_of(NESTED), PAIR, where={"op:Exp": "@gpu"})
    exe = tt.build(plan)
    exe.save(tmp_path / "p.tvmtarget")
    inputs = {"x": X, "n": np.array(3)}
    expected, actual = exe.run(inputs), tt.load(tmp_path / "p.tvmtarget").run(inputs)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value)
    events = exe.profile(inputs)
    assert sum(getattr(event, "call", "") in ("Sub_0", "Exp_0") for event in events) == 3, "one branch each time"


def test_a_plan_with_control_flow_is_kept_in_files_and_replays(tmp_path):
    plan = tt.decompose(module_of(NESTED), PAIR, where={"op:Exp": "@gpu"})
    plan.save(tmp_path / "plan")
    assert str(type(plan).load(tmp_path / "plan").module) == str(plan.module)
    assert str(plan.replay(plan.request.module).module) == str(plan.module)


def test_diagrams_and_annotated_models_show_what_drivers_run():
    plan = tt.decompose(module_of(NESTED), PAIR, where={"op:Exp": "@gpu"})
    assert plan.mermaid().count("run by main") == plan.dot().count("run by main") == 2
    graph = plan.graph()
    assert [graph.nodes[node]["ops"] for node in (4, 5)] == [("Loop_3",), ("If_2",)]
    sites = {}
    graphs = [plan.marked().graph]
    while graphs:
        for node in graphs.pop().node:
            sites[node.op_type] = {entry.key: entry.value for entry in node.metadata_props}["tvmtarget.site"]
            graphs += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    assert (sites["Exp"], sites["Loop"], sites["If"]) == ("@gpu", "@cpu", "@cpu")


def effects(function, module):
    """Yield the names of operations with an effect in the order in which they run, bodies after what has them."""
    for call in function.body:
        if call.callee:
            yield from effects(module[call.callee], module)
        elif call.has_effect:
            yield call.source
        for _, region in call.regions:
            yield from effects(region, module)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(2, 6))
def test_operations_with_effects_keep_their_order_across_sites_and_bodies(seed, size):
    """Facts I8."""
    rng = random.Random(seed)
    module = tt.IRModule.from_onnx(random_program(size, seed))
    module = module.with_function(with_effects(module.main, rng))
    plan = tt.decompose(module, FLAT, where=choice_of_sites(module, FLAT, seed))
    whole = inline_calls(plan.module.main, plan.module.by_name).function
    assert list(effects(whole, plan.module)) == list(effects(plan.program.function, module))


def with_effects(function, rng):
    """Return a function in which some operations have effects, and those that have them in their bodies."""
    body = []
    for call in function.body:
        regions = tuple((label, with_effects(region, rng)) for label, region in call.regions)
        is_one = any(inner.has_effect for _, region in regions for inner in region.body) or rng.random() < 0.4
        body.append(replace(call, regions=regions, has_effect=is_one))
    return function.replace(body=tuple(body))


def choice_of_sites(module, target, seed):
    rng = random.Random(seed)
    leaves = [path for path, node in tt.Target.parse(target).walk() if not node.is_composite]
    names = []

    def walk(function):
        for call in function.body:
            names.extend([] if call.regions else [call.source])
            for _, region in call.regions:
                walk(region)

    walk(module.main)
    return {name: f"@{rng.choice(leaves)}" for name in names if rng.random() < 0.6}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**6), size=st.integers(1, 4), target=st.sampled_from([PAIR, FLAT, DEEP]))
def test_random_programs_compute_the_same_when_partitioned(seed, size, target):
    """Facts I10, I12: semantics and idempotence; `verify` proves cover, sites, copies and effects on the way."""
    check_random(seed, size, target)


@pytest.mark.slow
@settings(max_examples=examples(40, 100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**6), size=st.integers(1, 6), target=st.sampled_from([PAIR, FLAT, DEEP]))
def test_many_random_programs_compute_the_same_when_partitioned(seed, size, target):
    check_random(seed, size, target)


def check_random(seed, size, target):
    model = random_program(size, seed)
    module = tt.IRModule.from_onnx(model)
    where = choice_of_sites(module, target, seed)
    plan = tt.decompose(module, target, where=where)
    assert all(plan.site_of(op) == site[1:] for op, site in where.items())
    whole, divided = tt.build(module, "onnxruntime"), tt.build(plan)
    for trips in (0, 2):
        inputs = inputs_for(seed, trips)
        expected = whole.run(inputs)
        for name, value in divided.run(inputs).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5)
    assert str(tt.decompose(plan.module).module) == str(plan.module)
    constants = plan.module.constants()
    assert tt.IRModule.parse(str(plan.module), constants) == plan.module
    assert tt.IRModule.from_json(plan.module.to_json(), constants) == plan.module


def test_the_order_in_which_operations_are_written_does_not_matter():
    """Facts I14: any topological order of the same program gives the same sites and as many copies."""
    for seed in range(4):
        model = random_program(6, seed)
        shuffled = onnx.ModelProto()
        shuffled.CopyFrom(model)
        reorder(shuffled.graph, random.Random(seed))
        one, other = tt.IRModule.from_onnx(model), tt.IRModule.from_onnx(shuffled)
        where = choice_of_sites(one, FLAT, seed)
        plans = [tt.decompose(module, FLAT, where=where) for module in (one, other)]
        assert plans[0].sites() == plans[1].sites()
        built = [tt.build(plan).run(inputs_for(seed, 2)) for plan in plans]
        for name in built[0]:
            np.testing.assert_allclose(built[0][name], built[1][name], rtol=1e-5, atol=1e-6)


def reorder(graph, rng):
    """Write the nodes of a graph, and of the bodies in it, in another topological order."""
    waiting, done = list(graph.node), {name for node in graph.node for name in node.output}
    order = []
    while waiting:
        ready = [node for node in waiting if done.isdisjoint(read_by(node))]
        node = rng.choice(ready)
        waiting.remove(node)
        order.append(node)
        done -= set(node.output)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in order]
    for node in copies:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                reorder(attribute.g, rng)
    del graph.node[:]
    graph.node.extend(copies)


def read_by(node):
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from read_by(inner)


def test_costs_choose_between_offloading_a_loop_whole_and_driving_it():
    """A body costs as often as it is expected to run, ten times where nothing says so."""
    target = tt.Target.parse("[a=numpy,b=onnxruntime](host=@a)").replace(memory=(tt.Memory(name="mb", of=("b",)),))
    graph = """g (float[2] x, int64 n, bool c) => (float[2] y) {
        y = Loop(n, c, x) <body = b (int64 i, bool ci, float[2] v) => (bool co, float[2] w) {
            co = Identity(ci) t = Tanh(v) w = Abs(t) }> }"""
    links = (LinkCost("a", "b", latency=1.0, bandwidth=24e6),)

    def plan(tanh, absolute):
        ops = [OpCost(site, op=op, time=1.0) for site in "ab" for op in ("Identity", "Tanh", "Abs")]
        ops += [OpCost("b", op="Tanh", time=tanh), OpCost("b", op="Abs", time=absolute)]
        sites = {site: SiteCost(launch=1.0) for site in "ab"}
        return tt.decompose(module_of(graph), target, Costs(sites=sites, links=links, ops=tuple(ops)))

    assert plan(100.0, 100.0).sites().items() >= {"Loop_0": "a", "Tanh_1": "a"}.items()
    whole = plan(0.1, 0.1)
    assert whole.site_of("Loop_0") == "b"
    assert whole.prediction.ops == round((1 + 0.1 + 0.1) * 10 * 10**6)


def test_verification_finds_a_broken_plan():
    plan = tt.decompose(module_of(LOOP), PAIR, where={"op:Tanh": "@gpu", "op:Abs": "@cpu", "op:Neg": "@gpu"})
    main = plan.module.main
    (loop,) = (call for call in main.body if call.regions)
    (copy,) = (call for call in main.body if call.op == COPY and call.inputs == ("t",))
    ((label, body),) = loop.regions
    inside = body.replace(body=(copy, *body.body))
    moved = [one for one in main.body if one is not copy]
    moved[moved.index(loop)] = tt.Call(loop.op, loop.inputs, loop.outputs, loop.attrs, ((label, inside),), source="L")
    with pytest.raises(ModelError, match="is made again in every run of"):
        verify_plan(
            plan.program, plan.feasibility, plan.module.with_function(main.replace(body=tuple(moved))), plan.outlined
        )


def test_the_document_on_control_flow():
    failed, tried = doctest.testfile(str(ROOT / "docs" / "control-flow.md"), module_relative=False)
    assert tried
    assert not failed


FUNCTIONS = """
func @main(%x: float32[2], %n: int64[], %c: bool[]) -> (float32[2]) opsets(onnx=17) {
  %t: float32[2] = @pre(%x) as p
  %y: float32[2] = onnx.Loop(%n, %c, %t) as loop
    body @body(%i: int64[], %ci: bool[], %v: float32[2]) -> (bool[], float32[2]) captures(%t) {
      %co: bool[] = onnx.Identity(%ci) as co
      %w: float32[2] = @inner(%v, %t) as w
      return %co, %w
    }
  return %y
}
func @pre(%x: float32[2]) -> (float32[2]) opsets(onnx=17) [@gpu] { %r: float32[2] = onnx.Tanh(%x) as tanh return %r }
func @inner(%v: float32[2], %t: float32[2]) -> (float32[2]) opsets(onnx=17) [@gpu] {
  %q: float32[2] = onnx.Neg(%v) as neg
  %r: float32[2] = onnx.Add(%q, %t) as add
  return %r
}
"""


def test_functions_that_regions_call_keep_their_constraints():
    """REQUIREMENTS G1: earlier decisions are kept, in nested bodies too."""
    module = tt.IRModule.parse(FUNCTIONS)
    plan = tt.decompose(module, PAIR)
    assert plan.sites().items() >= {"tanh": "gpu", "neg": "gpu", "add": "gpu", "loop": "", "co": "cpu"}.items()
    whole = tt.build(tt.IRModule.from_onnx(module.to_onnx()), "onnxruntime")
    for trips in (0, 2):
        inputs = (X, np.array(trips), np.array(True))
        np.testing.assert_allclose(tt.build(plan)(*inputs), whole(*inputs), rtol=1e-6)
    with pytest.raises(InfeasibleError, match=r"drop or change one of: @gpu \(required by function .gpu_neg_"):
        tt.decompose(plan.module, where={"neg": "!@gpu"})


def test_stacks_of_no_slices_have_the_symbolic_sizes_of_the_inputs():
    """Code that reads them and the inputs takes the sizes of the same symbol to be equal."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[n,4] x, int64 t) => (float[n,4] y) <int64[1] first = {0}, bool yes = {1}> {
            [loop] u = Loop(t, yes) <body = body (int64 i, bool c) => (bool d, float[n,4] s) {
                [keep] d = Identity(c)
                [neg] s = Neg(x) }>
            [sum] v = ReduceSum<keepdims = 0>(u, first)
            [end] y = Add(v, x) }""")
    x = np.ones((3, 4), "float32")
    program = tt.build(model, "[a=llvm,b=numpy](host=@a)", where={"neg": "@a", "end": "@b"})
    for count in (0, 1, 2):
        np.testing.assert_array_equal(program.run({"x": x, "t": np.array(count)})["y"], (1 - count) * x)


@pytest.mark.parametrize("is_stated", [True, False])
def test_ranks_of_states_follow_from_those_of_their_first_values(is_stated):
    """ONNX infers no rank of what an inner loop returns, and none in the body of a loop that states none."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[n,4] x, int64 t) => (float y) {
            u = Loop(t, , x) <body = outer (int64 i, bool c, float[g,4] s) => (bool d, float[h,4] s2) {
                d = Identity(c)
                v = Loop(t, , x) <body = inner (int64 j, bool e, float[k,4] p) => (bool f, float[l,4] q) {
                    f = Identity(e)
                    q = Concat<axis = 0>(p, x) }>
                s2 = Concat<axis = 0>(s, v) }>
            w = ReduceSum<keepdims = 0>(u)
            y = Exp(w) }""")
    body = model.graph.node[0].attribute[0].g
    for value in () if is_stated else (body.input[2], body.output[1]):
        value.type.tensor_type.ClearField("shape")
    types = with_open_carried_dimensions(tt.IRModule.from_onnx(model)["main"]).types
    assert len(types["u"].shape) == 2
    assert types["w"].shape == ()


@pytest.mark.parametrize(
    "target", ["llvm", "numpy", "[a=llvm,b=numpy](host=@a)", "[a=llvm,b=llvm](host=@a,executor=vm)"]
)
def test_sequences_grow_though_a_body_states_their_first_length(target):
    """PyTorch states `[b, 1]`; the length that the body reads is no constant, and a second state follows the first."""
    ort = pytest.importorskip("onnxruntime")
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[b,1] x, int64 n) => (float[p,q] y, float[r,s] z) <int64[1] one = {1}> {
            [start] w = Tanh(x)
            [whole] u, v = Loop(n, , x, w) <body = body (int64 i, bool c, float[b,1] y1, float[b,1] z1)
                => (bool d, float[b,2] y2, float[k,l] z2) {
                [keep] d = Identity(c)
                [length] m = Shape<start = 1>(y1)
                [number] f = Cast<to = 1>(m)
                [scale] t = Mul(z1, f)
                [last] e = ReduceSum<keepdims = 1>(t, one)
                [grow] y2 = Concat<axis = 1>(y1, e)
                [next] z2 = Tanh(y2)
            }>
            [end] y = Neg(u)
            [tail] z = Identity(v)
        }""")
    program = tt.build(tt.IRModule.from_onnx(model), target)
    session = ort.InferenceSession(model.SerializeToString())
    for count in (0, 1, 3):
        given = {"x": np.float32([[0.1], [0.2]]), "n": np.int64(count)}
        found = program.run({name: np.asarray(value) for name, value in given.items()})
        expected = session.run(None, {name: np.asarray(value) for name, value in given.items()})
        for name, array in zip(("y", "z"), expected, strict=True):
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


def test_the_driver_of_the_root_runs_bodies_where_that_is_best_for_all_leaves_together():
    """In @a, each operation of the body is fast on one of two leaves, but copies between them take longer."""
    module = tt.IRModule.from_onnx(random_program(4, 1, 1))
    target = tt.Target.parse("[a=[a=numpy,h=numpy](host=@h),h=numpy](host=@h)")
    system = target.targets[0].replace(memory=(tt.Memory(name="own", of=("a",)),))
    fast = {"a/a": ("Tanh", "ReduceSum"), "a/h": ("Mul", "Neg", "Less"), "h": ()}
    kinds = ("Tanh", "Neg", "Mul", "ReduceSum", "Less")
    costs = Costs(
        sites={"h": SiteCost(launch=1.0)},
        links=(LinkCost("a/a", "a/h", 30.0, 1e9), LinkCost("a", "h", 7.0, 1e9)),
        ops=tuple(
            OpCost(site, op=kind, time=15.0 if site == "h" else 9.0 if kind in fast[site] else 90.0)
            for site in fast
            for kind in kinds
        ),
    )
    plan = tt.decompose(module, target.replace(targets=(system, target.targets[1])), costs)
    assert plan.prediction.total <= plan.what_if("*", "@h").prediction.total


@pytest.mark.parametrize(("seed", "best"), [(8, 171.072), (51, 456.096), (86, 272.108), (95, 305.0)])
def test_bodies_and_the_operations_around_them_are_placed_together(seed, best):
    """The best plans known, which no move of a single operation improves."""
    rng = random.Random(seed)
    kinds = ("Abs", "Add", "Identity", "If", "Less", "Loop", "Max", "Mul", "Neg", "ReduceSum")
    leaves = ("a/n", "a/h", "h")
    costs = Costs(
        sites={leaf: SiteCost(float(rng.choice((0, 5, 20)))) for leaf in leaves},
        links=tuple(LinkCost(*ends, rng.choice((5.0, 20.0)), 1e9) for ends in (("a/n", "a/h"), ("a", "h"))),
        ops=tuple(
            OpCost(leaf, op=kind, time=float(rng.randint(1, 60)))
            for kind in (*kinds, "Scan", "Sigmoid", "Sub", "Tanh")
            for leaf in leaves
        ),
    )
    target = "[a=[n=numpy,h=numpy](host=@h),h=numpy](host=@h)"
    plan = tt.decompose(tt.IRModule.from_onnx(random_program(3, seed, 1)), target, costs)
    assert plan.prediction.total <= round(best * 10**6)


def _branches_in_branches(depth):
    """Return a program with 20 operations on each level, which end in a branch with those of the next one."""
    type_ = TensorType("float32", (8,))

    def calls(level):
        names = [f"v{level}_{place}" for place in range(-1, 20)]
        names[0] = f"v{level - 1}_19" if level else "x"
        body = [Call("onnx.Relu", (before,), (Value(name, type_),), source=name) for before, name in pairwise(names)]
        if level == depth - 1:
            return body
        inner = calls(level + 1)
        other = Call("onnx.Abs", (names[-1],), (Value(f"e{level}", type_),), source=f"e{level}")
        regions = tuple(
            (branch, Function(branch, (), tuple(made), (made[-1].outputs[0].name,)))
            for branch, made in (("then_branch", inner), ("else_branch", [other]))
        )
        return [*body, Call("onnx.If", ("c",), (Value(f"f{level}", type_),), regions=regions, source=f"if{level}")]

    params = Value("x", type_), Value("c", TensorType("bool", ()))
    return tt.IRModule((Function("main", params, tuple(calls(0)), ("f0",), opsets=(("", 18),)),))


def test_branches_in_branches_fifty_deep_are_planned_in_seconds():
    module = _branches_in_branches(50)
    begin = time.process_time()
    plan = tt.decompose(module, "[gpu=onnxruntime,npu=onnxruntime,cpu=numpy](host=@cpu)")
    # It takes 5 s if each check of a branch copies all values around it name by name.
    assert time.process_time() - begin < 4
    assert len(plan.subgraphs) == 1


def test_calls_of_nested_bodies_are_listed_at_any_depth():
    def named(source, *bodies):
        return Call("onnx.If", ("c",), (), regions=tuple((body.name, body) for body in bodies), source=source)

    inner, last = Function("inner", (), (named("a"),), ()), 2000
    for level in range(last):
        other = Function("other", (), (named(f"e{level}"),), ())
        inner = Function("inner", (), (named(f"if{level}", inner, other), named(f"z{level}")), ())
    found = [call.source for call in calls_in(inner)]
    before = [f"if{level}" for level in reversed(range(last))]
    after = [name for level in range(last) for name in (f"e{level}", f"z{level}")]
    assert found == [*before, "a", *after]


def test_operations_of_nested_bodies_are_checked_once_at_any_depth(monkeypatch):
    checked, check = [], Strategy.check_limits
    monkeypatch.setattr(Strategy, "check_limits", lambda self, op: checked.append(op.call.source) or check(self, op))
    counts = []
    for depth in (10, 40):
        checked.clear()
        tt.decompose(_branches_in_branches(depth), "[gpu=onnxruntime,cpu=numpy](host=@cpu)")
        counts.append(len(checked) / depth)
    # Sixteen times as many in all if the operations below each branch are checked again for it.
    assert counts[1] < 1.1 * counts[0]


def test_times_of_operations_are_looked_up_as_often_for_each_branch_of_many(monkeypatch):
    estimated, time_of = [], Estimates.time
    monkeypatch.setattr(Estimates, "time", lambda self, *where: estimated.append(where) or time_of(self, *where))
    type_, counts = TensorType("float32", (8,)), []
    for count in (40, 160):
        body = []
        for place in range(count):
            before, names = f"f{place - 1}" if place else "x", (f"t{place}", f"e{place}")
            regions = tuple(
                (label, Function(label, (), (Call(op, (before,), (Value(name, type_),), source=name),), (name,)))
                for label, op, name in zip(("then_branch", "else_branch"), ("onnx.Exp", "onnx.Neg"), names, strict=True)
            )
            output = Value(f"f{place}", type_)
            body.append(Call("onnx.If", ("c",), (output,), regions=regions, source=f"if{place}"))
        params = Value("x", type_), Value("c", TensorType("bool", ()))
        main = Function("main", params, tuple(body), (f"f{count - 1}",), opsets=(("", 18),))
        estimated.clear()
        tt.decompose(tt.IRModule((main,)), "[gpu=onnxruntime,cpu=numpy](host=@cpu)", "roofline")
        counts.append(len(estimated) / count)
    # Almost four times as many for each if every branch looks up the times of all of them again.
    assert counts[1] < 1.1 * counts[0]
