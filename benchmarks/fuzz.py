"""Random programs partitioned in random ways: plans must be valid, compute the same, and be no worse for another order.

Run as `python -m benchmarks fuzz [COUNT [FIRST_SEED]]`. A program has 50 to 400 operations in a random valid order, a
few of them branches and loops around some; trees have one to four sites, replicas, systems in systems, or machines;
sites must or must not take some operators; half of the programs have costs. `decompose` proves every plan (I1 to I9 of
the design). Checked here beside it are bounds; on every `ORDERS`th seed with costs, that another order of the
operations takes as long, and on as many others the programs of machines; on every `RUNS`th, that the partitioned
program computes what the whole one does on the numpy backend, bit by bit; and on every `LIMITS`th, where memories hold
about as much as the plan needs of them or less, that another plan fits there, its bytes counted apart from the library.
Printed are seeds that fail, and how many were tried. `attempt(seed)` does one of them, which is how a failure becomes a
test.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Mapping

import numpy as np

import tvmtarget as tt
from benchmarks._arguments import at_least
from benchmarks._control import controlled
from benchmarks._graphs import (
    FAMILIES,
    KINDS_OF_ONE,
    KINDS_OF_TWO,
    Graph,
    costs_of,
    module_of,
    shuffled,
    tree_of,
)
from benchmarks._memory import peaks
from tvmtarget.errors import InfeasibleError, TvmTargetError
from tvmtarget.partition.costs.costs import Costs
from tvmtarget.partition.memory_use import memory_uses
from tvmtarget.partition.plan import Plan
from tvmtarget.target.topology import Topology

COUNT = 1000

# By what factor another order of operations, or limits that a plan keeps anyway, may raise the predicted time.
MOST = 1.02

# One of so many seeds is partitioned in a second order, one of as many over machines, one of so many runs, and one of
# so many gets small memories.
ORDERS, RUNS, LIMITS = 4, 10, 20

# Trees deeper than a row of sites; KIND is what takes operations. The last leaf drives.
DEEP = (
    "[npu=KIND(count=2),cpu=numpy](host=@cpu)",
    "[soc=[npu=KIND,dsp=numpy](host=@dsp),gpu=KIND,cpu=numpy](host=@cpu)",
    "[gpu=KIND,board=[soc=[npu=KIND,dsp=numpy](host=@dsp),cpu=numpy](host=@cpu)](host=@board/cpu)",
    "[n1=[npu=KIND,dsp=numpy](host=@dsp),n0=[gpu=KIND,cpu=numpy](host=@cpu)](host=@n0/cpu)",
)


def attempt(seed: int) -> Counter[str]:
    """Partition the program of a seed; raise what is wrong, and return what was checked."""
    rng = random.Random(seed)
    graph = _graph(rng)
    is_run = seed % RUNS == 0
    tree = _tree(rng, "numpy" if is_run else "onnxruntime")
    leaves = [leaf.path for leaf in Topology(tree.resolve()).leaves()]
    is_controlled = rng.random() < 0.06
    graph = shuffled(graph[:100] if is_controlled else graph, rng)
    module = controlled(graph, rng) if is_controlled else module_of(graph, sizes=(8,) if is_run else None)
    kinds = sorted({call.kind for call in module.main.body} & {*KINDS_OF_ONE, *KINDS_OF_TWO})
    where = {}
    for kind in kinds:
        if len(leaves) > 1 and rng.random() < 0.4:
            where[f"op:{kind}"] = rng.choice(("@", "!@")) + rng.choice(leaves)
    costs = costs_of(leaves, seed) if rng.random() < 0.5 else None
    plan = tt.decompose(module, tree, costs, where=where)
    _check(plan)
    seen = Counter({"control flow": int(is_controlled), "deep": int(len(tree.targets) < len(leaves))})
    # Of control flow that is refused by name where its bodies are on several machines.
    if seed % ORDERS == 1 and not is_controlled and len(plan.programs()) > 1:
        seen["machines"] += 1
    if is_run:
        _run(plan, module, rng)
        seen["run"] += 1
    if costs is not None and not is_controlled and seed % ORDERS == 0:
        again = module_of(shuffled(graph, rng), sizes=(8,) if is_run else None)
        _compare(plan, tt.decompose(again, tree, costs, where=where))
        seen["other order"] += 1
    if seed % LIMITS == 3 and not is_controlled:
        seen[_limit(module, tree, costs, where, rng)] += 1
    return seen


def _graph(rng: random.Random) -> Graph:
    size = rng.randint(50, 400)
    if rng.random() < 0.5:
        return FAMILIES[rng.choice(sorted(FAMILIES))](size)
    reach = rng.choice((3, 20, 400))
    graph: Graph = []
    for index in range(size):
        reads = {rng.randrange(max(0, index - reach), index + 1) - 1 for _ in range(rng.randint(1, 2))}
        graph.append((tuple(sorted(reads)), rng.randrange(13)))
    return graph


def _tree(rng: random.Random, kind: str) -> tt.Target:
    if rng.random() < 0.85:
        return tree_of(rng.randint(1, 4), kind)
    tree = tt.Target.parse(rng.choice(DEEP).replace("KIND", kind))
    slots = [child.slot for child in tree.targets if child.slot not in ("cpu", "board", "n0")]
    return tree.replace(memory=tuple(tt.Memory(name=f"of-{slot}", of=(slot,)) for slot in slots))


def _check(plan: Plan) -> None:
    """Check what `decompose` does not prove itself: bounds, and that functions compute what their operations do."""
    plan.verify()
    if len(plan.root.parts) < plan.root.least_parts:
        raise AssertionError(f"{len(plan.root.parts)} subgraphs are below the bound {plan.root.least_parts}")
    found = plan.prediction
    if found is not None and found.lower_bound is not None and found.lower_bound > found.total:
        raise AssertionError(f"{found.total} is below the bound {found.lower_bound}")


def _compare(*plans: Plan) -> None:
    totals = sorted(found.prediction.total for found in plans if found.prediction is not None)
    if totals[-1] > MOST * totals[0]:
        raise AssertionError(f"another order takes {totals[-1] / totals[0]:.3f} times as long")


def _limit(
    module: tt.IRModule, tree: tt.Target, costs: Costs | None, where: Mapping[str, str], rng: random.Random
) -> str:
    """Partition the program where memories are small; return what came of it.

    A plan must fit, and where the plan for memories without limits fits, there must be one, which takes no longer.
    """
    free = tt.decompose(module, _with_bytes(tree, {}), costs, where=where)
    share = rng.choice((0.3, 0.7, 1.0))
    limits = {memory: int(share * size) for memory, size in peaks(free).items() if rng.random() < 0.7}
    try:
        plan = tt.decompose(module, _with_bytes(tree, limits), costs, where=where)
    except InfeasibleError:
        if share == 1.0:
            raise
        return "too small memories"
    _check(plan)
    found = peaks(plan)
    for use in memory_uses(plan):
        if found[use.memory] != use.values or use.missing:
            raise AssertionError(f"memory {use.memory!r} has {found[use.memory]} bytes of values, reported is {use}")
    before, after = free.prediction, plan.prediction
    if share == 1.0 and before is not None and after is not None and after.total > MOST * before.total:
        raise AssertionError(
            f"limits that the plan without limits keeps make it {after.total / before.total:.3f} times as long"
        )
    return "small memories"


def _with_bytes(tree: tt.Target, limits: Mapping[str, int], path: str = "") -> tt.Target:
    """Return a tree whose leaves have memories of their own, of so many bytes where `limits` says it."""
    children = tuple(_with_bytes(child, limits, f"{path}{child.slot}/") for child in tree.targets)
    leaves = [child.slot for child in children if not child.targets]
    memories = (tt.Memory(name=f"of-{slot}", of=(slot,), bytes=limits.get(f"{path}of-{slot}")) for slot in leaves)
    return tree.replace(targets=children, memory=tuple(memories)) if leaves else tree.replace(targets=children)


def _run(plan: Plan, module: tt.IRModule, rng: random.Random) -> None:
    """Check that both programs compute the same on the same inputs, bit by bit."""
    x = np.random.default_rng(rng.randrange(2**32)).normal(size=8).astype("float32")
    inputs: Mapping[str, np.ndarray] = {"x": x}
    if len(module.main.params) > 1:
        inputs = {"x": x, "flag": np.array(rng.random() < 0.7), "trips": np.array(rng.randint(0, 3))}
    with np.errstate(all="ignore"):
        whole, parts = tt.build(module, "numpy").run(inputs), tt.build(plan).run(inputs)
    wrong = [name for name, value in whole.items() if value.tobytes() != parts[name].tobytes()]
    if wrong:
        raise AssertionError(f"the partitioned program computes another {wrong[0]!r}")


def main() -> None:
    """Print failing seeds, and how many were tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=at_least(1), nargs="?", default=COUNT)
    parser.add_argument("first", type=at_least(0), nargs="?", default=0)
    options = parser.parse_args()
    count, first = options.count, options.first
    begin = time.process_time()
    failed = 0
    seen: Counter[str] = Counter()
    for seed in range(first, first + count):
        try:
            seen += attempt(seed)
        except (TvmTargetError, AssertionError) as error:
            failed += 1
            print(f"seed {seed}: {error}", flush=True)
    parts = ", ".join(f"{number} {what}" for what, number in sorted(seen.items()))
    print(f"{count} programs from seed {first} ({parts}), {failed} failed, {time.process_time() - begin:.1f} s CPU")


if __name__ == "__main__":
    main()
