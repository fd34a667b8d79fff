"""REQUIREMENTS G0, G1, SUB, CONS, CALL: passes slice, constrain and hand on, and what was decided holds."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import DIGITS, inputs_of, random_graph, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, ModelError, TargetError, UnknownNameError
from tvmtarget.ir.embedding import embed
from tvmtarget.ir.rewrite import outline
from tvmtarget.partition.placement.minimal_conflict import minimal_subset

ROOT = Path(__file__).parents[2]
CHIP = "[npu=onnxruntime,cpu=numpy](host=@cpu,executor=graph)"
RACK = f"[cpu=numpy,node0=[soc={CHIP},cpu=numpy](host=@cpu)](host=@cpu)"
SLICE = ("conv2", "relu2", "pool", "conv3")

AUTHOR = f"""
import json, sys, tvmtarget as tt
from tvmtarget.ir.rewrite import outline
module = tt.IRModule.from_onnx({str(DIGITS)!r}).constrain("pool", "numpy")
module = outline(module, {SLICE!r}, "features", tt.Constraint.of(tt.Target.parse({CHIP!r})))
module.save("features.irm")
plan = tt.decompose(module, {CHIP!r})
print(json.dumps({{op: plan.site_of(op) for op in {SLICE!r}}}))
"""
INTEGRATOR = f"""
import json, sys, tvmtarget as tt
module = tt.IRModule.load(sys.argv[1]).constrain("relu2", "!@node0/soc/cpu", function="features")
plan = tt.decompose(module, {RACK!r})
try:
    tt.decompose(module, {RACK!r}, where={{"pool": "!@node0/soc/cpu", "conv3": "!@cpu"}})
    guilty = ""
except tt.TvmTargetError as error:
    guilty = str(error)
sites = {{op: plan.site_of(op) for op in {SLICE!r}}}
print(json.dumps({{"sites": sites, "why": str(plan.explain("relu2")), "guilty": guilty, "module": str(plan.module)}}))
"""


def run(code, folder, seed, *arguments):
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | {"PYTHONHASHSEED": seed},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_one_process_decided_holds_in_another_that_decides_more(tmp_path):
    """G1: 'a custom pass slices out a subgraph, constrains it, hands the module back; earlier decisions are kept'."""
    decided = run(AUTHOR, tmp_path / "a", "1")
    assert decided == {"conv2": "npu", "relu2": "npu", "pool": "cpu", "conv3": "npu"}
    found = run(INTEGRATOR, tmp_path / "b", "2", tmp_path / "a" / "features.irm")
    assert found["sites"] == {op: f"node0/soc/{site}" for op, site in decided.items()}
    assert "(required by function 'features')" in found["why"]
    assert "(required by op 'relu2')" in found["why"]
    assert found["guilty"].partition("; drop or change one of: ")[2] == (
        "@node0/soc (required by function 'features'), numpy (required by op 'pool'), "
        "!@node0/soc/cpu (required by where 'pool')"
    )
    assert found == run(INTEGRATOR, tmp_path / "c", "3", tmp_path / "a" / "features.irm")


def test_the_example_of_two_people_runs(tmp_path):
    script, file = str(ROOT / "examples" / "slice_and_constrain.py"), str(tmp_path / "features.irm")
    for role in ("author", "integrator"):
        done = subprocess.run(
            [sys.executable, script, role, file], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert "it must meet @node0/soc (required by function 'features')" in done.stdout
    assert "drop or change one of" in done.stdout


def sliced(constraint, *calls):
    return outline(tt.IRModule.from_onnx(DIGITS), calls or SLICE, "features", constraint)


def test_without_constraints_build_is_the_standard_path():
    """G0: one standard compilation path, configured once."""
    module, image = tt.IRModule.from_onnx(DIGITS), np.ones((1, 1, 8, 8), "float32")
    whole = tt.build(module, "numpy")
    assert [subgraph["site"] for subgraph in whole.report()["subgraphs"]] == [""]
    parts = tt.build(outline(module, SLICE, "features"), "numpy")  # a slice without a constraint is no border
    assert parts.report() == whole.report()
    np.testing.assert_array_equal(parts(image), whole(image))


@pytest.mark.parametrize("constraint", [CHIP, "@node0/soc", "@node0/soc|@cpu", "@node0&!@node0/cpu"])
def test_a_slice_for_a_system_is_divided_inside_it(constraint):
    """SUB: an offloaded subgraph has its own heterogeneous system, executor and runtime."""
    wanted = tt.Constraint.of(tt.Target.parse(constraint)) if constraint == CHIP else constraint
    plan = tt.decompose(sliced(wanted).constrain("pool", "@node0/soc/cpu", function="features"), RACK)
    assert {op: plan.site_of(op) for op in SLICE} == {
        "conv2": "node0/soc/npu",
        "relu2": "node0/soc/npu",
        "pool": "node0/soc/cpu",
        "conv3": "node0/soc/npu",
    }
    drivers = [f for f in plan.module if f.attr("role") == "driver" and str(f.constraint) == "@node0/soc"]
    assert len(drivers) == 1  # one call of the system from outside
    assert plan.module.target.at("node0/soc").executor == tt.Executor("graph")


def test_a_slice_that_names_no_system_stays_whole():
    plan = tt.decompose(sliced("numpy|onnxruntime"), CHIP)
    assert {plan.site_of(op) for op in SLICE} == {"cpu"}
    module = sliced("numpy|onnxruntime").constrain("pool", "@npu", function="features")
    with pytest.raises(InfeasibleError, match="must stay together") as caught:
        tt.decompose(module, CHIP, where={"relu2": "@cpu"})
    assert str(caught.value).endswith(
        "drop or change one of: numpy|onnxruntime (required by function 'features'), @cpu (required by where 'relu2'), "
        "@npu (required by op 'pool')"
    )


def test_annotations_at_call_sites_pick_from_the_targets_of_the_enclosing_configuration():
    """CALL: one function, called twice, each call on another target; words and paths mean nodes of the target."""
    inner = tt.IRModule.from_onnx(small(helper.make_node("Relu", ["x"], ["y"], name="relu"))).main
    (x,) = inner.params
    calls = tuple(
        tt.Call("@twice", (given,), (tt.Value(out, x.type),), constraint=tt.Constraint.parse(wanted), source=out)
        for given, out, wanted in (("x", "one", "onnxruntime"), ("one", "two", "@cpu"))
    )
    module = tt.IRModule((inner.replace(body=calls, results=("two",)), inner.replace(name="twice")))
    config = tt.CompilationConfig("llvm", ["onnxruntime", "numpy"])
    with pytest.raises(UnknownNameError, match=r"no node 'cpu'.*required by call 'two' of function 'twice'"):
        tt.decompose(module, config.to_target())
    plan = tt.decompose(module, "[npu=onnxruntime,cpu=numpy]")
    assert [(subgraph.site, subgraph.ops) for subgraph in plan.subgraphs] == [("npu", ("relu",)), ("cpu", ("relu_1",))]
    assert "onnxruntime (required by call 'one' of function 'twice')" in str(plan.explain("relu"))
    by_word = module.with_function(module.main.replace(body=(calls[0], replace(calls[1], constraint=None))))
    built = tt.build(by_word, config)
    assert {subgraph["site"] for subgraph in built.report()["subgraphs"]} == {"onnxruntime"}


def test_hosts_are_made_consistent_once_and_every_later_pass_sees_the_same():
    """CONS: one early pass checks and updates hosts; duplicates that disagree are refused, all at once."""
    tree = tt.Target.parse("[gpu=cuda,npu=probe(host=llvm(mcpu=znver3)),cpu=llvm(mcpu=znver3)](host=@cpu)")
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), tree, where={"*": "@cpu"})
    assert plan.topology["gpu"].host == plan.topology["cpu"].host == "cpu"
    assert plan.topology.root.resolve() == plan.topology.root
    assert plan.module.target == plan.topology.root
    with pytest.raises(TargetError, match="two hosts are given"):
        tt.build(tt.IRModule.from_onnx(DIGITS), "cuda(host=llvm)", target_host="llvm(mcpu=znver3)")


def test_a_module_keeps_its_configuration_and_its_own_attributes(tmp_path):
    """M0, ATTR: `with_configuration`, `with_target` and free attributes survive a file."""
    config = tt.CompilationConfig("llvm", ["onnxruntime"], tt.Executor("graph"), tt.Runtime("python"))
    module = sliced("onnxruntime").with_configuration(config).with_attrs(author="me", depth=3)
    module.save(tmp_path / "m.irm")
    loaded = tt.IRModule.load(tmp_path / "m.irm")
    assert loaded.configuration == config
    assert dict(loaded.attrs) == {"author": "me", "depth": 3}
    assert loaded["features"].constraint == tt.Constraint.parse("onnxruntime")
    assert [subgraph.site for subgraph in tt.decompose(loaded).subgraphs] == [
        ""
    ]  # one target with its host is one leaf


def test_a_module_on_a_system_moves_into_a_larger_one_with_all_its_decisions():
    """SUB: a compilation configuration can be a sub-target of another."""
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), CHIP, where={"pool": "@cpu", "fc*": "cpu"})
    moved = embed(plan.module, RACK, "node0/soc")
    again = tt.decompose(moved, where={"fc1": "numpy"})
    assert {op: again.site_of(op) for subgraph in plan.subgraphs for op in subgraph.ops} == {
        op: f"node0/soc/{subgraph.site}" for subgraph in plan.subgraphs for op in subgraph.ops
    }
    image = np.ones((2, 1, 8, 8), "float32")
    np.testing.assert_array_equal(tt.build(again)(image), tt.build(plan)(image))
    with pytest.raises(UnknownNameError, match="no node 'node0/sock'"):
        embed(plan.module, RACK, "node0/sock")
    with pytest.raises(ModelError, match=r"no node 'node0/cpu/npu'|no node 'npu'"):
        embed(plan.module, RACK, "node0/cpu")


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(size=st.integers(2, 20), seed=st.integers(0, 10**6))
def test_slices_of_random_programs_keep_their_sites_in_a_larger_system(size, seed):
    model, rng = random_graph(size, seed), random.Random(seed)
    module = tt.IRModule.from_onnx(model)
    first = rng.randrange(size)
    calls = [call.source for call in module.main.body[first : first + rng.randint(1, size)]]
    module = outline(module, calls, "part", tt.Constraint.of(tt.Target.parse(CHIP)))
    for op in rng.sample(calls, len(calls) // 2):
        module = module.constrain(op, rng.choice(["numpy", "onnxruntime"]), function="part")
    alone, inside = (tt.decompose(module, target) for target in (CHIP, RACK))
    assert {op: inside.site_of(op) for op in calls} == {op: f"node0/soc/{alone.site_of(op)}" for op in calls}
    x = inputs_of(model)
    for name, value in tt.build(inside).run(x).items():
        np.testing.assert_allclose(value, tt.build(alone).run(x)[name], rtol=1e-5, atol=1e-6)


@given(
    guilty=st.sets(st.integers(0, 60), min_size=1, max_size=6),
    others=st.sets(st.integers(0, 60), max_size=60),
    tests=st.integers(1, 80),
)
def test_the_guilty_are_never_acquitted_and_the_innocent_are_within_the_budget(guilty, others, tests):
    requested = 0

    def is_conflict(kept):
        nonlocal requested
        requested += 1
        return guilty <= set(kept)

    items = sorted(guilty | others)
    found = set(minimal_subset(items, is_conflict, tests))
    assert guilty <= found
    assert requested <= tests
    if len(items) <= tests:
        assert found == guilty
