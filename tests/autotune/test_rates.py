"""Rates of leaves are measured here, as costs."""

import time

import numpy as np
import pytest
from models import DIGITS, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.autotune.log.records import Candidate
from tvmtarget.autotune.search.rate_programs import CALL, NEEDED
from tvmtarget.autotune.search.rates import LONG, RATES, _problem, measure_rates
from tvmtarget.building.leaf_function import LeafCode
from tvmtarget.building.tuned_schedules import program_workload
from tvmtarget.errors import TargetError
from tvmtarget.partition.costs.cost_file import load_costs, write_costs

pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
pytest.importorskip("onnxruntime", reason="pip install tvmtarget[onnxruntime]")


ONE = "onnxruntime(intra-op-threads=1)"
TARGET = f"composite[a={ONE},b={ONE},far=llvm(mtriple=riscv64-unknown-linux-gnu)](host=numpy)"


@pytest.fixture(scope="module", autouse=True)
def short():
    """Measure for a short time: noise does not matter here."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch.setattr("tvmtarget.autotune.search.rates.SECONDS", 0.02)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    with tt.TuningLog(tmp_path_factory.mktemp("rates") / "log.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def rates(log):
    return measure_rates(TARGET, log=log)


@pytest.mark.parametrize(("taken", "is_used"), [(5, True), (0, False), (-5, False), (True, False), ("5", False)])
def test_a_log_serves_only_times_that_programs_can_take(taken, is_used):
    known = Candidate(format=RATES, body={"times": {**dict.fromkeys(NEEDED, 10**6), CALL: taken}})
    assert (_problem(known) is None) is is_used


def test_each_leaf_gets_rates_and_shares_of_them_by_operator(rates):
    assert set(rates.costs.sites) == {"a", "b", "host"}
    for site in rates.costs.sites.values():
        assert site.launch > 0
        assert site.flops["float32"] > 0
        assert site.mem_bw > 0
    kinds = {op.op for op in rates.costs.ops if op.site == "a"}
    assert {"Relu", "LRN", "MaxPool", "Gemm"} <= kinds


def test_equal_leaves_are_measured_once(rates):
    assert rates.costs.sites["a"] is rates.costs.sites["b"]


def test_no_time_includes_loading_a_code_generator(monkeypatch, tmp_path):
    """The compile cache has all programs, so that TVM would else be loaded by the first run."""
    monkeypatch.setenv("TVMTARGET_CACHE", str(tmp_path))
    convolution = helper.make_node("Conv", ["x", "w"], ["y"])
    models = dict.fromkeys(NEEDED, small(convolution, shape=(1, 1, 4, 4), w=np.ones((1, 1, 3, 3), "float32")))
    monkeypatch.setattr("tvmtarget.autotune.search.rates.programs", lambda: iter([models]))
    tt.build(models[CALL], "llvm")
    load = LeafCode._made

    def slowly(code):
        time.sleep(1.2 * LONG)
        return load(code)

    monkeypatch.setattr(LeafCode, "_made", slowly)
    assert measure_rates("llvm").costs.sites[""].launch < 0.5e6 * LONG


def test_a_leaf_of_another_machine_is_left_out_with_a_reason(rates):
    (reason,) = rates.left_out
    assert reason.startswith("@far cannot run on this machine: ")
    assert list(rates.lines())[-1] == f"not measured: {reason}"


def test_a_log_keeps_the_rates(rates, log):
    again = measure_rates(TARGET, log=log)
    assert again.is_known
    assert not rates.is_known
    for site, found in again.costs.sites.items():
        assert found.launch == pytest.approx(rates.costs.sites[site].launch, abs=1e-5)
    assert [op.op for op in again.costs.ops] == [op.op for op in rates.costs.ops]
    assert measure_rates(ONE, log=log).is_known


@pytest.mark.slow
def test_the_fastest_of_a_few_plans_is_measured_once(rates, log):
    target = f"[far=numpy,near={ONE}](host=@far)"
    plan = tt.place(DIGITS, target, log=log)
    assert set(plan.sites().values()) == {"near"}
    count = len(log.trials(program_workload(plan, "graph"), plan.topology.root))
    assert 3 <= count <= 8
    assert tt.place(DIGITS, target, log=log).sites() == plan.sites()
    assert len(log.trials(program_workload(plan, "graph"), plan.topology.root)) == count
    x = np.random.default_rng(0).random((1, 1, 8, 8), "float32")
    np.testing.assert_allclose(tt.build(plan)(x), tt.build(DIGITS, ONE)(x), rtol=1e-4, atol=1e-4)


def test_a_target_of_one_leaf_has_nothing_to_measure(log):
    assert tt.place(DIGITS, ONE, log=log).sites() == tt.decompose(tt.IRModule.from_onnx(DIGITS), ONE).sites()


def test_costs_are_not_given_where_they_are_measured(log):
    with pytest.raises(TargetError, match="costs are measured here"):
        tt.place(DIGITS, ONE, log=log, options={"costs": "roofline"})


def test_rates_are_costs_that_a_file_can_hold(rates):
    assert load_costs(write_costs(rates.costs)) == rates.costs


def test_a_model_is_predicted_by_them_without_an_unknown(rates):
    from models import light

    costs = tt.Costs(sites={"": rates.costs.sites["a"]}, ops=())
    plan = tt.decompose(tt.IRModule.from_onnx(light("squeezenet")), "onnxruntime(intra-op-threads=1)", costs)
    assert not plan.prediction.unknown
    assert plan.prediction.total > 0
