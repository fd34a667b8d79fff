"""`build`: decompose a program, compile each leaf function, and link the functions under an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from tvmtarget.autotune.log.match import Policy
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.backends.protocol import Array, Backend, Compiled, CompileRequest, Schedules
from tvmtarget.backends.sharing import build_key, code_key
from tvmtarget.building.backend_choice import choose_backends
from tvmtarget.building.executable import Executable
from tvmtarget.building.leaf_function import LeafCall, LeafFunction
from tvmtarget.building.plan_request import PlanRequest, ProgramLike, TargetLike
from tvmtarget.building.tir_modules import build_code, is_code_entry
from tvmtarget.building.tuned_schedules import SAME_DEVICE, LogSchedules, Settings, TunedChoices, opened_log
from tvmtarget.errors import BackendError, TargetError, raise_all
from tvmtarget.executors.driver_program import DriverProgram, constants_of
from tvmtarget.human_units import bytes_text
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.relax.leaf_module import external_module_json, leaf_module_json, needs_relax
from tvmtarget.ir.relax.safe_source import unsafe_parts
from tvmtarget.ir.relax.tvm_library import is_tvm_module
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.machines.machine import is_distributed
from tvmtarget.partition.outline.composites import with_composites
from tvmtarget.partition.outline.outlining import SubgraphRecord
from tvmtarget.partition.plan import Plan
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target
from tvmtarget.untrusted import LIMITS, limit

__all__ = ["Progress", "build", "build_plan", "codegen_target", "compile_request"]

# Called with the current work, the number of finished functions, and the number of all functions.
Progress = Callable[[str, int, int], None]


def build(
    module: ProgramLike,
    target: TargetLike | None = None,
    target_host: Target | str | None = None,
    executor: Executor | str | None = None,
    runtime: Runtime | str | None = None,
    params: Mapping[str, Array] | None = None,
    mod_name: str = "default",
    *,
    where: Mapping[str, Constraint | str | Target] | None = None,
    allow_interpreter: bool = False,
    progress: Progress | None = None,
    log: TuningLog | str | Path | None = None,
    policy: Policy = SAME_DEVICE,
    settings: Settings | None = None,
    since: Executable | None = None,
    entry: str | None = None,
) -> Executable:
    """Compile a program for a target and link it into an executable.

    The positional parameters are those of `tvm.relay.build`.

    Args:
        module: A program, an ONNX file, its bytes or model, a module of Apache TVM, or a plan, which is built as it is.
        target: The target, its text, its flat JSON, or a configuration; the module's own by default.
        target_host: The host of the root of the target; it has to equal a host that the target states.
        executor: The executor; the target's own by default, else `graph`.
        runtime: The runtime; the target's own by default, else `python`.
        params: Values of parameters of the program by name; these parameters become constants.
        mod_name: The name of the program in saved files.
        where: Constraints by name or operator, as for `decompose`.
        allow_interpreter: Let numpy interpret leaves without an installed code generator, if they describe a CPU that
            can be this machine.
        progress: Called with the current work, the number of finished functions, and the number of all functions.
        log: A tuning log or its URL, whose kernels, placement and settings are used; `Executable.tuned` lists them.
        policy: Which records of the log may be used; by default those of equal devices only.
        settings: Attributes to set by leaf for this build, in place of those in the log.
        since: An earlier build; functions that are the same on the same site are not compiled again.
        entry: The entry function of the module, as for `decompose`.

    Returns:
        The executable, not yet run.

    Raises:
        BackendError: Leaves have no installed code generator, or attributes of the target would be ignored.
        TargetError: A plan is given with arguments that would change it, or an argument would be ignored.
        InfeasibleError: Operations fit no site; `decompose` raises further errors.
    """
    if isinstance(module, IRModule) or is_tvm_module(module):
        module = IRModule.of(module, target if isinstance(target, Target | str) else None, entry)
    request = PlanRequest(
        module=module,
        target=target,
        target_host=target_host,
        executor=executor,
        runtime=runtime,
        params=params,
        entry=entry,
        options={} if where is None else {"where": where},
    )
    if isinstance(module, IRModule) and is_code_entry(module):
        ignored: dict[str, object] = {"params": params, "where": where, "log": log, "settings": settings}
        # The policy has a default, so that only another one shows that the caller gave it.
        ignored |= {"since": since, "policy": policy != SAME_DEVICE}
        _check_not_given(ignored)
        return _build_code(module, request.root(module.target), mod_name, progress)
    plan = request.plan()
    if log is None and policy != SAME_DEVICE:
        raise TargetError("policy (--near) needs a tuning log; pass log (--log), or omit policy")
    raise_all(TargetError, [*_unknown_sites(plan, settings or {})])
    earlier = [] if since is None else [since]
    if log is None:
        return build_plan(
            plan, None, settings, mod_name, allow_interpreter=allow_interpreter, progress=progress, since=earlier
        )
    with opened_log(log) as opened:
        choices = TunedChoices(opened, policy)
        # A plan is built as it is: a log may choose its kernels and settings, but not its placement.
        if not isinstance(module, Plan):
            plan = choices.placed(plan)
        return build_plan(
            plan, choices, settings, mod_name, allow_interpreter=allow_interpreter, progress=progress, since=earlier
        )


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
    """Yield an error message for each site that has settings and no subgraph."""
    used = {subgraph.site for subgraph in plan.subgraphs}
    for site in settings:
        if site not in used:
            names = ", ".join(repr(name) for name in sorted(used))
            yield f"settings are given for {site!r}, which is not a leaf with operations; there is {names or 'none'}"


def build_plan(
    plan: Plan,
    choices: TunedChoices | None = None,
    settings: Settings | None = None,
    name: str = "default",
    *,
    allow_interpreter: bool = False,
    progress: Progress | None = None,
    since: Iterable[Executable] = (),
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

    Returns:
        The executable.

    Raises:
        BackendError: Leaves have no installed code generator, attributes would be ignored, or a result is too large.
    """
    backends = choose_backends(plan, allow_interpreter=allow_interpreter)
    raise_all(BackendError, _too_large(plan))
    code: dict[str, LeafFunction] = {}
    for executable in since:
        code |= executable.code
    leaves = _compile_leaves(plan, choices, settings, code, backends, progress=progress)
    program, constants = DriverProgram.of(plan.module), constants_of(plan.module)
    root, tuned = plan.topology.root, () if choices is None else tuple(choices.applied)
    machines = {path: DriverProgram.of(part) for path, part in plan.programs().items()} if is_distributed(root) else {}
    calls = [LeafCall(one.function, one.call, one.ops, one.inputs, one.outputs) for one in plan.subgraphs]
    return Executable(root, program, constants, leaves, name, tuned, machines, calls)


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


def _compile_leaves(
    plan: Plan,
    choices: TunedChoices | None,
    settings: Settings | None,
    code: Mapping[str, LeafFunction],
    backends: Mapping[str, tuple[Backend, str]],
    *,
    progress: Progress | None,
) -> dict[str, LeafFunction]:
    """Compile each leaf function once.

    Code is shared in two ways: `code` has functions of earlier builds, by all that a build depends on; `compiled_once`
    has functions of this build, by all that their code depends on, which leaves out names and sites.
    """
    if settings is None:
        settings = {} if choices is None else choices.settings(plan)
    leaves: dict[str, LeafFunction] = {}
    compiled_once: dict[str | None, tuple[Compiled, LogSchedules | None]] = {}
    functions: dict[str, SubgraphRecord] = {}
    for subgraph in plan.subgraphs:
        functions.setdefault(subgraph.function, subgraph)
    for done, subgraph in enumerate(functions.values()):
        if progress is not None:
            progress(f"compile {subgraph.function} for @{subgraph.site or '.'}", done, len(functions))
        backend, note = backends[subgraph.site]
        target = codegen_target(plan.topology, subgraph.site)
        schedules = None if choices is None else choices.for_leaf(target)
        request = compile_request(plan, subgraph, target.override(dict(settings.get(subgraph.site, {}))), schedules)
        function = plan.module[subgraph.function]
        # `choose_backends` pairs the TVM backend with a kind that it does not list only for an external code generator
        # (BYOC).
        is_external = backend.name == "tvm" and target.kind not in backend.kinds
        if is_external:
            whole = with_composites(plan.module, plan.topology)[subgraph.function]
            request = replace(request, source=external_module_json(whole, target.kind))
        # The same function may have other code with the schedules of a log than without.
        key = build_key(function, request.target, subgraph.site, backend) + ("" if schedules is None else " by a log")
        shared_key = None if is_external else code_key(function, request.target, backend)
        if shared_key is not None and schedules is not None:
            # The lookups of a log depend on the whole target, the code only on the attributes that are honoured.
            shared_key = f"{request.target.digest} {shared_key}"
        known = code.get(key)
        repeated = None if known is None else _repeated_lookups(schedules, known)
        if known is not None and (schedules is None or repeated is not None):
            compiled, schedules = known.compiled, repeated
        elif shared_key in compiled_once:
            compiled, schedules = compiled_once[shared_key]
        else:
            compiled = backend.compile(request)
        # The request keeps the lookups that led to this code, so that a later build can repeat them.
        if request.schedules is not schedules:
            request = replace(request, schedules=schedules)
        applied = () if schedules is None else schedules.applied
        leaves[subgraph.function] = LeafFunction(request, backend, note, applied, compiled, key)
        if shared_key is not None:
            compiled_once[shared_key] = compiled, schedules
    if progress is not None:
        progress("compiled", len(functions), len(functions))
    return leaves


def _repeated_lookups(schedules: LogSchedules | None, earlier: LeafFunction) -> LogSchedules | None:
    """Return the lookups of an earlier build made again, or None if the log has other results now."""
    before = earlier.request.schedules
    return schedules.repeated(before) if schedules is not None and isinstance(before, LogSchedules) else None


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
        source = bytes(plan.module.to_onnx(subgraph.function).SerializeToString(deterministic=True))
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
