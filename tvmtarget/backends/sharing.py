"""Code for any device of a kind: sites that are alike share it; which device it is comes with the arguments."""

from __future__ import annotations

from tvmtarget.backends.protocol import Backend
from tvmtarget.ir.function import Function
from tvmtarget.ir.structure import structural_hash
from tvmtarget.target.tree import Target

__all__ = ["build_key", "code_key", "device_index"]


def code_key(function: Function, target: Target, backend: Backend) -> str | None:
    """Return what the code of a leaf function depends on; None if its backend shares no code.

    That is its structure, what of the target changes code, how it is called, and who compiles it: neither names nor
    the site, so that functions and devices which are alike have one code (TVM: a function built for "any GPU").
    """
    return _key(function, target, backend) if "shared-code" in backend.supports else None


def build_key(function: Function, target: Target, site: str, backend: Backend) -> str:
    """Return what tells whether code of an earlier build is that of a leaf function: its site too."""
    return " ".join((site, target.digest, _key(function, target, backend)))


def _key(function: Function, target: Target, backend: Backend) -> str:
    convention = function.attr("calling-convention") or "packed"
    plain = function.replace(attrs=())
    structure = structural_hash(plain, strip_constraints=True)
    return " ".join((structure, target.codegen_key, convention, backend.name, backend.version()))


def device_index(site: str) -> int:
    """Return the number of a device among those of its kind: 1 for `node.0/gpu.1`, 0 where there is one."""
    number = site.rpartition("/")[2].rpartition(".")[2]
    return int(number) if number.isdecimal() and "." in site.rpartition("/")[2] else 0
