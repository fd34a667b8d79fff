"""Limits on the number of subgraphs of a site: move the least profitable subgraphs elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tvmtarget.errors import InfeasibleError
from tvmtarget.human_units import counted
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.outline.outlining import SubgraphRecord
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.target.topology import Site

__all__ = ["alternative_leaves", "ops_of", "over_budget", "time_saved"]


def over_budget(
    feasibility: Feasibility,
    estimates: Estimates | None,
    subgraphs: Iterable[SubgraphRecord],
    limits: Iterable[tuple[str, Collection[str], int]],
) -> Mapping[int, frozenset[str]]:
    """Return the operations that must leave sites with too many subgraphs.

    Subgraphs with the fewest operations go first; with costs, those with the least time to lose.

    Args:
        feasibility: which leaf supports which operation.
        estimates: run times by the cost model; None if sites were chosen by preference.
        subgraphs: subgraphs of the current plan.
        limits: for each limit its name in errors, the paths of the leaves that it applies to, and the largest number
            of subgraphs that these may have together.

    Returns:
        For each operation, by number, the paths of the leaves that it must leave.

    Raises:
        InfeasibleError: too many subgraphs hold an operation that no other leaf supports.
    """
    found: dict[int, frozenset[str]] = {}
    all_subgraphs = list(subgraphs)
    for name, leaves, max_subgraphs in limits:
        here = [subgraph for subgraph in all_subgraphs if subgraph.site in leaves]
        movable = [subgraph for subgraph in here if not _immovable(feasibility, subgraph, leaves)]
        surplus = len(here) - max_subgraphs
        if surplus > len(movable):
            blocked = next(subgraph for subgraph in here if subgraph not in movable)
            op = _immovable(feasibility, blocked, leaves)[0]
            source = feasibility.program.body[op].source
            raise InfeasibleError(
                f"{name!r} gets {counted(len(here), 'subgraph')}, more than {max_subgraphs}, and some can go nowhere "
                f"else, such as op {source!r}; allow {len(here) - len(movable)}, or its operations elsewhere"
            )
        movable.sort(key=lambda subgraph: _gain(feasibility, estimates, subgraph, leaves))
        for subgraph in movable[: max(0, surplus)]:
            for index in ops_of(feasibility, subgraph.calls):
                found[index] = found.get(index, frozenset()) | frozenset(leaves)
    return found


def ops_of(feasibility: Feasibility, calls: Sequence[int]) -> list[int]:
    """Replace operations that have regions by the operations in these.

    Args:
        feasibility: feasibility of the program.
        calls: numbers of operations.

    Returns:
        Numbers of operations without regions.
    """
    program = feasibility.program
    return [index for index in program.with_nested(calls) if index not in program.bodies]


def alternative_leaves(feasibility: Feasibility, index: int, leaves: Collection[str]) -> list[Site]:
    """Find the other leaves that support an operation.

    Args:
        feasibility: which leaf supports which operation.
        index: number of the operation.
        leaves: paths of the leaves to leave out.

    Returns:
        Leaves in order of preference.
    """
    others = (leaf for leaf in feasibility.leaves if leaf.path not in leaves)
    return [leaf for leaf in others if feasibility.unsupported_reason(index, leaf) is None]


def time_saved(
    feasibility: Feasibility, estimates: Estimates, ops: Sequence[int], here: Site, leaves: Collection[str]
) -> int:
    """Compare a site with the best alternative of each operation, by run time.

    Operations count nothing where the time on the site, or on every alternative, is unknown.

    Args:
        feasibility: which leaf supports which operation.
        estimates: run times by the cost model.
        ops: numbers of operations without regions.
        here: the site.
        leaves: paths of leaves that are no alternative.

    Returns:
        Time saved in picoseconds; negative if alternatives are faster.
    """
    saved = 0
    for index in ops:
        own = estimates.time(index, here).time
        times = [estimates.time(index, leaf).time for leaf in alternative_leaves(feasibility, index, leaves)]
        known = [time for time in times if time is not None]
        if own is not None and known:
            saved += min(known) - own
    return saved


def _immovable(feasibility: Feasibility, subgraph: SubgraphRecord, leaves: Collection[str]) -> list[int]:
    """Return the operations of a subgraph that no other leaf supports."""
    return [
        index for index in ops_of(feasibility, subgraph.calls) if not alternative_leaves(feasibility, index, leaves)
    ]


def _gain(
    feasibility: Feasibility, estimates: Estimates | None, subgraph: SubgraphRecord, leaves: Collection[str]
) -> tuple[int, int]:
    """Return the time that a subgraph saves here, in picoseconds, then the number of its operations."""
    ops, here = ops_of(feasibility, subgraph.calls), feasibility.program.topology[subgraph.site]
    return 0 if estimates is None else time_saved(feasibility, estimates, ops, here, leaves), len(ops)
