"""Relax modules divided over a tree and handed back to TVM, which builds them; they compute what the whole did."""

import random

import numpy as np
import pytest

tvm = pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")
pytest.importorskip("tvmtarget_sample.backend", reason="pip install ./tests/plugin")

from relax_modules import EVERYTHING, SIX, by_tvm, random_module, register_codegen, run  # noqa: E402
from tvm import relax  # noqa: E402

import tvmtarget as tt  # noqa: E402

NPU = "[npu=probe(lanes=8),cpu=llvm](host=@cpu)"
CORES = "[big=llvm(num-cores=4),little=llvm(num-cores=2)](host=@big)"


def divided(module, target, seed):
    """Decompose with every operation on a random site, where that one takes it."""
    rng = random.Random(seed)
    sites = [child.slot for child in tt.Target.parse(target).targets]
    names = [call.source for call in tt.IRModule.from_tvm(module).main.body]
    return tt.decompose(module, target, where={name: f"@{rng.choice(sites)}?" for name in names})


def built(plan):
    """Have TVM build what a plan gives back."""
    module = plan.to_tvm()
    relax.analysis.well_formed(module)
    register_codegen("probe")
    return tvm.compile(relax.transform.RunCodegen(plan.codegen_options())(module), target="llvm")


def values(rows=2, columns=4):
    return np.random.default_rng(0).normal(size=(rows, columns)).astype("float32")


def assert_equal(actual, expected):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def check_well_formed(seed):
    """REQUIREMENTS: 1,000 random graphs never yield an ill-formed module."""
    rng = random.Random(seed)
    module = random_module(rng.randint(1, 40), seed)
    written = divided(module, NPU if seed % 2 else CORES, seed).to_tvm()
    relax.analysis.well_formed(written)
    tvm.ir.assert_structural_equal(tt.IRModule.from_tvm(written).to_tvm(), written)


@pytest.mark.parametrize("seed", range(40))
def test_divided_random_graphs_are_well_formed_and_read_back(seed):
    check_well_formed(seed)


@pytest.mark.slow
def test_a_thousand_divided_random_graphs_are_well_formed_and_read_back():
    for seed in range(40, 1040):
        check_well_formed(seed)


@pytest.mark.parametrize("seed", range(6))
def test_divided_random_graphs_compute_what_the_whole_one_does(seed):
    module = random_module(14, seed)
    executable = built(divided(module, NPU, seed))
    assert_equal(run(executable, values()), by_tvm(module, values()))


@pytest.mark.parametrize("seed", range(6, 10))
def test_two_virtual_devices_compute_what_one_does(seed):
    module = random_module(14, seed)
    executable = tvm.compile(divided(module, CORES, seed).to_tvm())
    actual = run(executable, values(), devices=[tvm.cpu(0), tvm.cpu(1)])
    assert_equal(actual, by_tvm(module, values()))
