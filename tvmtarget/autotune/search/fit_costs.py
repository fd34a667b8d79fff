"""Times of operations, fitted to the measured times of subgraphs.

The time of a subgraph is that of its call and of its operations. First it is divided by the work of these. Then, in
sweeps over all subgraphs, the times of a subgraph's operations are scaled until they add up to its measured time
(iterative proportional fitting, Deming and Stephan 1940), so that a slow operation is found by the subgraphs that have
it and those that do not. Operations of one structure take the same time on one site.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TypeAlias

from tvmtarget.autotune.search.candidate_plans import weight
from tvmtarget.partition.costs.costs import OpCost, SubgraphCost, structure_of
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.plan import Plan

__all__ = ["Run", "fit_op_costs", "subgraph_costs"]

SWEEPS = 30
LEAST_SHARE = 0.02  # of a subgraph's time that its operations take at least, however large the launch cost

Key: TypeAlias = tuple[str, str]
# A plan that ran, and picoseconds of each of its functions.
Run: TypeAlias = tuple[Plan, Mapping[str, float]]


def fit_op_costs(estimates: Estimates, runs: Sequence[Run]) -> list[OpCost]:
    """Return a time for each structure of operation and site that ran.

    Subgraphs may contradict each other, because an operation is fused in one of them; plans with fewer subgraphs are
    fitted last and win.

    Args:
        estimates: the program, and the launch costs of its sites.
        runs: plans that ran, with the picoseconds of each of their functions.

    Returns:
        Costs in microseconds.
    """
    program = estimates.program
    structures = [structure_of(program.op(index)) for index in range(len(program.body))]
    subgraphs: list[tuple[list[Key], float]] = []
    shares: dict[Key, list[float]] = {}
    for plan, times in sorted(runs, key=lambda run: -len(run[0].subgraphs)):
        for subgraph in plan.subgraphs:
            whole = times.get(subgraph.function, 0)
            if not whole:
                continue
            left = max(whole - estimates.launch(program.topology[subgraph.site]), LEAST_SHARE * whole)
            weights = [weight(estimates.work(index)) for index in subgraph.calls]
            keys = [(structures[index], subgraph.site) for index in subgraph.calls]
            subgraphs.append((keys, left))
            for key, own in zip(keys, weights, strict=True):
                shares.setdefault(key, []).append(left * own / sum(weights))
    found = {key: mean(times) for key, times in shares.items()}
    for _ in range(SWEEPS):
        for keys, left in subgraphs:
            ratio = left / max(1.0, sum(found[key] for key in keys))
            for key in set(keys):
                found[key] *= ratio
    return [
        OpCost(site, structure=structure, time=time / 10**6, origin="measured")
        for (structure, site), time in found.items()
    ]


def subgraph_costs(runs: Sequence[Run]) -> list[SubgraphCost]:
    """Return the times of whole subgraphs by structure and site.

    Args:
        runs: plans that ran, with the picoseconds of each of their functions.

    Returns:
        Costs in microseconds, the means of equal subgraphs.
    """
    found: dict[Key, list[float]] = {}
    for plan, times in runs:
        for task in plan.tasks():
            for subgraph in task.subgraphs:
                if times.get(subgraph.function):
                    found.setdefault((subgraph.site, task.structure), []).append(times[subgraph.function])
    return [
        SubgraphCost(site, structure, mean(taken) / 10**6, origin="measured")
        for (site, structure), taken in found.items()
    ]
