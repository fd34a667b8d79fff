"""Elements of constants as bytes with a digest, and as text where they are few.

Bytes are little-endian and in row-major order. Elements smaller than a byte take one byte each. A string is its length
in eight bytes, then its UTF-8. The digest covers these bytes only: element type and shape are always stated beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import isfinite, prod
from typing import Any

import numpy as np

from tvmtarget.errors import ModelError
from tvmtarget.ir.text.escaping import print_float, quote
from tvmtarget.ir.types import DTYPES, TensorType, dtype_of, numpy_dtype

__all__ = ["array_of_bytes", "array_of_items", "bytes_of", "digest_of", "print_items"]

MAX_INLINE = 16  # elements of a constant that the text form shows instead of a digest


def bytes_of(data: np.ndarray[Any, Any]) -> memoryview:
    """Return the elements of an array as bytes.

    Args:
        data: the array.

    Returns:
        The bytes; without a copy if the array has this layout already.

    Raises:
        ModelError: a text is none that UTF-8 encodes.
    """
    dtype = dtype_of(data.dtype)
    if dtype == "string":
        # The length stands before each string, since a string may contain any byte that could separate it.
        return memoryview(b"".join(map(_text_bytes, data.ravel().tolist())))
    flat = np.ascontiguousarray(data).reshape(-1)
    if flat.dtype.byteorder == ">" or (flat.dtype.byteorder == "=" and not np.little_endian):
        flat = flat.astype(flat.dtype.newbyteorder("<"))
    octets: np.ndarray[Any, np.dtype[np.uint8]] = flat.view(np.uint8)
    bits = DTYPES[dtype][1]
    # Unused high bits, such as those of an extended sign, must not enter the digest.
    return (octets & np.uint8((1 << bits) - 1) if bits < 8 else octets).data


def _text_bytes(item: str | bytes) -> bytes:
    try:
        data = item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item
    except UnicodeEncodeError as error:
        raise ModelError(f"{item[:80]!r} is no text that UTF-8 encodes: {error.reason}") from error
    return len(data).to_bytes(8, "little") + data


def digest_of(data: np.ndarray[Any, Any]) -> str:
    """Return the SHA-256 of the elements of an array.

    Args:
        data: the array.

    Returns:
        Digest in hexadecimal.
    """
    return hashlib.sha256(bytes_of(data)).hexdigest()


def array_of_bytes(type_: TensorType, data: memoryview | bytes) -> np.ndarray[Any, Any]:
    """Return an array on top of bytes.

    Args:
        type_: type of the array, with a static shape.
        data: bytes as `bytes_of` returns them.

    Returns:
        A read-only view of the bytes; an array of its own for strings.

    Raises:
        ModelError: the bytes do not fit the type.
    """
    shape = static_shape(type_)
    if type_.dtype == "string":
        return _texts(shape, bytes(data))
    dtype = numpy_dtype(type_.dtype).newbyteorder("<")
    if len(data) != prod(shape) * dtype.itemsize:
        raise ModelError(f"{type_} takes {prod(shape) * dtype.itemsize} bytes, not {len(data)}")
    array = np.frombuffer(data, dtype).reshape(shape)
    # A writable buffer gives a writable view, but constants are shared by reference and never change.
    array.flags.writeable = False
    return array


def _texts(shape: tuple[int, ...], data: bytes) -> np.ndarray[Any, Any]:
    items: list[str] = []
    at = 0
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at : at + 8], "little")
        items.append(data[at + 8 : end].decode("utf-8", "surrogateescape"))
        if end > len(data):
            break
        at = end
    if at != len(data) or len(items) != prod(shape):
        raise ModelError(f"{TensorType('string', shape)} takes {prod(shape)} strings, unlike these {len(data)} bytes")
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


def static_shape(type_: TensorType) -> tuple[int, ...]:
    """Return the shape of a type all of whose dimensions are numbers.

    Args:
        type_: the type.

    Returns:
        The dimensions.

    Raises:
        ModelError: the rank or a dimension is not known.
    """
    shape = type_.shape
    if shape is None or not all(isinstance(dim, int) and dim >= 0 for dim in shape):
        raise ModelError(f"a constant has dimensions that are numbers, not {type_}")
    return tuple(dim for dim in shape if isinstance(dim, int))


def print_items(data: np.ndarray[Any, Any]) -> str | None:
    """Print the elements of a small array as a flat list.

    Args:
        data: the array.

    Returns:
        The text, or None for an array that is large or would not read back bit by bit (payload of a NaN).
    """
    if not data.size:
        return "[]"
    dtype = dtype_of(data.dtype)
    # The grammar of the text form has no complex numbers.
    if data.size > MAX_INLINE or dtype.startswith("complex"):
        return None
    items = data.ravel().tolist() if dtype in ("string", "bool", "float64") else list(data.ravel())
    if dtype == "string":
        return f"[{', '.join(map(quote, items))}]" if all(isinstance(item, str) for item in items) else None
    if dtype == "bool":
        return f"[{', '.join('true' if item else 'false' for item in items)}]"
    if "float" not in dtype:
        return f"[{', '.join(str(int(item)) for item in items)}]"
    texts = [print_float(float(str(item))) for item in items]
    reread = array_of_items(TensorType(dtype, data.shape), [float(text) for text in texts])
    return f"[{', '.join(texts)}]" if bytes(bytes_of(reread)) == bytes(bytes_of(data)) else None


def array_of_items(type_: TensorType, items: Sequence[object]) -> np.ndarray[Any, Any]:
    """Return the array of a flat list of elements.

    Args:
        type_: type of the array, with a static shape.
        items: elements in row-major order.

    Returns:
        The array.

    Raises:
        ModelError: the number of elements is wrong, or one does not fit the element type.
    """
    shape, dtype = static_shape(type_), numpy_dtype(type_.dtype)
    if len(items) != prod(shape):
        raise ModelError(f"{type_} has {prod(shape)} elements, not {len(items)}")
    wrong = [item for item in items if not _fits(item, type_.dtype)]
    if wrong:
        raise ModelError(f"{wrong[0]!r} is not an element of {type_}")
    # Floats go through float64, so that a literal is rounded to the narrow type only once.
    wide: Any = dtype if type_.dtype in ("string", "bool", "uint64") else np.float64 if "float" in dtype.name else None
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.array(items, wide).astype(dtype) if items else np.empty(0, dtype)
    if not _holds(array, items, type_.dtype):
        raise ModelError(f"{type_} cannot hold all of {list(items)!r}")
    return array.reshape(shape)


def _holds(array: np.ndarray[Any, Any], items: Sequence[object], dtype: str) -> bool:
    """Return whether integers were converted exactly, and no finite number overflowed to infinity."""
    if "int" in dtype:
        return [int(item) for item in array] == list(items)
    if "float" in dtype:
        return all(isfinite(float(new)) or not isfinite(float(str(old))) for new, old in zip(array, items, strict=True))
    return True


def _fits(item: object, dtype: str) -> bool:
    if dtype == "string":
        return isinstance(item, str)
    if dtype == "bool":
        return isinstance(item, bool)
    if "int" in dtype:
        low, high = (0, 2**64) if dtype == "uint64" else (-(2**63), 2**63)
        return isinstance(item, int) and not isinstance(item, bool) and low <= item < high
    return "float" in dtype and isinstance(item, int | float) and not isinstance(item, bool)
