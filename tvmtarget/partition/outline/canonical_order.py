"""Ranks of operations that their structure gives, so that what is decided does not depend on how they are listed.

Operations are taken depth first from those that nothing comes after, each behind what it reads, in the order in which
it reads that: what belongs together stays together, as exporters list it. Of such ends the one with the least number
is first, which tells what leads to it; where numbers are equal, what else comes of that counts too (a round of colour
refinement up the graph and one down), and at last their place among the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvmtarget.ir.def_use import producers_of
from tvmtarget.ir.function import Function
from tvmtarget.partition.subgraphs.typed_fusion import is_large

__all__ = ["canonical_order"]


def canonical_order(function: Function, told: Callable[[int], str]) -> list[int] | None:
    """Return for every operation of a function its place in an order in which they can run; None for large functions.

    `told` says in hexadecimal digits what an operation is by itself. Those with effects keep their order. In large
    functions there are so many that the order they are listed in makes next to no difference. O(E + V log V).
    """
    if is_large(len(function.body), sum(len(call.inputs) for call in function.body)):
        return None
    before = _before(function)
    ends = set(range(len(before))).difference(*before)
    ranks = [0] * len(before)
    for rank, index in enumerate(_depth_first(_sorted(ends, function, told, before), before)):
        ranks[index] = rank
    return ranks


def _before(function: Function) -> list[list[int]]:
    """Return what must run before every operation: what computes its operands, as it reads them, then effects."""
    producer = producers_of(function)
    found: list[list[int]] = []
    effect: int | None = None
    for index, call in enumerate(function.body):
        names = call.uses() if call.regions else call.inputs
        before = [producer[name] for name in names if name in producer]
        if call.has_effect:
            before += [] if effect is None else [effect]
            effect = index
        found.append(before)
    return found


def _sorted(
    ends: set[int], function: Function, told: Callable[[int], str], before: Sequence[Sequence[int]]
) -> list[int]:
    """Return what nothing comes after in the order of numbers, and of results where these are equal."""
    if len(ends) == 1:
        return [*ends]
    numbers = _from_above([int(told(index), 16) for index in range(len(before))], before)
    if len({numbers[end] for end in ends}) < len(ends):
        numbers = _from_above(_from_below(numbers, before), before)
    place = {name: place for place, name in enumerate(function.results)}
    last = len(place)

    def key(end: int) -> tuple[int, int, int]:
        return numbers[end], min((place.get(out.name, last) for out in function.body[end].outputs), default=last), end

    return sorted(ends, key=key)


def _from_above(numbers: Sequence[int], before: Sequence[Sequence[int]]) -> list[int]:
    """Number operations by what leads to them. Hashes of whole numbers are the same in every process."""
    found: list[int] = []
    for number, sources in zip(numbers, before, strict=True):
        found.append(hash((number, *[found[source] for source in sources])))
    return found


def _from_below(numbers: Sequence[int], before: Sequence[Sequence[int]]) -> list[int]:
    """Number operations by what comes of them."""
    found = [0] * len(numbers)
    below = [0] * len(numbers)
    for index in reversed(range(len(numbers))):
        found[index] = hash((numbers[index], below[index]))
        for position, source in enumerate(before[index]):
            below[source] += hash((found[index], position))
    return found


def _depth_first(ends: Sequence[int], before: Sequence[Sequence[int]]) -> list[int]:
    """Return ends and all that leads to them, each behind what must run before it."""
    order: list[int] = []
    is_done = [False] * len(before)
    waiting = [*reversed(ends)]
    while waiting:
        index = waiting[-1]
        missing = [] if is_done[index] else [source for source in reversed(before[index]) if not is_done[source]]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        if not is_done[index]:
            is_done[index] = True
            order.append(index)
    return order
