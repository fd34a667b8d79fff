"""Assign all leaves of a nested tree at once: one level whose options are the leaves, then split by level.

A decision level by level cannot see what a system gains by an operation of another one. Copies between leaves cost what
the drivers between them copy, which is exact as long as each system gets one subgraph.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.placement.by_cost import CostChooser
from tvmtarget.partition.placement.coupled_atoms import CoupledOps
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.level import level_of

__all__ = ["joint_sites"]

# More leaves are decided level by level only, because tables of copies grow with their square. So are programs of more
# operations: a system gets many calls there, which the joint choice does not know.
MAX_LEAVES, MAX_OPS = 24, 2000


def joint_sites(feasibility: Feasibility, estimates: Estimates, coupled: CoupledOps) -> Mapping[str, str] | None:
    """Return the leaves of all operations, chosen together by cost.

    Args:
        feasibility: which leaf can run which operation.
        estimates: times of operations, calls and copies.
        coupled: requests that couple operations.

    Returns:
        Paths of leaves by operation name, without operations whose regions a driver runs; None where leaves or
        operations are too many, or atoms fit none.
    """
    program = feasibility.program
    leaves = feasibility.leaves
    if len(leaves) > MAX_LEAVES or len(program.top) > MAX_OPS:
        return None
    try:
        level = level_of(program, feasibility, program.topology[""], program.top, leaves)
        chosen = CostChooser(feasibility, estimates, coupled, bounds=False)(level).chosen
    except InfeasibleError:
        return None
    return {
        program.body[index].source: level.options[option].path
        for atom, option in zip(level.atoms, chosen, strict=True)
        if level.options[option] is not level.site
        for index in atom
    }
