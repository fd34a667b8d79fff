"""Products and convolutions of integers on llvm, against onnxruntime, of known and of open sizes.

Run as `python -m benchmarks quantized [NAME ...] [--leaf LEAF] [--rounds N]`. `dynamic` quantizes its input in each run
(DynamicQuantizeLinear and MatMulInteger or ConvInteger), `qdq` has constant scales (QuantizeLinear and
DequantizeLinear), `float` is the same operator of float32. Printed are milliseconds by the processor's clock on one
thread, the least of all turns, and their ratio; then the largest difference, over the largest result. A difference of
`qdq` is one step of 8 bits where the results lie between two.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx

from benchmarks._arguments import at_least

PRODUCTS = ((1, 256, 256), (32, 256, 256), (128, 384, 384), (128, 768, 768))  # rows, terms, columns
WINDOWS = ((64, 56, 1, 1), (256, 14, 1, 1), (64, 56, 3, 1), (128, 28, 3, 2))  # channels, height, window, stride
FORMS = {
    "dynamic": "q, qs, qz = DynamicQuantizeLinear(x)  p = {0}Integer{1}(q, w, qz)  f = Cast<to=1>(p)"
    "  scale = Mul(qs, ws)  y = Mul(f, scale)",
    "qdq": "q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  v = DequantizeLinear(w, ws, wz)"
    "  f = {0}{1}(d, v)  r = QuantizeLinear(f, to, z)  y = DequantizeLinear(r, to, z)",
    "float": "y = {0}{1}(x, v)",
}
SLOT = 0.02  # seconds that one turn takes about


def model(form: str, kind: str, shape: tuple[int, ...], weights: np.ndarray, attributes: str, *, opens: bool) -> Any:
    """Return a model of one operator, `MatMul` or `Conv`, and an input of a shape; open sizes are all but channels."""
    kept = 1 if kind == "Conv" else len(shape) - 1
    names = [str(size) if at == kept or not opens else f"n{at}" for at, size in enumerate(shape)]
    body = FORMS[form].format(kind, attributes)
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[{",".join(names)}] x) => (float y) {{ {body} }}'
    made = onnx.parser.parse_model(text)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    constants = {
        "w": weights,
        "v": weights * np.float32(0.01),
        "ws": np.array(0.01, "float32"),
        "wz": np.array(0, "int8"),
        "s": np.array(0.02, "float32"),
        "to": np.array(0.2, "float32"),
        "z": np.array(120, "uint8"),
    }
    read = {name for node in made.graph.node for name in node.input}
    read -= {name for node in made.graph.node for name in node.output}
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in constants.items() if name in read
    )
    x = np.random.default_rng(1).standard_normal(shape, dtype="float32")
    return onnx.shape_inference.infer_shapes(made), {"x": x}


def cases() -> Mapping[str, Callable[[], Any]]:
    """Return what makes the models and their inputs, by name."""
    found: dict[str, Callable[[], Any]] = {}
    random = np.random.default_rng(0)

    def add(name: str, kind: str, shape: tuple[int, ...], weights: tuple[int, ...], attributes: str = "") -> None:
        array = random.integers(-127, 128, weights).astype("int8")
        for form in FORMS:
            for opens in (False, True):
                found[f"{form} {name}{' open' * opens}"] = lambda form=form, opens=opens: model(
                    form, kind, shape, array, attributes, opens=opens
                )

    for rows, terms, columns in PRODUCTS:
        add(f"{rows}x{terms}x{columns}", "MatMul", (1, rows, terms), (terms, columns))
    for channels, height, window, stride in WINDOWS:
        pad = window // 2
        attributes = f"<pads=[{pad},{pad},{pad},{pad}], strides=[{stride},{stride}]>"
        name = f"{channels}x{height}x{height} by {window}x{window}/{stride}"
        add(name, "Conv", (1, channels, height, height), (channels, channels, window, window), attributes)
    return found


def least(runs: list[Callable[[], object]], rounds: int) -> list[float]:
    """Return the least seconds of each run, by turns."""
    counts, seconds = [], [float("inf")] * len(runs)
    for run in runs:
        run()
        begin = time.process_time()
        run()
        counts.append(max(1, int(SLOT / max(time.process_time() - begin, 1e-6))))
    for _ in range(rounds):
        for at, run in enumerate(runs):
            begin = time.process_time()
            for _ in range(counts[at]):
                run()
            seconds[at] = min(seconds[at], (time.process_time() - begin) / counts[at])
    return seconds


def main() -> None:
    """Print a row for each case whose name contains one of the words, or for all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks quantized", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of names of the cases")
    parser.add_argument("--leaf", default="llvm", help="the target (llvm)")
    parser.add_argument("--rounds", type=at_least(1), default=5, metavar="N", help="turns (5)")
    options = parser.parse_args()
    chosen = {name: make for name, make in cases().items() if any(word in name for word in options.names or ("",))}
    if not chosen:
        parser.error(
            f"no case has a name with {' or '.join(map(repr, options.names))}, such as {next(iter(cases()))!r}"
        )
    os.environ["TVM_NUM_THREADS"] = "1"
    import onnxruntime

    import tvmtarget as tt

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    print(f"{'':<36}{'onnxruntime':>12}{options.leaf[:24]:>12}{'ratio':>8}{'apart':>9}")
    for name, make in chosen.items():
        made, inputs = make()
        session = onnxruntime.InferenceSession(made.SerializeToString(), settings, providers=["CPUExecutionProvider"])
        program = tt.build(made, options.leaf)
        expected, found = session.run(None, inputs)[0], program.run(inputs)["y"]
        error = np.abs(expected - found).max() / np.abs(expected).max()
        theirs, ours = least([partial(session.run, None, inputs), partial(program.run, inputs)], options.rounds)
        print(f"{name:<36}{theirs * 1e3:>12.4f}{ours * 1e3:>12.4f}{ours / theirs:>8.2f}{error:>9.0e}", flush=True)
