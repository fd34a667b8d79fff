"""Sums of 16-bit floats in float32: rewrite a model so that no operation adds up float16 or bfloat16.

A sum in float16 stops growing at 2048 ones and overflows at 65504, in bfloat16 at 256 ones. ONNX leaves the type of
intermediate results to the implementation, and ONNX Runtime uses float32. Generated code and NumPy add in the type of
the operands, so that such an operation gets its operands in float32, and its results are cast back.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.helper import make_node

from tvmtarget.backends.expansion_builder import bodies_of, nodes_in, value_names
from tvmtarget.backends.operator_expansion import kind_of

__all__ = ["ACCUMULATING", "accumulate_in_float32"]

_HALVES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})

# The operators that add or multiply any number of elements, or square them.
ACCUMULATING = frozenset(
    {
        *("AveragePool", "GlobalAveragePool", "GlobalLpPool", "LpPool"),
        *("Attention", "Conv", "ConvTranspose", "DeformConv", "Det", "Einsum", "Gemm", "LinearAttention", "MatMul"),
        *("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "LRN"),
        *("LpNormalization", "MeanVarianceNormalization", "RMSNormalization"),
        *("CumProd", "CumSum", "LogSoftmax", "Mean", "Softmax", "Sum"),
        *("GRU", "LSTM", "RNN", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"),
        *(f"Reduce{name}" for name in ("L1", "L2", "LogSum", "LogSumExp", "Mean", "Prod", "Sum", "SumSquare")),
        *("SimplifiedLayerNormalization", "com.microsoft::FusedMatMul"),
        *("com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization"),
    }
)


def accumulate_in_float32(model: ModelProto, kinds: Set[str] = ACCUMULATING) -> ModelProto:
    """Return a model that computes sums and products of 16-bit floats in float32.

    Args:
        model: A model whose values have types, or whose types ONNX can infer.
        kinds: The operators that do; operators of other domains by names such as `com.microsoft::FusedMatMul`.

    Returns:
        The model itself if it has no such operation, else a changed copy.
    """
    if not any(kind_of(node) in kinds for node in nodes_in(model.graph)):
        return model
    known = _types(model.graph, {})
    if not all(name in known for node in model.graph.node if kind_of(node) in kinds for name in node.output if name):
        model = onnx.shape_inference.infer_shapes(model)
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy if _widen(copy.graph, {}, set(value_names(copy.graph)), kinds) else model


def _types(graph: GraphProto, outer: Mapping[str, int]) -> dict[str, int]:
    """Return the element types of the values of a graph, those of its outer graphs included."""
    values = (*graph.input, *graph.value_info, *graph.output)
    stated = {value.name: value.type.tensor_type.elem_type for value in values if value.type.tensor_type.elem_type}
    return {**outer, **stated, **{tensor.name: tensor.data_type for tensor in graph.initializer}}


def _widen(graph: GraphProto, outer: Mapping[str, int], taken: set[str], kinds: Set[str]) -> bool:
    """Rewrite the operations of a graph and of the bodies in it; return whether any was rewritten."""
    types = _types(graph, outer)
    constants = {tensor.name: tensor for tensor in graph.initializer}
    typed = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
    wide: dict[str, str] = {}  # the float32 value of a 16-bit one
    nodes: list[NodeProto] = []
    changed = False

    def fresh(name: str) -> str:
        chosen = f"{name}:float32"
        while chosen in taken:
            chosen += "_"
        taken.add(chosen)
        if name in typed:
            value = graph.value_info.add()
            value.CopyFrom(typed[name])
            value.name, value.type.tensor_type.elem_type = chosen, TensorProto.FLOAT
        return chosen

    def widened(name: str) -> str:
        if types.get(name) not in _HALVES:
            return name
        if name not in wide:
            wide[name] = fresh(name)
            if name in constants:
                # Importers require constant operands of some operators, which a cast would hide.
                array = np.asarray(numpy_helper.to_array(constants[name])).astype(np.float32)
                graph.initializer.append(numpy_helper.from_array(array, wide[name]))
            else:
                nodes.append(make_node("Cast", [name], [wide[name]], to=TensorProto.FLOAT))
        return wide[name]

    for node in graph.node:
        for body in bodies_of(node):
            changed |= _widen(body, types, taken, kinds)
        half = next((types[name] for name in node.input if types.get(name) in _HALVES), None)
        if half is None or kind_of(node) not in kinds:
            nodes.append(node)
            continue
        changed = True
        node.input[:] = [widened(name) for name in node.input]
        casts = []
        for position, name in enumerate(node.output):
            # Further results of normalizations may be float32 already.
            if name and types.get(name, half if position == 0 else 0) in _HALVES:
                node.output[position] = fresh(name)
                casts.append(make_node("Cast", [node.output[position]], [name], to=half))
        nodes += [node, *casts]
    del graph.node[:]
    graph.node.extend(nodes)
    if changed:
        read = {name for node in nodes_in(graph) for name in node.input} | {value.name for value in graph.output}
        kept = [tensor for tensor in graph.initializer if tensor.name in read or tensor.name not in wide]
        del graph.initializer[:]
        graph.initializer.extend(kept)
    return changed
