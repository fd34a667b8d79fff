"""Form the subgraphs of one level from the sites of its atoms."""

from __future__ import annotations

from collections.abc import Sequence

from tvmtarget.partition.placement.level import Assignment, Level, decision_inputs
from tvmtarget.partition.plan_cache import PlanCache, digest
from tvmtarget.partition.subgraphs.forced_cuts import graph_with_cuts
from tvmtarget.partition.subgraphs.limits import Limits
from tvmtarget.partition.subgraphs.portfolio import form_subgraphs, fuse_subgraphs
from tvmtarget.partition.subgraphs.typed_fusion import LabeledGraph
from tvmtarget.target.tree_paths import covers

__all__ = ["best_subgraphs", "labeled_with_cuts", "quick_subgraphs", "subgraphs_of_level"]

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
    if choice.subgraphs and not level.is_divided:
        labeled, limits, _ = labeled_with_cuts(level, choice.chosen, launches)
        cuts = ([vertex] for vertex in range(len(level.atoms), len(labeled.graph)))
        found = fuse_subgraphs(labeled, [*choice.subgraphs, *cuts], choice.kept)
        return _atoms_only(level, level.limiter.split_all(found, labeled.labels, limits))
    key = digest(*decision_inputs(level), choice.chosen, launches)
    return [
        [*subgraph]
        for subgraph in cache.find(
            "divisions into subgraphs", key, lambda: best_subgraphs(level, choice.chosen, launches)
        )
    ]


def best_subgraphs(level: Level, chosen: Sequence[int], launches: Sequence[int]) -> list[list[int]]:
    """Form the best subgraphs by all methods; those of a module that is partitioned stay.

    Args:
        level: atoms of one system.
        chosen: option of each atom.
        launches: cost of a call, by option.

    Returns:
        Subgraphs as lists of atoms, in execution order.
    """
    if level.is_divided:
        return [[atom] for atom in range(len(level.atoms))]
    labeled, limits, costs = labeled_with_cuts(level, chosen, launches)
    return _atoms_only(level, form_subgraphs(labeled, limits, costs, level.limiter, level.values))


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
    labeled, limits, costs = labeled_with_cuts(level, chosen, launches)
    free = frozenset(option for option, launch in enumerate(costs) if not launch)
    first = (free, frozenset[int]()) if free and len(costs) > 2 else (free,)
    candidates = (
        level.limiter.split_all(labeled.fused(early), labeled.labels, limits)
        for early in (first if len(chosen) <= MANY else first[-1:])
    )
    return min(
        (_atoms_only(level, candidate) for candidate in candidates),
        key=lambda subgraphs: sum(launches[chosen[subgraph[0]]] for subgraph in subgraphs),
    )


def _uncosted(level: Level) -> list[int]:
    """Return launch costs where none are known: fewest calls are best, then most calls on the host."""
    most = len(level.atoms)
    return [most + (not covers(option.path, level.site.host)) for option in level.options]


def labeled_with_cuts(
    level: Level, chosen: Sequence[int], launches: Sequence[int]
) -> tuple[LabeledGraph, Sequence[Limits], Sequence[int]]:
    """Return the labeled graph of a level, with a vertex of one more label at each forced cut.

    Args:
        level: the atoms and options of one system.
        chosen: the option of each atom.
        launches: cost of a call of each option.

    Returns:
        The graph, and by label the limits and launch costs; the label at cuts has none.
    """
    # A cut separates functions of leaves. One call of a system may run both atoms: its own level separates them.
    cuts = [(a, b) for a, b in level.cuts if chosen[a] != chosen[b] or not level.options[chosen[a]].is_system]
    if not cuts:
        return level.graph.labeled(chosen), level.limits, launches
    graph = level.cut_graph if len(cuts) == len(level.cuts) else graph_with_cuts(level.graph, cuts)
    labels = [*chosen, *[len(launches)] * len(cuts)]
    return graph.labeled(labels), (*level.limits, Limits()), (*launches, 0)


def _atoms_only(level: Level, subgraphs: list[list[int]]) -> list[list[int]]:
    """Leave out the vertices at forced cuts."""
    return [subgraph for subgraph in subgraphs if subgraph[0] < len(level.atoms)] if level.cuts else subgraphs
