"""Tuning and rates on an NVIDIA GPU: what is found is for that GPU, and only for it."""

import numpy as np
import pytest
from gpus import needs_gpu
from models import small
from onnx import helper

import tvmtarget as tt
from tvmtarget.autotune.search.rates import measure_rates

WEIGHTS = np.random.default_rng(0).normal(size=(32, 32, 3, 3)).astype("float32") / 17
NET = small(
    helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
    helper.make_node("Relu", ["a"], ["y"]),
    shape=(1, 32, 28, 28),
    w=WEIGHTS,
)
HERE, OTHER = "cuda", "cuda(arch=sm_75)"


@pytest.mark.slow
def test_a_kernel_is_tuned_for_this_gpu_and_for_no_other(tmp_path):
    needs_gpu()
    log = f"{tmp_path / 'log.db'}"
    result = tt.tune(tt.IRModule.from_onnx(NET), HERE, log=log, trials=6, levels=("kernel",))
    assert [(finding.level, finding.is_confirmed) for finding in result.findings] == [("kernel", True)]
    x = np.random.default_rng(1).normal(size=(1, 32, 28, 28)).astype("float32")
    default, tuned = tt.build(NET, HERE), tt.build(NET, HERE, log=log)
    assert [one.tier for one in tuned.tuned if one.level == "kernel"] == ["exact"]
    np.testing.assert_allclose(tuned(x), default(x), rtol=1e-3, atol=1e-4)
    assert [one.tier for one in tt.build(NET, OTHER, log=log).tuned if one.level == "kernel"] == ["default"]


@pytest.mark.slow
def test_rates_of_a_gpu_include_its_memory_and_both_directions_of_copies():
    needs_gpu()
    costs = measure_rates("[gpu=cuda,cpu=onnxruntime](host=@cpu)").costs
    assert set(costs.sites) == {"gpu", "cpu"}
    assert [(link.src, link.dst) for link in costs.links] == [(":cpu", "gpu"), ("gpu", ":cpu")]
    assert all(link.bandwidth > 1e8 for link in costs.links)
    plan = tt.decompose(tt.IRModule.from_onnx(NET), "[gpu=cuda,cpu=onnxruntime](host=@cpu)", costs=costs)
    assert "unknown" not in str(plan.summary())


def test_kernels_of_a_gpu_are_proposed_and_scheduled_anywhere():
    pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")
    from tvmtarget.backends.protocol import backend_named
    from tvmtarget.building.compile_plan import codegen_target, compile_request

    plan = tt.decompose(tt.IRModule.from_onnx(NET), "cuda(arch=sm_80)")
    (subgraph,) = plan.subgraphs
    workshop = backend_named("tvm").tuning_context(
        compile_request(plan, subgraph, codegen_target(plan.topology, subgraph.site))
    )
    ((key, space),) = workshop.spaces.items()
    assert space.choices == ()
    assert space.kernel.default.startswith("s1:")
    traces = workshop.propose(key, [], 2, seed=0)
    assert len(traces) == 2
    assert traces == workshop.propose(key, [], 2, seed=0)
