"""Predict the throughput and latency of a cluster from the estimates of the cost model.

Machines work on consecutive inputs at the same time, so that the busiest machine, the bottleneck stage, limits the
throughput. A transfer occupies both of its machines. Where machines wait for each other, and not enough inputs are in
progress to hide that, the throughput is less: a simulation of the stream says how much.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from tvmtarget.ir.function import COPY, Call
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.types import Type
from tvmtarget.partition.costs.estimate import Estimates, cost_text
from tvmtarget.partition.costs.predict import boundary_times
from tvmtarget.partition.machines.machine import Machines
from tvmtarget.partition.machines.programs import machines_of_call, replicas_of
from tvmtarget.partition.machines.stream_simulation import STREAM_DEPTH, MachineStep, time_per_input
from tvmtarget.partition.outline.outlining import CopyRecord, Outlined, SubgraphRecord

__all__ = ["Stage", "Throughput", "throughput_of"]

SECOND = 10**12  # picoseconds

# The part by which the busiest machine may be idle, and is still what limits the throughput.
NEARLY = 0.01


@dataclass(frozen=True, slots=True)
class Stage:
    """The work of one machine per input; of one with replicas, its share of the work for all inputs.

    Attributes:
        machine: path of the machine.
        run: picoseconds for calls, and for copies within the machine.
        transfers: picoseconds for transfers to and from other machines.
        takes_turns: the replicas of the machine, itself included, of which each input goes to one; empty without any.
    """

    machine: str
    run: int
    transfers: int
    takes_turns: tuple[str, ...] = ()

    @property
    def busy(self) -> int:
        """Picoseconds for all work of the machine."""
        return self.run + self.transfers


@dataclass(frozen=True, slots=True)
class Throughput:
    """The predicted throughput and latency of a cluster.

    Attributes:
        stages: one stage for each machine.
        latency: picoseconds from one input to its results while no other input is processed.
        interval: picoseconds from one result to the next in a stream of `STREAM_DEPTH` inputs at a time.
        unknown: number of calls and copies of unknown time, which count as 0; the prediction of the plan lists them.
    """

    stages: tuple[Stage, ...]
    latency: int
    interval: int
    unknown: int = 0

    @property
    def slowest(self) -> Stage:
        """The bottleneck stage."""
        return max(self.stages, key=lambda stage: stage.busy)

    @property
    def inputs_per_second(self) -> float | None:
        """Inputs per second in a stream; None if nothing takes time."""
        return SECOND / self.interval if self.interval else None

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key, smaller is better: time for each input of a stream, then latency."""
        return self.interval, self.latency

    def lines(self) -> Iterator[str]:
        """Format stages, latency and throughput for people.

        Yields:
            One line for each stage, then one for the cluster.
        """
        for stage in self.stages:
            parts = f"run {cost_text(stage.run, 'us')}, transfers {cost_text(stage.transfers, 'us')}"
            share = f", for one of {len(stage.takes_turns)} inputs" if stage.takes_turns else ""
            yield f"  machine @{stage.machine}: busy {cost_text(stage.busy, 'us')} ({parts}){share}"
        beside = f", and {self.unknown} unknown" if self.unknown else ""
        rate = "" if self.inputs_per_second is None else f"; in a stream {self.inputs_per_second:.4g} inputs a second"
        is_busy = self.interval <= self.slowest.busy * (1 + NEARLY)
        limit = f"as @{self.slowest.machine} allows" if is_busy else f"as {STREAM_DEPTH} of them at a time allow"
        yield f"  one input takes {cost_text(self.latency, 'us')}{rate}, {limit}{beside}"

    def to_json(self) -> dict[str, object]:
        """Return stages, latency and throughput as JSON data, in microseconds and inputs per second."""
        stages = {
            stage.machine: {"busy": stage.busy / 10**6, "run": stage.run / 10**6, "transfers": stage.transfers / 10**6}
            | ({"replicas": list(stage.takes_turns)} if stage.takes_turns else {})
            for stage in self.stages
        }
        return {
            "stages": stages,
            "latency": self.latency / 10**6,
            "throughput": self.inputs_per_second,
            "slowest": self.slowest.machine,
            "unknown": self.unknown,
        }


def throughput_of(estimates: Estimates, outlined: Outlined, module: IRModule) -> Throughput | None:
    """Predict the throughput of a partitioned module.

    Args:
        estimates: cost model of the program.
        outlined: records of its subgraphs and copies.
        module: partitioned module.

    Returns:
        The prediction; None if the target is not a cluster, or a single machine runs everything.
    """
    machines = Machines(estimates.program.topology)
    if len(machines.working) < 2 or module.main.attr("role") != "driver":
        return None
    times = _Times(estimates, outlined, module)
    run: dict[str, int] = {machine.path: 0 for machine in machines}
    transfers = dict(run)
    programs: dict[str, list[MachineStep]] = {path: [] for path in run}
    transfer = 0
    clock = dict(run)  # when each machine has finished its calls so far, for a single input
    ready: defaultdict[str, int] = defaultdict(int)  # when each value is available
    for call in module.main.body:
        operands_ready = max((ready[name] for name in call.inputs), default=0)
        duration = 0
        for step in _steps(call):
            time = times.of(step)
            duration += time
            src, dst = _ends(step, machines, module)
            if src == dst:
                run[dst] += time
                programs[dst].append(MachineStep(time))
            else:
                transfers[src] += time
                transfers[dst] += time
                transfer += 1
                programs[src].append(MachineStep(time, sends=transfer))
                programs[dst].append(MachineStep(time, receives=transfer))
        if call.op == COPY:
            src, dst = _ends(call, machines, module)
            begin = max(clock[src], operands_ready)
            # A send does not wait for its receiver, which the transfer occupies as long, as in the stream.
            done = max(clock[dst], begin) + duration
            clock[src] = begin + duration
            clock[dst] = done
        else:
            involved = machines_of_call(call, module, machines)
            done = max(operands_ready, *(clock[machine] for machine in involved)) + duration
            clock.update(dict.fromkeys(involved, done))
        ready.update((output.name, done) for output in call.outputs)
    replicas = replicas_of(module.main)
    program_of = {path: group[0] for group in replicas.values() for path in group}
    stages = []
    for path in run:
        leader, group = program_of.get(path, path), replicas.get(program_of.get(path, path), ())
        share = max(1, len(group))
        stages.append(Stage(path, -(-run[leader] // share), -(-transfers[leader] // share), group))
    own = {path: steps for path, steps in programs.items() if program_of.get(path, path) == path}
    interval = time_per_input(own, replicas=replicas) or 0
    busy = max(stage.busy for stage in stages)
    return Throughput(tuple(stages), max(clock.values()), max(busy, interval), times.unknown)


def _steps(call: Call) -> Iterator[Call]:
    """Yield a call or copy itself, or the calls and copies in its regions."""
    if not call.regions:
        yield call
    for _, body in call.regions:
        for inner in body.body:
            yield from _steps(inner)


def _ends(call: Call, machines: Machines, module: IRModule) -> tuple[str, str]:
    if call.op == COPY:
        return machines.of_domain(str(call.attr("src"))), machines.of_domain(str(call.attr("dst")))
    (machine,) = machines_of_call(call, module, machines) or {machines.home}
    return machine, machine


class _Times:
    """Times of the calls and copies of the root's driver, in picoseconds; counts those of unknown time.

    Calls and copies in regions count as often as the plan expects them to run.
    """

    def __init__(self, estimates: Estimates, outlined: Outlined, module: IRModule) -> None:
        self.estimates = estimates
        self.module = module
        self.subgraphs: defaultdict[str, list[tuple[SubgraphRecord, Fraction]]] = defaultdict(list)
        for subgraph, boundary in zip(outlined.subgraphs, boundary_times(estimates, outlined), strict=True):
            self.subgraphs[subgraph.call.split("/")[0]].append((subgraph, boundary))
        self.copies: defaultdict[str, list[CopyRecord]] = defaultdict(list)
        for copy in outlined.copies:
            self.copies[copy.call.split("/")[0]].append(copy)
        # Of equal copies the first counts.
        self.runs = {(copy.value, copy.src, copy.dst): copy.runs for copy in reversed(self.copies[""])}
        self.unknown = 0

    def of(self, call: Call) -> int:
        """Return the time of a call or copy of the root's driver, for all times that it is made."""
        if call.op == COPY:
            src, dst = str(call.attr("src")), str(call.attr("dst"))
            runs = self.runs.get((call.inputs[0], src, dst), Fraction(1))
            return int(runs * self._copy_time(call.outputs[0].type, src, dst))
        return 0 if call.callee is None else self._call_time(call.source)

    def _call_time(self, name: str) -> int:
        """Return the time of all calls and copies that a call of the root's driver leads to."""
        copies = (int(copy.runs * self._copy_time(copy.type, copy.src, copy.dst)) for copy in self.copies[name])
        subgraphs = self.subgraphs[name]
        return sum(copies) + sum(int(self._subgraph_time(one) + boundary) for one, boundary in subgraphs)

    def _subgraph_time(self, subgraph: SubgraphRecord) -> Fraction:
        leaf = self.estimates.program.topology[subgraph.site]
        measured = self.estimates.subgraph(self.module, subgraph.function, leaf)
        if measured is not None:
            return subgraph.runs * measured
        times = (self._or_zero(self.estimates.time(index, leaf).time) for index in subgraph.calls)
        return subgraph.runs * (self.estimates.launch(leaf) + sum(times))

    def _copy_time(self, type_: Type, src: str, dst: str) -> int:
        return self._or_zero(self.estimates.copy(type_, src, dst))

    def _or_zero(self, time: int | None) -> int:
        self.unknown += time is None
        return time or 0
