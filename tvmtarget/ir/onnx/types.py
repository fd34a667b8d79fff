"""Conversion of types between ONNX and the IR, and ONNX's checker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
from onnx import TypeProto

from tvmtarget.errors import ModelError
from tvmtarget.ir.types import (
    DTYPES,
    Dim,
    MapType,
    OpaqueType,
    OptionalType,
    SequenceType,
    SparseType,
    TensorType,
    Type,
)

__all__ = ["check_model", "dtype_name", "read_type", "write_type"]

# ONNX Runtime has this operator in ONNX's own domain, where its exporter of language models writes it; ONNX has not.
_ONLY_IN_RUNTIME = "SimplifiedLayerNormalization"

_NAMES = {number: name for name, (number, _) in DTYPES.items()}


def dtype_name(number: int) -> str:
    """Return the name of an ONNX element type.

    Args:
        number: value of `onnx.TensorProto.DataType`.

    Returns:
        A key of `DTYPES`.

    Raises:
        ModelError: the number is not known.
    """
    if number not in _NAMES:
        raise ModelError(f"element type {number} is not known; onnx numbers {min(_NAMES)} to {max(_NAMES)} are")
    return _NAMES[number]


def read_type(proto: TypeProto) -> Type:
    """Convert a type from ONNX.

    Args:
        proto: the type.

    Returns:
        The type; None if it is not set.

    Raises:
        ModelError: an element type is not known, or a symbol is not UTF-8.
    """
    which = proto.WhichOneof("value")
    if which is None:
        return None
    match which:
        case "tensor_type":
            return _read_tensor(proto.tensor_type)
        case "sequence_type":
            return SequenceType(read_type(proto.sequence_type.elem_type))
        case "optional_type":
            return OptionalType(read_type(proto.optional_type.elem_type))
        case "map_type":
            return MapType(dtype_name(proto.map_type.key_type), read_type(proto.map_type.value_type))
        case "sparse_tensor_type":
            tensor = _read_tensor(proto.sparse_tensor_type)
            return None if tensor is None else SparseType(tensor)
        case _:
            return OpaqueType(f"{proto.opaque_type.domain}::{proto.opaque_type.name}")


def _read_tensor(tensor: TypeProto.Tensor | TypeProto.SparseTensor) -> TensorType | None:
    # 0 is UNDEFINED in onnx.TensorProto.DataType.
    if not tensor.elem_type:
        return None
    shape = tuple(_read_dim(dim) for dim in tensor.shape.dim) if tensor.HasField("shape") else None
    return TensorType(dtype_name(tensor.elem_type), shape)


def _read_dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        # ONNX gives a negative dimension no meaning; here it is an unknown one.
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    if not isinstance(dim.dim_param, str):
        raise ModelError(f"the symbol of a dimension is not UTF-8: {dim.dim_param!r:.80}")
    return dim.dim_param or None


def check_model(model: onnx.ModelProto) -> None:
    """Run ONNX's checker.

    The checker requires shapes of inputs and outputs, which runtimes do not; here an unknown rank is valid. Operators
    that ONNX Runtime adds to ONNX's domain are checked as those of other domains are.

    Args:
        model: the model.

    Raises:
        onnx.checker.ValidationError: the model is not valid.
    """
    values = (*model.graph.input, *model.graph.output)
    if any(_lacks_shape(value) for value in values) or any(_added_by_runtime(model)):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        for node in _added_by_runtime(copy):
            node.domain = "com.microsoft"
        if all(one.domain != "com.microsoft" for one in copy.opset_import):
            copy.opset_import.add(domain="com.microsoft", version=1)
        for value in filter(_lacks_shape, (*copy.graph.input, *copy.graph.output)):
            # The checker looks only for the presence of a shape, and the copy is dropped after it.
            value.type.tensor_type.shape.SetInParent()
        model = copy
    onnx.checker.check_model(model)


def _added_by_runtime(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of ONNX's domain that only ONNX Runtime knows, also of nested bodies and functions."""
    levels: list[Iterable[onnx.NodeProto]] = [model.graph.node, *(function.node for function in model.functions)]
    while levels:
        for node in levels.pop():
            if node.op_type == _ONLY_IN_RUNTIME and not node.domain:
                yield node
            for attribute in node.attribute:
                levels += [graph.node for graph in ((attribute.g,) if attribute.HasField("g") else attribute.graphs)]


def _lacks_shape(value: onnx.ValueInfoProto) -> bool:
    return value.type.WhichOneof("value") == "tensor_type" and not value.type.tensor_type.HasField("shape")


def write_type(type_: Type, *, what: str) -> TypeProto:
    """Convert a type to ONNX.

    Args:
        type_: the type.
        what: description of the value for the error.

    Returns:
        The type.

    Raises:
        ModelError: the type, or a type in it, is not known.
    """
    proto = TypeProto()
    match type_:
        case None:
            raise ModelError(f"the type of {what} is not known; shape inference did not find it")
        case TensorType():
            _write_tensor(type_, proto.tensor_type)
        case SparseType():
            _write_tensor(type_.tensor, proto.sparse_tensor_type)
        case SequenceType():
            proto.sequence_type.elem_type.CopyFrom(write_type(type_.element, what=f"an element of {what}"))
        case OptionalType():
            proto.optional_type.elem_type.CopyFrom(write_type(type_.element, what=f"what is in {what}"))
        case MapType():
            proto.map_type.key_type = DTYPES[type_.key][0]
            proto.map_type.value_type.CopyFrom(write_type(type_.value, what=f"a value of {what}"))
        case OpaqueType():
            domain, _, name = type_.name.rpartition("::")
            proto.opaque_type.domain, proto.opaque_type.name = domain, name
    return proto


def _write_tensor(type_: TensorType, tensor: TypeProto.Tensor | TypeProto.SparseTensor) -> None:
    tensor.elem_type = DTYPES[type_.dtype][0]
    if type_.shape is not None:
        # A shape without dimensions is that of a scalar; a missing one is of unknown rank.
        tensor.shape.SetInParent()
        for dim in type_.shape:
            written = tensor.shape.dim.add()
            if isinstance(dim, int):
                written.dim_value = dim
            elif dim is not None:
                written.dim_param = dim
