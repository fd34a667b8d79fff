"""Machine code of libraries, for several instruction sets, of which each machine runs the best that it has.

Code for any x86-64 has SSE2 only, whose vectors are half as wide as those of AVX2, and which multiplies and adds in two
instructions. Code of a leaf that states no instructions is therefore scheduled and lowered for the level x86-64-v3
(AVX2 and FMA, processors of 2013 and later), and LLVM compiles each tensor function twice, for that level and for any
x86-64. A function that has the name of the tensor function calls one of them. Constants and the instructions of TVM's
virtual machine are those of both. Levels of x86-64: System V ABI for AMD64, version 1.0, section 3.1.1.

Only libraries have several versions. Of one version or two, code of a library is several object files, which threads
compile at the same time.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

from tvmtarget.backends.machine import is_any_x86, native_code_mismatch, processors
from tvmtarget.backends.tvm.compiled_module import LEVEL_VARIABLE, has_linker, import_tvm, object_folder
from tvmtarget.backends.tvm.wide_indices import lower_functions
from tvmtarget.ir.names import Names
from tvmtarget.ir.relax.code import with_calls
from tvmtarget.target.tree import Target

__all__ = ["CHECKS", "LEVEL", "LEVEL_VARIABLE", "has_versions", "object_files", "runs_level"]

Module: TypeAlias = Any
Function: TypeAlias = Any
GlobalVar: TypeAlias = Any
TvmTarget: TypeAlias = Any
_T = TypeVar("_T")

LEVEL = "x86-64-v3"

CHECKS = "checks_arguments"  # attribute of a tensor function that reads what a caller of the library gives
_LAYOUT = (".strides", ".byte_offset")  # what the virtual machine does not check of an input, in messages of TVM

# Object files of each version, on any machine, so that libraries are equal: LLVM takes most of the time of a build. An
# object file of nothing takes it 15 ms, a function without a check about 5.
PARTS = 4
LEAST_FUNCTIONS = 3  # of each object file but the last


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
    return not os.environ.get(LEVEL_VARIABLE) and native_code_mismatch(leaf.override({"mcpu": LEVEL})) is None


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
    suffixes = ("_v3", "_v1") if len(targets) > 1 else ("",)
    versions = [{name: names.fresh(name + suffix) if suffix else name for name in called} for suffix in suffixes]
    context = tvm.transform.PassContext.current()
    # TVM sets LLVM's options for the whole process while it compiles.
    sets_options = any(target.attrs.get("cl-opt") for target in targets)
    count = 1 if sets_options else processors()
    lowered = _in_threads([partial(_lowered, part, targets[0], context) for part in _parts(functions)], count)
    with object_folder() as folder:
        tasks = [
            partial(_compiled, module, target, version, context, folder / f"{suffix}_{number}.o")
            for target, version, suffix in zip(targets, versions, suffixes, strict=True)
            for number, module in enumerate(lowered)
        ]
        if len(targets) > 1:
            v3, v1 = versions
            tasks.append(partial(_choosing, {name: (v3[name], v1[name]) for name in called}, folder / "choosing"))
        return _in_threads(tasks, count)


def _parts(functions: Mapping[GlobalVar, Function]) -> list[dict[GlobalVar, Function]]:
    """Divide functions among object files; those that call each other have to be in one."""
    called: list[GlobalVar] = []
    for function in functions.values():
        with_calls(function, lambda variable, _: called.append(variable))
    if called:
        return [dict(functions)]
    given = list(functions.items())
    count = min(PARTS, math.ceil(len(given) / LEAST_FUNCTIONS))
    return [dict(given[number::count]) for number in range(count)]


def _lowered(functions: Mapping[GlobalVar, Function], target: TvmTarget, context: Any) -> Module:  # noqa: ANN401
    """Apply the passes that do not depend on the level: what remains is to be compiled for each target."""
    tvm = import_tvm()
    # Contexts belong to threads.
    with context, target:
        lower, _, _ = tvm.tirx.get_tir_pipeline("default")
        module = lower_functions(
            tvm.tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule(functions)), lower
        )
    for variable, function in functions.items():
        if not _states_checks(function):
            module[variable] = _with_checks(module[variable], _LAYOUT if CHECKS in function.attrs else ())
    return module


def _states_checks(function: Function) -> bool:
    from tvm import tirx
    from tvm_ffi import structural_walk

    stated: list[Any] = []
    structural_walk(function.body, (tirx.AssertStmt, stated.append))
    return bool(stated)


def _with_checks(lowered: Function, names: Sequence[str]) -> Function:
    """Leave out the checks of arguments whose messages name nothing of these.

    The virtual machine makes most tensors, by their types, checks sizes that types do not tell where it learns them
    (`match_cast`), and the number of dimensions, element type and sizes of the inputs of the program. Checks are most
    of the code of many functions (180 kB of 195 for one that joins 46 tensors).
    """
    from tvm import tirx
    from tvm_ffi import structural_map

    def kept(check: Any) -> Any:  # noqa: ANN401
        message = "".join(part.value for part in check.message_parts)
        return check if any(name in message for name in names) else tirx.Evaluate(0)

    return lowered.with_body(structural_map(lowered.body, [(tirx.AssertStmt, kept)]))


def _compiled(lowered: Module, target: TvmTarget, names: Mapping[str, str], context: Any, path: Path) -> Module:  # noqa: ANN401
    """Compile lowered functions into an object file, under other names.

    Calls keep the names, so that they reach the version that is chosen.
    """
    tvm = import_tvm()
    functions: dict[GlobalVar, Function] = {}
    symbols: list[str] = []
    for variable, function in lowered.functions_items():
        version = function.with_attr("target", target.with_host(target))
        if symbol := function.attrs.get("global_symbol"):
            symbols.append(names[symbol.removeprefix(_PREFIX)])
            version = version.with_attr("global_symbol", _PREFIX + symbols[-1])
        functions[variable] = version
    with context, target:
        _, finish, _ = tvm.tirx.get_tir_pipeline("default")
        module = tvm.get_global_func("target.build.llvm")(finish()(tvm.IRModule(functions)), target)
    module.write_to_file(str(path))
    return tvm.runtime.load_static_library(str(path), symbols)


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


# LLVM IR. The bits are those of leaves 1, 7 and 0x80000001 of cpuid, and of XCR0 (Intel SDM 2A, CPUID, and 1, 14.3):
# FMA, MOVBE, OSXSAVE, AVX, F16C; AVX2, BMI1, BMI2; LZCNT; the system must save the AVX registers.
_HAS_LEVEL = r"""
@variable = private constant [LENGTH x i8] c"LEVEL_VARIABLE\00"
@known = internal global i32 0 ; 1: no, 2: yes
declare ptr @getenv(ptr)

define internal { i32, i32, i32, i32 } @cpuid(i32 %leaf) {
  %found = call { i32, i32, i32, i32 } asm "cpuid", "={ax},={bx},={cx},={dx},0,2"(i32 %leaf, i32 0)
  ret { i32, i32, i32, i32 } %found
}

define internal i1 @has_level() {
start:
  %before = load atomic i32, ptr @known monotonic, align 4
  switch i32 %before, label %ask [i32 1, label %no
                                  i32 2, label %yes]
ask:
  %value = call ptr @getenv(ptr @variable)
  %unset = icmp eq ptr %value, null
  br i1 %unset, label %ask_processor, label %read
read:
  %letter = load i8, ptr %value
  %is_one = icmp eq i8 %letter, 49
  br i1 %is_one, label %store, label %ask_processor
ask_processor:
  %leaf0 = call { i32, i32, i32, i32 } @cpuid(i32 0)
  %last = extractvalue { i32, i32, i32, i32 } %leaf0, 0
  %leaf1 = call { i32, i32, i32, i32 } @cpuid(i32 1)
  %c1 = extractvalue { i32, i32, i32, i32 } %leaf1, 2
  %bits1 = and i32 %c1, u0x38401000
  %has1 = icmp eq i32 %bits1, u0x38401000
  %has_leaf7 = icmp uge i32 %last, 7
  %first = and i1 %has1, %has_leaf7
  br i1 %first, label %ask_more, label %store
ask_more:
  %xcr0 = call { i32, i32 } asm "xgetbv", "={ax},={dx},{cx}"(i32 0)
  %saved = extractvalue { i32, i32 } %xcr0, 0
  %bits_saved = and i32 %saved, 6
  %are_saved = icmp eq i32 %bits_saved, 6
  %leaf7 = call { i32, i32, i32, i32 } @cpuid(i32 7)
  %b7 = extractvalue { i32, i32, i32, i32 } %leaf7, 1
  %bits7 = and i32 %b7, u0x128
  %has7 = icmp eq i32 %bits7, u0x128
  %extended = call { i32, i32, i32, i32 } @cpuid(i32 u0x80000001)
  %c = extractvalue { i32, i32, i32, i32 } %extended, 2
  %lzcnt = and i32 %c, u0x20
  %has_lzcnt = icmp ne i32 %lzcnt, 0
  %both = and i1 %has7, %has_lzcnt
  %all = and i1 %both, %are_saved
  br label %store
store:
  %has = phi i1 [false, %read], [false, %ask_processor], [%all, %ask_more]
  %now = select i1 %has, i32 2, i32 1
  store atomic i32 %now, ptr @known monotonic, align 4
  ret i1 %has
no:
  ret i1 false
yes:
  ret i1 true
}
""".replace("LENGTH", str(len(LEVEL_VARIABLE) + 1)).replace("LEVEL_VARIABLE", LEVEL_VARIABLE)
# The calling convention is that of tvm-ffi (`TVMFFISafeCallType` in `tvm/ffi/c_api.h`).
_CHOOSE = """
declare i32 @{v3}(ptr, ptr, i32, ptr)
declare i32 @{v1}(ptr, ptr, i32, ptr)
define i32 @{name}(ptr %self, ptr %args, i32 %count, ptr %result) {{
  %has = call i1 @has_level()
  %version = select i1 %has, ptr @{v3}, ptr @{v1}
  %status = tail call i32 %version(ptr %self, ptr %args, i32 %count, ptr %result)
  ret i32 %status
}}
"""
_PREFIX = "__tvm_ffi_"


def _choosing(versions: Mapping[str, tuple[str, str]], path: Path) -> Module:
    """Compile functions that call one of two versions, that for `LEVEL` or that for other machines."""
    tvm = import_tvm()
    text, binary = path.with_suffix(".ll"), path.with_suffix(".o")
    chosen = (
        _CHOOSE.format(name=_PREFIX + name, v3=_PREFIX + v3, v1=_PREFIX + v1) for name, (v3, v1) in versions.items()
    )
    text.write_text(_HAS_LEVEL + "".join(chosen))
    tvm.get_global_func("ffi.Module.load_from_file.ll")(str(text), "ll").write_to_file(str(binary))
    return tvm.runtime.load_static_library(str(binary), list(versions))
