"""Run C projects: as a shared library of this process, or on another machine as a program in a process of a runner."""

from __future__ import annotations

import ctypes
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from tvmtarget.backends.c.build_files import GCC_OPTIONS
from tvmtarget.backends.c.identifiers import c_identifier
from tvmtarget.backends.c.project import CProject
from tvmtarget.backends.c.static_function import Tensor
from tvmtarget.backends.protocol import Array
from tvmtarget.compile_cache import CompileCache
from tvmtarget.errors import BackendError, FileError, RunError
from tvmtarget.files import temporary_folder
from tvmtarget.target.tree import Target
from tvmtarget.toolchains.compilers import toolchain_for
from tvmtarget.toolchains.platforms import triple_of
from tvmtarget.toolchains.programs import Program, ProgramProcess, TensorFrame, build_program
from tvmtarget.toolchains.runners import is_local, runner_for
from tvmtarget.untrusted import parse_json

__all__ = ["CProgram", "ProgramSignature", "compiled_program", "open_program", "shared_library"]

_ENTRY = "tvmtarget_call_program"
_COMPILED = (".c", ".h", ".o", ".s", ".bin")
_STANDARD = ("-std=c99", "-ffp-contract=off")
# The statuses of tvmtarget_crt.h, in the words of tvmtarget_status_text.
_TEXTS = {
    -1: "an input, output or memory is NULL",
    -2: "a workspace is too small",
    -3: "a workspace is not aligned",
    -4: "a packed function was called with other arguments than it takes",
    -5: "a device could not be opened",
    -6: "an index is out of bounds",
}


@dataclass(frozen=True)
class ProgramSignature:
    """What a program takes and returns.

    Attributes:
        name: name of the program.
        inputs: the inputs by name, in order.
        outputs: the outputs, in order.
    """

    name: str
    inputs: tuple[tuple[str, Tensor], ...]
    outputs: tuple[Tensor, ...]

    @classmethod
    def of(cls, project: CProject) -> ProgramSignature:
        """Return the signature of a project.

        Args:
            project: the project.

        Returns:
            Its signature.
        """
        inputs, outputs = (
            tuple(project.function.tensors[name] for name in names)
            for names in (project.function.inputs, project.function.outputs)
        )
        return cls(project.name, tuple(zip(project.inputs, inputs, strict=True)), outputs)

    def write(self) -> bytes:
        """Return the signature as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, data: bytes) -> ProgramSignature:
        """Return the signature of stored JSON.

        Args:
            data: what `write` returned.

        Returns:
            The signature.

        Raises:
            BackendError: the JSON is not that of a signature.
        """
        try:
            facts = parse_json(data, "'signature.json'")
            inputs = tuple((str(name), _tensor(tensor)) for name, tensor in facts["inputs"])
            return cls(str(facts["name"]), inputs, tuple(map(_tensor, facts["outputs"])))
        except (FileError, KeyError, TypeError, ValueError) as error:
            raise BackendError(f"'signature.json' is not valid: {error}") from error


def _tensor(facts: Any) -> Tensor:  # noqa: ANN401
    return Tensor(str(facts["dtype"]), tuple(map(int, facts["shape"])))


def open_program(signature: ProgramSignature, target: Target, data: bytes) -> CProgram:
    """Return a compiled program that can be called.

    Args:
        signature: its signature.
        target: the CPU, of kind `c` or `llvm`.
        data: what `compiled_program` returned.

    Returns:
        The program; that of another machine is not started yet.

    Raises:
        BackendError: a library of this machine cannot be opened.
    """
    return (_Library if is_local(target) else _Foreign)(signature, target, data)


def compiled_program(project: CProject, target: Target, cache: CompileCache | None = None) -> bytes:
    """Compile a project for a machine.

    Args:
        project: the project.
        target: the CPU, of kind `c` or `llvm`.
        cache: the compile cache, or None.

    Returns:
        A shared library if it is called in this process, else a program.

    Raises:
        BackendError: there is no compiler for the target, or the code does not compile.
    """
    files = {**_flat(project, target), "tvmtarget_call.c": _call_source(project)}
    if is_local(target):
        return _linked(project, target, files, cache)
    signature = ProgramSignature.of(project)
    inputs, outputs = _frames(signature)
    options = (*_options(target), "-ffunction-sections", "-fdata-sections")
    return build_program(target, files, _ENTRY, inputs, outputs, options=options, cache=cache, name=project.name).data


def shared_library(project: CProject, target: Target, cache: CompileCache | None = None) -> bytes:
    """Compile a project into a shared library.

    Args:
        project: the project.
        target: the CPU, of kind `c` or `llvm`.
        cache: the compile cache, or None.

    Returns:
        The library, with the entries of the project's header.

    Raises:
        BackendError: there is no compiler for the target, the code does not compile, or it has no shared libraries.
    """
    triple = triple_of(target)
    if triple.os in ("", "none"):
        raise BackendError(f"{str(triple)!r} has no shared libraries; export a folder, and link it there")
    return _linked(project, target, _flat(project, target), cache)


def _linked(project: CProject, target: Target, files: dict[str, bytes], cache: CompileCache | None) -> bytes:
    compiler = toolchain_for(target)
    facts = {"function": project.name, "target": str(target), "backend": compiler.version()}
    return compiler.build(files, [*_options(target), "-shared", "-fPIC"], ["-lm"], cache, **facts)


def _options(target: Target) -> tuple[str, ...]:
    """Return the options of the compiler for a target.

    They are those of the Makefile of an exported project, with its options for speed; boards get small code.
    """
    is_fast = toolchain_for(target).flavour == "gcc" and triple_of(target).os not in ("", "none")
    return (*(GCC_OPTIONS if is_fast else ("-O2",)), *_STANDARD)


class CProgram(ABC):
    """A compiled project.

    Attributes:
        data: the library or program.
    """

    data: bytes

    def __init__(self, signature: ProgramSignature, data: bytes) -> None:
        self.data = data
        self._signature = signature

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run once.

        Args:
            inputs: the inputs, in order.

        Returns:
            The results, in order.

        Raises:
            RunError: an input has another type or shape than the project, or the program failed.
        """
        expected = self._signature.inputs
        return self._run(
            [_checked(name, tensor, array) for (name, tensor), array in zip(expected, inputs, strict=True)]
        )

    @abstractmethod
    def _run(self, inputs: list[Array]) -> list[Array]: ...

    def close(self) -> None:  # noqa: B027 - a library has nothing to end
        """End the process of the program."""


class _Library(CProgram):
    """A project as a shared library of this process; runs in several threads take turns, as they share a workspace."""

    def __init__(self, signature: ProgramSignature, _target: Target, data: bytes) -> None:
        super().__init__(signature, data)
        self._lock = threading.Lock()
        with temporary_folder() as folder:
            path = folder / "program.so"
            path.write_bytes(data)
            try:
                self._function = ctypes.CDLL(str(path))[_ENTRY]
            except (OSError, AttributeError) as error:
                raise BackendError(f"the compiled program {signature.name!r} cannot be opened: {error}") from error
        self._function.restype = ctypes.c_int32

    def _run(self, inputs: list[Array]) -> list[Array]:
        outputs = [np.empty(one.shape, one.dtype) for one in self._signature.outputs]
        pointers = [
            (ctypes.c_void_p * max(len(some), 1))(*(one.ctypes.data for one in some)) for some in (inputs, outputs)
        ]
        with self._lock:
            status = self._function(*pointers)
        if status:
            raise RunError(_TEXTS.get(status, f"a kernel returned {status}"))
        return outputs


class _Foreign(CProgram):
    """A project as a program of another machine."""

    def __init__(self, signature: ProgramSignature, target: Target, data: bytes) -> None:
        super().__init__(signature, data)
        inputs, outputs = _frames(signature)
        self._target = target
        self._process: ProgramProcess | None = None
        self._program = Program(data, tuple(inputs), tuple(outputs))

    def _run(self, inputs: list[Array]) -> list[Array]:
        if self._process is None:
            self._process = ProgramProcess(self._program, runner_for(self._target))
        return self._process.run(inputs)

    def close(self) -> None:
        if self._process is not None:
            self._process.close()


def _frames(signature: ProgramSignature) -> tuple[list[TensorFrame], list[TensorFrame]]:
    inputs = [TensorFrame(tensor.dtype, tensor.shape) for _, tensor in signature.inputs]
    return inputs, [TensorFrame(tensor.dtype, tensor.shape) for tensor in signature.outputs]


def _checked(name: str, tensor: Tensor, array: Array) -> Array:
    if str(array.dtype) != tensor.dtype or array.shape != tensor.shape:
        have, need = (f"{one.dtype}{list(one.shape)}" for one in (array, tensor))
        raise RunError(f"input {name!r} is {have}, not {need}")
    return np.ascontiguousarray(array).reshape(array.shape)


def _flat(project: CProject, target: Target) -> dict[str, bytes]:
    """Return the files of a project that a compiler reads, in one folder."""
    triple, toolchain = triple_of(target), toolchain_for(target)
    has_assembler = toolchain.flavour == "gcc" and triple.os == "linux" and triple.endian == "little"
    files = project.files(has_assembler=has_assembler)
    return {PurePosixPath(name).name: data for name, data in files.items() if name.endswith(_COMPILED)}


def _call_source(project: CProject) -> bytes:
    """Return a function that takes the addresses of inputs and outputs, and calls the entry of the project."""
    prefix = project.prefix
    lines = [f'#include "{prefix}.h"', f"int32_t {_ENTRY}(void *const *inputs, void *const *outputs);"]
    if not project.constants_in_code:
        data = project.constants_file() or b"\0"
        numbers = ",".join(map(str, data))
        alignment = project.constants_base_alignment
        lines.append(f"static const uint8_t constants[{len(data)}] TVMTARGET_ALIGNED({alignment}) = {{{numbers}}};")
    lines.append(f"int32_t {_ENTRY}(void *const *inputs, void *const *outputs) {{")
    arguments = [] if project.io_in_workspace else ["&given", "&made"]
    arguments += [] if project.constants_in_code else ["constants"]
    if project.contexts:
        contexts = ", ".join(["NULL"] * len(project.contexts))
        lines.append(f"  static const struct {prefix}_devices devices = {{{contexts}}};")
        arguments.append("&devices")
    if project.interface == "packed":
        lines += _packed_call(project)
    elif project.io_in_workspace:
        lines += _call_in_workspace(project, f"{prefix}_run({', '.join(arguments)})")
    else:
        lines += [f"  struct {prefix}_inputs given;", f"  struct {prefix}_outputs made;"]
        lines += [f"  given.{c_identifier(name)} = inputs[{number}];" for number, name in enumerate(project.inputs)]
        lines += [f"  made.{c_identifier(name)} = outputs[{number}];" for number, name in enumerate(project.outputs)]
        if not project.inputs:
            lines += ["  given.unused = 0;", "  (void)inputs;"]
        lines.append(f"  return {prefix}_run({', '.join(arguments)});")
    return "\n".join([*lines, "}", ""]).encode()


def _call_in_workspace(project: CProject, call: str) -> list[str]:
    """Return the statements that copy inputs into the workspace, and outputs from there."""
    prefix, tensors = project.prefix, project.function.tensors
    lines = [
        f"  struct {prefix}_inputs given = {prefix}_map_inputs({prefix}_static_workspace());",
        f"  struct {prefix}_outputs made = {prefix}_map_outputs({prefix}_static_workspace());",
        "  int32_t status;",
        "  (void)inputs;\n  (void)given;",
    ]
    for number, (name, value) in enumerate(zip(project.inputs, project.function.inputs, strict=True)):
        if nbytes := tensors[value].nbytes:
            lines.append(f"  memcpy(given.{c_identifier(name)}, inputs[{number}], {nbytes});")
    lines.append(f"  status = {call};")
    for number, (name, value) in enumerate(zip(project.outputs, project.function.outputs, strict=True)):
        if nbytes := tensors[value].nbytes:
            lines.append(f"  memcpy(outputs[{number}], made.{c_identifier(name)}, {nbytes});")
    return [*lines, "  (void)made;", "  return status;"]


def _packed_call(project: CProject) -> list[str]:
    """Return the statements that call the packed entry of a project with all values as tensors."""
    names = (*project.function.inputs, *project.function.outputs)
    count, given = len(names), len(project.inputs)
    lines = [f"  struct tvmtarget_tensor tensors[{count}];", f"  union tvmtarget_value values[{count}];"]
    lines += [f"  int32_t codes[{count}];", f"  void *data[{count}];", *project.entry_types()]
    for number in range(count):
        side = f"inputs[{number}]" if number < given else f"outputs[{number - given}]"
        lines.append(f"  data[{number}] = {side};")
    if not given:
        lines.append("  (void)inputs;")
    lines.append(
        f"  return tvmtarget_call({project.prefix}___tvm_main__, data, types, {count}, tensors, values, codes);"
    )
    return lines
