"""Edits of a program: what they leave alone keeps its name and structure (I19)."""

import gc
import random
import weakref
from dataclasses import replace

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from models import random_graph, small
from onnx import helper

import tvmtarget as tt
from benchmarks._graphs import FAMILIES, KINDS_OF_ONE, KINDS_OF_TWO, costs_of, module_of, shuffled, tree_of
from benchmarks._graphs import SITES as GRAPH_SITES
from benchmarks._graphs import transformer as transformer_graph
from benchmarks.phases import edited as edited_graph
from tvmtarget.backends.protocol import backend_named
from tvmtarget.errors import ModelError, TargetError
from tvmtarget.ir.function import Call, Constant, Value
from tvmtarget.ir.structure import structural_hash
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.outline import leaf_wiring
from tvmtarget.partition.verify import verify_plan

LAYERS = 12
OPS = 11  # of a layer

# Products on an accelerator, softmax beside it, the rest on a CPU around them: on one level, and at depth.
CLUSTER = (
    "[m0=[soc=[npu=numpy,dsp=numpy](host=@dsp),cpu=numpy](host=@cpu),m1=[npu=numpy,cpu=numpy](host=@cpu)](host=@m0/cpu)"
)
CASES = [
    ("[npu=numpy,dsp=numpy,cpu=numpy](host=@cpu)", {"*": "@cpu", "op:MatMul": "@npu", "op:Softmax": "@dsp"}),
    (
        CLUSTER,
        {
            "*": "@m0/cpu",
            "op:MatMul": "@m0/soc/npu",
            "op:Softmax": "@m0/soc/dsp",
            "[ofg][0-9]*": "@m1/npu",
            "y[0-9]*": "@m1/cpu",
        },
    ),
]


def op(kind, *inputs, to):
    return helper.make_node(kind, list(inputs), [to], name=to)


def layer_of(number, x):
    """Return attention, and what follows it, with weights of its own."""
    q, k, v, s, p, a, o, r, f, g, y = (f"{part}{number}" for part in "qkvspaorfgy")
    return [
        *(op("MatMul", x, f"{part}.w", to=part) for part in (q, k, v)),
        op("Mul", q, k, to=s),
        op("Softmax", s, to=p),
        op("Mul", p, v, to=a),
        op("MatMul", a, f"{o}.w", to=o),
        op("Add", o, x, to=r),
        op("MatMul", r, f"{f}.w", to=f),
        op("Relu", f, to=g),
        op("Add", g, r, to=y),
    ]


def transformer(edit="", at=0):
    """Return twelve layers; of the operation at a place there are two, it is gone, or it is another one."""
    nodes = [node for number in range(LAYERS) for node in layer_of(number, f"y{number - 1}" if number else "x")]
    node = nodes[at]
    if edit == "insert":
        nodes[at : at + 1] = [
            again(node, node.input, "inner"),
            helper.make_node("Neg", ["inner"], [node.output[0]], name="added"),
        ]
    elif edit == "remove":
        del nodes[at]
        same = {node.output[0]: node.input[0]}
        nodes = [again(one, [same.get(name, name) for name in one.input], one.output[0]) for one in nodes]
    elif edit == "alter":
        nodes[at] = again(node, node.input, node.output[0], "Abs" if len(node.input) == 1 else "Sub")
    used = {name for one in nodes for name in one.input if name.endswith(".w")}
    values = np.random.default_rng(0).normal(size=(LAYERS * OPS, 3, 3)).astype("float32")
    names = [f"{part}{number}.w" for number in range(LAYERS) for part in "qkvof"]
    weights = {name: value for name, value in zip(names, values, strict=False) if name in used}
    return tt.IRModule.from_onnx(small(*nodes, outputs=(f"y{LAYERS - 1}",), shape=(3, 3), **weights))


def again(node, inputs, output, kind=None):
    return helper.make_node(kind or node.op_type, inputs, [output], name=node.name)


def reported(plan):
    """Return for every operation its function and call: names, operations and hash."""
    hashes = {function.name: structural_hash(function, plan.module.by_name) for function in plan.module}
    return {
        op: (subgraph.function, hashes[subgraph.function], subgraph.call, subgraph.ops)
        for subgraph in plan.subgraphs
        for op in subgraph.ops
    }


def near(plan, name):
    """Return the operations in the functions, of the entry, that hold one or its neighbours."""
    body = {call.source: call for call in plan.program.body}
    if name not in body:
        return set()
    read = {value.name for value in body[name].outputs}
    close = {op for op, call in body.items() if op == name or read & {*call.inputs}}
    close |= {op for op, call in body.items() if {value.name for value in call.outputs} & {*body[name].inputs}}
    calls = {subgraph.call.split("/")[0] for subgraph in plan.subgraphs if close & {*subgraph.ops}}
    return {op for subgraph in plan.subgraphs if subgraph.call.split("/")[0] in calls for op in subgraph.ops}


@pytest.mark.parametrize(("target", "where"), CASES, ids=["flat", "cluster"])
@settings(max_examples=5, deadline=None)
@given(edit=st.sampled_from(["insert", "remove", "alter"]), at=st.integers(0, LAYERS * OPS - 2))
def test_i19_an_edit_leaves_names_hashes_and_calls_of_all_other_functions(target, where, edit, at):
    module = transformer()
    plans = [tt.decompose(one, target, where=where) for one in (module, transformer(edit, at))]
    before, after = map(reported, plans)
    changed = {op for op in before if before[op] != after.get(op)}
    touched = set().union(*(near(plan, name) for plan in plans for name in (module.main.body[at].source, "added")))
    assert changed <= touched
    assert len(touched) < 3 * OPS


KINDS = ("Relu", "Tanh", "Exp", "Add", "Mul")
SITES = ("x/a", "x/b", "y/c", "y/d")
FLAT = "[a=numpy,b=onnxruntime,c=llvm](host=@c)"
DEEP = "[x=[a=numpy,b=onnxruntime](host=@a),y=[c=llvm,d=numpy](host=@d)](host=@x/a)"


def graph(rng, size, seed):
    """Return a program with weights, in which neighbours of an edit are anything."""
    module = tt.IRModule.from_onnx(random_graph(size, seed))
    weight = Constant("w", TensorType("float32", (2, 3)), rng.random((2, 3)).astype("float32"))
    first = Call("onnx.Mul", ("x", "w"), (Value("scaled", weight.type),), source="scale")
    main = module.main
    rest = [replace(call, inputs=tuple("scaled" if one == "x" else one for one in call.inputs)) for call in main.body]
    return module.replace(functions=(main.replace(body=(first, *rest), constants=(*main.constants, weight)),))


def edits(module, rng):
    """Return edited programs: another operator, attribute or name, swapped operands, an operation more or less."""
    main = module.main
    at = int(rng.integers(len(main.body)))
    call = main.body[at]

    def with_body(*calls):
        return module.replace(functions=(main.replace(body=(*main.body[:at], *calls, *main.body[at + 1 :])),))

    inner = replace(call.outputs[0], name="inner")
    more = Call("onnx.Abs", ("inner",), call.outputs, source="more")
    without = with_body(replace(call, op="onnx.Identity", attrs=()))
    if len(call.inputs) == 1:
        gone = {call.outputs[0].name: call.inputs[0]}
        rest = [
            replace(one, inputs=tuple(gone.get(name, name) for name in one.inputs))
            for one in main.body
            if one is not call
        ]
        results = tuple(gone.get(name, name) for name in main.results)
        if len({*results}) == len(results):
            without = module.replace(functions=(main.replace(body=tuple(rest), results=results),))
    weights = tuple(replace(one, data=one.data + 1) if one.name == "w" else one for one in main.constants)
    return [
        module,
        with_body(replace(call, op="onnx.Tanh" if len(call.inputs) == 1 else "onnx.Sub", attrs=())),
        with_body(replace(call, attrs=(("alpha", 2.0),))),
        with_body(replace(call, inputs=call.inputs[::-1])),
        without,
        with_body(replace(call, source="renamed")),
        with_body(replace(call, outputs=(inner, *call.outputs[1:])), more),
        module.replace(functions=(main.replace(constants=weights),)),
    ]


def random_costs(rng, leaves):
    times = [
        {"match": {"op": kind}, "site": leaf, "time": float(rng.uniform(1, 50))} for kind in KINDS for leaf in leaves
    ]
    return {
        "schema": "tvmtarget.cost/1",
        "unit": "us",
        "sites": {leaf: {"launch": 3.0} for leaf in leaves},
        "ops": times,
    }


def check_since(size, seed, count):
    """Divide edited programs by other constraints, costs and trees, some for each edit, each since the plan before."""
    rng = np.random.default_rng(seed)
    module = graph(rng, size, seed)
    first = random_costs(rng, SITES)
    plan = tt.decompose(module, DEEP, first)
    for edited in edits(module, rng):
        changes = [
            {"costs": first},
            {"costs": first, "where": {str(rng.choice([call.source for call in edited.main.body])): "@y"}},
            {"costs": random_costs(rng, SITES)},
            {},
            {"target": FLAT},
        ]
        for place in rng.permutation(len(changes))[:count].tolist():
            requested = {"target": DEEP, **changes[place]}
            anew = tt.decompose(edited, **requested)
            plan = tt.decompose(edited, **requested, since=plan)
            assert str(plan.module) == str(anew.module)
            assert plan.summary() == anew.summary()


@settings(max_examples=3, deadline=None)
@given(size=st.integers(2, 15), seed=st.integers(0, 10**6))
def test_a_plan_since_another_one_is_the_same_text(size, seed):
    check_since(size, seed, 1)


@pytest.mark.slow
@settings(max_examples=examples(4, 20), deadline=None)
@given(size=st.integers(2, 25), seed=st.integers(0, 10**6))
def test_many_plans_since_others_are_the_same_text(size, seed):
    check_since(size, seed, 3)


def test_what_was_used_of_an_earlier_plan_is_reported():
    module = transformer()
    before = tt.decompose(module, CASES[0][0], "roofline", where={"op:MatMul": "@npu"})
    assert not before.reused.counts
    after = tt.decompose(module, CASES[0][0], "roofline", where={"op:MatMul": "@npu"}, since=before)
    assert {what: (had, requested) for what, had, requested in after.reused.counts} == {
        "operations": (132, 132),
        "partitions": (1, 1),
        "outlined subgraphs": (len(after.subgraphs), len(after.subgraphs)),
    }
    assert str(after.reused).startswith("132 of 132 operations, ")
    with pytest.raises(TargetError, match="since is an earlier plan, not 'before'"):
        tt.decompose(module, "llvm", since="before")


def edited_locally(module, rng):
    """Return a program of which an operation has another operator, attribute or name; who reads whom is the same."""
    main = module.main
    at = int(rng.integers(len(main.body)))
    call = main.body[at]
    kinds = KINDS_OF_ONE if len(call.inputs) == 1 else KINDS_OF_TWO
    change = [{"op": f"onnx.{rng.choice(kinds)}"}, {"attrs": (("note", int(rng.integers(3))),)}, {"source": f"new{at}"}]
    edited = replace(call, **change[int(rng.integers(3))])
    return module.replace(functions=(main.replace(body=(*main.body[:at], edited, *main.body[at + 1 :])),))


def records(plan):
    """Return all that a plan says, as text."""
    parts = plan.outlined.subgraphs, plan.outlined.copies, plan.decisions, plan.prediction, plan.program.signatures
    return f"{plan.module}\n{plan.summary()}\n{parts}"


@settings(max_examples=examples(4, 60), deadline=None)
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    size=st.integers(2, 60),
    seed=st.integers(0, 10**6),
    has_costs=st.booleans(),
    large=st.sampled_from([3, leaf_wiring.LARGE_PROGRAM]),
)
def test_plans_after_several_local_edits_are_those_from_scratch(family, size, seed, has_costs, large):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaf_wiring, "LARGE_PROGRAM", large)
        check_local_edits(family, size, seed, has_costs)


def check_local_edits(family, size, seed, has_costs):
    rng, tree = np.random.default_rng(seed), tree_of(3)
    costs = costs_of(GRAPH_SITES[-3:], seed) if has_costs else None
    module = module_of(shuffled(FAMILIES[family](size), random.Random(seed)), seed)
    kinds = sorted({call.kind for call in module.main.body})
    where = {f"op:{kind}": f"@{rng.choice(GRAPH_SITES[-3:])}" for kind in kinds if rng.random() < 0.3}
    plan = tt.decompose(module, tree, costs, where=where)
    for _ in range(2):
        for _ in range(int(rng.integers(1, 4))):
            module = edited_locally(module, rng)
        module = tt.IRModule.parse(str(module)) if rng.random() < 0.5 else module
        kinds = {call.kind for call in module.main.body}
        where = {rule: site for rule, site in where.items() if rule[3:] in kinds}
        plan = tt.decompose(module, tree, costs, where=where, since=plan)
        assert records(plan) == records(tt.decompose(module, tree, costs, where=where))


def test_an_edit_of_an_attribute_leaves_other_operations_and_subgraphs_as_they_are():
    module, where = module_of(transformer_graph(300)), {"op:Relu": "@cpu", "op:Mul": "@cpu"}
    before = tt.decompose(module, tree_of(4), where=where)
    main = module.main
    at = before.subgraphs[-1].calls[0]
    edited = replace(main.body[at], attrs=(("note", 1),))
    again = module.replace(functions=(main.replace(body=(*main.body[:at], edited, *main.body[at + 1 :])),))
    after = tt.decompose(again, tree_of(4), where=where, since=before)
    counts = {what: (had, needed) for what, had, needed in after.reused.counts}
    assert counts["operations"] == (299, 300)
    assert counts["outlined subgraphs"] == (len(before.subgraphs) - 1, len(before.subgraphs))
    same = [function for function in after.module if any(function is one for one in before.module)]
    assert len(same) >= len(before.module.functions) - 2
    assert records(after) == records(tt.decompose(again, tree_of(4), where=where))


@pytest.mark.parametrize("has_costs", [False, True], ids=["by preference", "by cost"])
def test_a_partition_holds_again_where_support_and_times_are_as_before(has_costs):
    module, tree, costs = module_of(transformer_graph(90)), tree_of(4), costs_of(GRAPH_SITES) if has_costs else None
    where = {} if has_costs else {"op:Relu": "@cpu", "op:Mul": "@cpu"}
    plan, main = tt.decompose(module, tree, costs, where=where), module.main
    edits = [({"attrs": (("note", 1),)}, True), ({"source": "renamed"}, True), ({"op": "onnx.Exp"}, not has_costs)]
    for change, is_again in edits:
        body = (*main.body[:1], replace(main.body[1], **change), *main.body[2:])
        edited = module.replace(functions=(main.replace(body=body),))
        after = tt.decompose(edited, tree, costs, where=where, since=plan)
        assert ("partitions" in [kind for kind, _, _ in after.reused.counts]) == is_again
        assert records(after) == records(tt.decompose(edited, tree, costs, where=where))


def tampered(module, rng):
    """Return a module with a change that some plan could not have."""
    function = rng.choice(module.functions)
    at = rng.randrange(len(function.body))
    call, body = function.body[at], list(function.body)
    kind = rng.choice(["op", "callee", "names", "aliases", "swap", "drop", "effect", "operand", "constraint", "role"])
    if kind == "op":
        body[at] = replace(call, op="onnx.Abs")
    elif kind == "callee":
        body[at] = replace(call, op=f"@{rng.choice(module.functions).name}")
    elif kind == "names":
        body[at] = replace(call, source="other", attrs=(*call.attrs[1:], ("ops", ("other",))))
    elif kind == "aliases":
        body[at] = replace(call, attrs=call.attrs[1:])
    elif kind == "swap":
        other = rng.randrange(len(body))
        body[at], body[other] = body[other], body[at]
    elif kind == "drop":
        del body[at]
    elif kind == "effect":
        body[at] = replace(call, has_effect=True)
    elif kind == "operand":
        known = [param.name for param in function.params] + [one.outputs[0].name for one in body[:at]]
        body[at] = replace(call, inputs=tuple(rng.choice(known) for _ in call.inputs))
    elif kind == "constraint":
        return module.replace(
            functions=tuple(replace(one, constraint=None) if one is function else one for one in module.functions)
        )
    else:
        return module.replace(
            functions=tuple(replace(one, attrs=()) if one is function else one for one in module.functions)
        )
    changed = replace(function, body=tuple(body))
    return module.replace(functions=tuple(changed if one is function else one for one in module.functions))


@pytest.mark.parametrize("has_costs", [False, True], ids=["by preference", "by cost"])
def test_verification_around_an_edit_finds_what_verification_of_all_finds(has_costs):
    module, tree, costs = module_of(transformer_graph(45)), tree_of(3), costs_of(GRAPH_SITES[1:]) if has_costs else None
    plan = tt.decompose(module, tree, costs, where={} if has_costs else {"op:Relu": "@cpu", "op:Mul": "@cpu"})
    cache, rng, found = plan.feasibility.cache, random.Random(3), 0
    proven = cache.proven
    for _ in range(80):
        wrong, problems = tampered(plan.module, rng), []
        for known in (proven, None):
            cache.proven = known
            try:
                verify_plan(plan.program, plan.feasibility, wrong, plan.outlined)
                problems.append("")
            except ModelError as error:
                problems.append(str(error))
        assert bool(problems[0]) == bool(problems[1]), problems
        found += bool(problems[0])
    assert found > 40


@pytest.mark.parametrize("part", ["attribute", "constant"])
def test_arguments_that_an_edit_makes_wrong_are_reported_as_without_an_earlier_plan(part):
    builder = tt.FunctionBuilder()
    scales = builder.constant(np.array([1, 1, 2, 2], "float32"), "scales")
    image = builder.call("Relu", builder.param("x", "float32[1,2,4,4]"))
    module = tt.IRModule((builder.build(builder.call("Softmax", builder.call("Resize", image, "", scales), axis=1)),))
    main = module.main
    if part == "attribute":
        wrong = main.replace(body=(*main.body[:-1], replace(main.body[-1], attrs=(("axis", 5),))))
    else:
        wrong = main.replace(constants=(replace(main.constants[0], data=np.array([1, 1, -2, 2], "float32")),))
    edited, target = module.replace(functions=(wrong,)), "[a=numpy,b=onnxruntime](host=@a)"
    plan = tt.decompose(module, target)
    with pytest.raises(ModelError) as whole:
        tt.decompose(edited, target)
    with pytest.raises(ModelError) as again:
        tt.decompose(edited, target, since=plan)
    assert again.value.problems == whole.value.problems


def test_a_plan_does_not_hold_the_plans_before_it():
    module, tree = module_of(transformer_graph(30)), tree_of(4)
    first = plan = tt.decompose(module, tree)
    held = weakref.ref(first.feasibility)
    for number in range(3):
        body = (replace(module.main.body[0], attrs=(("note", number),)), *module.main.body[1:])
        edited = module.replace(functions=(module.main.replace(body=body),))
        plan = tt.decompose(edited, tree, since=plan)
    del first
    gc.collect()
    assert plan.reused.counts
    assert held() is None


def test_functions_that_were_made_before_outlining_gave_up_are_not_left_behind():
    costs, module = costs_of(GRAPH_SITES), module_of(transformer_graph(60))
    plan, main = tt.decompose(module, tree_of(4), costs), module.main
    for changed in (range(60), range(20, 40)):
        edited = {at: replace(main.body[at], attrs=(("note", at // 45),)) for at in changed}
        body = tuple(edited.get(at, call) for at, call in enumerate(main.body))
        again = module.replace(functions=(main.replace(body=body),))
        after = tt.decompose(again, tree_of(4), costs, since=plan)
        assert records(after) == records(tt.decompose(again, tree_of(4), costs))


def test_a_function_whose_first_caller_is_edited_is_left_to_the_next_one():
    costs, module = costs_of(GRAPH_SITES), module_of(transformer_graph(300))
    plan, main = tt.decompose(module, tree_of(4), costs), module.main
    functions = [subgraph.function for subgraph in plan.subgraphs]
    owners = [one for place, one in enumerate(plan.subgraphs) if one.function in functions[place + 1 :]]
    firsts = list({one.function: one for one in reversed(owners)}.values())
    assert len(firsts) == 2
    for one in firsts:
        body = [
            replace(call, attrs=(("note", 1),)) if at == one.calls[0] else call for at, call in enumerate(main.body)
        ]
        again = module.replace(functions=(main.replace(body=tuple(body)),))
        after = tt.decompose(again, tree_of(4), costs, since=plan)
        reused = {what: (had, needed) for what, had, needed in after.reused.counts}["outlined subgraphs"]
        assert reused == (len(functions) - functions.count(one.function), len(functions))
        assert records(after) == records(tt.decompose(again, tree_of(4), costs))


def test_a_program_that_is_read_again_is_compared_by_value():
    module, tree = module_of(transformer_graph(300)), tree_of(4)
    where = {"op:Relu": "@cpu", "op:Mul": "@cpu"}
    before = tt.decompose(module, tree, where=where)
    for value, changed in ((1, 1), (True, 1), (1.0, 1), (0.0, 1), (-0.0, 1), (-0.0, 0)):
        main = tt.IRModule.parse(str(module)).main
        body = (*main.body[:150], replace(main.body[150], attrs=(("note", value),)), *main.body[151:])
        again = module.replace(functions=(main.replace(body=body),))
        after = tt.decompose(again, tree, where=where, since=before)
        counts = {what: (had, needed) for what, had, needed in after.reused.counts}
        assert counts["operations"] == (300 - changed, 300)
        assert records(after) == records(tt.decompose(again, tree, where=where))
        before = after


def test_weights_of_an_edited_program_are_those_of_the_edit():
    module = transformer()
    main = module.main
    weights = (replace(main.constants[0], data=main.constants[0].data + 1), *main.constants[1:])
    edited = module.replace(functions=(main.replace(constants=weights),))
    target, where = CASES[0]
    before = tt.decompose(module, target, where=where)
    after, anew = (tt.decompose(edited, target, where=where, since=one) for one in (before, None))
    assert after.module == anew.module
    assert {what for what, had, _ in after.reused.counts if had} >= {"operations"}


def test_an_edit_that_changes_costs_reuses_the_minimum_cuts_that_it_leaves_alone():
    module, tree, costs = module_of(transformer_graph(300)), tree_of(4), costs_of(GRAPH_SITES)
    before = tt.decompose(module, tree, costs)
    after, anew = (tt.decompose(edited_graph(module), tree, costs, since=one) for one in (before, None))
    assert any(kind == "minimum cuts" and reused for kind, reused, _ in after.reused.counts)
    assert str(after.module) == str(anew.module)


def test_code_of_an_earlier_build_is_used_for_all_that_an_edit_leaves_alone(monkeypatch):
    target, where = CASES[0]
    before = tt.decompose(transformer(), target, where=where)
    after = tt.decompose(transformer("alter", at=4 * OPS + 3), target, where=where, since=before)
    exe, compiled, backend = tt.build(before), [], backend_named("numpy")
    compile_ = backend.compile
    monkeypatch.setattr(backend, "compile", lambda part: compiled.append(part.name) or compile_(part))
    again = tt.build(after, since=exe)
    assert compiled == sorted({*again.backends} - {*exe.backends})
    assert len(compiled) == 1
