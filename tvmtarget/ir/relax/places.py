"""What a TVM module says about where its parts run, as constraints on a tree.

A target of TVM corresponds to the leaves of its kind that say nothing else than it does; of several, the number of
a virtual device counts them. What corresponds to nothing stays as it is, an attribute or the scope of a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvmtarget.errors import TvmTargetError
from tvmtarget.ir.function import Call, Function, Opaque
from tvmtarget.ir.relax.attributes import read_blob
from tvmtarget.ir.relax.reader import GLOBALS
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.layout import Layout, Site
from tvmtarget.target.tree import Target

__all__ = ["constrained", "site_of_function"]


def constrained(functions: Sequence[Function], attrs: Mapping[str, Any], tree: Target | None) -> tuple[Function, ...]:
    """Return the functions with constraints on nodes of a tree where TVM's annotations correspond to some."""
    if tree is None:
        return tuple(functions)
    leaves = tuple(Layout(tree.resolve()).leaves())
    infos = (attrs.get(GLOBALS) or {}).get("vdevice", ())
    vdevices = {f"vdevice:{index}": _site_of_vdevice(read_blob(info), leaves) for index, info in enumerate(infos)}
    return tuple(_constrained(function, vdevices, leaves) for function in functions)


def _constrained(function: Function, vdevices: Mapping[str, str | None], leaves: Sequence[Site]) -> Function:
    path = site_of_function(function, leaves)
    body = tuple(_placed(call, vdevices) for call in function.body)
    return function.replace(body=body, constraint=function.constraint if path is None else Constraint.at(path))


def _placed(call: Call, vdevices: Mapping[str, str | None]) -> Call:
    """Return a call at the site of the virtual device that its results are on."""
    scopes = (output.scope for output in call.outputs)
    path = next((vdevices[scope] for scope in scopes if vdevices.get(scope) is not None), None)
    return call if path is None else replace(call, constraint=Constraint.at(path))


def site_of_function(function: Function, leaves: Sequence[Site]) -> str | None:
    """Return the leaf that a function is for: the generator in `Codegen`, or what its `target` corresponds to."""
    codegen = function.attr("Codegen")
    if codegen is not None:
        return next((leaf.path for leaf in leaves if leaf.target.kind == codegen), None)
    target = function.attr("target")
    if function.code is not None:
        target = getattr(read_blob(function.code), "attrs", {}).get("target")
    if isinstance(target, Opaque):
        target = read_blob(target)
    found = [] if target is None else _corresponding(target, leaves)
    return found[0] if found else None


def _site_of_vdevice(vdevice: Any, leaves: Sequence[Site]) -> str | None:
    found = _corresponding(vdevice.target, leaves)
    return None if not found else found[min(int(vdevice.vdevice_id), len(found) - 1)]


def _corresponding(target: Any, leaves: Sequence[Site]) -> list[str]:
    """Return the leaves that a target of TVM may mean, in order."""
    try:
        wanted = Target.from_tvm(target)
    except TvmTargetError:
        return []
    return [leaf.path for leaf in leaves if leaf.target.kind == wanted.kind and _agree(wanted, leaf.target)]


def _agree(one: Target, other: Target) -> bool:
    """Whether two targets of a kind say nothing different."""
    mine, theirs = one.attrs.to_json(), other.attrs.to_json()
    return all(theirs.get(name, value) == value for name, value in mine.items())
