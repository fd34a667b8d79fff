"""Whole programs by cost, by preference, and on each leaf alone: measured rates, plans, and times, all in one run.

Run as `python -m benchmarks placement [MODEL ...] [--target TEXT | --three] [--log URL] [--rounds N]`. Models are
`digits`, those of `benchmarks.tvm_schedule`, and files in ONNX. First the rates of each leaf are measured
(`autotune/search/rates.py`); they make
the plan `by rates`. Then `tune` begins with that plan, and measures placements into a log, from which `build` takes the
plan `measured`. Beside these run the plan by preference, the whole program on each leaf that takes it, and onnxruntime
without this library. All run by turns, each turn in another order and each program a few times in a row, as idle
threads of one spin into the next. Each is built a few times, as it is some percent faster or slower by where its
weights lie; in a turn the fastest build counts. A leaf that is far behind alone does not run again.

Printed are medians of the turns in microseconds, and for the plans by cost the median over the turns of the ratio to
the plan by preference and to the fastest of the leaves alone, with twice its standard error, and whether both are one
plan; then what is where, in how many subgraphs and how many there are at least, and how far results are apart, in
standard deviations. Two columns of one plan show how much such a ratio says. The bound that `tune` found
(`Finding.bound`) is printed as a part of the time that its best placement took then: where that is one leaf and the
bound is near 1, mixing leaves gains nothing. The last line is the geometric mean of the ratios of measured plans to the
fastest leaf alone. Subgraphs are counted of a plan that does
not run, too: its operators are dealt to the leaves in turn.

The error of predictions by rates is reported for the functions of other plans: all on each leaf, and segments on them
by turns. It is the median and the ninth decile of |log(predicted / measured)|, where the fastest run counts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from benchmarks._arguments import at_least, check_models
from benchmarks._predicted import Prediction, explored, predictions, spread
from benchmarks.tvm_schedule import apart, line, names, network

if TYPE_CHECKING:
    from tvmtarget import Costs, IRModule, Plan, Target

DIGITS = Path(__file__).parents[1] / "examples/digits.onnx"
DEFAULT = ("digits", "squeezenet", "shufflenet", "inception_v1", "inception_v2", "resnet50", "densenet121")
PLAIN = "plain ort"
IN_A_ROW = 2
FAR_BEHIND = 6  # times the fastest of the others, from which on a leaf alone is not run by turns
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
CLOSE = 1e-3  # standard deviations by which results may differ

Inputs = Mapping[str, np.ndarray]


@dataclass
class Contender:
    """A program under a name, built a few times, and seconds of each turn: of the build that was fastest in it."""

    name: str
    programs: Sequence[Any]
    seconds: list[float]
    plan: Plan | None = None
    predicted: float | None = None  # seconds, by rates
    bound: float = 0.0  # what no placement takes less than, as a part of the measured one; 0 if unknown

    @property
    def error(self) -> float | None:
        """The logarithm of how many times too long the prediction is, by the fastest turn; None without one."""
        return None if self.predicted is None else math.log(self.predicted / min(self.seconds))

    @property
    def program(self) -> Any:
        """Any of the builds."""
        return self.programs[0]

    @property
    def subgraphs(self) -> list[tuple[str, tuple[str, ...]]]:
        """Which operations each of its functions has, and where that is; none for another's program."""
        if self.name == PLAIN:
            return []
        alone = self.name.removeprefix("only ") if self.name.startswith("only ") else ""
        return [(subgraph["site"] or alone, tuple(subgraph["ops"])) for subgraph in self.program.report()["subgraphs"]]

    @property
    def placed(self) -> str:
        """How many operations are on each leaf, and in how many subgraphs."""
        counts: Counter[str] = Counter()
        for site, ops in self.subgraphs:
            counts[site] += len(ops)
        spread = ", ".join(f"{count} @{site or '.'}" for site, count in counts.most_common())
        least = f", at least {self.plan.root.least_parts}" if self.plan is not None else ""
        return f"{spread} in {len(self.subgraphs)}{least}"


def module_of(name: str) -> onnx.ModelProto:
    """Return a model by its name or file."""
    if name.endswith(".onnx"):
        return onnx.load(name)
    return onnx.load(DIGITS) if name == "digits" else network(name)


def plain(model: onnx.ModelProto, threads: int) -> Any:
    """Return what runs a model in onnxruntime alone, on inputs by name."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, dict(inputs))


@dataclass
class Race:
    """The contenders of a model, inputs for them, leaves that are far behind, and how far predictions are off."""

    name: str
    found: list[Contender]
    inputs: Inputs
    behind: list[str]
    predicted: list[Prediction]
    dealt: Plan

    @property
    def best(self) -> Contender:
        """The fastest of the leaves alone; the plan by preference if none takes the program."""
        singles = [each for each in self.found if each.name.startswith("only ")]
        return min(singles, key=lambda each: median(each.seconds), default=self.found[0])

    @property
    def gains(self) -> list[Ratio]:
        """What the measured plan takes of the time of the fastest leaf alone; nothing without one."""
        return [Ratio.of(each, self.best) for each in self.found if each.name == "measured"]


def contenders(name: str, tree: Target, rates: Costs, options: argparse.Namespace) -> Race:
    """Build all programs of a model."""
    import tvmtarget as tt
    from tvmtarget.autotune.search.candidate_plans import plans_by_leaf
    from tvmtarget.autotune.search.timing import random_inputs, symbolic_sizes

    model = module_of(name)
    module = tt.IRModule.from_onnx(model)
    first = tt.decompose(module, tree)
    inputs = random_inputs(first)
    if inputs is None:
        sys.exit(f"no inputs can be made up for {name}")
    by_rates = tt.decompose(module, tree, replace(rates, symbolic_hints=symbolic_sizes(first)))
    builds = range(options.builds)
    plans = {"preference": first, "by rates": by_rates}
    found = [
        Contender(which, [tt.build(plan) for _ in builds], [], plan, seconds_of(by_rates, plan))
        for which, plan in plans.items()
    ]
    if options.trials != 0:
        found.append(measured_placement(name, module, tree, rates, options))
    found.append(Contender(PLAIN, [plain(model, options.threads) for _ in builds], []))
    clock = CLOCKS[options.clock]
    limit = FAR_BEHIND * min(timed(each, inputs, clock) for each in found)
    near, behind = list[str](), list[str]()
    for leaf, alone in zip(first.topology.leaves(), plans_by_leaf(first), strict=True):
        if set(alone.sites().values()) != {leaf.path}:
            continue
        whole = by_itself(module, leaf.target)
        single = Contender(f"only {leaf.path}", [tt.build(whole)], [], None, seconds_of(by_rates, alone))
        if timed(single, inputs, clock) > limit:
            behind.append(leaf.path)
        else:
            near.append(leaf.path)
            programs = [*single.programs, *(tt.build(whole) for _ in builds[1:])]
            found.insert(-1, replace(single, programs=programs))
    estimates = by_rates.estimates
    assert estimates is not None
    explore = [] if options.skip_predictions else explored(first, estimates, near)
    predicted = [one for plan in explore for one in predictions(plan, estimates, inputs)]
    return Race(name, found, inputs, behind, predicted, dealt(module, tree))


def seconds_of(by_rates: Plan, plan: Plan) -> float:
    """Return what rates predict that a plan of the same program takes."""
    from tvmtarget.partition.costs.predict import predict

    assert by_rates.estimates is not None
    return predict(by_rates.estimates, plan.outlined, plan.module).total / 1e12


def measured_placement(
    name: str, module: IRModule, tree: Target, rates: Costs, options: argparse.Namespace
) -> Contender:
    """Measure placements into the log, the one by rates early, and build the best."""
    import tvmtarget as tt

    begin = time.monotonic()
    with tt.TuningLog(options.log) as log:
        result = tt.tune(module, tree, log=log, levels=["placement"], trials=options.trials, costs=rates)
        measured = [tt.build(module, tree, log=log) for _ in range(options.builds)]
    print(f"{name}: {result.measured} placements measured in {time.monotonic() - begin:.0f} s", file=sys.stderr)
    print(*result.left_out, sep="\n", end="\n" if result.left_out else "", file=sys.stderr)
    bounds = (each.bound / each.best for each in result.findings if each.level == "placement")
    return Contender("measured", measured, [], bound=next(bounds, 0.0))


def by_itself(module: IRModule, leaf: Target) -> Plan:
    """Return the plan of a program on a leaf that is all there is."""
    import tvmtarget as tt

    return tt.decompose(module, leaf.replace(name=None, host=None))


def dealt(module: IRModule, tree: Target) -> Plan:
    """Return the plan that deals operators to the leaves, as far as they may be there: the first to the first, ..."""
    import tvmtarget as tt

    leaves = [leaf.path for leaf in tt.decompose(module, tree).topology.leaves()]
    kinds = dict.fromkeys(call.kind for call in module.main.body)
    where = {f"op:{kind}": f"@{leaf}?" for kind, leaf in zip(kinds, cycle(leaves), strict=False)}
    return tt.decompose(module, tree, where=where)


def results_of(contender: Contender, inputs: Inputs) -> list[np.ndarray]:
    """Return the results of a run, in order."""
    if contender.name == PLAIN:
        return list(contender.program(inputs))
    return list(contender.program.run(inputs).values())


def run_by_turns(found: Sequence[Contender], inputs: Inputs, rounds: int, clock: Callable[[], float]) -> float:
    """Compare the results of all, then run them by turns; return how far results are apart."""
    expected = results_of(found[-1], inputs)
    worst = 0.0
    for each in found[:-1]:
        for own, other in zip(results_of(each, inputs), expected, strict=True):
            worst = max(worst, apart(own, other))
    order, turns = list(found), random.Random(0)
    for _ in range(rounds):
        turns.shuffle(order)
        for each in order:
            each.seconds.append(min(timed(each, inputs, clock, build) for build in range(len(each.programs))))
    return worst


def timed(contender: Contender, inputs: Inputs, clock: Callable[[], float], build: int = 0) -> float:
    """Run a build a few times and return the seconds of the fastest."""
    program = contender.programs[build]
    run = program if contender.name == PLAIN else program.run
    spent = []
    for _ in range(IN_A_ROW):
        begin = clock()
        run(inputs)
        spent.append(clock() - begin)
    return min(spent)


@dataclass(frozen=True)
class Ratio:
    """How long one took as a multiple of another: the median over the turns, and twice its standard error."""

    middle: float
    error: float
    is_same: bool

    @classmethod
    def of(cls, one: Contender, other: Contender) -> Ratio:
        """Compare two that ran by turns."""
        from tvmtarget.autotune.search.timing import error_of_median

        turns = np.divide(one.seconds, other.seconds).tolist()
        return cls(median(turns), 2 * error_of_median(turns), bool(one.subgraphs) and one.subgraphs == other.subgraphs)

    @property
    def is_slower(self) -> bool:
        """Whether it took longer by more than chance."""
        return not self.is_same and self.middle - self.error > 1

    def __str__(self) -> str:
        same = ", the same plan" if self.is_same else ""
        return f"{self.middle:.3f} (±{self.error:.3f}{same})"


def report(race: Race, apart: float) -> bool:
    """Print the lines of a model; return whether its results agree and no plan by cost is slower than its goals."""
    name, found = race.name, race.found
    by_name, best = {each.name: each for each in found}, race.best
    print(line(f"{name}, us", *(each.name for each in found)))
    print(line("", *(f"{1e6 * median(each.seconds):.1f}" for each in found)))
    is_fine = apart <= CLOSE
    for each in (by_name[which] for which in ("by rates", "measured") if which in by_name):
        over = {other.name: Ratio.of(each, other) for other in (by_name["preference"], best)}
        is_fine = is_fine and not any(ratio.is_slower for ratio in over.values())
        ratios = ", ".join(f"{ratio} of {other}" for other, ratio in over.items())
        bound = f"; no placement takes less than {each.bound:.3f} of it" if each.bound else ""
        print(f"  {each.name:<10} {ratios}: {each.placed}{bound}")
    print(f"  {best.name} {Ratio.of(best, by_name[PLAIN])} of {PLAIN}; results {apart:.0e} apart")
    errors = {each.name: each.error for each in found if each.error is not None}
    print("  predicted, of measured: " + ", ".join(f"{name} x{math.exp(error):.3f}" for name, error in errors.items()))
    print(f"  operators dealt to leaves: {len(race.dealt.subgraphs)} subgraphs, at least {race.dealt.root.least_parts}")
    if race.behind:
        print(f"  far behind: {', '.join(f'only {path}' for path in race.behind)}")
    if race.predicted:
        print(f"  predictions off by: {spread(race.predicted)}")
    sys.stdout.flush()
    return is_fine


def main() -> None:
    """Print the rates, and a block of lines per model; exit with 1 where a plan by cost was slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "models",
        nargs="*",
        default=DEFAULT,
        metavar="MODEL",
        help=f"{', '.join(('digits', *names()))}, or a file FILE.onnx",
    )
    parser.add_argument("--target", help="a composite; onnxruntime and llvm for this machine unless given")
    parser.add_argument("--three", action="store_true", help="numpy as a third leaf")
    parser.add_argument("--costs", help="rates that were measured before")
    parser.add_argument("--save-costs", metavar="FILE", help="write the rates")
    parser.add_argument("--skip-predictions", action="store_true")
    parser.add_argument("--log", default="memory:", help="a tuning log, in memory unless given")
    parser.add_argument("--threads", type=at_least(1), default=len(os.sched_getaffinity(0)))
    parser.add_argument("--trials", type=at_least(0), help="measure at most so many placements of a model; 0: none")
    parser.add_argument("--builds", type=at_least(1), default=3, help="of each program; where weights lie differs")
    parser.add_argument("--rounds", type=at_least(1), default=25)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu on a busy machine, with one thread")
    options = parser.parse_args()
    named = [name for name in options.models if not name.endswith(".onnx")]
    check_models(parser, named, ("digits", *names()))
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    from benchmarks.run import targets
    from tvmtarget import Target
    from tvmtarget.autotune.search.rates import MeasuredRates, measure_rates
    from tvmtarget.partition.costs.cost_file import load_costs, write_costs

    two = targets(options.threads)[1]
    tree = Target.parse(options.target or (two.replace("](", ",np=numpy](") if options.three else two))
    rates = measure_rates(tree) if options.costs is None else MeasuredRates(load_costs(options.costs))
    if options.save_costs:
        Path(options.save_costs).write_text(json.dumps(write_costs(rates.costs)))
    print(tree)
    print("\n".join(rates.lines()), flush=True)
    fine, predicted, errors, gains = list[bool](), list[Prediction](), list[float](), list[Ratio]()
    for name in options.models:
        race = contenders(name, tree, rates.costs, options)
        apart = run_by_turns(race.found, race.inputs, options.rounds, CLOCKS[options.clock])
        fine.append(report(race, apart))
        predicted += race.predicted
        gains += race.gains
        errors += [abs(each.error) for each in race.found if each.error is not None]
    print(f"predictions of programs off by {median(errors):.3f}, at most {max(errors):.3f} ({len(errors)})")
    if predicted:
        print(f"predictions of functions off by: {spread(predicted)}")
    if gains:
        mean = math.exp(sum(math.log(ratio.middle) for ratio in gains) / len(gains))
        print(f"measured plans take {mean:.3f} of the fastest leaf alone (geometric mean of {len(gains)})")
    sys.exit(0 if all(fine) else 1)


if __name__ == "__main__":
    main()
