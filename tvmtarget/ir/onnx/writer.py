"""Writer of ONNX models: a function with all that it calls becomes one checked, stand-alone model."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto

from tvmtarget.errors import ModelError, TvmTargetError, first_line
from tvmtarget.files import atomic_write, has_file, temporary_folder
from tvmtarget.ir.function import Constant, Function, constants_of
from tvmtarget.ir.inference import infer_types
from tvmtarget.ir.inline import inline_calls
from tvmtarget.ir.onnx.graph import WriteTensor, write_graph
from tvmtarget.ir.onnx.metadata import write_model_metadata
from tvmtarget.ir.onnx.tensors import ExternalData, write_tensor
from tvmtarget.ir.onnx.types import check_model
from tvmtarget.ir.types import DTYPES, TensorType

__all__ = ["save_function", "write_function"]

# IR versions of ONNX, each with the highest element type that it has (onnx/onnx.in.proto).
_IR_VERSIONS = ((8, 16), (9, 20), (10, 22), (11, 23), (12, 24), (13, 26))
# Bytes of constants in one message: protobuf's limit is 2 GiB, of which 64 MiB are left for names and attributes.
_MAX_BYTES = (1 << 31) - (1 << 26)


def write_function(function: Function, functions: Mapping[str, Function]) -> ModelProto:
    """Write a function as a model; calls of other functions are inlined, copies become Identity.

    Args:
        function: the function.
        functions: functions that it calls, by name.

    Returns:
        The checked model.

    Raises:
        ModelError: the function has no valid form in ONNX, or its constants exceed one message.
    """
    flat = _inlined(function, functions)
    if _bytes_of(flat) > _MAX_BYTES:
        size = f"{_bytes_of(flat) / 1e9:.1f} GB of constants"
        raise ModelError(f"function {function.name!r} has {size}, more than one message holds; write it with save_onnx")
    return _checked_model(flat, function.name)


def save_function(function: Function, functions: Mapping[str, Function], path: Path) -> None:
    """Write a function as a file; files are complete and checked before they take their names.

    Args:
        function: the function.
        functions: functions that it calls, by name.
        path: file to write; if it would exceed 2 GB, large constants go into `<path>.data`.

    Raises:
        ModelError: the function has no valid form in ONNX, or a file cannot be written.
    """
    flat = _inlined(function, functions)
    try:
        if _bytes_of(flat) > _MAX_BYTES:
            _save_with_data(flat, function.name, path)
            return
        model = _checked_model(flat, function.name).SerializeToString(deterministic=True)
        with atomic_write(path) as file:
            file.write(model)
    except OSError as error:
        raise ModelError(f"model file {str(path)!r} cannot be written: {error.strerror or error}") from error


def _save_with_data(flat: Function, name: str, path: Path) -> None:
    """Write a function with large constants in a file of their own, which the model refers to by its name."""
    if has_file(path) and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file, and the model needs a second file beside it")
    with temporary_folder(path.parent, f".{path.name[:40]}.") as folder:
        new, data = folder / path.name, folder / f"{path.name}.data"
        with data.open("wb") as file:
            model = _model(flat, name, ExternalData(file, data.name).write)
        new.write_bytes(model.SerializeToString(deterministic=True))
        with _reporting_invalid(name):
            # By path, so that the checker also finds the external data beside the model.
            onnx.checker.check_model(new)
        # The model is renamed last: until then its name refers to the old, complete files.
        for written in (data, new):
            written.replace(path.parent / written.name)


def _inlined(function: Function, functions: Mapping[str, Function]) -> Function:
    """Return a function with all that it calls, and with types of its results, which an ONNX model states."""
    flat = inline_calls(function, functions).function
    return infer_types(flat) if any(flat.types.get(name) is None for name in flat.results) else flat


@contextmanager
def _reporting_invalid(name: str) -> Iterator[None]:
    """Raise `ModelError` for what the checker of ONNX reports."""
    try:
        yield
    except EncodeError as error:  # without a reason
        reason = "out of memory, or names and attributes of more than 64 MiB"
        raise ModelError(f"function {name!r} cannot be written as an ONNX model: {reason}") from error
    except (onnx.checker.ValidationError, ValueError) as error:
        raise ModelError(f"function {name!r} does not make a valid ONNX model: {first_line(error)}") from error


def _checked_model(flat: Function, name: str) -> ModelProto:
    """Write a function without calls of functions as a model in one message."""
    model = _model(flat, name, write_tensor)
    with _reporting_invalid(name):
        check_model(model)
    return model


def _model(flat: Function, name: str, tensor: WriteTensor) -> ModelProto:
    """Write a function without calls of functions; the model is not yet checked."""
    model = ModelProto(ir_version=_ir_version(flat), producer_name="tvmtarget")
    try:
        model.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in flat.opsets)
        write_graph(flat, model.graph, tensor=tensor)
        write_model_metadata(flat, model)
    except TvmTargetError:
        raise
    except (DecodeError, ValueError, TypeError, OverflowError) as error:
        raise ModelError(f"function {name!r} cannot be written as ONNX: {error}") from error
    return model


def _bytes_of(function: Function) -> int:
    """Return the bytes of all constants of a function."""
    return sum(_size(constant) for constant in constants_of(function))


def _size(constant: Constant) -> int:
    return constant.type.nbytes or constant.data.nbytes


def _ir_version(function: Function) -> int:
    """Return the oldest IR version that has all element types of a function: runtimes reject versions they predate."""
    numbers = [DTYPES[type_.dtype][0] for type_ in function.types.values() if isinstance(type_, TensorType)]
    newest = max(numbers, default=0)
    return next((version for version, number in _IR_VERSIONS if newest <= number), _IR_VERSIONS[-1][0])
