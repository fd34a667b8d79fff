"""What TVM made of a leaf function, on the CPU or on a GPU: it is run, its values cross over, and it is saved.

Importing, compiling and linking share global state in TVM and are kept under one lock. TVM is imported late and ships
no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.backends.aligned import is_aligned
from tvmtarget.backends.machine import processors
from tvmtarget.backends.protocol import Array
from tvmtarget.errors import BackendError, MissingExtraError

__all__ = ["LIBRARY", "LOCK", "CudaProgram", "DeviceArray", "Program", "import_tvm", "load", "place", "quiet"]

Tvm: TypeAlias = Any
Tensor: TypeAlias = Any

LIBRARY = "lib.so"
LOCK = threading.Lock()


def import_tvm() -> Tvm:
    """Return TVM, set up for this machine; `MissingExtraError` where it is not installed."""
    # TVM reads these once. By itself it takes half of the processors for hyper-threads of the others, and binds its
    # threads to processors; the caller's, which works too, is not bound, and often shares one with another of them:
    # convolutions of SqueezeNet take 580 us so and 335 us unbound, on two processors.
    os.environ.setdefault("TVM_NUM_THREADS", str(processors()))
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    try:
        import tvm
        import tvm.relax.frontend.onnx
    except ImportError as error:
        raise MissingExtraError("apache-tvm", "tvm") from error
    return tvm


class Program:
    """An executable with a virtual machine of its own for each thread, as one machine serves one thread.

    `never_empty` are the inputs, by position, that must have elements.
    """

    def __init__(self, executable: Any, never_empty: frozenset[int]) -> None:  # noqa: ANN401
        self._executable = executable
        self._never_empty = never_empty
        self._local = threading.local()

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Run on this CPU."""
        self._check(inputs)
        tvm = import_tvm()
        return _arrays(self._machine(tvm, tvm.cpu())["main"](*[_tensor(tvm, array) for array in inputs]))

    def native_files(self) -> Mapping[str, bytes]:
        """Link a shared library if this machine has a compiler; without one, only the source is saved."""
        with tempfile.TemporaryDirectory() as folder, LOCK, quiet():
            path = Path(folder) / LIBRARY
            try:
                self._executable.export_library(str(path))
            except (AttributeError, OSError, RuntimeError, TypeError, ValueError):
                return {}
            return {LIBRARY: path.read_bytes()}

    def _check(self, inputs: Sequence[Array | DeviceArray]) -> None:
        for position in sorted(self._never_empty):
            shape = inputs[position].shape
            if 0 in shape:
                raise BackendError(
                    f"input {position} has shape {shape}, and tvm would leave sums over nothing unwritten"
                )

    def _machine(self, tvm: Tvm, device: Any) -> Any:  # noqa: ANN401
        """Return the virtual machine of this thread on a device."""
        machines = self._local.__dict__.setdefault("machines", {})
        if device not in machines:
            machines[device] = tvm.relax.VirtualMachine(self._executable, device)
        return machines[device]


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """A value in the memory of a GPU; `numpy` brings it here."""

    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes."""
        return tuple(map(int, self.tensor.shape))

    @property
    def nbytes(self) -> int:
        """The bytes that it takes."""
        bits = int(self.tensor.dtype.bits) * int(self.tensor.dtype.lanes)
        return math.prod(self.shape) * -(-bits // 8)

    def numpy(self) -> Array:
        """Return a copy in this process."""
        return np.asarray(self.tensor.numpy())


def place(array: Array | DeviceArray, device: int) -> DeviceArray:
    """Copy an array into the memory of a GPU, by its number; what is there already stays as it is."""
    tvm = import_tvm()
    there = tvm.cuda(device)
    if isinstance(array, DeviceArray):
        return array if array.tensor.device == there else DeviceArray(array.tensor.copyto(there))
    return DeviceArray(tvm.runtime.tensor(array, there))


class CudaProgram(Program):
    """An executable for GPUs; `is_native` says whether it holds machine code, or the source alone."""

    def __init__(self, executable: Any, never_empty: frozenset[int], *, is_native: bool) -> None:  # noqa: ANN401
        super().__init__(executable, never_empty)
        self._is_native = is_native

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Run on the first GPU."""
        return [result.numpy() if isinstance(result, DeviceArray) else result for result in self.run_on(0, inputs)]

    def run_on(self, device: int, inputs: Sequence[Array | DeviceArray]) -> Sequence[Any]:
        """Run on a GPU by its number, until it is done; results are in its memory, but for shapes."""
        self._check(inputs)
        tvm = import_tvm()
        there = tvm.cuda(device)
        given = [place(value, device).tensor for value in inputs]
        results = _flat(self._machine(tvm, there)["main"](*given))
        there.sync()
        return [DeviceArray(one) if hasattr(one, "numpy") else np.array(list(one), "int64") for one in results]

    def source(self) -> str:
        """Return the CUDA C++ of all kernels; nothing if there are none."""
        return "".join(module.inspect_source() for module in _all(self._executable.mod) if module.kind == "cuda")

    def native_files(self) -> Mapping[str, bytes]:
        """Link a shared library, if there is machine code."""
        return super().native_files() if self._is_native else {}


def _all(module: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield a module of TVM's runtime and those that it imports."""
    yield module
    for other in module.imports:
        yield from _all(other)


def _tensor(tvm: Any, array: Array) -> Any:  # noqa: ANN401
    """Return an array as a tensor of TVM; what nobody writes to, as weights, is not copied if it lies as TVM wants it.

    To copy weights for every run takes half as long as what is computed with them.
    """
    if array.flags.writeable or not array.size or not is_aligned(array):
        return tvm.runtime.tensor(array)
    try:
        return tvm.runtime.from_dlpack(array.__dlpack__(max_version=(1, 0)))
    except (BufferError, TypeError):  # an element type that DLPack has not, or a numpy that says nothing of writing
        return tvm.runtime.tensor(array)


def _arrays(result: Any) -> list[Array]:  # noqa: ANN401
    """Return what a machine returns as arrays, copied, as tensors may share memory with inputs or constants."""
    return [one.numpy() if hasattr(one, "numpy") else np.array(list(one), "int64") for one in _flat(result)]


def _flat(result: Any) -> list[Any]:  # noqa: ANN401
    """Flatten tuples of what a machine returns: tensors and shapes."""
    if hasattr(result, "numpy") or type(result).__name__ == "Shape":
        return [result]
    return [one for item in result for one in _flat(item)]


def load(tvm: Tvm, library: bytes) -> Any:  # noqa: ANN401
    """Open an executable that was linked."""
    with tempfile.TemporaryDirectory() as folder, LOCK, quiet():
        path = Path(folder) / LIBRARY
        path.write_bytes(library)
        return tvm.runtime.load_module(str(path))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
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
