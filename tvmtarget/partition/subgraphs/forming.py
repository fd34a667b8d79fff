"""Form the subgraphs of one level from the sites of its atoms."""

from __future__ import annotations

from collections.abc import Sequence

from tvmtarget.partition.placement.level import Assignment, Level, decision_inputs
from tvmtarget.partition.plan_cache import PlanCache, digest
from tvmtarget.partition.subgraphs.forced_cuts import split_at_cuts
from tvmtarget.partition.subgraphs.portfolio import form_subgraphs
from tvmtarget.target.tree_paths import covers

__all__ = ["quick_subgraphs", "subgraphs_of_level"]

# Above this many atoms subgraphs are formed in one way while assignments are compared.
MANY = 10_000


def subgraphs_of_level(level: Level, choice: Assignment, cache: PlanCache) -> list[list[int]]:
    """Return the best subgraphs, if an earlier plan had the same atoms on the same options, as it found them."""
    launches = list(choice.launches) or _uncosted(level)
    key = digest(*decision_inputs(level), choice.chosen, launches)
    return [
        [*subgraph]
        for subgraph in cache.find("divisions into subgraphs", key, lambda: _formed(level, choice, launches))
    ]


def _formed(level: Level, choice: Assignment, launches: Sequence[int]) -> list[list[int]]:
    """Group atoms into the best subgraphs."""
    if level.is_divided:
        return [[atom] for atom in range(len(level.atoms))]
    found = form_subgraphs(level.graph.labeled(choice.chosen), level.limits, launches, level.limiter, level.values)
    return _cut(level, found, choice.chosen)


def quick_subgraphs(level: Level, chosen: Sequence[int], launches: Sequence[int]) -> list[list[int]]:
    """Group atoms into subgraphs by waves alone, in an order in which they can run; `launches` are by option.

    With two options it is best to run what costs nothing to launch as soon as it can; with more either way may be, of
    which large levels try one.
    """
    if level.is_divided:
        return [[atom] for atom in range(len(level.atoms))]
    labeled = level.graph.labeled(chosen)
    free = frozenset(option for option, launch in enumerate(launches) if not launch)
    first = (free, frozenset[int]()) if free and len(launches) > 2 else (free,)
    ways = (
        level.limiter.split_all(labeled.fused(early), chosen, level.limits)
        for early in (first if len(chosen) <= MANY else first[-1:])
    )
    return min((_cut(level, way, chosen) for way in ways), key=lambda way: sum(launches[chosen[one[0]]] for one in way))


def _uncosted(level: Level) -> list[int]:
    """Return what calls count where no costs are known: fewest are best, and of as many those of the host."""
    most = len(level.atoms)
    return [most + (not covers(option.path, level.site.host)) for option in level.options]


def _cut(level: Level, subgraphs: list[list[int]], chosen: Sequence[int]) -> list[list[int]]:
    """Divide subgraphs where that is asked; the parts are as each site takes them."""
    if not level.cuts:
        return subgraphs
    parts = (part for subgraph in subgraphs for part in split_at_cuts(subgraph, level.graph.successors, level.cuts))
    return [one for part in parts for one in level.limiter.split(part, level.limits[chosen[part[0]]])]
