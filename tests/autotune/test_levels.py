"""Placements and settings are measured, logged, and used by builds."""

import os
from itertools import pairwise, product

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from models import DIGITS, beginning, inputs_of, light, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.autotune.log.records import Baseline, Candidate, Measurement, Trial, Workload
from tvmtarget.autotune.search.candidate_plans import Segments, SegmentTimes, plans_by_leaf
from tvmtarget.autotune.search.fit_costs import fit_op_costs
from tvmtarget.autotune.search.placement import PlacementTuner
from tvmtarget.autotune.search.programs import Programs
from tvmtarget.autotune.search.result import Budget, TuneResult
from tvmtarget.autotune.search.timing import random_inputs
from tvmtarget.backends.machine import processors
from tvmtarget.building.tuned_schedules import (
    PLACEMENT,
    SETTINGS,
    placement_body,
    placement_key,
    program_workload,
    sites_of,
)
from tvmtarget.ir.types import DTYPES, dtype_of
from tvmtarget.partition.costs.costs import structure_of
from tvmtarget.partition.costs.estimate import Estimates

pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
pytest.importorskip("onnxruntime", reason="pip install tvmtarget[onnxruntime]")

BOTH = tt.Target.parse("composite[cpu=llvm,ort=onnxruntime]")
QUICK = tt.Target.parse("composite[cpu=numpy,ort=onnxruntime(optimization-level=99)]")  # compiled in no time


def digits():
    return tt.IRModule.from_onnx(DIGITS)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Return the URL of a log in which placement and settings of the digits model were tuned, and the result."""
    url = str(tmp_path_factory.mktemp("levels") / "log.db")
    return url, tt.tune(digits(), BOTH, log=url, levels=["executor", "placement"])


def test_the_plan_by_measured_costs_is_predicted_no_slower_than_the_one_by_preference():
    plan = tt.decompose(digits(), QUICK)
    log = tt.TuningLog("memory:")
    with Programs(plan, log) as programs:
        tuner = PlacementTuner(plan, log, Budget(5, None), programs, None)
        tuner.run()
    by_preference = plan.with_costs(tuner.costs).with_sites(sites_of(plan))
    by_cost = plan.with_costs(tuner.costs)
    assert not by_cost.prediction.unknown
    assert by_cost.prediction.total <= by_preference.prediction.total


def test_a_placement_is_not_measured_without_a_trial_left():
    plan, log = tt.decompose(digits(), QUICK), tt.TuningLog("memory:")
    tuner = PlacementTuner(plan, log, Budget(3, None, done=3), None, None)
    tuner.run()
    assert (list(tuner.findings()), tuner.left_out) == ([], ["placement: the trials were up before it"])


@pytest.mark.parametrize("times", [["x"], [-5], [True], "a", [1, 2]])
def test_times_of_functions_that_no_tuner_writes_are_not_used(times):
    module = tt.IRModule.parse("func @main(%x: float32[2]) opsets(onnx=17) { %y = onnx.Relu(%x) return %y }")
    plan, log = tt.decompose(module, "composite[cpu=numpy]"), tt.TuningLog("memory:")
    beside = Baseline(name="preference", costs=(200,), identity=placement_key(plan))
    ran = Measurement(status="ok", kind="search", costs=(100,), baseline=beside)
    placed = Candidate(format=PLACEMENT, body=placement_body(plan))
    tuner = PlacementTuner(plan, log, Budget(1, None), None, None)
    for functions, is_used in ((times, False), ([7], True)):
        search = {"functions": functions}
        trial = log.add(program_workload(plan, "graph"), plan.topology.root, placed, ran, search=search)
        tuner._trials = {placed.key: trial}
        assert tuner._use_known(plan) is is_used


def test_a_placement_and_settings_outlive_the_renaming_of_children(tmp_path):
    plan = tt.decompose(digits(), QUICK)
    sites = ["ort" if number else "cpu" for number in range(len(sites_of(plan)))]
    log = tt.TuningLog(tmp_path / "log.db")
    placed = Candidate(format=PLACEMENT, body=placement_body(plan.with_sites(sites)))
    beside = Baseline(name="preference", costs=(200,), identity=placement_key(plan))
    ran = Measurement(status="ok", kind="confirm", costs=(100,), baseline=beside)
    log.add(program_workload(plan, "graph"), plan.topology.root, placed, ran)
    renamed = tt.Target.parse(str(QUICK).replace("cpu=", "first=").replace("ort=", "second="))
    built = tt.build(digits(), renamed, log=log)
    assert {subgraph["site"] for subgraph in built.report()["subgraphs"]} == {"first", "second"}
    placement = built.tuned[0]
    assert (placement.tier, placement.is_used) == ("equal", True)
    other = tt.build(digits(), "composite[first=numpy,second=numpy]", log=log)
    assert other.tuned[0].tier == "default"


def confirmed_ratio(module, log):
    """Return what the placement that a build takes cost by turns, over the one by preference."""
    plan = tt.decompose(module, BOTH)
    match = log.lookup(program_workload(plan, "graph"), plan.topology.root)
    assert match.tier == "exact"
    assert match.record.measured.kind == "confirm"
    return match.ratio


def test_the_placement_that_a_build_takes_was_by_turns_no_slower_than_the_one_by_preference(tuned):
    url, _ = tuned
    with tt.TuningLog(url) as log:
        assert confirmed_ratio(digits(), log) <= 1


def test_a_tuned_placement_has_a_bound_that_it_does_not_beat(tuned):
    _, result = tuned
    (placement,) = (finding for finding in result.findings if finding.level == "placement")
    assert 0 < placement.bound <= placement.best
    assert "by the times of its parts no placement takes less than" in str(placement)


LEAVES = ("a", "b", "c")


@given(
    st.lists(st.fixed_dictionaries(dict.fromkeys(LEAVES, st.integers(1, 100))), min_size=1, max_size=5),
    st.fixed_dictionaries(dict.fromkeys(LEAVES, st.integers(1, 500))),
    st.sampled_from([0.0, 0.25, 1.0]),
)
def test_no_other_leaves_of_segments_are_faster_and_one_leaf_takes_what_it_takes_alone(measured, alone, share):
    sums = {leaf: sum(each[leaf] for each in measured) for leaf in LEAVES}
    sides = 2 * max(1, len(measured) - 1)
    side = {leaf: max(0, sums[leaf] - alone[leaf]) / sides for leaf in LEAVES}

    def cuts(choice):
        return sum(side[leaf] + side[other] for leaf, other in pairwise(choice) if leaf != other)

    def taken(choice):
        inside = (each[leaf] * alone[leaf] / sums[leaf] for each, leaf in zip(measured, choice, strict=True))
        return sum(inside) + share * cuts(choice)

    times = SegmentTimes.of(measured, alone)
    choice, least = times.fastest(share)
    assert taken(choice) == pytest.approx(least)
    assert least == pytest.approx(min(map(taken, product(LEAVES, repeat=len(measured)))))
    assert all(taken([leaf] * len(measured)) == pytest.approx(alone[leaf]) for leaf in LEAVES)
    assert times.share(choice, least) == pytest.approx(share if cuts(choice) else 1)


def test_segments_are_on_each_leaf_once_and_take_all_of_the_time():
    plan = tt.decompose(digits(), QUICK)
    segments = Segments.of(plan, [1.0] * len(plan.program.body))
    assert len(segments) > 2
    choices = segments.alternating(["cpu", "ort"])
    assert all(set(leaves) == {"cpu", "ort"} for leaves in zip(*choices, strict=True))
    for choice in choices:
        placed = segments.placed(choice)
        assert sites_of(placed) == tuple(choice[number] for number in segments.numbers)
        functions = {subgraph.function: 10.0 * len(subgraph.calls) for subgraph in placed.subgraphs}
        times = segments.times(placed, functions, 10.0 * len(plan.program.body) + len(segments))
        assert times == [10 * segments.numbers.count(number) + 1 for number in range(len(segments))]


def test_what_the_log_knows_of_placement_and_settings_is_not_measured_again(tmp_path):
    log = tt.TuningLog(str(tmp_path / "log.db"))
    levels = ["executor", "placement"]
    steps = []
    first = tt.tune(digits(), QUICK, log=log, levels=levels, progress=steps.append)
    # A confirmation is no candidate: it is neither counted nor limited.
    assert first.measured == sum(step.status == "ok" for step in steps)
    before = len(log)
    again = tt.tune(digits(), QUICK, log=log, levels=levels)
    assert (again.measured, again.reused, len(log)) == (0, first.measured, before)
    assert [finding.what for finding in again.findings] == [finding.what for finding in first.findings]


def test_a_placement_that_is_interrupted_goes_on_where_it_was(tmp_path):
    log = tt.TuningLog(str(tmp_path / "log.db"))
    first = tt.tune(digits(), QUICK, log=log, levels=["placement"], trials=1)
    again = tt.tune(digits(), QUICK, log=log, levels=["placement"])
    assert (first.measured, again.reused) == (1, 1)
    assert again.measured > 0


def test_placements_are_measured_anew_once_kernels_were_tuned_since(tmp_path):
    log = tt.TuningLog(str(tmp_path / "log.db"))
    first = tt.tune(digits(), QUICK, log=log, levels=["placement"], trials=2)
    kernel = Workload.of({"op": "matmul", "shapes": [[4, 4, 4]], "dtype": "float32"})
    trial = log.add(kernel, tt.Target("numpy"), Candidate(format="f/1", body={}), Measurement(status="ok", costs=[1]))
    log.append(trial.replace(ts=trial.ts + 1))
    again = tt.tune(digits(), QUICK, log=log, levels=["placement"], trials=2)
    assert (first.measured, again.measured, again.reused) == (2, 2, 0)


def test_a_slow_operation_is_found_by_the_subgraphs_it_is_in():
    """The measured times of subgraphs decide, not the work in them: here LRN, which no roofline distinguishes."""
    lrn = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("LRN", ["a"], ["b"], name="lrn", size=3),
        helper.make_node("MaxPool", ["b"], ["y"], name="pool", kernel_shape=[1, 1]),
    ]
    plan = tt.decompose(tt.IRModule.from_onnx(small(*lrn, shape=(1, 4, 8, 8))), BOTH)
    estimates = Estimates(plan.program, tt.Costs())
    true = {"relu": 10, "lrn": 1000, "pool": 20}
    divided = (["ort", "cpu", "ort"], ["cpu", "ort", "ort"], ["ort", "ort", "ort"])
    runs = []
    for sites in divided:
        each = plan.with_sites(sites)
        times = {
            subgraph.function: 10**6 * (sum(true[op] for op in subgraph.ops))
            + estimates.launch(plan.topology[subgraph.site])
            for subgraph in each.subgraphs
        }
        runs.append((each, times))
    found = {(cost.structure, cost.site): cost.time for cost in fit_op_costs(estimates, runs)}
    for index, op in enumerate(("relu", "lrn", "pool")):
        assert found[structure_of(plan.program.op(index)), "ort"] == pytest.approx(true[op], rel=0.1)


def test_a_build_takes_placement_and_settings_from_the_log_and_computes_the_same(tuned):
    url, result = tuned
    exe = tt.build(digits(), BOTH, log=url)
    # Either leaf may be the faster one on this machine; the settings that were tuned are those of onnxruntime.
    executor = "exact" if "onnxruntime" in exe.report()["backends"] else "default"
    assert {applied.level: applied.tier for applied in exe.tuned if applied.level != "kernel"} == {
        "graph": "exact",
        "executor": executor,
    }
    with np.load(DIGITS.with_suffix(".npz")) as data:
        x = data["input"]
    np.testing.assert_allclose(exe(x), tt.build(digits(), BOTH)(x), rtol=1e-3, atol=1e-4)
    assert result.before
    assert result.speedup > 0


def test_the_same_system_written_otherwise_is_equal_and_one_of_other_leaves_is_not_served(tuned):
    url, _ = tuned
    turned = tt.Target.parse("composite[main=llvm,ort=onnxruntime]")
    tiers = {applied.level: applied.tier for applied in tt.build(digits(), turned, log=url).tuned}
    assert tiers["graph"] == "equal"
    other = tt.Target.parse("composite[cpu=llvm(num-cores=64),ort=onnxruntime]")
    assert {applied.tier for applied in tt.build(digits(), other, log=url).tuned} == {"default"}


def test_a_plan_of_ones_own_stays_as_it_is(tuned):
    plan = tt.decompose(digits(), BOTH, where={"op:Gemm": "@ort"})
    exe = tt.build(plan, log=tuned[0])
    assert [subgraph["site"] for subgraph in exe.report()["subgraphs"]] == [
        subgraph.site for subgraph in plan.subgraphs
    ]


def test_a_placement_that_a_constraint_forbids_is_not_used_and_the_result_says_so():
    module, log = digits(), tt.TuningLog("memory:")
    plan = tt.decompose(module, BOTH)
    everything = Candidate(format=PLACEMENT, body={"sites": [["ort", len(plan.program.body)]]})
    log.pin(program_workload(plan, "graph"), plan.topology.root, everything, "for a test")
    assert {subgraph["site"] for subgraph in tt.build(module, BOTH, log=log).report()["subgraphs"]} == {"ort"}
    exe = tt.build(module, BOTH, log=log, where={"op:Gemm": "@cpu"})
    placed = next(applied for applied in exe.tuned if applied.level == "graph")
    assert not placed.is_used
    assert "may not go to @ort" in placed.note


@pytest.mark.parametrize(
    ("body", "note"),
    [
        ({"set": [["ort", "intra-op-threads", "many"]]}, "'many'"),
        ({"set": [["npu", "threads", 1]]}, "no site 'npu'"),
        ({"sets": []}, "no 'set'"),
    ],
)
def test_settings_that_do_not_fit_are_reported_and_left_out(body, note):
    log = tt.TuningLog("memory:")
    plan = tt.decompose(digits(), BOTH)
    log.pin(program_workload(plan, "executor"), plan.topology.root, Candidate(format=SETTINGS, body=body), "for a test")
    settings = next(applied for applied in tt.build(digits(), BOTH, log=log).tuned if applied.level == "executor")
    assert not settings.is_used
    assert note in settings.note


def test_settings_in_the_log_are_set_on_the_leaf():
    log = tt.TuningLog("memory:")
    plan = tt.decompose(digits(), "onnxruntime")
    one = Candidate(format=SETTINGS, body={"set": [["", "intra-op-threads", 1]]})
    ran = Measurement(status="ok", costs=[1])
    log.add(program_workload(plan, "executor"), plan.topology.root, one, ran)
    exe = tt.build(digits(), "onnxruntime", log=log)
    assert [leaf.request.target["intra-op-threads"] for leaf in exe._leaves.values()] == [1]


def test_what_the_target_states_is_not_tuned():
    stated = "onnxruntime(intra-op-threads=1,optimization-level=99)"
    result = tt.tune(digits(), stated, log="memory:", levels=["executor"])
    assert result.left_out == ("settings: onnxruntime has none that the target leaves open",)


def test_every_leaf_gets_all_that_it_can_take():
    plan = tt.decompose(digits(), BOTH)
    assert [set(sites_of(each)) for each in plans_by_leaf(plan)] == [{"cpu"}, {"ort"}]


def test_tasks_of_one_structure_count_as_one():
    relu = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Sin", ["a"], ["b"])]
    relu += [helper.make_node("Relu", ["b"], ["c"]), helper.make_node("Sin", ["c"], ["y"])]
    where = {"op:Relu": "@cpu", "op:Sin": "@ort"}
    tasks = tt.decompose(tt.IRModule.from_onnx(small(*relu)), BOTH, where=where).tasks()
    assert [(task.subgraph.site, task.weight) for task in tasks] == [("cpu", 2), ("ort", 2)]


def test_a_target_of_another_machine_is_not_tuned_and_the_result_says_why():
    foreign = "composite[ort=onnxruntime,cpu=llvm(mtriple=riscv64-unknown-linux-gnu)]"
    log = tt.TuningLog("memory:")
    result = tt.tune(digits(), foreign, log=log, levels=["kernel", "placement"])
    assert any("cannot run on this machine" in reason for reason in result.left_out)
    assert {record.level for record in log if isinstance(record, Trial)} == {"graph"}
    assert {subgraph["site"] for subgraph in tt.build(digits(), foreign, log=log).report()["subgraphs"]} == {"ort"}


def test_a_target_that_cannot_run_here_at_all_is_refused_by_name():
    foreign = "llvm(mtriple=riscv64-unknown-linux-gnu)"
    with pytest.raises(tt.TvmTargetError, match=r"'llvm\(mtriple=riscv64-.*cannot be tuned on this machine: mtriple"):
        tt.tune(digits(), foreign, log="memory:")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"trials": 0}, "0 trials are given"),
        ({"trials": "3"}, "trials of tune is a whole number or None, not '3'"),
        ({"levels": "executor", "space": "own"}, "space 'own' has no effect without the level 'kernel'"),
        ({"where": {"fc1": "a"}, "options": {"where": {}}}, "where is given as an argument and in options"),
        ({"levels": []}, "no level is given to tune; there is kernel, executor, placement"),
        ({"levels": "kernels"}, "unknown level 'kernels'; did you mean 'kernel'"),
        ({"seconds": -1.0}, "-1.0 seconds are given"),
        ({"seconds": float("nan")}, "nan seconds are given"),
        ({"workers": "garbage"}, "'garbage' is no address of a Dask scheduler"),
    ],
)
def test_invalid_arguments_are_rejected(given, problem):
    with pytest.raises(tt.TvmTargetError, match=problem):
        tt.tune(digits(), QUICK, log="memory:", **given)


def test_a_program_with_nothing_to_tune_is_run_and_the_result_says_why():
    result = tt.tune(digits(), "numpy", log="memory:")
    assert (result.measured, result.findings) == (0, ())
    assert result.left_out == (
        "kernels of @.: numpy has none of its own to tune",
        "settings: numpy has none that the target leaves open",
    )
    assert result.speedup > 0


def test_the_ratio_of_a_result_is_that_of_pairs_of_runs_and_the_text_says_so():
    milliseconds = 10**9
    before, after = ([one * milliseconds for one in times] for times in ((10, 15, 31), (8, 15, 25)))
    result = TuneResult("memory:", before=tuple(before), after=tuple(after))
    assert str(result).splitlines()[-1] == (
        "whole program: 15 ms -> 15 ms, the median of each; "
        "1.24 times as fast, the median of 3 pairs of runs by turns (1.00 to 1.25)"
    )
    assert result.to_json()["speedup"] == 1.24


def test_random_inputs_have_every_element_type():
    for name in set(DTYPES) - {"string"}:
        module = tt.IRModule.parse(f"func @main(%x: {name}[2,n]) opsets(onnx=25) {{ return %x }}")
        inputs = random_inputs(tt.decompose(module, "numpy"))
        assert {"x": (name, (2, 1))} == {key: (dtype_of(one.dtype), one.shape) for key, one in inputs.items()}


def test_an_unknown_level_is_refused():
    with pytest.raises(tt.TvmTargetError, match="unknown level 'kernels'; did you mean 'kernel'"):
        tt.tune(digits(), "llvm", log="memory:", levels=["kernels"])


@pytest.mark.slow
def test_convolutions_are_tuned_on_all_levels_and_the_placement_is_no_slower_by_what_was_measured(record_property):
    model = beginning(light("squeezenet"), 20)
    module = tt.IRModule.from_onnx(model)
    log = tt.TuningLog("memory:")
    result = tt.tune(module, BOTH, log=log, trials=examples(10, 20))
    record_property("ratio", result.speedup)
    plan = tt.decompose(module, BOTH)
    assert confirmed_ratio(module, log) <= 1
    inputs = inputs_of(model)
    (expected,) = tt.build(plan).run(inputs).values()
    (actual,) = tt.build(module, BOTH, log=log).run(inputs).values()
    np.testing.assert_allclose(actual, expected, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(("load", "is_reported"), [(0.0, False), (0.4, False), (4.46, True)])
def test_the_result_warns_of_a_busy_machine(monkeypatch, load, is_reported):
    monkeypatch.setattr(os, "getloadavg", lambda: (load * processors(), 0.0, 0.0))
    result = tt.tune(digits(), "numpy", log="memory:", trials=1)
    assert result.to_json()["load"] == load
    assert ("a busy machine, at a load of 4.5 on each processor" in str(result)) is is_reported
