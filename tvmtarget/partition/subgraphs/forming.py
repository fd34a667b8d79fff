"""Form the subgraphs of one level from the sites of its atoms."""

from __future__ import annotations

from collections.abc import Sequence

from tvmtarget.partition.placement.level import Assignment, Level, decision_inputs
from tvmtarget.partition.plan_cache import PlanCache, digest
from tvmtarget.partition.subgraphs.forced_cuts import split_at_cuts
from tvmtarget.partition.subgraphs.portfolio import form_subgraphs
from tvmtarget.target.tree_paths import covers

__all__ = ["best_subgraphs", "quick_subgraphs", "subgraphs_of_level"]

# Number of atoms above which assignments are compared by one variant of typed fusion only.
MANY = 10_000


def subgraphs_of_level(level: Level, choice: Assignment, cache: PlanCache) -> list[list[int]]:
    """Form the best subgraphs for an assignment, or take them from an earlier plan.

    Args:
        level: atoms of one system.
        choice: assignment of the atoms to sites.
        cache: results of earlier plans.

    Returns:
        Subgraphs as lists of atoms, in execution order.
    """
    launches = list(choice.launches) or _uncosted(level)
    key = digest(*decision_inputs(level), choice.chosen, launches)
    return [
        [*subgraph]
        for subgraph in cache.find(
            "divisions into subgraphs", key, lambda: best_subgraphs(level, choice.chosen, launches)
        )
    ]


def best_subgraphs(level: Level, chosen: Sequence[int], launches: Sequence[int]) -> list[list[int]]:
    """Form the best subgraphs by all methods; keep the given ones of a module that is partitioned already.

    Args:
        level: atoms of one system.
        chosen: option of each atom.
        launches: cost of a call, by option.

    Returns:
        Subgraphs as lists of atoms, in execution order.
    """
    if level.is_divided:
        return [[atom] for atom in range(len(level.atoms))]
    found = form_subgraphs(level.graph.labeled(chosen), level.limits, launches, level.limiter, level.values)
    return _cut(level, found, chosen)


def quick_subgraphs(level: Level, chosen: Sequence[int], launches: Sequence[int]) -> list[list[int]]:
    """Form subgraphs by typed fusion alone, to compare assignments.

    With two options, typed fusion gives priority to options without launch cost. With more options it is tried with
    and without this priority, and the cheaper result is returned; above `MANY` atoms it is tried only without.

    Args:
        level: atoms of one system.
        chosen: option of each atom.
        launches: cost of a call, by option.

    Returns:
        Subgraphs as lists of atoms, in execution order.
    """
    if level.is_divided:
        return [[atom] for atom in range(len(level.atoms))]
    labeled = level.graph.labeled(chosen)
    free = frozenset(option for option, launch in enumerate(launches) if not launch)
    first = (free, frozenset[int]()) if free and len(launches) > 2 else (free,)
    candidates = (
        level.limiter.split_all(labeled.fused(early), chosen, level.limits)
        for early in (first if len(chosen) <= MANY else first[-1:])
    )
    return min(
        (_cut(level, candidate, chosen) for candidate in candidates),
        key=lambda subgraphs: sum(launches[chosen[subgraph[0]]] for subgraph in subgraphs),
    )


def _uncosted(level: Level) -> list[int]:
    """Return launch costs where none are known: fewest calls are best, then most calls on the host."""
    most = len(level.atoms)
    return [most + (not covers(option.path, level.site.host)) for option in level.options]


def _cut(level: Level, subgraphs: list[list[int]], chosen: Sequence[int]) -> list[list[int]]:
    """Split subgraphs at forced cuts, and the parts by the limits of their sites."""
    if not level.cuts:
        return subgraphs
    parts = (part for subgraph in subgraphs for part in split_at_cuts(subgraph, level.graph.successors, level.cuts))
    return [one for part in parts for one in level.limiter.split(part, level.limits[chosen[part[0]]])]
