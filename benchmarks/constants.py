"""What it costs to give weights to functions instead of making them parts of them: a transformer of equal layers.

Run as `python -m benchmarks constants [LEAF ...] [--layers N] [--width N] [--rounds N]`: leaves are targets of one
thread, onnxruntime and llvm unless given. Each layer is a function, or a call of one (`constants="share"`); `whole` is
the unpartitioned program. Printed are functions, seconds of the processor to build, megabytes of the saved executable,
and milliseconds of a run by the processor's clock: all run by turns, and the median over the turns of the ratio to
`bind` says more than the medians; then how far results are from those of `whole`, in standard deviations.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks._arguments import at_least
from benchmarks.tvm_schedule import apart, host_cpu

if TYPE_CHECKING:
    from tvmtarget import Plan

LEAVES = ("onnxruntime(intra-op-threads=1)", "llvm(mcpu={cpu},num-cores=1)")
LENGTH, HEADS = 64, 4  # of the text, and of attention
POLICIES = ("bind", "share", "lift")


class _Writer:
    """Writes nodes; names of results are numbered."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, kind: str, *inputs: str, **attributes: object) -> str:
        result = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [result], f"n{len(self.nodes)}", **attributes))
        return result

    def constant(self, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def dense(self, x: str, width: int, to: int) -> str:
        matrix = self.random.standard_normal((width, to), dtype="float32") / np.float32(np.sqrt(width))
        product = self.add("MatMul", x, self.constant(matrix))
        return self.add("Add", product, self.constant(self.random.standard_normal(to, dtype="float32") / 10))

    def norm(self, x: str) -> str:
        scale = self.constant(self.random.uniform(0.5, 1.5, self.width).astype("float32"))
        return self.add("LayerNormalization", x, scale, self.constant(np.zeros(self.width, "float32")))

    def layer(self, x: str) -> str:
        shape = self.constant(np.array([LENGTH, HEADS, self.width // HEADS]))
        normal = self.norm(x)
        parts = [self.add("Reshape", self.dense(normal, self.width, self.width), shape) for _ in range(3)]
        q, k, v = (self.add("Transpose", part, perm=perm) for part, perm in zip(parts, _PERMS, strict=True))
        scale = self.constant(np.array(np.sqrt(HEADS / self.width), "float32"))
        scores = self.add("Softmax", self.add("Mul", self.add("MatMul", q, k), scale), axis=-1)
        seen = self.add("Transpose", self.add("MatMul", scores, v), perm=[1, 0, 2])
        flat = self.add("Reshape", seen, self.constant(np.array([LENGTH, self.width])))
        x = self.add("Add", x, self.dense(flat, self.width, self.width))
        inner = self.add("Relu", self.dense(self.norm(x), self.width, 4 * self.width))
        return self.add("Add", x, self.dense(inner, 4 * self.width, self.width))


_PERMS = ([1, 0, 2], [1, 2, 0], [1, 0, 2])


def transformer(layers: int, width: int) -> tuple[onnx.ModelProto, list[str]]:
    """Return a model, and the first operation of each layer but the first."""
    writer, x, first = _Writer(width), "x", []
    for _ in range(layers):
        first.append(f"n{len(writer.nodes)}")
        x = writer.layer(x)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [LENGTH, width]) for name in ("x", x)]
    graph = helper.make_graph(writer.nodes, "transformer", ends[:1], ends[1:], writer.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), first[1:]


def plans(leaf: str, layers: int, width: int) -> dict[str, Plan]:
    """Return the plans that are compared, by name; the first is what the others are measured by."""
    import tvmtarget as tt

    model, firsts = transformer(layers, width)
    module, tree = tt.IRModule.from_onnx(model), f"composite[one={leaf}]"
    plans = {how: tt.decompose(module, tree, boundary_before=firsts, constants=how) for how in POLICIES}
    return {**plans, "whole": tt.decompose(module, leaf)}


def report(leaf: str, options: argparse.Namespace) -> None:
    """Print the rows of a leaf."""
    import tvmtarget as tt

    x = {"x": np.random.default_rng(1).standard_normal((LENGTH, options.width), dtype="float32")}
    programs: dict[str, Any] = {}
    cells: dict[str, list[str]] = {}
    for name, plan in plans(leaf, options.layers, options.width).items():
        begin = time.process_time()
        programs[name] = tt.build(plan)
        built = time.process_time() - begin
        with TemporaryDirectory() as folder:
            path = Path(folder) / "program.tta"
            programs[name].save(path)
            cells[name] = [str(len(plan.functions())), f"{built:.2f}", f"{path.stat().st_size / 1e6:.1f}"]
    expected = next(iter(programs["whole"].run(x).values()))
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    order, turns = list(programs), random.Random(0)
    for _ in range(options.rounds):
        turns.shuffle(order)
        for name in order:
            seconds[name].append(min(timed(programs[name], x) for _ in range(3)))
    print(f"{leaf}: {options.layers} layers of width {options.width}")
    print(f"{'weights':>10} {'functions':>9} {'build s':>8} {'MB':>7} {'run ms':>8} {'/ bind':>7} {'apart':>7}")
    for name, program in programs.items():
        over = median(own / base for own, base in zip(seconds[name], seconds["bind"], strict=True))
        error = apart(next(iter(program.run(x).values())), expected)
        functions, built, size = cells[name]
        middle = 1e3 * median(seconds[name])
        print(f"{name:>10} {functions:>9} {built:>8} {size:>7} {middle:>8.3f} {over:>7.3f} {error:>7.0e}", flush=True)


def timed(program: Any, inputs: dict[str, np.ndarray]) -> float:
    """Run once and return seconds of the processor."""
    begin = time.process_time()
    program.run(inputs)
    return time.process_time() - begin


def main() -> None:
    """Print a table for each leaf."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("leaves", nargs="*", metavar="LEAF")
    parser.add_argument("--layers", type=at_least(1), default=12)
    parser.add_argument("--width", type=at_least(HEADS), default=256, help=f"a multiple of {HEADS}")
    parser.add_argument("--rounds", type=at_least(1), default=25)
    options = parser.parse_args()
    if options.width % HEADS:
        parser.error(f"argument --width: {options.width} is not a multiple of {HEADS}, the heads of attention")
    os.environ["TVM_NUM_THREADS"] = "1"
    for leaf in options.leaves or LEAVES:
        report(leaf.replace("{cpu}", host_cpu()), options)


if __name__ == "__main__":
    main()
