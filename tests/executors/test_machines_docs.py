"""The examples in the document on clusters are true."""

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_document_on_machines(monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(str(ROOT / "docs" / "machines.md"), module_relative=False)
    assert tried
    assert not failed
