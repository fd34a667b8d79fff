"""What executors and runtimes take beside the code of leaves.

Run as `python -m benchmarks executors [SECTION ...] [--models MODEL ...] [--rounds N] [--threads N]`. Sections:

- `leaf`: whole networks on one llvm leaf, by each pair of executor and runtime, as a ratio to TVM's virtual machine
  called directly: with a tensor of TVM as its input, and its result left where it is. All run the same kernels.
- `call`: microseconds that a driver takes for a call. A chain of operations alternates between two leaves; in `graph`
  on `python` they do nothing, elsewhere they are one operation on six numbers, whose time is included.
- `c`: whole networks, or the models of `tvm_schedule kinds`, in C99 by the C compiler of this machine, as a ratio of
  processor time to object files of LLVM in the same program.
- `cache`: seconds to build a network in a new process, and to build and run it, with an empty compile cache and with
  one that has its code; beside TVM, which has no cache. All processes have read the model before. Seconds include the
  import of what compiles, as it is part of the first build of a process.

The programs of a row run by turns in one process; the best times count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks._arguments import at_least, check_models
from benchmarks._kinds import KINDS
from benchmarks.tvm_schedule import Run, best, given, host_cpu, line, names, network, sample
from benchmarks.tvm_schedule import tvm as directly

PAIRS = (("graph", "python"), ("vm", "python"), ("graph", "cpp"), ("vm", "cpp"), ("aot", "cpp"))
CALLS = 128
SHAPE = (2, 3)


def built(model: onnx.ModelProto, target: str, executor: str, runtime: str, **options: object) -> Callable[..., object]:
    """Build a model for a pair; `target` ends where its options begin."""
    import tvmtarget as tt

    module = tt.IRModule.from_onnx(model)
    return tt.build(module, f"{target}executor={executor},runtime={runtime})", **options)  # type: ignore[arg-type]


def leaf(options: argparse.Namespace) -> None:
    """Print a row per network."""
    cpu = host_cpu()
    config: dict[str, object] = ({"mcpu": cpu} if cpu else {}) | {"num-cores": options.threads}
    target = "llvm(" + "".join(f"{name}={value}," for name, value in config.items())
    print(f"networks on {target[:-1]}), ratios to TVM's virtual machine called directly")
    print(line("network", "TVM, ms", *("/".join(pair) for pair in PAIRS)))
    for name in options.models:
        model = network(name)
        value, array = sample(model)
        programs = [built(model, target, *pair) for pair in PAIRS]
        runs: list[Run] = [directly(model, {value: array}, config, scheduled=True)]
        runs += [partial(program, array) for program in programs]
        for run in runs:  # TVM generates its code in the first run
            run()
        seconds = best(runs, options.rounds)
        print(line(name, f"{seconds[0] * 1e3:.2f}", *(f"{one / seconds[0]:.3f}" for one in seconds[1:])), flush=True)


def chain(count: int) -> onnx.ModelProto:
    """Return a chain of operations on a few numbers."""
    values = ["x", *(f"v{number}" for number in range(1, count)), "y"]
    nodes = [
        helper.make_node("Neg", [values[number]], [values[number + 1]], name=f"n{number}") for number in range(count)
    ]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)] for name in ("x", "y")]
    graph = helper.make_graph(nodes, "chain", *ends)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def alternating(kind: str, executor: str, runtime: str, count: int) -> Callable[..., object]:
    """Build a chain whose operations alternate between two leaves of a kind, so that each is a call."""
    sites = {f"n{number}": "@a" if number % 2 else "@b" for number in range(count)}
    return built(chain(count), f"[a={kind},b={kind}](host=@a,", executor, runtime, where=sites)


def idle_leaves(executable: object) -> None:
    """Replace the code of the leaves by functions that return their inputs."""
    from tvmtarget.backends.protocol import Array, Compiled
    from tvmtarget.building.leaf_function import LeafCode

    class Idle(Compiled):
        def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
            return inputs

    for function in executable._leaves.values():  # type: ignore[attr-defined]
        function.set_code(function.request, LeafCode(function.backend, function.request, Idle()), function.key)


def call(options: argparse.Namespace) -> None:
    """Print a row per pair."""
    print("microseconds for a call, of the difference of two chains")
    print(line("executor", "for a call", "for a run"))
    x = np.zeros(SHAPE, "float32")
    for executor, runtime in PAIRS:
        is_idle = (executor, runtime) == ("graph", "python")
        programs = [
            alternating("numpy" if is_idle else "llvm", executor, runtime, count) for count in (CALLS // 2, CALLS)
        ]
        for program in programs:
            program(x)  # programs in C and C++ are compiled in their first run
            if is_idle:
                idle_leaves(program)
        short, long = best([partial(program, x) for program in programs], options.rounds * 10)
        each = (long - short) / (CALLS - CALLS // 2)
        cells = (f"{each * 1e6:.2f}", f"{(short - each * (CALLS // 2)) * 1e6:.2f}")
        print(line(f"{executor}/{runtime}", *cells), flush=True)


# Each prints the seconds until the program is compiled, and until it has run once.
_BY_TVM = """
import sys, time, warnings, onnx, numpy
model = onnx.load(sys.argv[1])
value = model.graph.input[0]
x = numpy.ones([dim.dim_value for dim in value.type.tensor_type.shape.dim], "float32")
warnings.simplefilter("ignore")
begin = time.perf_counter()
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
executable = tvm.compile(from_onnx(model), target=tvm.target.Target("llvm"))
print(time.perf_counter() - begin)
relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x))
print(time.perf_counter() - begin)
"""
_BY_BUILD = """
import sys, time, onnx, numpy
import tvmtarget as tt
module = tt.IRModule.from_onnx(sys.argv[1])
value = onnx.load(sys.argv[1]).graph.input[0]
x = numpy.ones([dim.dim_value for dim in value.type.tensor_type.shape.dim], "float32")
begin = time.perf_counter()
exe = tt.build(module, "llvm", cache=sys.argv[2])
print(time.perf_counter() - begin)
exe(x)
print(time.perf_counter() - begin)
"""


def _seconds(script: str, *words: object) -> tuple[float, float]:
    """Return what a script prints, in a new process."""
    command = [sys.executable, "-c", script, *map(str, words)]
    # An installed package has the bytecode of its modules.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    build, run = map(float, done.stdout.split())
    return build, run


def cache(options: argparse.Namespace) -> None:
    """Print a row per network."""
    print("seconds to build, and to build and run, in a new process, on llvm")
    print(line("network", "TVM", "empty", "filled", "ratio", "to TVM"))
    for name in options.models:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            onnx.save(network(name), path)
            rounds = [
                (_seconds(_BY_TVM, path), *(_seconds(_BY_BUILD, path, Path(folder) / str(turn)) for _ in range(2)))
                for turn in range(3)
            ]
        for at, label in enumerate((name, "  and run")):
            theirs, first, second = (min(turn[kind][at] for turn in rounds) for kind in range(3))
            cells = (
                f"{theirs:.2f}",
                f"{first:.2f}",
                f"{second:.3f}",
                f"{first / second:.1f}",
                f"{theirs / second:.1f}",
            )
            print(line(label, *cells), flush=True)


def c(options: argparse.Namespace) -> None:
    """Print a row per network."""
    import tvmtarget as tt

    print("networks by the executor aot on one thread, milliseconds")
    print(line("network", "llvm", "c", "ratio"))
    for name in options.models:
        model, inputs = given(name)
        module = tt.IRModule.from_onnx(model)
        targets = ("llvm(executor=aot,runtime=cpp)", "c(executor=aot,runtime=cpp)")
        programs = [partial(tt.build(module, target), *inputs.values()) for target in targets]
        for program in programs:
            program()
        llvm, generated = best(programs, options.rounds, time.process_time)
        cells = (f"{llvm * 1e3:.2f}", f"{generated * 1e3:.2f}", f"{generated / llvm:.3f}")
        print(line(name, *cells), flush=True)


SECTIONS: dict[str, Callable[[argparse.Namespace], None]] = {"leaf": leaf, "call": call, "c": c, "cache": cache}


def main() -> None:
    """Print the sections that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument(
        "--models",
        nargs="+",
        default=["squeezenet"],
        metavar="MODEL",
        help=f"{', '.join(names())}; of section c also {', '.join(KINDS)}",
    )
    parser.add_argument("--threads", type=at_least(1), default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=at_least(1), default=20)
    options = parser.parse_args()
    if unknown := sorted(set(options.sections) - SECTIONS.keys()):
        parser.error(f"no section {unknown[0]!r}; there is {', '.join(SECTIONS)}")
    sections = options.sections or list(SECTIONS)
    check_models(parser, options.models, (*names(), *KINDS) if sections == ["c"] else names())
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    os.environ.setdefault("TVM_BIND_THREADS", "0")  # as the backend does
    for name in sections:
        SECTIONS[name](options)


if __name__ == "__main__":
    main()
