"""What an ONNX model says beside its computation, carried as it is: metadata, documentation, training information.

Two attributes of a function hold it, as bytes of messages that have nothing else in them: `onnx.model` (domain and
version of the model, metadata, training information, configurations of devices) and `onnx.graph` (documentation and
metadata of the graph, its nodes, values and tensors, by their names; quantization annotations). What bears a name that
is still there after a pass gets back what was said of it. Neither enters a structural hash.
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

__all__ = ["graph_notes", "model_notes", "write_graph_notes", "write_model_notes"]

_GRAPH = "onnx.graph"
_MODEL = "onnx.model"

_OF_MODEL = ("domain", "model_version", "doc_string", "metadata_props", "training_info", "configuration")
_OF_GRAPH = ("doc_string", "metadata_props", "quantization_annotation")
_OF_NODE = ("doc_string", "metadata_props", "device_configurations")
_OF_NAMED = ("doc_string", "metadata_props")


def model_notes(model: ModelProto) -> tuple[tuple[str, Constant], ...]:
    """Return what a model says beside its graph and functions, as an attribute for the function `main`."""
    notes = ModelProto()
    _carry(model, notes, _OF_MODEL)
    return _attribute(_MODEL, notes)


def graph_notes(
    graph: GraphProto, names: Iterable[str], tensors: Iterable[TensorProto]
) -> tuple[tuple[str, Constant], ...]:
    """Return what a graph says beside its computation.

    `names` are those that its nodes have in the IR, empty for constants; `tensors` are its initializers.
    """
    notes = GraphProto()
    _carry(graph, notes, _OF_GRAPH)
    for name, node in zip(names, graph.node, strict=True):
        if name and any(_said(node, _OF_NODE)):
            _carry(node, notes.node.add(name=name), _OF_NODE)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if any(_said(value, _OF_NAMED)):
            _carry(value, notes.value_info.add(name=value.name), _OF_NAMED)
    for tensor in tensors:
        if any(_said(tensor, _OF_NAMED)):
            _carry(tensor, notes.initializer.add(name=tensor.name), _OF_NAMED)
    return _attribute(_GRAPH, notes)


def write_model_notes(function: Function, model: ModelProto) -> None:
    """Put back into a model what it was read with."""
    found = function.attr(_MODEL)
    if isinstance(found, Constant):
        notes = ModelProto.FromString(found.data.tobytes())
        if tensor := next(external_tensors(notes), None):
            raise ModelError(f"attribute {_MODEL!r} holds tensor {tensor.name!r}, whose data lies in another file")
        _carry(notes, model, _OF_MODEL)


def write_graph_notes(function: Function, graph: GraphProto) -> None:
    """Put back into a graph what was said of it, and of all in it that has kept its name."""
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
                _carry(note, known[note.name], fields)
    known_names = {*values, *tensors, *(name for node in graph.node for name in node.output)}
    graph.quantization_annotation.extend(one for one in notes.quantization_annotation if one.tensor_name in known_names)
    _carry(notes, graph, _OF_NAMED)


def _said(message: Message, fields: tuple[str, ...]) -> Iterator[str]:
    """Yield those of some fields that say something."""
    return (field for field in fields if getattr(message, field, None))


def _carry(message: Message, into: Message, fields: tuple[str, ...]) -> None:
    for field in _said(message, fields):
        value = getattr(message, field)
        if isinstance(value, bytes):
            raise ModelError(f"what the model says in {field} is not UTF-8: {value!r:.80}")
        if isinstance(value, str | int):
            setattr(into, field, value)
        else:
            getattr(into, field).extend(value)


def _attribute(name: str, notes: Message) -> tuple[tuple[str, Constant], ...]:
    data = np.frombuffer(notes.SerializeToString(deterministic=True), np.uint8)
    return ((name, Constant(name, TensorType("uint8", data.shape), data)),) if data.size else ()
