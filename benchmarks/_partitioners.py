"""Our partitioner and those of other projects on the graphs of `_graphs.py`: each returns a function that partitions.

Each gets the same graph and the same set of operations that the accelerator takes; what it makes of them is counted
by us. A peer that is not installed raises `ImportError`.

What is inside of the time differs, as the projects do. torch.fx and `tvmtarget` have a graph whose edges are known, and
form subgraphs. The partitioner of ONNX Runtime in Python begins with a model, of which it finds the edges first; so
does `tvmtarget-waves`, which then makes one sweep as that does. TVM matches operations and makes functions of the
subgraphs; `tvmtarget-whole` does all that `decompose` does from a program to a plan that is proven valid.

Of ONNX Runtime there are two. Its wheel for CPUs has no second provider that takes part of a graph, so what its C++
partitioner makes cannot be seen from Python. But the wheel has the project's own copy of that partitioner in Python,
for `check_onnx_model_mobile_usability`, which its C++ says to keep in step: it partitions, and its time is that of
Python. What the C++ takes is bounded by the making of a whole session, without optimisations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks._graphs import KINDS_OF_ONE, KINDS_OF_TWO, Graph, module_of, tree_of
from tvmtarget.ir.def_use import readers_of
from tvmtarget.partition.dataflow import dataflow_of, number_types
from tvmtarget.partition.plan import decompose
from tvmtarget.partition.subgraphs import typed_fusion
from tvmtarget.partition.subgraphs.limits import Limiter, Limits
from tvmtarget.partition.subgraphs.portfolio import form_subgraphs
from tvmtarget.partition.values import owner_array, values_of

__all__ = ["OURS", "PARTITIONERS", "Counting", "Partitioned", "Partitioner", "partitioned"]


@dataclass(frozen=True)
class Partitioned:
    """How many subgraphs the accelerator got, and for every part that reads a value of another, each once, that value.

    Operations that the accelerator does not support are subgraphs by themselves. None where a peer does not report it.
    """

    subgraphs: int | None
    crossing: list[int] | None


# What is made of a graph is counted outside of the time.
Counting = Callable[[], Partitioned]
Partitioner = Callable[[Graph, "list[bool]"], Callable[[], Counting]]


def partitioned(graph: Graph, subgraphs: list[list[int]]) -> Partitioned:
    """Return what subgraphs come to, each a list of operations by number."""
    owner = {index: number for number, subgraph in enumerate(subgraphs) for index in subgraph}
    pairs = {
        (before, owner.get(index, -1 - index))
        for index, (reads, _) in enumerate(graph)
        for before in reads
        if before >= 0 and owner.get(before, -1 - before) != owner.get(index, -1 - index)
    }
    return Partitioned(len(subgraphs), [before for before, _ in pairs])


def ours(graph: Graph, taken: list[bool]) -> Callable[[], Counting]:
    """tvmtarget: forming subgraphs of an accelerator and a host, in several ways, where who reads whom is known."""
    successors: list[list[int]] = [[] for _ in graph]
    for index, (reads, _) in enumerate(graph):
        for before in reads:
            if before >= 0:
                successors[before].append(index)
    labels = [int(not is_taken) for is_taken in taken]
    atoms = [(index,) for index in range(len(graph))]
    main = module_of(graph).main
    flow = dataflow_of(main, 0, readers_of(main), number_types(main.types), main.constant_names)
    values = values_of(flow, owner_array(len(graph), atoms), len(graph))

    def partition() -> Counting:
        limiter = Limiter(successors, atoms, values)
        subgraphs = form_subgraphs(
            typed_fusion.LabeledGraph(typed_fusion.AtomGraph(successors), labels),
            [Limits()] * 2,
            [1, 0],
            limiter,
            values,
        )
        return lambda: partitioned(graph, [subgraph for subgraph in subgraphs if not labels[subgraph[0]]])

    return partition


def ours_by_typed_fusion(graph: Graph, taken: list[bool]) -> Callable[[], Counting]:
    """tvmtarget: who reads whom in a program, and one sweep; what onnxruntime's does."""
    main = module_of(graph, taken=taken).main
    labels = [int(not is_taken) for is_taken in taken]

    def partition() -> Counting:
        readers = readers_of(main)
        successors = [list(readers.get(call.outputs[0].name, ())) for call in main.body]
        subgraphs = typed_fusion.LabeledGraph(typed_fusion.AtomGraph(successors), labels).fused(frozenset({1}))
        return lambda: partitioned(graph, [subgraph for subgraph in subgraphs if not labels[subgraph[0]]])

    return partition


def ours_whole(graph: Graph, taken: list[bool]) -> Callable[[], Counting]:
    """tvmtarget: all that `decompose` does from a program to a plan that is proven valid, without costs."""
    module, tree = module_of(graph, taken=taken), tree_of(2)
    refused = {f"onnx.{kinds[1]}" for kinds in (KINDS_OF_ONE, KINDS_OF_TWO)} & {call.op for call in module.main.body}
    where = {f"op:{kind.removeprefix('onnx.')}": "@cpu" for kind in sorted(refused)}

    def partition() -> Counting:
        plan = decompose(module, tree, where=where)
        return lambda: partitioned(
            graph, [list(subgraph.calls) for subgraph in plan.subgraphs if subgraph.site != "cpu"]
        )

    return partition


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


def capability(graph: Graph, taken: list[bool]) -> Callable[[], Counting]:
    """torch.fx: CapabilityBasedPartitioner, which forms subgraphs of a graph."""
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import OperatorSupportBase

    class Support(OperatorSupportBase):
        def is_node_supported(self, submodules: object, node: Any) -> bool:
            return node.op == "call_function" and taken[int(node.name[1:])]

    module = _traced(graph)

    def partition() -> Counting:
        partitioner = CapabilityBasedPartitioner(module, Support(), allows_single_node_partition=True)
        parts = partitioner.propose_partitions()
        return lambda: partitioned(graph, [[int(node.name[1:]) for node in part.nodes] for part in parts])

    return partition


def splitter(graph: Graph, taken: list[bool]) -> Callable[[], Counting]:
    """torch.fx: splitter_base as Torch-TensorRT's fast partitioner uses it, which forms subgraphs of a graph."""
    import torch
    from torch.fx.passes.operator_support import OperatorSupportBase
    from torch.fx.passes.splitter_base import _SplitterBase, _SplitterSettingBase

    class Support(OperatorSupportBase):
        def is_node_supported(self, submodules: object, node: Any) -> bool:
            return node.op == "call_function" and taken[int(node.name[1:])]

    module = _traced(graph)

    def partition() -> Counting:
        settings = _SplitterSettingBase(min_acc_module_size=1, skip_fusion=True)
        found = _SplitterBase(module, (torch.zeros(1),), Support(), settings, non_acc_submodule_name="_host_")
        parts = found.put_nodes_into_subgraphs()
        taken_parts = [part.nodes for part in parts if part.is_acc]
        return lambda: partitioned(graph, [[int(node.name[1:]) for node in nodes] for nodes in taken_parts])

    return partition


def tvm(graph: Graph, taken: list[bool]) -> Callable[[], Counting]:
    """TVM: FuseOpsByPattern and MergeCompositeFunctions, which match operations and make functions of the subgraphs."""
    from tvm import relax
    from tvm.relax.dpl import is_op, wildcard

    makers = {"relax.nn.relu": relax.op.nn.relu, "relax.tanh": relax.op.tanh}
    makers |= {"relax.add": relax.op.add, "relax.subtract": relax.op.subtract}
    names = [_NAMES[len(reads), is_taken] for (reads, _), is_taken in zip(graph, taken, strict=True)]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    read = {before for reads, _ in graph for before in reads}
    with builder.function("main", [x]):
        with builder.dataflow():
            values = [x]
            for (reads, _), name in zip(graph, names, strict=True):
                values.append(builder.emit(makers[name](*(values[before + 1] for before in reads))))
            ends = [value for index, value in enumerate(values[1:]) if index not in read]
            result = builder.emit_output(relax.Tuple(ends))
        builder.emit_func_output(result)
    module = builder.get()
    patterns = [
        ("npu.relu", is_op("relax.nn.relu")(wildcard())),
        ("npu.add", is_op("relax.add")(wildcard(), wildcard())),
    ]

    def partition() -> Counting:
        fused = relax.transform.FuseOpsByPattern(patterns, annotate_codegen=False)(module)
        merged = relax.transform.MergeCompositeFunctions()(fused)
        return lambda: _Reading(graph, names, merged).partitioned()

    return partition


_NAMES = {(1, True): "relax.nn.relu", (1, False): "relax.tanh", (2, True): "relax.add", (2, False): "relax.subtract"}


class _Reading:
    """Read subgraphs of a Relax module, where equal functions are one: values are identified by their computation.

    Operations of one kind that read the same stand for each other: only their sizes may differ.
    """

    def __init__(self, graph: Graph, names: list[str], module: Any) -> None:
        self.module = module
        self.known: dict[tuple[str, tuple[int, ...]], int] = {}
        same = {-1: -1}
        for index, ((reads, _), name) in enumerate(zip(graph, names, strict=True)):
            same[index] = self.known.setdefault((name, tuple(same[before] for before in reads)), index)
        self.subgraphs = 0
        self.crossing: list[int] = []

    def partitioned(self) -> Partitioned:
        from tvm import relax

        # It raises where subgraphs wait for each other, or returns whether all is well in older versions.
        if relax.analysis.well_formed(self.module) is False:
            raise ValueError("invalid IR")
        self.run(self.module["main"], [-1], is_driver=True)
        return Partitioned(self.subgraphs, self.crossing)

    def run(self, function: Any, inputs: list[Any], *, is_driver: bool = False) -> Any:
        """Return which values a function returns, given which it gets."""
        from tvm import ir, relax

        known = dict(zip(function.params, inputs, strict=True))

        def found(value: Any) -> Any:
            if isinstance(value, relax.Tuple):
                return [found(field) for field in value.fields]
            if isinstance(value, relax.TupleGetItem):
                return known[value.tuple_value][value.index]
            if not isinstance(value, relax.Call):
                return value if isinstance(value, relax.Function) else known[value]
            arguments = [known[argument] for argument in value.args]
            if is_driver:
                crossing = {argument: known[argument] for argument in value.args if known[argument] >= 0}
                self.crossing += crossing.values()
            if isinstance(value.op, ir.GlobalVar):
                self.subgraphs += 1
                return self.run(self.module[value.op], arguments)
            name = value.op.name if isinstance(value.op, ir.Op) else _composite(known[value.op])
            return self.known[name, tuple(arguments)]

        for block in function.body.blocks:
            for binding in block.bindings:
                known[binding.var] = found(binding.value)
        return found(function.body.body)


def _composite(function: Any) -> str:
    return "relax.add" if function.attrs["Composite"] == "npu.add" else "relax.nn.relu"


def _written(graph: Graph, taken: list[bool]) -> Any:
    """Return a model of ONNX whose kinds say what is taken."""
    return module_of(graph, sizes=(4,), taken=taken).to_onnx()


def onnxruntime(graph: Graph, taken: list[bool]) -> Callable[[], Counting]:
    """ONNX Runtime: its partitioner in Python, who reads whom in a model and one sweep."""
    from onnxruntime.tools.mobile_helpers.usability_checker import check_partitioning

    model = _written(graph, taken)
    number = {node.output[0]: index for index, node in enumerate(model.graph.node)}

    class Support:
        def is_op_supported(self, node: Any) -> bool:
            return taken[number[node.output[0]]]

    def partition() -> Counting:
        found = check_partitioning(model.graph, Support(), require_fixed_input_sizes=False)
        groups = found.supported_groups
        return lambda: partitioned(graph, [[number[node.output[0]] for node in group] for group in groups])

    return partition


def session(graph: Graph, taken: list[bool]) -> Callable[[], Counting]:
    """ONNX Runtime: the making of a whole session without optimisations, which bounds its partitioner in C++."""
    from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions

    data = _written(graph, taken).SerializeToString()
    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1

    def partition() -> Counting:
        InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return lambda: Partitioned(None, None)

    return partition


OURS = "tvmtarget"

PARTITIONERS: Mapping[str, Partitioner] = {
    OURS: ours,
    "tvmtarget-waves": ours_by_typed_fusion,
    "tvmtarget-whole": ours_whole,
    "fx-capability": capability,
    "fx-splitter": splitter,
    "tvm": tvm,
    "onnxruntime": onnxruntime,
    "ort-session": session,
}
