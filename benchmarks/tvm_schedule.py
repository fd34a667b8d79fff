"""How fast the default CPU schedule makes TVM, beside TVM without it and onnxruntime.

Run as `python -m benchmarks.tvm_schedule [MODEL ...] [--threads N] [--rounds N] [--mcpu NAME] [--skip-plain]
[--clock wall|cpu] [--open]`. Models are the networks that come with onnx, at batch 1, with random weights in place of
theirs, squeezenet and resnet50 if none is named, and the small models of other kinds of `_kinds`; `all` are the
networks, `kinds` the others. With `--open`, only a run knows the height and width of a network's images. The three run
by turns in one process on the same threads. Printed are the best times, the ratios, the seconds to compile, and how far
the result is from onnxruntime's, in standard deviations of that. On a busy machine `--clock cpu --threads 1` measures
time of the processor, which what else runs changes little.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks._arguments import at_least, check_models
from benchmarks._kinds import KINDS

Run = Callable[[], Any]
Clock = Callable[[], float]

FOLDER = Path(onnx.__file__).parent / "backend/test/data/light"
DEFAULT = ("squeezenet", "resnet50")
SLOW = 0.5  # seconds from which on one run is enough
IN_A_ROW = 5
ERRORS_ONLY = 3
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


def names() -> tuple[str, ...]:
    """Return the names of the networks that come with onnx."""
    return tuple(sorted(path.stem.removeprefix("light_") for path in FOLDER.glob("light_*.onnx")))


def host_cpu() -> str:
    """Return this machine's CPU by a name of LLVM whose features it has all; '' if there is none.

    LLVM's own name for it is that of the model, also where a virtual machine has fewer features.
    """
    import tvmtarget as tt

    return str(tt.Target.detect().attrs.get("mcpu", ""))


def network(name: str) -> onnx.ModelProto:
    """Return a network with random weights, scaled so that values neither grow nor vanish."""
    model = onnx.load(FOLDER / f"light_{name}.onnx")
    random, graph = np.random.default_rng(0), model.graph
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "ConstantOfShape"]:
        weights = random.standard_normal(shapes[node.input[0]].tolist(), dtype="float32")
        weights = weights * np.sqrt(0.5 / weights[0].size) if weights.ndim > 1 else np.abs(weights) / 10 + 0.5
        graph.initializer.append(numpy_helper.from_array(weights.astype("float32"), node.output[0]))
        graph.node.remove(node)
    constant = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constant]
    del graph.input[:]
    graph.input.extend(inputs)
    model.ir_version = 8
    return model


def given(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a network or a model of a kind, and values for its inputs by name."""
    if name in KINDS:
        return KINDS[name]()
    model = network(name)
    return model, dict([sample(model)])


def sample(model: onnx.ModelProto) -> tuple[str, np.ndarray]:
    """Return the name of a network's input and random values for it."""
    value = model.graph.input[0]
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    return value.name, np.random.default_rng(1).standard_normal(shape, dtype="float32")


def open_sizes(model: onnx.ModelProto) -> None:
    """Let only a run know the height and width of a network's images, and the sizes that follow from them."""
    graph = model.graph
    del graph.value_info[:]
    for value, names in ((graph.input[0], ("", "", "height", "width")), (graph.output[0], ("", "", "y", "x"))):
        for dim, symbol in zip(value.type.tensor_type.shape.dim, names, strict=False):
            if symbol:
                dim.dim_param = symbol


def onnxruntime(model: onnx.ModelProto, threads: int, inputs: Mapping[str, np.ndarray] | None = None) -> Run:
    """Return a function that runs a model in onnxruntime, on a network's sample unless inputs are given."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = ERRORS_ONLY
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = dict(inputs or [sample(model)])
    return lambda: session.run(None, values)[0]


def tvm(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], config: dict[str, object], *, scheduled: bool) -> Run:
    """Return a function that runs a model in TVM, as we import and compile it or as TVM does, to its first result."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    from tvmtarget.backends.tvm.backend import _prepared
    from tvmtarget.backends.tvm.cpu_schedule import PASS_CONFIG, cpu_pipeline
    from tvmtarget.backends.tvm.onnx_import import import_onnx

    target = tvm.target.Target({"kind": "llvm", **config})
    pipeline = cpu_pipeline(target) if scheduled else relax.get_default_pipeline(target)
    context = tvm.transform.PassContext(opt_level=3, config=PASS_CONFIG if scheduled else {})
    with warnings.catch_warnings(), context:
        warnings.simplefilter("ignore")
        imported = import_onnx(*_prepared(onnx.shape_inference.infer_shapes(model))) if scheduled else from_onnx(model)
        executable = tvm.compile(imported, target=target, relax_pipeline=pipeline)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    arrays = [tvm.runtime.tensor(inputs[value.name]) for value in model.graph.input]

    def run() -> Any:
        result = machine["main"](*arrays)
        return result if hasattr(result, "numpy") else result[0]

    return run


def timed(work: Run, clock: Clock = time.perf_counter) -> tuple[float, Any]:
    """Run once and return seconds and the result."""
    begin = clock()
    result = work()
    return clock() - begin, result


def best(runs: Sequence[Run], rounds: int, clock: Clock = time.perf_counter) -> list[float]:
    """Run by turns, each a few times in a row, as idle threads of one spin into the next; return the best seconds."""
    seconds = [timed(run, clock)[0] for run in runs]
    for _ in range(rounds):
        for at, run in enumerate(runs):
            if seconds[at] < SLOW:
                seconds[at] = min(seconds[at], *(timed(run, clock)[0] for _ in range(IN_A_ROW)))
    return seconds


def apart(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return how far a result is from what is expected, in standard deviations; raise `RunError` if they disagree."""
    from tvmtarget.building.output_comparison import compare
    from tvmtarget.errors import RunError, raise_all

    raise_all(RunError, compare({"result": actual}, {"result": expected}).problems)
    return float(np.abs(actual - expected).max() / expected.std())


def row(name: str, options: argparse.Namespace) -> str:
    """Measure a model and return its row."""
    model, inputs = given(name)
    if options.open and name not in KINDS:
        open_sizes(model)
    config = {"mcpu": options.mcpu} if options.mcpu else {}
    compiling, runs = [], [onnxruntime(model, options.threads, inputs)]
    for scheduled in (True,) if options.skip_plain else (True, False):
        seconds, run = timed(lambda scheduled=scheduled: tvm(model, inputs, config, scheduled=scheduled))
        compiling.append(seconds)
        runs.append(run)
    expected, actual = runs[0](), runs[1]().numpy()
    error = apart(actual, expected)
    reference, ours, *plain = best(runs, options.rounds, CLOCKS[options.clock])
    cells = [f"{reference * 1e3:.2f}", f"{ours * 1e3:.2f}", f"{ours / reference:.2f}", f"{compiling[0]:.1f}"]
    cells += [f"{plain[0] * 1e3:.1f}", f"{plain[0] / ours:.1f}", f"{compiling[1]:.1f}"] if plain else "---"
    return line(name, *cells, f"{error:.0e}")


def line(name: str, *cells: str) -> str:
    """Return a line of the table."""
    return f"{name:<14}" + "".join(f"{cell:>10}" for cell in cells)


def main() -> None:
    """Print a row per network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "models", nargs="*", default=DEFAULT, metavar="MODEL", help=", ".join((*names(), "all", *KINDS, "kinds"))
    )
    parser.add_argument("--threads", type=at_least(1), default=2)
    parser.add_argument("--rounds", type=at_least(1), default=20)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall", help="%(default)s unless given")
    parser.add_argument("--mcpu", help="a CPU by LLVM's name, '' for a generic one; this machine's by default")
    parser.add_argument("--open", action="store_true", help="only a run knows the height and width of images")
    parser.add_argument("--skip-plain", action="store_true", help="leave TVM without the schedule out")
    options = parser.parse_args()
    groups = {"all": names(), "kinds": tuple(KINDS)}
    models = [name for word in options.models for name in groups.get(word, (word,))]
    check_models(parser, models, (*names(), "all", *KINDS, "kinds"))
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    os.environ.setdefault("TVM_BIND_THREADS", "0")  # as the backend does
    if options.mcpu is None:
        options.mcpu = host_cpu()
    elif options.mcpu:
        from tvmtarget import Target

        Target("llvm", {"mcpu": options.mcpu})  # TVM compiles for a generic CPU where it does not know the name
    print(f"mcpu {options.mcpu or 'generic'}, {options.threads} threads; times in ms, compiling in s")
    print(line("model", "ort", "schedule", "/ ort", "compile", "plain", "/ ours", "compile", "error"))
    for name in models:
        print(row(name, options), flush=True)


if __name__ == "__main__":
    main()
