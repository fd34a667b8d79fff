"""What a backend is: it takes a leaf function as an ONNX model and returns something that runs it.

Backends are found by the entry-point group `tvmtarget.backends`. One that needs an optional package imports it
late and raises `MissingExtraError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import onnx

from tvmtarget import plugins
from tvmtarget.errors import BackendError, MissingExtraError, did_you_mean
from tvmtarget.target.attributes import Value
from tvmtarget.target.keys import key_of
from tvmtarget.target.tree import Target

__all__ = [
    "Array",
    "Backend",
    "CompileRequest",
    "Compiled",
    "ConfigurableBackend",
    "FixedSchedules",
    "Kernel",
    "KernelRunner",
    "KernelTuningContext",
    "Schedules",
    "Space",
    "TunableBackend",
    "backend_named",
    "backends",
]

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Kernel:
    """A piece of a leaf function that can be tuned: what it is, as JSON, and how often the function calls it.

    `body` is the body of a workload of a tuning log; `text` is the program itself, to be kept with it, as is what
    `program` has for other tools. `default` is the identity of what is made of it without tuning, a digest of the code.
    `alike` has, by format, the body of another workload whose candidates of that format are as good for this one.
    """

    name: str
    body: Mapping[str, object]
    text: str = ""
    calls: int = 1
    program: Mapping[str, object] = field(default_factory=dict)
    default: str = ""
    alike: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """`k1:` and a digest of the body; pieces with equal keys are equal."""
        return key_of("k1", self.body)


class Schedules(Protocol):
    """What was found by tuning, as a backend asks for it while it compiles."""

    def find(self, kernel: Kernel, *formats: str) -> tuple[str, object] | None:
        """Return a candidate of one of the formats for a kernel, and its body; None for the backend's default."""
        ...

    def refuse(self, kernel: Kernel, reason: str) -> None:
        """Say that what was found cannot be used, and why; then `find` may know something else."""
        ...


@dataclass(frozen=True)
class FixedSchedules:
    """The schedules that a program was built with, by kernel and format, for when it is compiled again."""

    bodies: Mapping[tuple[str, str], object]

    def find(self, kernel: Kernel, *formats: str) -> tuple[str, object] | None:
        """Return the schedule of a kernel."""
        return next(((one, self.bodies[kernel.key, one]) for one in formats if (kernel.key, one) in self.bodies), None)

    def refuse(self, kernel: Kernel, reason: str) -> None:
        """Do nothing: what is refused now was refused when the program was built."""


@dataclass(frozen=True)
class CompileRequest:
    """One leaf function to compile: its name, the ONNX model of it, the site, and the leaf with all it inherits.

    `ops` are the names of its operations in the user's model, in the order of the model's nodes; `inputs` and
    `outputs` are the names of the values there. `native` holds compiled files of a saved program that is trusted,
    `schedules` what is known by tuning. A source that is not trusted is compiled only if it can run nothing but the
    operators of its code generator.
    """

    name: str
    source: bytes
    site: str
    target: Target
    ops: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    native: Mapping[str, bytes] = field(default_factory=dict)
    schedules: Schedules | None = field(default=None, repr=False, compare=False)
    is_trusted: bool = True

    @property
    def is_relax(self) -> bool:
        """Whether the source is a module of Relax in TVM's JSON, not an ONNX model."""
        return self.source[:1] == b"{"

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The function as an ONNX model."""
        return onnx.load_from_string(self.source)


@runtime_checkable
class Compiled(Protocol):
    """A compiled leaf function.

    One for a device may also have `run_on(device, inputs)`, called instead of `run` with the number of the device among
    those of its kind, so that one code serves them all; what it returns may be in that device's memory, as objects
    whose `numpy()` brings them here.
    """

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Run on the function's parameters in order; return its results in order."""
        ...

    def native_files(self) -> Mapping[str, bytes]:
        """Return what a saved program should hold besides the source, by file name; empty if nothing."""
        ...


@runtime_checkable
class Backend(Protocol):
    """A code generator for the leaves of some kinds.

    A backend may also have `copy(array, src, dst)`, called for a copy into a memory in which it has a leaf, or for
    devices `place(array, target, device)`, which returns an object of the memory of a leaf's device, by its number,
    whose `numpy()` brings it here; `honours`, by kind the names of the attributes that change its code, so that others
    are refused (without it, all of its kinds do); `refuses_on(device, target)`, called in place of `refuses` before
    anything runs; and `shares_code = True` if what it compiles depends on the structure of a function and its target
    alone: equal functions and sites then share it.
    """

    name: str
    kinds: tuple[str, ...]

    def version(self) -> str:
        """Return the version of what generates the code; `MissingExtraError` if it is not installed."""
        ...

    def refuses(self, target: Target) -> str | None:
        """Return why code for a leaf cannot run on this machine, or None if it can."""
        ...

    def compile(self, part: CompileRequest) -> Compiled:
        """Compile a leaf function; `BackendError` names the function and the reason."""
        ...


@dataclass(frozen=True)
class Space:
    """The candidates for a kernel: a body for each combination of `choices`, of which not all need be legal.

    `choices` has whole numbers by name for each of the kernel's blocks; `default` is what is taken without tuning.
    Without blocks there are only the traces that a workshop proposes.
    """

    kernel: Kernel
    choices: tuple[Mapping[str, tuple[int, ...]], ...]
    default: tuple[Mapping[str, int], ...]


class KernelRunner(Protocol):
    """A kernel built in one way, with inputs."""

    def difference(self) -> str | None:
        """Run once and say how the results differ from those of the kernel as it is written; None if they do not."""
        ...

    def time(self, repeats: int) -> list[int]:
        """Return so many measurements, in picoseconds a run."""
        ...


class KernelTuningContext(Protocol):
    """The kernels of one leaf function, to be built and measured one by one."""

    spaces: Mapping[str, Space]

    def is_legal(self, key: str, choices: Sequence[Mapping[str, int]]) -> bool:
        """Whether choices for a kernel fit it and the target."""
        ...

    def build(self, key: str, choices: Sequence[Mapping[str, int]] | str) -> KernelRunner:
        """Build a kernel, by choices or a trace; any exception counts against the candidate."""
        ...

    def propose(self, key: str, known: Sequence[tuple[str, int]], count: int, seed: int) -> list[str]:
        """Return traces for a kernel to be measured; `known` are some with their costs in picoseconds."""
        ...

    def program(self, key: str) -> Mapping[str, object]:
        """Return a kernel as other tools that read its traces know it."""
        ...


@runtime_checkable
class TunableBackend(Protocol):
    """A backend whose kernels can be tuned.

    `format` is that of its candidates `{"blocks": [choices, ...]}`, `trace_format` of those that are texts.
    """

    format: str
    trace_format: str

    def workshop(self, part: CompileRequest) -> KernelTuningContext:
        """Return the kernels of a leaf function."""
        ...


@runtime_checkable
class ConfigurableBackend(Protocol):
    """A backend whose targets have attributes that change how fast a function runs, and not what it computes."""

    def settings(self, target: Target) -> Mapping[str, Sequence[Value]]:
        """Return these attributes of a leaf by name, each with the values that are worth trying on this machine."""
        ...


def backend_named(name: str) -> Backend:
    """Return a backend by name; `BackendError` with the nearest names if there is none."""
    known = plugins.names("tvmtarget.backends")
    if name not in known:
        raise BackendError(f"no backend {name!r} is installed{did_you_mean(name, known)}")
    backend = plugins.load("tvmtarget.backends", name)
    if not isinstance(backend, Backend):
        raise BackendError(f"backend {name!r} is {backend!r}, which is no tvmtarget backend")
    return backend


def backends(kind: str) -> tuple[tuple[Backend, MissingExtraError | None], ...]:
    """List the backends for a target kind, each with the error that says what it lacks, if it lacks anything."""
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
        except Exception as error:  # of another package; nobody can know which kinds it would serve
            plugins.report(str(error) if isinstance(error, BackendError) else f"backend {name!r} fails: {error}")
    return tuple(found)
