"""Split a mixed function into a driver on the host, device functions, and host functions."""

from __future__ import annotations

from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.host_device.classify import ops_for_host
from tvmtarget.partition.partition_node import PartitionNode
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.level import atom_graph
from tvmtarget.partition.subgraphs.limits import Limiter, limits_of
from tvmtarget.partition.values import owner_array, values_of
from tvmtarget.target.topology import Site

__all__ = ["split_mixed_function"]

# Labels of the operations of a mixed function: what runs them. The driver calls the functions of the other two.
DEVICE, HOST, DRIVER = range(3)


def split_mixed_function(
    program: FlatProgram, feasibility: Feasibility, site: Site, calls: tuple[int, ...], *, is_body: bool = False
) -> PartitionNode:
    """Split a mixed function into a driver, device functions and host functions.

    Args:
        program: the program.
        feasibility: which site supports which operation, and whether all mixed functions are split.
        site: the device.
        calls: operations of the function, by number.
        is_body: whether the function is a region of a driven operation.

    Returns:
        The partition of the function; a single leaf if it is not split.
    """
    on_host = ops_for_host(program, site, calls, feasibility.strategy(site), always=feasibility.splits)
    if on_host is None:
        return PartitionNode(site, calls)
    driven = frozenset(
        index for index in calls if index not in on_host and _is_driven(program, feasibility, index, site)
    )
    if not on_host and not driven and site.path and not feasibility.splits and not is_body:
        return PartitionNode(site, calls, device=site.path)  # its caller drives it
    sides = (site, program.topology[site.host], site)
    chosen = [DRIVER if index in driven else HOST if index in on_host else DEVICE for index in calls]
    limits = [limits_of(side, is_driver=number == DRIVER) for number, side in enumerate(sides)]
    atoms = [(index,) for index in calls]
    labeled = atom_graph(program, atoms).labeled(chosen)
    limiter = Limiter(
        labeled.graph.successors,
        atoms,
        values_of(program.dataflow(calls), owner_array(len(program.body), atoms), len(atoms)),
    )
    groups = limiter.split_all(labeled.fused(), chosen, limits)
    parts = tuple(
        _driven_operation(program, feasibility, site, operations)
        if chosen[group[0]] == DRIVER
        else PartitionNode(sides[chosen[group[0]]], operations, device=site.path)
        for group in groups
        for operations in [tuple(sorted(calls[atom] for atom in group))]
    )
    in_order = tuple(index for part in parts for index in part.calls)
    return PartitionNode(site, in_order, parts, labeled, device=site.path)


def _driven_operation(
    program: FlatProgram, feasibility: Feasibility, site: Site, calls: tuple[int, ...]
) -> PartitionNode:
    """Return the partition of an operation that the driver runs, with its regions split as well."""
    bodies = tuple(
        split_mixed_function(program, feasibility, site, tuple(scope.calls), is_body=True)
        for scope in program.bodies[calls[0]]
    )
    return PartitionNode(site, calls, bodies=bodies, device=site.path)


def _is_driven(program: FlatProgram, feasibility: Feasibility, index: int, site: Site) -> bool:
    """Whether the driver of a device runs an operation with regions, because the device cannot or should not."""
    if index not in program.bodies or feasibility.reason_not_driven(index, site) is not None:
        return False
    strategy = feasibility.strategy(site)
    return feasibility.splits or (strategy is not None and strategy.check(program.op(index)) is not None)
