"""Functions of ONNX models for one call: attributes and absent operands put in, operands typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto

from tvmtarget.ir.onnx.types import write_type
from tvmtarget.ir.types import Type

__all__ = ["instantiate_function"]


def instantiate_function(proto: FunctionProto, node: NodeProto, types: Sequence[Type]) -> ModelProto:
    """Return a function as a model whose inputs are the operands that a call gives, with their types."""
    model = ModelProto(ir_version=10)
    model.opset_import.extend(proto.opset_import)
    graph = model.graph
    graph.name = proto.name
    graph.doc_string = proto.doc_string
    graph.metadata_props.extend(proto.metadata_props)
    given = list(node.input) + [""] * (len(proto.input) - len(node.input))
    absent = {name for name, operand in zip(proto.input, given, strict=True) if not operand}
    for name, type_ in zip(proto.input, types, strict=False):
        if name not in absent:
            value = graph.input.add(name=name)
            if type_ is not None:
                value.type.CopyFrom(write_type(type_, what=name))
    values = {attribute.name: attribute for attribute in (*proto.attribute_proto, *node.attribute)}
    for inner in proto.node:
        _add(inner, graph.node.add(), values, absent)
    for name in proto.output:
        graph.output.add(name=name)
    return model


def _add(old: NodeProto, new: NodeProto, values: Mapping[str, AttributeProto], absent: set[str]) -> None:
    """Copy a node with the attributes that it takes from the call, and without operands that are absent there."""
    new.CopyFrom(old)
    del new.input[:], new.attribute[:]
    new.input.extend("" if name in absent else name for name in old.input)
    for attribute in old.attribute:
        given = values.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if given is None:
            continue  # the call leaves it out, and so does the node
        copy = new.attribute.add()
        copy.CopyFrom(given)
        copy.name = attribute.name
        for position, graph in enumerate([attribute.g] * (attribute.type == AttributeProto.GRAPH) or attribute.graphs):
            into = copy.g if attribute.type == AttributeProto.GRAPH else copy.graphs[position]
            del into.node[:]
            for inner in graph.node:
                _add(inner, into.node.add(), values, absent)
