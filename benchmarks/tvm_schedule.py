"""How fast the default CPU schedule makes TVM, beside TVM without it and onnxruntime.

Run as `python -m benchmarks.tvm_schedule [MODEL ...] [--threads N] [--rounds N] [--mcpu NAME] [--skip-plain]`. Models
are the networks that come with onnx ("light" ones: their weights are replaced by random numbers), at batch 1; squeezenet
and resnet50 if none is named, all with `all`. The three run by turns in one process on the same threads; printed are the
best times, seconds to compile, how many times as long as onnxruntime the schedule takes, and how far its result is from
onnxruntime's in standard deviations of that.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

FOLDER = Path(onnx.__file__).parent / "backend/test/data/light"
DEFAULT = ("squeezenet", "resnet50")
SLOW = 0.5  # seconds from which on one run is enough

Run = Callable[[], Any]


def names() -> tuple[str, ...]:
    """Return the names of the networks that come with onnx."""
    return tuple(sorted(path.stem.removeprefix("light_") for path in FOLDER.glob("light_*.onnx")))


def network(name: str) -> onnx.ModelProto:
    """Return a network with random weights, scaled so that values neither grow nor vanish."""
    model = onnx.load(FOLDER / f"light_{name}.onnx")
    random, graph = np.random.default_rng(0), model.graph
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "ConstantOfShape"]:
        weights = random.standard_normal(shapes[node.input[0]].tolist(), dtype="float32")
        weights = weights * np.sqrt(2 / weights[0].size) if weights.ndim > 1 else np.abs(weights) / 10 + 0.5
        graph.initializer.append(numpy_helper.from_array(weights.astype("float32"), node.output[0]))
        graph.node.remove(node)
    constant = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constant]
    del graph.input[:]
    graph.input.extend(inputs)
    model.ir_version = 8
    return model


def sample(model: onnx.ModelProto) -> tuple[str, np.ndarray]:
    """Return the name of a network's input and random values for it."""
    value = model.graph.input[0]
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    return value.name, np.random.default_rng(1).standard_normal(shape, dtype="float32")


def onnxruntime(model: onnx.ModelProto, threads: int) -> Run:
    """Return a function that runs a network in onnxruntime."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name, array = sample(model)
    return lambda: session.run(None, {name: array})[0]


def tvm(model: onnx.ModelProto, config: dict[str, object], *, scheduled: bool) -> Run:
    """Return a function that runs a network in TVM, with our pipeline or TVM's own for CPUs."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    from tvmtarget.backends.tvm_schedule import cpu_pipeline

    target = tvm.target.Target({"kind": "llvm", **config})
    pipeline = cpu_pipeline(target) if scheduled else relax.get_default_pipeline(target)
    with warnings.catch_warnings(), tvm.transform.PassContext(opt_level=3):
        warnings.simplefilter("ignore")
        executable = tvm.compile(from_onnx(model), target=target, relax_pipeline=pipeline)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    array = tvm.runtime.tensor(sample(model)[1])
    return lambda: machine["main"](array)


def timed(work: Run) -> tuple[float, Any]:
    """Run once and return seconds and the result."""
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def best(runs: Sequence[Run], rounds: int) -> list[float]:
    """Run by turns and return the best seconds of each; a slow one runs once."""
    seconds = [timed(run)[0] for run in runs]
    for _ in range(rounds):
        seconds = [min(s, timed(run)[0]) if s < SLOW else s for run, s in zip(runs, seconds, strict=True)]
    return seconds


def row(name: str, options: argparse.Namespace) -> str:
    """Measure a network and return its row."""
    model = network(name)
    config = {"mcpu": options.mcpu} if options.mcpu else {}
    compiling, runs = [], [onnxruntime(model, options.threads)]
    for scheduled in (True,) if options.skip_plain else (True, False):
        seconds, run = timed(lambda scheduled=scheduled: tvm(model, config, scheduled=scheduled))
        compiling.append(seconds)
        runs.append(run)
    expected, actual = runs[0](), runs[1]().numpy()
    error = np.abs(actual - expected).max() / expected.std()
    reference, ours, *plain = best(runs, options.rounds)
    without = (
        f"{plain[0] * 1e3:>10.1f} {plain[0] / ours:>9.1f} {compiling[1]:>9.1f}"
        if plain
        else f"{'-':>10} {'-':>9} {'-':>9}"
    )
    return f"{name:<14} {reference * 1e3:>8.2f} {ours * 1e3:>9.2f} {ours / reference:>7.2f} {compiling[0]:>9.1f} {without} {error:>9.1e}"


def main() -> None:
    """Print a row per network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=DEFAULT, metavar="MODEL", help=", ".join((*names(), "all")))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--mcpu", help="a CPU by LLVM's name, '' for a generic one; this machine's by default")
    parser.add_argument("--skip-plain", action="store_true", help="leave TVM without the schedule out")
    options = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    from tvm.target import codegen

    if options.mcpu is None:
        options.mcpu = codegen.llvm_get_system_cpu()
    print(f"mcpu {options.mcpu or 'generic'}, {options.threads} threads; milliseconds, and seconds to compile")
    print(
        f"{'network':<14} {'ort':>8} {'schedule':>9} {'/ ort':>7} {'compile':>9} {'plain TVM':>10} {'/ ours':>9}"
        f" {'compile':>9} {'error':>9}"
    )
    for name in names() if "all" in options.models else options.models:
        print(row(name, options), flush=True)


if __name__ == "__main__":
    main()
