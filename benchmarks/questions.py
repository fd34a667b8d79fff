"""Whether answers about a plan are true: each is compared with a program that is planned again as the answer says.

Run as `python -m benchmarks questions [COUNT [FIRST_SEED]]`: COUNT questions about small random programs (`_small.py`
and `_trees.py`, in turn). For a random operation of each program the questions are:

- `what_if`: is the plan for a move the one that `where` gives?
- `sensitivity`: does the whole take so much longer with the operation on each other leaf, and nowhere less?
- `stays`, `leaves`: does the operation stay where it is if it takes a little less than the limit that `sensitivity`
  prints, and leave if it takes a little more?
- `alone`: do operations and copies take so much longer if only this one moves (`explain`)?

Printed are the answers that were wrong, by program, then how many of each kind were compared.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvmtarget as tt
from benchmarks._arguments import at_least
from benchmarks._small import STYLES, small
from benchmarks._trees import FAMILIES, tree_case
from tvmtarget.errors import InfeasibleError
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.costs.costs import Costs
from tvmtarget.partition.plan import Plan
from tvmtarget.target.tree import Target

__all__ = ["KINDS", "Answer", "answers"]

COUNT = 1000

# Microseconds by which the time of an operation is set below and above the limit of `sensitivity`.
STEP = 0.01

# Picoseconds by which times may differ: each estimate is rounded.
ROUNDING = 50

# Programs in turn: kinds of `_small.py`, and families of `_trees.py`.
KINDS = (*STYLES, *FAMILIES)


@dataclass(frozen=True)
class Answer:
    """One answer that was compared: the kind of question, what it is about, and what is wrong; "" if it is true."""

    kind: str
    about: str
    problem: str = ""


@dataclass(frozen=True)
class _Case:
    module: IRModule
    tree: Target
    costs: Costs
    options: Mapping[str, Any]

    def plan(self, where: Mapping[str, str] | None = None, costs: Costs | None = None) -> Plan | None:
        """Return the plan with more requirements or other costs; None if there is none."""
        both = self.options.get("where", {}) | (where or {})
        try:
            return tt.decompose(self.module, self.tree, costs or self.costs, **{**self.options, "where": both})
        except InfeasibleError:
            return None


def answers(seed: int) -> Iterator[Answer]:
    """Query the plan about one operation of the program of a seed.

    Args:
        seed: number of the program.

    Yields:
        Each answer, compared.
    """
    kind, number = KINDS[seed % len(KINDS)], seed // len(KINDS)
    case = _case(kind, number)
    plan = case.plan()
    if plan is None or plan.prediction is None:
        return
    call = plan.program.body[number % len(plan.program.body)]
    op, here, total = call.source, plan.site_of(call.source), plan.prediction.total
    about = f"{kind} {number} {op}"
    found = plan.sensitivity(op)
    for leaf in plan.feasibility.leaves:
        if leaf.path == here or plan.feasibility.unsupported_reason(plan.program.find(op), leaf) is not None:
            continue
        moved = case.plan({op: f"@{leaf.path}"})
        try:
            supposed = plan.what_if({op: f"@{leaf.path}"})
        except InfeasibleError:
            supposed = None
        yield Answer("what_if", about, _difference(supposed, moved))
        longer, least = found.longer.get(leaf.path), None if moved is None else _total(moved) - total
        # Leaves where something about the operation is unknown are left out.
        if moved is None or moved.prediction is None or not moved.prediction.unknown:
            yield Answer("sensitivity", about, _wrong_by(leaf.path, longer, least))
    if found.most is not None:
        yield _stays(case, about, op, here, found.most / 10**6 - STEP)
        yield _leaves(case, about, op, here, found.most / 10**6 + STEP)
    yield from _alone(case, plan, about, op)


def _case(kind: str, number: int) -> _Case:
    if kind in STYLES:
        one = small(number, 8 + number % 3, 2 + number % 3, kind)
        return _Case(one.module, one.tree, one.costs, {"where": one.where})
    tree = tree_case(number, kind)
    return _Case(tree.module, tree.tree, tree.costs, tree.options)


def _total(plan: Plan) -> int:
    return plan.prediction.total if plan.prediction is not None else 0


def _difference(supposed: Plan | None, moved: Plan | None) -> str:
    if supposed is None or moved is None:
        return "" if supposed is moved else f"{_known(supposed)}, but where gives {_known(moved)}"
    if abs(_total(supposed) - _total(moved)) > ROUNDING:
        return f"takes {_total(supposed)} ps, but where gives {_total(moved)}"
    return ""


def _wrong_by(leaf: str, longer: int | None, least: int | None) -> str:
    if longer is None or least is None:
        return "" if longer is least else f"@{leaf}: {longer} ps longer, but it is {least}"
    if longer < -ROUNDING:
        return f"the whole is {-longer} ps faster on @{leaf}"
    return "" if abs(longer - least) <= ROUNDING else f"@{leaf}: {longer} ps longer, but it is {least}"


def _known(plan: Plan | None) -> str:
    return "no plan" if plan is None else "a plan"


def _retimed(case: _Case, op: str, site: str, time: float) -> Costs:
    """Return the costs with another time of one operation, of which each has a shape of its own."""
    call = next(call for call in case.module.main.body if call.source == op)
    shape = call.outputs[0].type.shape  # type: ignore[union-attr]
    return replace(
        case.costs,
        ops=tuple(replace(one, time=time) if (one.site, one.shape) == (site, shape) else one for one in case.costs.ops),
    )


def _stays(case: _Case, about: str, op: str, here: str, time: float) -> Answer:
    plan = case.plan(costs=_retimed(case, op, here, time)) if time > 0 else None
    is_true = plan is None or plan.site_of(op) == here
    return Answer("stays", about, "" if is_true else f"@{here}: leaves at {time} us")


def _leaves(case: _Case, about: str, op: str, here: str, time: float) -> Answer:
    plan = case.plan(costs=_retimed(case, op, here, time))
    is_true = plan is not None and plan.site_of(op) != here
    return Answer("leaves", about, "" if is_true else f"@{here}: stays at {time} us")


def _alone(case: _Case, plan: Plan, about: str, op: str) -> Iterator[Answer]:
    """Compare with the plan in which every operation is required to be where it is, and this one elsewhere."""
    # Of requests that exclude a move the answer is still a number, but there is no plan to compare with.
    bare = replace(case, options={})
    sites = {name: f"@{site}" for name, site in plan.sites().items()}
    for leaf, longer in plan.explain(op).alone:
        pinned = [bare.plan(sites), bare.plan(sites | {op: f"@{leaf}"})]
        here, there = (None if one is None else one.prediction for one in pinned)
        if here is None or there is None:
            continue
        found = there.ops + there.copies - here.ops - here.copies
        is_true = abs(found - longer) <= ROUNDING
        yield Answer("alone", about, "" if is_true else f"@{leaf}: {longer} ps longer, but it is {found}")


def main() -> None:
    """Query plans until there are enough answers; print wrong ones, then how many of each kind were compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=at_least(1), nargs="?", default=COUNT)
    parser.add_argument("first", type=at_least(0), nargs="?", default=0)
    options = parser.parse_args()
    count, seed = options.count, options.first
    first, begin = seed, time.process_time()
    compared: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    while compared.total() < count:
        for answer in answers(seed):
            compared[answer.kind] += 1
            if answer.problem:
                wrong[answer.kind] += 1
                print(f"{answer.kind} {answer.about}: {answer.problem}", flush=True)
        seed += 1
    print(f"{compared.total()} answers on programs {first} to {seed - 1}, {time.process_time() - begin:.0f} s CPU:")
    for kind, number in compared.items():
        print(f"{kind:>12} {number:>6}, {wrong[kind]} wrong")


if __name__ == "__main__":
    main()
