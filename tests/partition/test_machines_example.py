"""A model on four levels: cluster, machine, system on chip, CPU and accelerator; the example runs as it is."""

import subprocess
import sys
from importlib import util
from pathlib import Path

import numpy as np
import pytest
from models import DIGITS

import tvmtarget as tt

pytest.importorskip("onnxruntime")

EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster.py"


@pytest.fixture(scope="module")
def example():
    spec = util.spec_from_file_location("cluster_example", EXAMPLE)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_level_says_what_it_decided(example):
    plan = example.partition("throughput")
    explanation = plan.explain("conv2")
    assert explanation.levels == (("", "n0", 5), ("n0", "n0/soc", 5), ("n0/soc", "n0/soc/npu", 4))
    assert "system @n0/soc passed it to @n0/soc/npu in a call of 4 ops" in str(explanation)
    assert plan.explain("fc2").site.endswith("cpu")
    drivers = {f.constraint.path for f in plan.module.functions if f.attr("role") == "driver"}
    assert drivers == {"", "n0", "n0/soc", "n1", "n1/soc"}


def test_every_operation_of_the_second_machine_is_in_its_program(example):
    plan = example.partition("throughput")
    programs = plan.programs()
    assert list(programs) == ["n0", "n1"]
    for machine, program in programs.items():
        sites = {function.constraint.path for function in program.functions[1:]}
        assert all(site.split("/")[0] == machine for site in sites)
        assert any(site.endswith("soc/npu") for site in sites)


@pytest.mark.parametrize("objective", [pytest.param("latency", marks=pytest.mark.slow), "throughput"])
def test_the_example_runs(objective):
    done = subprocess.run([sys.executable, EXAMPLE, objective], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "8 batches ran, with the results of the unpartitioned model" in done.stdout


def test_the_same_tree_runs_with_the_code_generator_of_a_plugin(example, probe_log):
    """In one process, so that the plugin's log is here: every op once, on the chip where the plan has it."""
    target = example.CLUSTER.replace("onnxruntime", "probe").replace(",runtime=processes", "")
    where = {"*": "probe", "fc*": "@n1/soc/npu", "pool": "@n0/soc/cpu", "fc2": "@n1/cpu"}
    module = tt.IRModule.from_onnx(DIGITS)
    plan = tt.decompose(module, target, where=where)
    image = np.random.default_rng(0).normal(size=(3, 1, 8, 8)).astype("float32")
    expected = tt.build(module, "numpy")(image)
    np.testing.assert_allclose(tt.build(plan)(image), expected, rtol=1e-3, atol=1e-4)
    ran = [(entry[1], entry[2]) for entry in probe_log if entry[0] == "op"]
    assert sorted(ran) == sorted((op, site) for op, site in plan.sites().items() if site.endswith("npu"))
