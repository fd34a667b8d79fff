"""Every backend passes one suite: ONNX's node tests, as far as the strategy of its kind takes them; odd programs."""

from collections import Counter
from fnmatch import fnmatch

import pytest
from conformance import is_random, node_cases, run_case, symbolic

KINDS = ("llvm", "numpy", "onnxruntime")

# Accepted, and yet not what ONNX says, with the reason. An entry that passes must be taken out.
KNOWN = {
    "llvm": {},
    "numpy": {
        "test_if_opt*": "the reference evaluator returns a sequence with one dimension too many",
    },
    "onnxruntime": {},
}

# Every so-many-th case is run by default, and at least so many of all cases must be taken.
STEP = 8
LEAST = {"llvm": 840, "numpy": 1840, "onnxruntime": 1380}


def backend(kind):
    """Skip the test if the package that the kind needs is not installed."""
    package = {"llvm": "tvm", "onnxruntime": "onnxruntime"}.get(kind)
    if package is not None:
        pytest.importorskip(package, reason=f"pip install 'tvmtarget[{package}]'")
    return kind


def check(cases, kind):
    """Run cases and return how many were taken; fail on those that are wrong, and on known defects that are not."""
    outcomes = [run_case(case, backend(kind)) for case in cases if not is_random(case)]
    known = {o.case for o in outcomes if any(fnmatch(o.case, pattern) for pattern in KNOWN[kind])}
    failed = {outcome.case: outcome.reason for outcome in outcomes if outcome.status == "failed"}
    assert {name: reason for name, reason in failed.items() if name not in known} == {}
    assert {o.case for o in outcomes if o.case in known and o.status == "passed"} == set()
    return Counter(outcome.status for outcome in outcomes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_strategy_takes_its_backend_does(kind):
    assert check(node_cases()[::STEP], kind)["passed"] > 0.9 * LEAST[kind] / STEP


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_strategy_takes_of_open_shape_its_backend_does(kind):
    check(map(symbolic, node_cases()[4::STEP]), kind)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_all_that_a_strategy_takes_its_backend_does(kind):
    assert check(node_cases(), kind)["passed"] >= LEAST[kind]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_all_that_a_strategy_takes_of_open_shape_its_backend_does(kind):
    check(map(symbolic, node_cases()), kind)
