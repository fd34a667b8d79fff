"""Partitioners of other projects on the graphs of `_graphs.py`, each a function that returns regions, or says why not.

A region is a list of operations by number. Every peer gets the same graph and the same set of operations that the
accelerator takes; what it makes of them is counted by us. A peer that is not installed raises `ImportError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks._graphs import Graph

__all__ = ["PEERS", "Peer", "cut_tensors"]

Peer = Callable[[Graph, "list[bool]"], Callable[[], "list[list[int]]"]]


def cut_tensors(graph: Graph, regions: list[list[int]]) -> int:
    """Count pairs of a value and a part of the program, other than its own, that reads it; what is in none is alone."""
    owner = {index: number for number, region in enumerate(regions) for index in region}
    pairs = {
        (before, owner.get(index, -1 - index))
        for index, (reads, _) in enumerate(graph)
        for before in reads
        if before >= 0 and owner.get(before, -1 - before) != owner.get(index, -1 - index)
    }
    return len(pairs)


def _traced(graph: Graph) -> Any:
    import torch

    traced = torch.fx.Graph()
    values = [traced.placeholder("x")]
    read = set()
    for index, (reads, _) in enumerate(graph):
        arguments = tuple(values[before + 1] for before in reads)
        function = torch.add if len(reads) == 2 else torch.relu
        values.append(traced.create_node("call_function", function, arguments, name=f"n{index}"))
        read.update(reads)
    traced.output(tuple(value for index, value in enumerate(values[1:]) if index not in read))
    return torch.fx.GraphModule({}, traced)


def capability(graph: Graph, taken: list[bool]) -> Callable[[], list[list[int]]]:
    """torch.fx: CapabilityBasedPartitioner."""
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import OperatorSupportBase

    class Support(OperatorSupportBase):
        def is_node_supported(self, submodules: object, node: Any) -> bool:
            return node.op == "call_function" and taken[int(node.name[1:])]

    module = _traced(graph)

    def divide() -> list[list[int]]:
        partitioner = CapabilityBasedPartitioner(module, Support(), allows_single_node_partition=True)
        return [[int(node.name[1:]) for node in part.nodes] for part in partitioner.propose_partitions()]

    return divide


def splitter(graph: Graph, taken: list[bool]) -> Callable[[], list[list[int]]]:
    """torch.fx: splitter_base, as Torch-TensorRT's fast partitioner uses it."""
    import torch
    from torch.fx.passes.operator_support import OperatorSupportBase
    from torch.fx.passes.splitter_base import _SplitterBase, _SplitterSettingBase

    class Support(OperatorSupportBase):
        def is_node_supported(self, submodules: object, node: Any) -> bool:
            return node.op == "call_function" and taken[int(node.name[1:])]

    module = _traced(graph)

    def divide() -> list[list[int]]:
        settings = _SplitterSettingBase(min_acc_module_size=1, skip_fusion=True)
        found = _SplitterBase(module, (torch.zeros(1),), Support(), settings, non_acc_submodule_name="_host_")
        parts = found.put_nodes_into_subgraphs()
        return [[int(node.name[1:]) for node in part.nodes] for part in parts if part.is_acc]

    return divide


def tvm(graph: Graph, taken: list[bool]) -> Callable[[], list[list[int]]]:
    """TVM: FuseOpsByPattern and MergeCompositeFunctions; regions are counted before equal ones are merged by it."""
    from tvm import ir, relax
    from tvm.relax.dpl import is_op, wildcard

    makers = {(1, True): relax.op.nn.relu, (1, False): relax.op.tanh}
    makers |= {(2, True): relax.op.add, (2, False): relax.op.subtract}
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    read = {before for reads, _ in graph for before in reads}
    with builder.function("main", [x]):
        with builder.dataflow():
            values = [x]
            for index, (reads, _) in enumerate(graph):
                made = makers[len(reads), taken[index]](*(values[before + 1] for before in reads))
                values.append(builder.emit(made))
            ends = [value for index, value in enumerate(values[1:]) if index not in read]
            result = builder.emit_output(relax.Tuple(ends))
        builder.emit_func_output(result)
    module = builder.get()
    patterns = [
        ("npu.relu", is_op("relax.nn.relu")(wildcard())),
        ("npu.add", is_op("relax.add")(wildcard(), wildcard())),
    ]

    def divide() -> list[list[int]]:
        fused = relax.transform.FuseOpsByPattern(patterns, annotate_codegen=False)(module)
        merged = relax.transform.MergeCompositeFunctions()(fused)
        # It raises where regions wait for each other, or returns whether all is well in older versions.
        if relax.analysis.well_formed(merged) is False:
            raise ValueError("invalid IR")
        values = [binding.value for block in merged["main"].body.blocks for binding in block.bindings]
        callees = [value.op for value in values if isinstance(value, relax.Call) and isinstance(value.op, ir.GlobalVar)]
        functions = [merged[callee] for callee in callees]
        return [[] for function in functions if function.attrs and "Codegen" in function.attrs]

    return divide


# By name: the peer, and the largest graph it is asked for: all but one need more than linear time.
PEERS: Mapping[str, tuple[Peer, int]] = {
    "fx capability": (capability, 1_000),
    "fx splitter": (splitter, 100_000),
    "tvm": (tvm, 10_000),
}
