"""Metadata of ONNX models beside the computation: documentation, properties, training information.

Two attributes of a function hold it as serialized messages with only these fields set: `onnx.model` (domain and version
of the model, properties, training information, device configurations) and `onnx.graph` (documentation and properties of
the graph and of its nodes, values and tensors by name; quantization annotations). On writing, every element whose name
still exists gets its metadata back. Neither attribute enters a structural hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from google.protobuf.message import Message
from onnx import GraphProto, ModelProto, TensorProto

from tvmtarget.errors import ModelError
from tvmtarget.ir.function import Constant, Function
from tvmtarget.ir.onnx.tensors import external_tensors
from tvmtarget.ir.types import TensorType

__all__ = ["read_graph_metadata", "read_model_metadata", "write_graph_metadata", "write_model_metadata"]

_GRAPH = "onnx.graph"
_MODEL = "onnx.model"

_OF_MODEL = ("domain", "model_version", "doc_string", "metadata_props", "training_info", "configuration")
_OF_GRAPH = ("doc_string", "metadata_props", "quantization_annotation")
_OF_NODE = ("doc_string", "metadata_props", "device_configurations")
_OF_NAMED = ("doc_string", "metadata_props")


def read_model_metadata(model: ModelProto) -> tuple[tuple[str, Constant], ...]:
    """Collect the metadata of a model, without that of its graph and functions.

    Args:
        model: the model.

    Returns:
        An attribute for the function `main`; empty if there is no metadata.

    Raises:
        ModelError: a field is not UTF-8.
    """
    notes = ModelProto()
    _copy_fields(model, notes, _OF_MODEL)
    return _attribute(_MODEL, notes)


def read_graph_metadata(
    graph: GraphProto, names: Iterable[str], tensors: Iterable[TensorProto]
) -> tuple[tuple[str, Constant], ...]:
    """Collect the metadata of a graph.

    Args:
        graph: the graph.
        names: names of its nodes in the IR, in order; "" for constants.
        tensors: its initializers.

    Returns:
        An attribute for the function; empty if there is no metadata.

    Raises:
        ModelError: a field is not UTF-8.
    """
    notes = GraphProto()
    _copy_fields(graph, notes, _OF_GRAPH)
    for name, node in zip(names, graph.node, strict=True):
        if name and any(_set_fields(node, _OF_NODE)):
            _copy_fields(node, notes.node.add(name=name), _OF_NODE)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if any(_set_fields(value, _OF_NAMED)):
            _copy_fields(value, notes.value_info.add(name=value.name), _OF_NAMED)
    for tensor in tensors:
        if any(_set_fields(tensor, _OF_NAMED)):
            _copy_fields(tensor, notes.initializer.add(name=tensor.name), _OF_NAMED)
    return _attribute(_GRAPH, notes)


def write_model_metadata(function: Function, model: ModelProto) -> None:
    """Write the metadata of a model back.

    Args:
        function: function with the metadata as an attribute.
        model: model to fill.

    Raises:
        ModelError: the metadata refers to external data.
    """
    found = function.attr(_MODEL)
    if isinstance(found, Constant):
        notes = ModelProto.FromString(found.data.tobytes())
        if tensor := next(external_tensors(notes), None):
            raise ModelError(f"attribute {_MODEL!r} holds tensor {tensor.name!r}, whose data is in another file")
        _copy_fields(notes, model, _OF_MODEL)


def write_graph_metadata(function: Function, graph: GraphProto) -> None:
    """Write the metadata of a graph back, for every element whose name still exists.

    Args:
        function: function with the metadata as an attribute.
        graph: graph to fill.
    """
    found = function.attr(_GRAPH)
    if not isinstance(found, Constant):
        return
    notes = GraphProto.FromString(found.data.tobytes())
    nodes = {node.name: node for node in graph.node if node.name}
    values = {value.name: value for value in (*graph.value_info, *graph.output, *graph.input)}
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    parts = (
        (notes.node, nodes, _OF_NODE),
        (notes.value_info, values, _OF_NAMED),
        (notes.initializer, tensors, _OF_NAMED),
    )
    for noted, known, fields in parts:
        for note in noted:
            if note.name in known:
                _copy_fields(note, known[note.name], fields)
    known_names = {*values, *tensors, *(name for node in graph.node for name in node.output)}
    graph.quantization_annotation.extend(one for one in notes.quantization_annotation if one.tensor_name in known_names)
    _copy_fields(notes, graph, _OF_NAMED)


def _set_fields(message: Message, fields: tuple[str, ...]) -> Iterator[str]:
    """Yield the names of fields that are set."""
    # An older onnx lacks newer fields, such as device configurations.
    return (field for field in fields if getattr(message, field, None))


def _copy_fields(message: Message, into: Message, fields: tuple[str, ...]) -> None:
    """Copy those of some fields that are set."""
    for field in _set_fields(message, fields):
        value = getattr(message, field)
        # protobuf returns a string that is not UTF-8 as bytes.
        if isinstance(value, bytes):
            raise ModelError(f"field {field} of the model is not UTF-8: {value!r:.80}")
        if isinstance(value, str | int):
            setattr(into, field, value)
        else:
            getattr(into, field).extend(value)


def _attribute(name: str, notes: Message) -> tuple[tuple[str, Constant], ...]:
    # Without `deterministic`, protobuf promises no fixed encoding, and the digest of the attribute covers these bytes.
    data = np.frombuffer(notes.SerializeToString(deterministic=True), np.uint8)
    return ((name, Constant(name, TensorType("uint8", data.shape), data)),) if data.size else ()
