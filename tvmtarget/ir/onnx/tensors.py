"""Conversion of tensors between ONNX and the IR; external data is copied from its file, and written beside a model."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, NodeProto, TensorProto, numpy_helper

from tvmtarget.errors import ModelError, TvmTargetError
from tvmtarget.ir.function import Constant
from tvmtarget.ir.onnx.types import dtype_name
from tvmtarget.ir.tensors import bytes_of
from tvmtarget.ir.types import DTYPES, TensorType
from tvmtarget.untrusted import open_regular, private_copy

__all__ = [
    "SMALL",
    "ExternalData",
    "constant_of",
    "dense_constant_of",
    "external_tensors",
    "is_small",
    "read_tensor",
    "write_tensor",
]

# Tensors with at most this many elements are passed to shape inference by value (shapes, axes, pads).
SMALL = 1024
# Attributes of Constant that are not tensors, and their element types (onnx/defs/generator/defs.cc).
_CONSTANT_FORMS = {
    "value_float": TensorProto.FLOAT,
    "value_floats": TensorProto.FLOAT,
    "value_int": TensorProto.INT64,
    "value_ints": TensorProto.INT64,
    "value_string": TensorProto.STRING,
    "value_strings": TensorProto.STRING,
}
# Alignment of external data in its file in bytes, so that runtimes can map it into memory.
_ALIGNMENT = 4096
_CHUNK = 1 << 24  # bytes written at once
_OWN_MAPPING = 1 << 20  # bytes of a tensor from which its external data keeps a memory mapping of its own


def is_small(tensor: TensorProto) -> bool:
    """Return whether shape inference sees the elements of a tensor.

    Args:
        tensor: the tensor.

    Returns:
        True if it has at most `SMALL` elements, which are in the model.
    """
    return tensor.data_location != TensorProto.EXTERNAL and _elements(tensor.dims) <= SMALL


def _elements(dims: Iterable[int]) -> int:
    # Integers of Python, since a product of untrusted dimensions may exceed 64 bits.
    return prod(int(dim) for dim in dims)


def external_tensors(message: Message) -> Iterator[TensorProto]:
    """Yield the tensors in a message whose elements are in another file.

    Args:
        message: a message, searched at any depth.

    Yields:
        The tensors.
    """
    waiting = [message]
    while waiting:
        one = waiting.pop()
        if isinstance(one, TensorProto):
            if one.data_location == TensorProto.EXTERNAL or one.external_data:
                yield one
            continue
        for field, value in one.ListFields():
            if field.message_type is not None:
                waiting += [value] if isinstance(value, Message) else value


def read_tensor(tensor: TensorProto, folder: Path | None, model: str) -> Constant:
    """Read a tensor.

    Args:
        tensor: the tensor.
        folder: folder of the model, in which external data must lie; None if there is none.
        model: description of the model for errors.

    Returns:
        The constant.

    Raises:
        ModelError: the element type is not known, or the data is malformed or cannot be read.
    """
    dtype = dtype_name(tensor.data_type)
    if any(dim < 0 for dim in tensor.dims):
        raise ModelError(f"tensor {tensor.name!r} of {model} has a negative dimension: {list(tensor.dims)}")
    try:
        external = tensor.data_location == TensorProto.EXTERNAL
        array = _external(tensor, folder, model) if external else numpy_helper.to_array(tensor)
    except TvmTargetError:
        raise
    except (OSError, EOFError, ValueError, TypeError, OverflowError) as error:
        raise ModelError(f"data of tensor {tensor.name!r} of {model} cannot be read: {error}") from error
    return Constant(tensor.name, TensorType(dtype, tuple(tensor.dims)), array)


def _external(tensor: TensorProto, folder: Path | None, model: str) -> np.ndarray[Any, Any]:
    """Read the external data of a tensor; elements smaller than a byte are unpacked."""
    if folder is None:
        raise ModelError(
            f"data of tensor {tensor.name!r} is outside of {model}, which has no folder; give the path of its file"
        )
    info = {entry.key: entry.value for entry in tensor.external_data}
    path = (folder / info.get("location", "")).resolve()
    # The path is resolved, so that neither ".." nor a symbolic link leads out of the folder.
    if not path.is_relative_to(folder.resolve()):
        raise ModelError(f"tensor {tensor.name!r} of {model} is outside the model's folder: {str(path)!r}")
    bits = DTYPES[dtype_name(tensor.data_type)][1]
    if not bits:
        raise ModelError(f"tensor {tensor.name!r} of {model} holds strings, which cannot be external data")
    count, offset = _elements(tensor.dims), int(info.get("offset", 0))
    size = (count * bits + 7) // 8
    # To read a pipe or a device may block, or never end.
    if not stat.S_ISREG(path.stat().st_mode):
        raise ModelError(f"data of tensor {tensor.name!r} of {model} cannot be read: {str(path)!r} is no regular file")
    if offset < 0 or int(info.get("length", size)) != size or offset + size > path.stat().st_size:
        stated = f"{info.get('length', size)} bytes at {offset} of {str(path)!r}"
        raise ModelError(f"tensor {tensor.name!r} of {model} takes {size} bytes, but the model states {stated}")
    dtype, shape = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type), tuple(tensor.dims)
    if not count:
        return np.empty(shape, dtype)
    with open_regular(path, f"data of tensor {tensor.name!r} of {model} in", error=ModelError) as stream:
        data = private_copy(stream, offset, size)
    if bits >= 8:
        # Linux allows a process about 65,000 mappings (vm.max_map_count), so that small tensors are copied to the heap.
        elements = np.frombuffer(data if size >= _OWN_MAPPING else bytes(data), dtype)
        return elements.reshape(shape)
    packed = TensorProto(data_type=tensor.data_type, dims=tensor.dims)
    packed.raw_data = bytes(data)
    unpacked: np.ndarray[Any, Any] = numpy_helper.to_array(packed)
    return unpacked


def constant_of(node: NodeProto) -> TensorProto | None:
    """Return the value of a Constant node.

    Args:
        node: a node.

    Returns:
        The tensor, named as the result of the node; None for other nodes and for sparse tensors.
    """
    # ONNX requires exactly one attribute of a Constant.
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    tensor = TensorProto()
    if attribute.name == "value" and attribute.type == AttributeProto.TENSOR:
        tensor.CopyFrom(attribute.t)
    elif attribute.name in _CONSTANT_FORMS:
        value = onnx.helper.get_attribute_value(attribute)
        dims, values = ([len(value)], value) if isinstance(value, list) else ([], [value])
        tensor = onnx.helper.make_tensor("", _CONSTANT_FORMS[attribute.name], dims, values)
    else:
        return None
    tensor.name = node.output[0]
    return tensor


def dense_constant_of(node: NodeProto, most_bytes: int) -> np.ndarray[Any, Any] | None:
    """Return the value of a Constant node that states a sparse tensor.

    Args:
        node: a node.
        most_bytes: the most that the value may take.

    Returns:
        The value; None for other nodes, larger values, and what is no sparse tensor.
    """
    if node.op_type != "Constant" or [one.name for one in node.attribute] != ["sparse_value"]:
        return None
    sparse = node.attribute[0].sparse_tensor
    try:
        values, places = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    except (TypeError, ValueError):  # of other data than the tensor states
        return None
    count = prod(sparse.dims)
    if values.ndim != 1 or min(sparse.dims, default=0) <= 0 or count * values.itemsize > most_bytes:
        return None
    if places.ndim == 2 and places.shape == (len(values), len(sparse.dims)):
        strides = [prod(sparse.dims[axis + 1 :]) for axis in range(len(sparse.dims))]
        is_within = ((places >= 0) & (places < np.array(sparse.dims))).all()
        places = places @ np.array(strides) if is_within else np.array([-1])
    if places.shape != values.shape or not ((places >= 0) & (places < count)).all():
        return None
    dense = np.zeros(count, values.dtype)
    dense[places] = values
    return dense.reshape(sparse.dims)


def write_tensor(constant: Constant) -> TensorProto:
    """Write a constant with its elements.

    Args:
        constant: the constant.

    Returns:
        The tensor.
    """
    if constant.type.dtype == "string":
        items = constant.data.ravel().tolist()
        values = [item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item for item in items]
        return onnx.helper.make_tensor(constant.name, TensorProto.STRING, constant.data.shape, values)
    tensor = numpy_helper.from_array(np.asarray(constant.data), constant.name)
    tensor.data_type = DTYPES[constant.type.dtype][0]
    return tensor


class ExternalData:
    """Writes the elements of large constants into one file beside a model, each distinct array once."""

    def __init__(self, file: BinaryIO, location: str) -> None:
        self._file = file
        self._location = location
        self._offsets: dict[str, int] = {}

    def write(self, constant: Constant) -> TensorProto:
        """Write a constant: large elements into the file, and a reference to them into the tensor.

        Args:
            constant: the constant.

        Returns:
            The tensor; small constants and those of sub-byte types keep their elements.
        """
        bits = DTYPES[constant.type.dtype][1]
        # Shape inference needs shapes and axes by value.
        if bits < 8 or constant.data.size <= SMALL:
            return write_tensor(constant)
        data = bytes_of(constant.data)
        # Equal constants share their data in the file.
        if constant.digest not in self._offsets:
            self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
            self._offsets[constant.digest] = self._file.tell()
            for begin in range(0, len(data), _CHUNK):
                self._file.write(data[begin : begin + _CHUNK])
        tensor = TensorProto(name=constant.name, data_type=DTYPES[constant.type.dtype][0], dims=constant.data.shape)
        tensor.data_location = TensorProto.EXTERNAL
        reference = {"location": self._location, "offset": self._offsets[constant.digest], "length": len(data)}
        for key, value in reference.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor
