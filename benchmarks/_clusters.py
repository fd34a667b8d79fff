"""Small random programs on clusters of machines, and the least load of the busiest machine of any assignment."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import combinations, product

import tvmtarget as tt
from benchmarks._graphs import KINDS_OF_ONE, KINDS_OF_TWO, SIZES
from tvmtarget.ir.function import Call, Function, Value
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.costs.costs import Costs, LinkCost, OpCost, SiteCost
from tvmtarget.partition.plan import Plan
from tvmtarget.target.tree import Target

__all__ = ["ClusterCase", "busiest", "cluster_case"]


@dataclass(frozen=True)
class ClusterCase:
    """A program, machines of one CPU each that all links join, and times by operation and machine.

    If `are_equal`, all machines but the first, which has the inputs and results, are equal and may take turns.
    """

    module: IRModule
    tree: Target
    costs: Costs
    are_equal: bool = False

    def plan(self, sites: tuple[str, ...] = ()) -> Plan:
        """Return the plan for throughput; with sites, each operation is required to be on the one in its place."""
        where = {f"n{index}": f"@{site}" for index, site in enumerate(sites)}
        most = len(self.tree.targets) if self.are_equal else 1
        return tt.decompose(self.module, self.tree, self.costs, objective="throughput", where=where, max_replicas=most)

    def least_busy(self) -> int:
        """Return the picoseconds of the busiest machine, at its least over the plans of all assignments."""
        sites = [f"{child.name}/cpu" for child in self.tree.targets]
        return min(self._busiest(chosen) for chosen in product(sites, repeat=len(self.module.main.body)))

    def _busiest(self, chosen: tuple[str, ...]) -> int:
        """Return the picoseconds of the busiest machine of an assignment, with the idle machines as replicas."""
        plan = self.plan(chosen)
        if not self.are_equal or plan.throughput is None:
            return busiest(plan)
        first, *others = (stage.busy for stage in plan.throughput.stages)
        loads = [load for load in others if load]
        shares = product(range(1, len(others) + 1), repeat=len(loads))
        shared = (
            max([-(-load // share) for load, share in zip(loads, numbers, strict=True)], default=0)
            for numbers in shares
            if sum(numbers) <= len(others)
        )
        return max(first, min(shared))


def busiest(plan: Plan) -> int:
    """Return the picoseconds of the busiest machine for one input."""
    assert plan.prediction is not None
    return plan.prediction.total if plan.throughput is None else plan.throughput.slowest.busy


def cluster_case(seed: int, size: int, count: int, *, are_equal: bool = False) -> ClusterCase:
    """Return the random program of a seed, with so many operations and machines, which may be equal but the first."""
    rng = random.Random(seed)
    elements = [rng.choice(SIZES) // 4 + index for index in range(size + 1)]  # a shape of its own for each operation
    calls: list[Call] = []
    for index in range(size):
        reads = sorted({rng.randrange(max(-1, index - rng.choice((3, size))), index) for _ in range(rng.randint(1, 2))})
        kind = rng.choice(KINDS_OF_TWO if len(reads) == 2 else KINDS_OF_ONE)
        inputs = tuple("x" if before < 0 else f"v{before}" for before in reads)
        output = Value(f"v{index}", TensorType("float32", (elements[index],)))
        calls.append(Call(f"onnx.{kind}", inputs, (output,), source=f"n{index}"))
    read = {name for call in calls for name in call.inputs}
    results = tuple(f"v{index}" for index in range(size) if f"v{index}" not in read)
    x = Value("x", TensorType("float32", (elements[-1],)))
    machines = [f"m{number}" for number in range(count)]
    times = [
        (index, machine, rng.randint(20, 200) * rng.choice((1, 1, 1, 4)))
        for index in range(size)
        for machine in (machines[:2] if are_equal else machines)
    ]
    if are_equal:
        times += [(index, other, time) for index, machine, time in times if machine == "m1" for other in machines[2:]]
    ops = tuple(
        OpCost(f"{machine}/cpu", op=calls[index].kind, shape=(elements[index],), time=float(time))
        for index, machine, time in times
    )
    latency, bandwidth, launch = float(rng.randint(1, 20)), rng.choice((1e9, 1e10)), float(rng.choice((0, 5)))
    links = tuple(
        LinkCost(f"{a}/cpu", f"{b}/cpu", latency, bandwidth)
        if are_equal
        else LinkCost(f"{a}/cpu", f"{b}/cpu", float(rng.randint(1, 20)), rng.choice((1e9, 1e10)))
        for a, b in combinations(machines, 2)
    )
    launches = {
        f"{machine}/cpu": SiteCost(launch=launch if are_equal else float(rng.choice((0, 5)))) for machine in machines
    }
    children = ",".join(f"{machine}=[cpu=numpy](host=@cpu)" for machine in machines)
    main = Function("main", (x,), tuple(calls), results, opsets=(("", 17),))
    tree = Target.parse(f"[{children}](host=@m0/cpu,runtime=processes)")
    return ClusterCase(IRModule((main,)), tree, Costs(sites=launches, links=links, ops=ops), are_equal)
