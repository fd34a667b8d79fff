"""The backend protocol: compile a leaf function, given as an ONNX or Relax module, and run it.

Backends are found by the entry-point group `tvmtarget.backends`. One that needs an optional package imports it when it
is used, and raises `MissingExtraError` if it is not installed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import onnx

from tvmtarget import plugins
from tvmtarget.errors import ArtifactError, BackendError, FileError, MissingExtraError, TvmTargetError, did_you_mean
from tvmtarget.target.attributes import Value
from tvmtarget.target.keys import key_of
from tvmtarget.target.tree import Target
from tvmtarget.untrusted import parse_json

if TYPE_CHECKING:
    from tvmtarget.backends.c.static_function import StaticFunction

__all__ = [
    "SCRATCH",
    "Ability",
    "Array",
    "Backend",
    "CompileRequest",
    "Compiled",
    "DeviceValue",
    "FixedSchedules",
    "Kernel",
    "KernelRunner",
    "KernelTuningContext",
    "Schedules",
    "Space",
    "backend_named",
    "backends",
    "named_errors",
    "scratch_in",
]

Array: TypeAlias = "np.ndarray[Any, Any]"

# What a backend may do beyond compiling functions that read and return arrays of this process:
#   copy           `copy` is called for each copy into a memory of its leaves;
#   device-memory  its leaves have memories of their own: `place` moves arrays there, code has `run_on`;
#   runner         code for a CPU of another machine runs there through a runner;
#   keeps-inputs   code is known not to write into the arrays of its inputs, which are read-only views otherwise, and
#                  returns arrays of its own;
#   shared-code    code depends on the structure of a function and its target alone, so that equal functions share it;
#   static         `static_function` lowers functions on values of static shape to kernels in C or in object files;
#   tuning         `tuning_context` builds and measures kernels.
Ability: TypeAlias = Literal["copy", "device-memory", "keeps-inputs", "runner", "shared-code", "static", "tuning"]


@dataclass(frozen=True)
class Kernel:
    """A tunable part of a leaf function.

    Attributes:
        name: name in the function.
        body: body of its workload in a tuning log, as JSON data.
        text: the code of the kernel, stored in a log beside the workload.
        calls: how often the function calls it.
        program: the kernel in the formats of other tools, by format.
        default: digest of the code that is generated without tuning.
        equivalents: by format, the body of another workload whose candidates of that format are valid for this one.
    """

    name: str
    body: Mapping[str, object]
    text: str = ""
    calls: int = 1
    program: Mapping[str, object] = field(default_factory=dict)
    default: str = ""
    equivalents: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """`k1:` and a digest of the body; equal kernels have equal keys."""
        return key_of("k1", self.body)

    @property
    def label(self) -> str:
        """The operation and, if the body has shapes, that of its result, such as `matmul[48,64]`."""
        operation, shapes = self.body.get("op", self.name), self.body.get("shapes")
        return (
            f"{operation}[{','.join(map(str, shapes[-1]))}]" if isinstance(shapes, list) and shapes else f"{operation}"
        )


class Schedules(Protocol):
    """Results of tuning, as a backend reads them while it compiles."""

    def find(self, kernel: Kernel, *formats: str) -> tuple[str, object] | None:
        """Return the schedule of a kernel.

        Args:
            kernel: the kernel.
            *formats: formats that the backend can apply, the preferred one first.

        Returns:
            A format and the body of a candidate; None for the backend's default.
        """
        ...

    def reject(self, kernel: Kernel, reason: str) -> None:
        """Record that a schedule cannot be applied; `find` may then return another one.

        Args:
            kernel: the kernel.
            reason: why its schedule cannot be applied.
        """
        ...


@dataclass(frozen=True)
class FixedSchedules:
    """The schedules that a program was built with, for compiling it again.

    Attributes:
        bodies: bodies of candidates, by key of the kernel and format.
    """

    bodies: Mapping[tuple[str, str], object]

    def find(self, kernel: Kernel, *formats: str) -> tuple[str, object] | None:
        """Return the schedule of a kernel.

        Args:
            kernel: the kernel.
            *formats: formats that the backend can apply.

        Returns:
            A format and the body of a candidate, or None.
        """
        return next(((one, self.bodies[kernel.key, one]) for one in formats if (kernel.key, one) in self.bodies), None)

    def reject(self, kernel: Kernel, reason: str) -> None:
        """Do nothing: the rejection was recorded when the program was built.

        Args:
            kernel: the kernel.
            reason: why the schedule cannot be applied.
        """


@dataclass(frozen=True)
class CompileRequest:
    """A leaf function to compile.

    Attributes:
        name: name of the function.
        source: an ONNX model, or a Relax module as TVM's JSON.
        site: path of the leaf.
        target: the leaf, with all that it inherits and its host.
        ops: names of the operations in the user's model, in the order of the nodes.
        inputs: names of the parameters in the user's model.
        outputs: names of the results in the user's model.
        native: compiled files of a saved program that is trusted, by name.
        schedules: results of tuning, or None.
        is_trusted: whether the author of the source may run code on this machine. If not, a backend compiles it only
            if it can run nothing but operators of the code generator.
    """

    name: str
    source: bytes = field(repr=False)
    site: str
    target: Target
    ops: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    native: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    schedules: Schedules | None = field(default=None, repr=False, compare=False)
    is_trusted: bool = True

    @property
    def is_relax(self) -> bool:
        """Whether the source is a Relax module."""
        return self.source[:1] == b"{"

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The function as an ONNX model."""
        return onnx.load_from_string(self.source)

    def forget_model(self) -> None:
        """Free `model` until it is needed again.

        It has all weights once more, and a request lives as long as its program.
        """
        self.__dict__.pop("model", None)

    def source_with(self, names: Iterable[str]) -> bytes:
        """Return the ONNX model with more results, which come behind its own.

        Args:
            names: values of the model; those that are its inputs or results already are left out.

        Returns:
            The serialized model.
        """
        graph = self.model.graph
        known = {value.name for value in (*graph.input, *graph.output)}
        added = [name for name in dict.fromkeys(names) if name not in known]
        if not added:
            return self.source
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        types = {value.name: value for value in graph.value_info}
        model.graph.output.extend(types.get(name, onnx.ValueInfoProto(name=name)) for name in added)
        return bytes(model.SerializeToString())


@runtime_checkable
class DeviceValue(Protocol):
    """A value in the memory of a device."""

    def numpy(self) -> Array:
        """Copy the value into this process.

        Returns:
            An array.
        """
        ...


class Compiled(ABC):
    """Base class of compiled leaf functions."""

    @abstractmethod
    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Run once; runs in several threads may overlap.

        Args:
            inputs: values of the parameters, in order: arrays in the byte order of this machine, of any strides. They
                belong to the caller and are not changed: they are read-only without the ability `keeps-inputs`.

        Returns:
            A list or tuple of the results, in order: arrays of the element types that the function states. The next run
            does not change them.
        """

    def run_on(self, device: int, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run once on a given device; one code then serves all devices of a kind.

        Args:
            device: number of the device among those of its kind, from 0.
            inputs: arrays, or values of the device's memory, in order.

        Returns:
            The results, in order: arrays, or values of the device's memory (`DeviceValue`).
        """
        return self.run(inputs)

    def ran_by(self) -> Sequence[str]:
        """Return what runs each operation inside the function, as the engine reports it.

        Returns:
            A name for each operation of `CompileRequest.ops`, such as an execution provider; empty for an operation
            that was folded or fused into another one. No names (the default) if the engine does not report them.
        """
        return ()

    def scratch(self) -> Mapping[str, int]:
        """Return the memory that kernels allocate while they run, besides the values of operations.

        Returns:
            Bytes by kernel; none (the default) if they allocate none, or that is not known. Files of the name `SCRATCH`
            in `native_files` have them, too.
        """
        return {}

    def native_files(self) -> Mapping[str, bytes]:
        """Return what a saved program stores besides the source.

        Returns:
            File contents by name; empty if there is nothing to store.
        """
        return {}

    def functions(self) -> Mapping[str, Callable[..., None]]:
        """Return functions that write into tensors of the caller, on the device of the tensors.

        Returns:
            The functions by name; empty (the default) if the code has none.
        """
        return {}

    def export(self, path: Path) -> None:
        """Write a library of the functions that other programs call.

        Args:
            path: the file to write.

        Raises:
            ArtifactError: the code has no such functions.
        """
        raise ArtifactError(f"{path}: this code exports nothing that runs by itself; save the program instead")


# The file that has what `Compiled.scratch` returns.
SCRATCH = "scratch.json"


def scratch_in(files: Mapping[str, bytes]) -> dict[str, int]:
    """Return the bytes of scratch memory that files of a compiled function state.

    Args:
        files: contents by name, as `Compiled.native_files` returns them.

    Returns:
        Bytes by kernel; none if nothing is stated.

    Raises:
        FileError: the file is not what `Compiled.native_files` returns.
    """
    stated = parse_json(files[SCRATCH], SCRATCH) if SCRATCH in files else {}
    if not isinstance(stated, dict) or not all(type(one) is int and one >= 0 for one in stated.values()):
        raise FileError(f"{SCRATCH} has no bytes by kernel")
    return stated


class KernelRunner(Protocol):
    """A kernel built with one schedule, and inputs for it."""

    def difference(self) -> str | None:
        """Run once and compare the results with those of the kernel without a schedule.

        Returns:
            How they differ, or None if they do not.
        """
        ...

    def time(self, repeats: int) -> list[int]:
        """Measure the run time.

        Args:
            repeats: number of measurements.

        Returns:
            Picoseconds per run, one for each measurement.
        """
        ...


@dataclass(frozen=True)
class Space:
    """The candidates of a kernel: one for each combination of choices, some of which may be illegal.

    Attributes:
        kernel: the kernel.
        choices: for each block of the kernel, the values of each named choice. Without blocks, the only candidates are
            traces that `KernelTuningContext.propose` returns.
        default: for each block, the choices that are made without tuning.
    """

    kernel: Kernel
    choices: tuple[Mapping[str, tuple[int, ...]], ...]
    default: tuple[Mapping[str, int], ...]


class KernelTuningContext(Protocol):
    """The kernels of one leaf function, which can be built and measured one by one."""

    @property
    def spaces(self) -> Mapping[str, Space]:
        """Candidates of each kernel, by key."""
        ...

    def is_legal(self, key: str, choices: Sequence[Mapping[str, int]]) -> bool:
        """Return whether choices fit a kernel and its target.

        Args:
            key: key of the kernel.
            choices: the choices for each block.

        Returns:
            True if the kernel can be built with them.
        """
        ...

    def build(self, key: str, choices: Sequence[Mapping[str, int]] | str) -> KernelRunner:
        """Build a kernel; any exception is recorded as a failure of the candidate.

        Args:
            key: key of the kernel.
            choices: the choices for each block, or a trace.

        Returns:
            The built kernel.
        """
        ...

    def propose(self, key: str, known: Sequence[tuple[str, int]], count: int, seed: int) -> list[str]:
        """Propose traces to measure.

        Args:
            key: key of the kernel.
            known: measured traces with their costs in picoseconds.
            count: number of traces.
            seed: seed of the random choices.

        Returns:
            Traces; fewer than `count` if there are no more.
        """
        ...

    def program(self, key: str) -> Mapping[str, object]:
        """Return a kernel in the formats of other tools that read its traces.

        Args:
            key: key of the kernel.

        Returns:
            Data by format.
        """
        ...


class Backend(ABC):
    """Base class of backends: code generators for the leaves of some kinds.

    Attributes:
        name: name in reports and saved programs; that of the entry point.
        kinds: the target kinds that it generates code for.
        honours: by kind, the attributes that have an effect on its code; a build rejects others. None means all.
        memory_savings: by kind, attributes with which code takes less memory and more time; a build sets them where the
            memory of a leaf is scarce, unless the target states them.
        supports: what it can do beyond compiling functions.
        format: with ability `tuning`, the format of candidates `{"blocks": [choices, ...]}`.
        trace_format: with ability `tuning`, the format of candidates that are traces.
    """

    name: str
    kinds: tuple[str, ...]
    honours: Mapping[str, frozenset[str]] | None = None
    memory_savings: Mapping[str, Mapping[str, Value]] = MappingProxyType({})
    supports: frozenset[Ability] = frozenset()
    format: str = ""
    trace_format: str = ""

    @abstractmethod
    def version(self) -> str:
        """Return the version of the code generator.

        Returns:
            A text such as `apache-tvm 0.27.0`; native code of other versions is not used.

        Raises:
            MissingExtraError: it is not installed.
        """

    def code_version(self, target: Target) -> str | None:
        """Return what native code depends on besides the function and the attributes of its leaf.

        Args:
            target: the leaf, with its host.

        Returns:
            A text: the versions of the code generator and its schedules, facts of this machine that it reads, and
            variables that change code. None (the default) if `Compiled.native_files` is no substitute for compiling, or
            compiling takes no time: such code is neither stored in the compile cache nor compiled by other processes.

        Raises:
            BackendError: something around the build would change code, and is not part of the text.
        """
        return None

    def unsupported_reason(self, target: Target, device: int = 0) -> str | None:
        """Return why this machine cannot run code for a leaf.

        Args:
            target: the leaf.
            device: number of the device among those of its kind, from 0.

        Returns:
            The reason, or None if it can run the code.
        """
        return None

    @abstractmethod
    def compile(self, request: CompileRequest) -> Compiled:
        """Compile a leaf function.

        Args:
            request: the function, its leaf, and results of tuning.

        Returns:
            The compiled function.

        Raises:
            BackendError: names the function and the reason.
        """

    def copy(self, array: Array, src: str, dst: str) -> Array:
        """Copy an array into a memory of one of its leaves (ability `copy`).

        Args:
            array: the array, in this process.
            src: the memory that it comes from.
            dst: the memory to copy to.

        Returns:
            The copy.
        """
        return array.copy()

    def place(self, array: Any, target: Target, device: int) -> Any:  # noqa: ANN401
        """Copy an array into the memory of a device (ability `device-memory`).

        Args:
            array: the array, in this process or on the device.
            target: the leaf of the device.
            device: number of the device among those of its kind, from 0.

        Returns:
            A value of the device's memory (`DeviceValue`).

        Raises:
            NotImplementedError: the backend lacks the ability.
        """
        raise NotImplementedError

    def static_function(self, request: CompileRequest, prefix: str) -> StaticFunction:
        """Lower a leaf function to kernels that are linked into a program in C (ability `static`).

        Args:
            request: the function, its leaf, and results of tuning.
            prefix: a C identifier that all names of the code begin with.

        Returns:
            The calls of kernels, and their code.

        Raises:
            BackendError: names the function and the reason, such as a shape that is not static.
            NotImplementedError: the backend lacks the ability.
        """
        raise NotImplementedError

    def settings(self, target: Target) -> Mapping[str, Sequence[Value]]:
        """List attributes that change how fast a function runs, but not its results.

        Args:
            target: a leaf.

        Returns:
            By attribute, the values that are worth trying on this machine; empty if there are none.
        """
        return {}

    def tuning_context(self, request: CompileRequest) -> KernelTuningContext:
        """Return the kernels of a leaf function (ability `tuning`).

        Args:
            request: the function and its leaf.

        Returns:
            The kernels.

        Raises:
            NotImplementedError: the backend lacks the ability.
        """
        raise NotImplementedError


@contextmanager
def named_errors(problem: str) -> Iterator[None]:
    """Turn exceptions of a backend's own code into an error that says what failed.

    Args:
        problem: what failed, such as `backend 'npu' fails on function 'main' of @npu`.

    Yields:
        Nothing.

    Raises:
        BackendError: the block raised an exception that is not of this library.
    """
    try:
        yield
    except (TvmTargetError, MemoryError):
        raise
    except Exception as error:
        raise BackendError(f"{problem}: {type(error).__name__}: {error}") from error


def backend_named(name: str) -> Backend:
    """Return a backend.

    Args:
        name: name of its entry point.

    Returns:
        The backend.

    Raises:
        BackendError: no package registers a backend of that name, or what it registers is none.
    """
    known = plugins.names("tvmtarget.backends")
    if name not in known:
        raise BackendError(f"no backend {name!r} is installed{did_you_mean(name, known)}")
    backend = plugins.load("tvmtarget.backends", name)
    if not isinstance(backend, Backend):
        raise BackendError(f"backend {name!r} is {backend!r}, which does not derive from {__name__}.Backend")
    return backend


def backends(kind: str) -> tuple[tuple[Backend, MissingExtraError | None], ...]:
    """List the backends of a target kind.

    Args:
        kind: the target kind.

    Returns:
        The backends in the order of their names, each with None or the error that names the missing package.
    """
    found: list[tuple[Backend, MissingExtraError | None]] = []
    for name in plugins.names("tvmtarget.backends"):
        try:
            backend = backend_named(name)
            if kind not in backend.kinds:
                continue
            backend.version()
            found.append((backend, None))
        except MissingExtraError as error:
            found.append((backend, error))
        except Exception as error:  # of another package; the kinds that it would serve are not known
            plugins.report(str(error) if isinstance(error, BackendError) else f"backend {name!r} fails: {error}")
    return tuple(found)
