"""Types between ONNX and the IR, both ways."""

from __future__ import annotations

import onnx
from onnx import TypeProto

from tvmtarget.errors import ModelError
from tvmtarget.ir.types import DTYPES, Dim, OpaqueType, TensorType, Type

__all__ = ["check_model", "dtype_name", "read_type", "write_type"]

_NAMES = {number: name for name, (number, _) in DTYPES.items()}


def dtype_name(number: int) -> str:
    """Return the name of an onnx element type; `ModelError` for one this version does not know."""
    if number not in _NAMES:
        raise ModelError(f"element type {number} is not known; onnx numbers {min(_NAMES)} to {max(_NAMES)} are")
    return _NAMES[number]


def read_type(proto: TypeProto) -> Type:
    """Read a type; None where nothing is known."""
    which = proto.WhichOneof("value")
    if which is None:
        return None
    if which != "tensor_type":
        return OpaqueType(_describe(proto), proto.SerializeToString(deterministic=True))
    tensor = proto.tensor_type
    if not tensor.elem_type:
        return None
    shape = tuple(_read_dim(dim) for dim in tensor.shape.dim) if tensor.HasField("shape") else None
    return TensorType(dtype_name(tensor.elem_type), shape)


def _read_dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return dim.dim_param or None


def _describe(proto: TypeProto) -> str:
    which = proto.WhichOneof("value")
    if which == "sequence_type":
        return f"sequence({_describe(proto.sequence_type.elem_type)})"
    if which == "optional_type":
        return f"optional({_describe(proto.optional_type.elem_type)})"
    if which == "map_type":
        return f"map({_NAMES.get(proto.map_type.key_type, '?')},{_describe(proto.map_type.value_type)})"
    return str(read_type(proto) or "?") if which == "tensor_type" else str(which)


def check_model(model: onnx.ModelProto) -> None:
    """Run ONNX's checker, which raises `onnx.checker.ValidationError`.

    It insists on shapes of inputs and outputs, which runtimes do not; an unknown rank passes here.
    """
    values = (*model.graph.input, *model.graph.output)
    if any(_lacks_shape(value) for value in values):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        for value in filter(_lacks_shape, (*copy.graph.input, *copy.graph.output)):
            value.type.tensor_type.shape.SetInParent()
        model = copy
    onnx.checker.check_model(model)


def _lacks_shape(value: onnx.ValueInfoProto) -> bool:
    return value.type.WhichOneof("value") == "tensor_type" and not value.type.tensor_type.HasField("shape")


def write_type(type_: Type, *, what: str) -> TypeProto:
    """Write a type; `ModelError` names `what` where nothing is known of it."""
    proto = TypeProto()
    if isinstance(type_, OpaqueType):
        proto.ParseFromString(type_.proto)
        return proto
    if type_ is None:
        raise ModelError(f"the type of {what} is not known; shape inference did not find it")
    proto.tensor_type.elem_type = DTYPES[type_.dtype][0]
    if type_.shape is not None:
        proto.tensor_type.shape.SetInParent()
        for dim in type_.shape:
            written = proto.tensor_type.shape.dim.add()
            if isinstance(dim, int):
                written.dim_value = dim
            elif dim is not None:
                written.dim_param = dim
    return proto
