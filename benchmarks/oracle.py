"""How near plans of small programs are to the least time that there is, by a mixed-integer program.

Run as `python -m benchmarks oracle [COUNT [FIRST_SEED]]`: COUNT random programs of 8 to 12 operations and two to four
sites (`_small.py`), in equal parts for each row. Printed are how many times the least the plans by cost take (mean,
nine of ten, 99 of 100, the worst, and how many are the least), those by preference that take off the CPU all they can,
and CPU seconds; then the worst seeds. scipy is needed, which the extra `bench` brings.

`python -m benchmarks oracle trees [COUNT [FIRST_SEED [FAMILY ...]]]` judges COUNT programs of each family of
`_trees.py`: trees of two and three levels, links that the target states, and requests of every kind. In place of plans
by preference stands the mean share of the least that the printed bound reaches.

`python -m benchmarks oracle clusters [COUNT [FIRST_SEED [OPERATIONS [MACHINES]]]]` judges the load of the busiest
machine with `objective="throughput"` against the plans of all assignments (`_clusters.py`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

import tvmtarget as tt
from benchmarks._clusters import busiest, cluster_case
from benchmarks._small import STYLES, Small, least_by_milp, small
from benchmarks._trees import FAMILIES, least_of_tree, tree_case
from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.plan import Plan

__all__ = ["SHAPES", "Judged", "JudgedTree", "judged", "judged_tree"]

COUNT, TREES, CLUSTERS = 1000, 100, (20, 0, 5, 3)
WORST = 8

# Operations and sites.
SHAPES = ((8, 2), (8, 3), (12, 3), (10, 4))

# Ratios below this count as the least: times are rounded to picoseconds, and the solver stops within 1e-9.
SAME = 1 + 1e-6


@dataclass(frozen=True)
class Judged:
    """One program: times of the plans over the least, and CPU seconds of the oracle and of ours."""

    seed: int
    by_cost: float
    by_preference: float
    solving: float
    planning: float


def judged(seed: int, size: int, count: int, style: str) -> Judged:
    """Partition the program of a seed, and compare; `AssertionError` if the oracle or a bound is beaten."""
    case = small(seed, size, count, style)
    times = [time.process_time()]
    plan = tt.decompose(case.module, case.tree, case.costs, where=case.where)
    times.append(time.process_time())
    least = least_by_milp(case)
    times.append(time.process_time())
    ours = _microseconds(plan)
    if ours * SAME < least:
        least = least_by_milp(case, steps=size)  # the best has more subgraphs than the oracle tried
    bound = plan.prediction.lower_bound if plan.prediction is not None else None
    if ours * SAME < least or (bound is not None and bound / 10**6 > SAME * least):
        raise AssertionError(f"{style} {size} {count} {seed}: {ours} us, bound {bound} ps, but the least is {least} us")
    return Judged(seed, ours / least, _preferred(case) / least, times[2] - times[1], times[1] - times[0])


@dataclass(frozen=True)
class JudgedTree:
    """One program of a family: time and bound of the plan over the least, and CPU seconds of the oracle and of ours."""

    seed: int
    by_cost: float
    bound: float
    solving: float
    planning: float


def judged_tree(seed: int, family: str) -> JudgedTree | None:
    """Compare a plan with the least; None if there is none, `AssertionError` if the least or the bound is beaten."""
    case = tree_case(seed, family)
    times = [time.process_time()]
    try:
        plan = tt.decompose(case.module, case.tree, case.costs, **case.options)
    except InfeasibleError:
        plan = None
    times.append(time.process_time())
    least = least_of_tree(case)
    times.append(time.process_time())
    if plan is None:
        if least < float("inf"):
            raise AssertionError(f"{family} {seed}: no plan, but there is one of {least} us")
        return None
    ours = _microseconds(plan)
    bound = (plan.prediction.lower_bound or 0) / 10**6 if plan.prediction is not None else 0.0
    if ours * SAME < least or bound > SAME * least:
        raise AssertionError(f"{family} {seed}: {ours} us, bound {bound} us, but the least is {least} us")
    return JudgedTree(seed, ours / least, bound / least, times[2] - times[1], times[1] - times[0])


def _preferred(case: Small) -> float:
    """Return what the plan by preference takes, by the same costs."""
    plan = tt.decompose(case.module, case.tree, where=case.where)
    kept = {op: f"@{site}" for op, site in plan.sites().items()}
    return _microseconds(tt.decompose(case.module, case.tree, case.costs, where=kept))


def _microseconds(plan: Plan) -> float:
    if plan.prediction is None or plan.prediction.unknown:
        raise AssertionError("something about the program is unknown")
    return plan.prediction.total / 10**6


def row(found: list[Judged]) -> str:
    """Return the figures of one row."""
    ours, priority = (sorted(getattr(one, name) for one in found) for name in ("by_cost", "by_preference"))
    same = sum(ratio <= SAME for ratio in ours) / len(ours)
    times = f"{median(one.solving for one in found):.3f} {median(one.planning for one in found):.3f}"
    return f"{_spread(ours)} {same:>7.1%} | {_spread(priority)} | {times}"


def _spread(ratios: list[float]) -> str:
    last = len(ratios) - 1
    parts = (mean(ratios), ratios[round(0.9 * last)], ratios[round(0.99 * last)], ratios[-1])
    return " ".join(f"{part:>7.4f}" for part in parts)


def _cases(count: int, first: int) -> Iterator[tuple[str, int, int, range]]:
    rows = [(style, *shape) for style in STYLES for shape in SHAPES]
    for style, size, sites in rows:
        yield style, size, sites, range(first, first + -(-count // len(rows)))


def _print_trees(count: int, first: int, families: Sequence[str]) -> None:
    """Print a row for each family, with its worst seed."""
    columns = f"{'mean':>7} {'p90':>7} {'p99':>7} {'max':>7}"
    print(f"{'family':>10} {'number':>6} | {columns} {'least':>7} | {'bound':>7} | seconds: oracle, ours | worst seed")
    for family in families:
        found = [one for seed in range(first, first + count) if (one := judged_tree(seed, family)) is not None]
        if not found:
            print(f"{family:>10} {0:>6} | no program has a plan")
            continue
        ratios = sorted(one.by_cost for one in found)
        same = sum(ratio <= SAME for ratio in ratios) / len(ratios)
        times = f"{median(one.solving for one in found):.3f} {median(one.planning for one in found):.3f}"
        bound = mean(one.bound for one in found)
        worst = max(found, key=lambda one: one.by_cost).seed
        print(f"{family:>10} {len(found):>6} | {_spread(ratios)} {same:>7.1%} | {bound:>7.1%} | {times} | {worst}")


def _print_clusters(count: int, first: int, size: int, machines: int) -> None:
    """Print how many times the least load the busiest machine of a plan has, if machines differ and if they do not."""
    for are_equal in (False, True):
        cases = [cluster_case(seed, size, machines, are_equal=are_equal) for seed in range(first, first + count)]
        found = sorted(busiest(case.plan()) / case.least_busy() for case in cases)
        same = sum(ratio <= SAME for ratio in found) / len(found)
        kind = "machines, all but one equal," if are_equal else "machines,"
        print(f"{size} operations, {machines} {kind} {count} programs: {_spread(found)} {same:>7.1%} are the least")


def main() -> None:
    """Print a row for each kind of program, all together, and the worst seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="the words after `oracle`, as above")
    words = parser.parse_args().words
    kind = words.pop(0) if words[:1] in (["clusters"], ["trees"]) else ""
    most = len(CLUSTERS) if kind == "clusters" else 2
    families = words[most:] if kind == "trees" else []
    unknown = [name for name in families if name not in FAMILIES]
    given = words[: len(words) - len(families)]
    if unknown or len(given) > most or not all(word.isdecimal() for word in given):
        after = f" and then families of {', '.join(FAMILIES)}" if kind == "trees" else ""
        parser.error(f"{' '.join(words)!r} are not at most {most} numbers{after}")
    numbers = [int(word) for word in given]
    if 0 in (*numbers[:1], *numbers[2:]):
        parser.error("only the first seed can be 0")
    if kind == "clusters":
        _print_clusters(*numbers, *CLUSTERS[len(numbers) :])
        return
    if kind == "trees":
        count, first = (*numbers, *(TREES, 0)[len(numbers) :])
        _print_trees(count, first, families or FAMILIES)
        return
    count, first = (*numbers, *(COUNT, 0)[len(numbers) :])
    columns = f"{'mean':>7} {'p90':>7} {'p99':>7} {'max':>7}"
    print(f"{'programs':>14} {'number':>6} | {columns} {'least':>7} | by preference: {columns} | seconds: oracle, ours")
    every: list[tuple[str, Judged]] = []
    for style, size, sites, seeds in _cases(count, first):
        found = [judged(seed, size, sites, style) for seed in seeds]
        every += ((f"{style} {size},{sites}", one) for one in found)
        print(f"{style:>8} {size:>2},{sites:>2} {len(found):>6} | {row(found)}", flush=True)
    print(f"{'all':>14} {len(every):>6} | {row([one for _, one in every])}")
    for name, one in sorted(every, key=lambda pair: -pair[1].by_cost)[:WORST]:
        print(f"worst: {name} seed {one.seed}: {one.by_cost:.4f}")


if __name__ == "__main__":
    main()
