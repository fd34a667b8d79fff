"""Check the inputs and results of a program against its signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tvmtarget.errors import RunError, raise_all
from tvmtarget.executors.driver_program import Signature
from tvmtarget.executors.protocol import Array
from tvmtarget.human_units import counted
from tvmtarget.ir.text.parser import parse_type
from tvmtarget.ir.types import DTYPES, MapType, OptionalType, SequenceType, TensorType, Type, dtype_of, numpy_dtype

__all__ = ["check_inputs", "check_outputs", "check_results", "dtypes_of"]

# Naming an element type takes longer than all other checks of an input.
_dtype_name = lru_cache(maxsize=256)(dtype_of)
_type_of = lru_cache(maxsize=256)(parse_type)


def check_inputs(signatures: Sequence[Signature], inputs: Mapping[str, object]) -> list[Any]:
    """Check the inputs of a program and put them in order.

    Args:
        signatures: the program's inputs, in order.
        inputs: values by name. Numbers and lists become arrays of the declared element type if it holds their values;
            floats may be rounded. Arrays are never converted, but for their byte order. Sequences are lists or tuples.

    Returns:
        The values in the order of `signatures`.

    Raises:
        RunError: all inputs that are missing, unknown, or of another type or shape.
    """
    if type(inputs) is not dict and not isinstance(inputs, Mapping):
        raise RunError(f"inputs are a mapping of names to values, not a {type(inputs).__name__}")
    names = [signature.name for signature in signatures]
    problems = [
        f"no input {name!r} in the program; it takes {', '.join(map(repr, names))}"
        for name in inputs
        if name not in names
    ]
    sizes: dict[str, tuple[int, str]] = {}
    values: list[Any] = []
    for signature in signatures:
        if signature.name not in inputs:
            problems.append(f"input {signature.name!r} is missing; it is {signature}")
            continue
        value = inputs[signature.name]
        try:
            if signature.dtype is not None:
                value = _as_array(value, signature.dtype)
                problem = _mismatch(signature.dtype, signature.shape, value) or _other_size(signature, value, sizes)
                problems += [f"input {signature.name!r} {problem}"] * bool(problem)
            elif signature.type is not None:
                value = _as_value(value, _type_of(signature.type))
        except ValueError as error:
            problems.append(f"input {signature.name!r} {error} (the program takes {signature})")
        values.append(value)
    if problems:
        raise RunError(*problems)
    return values


def check_outputs(signatures: Sequence[Signature], values: Sequence[object]) -> None:
    """Check results that come from other machines.

    Symbolic dimensions have any size, as in results of this machine: PyTorch gives several of a result one name.

    Args:
        signatures: the program's outputs, in order.
        values: the results, in order.

    Raises:
        RunError: the number of results, or the type, rank or a static dimension of one, differs from the signatures.
    """
    if len(values) != len(signatures):
        raise RunError(f"{len(values)} results came back, and the program has {len(signatures)}")
    problems: list[str] = []
    for signature, value in zip(signatures, values, strict=True):
        if signature.dtype is None:
            try:
                _as_value(value, _type_of(signature.type or "?"))
            except ValueError as error:
                problems.append(f"result {signature.name!r} {error}, not {signature}")
        elif type(value) is not np.ndarray:
            problems.append(f"result {signature.name!r} is of type {type(value).__name__}, not {signature}")
        else:
            problem = _mismatch(signature.dtype, signature.shape, value)
            problems += [f"result {signature.name!r} {problem}"] * bool(problem)
    raise_all(RunError, problems)


def check_results(signatures: Sequence[Signature], values: object, dtypes: Sequence[object]) -> Sequence[Any]:
    """Check what a code generator returned for a function; its shapes are not compared.

    Args:
        signatures: the results of the function, in order.
        values: what it returned: arrays, or values of a device's memory, which are not looked into.
        dtypes: the element types in `signatures`, as `dtypes_of` returns them.

    Returns:
        The results, in order, as plain arrays where they are arrays.

    Raises:
        ValueError: there are more or fewer of them, or one is no tensor or has another element type.
    """
    # Nearly always; looking up names of element types takes longer than all else here.
    if type(values) in (list, tuple) and len(values) == len(dtypes):  # type: ignore[arg-type]
        for place, dtype in enumerate(dtypes):
            value = values[place]  # type: ignore[index]
            if type(value) is not np.ndarray or value.dtype is not dtype:
                break
        else:
            return values  # type: ignore[return-value]
    if not isinstance(values, list | tuple) or len(values) != len(signatures):
        found = counted(len(values), "result") if isinstance(values, list | tuple) else f"a {type(values).__name__}"
        raise ValueError(f"its code returned {found}, not a list of {counted(len(signatures), 'result')}")
    results = list(values)
    for place, (signature, value) in enumerate(zip(signatures, values, strict=True)):
        if signature.dtype is None or (type(value) is not np.ndarray and hasattr(value, "numpy")):
            continue
        if not isinstance(value, np.ndarray | np.generic):
            problem = f"of type {type(value).__name__}"
        else:
            try:
                results[place] = value = _as_array(value, signature.dtype)
            except ValueError as error:
                raise ValueError(f"result {signature.name!r} of its code {error}") from error
            problem = _dtype_name(value.dtype)
            if problem == signature.dtype:
                continue
        raise ValueError(f"result {signature.name!r} of its code is {problem}, not {signature}")
    return results


def dtypes_of(signatures: Sequence[Signature]) -> tuple[object, ...]:
    """Return the element types of signatures.

    Args:
        signatures: the signatures.

    Returns:
        Element types of numpy; None for values other than tensors, and for types that only a dialect knows.
    """
    return tuple(numpy_dtype(one.dtype) if one.dtype in DTYPES else None for one in signatures)


def _as_array(value: object, dtype: str) -> Array:
    """Return a value as a plain array in the byte order of this machine; numbers and lists in an element type.

    Raises:
        ValueError: the value is no array, or the type does not hold all numbers of a list; the text says what it is.
    """
    if type(value) is np.ndarray:
        if dtype == "string":
            return _texts(value)
        return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError("is a masked array; replace what is masked by .filled(value)")
    # Scalars and arrays of numpy and other libraries have an element type, which is checked and never converted.
    has_type = hasattr(value, "__array__")
    try:
        found = np.asarray(value, dtype=object if dtype == "string" and not has_type else None)
    except (TypeError, ValueError, RuntimeError) as error:  # PyTorch raises the last one
        raise ValueError(f"is a {type(value).__name__} that is no array: {error}") from error
    if has_type or dtype == "string":
        return _as_array(found, dtype)
    if dtype == "uint64" and found.dtype.kind == "f":
        # numpy makes floats of integers if some are above and some below 2**63.
        items = np.asarray(value, dtype=object)
        if all(isinstance(item, int) and 0 <= item < 2**64 for item in items.flat):
            return items.astype(np.uint64)
    if found.dtype.kind not in ("biufc" if "complex" in dtype else "biuf"):
        name = type(value).__name__
        is_list = isinstance(value, list | tuple)
        raise ValueError(f"is a {name} of other values than numbers" if is_list else f"is of type {name}, not an array")
    with np.errstate(all="ignore"):
        converted = found.astype(numpy_dtype(dtype))
        # A float may be rounded, but not to infinity.
        is_float = "float" in dtype or "complex" in dtype
        held = np.isfinite(converted) == np.isfinite(found) if is_float else converted.astype(found.dtype) == found
    if not held.all():
        raise ValueError(f"has {found[~held].tolist()[0]!r}, which {dtype} does not hold; convert it if it may change")
    return converted


def _as_value(value: object, type_: Type) -> object:
    """Return a value of a type with lists of arrays for its sequences.

    Raises:
        ValueError: the value is of another type; the text says what it is.
    """
    match type_:
        case TensorType():
            array = _as_array(value, type_.dtype)
            if problem := _mismatch(type_.dtype, type_.shape, array):
                raise ValueError(problem)
            return array
        case OptionalType():
            return None if value is None else _as_value(value, type_.element)
        case SequenceType():
            if not isinstance(value, list | tuple):
                raise ValueError(f"is of type {type(value).__name__}, not a list")
            try:
                return [_as_value(item, type_.element) for item in value]
            except ValueError as error:
                raise ValueError(f"has an element that {error}") from error
        case MapType() if not isinstance(value, dict):
            raise ValueError(f"is of type {type(value).__name__}, not a dict")
    return value


def _texts(value: Array) -> Array:
    """Return texts as an array of `str`, bytes decoded as UTF-8; arrays of other types unchanged.

    Engines read bytes in different ways: of those of fixed length, ONNX Runtime reads some up to the end of the next.
    """
    if value.dtype.kind not in "OUST":
        return value
    items = value.astype(object, copy=False)
    kinds = set(map(type, items.ravel().tolist()))
    wrong = next((kind.__name__ for kind in kinds if not issubclass(kind, str | bytes)), None)
    if wrong is not None:
        raise ValueError(f"has an element of type {wrong}")
    try:
        if not any(issubclass(kind, bytes) for kind in kinds):
            "".join(items.ravel().tolist()).encode()
            return items
        decoded = [item.decode() if isinstance(item, bytes) else item for item in items.flat]
    except UnicodeDecodeError as error:
        raise ValueError(f"has bytes that are not UTF-8: {error}") from error
    except UnicodeEncodeError as error:
        raise ValueError(f"has text that UTF-8 does not encode: {error}") from error
    return np.fromiter(decoded, object, items.size).reshape(items.shape)


def _mismatch(dtype: str | None, shape: Sequence[int | str | None] | None, value: Array) -> str:
    """Return how an array differs from a type whose symbolic dimensions may have any size; "" if it fits."""
    found = _dtype_name(value.dtype)
    if found != dtype:
        if value.dtype.kind == "O":
            return f"is an array of Python objects, not {dtype}"
        return f"is {found}, not {dtype}; convert it with .astype({dtype!r})"
    if shape is None or value.shape == shape:
        return ""
    is_rank_equal = len(value.shape) == len(shape)
    if is_rank_equal and all(
        size == dim or not isinstance(dim, int) for size, dim in zip(value.shape, shape, strict=True)
    ):
        return ""
    return f"has shape {value.shape}, not {_format_shape(shape)}"


def _other_size(signature: Signature, value: Array, sizes: dict[str, tuple[int, str]]) -> str:
    """Return which symbolic dimension has another size in an earlier input, which `sizes` collects; "" if none has."""
    for size, dim in zip(value.shape, signature.shape or (), strict=False):
        if isinstance(dim, str):
            # Equal symbols are one dimension (ONNX, dim_param): the first input fixes its size for all others.
            known, first = sizes.setdefault(dim, (size, signature.name))
            if known != size:
                return f"has {size} for {dim!r}, but input {first!r} has {known}"
    return ""


def _format_shape(shape: Sequence[int | str | None]) -> str:
    return "(" + ", ".join("?" if dim is None else str(dim) for dim in shape) + ")"
