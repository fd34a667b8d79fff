"""Random programs divided in random ways: every plan must be proven valid, and no worse for the order of operations.

Run as `python -m benchmarks fuzz [COUNT [FIRST_SEED]]`. A program has 50 to 400 operations in a random valid order,
one to four sites, and operators that a site must or must not take; half of them have costs. Printed are seeds that
fail, and how many were tried. `attempt(seed)` does one of them, which is how a failure becomes a test.
"""

from __future__ import annotations

import random
import sys
import time

import tvmtarget as tt
from benchmarks._graphs import (
    FAMILIES,
    KINDS_OF_ONE,
    KINDS_OF_TWO,
    SITES,
    Graph,
    costs_of,
    module_of,
    shuffled,
    tree_of,
)
from tvmtarget.errors import TvmTargetError
from tvmtarget.partition.plan import Plan

COUNT = 1000

# What another order of the same operations may change of the predicted time.
MOST = 1.02


def attempt(seed: int) -> None:
    """Divide the program of a seed in two orders; raise whatever is wrong."""
    rng = random.Random(seed)
    graph = _graph(rng)
    count = rng.randint(1, 4)
    where = {}
    for kind in (*KINDS_OF_ONE, *KINDS_OF_TWO):
        if count > 1 and rng.random() < 0.4 and any(_kind(part) == kind for part in graph):
            where[f"op:{kind}"] = rng.choice(("@", "!@")) + rng.choice(SITES[-count:])
    costs = costs_of(count, seed) if rng.random() < 0.5 else None
    tree = tree_of(count)
    plan = tt.decompose(module_of(shuffled(graph, rng)), tree, costs, where=where)
    _check(plan)
    if costs is not None and seed % 8 == 0:
        other = tt.decompose(module_of(shuffled(graph, rng)), tree, costs, where=where)
        totals = sorted(found.prediction.total for found in (plan, other) if found.prediction is not None)
        if totals[-1] > MOST * totals[0]:
            raise AssertionError(f"another order takes {totals[-1] / totals[0]:.3f} times as long")


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


def _kind(part: tuple[tuple[int, ...], int]) -> str:
    kinds = KINDS_OF_TWO if len(part[0]) == 2 else KINDS_OF_ONE
    return kinds[part[1] % len(kinds)]


def _check(plan: Plan) -> None:
    """Check what `decompose` does not prove itself: bounds."""
    if len(plan.root.parts) < plan.root.least_parts:
        raise AssertionError(f"{len(plan.root.parts)} regions are below the bound {plan.root.least_parts}")
    found = plan.prediction
    if found is not None and found.least is not None and found.least > found.total:
        raise AssertionError(f"{found.total} is below the bound {found.least}")


def main() -> None:
    """Print failing seeds, and how many were tried."""
    words = [int(word) for word in sys.argv[1:]]
    count, first = (*words, *(COUNT, 0)[len(words) :])[:2]
    begin = time.process_time()
    failed = 0
    for seed in range(first, first + count):
        try:
            attempt(seed)
        except (TvmTargetError, AssertionError) as error:
            failed += 1
            print(f"seed {seed}: {error}", flush=True)
    print(f"{count} programs from seed {first}, {failed} failed, {time.process_time() - begin:.1f} s CPU")


if __name__ == "__main__":
    main()
