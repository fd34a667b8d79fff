"""Validation of MetaSchedule traces: an allow list of instructions with allowed values.

A trace is what `tvm.s_tir.schedule.Trace.as_json` writes: instructions, each with a name, inputs, attributes and
results, and the decisions of those that sample. Tuning logs are exchanged between people, and TVM checks neither: an
annotation `pragma_import_llvm` links the code that it holds into the kernel, and an index map is a program in TVM's
JSON. So a trace may only hold what the rules, mutators and postprocessors of MetaSchedule write for CPUs and GPUs
(`src/s_tir/meta_schedule` and the instruction traits in `src/s_tir/schedule/primitive`, TVM 0.27), and no text for a
compiler.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvmtarget.target.problems import shown

__all__ = ["TRACE_FORMAT", "trace_problem"]

TRACE_FORMAT = "tvm.ms.trace/1"

_MAX_INT = 2**31 - 1  # largest extent of a loop in TVM (int32)
_MAX_INSTRUCTIONS = 20_000
_MAX_NAME = 1000  # characters in the name of a block
_MAX_COUNT = 65_536  # largest count in an annotation: unroll steps, parallel jobs, threads of a block

_Check = Callable[[object], bool]

_REFERENCE = re.compile(r"[blv][0-9]{1,9}", re.ASCII)


def _is_int(value: object, low: int = 0, high: int = _MAX_INT) -> bool:
    return type(value) is int and low <= value <= high  # bool is no int here


def _is_flag(value: object) -> bool:
    return type(value) is bool or _is_int(value, 0, 1)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME


def _is_count(value: object) -> bool:
    return _is_int(value, 0, _MAX_COUNT)


def _is_index(value: object) -> bool:
    """Return whether a value is an index; negative ones count from the end."""
    return _is_int(value, -1000, 1000)


def _one_of(*values: object) -> _Check:
    return lambda value: isinstance(value, str) and value in values


def _list_of(check: _Check, max_length: int = 64) -> _Check:
    return lambda value: isinstance(value, list) and len(value) <= max_length and all(map(check, value))


# Storage scopes of TVM (runtime/thread_storage_scope.h), without those of other devices, such as texture and amx.
_is_scope = _one_of(
    "global", "local", "shared", "shared.dyn", "warp", "wmma.matrix_a", "wmma.matrix_b", "wmma.accumulator",
    "m16n8k8.matrixA", "m16n8k8.matrixB", "m16n8k8.matrixC",
)  # fmt: skip
_is_thread = _one_of(*(f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx", "vthread") for axis in "xyz"), "vthread")

# Names of the tensor intrinsics that TVM's own modules register and implement.
_INTRINSIC = re.compile(
    r"(?:dot_16x4_(?:vnni|avx512)|dot_4x4_[iu]8[iu]8[iu]32_(?:neon|sdot|udot|hdot)|rvv_dot(?:_[a-z0-9]{1,12}){3}"
    r"|dp4a_[su]8[su]8s32|sdot4|wmma_(?:sync|load|fill|store)_[a-zA-Z0-9_]{1,80}"
    r"|mma_(?:sync|init|fill|store|load|ldmatrix)?_?[a-zA-Z0-9_]{1,80}|mfma_[a-zA-Z0-9_]{1,80})",
    re.ASCII,
)


def _is_intrinsic(value: object) -> bool:
    return isinstance(value, str) and _INTRINSIC.fullmatch(value) is not None


def _is_structure(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[SR]{1,16}", value) is not None


# Allowed annotations and their values. A string value is JSON within JSON: it has quotes of its own.
_ANNOTATIONS: Mapping[str, _Check] = {
    **dict.fromkeys(
        (
            *("meta_schedule.parallel", "meta_schedule.vectorize", "meta_schedule.cooperative_fetch"),
            *("meta_schedule.unroll_explicit", "meta_schedule.unroll_implicit"),
            *("meta_schedule.thread_extent_low_inclusive", "meta_schedule.thread_extent_high_inclusive"),
            *("pragma_auto_unroll_max_step", "vector_bytes", "meta_schedule.cache_type"),
        ),
        _is_count,
    ),
    **dict.fromkeys(
        (
            *("meta_schedule.random_compute_producer", "pragma_unroll_explicit", "warp_execution"),
            *("meta_schedule.layout_rewrite_preproc", "meta_schedule.tensor_core_enabled", "double_buffer_scope"),
        ),
        lambda value: _is_flag(value) or value in ("0", "1"),
    ),
    **dict.fromkeys(
        ("software_pipeline_stage", "software_pipeline_order", "software_pipeline_async_stages"), _list_of(_is_count)
    ),
    "meta_schedule.tiling_structure": _is_structure,
    "meta_schedule.auto_tensorize": _is_intrinsic,
    "meta_schedule.auto_tensorize_init": _is_intrinsic,
    "meta_schedule.inline_rule": _one_of("disable"),
}
# Annotations that a trace may remove: those of operators too.
_REMOVED = frozenset({*_ANNOTATIONS, "schedule_rule"})


@dataclass(frozen=True, slots=True)
class _Kind:
    """Signature of an instruction.

    Letters are types of references, which TVM resolves itself: b a block, l a loop, v a number, x a block or a loop,
    B and L lists of blocks and of loops, f a factor; a final `*` repeats the letter before it.

    Attributes:
        inputs: letters of the operands.
        attributes: a check for each attribute.
        results: letters of what the instruction defines.
        optional: how many of the last attributes may be missing, since older versions of TVM do not write them.
    """

    inputs: str = ""
    attributes: tuple[_Check, ...] = ()
    results: str = ""
    optional: int = 0


_INLINE = _Kind("b")
_AT = _Kind("bl", (_is_flag, _is_index), optional=1)
_NEAR = _Kind("b", results="b*")
_CACHE = _Kind("bB", (_is_count, _is_scope), "b")
_LOOP = _Kind("l")

_KINDS: Mapping[str, _Kind] = {
    "GetSBlock": _Kind("", (_is_name, _is_name), "b"),
    "GetBlock": _Kind("", (_is_name, _is_name), "b"),  # before TVM 0.24
    "GetLoops": _Kind("b", results="l*"),
    "GetChildBlocks": _Kind("x", results="b*"),
    "GetProducers": _NEAR,
    "GetConsumers": _NEAR,
    "GetOutputBlocks": _NEAR,
    "SampleCategorical": _Kind("", (_list_of(_is_count), _list_of(lambda value: isinstance(value, int | float))), "v"),
    "SamplePerfectTile": _Kind("l", (lambda value: _is_int(value, 1, 64), lambda value: _is_int(value, 1)), "v*"),
    "SamplePartitionedTile": _Kind("l", (lambda value: _is_int(value, 1, 64), _is_count, _is_count), "v*"),
    "SampleComputeLocation": _Kind("b", results="l"),
    "Split": _Kind("lf*", (_is_flag, _is_flag), "l*", optional=1),
    "Fuse": _Kind("l*", (_is_flag,), "l", optional=1),
    "Merge": _Kind("l*", results="l"),
    "Reorder": _Kind("l*"),
    "AddUnitLoop": _Kind("x", results="l"),
    "Parallel": _LOOP,
    "Vectorize": _LOOP,
    "Unroll": _LOOP,
    "Bind": _Kind("l", (_is_thread,)),
    "ComputeAt": _AT,
    "ReverseComputeAt": _AT,
    "ComputeInline": _INLINE,
    "ReverseComputeInline": _INLINE,
    "CacheRead": _CACHE,
    "CacheWrite": _CACHE,
    "ReIndex": _Kind("b", (_is_count, _is_flag), "b"),
    "StorageAlign": _Kind("b", (_is_count, _is_index, _is_count, _is_count)),
    "SetScope": _Kind("b", (_is_count, _is_scope)),
    "DecomposeReduction": _Kind("bl", results="b"),
    "DecomposePadding": _Kind("bl", results="b"),
    "RFactor": _Kind("l", (_is_index,), "b"),
    "PadEinsum": _Kind("b", (_list_of(lambda value: _is_int(value, 1)),)),
    "Blockize": _Kind("x", (_is_flag,), "b"),
    "Tensorize": _Kind("x", (_is_intrinsic, _is_flag), optional=1),
    "EnterPostproc": _Kind(),
}


def trace_problem(trace: object) -> str | None:
    """Return why a trace is not one that MetaSchedule writes.

    Args:
        trace: a trace as JSON text or as data.

    Returns:
        The problem and its position; None if the trace is valid.
    """
    if isinstance(trace, str):
        try:
            trace = json.loads(trace)
        except (ValueError, RecursionError):
            trace = None
    match trace:
        case [[*instructions], [*decisions]]:
            pass
        case _:
            return "it is not a pair of instructions and decisions"
    # Checked before the loops, so that a huge trace is rejected at once.
    if max(len(instructions), len(decisions)) > _MAX_INSTRUCTIONS:
        return f"it has more than {_MAX_INSTRUCTIONS} instructions"
    for at, instruction in enumerate(instructions):
        problem = _instruction_problem(instruction)
        if problem is not None:
            return f"instruction {at}: {problem}"
    for at, decision in enumerate(decisions):
        problem = _decision_problem(decision, instructions)
        if problem is not None:
            return f"decision {at}: {problem}"
    return None


def _instruction_problem(instruction: object) -> str | None:
    match instruction:
        case [str() as name, [*inputs], [*attributes], [*results]]:
            pass
        case _:
            return f"TVM does not write {shown(instruction)}"
    if name in ("Annotate", "Unannotate"):
        problem = _annotation_problem(name, inputs, attributes, results)
        return problem and f"{name}: {problem}"
    kind = _KINDS.get(name)
    if kind is None:
        return f"{shown(name)} is not an instruction that a log may contain"
    if not _fits(kind.inputs, inputs):
        return f"{name} has inputs {shown(inputs)}, which are not what it takes"
    count = len(attributes)
    if not len(kind.attributes) - kind.optional <= count <= len(kind.attributes):
        return f"{name} has {len(kind.attributes)} attributes, not {count}"
    wrong = [value for check, value in zip(kind.attributes, attributes, strict=False) if not check(value)]
    if wrong:
        return f"{name} may not have {shown(wrong[0])}"
    lengths = [len(value) for value in attributes if isinstance(value, list)]
    if name == "SampleCategorical" and lengths[0] != lengths[1]:
        return f"{name} has {lengths[0]} values and {lengths[1]} chances"
    return None if _fits(kind.results, results) else f"{name} does not define {shown(results)}"


def _fits(letters: str, values: Sequence[object]) -> bool:
    """Return whether values match letters of a signature."""
    if letters.endswith("*"):
        fixed, last = letters[:-2], letters[-2]
        letters = fixed + last * (len(values) - len(fixed))
    return len(letters) == len(values) and all(map(_is_input, letters, values))


def _is_input(letter: str, value: object) -> bool:
    if letter in "BL":
        return isinstance(value, list) and all(_is_input(letter.lower(), one) for one in value)
    if letter == "f" and (_is_int(value, 1) or value == "None"):
        return True
    letters = {"x": "bl", "f": "v"}.get(letter, letter)
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None and value[0] in letters


def _annotation_problem(
    name: str, inputs: Sequence[object], attributes: Sequence[object], results: Sequence[object]
) -> str | None:
    is_added = name == "Annotate"
    if len(inputs) != 1 + is_added or results or len(attributes) != 1 or not _is_input("x", inputs[0]):
        return f"TVM does not write {shown([inputs, attributes, results])}"
    (key,) = attributes
    if not isinstance(key, str) or key not in (_ANNOTATIONS if is_added else _REMOVED):
        return f"{shown(key)} is not an annotation that a log may contain"
    if not is_added:
        return None
    value = inputs[1]
    if _is_input("v", value):  # a number that was sampled
        return None if _ANNOTATIONS[key](0) else f"{key!r} is not a number"
    return None if _ANNOTATIONS[key](_unquoted(value)) else f"{key!r} may not be {shown(value)}"


def _unquoted(value: object) -> object:
    """Remove the quotes of a string value; a string without them is a reference, and so becomes None."""
    if not isinstance(value, str) or value[:1] != '"':
        return None if isinstance(value, str) else value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _decision_problem(decision: object, instructions: Sequence[Any]) -> str | None:
    match decision:
        case [int() as at, choice] if _is_int(at, 0, len(instructions) - 1):
            name, _, attributes, results = instructions[at]
        case _:
            return f"TVM does not write {shown(decision)}"
    if name == "SampleCategorical":
        is_legal = _is_int(choice, 0, len(attributes[0]) - 1)
    elif isinstance(choice, list):
        is_legal = all(_is_int(factor, 1) for factor in choice)
        is_legal &= name not in ("SamplePerfectTile", "SamplePartitionedTile") or len(choice) == len(results)
    else:  # SampleComputeLocation: -1 is the root, -2 inlines the block
        is_legal = name not in ("SamplePerfectTile", "SamplePartitionedTile") and _is_int(choice, -2)
    return None if is_legal else f"{name} may not decide {shown(choice)}"
