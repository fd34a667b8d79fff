"""A site that may get so many calls at most: the subgraphs that bring least go elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.outline.outlining import SubgraphRecord
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.target.topology import Site

__all__ = ["ops_of", "others_for", "over_budget", "saved_by"]


def over_budget(
    feasibility: Feasibility,
    estimates: Estimates | None,
    subgraphs: Iterable[SubgraphRecord],
    limits: Iterable[tuple[str, Collection[str], int]],
) -> Mapping[int, frozenset[str]]:
    """Return the operations that should leave sites which get too many calls, each with the leaves to leave.

    `limits` are a name, the leaves that it means, and the most calls of these. Subgraphs with the fewest operations go
    first; with costs, those with the least time to lose. `InfeasibleError` if too many have nowhere else to go.
    """
    found: dict[int, frozenset[str]] = {}
    listed = list(subgraphs)
    for name, leaves, most in limits:
        here = [subgraph for subgraph in listed if subgraph.site in leaves]
        free = [subgraph for subgraph in here if not _stuck(feasibility, subgraph, leaves)]
        surplus = len(here) - most
        if surplus > len(free):
            held = next(subgraph for subgraph in here if subgraph not in free)
            op = _stuck(feasibility, held, leaves)[0]
            source = feasibility.program.body[op].source
            raise InfeasibleError(
                f"{name!r} gets {len(here)} subgraphs, and at most {most} are asked for, but some can go nowhere else, "
                f"such as op {source!r}; allow {len(here) - len(free)}, or its operations elsewhere"
            )
        free.sort(key=lambda subgraph: _gain(feasibility, estimates, subgraph, leaves))
        for subgraph in free[: max(0, surplus)]:
            for index in ops_of(feasibility, subgraph.calls):
                found[index] = found.get(index, frozenset()) | frozenset(leaves)
    return found


def ops_of(feasibility: Feasibility, calls: Sequence[int]) -> list[int]:
    """List operations with all in their nested bodies, in the place of those that have some."""
    program = feasibility.program
    return [index for index in program.with_nested(calls) if index not in program.bodies]


def others_for(feasibility: Feasibility, index: int, leaves: Collection[str]) -> list[Site]:
    """List the leaves beside some that can take an operation."""
    able = (leaf for leaf in feasibility.leaves if leaf.path not in leaves)
    return [leaf for leaf in able if feasibility.unsupported_reason(index, leaf) is None]


def saved_by(
    feasibility: Feasibility, estimates: Estimates, ops: Sequence[int], here: Site, leaves: Collection[str]
) -> int:
    """Return what operations save here against the best leaf beside some, in picoseconds, as far as is known."""
    saved = 0
    for index in ops:
        own = estimates.time(index, here).time
        times = [estimates.time(index, leaf).time for leaf in others_for(feasibility, index, leaves)]
        known = [time for time in times if time is not None]
        if own is not None and known:
            saved += min(known) - own
    return saved


def _stuck(feasibility: Feasibility, subgraph: SubgraphRecord, leaves: Collection[str]) -> list[int]:
    """List the operations of a subgraph that can go nowhere else."""
    return [index for index in ops_of(feasibility, subgraph.calls) if not others_for(feasibility, index, leaves)]


def _gain(
    feasibility: Feasibility, estimates: Estimates | None, subgraph: SubgraphRecord, leaves: Collection[str]
) -> tuple[int, int]:
    """Return what a subgraph saves here, in picoseconds, then how many operations it has."""
    ops, here = ops_of(feasibility, subgraph.calls), feasibility.program.topology[subgraph.site]
    return 0 if estimates is None else saved_by(feasibility, estimates, ops, here, leaves), len(ops)
