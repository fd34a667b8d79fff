"""Keys of compiled code: equal functions on equal devices share it, as the device is an argument of each call."""

from __future__ import annotations

from tvmtarget.backends.protocol import Backend
from tvmtarget.ir.function import Function
from tvmtarget.ir.structure import structural_hash
from tvmtarget.target.tree import Target

__all__ = ["build_key", "code_key", "device_index"]


def code_key(function: Function, target: Target, backend: Backend) -> str | None:
    """Return the key of a leaf function's code, without its site.

    It covers the structure of the function, the attributes of the target that change code, the calling convention, and
    the backend with its version. Names do not count, so that equal functions and devices share one code, as in TVM a
    function is built for "any GPU".

    Args:
        function: the leaf function.
        target: the leaf.
        backend: the backend that compiles it.

    Returns:
        The key, or None if the backend lacks the ability `shared-code`.
    """
    return _key(function, target, backend) if "shared-code" in backend.supports else None


def build_key(function: Function, target: Target, site: str, backend: Backend) -> str:
    """Return the key under which a later build finds the code of a leaf function.

    Args:
        function: the leaf function.
        target: the leaf.
        site: path of the leaf.
        backend: the backend that compiles it.

    Returns:
        The key of the code, with the site and the digest of the leaf.
    """
    return " ".join((site, target.digest, _key(function, target, backend)))


def _key(function: Function, target: Target, backend: Backend) -> str:
    convention = function.attr("calling-convention") or "packed"
    plain = function.replace(attrs=())
    structure = structural_hash(plain, strip_constraints=True)
    return " ".join((structure, target.codegen_key, convention, backend.name, backend.version()))


def device_index(site: str) -> int:
    """Return the number of a site's device among those of its kind.

    Args:
        site: path of a leaf.

    Returns:
        1 for `node.0/gpu.1`; 0 if the path has no number.
    """
    number = site.rpartition("/")[2].rpartition(".")[2]
    return int(number) if number.isdecimal() and "." in site.rpartition("/")[2] else 0
