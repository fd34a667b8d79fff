"""Check the inputs and results of a program against its signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tvmtarget.errors import RunError, raise_all
from tvmtarget.executors.driver_program import Signature
from tvmtarget.executors.protocol import Array
from tvmtarget.ir.types import dtype_of

__all__ = ["check_inputs", "check_outputs"]

# Naming an element type takes longer than all other checks of an input.
_dtype_name = lru_cache(maxsize=256)(dtype_of)


def check_inputs(signatures: Sequence[Signature], inputs: Mapping[str, object]) -> list[Any]:
    """Check the inputs of a program and put them in order.

    Args:
        signatures: the program's inputs, in order.
        inputs: values by name; numbers and lists become arrays of the declared element type.

    Returns:
        The values in the order of `signatures`.

    Raises:
        RunError: all inputs that are missing, unknown, or of another type or shape.
    """
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
        if signature.dtype is not None:
            value = _as_array(value, signature.dtype)
            problems += _mismatches(signature, value, sizes)
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
            continue
        if type(value) is not np.ndarray:
            problems.append(f"result {signature.name!r} is of type {type(value).__name__}, not {signature}")
        else:
            problems += [problem.replace("input", "result", 1) for problem in _mismatches(signature, value)]
    raise_all(RunError, problems)


def _as_array(value: object, dtype: str) -> Array:
    """Return arrays unchanged, and numbers and lists as an array of an element type."""
    if isinstance(value, np.ndarray):
        return value
    # A scalar of numpy has an element type of its own, which is checked and never converted.
    if isinstance(value, np.generic):
        return np.asarray(value)
    try:
        return np.asarray(value, dtype=object if dtype == "string" else dtype)
    except (TypeError, ValueError):
        # No number type is called `object`, so that the check of element types rejects this by the name of the input.
        return np.asarray(value, dtype=object)


def _mismatches(signature: Signature, value: Array, sizes: dict[str, tuple[int, str]] | None = None) -> list[str]:
    """Return what differs from a signature.

    Args:
        signature: the signature.
        value: the value.
        sizes: collects the symbolic dimensions and the inputs that fix them; None if they may have any size.

    Returns:
        What differs; empty if nothing does.
    """
    name = signature.name
    dtype = _dtype_name(value.dtype)
    if dtype != signature.dtype:
        return [f"input {name!r} is {dtype}, not {signature.dtype}; convert it with .astype({signature.dtype!r})"]
    if signature.shape is None or value.shape == signature.shape:
        return []
    if len(value.shape) != len(signature.shape):
        return [f"input {name!r} has shape {value.shape}, not {_format_shape(signature.shape)}"]
    for size, dim in zip(value.shape, signature.shape, strict=True):
        if size == dim:
            continue
        if isinstance(dim, int):
            return [f"input {name!r} has shape {value.shape}, not {_format_shape(signature.shape)}"]
        if isinstance(dim, str) and sizes is not None:
            # Equal symbols are one dimension (ONNX, dim_param): the first input fixes its size for all others.
            known, first = sizes.setdefault(dim, (size, name))
            if known != size:
                return [f"input {name!r} has {size} for {dim!r}, but input {first!r} has {known}"]
    return []


def _format_shape(shape: Sequence[int | str | None]) -> str:
    return "(" + ", ".join("?" if dim is None else str(dim) for dim in shape) + ")"
