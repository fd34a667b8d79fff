"""Sites whose code generator takes one whole program: the best part of what they would get stays, the rest leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.control.scopes import Scope
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.outline.outlining import SubgraphRecord
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.subgraphs.convexity import best_convex_subset
from tvmtarget.partition.subgraphs.subgraph_budget import ops_of, others_for, saved_by
from tvmtarget.target.topology import Site

__all__ = ["leaving_ops"]


def leaving_ops(
    feasibility: Feasibility, estimates: Estimates | None, subgraphs: Sequence[SubgraphRecord]
) -> Mapping[int, frozenset[str]]:
    """Return the operations that should leave sites which take one program, and get several, each with its site.

    What stays is the part with most operations, or by costs with most time saved, that can be one function; where a cap
    or the like hinders that, the subgraph that brings most. `InfeasibleError` for operations that can go nowhere else.
    """
    found: dict[int, frozenset[str]] = {}
    for leaf in feasibility.leaves:
        strategy = feasibility.strategy(leaf)
        here = [subgraph for subgraph in subgraphs if subgraph.site == leaf.path]
        if strategy is not None and strategy.subgraphs == "program" and len(here) > 1:
            calls = [index for subgraph in here for index in subgraph.calls]
            stuck = [index for index in calls if _is_stuck(feasibility, index, leaf)]
            kept = _kept(feasibility, here, _gains(feasibility, estimates, calls, stuck, leaf))
            if not kept.issuperset(stuck):
                raise InfeasibleError(_refusal(feasibility, leaf, stuck, len(here)))
            leaving = ops_of(feasibility, [index for index in calls if index not in kept])
            found |= dict.fromkeys(leaving, frozenset((leaf.path,)))
    return found


def _is_stuck(feasibility: Feasibility, index: int, leaf: Site) -> bool:
    return not all(others_for(feasibility, one, (leaf.path,)) for one in ops_of(feasibility, (index,)))


def _gains(
    feasibility: Feasibility, estimates: Estimates | None, calls: Sequence[int], stuck: Sequence[int], leaf: Site
) -> dict[int, int]:
    """Return what each operation brings on a leaf: picoseconds, or how many it stands for; most if it has to stay."""
    ops = {index: ops_of(feasibility, (index,)) for index in calls}
    gains = {index: len(inner) for index, inner in ops.items()}
    if estimates is not None:
        for index, inner in ops.items():
            gains[index] += len(calls) * saved_by(feasibility, estimates, inner, leaf, (leaf.path,))
    most = 1 + sum(map(abs, gains.values()))
    return gains | {index: gains[index] + most for index in stuck}


def _kept(feasibility: Feasibility, subgraphs: Sequence[SubgraphRecord], gains: Mapping[int, int]) -> frozenset[int]:
    """Return the operations that stay: fewer than there are."""
    program = feasibility.program
    ways = [frozenset(subgraph.calls) for subgraph in subgraphs]
    for calls in dict.fromkeys(program.scope_of(index).calls for index in gains):
        own = {index: gain for index, gain in gains.items() if index in calls}
        best = _best(feasibility, program.scope_of(calls[0]), own)
        if best and len(best) < len(gains):
            ways.append(best)
    return max(ways, key=lambda way: (sum(map(gains.__getitem__, way)), len(way), -min(way)))


def _best(feasibility: Feasibility, scope: Scope, gains: Mapping[int, int]) -> frozenset[int]:
    """Return the operations of a body with most gain that can be one function; none where that takes too long."""
    program, start = feasibility.program, scope.calls.start
    edges = [(before - start, index - start) for index in scope.calls for before in program.predecessors(index)]
    groups = (*(group.calls for group in feasibility.groups.all), *program.atomic)
    together = [[index - start for index in group] for group in groups if group[0] in scope.calls]
    shifted = {index - start: gain for index, gain in gains.items()}
    found = best_convex_subset([edge for edge in edges if min(edge) >= 0], len(scope.calls), shifted, together)
    return frozenset(start + vertex for vertex in found or ())


def _refusal(feasibility: Feasibility, leaf: Site, stuck: Sequence[int], count: int) -> str:
    names = ", ".join(repr(feasibility.program.body[index].source) for index in stuck[:4])
    return (
        f"@{leaf.path or '.'} takes one whole program, and would get {count} subgraphs, as ops {names} can go nowhere "
        "else; give the target another site that takes them"
    )
