"""Packages of engines, imported late. Which operators they support is listed as of one version of each."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import Any

from tvmtarget.errors import MissingExtraError, warn

__all__ = ["OLDEST", "engine_package"]

# Versions, major and minor, whose operators the tables of support list, by package; each is the name of an extra, too.
# Older ones refuse some of them, and compute others wrongly, such as Attention (onnxruntime 1.26).
OLDEST = {"onnxruntime": (1, 32), "openvino": (2026, 4)}


def engine_package(name: str) -> Any:  # noqa: ANN401 - these packages ship no types
    """Import the package of an engine; warn once if its version is older than those tested.

    Args:
        name: the name of the package; a key of `OLDEST`.

    Returns:
        The module.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        package = import_module(name)
    except ImportError as error:
        raise MissingExtraError(name, name) from error
    _check_version(name, package.__version__)
    return package


@cache
def _check_version(name: str, version: str) -> None:
    oldest = OLDEST[name]
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < oldest:
        first = ".".join(map(str, oldest))
        warn(
            f"{name} {version} is older than {first}: it may refuse operations that plans place on it, and compute "
            f"some otherwise than ONNX; install {name}>={first}, or compare results (run --check)"
        )
