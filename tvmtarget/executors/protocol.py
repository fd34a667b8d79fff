"""The executor protocol: compile a system into one artifact, run it, and report what runs as events.

A *system* is the root of a target, or a node with an executor or a runtime of its own. Decomposition leaves a driver
program for it: the calls of leaf functions, the copies between memories, and control flow. Who decides what:

- The **executor** of the system compiles the driver program and the leaves into a `CompiledSystem`: one artifact, which
  its parent calls as one function. Systems nest; those inside are compiled first.
- The **runtime** of the system decides in which process, on which machine, and from which language the artifact is
  called (`tvmtarget.runtimes.protocol`). Its *convention* is the name of the runtime kind that an executor compiles
  for: `python` for runtimes that call it from Python (`python`, `processes`, `dask`), `cpp` from C++, `crt` from C.

So a pair of executor and runtime is a row of `ProgramExecutor.supports`: a convention, and what programs may contain
there. A pair without a row is refused. An executor derives from `ProgramExecutor` and has to define `supports` and
`compile`; everything else has a default. `tvmtarget/executors/graph.py` is the shortest one.

Executors are found by the entry-point group `tvmtarget.executors`, under the name of the executor kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np

from tvmtarget import plugins
from tvmtarget.backends.protocol import Backend, Compiled, CompileRequest, named_errors
from tvmtarget.backends.sharing import device_index
from tvmtarget.compile_cache import CompileCache
from tvmtarget.errors import ArtifactError, BackendError, did_you_mean
from tvmtarget.executors.driver_program import Driver, DriverProgram, Signature
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.tree import Target
from tvmtarget.version import __version__

__all__ = [
    "ABILITIES",
    "Array",
    "CallEvent",
    "CallLeaf",
    "CallSystem",
    "CompiledSystem",
    "CopyEvent",
    "CopyValue",
    "Event",
    "Leaf",
    "ProgramExecutor",
    "Record",
    "RunProgram",
    "RunSystem",
    "System",
    "SystemAbility",
    "Transfers",
    "check_folder_name",
    "executor_named",
    "missing_abilities",
]

GROUP = "tvmtarget.executors"

# Endings of the names of files that somebody may expect of an export.
_FILE_ENDINGS = frozenset({".a", ".c", ".dll", ".dylib", ".gz", ".h", ".o", ".so", ".tar", ".tgz", ".xz", ".zip"})

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True, slots=True)
class CallEvent:
    """A leaf function was called.

    `call` is the name of the call as in `Plan.subgraphs`; `duration_ns` is in nanoseconds.
    """

    function: str
    duration_ns: int
    call: str = ""


@dataclass(frozen=True, slots=True)
class CopyEvent:
    """A value was copied between the memories `src` and `dst`: `nbytes` bytes in `duration_ns` nanoseconds."""

    value: str
    src: str
    dst: str
    nbytes: int
    duration_ns: int


Event: TypeAlias = "CallEvent | CopyEvent"
Record: TypeAlias = "Callable[[Event], None]"

# What a program of a system may contain, beyond calls of functions on arrays of numbers, and copies between them:
#   control-flow    branches, loops and scans in drivers (`Step.control`);
#   dynamic-shapes  values with a symbolic or unknown dimension, or of unknown rank;
#   any-value       values other than tensors of numbers: strings, sequences, optional values;
#   device-memory   leaves with memories of their own (`Backend.place`, `Compiled.run_on`);
#   systems         calls of nested systems (`System.call_system`);
#   transfers       the ends of transfers between machines: the executor runs the program of one machine of several
#                   (`CompiledSystem.run_machine`), as distributed runtimes need it.
SystemAbility: TypeAlias = Literal[
    "control-flow", "dynamic-shapes", "any-value", "device-memory", "systems", "transfers"
]
ABILITIES: frozenset[SystemAbility] = frozenset(get_args(SystemAbility))

# Call a leaf function: its name, its inputs in order, and the name of the call; returns the results in order.
CallLeaf: TypeAlias = "Callable[[str, Sequence[Any], str], Sequence[Any]]"
# Call a nested system: its name, its inputs in order, and what records its events; returns the results in order.
CallSystem: TypeAlias = "Callable[[str, Sequence[Any], Record | None], Sequence[Any]]"
# Copy a value between memories: the value, the source memory and the destination memory; returns the copy.
CopyValue: TypeAlias = "Callable[[Any, str, str], Any]"


class Transfers(Protocol):
    """Exchange values with other machines during one run; the two ends of a transfer have one `order`."""

    def send(self, to: str, order: int, values: Sequence[Any]) -> None:
        """Send the values of a transfer.

        Args:
            to: the machine that receives.
            order: number of the transfer in the program.
            values: one value, or none for a transfer that only orders effects.
        """
        ...

    def receive(self, from_: str, order: int) -> Sequence[Any]:
        """Wait for the values of a transfer.

        Args:
            from_: the machine that sends.
            order: number of the transfer in the program.

        Returns:
            The values that were sent: one or none.

        Raises:
            RunError: the machine is gone.
        """
        ...


class RunSystem(Protocol):
    """A compiled system that is ready to run: `CompiledSystem.run`."""

    def __call__(self, inputs: Sequence[Any], record: Record | None = None) -> list[Any]:
        """Run once.

        Args:
            inputs: the values of the entry's parameters, in order.
            record: called with each leaf call and copy, as it happens.

        Returns:
            The results, in order.
        """
        ...


class RunProgram(Protocol):
    """The program of one machine of several that is ready to run on this machine."""

    def __call__(
        self,
        inputs: Sequence[Any],
        record: Record | None = None,
        transfers: Transfers | None = None,
        *,
        entry: Driver | None = None,
    ) -> list[Any]:
        """Run once.

        Args:
            inputs: the values of the entry's parameters, in order.
            record: called with each leaf call and copy, as it happens.
            transfers: the other machines; required by the program of one machine of several.
            entry: a driver to run instead of the program's entry, such as one segment of it.

        Returns:
            The entry's results, in order.
        """
        ...


class Leaf(Protocol):
    """A leaf function of a system."""

    @property
    def request(self) -> CompileRequest:
        """The function, its site, and its target with its host."""
        ...

    @property
    def backend(self) -> Backend:
        """The code generator of the site."""
        ...

    @property
    def compiled(self) -> Compiled:
        """The function compiled by its backend; compiled when this is first read."""
        ...


@dataclass(frozen=True)
class System:
    """A system to compile: one function of the root, or of a node with an executor or runtime of its own.

    A node on which several subgraphs run is several systems, as a leaf is several leaf functions.

    Attributes:
        path: path of the node; empty for the root.
        name: name of the function that the parent calls; unique in the whole program.
        target: the node.
        host: the node that drives it; the kind and the attributes of the code that an executor generates for drivers.
        executor: the executor of the node, with its attributes.
        runtime: the runtime of the node, or of the node around it, with its attributes.
        convention: the runtime kind to compile for; the key in `ProgramExecutor.supports`.
        program: the drivers of this system, its entry and its signature. A system on a single leaf has no driver: its
            entry is the leaf function. Calls whose name is in `systems` are calls of nested systems.
        constants: the constants that drivers read, by name.
        leaves: the leaf functions that drivers call, by name.
        systems: the nested systems that drivers call, by name.
        call_leaf: calls a compiled leaf function in this process; a failure is reported with its path.
        call_system: calls a nested system as one function.
        copy_value: copies a value between two memories of this process.
        native: what `CompiledSystem.files` returned, in a saved program that is trusted and was written by this version
            of the executor; else empty.
        module_name: the name that generated code has: that of the program, and for nested systems that of the function
            too.
        cache: the compile cache, for what compiling takes long; None if it is off, and for saved programs.
    """

    path: str
    name: str
    target: Target
    host: Target
    executor: Executor
    runtime: Runtime
    convention: str
    program: DriverProgram
    constants: Mapping[str, Array]
    leaves: Mapping[str, Leaf]
    systems: Mapping[str, System]
    call_leaf: CallLeaf
    call_system: CallSystem
    copy_value: CopyValue
    native: Mapping[str, bytes] = field(default_factory=dict)
    module_name: str = "default"
    cache: CompileCache | None = None

    @cached_property
    def cannot_run(self) -> tuple[str, ...]:
        """Why this process cannot run leaf functions: a sentence for each site."""
        found = {}
        for leaf in self.leaves.values():
            with named_errors(f"backend {leaf.backend.name!r} fails for @{leaf.request.site or '.'}"):
                reason = leaf.backend.unsupported_reason(leaf.request.target, device_index(leaf.request.site))
            if reason is not None:
                found[leaf.request.site] = reason
        return tuple(f"@{site or '.'} cannot run on this machine: {reason}" for site, reason in found.items())


class CompiledSystem(ABC):
    """Base class of compiled systems: an artifact that can be called as one function.

    Runs in several threads may overlap; an artifact that allows one at a time takes a lock.
    """

    @abstractmethod
    def run(self, inputs: Sequence[Any], record: Record | None = None) -> list[Any]:
        """Run once, in this process, or on another machine through a runner.

        Args:
            inputs: the values of the entry's parameters, in order. They belong to the caller and are not changed.
            record: called with each leaf call and copy that can be observed, as it happens. An artifact that
                reports no call is itself reported as one call, of function `System.name`.

        Returns:
            The results, in order. They belong to the caller: the next run does not change them.

        Raises:
            RunError: this machine cannot run the artifact, or a function of it failed; the message names its path.
        """

    def run_machine(
        self,
        inputs: Sequence[Any],
        record: Record | None = None,
        transfers: Transfers | None = None,
        *,
        entry: Driver | None = None,
    ) -> list[Any]:
        """Run the program of one machine of several, of an executor with ability `transfers`.

        Args:
            inputs: the values of the entry's parameters, in order.
            record: called with each leaf call and copy.
            transfers: the other machines.
            entry: a driver to run instead of the program's entry.

        Returns:
            The entry's results, in order.

        Raises:
            NotImplementedError: the executor lacks the ability.
        """
        raise NotImplementedError

    def files(self) -> Mapping[str, bytes]:
        """Return what a saved program stores besides the driver program and the sources of leaves.

        Returns:
            File contents by name; empty (the default) if compiling again takes no time.
        """
        return {}

    def report(self) -> Mapping[str, Any]:
        """Return facts about the artifact, as JSON data.

        Returns:
            Such as its bytes of memory; empty (the default) if there are none.
        """
        return {}

    def export(self, path: Path) -> None:
        """Write what a user deploys: a shared library, a C project, or another file or folder.

        Args:
            path: the file or folder to write; equal systems give equal bytes.

        Raises:
            ArtifactError: the executor writes nothing that runs without this library.
        """
        raise ArtifactError(f"{path}: this executor exports nothing that runs by itself; save the program instead")

    def close(self) -> None:  # noqa: B027 - an artifact may have nothing to stop
        """End the processes that `run` started; the next run starts new ones."""


class ProgramExecutor(ABC):
    """Base class of executors.

    Attributes:
        honours: names of the attributes of the executor kind that change what is executed; a build rejects a target
            that sets another one.
        supports: by convention (see `System.convention`), what programs may contain. A convention that is not listed is
            refused.
        calls_leaves: whether compiled systems call `Leaf.compiled` (`System.call_leaf`). If not, the code of leaves is
            part of the artifact: leaves are not compiled by themselves, their code is not stored, and this machine does
            not have to be able to run it.
        has_runner: whether systems whose host is a CPU of another machine run there through a runner.
    """

    honours: frozenset[str] = frozenset()
    supports: Mapping[str, frozenset[SystemAbility]] = {}
    calls_leaves: bool = True
    has_runner: bool = False

    def version(self) -> str:
        """Return the version of the executor.

        Returns:
            A text; stored files of other versions are not used (`System.native`).
        """
        return __version__

    def unsupported_reasons(self, system: System) -> Iterator[str]:
        """List why a system cannot be compiled, before anything is compiled.

        An executor with further limits yields from this method first. It reads `Leaf.request` and `Leaf.backend` only:
        to read `Leaf.compiled` would compile the leaf.

        Args:
            system: the system.

        Yields:
            A sentence for each reason, with the path of the leaf or driver (`@board/npu`).
        """
        yield from missing_abilities(system, self.supports)

    @abstractmethod
    def compile(self, system: System) -> CompiledSystem:
        """Compile a system for which there is no unsupported reason.

        A saved program is compiled again when it is loaded, before its first run; `System.native` then has the files of
        the first compilation, if they may be used.

        Args:
            system: the system.

        Returns:
            The artifact.

        Raises:
            BackendError: names the path and the reason.
        """


def missing_abilities(system: System, supports: Mapping[str, frozenset[SystemAbility]]) -> Iterator[str]:
    """List what a system contains that its executor does not support on its runtime.

    Args:
        system: the system.
        supports: abilities by convention, as in `ProgramExecutor.supports`.

    Yields:
        A sentence for each reason, with the path of the leaf or driver.
    """
    executor, runtime = system.executor.kind, system.runtime.kind
    pair = f"executor {executor!r} on runtime {runtime!r}"
    if system.convention not in supports:
        known = ", ".join(supports) or "none"
        yield (
            f"{_place(system.path)} cannot be built: executor {executor!r} is not built for runtime {runtime!r}, "
            f"only for: {known}"
        )
        return
    missing = ABILITIES - supports[system.convention]
    for ability, place, what in _contents(system):
        if ability in missing:
            fix = "; tt.specialize and --dim give dimensions a size" if ability == "dynamic-shapes" else ""
            yield f"{place} cannot be built: {pair} does not support {what} ({ability}){fix}"


def _contents(system: System) -> Iterator[tuple[SystemAbility, str, str]]:
    """Yield the abilities that a program needs, each with the path that needs it and a description."""
    for driver in system.program.drivers.values():
        for step in driver.walk():
            if step.control is not None:
                yield "control-flow", _place(driver.path), f"control flow, {step.control.op!r}"
            if step.order is not None:
                yield "transfers", _place(driver.path), "transfers between machines"
    seen: set[tuple[str, str]] = set()
    for ability, what in _kinds_of_values((*system.program.inputs, *system.program.outputs)):
        seen.add((system.path, ability))
        yield ability, _place(system.path), what
    for name, leaf in system.leaves.items():
        place, ops = _place(leaf.request.site), ", ".join(map(repr, leaf.request.ops[:3]))
        signature = system.program.signatures.get(name)
        for ability, what in _kinds_of_values((*signature.inputs, *signature.outputs)) if signature else ():
            if (leaf.request.site, ability) not in seen:
                seen.add((leaf.request.site, ability))
                yield ability, place, f"{what} of {ops}"
        if "device-memory" in leaf.backend.supports and leaf.request.target.device != "cpu":
            yield "device-memory", place, f"the memory of a {leaf.request.target.kind} device"
    for inner in system.systems.values():
        yield "systems", _place(inner.path), f"a nested system of executor {inner.executor.kind!r}"


def _kinds_of_values(signatures: Sequence[Signature]) -> Iterator[tuple[SystemAbility, str]]:
    for one in signatures:
        if one.dtype in (None, "string"):
            yield "any-value", f"value {one.name!r}, {one}"
        elif one.shape is None or not all(isinstance(dim, int) for dim in one.shape):
            yield "dynamic-shapes", f"value {one.name!r}, {one}"


def _place(path: str) -> str:
    return f"@{path or '.'}"


def executor_named(kind: str) -> ProgramExecutor:
    """Return the executor of a kind.

    Args:
        kind: an executor kind, such as `graph`.

    Returns:
        The object that is registered for the kind.

    Raises:
        BackendError: no package registers an executor for the kind, or what it registers is of another class.
    """
    known = plugins.names(GROUP)
    if kind not in known:
        raise BackendError(f"no executor {kind!r} is installed{did_you_mean(kind, known)}")
    executor = plugins.load(GROUP, kind)
    if not isinstance(executor, ProgramExecutor):
        raise BackendError(f"executor {kind!r} is {executor!r}, which does not derive from {ProgramExecutor.__name__}")
    return executor


def check_folder_name(path: Path, forms: str) -> None:
    """Refuse to write a folder under a name that promises a file.

    Args:
        path: the folder, which need not exist.
        forms: what can be written instead.

    Raises:
        ArtifactError: the name ends like that of a file, such as `.so`, and there is no such folder.
    """
    if path.suffix in _FILE_ENDINGS and not path.is_dir():
        raise ArtifactError(f"{path}: there is no export that ends with {path.suffix!r}; name {forms}")
