"""Stage D: regions of operations whose sites are known, by several ways; the best is kept.

All ways yield regions whose graph has no circle. What is best is the least that calls cost, then the fewest regions,
then the fewest bytes that pass between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.regions.contract import contracted
from tvmtarget.partition.regions.limits import Limiter, Limits
from tvmtarget.partition.regions.slack import slackened
from tvmtarget.partition.regions.waves import waves
from tvmtarget.partition.values import Values

__all__ = ["formed"]

# Above this many vertices and edges only waves are tried: the others take several times as long.
LARGE = 60_000


def formed(
    successors: Sequence[Sequence[int]],
    colours: Sequence[int],
    limits: Sequence[Limits],
    launches: Sequence[int],
    limiter: Limiter,
    values: Values,
) -> list[list[int]]:
    """Return the best regions of atoms; `limits` and `launches` (what a call costs) are by colour."""
    candidates = (
        [part for region in regions for part in limiter.limited(region, limits[colours[region[0]]])]
        for regions in _candidates(successors, colours, launches, values)
    )
    return min(candidates, key=lambda regions: _score(regions, colours, launches, values))


def _candidates(
    successors: Sequence[Sequence[int]], colours: Sequence[int], launches: Sequence[int], values: Values
) -> Iterator[list[list[int]]]:
    swept = waves(successors, colours)
    yield swept
    free = {colour for colour, launch in enumerate(launches) if not launch}
    if free and len(free) < len(launches):
        swept = waves(successors, colours, free)
        yield swept
    count = len(set(colours))
    if count < 2 or len(successors) + sum(map(len, successors)) > LARGE:
        return
    if count > 2:
        yield waves(_reversed(successors), colours)[::-1]
    yield slackened(successors, colours, values, swept)
    joined = contracted(successors, colours, _by_bytes(values))
    yield joined
    again = _over(successors, colours, joined)
    yield again
    yield slackened(successors, colours, values, again)


def _reversed(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    predecessors: list[list[int]] = [[] for _ in successors]
    for vertex, targets in enumerate(successors):
        for target in targets:
            predecessors[target].append(vertex)
    return predecessors


def _by_bytes(values: Values) -> list[tuple[int, int]]:
    """Return producers and readers of values, the largest values first."""
    value = np.repeat(np.arange(len(values.producer)), np.diff(values.start))
    value_kept = values.producer[value] >= 0
    order = np.argsort(-values.nbytes[value[value_kept]], kind="stable")
    starts = values.producer[value][value_kept][order].tolist()
    return list(zip(starts, values.readers[value_kept][order].tolist(), strict=True))


def _over(
    successors: Sequence[Sequence[int]], colours: Sequence[int], joined: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return waves over regions that are there already."""
    owner = _owner(len(successors), joined)
    below: list[set[int]] = [set() for _ in joined]
    places = owner.tolist()
    for vertex, targets in enumerate(successors):
        below[places[vertex]].update(places[target] for target in targets)
    quotient = [sorted(targets - {place}) for place, targets in enumerate(below)]
    outer = waves(quotient, [colours[region[0]] for region in joined])
    return [sorted(vertex for place in region for vertex in joined[place]) for region in outer]


def _owner(count: int, regions: Sequence[Sequence[int]]) -> Ints:
    owner = np.zeros(count, dtype=np.int64)
    for number, region in enumerate(regions):
        owner[list(region)] = number
    return owner


def _score(
    regions: Sequence[Sequence[int]], colours: Sequence[int], launches: Sequence[int], values: Values
) -> tuple[int, int, int]:
    calls = sum(launches[colours[region[0]]] for region in regions)
    return calls, len(regions), values.cut(_owner(len(colours), regions))
