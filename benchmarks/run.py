"""How fast whole programs run: onnxruntime alone, our llvm leaf untuned and tuned, and the best placement over both.

Run as `python -m benchmarks run [MODEL ...] [--log URL] [--trials N] [--seconds S] [--threads N] [--rounds N]
[--clock wall|cpu]`. Models are those of `benchmarks.tvm_schedule`. With trials or seconds, each model is tuned into the
log first; without, the log is used as it is. The four programs run by turns in one process. Printed are the best times,
the ratios to onnxruntime, from which tiers the kernels came, and how far the results are from onnxruntime's, in
standard deviations.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter

import onnx

from benchmarks._arguments import at_least, check_models, positive
from benchmarks.tvm_schedule import CLOCKS, apart, best, host_cpu, line, names, network, onnxruntime, sample

DEFAULT = ("squeezenet", "resnet50")


def targets(threads: int) -> tuple[str, str]:
    """Return this machine's CPU as an llvm leaf, and the composite of onnxruntime and that."""
    cpu = host_cpu()
    llvm = f"llvm({f'mcpu={cpu},' if cpu else ''}num-cores={threads})"
    return llvm, f"composite[ort=onnxruntime(intra-op-threads={threads}),cpu={llvm}](host=@cpu)"


def tune(model: onnx.ModelProto, options: argparse.Namespace) -> None:
    """Tune a model into the log: the composite, and thereby the kernels of its llvm leaf."""
    import tvmtarget as tt

    def report(step: object) -> None:
        print(f"\r{step.done} {step.level} {step.speedup:.2f}   ", end="", file=sys.stderr, flush=True)  # type: ignore[attr-defined]

    _, both = targets(options.threads)
    given = {"trials": options.trials, "seconds": options.seconds}
    result = tt.tune(tt.IRModule.from_onnx(model), both, log=options.log, progress=report, **given)
    print(f"\r{result.measured} trials in {result.seconds:.0f} s", file=sys.stderr)


def row(name: str, options: argparse.Namespace) -> str:
    """Measure a model and return its row."""
    import tvmtarget as tt

    model = network(name)
    if options.trials or options.seconds:
        tune(model, options)
    module, (llvm, both) = tt.IRModule.from_onnx(model), targets(options.threads)
    _, array = sample(model)
    tuned = tt.build(module, llvm, log=options.log)
    programs = [tt.build(module, llvm), tuned, tt.build(module, both, log=options.log)]
    runs = [onnxruntime(model, options.threads), *(lambda exe=exe: exe(array) for exe in programs)]
    expected = runs[0]()
    error = max(apart(run(), expected) for run in runs[1:])
    seconds = best(runs, options.rounds, CLOCKS[options.clock])
    cells = [f"{each * 1e3:.2f}" for each in seconds] + [f"{each / seconds[0]:.2f}" for each in seconds[1:]]
    kernels = Counter(exact=0)
    kernels.update(applied.tier for applied in tuned.tuned if applied.level == "kernel")
    return line(name, *cells, f"{kernels['exact']}/{kernels.total()}", f"{error:.0e}")


def main() -> None:
    """Print a row per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=DEFAULT, metavar="MODEL", help=", ".join((*names(), "all")))
    parser.add_argument("--log", default="benchmark-tuning.db", help="the tuning log, %(default)s unless given")
    parser.add_argument("--trials", type=at_least(0), help="tune with at most so many trials a model")
    parser.add_argument("--seconds", type=positive, help="tune for so many seconds a model")
    parser.add_argument("--threads", type=at_least(1), default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=at_least(1), default=20)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall", help="%(default)s unless given")
    options = parser.parse_args()
    check_models(parser, options.models, (*names(), "all"))
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    os.environ.setdefault("TVM_BIND_THREADS", "0")  # as the backend does
    print(f"{targets(options.threads)[0]}; times in ms")
    print(line("network", "ort", "untuned", "tuned", "best plan", "/ ort", "/ ort", "/ ort", "kernels", "error"))
    for name in names() if "all" in options.models else options.models:
        print(row(name, options), flush=True)


if __name__ == "__main__":
    main()
