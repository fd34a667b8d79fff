"""Propagate contexts (host, device, constraint) from callers to callees, as a fixed point over the call graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tvmtarget.ir.names import Names

__all__ = ["CallSite", "call_contexts", "context_names"]

_C = TypeVar("_C", bound=Hashable)


@dataclass(frozen=True, slots=True)
class CallSite(Generic[_C]):
    """A call of a function.

    Attributes:
        callee: name of the function.
        context: context of the call; None for that of the caller.
    """

    callee: str
    context: _C | None = None


def call_contexts(
    calls: Mapping[str, Sequence[CallSite[_C]]], fixed: Mapping[str, Sequence[_C]]
) -> dict[str, tuple[_C, ...]]:
    """Find the contexts in which each function is called, directly or through other functions.

    Every function is visited once per context, so that recursion ends, too.

    Args:
        calls: calls in each function.
        fixed: contexts of functions that do not depend on their callers.

    Returns:
        For each function its contexts in the order of discovery.
    """
    found: dict[str, dict[_C, None]] = {name: {} for name in calls}
    waiting = [(name, context) for name, own in fixed.items() for context in own]
    for name, context in waiting:  # grows while it is read
        if context in found[name]:
            continue
        found[name][context] = None
        waiting += [
            (call.callee, context if call.context is None else call.context)
            for call in calls[name]
            if call.callee in found and call.callee not in fixed
        ]
    return {name: tuple(own) for name, own in found.items()}


def context_names(
    found: Mapping[str, Sequence[_C]], rank: Callable[[_C], int], suffix: Callable[[_C], str]
) -> dict[tuple[str, _C], str]:
    """Name the copies of functions that are called in several contexts.

    In the context of least rank a function keeps its name. The others get the suffix of their context (TVM: `_host`),
    and a number if that name is in use.

    Args:
        found: contexts of each function.
        rank: returns the rank of a context.
        suffix: returns the suffix for a context.

    Returns:
        Names by function and context.
    """
    names, chosen = Names(found), {}
    for name, own in found.items():
        for number, context in enumerate(sorted(own, key=rank)):
            chosen[name, context] = names.fresh(f"{name}_{suffix(context)}") if number else name
    return chosen
