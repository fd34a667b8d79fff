"""The executor `aot`: the driver program of a system and its leaf functions as one program in C99.

All values have static shapes, and a place that is planned ahead of time. On the runtime `crt` the artifact is a C
project, and on `cpp` a shared library with the same entries; docs/executors.md describes both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tvmtarget.backends.c.build_files import BUILD_FILES
from tvmtarget.backends.c.identifiers import c_identifier
from tvmtarget.backends.c.memory_plan import Pool
from tvmtarget.backends.c.program import (
    CProgram,
    ProgramSignature,
    compiled_program,
    open_program,
    shared_library,
)
from tvmtarget.backends.c.project import CProject
from tvmtarget.backends.c.static_function import (
    C_TYPES,
    CopyTensor,
    Kernel,
    KernelCall,
    StaticFunction,
    StaticStep,
    Tensor,
)
from tvmtarget.backends.protocol import Array, named_errors
from tvmtarget.errors import ArtifactError, BackendError, MemoryTooSmallError, RunError, raise_all
from tvmtarget.executors.driver_program import Driver, Signature
from tvmtarget.executors.model_library import model_library
from tvmtarget.executors.protocol import (
    CompiledSystem,
    Leaf,
    ProgramExecutor,
    Record,
    System,
    SystemAbility,
    check_folder_name,
)
from tvmtarget.files import atomic_write, tar_archive, write_folder
from tvmtarget.human_units import bytes_text
from tvmtarget.ir.names import Names
from tvmtarget.target.node import Executor, Memory, Runtime
from tvmtarget.target.tree import Target
from tvmtarget.toolchains.platforms import general, triple_of
from tvmtarget.toolchains.runners import is_local

__all__ = ["EXECUTOR", "AotExecutor", "AotSystem", "export_library", "library_name"]

_NATIVE = "program"
_HOSTS = ("c", "llvm")


class AotExecutor(ProgramExecutor):
    """Joins the drivers and leaf functions of a system into one C program with a static memory plan."""

    honours = frozenset(
        {
            "link-params",
            "unpacked-api",
            "interface-api",
            "workspace-byte-alignment",
            "constant-byte-alignment",
            "workspace-io",
        }
    )
    supports: Mapping[str, frozenset[SystemAbility]] = {"crt": frozenset(), "cpp": frozenset()}
    calls_leaves = False
    has_runner = True

    def unsupported_reasons(self, system: System) -> Iterator[str]:
        """List why a system cannot be one C program.

        Args:
            system: the system.

        Yields:
            A sentence for each reason, with the path of the leaf or driver.
        """
        yield from super().unsupported_reasons(system)
        place = f"@{system.path or '.'} cannot be built: executor 'aot'"
        if system.host.kind not in _HOSTS:
            yield f"{place} generates its driver for a host of kind c or llvm, not {system.host.kind!r}"
        if system.executor["interface-api"] == "c" and not system.executor["unpacked-api"]:
            yield f"{place} with interface-api=c calls kernels by plain pointers; set unpacked-api=true"
        for leaf in system.leaves.values():
            yield from _leaf_reasons(leaf, system)
        for name, signature in _signatures(system):
            if signature.dtype is not None and signature.dtype not in C_TYPES:
                yield f"{place} has no type {signature.dtype!r} in C99, which {name!r} has"

    def compile(self, system: System) -> CompiledSystem:
        """Lower the leaf functions of a system, plan its memory, and write it in C.

        Args:
            system: the system.

        Returns:
            The program.

        Raises:
            BackendError: a leaf function has no static plan, or values or constants do not fit into the memories that
                the target states.
        """
        return AotSystem(system, _project(system))


EXECUTOR = AotExecutor()


def _leaf_reasons(leaf: Leaf, system: System) -> Iterator[str]:
    request = leaf.request
    place = f"@{request.site or '.'} cannot be built: executor 'aot'"
    if "static" not in leaf.backend.supports:
        by = f"{leaf.backend.name} for {request.target.kind}"
        yield f"{place} links code in C or in object files, which {by} does not generate"
    elif request.target.kind == "llvm" and system.host.kind == "c":
        yield f"{place} links object files of llvm into programs of a host of kind llvm, not c; use kind c for both"
    elif request.target.kind not in _HOSTS:
        pass  # its code generator knows the CPU from the host
    elif (own := general(triple_of(request.target))) != (platform := general(triple_of(system.host))):
        yield f"{place} links code for one machine: this leaf is for {own}, and its host for {platform}"
    elif request.target.kind == "c" and (cpu := _other_cpu(request.target, system.host)):
        yield f"{place} compiles all C for the CPU of the host: state {cpu} for the host too, or leave it out here"
    elif request.is_relax and not request.is_trusted:
        yield f"{place} compiles function {request.name!r}, which is of Relax, only if you trust who wrote it"


def _other_cpu(leaf: Target, host: Target) -> str:
    """Return the attribute of a leaf that states another CPU than that of its host; empty if none does."""
    names = (name for name in ("mcpu", "march") if name in leaf.attrs and leaf.attrs[name] != host.attrs.get(name))
    return next((f"{name}={leaf.attrs[name]}" for name in names), "")


def _signatures(system: System) -> Iterator[tuple[str, Signature]]:
    for signature in (*system.program.inputs, *system.program.outputs):
        yield signature.name, signature
    for function in system.program.signatures.values():
        for signature in (*function.inputs, *function.outputs):
            yield signature.name, signature


def _project(system: System) -> CProject:
    executor = system.executor
    names = tuple(one.name for one in system.program.inputs), tuple(one.name for one in system.program.outputs)
    pools = _pools(system)
    project = CProject(
        system.module_name,
        _Joined(system).function(),
        *names,
        interface="c" if executor["interface-api"] == "c" else "packed",
        is_unpacked=bool(executor["unpacked-api"]),
        pools=tuple(Pool(one.name, one.bytes) for one in pools) or (Pool("workspace"),),
        workspace_alignment=_alignment(system, "workspace-byte-alignment", "workspace-byte-alignment"),
        constant_alignment=_alignment(system, "constant-byte-alignment", "constants-byte-alignment"),
        constants_in_code=executor["link-params"] is not False,
        has_system_lib=bool(system.runtime["system-lib"]),
        io_in_workspace=bool(executor["workspace-io"]),
    )
    try:
        project.check()
        _check_read_only(system, project)
        _ = project.memory
    except (BackendError, MemoryTooSmallError) as error:
        raise BackendError(*(f"@{system.path or '.'} cannot be built: {one}" for one in error.problems)) from error
    return project


def _alignment(system: System, of_executor: str, of_target: str) -> int:
    """Return the alignment that executor and code generators state; the larger one meets both. TVM's default is 16."""
    stated = [system.executor[of_executor], system.host.attrs.get(of_target)]
    stated += [leaf.request.target.attrs.get(of_target) for leaf in system.leaves.values()]
    return max([one for one in stated if isinstance(one, int)], default=16)


def _memories(system: System) -> Iterator[Memory]:
    """Yield the memories that the host of a system can use."""
    for memory in system.target.memory:
        if not memory.of or system.host.name in memory.of or system.host is system.target:
            yield memory
    if system.host is not system.target:
        yield from system.host.memory


def _pools(system: System) -> list[Memory]:
    return [one for one in _memories(system) if not one.is_read_only]


def _check_read_only(system: System, project: CProject) -> None:
    """Check that constants fit into the memories that programs cannot write, if the target states some."""
    sizes = [one.bytes for one in _memories(system) if one.is_read_only]
    if sizes and None not in sizes and project.constants_in_code:
        known = sum(size for size in sizes if size is not None)
        if project.constant_bytes > known:
            missing = project.constant_bytes - known
            raise BackendError(
                f"constants have {bytes_text(project.constant_bytes)}, {missing} bytes more than the read-only memory"
            )


@dataclass
class _Joined:
    """Joins the drivers and leaf functions of a system into one static function."""

    system: System
    tensors: dict[str, Tensor] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    steps: list[StaticStep] = field(default_factory=list)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    code: dict[str, bytes] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    lowered: dict[str, StaticFunction] = field(default_factory=dict)

    def function(self) -> StaticFunction:
        program = self.system.program
        inputs = tuple(self.new("input", _tensor(self.system, one)) for one in program.inputs)
        outputs = self.call(program.entry, inputs)
        return StaticFunction(
            inputs, outputs, self.tensors, self.constants, tuple(self.steps), self.kernels, dict(self.code)
        )

    def new(self, stem: str, tensor: Tensor) -> str:
        name = self.names.fresh(stem)
        self.tensors[name] = tensor
        return name

    def call(self, name: str, given: Sequence[str]) -> tuple[str, ...]:
        """Return the values of the results of a driver or leaf function."""
        drivers = self.system.program.drivers
        return self.driver(drivers[name], given) if name in drivers else self.leaf(name, given)

    def driver(self, driver: Driver, given: Sequence[str]) -> tuple[str, ...]:
        values = dict(zip(driver.params, given, strict=True))
        for constant in driver.constants:
            array = self.system.constants[constant]
            values[constant] = self.new("constant", Tensor(str(array.dtype), array.shape))
            self.constants[values[constant]] = array
        for step in driver.steps:
            if step.call is not None:
                results = self.call(step.call, [values[name] for name in step.inputs])
                values |= {name: value for name, value in zip(step.outputs, results, strict=True) if name}
            else:
                values[step.outputs[0]] = self.copy(values[step.inputs[0]], step.dst or "")
        return tuple(values[name] for name in driver.results)

    def copy(self, value: str, memory: str) -> str:
        """Copy a value into a memory of the program; without such a memory it stays where it is."""
        if memory not in {one.name for one in _pools(self.system)}:
            return value
        copied = self.new("copy", self.tensors[value])
        self.steps.append(CopyTensor(value, copied, memory))
        return copied

    def leaf(self, name: str, given: Sequence[str]) -> tuple[str, ...]:
        leaf = self.system.leaves[name]
        if name not in self.lowered:
            prefix = c_identifier(f"tvmgen_{self.system.module_name}_{name}_{len(self.lowered)}")
            place = f"function {name!r} of @{leaf.request.site or '.'}"
            with named_errors(f"backend {leaf.backend.name!r} fails to lower {place}"):
                self.lowered[name] = leaf.backend.static_function(leaf.request, prefix)
            self.kernels |= self.lowered[name].kernels
            self.code |= self.lowered[name].code
        function = self.lowered[name]
        values = dict(zip(function.inputs, given, strict=True))
        for own, tensor in function.tensors.items():
            if own not in values:
                values[own] = self.new(own, tensor)
        for own, value in zip(function.inputs, given, strict=True):
            stated, have = function.tensors[own], self.tensors[value]
            if (stated.dtype, stated.nbytes) != (have.dtype, have.nbytes):
                raise BackendError(f"@{leaf.request.site or '.'}: {name!r} takes {stated}, and is given {have}")
        here = function.renamed(values)
        self.constants |= here.constants
        path = leaf.request.site
        self.steps += [replace(one, path=path) if isinstance(one, KernelCall) else one for one in here.steps]
        return here.outputs


def _tensor(system: System, signature: Signature) -> Tensor:
    shape = signature.shape
    if signature.dtype is None or shape is None or not all(isinstance(size, int) for size in shape):
        raise BackendError(f"@{system.path or '.'}: the shape of {signature.name!r} is not static")
    return Tensor(signature.dtype, tuple(size for size in shape if isinstance(size, int)))


class AotSystem(CompiledSystem):
    """A C program, which this process calls as a shared library, or on another machine through a runner.

    Args:
        system: the system.
        project: its program in C.
    """

    def __init__(self, system: System, project: CProject) -> None:
        self._system = system
        self.project = project

    @cached_property
    def _program(self) -> CProgram:
        system = self._system
        data = system.native.get(_NATIVE) or compiled_program(self.project, system.host, system.cache)
        return open_program(ProgramSignature.of(self.project), system.host, data)

    def run(self, inputs: Sequence[Any], record: Record | None = None) -> list[Any]:
        """Run once.

        Args:
            inputs: the inputs of the program, in order.
            record: not called, as calls inside the program cannot be observed.

        Returns:
            The results, in order.

        Raises:
            RunError: this machine cannot run the program, or it failed.
        """
        raise_all(RunError, self._cannot_run)
        try:
            return list(self._program.run([np.asarray(one) for one in inputs]))
        except RunError as error:
            raise RunError(f"system {self._system.name!r} of @{self._system.path or '.'} failed: {error}") from error

    @cached_property
    def _cannot_run(self) -> tuple[str, ...]:
        """Reasons why this process cannot run leaf functions; a runner decides that itself."""
        return self._system.cannot_run if is_local(self._system.host) else ()

    def report(self) -> Mapping[str, Any]:
        """Return sizes and names of the program, as in its `report.json`."""
        return self.project.report()

    def files(self) -> Mapping[str, bytes]:
        """Return the compiled program.

        Returns:
            The library or program; empty if no compiler for its machine is installed.
        """
        try:
            return {_NATIVE: self._program.data}
        except BackendError:
            return {}

    def export(self, path: Path) -> None:
        """Write the program for use without this library.

        A name that ends with `.c` gives one source file, `.so` a shared library and, for `libNAME.so`, its header
        `NAME.h`, `.tar` an archive in Model Library Format, and any other one a folder, which keeps its other files.
        Equal systems give equal bytes.

        Args:
            path: the file or folder.

        Raises:
            ArtifactError: the name of a library has no name for its header in it, or the name is that of another file.
            BackendError: a library does not compile.
        """
        if path.suffix == ".c":
            _write(path, self.project.one_file())
        elif path.suffix == ".so":
            if not library_name(path):
                raise ArtifactError(f"{path}: the library has no name for its header; name it libNAME.so")
            library = shared_library(self.project, self._system.host, self._system.cache)
            header = f"{library_name(path)}.h"
            write_folder(path.parent, {path.name: library, header: self.project.header()}, last=[header])
        elif path.suffix == ".tar":
            _write(path, tar_archive(model_library(self.project, self._system)))
        else:
            check_folder_name(path, "a folder, NAME.c, libNAME.so or NAME.tar")
            write_folder(path, self.project.files(), last=BUILD_FILES)

    def close(self) -> None:
        """End the process of the program on another machine."""
        if "_program" in self.__dict__:
            self._program.close()


def library_name(path: Path) -> str:
    """Return the name of a library, as its header is called.

    Args:
        path: the library.

    Returns:
        Such as `op` for `libop.so`.
    """
    return path.name.partition(".")[0].removeprefix("lib")


def export_library(system: System, path: Path) -> None:
    """Write a system of another executor as a shared library with entries in C, and its header.

    The names of its functions begin with `tvmgen_` and the name of the library.

    Args:
        system: the system.
        path: the library.

    Raises:
        ArtifactError: the name does not end with `.so`, or the system cannot be one C program.
        BackendError: the library does not compile.
    """
    if path.suffix != ".so":
        raise ArtifactError(
            f"{path}: executor {system.executor.kind!r} exports shared libraries only, NAME.so; build for "
            "executor=aot, which also writes C sources and projects"
        )
    joined = replace(
        system,
        executor=Executor("aot", {"interface-api": "packed", "unpacked-api": True}),
        runtime=Runtime("cpp"),
        convention="cpp",
        module_name=library_name(path),
    )
    raise_all(ArtifactError, [f"{path}: {reason}" for reason in EXECUTOR.unsupported_reasons(joined)])
    try:
        compiled = EXECUTOR.compile(joined)
    except BackendError as error:
        raise ArtifactError(*(f"{path}: {problem}" for problem in error.problems)) from error
    compiled.export(path)


def _write(path: Path, data: bytes) -> None:
    with atomic_write(path) as file:
        file.write(data)
