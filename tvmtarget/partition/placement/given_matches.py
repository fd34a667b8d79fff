"""Code generators that a module assigns to operations: `Composite` and `Codegen` functions, recorded matches."""

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
    """Return the pattern matches that a module brings along.

    They are inlined functions with `Composite`, and the matches that an earlier decomposition recorded in leaf
    functions, unless the leaf's strategy has a pattern of that name, which is then matched again.

    Args:
        found: the operations and the inlined calls around them.
        functions: the functions of the module by name.
        topology: the sites of the target.

    Returns:
        Code generator, pattern and operations of each match.
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
        # Matches are flat: a function with control flow is none.
        if not found.bodies.keys().isdisjoint(members):
            continue
        if isinstance(composite, str):
            kind, _, pattern = composite.partition(".")
            matches.append((kind, pattern, tuple(members)))
        else:
            matches += _recorded(function, members, topology)
    return tuple(matches)


def _recorded(
    function: Function, members: Sequence[int], topology: Topology
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield the matches that an earlier decomposition recorded in a leaf function."""
    recorded, path = function.attr("matches"), None if function.constraint is None else function.constraint.path
    if not isinstance(recorded, tuple) or function.attr("role") != "leaf" or path is None or path not in topology:
        return
    leaf = topology[path].target
    strategy = strategy_at(leaf)
    if len(function.body) != len(members):
        return
    numbers = {call.source: index for call, index in zip(function.body, members, strict=True)}
    for match in recorded:
        pattern, *ops = match if isinstance(match, tuple) else ("",)
        is_known = strategy is not None and pattern in strategy.patterns
        if pattern and not is_known and ops and numbers.keys() >= set(ops):
            yield leaf.kind, str(pattern), tuple(sorted(numbers[op] for op in ops))


def imported_generators(found: Scopes, functions: Mapping[str, Function]) -> Mapping[int, str]:
    """Return the external code generators that a module assigns to operations.

    Args:
        found: the operations and the inlined calls around them.
        functions: the functions of the module by name.

    Returns:
        By operation, the code generator of the innermost inlined function that names one.
    """
    generators: dict[int, str] = {}
    for index, frames in [(index, frames) for index, frames in enumerate(found.frames) if frames]:
        names = (code_generator(functions[frame.callee]) for frame in reversed(frames))
        name = next((name for name in names if name is not None), None)
        if name is not None:
            generators[index] = name
    return generators
