"""Parts of a program that are alike on one site become one function with many calls, and keep all their names."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import random_graph, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.errors import ModelError, TargetError
from tvmtarget.executors.graph import CopyEvent
from tvmtarget.partition.plan import Plan
from tvmtarget.partition.strategies.strategy import Rule, strategy_for

PAIR = "composite[a=onnxruntime,b=numpy,cpu=llvm](host=@cpu)"


def layers(count, *, weights=None):
    """Return a model of layers that are alike: a product with a weight on `a`, a sigmoid on `b`."""
    nodes, constants, x = [], {}, "x"
    for index in range(count):
        constants[f"w{index}"] = np.full((3, 3), 1.0 if weights is None else weights[index], "float32")
        nodes += [
            helper.make_node("MatMul", [x, f"w{index}"], [f"m{index}"], name=f"matmul{index}"),
            helper.make_node("Sigmoid", [f"m{index}"], [f"s{index}"], name=f"sigmoid{index}"),
        ]
        x = f"s{index}"
    return small(*nodes, outputs=(x,), **constants)


def divided(model, target=PAIR, **options):
    return tt.decompose(model, target, where={"op:MatMul": "@a", "op:Sigmoid": "@b"}, **options)


def test_layers_that_are_alike_are_one_function_each_site_and_every_op_keeps_its_name():
    plan = divided(layers(6))
    assert [function.name for function in plan.module] == ["main", "main_0", "main_1"]
    assert [call.callee for call in plan.module.main.body] == ["main_0", "main_1"] * 6
    assert [region.ops for region in plan.regions][-2:] == [("matmul5",), ("sigmoid5",)]
    assert plan.functions("a") == (plan.module["main_0"],)
    assert plan.site_of("sigmoid4") == "b"
    assert plan.explain("matmul3").function == "main_0"
    assert [(task.weight, task.region.function) for task in plan.tasks()] == [(6, "main_0"), (6, "main_1")]
    marked = {node.name: [p.value for p in node.metadata_props] for node in plan.marked().graph.node}
    assert marked["matmul5"] == ["@a", "main_0"]


def test_calls_tell_what_ops_are_called_there_so_that_inlining_gives_the_model_back():
    plan = divided(layers(3))
    call = plan.module.main.body[2]
    assert (call.op, call.attr("ops"), call.source) == ("@main_0", ("matmul1",), "main_2")
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
    assert [call.callee for call in plan.module.main.body][::2] == ["main_0", "main_2", "main_0", "main_2"]


@pytest.mark.parametrize(
    ("constants", "functions", "given"),
    [("bind", ["main_0", "main_2", "main_2"], 1), ("lift", ["main_0"] * 3, 2), ("share", ["main_0"] * 3, 2)],
)
def test_weights_are_bound_given_or_shared(constants, functions, given, tmp_path):
    model = layers(3, weights=[1, 2, 2])
    plan = divided(model, constants=constants)
    called = plan.module.main.body[::2]
    assert [call.callee for call in called] == functions
    assert {len(call.inputs) for call in called} == {given}
    assert tt.decompose(plan.module, constants=constants).module == plan.module
    plan.save(tmp_path / "plan")
    assert Plan.load(tmp_path / "plan").module == plan.module
    x = np.ones((2, 3), "float32")
    np.testing.assert_allclose(tt.build(plan)(x), tt.build(model, "numpy")(x), rtol=1e-6)


def test_a_weight_that_nothing_shares_stays_in_its_function_unless_all_are_lifted():
    model = layers(1)
    assert [len(divided(model, constants=how).module["main_0"].params) for how in ("share", "lift")] == [1, 2]
    with pytest.raises(TargetError, match="constants is bind or lift or share, not 'keep'"):
        divided(model, constants="keep")


def test_weights_that_a_code_generator_must_know_stay_bound(monkeypatch):
    monkeypatch.setattr(type(strategy_for("onnxruntime")), "rules", {"MatMul": Rule(constants=(1,))})
    plan = divided(layers(2, weights=[1, 2]), constants="lift")
    assert [len(function.params) for function in plan.functions("a")] == [1, 1]


def test_a_weight_that_is_given_is_copied_to_where_it_is_read_once_for_all_runs():
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


def test_a_function_is_compiled_once_and_every_call_of_it_is_told():
    exe = tt.build(divided(layers(5)))
    assert sorted(exe.backends) == ["main_0", "main_1"]
    x = np.ones((2, 3), "float32")
    events = exe.profile({"x": x})
    assert [event.function for event in events] == ["main_0", "main_1"] * 5
    told = {region["call"]: region["ops"] for region in exe.report()["regions"]}
    assert [told[event.call] for event in events][-2:] == [["matmul4"], ["sigmoid4"]]
    np.testing.assert_allclose(exe(x), tt.build(layers(5), "onnxruntime")(x), rtol=1e-6)


def test_a_saved_program_tells_its_calls_too(tmp_path):
    exe = tt.build(divided(layers(3)))
    exe.save(tmp_path / "p")
    loaded = tt.load(tmp_path / "p")
    assert loaded.report() == exe.report()
    x = np.ones((2, 3), "float32")
    np.testing.assert_array_equal(loaded(x), exe(x))


def test_systems_that_are_alike_have_one_driver_and_their_copies_are_told_apart():
    soc = "composite[soc=composite[npu=onnxruntime,cpu=llvm](host=@cpu,links=[]),cpu=llvm](host=@cpu)"
    plan = tt.decompose(layers(3), soc, where={"op:MatMul": "@soc/npu", "op:Sigmoid": "@cpu"})
    drivers = [function.name for function in plan.module if function.attr("role") == "driver"]
    assert drivers == ["main", "main_0"]
    assert [(r.function, r.call, r.ops) for r in plan.regions if r.site == "soc/npu"] == [
        ("main_0_0", "main_0/main_0_0", ("matmul0",)),
        ("main_0_0", "main_2/main_0_0", ("matmul1",)),
        ("main_0_0", "main_4/main_0_0", ("matmul2",)),
    ]
    assert tt.decompose(plan.module).module == plan.module
    events = tt.build(plan).profile({"x": np.ones((2, 3), "float32")})
    calls = [event.call for event in events if hasattr(event, "call")]
    assert calls == [region.call for region in plan.regions]


def test_calls_that_name_too_few_ops_are_refused():
    text = str(divided(layers(2)).module).replace('ops=["sigmoid1"]', 'ops=["sigmoid1", "more"]')
    with pytest.raises(ModelError, match=r"op 'main_3' names 2 ops of '@main_1', which has 1"):
        tt.IRModule.parse(text, divided(layers(2)).module.constants())


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
    assert len({region.call for region in plan.regions}) == len(plan.regions)
