"""Machine code of libraries, for several instruction sets, of which each machine runs the best that it has.

Code for any x86-64 has SSE2 only, whose vectors are half as wide as those of AVX2, and which multiplies and adds in two
instructions. Code of a leaf that states no instructions is therefore scheduled for the level x86-64-v3 (AVX2 and FMA,
processors of 2013 and later), and LLVM compiles each scheduled tensor function twice, for that level and for any
x86-64. A function in C has the name of the tensor function, and calls one of them. Constants and the instructions of
TVM's virtual machine are those of both. Levels of x86-64: System V ABI for AMD64, version 1.0, section 3.1.1.

Only libraries have several versions, as the functions in C are compiled when these are linked. Of one version or two,
code of a library is several object files, which threads compile at the same time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

from tvmtarget.backends.machine import is_any_x86, native_code_mismatch, processors
from tvmtarget.backends.tvm.compiled_module import has_linker, import_tvm, object_folder
from tvmtarget.ir.names import Names
from tvmtarget.ir.relax.code import with_calls
from tvmtarget.target.tree import Target

__all__ = ["CHECKS", "LEVEL", "LEVEL_VARIABLE", "has_versions", "object_files", "renamed", "runs_level"]

Module: TypeAlias = Any
Function: TypeAlias = Any
GlobalVar: TypeAlias = Any
TvmTarget: TypeAlias = Any
_T = TypeVar("_T")

LEVEL = "x86-64-v3"
# With the value 1, code for any x86-64 is run: to compare results, and to test it.
LEVEL_VARIABLE = "TVMTARGET_X86_LEVEL"

CHECKS = "checks_arguments"  # attribute of a tensor function that reads what a caller of the library gives

# Object files of each version, with checks and without, on any machine, so that libraries are equal: LLVM takes most of
# the time of a build.
PARTS = 4


def has_versions(leaf: Target) -> bool:
    """Return whether the code of a leaf has several versions.

    Args:
        leaf: a leaf.

    Returns:
        True if it is for x86-64, states no instructions, and can be linked on this machine.
    """
    return is_any_x86(leaf) and has_linker()


def runs_level(leaf: Target) -> bool:
    """Return whether this machine runs the version for `LEVEL` of a leaf with several versions.

    Args:
        leaf: the leaf.

    Returns:
        False if it runs the code for any x86-64.
    """
    limit = os.environ.get(LEVEL_VARIABLE, "")
    return not limit.startswith("1") and native_code_mismatch(leaf.override({"mcpu": LEVEL})) is None


def object_files(functions: Mapping[GlobalVar, Function], targets: Sequence[TvmTarget]) -> list[Module]:
    """Compile tensor functions for a library: for one target, or two and the choice of one.

    Args:
        functions: scheduled tensor functions by their names in the executable.
        targets: TVM's target; or that of level `LEVEL`, then that of other machines.

    Returns:
        Modules that the executable imports.
    """
    tvm = import_tvm()
    names = Names(variable.name_hint for variable in functions)
    called = [variable.name_hint for variable, function in functions.items() if "global_symbol" in function.attrs]
    entries: dict[str, list[str]] = {name: [] for name in called}
    context = tvm.transform.PassContext.current()
    with object_folder() as folder:
        tasks: list[Callable[[], Module]] = []
        for target, suffix in zip(targets, ("v3", "v1") if len(targets) > 1 else ("",), strict=True):
            version = functions
            if suffix:
                new = {
                    variable.name_hint: tvm.ir.GlobalVar(names.fresh(f"{variable.name_hint}_{suffix}"))
                    for variable in functions
                }
                version = {new[variable.name_hint]: renamed(function, new) for variable, function in functions.items()}
                for name, made in entries.items():
                    made.append(new[name].name_hint)
            for number, (part, is_checked) in enumerate(_parts(version)):
                within = context if is_checked else _without_checks(context)
                tasks.append(partial(_compiled, part, target, within, folder / f"{suffix}_{number}.o"))
        # TVM sets LLVM's options for the whole process while it compiles.
        sets_options = any(target.attrs.get("cl-opt") for target in targets)
        modules = _in_threads(tasks, 1 if sets_options else processors())
    if len(targets) == 1:
        return modules
    chosen = tvm.get_global_func("runtime.CSourceModuleCreate")(_choosing(entries.items()), "c", called, [])
    return [*modules, chosen]


def _parts(functions: Mapping[GlobalVar, Function]) -> Iterator[tuple[dict[GlobalVar, Function], bool]]:
    """Divide functions among object files, and tell whether they check their arguments.

    Functions that call each other have to be in one file.
    """
    called: list[GlobalVar] = []
    for function in functions.values():
        with_calls(function, lambda variable, _: called.append(variable))
    if called:
        yield dict(functions), True
        return
    groups: dict[bool, list[tuple[GlobalVar, Function]]] = {False: [], True: []}
    for variable, function in functions.items():
        groups[_has_checks(function)].append((variable, function))
    for is_checked, group in groups.items():
        count = min(PARTS, len(group))
        yield from ((dict(group[number::count]), is_checked) for number in range(count))


def _has_checks(function: Function) -> bool:
    """Return whether a function has to check what it gets: inputs of the program, or what it states itself.

    The virtual machine makes all other tensors, by their types, and checks the sizes that types do not tell where it
    learns them (`match_cast`). The checks of arguments are most of the code of many functions (180 kB of 195 for one
    that joins 46 tensors).
    """
    from tvm import tirx
    from tvm_ffi import structural_walk

    if CHECKS in function.attrs:
        return True
    stated: list[Any] = []
    structural_walk(function.body, (tirx.AssertStmt, stated.append))
    return bool(stated)


def _without_checks(context: Any) -> Any:  # noqa: ANN401
    """Return a context in which functions do not check their arguments."""
    return import_tvm().transform.PassContext(
        opt_level=context.opt_level,
        required_pass=list(context.required_pass),
        disabled_pass=list(context.disabled_pass),
        instruments=list(context.instruments or ()),
        config={**context.config, "tirx.disable_assert": True},
    )


def _compiled(functions: Mapping[GlobalVar, Function], target: TvmTarget, context: Any, path: Path) -> Module:  # noqa: ANN401
    """Compile functions into an object file."""
    tvm = import_tvm()
    # Contexts belong to threads.
    with context, target:
        module = tvm.tirx.build(tvm.IRModule(functions), target=target)
    module.write_to_file(str(path))
    return tvm.runtime.load_static_library(str(path), [variable.name_hint for variable in functions])


def _in_threads(tasks: Sequence[Callable[[], _T]], count: int) -> list[_T]:
    """Return the results of tasks that release Python's lock, run in so many threads.

    The threads do not keep the process from ending, since a compilation that takes too long cannot be stopped.
    """
    waiting = SimpleQueue[int]()
    for number in range(len(tasks)):
        waiting.put(number)
    results: dict[int, _T] = {}
    errors: list[BaseException] = []

    def work() -> None:
        while not errors:
            try:
                number = waiting.get_nowait()
            except Empty:
                return
            try:
                results[number] = tasks[number]()
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(len(tasks), count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(tasks))]


def renamed(function: Function, new: Mapping[str, GlobalVar]) -> Function:
    """Return a tensor function under another name, with other names of what it calls.

    Args:
        function: the function.
        new: the new names by the old ones.

    Returns:
        The changed function.
    """
    function = with_calls(function, lambda _, call: new.get(call.name))
    symbol = function.attrs.get("global_symbol")
    return function.with_attr("global_symbol", new[symbol].name_hint) if symbol in new else function


# The calling convention is that of tvm-ffi (`TVMFFISafeCallType` in `tvm/ffi/c_api.h`). The bits are those of leaves 1,
# 7 and 0x80000001 of cpuid, and of XCR0 (Intel SDM 2A, CPUID, and 1, 14.3): the system must save the AVX registers.
_HEAD = """\
#include <cpuid.h>
#include <stdlib.h>
#ifdef __cplusplus
extern "C" {
#endif
static int has_v3(void) {
  static volatile int known = 0; /* 1: no, 2: yes */
  if (known == 0) {
    unsigned a, b, c, d, xcr0 = 0, xcr0_high, yes = 0;
    const char *level = getenv("LEVEL_VARIABLE");
    if ((level == NULL || level[0] != '1') && __get_cpuid(1, &a, &b, &c, &d) && (c & 1u << 27)) {
      __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(xcr0_high) : "c"(0));
      /* FMA, MOVBE, AVX, F16C; AVX2, BMI1, BMI2; LZCNT */
      yes = (xcr0 & 6u) == 6u && (c & 0x30401000u) == 0x30401000u;
      yes = yes && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 0x128u) == 0x128u;
      yes = yes && __get_cpuid(0x80000001u, &a, &b, &c, &d) && (c & 0x20u);
    }
    known = yes ? 2 : 1;
  }
  return known == 2;
}
#define CHOOSE(name, v3, v1) \\
  int v3(void *, const void *, int, void *); \\
  int v1(void *, const void *, int, void *); \\
  __attribute__((visibility("default"))) int name(void *self, const void *args, int count, void *result) { \\
    return (has_v3() ? v3 : v1)(self, args, count, result); \\
  }
""".replace("LEVEL_VARIABLE", LEVEL_VARIABLE)
_TAIL = """\
#ifdef __cplusplus
}
#endif
"""
_PREFIX = "__tvm_ffi_"


def _choosing(entries: Iterable[tuple[str, list[str]]]) -> str:
    """Return C that calls one of two functions, for each name with those of its versions."""
    lines = (f"CHOOSE({', '.join(_PREFIX + one for one in (name, *made))})\n" for name, made in entries)
    return _HEAD + "".join(lines) + _TAIL
