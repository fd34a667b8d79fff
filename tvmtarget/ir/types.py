"""Types of values: tensors with symbolic dimensions, and whatever else ONNX has, carried as it is."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np

__all__ = ["DTYPES", "Dim", "OpaqueType", "TensorType", "Type", "dtype_of"]

Dim: TypeAlias = "int | str | None"

# Element types by name: number in onnx.TensorProto.DataType (onnx/onnx.in.proto) and bits of one element.
DTYPES: dict[str, tuple[int, int]] = {
    "float32": (1, 32),
    "uint8": (2, 8),
    "int8": (3, 8),
    "uint16": (4, 16),
    "int16": (5, 16),
    "int32": (6, 32),
    "int64": (7, 64),
    "string": (8, 0),
    "bool": (9, 8),
    "float16": (10, 16),
    "float64": (11, 64),
    "uint32": (12, 32),
    "uint64": (13, 64),
    "complex64": (14, 64),
    "complex128": (15, 128),
    "bfloat16": (16, 16),
    "float8e4m3fn": (17, 8),
    "float8e4m3fnuz": (18, 8),
    "float8e5m2": (19, 8),
    "float8e5m2fnuz": (20, 8),
    "uint4": (21, 4),
    "int4": (22, 4),
    "float4e2m1": (23, 4),
    "float8e8m0": (24, 8),
    "uint2": (25, 2),
    "int2": (26, 2),
}


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor: element type and dimensions; a dimension is a number, a symbol, or None where it is unknown.

    A `shape` of None means that not even the rank is known.
    """

    dtype: str
    shape: tuple[Dim, ...] | None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{','.join('?' if dim is None else str(dim) for dim in self.shape)}]"

    @property
    def nbytes(self) -> int | None:
        """Size in bytes, or None while a dimension is not a number (or the elements are text)."""
        bits = DTYPES[self.dtype][1]
        if self.shape is None or not bits or not all(isinstance(dim, int) for dim in self.shape):
            return None
        return (prod(dim for dim in self.shape if isinstance(dim, int)) * bits + 7) // 8


@dataclass(frozen=True, slots=True)
class OpaqueType:
    """A sequence, optional, map or sparse tensor: what it is called, and the bytes of its onnx.TypeProto."""

    text: str
    proto: bytes

    def __str__(self) -> str:
        return self.text


Type: TypeAlias = "TensorType | OpaqueType | None"


# Names that ml_dtypes gives otherwise than ONNX, once underscores are left out.
_ALIASES = {"float4e2m1fn": "float4e2m1", "float8e8m0fnu": "float8e8m0"}


def dtype_of(dtype: np.dtype[Any]) -> str:
    """Return ONNX's name of an array's element type; all kinds of text are `string`."""
    if dtype.kind in "OUST":
        return "string"
    name = dtype.name.replace("_", "")
    return _ALIASES.get(name, name)
