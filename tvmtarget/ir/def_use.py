"""Who computes and who reads each value of a function, and what crosses the border of a set of operations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from tvmtarget.ir.function import Function

__all__ = ["boundary", "detour", "producers_of", "readers_of"]


def producers_of(function: Function) -> dict[str, int]:
    """Return the operation that computes each value, by index."""
    return {output.name: index for index, call in enumerate(function.body) for output in call.outputs if output.name}


def readers_of(function: Function) -> dict[str, tuple[int, ...]]:
    """Return the operations that read each value, by index; those whose nested bodies capture it are among them."""
    readers: dict[str, list[int]] = defaultdict(list)
    for index, call in enumerate(function.body):
        for name in call.uses() if call.regions else call.inputs:
            found = readers[name]
            if not found or found[-1] != index:
                found.append(index)
    readers.pop("", None)  # of operands that are absent
    return {name: tuple(found) for name, found in readers.items()}


def boundary(
    function: Function, calls: Sequence[int], readers: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what operations read from outside, by first use, and what is read of them outside, by definition.

    Constants are no inputs: whoever reads one holds it.
    """
    inside = set(calls)
    body = [function.body[index] for index in calls]
    defined = [output.name for call in body for output in call.outputs if output.name]
    own, constants = set(defined), function.constant_names
    used = dict.fromkeys(name for call in body for name in call.uses())
    inputs = (name for name in used if name not in own and name not in constants)
    results = frozenset(function.results)
    outputs = (name for name in defined if name in results or not inside.issuperset(readers.get(name, ())))
    return tuple(inputs), tuple(outputs)


def detour(function: Function, calls: Collection[int]) -> tuple[tuple[int, ...], frozenset[int]]:
    """Return a path that leaves a set of operations and comes back, or an empty one, and what depends on the set.

    An operation with an effect also depends on the one before it.
    """
    inside = set(calls)
    producer = producers_of(function)
    came_from: dict[int, int] = {}  # of operations outside that depend on the set: by which operation they do
    last_effect: int | None = None
    for index, call in enumerate(function.body):
        before = [producer[name] for name in call.uses() if name in producer]
        if call.has_effect:
            before += [] if last_effect is None else [last_effect]
            last_effect = index
        if index in inside:
            outside = next((other for other in before if other in came_from), None)
            if outside is not None:
                path = [index, outside]
                while path[-1] not in inside:
                    path.append(came_from[path[-1]])
                return tuple(reversed(path)), frozenset(came_from)
        else:
            found = next((other for other in before if other in inside or other in came_from), None)
            if found is not None:
                came_from[index] = found
    return (), frozenset(came_from)
