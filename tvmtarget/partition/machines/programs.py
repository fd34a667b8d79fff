"""Project the driver of a cluster onto its machines: one program for each, with sends and receives.

A copy between machines becomes a send on one and a receive on the other. All transfers are numbered in the order of the
root's driver, and every program makes its own in that order. This cannot deadlock, even if a send waits for its
receive: the two machines of the first unfinished transfer have finished everything before it.
"""

from __future__ import annotations

from tvmtarget.errors import ModelError
from tvmtarget.ir.function import COPY, RECV, SEND, Call, Function, Value, callees_of
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.machines.machine import Machines
from tvmtarget.partition.machines.verify import verify_programs
from tvmtarget.target.topology import Topology

__all__ = ["REPLICAS", "machines_of_call", "programs_of", "replicas_of"]

# The attribute of the root's driver that lists the machines that take turns, in groups.
REPLICAS = "replicas"


def replicas_of(driver: Function) -> dict[str, tuple[str, ...]]:
    """Return the machines that take turns: replica i mod n of n has input number i of a stream.

    Args:
        driver: the driver of the root of a partitioned module.

    Returns:
        For each machine with replicas, by its path, the paths of all of them, itself first.
    """
    return {group[0]: tuple(group) for group in driver.attr(REPLICAS) or ()}


def programs_of(module: IRModule, topology: Topology) -> dict[str, IRModule]:
    """Make the program of each machine and verify that they fit together.

    Args:
        module: partitioned module.
        topology: sites of its target.

    Returns:
        Programs by path of the machine. The one of the home machine has the inputs and results; the others have
        neither. A module that is all on one machine is its program. Replicas run the program of the first of them.

    Raises:
        ModelError: a single operation of the root's driver, such as a loop, spans machines.
    """
    machines = Machines(topology)
    if module.main.attr("role") != "driver" or len(machines) == 1:
        return {machines.home: module}
    projection = _Projection(module, machines)
    for call in module.main.body:
        projection.add(call)
    others = {path for group in replicas_of(module.main).values() for path in group[1:]}
    programs = {machine.path: projection.program(machine.path) for machine in machines if machine.path not in others}
    verify_programs(module, machines, programs)
    return programs


class _Projection:
    """The bodies of all programs during a walk over the driver of the root."""

    def __init__(self, module: IRModule, machines: Machines) -> None:
        self.module = module
        self.machines = machines
        self.bodies: dict[str, list[Call]] = {machine.path: [] for machine in machines}
        self.transfers = 0
        self.last_effect: str | None = None

    def add(self, call: Call) -> None:
        """Add a call of the driver to the program of its machine, or a copy between machines to both programs."""
        if call.op == COPY:
            src, dst = (self.machines.of_domain(str(call.attr(end))) for end in ("src", "dst"))
            if src != dst:
                self._transfer(src, dst, call.inputs, call.outputs, call.source)
            else:
                self.bodies[src].append(call)
            return
        machine = self._machine(call)
        if call.has_effect:
            # A transfer without a value keeps the order of effects on different machines.
            if self.last_effect not in (None, machine):
                self._transfer(str(self.last_effect), machine, (), (), f"order {call.source}")
            self.last_effect = machine
        self.bodies[machine].append(call)

    def _machine(self, call: Call) -> str:
        found = machines_of_call(call, self.module, self.machines)
        if len(found) != 1:
            home = self.machines.home
            others = ", ".join(f"@{machine}" for machine in sorted(found - {home}))
            raise ModelError(
                f"op {call.source!r} has bodies on several machines: the driver on @{home} runs it, and {others} "
                f"would take part in every iteration; keep its operations on one machine, such as @{home}, or "
                "partition the program for a runtime that is not distributed"
            )
        return found.pop()

    def _transfer(self, src: str, dst: str, sent: tuple[str, ...], received: tuple[Value, ...], source: str) -> None:
        order = ("order", self.transfers)
        self.transfers += 1
        self.bodies[src].append(Call(SEND, sent, (), (("to", dst), order), source=source, has_effect=True))
        self.bodies[dst].append(Call(RECV, (), received, (("from", src), order), source=source, has_effect=True))

    def program(self, machine: str) -> IRModule:
        """Return the program of a machine: its part of the driver, and the functions that it calls."""
        main, body = self.module.main, tuple(self.bodies[machine])
        is_home = machine == self.machines.home
        used = {name for call in body for name in call.uses()} | (set(main.results) if is_home else set())
        driver = main.replace(
            params=main.params if is_home else (),
            body=body,
            results=main.results if is_home else (),
            constants=tuple(constant for constant in main.constants if constant.name in used),
            attrs=(*main.attrs, ("machine", machine)),
        )
        needed = _reachable(driver, self.module)
        rest = tuple(function for function in self.module.functions if function.name in needed)
        return self.module.replace(functions=(driver, *rest))


def machines_of_call(call: Call, module: IRModule, machines: Machines) -> set[str]:
    """Find the machines that take part in a call of the root's driver.

    Args:
        call: the call. The host of the root takes part in operations with regions.
        module: partitioned module.
        machines: machines of its target.

    Returns:
        Paths of machines.
    """
    found = {machines.home} if call.regions else set()
    if call.callee is not None:
        constraint = module[call.callee].constraint
        if constraint is not None and constraint.path:
            found.add(machines.of_site(constraint.path))
    if call.op == COPY:
        found |= {machines.of_domain(str(call.attr(end))) for end in ("src", "dst")}
    for _, body in call.regions:
        found = found.union(*(machines_of_call(inner, module, machines) for inner in body.body))
    return found


def _reachable(driver: Function, module: IRModule) -> set[str]:
    found: set[str] = set()
    waiting = sorted(callees_of(driver))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += sorted(callees_of(module[name]))
    return found
