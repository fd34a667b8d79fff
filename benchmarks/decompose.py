"""How long dividing a program takes, beside TVM's own passes for it (FuseOpsByPattern and MergeCompositeFunctions).

Run as `python -m benchmarks.decompose [--costs] [SIZE ...]`. Both get the same chains: elementwise operations of
which every third is of a kind that the accelerator does not take. TVM rewrites a Relax function, we import ONNX,
divide it, outline every region and prove the result. Printed are seconds, the ratio, and how both grow.

With `--costs` sites are chosen by cost, two and three of them, on chains and random graphs: seconds for all of
`decompose`, those for choosing alone, how the latter grow, and the predicted time beside that of the choice by
preference.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import onnx
from onnx import TensorProto, helper

import tvmtarget as tt
from tvmtarget.partition.assignment.choose import ByCost
from tvmtarget.partition.costs.costs import Costs, LinkCost, OpCost, SiteCost
from tvmtarget.partition.costs.predict import predict
from tvmtarget.partition.outline import outline
from tvmtarget.partition.plan import Plan
from tvmtarget.partition.split import Choice, Chooser, Level, by_preference, split

SIZES = (1_000, 2_000, 4_000)
OURS_ALONE = (10_000, 100_000)
BY_COST = (1_000, 2_000, 10_000, 20_000, 100_000)
# TVM's passes need quadratic memory; above this size they are not asked.
TVM_LIMIT = 10_000

TAKEN, LEFT = ("Relu", "Sigmoid"), "Tanh"


def kinds(size: int) -> list[str]:
    """Return the operators of a chain."""
    return [LEFT if index % 3 == 2 else TAKEN[index % 2] for index in range(size)]


def chain(size: int) -> onnx.ModelProto:
    """Return the chain as an ONNX model."""
    nodes = [helper.make_node(kind, [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i, kind in enumerate(kinds(size))]
    ends = [helper.make_tensor_value_info(f"v{end}", TensorProto.FLOAT, [4]) for end in (0, size)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def ours(size: int) -> tuple[float, int]:
    """Divide a chain; return seconds and the number of regions."""
    module = tt.IRModule.from_onnx(chain(size))
    where = {f"op:{LEFT}": "@host", **{f"op:{kind}": "@npu" for kind in TAKEN}}
    return timed(lambda: len(tt.decompose(module, "[npu=onnxruntime,host=numpy]", where=where).regions))


def theirs(size: int) -> tuple[float, int]:
    """Divide the same chain by TVM; return seconds and the number of distinct functions (TVM merges equal ones)."""
    from tvm import relax
    from tvm.relax.dpl import is_op, wildcard

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    makers = {"Relu": relax.op.nn.relu, "Sigmoid": relax.op.sigmoid, "Tanh": relax.op.tanh}
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for kind in kinds(size):
                value = builder.emit(makers[kind](value))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    module = builder.get()
    patterns = [("npu.relu", is_op("relax.nn.relu")(wildcard())), ("npu.sigmoid", is_op("relax.sigmoid")(wildcard()))]

    def divide() -> int:
        fused = relax.transform.FuseOpsByPattern(patterns, annotate_codegen=False)(module)
        merged = relax.transform.MergeCompositeFunctions()(fused)
        return sum(1 for _, function in merged.functions.items() if function.attrs and "Codegen" in function.attrs)

    return timed(divide)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Run once and return seconds and the result."""
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


SITES = ("npu", "gpu", "cpu")
REACH = 50


def random_dag(size: int) -> onnx.ModelProto:
    """Return operations that read one or two of the last values each."""
    rng = random.Random(0)
    names = [f"v{i}" for i in range(size + 1)]
    nodes = []
    for index in range(size):
        read = [rng.randrange(max(0, index + 1 - REACH), index + 1) for _ in range(rng.randint(1, 2))]
        kind = rng.choice(KINDS_OF_TWO if len(read) == 2 else KINDS_OF_ONE)
        nodes.append(helper.make_node(kind, [names[i] for i in read], [names[index + 1]], name=f"n{index}"))
    ends = [helper.make_tensor_value_info(names[end], TensorProto.FLOAT, [4]) for end in (0, size)]
    graph = helper.make_graph(nodes, "random", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


KINDS_OF_ONE, KINDS_OF_TWO = ("Relu", "Sigmoid", "Tanh", "Abs", "Neg"), ("Add", "Mul", "Sub", "Max", "Min")


def random_costs(sites: Sequence[str]) -> Costs:
    """Return a time for every operator and site; some are heavy and far faster off the CPU, others are not."""
    rng = random.Random(3)
    ops = []
    for kind in (*KINDS_OF_ONE, *KINDS_OF_TWO):
        is_heavy = rng.random() < 0.25
        slow = rng.uniform(100, 400) if is_heavy else rng.uniform(1, 20)
        for site in sites:
            gain = 1 if site == "cpu" else rng.uniform(5, 25) if is_heavy else rng.uniform(0.02, 2)
            ops.append(OpCost(site, op=kind, time=slow / gain))
    links = tuple(LinkCost("cpu", site, 8.0, 1.2e10) for site in sites if site != "cpu")
    launches = {site: SiteCost(launch=0.0 if site == "cpu" else 10.0) for site in sites}
    return Costs(sites=launches, links=links, ops=tuple(ops))


def by_cost(sizes: Sequence[int]) -> None:
    """Print a row per number of sites, graph and size."""
    print(f"{'sites':>5} {'graph':>7} {'ops':>8} {'all s':>8} {'choose s':>9} {'growth':>14} {'time / preferred':>17}")
    for count, (name, graph) in product((2, 3), (("chain", chain), ("random", random_dag))):
        sites = SITES[-count:]
        tree = tt.Target.parse(f"[{','.join(f'{site}=onnxruntime' for site in sites)}](host=@cpu)")
        own = tuple(tt.Memory(name=f"of-{site}", of=(site,)) for site in sites if site != "cpu")
        tree, costs = tree.replace(memory=own), random_costs(sites)
        last: tuple[int, float] | None = None
        for size in sizes:
            module = tt.IRModule.from_onnx(graph(size))
            whole, plan = timed(lambda module=module, tree=tree, costs=costs: tt.decompose(module, tree, costs))
            level = level_of(plan)
            chosen, _ = timed(lambda plan=plan, level=level: ByCost(plan.feasibility, plan.estimates)(level))
            growth = "" if last is None else f"x{chosen / last[1]:.1f} for x{size / last[0]:.1f}"
            last = (size, chosen)
            preferred = predicted(plan, by_preference)
            ratio = plan.prediction.total / preferred
            print(
                f"{count:>5} {name:>7} {size:>8} {whole:>8.3f} {chosen:>9.3f} {growth:>14} {ratio:>17.3f}", flush=True
            )


def level_of(plan: Plan) -> Level:
    """Return what was to be decided at the root of a plan."""
    levels: list[Level] = []

    def note(level: Level) -> Choice:
        levels.append(level)
        return by_preference(level)

    program = plan.program
    split(program, plan.feasibility, program.layout[""], tuple(range(len(program.body))), note)
    return levels[0]


def predicted(plan: Plan, choose: Chooser) -> int:
    """Return what another choice of sites would take."""
    program = plan.program
    root = split(program, plan.feasibility, program.layout[""], tuple(range(len(program.body))), choose)
    return predict(plan.estimates, outline(program, root)).total


def main() -> None:
    """Print a row per size."""
    if "--costs" in sys.argv[1:]:
        by_cost(tuple(int(word) for word in sys.argv[1:] if word != "--costs") or BY_COST)
        return
    sizes = tuple(map(int, sys.argv[1:])) or (*SIZES, *OURS_ALONE)
    print(f"{'ops':>8} {'tvmtarget s':>12} {'TVM s':>8} {'TVM / ours':>11} {'growth of ours':>15}")
    last: tuple[int, float] | None = None
    for size in sizes:
        mine, regions = ours(size)
        growth = "" if last is None else f"x{mine / last[1]:.1f} for x{size / last[0]:.1f}"
        last = (size, mine)
        if size > TVM_LIMIT:
            print(f"{size:>8} {mine:>12.3f} {'-':>8} {'-':>11} {growth:>15}   {regions} regions")
            continue
        other, groups = theirs(size)
        found = f"{regions} regions; {groups} distinct by TVM"
        print(f"{size:>8} {mine:>12.3f} {other:>8.3f} {other / mine:>11.1f} {growth:>15}   {found}")


if __name__ == "__main__":
    main()
