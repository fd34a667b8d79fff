"""In which contexts functions are called, at any depth: a fixed point over the call graph, circles included."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tvmtarget.ir.names import Names

__all__ = ["CallSite", "call_contexts", "context_names"]

_C = TypeVar("_C", bound=Hashable)


@dataclass(frozen=True, slots=True)
class CallSite(Generic[_C]):
    """A call of a function: in a context of its own, or, where that is None, in that of the function around it."""

    callee: str
    context: _C | None = None


def call_contexts(
    calls: Mapping[str, Sequence[CallSite[_C]]], fixed: Mapping[str, Sequence[_C]]
) -> dict[str, tuple[_C, ...]]:
    """Return the contexts that each function is called in, in the order in which they are met.

    `calls` are the calls in each function, `fixed` the contexts of functions that are the same whoever calls them.
    No function is walked more than once for a context, so that circles end too.
    """
    found: dict[str, dict[_C, None]] = {name: {} for name in calls}
    waiting = [(name, context) for name, given in fixed.items() for context in given]
    for name, context in waiting:  # grows while it is read
        if context in found[name]:
            continue
        found[name][context] = None
        waiting += [
            (call.callee, context if call.context is None else call.context)
            for call in calls[name]
            if call.callee in found and call.callee not in fixed
        ]
    return {name: tuple(met) for name, met in found.items()}


def context_names(
    found: Mapping[str, Sequence[_C]], rank: Callable[[_C], int], suffix: Callable[[_C], str]
) -> dict[tuple[str, _C], str]:
    """Return what each function is called in each of its contexts: in that of least rank it keeps its name.

    In others it is a copy, with the suffix of the context (TVM: `_host`), and a number where that is taken.
    """
    names, chosen = Names(found), {}
    for name, met in found.items():
        for place, context in enumerate(sorted(met, key=rank)):
            chosen[name, context] = names.fresh(f"{name}_{suffix(context)}") if place else name
    return chosen
