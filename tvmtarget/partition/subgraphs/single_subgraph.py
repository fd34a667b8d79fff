"""Sites whose code generator compiles a single program: keep the best convex set of operations, move the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.control.scopes import Scope
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.outline.outlining import SubgraphRecord
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.subgraphs.convexity import best_convex_subset
from tvmtarget.partition.subgraphs.subgraph_budget import alternative_leaves, ops_of, time_saved
from tvmtarget.target.topology import Site

__all__ = ["leaving_ops", "split_programs"]


def leaving_ops(
    feasibility: Feasibility, estimates: Estimates | None, subgraphs: Sequence[SubgraphRecord]
) -> Mapping[int, frozenset[str]]:
    """Find the operations that must leave sites which compile a single program.

    Such a site has several subgraphs in the current plan. The convex set with most operations stays, or with costs the
    one that saves most time. If it cannot be found within the work limit, or is all there is (so that another limit
    caused the split), the most profitable subgraph stays.

    Args:
        feasibility: which leaf supports which operation.
        estimates: run times by the cost model; None if sites were chosen by preference.
        subgraphs: subgraphs of the current plan.

    Returns:
        For each operation, by number, the path of the leaf that it must leave.

    Raises:
        InfeasibleError: an operation that no other leaf supports is not in the set.
    """
    found: dict[int, frozenset[str]] = {}
    for leaf, here in split_programs(feasibility, subgraphs):
        calls = [index for subgraph in here for index in subgraph.calls]
        immovable = [index for index in calls if _is_immovable(feasibility, index, leaf)]
        kept = _kept(feasibility, here, _gains(feasibility, estimates, calls, immovable, leaf))
        if not kept.issuperset(immovable):
            raise InfeasibleError(_error(feasibility, leaf, immovable, len(here)))
        leaving = ops_of(feasibility, [index for index in calls if index not in kept])
        found |= dict.fromkeys(leaving, frozenset((leaf.path,)))
    return found


def split_programs(
    feasibility: Feasibility, subgraphs: Sequence[SubgraphRecord]
) -> list[tuple[Site, list[SubgraphRecord]]]:
    """Find the sites which compile a single program but have several subgraphs.

    Args:
        feasibility: which leaf supports which operation.
        subgraphs: subgraphs of a plan.

    Returns:
        The leaves, each with its subgraphs.
    """
    by_path: dict[str, list[SubgraphRecord]] = {}
    for subgraph in subgraphs:
        by_path.setdefault(subgraph.site, []).append(subgraph)
    several = [(leaf, by_path[leaf.path]) for leaf in feasibility.leaves if len(by_path.get(leaf.path, ())) > 1]
    strategies = [(leaf, here, feasibility.strategy(leaf)) for leaf, here in several]
    return [(leaf, here) for leaf, here, one in strategies if one is not None and one.subgraphs == "program"]


def _is_immovable(feasibility: Feasibility, index: int, leaf: Site) -> bool:
    return not all(alternative_leaves(feasibility, one, (leaf.path,)) for one in ops_of(feasibility, (index,)))


def _gains(
    feasibility: Feasibility, estimates: Estimates | None, calls: Sequence[int], immovable: Sequence[int], leaf: Site
) -> dict[int, int]:
    """Return the gain of keeping each operation: time saved, then operations inside it; largest if it cannot move."""
    ops = {index: ops_of(feasibility, (index,)) for index in calls}
    gains = {index: len(inner) for index, inner in ops.items()}
    if estimates is not None:
        for index, inner in ops.items():
            # Weighted so that the number of operations decides only between nearly equal times.
            gains[index] += len(calls) * time_saved(feasibility, estimates, inner, leaf, (leaf.path,))
    # Larger than all other gains together, so that the set contains what cannot move.
    forced = 1 + sum(map(abs, gains.values()))
    return gains | {index: gains[index] + forced for index in immovable}


def _kept(feasibility: Feasibility, subgraphs: Sequence[SubgraphRecord], gains: Mapping[int, int]) -> frozenset[int]:
    """Return the operations that stay: a proper subset of all."""
    program = feasibility.program
    candidates = [frozenset(subgraph.calls) for subgraph in subgraphs]
    for calls in dict.fromkeys(program.scope_of(index).calls for index in gains):
        own = {index: gain for index, gain in gains.items() if index in calls}
        best = _best(feasibility, program.scope_of(calls[0]), own)
        if best and len(best) < len(gains):
            candidates.append(best)
    return max(
        candidates, key=lambda candidate: (sum(map(gains.__getitem__, candidate)), len(candidate), -min(candidate))
    )


def _best(feasibility: Feasibility, scope: Scope, gains: Mapping[int, int]) -> frozenset[int]:
    """Return the convex set of operations of one region with the largest gain; empty if that takes too long."""
    program, start = feasibility.program, scope.calls.start
    edges = [(before - start, index - start) for index in scope.calls for before in program.predecessors(index)]
    groups = (*(group.calls for group in feasibility.groups.all), *program.atomic)
    together = [[index - start for index in group] for group in groups if group[0] in scope.calls]
    shifted = {index - start: gain for index, gain in gains.items()}
    found = best_convex_subset([edge for edge in edges if min(edge) >= 0], len(scope.calls), shifted, together)
    return frozenset(start + vertex for vertex in found or ())


def _error(feasibility: Feasibility, leaf: Site, immovable: Sequence[int], count: int) -> str:
    names = ", ".join(repr(feasibility.program.body[index].source) for index in immovable[:4])
    return (
        f"@{leaf.path or '.'} takes one whole program, and would get {count} subgraphs, as ops {names} can go nowhere "
        "else; give the target another site that takes them"
    )
