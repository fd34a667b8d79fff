"""How long dividing a program takes, beside TVM's own passes for it (FuseOpsByPattern and MergeCompositeFunctions).

Run as `python -m benchmarks.decompose [SIZE ...]`. Both get the same chains: elementwise operations of which every
third is of a kind that the accelerator does not take. TVM rewrites a Relax function, we import ONNX, divide it,
outline every region and prove the result. Printed are seconds, the ratio, and how both grow.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import onnx
from onnx import TensorProto, helper

import tvmtarget as tt

SIZES = (1_000, 2_000, 4_000)
OURS_ALONE = (10_000, 100_000)
# TVM's passes need quadratic memory; above this size they are not asked.
TVM_LIMIT = 10_000

TAKEN, LEFT = ("Relu", "Sigmoid"), "Tanh"


def kinds(size: int) -> list[str]:
    """Return the operators of a chain."""
    return [LEFT if index % 3 == 2 else TAKEN[index % 2] for index in range(size)]


def chain(size: int) -> onnx.ModelProto:
    """Return the chain as an ONNX model."""
    nodes = [helper.make_node(kind, [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i, kind in enumerate(kinds(size))]
    ends = [helper.make_tensor_value_info(f"v{end}", TensorProto.FLOAT, [4]) for end in (0, size)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def ours(size: int) -> tuple[float, int]:
    """Divide a chain; return seconds and the number of regions."""
    module = tt.IRModule.from_onnx(chain(size))
    where = {f"op:{LEFT}": "@host", **{f"op:{kind}": "@npu" for kind in TAKEN}}
    return timed(lambda: len(tt.decompose(module, "[npu=onnxruntime,host=numpy]", where=where).regions))


def theirs(size: int) -> tuple[float, int]:
    """Divide the same chain by TVM; return seconds and the number of distinct functions (TVM merges equal ones)."""
    from tvm import relax
    from tvm.relax.dpl import is_op, wildcard

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    makers = {"Relu": relax.op.nn.relu, "Sigmoid": relax.op.sigmoid, "Tanh": relax.op.tanh}
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for kind in kinds(size):
                value = builder.emit(makers[kind](value))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    module = builder.get()
    patterns = [("npu.relu", is_op("relax.nn.relu")(wildcard())), ("npu.sigmoid", is_op("relax.sigmoid")(wildcard()))]

    def divide() -> int:
        fused = relax.transform.FuseOpsByPattern(patterns, annotate_codegen=False)(module)
        merged = relax.transform.MergeCompositeFunctions()(fused)
        return sum(1 for _, function in merged.functions.items() if function.attrs and "Codegen" in function.attrs)

    return timed(divide)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Run once and return seconds and the result."""
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def main() -> None:
    """Print a row per size."""
    sizes = tuple(map(int, sys.argv[1:])) or (*SIZES, *OURS_ALONE)
    print(f"{'ops':>8} {'tvmtarget s':>12} {'TVM s':>8} {'TVM / ours':>11} {'growth of ours':>15}")
    last: tuple[int, float] | None = None
    for size in sizes:
        mine, regions = ours(size)
        growth = "" if last is None else f"x{mine / last[1]:.1f} for x{size / last[0]:.1f}"
        last = (size, mine)
        if size > TVM_LIMIT:
            print(f"{size:>8} {mine:>12.3f} {'-':>8} {'-':>11} {growth:>15}   {regions} regions")
            continue
        other, groups = theirs(size)
        found = f"{regions} regions; {groups} distinct by TVM"
        print(f"{size:>8} {mine:>12.3f} {other:>8.3f} {other / mine:>11.1f} {growth:>15}   {found}")


if __name__ == "__main__":
    main()
