"""Whole programs by cost, by preference, and on each leaf alone: measured rates, plans, and times, all in one run.

Run as `python -m benchmarks placement [MODEL ...] [--target TEXT] [--log URL] [--rounds N]`. Models are `digits` and
those of `benchmarks.tvm_schedule`. First the rates of each leaf are measured (`tuner/rates.py`); they make the plan
`by rates`. Then `tune` begins with that plan, and measures placements into a log, from which `build` takes the plan
`measured`. Beside these run
the plan by preference, the whole program on each leaf that takes it, and onnxruntime without this library. All run
by turns, each turn in another order and each program a few times in a row, as idle threads of one spin into the next.

Printed are medians of the turns in microseconds, and for the plans by cost the median over the turns of the ratio to
the plan by preference and to the fastest of the leaves alone; then what is where, and how far results are apart, in
standard deviations. Two columns of one plan show how much such a ratio says.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from benchmarks.tvm_schedule import line, names, network

if TYPE_CHECKING:
    from tvmtarget import Costs, IRModule, Plan, Target
    from tvmtarget.executable import Executable

DIGITS = Path(__file__).parents[1] / "examples/digits.onnx"
DEFAULT = ("digits", "squeezenet", "shufflenet", "inception_v1", "inception_v2")
IN_A_ROW = 3
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
CLOSE = 1e-3  # standard deviations by which results may differ

Inputs = Mapping[str, np.ndarray]


@dataclass
class Contender:
    """A program under a name, where its operations are, and seconds of each turn."""

    name: str
    program: Any
    placed: str
    seconds: list[float]


def module_of(name: str) -> onnx.ModelProto:
    """Return a model by name."""
    return onnx.load(DIGITS) if name == "digits" else network(name)


def plain(model: onnx.ModelProto, threads: int) -> Any:
    """Return what runs a model in onnxruntime alone, on inputs by name."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, dict(inputs))


def placed(plan: Plan) -> str:
    """Say how many operations are on each leaf, and in how many regions."""
    counts = Counter(plan.sites().values())
    spread = ", ".join(f"{count} @{site or '.'}" for site, count in counts.most_common())
    return f"{spread} in {len(plan.regions)}"


def contenders(name: str, tree: Target, rates: Costs, options: argparse.Namespace) -> tuple[list[Contender], Inputs]:
    """Build all programs of a model."""
    import tvmtarget as tt
    from tvmtarget.tuner.exploring import plans_by_leaf
    from tvmtarget.tuner.whole import made_up_inputs, open_sizes

    model = module_of(name)
    module = tt.IRModule.from_onnx(model)
    first = tt.decompose(module, tree)
    inputs = made_up_inputs(first)
    if inputs is None:
        sys.exit(f"no inputs can be made up for {name}")
    by_rates = tt.decompose(module, tree, replace(rates, symbolic_hints=open_sizes(first)))
    plans = {"preference": first, "by rates": by_rates}
    begin = time.monotonic()
    with tt.TuningLog(options.log) as log:
        result = tt.tune(module, tree, log=log, levels=["placement"], trials=options.trials, costs=rates)
        measured = tt.build(module, tree, log=log)
    print(f"{name}: {result.measured} placements measured in {time.monotonic() - begin:.0f} s", file=sys.stderr)
    found = [Contender(which, tt.build(plan), placed(plan), []) for which, plan in plans.items()]
    found.append(Contender("measured", measured, spread_of(measured), []))
    for leaf, alone in zip(first.layout.leaves(), plans_by_leaf(first), strict=True):
        if set(alone.sites().values()) == {leaf.path}:
            single = by_itself(module, leaf.target)
            found.append(Contender(f"only {leaf.path}", tt.build(single), placed(single), []))
    runs = plain(model, options.threads)
    found.append(Contender("plain ort", runs, "", []))
    return found, inputs


def by_itself(module: IRModule, leaf: Target) -> Plan:
    """Return the plan of a program on a leaf that is all there is."""
    import tvmtarget as tt

    return tt.decompose(module, leaf.replace(name=None, host=None))


def spread_of(program: Executable) -> str:
    """Say how many operations of a program are on each leaf, and in how many regions."""
    regions = program.report()["regions"]
    counts: Counter[str] = Counter()
    for region in regions:
        counts[region["site"]] += len(region["ops"])
    return ", ".join(f"{count} @{site or '.'}" for site, count in counts.most_common()) + f" in {len(regions)}"


def results_of(contender: Contender, inputs: Inputs) -> list[np.ndarray]:
    """Return the results of a run, in order."""
    if contender.name == "plain ort":
        return list(contender.program(inputs))
    return list(contender.program.run(inputs).values())


def race(found: Sequence[Contender], inputs: Inputs, rounds: int, clock: Callable[[], float]) -> float:
    """Compare the results of all, then run them by turns; return how far results are apart."""
    expected = results_of(found[-1], inputs)
    apart = 0.0
    for each in found[:-1]:
        for own, other in zip(results_of(each, inputs), expected, strict=True):
            apart = max(apart, float(np.abs(own - other).max() / other.std()))
    order, turns = list(found), random.Random(0)
    for _ in range(rounds):
        turns.shuffle(order)
        for each in order:
            each.seconds.append(min(timed(each, inputs, clock) for _ in range(IN_A_ROW)))
    return apart


def timed(contender: Contender, inputs: Inputs, clock: Callable[[], float]) -> float:
    """Run once and return the seconds."""
    run = contender.program if contender.name == "plain ort" else contender.program.run
    begin = clock()
    run(inputs)
    return clock() - begin


def ratio(one: Contender, other: Contender) -> float:
    """Return the median over the turns of how long one took as a multiple of another."""
    return median(mine / theirs for mine, theirs in zip(one.seconds, other.seconds, strict=True))


def report(name: str, found: Sequence[Contender], apart: float) -> bool:
    """Print the lines of a model; return whether its results agree and no plan by cost is slower than its goals."""
    by_name = {each.name: each for each in found}
    singles = [each for each in found if each.name.startswith("only ")]
    best = min(singles, key=lambda each: median(each.seconds), default=by_name["preference"])
    print(line(f"{name}, us", *(each.name for each in found)))
    print(line("", *(f"{1e6 * median(each.seconds):.1f}" for each in found)))
    ok = apart <= CLOSE
    for each in (by_name["by rates"], by_name["measured"]):
        over = [ratio(each, by_name["preference"]), ratio(each, best)]
        ok = ok and max(over) <= 1.03
        print(f"  {each.name:<10} {over[0]:.3f} of preference, {over[1]:.3f} of {best.name}: {each.placed}")
    print(f"  {best.name} {ratio(best, by_name['plain ort']):.3f} of plain ort; results {apart:.0e} apart", flush=True)
    return ok


def main() -> None:
    """Print the rates, and a block of lines per model; exit with 1 where a plan by cost was slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=DEFAULT, metavar="MODEL", help=", ".join(("digits", *names())))
    parser.add_argument("--target", help="a composite; onnxruntime and llvm for this machine unless given")
    parser.add_argument("--log", default="memory:", help="a tuning log, in memory unless given")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--trials", type=int, help="measure at most so many placements of a model")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu on a busy machine, with one thread")
    options = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    from benchmarks.run import targets
    from tvmtarget import Target
    from tvmtarget.tuner.rates import measure_rates

    tree = Target.parse(options.target or targets(options.threads)[1])
    rates = measure_rates(tree)
    print(tree)
    print("\n".join(rates.lines()), flush=True)
    fine = [
        report(name, found, race(found, inputs, options.rounds, CLOCKS[options.clock]))
        for name in options.models
        for found, inputs in [contenders(name, tree, rates.costs, options)]
    ]
    sys.exit(0 if all(fine) else 1)


if __name__ == "__main__":
    main()
