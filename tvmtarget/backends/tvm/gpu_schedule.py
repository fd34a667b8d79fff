"""Schedules for GPUs: those of a tuning log, else TVM's default rules (dlight).

Code without a schedule has no threads, and no GPU compiles it. TVM is imported late and ships no types: its objects are
Any, under names that say what they are.
"""

from __future__ import annotations

import contextlib
from typing import Any, TypeAlias

from tvmtarget.backends.tvm.call_sites import Use, uses_of
from tvmtarget.backends.tvm.cpu_schedule import Choose
from tvmtarget.backends.tvm.traces import applied

__all__ = ["default_schedule", "schedule_for_gpu"]

Module: TypeAlias = Any
Function: TypeAlias = Any
Target: TypeAlias = Any


def schedule_for_gpu(module: Module, choose: Choose | None = None) -> Module:
    """Schedule the tensor functions of a module under the current target.

    Args:
        module: a TVM module.
        choose: chooses traces of functions; None for the default rules.

    Returns:
        A changed copy; functions whose trace does not fit get the default rules.
    """
    from tvm.s_tir import SBlockRealize
    from tvm.tirx import PrimFunc

    result, uses = module.clone(), uses_of(module)
    for variable, function in module.functions_items():
        if choose is None or not isinstance(function, PrimFunc) or not isinstance(function.body, SBlockRealize):
            continue
        name = variable.name_hint
        chosen = choose(name, function, uses.get(name, Use()))
        if isinstance(chosen, str):
            try:
                result[variable] = applied(function, chosen)
            except ValueError as error:
                choose.reject(name, str(error))
    return _by_rules(result)


def default_schedule(function: Function) -> Function:
    """Schedule a function by TVM's rules under the current target.

    Args:
        function: a tensor function.

    Returns:
        The scheduled function.
    """
    import tvm

    named = function.with_attr("global_symbol", "main")
    return _by_rules(tvm.IRModule({"main": named}))["main"]


def _by_rules(module: Module) -> Module:
    """Schedule other functions by the first rule of TVM's pipeline for CUDA that fits and does not fail.

    TVM tries no further rule where one raises, as rules do on functions that they were not written for.
    """
    from tvm.target import Target
    from tvm.tirx import PrimFunc

    result, target = module.clone(), Target.current()
    for variable, function in module.functions_items():
        if isinstance(function, PrimFunc) and not function.attrs.get("tirx.is_scheduled", False):
            scheduled = _first_that_works(function, target)
            if scheduled is not None:
                result[variable] = scheduled.with_attr("tirx.is_scheduled", True)
    return result


def _first_that_works(function: Function, target: Target) -> Function | None:
    """Return a function scheduled by the first rule that does not fail; None if there is none."""
    from tvm.s_tir import Schedule
    from tvm.s_tir.dlight import gpu

    for rule in (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()):
        with contextlib.suppress(Exception):
            found = rule.apply(function, target, False)
            if found is not None:
                return (found if isinstance(found, Schedule) else found[0]).mod["main"]
    return None
