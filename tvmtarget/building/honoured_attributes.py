"""The effect of target attributes on a build: they change the result, describe the device, or are rejected.

Code generators, executors and runtimes name the attributes that they honour. An attribute that nothing honours is
rejected, because a build must not silently ignore it, unless its class only describes the device (`model`, `scale`,
`capacity`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

from tvmtarget import plugins
from tvmtarget.backends.protocol import Backend
from tvmtarget.executors.protocol import executor_named
from tvmtarget.runtimes.protocol import runtime_named
from tvmtarget.target.device_types import DEVICE_TYPES
from tvmtarget.target.kinds import Attribute, Kind, Role, find_kind
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.text.printing import write_value
from tvmtarget.target.tree import Target

__all__ = [
    "Effect",
    "driver_honours",
    "effect_of",
    "honoured_attributes",
    "ignored_attributes",
    "ignored_driver_attributes",
]

Effect: TypeAlias = Literal["changes the result", "descriptive", "rejected"]

# Classes of attributes that costs, constraints and tuning keys read, and on which code does not depend.
_DESCRIPTIVE = frozenset({"model", "scale", "capacity"})
# Attributes that the target reads itself: keys follow from the first one.
_OF_THE_TARGET = frozenset({"device", "unchecked"})
# Why attributes of executors need no counterpart here.
_REASONS = {"link-params": "weights are constants of the compiled functions already"}


def honoured_attributes(backend: Backend, kind: str) -> frozenset[str] | None:
    """Return the attributes of a kind that a backend honours.

    Args:
        backend: A code generator.
        kind: A kind of target.

    Returns:
        Names of attributes; None means all attributes, if the backend does not declare any.
    """
    return None if backend.honours is None else backend.honours.get(kind, frozenset())


def effect_of(row: Attribute, honours: frozenset[str] | None) -> Effect:
    """Return the effect of a value other than the default.

    Args:
        row: The attribute.
        honours: The attributes that the code generator honours; None means all.

    Returns:
        The effect, as docs/attributes.md lists it.
    """
    if honours is None or row.name in honours or row.name in _OF_THE_TARGET:
        return "changes the result" if row.name != "unchecked" else "descriptive"
    is_note = row.class_ == "none" and row.since == "tt1"
    return "descriptive" if row.class_ in _DESCRIPTIVE or is_note else "rejected"


def ignored_attributes(target: Target, honours: frozenset[str] | None, by: str, path: str) -> Iterator[str]:
    """Yield an error message for each stated attribute of a target that a build would ignore.

    Args:
        target: A node of the tree.
        honours: The attributes that its code generator honours; None means all.
        by: The name of the code generator, for the message.
        path: The path of the node.

    Yields:
        Messages with the value, the reason, and the option that removes the value.
    """
    kind = find_kind(target.kind)
    for row, value in _stated(kind, target.attrs):
        if effect_of(row, honours) == "rejected":
            yield (
                f"attribute {row.name!r} ({write_value(value)}) of @{path or '.'} would be ignored: "
                f"{by} does not honour it; remove it (--unset {f'{path}/{row.name}'.lstrip('/')})"
            )


def driver_honours(role: Role, kind: str) -> frozenset[str] | None:
    """Return the attributes that the executor or runtime of a kind honours.

    Args:
        role: `executor` or `runtime`.
        kind: The kind of the executor or runtime.

    Returns:
        Names of attributes; None if no package registers an executor or runtime for the kind.

    Raises:
        BackendError: The registered executor or runtime does not load.
    """
    if kind not in plugins.names(f"tvmtarget.{role}s"):
        return None
    return (executor_named(kind) if role == "executor" else runtime_named(kind)).honours


def ignored_driver_attributes(configured: Executor | Runtime, role: Role, path: str) -> Iterator[str]:
    """Yield an error message for each unsupported part of an executor or runtime.

    Args:
        configured: The executor or runtime of a node.
        role: `executor` or `runtime`.
        path: The path of the node.

    Yields:
        Messages with the value, the reason, and the option that removes the value.
    """
    place, honours = f"@{path or '.'}", driver_honours(role, configured.kind)
    if honours is None:
        known = ", ".join(plugins.names(f"tvmtarget.{role}s"))
        yield f"{role} {configured.kind!r} of {place} cannot be built for yet; there is {known}"
        return
    for row, value in _stated(find_kind(configured.kind, role), configured.attrs):
        if row.name not in honours:
            reason = _REASONS.get(row.name, f"the {configured.kind} {role} does not honour it")
            at = f"{path}/{role}/{row.name}".lstrip("/")
            yield (
                f"{role} attribute {row.name!r} ({write_value(value)}) of {place} would be ignored: {reason}; "
                f"remove it (--unset {at})"
            )


def _stated(kind: Kind | None, attrs: Mapping[str, object]) -> Iterator[tuple[Attribute, object]]:
    """Yield the attributes that differ from their defaults, with their values."""
    for name, value in attrs.items():
        row = kind.attribute(name) if kind is not None else None
        # A stated default is no request: nothing is lost if the build ignores it.
        default = row and (_own_device(kind) if row.name == "target_device_type" else row.default)
        if row is not None and value != default:
            yield row, value


def _own_device(kind: Kind | None) -> int | None:
    """Return the number of the device type of a kind's targets."""
    return next((number for number, name in DEVICE_TYPES.items() if kind is not None and name == kind.device), None)
