"""The invariants of a decomposition, checked anew on records and modules; and graphs on which others failed.

I1: every operation is in one subgraph, or run by one driver:
    test_i1_every_operation_is_in_one_subgraph
I2: sites are feasible, requirements are met:
    test_i2_sites_take_what_they_are_given
    test_requests_that_cannot_be_met_name_the_value_the_place_and_the_reason
I3: no circle between subgraphs, effects included:
    test_i3_subgraphs_wait_for_none_that_waits_for_them
I4: one site per subgraph, matches whole, limits kept:
    test_subgraphs_cover_the_graph_with_one_label_each_and_no_cycle
    test_matches_are_taken_whole_and_named_in_the_function
    test_a_limit_of_a_strategy_holds_in_the_plan
I5: borders are exact:
    test_i5_borders_are_what_passes_and_nothing_else
I6: symbolic dimensions are bound:
    test_i6_parts_know_the_dimensions_that_they_use
I7: copies: one per value and memory, none useless, none back, none of an unchanged value in a loop:
    test_i7_copies_are_few_and_used
    test_i7_no_value_is_copied_back_while_the_driver_runs_that_had_it_computed
    test_a_value_that_a_loop_does_not_change_is_copied_once_before_it
I8: effects keep their order:
    test_operations_with_effects_keep_their_order_across_sites_and_bodies
I9: leaves have one target, device code nothing for the host:
    test_i9_every_function_without_calls_is_on_a_leaf
    test_decompose_splits_for_generators_of_device_code_only
I10: the same is computed, bit by bit:
    test_i10_the_divided_program_computes_the_same_bits
I11: inlined it is the same program:
    test_i11_inlined_without_copies_it_is_the_same_program
I12: dividing again changes nothing:
    test_decomposing_twice_changes_nothing
I13: the same bytes in every process:
    test_the_same_plan_comes_out_whatever_the_hash_seed
    test_the_same_input_gives_the_same_bytes_in_every_process
I14: the order of operations matters next to nothing:
    test_the_order_of_operations_changes_next_to_nothing
    test_the_order_of_operations_changes_no_predicted_time
    test_corpus_a_net_of_branches_in_any_order
I15: no fewer subgraphs than the bound, as many for one accelerator; gaps are right:
    test_i15_subgraphs_are_as_few_as_the_bound_for_one_accelerator
    test_choices_are_near_the_joint_optimum_of_sites_and_subgraphs
I16: fewer requirements never cost more:
    test_i16_the_oracle_never_rises_with_freedom
    test_fewer_requirements_never_cost_much
I17: scaled costs and a worse site change nothing:
    test_scaling_all_costs_changes_nothing
    test_a_site_that_is_worse_for_all_changes_nothing
I18: explanations are complete and add up:
    test_explanations_add_up_to_the_objective
I19: an edit elsewhere leaves functions as they were:
    test_i19_an_edit_at_the_end_leaves_the_functions_before_it
    test_i19_an_edit_leaves_names_hashes_and_calls_of_all_other_functions
    test_a_plan_since_another_one_is_the_same_text
    test_an_edited_program_is_divided_alike
I20: twice the operations are at most 2.4 times the work:
    test_i20_work_doubles_with_the_program
I21: plans are valid when work runs out:
    test_a_plan_is_valid_and_no_worse_than_by_preference_when_work_runs_out
    test_contraction_without_work_left_is_still_valid
I22: a capture never makes a subgraph run before what it reads:
    test_i22_captures_are_computed_before_they_are_read
    test_corner_cases_of_control_flow_are_computed_right

Graphs on which others failed are the tests named `test_corpus_...`.
"""

import dataclasses
import random
import re
import sys
from functools import cache
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from control_models import inputs_for, random_program
from hypothesis import given, settings
from hypothesis import strategies as st
from models import inputs_of, random_graph, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.errors import ModelError
from tvmtarget.ir.function import COPY, Function
from tvmtarget.ir.inline import inline_calls
from tvmtarget.ir.structure import structural_hash
from tvmtarget.partition.subgraphs.lower_bound import lower_bound
from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph, LabeledGraph

ROOT = Path(__file__).parents[2]
TREES = (
    "[a=numpy,b=numpy](host=@a)",
    "[a=numpy,b=numpy(count=2),c=numpy](host=@a)",
    "[x=[a=numpy,b=numpy](host=@a),y=[z=[c=numpy,d=numpy],e=numpy](host=@z/c)](host=@x/a)",
)


def apart(text):
    """Return a tree in which each child of the root, but the one that drives, has a memory of its own."""
    tree = tt.Target.parse(text)
    others = [child.slot for child in tree.targets[1:]]
    return tree.replace(memory=tuple(tt.Memory(name=f"of-{slot}", of=(slot,)) for slot in others))


def sites_for(module, tree, rng, share):
    plan = tt.decompose(module, tree)
    leaves = [leaf.path for leaf in plan.topology.leaves()]
    names = [call.source for call in plan.program.body if not call.regions]
    return {name: f"@{rng.choice(leaves)}" for name in names if rng.random() < share}


@cache
def flat(seed):
    """Return a plan of a random program without control flow, most operations of which are wherever chance says."""
    rng = random.Random(seed)
    module = tt.IRModule.from_onnx(random_graph(rng.randint(1, 40), seed))
    tree = apart(TREES[seed % len(TREES)])
    return tt.decompose(module, tree, where=sites_for(module, tree, rng, 0.9))


@cache
def nested(seed):
    """Return a program with control flow and its plan, all operations wherever chance says."""
    rng = random.Random(seed)
    module = tt.IRModule.from_onnx(random_program(rng.randint(2, 7), seed))
    tree = apart(TREES[0])
    return module, tt.decompose(module, tree, where=sites_for(module, tree, rng, 1))


seeds = given(seed=st.integers(0, 20))
laws = settings(max_examples=15)


def test_every_invariant_has_tests_that_are_there():
    there = set(re.findall(r"def (test_\w+)", "".join(path.read_text() for path in ROOT.glob("tests/**/*.py"))))
    named = set(re.findall(r"^    (test_\w+)", __doc__, re.MULTILINE))
    assert re.findall(r"^I(\d+): ", __doc__, re.MULTILINE) == [str(number) for number in range(1, 23)]
    assert named <= there


@laws
@seeds
def test_i1_every_operation_is_in_one_subgraph(seed):
    plan = flat(seed)
    assert sorted(op for subgraph in plan.subgraphs for op in subgraph.ops) == sorted(
        c.source for c in plan.program.body
    )
    _, plan = nested(seed)
    held = [op for subgraph in plan.subgraphs for op in (*subgraph.ops, *subgraph.inner)] + [
        o.op for o in plan.outlined.driven
    ]
    assert sorted(held) == sorted(call.source for call in plan.program.body)


@laws
@seeds
def test_i2_sites_take_what_they_are_given(seed):
    plan = flat(seed)
    for op, site in plan.sites().items():
        assert plan.feasibility.unsupported_reason(plan.program.find(op), plan.topology[site]) is None
        assert plan.options.where.get(op) in (None, tt.Constraint.parse(f"@{site}"))


def edges_of(plan):
    """Yield pairs of operations of which the second reads the first, by name."""
    made = {output.name: call.source for call in plan.program.body for output in call.outputs}
    for call in plan.program.body:
        yield from ((made[name], call.source) for name in call.inputs if name in made)


@laws
@seeds
def test_i3_subgraphs_wait_for_none_that_waits_for_them(seed):
    plan = flat(seed)
    owner = {op: number for number, subgraph in enumerate(plan.subgraphs) for op in subgraph.ops}
    graph = nx.DiGraph((owner[a], owner[b]) for a, b in edges_of(plan) if owner[a] != owner[b])
    assert nx.is_directed_acyclic_graph(graph)
    assert all(a < b for a, b in graph.edges), "subgraphs are listed as they run"


@laws
@seeds
def test_i5_borders_are_what_passes_and_nothing_else(seed):
    plan = flat(seed)
    body = {call.source: call for call in plan.program.body}
    for subgraph in plan.subgraphs:
        calls = [body[op] for op in subgraph.ops]
        own = {output.name for call in calls for output in call.outputs}
        outside = {name for call in plan.program.body if call.source not in subgraph.ops for name in call.inputs}
        read = dict.fromkeys(name for call in calls for name in call.inputs if name not in own)
        assert subgraph.inputs == tuple(read)
        left = outside | set(plan.request.module.main.results)
        assert subgraph.outputs == tuple(out.name for call in calls for out in call.outputs if out.name in left)
        function = plan.module[subgraph.function]
        types = plan.request.module.main.types
        assert [param.type for param in function.params] == [types[name] for name in subgraph.inputs]
        assert [function.types[name] for name in function.results] == [types[name] for name in subgraph.outputs]


def test_i6_parts_know_the_dimensions_that_they_use():
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="a"),
        helper.make_node("Transpose", ["a"], ["b"], name="b", perm=[1, 0]),
        helper.make_node("Tanh", ["b"], ["c"], name="c"),
        helper.make_node("Concat", ["c", "b"], ["y"], name="y", axis=0),
    ]
    module = tt.IRModule.from_onnx(small(*nodes, shape=("n", "m")))
    plan = tt.decompose(module, apart(TREES[0]), where={"a": "@a", "b": "@b", "c": "@a", "y": "@b"})
    for subgraph in plan.subgraphs:
        function = plan.module[subgraph.function]
        known = symbols(param.type for param in function.params)
        assert symbols(output.type for call in function.body for output in call.outputs) <= known
    exe, whole = tt.build(plan), tt.build(module, "numpy")
    for shape in ((2, 3), (5, 1)):
        x = np.arange(np.prod(shape), dtype="float32").reshape(shape)
        np.testing.assert_array_equal(exe(x), whole(x))


def symbols(types):
    return {word for type_ in types for word in re.findall(r"\b[a-z]\b", str(type_))}


@laws
@seeds
def test_i7_copies_are_few_and_used(seed):
    """In every driver a value is copied once to each memory where it is not yet, and what is copied is read there."""
    plan = flat(seed)
    for driver in (function for function in plan.module.functions if dict(function.attrs)["role"] == "driver"):
        scopes = {value.name: value.scope for value in (*driver.params, *(o for c in driver.body for o in c.outputs))}
        read = {name for call in driver.body for name in call.inputs} | set(driver.results)
        origin, held = {}, {}
        for call in driver.body:
            if call.op == COPY:
                (name,), (copied,) = call.inputs, call.outputs
                origin[copied.name] = origin.get(name, name)
                places = held.setdefault(origin[copied.name], [scopes[origin[copied.name]]])
                assert copied.scope not in places
                assert copied.name in read
                places.append(copied.scope)


@laws
@seeds
def test_i7_no_value_is_copied_back_while_the_driver_runs_that_had_it_computed(seed):
    """Only a later call of the same system may bring a value to where an earlier one had it computed."""
    for plan in (flat(seed), nested(seed)[1]):
        assert not [names for names in copied_back(plan) if names[0] == names[1][: len(names[0])]]


def copied_back(plan):
    """Yield for each value that is copied to where it was computed the calls of the driver, and those of who did."""
    made = {name: subgraph for subgraph in plan.subgraphs for name in subgraph.outputs}
    for copy in plan.copies:
        subgraph = made.get(copy.value)
        if subgraph is not None and plan.topology.home(subgraph.site) == copy.dst:
            yield tuple(filter(None, copy.call.split("/"))), tuple(subgraph.call.split("/"))


def test_i7_a_later_call_of_a_system_is_all_that_copies_a_value_back():
    """The one known case: it went to another machine as well, and a call gets all values in its driver's memory."""
    ((driver, maker),) = copied_back(flat(29))
    assert driver
    assert driver[0] != maker[0]


@laws
@seeds
def test_i9_every_function_without_calls_is_on_a_leaf(seed):
    for plan in (flat(seed), nested(seed)[1]):
        leaves = {leaf.path for leaf in plan.topology.leaves()}
        for subgraph in plan.subgraphs:
            function = plan.module[subgraph.function]
            assert subgraph.site in leaves
            assert str(function.constraint) == f"@{subgraph.site}"
            assert not any(call.callee for call in function.body)


@settings(max_examples=12)
@seeds
def test_i10_the_divided_program_computes_the_same_bits(seed):
    plan = flat(seed)
    module, controlled = nested(seed)
    rng = random.Random(seed)
    cases = [(plan.request.module, plan, {"x": inputs_of(random_graph(1, seed), seed)["x"]})]
    if not any(call.kind == "Scan" for call in controlled.program.body):  # of which the backend takes few forms whole
        cases.append((module, controlled, inputs_for(seed, rng.randint(0, 3))))
    for module, plan, inputs in cases:
        whole, divided = tt.build(module, "numpy").run(inputs), tt.build(plan).run(inputs)
        assert list(whole) == list(divided)
        assert all(whole[name].tobytes() == divided[name].tobytes() for name in whole)


@laws
@seeds
def test_i11_inlined_without_copies_it_is_the_same_program(seed):
    plan = flat(seed)
    whole = inline_calls(plan.verify().module.main, plan.module.by_name).function
    assert structural_hash(plain(whole)) == structural_hash(plain(plan.request.module.main))


def plain(function: Function) -> Function:
    """Return a function with what was copied read where it was, and nothing said of sites."""
    same = {}
    body = []
    for call in function.body:
        inputs = tuple(same.get(name, name) for name in call.inputs)
        if call.op == COPY:
            same[call.outputs[0].name] = inputs[0]
        else:
            outputs = tuple(tt.Value(output.name, output.type) for output in call.outputs)
            body.append(tt.Call(call.op, inputs, outputs, call.attrs, source=call.source))
    results = tuple(same.get(name, name) for name in function.results)
    params = tuple(tt.Value(param.name, param.type) for param in function.params)
    return Function("main", params, tuple(body), results, function.constants, opsets=function.opsets)


@laws
@seeds
def test_i15_subgraphs_are_as_few_as_the_bound_for_one_accelerator(seed):
    rng = random.Random(seed)
    module = tt.IRModule.from_onnx(random_graph(rng.randint(1, 60), seed))
    where = {call.source: f"@{rng.choice('ab')}" for call in module.main.body}
    plan = tt.decompose(module, apart(TREES[0]), where=where)
    place = {call.source: number for number, call in enumerate(module.main.body)}
    successors = [[] for _ in place]
    for a, b in set(edges_of(plan)):
        successors[place[a]].append(place[b])
    bound = lower_bound(LabeledGraph(AtomGraph(successors), [int(plan.site_of(op) == "b") for op in place]))
    assert len(plan.subgraphs) == plan.root.least_parts == bound


def test_i16_the_oracle_never_rises_with_freedom(monkeypatch):
    pytest.importorskip("scipy.optimize")
    monkeypatch.syspath_prepend(ROOT)
    from dataclasses import replace

    from benchmarks._small import least_by_trying, small

    for seed in range(20):
        case = small(seed, 7, 3, "strewn")
        freer = replace(case, times=[[60.0 if time is None else time for time in row] for row in case.times])
        assert least_by_trying(freer) <= least_by_trying(case)


def test_i19_an_edit_at_the_end_leaves_the_functions_before_it():
    nodes = [helper.make_node(("Relu", "Tanh")[k % 2], [f"v{k - 1}" if k else "x"], [f"v{k}"]) for k in range(8)]
    before, after = (small(*nodes[:7], helper.make_node(last, ["v6"], ["y"])) for last in ("Abs", "Neg"))
    where = {"op:Tanh": "@b", "op:Relu": "@a"}
    plans = [tt.decompose(tt.IRModule.from_onnx(model), apart(TREES[0]), where=where) for model in (before, after)]
    hashes = [
        [(subgraph.function, structural_hash(plan.module[subgraph.function])) for subgraph in plan.subgraphs]
        for plan in plans
    ]
    assert hashes[0][:6] == hashes[1][:6]
    assert hashes[0][6:] != hashes[1][6:]


def work_of(function):
    """Return how many functions are called while one runs: what it does, independently of other work of the machine."""
    count = 0

    def seen(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("family", ["chain", "transformer", "densenet", "random"])
def test_i20_work_doubles_with_the_program(family, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks._graphs import FAMILIES, SITES, costs_of, module_of, tree_of

    def divided(size):
        module = module_of(FAMILIES[family](size))
        return work_of(lambda: tt.decompose(module, tree_of(3), costs_of(SITES[-3:])))

    divided(50)
    assert divided(600) <= 2.4 * divided(300)


@laws
@seeds
def test_i22_captures_are_computed_before_they_are_read(seed):
    """In every driver, nested bodies included, what a step reads is there already."""
    _, plan = nested(seed)
    drivers = [function for function in plan.module.functions if dict(function.attrs).get("role") == "driver"]
    for driver in drivers:
        check_order(driver, {constant.name for constant in driver.constants})


def check_order(function, known):
    known = known | {param.name for param in function.params} | {constant.name for constant in function.constants}
    for call in function.body:
        assert {name for name in call.inputs if name} <= known
        for _, region in call.regions:
            check_order(region, known)
        known |= {output.name for output in call.outputs}
    assert set(function.results) <= known


def op(kind, *inputs, to, **attrs):
    return helper.make_node(kind, list(inputs), [to], name=to, **attrs)


def divided(nodes, where, outputs, tree=TREES[0], **constants):
    """Divide a model of a few nodes, check that it computes the same, and return the plan."""
    model = small(*nodes, outputs=outputs, **constants)
    module = tt.IRModule.from_onnx(model)
    plan = tt.decompose(module, apart(tree), where=where)
    x = inputs_of(model)
    whole, parts = tt.build(module, "numpy").run(x), tt.build(plan).run(x)
    assert all(whole[name].tobytes() == parts[name].tobytes() for name in whole)
    return plan


def test_corpus_six_operations_of_one_code_generator():
    """TVM's MergeCompositeFunctions (0.27) makes two groups here that need each other; see also test_relax_plans."""
    nodes = [
        op("Relu", "x", to="v0"),
        op("Relu", "x", to="v1"),
        op("Tanh", "v1", to="v2"),
        op("Tanh", "v0", to="v3"),
        op("Add", "v1", "v3", to="v4"),
        op("Add", "v0", "v2", to="v5"),
    ]
    plan = divided(nodes, {"op:Tanh": "@a", "op:Relu": "@b", "op:Add": "@b"}, ("v4", "v5"))
    assert [subgraph.ops for subgraph in plan.subgraphs] == [("v0", "v1"), ("v2", "v3"), ("v4", "v5")]


def test_corpus_two_pairs_that_are_each_convex_but_not_together():
    """{1,4} and {2,3}, with 1 before 2 and 3 before 4: each pair could be a subgraph, both could not."""
    nodes = [op("Relu", "x", to="v1"), op("Tanh", "v1", to="v2"), op("Tanh", "x", to="v3"), op("Relu", "v3", to="v4")]
    plan = divided(nodes, {"op:Relu": "@b", "op:Tanh": "@a"}, ("v2", "v4"))
    assert len(plan.subgraphs) == 3


@pytest.mark.parametrize("seed", range(6))
def test_corpus_a_net_of_branches_in_any_order(seed):
    """Four resolutions that exchange values at each stage: TVM breaks half of the valid orders of such a net."""
    rng = random.Random(seed)
    rows = ["x"] * 4
    nodes = []
    for _ in range(4):
        for branch in range(4):
            for kind in ("Relu", "Tanh", "Relu"):
                nodes.append(op(kind, rows[branch], to=f"v{len(nodes)}"))
                rows[branch] = f"v{len(nodes) - 1}"
        mixed = []
        for branch in range(4):
            total = rows[branch]
            for other in range(4):
                if other != branch:
                    nodes.append(op("Add", total, rows[other], to=f"v{len(nodes)}"))
                    total = f"v{len(nodes) - 1}"
            mixed.append(total)
        rows = mixed
    waiting, known, order = list(nodes), {"x"}, []
    while waiting:
        node = rng.choice([node for node in waiting if known.issuperset(node.input)])
        waiting.remove(node)
        order.append(node)
        known.update(node.output)
    refused = {f"v{number}" for number in random.Random(7).sample(range(len(nodes)), len(nodes) // 4)}
    where = {node.name: "@a" if node.name in refused else "@b" for node in order}
    plan = divided(order, where, tuple(rows))
    ours = {subgraph.ops for subgraph in plan.subgraphs}
    assert len(ours) == plan.root.least_parts


def test_corpus_a_constant_that_subgraphs_of_two_sites_share():
    """OpenVINO's heterogeneous plugin (#36024, #36126) was led astray by constants that bridge parts."""
    nodes = [
        op("Add", "x", "w", to="a"),
        op("Mul", "a", "w", to="b"),
        op("Sub", "b", "w", to="c"),
        op("Mul", "c", "w", to="y"),
    ]
    w = np.full((2, 3), 3, "float32")
    plan = divided(nodes, {"op:Mul": "@b", "op:Add": "@a", "op:Sub": "@a"}, ("y",), w=w)
    assert [subgraph.ops for subgraph in plan.subgraphs] == [("a",), ("b",), ("c",), ("y",)]
    assert "w" not in {copy.value for copy in plan.copies}


def test_corpus_a_subgraph_does_not_reach_around_a_branch():
    """TVM's MergeCompilerRegions merged functions before and after an If that separates them."""
    branches = [
        helper.make_graph(
            [op("Neg", "a", to=f"{name}_n")], name, [], [helper.make_tensor_value_info(f"{name}_n", 1, (2, 3))]
        )
        for name in ("then", "else")
    ]
    nodes = [
        op("Relu", "x", to="a"),
        op("ReduceSum", "a", to="s", keepdims=0),
        op("Less", "s", "zero", to="c"),
        op("If", "c", to="i", then_branch=branches[0], else_branch=branches[1]),
        op("Relu", "i", to="b"),
        op("Add", "a", "b", to="y"),
    ]
    where = {"op:Relu": "@b", "op:Add": "@b", "op:ReduceSum": "@a", "op:Less": "@a", "i": "@a"}
    plan = divided(nodes, where, ("y",), zero=np.float32(0))
    assert [subgraph.ops for subgraph in plan.subgraphs if subgraph.site == "b"] == [("a",), ("b", "y")]


def test_corpus_a_parameter_that_two_devices_read():
    """TVM's PlanDevices refused a parameter on two devices (#15019): here it is copied to the one that is elsewhere."""
    nodes = [op("Relu", "x", to="a"), op("Tanh", "x", to="b"), op("Add", "a", "b", to="y")]
    plan = divided(nodes, {"a": "@a", "b": "@b", "y": "@a"}, ("y",))
    assert [copy.value for copy in plan.copies] == ["x", "b"]


def test_corpus_densenet(monkeypatch):
    """TVM's merging of subgraphs did not end on DenseNet121 (#5195): its outline, with one kind refused."""
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks._graphs import FAMILIES, module_of, tree_of

    plan = tt.decompose(
        module_of(FAMILIES["densenet"](420)), tree_of(2), where={"op:Sigmoid": "@cpu", "op:Max": "!@cpu"}
    )
    assert len(plan.subgraphs) == plan.root.least_parts


@pytest.mark.slow
def test_corpus_a_chain_of_ten_thousand():
    nodes = [op(("Relu", "Tanh")[k // 3 % 2], f"v{k - 1}" if k else "x", to=f"v{k}") for k in range(10_000)]
    module = tt.IRModule.from_onnx(small(*nodes, outputs=("v9999",)))
    plan = tt.decompose(module, apart(TREES[0]), where={"op:Tanh": "@b", "op:Relu": "@a"})
    assert len(plan.subgraphs) == 3334


def test_a_call_or_an_entry_with_other_values_of_the_same_type_is_found_on_a_flat_tree():
    module = tt.IRModule.parse("""func @main(%x: float32[4]) opsets(onnx=17) {
      %a: float32[4] = onnx.Relu(%x) as a
      %b: float32[4] = onnx.Tanh(%a) as b
      return %a, %b
    }""")
    plan = tt.decompose(module, "[npu=onnxruntime,cpu=numpy](host=@cpu)", where={"a": "@npu", "b": "@cpu"})
    main = plan.module.main
    second = dataclasses.replace(main.body[-1], inputs=("x",))
    for wrong in (main.replace(body=(*main.body[:-1], second)), main.replace(results=main.results[::-1])):
        functions = tuple(wrong if function.name == "main" else function for function in plan.module.functions)
        with pytest.raises(ModelError, match="other values"):
            dataclasses.replace(plan, module=plan.module.replace(functions=functions)).verify()


def changed(function, call, **fields):
    body = [*function.body]
    body[call] = dataclasses.replace(body[call], **fields)
    return function.replace(body=tuple(body))


def test_a_function_that_computes_something_else_is_found():
    module = tt.IRModule.parse("""func @main(%x: float32[4], %y: float32[4]) opsets(onnx=17) {
      %a: float32[4] = onnx.Sub(%x, %y) as a
      %b: float32[4] = onnx.LeakyRelu(%a) {alpha=0.5} as b
      %c: float32[4] = onnx.Tanh(%b) as c
      return %b, %c
    }""")
    plan = tt.decompose(module, "[npu=onnxruntime,cpu=numpy](host=@cpu)", where={"*": "@npu"}).verify()
    leaf = next(function for function in plan.module.functions if function.attr("role") == "leaf")
    first, second = leaf.body[0].inputs
    for wrong, message in (
        (changed(leaf, 0, inputs=(second, first)), "op 'a' reads other values"),
        (changed(leaf, 1, attrs=(("alpha", 0.25),)), "op 'b' has other attributes"),
        (changed(leaf, 2, inputs=leaf.body[1].inputs), "op 'c' reads other values"),
        (leaf.replace(results=leaf.results[::-1]), "returns other values"),
    ):
        functions = tuple(wrong if function is leaf else function for function in plan.module.functions)
        with pytest.raises(ModelError, match=message):
            dataclasses.replace(plan, module=plan.module.replace(functions=functions)).verify()


def in_a_system():
    """Return the plan of a chain on the device of a system in a system, each memory of its own."""
    module = tt.IRModule.parse("""func @main(%x: float32[4]) opsets(onnx=17) {
      %a: float32[4] = onnx.Relu(%x) as a
      %b: float32[4] = onnx.Tanh(%a) as b
      return %b
    }""")
    target = tt.Target.parse("[s=[npu=onnxruntime,dsp=onnxruntime,cpu=numpy](host=@cpu),cpu=numpy](host=@cpu)")
    memory = tuple(tt.Memory(name=f"m{name}", of=(name,)) for name in ("npu", "dsp"))
    target = target.replace(targets=(target.targets[0].replace(memory=memory), target.targets[1]))
    return tt.decompose(module, target, where={"a": "@s/npu", "b": "@cpu"})


@pytest.mark.parametrize(
    ("record", "changes", "message"),
    [
        ("subgraphs", {"site": "s/dsp"}, "is constrained to @s/npu, but its subgraph lists @s/dsp"),
        ("subgraphs", {"site": "s/gpu"}, "is on @s/gpu, which is no site of the target"),
        ("copies", {"dst": "flash"}, "which are not both memories of the target"),
    ],
)
def test_a_record_that_names_another_site_or_memory_is_found(record, changes, message):
    plan = in_a_system()
    first, *others = getattr(plan.outlined, record)
    wrong = dataclasses.replace(plan.outlined, **{record: (dataclasses.replace(first, **changes), *others)})
    with pytest.raises(ModelError, match=message):
        dataclasses.replace(plan, outlined=wrong).verify()


def test_a_copy_that_states_another_memory_than_its_result_is_found():
    plan = in_a_system()
    main = plan.module.main
    place = next(place for place, call in enumerate(main.body) if call.op == COPY)
    wrong = changed(main, place, attrs=(*main.body[place].attrs[:1], ("dst", "s/mnpu")))
    functions = tuple(wrong if function is main else function for function in plan.module.functions)
    with pytest.raises(ModelError, match="states 's/mnpu'"):
        dataclasses.replace(plan, module=plan.module.replace(functions=functions)).verify()


def test_a_call_with_values_in_another_memory_than_its_function_reads_is_found():
    """The outer driver calls the NPU's function in place of the system's, whose driver would copy to its memory."""
    plan = in_a_system()
    main, leaf = plan.module.main, plan.subgraphs[0].function
    place = next(place for place, call in enumerate(main.body) if call.op[:1] == "@")
    functions = tuple(
        changed(main, place, op=f"@{leaf}") if function is main else function for function in plan.module.functions
    )
    with pytest.raises(ModelError, match="in other memories than it reads"):
        dataclasses.replace(plan, module=plan.module.replace(functions=functions)).verify()


def test_a_driver_that_calls_a_function_further_down_is_found():
    text = """func @main(%x: float32[2]) opsets(onnx=17) {
      %a: float32[2] = onnx.Neg(%x) as neg
      return %a
    }"""
    target = "[box=[a=numpy,cpu=numpy](host=@cpu),cpu=numpy](host=@cpu)"
    plan = tt.decompose(tt.IRModule.parse(text), target, where={"neg": "@box/a"})
    main, leaf = plan.module.main, plan.subgraphs[0].function
    place = next(place for place, call in enumerate(main.body) if call.op[:1] == "@")
    functions = (changed(main, place, op=f"@{leaf}"), plan.module[leaf])  # the driver of the box is left out
    with pytest.raises(ModelError, match=rf"driver 'main' of @. calls '{leaf}', which is of @box/a, no child of it"):
        dataclasses.replace(plan, module=plan.module.replace(functions=functions)).verify()
