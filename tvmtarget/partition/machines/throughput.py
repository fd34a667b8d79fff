"""How fast a cluster is, by the estimates: what each machine is busy with, and when one input is through.

Machines work at the same time on inputs that follow each other, so that the busiest one sets the pace. Both machines
of a transfer are busy with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from tvmtarget.ir.function import COPY, Call
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.types import Type
from tvmtarget.partition.costs.estimate import Estimates, microseconds
from tvmtarget.partition.machines.machine import Machines
from tvmtarget.partition.machines.programs import machines_of_call
from tvmtarget.partition.outline.outlining import CopyRecord, Outlined, SubgraphRecord

__all__ = ["Stage", "Throughput", "throughput_of"]

SECOND = 10**12  # picoseconds


@dataclass(frozen=True, slots=True)
class Stage:
    """What one machine does for each input, in picoseconds: run, with calls and copies of its own, and transfer."""

    machine: str
    run: int
    transfers: int

    @property
    def busy(self) -> int:
        """All of it, one after the other."""
        return self.run + self.transfers


@dataclass(frozen=True, slots=True)
class Throughput:
    """The stages of a cluster, and picoseconds from one input to its results if no other is under way.

    `unknown` counts what is reckoned as nothing because nobody knows it; the prediction of the plan lists it.
    """

    stages: tuple[Stage, ...]
    latency: int
    unknown: int = 0

    @property
    def slowest(self) -> Stage:
        """The stage that sets the pace."""
        return max(self.stages, key=lambda stage: stage.busy)

    @property
    def inputs_per_second(self) -> float | None:
        """Inputs a second when they follow each other; None where nothing takes time."""
        return SECOND / self.slowest.busy if self.slowest.busy else None

    @property
    def rank(self) -> tuple[int, int]:
        """Of two paces the smaller rank is better: more inputs a second, then less latency."""
        return self.slowest.busy, self.latency

    def lines(self) -> Iterator[str]:
        """Yield stages, latency and throughput line by line."""
        for stage in self.stages:
            parts = f"run {microseconds(stage.run)}, transfers {microseconds(stage.transfers)}"
            yield f"  machine @{stage.machine}: busy {microseconds(stage.busy)} ({parts})"
        beside = f", and {self.unknown} unknown" if self.unknown else ""
        rate = "" if self.inputs_per_second is None else f"; in a stream {self.inputs_per_second:.4g} inputs a second"
        yield f"  one input takes {microseconds(self.latency)}{rate}, as @{self.slowest.machine} allows{beside}"

    def to_json(self) -> dict[str, object]:
        """Return it as data, in microseconds and inputs a second."""
        stages = {
            stage.machine: {"busy": stage.busy / 10**6, "run": stage.run / 10**6, "transfers": stage.transfers / 10**6}
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
    """Return the pace of a decomposed module; None where its target is no cluster, or one machine has all the work."""
    machines = Machines(estimates.program.topology)
    if len(machines.working) < 2 or module.main.attr("role") != "driver":
        return None
    times = _Times(estimates, outlined)
    run: dict[str, int] = {machine.path: 0 for machine in machines}
    transfers = dict(run)
    clock = dict(run)
    ready: defaultdict[str, int] = defaultdict(int)
    for call in module.main.body:
        arrived = max((ready[name] for name in call.inputs), default=0)
        took = 0
        for step in _steps(call):
            time = times.of(step)
            took += time
            src, dst = _ends(step, machines, module)
            if src == dst:
                run[dst] += time
            else:
                transfers[src] += time
                transfers[dst] += time
        if call.op == COPY:
            src, dst = _ends(call, machines, module)
            clock[src] = max(clock[src], arrived) + took
            done = clock[dst] = max(clock[dst], clock[src])
        else:
            together = machines_of_call(call, module, machines)
            done = max(arrived, *(clock[machine] for machine in together)) + took
            clock.update(dict.fromkeys(together, done))
        ready.update((output.name, done) for output in call.outputs)
    stages = tuple(Stage(path, run[path], transfers[path]) for path in run)
    return Throughput(stages, max(clock.values()), times.unknown)


def _steps(call: Call) -> Iterator[Call]:
    """Yield the calls and copies of a step of a driver: itself, or those in its nested bodies."""
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
    """What the steps of the root's driver take, in picoseconds; counts what nobody knows.

    What nested bodies hold is reckoned as often as the plan expects it to run.
    """

    def __init__(self, estimates: Estimates, outlined: Outlined) -> None:
        self.estimates = estimates
        self.subgraphs: defaultdict[str, list[SubgraphRecord]] = defaultdict(list)
        for subgraph in outlined.subgraphs:
            self.subgraphs[subgraph.call.split("/")[0]].append(subgraph)
        self.copies: defaultdict[str, list[CopyRecord]] = defaultdict(list)
        for copy in outlined.copies:
            self.copies[copy.call.split("/")[0]].append(copy)
        self.unknown = 0

    def of(self, call: Call) -> int:
        """Return what a call or copy of the root's driver takes, as often as it is made."""
        if call.op == COPY:
            src, dst = str(call.attr("src")), str(call.attr("dst"))
            return int(self._runs(call.inputs[0], src, dst) * self._moved(call.outputs[0].type, src, dst))
        return 0 if call.callee is None else self._called(call.source)

    def _runs(self, name: str, src: str, dst: str) -> Fraction:
        made = (copy.runs for copy in self.copies[""] if (copy.value, copy.src, copy.dst) == (name, src, dst))
        return next(made, Fraction(1))

    def _called(self, name: str) -> int:
        """Return what all calls and copies take that a call of the root's driver leads to."""
        copies = (int(copy.runs * self._moved(copy.type, copy.src, copy.dst)) for copy in self.copies[name])
        return sum(copies) + sum(map(self._ran, self.subgraphs[name]))

    def _ran(self, subgraph: SubgraphRecord) -> int:
        leaf = self.estimates.program.topology[subgraph.site]
        times = (self._known(self.estimates.time(index, leaf).time) for index in subgraph.calls)
        return int(subgraph.runs * (self.estimates.launch(leaf) + sum(times)))

    def _moved(self, type_: Type, src: str, dst: str) -> int:
        return self._known(self.estimates.copy(type_, src, dst))

    def _known(self, time: int | None) -> int:
        self.unknown += time is None
        return time or 0
