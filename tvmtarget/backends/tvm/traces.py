"""Schedules of TVM's MetaSchedule: traces of instructions, proposed by its evolutionary search, and applied.

Its space is generated for any block, so that it covers operators for which `tvm_tiles` has no register block. TVM is
imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tvmtarget.ir.traces import TRACE_FORMAT, trace_problem

__all__ = ["TRACE_FORMAT", "applied", "check_trace", "program_of", "propose", "replay", "trace_text"]

Target: TypeAlias = Any
Function: TypeAlias = Any

# TVM's modules of tensor intrinsics by machine.
_INTRINSICS = {"x86_64": ("x86",), "aarch64": ("arm_cpu",), "riscv64": ("riscv_cpu",)}

# A population that is proposed in a second, where MetaSchedule's own of 512 takes half a minute; without a model of
# costs, what a large one would be sorted by is chance.
POPULATION = 32
GENERATIONS = 2
# On GPUs most of what is drawn breaks a limit, and is drawn again: 32 take ten times as long as 16.
GPU_POPULATION = 16
GPU_GENERATIONS = 1
DRAWS = 100  # of a population in a row that may all break a limit, before a space counts as empty


def propose(function: Function, target: Target, known: Sequence[tuple[str, int]], count: int, seed: int) -> list[str]:
    """Return traces for a function that are worth measuring: new ones, and changes of the best that are known.

    `known` are traces with their costs in picoseconds. The same arguments give the same traces.
    """
    space = _space(str(target.kind.name))
    from tvm.s_tir import meta_schedule

    module = _module(function)
    database = meta_schedule.database.MemoryDatabase()
    workload = database.commit_workload(module)
    for text, cost in known:
        if trace_problem(text) is not None:
            continue
        trace = replay(module, text).trace
        database.commit_tuning_record(meta_schedule.database.TuningRecord(trace, workload, [cost / 1e12], target))
    is_gpu = str(target.kind.name) == "cuda"
    population, generations = (GPU_POPULATION, GPU_GENERATIONS) if is_gpu else (POPULATION, GENERATIONS)
    strategy = meta_schedule.search_strategy.EvolutionarySearch(
        population_size=population,
        init_min_unmeasured=population // 2,
        genetic_num_iters=generations,
        max_fail_count=DRAWS,
    )
    context = meta_schedule.TuneContext(
        module,
        target=target,
        space_generator=space,
        search_strategy=strategy,
        num_threads=1,
        rand_state=seed + 1,
    )
    model = meta_schedule.cost_model.RandomModel(seed=seed)
    context.pre_tuning(count, count, context.generate_design_space(), database, model)
    candidates = context.generate_measure_candidates() or []
    context.post_tuning()
    return [trace_text(candidate.sch.trace) for candidate in candidates]


def _space(kind: str) -> Any:  # noqa: ANN401
    """Return MetaSchedule's space for a kind of target: for GPUs without tensor cores, which sum no float32."""
    if kind != "cuda":
        _register_intrinsics(_INTRINSICS.get(platform.machine(), ()))
        return "post-order-apply"
    _register_intrinsics(())
    from tvm.s_tir.meta_schedule.space_generator import PostOrderApply

    return PostOrderApply(sch_rules=kind, postprocs=kind, mutator_probs=kind)


def replay(module: Any, text: str) -> Any:  # noqa: ANN401
    """Return a schedule of a module of one function, after a trace; what TVM raises, or `ValueError`, if none fits."""
    check_trace(text)
    import tvm
    from tvm.s_tir.schedule.trace import Trace

    schedule = tvm.s_tir.Schedule(module)
    Trace.apply_json_to_schedule(json.loads(text), schedule)
    return schedule


def applied(function: Function, text: str) -> Function:
    """Return a function scheduled by a trace; raise `ValueError` where it does not fit."""
    check_trace(text)
    try:
        return replay(_module(function), text).mod["main"].with_attr("tirx.is_scheduled", True)
    except Exception as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ValueError(f"the trace does not fit: {reason}") from error


def check_trace(text: str) -> None:
    """Raise `ValueError` where a text is no trace that MetaSchedule writes: TVM applies whatever stands in it."""
    problem = trace_problem(text)
    if problem is not None:
        raise ValueError(f"the trace does not fit: {problem}")


def trace_text(trace: Any) -> str:  # noqa: ANN401
    """Return a trace as compact JSON, as MetaSchedule's files have it."""
    return json.dumps(_plain(trace.as_json()), separators=(",", ":"))


def program_of(function: Function) -> dict[str, object]:
    """Return a function as MetaSchedule's files have it: the payload of a workload that can be exported to TVM."""
    from tvm.s_tir.meta_schedule.database import Workload

    structural_hash, encoded = map(str, Workload(_module(function)).as_json())
    return {"format": "tvm.ir.json", "hash": structural_hash, "b64": encoded}


def _module(function: Function) -> Any:  # noqa: ANN401
    """Return a module with nothing but the function, named as MetaSchedule wants it."""
    import tvm

    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def _plain(data: Any) -> Any:  # noqa: ANN401
    """Return JSON of TVM's without numbers and lists that are objects of TVM."""
    import tvm

    if isinstance(data, list | tuple):
        return [_plain(item) for item in data]
    if isinstance(data, tvm.tirx.IntImm):
        return bool(data.value) if str(data.ty) == "bool" else int(data.value)
    return float(data.value) if isinstance(data, tvm.tirx.FloatImm) else data


def _register_intrinsics(modules: Sequence[str]) -> None:
    """Register the tensor intrinsics of some modules, and not those of all devices, which MetaSchedule would.

    It imports a package whose modules parse 496 functions, for 11 s; here one without modules takes its place.
    """
    import tvm

    name = "tvm.s_tir.tensor_intrin"
    if name not in sys.modules:
        package = types.ModuleType(name)
        package.__path__ = [str(Path(tvm.__file__).parent / "s_tir" / "tensor_intrin")]
        sys.modules[name] = package
    for module in modules:
        importlib.import_module(f"{name}.{module}")
