"""Libraries of TIR functions for programs in C and other languages, which need no runtime of TVM.

A library has the functions that TVM compiled, which TVM and `tvm_ffi` can load; for each one a function of C that takes
tensors of DLPack, and one that takes addresses if all shapes are static; and the few functions of TVM's runtime that
code for CPUs calls (`tvm/runtime/c_backend_api.h`). Parallel loops run on the thread of the caller, except where TVM
has loaded the library: it then provides its own functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvmtarget.backends.tvm.compiled_module import object_folder
from tvmtarget.backends.tvm.operator_functions import OperatorParameter
from tvmtarget.errors import ArtifactError
from tvmtarget.files import write_folder
from tvmtarget.target.tree import Target
from tvmtarget.toolchains.compilers import toolchain_for
from tvmtarget.toolchains.platforms import general

__all__ = ["export_operators", "header_source", "library_source"]

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# Reserved words of C99 and C++17 that are no types of DLPack, as names of parameters.
_RESERVED = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const const_cast
    constexpr continue decltype default delete do double dynamic_cast else enum explicit export extern false float for
    friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
    protected public register reinterpret_cast restrict return short signed sizeof static static_assert static_cast
    struct switch template this thread_local throw true try typedef typeid typename union unsigned using virtual void
    volatile wchar_t while xor xor_eq
"""
# Types of C, and DLPack's code and bits, of element types; 16-bit floats are passed as their bits.
_TYPES = {
    **{f"int{bits}": (f"int{bits}_t", 0, bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (f"uint{bits}_t", 1, bits) for bits in (8, 16, 32, 64)},
    "float16": ("uint16_t", 2, 16),
    "float32": ("float", 2, 32),
    "float64": ("double", 2, 64),
    "bfloat16": ("uint16_t", 4, 16),
    "bool": ("uint8_t", 6, 8),
}


def export_operators(
    path: Path,
    functions: Mapping[str, Sequence[OperatorParameter]],
    built: Any,  # noqa: ANN401
    target: Target,
) -> None:
    """Write a library and its header.

    Args:
        path: the file: a shared library, or an object file if its name ends with `.o`. The header is beside it; it is
            called like the library, without `lib` and with the suffix `.h`.
        functions: the parameters of the functions by name.
        built: TVM's runtime module of code for CPUs.
        target: the CPU.

    Raises:
        ArtifactError: a function has no name of C, or the platform has no shared libraries.
        BackendError: there is no compiler for the target.
    """
    compiler = toolchain_for(target)
    is_object, is_linux = path.suffix == ".o", compiler.triple.os == "linux"
    if not is_object and compiler.triple.os in ("", "none"):
        raise ArtifactError(f"{path}: {general(compiler.triple)} has no shared libraries; name an object file, NAME.o")
    prefix = re.sub(r"\W", "_", path.name.partition(".")[0].removeprefix("lib"), flags=re.ASCII)
    if not _IDENTIFIER.fullmatch(prefix):
        raise ArtifactError(
            f"{path}: names of functions begin with the name of the file, and {prefix!r} is no name in C"
        )
    header = header_source(prefix, functions)
    with object_folder() as folder:
        built.write_to_file(str(folder / "code.o"), "o")
        # Large buffers of a function are allocated; code that has none needs no `malloc`, which boards may lack.
        has_workspace = b"__TVMBackendAllocWorkspace" in (folder / "code.o").read_bytes()
        (folder / f"{prefix}.h").write_text(header, encoding="ascii")
        (folder / "functions.c").write_text(
            library_source(prefix, functions, has_workspace=has_workspace), encoding="ascii"
        )
        kind = ["-r", "-nostdlib"] if is_object else ["-shared", "-lm", *(["-ldl"] if is_linux else [])]
        options = ["-std=gnu99", "-O2", "-fPIC", "-fno-strict-aliasing", *kind]
        compiler.compile([folder / "functions.c", folder / "code.o"], folder / path.name, options)
        library = (folder / path.name).read_bytes()
    write_folder(path.parent, {path.name: library, f"{prefix}.h": header.encode()}, last=[f"{prefix}.h"])


def header_source(prefix: str, functions: Mapping[str, Sequence[OperatorParameter]]) -> str:
    """Return the header of a library.

    Args:
        prefix: what names of functions begin with.
        functions: the parameters of the functions by name.

    Returns:
        C99, which C++ reads too.

    Raises:
        ArtifactError: the name of a function is no name of C.
    """
    guard = f"{prefix.upper()}_H"
    lines: list[str] = []
    for name, parameters in functions.items():
        if not _IDENTIFIER.fullmatch(name):
            raise ArtifactError(f"function {name!r} cannot be exported: it is no name in C; rename it")
        lines += [f"/* {name}({', '.join(map(str, parameters))}) */", f"{_by_tensors(prefix, name, parameters)};"]
        lines += [f"{_by_addresses(prefix, name, parameters)};"] if _is_static(parameters) else []
    return _HEADER % {"guard": guard, "prefix": prefix, "functions": "\n".join(lines)}


def library_source(
    prefix: str, functions: Mapping[str, Sequence[OperatorParameter]], *, has_workspace: bool = True
) -> str:
    """Return the functions of C around those that TVM compiled.

    Args:
        prefix: what names of functions begin with.
        functions: the parameters of the functions by name.
        has_workspace: whether they allocate buffers, by `malloc`.

    Returns:
        C99 with attributes of GCC.
    """
    parts = [_SOURCE % {"prefix": prefix, "has_workspace": int(has_workspace)}]
    for name, parameters in functions.items():
        arguments = [_argument(at, one) for at, one in enumerate(parameters)]
        checks = [
            f'  if ({test}) return refuse("{name}: {one.name} {problem}");'
            for at, one in enumerate(parameters)
            if one.shape is not None
            for test, problem in (
                (f"!{_name(at, one)}", "is NULL"),
                (
                    f"!begins_at({_name(at, one)}, {one.alignment})",
                    f"does not begin at a multiple of {one.alignment} bytes",
                ),
            )
        ]
        parts += [
            f"extern int32_t __tvm_ffi_{name}(void *self, const Any *arguments, int32_t count, Any *result);",
            f"{_by_tensors(prefix, name, parameters)} {{",
            f"  Any arguments[{len(parameters) + 1}], result = {{0, 0, {{0}}}};",
            "  begin();",
            *checks,
            *(f"  {line}" for line in arguments),
            f"  return __tvm_ffi_{name}(0, arguments, {len(parameters)}, &result);",
            "}",
        ]
        if _is_static(parameters):
            names = [_name(at, one) for at, one in enumerate(parameters)]
            given = [
                f"&{one}_tensor" if two.shape is not None else one for one, two in zip(names, parameters, strict=True)
            ]
            parts += [
                f"{_by_addresses(prefix, name, parameters)} {{",
                *(line for at, one in enumerate(parameters) for line in _tensor(at, one)),
                f"  return {prefix}_{name}({', '.join(given)});",
                "}",
            ]
    return "\n".join(parts) + "\n"


def _is_static(parameters: Sequence[OperatorParameter]) -> bool:
    return all(one.dtype in _TYPES and None not in (one.shape or ()) for one in parameters)


def _name(position: int, parameter: OperatorParameter) -> str:
    """Return the name of a parameter in C."""
    name = re.sub(r"\W", "_", parameter.name, flags=re.ASCII)
    is_free = (
        _IDENTIFIER.fullmatch(name) and name not in _RESERVED.split() and not re.search(r"_tensor$|_shape$|_t$", name)
    )
    return name if is_free and name not in ("arguments", "result") else f"{name}_{position}"


def _by_tensors(prefix: str, function: str, parameters: Sequence[OperatorParameter]) -> str:
    typed = [
        f"const DLTensor *{_name(at, one)}" if one.shape is not None else f"{_number(one)} {_name(at, one)}"
        for at, one in enumerate(parameters)
    ]
    return f"int32_t {prefix}_{function}({', '.join(typed) or 'void'})"


def _by_addresses(prefix: str, function: str, parameters: Sequence[OperatorParameter]) -> str:
    typed = [
        f"{'' if one.is_written else 'const '}{_TYPES[one.dtype][0]} *{_name(at, one)}"
        if one.shape is not None
        else f"{_number(one)} {_name(at, one)}"
        for at, one in enumerate(parameters)
    ]
    return f"int32_t {prefix}_{function}_data({', '.join(typed) or 'void'})"


def _number(parameter: OperatorParameter) -> str:
    return "double" if "float" in parameter.dtype else _TYPES.get(parameter.dtype, ("int64_t",))[0]


def _argument(position: int, parameter: OperatorParameter) -> str:
    """Return the statement that passes an argument on; types of values are those of `tvm/ffi/c_api.h`."""
    name = _name(position, parameter)
    if parameter.shape is not None:
        index, field, value = 7, "address", f"(void *){name}"
    elif "float" in parameter.dtype:
        index, field, value = 3, "real", name
    else:
        index, field, value = 2 if parameter.dtype == "bool" else 1, "integer", f"(int64_t){name}"
    at = f"arguments[{position}]"
    return f"{at}.type = {index}, {at}.padding = 0, {at}.value.{field} = {value};"


def _tensor(position: int, parameter: OperatorParameter) -> list[str]:
    if parameter.shape is None:
        return []
    name, (_, code, bits) = _name(position, parameter), _TYPES[parameter.dtype]
    sizes = ", ".join(map(str, parameter.shape)) or "0"
    return [
        f"  static int64_t {name}_shape[] = {{{sizes}}};",
        f"  const DLTensor {name}_tensor = "
        f"{{(void *){name}, {{1, 0}}, {len(parameter.shape)}, {{{code}, {bits}, 1}}, {name}_shape, 0, 0}};",
    ]


_HEADER = """\
/* Functions that tvmtarget compiled. Each one returns 0, or -1 for an error. */
#ifndef %(guard)s
#define %(guard)s
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#if !defined(DLPACK_DLPACK_H_) && !defined(TVMTARGET_DLTENSOR)
#define TVMTARGET_DLTENSOR
/* The tensors of DLPack 1. A program that includes dlpack.h as well includes it before this file. */
typedef struct {
  int32_t device_type; /* 1: CPU */
  int32_t device_id;
} DLDevice;
typedef struct {
  uint8_t code; /* 0: int, 1: uint, 2: float, 4: bfloat, 6: bool */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} DLDataType;
typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides; /* elements; a null pointer for contiguous tensors */
  uint64_t byte_offset;
} DLTensor;
#endif
/* The message of the last error of this thread. */
const char *%(prefix)s_error(void);
%(functions)s
#ifdef __cplusplus
}
#endif
#endif
"""

_SOURCE = """\
#define _GNU_SOURCE
#include "%(prefix)s.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <dlfcn.h>
#define OF_THREAD static __thread
#else
#define OF_THREAD static
#endif
typedef struct {
  int32_t type;
  uint32_t padding;
  union {
    int64_t integer;
    double real;
    void *address;
  } value;
} Any;
OF_THREAD char message[512];
static void append(const char *text) {
  size_t used = strlen(message), bytes = strlen(text);
  if (bytes > sizeof message - 1 - used) bytes = sizeof message - 1 - used;
  memcpy(message + used, text, bytes);
  message[used + bytes] = 0;
}
/* Compiled code reports errors by these two functions of tvm_ffi. Where that is loaded, it gets them too. */
#define OF_LIBRARY __attribute__((weak, visibility("hidden")))
OF_LIBRARY void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  int32_t i;
#ifdef __linux__
  void (*forward)(const char *, const char **, int32_t);
  *(void **)&forward = dlsym(RTLD_DEFAULT, "TVMFFIErrorSetRaisedFromCStrParts");
  if (forward && forward != TVMFFIErrorSetRaisedFromCStrParts) forward(kind, parts, count);
#endif
  message[0] = 0;
  append(kind);
  append(": ");
  for (i = 0; i < count; ++i)
    if (parts[i]) append(parts[i]);
}
OF_LIBRARY void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *text) {
  TVMFFIErrorSetRaisedFromCStrParts(kind, &text, 1);
}
/* Compiled code calls these by variables that it has if it needs them; TVM sets them when it loads the library. */
extern void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) __attribute__((weak));
extern int (*__TVMBackendFreeWorkspace)(int, int, void *) __attribute__((weak));
typedef struct {
  void *handle;
  int32_t tasks;
} Group;
typedef int (*Task)(int, Group *, void *);
extern int (*__TVMBackendParallelLaunch)(Task, void *, int) __attribute__((weak));
extern int (*__TVMBackendParallelBarrier)(int, Group *) __attribute__((weak));
#if %(has_workspace)d
static void *allocate(int device, int number, uint64_t bytes, int code, int bits) {
  char *base = bytes < SIZE_MAX - 128 ? malloc((size_t)bytes + 64 + sizeof(void *)) : NULL;
  void **data;
  (void)device, (void)number, (void)code, (void)bits;
  if (!base) return NULL;
  data = (void **)(((uintptr_t)base + sizeof(void *) + 63) / 64 * 64);
  data[-1] = base;
  return data;
}
static int release(int device, int number, void *data) {
  (void)device, (void)number;
  if (data) free(((void **)data)[-1]);
  return 0;
}
#endif
static int launch(Task task, void *data, int tasks) {
  Group group = {NULL, 1};
  (void)tasks; /* the most tasks; one does all of the work */
  return task(0, &group, data);
}
static int wait_for_others(int task, Group *group) {
  (void)task, (void)group;
  return 0;
}
static void begin(void) {
  message[0] = 0;
#if %(has_workspace)d
  if (&__TVMBackendAllocWorkspace && !__TVMBackendAllocWorkspace) __TVMBackendAllocWorkspace = allocate;
  if (&__TVMBackendFreeWorkspace && !__TVMBackendFreeWorkspace) __TVMBackendFreeWorkspace = release;
#endif
  if (&__TVMBackendParallelLaunch && !__TVMBackendParallelLaunch) __TVMBackendParallelLaunch = launch;
  if (&__TVMBackendParallelBarrier && !__TVMBackendParallelBarrier) __TVMBackendParallelBarrier = wait_for_others;
}
static int begins_at(const DLTensor *tensor, uintptr_t bytes) {
  return ((uintptr_t)tensor->data + (uintptr_t)tensor->byte_offset) %% bytes == 0;
}
static int32_t refuse(const char *text) {
  append(text);
  return -1;
}
const char *%(prefix)s_error(void) { return message; }
"""
