"""What a module gives to external code generators: matches of patterns, and functions with `Codegen`."""

from __future__ import annotations

from collections.abc import Mapping

from tvmtarget.ir.function import Function
from tvmtarget.ir.relax.divisible import code_generator
from tvmtarget.partition.control.scopes import Scopes

__all__ = ["given_generators", "given_matches"]


def given_matches(found: Scopes, functions: Mapping[str, Function]) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Return the matches that were inlined functions with `Composite`: code generator, pattern, operations."""
    calls: dict[int, tuple[Function, list[int]]] = {}
    for index, frames in enumerate(found.frames):
        for frame in frames:
            calls.setdefault(frame.ordinal, (functions[frame.callee], []))[1].append(index)
    matches: list[tuple[str, str, tuple[int, ...]]] = []
    for function, members in calls.values():
        composite = function.attr("Composite")
        if isinstance(composite, str) and found.bodies.keys().isdisjoint(members):
            kind, _, pattern = composite.partition(".")
            matches.append((kind, pattern, tuple(members)))
    return tuple(matches)


def given_generators(found: Scopes, functions: Mapping[str, Function]) -> Mapping[int, str]:
    """Return the external code generator of the innermost function that each operation was inlined from."""
    generators: dict[int, str] = {}
    for index, frames in enumerate(found.frames):
        names = (code_generator(functions[frame.callee]) for frame in reversed(frames))
        name = next((name for name in names if name is not None), None)
        if name is not None:
            generators[index] = name
    return generators
