"""Instantiation of model-local functions: attributes and absent operands substituted, operands typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto

from tvmtarget.ir.onnx.types import write_type
from tvmtarget.ir.types import Type

__all__ = ["instantiate_function"]


def instantiate_function(proto: FunctionProto, node: NodeProto, types: Sequence[Type]) -> ModelProto:
    """Return a model-local function as a model of its own for one call.

    Args:
        proto: the function.
        node: node that calls it.
        types: types of the operands of the node; None where unknown.

    Returns:
        A model whose inputs are the operands that the call passes, with attributes of the call substituted.
    """
    model = ModelProto(ir_version=10)
    model.opset_import.extend(proto.opset_import)
    graph = model.graph
    graph.name = proto.name
    graph.doc_string = proto.doc_string
    graph.metadata_props.extend(proto.metadata_props)
    operands = list(node.input) + [""] * (len(proto.input) - len(node.input))
    absent = {name for name, operand in zip(proto.input, operands, strict=True) if not operand}
    for name, type_ in zip(proto.input, types, strict=False):
        if name not in absent:
            value = graph.input.add(name=name)
            if type_ is not None:
                value.type.CopyFrom(write_type(type_, what=name))
    # The later ones win: attributes of the call override the defaults that the function states.
    values = {attribute.name: attribute for attribute in (*proto.attribute_proto, *node.attribute)}
    for inner in proto.node:
        _copy_node(inner, graph.node.add(), values, absent)
    for name in proto.output:
        graph.output.add(name=name)
    return model


def _copy_node(old: NodeProto, new: NodeProto, values: Mapping[str, AttributeProto], absent: set[str]) -> None:
    """Copy a node with attribute references resolved and operands removed that are absent in the call."""
    new.CopyFrom(old)
    del new.input[:], new.attribute[:]
    new.input.extend("" if name in absent else name for name in old.input)
    while new.input and not new.input[-1]:
        del new.input[-1]  # OpenVINO takes an operand without a name as one of unknown shape
    for attribute in old.attribute:
        resolved = values.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if resolved is None:
            continue  # ONNX: an attribute that the call omits is omitted in the node that refers to it
        copy = new.attribute.add()
        copy.CopyFrom(resolved)
        copy.name = attribute.name
        for position, graph in enumerate([attribute.g] * (attribute.type == AttributeProto.GRAPH) or attribute.graphs):
            into = copy.g if attribute.type == AttributeProto.GRAPH else copy.graphs[position]
            del into.node[:]
            for inner in graph.node:
                _copy_node(inner, into.node.add(), values, absent)
