"""Traces of TVM's MetaSchedule: propose them by its evolutionary search, and apply them.

Its space is generated for any block, so that it covers operators for which `register_tiling` has no register block. TVM
is imported late and ships no types: its objects are Any, under names that say what they are.
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

from tvmtarget.errors import first_line
from tvmtarget.ir.traces import TRACE_FORMAT, trace_problem

__all__ = ["TILES_FORMAT", "TRACE_FORMAT", "applied", "check_trace", "program_of", "propose", "replay", "trace_text"]

# Candidates of a tuning log that are no traces: the blocks of registers of `schedule_space`.
TILES_FORMAT = "tvmtarget.cpu-tiles/1"

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
    """Propose traces of a function to measure: new ones, and mutations of the best known ones.

    Args:
        function: a tensor function.
        target: TVM's target.
        known: measured traces with their costs in picoseconds.
        count: number of traces.
        seed: seed of the random choices; equal arguments give equal traces.

    Returns:
        Traces; fewer than `count` if there are no more.
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
    """Return MetaSchedule's space for a target kind; for GPUs without tensor cores, which do not sum float32."""
    if kind != "cuda":
        _register_intrinsics(_INTRINSICS.get(platform.machine(), ()))
        return "post-order-apply"
    _register_intrinsics(())
    from tvm.s_tir.meta_schedule.space_generator import PostOrderApply

    return PostOrderApply(sch_rules=kind, postprocs=kind, mutator_probs=kind)


def replay(module: Any, text: str) -> Any:  # noqa: ANN401
    """Schedule a module by a trace.

    Args:
        module: a TVM module of one function.
        text: the trace.

    Returns:
        TVM's schedule.

    Raises:
        ValueError: the text is no trace; TVM raises errors of its own if it does not fit.
    """
    check_trace(text)
    import tvm
    from tvm.s_tir.schedule.trace import Trace

    schedule = tvm.s_tir.Schedule(module)
    Trace.apply_json_to_schedule(json.loads(text), schedule)
    return schedule


def applied(function: Function, text: str) -> Function:
    """Schedule a function by a trace.

    Args:
        function: a tensor function.
        text: the trace.

    Returns:
        The scheduled function.

    Raises:
        ValueError: the trace does not fit.
    """
    check_trace(text)
    try:
        return replay(_module(function), text).mod["main"].with_attr("tirx.is_scheduled", True)
    except Exception as error:
        raise ValueError(f"the trace does not fit: {first_line(error)}") from error


def check_trace(text: str) -> None:
    """Check that a text is a trace that MetaSchedule writes.

    TVM itself applies any instruction in it.

    Args:
        text: the trace.

    Raises:
        ValueError: it is not.
    """
    problem = trace_problem(text)
    if problem is not None:
        raise ValueError(f"the trace does not fit: {problem}")


def trace_text(trace: Any) -> str:  # noqa: ANN401
    """Return a trace as compact JSON, as in MetaSchedule's files.

    Args:
        trace: TVM's trace.

    Returns:
        The text.
    """
    return json.dumps(_plain(trace.as_json()), separators=(",", ":"))


def program_of(function: Function) -> dict[str, object]:
    """Return a function as in MetaSchedule's files, for export to TVM.

    Args:
        function: a tensor function.

    Returns:
        JSON data.
    """
    from tvm.s_tir.meta_schedule.database import Workload

    structural_hash, encoded = map(str, Workload(_module(function)).as_json())
    return {"format": "tvm.ir.json", "hash": structural_hash, "b64": encoded}


def _module(function: Function) -> Any:  # noqa: ANN401
    """Return a module of one function, named as MetaSchedule requires."""
    import tvm

    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def _plain(data: Any) -> Any:  # noqa: ANN401
    """Return TVM's JSON data without numbers and lists that are objects of TVM."""
    import tvm

    if isinstance(data, list | tuple):
        return [_plain(item) for item in data]
    if isinstance(data, tvm.tirx.IntImm):
        return bool(data.value) if str(data.ty) == "bool" else int(data.value)
    return float(data.value) if isinstance(data, tvm.tirx.FloatImm) else data


def _register_intrinsics(modules: Sequence[str]) -> None:
    """Register the tensor intrinsics of some modules only; MetaSchedule would register those of all devices.

    It imports a package whose modules parse 496 functions, which takes 11 s; a package without modules replaces it.
    """
    import tvm

    name = "tvm.s_tir.tensor_intrin"
    if name not in sys.modules:
        package = types.ModuleType(name)
        package.__path__ = [str(Path(tvm.__file__).parent / "s_tir" / "tensor_intrin")]
        sys.modules[name] = package
    for module in modules:
        importlib.import_module(f"{name}.{module}")
