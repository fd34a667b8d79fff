"""All backends pass one suite: ONNX's node tests, as far as the strategy of their kind supports them."""

from collections import Counter
from fnmatch import fnmatch

import pytest
from conformance import is_random, node_cases, run_case, stored_cases, symbolic
from effort import examples

import tvmtarget as tt

KINDS = ("c", "llvm", "numpy", "onnxruntime", "openvino")

# Supported cases whose result differs from ONNX, with the reason. An entry that passes must be removed.
KNOWN = {
    "c": {},
    "llvm": {},
    "numpy": {
        "test_if_opt*": "the reference evaluator returns a sequence with one dimension too many",
    },
    "onnxruntime": {},
    "openvino": {},
}

# The default run takes every STEP-th case, the slow one every SLOW_STEP-th but these, and fewer of those with symbolic
# shapes; at least LEAST of all cases must be supported. All cases, with --hypothesis-profile=explore, take ten minutes
# of kind c, for which a C compiler runs, and eight of llvm.
STEP = {"c": 48, "llvm": 24, "numpy": 8, "onnxruntime": 8, "openvino": 32}
SLOW_STEP = {
    kind: examples(step, 1) for kind, step in {"c": 24, "llvm": 12, "numpy": 4, "onnxruntime": 2, "openvino": 8}.items()
}
# Compiled once, for this machine; plain llvm also compiles for any processor of its architecture.
LEAF = {"llvm": f"llvm(mcpu={tt.Target.detect().attrs['mcpu']})"}
LEAST = {"c": 850, "llvm": 840, "numpy": 1840, "onnxruntime": 1580, "openvino": 760}


def backend(kind):
    """Skip the test if the package that the kind needs is not installed."""
    package = {"c": "tvm", "llvm": "tvm", "onnxruntime": "onnxruntime", "openvino": "openvino"}.get(kind)
    if package is not None:
        pytest.importorskip(package, reason=f"pip install 'tvmtarget[{package}]'")
    return kind


def check(cases, kind, leaf=None):
    """Run cases and return how many were supported; fail on wrong results, and on known defects that are fixed."""
    outcomes = [run_case(case, leaf or kind) for case in cases if not is_random(case)]
    known = {o.case for o in outcomes if any(fnmatch(o.case, pattern) for pattern in KNOWN[kind])}
    failed = {outcome.case: outcome.reason for outcome in outcomes if outcome.status == "failed"}
    assert {name: reason for name, reason in failed.items() if name not in known} == {}
    assert {o.case for o in outcomes if o.case in known and o.status == "passed"} == set()
    return Counter(outcome.status for outcome in outcomes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_backend_runs_what_its_strategy_supports(kind):
    assert check(node_cases()[:: STEP[kind]], backend(kind), LEAF.get(kind))["passed"] > 0.9 * LEAST[kind] / STEP[kind]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_backend_runs_symbolic_shapes_that_its_strategy_supports(kind):
    check(map(symbolic, node_cases()[4 :: 2 * STEP[kind]]), backend(kind), LEAF.get(kind))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_backend_runs_all_that_its_strategy_supports(kind):
    step, before = SLOW_STEP[kind], STEP[kind]
    rest = [case for number, case in enumerate(node_cases()[::step]) if number * step % before]
    assert check(rest, backend(kind), LEAF.get(kind))["passed"] > 0.9 * LEAST[kind] * (1 / step - 1 / before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_backend_runs_all_symbolic_shapes_that_its_strategy_supports(kind):
    check(map(symbolic, node_cases()[1 :: 4 * SLOW_STEP[kind]]), backend(kind), LEAF.get(kind))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_backend_runs_models_of_pytorch_that_its_strategy_supports(kind):
    """They are of old operator sets; most are refused but by numpy and ONNX Runtime."""
    stored = [*stored_cases("pytorch-converted"), *stored_cases("pytorch-operator")][:: SLOW_STEP[kind]]
    check([*stored, *map(symbolic, stored)], backend(kind), LEAF.get(kind))
