"""Run and save what TVM compiled for a leaf function, on the CPU or on a GPU.

Importing, compiling and linking share global state in TVM and hold one lock. TVM is imported late and ships no types:
its objects are Any, under names that say what they are.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import importlib
import io
import json
import math
import os
import platform
import re
import resource
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, TypeAlias, TypeVar

import numpy as np

from tvmtarget.backends.aligned import aligned, is_aligned, use_huge_pages
from tvmtarget.backends.machine import processors
from tvmtarget.backends.protocol import SCRATCH, Array, Compiled
from tvmtarget.errors import BackendError, CompileError, MissingExtraError, first_line
from tvmtarget.files import temporary_folder
from tvmtarget.garbage_collection import without_garbage_collection
from tvmtarget.human_units import bytes_text
from tvmtarget.ir.relax.tvm_library import the_tvm
from tvmtarget.python_process import fork_problem
from tvmtarget.untrusted import LIMITS, limit, whole_number_of

__all__ = [
    "LARGEST_SIZE",
    "LARGE_WEIGHTS",
    "LEVEL_VARIABLE",
    "LIBRARY",
    "LOCK",
    "CompiledModule",
    "CudaModule",
    "DeviceArray",
    "LinkedProgram",
    "check_address_space",
    "generator_version",
    "has_linker",
    "host_value",
    "import_tvm",
    "load",
    "object_folder",
    "place",
    "quiet",
    "reject_forks",
    "required_library",
    "run_time_reason",
    "tensor_nbytes",
    "tvm_version",
    "within_limits",
]

_T = TypeVar("_T")
Tvm: TypeAlias = Any
Tensor: TypeAlias = Any

LIBRARY = "lib.so"
LARGEST_SIZE = 1 << 40  # of a dimension, in proofs
LARGE_WEIGHTS = "tvmtarget.large_weights"  # a function of executables that returns their constants of many bytes
_SMALL = 16 << 10  # bytes of an input that is copied sooner than its address is found
_LARGEST_KEPT = 64 << 20  # bytes of a copy of an input that a thread keeps for its next run
_OBJECT_SPACE = 32 << 20  # bytes; weights are no part of object files, and code of a whole network takes a few MiB
_ADDRESS_SPACE = 256 << 20  # bytes; with less, LLVM ends the process or waits forever, for a small network, too
LOCK = threading.Lock()


# With the value 1, code for any x86-64 is run: to compare results, and to test it.
LEVEL_VARIABLE = "TVMTARGET_X86_LEVEL"


@functools.cache
def import_tvm() -> Tvm:
    """Import TVM, configured for this machine.

    Returns:
        The module `tvm`.

    Raises:
        MissingExtraError: it is not installed.
        TvmTargetError: `TVM_NUM_THREADS` is no number of threads, or `TVMTARGET_X86_LEVEL` is not 1.
    """
    # TVM reads these once. By itself it takes half of the processors for hyper-threads of the others, and binds its
    # threads to processors; the caller's, which works too, is not bound, and often shares one with another of them:
    # convolutions of SqueezeNet take 580 us so and 335 us unbound, on two processors.
    level = os.environ.get(LEVEL_VARIABLE, "")
    if level not in ("", "1"):
        raise BackendError(f"environment variable {LEVEL_VARIABLE} is {level!r}; expected 1, for code of any x86-64")
    if whole_number_of("TVM_NUM_THREADS") is None:
        os.environ["TVM_NUM_THREADS"] = str(processors())
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    tvm = the_tvm()
    try:
        with without_garbage_collection():  # an eighth of the time: all that is imported stays
            importlib.import_module("tvm.relax.frontend.onnx")
    except ImportError as error:
        raise MissingExtraError("apache-tvm", "tvm") from error

    def nonzero(values: Tensor) -> Tensor:
        found = np.nonzero(np.atleast_1d(_copied(values)))
        return _tensor(tvm, np.stack(found))

    def shape_to_tensor(sizes: Sequence[int]) -> Tensor:
        return _tensor(tvm, np.array([*sizes], "int64"))

    # TVM's own functions take 50 to 100 us for a few elements, these 10.
    tvm.register_global_func("relax.run.nonzero", nonzero, override=True)
    tvm.register_global_func("relax.run.shape_to_tensor", shape_to_tensor, override=True)
    # LLVM has instructions for it; TVM would divide all of a loop into iterations, of which LLVM makes fewer vectors.
    tvm.ir.register_op_attr("tirx.nearbyint", "TVectorizable", True)
    return tvm


@functools.cache
def tvm_version() -> str:
    """Return the version of TVM, which is imported only if it is no installed package.

    To import it takes a second.

    Returns:
        A version such as `0.27.0`.

    Raises:
        MissingExtraError: it is not installed.
    """
    if "tvm" not in sys.modules and find_spec("tvm") is not None:
        with contextlib.suppress(PackageNotFoundError):
            return version("apache-tvm")
    return str(import_tvm().__version__)


def has_linker() -> bool:
    """Return whether there is a compiler that links shared libraries.

    Returns:
        False if native code cannot be stored.
    """
    return _linker() is not None


def _linker() -> str | None:
    """Return the compiler that links: that of the environment, as for TVM, or one for C, which starts sooner."""
    stated = os.environ.get("CXX") or os.environ.get("CC")
    return stated or next(filter(shutil.which, ("gcc", "clang", "cc", "g++", "clang++", "c++")), None)


def required_library(files: Mapping[str, bytes], place: str) -> bytes:
    """Return the shared library that `CompiledModule.native_files` made.

    Args:
        files: these files.
        place: the path of what is built, for messages.

    Returns:
        The library.

    Raises:
        BackendError: this machine has no linker.
    """
    if LIBRARY not in files:
        raise BackendError(
            f"@{place or '.'} cannot be built: native code needs a linker for shared libraries that works, such as gcc "
            "(CXX, CC)"
        )
    return files[LIBRARY]


@functools.cache
def generator_version() -> str:
    """Return what the code of llvm leaves depends on besides functions and attributes.

    These are the versions of TVM's packages, the sizes of its libraries (of builds from its source, versions are often
    equal), the sources of the code generators, which write functions otherwise and schedule them, and this machine's
    architecture and system, which are those of leaves without `mtriple`.

    Returns:
        A text.
    """
    spec = find_spec("tvm")
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    libraries = sorted((path.name, path.stat().st_size) for place in places for path in place.glob("lib/*.so"))
    digest = hashlib.sha256(repr(libraries).encode())
    here = Path(__file__).parent
    for path in sorted([*here.parent.glob("*.py"), *here.glob("*.py")]):
        digest.update(path.read_bytes())
    with contextlib.suppress(PackageNotFoundError):
        digest.update(version("apache-tvm-ffi").encode())
    return f"apache-tvm {tvm_version()} {platform.machine()}-{sys.platform} {digest.hexdigest()}"


class CompiledModule(Compiled):
    """A compiled leaf function, with a virtual machine for each thread, as one machine serves one thread.

    Args:
        executable: TVM's executable.
        never_empty: positions of inputs that must have elements.
        results: number of values that a run returns.
        may_write: whether the code may write into its inputs, as `call_tir_inplace` of Relax does; then they are
            copied.

    Attributes:
        library: the shared library that the executable was opened from; None if it was compiled here.
        kernel_scratch: bytes that kernels allocate while they run.
    """

    library: bytes | None = None
    kernel_scratch: Mapping[str, int] = MappingProxyType({})

    def __init__(
        self,
        executable: Any,  # noqa: ANN401
        never_empty: frozenset[int],
        results: int,
        *,
        may_write: bool = False,
    ) -> None:
        self._executable = executable
        self._may_write = may_write
        self._results = results
        self._never_empty = never_empty
        self._local = threading.local()

    @property
    def never_empty(self) -> frozenset[int]:
        """Positions of inputs that must have elements."""
        return self._never_empty

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Run on this CPU.

        Args:
            inputs: values of the parameters, in order.

        Returns:
            The results, in order.

        Raises:
            BackendError: an input must have elements, and has none.
            RuntimeError: the code failed.
        """
        if self._never_empty:
            self._check(inputs)
        tvm = import_tvm()
        given = [self._given(tvm, at, value) for at, value in enumerate(inputs)]
        try:
            results = self._call(tvm, given)
        except (RuntimeError, ValueError) as error:
            raise RuntimeError(run_time_reason(error)) from error
        # Copied, as tensors may share memory with inputs or constants.
        return [_value(one, _copied) for one in _several(results, self._results)]

    def _given(self, tvm: Tvm, at: int, value: Any) -> Any:  # noqa: ANN401
        """Return an input for TVM; what it cannot read in place is copied into memory that this thread keeps.

        New memory for each run takes ten times as long as the copy, as the system clears its pages.
        """
        is_kept = type(value) is np.ndarray and 0 < value.nbytes <= _LARGEST_KEPT
        if not is_kept or (value.nbytes > _SMALL and is_aligned(value)):
            return _argument(value, lambda array: _tensor(tvm, array, is_copied=self._may_write))
        places = self._local.__dict__.setdefault("places", {})
        array, tensor = places.get(at, (None, None))
        if array is None or array.shape != value.shape or array.dtype != value.dtype:
            tensor = tvm.runtime.tensor(value)
            try:
                array = np.from_dlpack(tensor)
            except (BufferError, RuntimeError, TypeError):  # an element type that numpy has not
                return tensor
            if not array.flags.writeable:
                return tensor
            places[at] = array, tensor
        array[...] = value
        return tensor

    def _call(self, tvm: Tvm, given: Sequence[Any]) -> Any:  # noqa: ANN401
        return self.main(tvm)(*given)

    def main(self, tvm: Tvm) -> Any:  # noqa: ANN401
        """Return the function that this thread calls, which takes and returns values of TVM.

        Args:
            tvm: the module `tvm`.

        Returns:
            A function of TVM.
        """
        reject_forks()
        if not hasattr(self._local, "main"):
            self._local.main = self._machine(tvm, tvm.cpu())["main"]
        return self._local.main

    def scratch(self) -> Mapping[str, int]:
        """Return the bytes that kernels allocate while they run, by kernel."""
        return self.kernel_scratch

    def native_files(self) -> Mapping[str, bytes]:
        """Link a shared library.

        Returns:
            The library and what its kernels allocate; empty if this machine has no linker, so that only the source is
            saved.
        """
        stated = {SCRATCH: json.dumps(dict(self.kernel_scratch)).encode()} if self.kernel_scratch else {}
        if self.library is not None:
            return {LIBRARY: self.library, **stated}
        with object_folder() as folder, LOCK, quiet():
            path = folder / LIBRARY
            try:
                self._executable.export_library(str(path), fcompile=_link)
            except (AttributeError, OSError, RuntimeError, TypeError, ValueError):
                return {}
            return {LIBRARY: path.read_bytes(), **stated}

    def _check(self, inputs: Sequence[Array | DeviceArray]) -> None:
        for position in sorted(self._never_empty):
            shape = inputs[position].shape
            if 0 in shape:
                raise BackendError(
                    f"input {position} has shape {shape}, and tvm would compute no result from no elements"
                )

    def _machine(self, tvm: Tvm, device: Any) -> Any:  # noqa: ANN401
        """Return the virtual machine of this thread on a device."""
        reject_forks()
        machines = self._local.__dict__.setdefault("machines", {})
        if device not in machines:
            machines[device] = tvm.relax.VirtualMachine(self._executable, device)
            _use_huge_pages(tvm, machines[device])
        return machines[device]


def _use_huge_pages(tvm: Tvm, machine: Any) -> None:  # noqa: ANN401
    """Move the large weights of a virtual machine to huge pages; threads share them."""
    if not machine.module.implements_function(LARGE_WEIGHTS):
        return
    for tensor in machine[LARGE_WEIGHTS]():
        if tensor.device == tvm.cpu():
            use_huge_pages(tensor.data_ptr(), tensor_nbytes(tensor))


class LinkedProgram(CompiledModule):
    """Drivers and leaf functions in one executable, which runs on this CPU and its devices.

    Args:
        executable: TVM's executable; its function `main` runs the program.
        results: number of values that a run returns.
        devices: TVM's types and numbers of the devices besides this CPU.
        may_write: as for `CompiledModule`.
    """

    def __init__(
        self,
        executable: Any,  # noqa: ANN401
        results: int,
        devices: Sequence[tuple[int, int]] = (),
        *,
        may_write: bool = False,
    ) -> None:
        super().__init__(executable, frozenset(), results, may_write=may_write)
        self._devices = tuple(devices)
        self._weights: list[Any] | None = None
        self._lock = threading.Lock()

    def text(self) -> str:
        """Return the instructions of all functions.

        Returns:
            The text that TVM prints.
        """
        module = getattr(self._executable, "mod", self._executable)
        return str(module["as_text"]())

    def _call(self, tvm: Tvm, given: Sequence[Any]) -> Any:  # noqa: ANN401
        return self.main(tvm)(*given, *(self._weights or ()))

    def main(self, tvm: Tvm) -> Any:  # noqa: ANN401
        """Return the function that this thread calls, which takes and returns values of TVM.

        Args:
            tvm: the module `tvm`.

        Returns:
            A function of TVM, which takes the weights on devices after the inputs.
        """
        reject_forks()
        if not hasattr(self._local, "main"):
            devices = [tvm.cpu(), *(tvm.runtime.device(*device) for device in self._devices)]
            machine = tvm.relax.VirtualMachine(self._executable, devices)
            _use_huge_pages(tvm, machine)
            with self._lock:  # weights are copied to devices once, for all threads
                if self._weights is None:
                    self._weights = [machine["weights"]()] if machine.module.implements_function("weights") else []
            self._local.main = machine["main"]
        return self._local.main


_RAN_IN: list[int] = []  # the process in which programs ran first


def reject_forks() -> None:
    """Refuse to run in a fork of a process in which programs ran, as it lacks TVM's threads.

    Raises:
        BackendError: this process is such a fork.
    """
    if not _RAN_IN:
        _RAN_IN.append(os.getpid())
    elif _RAN_IN[0] != os.getpid():
        raise BackendError(fork_problem("TVM ran", _RAN_IN[0]))


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
        return tensor_nbytes(self.tensor)

    def numpy(self) -> Array:
        """Copy the value into this process.

        Returns:
            An array.
        """
        return np.asarray(self.tensor.numpy())


def tensor_nbytes(tensor: Tensor) -> int:
    """Return the size of a tensor of TVM.

    Args:
        tensor: the tensor.

    Returns:
        Bytes.
    """
    bits = int(tensor.dtype.bits) * int(tensor.dtype.lanes)
    return math.prod(map(int, tensor.shape)) * -(-bits // 8)


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
        return [host_value(result) for result in self.run_on(0, inputs)]

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


def _tensor(tvm: Any, array: Array, *, is_copied: bool = False) -> Any:  # noqa: ANN401
    """Return an array as a tensor of TVM, which shares its memory if that is aligned.

    Copying weights in each run takes half as long as computing with them. `is_copied` excepts arrays that are not
    read-only, as weights are.
    """
    if not array.size or (is_copied and array.flags.writeable):
        return tvm.runtime.tensor(array)
    try:
        return tvm.runtime.from_dlpack((array if is_aligned(array) else aligned(array)).__dlpack__(max_version=(1, 0)))
    except (BufferError, TypeError):  # an element type that DLPack has not, or a numpy that says nothing of writing
        return tvm.runtime.tensor(array)


def _copied(tensor: Tensor) -> Array:
    """Return a tensor of this CPU as an array of its own, faster than TVM does for the usual element types."""
    try:
        return np.array(np.from_dlpack(tensor))
    except (BufferError, RuntimeError, TypeError):  # an element type that numpy has not
        return np.asarray(tensor.numpy())


# What TVM's virtual machine says where a size is not the one that other values have, or that the program states.
_OTHER_SIZE = re.compile(
    r"Check failed: input_shape\[i\] == \S+ \((\d+) vs\. (\d+)\).* match_cast error, *shape\[(\d+)\].*"
)


def run_time_reason(error: Exception) -> str:
    """Return why a run failed.

    Args:
        error: what TVM raised.

    Returns:
        Its first line, in other words where it names parts of TVM.
    """
    needed = r"sizes do not fit: a value has \1 elements along axis \3, and what it is combined with needs \2"
    return _OTHER_SIZE.sub(needed, first_line(error))


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


def host_value(value: Any) -> Any:  # noqa: ANN401
    """Return a value in this process's memory.

    Args:
        value: an array, a value of a GPU's memory, a number, or a sequence of these.

    Returns:
        The value, with arrays in place of values of a GPU's memory.
    """
    return _argument(value, lambda one: one.numpy() if isinstance(one, DeviceArray) else one)


@contextlib.contextmanager
def object_folder() -> Iterator[Path]:
    """Make a temporary folder for object files of LLVM.

    LLVM ends the process if it cannot write one, without a message, as `quiet` hides it.

    Yields:
        The path of the folder.

    Raises:
        BackendError: the disk has almost no space, or files of this process may not be so large.
    """
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if largest != resource.RLIM_INFINITY and largest < _OBJECT_SPACE:
        raise BackendError(
            f"files of this process have at most {bytes_text(largest)}, and object files need "
            f"{bytes_text(_OBJECT_SPACE)}; raise the limit by ulimit -f"
        )
    place = Path(tempfile.gettempdir())
    free = shutil.disk_usage(place).free
    if free < _OBJECT_SPACE:
        raise BackendError(
            f"{str(place)!r} has {bytes_text(free)} left, and object files need {bytes_text(_OBJECT_SPACE)}; "
            "name another folder for temporary files by TMPDIR"
        )
    with temporary_folder() as folder:
        yield folder


def check_address_space() -> None:
    """Reject a compilation that may run out of address space.

    LLVM ends the process if it gets no memory, without a message, as `quiet` hides it.

    Raises:
        BackendError: the limit of this process leaves too little.
    """
    limit, use = resource.getrlimit(resource.RLIMIT_AS)[0], Path("/proc/self/statm")
    if limit == resource.RLIM_INFINITY or not use.exists():
        return
    left = max(0, limit - int(use.read_text().split()[0]) * resource.getpagesize())
    if left < _ADDRESS_SPACE:
        raise BackendError(
            f"this process has {bytes_text(left)} left of {bytes_text(limit)} of address space, and LLVM needs "
            f"{bytes_text(_ADDRESS_SPACE)}; raise the limit by ulimit -v"
        )


def _link(library: str, objects: Sequence[str], options: Sequence[str] = ()) -> None:
    """Link a shared library, without files in C that are empty, which take as long to compile as others."""
    from tvm.support.cc import create_shared

    full = [path for path in objects if not path.endswith(".c") or Path(path).read_text().strip()]
    create_shared(library, full, [*options], cc=_linker())


def _system_triple() -> str:
    from tvm.target.codegen import llvm_get_system_triple

    return str(llvm_get_system_triple())


_link.get_target_triple = _system_triple  # type: ignore[attr-defined]  # what TVM packs other modules for


def load(library: bytes) -> Any:  # noqa: ANN401
    """Open an executable that was linked.

    Args:
        library: contents of the shared library.

    Returns:
        TVM's executable, which is closed when nothing refers to it.
    """
    import_tvm()  # it registers what reads executables
    import tvm_ffi

    with temporary_folder() as folder, LOCK, quiet():
        path = folder / LIBRARY
        path.write_bytes(library)
        # By default, TVM keeps a library with its weights until the process ends.
        return tvm_ffi.load_module(path, keep_module_alive=False)


def within_limits(compute: Callable[[], _T]) -> _T:
    """Compile something alone, silently, and within the limit `compile-seconds`.

    TVM releases Python's lock (GIL) while it compiles, so that another thread can stop waiting for it. A compilation
    that exceeds the limit cannot be stopped; it runs on beside this process, and ends with it.

    Args:
        compute: compiles something.

    Returns:
        The result of `compute`.

    Raises:
        CompileError: it takes longer.
    """
    seconds = limit("compile-seconds")
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(compute())
        except BaseException as error:
            errors.append(error)

    with LOCK, quiet():
        thread = threading.Thread(target=run, name="compile", daemon=True)
        thread.start()
        try:
            thread.join(seconds)
        finally:
            # It takes too long, or Ctrl-C ended the wait, after which `is_alive` is wrong in Python 3.11.
            if not results and not errors:
                _end_beside_compilations()
    if errors:
        raise errors[0]
    if not results:
        raise CompileError(
            f"it takes longer than {seconds} seconds; give the inputs static shapes (tt.specialize, --dim), place its "
            f"operations on another site (where, --where), or raise {LIMITS['compile-seconds'].variable}"
        )
    return results[0]


@functools.cache
def _end_beside_compilations() -> None:
    """Let this process end with its own status while compilations that were given up still run.

    Python ends a thread that comes back from TVM after the interpreter has ended, by an exception that passes functions
    of C++ which let none pass (`pthread_exit`, up to Python 3.13): `std::terminate` then aborts the process. Also,
    `exit` would destroy objects of LLVM that the compilation uses.
    """

    def prepare() -> None:
        with contextlib.suppress(OSError, AttributeError):  # other platforms than Linux with glibc
            c, cpp = ctypes.CDLL(None), ctypes.CDLL("libstdc++.so.6")
            c.fflush(None)
            c.on_exit(ctypes.cast(c._exit, ctypes.c_void_p), None)
            cpp._ZSt13set_terminatePFvvE(ctypes.cast(c.pause, ctypes.c_void_p))  # `std::set_terminate`

    atexit.register(prepare)


@contextlib.contextmanager
def quiet(errors: IO[bytes] | None = None) -> Iterator[None]:
    """Silence warnings and output of Python, and the error stream of TVM's C++ code.

    Args:
        errors: a file that gets the error stream.

    Yields:
        Nothing.
    """
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        sys.stderr.flush()
        saved, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nothing if errors is None else errors.fileno(), 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            os.close(nothing)
