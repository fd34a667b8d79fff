"""Examples in the document and the docstrings of the IR."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "tvmtarget" / "ir").rglob("*.py")
    if ">>>" in path.read_text("utf-8")
)


def test_examples_in_the_document_on_the_ir(tmp_path):
    failed, tried = doctest.testfile(str(ROOT / "docs" / "ir.md"), module_relative=False, globs={"folder": tmp_path})
    assert tried
    assert not failed


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    failed, tried = doctest.testmod(import_module(name))
    assert tried
    assert not failed
