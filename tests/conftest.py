"""Fixtures of all tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def subprocess_with_hash_seed():
    """Return a function that runs Python code under a PYTHONHASHSEED and returns what it prints."""

    def run(code, seed):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        root = Path(__file__).parents[1]
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=root, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
