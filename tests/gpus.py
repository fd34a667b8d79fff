"""The NVIDIA GPU of this machine, for tests that need one."""

from functools import cache

import pytest

from tvmtarget.backends.protocol import backend_named
from tvmtarget.errors import MissingExtraError
from tvmtarget.target.tree import Target

__all__ = ["needs_gpu", "refusal"]


@cache
def refusal():
    """Return why this machine runs no code for a GPU, None if it does."""
    try:
        return backend_named("tvm").unsupported_reason(Target("cuda"))
    except MissingExtraError as error:
        return str(error)


def needs_gpu():
    """Skip a test where no GPU is."""
    if refusal() is not None:
        pytest.skip(f"needs an NVIDIA GPU: {refusal()}")
