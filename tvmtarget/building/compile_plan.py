"""`build`: decompose a program, compile each leaf function, and link the functions under an executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from tvmtarget.backends.protocol import Array, CompileRequest, Schedules
from tvmtarget.building.backend_choice import choose_backends
from tvmtarget.building.executable import Executable
from tvmtarget.building.leaf_compilation import Progress, compile_leaves, log_schedules
from tvmtarget.building.leaf_function import LeafCall, LeafFunction
from tvmtarget.building.plan_request import PlanRequest, ProgramLike, with_where
from tvmtarget.building.tir_modules import build_code, is_code_entry
from tvmtarget.compile_cache import CacheLike, CompileCache, open_cache
from tvmtarget.errors import BackendError, CompileError, InfeasibleError, TargetError, raise_all, warn
from tvmtarget.executors.driver_program import DriverProgram, constants_of
from tvmtarget.human_units import bytes_text
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.relax.leaf_module import leaf_module_json, needs_relax
from tvmtarget.ir.relax.safe_source import unsafe_parts
from tvmtarget.ir.relax.tvm_library import is_tvm_function, is_tvm_module, tvm_module_of
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.decomposition import Refusal
from tvmtarget.partition.machines.machine import is_distributed
from tvmtarget.partition.machines.programs import replicas_of
from tvmtarget.partition.memory_use import MemoryUse, memory_uses
from tvmtarget.partition.outline.outlining import SubgraphRecord
from tvmtarget.partition.pipeline import plan_request
from tvmtarget.partition.plan import Plan
from tvmtarget.partition.preparation import prepare
from tvmtarget.target.argument_types import check_arguments
from tvmtarget.target.attributes import Value
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.kinds import kind_of
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target, TargetLike
from tvmtarget.untrusted import LIMITS, limit

if TYPE_CHECKING:
    from tvmtarget.autotune.log.match import Policy
    from tvmtarget.autotune.log.tuning_log import TuningLog
    from tvmtarget.building.tuned_schedules import Settings, TunedChoices

__all__ = ["Progress", "build", "build_plan", "codegen_target", "compile_request"]


class _Options(TypedDict):
    """Arguments that `build` hands on to `build_plan`."""

    allow_interpreter: bool
    progress: Progress | None
    since: list[Executable]
    cache: CompileCache | None
    jobs: int | None


@check_arguments
def build(
    module: ProgramLike,
    target: TargetLike | None = None,
    target_host: TargetLike | None = None,
    executor: Executor | str | Mapping[str, object] | None = None,
    runtime: Runtime | str | Mapping[str, object] | None = None,
    params: Mapping[str, Array] | None = None,
    mod_name: str = "default",
    *,
    where: Mapping[str, Constraint | str | Target] | None = None,
    allow_interpreter: bool = False,
    progress: Progress | None = None,
    log: TuningLog | str | Path | None = None,
    policy: Policy | None = None,
    settings: Mapping[str, Mapping[str, Value]] | None = None,
    since: Executable | None = None,
    entry: str | None = None,
    cache: CacheLike = True,
    jobs: int | None = None,
) -> Executable:
    """Compile a program for a target and link it into an executable.

    The positional parameters are those of `tvm.relay.build`.

    Args:
        module: A program, an ONNX file, its bytes or model, a module or PrimFunc of Apache TVM, or a plan, which is
            built as it is.
        target: The target in any form that `Target.parse` reads; the module's own by default.
        target_host: The host of the root of the target, or of all targets of a list; it has to equal a host that the
            target states.
        executor: The executor; the target's own by default, else `graph`.
        runtime: The runtime; the target's own by default, else `python`.
        params: Values of parameters of the program by name; these parameters become constants.
        mod_name: The name of the program in saved files, and in the identifiers of a program in C.
        where: Constraints by name or operator, as for `decompose`.
        allow_interpreter: Let numpy interpret leaves without an installed code generator, if they describe a CPU that
            can be this machine.
        progress: Called with the current work, the number of finished functions, and the number of all functions.
        log: A tuning log or its URL, whose kernels, placement and settings are used; `Executable.tuned` lists them.
        policy: Which records of the log may be used; by default those of equal devices only.
        settings: Attributes to set by leaf for this build, in place of those in the log.
        since: An earlier build; functions that are the same on the same site are not compiled again.
        entry: The entry function of the module, as for `decompose`.
        cache: Whether native code is read from and stored in the compile cache, or the folder of another cache;
            docs/compile-cache.md describes it.
        jobs: The number of processes that compile functions; 1 compiles all of them in this process. By default there
            is one for each processor if the functions take longer than the processes take to start.

    Returns:
        The executable, not yet run.

    Raises:
        BackendError: Leaves have no installed code generator, or attributes of the target would be ignored.
        TargetError: A plan is given with arguments that would change it, or an argument would be ignored, or `jobs` is
            below 1, or `mod_name` empty.
        ArgumentError: An argument is of another type.
        InfeasibleError: Operations fit no site; `decompose` raises further errors.
        FileError: `cache` is a folder that other users own or may write.
    """
    if jobs is not None and jobs < 1:
        raise TargetError(f"jobs is {jobs!r}; it is a number of processes, at least 1")
    if not mod_name:
        raise TargetError("mod_name is '', which names no program; omit it, or give a name")
    if is_tvm_function(module):
        module = tvm_module_of(module)
    request = PlanRequest(
        module=module,
        target=target,
        target_host=target_host,
        executor=executor,
        runtime=runtime,
        params=params,
        entry=entry,
        options=with_where(None, where),
    )
    if isinstance(module, IRModule) or is_tvm_module(module):
        module = IRModule.of(module, None if target is None else request.root(), entry)
        request = replace(request, module=module)
    if isinstance(module, IRModule) and is_code_entry(module):
        ignored: dict[str, object] = {"params": params, "where": where, "log": log, "settings": settings}
        ignored |= {"since": since, "policy": policy}
        ignored |= {"cache": not isinstance(cache, bool), "jobs": jobs}
        _check_not_given(ignored)
        return _build_code(module, request.root(module.target), mod_name, progress)
    plan = request.plan()
    if log is None and policy is not None:
        raise TargetError("policy (--near) needs a tuning log; pass log (--log), or omit policy")
    raise_all(TargetError, [*_unknown_sites(plan, settings or {})])
    options: _Options = {
        "allow_interpreter": allow_interpreter,
        "progress": progress,
        "since": [] if since is None else [since],
        "cache": open_cache(cache),
        "jobs": jobs,
    }
    # A plan is built as it is.
    build_with = build_plan if isinstance(module, Plan) else _build_movable
    if log is None:
        return build_with(plan, None, settings, mod_name, **options)
    from tvmtarget.building.tuned_schedules import SAME_DEVICE, TunedChoices, opened_log  # most builds have no log

    with opened_log(log) as opened:
        choices = TunedChoices(opened, SAME_DEVICE if policy is None else policy)
        # A log may choose the kernels and settings of a plan, but not its placement.
        if not isinstance(module, Plan):
            plan = choices.placed(plan)
        return build_with(plan, choices, settings, mod_name, **options)


_MOST_MOVED = 16  # plans of one build
_MOST_NAMED = 4  # operations of a function, in messages
# Code may keep weights in forms of so many times their bytes: those of Winograd's algorithm for tiles of 4 x 4.
_WEIGHTS_GROW = 4


def _build_movable(
    plan: Plan, choices: TunedChoices | None, settings: Settings | None, name: str, **options: Unpack[_Options]
) -> Executable:
    """Build a plan; operations of a function that fails to compile move to other leaves, with a warning."""
    for _ in range(_MOST_MOVED):
        try:
            return build_plan(plan, choices, settings, name, **options)
        except CompileError as error:
            moved = _moved(plan, error)
            if moved is None:
                raise
            more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
            warn(f"{error.problems[0]}{more}; its operations run on other leaves now")
            plan = moved
    return build_plan(plan, choices, settings, name, **options)


def _moved(plan: Plan, error: CompileError) -> Plan | None:
    """Return the plan without what failed to compile; None if these operations have no other leaf.

    All operations of a function move if its code generator does not say which ones it refuses.
    """
    refused: Mapping[str, Mapping[int, str] | None] = error.refused or {error.function: None}
    failed = [
        Refusal(op, one.site, "its code generator failed to compile it" if reasons is None else reasons[number])
        for one in plan.subgraphs
        for reasons in [refused.get(one.function, {})]
        for number, op in enumerate(one.ops)
        if reasons is None or number in reasons
    ]
    request = replace(plan.request, refusals=(*plan.request.refusals, *failed))
    try:
        return Plan.of(plan_request(request, prepare(request))) if failed else None
    except InfeasibleError:
        return None


def _check_not_given(arguments: Mapping[str, object]) -> None:
    """Raise `TargetError` for arguments that have no meaning for TIR code."""
    raise_all(
        TargetError,
        [
            f"{name} has no effect: the entry of the module is TIR code, which is built as it is; omit {name}, or "
            "constrain functions in the module"
            for name, value in arguments.items()
            if value
        ],
    )


def _build_code(module: IRModule, target: Target, name: str, progress: Progress | None) -> Executable:
    if progress is not None:
        progress("compile main", 0, 1)
    built = build_code(module, target, name)
    if progress is not None:
        progress("compiled", 1, 1)
    return built


def _unknown_sites(plan: Plan, settings: Settings) -> Iterator[str]:
    """Yield an error message for each site that has settings and no subgraph, and for each unknown attribute."""
    used = {subgraph.site for subgraph in plan.subgraphs}
    for site in settings:
        if site not in used:
            names = ", ".join(repr(name) for name in sorted(used))
            yield f"settings are given for {site!r}, which is not a leaf with operations; there is {names or 'none'}"
            continue
        kind = kind_of(plan.topology[site].target.kind)
        unknown = [name for name in settings[site] if kind.attribute(name) is None]
        yield from (f"{kind.unknown(name)} (in settings of {site!r})" for name in unknown)


def build_plan(
    plan: Plan,
    choices: TunedChoices | None = None,
    settings: Settings | None = None,
    name: str = "default",
    *,
    allow_interpreter: bool = False,
    progress: Progress | None = None,
    since: Iterable[Executable] = (),
    cache: CompileCache | None = None,
    jobs: int | None = 1,
) -> Executable:
    """Compile a plan as it is and link it.

    Args:
        plan: The plan.
        choices: A tuning log whose kernels and settings are used; the placement is the plan's.
        settings: Attributes to set by leaf, in place of those in the log.
        name: The name of the program in saved files.
        allow_interpreter: Whether numpy may interpret leaves without a code generator.
        progress: As for `build`.
        since: Earlier builds; functions that are the same on the same site are not compiled again.
        cache: The compile cache, or None.
        jobs: The number of processes that compile functions, as for `build`; by default this one alone.

    Returns:
        The executable.

    Raises:
        BackendError: Leaves have no installed code generator, attributes would be ignored, or a result is too large.
    """
    backends = choose_backends(plan, allow_interpreter=allow_interpreter)
    raise_all(BackendError, _too_large(plan))
    if settings is None:
        settings = {} if choices is None else choices.settings(plan)
    leaves: dict[str, LeafFunction] = {}
    uses = memory_uses(plan)
    scarce = {use.memory for use in uses if _WEIGHTS_GROW * use.weights + use.values > use.limit}
    for subgraph in plan.subgraphs:
        if subgraph.function not in leaves:
            target = codegen_target(plan.topology, subgraph.site)
            schedules = None if choices is None else choices.for_leaf(target)
            chosen = target.override(dict(settings.get(subgraph.site, {})))
            if plan.topology[subgraph.site].domain in scarce:
                savings = backends[subgraph.site][0].memory_savings.get(chosen.kind, {})
                chosen = chosen.override({name: value for name, value in savings.items() if name not in chosen.attrs})
            request = compile_request(plan, subgraph, chosen, schedules)
            leaves[subgraph.function] = LeafFunction(request, *backends[subgraph.site])
    root, tuned = plan.topology.root, () if choices is None else tuple(choices.applied)
    machines = {path: DriverProgram.of(part) for path, part in plan.programs().items()} if is_distributed(root) else {}
    calls = [LeafCall(one.function, one.call, one.ops, one.inputs, one.outputs) for one in plan.subgraphs]
    program, constants = DriverProgram.of(plan.module), constants_of(plan.module)
    replicas = replicas_of(plan.module.main) if machines else {}
    executable = Executable(
        root, program, constants, leaves, name, tuned, machines, calls, cache=cache, replicas=replicas
    )
    raise_all(BackendError, executable.unsupported_reasons())
    code: dict[str, LeafFunction] = {}
    for earlier in since:
        code |= earlier.code
    called = {name: leaves[name] for name in executable.called_leaves}
    compile_leaves(plan, called, code, cache=cache, jobs=jobs, progress=progress)
    _check_scratch(plan, uses, leaves)
    executable.plan = plan
    executable.compile_systems()
    for leaf in leaves.values():
        schedules = log_schedules(leaf.request)
        if schedules is not None:
            leaf.tuned = schedules.applied
    return executable


def _check_scratch(plan: Plan, uses: Sequence[MemoryUse], leaves: Mapping[str, LeafFunction]) -> None:
    """Raise `CompileError` for functions whose kernels allocate more than a memory has left while they run."""
    problems, refused = list[str](), dict[str, Mapping[int, str]]()
    by_memory = {use.memory: (use, dict(use.during)) for use in uses}
    for subgraph in plan.subgraphs:
        scratch = leaves[subgraph.function].scratch
        use, during = by_memory.get(plan.topology[subgraph.site].domain, (None, {}))
        if use is None or not scratch:
            continue
        kernel = max(scratch, key=scratch.__getitem__)
        values, most = during[subgraph.call], scratch[kernel]
        missing = use.weights + values + most - use.limit
        if missing > 0:
            reason = (
                f"kernel {kernel!r} allocates {bytes_text(most)}, and memory {use.memory!r} of {bytes_text(use.limit)} "
                f"has {bytes_text(use.weights)} of weights and {bytes_text(values)} of values then: "
                f"{bytes_text(missing)} too many"
            )
            more = ", ..." if len(subgraph.ops) > _MOST_NAMED else ""
            ops = ", ".join(map(repr, subgraph.ops[:_MOST_NAMED])) + more
            where = f"function {subgraph.function!r} of @{subgraph.site or '.'} ({ops})"
            problems.append(f"{where}: {reason}; allow these ops elsewhere, or state a larger memory")
            refused[subgraph.function] = dict.fromkeys(range(len(subgraph.ops)), reason)
    if problems:
        raise CompileError(*problems, function=next(iter(refused)), refused=refused)


def _too_large(plan: Plan) -> list[str]:
    """Return an error message for each result above the size limit: allocating it can end a process."""
    most = limit("tensor-bytes")
    return [
        f"op {call.source!r} of @{subgraph.site or '.'} yields {output.type}, {bytes_text(output.type.nbytes or 0)}, "
        f"more than the limit of {bytes_text(most)}; {LIMITS['tensor-bytes'].variable} raises it"
        for subgraph in plan.subgraphs
        for call in plan.module[subgraph.function].body
        for output in call.outputs
        if isinstance(output.type, TensorType) and (output.type.nbytes or 0) > most
    ]


def compile_request(
    plan: Plan, subgraph: SubgraphRecord, target: Target, schedules: Schedules | None = None
) -> CompileRequest:
    """Return the leaf function of a subgraph in the form that backends compile.

    Args:
        plan: The plan.
        subgraph: A subgraph of the plan.
        target: The leaf, as `codegen_target` returns it.
        schedules: Where the backend looks up schedules.

    Returns:
        The function as an ONNX model, or as TVM's JSON if it is of Relax, with its target and its signature.

    Raises:
        BackendError: The program was read from an untrusted text or file, and the function holds more than operators.
    """
    function = plan.module[subgraph.function]
    if needs_relax(function):
        source = leaf_module_json(function, plan.module.by_name)
        unsafe = None if plan.request.module.is_trusted else next(unsafe_parts(source), None)
        if unsafe is not None:
            raise BackendError(
                f"function {subgraph.function!r} of @{subgraph.site or '.'} is compiled only if you trust who wrote it "
                f"(read its program with trust=True): {unsafe}"
            )
    else:
        from tvmtarget.ir.onnx.writer import write_function  # late: it imports onnx

        source = bytes(write_function(function, plan.module.by_name).SerializeToString(deterministic=True))
    return CompileRequest(
        name=subgraph.function,
        source=source,
        site=subgraph.site,
        target=target,
        ops=subgraph.ops,
        inputs=subgraph.inputs,
        outputs=subgraph.outputs,
        schedules=schedules,
    )


def codegen_target(topology: Topology, path: str) -> Target:
    """Return a leaf together with its host, outside of its tree, as code generators read it.

    Args:
        topology: The target.
        path: The path of the leaf.

    Returns:
        The leaf without name and count; its host is written in it, unless the leaf is its own host.
    """
    site = topology[path]
    host = topology[site.host].target.replace(name=None, host=None, count=1) if site.host != path else None
    return site.target.replace(name=None, host=host, count=1)
