"""Partitions of an earlier plan that hold again after an edit, because nothing changed that they depend on."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.decisions import Decision
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.partition_node import PartitionNode
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.quantized_units import has_quantized_units

__all__ = ["KnownPartition", "differ_in_ops_only"]

# What an edit of single operations changes in a program.
_EDITED = frozenset({"function", "scopes", "body", "constants", "edit"})


@dataclass(frozen=True, eq=False)
class KnownPartition:
    """A partition, and what it was made for.

    Attributes:
        feasibility: what fits where, with the program.
        estimates: estimated times, if sites were chosen by costs.
        root: the partition.
        decisions: the records of all levels.
    """

    feasibility: Feasibility
    estimates: Estimates | None
    root: PartitionNode
    decisions: tuple[Decision, ...]

    def is_of(self, feasibility: Feasibility, estimates: Estimates | None) -> bool:
        """Return whether a program has the same partition, if sites are chosen in the same way.

        Args:
            feasibility: what fits where, with the program.
            estimates: estimated times, if sites are chosen by costs.

        Returns:
            False where that is not certain.
        """
        before, after = self.feasibility.program, feasibility.program
        return (
            differ_in_ops_only(before, after)
            and before.is_ordered_as(after)
            and _depends_on_support_only(feasibility)
            and _depends_on_support_only(self.feasibility)
            and feasibility.assumptions == self.feasibility.assumptions
            and np.array_equal(feasibility.supported, self.feasibility.supported)
            and _have_equal_times(self.estimates, estimates)
            # Reasons may contain names of operations.
            and (not self.decisions or _names(before) == _names(after))
        )


def differ_in_ops_only(before: FlatProgram, after: FlatProgram) -> bool:
    """Return whether programs without regions differ in operations and data only.

    Args:
        before: a program.
        after: what an edit of single operations made of it (`local_edit.py`).

    Returns:
        Whether requirements, sites, the types of values, and who reads them are those of `before`.
    """
    same = (field.name for field in fields(FlatProgram) if field.name not in _EDITED)
    return not before.bodies and all(getattr(before, name) is getattr(after, name) for name in same)


def _depends_on_support_only(feasibility: Feasibility) -> bool:
    """Whether levels see nothing of an operation but which leaves support it, and its times."""
    strategies = [feasibility.strategy(leaf) for leaf in feasibility.leaves]
    return not (
        feasibility.groups.all
        or feasibility.groups.rejected
        or feasibility.splits
        or has_quantized_units(feasibility.program)
        or any(one is not None and (one.checks_subgraphs or one.accepts == "device") for one in strategies)
    )


def _have_equal_times(one: Estimates | None, other: Estimates | None) -> bool:
    if one is None or other is None:
        return one is other
    costs = one.costs
    if costs is not other.costs and costs != other.costs:
        return False
    if one.has_errors or costs.subgraphs or one.capacities():
        return False
    return all(one.times_by_op(leaf) == other.times_by_op(leaf) for leaf in other.leaves)


def _names(program: FlatProgram) -> list[str]:
    return [call.source for call in program.body]
