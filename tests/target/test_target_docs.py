"""The examples in the documents and docstrings of targets and tags are true."""

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("target", "tags")
    for path in (ROOT / "tvmtarget" / package).rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)


def run(path, **names):
    failed, tried = doctest.testfile(str(path), module_relative=False, globs=names)
    assert tried
    assert not failed


def test_the_document_on_targets():
    run(ROOT / "docs" / "targets.md")


def test_the_document_on_tvms_tags():
    run(ROOT / "docs" / "tvm-tags.md")


def test_the_document_on_features():
    run(ROOT / "docs" / "features.md")


def test_the_document_on_detection():
    run(ROOT / "docs" / "detect.md")


def test_the_document_on_tags(tmp_path):
    """The file it shows is the one that its examples read."""
    document = ROOT / "docs" / "tags.md"
    shown = re.search(r"```toml\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL).group(1)
    (tmp_path / "acme.toml").write_text(shown, encoding="utf-8")
    run(document, folder=tmp_path)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    failed, tried = doctest.testmod(import_module(name))
    assert tried
    assert not failed
