"""Which phase of a whole `decompose` takes what: seconds of the processor, and parts of the whole.

Run as `python -m benchmarks phases [SIZE ...] [--families NAME ...]`: every family of graphs (`_graphs.py`), without
costs on four sites and with costs on two and four, each in a process of its own. The phases are timed as the pipeline
runs them (`partition/pipeline.py`), with the garbage collector suspended as `decompose` does. The last three columns
are the whole call, timed apart from its phases, and the same call with `since=` after an edit of the operation in the
middle, as a part of the call without: the operator of that operation is replaced, so that its costs are other ones,
or it gets an attribute.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import tvmtarget as tt
from benchmarks._apart import Caps, Ended, apart
from benchmarks._arguments import at_least
from benchmarks._graphs import FAMILIES, SITES, costs_of, module_of, tree_of
from tvmtarget.garbage_collection import without_garbage_collection
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.decomposition import Request
from tvmtarget.partition.options import PartitionOptions
from tvmtarget.partition.placement.choosers import choosers_for
from tvmtarget.partition.placement.coupled_atoms import CoupledOps
from tvmtarget.partition.preparation import judge, normalised
from tvmtarget.partition.stages import Candidate, outline_subgraphs, partition, predict_times
from tvmtarget.partition.verify import verify_plan

__all__ = ["PHASES", "annotated", "edited", "phases_of"]

SIZES = (4_000, 40_000, 100_000)

PHASES = ("verify module", "normalise", "judge", "partition", "outline", "predict", "verify plan", "reports")

_Result = TypeVar("_Result")


def edited(module: tt.IRModule) -> tt.IRModule:
    """Return a program with another operator in the middle."""
    main = module.main
    middle = len(main.body) // 2
    call = main.body[middle]
    one, other = ("onnx.Relu", "onnx.Exp") if len(call.inputs) == 1 else ("onnx.Add", "onnx.Max")
    changed = replace(call, op=other if call.op == one else one)
    body = (*main.body[:middle], changed, *main.body[middle + 1 :])
    return module.replace(functions=(main.replace(body=body),))


def annotated(module: tt.IRModule) -> tt.IRModule:
    """Return a program with another attribute in the middle, which changes no costs."""
    main = module.main
    middle = len(main.body) // 2
    changed = replace(main.body[middle], attrs=(("note", 1),))
    body = (*main.body[:middle], changed, *main.body[middle + 1 :])
    return module.replace(functions=(main.replace(body=body),))


def phases_of(family: str, size: int, sites: int, has_costs: bool) -> dict[str, float]:
    """Return processor seconds by phase, of the whole call, and of those after edits."""
    costs = costs_of(SITES[-sites:]) if has_costs else None
    tree = tree_of(sites)
    tt.decompose(module_of(FAMILIES[family](50)), tree, costs)  # what is imported at the first use does not count
    found: dict[str, float] = {}

    def timed(name: str, run: Callable[[], _Result]) -> _Result:
        begin = time.process_time()
        result = run()
        found[name] = found.get(name, 0.0) + time.process_time() - begin
        return result

    with without_garbage_collection():
        module = module_of(FAMILIES[family](size))
        request = Request(module, tree, PartitionOptions.of(costs=costs))
        timed("verify module", module.verify)
        program = timed("normalise", lambda: normalised(request))
        feasibility = judge(request, program, splits=False, cache=None)
        timed("judge", feasibility.check_all)
        estimates = None if request.options.costs is None else Estimates(program, request.options.costs)
        (choose,) = choosers_for(feasibility, estimates, PartitionOptions(), None, CoupledOps())
        done = timed("partition", lambda: partition(Candidate(request, feasibility, estimates, choose)))
        done = timed("outline", lambda: outline_subgraphs(done))
        done = timed("predict", lambda: predict_times(done))
        assert done.module is not None
        assert done.outlined is not None
        parts = program, feasibility, done.module, done.outlined
        timed("verify plan", lambda: verify_plan(*parts))
    module = module_of(FAMILIES[family](size))
    plan = timed("whole", lambda: tt.decompose(module, tree, costs))
    timed("reports", plan.summary)
    for what, edit in (("operator", edited), ("attribute", annotated)):
        anew, after = edit(module), edit(module)
        timed(f"anew, {what}", lambda anew=anew: tt.decompose(anew, tree, costs))
        timed(f"since, {what}", lambda after=after: tt.decompose(after, tree, costs, since=plan))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=at_least(1), metavar="SIZE", help="numbers of operations")
    parser.add_argument("--families", nargs="+", default=("chain", "transformer", "random"), choices=FAMILIES)
    parser.add_argument(
        "--cap", type=at_least(1), default=120, help="seconds of processor time, %(default)s unless given"
    )
    options = parser.parse_args(arguments)
    names = " | ".join(PHASES)
    print(f"| graph | operations | sites | {names} | whole | since, operator | since, attribute |")
    print(f"| --- | --: | --- |{' --: |' * (len(PHASES) + 3)}")
    for size in options.sizes or SIZES:
        for family in options.families:
            for sites, has_costs in ((4, False), (2, True), (4, True)):
                found = apart(phases_of, family, size, sites, has_costs, caps=Caps(options.cap, 8.0))
                start = f"| {family} | {size:,} | {sites}{', costs' if has_costs else ''}"
                if isinstance(found, Ended):
                    print(f"{start} | {found.reason} |", flush=True)
                    continue
                cells = " | ".join(f"{found[name]:.3f}" for name in PHASES)
                parts = (100 * found[f"since, {what}"] / found[f"anew, {what}"] for what in ("operator", "attribute"))
                cells = " | ".join([cells, f"{found['whole']:.3f}", *(f"{part:.0f} %" for part in parts)])
                print(f"{start} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
