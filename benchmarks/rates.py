"""What a call and a network take with each code generator, beside what a roofline says: the table of `rates.py`.

Run as `python -m benchmarks rates`. The roofline of this machine is measured as well: a large matrix product, and a
large copy. Printed are microseconds for calling one Relu, and the share of the roofline that a network reaches.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper

import tvmtarget as tt
from benchmarks.tvm_schedule import network

NETWORKS = {
    "onnxruntime": ("squeezenet", "resnet50"),
    "openvino": ("squeezenet", "resnet50"),
    "llvm": ("squeezenet", "resnet50"),
    "numpy": ("squeezenet",),
}


def least(work: Callable[[], object], times: int) -> float:
    """Return the least of several times, in seconds."""
    spent = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        spent.append(time.perf_counter() - begin)
    return min(spent)


def roofline() -> tuple[float, float]:
    """Return operations and bytes a second."""
    source, square = np.ones(50_000_000, "float32"), np.ones((2000, 2000), "float32")
    copy = np.empty_like(source)
    return 2 * 2000**3 / least(lambda: square @ square, 5), 2 * source.nbytes / least(
        lambda: np.copyto(copy, source), 5
    )


def relu() -> tt.IRModule:
    """Return a program of one small operation."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="r")], "relu", ends[:1], ends[1:])
    return tt.IRModule.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def main() -> None:
    """Print a row per code generator and network."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    flops, rate = roofline()
    print(f"{flops / 1e9:.0f} GFLOP/s, {rate / 1e9:.0f} GB/s")
    for kind, networks in NETWORKS.items():
        program, small = tt.build(relu(), kind), {"x": np.ones((2, 2), "float32")}
        program.run(small)
        print(f"{kind}: a call takes {1e6 * least(lambda run=program, x=small: run.run(x), 200):.1f} us")
        peaks = {"launch": 0, "roofline": 1, "flops": {"float32": flops}, "mem_bw": rate}
        costs = {"schema": "tvmtarget.cost/1", "sites": {kind: peaks}}
        for name in networks:
            module = tt.IRModule.from_onnx(network(name))
            inputs = {param.name: np.ones(param.type.shape, "float32") for param in module.main.params}
            whole = tt.build(module, kind)
            whole.run(inputs)
            spent = least(lambda run=whole, x=inputs: run.run(x), 3)
            ideal = tt.decompose(module, kind, costs).prediction.total / 1e12
            print(f"{kind}: {name} takes {spent:.4f} s, {ideal / spent:.3f} of the roofline")


if __name__ == "__main__":
    main()
