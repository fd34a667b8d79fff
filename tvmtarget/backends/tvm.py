"""Apache TVM for llvm leaves: the function's ONNX model through Relax into native code.

TVM's ONNX importer reads a static dimension of 0 as unknown, gives all unnamed dimensions one symbol, and parses
the names of symbols as expressions; `_prepared` writes the model so that none of that changes its meaning.
Importing and compiling share global state in TVM and are kept under one lock.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from tvmtarget.backends.machine import refuses_native
from tvmtarget.backends.protocol import Array, Part
from tvmtarget.errors import BackendError, MissingExtraError
from tvmtarget.target.tree import Target

__all__ = ["BACKEND"]

_LIBRARY = "lib.so"
_LOCK = threading.Lock()


def _tvm() -> Any:  # noqa: ANN401 - TVM ships no types
    try:
        import tvm
        import tvm.relax.frontend.onnx
    except ImportError as error:
        raise MissingExtraError("apache-tvm", "tvm") from error
    return tvm


class _Tvm:
    name = "tvm"
    kinds = ("llvm",)

    def version(self) -> str:
        return f"apache-tvm {_tvm().__version__}"

    def refuses(self, target: Target) -> str | None:
        return refuses_native(target)

    def compile(self, part: Part) -> _Program:
        tvm = _tvm()
        if _LIBRARY in part.native:
            return _Program(_load(tvm, part.native[_LIBRARY]))
        try:
            with _LOCK, _quiet():
                module = tvm.relax.frontend.onnx.from_onnx(_prepared(part.model), sanitize_input_names=False)
                with tvm.transform.PassContext(opt_level=3):
                    return _Program(tvm.compile(module, target=_target(tvm, part.target)))
        except BackendError:
            raise
        except Exception as error:  # noqa: BLE001 - TVM raises many types, from C++ too
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise BackendError(f"tvm cannot take function {part.name!r} of @{part.site}: {reason}") from error


def _target(tvm: Any, leaf: Target) -> Any:  # noqa: ANN401
    """Return TVM's target of a leaf, with its real attributes; an mcpu that LLVM does not know is an error."""
    config = {name: list(value) if isinstance(value, tuple) else value for name, value in leaf.attrs.items()}
    codegen = tvm.target.codegen
    mcpu, triple = config.get("mcpu"), config.get("mtriple", codegen.llvm_get_system_triple())
    if mcpu is not None and not codegen.llvm_is_valid_cpu(mcpu, triple):
        raise BackendError(f"LLVM knows no CPU {mcpu!r} for {triple!r}; change mcpu of {str(leaf)!r}")
    return tvm.target.Target({"kind": leaf.kind, **config} | ({"keys": list(leaf.keys)} if leaf.keys else {}))


class _Program:
    """An executable with a virtual machine of its own for each thread, as one machine serves one thread."""

    def __init__(self, executable: Any) -> None:  # noqa: ANN401
        self._executable = executable
        self._local = threading.local()

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        tvm = _tvm()
        machine = getattr(self._local, "machine", None)
        if machine is None:
            machine = self._local.machine = tvm.relax.VirtualMachine(self._executable, tvm.cpu())
        return _arrays(machine["main"](*[tvm.runtime.tensor(array) for array in inputs]))

    def native_files(self) -> Mapping[str, bytes]:
        """Link a shared library if this machine has a compiler; without one, only the source is saved."""
        with tempfile.TemporaryDirectory() as folder, _LOCK, _quiet():
            path = Path(folder) / _LIBRARY
            try:
                self._executable.export_library(str(path))
            except (AttributeError, OSError, RuntimeError, TypeError, ValueError):
                return {}
            return {_LIBRARY: path.read_bytes()}


def _arrays(result: Any) -> list[Array]:  # noqa: ANN401
    """Flatten what a machine returns; results are copied, as they may share memory with inputs or constants."""
    if hasattr(result, "numpy"):
        return [result.numpy()]
    if type(result).__name__ == "Shape":
        return [np.array(list(result), "int64")]
    return [array for item in result for array in _arrays(item)]


def _load(tvm: Any, library: bytes) -> Any:  # noqa: ANN401
    with tempfile.TemporaryDirectory() as folder, _LOCK, _quiet():
        path = Path(folder) / _LIBRARY
        path.write_bytes(library)
        return tvm.runtime.load_module(str(path))


def _prepared(model: ModelProto) -> ModelProto:
    """Copy a model into the form that TVM's importer reads right."""
    copy = ModelProto()
    copy.CopyFrom(model)
    symbols: dict[str, str] = {}
    for value in copy.graph.input:
        for position, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value:
                continue
            name = dim.dim_param or f"{value.name}:{position}"
            dim.dim_param = symbols.setdefault(name, f"n{len(symbols)}")
    types = {info.name: info.type.tensor_type for info in (*copy.graph.input, *copy.graph.value_info)}
    for node in copy.graph.node:
        for attribute in [attr for attr in node.attribute if attr.type == onnx.AttributeProto.INTS and not attr.ints]:
            node.attribute.remove(attribute)
        if node.op_type == "Shape" and node.input[0] in types:
            _fold_shape(node, types[node.input[0]])
    return copy


def _fold_shape(node: onnx.NodeProto, type_: onnx.TypeProto.Tensor) -> None:
    """Write the shape of a static value as a constant: the importer's own form of it does not go everywhere."""
    dims = [dim.dim_value for dim in type_.shape.dim if dim.HasField("dim_value")]
    if len(dims) != len(type_.shape.dim):
        return
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    shape = np.array(dims[slice(bounds.get("start", 0), bounds.get("end"))], "int64")
    node.op_type = "Constant"
    del node.input[:], node.attribute[:]
    node.attribute.append(onnx.helper.make_attribute("value", numpy_helper.from_array(shape)))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Python warnings and prints, and what TVM's C++ writes to the error stream without a switch."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        sys.stderr.flush()
        saved, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nothing, 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            os.close(nothing)


BACKEND = _Tvm()
