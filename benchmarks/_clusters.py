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
    """A program, machines of one CPU each that all links join, and times by operation and machine."""

    module: IRModule
    tree: Target
    costs: Costs

    def plan(self, sites: tuple[str, ...] = ()) -> Plan:
        """Return the plan for throughput; with sites, each operation is required to be on the one in its place."""
        where = {f"n{index}": f"@{site}" for index, site in enumerate(sites)}
        return tt.decompose(self.module, self.tree, self.costs, objective="throughput", where=where)

    def least_busy(self) -> int:
        """Return the picoseconds of the busiest machine, at its least over the plans of all assignments."""
        sites = [f"{child.name}/cpu" for child in self.tree.targets]
        return min(busiest(self.plan(chosen)) for chosen in product(sites, repeat=len(self.module.main.body)))


def busiest(plan: Plan) -> int:
    """Return the picoseconds of the busiest machine for one input."""
    assert plan.prediction is not None
    return plan.prediction.total if plan.throughput is None else plan.throughput.slowest.busy


def cluster_case(seed: int, size: int, count: int) -> ClusterCase:
    """Return the random program of a seed, with so many operations and machines."""
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
        for machine in machines
    ]
    ops = tuple(
        OpCost(f"{machine}/cpu", op=calls[index].kind, shape=(elements[index],), time=float(time))
        for index, machine, time in times
    )
    links = tuple(
        LinkCost(f"{a}/cpu", f"{b}/cpu", float(rng.randint(1, 20)), rng.choice((1e9, 1e10)))
        for a, b in combinations(machines, 2)
    )
    launches = {f"{machine}/cpu": SiteCost(launch=float(rng.choice((0, 5)))) for machine in machines}
    children = ",".join(f"{machine}=[cpu=numpy](host=@cpu)" for machine in machines)
    main = Function("main", (x,), tuple(calls), results, opsets=(("", 17),))
    tree = Target.parse(f"[{children}](host=@m0/cpu,runtime=processes)")
    return ClusterCase(IRModule((main,)), tree, Costs(sites=launches, links=links, ops=ops))
