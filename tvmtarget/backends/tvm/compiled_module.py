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
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.backends.aligned import is_aligned
from tvmtarget.backends.machine import processors
from tvmtarget.backends.protocol import Array, Compiled
from tvmtarget.errors import BackendError, MissingExtraError
from tvmtarget.files import temporary_folder

__all__ = ["LIBRARY", "LOCK", "CompiledModule", "CudaModule", "DeviceArray", "import_tvm", "load", "place", "quiet"]

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


class CompiledModule(Compiled):
    """An executable with a virtual machine of its own for each thread, as one machine serves one thread.

    `never_empty` are the inputs, by position, that must have elements; `results` is how many values a run returns.
    """

    def __init__(self, executable: Any, never_empty: frozenset[int], results: int) -> None:  # noqa: ANN401
        self._executable = executable
        self._results = results
        self._never_empty = never_empty
        self._local = threading.local()

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Run on this CPU."""
        self._check(inputs)
        tvm = import_tvm()
        given = [_argument(value, lambda array: _tensor(tvm, array)) for value in inputs]
        results = self._machine(tvm, tvm.cpu())["main"](*given)
        # Copied, as tensors may share memory with inputs or constants.
        return [_value(one, lambda tensor: tensor.numpy()) for one in _several(results, self._results)]

    def native_files(self) -> Mapping[str, bytes]:
        """Link a shared library if this machine has a compiler; without one, only the source is saved."""
        with temporary_folder() as folder, LOCK, quiet():
            path = folder / LIBRARY
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
        _refuse_forks()
        machines = self._local.__dict__.setdefault("machines", {})
        if device not in machines:
            machines[device] = tvm.relax.VirtualMachine(self._executable, device)
        return machines[device]


_RAN_IN: list[int] = []  # the process in which programs ran first


def _refuse_forks() -> None:
    """Raise `BackendError` in a fork of a process in which programs ran: TVM would wait for threads it has not."""
    if not _RAN_IN:
        _RAN_IN.append(os.getpid())
    elif _RAN_IN[0] != os.getpid():
        raise BackendError(
            f"TVM ran in process {_RAN_IN[0]}, and this is a fork of it, which has none of its threads; start "
            "processes by multiprocessing.get_context('spawn') or 'forkserver', or fork before anything runs"
        )


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


class CudaModule(CompiledModule):
    """An executable for GPUs; `is_native` says whether it holds machine code, or the source alone."""

    def __init__(
        self,
        executable: Any,  # noqa: ANN401
        never_empty: frozenset[int],
        results: int,
        *,
        is_native: bool,
    ) -> None:
        super().__init__(executable, never_empty, results)
        self._is_native = is_native

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Run on the first GPU."""
        return [_argument(result, _fetched) for result in self.run_on(0, inputs)]

    def run_on(self, device: int, inputs: Sequence[Array | DeviceArray]) -> Sequence[Any]:
        """Run on a GPU by its number, until it is done; results are in its memory, but for shapes."""
        self._check(inputs)
        tvm = import_tvm()
        there = tvm.cuda(device)
        given = [_argument(value, lambda array: place(array, device).tensor) for value in inputs]
        results = self._machine(tvm, there)["main"](*given)
        there.sync()
        return [_value(one, DeviceArray) for one in _several(results, self._results)]

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


def _several(results: Any, count: int) -> list[Any]:  # noqa: ANN401
    """Return what `main` returns as so many values: one that is no tuple, or the fields of a tuple.

    A single value that is a tuple stays one, but for a tuple of one tensor, which a program takes apart.
    """
    if count == 1 and (_is_plain(results) or len(results) != 1 or not hasattr(results[0], "numpy")):
        return [results]
    return list(results)


def _value(result: Any, of_tensor: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    """Return a value of TVM: a tensor as asked for, shapes and numbers as arrays, and a tuple as a list."""
    if hasattr(result, "numpy"):
        return of_tensor(result)
    if isinstance(result, bool | int | float):
        return np.asarray(result)
    if _is_plain(result):
        return np.array(list(result), "int64")
    return [_value(item, of_tensor) for item in result]


def _is_plain(result: Any) -> bool:  # noqa: ANN401
    """Whether a value of TVM is no tuple: a tensor, a shape or a number."""
    is_number = isinstance(result, bool | int | float)
    return is_number or hasattr(result, "numpy") or type(result).__name__ == "Shape"


def _argument(value: Any, change: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    """Return a value with each array in it changed; a tuple is a list or a tuple of values, numbers stay numbers."""
    if isinstance(value, list | tuple):
        return [_argument(item, change) for item in value]
    return value if isinstance(value, bool | int | float) else change(value)


def _fetched(value: Array | DeviceArray) -> Array:
    """Return an array in this process."""
    return value.numpy() if isinstance(value, DeviceArray) else value


def load(tvm: Tvm, library: bytes) -> Any:  # noqa: ANN401
    """Open an executable that was linked."""
    with temporary_folder() as folder, LOCK, quiet():
        path = folder / LIBRARY
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
