"""Fixtures of the tests of the command line."""

import pytest

from tvmtarget.cli.main import main


@pytest.fixture
def cli(capsys):
    """Return a function that runs a command line and returns (exit code, standard output, error output)."""

    def run(*words):
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
