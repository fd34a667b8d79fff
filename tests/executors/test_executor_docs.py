"""The examples in the documents on executors and on clusters are true."""

import doctest
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["executors", "machines"])
def test_the_documents_on_executors(page, monkeypatch):
    pytest.importorskip("onnxruntime")
    if page == "executors" and shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(str(ROOT / "docs" / f"{page}.md"), module_relative=False)
    assert tried
    assert not failed
