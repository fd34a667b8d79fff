"""Stage D: regions of operations whose sites are known, by several ways; the best is kept.

All ways yield regions whose graph has no circle. What is best is the least that calls cost, then the fewest regions,
then the fewest bytes that pass between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.regions.contract import contracted
from tvmtarget.partition.regions.limits import Limiter, Limits
from tvmtarget.partition.regions.slack import Slack
from tvmtarget.partition.regions.waves import changes_ahead, predecessors_of, waves
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
    is_free = all(limits[colour].is_free for colour in set(colours))
    best: list[list[list[int]]] = []
    least = None
    for candidate in _candidates(successors, colours, launches, values):
        regions = candidate if is_free else limiter.all_limited(candidate, colours, limits)
        score = sum(launches[colours[region[0]]] for region in regions), len(regions)
        if least is None or score < least:
            best, least = [regions], score
        elif score == least and regions not in best:
            best.append(regions)
    if len(best) == 1:
        return best[0]
    return min(best, key=lambda regions: values.cut(_owner(len(colours), regions)))


def _candidates(
    successors: Sequence[Sequence[int]], colours: Sequence[int], launches: Sequence[int], values: Values
) -> Iterator[list[list[int]]]:
    heights = changes_ahead(successors, colours)
    swept = waves(successors, colours, heights=heights)
    yield swept
    free = {colour for colour, launch in enumerate(launches) if not launch}
    if free and len(free) < len(launches):
        swept = waves(successors, colours, free, heights)
        yield swept
    count = len(set(colours))
    if count < 2 or len(successors) + sum(map(len, successors)) > LARGE:
        return
    if count > 2:
        yield waves(predecessors_of(successors), colours)[::-1]
    slack = Slack(successors, colours, values)
    yield slack.moved(swept)
    joined = contracted(successors, colours, _by_bytes(values))
    yield joined
    again = _over(successors, colours, joined)
    yield again
    yield slack.moved(again)


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
    members = np.fromiter(chain.from_iterable(regions), dtype=np.int64)
    owner[members] = np.repeat(np.arange(len(regions)), [len(region) for region in regions])
    return owner
