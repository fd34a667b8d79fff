"""C projects of static functions: C99 sources, a header, a build file for Make and CMake, and a report of memory.

The generated code calls no function besides its kernels, `memcpy` and functions of `math.h`: no allocation, no files,
no threads. It keeps no state: intermediate values lie in a workspace that the caller passes, or in a static one that is
linked only if the entry without this parameter is used. Names follow those of TVM's C interface at v0.18.0
(apache/tvm, src/target/source/interface_c.cc), so that programs written for it compile again.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from tvmtarget.backends.c.build_files import cmake_lists, makefile
from tvmtarget.backends.c.identifiers import c_identifier
from tvmtarget.backends.c.memory_plan import Buffer, MemoryPlan, Place, Pool, plan_memory
from tvmtarget.backends.c.static_function import C_TYPES, CopyTensor, Kernel, KernelCall, StaticFunction, Tensor
from tvmtarget.backends.protocol import Array
from tvmtarget.errors import BackendError, raise_all

__all__ = ["CProject", "Interface"]

Interface: TypeAlias = Literal["c", "packed"]

_LARGE = 1 << 20  # bytes of constants, for whose text a C compiler takes a second
_RUNTIME = Path(__file__).parent / "runtime"
_MAX_BYTES = 2**31 - 1  # of a buffer: index arithmetic of kernels has 32 bits


@dataclass(frozen=True)
class CProject:
    """A static function as a C project.

    Attributes:
        name: name of the program; `default` gives functions `tvmgen_default_...`.
        function: the function.
        inputs: the names of the parameters in the user's model, in order.
        outputs: the names of the results, in order.
        interface: whether the entry takes structs of pointers (`c`), or tensors (`packed`).
        is_unpacked: whether kernels take pointers, or tensors as the packed entry does.
        pools: memories of the workspace, most preferred first; one without a limit by default.
        workspace_alignment: alignment of the buffers in the workspace, in bytes.
        constant_alignment: alignment of constants, in bytes.
        constants_in_code: whether constants are part of the code, or passed to the entry.
        has_system_lib: whether functions can be looked up by name.
        io_in_workspace: whether inputs and outputs lie in the workspace too, where inputs are overwritten after their
            last use.
    """

    name: str
    function: StaticFunction
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    interface: Interface = "c"
    is_unpacked: bool = True
    pools: tuple[Pool, ...] = (Pool("workspace"),)
    workspace_alignment: int = 16
    constant_alignment: int = 16
    constants_in_code: bool = True
    has_system_lib: bool = False
    io_in_workspace: bool = False

    def check(self) -> None:
        """Check what a C compiler would not.

        Raises:
            BackendError: names become equal in C, or a value has 2 GiB or more.
        """
        problems: list[str] = []
        for what, names in (("inputs", self.inputs), ("outputs", self.outputs)):
            for identifier, count in Counter(map(c_identifier, names)).items():
                if count > 1:
                    same = " and ".join(repr(name) for name in names if c_identifier(name) == identifier)
                    problems.append(f"the {what} {same} have one name in C, {identifier!r}; rename one of them")
        fields: dict[str, str] = {}
        for pool in self.pools:
            for identifier in (c_identifier(pool.name), f"{c_identifier(pool.name)}_size"):
                other = fields.setdefault(identifier.upper(), pool.name)
                if other != pool.name:
                    problems.append(f"the memories {other!r} and {pool.name!r} need the name {identifier!r} in C")
        values = (*self.function.inputs, *self.function.outputs)
        macros: dict[str, int] = {}
        of_program = {self._macro("WORKSPACE_SIZE"), self._macro("CONSTANTS_SIZE")}
        of_program |= {self._macro(c_identifier(pool.name), "WORKSPACE_POOL_SIZE") for pool in self.pools}
        for name, value in zip((*self.inputs, *self.outputs), values, strict=True):
            macro, nbytes = self._macro(c_identifier(name), "SIZE"), self.function.tensors[value].nbytes
            if macro in of_program or macros.setdefault(macro, nbytes) != nbytes:
                problems.append(f"{name!r} needs the macro {macro}, which has another value already; rename it")
        workspaces = [one for kernel in self.function.kernels.values() for one in kernel.workspaces]
        for tensor in (*self.function.tensors.values(), *workspaces):
            if tensor.nbytes > _MAX_BYTES:
                problems.append(
                    f"a value of {tensor.dtype}{list(tensor.shape)} has {tensor.nbytes} bytes, at least 2 GiB"
                )
        if self.interface == "c" and not self.is_unpacked:
            problems.append("interface-api 'c' needs unpacked-api=true: set it, or interface-api=packed")
        for field_, count in Counter(self.contexts.values()).items():
            if count > 1:
                same = " and ".join(f"@{path or '.'}" for (path, _), field in self.contexts.items() if field == field_)
                problems.append(f"the devices {same} have one name in C, {field_!r}; rename one of them")
        if self.contexts and (self.has_packed_entry or not self.is_unpacked):
            problems.append(
                f"an entry that takes tensors passes no context of device {self._device_kinds[0]!r}: "
                "set interface-api=c and unpacked-api=true, and leave out system-lib"
            )
        if self.has_packed_entry and self.io_in_workspace:
            problems.append(
                "an entry that takes tensors takes them from anywhere: set interface-api=c, or workspace-io=false"
            )
        if self.has_packed_entry and not self.constants_in_code:
            problems.append("an entry that takes tensors passes no constants: set interface-api=c, or link-params=true")
        raise_all(BackendError, list(dict.fromkeys(problems)))

    @property
    def has_packed_entry(self) -> bool:
        """Whether there is an entry that takes tensors; functions are looked up in that form only."""
        return self.interface == "packed" or self.has_system_lib

    @cached_property
    def prefix(self) -> str:
        """What all names of the project begin with."""
        return c_identifier(f"tvmgen_{self.name}")

    @cached_property
    def memory(self) -> MemoryPlan:
        """The places of intermediate values and of workspaces of kernels.

        Raises:
            MemoryTooSmallError: they do not fit into the pools.
            BackendError: a pool has 2 GiB or more, which compilers do not link.
        """
        plan = plan_memory(list(self._buffers()), self.pools)
        large = [(name, nbytes) for name, nbytes in plan.sizes.items() if nbytes > _MAX_BYTES]
        raise_all(BackendError, [f"memory {name!r} needs {nbytes} bytes, at least 2 GiB" for name, nbytes in large])
        return plan

    @cached_property
    def workspace_base_alignment(self) -> int:
        """The alignment that the workspace must have, in bytes."""
        return max([1, *(buffer.alignment for buffer in self._buffers())])

    def _buffers(self) -> Iterator[Buffer]:
        written: dict[str, int] = {}
        read: dict[str, int] = {}
        for step, one in enumerate(self.function.steps):
            reads, writes = (one.reads, one.writes) if isinstance(one, KernelCall) else ((one.source,), (one.target,))
            read |= dict.fromkeys(reads, step)
            written |= dict.fromkeys(writes, step)
        end = len(self.function.steps)
        if self.io_in_workspace:
            written = dict.fromkeys(self.function.inputs, -1) | written
            read |= dict.fromkeys(self.function.outputs, end)
            for number in self._copied_outputs:
                tensor = self.function.tensors[self.function.outputs[number]]
                yield Buffer(_output(number), tensor.nbytes, end, end, self._alignment(tensor))
        memories = {one.target: one.memory for one in self.function.steps if isinstance(one, CopyTensor)}
        names = [pool.name for pool in self.pools]
        for name, first in written.items():
            if name in self._direct and not self.io_in_workspace:
                continue
            tensor = self.function.tensors[name]
            last = max(first, read.get(name, first))
            preferred = memories.get(name, "")
            pools = (preferred, *(pool for pool in names if pool != preferred)) if preferred in names else ()
            yield Buffer(name, tensor.nbytes, first, last, self._alignment(tensor), pools)
        for step, one in enumerate(self.function.steps):
            if isinstance(one, KernelCall):
                for number, tensor in enumerate(self.function.kernels[one.kernel].workspaces):
                    yield Buffer(_scratch(one, number), tensor.nbytes, step, step, self._alignment(tensor))

    def _alignment(self, tensor: Tensor) -> int:
        return max(self.workspace_alignment, np.dtype(tensor.dtype).itemsize)

    @cached_property
    def _given(self) -> Mapping[str, str]:
        """The fields of inputs by their values."""
        return dict(zip(self.function.inputs, map(c_identifier, self.inputs), strict=True))

    @cached_property
    def contexts(self) -> Mapping[tuple[str, str], str]:
        """The fields of device contexts by path and kind of the device, in the order of their first kernels."""
        calls = [one for one in self.function.steps if isinstance(one, KernelCall)]
        devices = [(one.path, self.function.kernels[one.kernel].device) for one in calls]
        return {(path, device): c_identifier(path or device) for path, device in devices if device}

    @property
    def _device_kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(device for _, device in self.contexts))

    @cached_property
    def _types_of_kernels(self) -> Mapping[str, str]:
        """The C variables with the types of what packed kernels take, by kernel."""
        return {kernel: f"{self.prefix}_types_{number}" for number, kernel in enumerate(self.function.kernels)}

    @cached_property
    def _direct(self) -> Mapping[str, str]:
        """The fields of results by the computed values that are written there directly."""
        made: set[str] = set()
        for one in self.function.steps:
            made |= set(one.writes if isinstance(one, KernelCall) else (one.target,))
        direct: dict[str, str] = {}
        for value, name in zip(self.function.outputs, self.outputs, strict=True):
            if value in made:
                direct.setdefault(value, c_identifier(name))
        return direct

    @cached_property
    def _copied_outputs(self) -> tuple[int, ...]:
        """The numbers of results that are copied at the end: inputs, constants, and those that another result is."""
        pairs = zip(self.function.outputs, self.outputs, strict=True)
        return tuple(n for n, (value, name) in enumerate(pairs) if self._direct.get(value) != c_identifier(name))

    @cached_property
    def _constants(self) -> Mapping[str, tuple[str, int]]:
        """The number and the offset of each constant; equal ones share theirs."""
        found: dict[tuple[str, bytes], tuple[str, int]] = {}
        places: dict[str, tuple[str, int]] = {}
        end = 0
        for name, array in self.function.constants.items():
            key = (str(array.dtype), array.tobytes())
            if key not in found:
                alignment = max(self.constant_alignment, array.itemsize)
                begin = -(-end // alignment) * alignment
                found[key] = (f"{self.prefix}_constant_{len(found)}", begin)
                end = begin + array.nbytes
            places[name] = found[key]
        return places

    def report(self) -> dict[str, Any]:
        """Return sizes and names, as JSON data.

        Returns:
            Inputs, outputs, bytes of the workspace by memory, bytes of constants, and the calls of kernels.
        """

        def rows(names: Sequence[str], values: Sequence[str]) -> list[dict[str, object]]:
            tensors = [self.function.tensors[value] for value in values]
            return [
                {"name": name, "field": c_identifier(name), "dtype": one.dtype, "shape": one.shape, "bytes": one.nbytes}
                for name, one in zip(names, tensors, strict=True)
            ]

        calls = [one for one in self.function.steps if isinstance(one, KernelCall)]
        return {
            "name": self.name,
            "prefix": self.prefix,
            "interface": self.interface,
            **({"workspace-io": True} if self.io_in_workspace else {}),
            "unpacked": self.is_unpacked,
            "inputs": rows(self.inputs, self.function.inputs),
            "outputs": rows(self.outputs, self.function.outputs),
            "workspace": [
                {"memory": pool.name, "bytes": self.memory.sizes[pool.name], "live": self.memory.live_bytes[pool.name]}
                for pool in self._pools
            ],
            "alignment": self.workspace_base_alignment,
            "constants": self.constant_bytes,
            "kernels": [
                {
                    "kernel": one.kernel,
                    "path": one.path,
                    **({"device": device} if (device := self.function.kernels[one.kernel].device) else {}),
                    "workspace": sum(tensor.nbytes for tensor in self.function.kernels[one.kernel].workspaces),
                }
                for one in calls
            ],
        }

    @cached_property
    def _pools(self) -> tuple[Pool, ...]:
        """The memories that are used."""
        return tuple(pool for pool in self.pools if self.memory.sizes.get(pool.name))

    @property
    def constants_base_alignment(self) -> int:
        """The alignment that constants which are passed to the entry must have, in bytes."""
        return max(self.constant_alignment, 8)

    @cached_property
    def constant_bytes(self) -> int:
        """The size of all constants; equal ones count once."""
        return sum(array.nbytes for array in self._distinct_constants().values())

    def constants_file(self) -> bytes:
        """Return all constants in one piece, for programs whose constants are not part of the code."""
        end = max(
            (offset + self.function.constants[name].nbytes for name, (_, offset) in self._constants.items()), default=0
        )
        data = bytearray(end)
        for name, (_, offset) in self._constants.items():
            array = self.function.constants[name]
            data[offset : offset + array.nbytes] = array.tobytes()
        return bytes(data)

    def files(self, *, has_assembler: bool = False) -> dict[str, bytes]:
        """Return the files of the project.

        Args:
            has_assembler: whether the GNU assembler makes an object of ELF for a little-endian processor of the
                constants, if these are large: C compilers take minutes for the text of a hundred megabytes.

        Returns:
            Contents by path, in the order in which one file can hold them: headers before sources.

        Raises:
            BackendError: `check` fails.
            MemoryTooSmallError: the values do not fit into the pools.
        """
        self.check()
        texts = {"include/tvmtarget_crt.h": (_RUNTIME / "tvmtarget_crt.h").read_text()}
        texts[f"include/{self.prefix}.h"] = self._header()
        texts[f"src/{self.prefix}_internal.h"] = self._internal_header()
        texts["src/tvmtarget_crt.c"] = (_RUNTIME / "tvmtarget_crt.c").read_text()
        is_assembled = has_assembler and self.constant_bytes > _LARGE
        if self.constants_in_code and is_assembled:
            texts[f"src/{self.prefix}_constants.s"] = self._constants_assembly()
        elif self.constants_in_code:
            texts[f"src/{self.prefix}_constants.c"] = self._constants_source()
        files = {name: text.encode() for name, text in texts.items()}
        files |= {f"src/{name}": data for name, data in self.function.code.items()}
        files[f"src/{self.prefix}.c"] = self._driver().encode()
        files[f"src/{self.prefix}_static.c"] = self._static_source().encode()
        if self.io_in_workspace:
            files[f"src/{self.prefix}_map.c"] = self._map_source().encode()
        if self.has_packed_entry or not self.is_unpacked:
            files[f"src/{self.prefix}_packed.c"] = self._packed_source().encode()
        if is_assembled or not self.constants_in_code:
            files[f"{self.prefix}_constants.bin"] = self.constants_file()
        files["Makefile"] = makefile(self.prefix, files).encode()
        files["CMakeLists.txt"] = cmake_lists(self.prefix, files, uses_math=self._uses_math).encode()
        files["report.json"] = (json.dumps(self.report(), indent=1) + "\n").encode()
        return files

    def header(self) -> bytes:
        """Return all that programs include, as one header for C and C++.

        Returns:
            The header of the runtime, and that of the program.
        """
        runtime = (_RUNTIME / "tvmtarget_crt.h").read_text()
        return (runtime + self._header().replace('#include "tvmtarget_crt.h"\n', "")).encode()

    def one_file(self) -> bytes:
        """Return the whole program as one C source.

        Returns:
            The headers and sources of `files`, one after another; several such programs may be linked together.

        Raises:
            BackendError: some of its code is not C.
        """
        parts = ["#define TVMTARGET_RUNTIME __attribute__((weak))"]
        for name, data in self.files().items():
            if name.endswith((".o", ".a", ".S", ".s")):
                raise BackendError(f"{name} is no C source, so that the program is no single file; export a folder")
            if name.endswith((".h", ".c")):
                text = re.sub(r'^#include "[^"]*"\n', "", data.decode(), flags=re.MULTILINE)
                parts.append(text)
        return "\n".join(parts).encode()

    def _macro(self, *names: str) -> str:
        return "_".join([self.prefix, *names]).upper()

    def _size_macros(self) -> dict[str, int]:
        """Return the sizes that the header states, by macro."""
        macros = {self._macro("WORKSPACE_SIZE"): sum(self.memory.sizes[pool.name] for pool in self._pools)}
        macros[self._macro("WORKSPACE_ALIGNMENT")] = self.workspace_base_alignment
        macros[self._macro("CONSTANTS_SIZE")] = (
            self.constant_bytes if self.constants_in_code else len(self.constants_file())
        )
        if not self.constants_in_code:
            macros[self._macro("CONSTANTS_ALIGNMENT")] = self.constants_base_alignment
        for pool in self._pools:
            macros[self._macro(c_identifier(pool.name), "WORKSPACE_POOL_SIZE")] = self.memory.sizes[pool.name]
        values = (*self.function.inputs, *self.function.outputs)
        for name, value in zip((*self.inputs, *self.outputs), values, strict=True):
            macros[self._macro(c_identifier(name), "SIZE")] = self.function.tensors[value].nbytes
        return macros

    def _fields(self, names: Sequence[str], values: Sequence[str], *, is_const: bool) -> Iterator[str]:
        if not names:
            yield "  uint8_t unused; /* C99 has no empty structs */"
        for name, value in zip(names, values, strict=True):
            tensor = self.function.tensors[value]
            const = "const " if is_const else ""
            shape = ", ".join(map(str, tensor.shape))
            yield f"  {const}{C_TYPES[tensor.dtype]} *{c_identifier(name)}; /* {tensor.dtype}[{shape}] */"

    @property
    def _parameters(self) -> dict[str, str]:
        """The parameters of the entry without the workspace, by name."""
        parameters: dict[str, str] = {}
        if not self.io_in_workspace:
            parameters |= {name: f"const struct {self.prefix}_{name} *{name}" for name in ("inputs", "outputs")}
        if not self.constants_in_code:
            parameters["constants"] = "const void *constants"
        if self.contexts:
            parameters["devices"] = f"const struct {self.prefix}_devices *devices"
        return parameters

    @property
    def _run(self) -> str:
        """The declaration of the entry with a static workspace, without a semicolon."""
        return f"int32_t {self.prefix}_run({f',{_NEXT}'.join(self._parameters.values()) or 'void'})"

    @property
    def _run_in(self) -> str:
        """The declaration of the entry with a workspace of the caller, without a semicolon."""
        pools = f"const struct {self.prefix}_workspace_pools *pools"
        return f"int32_t {self.prefix}_run_in({f',{_NEXT}'.join([*self._parameters.values(), pools])})"

    @property
    def _maps(self) -> dict[str, str]:
        """The declarations of the functions that find inputs and outputs in the workspace, by struct."""
        pools = f"const struct {self.prefix}_workspace_pools *pools"
        return {
            name: f"struct {self.prefix}_{name} {self.prefix}_map_{name}({pools})" for name in ("inputs", "outputs")
        }

    @property
    def _workspace(self) -> str:
        """The declaration of the function that returns the static workspace."""
        return f"const struct {self.prefix}_workspace_pools *{self.prefix}_static_workspace(void)"

    def _header(self) -> str:
        guard = f"{self.prefix}_H".upper()
        pools = [
            f"  void *{c_identifier(pool.name)};\n  size_t {c_identifier(pool.name)}_size;" for pool in self._pools
        ]
        lines = [
            f"/* Program {_comment(self.name)!r}, generated by tvmtarget. */",
            f"#ifndef {guard}",
            f"#define {guard}",
            '#include "tvmtarget_crt.h"',
            "",
            "/* Sizes in bytes. */",
            *(f"#define {macro} {value}" for macro, value in self._size_macros().items()),
            "",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "",
            f"struct {self.prefix}_inputs {{",
            *self._fields(self.inputs, self.function.inputs, is_const=not self.io_in_workspace),
            "};",
            "",
            *([] if self.io_in_workspace else ["/* Outputs may not overlap inputs, the workspace or each other. */"]),
            f"struct {self.prefix}_outputs {{",
            *self._fields(self.outputs, self.function.outputs, is_const=False),
            "};",
            "",
            f"/* Memories for {'all' if self.io_in_workspace else 'intermediate'} values, and their sizes in bytes. */",
            f"struct {self.prefix}_workspace_pools {{",
            *(pools or ["  uint8_t unused; /* C99 has no empty structs */"]),
            "};",
            "",
            *self._device_declarations(),
            "/* Run once with a workspace of the caller; several runs may overlap if each has its own.",
            "   Returns a status of tvmtarget_crt.h, or what a kernel returned. */",
            f"{self._run_in};",
            "",
            "/* Run once with a static workspace, which one run at a time may use. */",
            f"{self._run};",
        ]
        if self.io_in_workspace:
            lines += [
                "",
                "/* Find inputs and outputs in a workspace. A run may overwrite inputs: write all of them before each",
                "   run, and read outputs before the next one. */",
                *(f"{declaration};" for declaration in self._maps.values()),
                f"{self._workspace};",
            ]
        if self.has_packed_entry:
            lines += [
                "",
                "/* Run once; the arguments are tensors, the inputs before the outputs. `resource` is NULL, or the",
                f"   address of a struct {self.prefix}_workspace_pools. */",
                _packed_declaration(f"{self.prefix}___tvm_main__") + ";",
            ]
        if self.has_system_lib:
            lines += [
                "",
                "/* Returns a packed function by its name, or NULL. */",
                f"tvmtarget_packed {self.prefix}_function(const char *name);",
            ]
        lines += ["", "#ifdef __cplusplus", "}", "#endif", "#endif", ""]
        return "\n".join(lines)

    def _device_declarations(self) -> Iterator[str]:
        if not self.contexts:
            return
        yield f"/* What the hooks of each device are passed. */\nstruct {self.prefix}_devices {{"
        yield from (f"  void *{context}; /* {_comment(device)} */" for (_, device), context in self.contexts.items())
        yield "};\n"
        yield "/* Hooks that the platform defines. A run activates its devices first and deactivates them last;"
        yield "   a device is open while a kernel runs on it. Each returns 0, or an error that ends the run, which"
        yield "   then closes and deactivates what it opened and activated. */"
        for device in self._device_kinds:
            yield from (f"int32_t {_hook(device, hook)}(void *device);" for hook in _HOOKS)
        yield ""

    def _internal_header(self) -> str:
        guard = f"{self.prefix}_INTERNAL_H".upper()
        lines = [f"#ifndef {guard}", f"#define {guard}", f'#include "{self.prefix}.h"', ""]
        lines += [f"{kernel.prototype};" for kernel in self.function.kernels.values()]
        if not self.is_unpacked:
            lines += [_packed_declaration(f"{kernel}_packed") + ";" for kernel in self.function.kernels]
            for kernel in self.function.kernels.values():
                types = f"{self._types_of_kernels[kernel.symbol]}[{max(len(_tensors(kernel)), 1)}]"
                lines.append(f"extern const struct tvmtarget_type {types};")
        if self.constants_in_code:
            lines += [f"extern {declaration};" for declaration, _ in self._constant_declarations()]
        return "\n".join([*lines, "#endif", ""])

    def _distinct_constants(self) -> Mapping[str, Array]:
        """The constants by symbol."""
        return {self._constants[name][0]: array for name, array in self.function.constants.items()}

    def _constant_declarations(self) -> Iterator[tuple[str, Array]]:
        for symbol, array in self._distinct_constants().items():
            yield f"const {C_TYPES[str(array.dtype)]} {symbol}[{max(array.size, 1)}]", array

    def _constants_source(self) -> str:
        lines = [f'#include "{self.prefix}_internal.h"', "#include <math.h>", ""]
        for declaration, array in self._constant_declarations():
            alignment = max(self.constant_alignment, array.itemsize)
            where = f'TVMTARGET_ALIGNED({alignment}) TVMTARGET_SECTION(".rodata.{self.prefix}")'
            lines += [f"{declaration} {where} = {{", *_numbers(array), "};"]
        return "\n".join([*lines, ""])

    def _constants_assembly(self) -> str:
        """Return the constants as parts of the file that holds all of them."""
        lines = [f'.section .rodata.{self.prefix}, "a"']
        offsets = dict(self._constants.values())
        for symbol, array in self._distinct_constants().items():
            place = f'"{self.prefix}_constants.bin", {offsets[symbol]}, {array.nbytes}'
            lines += [f".balign {max(self.constant_alignment, array.itemsize)}", f".globl {symbol}"]
            lines += [f".type {symbol}, %object", f".size {symbol}, {array.nbytes}", f"{symbol}:"]
            lines += [f".incbin {place}" if array.nbytes else f".zero {array.itemsize}"]
        return "\n".join([*lines, '.section .note.GNU-stack, "", %progbits', ""])

    def _value(self, name: str) -> str:
        """Return the C expression of a value's address."""
        tensor = self.function.tensors[name]
        type_ = C_TYPES[tensor.dtype]
        if name in self._constants:
            symbol, offset = self._constants[name]
            if self.constants_in_code:
                return symbol
            return f"(const {type_} *)(const void *)((const uint8_t *)constants + {offset})"
        if name not in self.memory.places:
            return f"inputs->{self._given[name]}" if name in self._given else f"outputs->{self._direct[name]}"
        return _placed(self.memory.places[name], tensor)

    def _result(self, number: int) -> str:
        """Return the C expression of the address of a result that is copied."""
        if not self.io_in_workspace:
            return f"outputs->{c_identifier(self.outputs[number])}"
        return _placed(self.memory.places[_output(number)], self.function.tensors[self.function.outputs[number]])

    def _scratch(self, call: KernelCall, number: int, tensor: Tensor) -> str:
        return _placed(self.memory.places[_scratch(call, number)], tensor)

    def _driver(self) -> str:
        lines = [f'#include "{self.prefix}_internal.h"', "#include <string.h>", ""]
        lines += [f"{self._run_in} {{"]
        calls = [one for one in self.function.steps if isinstance(one, KernelCall)]
        most = max((len(_tensors(self.function.kernels[one.kernel])) for one in calls), default=0)
        lines += [f"  uint8_t *{_pool_variable(pool.name)};" for pool in self._pools]
        if calls:
            lines.append("  int32_t status;")
        if self.contexts:
            lines.append("  int32_t ended;")
        if calls and most and not self.is_unpacked:
            lines += [f"  void *data[{most}];", f"  struct tvmtarget_tensor tensors[{most}];"]
            lines += [f"  union tvmtarget_value values[{most}];", f"  int32_t codes[{most}];"]
        lines += self._checks()
        for number, ((_, device), context) in enumerate(self.contexts.items()):
            lines.append(f"  status = {_hook(device, 'Activate')}(devices->{context});")
            lines.append(f"  if (status != TVMTARGET_OK) {f'goto active_{number}' if number else 'return status'};")
        for one in self.function.steps:
            lines += self._copy(one) if isinstance(one, CopyTensor) else self._call(one)
        for number in self._copied_outputs:
            value = self.function.outputs[number]
            if nbytes := self.function.tensors[value].nbytes:
                lines.append(f"  memcpy({self._result(number)}, {self._value(value)}, {nbytes});")
        for number, ((_, device), context) in reversed(list(enumerate(self.contexts.items(), 1))):
            lines.append(f"active_{number}:")
            lines += _ended(f"{_hook(device, 'Deactivate')}(devices->{context})", "  ")
        return "\n".join([*lines, f"  return {'status' if self.contexts else 'TVMTARGET_OK'};", "}", ""])

    def _checks(self) -> Iterator[str]:
        given = [*self._parameters, "pools"]
        tested = " || ".join(f"{name} == NULL" for name in given if name != "constants")
        yield f"  if ({tested}) return TVMTARGET_ERROR_NULL_POINTER;"
        for struct, names, values in (
            ("inputs", self.inputs, self.function.inputs),
            ("outputs", self.outputs, self.function.outputs),
        ):
            if self.io_in_workspace:
                continue
            for name, value in zip(names, values, strict=True):
                if self.function.tensors[value].nbytes:
                    yield f"  if ({struct}->{c_identifier(name)} == NULL) return TVMTARGET_ERROR_NULL_POINTER;"
        if not self.constants_in_code:
            if self._constants:
                yield "  if (constants == NULL) return TVMTARGET_ERROR_NULL_POINTER;"
                alignment = self._macro("CONSTANTS_ALIGNMENT")
                yield f"  if ((uintptr_t)constants % {alignment} != 0) return TVMTARGET_ERROR_UNALIGNED;"
            else:
                yield "  (void)constants;"
        for pool in self._pools:
            name, macro = c_identifier(pool.name), self._macro(c_identifier(pool.name), "WORKSPACE_POOL_SIZE")
            yield f"  if (pools->{name} == NULL) return TVMTARGET_ERROR_NULL_POINTER;"
            yield f"  if (pools->{name}_size < {macro}) return TVMTARGET_ERROR_WORKSPACE_TOO_SMALL;"
            alignment_macro = self._macro("WORKSPACE_ALIGNMENT")
            yield f"  if ((uintptr_t)pools->{name} % {alignment_macro} != 0) return TVMTARGET_ERROR_UNALIGNED;"
            yield f"  {_pool_variable(pool.name)} = (uint8_t *)pools->{name};"
            if self.io_in_workspace:  # it may hold nothing but inputs that are not read
                yield f"  (void){_pool_variable(pool.name)};"

    def _copy(self, one: CopyTensor) -> Iterator[str]:
        nbytes = self.function.tensors[one.source].nbytes
        if nbytes:
            yield f"  memcpy({self._value(one.target)}, {self._value(one.source)}, {nbytes});"

    def _call(self, one: KernelCall) -> Iterator[str]:
        kernel = self.function.kernels[one.kernel]
        values = [self._value(name) for name in (*one.reads, *one.writes)]
        values += [self._scratch(one, number, tensor) for number, tensor in enumerate(kernel.workspaces)]
        if one.path:
            yield f"  /* @{_comment(one.path)} */"
        if kernel.device:
            context = f"devices->{self.contexts[one.path, kernel.device]}"
            yield f"  status = {_hook(kernel.device, 'Open')}({context});"
            yield "  if (status == TVMTARGET_OK) {"
            yield f"    status = {one.kernel}({', '.join([*values, context])});"
            yield from _ended(f"{_hook(kernel.device, 'Close')}({context})", "    ")
            yield "  }"
        elif self.is_unpacked:
            yield f"  status = {one.kernel}({', '.join(values)});"
        else:
            yield from (f"  data[{number}] = (void *){value};" for number, value in enumerate(values))
            arguments = f"data, {self._types_of_kernels[one.kernel]}, {len(values)}, tensors, values, codes"
            yield f"  status = tvmtarget_call({one.kernel}_packed, {arguments});"
        failed = f"goto active_{len(self.contexts)}" if self.contexts else "return status"
        yield f"  if (status != TVMTARGET_OK) {failed};"

    def _static_source(self) -> str:
        lines = [f'#include "{self.prefix}.h"', ""]
        fields = []
        for pool in self._pools:
            variable = f"{self.prefix}_{c_identifier(pool.name)}_memory"
            size = self._macro(c_identifier(pool.name), "WORKSPACE_POOL_SIZE")
            alignment = self._macro("WORKSPACE_ALIGNMENT")
            lines.append(f"static uint8_t {variable}[{size}] TVMTARGET_ALIGNED({alignment});")
            fields += [variable, f"sizeof {variable}"]
        lines += [
            f"static const struct {self.prefix}_workspace_pools {self.prefix}_static_pools = {{",
            f"  {', '.join(fields) or '0'}",
            "};",
            "",
            f"{self._run} {{",
            f"  return {self.prefix}_run_in({', '.join([*self._parameters, f'&{self.prefix}_static_pools'])});",
            "}",
            "",
        ]
        if self.io_in_workspace:
            lines += [f"{self._workspace} {{ return &{self.prefix}_static_pools; }}", ""]
        return "\n".join(lines)

    def _map_source(self) -> str:
        """Return the functions that find inputs and outputs in the workspace."""
        lines = [f'#include "{self.prefix}.h"', ""]
        results = list(self.function.outputs)
        for number in self._copied_outputs:
            results[number] = _output(number)
        rows = {
            "inputs": (self.inputs, self.function.inputs, self.function.inputs),
            "outputs": (self.outputs, tuple(results), self.function.outputs),
        }
        for struct, (names, places, values) in rows.items():
            given = ["pools", *(f"pools->{c_identifier(pool.name)}" for pool in self._pools)]
            lines += [
                f"{self._maps[struct]} {{",
                f"  static const struct {self.prefix}_{struct} nothing;",
                f"  struct {self.prefix}_{struct} made;",
                f"  if ({' || '.join(f'{one} == NULL' for one in given)}) return nothing;",
            ]
            lines += [] if names else ["  made.unused = 0;"]
            for name, place, value in zip(names, places, values, strict=True):
                tensor, where = self.function.tensors[value], self.memory.places[place]
                base = f"(uint8_t *)pools->{c_identifier(where.pool)}"
                lines.append(f"  made.{c_identifier(name)} = {_placed(where, tensor, base)};")
            lines += ["  return made;", "}", ""]
        return "\n".join(lines)

    def _packed_source(self) -> str:
        lines = [f'#include "{self.prefix}_internal.h"', "#include <string.h>", ""]
        kernels = () if self.is_unpacked else tuple(self.function.kernels.values())
        entry = self._entry if self.has_packed_entry else ()
        shapes = _shape_variables([*(one for kernel in kernels for one in _tensors(kernel)), *entry], self.prefix)
        lines += [f"static {_shape_declaration(shape, symbol)}" for shape, symbol in shapes.items()]
        for kernel in kernels:
            lines += self._packed_kernel(kernel, shapes)
        if self.has_packed_entry:
            lines += self._packed_entry(shapes)
        if self.has_system_lib:
            lines += self._system_lib()
        return "\n".join([*lines, ""])

    @property
    def _entry(self) -> tuple[Tensor, ...]:
        """The inputs and outputs, as the packed entry takes them."""
        return tuple(self.function.tensors[name] for name in (*self.function.inputs, *self.function.outputs))

    def _packed_kernel(self, kernel: Kernel, shapes: Mapping[tuple[int, ...], str]) -> Iterator[str]:
        tensors = _tensors(kernel)
        types = self._types_of_kernels[kernel.symbol]
        yield f"const struct tvmtarget_type {types}[{max(len(tensors), 1)}] = {{{_types(tensors, shapes)}}};"
        yield _packed_declaration(f"{kernel.symbol}_packed") + " {"
        yield f"  void *data[{max(len(tensors), 1)}];"
        yield f"  int32_t status = tvmtarget_read(values, type_codes, count, {types}, {len(tensors)}, data);"
        yield "  (void)result;\n  (void)result_code;\n  (void)resource;"
        yield "  if (status != TVMTARGET_OK) return status;"
        arguments = ", ".join(f"data[{position}]" for position in range(len(tensors)))
        yield f"  return {kernel.symbol}({arguments});\n}}"

    def _packed_entry(self, shapes: Mapping[tuple[int, ...], str]) -> Iterator[str]:
        entry = self._entry
        types = f"{self.prefix}_entry_types"
        yield f"static const struct tvmtarget_type {types}[{max(len(entry), 1)}] = {{{_types(entry, shapes)}}};"
        yield _packed_declaration(f"{self.prefix}___tvm_main__") + " {"
        yield f"  struct {self.prefix}_inputs inputs;\n  struct {self.prefix}_outputs outputs;"
        yield f"  void *data[{max(len(entry), 1)}];"
        yield f"  int32_t status = tvmtarget_read(values, type_codes, count, {types}, {len(entry)}, data);"
        yield "  (void)result;\n  (void)result_code;"
        yield "  if (status != TVMTARGET_OK) return status;"
        if not self.inputs:
            yield "  inputs.unused = 0;"
        names = [f"inputs.{c_identifier(name)}" for name in self.inputs]
        names += [f"outputs.{c_identifier(name)}" for name in self.outputs]
        yield from (f"  {name} = data[{number}];" for number, name in enumerate(names))
        pools = f"(const struct {self.prefix}_workspace_pools *)resource"
        yield f"  if (resource != NULL) return {self.prefix}_run_in(&inputs, &outputs, {pools});"
        yield f"  return {self.prefix}_run(&inputs, &outputs);\n}}"

    def entry_types(self) -> list[str]:
        """Return C declarations of `types`, the types of all inputs and outputs, within a function."""
        shapes = _shape_variables(self._entry, "local")
        lines = [f"  static {_shape_declaration(shape, symbol)}" for shape, symbol in shapes.items()]
        return [*lines, f"  static const struct tvmtarget_type types[] = {{{_types(self._entry, shapes)}}};"]

    def _system_lib(self) -> Iterator[str]:
        names = [] if self.is_unpacked else [(kernel, f"{kernel}_packed") for kernel in self.function.kernels]
        names.append((f"{self.prefix}___tvm_main__",) * 2)
        rows = ",\n  ".join(f'{{"{name}", {function}}}' for name, function in names)
        yield f"static const struct tvmtarget_entry {self.prefix}_entries[] = {{\n  {rows}\n}};"
        yield f"tvmtarget_packed {self.prefix}_function(const char *name) {{"
        yield "  size_t i;\n  if (name == NULL) return NULL;"
        yield f"  for (i = 0; i < sizeof {self.prefix}_entries / sizeof {self.prefix}_entries[0]; ++i)"
        yield f"    if (strcmp({self.prefix}_entries[i].name, name) == 0) return {self.prefix}_entries[i].function;"
        yield "  return NULL;\n}"

    @cached_property
    def _uses_math(self) -> bool:
        return any(b"<math.h>" in data for data in self.function.code.values())


_NEXT = "\n    "
_HOOKS = ("Activate", "Open", "Close", "Deactivate")


def _hook(device: str, hook: str) -> str:
    """Return the name of a hook, as TVM has it: `TVMDeviceEthosUOpen` for the device `ethos-u`."""
    words = re.split(r"[\W_]+", device, flags=re.ASCII)
    return f"TVMDevice{''.join(word[:1].upper() + word[1:] for word in words)}{hook}"


def _ended(call: str, indent: str) -> Iterator[str]:
    """Yield a call that also runs after an error, whose status the first error hides."""
    yield f"{indent}ended = {call};"
    yield f"{indent}if (status == TVMTARGET_OK) status = ended;"


def _output(number: int) -> str:
    """Return the name of a buffer for a result that is copied; no name of a value has a blank."""
    return f"output {number}"


def _scratch(call: KernelCall, number: int) -> str:
    """Return the name of a workspace; no name of a value has a blank, and each value is written once."""
    return f"workspace {number} of {call.writes[0]}"


def _pool_variable(name: str) -> str:
    return f"memory_{c_identifier(name)}"


def _placed(place: Place, tensor: Tensor, base: str = "") -> str:
    if not tensor.nbytes:
        return "NULL"
    type_ = C_TYPES[tensor.dtype]
    return f"({type_} *)(void *)({base or _pool_variable(place.pool)} + {place.offset})"


def _tensors(kernel: Kernel) -> tuple[Tensor, ...]:
    return (*kernel.reads, *kernel.writes, *kernel.workspaces)


def _packed_declaration(name: str) -> str:
    return (
        f"int32_t {name}(union tvmtarget_value *values, int32_t *type_codes, int32_t count,\n"
        "    union tvmtarget_value *result, int32_t *result_code, void *resource)"
    )


_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # of DLPack, by numpy's kinds


def _shape_variables(tensors: Iterable[Tensor], prefix: str) -> dict[tuple[int, ...], str]:
    """Return the C variable of each shape."""
    shapes = dict.fromkeys(one.shape for one in tensors)
    return {shape: f"{prefix}_shape_{number}" for number, shape in enumerate(shapes)}


def _shape_declaration(shape: Sequence[int], variable: str) -> str:
    sizes = ", ".join(f"INT64_C({size})" for size in shape) or "0"
    return f"const int64_t {variable}[] = {{{sizes}}};"


def _types(tensors: Iterable[Tensor], shapes: Mapping[tuple[int, ...], str]) -> str:
    rows = []
    for one in tensors:
        dtype = np.dtype(one.dtype)
        rows.append(f"\n  {{{_CODES[dtype.kind]}, {dtype.itemsize * 8}, {len(one.shape)}, {shapes[one.shape]}}}")
    return ",".join(rows) or "{0, 0, 0, NULL}"


def _comment(text: str) -> str:
    return text.replace("*/", "* /").replace("/*", "/ *")


def _numbers(array: Array) -> Iterator[str]:
    """Yield lines with the elements of an array as C constants that read back as the same numbers."""
    flat = array.ravel()
    kind, size = array.dtype.kind, array.dtype.itemsize
    if not flat.size:
        flat = np.zeros(1, array.dtype)
    # 9 and 17 significant digits identify every number of 32 and 64 bits (IEEE 754-2008, 5.12.2).
    form = {"f": "%.8ef" if size == 4 else "%.16e", "u": "%dU" if size < 8 else "UINT64_C(%d)"}.get(kind, "%d")
    form = "INT64_C(%d)" if kind == "i" and size == 8 else form
    least = {np.dtype("int32"): -(2**31), np.dtype("int64"): -(2**63)}.get(array.dtype)
    is_plain = kind in "fiu" and bool(np.isfinite(flat).all()) and (least is None or int(flat.min()) > least)
    whole = f"  {', '.join([form] * 8)},"
    for begin in range(0, flat.size, 8):
        row = flat[begin : begin + 8].tolist()
        if is_plain and len(row) == 8:
            yield whole % tuple(row)
        else:
            yield "  " + ", ".join(_special(number, form) if kind != "b" else str(int(number)) for number in row) + ","


def _special(number: float, form: str) -> str:
    if number != number:
        return "NAN"
    if number in (float("inf"), float("-inf")):
        return "INFINITY" if number > 0 else "-INFINITY"
    if number == -(2**63) and "64" in form:
        return "INT64_MIN"
    if number == -(2**31) and form == "%d":
        return "INT32_MIN"
    return form % number
