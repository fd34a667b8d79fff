"""The law of targets: of a random model they compute what onnxruntime computes, or refuse to partition it."""

import pytest
from effort import examples

pytest.importorskip("onnxruntime")

from fuzz.random_models import failures


@pytest.mark.parametrize("target", ["numpy", "onnxruntime", "openvino"])
def test_random_models_are_computed_or_refused(target):
    pytest.importorskip(target)
    assert list(failures(target, range(1, 26))) == []


def test_random_models_of_open_sizes_are_computed_or_refused():
    pytest.importorskip("openvino")
    assert list(failures("openvino", range(200, 230), 0.5)) == []


@pytest.mark.parametrize(("target", "count", "symbolic"), [("llvm", examples(8, 100), 0.5), ("c", examples(5, 50), 0)])
@pytest.mark.slow
def test_random_models_are_compiled_or_refused(target, count, symbolic):
    pytest.importorskip("tvm")
    assert list(failures(target, range(100, 100 + count), symbolic)) == []
