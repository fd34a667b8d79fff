"""The executor `vm`: drivers and leaf functions of a system in one executable of TVM's virtual machine (VM)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tvmtarget.backends.tvm.backend import BACKEND
from tvmtarget.backends.tvm.compiled_module import (
    LIBRARY,
    LOCK,
    CompiledModule,
    LinkedProgram,
    host_value,
    import_tvm,
    load,
    quiet,
    required_library,
    run_time_reason,
)
from tvmtarget.backends.tvm.vm_linking import VmLinker
from tvmtarget.backends.tvm.vm_loops import loop_module
from tvmtarget.errors import ArtifactError, BackendError, RunError, TvmTargetError, raise_all
from tvmtarget.executors.memory_devices import device_of
from tvmtarget.executors.protocol import (
    CompiledSystem,
    Leaf,
    ProgramExecutor,
    Record,
    System,
    SystemAbility,
)
from tvmtarget.executors.vm_driver import LeafEntry, ValueKind, VmDrivers, Weight, write_drivers
from tvmtarget.files import atomic_write
from tvmtarget.ir.names import Names
from tvmtarget.toolchains.platforms import general, is_this_machine, triple_of

__all__ = ["EXECUTOR", "LoopDrivers", "VmExecutor", "VmSystem"]

_ABILITIES: frozenset[SystemAbility] = frozenset({"control-flow", "dynamic-shapes", "any-value", "device-memory"})


class VmExecutor(ProgramExecutor):
    """Links the drivers and leaf functions of a system into one executable of TVM's VM."""

    supports = {"python": _ABILITIES, "cpp": _ABILITIES}
    calls_leaves = False

    def unsupported_reasons(self, system: System) -> Iterator[str]:
        """List why a system cannot be one executable of the VM.

        Args:
            system: the system.

        Yields:
            A sentence for each reason, with the path of the leaf or driver.
        """
        yield from super().unsupported_reasons(system)
        for leaf in system.leaves.values():
            yield from _leaf_reasons(leaf)
        if system.host.kind != "llvm":
            yield (
                f"@{system.path or '.'} cannot be built: executor 'vm' generates its driver for a host of kind llvm, "
                f"not {system.host.kind!r}"
            )
        if system.systems:  # refused above; the drivers call functions that are no leaves
            return
        entries = {name: _entry(system, name, leaf, name) for name, leaf in system.leaves.items()}
        for problem in write_drivers(system.program, system.constants, entries).problems:
            yield f"{problem} (executor 'vm')"

    def compile(self, system: System) -> CompiledSystem:
        """Compile the leaf functions of a system, and link them with its drivers.

        Args:
            system: the system.

        Returns:
            The executable.

        Raises:
            BackendError: a leaf function does not compile, or this machine has no linker.
        """
        if LIBRARY in system.native:
            return VmSystem(system, load(system.native[LIBRARY]), system.native[LIBRARY])
        executable = _link(system)
        library = required_library(LinkedProgram(executable, 0).native_files(), system.path)
        # A library for a GPU opens only where its driver is.
        return VmSystem(system, executable if system.cannot_run else load(library), library)


EXECUTOR = VmExecutor()


def _leaf_reasons(leaf: Leaf) -> Iterator[str]:
    request, place = leaf.request, f"@{leaf.request.site or '.'} cannot be built: executor 'vm'"
    if leaf.backend is not BACKEND or request.target.kind not in BACKEND.kinds:
        kinds = " and ".join(BACKEND.kinds)
        yield f"{place} runs code of TVM for {kinds}, not of {leaf.backend.name} for {request.target.kind}"
    elif request.is_relax and not request.is_trusted:
        yield f"{place} compiles function {request.name!r}, which is of Relax, only if you trust who wrote it"
    elif request.is_relax and BACKEND.is_code(request):
        yield f"{place} links functions of Relax, and {request.name!r} is TIR code"
    elif not is_this_machine(triple := triple_of(request.target)):
        yield f"{place} links code for this machine, not for {general(triple)!r}; executor=aot does"


def _link(system: System) -> Any:  # noqa: ANN401
    """Return TVM's executable of a system."""
    tvm = import_tvm()
    names = Names(["main", "weights", *system.program.drivers])
    devices = _devices(system)
    with LOCK, tvm.transform.PassContext(opt_level=3):
        linker = VmLinker()
        entries: dict[str, LeafEntry] = {}
        for name, leaf in system.leaves.items():
            device = device_of(leaf)
            entry = _entry(system, name, leaf, names.fresh(name))
            lowered = BACKEND.lower(leaf.request, entry.name)
            if device is not None:
                lowered = lowered.on_device(1 + devices.index(device))
            linker.add_module(lowered.module, lowered.targets)
            entries[name] = replace(
                entry,
                is_tuple=lowered.is_tuple,
                never_empty=lowered.never_empty,
                weights=tuple(Weight(array, device) for array in lowered.weights),
            )
        drivers = write_drivers(system.program, system.constants, entries)
        raise_all(BackendError, drivers.problems)
        return _link_drivers(system, linker, drivers)


def _link_drivers(system: System, linker: VmLinker, drivers: VmDrivers) -> Any:  # noqa: ANN401
    """Return TVM's executable of drivers, and of what the linker has."""
    host = BACKEND.tvm_target(system.host.replace(name=None, host=None, count=1))
    with quiet():
        if drivers.loop_functions:
            module = BACKEND.lower_module(loop_module(drivers.loop_functions.values()), host)
            linker.add_module(module, (host,))
        for function in drivers.functions:
            linker.add_function(function)
        return linker.link(host)


def _devices(system: System) -> list[tuple[int, int]]:
    """Return the devices of a system besides its CPU, in the order in which the VM numbers them from 1."""
    return sorted({device for leaf in system.leaves.values() if (device := device_of(leaf)) is not None})


def _entry(system: System, name: str, leaf: Leaf, own_name: str) -> LeafEntry:
    """Return a leaf function as far as it is known before it is lowered."""
    signature, device = system.program.signatures.get(name), device_of(leaf)
    outputs = leaf.request.outputs if signature is None else signature.outputs
    results = tuple(ValueKind(device=device) if isinstance(one, str) else ValueKind.of(one, device) for one in outputs)
    return LeafEntry(own_name, results, is_tuple=len(results) != 1, device=device)


class LoopDrivers(LinkedProgram):
    """Drivers as functions of the VM, which call leaf functions that are compiled already.

    Args:
        executable: TVM's executable of the drivers.
        results: number of values that a run returns.
        leaves: the leaf functions, by the names under which the executable calls them.
    """

    def __init__(self, executable: Any, results: int, leaves: Mapping[str, CompiledModule]) -> None:  # noqa: ANN401
        super().__init__(executable, results)
        self._leaves = leaves

    @classmethod
    def of(cls, system: System) -> LoopDrivers | None:
        """Compile the drivers of a system.

        Args:
            system: the system.

        Returns:
            The drivers; None if a leaf function runs on a device or is of another code generator or another CPU, or the
            VM cannot run the drivers.
        """
        runs_here = system.host.kind == "llvm" and not system.systems and not system.cannot_run
        if not runs_here or any(map(_is_no_code_of_onnx, system.leaves.values())):
            return None
        names = Names(["main", *system.program.drivers])
        compiled: dict[str, CompiledModule] = {}
        entries: dict[str, LeafEntry] = {}
        for name, leaf in system.leaves.items():
            code = leaf.compiled
            if not isinstance(code, CompiledModule):
                return None
            entry = _entry(system, name, leaf, names.fresh(f"leaf.{name}"))
            entries[name] = replace(entry, never_empty=code.never_empty)
            compiled[entry.name] = code
        drivers = write_drivers(system.program, system.constants, entries)
        if drivers.problems:
            return None
        tvm = import_tvm()
        with LOCK, tvm.transform.PassContext(opt_level=3):
            return cls(_link_drivers(system, VmLinker(), drivers), len(system.program.outputs), compiled)

    def main(self, tvm: Any) -> Any:  # noqa: ANN401
        """Return the function that this thread calls.

        Args:
            tvm: the module `tvm`.

        Returns:
            A function of TVM, which calls the leaf functions of this thread.
        """
        if hasattr(self._local, "main"):
            return super().main(tvm)
        import tvm_ffi

        # A machine looks up functions of other modules by their global names when it is made, and keeps them.
        with _GLOBAL_NAMES:
            for name, leaf in self._leaves.items():
                tvm.register_global_func(name, leaf.main(tvm), override=True)
            try:
                return super().main(tvm)
            finally:
                for name in self._leaves:
                    tvm_ffi.remove_global_func(name)


_GLOBAL_NAMES = threading.Lock()


def _is_no_code_of_onnx(leaf: Leaf) -> bool:
    return leaf.backend is not BACKEND or leaf.request.target.kind != "llvm" or leaf.request.is_relax


class VmSystem(CompiledSystem):
    """An executable of the VM, which this process runs.

    Args:
        system: the system.
        executable: TVM's executable, or the opened shared library.
        library: the shared library.
    """

    def __init__(self, system: System, executable: Any, library: bytes) -> None:  # noqa: ANN401
        self._system = system
        self._library = library
        may_write = any(leaf.request.is_relax for leaf in system.leaves.values())
        self._program = LinkedProgram(executable, len(system.program.outputs), _devices(system), may_write=may_write)

    def run(self, inputs: Sequence[Any], record: Record | None = None) -> list[Any]:
        """Run once.

        Args:
            inputs: the inputs of the program, in order.
            record: not called, as calls inside the executable cannot be observed.

        Returns:
            The results, in order.

        Raises:
            RunError: this machine cannot run a leaf function, or one failed.
        """
        raise_all(RunError, self._system.cannot_run)
        try:
            return list(self._program.run(list(map(host_value, inputs))))
        except TvmTargetError:
            raise
        except Exception as error:
            reason = run_time_reason(error)
            raise RunError(f"system {self._system.name!r} of @{self._system.path or '.'} failed: {reason}") from error

    def instructions(self) -> str:
        """Return the instructions of all functions, as TVM prints them."""
        return self._program.text()

    def files(self) -> Mapping[str, bytes]:
        """Return the shared library.

        Returns:
            The library.
        """
        return {LIBRARY: self._library}

    def export(self, path: Path) -> None:
        """Write a shared library for TVM's runtime; docs/executors.md shows how C++ calls it.

        Args:
            path: the file to write.

        Raises:
            ArtifactError: the name does not end with `.so`.
        """
        if path.suffix != ".so":
            raise ArtifactError(f"{path}: executor 'vm' exports a shared library only; name it NAME.so")
        with atomic_write(path) as file:
            file.write(self._library)
