"""What a module gives to external code generators: matches of patterns, and functions with `Codegen`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tvmtarget.ir.function import Function
from tvmtarget.ir.relax.canonical_calls import code_generator
from tvmtarget.partition.control.scopes import Scopes
from tvmtarget.support.registry import strategy_at
from tvmtarget.target.topology import Topology

__all__ = ["imported_generators", "imported_matches"]


def imported_matches(
    found: Scopes, functions: Mapping[str, Function], topology: Topology
) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Return the matches that a module comes with: code generator, pattern, operations.

    They are inlined functions with `Composite`, and what an earlier decomposition noted in leaf functions, unless the
    strategy of the leaf has a pattern of that name, which then is matched anew.
    """
    calls: dict[int, tuple[Function, list[int]]] = {}
    for index, frames in enumerate(found.frames):
        for frame in frames:
            calls.setdefault(frame.ordinal, (functions[frame.callee], []))[1].append(index)
    if not calls and found.body:
        calls[0] = (functions["main"], list(range(len(found.body))))
    matches: list[tuple[str, str, tuple[int, ...]]] = []
    for function, members in calls.values():
        composite = function.attr("Composite")
        if not found.bodies.keys().isdisjoint(members):
            continue
        if isinstance(composite, str):
            kind, _, pattern = composite.partition(".")
            matches.append((kind, pattern, tuple(members)))
        else:
            matches += _noted(function, members, topology)
    return tuple(matches)


def _noted(
    function: Function, members: Sequence[int], topology: Topology
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield the matches that a leaf function of an earlier decomposition notes."""
    noted, path = function.attr("matches"), None if function.constraint is None else function.constraint.path
    if not isinstance(noted, tuple) or function.attr("role") != "leaf" or path is None or path not in topology:
        return
    leaf = topology[path].target
    strategy = strategy_at(leaf)
    if len(function.body) != len(members):
        return
    places = {call.source: index for call, index in zip(function.body, members, strict=True)}
    for match in noted:
        pattern, *ops = match if isinstance(match, tuple) else ("",)
        is_known = strategy is not None and pattern in strategy.patterns
        if pattern and not is_known and ops and places.keys() >= set(ops):
            yield leaf.kind, str(pattern), tuple(sorted(places[op] for op in ops))


def imported_generators(found: Scopes, functions: Mapping[str, Function]) -> Mapping[int, str]:
    """Return the external code generator of the innermost function that each operation was inlined from."""
    generators: dict[int, str] = {}
    for index, frames in enumerate(found.frames):
        names = (code_generator(functions[frame.callee]) for frame in reversed(frames))
        name = next((name for name in names if name is not None), None)
        if name is not None:
            generators[index] = name
    return generators
