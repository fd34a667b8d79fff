"""The examples in the document on host and device are true."""

import doctest
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_document_on_host_and_device():
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testfile(str(ROOT / "docs" / "host-device.md"), module_relative=False, optionflags=options)
    assert tried
    assert not failed
