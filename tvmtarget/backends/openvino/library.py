"""The package openvino, imported late, and what it says of runs."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from tvmtarget.backends.engine_packages import engine_package

__all__ = ["core", "first_line", "run_to_end"]


@cache
def core() -> Any:  # noqa: ANN401
    """Return the one object that reads and compiles models."""
    return engine_package("openvino").Core()


def run_to_end(request: Any) -> None:  # noqa: ANN401
    """Run a request, and raise the error that it ends by.

    `infer` of one thread loses errors: it returns what was in memory, and overwrites that of others (2026.4).

    Args:
        request: the request, with its inputs.
    """
    request.start_async()
    request.wait()


def first_line(error: Exception) -> str:
    """Return what an error of OpenVINO says, without where in its sources it was raised.

    Args:
        error: the error.

    Returns:
        At most three of its lines, as one line.
    """
    lines = [re.sub(r"Check '.*' failed at \S+", "", line).strip() for line in str(error).splitlines()]
    places = (
        *("Exception from", "Caught exception", "While validating", "FrontEnd API failed"),
        *("Errors during ONNX translation", "Model wasn't fully"),
    )
    said = [line.removeprefix("-- ") for line in lines if line and not line.startswith(places)]
    return ": ".join(line.rstrip(":") for line in said[:3]) or type(error).__name__
