"""Keys of compiled code: equal functions on equal devices share it, as the device is an argument of each call."""

from __future__ import annotations

from collections.abc import Mapping

from tvmtarget.backends.protocol import Backend, named_errors
from tvmtarget.ir.function import Function
from tvmtarget.ir.structure import structural_hash
from tvmtarget.target.tree import Target

__all__ = ["build_key", "code_key", "device_index", "function_key", "stored_key"]


def function_key(function: Function, functions: Mapping[str, Function]) -> str:
    """Return the part of the key of a leaf function's code that is that of the function.

    Names do not count.

    Args:
        function: the leaf function.
        functions: functions that it may call.

    Returns:
        The hash of its structure, and its calling convention.
    """
    convention = function.attr("calling-convention") or "packed"
    return f"{structural_hash(function.replace(attrs=()), functions, strip_constraints=True)} {convention}"


def code_key(function: str, target: Target, backend: Backend) -> str | None:
    """Return the key of a leaf function's code, without its site.

    It covers the structure of the function, the attributes of the target that change code, the calling convention, and
    the backend with its version. Equal functions and devices share one code, as in TVM a function is built for "any
    GPU".

    Args:
        function: the `function_key` of the leaf function.
        target: the leaf.
        backend: the backend that compiles it.

    Returns:
        The key, or None if the backend lacks the ability `shared-code`.
    """
    return _key(function, target, backend) if "shared-code" in backend.supports else None


def build_key(function: str, target: Target, site: str, backend: Backend) -> str:
    """Return the key under which a later build finds the code of a leaf function.

    Args:
        function: the `function_key` of the leaf function.
        target: the leaf.
        site: path of the leaf.
        backend: the backend that compiles it.

    Returns:
        The key of the code, with the site and the digest of the leaf.
    """
    return " ".join((site, target.digest, _key(function, target, backend)))


def stored_key(function: str, target: Target, backend: Backend) -> str | None:
    """Return the key of a leaf function's code in the compile cache.

    Args:
        function: the `function_key` of the leaf function.
        target: the leaf, with its host.
        backend: the backend that compiles it.

    Returns:
        The key of the code, with the host and `Backend.code_version`; None if the code is not stored.

    Raises:
        BackendError: `Backend.code_version` raises it.
    """
    with named_errors(f"backend {backend.name!r} fails for {str(target)!r}"):
        version = backend.code_version(target)
    if version is None:
        return None
    host = target.host.codegen_key if isinstance(target.host, Target) else ""
    return " ".join(("code", _key(function, target, backend), host, version))


def _key(function: str, target: Target, backend: Backend) -> str:
    return " ".join((function, target.codegen_key, backend.name, backend.version()))


def device_index(site: str) -> int:
    """Return the number of a site's device among those of its kind.

    Args:
        site: path of a leaf.

    Returns:
        1 for `node.0/gpu.1`; 0 if the path has no number.
    """
    number = site.rpartition("/")[2].rpartition(".")[2]
    return int(number) if number.isdecimal() and "." in site.rpartition("/")[2] else 0
