"""Where a measurement is made: what is installed, and which machine, without its name."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from tvmtarget.autotune.log.records import Environment

__all__ = ["environment"]

# What generates or runs code; a record from other versions is used, and said to be stale.
_PACKAGES = ("tvmtarget", "apache-tvm", "apache-tvm-ffi", "onnxruntime", "numpy")


@cache
def environment() -> Environment:
    """Return this process's environment; nothing is imported, and the machine's name is only hashed."""
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
