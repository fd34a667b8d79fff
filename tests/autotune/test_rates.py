"""Rates of leaves are measured here, as costs."""

import pytest

import tvmtarget as tt
from tvmtarget.autotune.search.rates import measure_rates
from tvmtarget.partition.costs.cost_file import load_costs, write_costs

pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
pytest.importorskip("onnxruntime", reason="pip install tvmtarget[onnxruntime]")


@pytest.fixture(scope="module")
def rates():
    one = "onnxruntime(intra-op-threads=1)"
    return measure_rates(f"composite[a={one},b={one},far=llvm(mtriple=riscv64-unknown-linux-gnu)](host=numpy)")


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


def test_a_leaf_of_another_machine_is_left_out_with_a_reason(rates):
    (reason,) = rates.left_out
    assert reason.startswith("@far cannot run on this machine: ")
    assert list(rates.lines())[-1] == f"not measured: {reason}"


def test_rates_are_costs_that_a_file_can_hold(rates):
    assert load_costs(write_costs(rates.costs)) == rates.costs


def test_a_model_is_predicted_by_them_without_an_unknown(rates):
    from models import light

    costs = tt.Costs(sites={"": rates.costs.sites["a"]}, ops=())
    plan = tt.decompose(tt.IRModule.from_onnx(light("squeezenet")), "onnxruntime(intra-op-threads=1)", costs)
    assert not plan.prediction.unknown
    assert plan.prediction.total > 0
