"""The result of splitting a function over a target: a tree of subgraphs that follows the tree of sites."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tvmtarget.partition.subgraphs.lower_bound import lower_bound
from tvmtarget.target.topology import Site

if TYPE_CHECKING:
    from tvmtarget.partition.decisions import Decision
    from tvmtarget.partition.subgraphs.typed_fusion import LabeledGraph

__all__ = ["PartitionNode"]


@dataclass(frozen=True, slots=True)
class PartitionNode:
    """Operations that one site runs in one call, in the order it runs them; `parts` are the subgraphs in a system.

    Where the driver of a system runs an operation with nested bodies, that is the only call of a subgraph which has the
    system's site, and `bodies` are how the system divides them.
    `labeled` is the graph that was divided into the parts, None where nothing was to divide;
    `least_time` are picoseconds that no choice of sites can go below, None where nothing says so. `device` is the
    path of the device, for device code and for work that its host takes over; with parts it is the host that drives.
    """

    site: Site
    calls: tuple[int, ...]
    parts: tuple[PartitionNode, ...] = ()
    labeled: LabeledGraph | None = field(default=None, compare=False, repr=False)
    least_time: int | None = None
    bodies: tuple[PartitionNode, ...] = ()
    device: str | None = None
    decisions: tuple[Decision, ...] = ()

    @property
    def least_parts(self) -> int:
        """A number of parts that no division can go below, given the sites of the operations.

        It is computed at each access: in programs of 100,000 operations that takes 0.1 to 0.3 seconds.
        """
        return min(1, len(self.parts)) if self.labeled is None else lower_bound(self.labeled, len(self.parts))

    @property
    def is_leaf(self) -> bool:
        """Whether this is one function of operations, not one that drives others, nor a part of its driver."""
        return not self.site.is_system and not self.parts and not self.bodies

    def walk(self) -> Iterator[PartitionNode]:
        """Yield this and all subgraphs in it, in the order in which they run."""
        yield self
        for inner in (*self.parts, *self.bodies):
            yield from inner.walk()
