"""ONNX models into modules.

Operator semantics, schemas and shapes are ONNX's own: the checker and shape inference run on a slim copy of
the model, without the data of its large initializers, which stay where they are and are referred to. Constant
nodes are constants like initializers, so that whoever needs an operand to be a constant has one rule for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from google.protobuf.message import DecodeError
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from tvmtarget.errors import ModelError
from tvmtarget.ir.function import Attribute, Call, Constant, Function, Opaque, Value
from tvmtarget.ir.names import Names
from tvmtarget.ir.onnx_functions import instance_of
from tvmtarget.ir.onnx_types import check_model, dtype_name, read_type
from tvmtarget.ir.types import TensorType, Type

__all__ = ["read_model"]

# Initializers with at most this many elements take part in shape inference by value (shapes, axes, pads, ...).
_SMALL = 1024
# The attributes of Constant that are no tensors themselves, and their element types (onnx/defs/generator/defs.cc).
_CONSTANT_FORMS = {
    "value_float": TensorProto.FLOAT,
    "value_floats": TensorProto.FLOAT,
    "value_int": TensorProto.INT64,
    "value_ints": TensorProto.INT64,
    "value_string": TensorProto.STRING,
    "value_strings": TensorProto.STRING,
}


def read_model(source: str | Path | bytes | ModelProto, *, keep_functions: bool = False) -> tuple[Function, ...]:
    """Read a file, bytes or a loaded model into the function `main`, and those it calls if they are to be kept."""
    model, folder, name = _load(source)
    if model.functions and not keep_functions:
        model = onnx.inliner.inline_local_functions(model)
    slim = _inferred(_slim(model), name)
    reader = _Reader(folder, name, model.functions)
    main = reader.function(slim.graph, "main", {tensor.name: tensor for tensor in model.graph.initializer})
    local = {function.domain for function in model.functions}
    opsets = tuple((domain, version) for domain, version in _opsets(model) if domain not in local)
    return main.replace(opsets=opsets), *reader.functions


def _opsets(proto: ModelProto | FunctionProto) -> tuple[tuple[str, int], ...]:
    found = {("" if opset.domain == "ai.onnx" else opset.domain): opset.version for opset in proto.opset_import}
    return tuple(sorted(found.items()))


def _load(source: str | Path | bytes | ModelProto) -> tuple[ModelProto, Path, str]:
    if isinstance(source, ModelProto):
        return source, Path(), "the model"
    if isinstance(source, bytes):
        return _decode(source, "the model"), Path(), "the model"
    path = Path(source)
    try:
        return _decode(path.read_bytes(), repr(str(path))), path.parent, repr(str(path))
    except FileNotFoundError:
        raise ModelError(f"no model file {str(path)!r}; give the path of an ONNX file") from None
    except OSError as error:
        raise ModelError(f"model file {str(path)!r} cannot be read: {error.strerror or error}") from error


def _decode(data: bytes, name: str) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        raise ModelError(f"{name} is not an ONNX model; write one with onnx.save or your framework's export") from None
    if not model.ir_version or not model.HasField("graph") or not model.opset_import:
        raise ModelError(f"{name} is not an ONNX model: it has no graph or states no operator set")
    return model


def _slim(model: ModelProto) -> ModelProto:
    """Copy a model without the data of large initializers, which become inputs of the same type."""
    slim = ModelProto(ir_version=max(model.ir_version, 4))
    slim.opset_import.extend(model.opset_import)
    slim.functions.extend(model.functions)
    results = {(one.domain, one.name, one.overload): len(one.output) for one in model.functions}
    graph, source = slim.graph, model.graph
    graph.name = source.name or "graph"
    initialized = {tensor.name for tensor in source.initializer}
    graph.input.extend(value for value in source.input if value.name not in initialized)
    graph.output.extend(source.output)
    graph.node.extend(source.node)
    for node in graph.node if results else ():
        # Shape inference fails on calls that leave out the last results of a function.
        node.output.extend([""] * (results.get((node.domain, node.op_type, node.overload), 0) - len(node.output)))
    for tensor in source.initializer:
        if _elements(tensor.dims) <= _SMALL and tensor.data_location != TensorProto.EXTERNAL:
            graph.initializer.append(tensor)
        else:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    graph.value_info.extend(source.value_info)
    return slim


def _elements(dims: Iterable[int]) -> int:
    return int(np.prod(list(dims), dtype=np.int64))


def _inferred(slim: ModelProto, name: str) -> ModelProto:
    try:
        check_model(slim)
        return onnx.shape_inference.infer_shapes(slim, check_type=False, strict_mode=False, data_prop=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "unknown reason")
        raise ModelError(f"{name} is not a valid ONNX model: {reason}") from error


class _Reader:
    """Reads graphs of one model; operation names are made unique over all of them.

    A function of the model has no types; `functions` are what it becomes for the types and attributes of its calls.
    """

    def __init__(self, folder: Path, name: str, local: Iterable[FunctionProto] = ()) -> None:
        self._folder = folder
        self._name = name
        self._sources: set[str] = set()
        self._local = {(proto.domain, proto.name, proto.overload): proto for proto in local}
        self._names = Names(["main"])
        self._instances: dict[tuple[object, ...], str] = {}
        self.functions: list[Function] = []

    def function(self, graph: GraphProto, name: str, data: Mapping[str, TensorProto]) -> Function:
        """Read a graph; `data` holds the initializers with their elements (the graph may be a slim copy)."""
        types = {info.name: read_type(info.type) for info in (*graph.value_info, *graph.output, *graph.input)}
        self._sources |= {node.name for node in graph.node if node.name} if name == "main" else set()
        taken: set[str] = set()
        params = tuple(Value(i.name, types[i.name]) for i in graph.input if i.name not in data)
        calls: list[Call] = []
        constants = list(data.values())
        for index, node in enumerate(graph.node):
            tensor = _constant_of(node)
            if tensor is None:
                calls.append(self._call(node, index, types, taken))
            else:
                constants.append(tensor)
        return Function(
            name=name,
            params=params,
            body=tuple(calls),
            results=tuple(output.name for output in graph.output),
            constants=tuple(self._constant(tensor) for tensor in constants),
        )

    def _call(self, node: NodeProto, index: int, types: Mapping[str, Type], taken: set[str]) -> Call:
        proto = self._local.get((node.domain, node.op_type, node.overload))
        if proto is not None:
            return self._call_of_function(node, proto, types, self._source(node, index, taken))
        domain = "" if node.domain == "ai.onnx" else node.domain
        attrs: list[tuple[str, Attribute]] = []
        regions: list[tuple[str, Function]] = []
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                regions.append((attribute.name, self._region(attribute.g, attribute.name)))
            else:
                attrs.append((attribute.name, self._attribute(attribute)))
        return Call(
            op=f"onnx.{domain}::{node.op_type}" if domain else f"onnx.{node.op_type}",
            inputs=tuple(node.input),
            outputs=tuple(Value(name, types.get(name)) for name in node.output),
            attrs=tuple(attrs),
            regions=tuple(regions),
            source=self._source(node, index, taken),
        )

    def _call_of_function(self, node: NodeProto, proto: FunctionProto, types: Mapping[str, Type], source: str) -> Call:
        given = [name for name in node.input if name]
        arguments = tuple(types.get(name) for name in node.input)
        key = (proto.domain, proto.name, proto.overload, arguments, *map(bool, node.input), *map(repr, node.attribute))
        if key not in self._instances:
            self._instances[key] = self._names.fresh(proto.name)
            self.functions.append(self._instance(node, proto, arguments, self._instances[key]))
        names = [*node.output, *[""] * (len(proto.output) - len(node.output))]
        outputs = tuple(Value(name, types.get(name)) for name in names)
        return Call(f"@{self._instances[key]}", tuple(given), outputs, source=source)

    def _instance(self, node: NodeProto, proto: FunctionProto, types: Sequence[Type], name: str) -> Function:
        """Read a function of the model for one call of it."""
        model = instance_of(proto, node, types)
        model.functions.extend(self._local.values())
        model.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in _missing(model))
        try:
            graph = onnx.shape_inference.infer_shapes(model, strict_mode=False, data_prop=True).graph
        except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "unknown reason")
            raise ModelError(f"function {proto.name!r} of {self._name} is not valid: {reason}") from error
        local = {domain for domain, _, _ in self._local}
        opsets = tuple((domain, version) for domain, version in _opsets(proto) if domain not in local)
        return self.function(graph, name, {}).replace(opsets=opsets)

    def _source(self, node: NodeProto, index: int, taken: set[str]) -> str:
        """Return the node's name, or one made of its operator and position; never one that is taken."""
        name: str = node.name
        if not name or name in taken:
            stem = name or f"{node.op_type}_{index}"
            name = stem
            while name in self._sources or name in taken:
                index += 1
                name = f"{stem}_{index}"
            self._sources.add(name)
        taken.add(name)
        return name

    def _region(self, graph: GraphProto, name: str) -> Function:
        return self.function(graph, name, {tensor.name: tensor for tensor in graph.initializer})

    def _constant(self, tensor: TensorProto) -> Constant:
        type_ = TensorType(dtype_name(tensor.data_type), tuple(tensor.dims))
        return Constant(tensor.name, type_, self._array(tensor))

    def _array(self, tensor: TensorProto) -> np.ndarray[Any, Any]:
        if tensor.data_location != TensorProto.EXTERNAL:
            array: np.ndarray[Any, Any] = numpy_helper.to_array(tensor)
            return array
        info = {entry.key: entry.value for entry in tensor.external_data}
        path = (self._folder / info.get("location", "")).resolve()
        if not path.is_relative_to(self._folder.resolve()):
            raise ModelError(f"tensor {tensor.name!r} of {self._name} lies outside the model's folder: {str(path)!r}")
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        try:
            return np.memmap(path, dtype, "r", int(info.get("offset", 0)), tuple(tensor.dims))
        except (OSError, ValueError) as error:
            raise ModelError(f"data of tensor {tensor.name!r} of {self._name} cannot be read: {error}") from error

    def _attribute(self, attribute: AttributeProto) -> Attribute:
        match attribute.type:
            case AttributeProto.INT | AttributeProto.FLOAT:
                value: Attribute = onnx.helper.get_attribute_value(attribute)
                return value
            case AttributeProto.STRING:
                return _text(attribute.s)
            case AttributeProto.INTS:
                return tuple(attribute.ints)
            case AttributeProto.FLOATS:
                return tuple(attribute.floats)
            case AttributeProto.STRINGS:
                texts = [_text(item) for item in attribute.strings]
                return tuple(texts) if all(isinstance(text, str) for text in texts) else tuple(attribute.strings)  # type: ignore[return-value]
            case AttributeProto.TENSOR:
                return self._constant(attribute.t)
            case AttributeProto.TENSORS:
                return tuple(self._constant(tensor) for tensor in attribute.tensors)
            case _:
                kind = AttributeProto.AttributeType.Name(attribute.type)
                return Opaque(kind, attribute.SerializeToString(deterministic=True))


def _missing(model: ModelProto) -> list[str]:
    """Return the domains of a model's functions whose version it does not state."""
    stated = {opset.domain for opset in model.opset_import}
    return sorted({function.domain for function in model.functions} - stated)


def _constant_of(node: NodeProto) -> TensorProto | None:
    """Return what a Constant node yields, under the name of its result; None for other nodes and sparse tensors."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    tensor = TensorProto()
    if attribute.name == "value":
        tensor.CopyFrom(attribute.t)
    elif attribute.name in _CONSTANT_FORMS:
        value = onnx.helper.get_attribute_value(attribute)
        dims, values = ([len(value)], value) if isinstance(value, list) else ([], [value])
        tensor = onnx.helper.make_tensor("", _CONSTANT_FORMS[attribute.name], dims, values)
    else:
        return None
    tensor.name = node.output[0]
    return tensor


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data
