"""Run and save what TVM compiled for a leaf function, on the CPU or on a GPU.

Importing, compiling and linking share global state in TVM and hold one lock. TVM is imported late and ships no types:
its objects are Any, under names that say what they are.
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
    """Import TVM, configured for this machine.

    Returns:
        The module `tvm`.

    Raises:
        MissingExtraError: it is not installed.
    """
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
    """A compiled leaf function, with a virtual machine for each thread, as one machine serves one thread.

    Args:
        executable: TVM's executable.
        never_empty: positions of inputs that must have elements.
        results: number of values that a run returns.
    """

    def __init__(self, executable: Any, never_empty: frozenset[int], results: int) -> None:  # noqa: ANN401
        self._executable = executable
        self._results = results
        self._never_empty = never_empty
        self._local = threading.local()

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Run on this CPU.

        Args:
            inputs: values of the parameters, in order.

        Returns:
            The results, in order.
        """
        self._check(inputs)
        tvm = import_tvm()
        given = [_argument(value, lambda array: _tensor(tvm, array)) for value in inputs]
        results = self._machine(tvm, tvm.cpu())["main"](*given)
        # Copied, as tensors may share memory with inputs or constants.
        return [_value(one, lambda tensor: tensor.numpy()) for one in _several(results, self._results)]

    def native_files(self) -> Mapping[str, bytes]:
        """Link a shared library.

        Returns:
            The library; empty if this machine has no linker, so that only the source is saved.
        """
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
        _reject_forks()
        machines = self._local.__dict__.setdefault("machines", {})
        if device not in machines:
            machines[device] = tvm.relax.VirtualMachine(self._executable, device)
        return machines[device]


_RAN_IN: list[int] = []  # the process in which programs ran first


def _reject_forks() -> None:
    """Raise `BackendError` in a fork of a process in which programs ran: it lacks TVM's threads."""
    if not _RAN_IN:
        _RAN_IN.append(os.getpid())
    elif _RAN_IN[0] != os.getpid():
        raise BackendError(
            f"TVM ran in process {_RAN_IN[0]}, and this is a fork of it, which has none of its threads; start "
            "processes by multiprocessing.get_context('spawn') or 'forkserver', or fork before anything runs"
        )


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """A value in the memory of a GPU."""

    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return tuple(map(int, self.tensor.shape))

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        bits = int(self.tensor.dtype.bits) * int(self.tensor.dtype.lanes)
        return math.prod(self.shape) * -(-bits // 8)

    def numpy(self) -> Array:
        """Copy the value into this process.

        Returns:
            An array.
        """
        return np.asarray(self.tensor.numpy())


def place(array: Array | DeviceArray, device: int) -> DeviceArray:
    """Copy an array into the memory of a GPU.

    Args:
        array: an array, or a value of a GPU's memory.
        device: number of the GPU.

    Returns:
        The copy; the value itself if it is on that GPU.
    """
    tvm = import_tvm()
    there = tvm.cuda(device)
    if isinstance(array, DeviceArray):
        return array if array.tensor.device == there else DeviceArray(array.tensor.copyto(there))
    return DeviceArray(tvm.runtime.tensor(array, there))


class CudaModule(CompiledModule):
    """A compiled leaf function for GPUs.

    Args:
        executable: TVM's executable.
        never_empty: positions of inputs that must have elements.
        results: number of values that a run returns.
        is_native: whether it holds machine code, and not the source alone.
    """

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
        """Run on the first GPU.

        Args:
            inputs: values of the parameters, in order.

        Returns:
            The results, in order, in this process.
        """
        return [_argument(result, _fetched) for result in self.run_on(0, inputs)]

    def run_on(self, device: int, inputs: Sequence[Array | DeviceArray]) -> Sequence[Any]:
        """Run on a GPU, and wait until it is done.

        Args:
            device: number of the GPU.
            inputs: arrays, or values of a GPU's memory, in order.

        Returns:
            The results, in order, in the GPU's memory; shapes and numbers as arrays of this process.
        """
        self._check(inputs)
        tvm = import_tvm()
        there = tvm.cuda(device)
        given = [_argument(value, lambda array: place(array, device).tensor) for value in inputs]
        results = self._machine(tvm, there)["main"](*given)
        there.sync()
        return [_value(one, DeviceArray) for one in _several(results, self._results)]

    def source(self) -> str:
        """Return the CUDA C++ of all kernels.

        Returns:
            The code; empty if there are no kernels.
        """
        return "".join(module.inspect_source() for module in _all(self._executable.mod) if module.kind == "cuda")

    def native_files(self) -> Mapping[str, bytes]:
        """Link a shared library.

        Returns:
            The library; empty if there is no machine code.
        """
        return super().native_files() if self._is_native else {}


def _all(module: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield a module of TVM's runtime and those that it imports."""
    yield module
    for other in module.imports:
        yield from _all(other)


def _tensor(tvm: Any, array: Array) -> Any:  # noqa: ANN401
    """Return an array as a tensor of TVM, without a copy if the array is read-only and aligned, as weights are.

    Copying weights in each run takes half as long as computing with them.
    """
    if array.flags.writeable or not array.size or not is_aligned(array):
        return tvm.runtime.tensor(array)
    try:
        return tvm.runtime.from_dlpack(array.__dlpack__(max_version=(1, 0)))
    except (BufferError, TypeError):  # an element type that DLPack has not, or a numpy that says nothing of writing
        return tvm.runtime.tensor(array)


def _several(results: Any, count: int) -> list[Any]:  # noqa: ANN401
    """Return the result of `main` as a list of `count` values: one that is no tuple, or the fields of a tuple.

    A single value that is a tuple stays one, except a tuple of one tensor, which is unpacked.
    """
    if count == 1 and (_is_plain(results) or len(results) != 1 or not hasattr(results[0], "numpy")):
        return [results]
    return list(results)


def _value(result: Any, of_tensor: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    """Return a value of TVM: tensors converted by `of_tensor`, shapes and numbers as arrays, tuples as lists."""
    if hasattr(result, "numpy"):
        return of_tensor(result)
    if isinstance(result, bool | int | float):
        return np.asarray(result)
    if _is_plain(result):
        return np.array(list(result), "int64")
    return [_value(item, of_tensor) for item in result]


def _is_plain(result: Any) -> bool:  # noqa: ANN401
    """Whether a value of TVM is a tensor, a shape or a number, and no tuple."""
    is_number = isinstance(result, bool | int | float)
    return is_number or hasattr(result, "numpy") or type(result).__name__ == "Shape"


def _argument(value: Any, change: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    """Return a value with each array in it converted; tuples become lists, numbers stay numbers."""
    if isinstance(value, list | tuple):
        return [_argument(item, change) for item in value]
    return value if isinstance(value, bool | int | float) else change(value)


def _fetched(value: Array | DeviceArray) -> Array:
    """Return an array of this process."""
    return value.numpy() if isinstance(value, DeviceArray) else value


def load(tvm: Tvm, library: bytes) -> Any:  # noqa: ANN401
    """Open an executable that was linked.

    Args:
        tvm: the module `tvm`.
        library: contents of the shared library.

    Returns:
        TVM's executable.
    """
    with temporary_folder() as folder, LOCK, quiet():
        path = folder / LIBRARY
        path.write_bytes(library)
        return tvm.runtime.load_module(str(path))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings and output of Python, and the error stream of TVM's C++ code.

    Yields:
        Nothing.
    """
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
