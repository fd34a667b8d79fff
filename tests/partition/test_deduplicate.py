"""Identical subgraphs of one site become one function with many calls, and keep all their names."""

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import random_graph, small
from onnx import helper

import tvmtarget as tt
from benchmarks._graphs import FAMILIES, module_of, shuffled, tree_of
from tvmtarget.backends.protocol import backend_named
from tvmtarget.errors import ModelError, TargetError
from tvmtarget.executors.protocol import CopyEvent
from tvmtarget.ir.function import Value
from tvmtarget.ir.structure import structural_hash
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.outline import leaf_wiring
from tvmtarget.partition.plan import Plan
from tvmtarget.partition.verify import verify_plan
from tvmtarget.support.registry import strategy_for
from tvmtarget.support.strategy import Rule

PAIR = "composite[a=onnxruntime,b=numpy,cpu=llvm](host=@cpu)"


def layers(count, *, weights=None, shape=(2, 3)):
    """Return a model of layers that are identical: a product with a weight on `a`, a sigmoid on `b`."""
    nodes, constants, x = [], {}, "x"
    for index in range(count):
        constants[f"w{index}"] = np.full((3, 3), 1.0 if weights is None else weights[index], "float32")
        nodes += [
            helper.make_node("MatMul", [x, f"w{index}"], [f"m{index}"], name=f"matmul{index}"),
            helper.make_node("Sigmoid", [f"m{index}"], [f"s{index}"], name=f"sigmoid{index}"),
        ]
        x = f"s{index}"
    return small(*nodes, outputs=(x,), shape=shape, **constants)


def divided(model, target=PAIR, **options):
    return tt.decompose(model, target, where={"op:MatMul": "@a", "op:Sigmoid": "@b"}, **options)


def test_identical_layers_are_one_function_per_site_and_every_op_keeps_its_name():
    plan = divided(layers(6))
    entry, *names = [function.name for function in plan.module]
    assert entry == "main"
    assert [re.sub("_[0-9a-f]{8}$", "", name) for name in names] == ["a_matmul", "b_sigmoid"]
    assert [call.callee for call in plan.module.main.body] == names * 6
    assert [call.source for call in plan.module.main.body][:3] == ["matmul0", "sigmoid0", "matmul1"]
    assert [subgraph.ops for subgraph in plan.subgraphs][-2:] == [("matmul5",), ("sigmoid5",)]
    assert plan.functions("a") == (plan.module[names[0]],)
    assert plan.site_of("sigmoid4") == "b"
    assert plan.explain("matmul3").function == names[0]
    assert [(task.weight, task.subgraph.function) for task in plan.tasks()] == [(6, name) for name in names]
    marked = {node.name: [p.value for p in node.metadata_props] for node in plan.marked().graph.node}
    assert marked["matmul5"] == ["@a", names[0]]


def test_calls_list_the_names_of_their_ops_so_that_inlining_restores_the_model():
    plan = divided(layers(3))
    first, _, call, *_ = plan.module.main.body
    assert (call.op, call.attr("ops"), call.source) == (first.op, ("matmul1",), "matmul1")
    again = tt.decompose(plan.module)
    assert again.module == plan.module
    assert [one.source for one in again.program.body] == [one.source for one in plan.program.body]
    assert again.sites() == plan.sites()
    assert tt.IRModule.parse(str(plan.module), plan.module.constants()) == plan.module
    whole = tt.decompose(plan.module, PAIR.replace("a=onnxruntime", "a=numpy")).program.function
    assert [(one.source, one.outputs[0].name) for one in whole.body] == [
        (one.source, one.outputs[0].name) for one in plan.program.body
    ]


def test_constants_of_other_values_make_another_function():
    plan = divided(layers(4, weights=[1, 2, 1, 2]))
    called = [call.callee for call in plan.module.main.body][::2]
    assert called[:2] == called[2:]
    assert called[0] != called[1]


@pytest.mark.parametrize(
    ("constants", "functions", "given"),
    [("bind", [0, 1, 1], 1), ("lift", [0, 0, 0], 2), ("share", [0, 0, 0], 2)],
)
def test_weights_are_bound_lifted_or_shared(constants, functions, given, tmp_path):
    model = layers(3, weights=[1, 2, 2])
    plan = divided(model, constants=constants)
    called = plan.module.main.body[::2]
    names = list(dict.fromkeys(call.callee for call in called))
    assert [names.index(call.callee) for call in called] == functions
    assert {len(call.inputs) for call in called} == {given}
    assert tt.decompose(plan.module, constants=constants).module == plan.module
    plan.save(tmp_path / "plan")
    assert Plan.load(tmp_path / "plan").module == plan.module
    x = np.ones((2, 3), "float32")
    np.testing.assert_allclose(tt.build(plan)(x), tt.build(model, "numpy")(x), rtol=1e-6)


@pytest.mark.parametrize("constants", ["lift", "share"])
def test_systems_whose_leaves_have_other_weights_as_parameters_are_other_functions(constants):
    """The driver of a system holds the weights, which its leaves share one function for."""
    model = layers(3, weights=[1, 2, 2])
    target, where = "[s=[a=numpy,h=numpy](host=@h),b=numpy](host=@b)", {"op:MatMul": "@s/a", "op:Sigmoid": "@b"}
    plan = tt.decompose(model, target, where=where, constants=constants)
    called = [call.callee for call in plan.module.main.body if call.callee is not None][::2]
    assert called[0] != called[1] == called[2]
    assert len(plan.functions("s")) == 1
    x = np.ones((2, 3), "float32")
    np.testing.assert_allclose(tt.build(plan)(x), tt.build(model, "numpy")(x), rtol=1e-6)
    # The verifier finds a driver that passes other weights.
    driver, (weight,) = plan.module[called[0]], plan.module[called[1]].constants
    other = driver.replace(constants=(replace(weight, name=driver.constants[0].name),))
    functions = tuple(other if function is driver else function for function in plan.module)
    with pytest.raises(ModelError, match=r"the call of 'a_matmul_.*' for .'matmul0',. gets other values than it reads"):
        verify_plan(plan.program, plan.feasibility, plan.module.replace(functions=functions), plan.outlined)


def test_a_weight_that_nothing_shares_stays_in_its_function_unless_all_are_lifted():
    model = layers(1)
    assert [len(divided(model, constants=how).functions("a")[0].params) for how in ("share", "lift")] == [1, 2]
    with pytest.raises(TargetError, match="constants is bind or lift or share, not 'keep'"):
        divided(model, constants="keep")


def test_weights_that_a_code_generator_must_know_stay_bound(monkeypatch):
    monkeypatch.setattr(type(strategy_for("onnxruntime")), "rules", {"MatMul": Rule(constants=(1,))})
    plan = divided(layers(2, weights=[1, 2]), constants="lift")
    assert [len(function.params) for function in plan.functions("a")] == [1, 1]


def test_a_lifted_weight_is_copied_to_its_reader_once_for_all_runs():
    target = tt.Target.parse(PAIR).replace(memory=(tt.Memory(name="ma", bytes=10**6, of=("a",)),))
    plan = divided(layers(2, weights=[1, 2]), target, constants="share")
    assert [(copy.value, copy.dst, copy.runs) for copy in plan.copies if copy.value.startswith("w")] == [
        ("w0", "ma", 0),
        ("w1", "ma", 0),
    ]
    exe = tt.build(plan)
    x = np.ones((2, 3), "float32")
    runs = [[event.value for event in exe.profile({"x": x}) if isinstance(event, CopyEvent)] for _ in range(2)]
    assert [[value for value in values if value.startswith("w")] for values in runs] == [["w0", "w1"], []]
    np.testing.assert_allclose(exe(x), tt.build(layers(2, weights=[1, 2]), "numpy")(x), rtol=1e-6)


def test_a_function_is_compiled_once_and_every_call_of_it_is_reported():
    plan = divided(layers(5))
    exe, names = tt.build(plan), [function.name for function in plan.functions()]
    assert list(exe.backends) == names
    x = np.ones((2, 3), "float32")
    events = exe.profile({"x": x})
    assert [event.function for event in events] == names * 5
    reported = {subgraph["call"]: subgraph["ops"] for subgraph in exe.report()["subgraphs"]}
    assert [reported[event.call] for event in events][-2:] == [["matmul4"], ["sigmoid4"]]
    np.testing.assert_allclose(exe(x), tt.build(layers(5), "onnxruntime")(x), rtol=1e-6)


def test_a_saved_program_reports_its_calls_too(tmp_path):
    exe = tt.build(divided(layers(3)))
    exe.save(tmp_path / "p")
    loaded = tt.load(tmp_path / "p")
    x = np.ones((2, 3), "float32")
    np.testing.assert_array_equal(loaded(x), exe(x))
    assert loaded.report() == exe.report()  # what ran inside is known after the first run


def test_identical_systems_have_one_driver_and_distinct_copy_records():
    soc = "composite[soc=composite[npu=onnxruntime,cpu=llvm](host=@cpu,links=[]),cpu=llvm](host=@cpu)"
    plan = tt.decompose(layers(3), soc, where={"op:MatMul": "@soc/npu", "op:Sigmoid": "@cpu"})
    drivers = [function.name for function in plan.module if function.attr("role") == "driver"]
    assert [name.rpartition("_")[0] for name in drivers] == ["", "soc"]
    (product,) = plan.functions("soc/npu")
    assert [(r.function, r.call, r.ops) for r in plan.subgraphs if r.site == "soc/npu"] == [
        (product.name, f"matmul{layer}/{product.name}", (f"matmul{layer}",)) for layer in range(3)
    ]
    assert tt.decompose(plan.module).module == plan.module
    events = tt.build(plan).profile({"x": np.ones((2, 3), "float32")})
    calls = [event.call for event in events if hasattr(event, "call")]
    assert calls == [subgraph.call for subgraph in plan.subgraphs]


def test_calls_that_name_too_few_ops_are_errors():
    text = str(divided(layers(2)).module).replace('ops=["sigmoid1"]', 'ops=["sigmoid1", "more"]')
    with pytest.raises(ModelError, match=r"op 'sigmoid1' names 2 ops of '@b_sigmoid_[0-9a-f]*', which has 1"):
        tt.IRModule.parse(text, divided(layers(2)).module.constants())


def test_shared_functions_take_whatever_size_a_symbolic_dimension_has():
    plan = divided(layers(3, shape=("n", 3)))
    assert len(plan.functions()) == 2
    exe, whole = tt.build(plan), tt.build(layers(3), "numpy")
    for rows in (1, 2, 5):
        x = np.full((rows, 3), 0.5, "float32")
        np.testing.assert_allclose(exe(x)[0], whole(x[:1].repeat(2, 0))[0], rtol=1e-6)


def test_a_parameter_that_two_memories_need_is_copied_into_each():
    target = tt.Target.parse(PAIR).replace(
        memory=tuple(tt.Memory(name=f"m{leaf}", bytes=10**6, of=(leaf,)) for leaf in ("a", "b"))
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["m"]),
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("Add", ["m", "s"], ["y"], name="add"),
    ]
    model = small(*nodes, w0=np.ones((3, 3), "float32"))
    plan = tt.decompose(model, target, where={"op:MatMul": "@a", "op:Sigmoid": "@b", "add": "@a"})
    assert sorted(copy.dst for copy in plan.copies if copy.value == "x") == ["ma", "mb"]
    x = np.ones((2, 3), "float32")
    np.testing.assert_allclose(tt.build(plan)(x), tt.build(model, "numpy")(x), rtol=1e-6)


def test_functions_that_an_edit_does_not_touch_are_not_compiled_again(monkeypatch):
    """Facts I19: functions of parts that were not edited keep their structure."""
    weights = [float(index) for index in range(8)]
    before, after = divided(layers(8, weights=weights)), divided(layers(8, weights=[*weights[:4], 9.0, *weights[5:]]))
    old, new = (dict(structures(plan)) for plan in (before, after))
    assert [op for op in new if new[op] != old[op]] == ["matmul4"]
    exe = tt.build(before)
    compiled = []
    for name in ("onnxruntime", "numpy"):
        backend = backend_named(name)
        compile_ = backend.compile
        monkeypatch.setattr(backend, "compile", lambda part, own=compile_: compiled.append(part.ops) or own(part))
    again = tt.build(after, since=exe)
    assert compiled == [("matmul4",)]
    x = np.ones((2, 3), "float32")
    np.testing.assert_array_equal(again(x), tt.build(after)(x))


def structures(plan):
    for subgraph in plan.subgraphs:
        yield from ((op, structural_hash(plan.module[subgraph.function])) for op in subgraph.ops)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(2, 25))
def test_a_program_with_shared_functions_is_the_same_program(seed, size):
    """Facts I10, I11, I12: it computes the same, inlines to the same operations, and divides into itself."""
    model = random_graph(size, seed)
    module = tt.IRModule.from_onnx(model)
    rng = random.Random(seed)
    where = {call.source: rng.choice(["@a", "@b", "@cpu"]) for call in module.main.body}
    plan = tt.decompose(module, "composite[a=numpy,b=numpy,cpu=numpy](host=@cpu)", where=where)
    again = tt.decompose(plan.module)
    assert again.module == plan.module
    assert {call.source: call.op for call in again.program.body} == {c.source: c.op for c in plan.program.body}
    assert again.sites() == plan.sites()
    assert len({subgraph.call for subgraph in plan.subgraphs}) == len(plan.subgraphs)


def mixing(dims, orders):
    """Return layers of one structure, each with its own name of a dimension and order of independent operations."""
    nodes, x = [], "x"
    for layer in range(len(dims)):
        own = [
            helper.make_node("Abs", [x], [f"p{layer}"], name=f"p{layer}"),
            helper.make_node("Neg", [x], [f"q{layer}"], name=f"q{layer}"),
            helper.make_node("Exp", [x], [f"r{layer}"], name=f"r{layer}"),
        ]
        nodes += [own[place] for place in orders[layer]]
        nodes += [
            helper.make_node("Sub", [f"p{layer}", f"q{layer}"], [f"d{layer}"], name=f"d{layer}"),
            helper.make_node("Div", [f"d{layer}", f"r{layer}"], [f"e{layer}"], name=f"e{layer}"),
            helper.make_node("Sigmoid", [f"e{layer}"], [f"s{layer}"], name=f"s{layer}"),
        ]
        x = f"s{layer}"
    module = tt.IRModule.from_onnx(small(*nodes, outputs=(x,), shape=("n", 3)))
    renamed = [
        replace(call, outputs=(Value(call.outputs[0].name, TensorType("float32", (dims[int(call.source[1:])], 3))),))
        for call in module.main.body
    ]
    return module.replace(functions=(module.main.replace(body=tuple(renamed)),))


def types_of(plan):
    return {call.source: [output.type for output in call.outputs] for call in plan.program.body}


@pytest.mark.parametrize("family", ["chain", "random"])
@pytest.mark.parametrize("alone", [False, True])
def test_labels_of_a_few_other_operations_are_those_of_a_new_refinement(family, alone):
    plan = tt.decompose(module_of(FAMILIES[family](1200)), tree_of(2))
    calls = tuple(node.calls for node in plan.root.walk() if node.is_leaf and node.calls)
    generator = np.random.default_rng(0)

    def wirings():
        return leaf_wiring.wirings_of_leaves(plan.program, calls, {})

    known, first = wirings(), generator.integers(0, 5, sum(map(len, calls))).astype("uint64")
    known.labels(first)
    largest = max(range(len(calls)), key=lambda leaf: len(calls[leaf]))
    begin, end = known.start[largest : largest + 2].tolist() if alone else (0, len(first))
    for _ in range(3):
        labels = first.copy()
        labels[generator.integers(begin, end, 3)] = 7
        one, other = (each.of(largest) if alone else each for each in (known, wirings()))
        np.testing.assert_array_equal(one.labels(labels[begin:end]), other.labels(labels[begin:end]))


@pytest.mark.parametrize("large", [2, leaf_wiring.LARGE_PROGRAM])
@pytest.mark.parametrize("target", [PAIR, "[s=[a=onnxruntime,b=numpy,cpu=llvm](host=@cpu),cpu=llvm](host=@s/cpu)"])
def test_layers_with_other_names_of_dimensions_and_in_other_orders_are_shared(target, large, tmp_path, monkeypatch):
    monkeypatch.setattr(leaf_wiring, "LARGE_PROGRAM", large)
    module = mixing(["i", "j", "k"], [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
    at = "s/" if target != PAIR else ""
    where = {"op:Sigmoid": f"@{at}b", "*": f"@{at}a"} | {f"s{layer}": f"@{at}b" for layer in range(3)}
    plan = tt.decompose(module, target, where=where, fold_constants=False)  # which gives all of them the name n
    assert len(plan.functions()) == 2
    reported = [call.attr("dims") for function in plan.module for call in function.body if call.attr("dims")]
    assert set(reported) == {("n", "i", "i", "j"), ("n", "j", "i", "k"), ("i", "j"), ("i", "k")}
    again = tt.decompose(plan.module)
    assert again.module == plan.module
    assert types_of(again) == types_of(plan)
    assert tt.IRModule.parse(str(plan.module), plan.module.constants()) == plan.module
    exe = tt.build(plan)
    exe.save(tmp_path / "p")
    x = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
    for run in (exe, tt.load(tmp_path / "p"), tt.build(tt.IRModule.from_onnx(plan.module.to_onnx()), "numpy")):
        np.testing.assert_allclose(run(x), tt.build(module, "numpy")(x), rtol=1e-6)


def test_functions_with_two_dimensions_are_not_shared_with_those_that_use_one_twice():
    text = """func @main(%x: float32[n,3], %y: float32[m,3]) opsets(onnx=17) {
      %a: float32[n,3] = onnx.Abs(%x) as a
      %b: float32[m,3] = onnx.Neg(%y) as b
      %c: float32[?,3] = onnx.Concat(%a, %b) {axis=0} as c
      %s: float32[?,3] = onnx.Sigmoid(%c) as s
      %d: float32[n,3] = onnx.Abs(%a) as d
      %e: float32[n,3] = onnx.Neg(%a) as e
      %f: float32[?,3] = onnx.Concat(%d, %e) {axis=0} as f
      return %s, %f
    }"""
    plan = tt.decompose(tt.IRModule.parse(text), PAIR, where={"s": "@b", "[abc]": "@a", "[def]": "@cpu"})
    assert len(plan.functions()) == 3


@pytest.mark.parametrize("large", [2, leaf_wiring.LARGE_PROGRAM])
def test_names_do_not_depend_on_the_order_in_which_independent_operations_are_listed(large, monkeypatch):
    monkeypatch.setattr(leaf_wiring, "LARGE_PROGRAM", large)
    plans = [
        tt.decompose(mixing(["n", "n"], order), PAIR, where={"*": "@a", "op:Sigmoid": "@b"})
        for order in ([(0, 1, 2)] * 2, [(1, 2, 0), (2, 0, 1)])
    ]
    assert {f.name for f in plans[0].module} == {f.name for f in plans[1].module}


def test_names_in_large_programs_do_not_depend_on_the_order_of_operations_either():
    graph = FAMILIES["transformer"](1200)
    plans = [tt.decompose(module_of(one), tree_of(2)) for one in (graph, shuffled(graph, random.Random(0)))]
    assert {f.name for f in plans[0].module} == {f.name for f in plans[1].module}
    edges = [(read, kind) if len(read) == 1 else (read[::-1], kind) for read, kind in graph]
    assert {f.name for f in tt.decompose(module_of(edges), tree_of(2)).module} != {f.name for f in plans[0].module}


@pytest.mark.parametrize("rounds", [0, leaf_wiring.ROUNDS])  # without rounds more leaves have one name
@pytest.mark.parametrize("family", ["random", "transformer", "wide"])
def test_leaves_of_large_programs_read_return_and_share_what_others_do(family, rounds, monkeypatch):
    module, where = module_of(FAMILIES[family](400)), {"op:Relu": "@cpu", "op:Mul": "@gpu"}
    plans = [tt.decompose(module, tree_of(3), where=where)]
    monkeypatch.setattr(leaf_wiring, "ROUNDS", rounds)
    monkeypatch.setattr(leaf_wiring, "LARGE_PROGRAM", 2)
    plans.append(tt.decompose(module, tree_of(3), where=where))
    calls, others = ([(one.ops, one.inputs, one.outputs) for one in plan.subgraphs] for plan in plans)
    assert calls == others
    assert len(plans[0].module.functions) == len(plans[1].module.functions)


@pytest.mark.parametrize("constants", ["bind", "lift", "share"])
def test_weights_of_large_programs_are_bound_lifted_or_shared_as_those_of_others(constants, monkeypatch):
    model = layers(6, weights=[1.0, 2.0, 1.0, 1.0, 2.0, 3.0])
    calls = []
    for large in (leaf_wiring.LARGE_PROGRAM, 1):
        monkeypatch.setattr(leaf_wiring, "LARGE_PROGRAM", large)
        plan = tt.decompose(model, PAIR, where={"matmul5": "@b", "*": "@a"}, constants=constants)
        calls.append([(len(plan.module.functions), one.ops, one.inputs, one.outputs) for one in plan.subgraphs])
    assert calls[0] == calls[1]


def test_dims_that_are_no_pairs_are_errors():
    module = mixing(["i", "j"], [(0, 1, 2)] * 2)
    text = str(tt.decompose(module, PAIR, where={"*": "@a", "op:Sigmoid": "@b"}, fold_constants=False).module)
    with pytest.raises(ModelError, match=r"op 's1' has dims=\('i', 'j', 'k'\), which should be"):
        tt.IRModule.parse(text.replace('dims=["i", "j"]', 'dims=["i", "j", "k"]'))
