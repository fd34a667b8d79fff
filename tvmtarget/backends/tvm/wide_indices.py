"""Lower functions with indices of 64 bits where LLVM vectorizes those of 32 wrongly.

Where an index of 32 bits is the sum of a remainder by a power of two, as of a Tile, and of what may be negative as far
as LLVM knows, LLVM 22 checks that the sum does not overflow, and takes that for a check that the remainder does not
begin again (`SCEVWrapPredicate::implies`). It then reads the elements that follow, also those beyond memory. Sums of 64
bits need no check, and neither do those of 32 where pointers have as many. Clang compiles C in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from tvmtarget.backends.tvm.compiled_module import import_tvm
from tvmtarget.ir.relax.code import with_calls

__all__ = ["lower_functions", "register_pipeline"]

Module: TypeAlias = Any
Function: TypeAlias = Any

# LLVM unrolls loops of so few iterations, and may vectorize what is around them.
_MOST_UNROLLED = 64

_PIPELINE = "tvmtarget"


@cache
def register_pipeline() -> str:
    """Register TVM's default pipeline of tensor functions with `lower_functions` in it.

    Returns:
        The name, for `tir_pipeline` of `tvm.compile` and `pipeline` of `tvm.tirx.build`.
    """
    tvm = import_tvm()

    def pipeline() -> tuple[Any, Any, Any]:
        lower, *finish = tvm.tirx.get_tir_pipeline("default")
        guarded = tvm.transform.module_pass(
            lambda module, _: lower_functions(module, lower), opt_level=0, name="LowerFunctions"
        )
        return (guarded, *finish)

    tvm.tirx.compilation_pipeline.register_tir_pipeline(_PIPELINE, pipeline)
    return _PIPELINE


def lower_functions(module: Module, lower: Callable[[Module], Module]) -> Module:
    """Lower tensor functions, without narrowing indices where LLVM vectorizes these wrongly.

    Args:
        module: tensor functions that are bound to a target.
        lower: the passes, of which `NarrowDataType` is one.

    Returns:
        The lowered module.
    """
    tvm = import_tvm()
    lowered = lower(module)
    found = [variable for variable, function in lowered.functions_items() if _has_remainders(function)]
    if not found:
        return lowered
    calls: list[object] = []
    for function in module.functions.values():
        with_calls(function, lambda variable, _: calls.append(variable))
    names = {variable.name_hint for variable in found}
    again = {one: function for one, function in module.functions_items() if calls or one.name_hint in names}
    now = tvm.transform.PassContext.current()
    wide = tvm.transform.PassContext(
        opt_level=now.opt_level,
        required_pass=now.required_pass,
        disabled_pass=[*now.disabled_pass, "tirx.NarrowDataType"],
        instruments=now.instruments,
        # TVM 0.27 writes what is left of a divided loop, if that is one iteration, with a 0 of 32 bits in its place.
        config={**now.config, "s_tir.LoopPartition": {"no_unroll_loop_with_extent_one": True}},
    )
    with wide:
        lowered.update(lower(tvm.IRModule(again)))
    return lowered


def _has_remainders(function: Function) -> bool:
    """Return whether remainders by powers of two depend on loops that LLVM may vectorize.

    Args:
        function: the function, with indices of 32 bits where these suffice.

    Returns:
        False if indices of 32 bits are right.
    """
    from tvm import tirx
    from tvm_ffi import structural_walk

    loops: list[Any] = []
    remainders: list[Any] = []
    structural_walk(function.body, (tirx.For, loops.append))
    structural_walk(function.body, ((tirx.FloorMod, tirx.Mod), remainders.append))
    fixed = [*function.params, *(loop.loop_var for loop in loops if _iterations(loop.body) > _MOST_UNROLLED)]
    return any(
        str(one.ty) == "int32"
        and isinstance(one.b, tirx.IntImm)
        and int(one.b) & (int(one.b) - 1) == 0
        and not all(
            any(variable.same_as(other) for other in fixed)
            for variable in tirx.analysis.undefined_vars(tirx.Evaluate(one.a), [])
        )
        for one in remainders
    )


def _iterations(body: Any) -> float:  # noqa: ANN401
    """Return how often loops run what they contain, at most; infinity for symbolic sizes."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    count = 1.0
    loops: list[Any] = []
    structural_walk(body, (tirx.For, loops.append))
    for loop in loops:
        count *= int(loop.extent) if isinstance(loop.extent, tirx.IntImm) else float("inf")
    return count
