"""What the attributes of a tree do when a program is built: change the result, describe, or be refused.

Code generators, executors and runtimes name the attributes that they honour. An attribute
of another class than those that may only describe (`model`, `scale`, `capacity`) is refused where nothing honours it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

from tvmtarget import plugins
from tvmtarget.backends.protocol import Backend
from tvmtarget.executors.protocol import executor_named
from tvmtarget.runtimes.protocol import runtime_named
from tvmtarget.target.kinds import Attribute, Kind, Role, find_kind
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.text.printing import write_value
from tvmtarget.target.tree import Target

__all__ = ["Effect", "driver_honours", "effect_of", "honoured", "not_honoured", "not_honoured_by_driver"]

Effect: TypeAlias = Literal["changes the result", "descriptive", "refused"]

# Classes of attributes that costs, constraints and tuning keys read, and code does not depend on.
_DESCRIBING = frozenset({"model", "scale", "capacity"})
# What the target itself reads: keys and device types follow from the first two.
_OF_THE_TARGET = frozenset({"device", "target_device_type", "unchecked"})
# What a build can do about an attribute of an executor or runtime that is not honoured.
_INSTEAD = {
    "link-params": "weights are constants of the compiled functions already",
    "unpacked-api": "functions are called by the graph executor, not from C",
    "interface-api": "the program is called from Python, not from C",
    "system-lib": "functions are found by the program, not by a static library",
    "workspace-byte-alignment": "the graph executor has no static workspace",
    "constant-byte-alignment": "constants are aligned by the code generators",
}


def honoured(backend: Backend, kind: str) -> frozenset[str] | None:
    """Return the attributes of a kind that a code generator honours; None for all, where it does not say."""
    declared: Mapping[str, frozenset[str]] | None = getattr(backend, "honours", None)
    return None if declared is None else declared.get(kind, frozenset())


def effect_of(row: Attribute, honours: frozenset[str] | None) -> Effect:
    """Return what a value other than the default does, where some attributes are honoured; None stands for all."""
    if honours is None or row.name in honours or row.name in _OF_THE_TARGET:
        return "changes the result" if row.name != "unchecked" else "descriptive"
    is_note = row.class_ == "none" and row.since == "tt1"
    return "descriptive" if row.class_ in _DESCRIBING or is_note else "refused"


def not_honoured(target: Target, honours: frozenset[str] | None, by: str, path: str) -> Iterator[str]:
    """Yield which attributes that a target states would be ignored by what builds for it."""
    kind = find_kind(target.kind)
    for row, value in _stated(kind, target.attrs):
        if effect_of(row, honours) == "refused":
            yield (
                f"attribute {row.name!r} ({write_value(value)}) of @{path or '.'} would be ignored: "
                f"{by} does not honour it; take it back (--unset {f'{path}/{row.name}'.lstrip('/')})"
            )


def driver_honours(role: Role, kind: str) -> frozenset[str] | None:
    """Return the attributes that the executor or runtime of a kind honours.

    Args:
        role: `executor` or `runtime`.
        kind: the kind of the node.

    Returns:
        Names of attributes; None if no package registers an executor or runtime for the kind.

    Raises:
        BackendError: the registered executor or runtime does not load.
    """
    if kind not in plugins.names(f"tvmtarget.{role}s"):
        return None
    return (executor_named(kind) if role == "executor" else runtime_named(kind)).honours


def not_honoured_by_driver(configured: Executor | Runtime, role: Role, path: str) -> Iterator[str]:
    """Yield why an executor or runtime of a node cannot be built for, or which of its attributes would be ignored."""
    place, honours = f"@{path or '.'}", driver_honours(role, configured.kind)
    if honours is None:
        known = ", ".join(plugins.names(f"tvmtarget.{role}s"))
        yield f"{role} {configured.kind!r} of {place} cannot be built for yet; there is {known}"
        return
    for row, value in _stated(find_kind(configured.kind, role), configured.attrs):
        if row.name not in honours:
            why = _INSTEAD.get(row.name, f"the {configured.kind} {role} does not honour it")
            at = f"{path}/{role}/{row.name}".lstrip("/")
            yield (
                f"{role} attribute {row.name!r} ({write_value(value)}) of {place} would be ignored: {why}; "
                f"take it back (--unset {at})"
            )


def _stated(kind: Kind | None, attrs: Mapping[str, object]) -> Iterator[tuple[Attribute, object]]:
    """Yield the attributes that are not at their defaults."""
    for name, value in attrs.items():
        row = kind.attribute(name) if kind is not None else None
        if row is not None and value != row.default:
            yield row, value
