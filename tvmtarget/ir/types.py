"""Types of values: tensors with symbolic dimensions; sequences, options, maps and sparse tensors; opaque types."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.ir.text.escaping import is_symbol, quote

__all__ = [
    "DTYPES",
    "MAX_DIM",
    "Dim",
    "MapType",
    "OpaqueType",
    "OptionalType",
    "SequenceType",
    "SparseType",
    "TensorType",
    "Type",
    "dtype_of",
    "numpy_dtype",
    "rank_of",
    "type_of_array",
]

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


MAX_DIM = 2**63 - 1  # ONNX and the runtimes store dimensions in 64 bits with a sign


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor.

    Attributes:
        dtype: element type, a key of `DTYPES`.
        shape: dimensions: a number, a symbol, or None where unknown. A `shape` of None means that the rank is unknown.
    """

    dtype: str
    shape: tuple[Dim, ...] | None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{','.join(map(_print_dim, self.shape))}]"

    @property
    def is_valid(self) -> bool:
        """Whether the element type is known, and each number of `shape` can be a dimension."""
        return self.dtype in DTYPES and all(0 <= dim <= MAX_DIM for dim in self.shape or () if isinstance(dim, int))

    def agrees_with(self, other: TensorType) -> bool:
        """Return whether a value can be of both types.

        Args:
            other: another type.

        Returns:
            True unless element types, ranks or static dimensions differ; symbols agree with everything.
        """
        if self.dtype != other.dtype:
            return False
        if self.shape is None or other.shape is None:
            return True
        pairs = zip(self.shape, other.shape, strict=False)
        fit = all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))
        return len(self.shape) == len(other.shape) and fit

    @property
    def nbytes(self) -> int | None:
        """Size in bytes; None if a dimension is not static, or for strings."""
        bits = DTYPES[self.dtype][1]
        if self.shape is None or not bits or not all(isinstance(dim, int) for dim in self.shape):
            return None
        # Elements smaller than a byte count as packed, as ONNX stores them; `tensors.py` spends a byte on each.
        return (prod(dim for dim in self.shape if isinstance(dim, int)) * bits + 7) // 8


def _print_dim(dim: Dim) -> str:
    if dim is None:
        return "?"
    return str(dim) if isinstance(dim, int) or is_symbol(dim) else quote(dim)


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A list of values of one type."""

    element: Type

    def __str__(self) -> str:
        return f"sequence({self.element or '?'})"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value or its absence."""

    element: Type

    def __str__(self) -> str:
        return f"optional({self.element or '?'})"


@dataclass(frozen=True, slots=True)
class MapType:
    """A dictionary.

    Attributes:
        key: element type of the keys.
        value: type of the values.
    """

    key: str
    value: Type

    def __str__(self) -> str:
        return f"map({self.key}, {self.value or '?'})"


@dataclass(frozen=True, slots=True)
class SparseType:
    """A sparse tensor."""

    tensor: TensorType

    def __str__(self) -> str:
        return f"sparse({self.tensor})"


@dataclass(frozen=True, slots=True)
class OpaqueType:
    """A type that only its dialect understands, by name."""

    name: str

    def __str__(self) -> str:
        return f"opaque({quote(self.name)})"


Type: TypeAlias = "TensorType | SequenceType | OptionalType | MapType | SparseType | OpaqueType | None"


# Names in ml_dtypes, without underscores, that differ from ONNX's.
_ALIASES = {"float4e2m1fn": "float4e2m1", "float8e8m0fnu": "float8e8m0"}


def dtype_of(dtype: np.dtype[Any]) -> str:
    """Return the name of an array's element type.

    Args:
        dtype: element type in numpy.

    Returns:
        ONNX's name in lower case without underscores; `string` for all kinds of text.
    """
    # Kinds of numpy: objects, strings of fixed length, bytes, and strings of variable length (numpy 2).
    if dtype.kind in "OUST":
        return "string"
    name = dtype.name.replace("_", "")
    return _ALIASES.get(name, name)


def rank_of(type_: Type) -> int | None:
    """Return the number of dimensions of a tensor.

    Args:
        type_: the type of a value.

    Returns:
        The rank; None if it is unknown, or the value is no tensor.
    """
    return len(type_.shape) if isinstance(type_, TensorType) and type_.shape is not None else None


def type_of_array(array: np.ndarray[Any, Any], stated: Type = None) -> TensorType:
    """Return the type of an array.

    Args:
        array: the array.
        stated: the type that a program states, whose element type may be one that numpy has no name for.

    Returns:
        The type, with the shape of the array.
    """
    return TensorType(stated.dtype if isinstance(stated, TensorType) else dtype_of(array.dtype), array.shape)


# Element types that numpy lacks, by ONNX's name, and their names in ml_dtypes.
_ML_DTYPES = {
    "bfloat16": "bfloat16",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float8e8m0": "float8_e8m0fnu",
    "float4e2m1": "float4_e2m1fn",
    "uint4": "uint4",
    "int4": "int4",
    "uint2": "uint2",
    "int2": "int2",
}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy element type for a name of `DTYPES`.

    Args:
        name: name of the element type.

    Returns:
        The element type; `object` for strings.
    """
    if name in _ML_DTYPES:
        import ml_dtypes  # late: few models need it

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
        return found
    return np.dtype(object) if name == "string" else np.dtype(name)
