"""The environment of this process: installed versions, system and machine, without the name of the machine."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from tvmtarget.autotune.log.records import Environment

__all__ = ["environment"]

# Packages that generate or run code; a record of other versions is used, and reported as stale.
_PACKAGES = ("tvmtarget", "apache-tvm", "apache-tvm-ffi", "onnxruntime", "openvino", "numpy")


@cache
def environment() -> Environment:
    """Return the environment of this process.

    Nothing is imported to find versions, and the name of the machine is stored as a hash.

    Returns:
        The record.
    """
    host = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
    body: dict[str, object] = {
        "python": platform.python_version(),
        "os": platform.system().lower(),
        "host": f"h:{host}",
    }
    for package in _PACKAGES:
        try:
            body[package] = version(package)
        except PackageNotFoundError:
            continue
    return Environment.of(body)
