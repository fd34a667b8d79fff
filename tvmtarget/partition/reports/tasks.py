"""Tuning tasks of a plan: leaf functions that differ in structure or in the code generated for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tvmtarget.ir.module import IRModule
from tvmtarget.ir.structure import structural_hash
from tvmtarget.partition.outline.outlining import SubgraphRecord
from tvmtarget.target.keys import codegen_key
from tvmtarget.target.topology import Topology

__all__ = ["Task", "tasks_of"]


@dataclass(frozen=True, slots=True)
class Task:
    """Leaf functions of one structure (weights apart) for leaves of one `codegen_key`; `weight` is the number of calls.

    `subgraphs` are all calls of such functions, the first one first.
    """

    structure: str
    codegen_key: str
    subgraphs: tuple[SubgraphRecord, ...]

    @property
    def weight(self) -> int:
        """Number of calls in one run of the program."""
        return len(self.subgraphs)

    @property
    def subgraph(self) -> SubgraphRecord:
        """The first of the subgraphs."""
        return self.subgraphs[0]


def tasks_of(module: IRModule, topology: Topology, subgraphs: Iterable[SubgraphRecord]) -> tuple[Task, ...]:
    """Group the leaf functions of a plan into tuning tasks.

    Args:
        module: the decomposed module.
        topology: its sites.
        subgraphs: the calls of its leaf functions, in order.

    Returns:
        The tasks, in the order of their first call.
    """
    found: dict[tuple[str, str], list[SubgraphRecord]] = {}
    for subgraph in subgraphs:
        # What is measured for a kernel does not depend on the values of weights, nor on the constraints that placed it.
        structure = structural_hash(module[subgraph.function], module.by_name, strip_constraints=True, weights=False)
        found.setdefault((structure, codegen_key(topology[subgraph.site].target)), []).append(subgraph)
    return tuple(Task(structure, key, tuple(calls)) for (structure, key), calls in found.items())
