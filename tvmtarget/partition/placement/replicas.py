"""Let idle machines take over stages of a stream: replicas, each of which runs the stage for some of the inputs.

Input number i of a stream goes to replica i mod n of a stage with n of them. The stage of the busiest machine gets
another one until no idle machine could take its place, which is optimal for given stages: the load of a stage depends
on the number of its own replicas alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvmtarget.ir.function import COPY
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.types import Type
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.machines.machine import Machine, Machines
from tvmtarget.partition.machines.programs import REPLICAS, machines_of_call
from tvmtarget.partition.machines.throughput import Throughput
from tvmtarget.partition.options import PartitionOptions
from tvmtarget.partition.outline.outlining import Outlined, SubgraphRecord
from tvmtarget.partition.placement.constraint_paths import leaves_at
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.target.topology import Site

__all__ = ["add_replicas"]


def add_replicas(
    module: IRModule,
    throughput: Throughput,
    feasibility: Feasibility,
    estimates: Estimates,
    outlined: Outlined,
    options: PartitionOptions,
) -> IRModule:
    """Give the stages of the busiest machines to idle machines, too.

    A machine can take the place of another if both are equal children of the root, each with a host and memories of its
    own, with the same times of operations, calls and transfers, and if no constraint keeps the operations off it and
    `max_subgraphs` limits neither. The machine that has the inputs and results has no replica, nor has one with
    effects, whose order would be lost.

    Args:
        module: partitioned module.
        throughput: its throughput without replicas.
        feasibility: which site can run which operation.
        estimates: times of operations, calls and copies.
        outlined: records of the subgraphs and copies of the module.
        options: the most replicas of a machine, and limits of sites.

    Returns:
        The module, with replicas as an attribute of its root's driver if there are any.
    """
    candidates = _Candidates(module, feasibility, estimates, outlined, options)
    loads = {stage.machine: stage.busy for stage in throughput.stages}
    found = {path: [path] for path in loads}
    idle = [machine for machine in candidates.machines.working if machine.path not in candidates.active]
    while True:
        busiest = max(found, key=lambda path: loads[path] / len(found[path]))
        substitute = next((one for one in idle if candidates.can_replace(busiest, one)), None)
        if substitute is None or len(found[busiest]) == options.max_replicas:
            break
        idle.remove(substitute)
        found.pop(substitute.path)
        found[busiest].append(substitute.path)
    groups = tuple(tuple(group) for group in found.values() if len(group) > 1)
    if not groups:
        return module
    driver = module.main.replace(attrs=(*module.main.attrs, (REPLICAS, groups)))
    return module.replace(functions=(driver, *module.functions[1:]))


@dataclass(frozen=True)
class _Transfer:
    """A copy between machines: its type, and the memories at its ends."""

    type: Type
    src: str
    dst: str


class _Candidates:
    """Decides which idle machines can take the place of others in a module."""

    def __init__(
        self,
        module: IRModule,
        feasibility: Feasibility,
        estimates: Estimates,
        outlined: Outlined,
        options: PartitionOptions,
    ) -> None:
        self.module = module
        self.feasibility = feasibility
        self.estimates = estimates
        self.topology = feasibility.program.topology
        self.machines = Machines(self.topology)
        self.by_path = {machine.path: machine for machine in self.machines}
        limited = {leaf for name in options.max_subgraphs for leaf in leaves_at(name, self.topology)}
        self.limited = {self.machines.of_site(leaf) for leaf in limited}
        self.active: set[str] = set()
        self.fixed = {self.machines.home}
        self.transfers: dict[str, set[_Transfer]] = {}
        for call in module.main.body:
            involved = machines_of_call(call, module, self.machines) or {self.machines.home}
            self.active |= involved
            if call.has_effect or call.regions:
                self.fixed |= involved
            if call.op == COPY and len(involved) == 2:
                transfer = _Transfer(call.outputs[0].type, str(call.attr("src")), str(call.attr("dst")))
                for path in involved:
                    self.transfers.setdefault(path, set()).add(transfer)
        self.subgraphs: dict[str, list[SubgraphRecord]] = {}
        for subgraph in outlined.subgraphs:
            self.subgraphs.setdefault(self.machines.of_site(subgraph.site), []).append(subgraph)

    def can_replace(self, path: str, idle: Machine) -> bool:
        """Return whether an idle machine does what another one does, in the same time."""
        machine = self.by_path[path]
        return (
            path in self.active
            and path not in self.fixed
            and self.limited.isdisjoint((path, idle.path))
            and self._is_equal(machine, idle)
            and all(self._runs_as_fast(subgraph, path, idle.path) for subgraph in self.subgraphs.get(path, ()))
            and all(self._is_as_near(transfer, path, idle.path) for transfer in self.transfers.get(path, ()))
        )

    def _is_equal(self, machine: Machine, other: Machine) -> bool:
        nodes = [self.topology[one.path].target.replace(name=None, count=1) for one in (machine, other)]
        if not (machine.is_one_child and other.is_one_child) or nodes[0] != nodes[1]:
            return False
        capacities = self.estimates.capacities()
        domains = self._counterparts(machine.path, other.path)
        return all(capacities.get(one) == capacities.get(domain) for one, domain in domains.items())

    def _runs_as_fast(self, subgraph: SubgraphRecord, path: str, idle: str) -> bool:
        leaf = self.topology[subgraph.site]
        other = self._counterpart(leaf, path, idle)
        return (
            self.estimates.launch(leaf) == self.estimates.launch(other)
            and self.estimates.boundary_rate(leaf) == self.estimates.boundary_rate(other)
            and self._measured(subgraph, leaf) == self._measured(subgraph, other)
            and self.feasibility.can_be_one_function(subgraph.calls, other)
            and all(
                self.feasibility.unsupported_reason(index, other) is None
                and self.estimates.time(index, leaf) == self.estimates.time(index, other)
                for index in subgraph.calls
            )
        )

    def _measured(self, subgraph: SubgraphRecord, leaf: Site) -> int | None:
        return self.estimates.subgraph(self.module, subgraph.function, leaf)

    def _is_as_near(self, transfer: _Transfer, path: str, idle: str) -> bool:
        """Return whether a transfer takes as long with the idle machine, for every machine at the other end."""
        domains = self._counterparts(path, idle)
        is_sent = transfer.src in domains
        own = transfer.src if is_sent else transfer.dst

        def time(one: str, other: str) -> int | None:
            return self.estimates.copy(transfer.type, *((one, other) if is_sent else (other, one)))

        others = self.topology.domains() - {*domains, *domains.values()}
        return all(time(own, other) == time(domains[own], other) for other in others)

    def _counterpart(self, site: Site, path: str, idle: str) -> Site:
        """Return the site of an idle machine in place of that of an equal one."""
        return self.topology[idle + site.path[len(path) :]]

    def _counterparts(self, path: str, idle: str) -> dict[str, str]:
        """Return the memories of an idle machine by those of an equal one."""
        sites = [site for leaf in self.topology.leaves(path) for site in (leaf, self.topology[leaf.host])]
        return {site.domain: self._counterpart(site, path, idle).domain for site in sites}
