"""Fixtures of the tests of the command line."""

import pytest

from tvmtarget.cli.main import main


@pytest.fixture
def cli(capsys):
    """Return a function that runs a command line and returns (exit code, standard output, error output).

    The error output lacks hints on the CPU, which depend on the machine.
    """

    def run(*words):
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        lines = captured.err.splitlines(keepends=True)
        return code, captured.out, "".join(line for line in lines if ": llvm without mcpu makes code" not in line)

    return run
