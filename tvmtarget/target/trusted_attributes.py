"""Attributes that let a target run code as the user, or send data elsewhere, and that only the user may state.

A Dask scheduler gets all inputs and can run code as the user; libraries and options of code generators load or write
files. A file of unknown origin that has one of these is rejected.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvmtarget.errors import TargetError, raise_all
from tvmtarget.target.tree import Target

__all__ = ["reject_trusted", "trusted_attributes"]

_LEAVE = "leave it out there and name it in the target that you type, in a tag of your home folder, or by trust"
# By kind, attributes of targets that need trust, and what they do.
_ATTRIBUTES = {
    "llvm": {"cl-opt": "options of LLVM (cl-opt), some of which write files"},
    "onnxruntime": {
        "provider-library": "a library of an execution provider (provider-library), which would be loaded",
        "provider-options": "options of an execution provider (provider-options), some of which load or write files",
    },
    "openvino": {"cache-dir": "a folder of compiled functions (cache-dir), which would be read and written"},
}


def trusted_attributes(target: Target) -> frozenset[tuple[str, str]]:
    """Return the values in a tree that only the user may state.

    Args:
        target: the tree, with its hosts.

    Returns:
        What each value is, as a clause for a message, and the value as text.
    """
    return frozenset(_found(target))


def _found(target: Target) -> Iterator[tuple[str, str]]:
    for _, node in target.walk():
        if node.runtime is not None and node.runtime.attrs.get("address"):
            what = "a Dask scheduler, which would get all inputs and may run code as you"
            yield what, str(node.runtime.attrs["address"])
        for name, what in _ATTRIBUTES.get(node.kind, {}).items():
            if node.attrs.get(name):
                value = node.attrs[name]
                yield what, " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        if isinstance(node.host, Target):
            yield from _found(node.host)


def reject_trusted(target: Target, place: str, known: frozenset[tuple[str, str]] = frozenset()) -> None:
    """Raise an error for values in a tree that only the user may state.

    Args:
        target: the tree.
        place: where the tree comes from, for the message.
        known: values that the user stated.

    Raises:
        TargetError: there are others.
    """
    found = sorted(trusted_attributes(target) - known)
    raise_all(TargetError, [f"{place} names {_named(what, value)}; {_LEAVE}" for what, value in found])


def _named(what: str, value: str) -> str:
    thing, _, consequence = what.partition(", ")
    return f"{thing}, {value!r}, {consequence}"
