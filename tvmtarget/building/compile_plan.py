"""`build`: decompose a program, compile every leaf function, and link them under an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from tvmtarget.autotune.log.match import Policy
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.backends.machine import refuses_interpreter
from tvmtarget.backends.protocol import Array, Backend, Compiled, CompileRequest, Schedules, backend_named, backends
from tvmtarget.backends.sharing import build_key, code_key
from tvmtarget.building.executable import Executable, Leaf, LeafCall
from tvmtarget.building.honoured_attributes import honoured, not_honoured, not_honoured_by_driver
from tvmtarget.building.tir_modules import build_code, is_code_entry
from tvmtarget.building.tuned_schedules import SAME_DEVICE, LogSchedules, Settings, TunedChoices, opened_log
from tvmtarget.errors import BackendError, TargetError, did_you_mean, raise_all
from tvmtarget.executors.driver_program import DriverProgram, constants_of
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.relax.leaf_module import external_module_json, leaf_module_json, needs_relax
from tvmtarget.ir.relax.lowering import is_native
from tvmtarget.ir.relax.safe_source import unsafe_parts
from tvmtarget.ir.relax.tvm_library import is_tvm_module
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.machines.machine import is_distributed, undistributable
from tvmtarget.partition.outline.composites import with_composites
from tvmtarget.partition.outline.outlining import SubgraphRecord
from tvmtarget.partition.plan import Plan, decompose
from tvmtarget.target.configuration import CompilationConfig
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.scheduler_addresses import reject_addresses
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target
from tvmtarget.target.tree_paths import unnumbered
from tvmtarget.untrusted import LIMITS, limit

if TYPE_CHECKING:
    import onnx
    import tvm

__all__ = ["Progress", "build", "build_plan", "choose_backend", "choose_backends", "codegen_target", "compile_request"]

Progress = Callable[[str, int, int], None]


def build(
    module: IRModule | Plan | onnx.ModelProto | tvm.IRModule | str | Path | bytes,
    target: Target | CompilationConfig | Mapping[str, object] | str | None = None,
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
    """Compile a program for a target and link it into something that runs.

    Args:
        module: a program, an ONNX file, its bytes or model, a module of Apache TVM, or a plan, which is built as it is.
        target: the tree, its text or flat JSON, or a flat configuration; the module's own unless given.
        target_host: what drives the root; an error where the target says otherwise.
        executor, runtime: how the program is driven; the target's own, else graph and python.
        params: values for parameters of the program, by name, which then are constants.
        mod_name: name of the program in saved files.
        where: constraints by name or operator, as for `decompose`.
        allow_interpreter: let numpy interpret a leaf for which no code generator is installed, if the leaf describes
            a CPU that can be this machine.
        progress: is told (what, how many are done, of how many) as leaves are compiled.
        log: a tuning log or its URL, whose kernels, placement and settings are used; `Executable.tuned` says what was.
        settings: attributes to set by leaf for this build, in place of those in the log.
        since: an earlier build; functions that are as they were there, on the same site, are not compiled again.
        entry: the function that the program begins with, as for `decompose`.
        policy: how far lookups in it may go; unless given, no further than devices that are equal to this one.

    Raises `BackendError` for leaves that no installed code generator takes, `TargetError` for a plan that is to be
    built otherwise than it was made, and what `decompose` raises.
    """
    if isinstance(module, IRModule) or is_tvm_module(module):
        module = IRModule.of(module, target if isinstance(target, Target | str) else None, entry)
        if is_code_entry(module):
            given: dict[str, object] = {"params": params, "where": where, "log": log, "settings": settings}
            given |= {"since": since, "policy": policy != SAME_DEVICE}
            chosen = _configured(target or module.target, target_host, executor, runtime)
            return _built_code(module, chosen, mod_name, given, progress)
    plan = plan_to_build(module, target, target_host, executor, runtime, params, where=where, entry=entry)
    if log is None and policy != SAME_DEVICE:
        raise TargetError(
            "policy (--near) is for lookups in a tuning log, and no log is given; pass log (--log), or leave it out"
        )
    raise_all(TargetError, [*_unknown_sites(plan, settings or {})])
    earlier = [] if since is None else [since]
    if log is None:
        return build_plan(
            plan, None, settings, mod_name, allow_interpreter=allow_interpreter, progress=progress, since=earlier
        )
    with opened_log(log) as opened:
        advice = TunedChoices(opened, policy)
        if not isinstance(module, Plan):
            plan = advice.placed(plan)
        return build_plan(
            plan, advice, settings, mod_name, allow_interpreter=allow_interpreter, progress=progress, since=earlier
        )


def _built_code(
    module: IRModule, target: Target, name: str, given: Mapping[str, object], progress: Progress | None
) -> Executable:
    """Build a module whose entry is TIR code, for which some arguments have no meaning."""
    raise_all(
        TargetError,
        [
            f"{one} is given, but the entry of the module is TIR code, which is built as it is; leave it out, or "
            "constrain functions in the module"
            for one, value in given.items()
            if value
        ],
    )
    if progress is not None:
        progress("compile main", 0, 1)
    built = build_code(module, target, name)
    if progress is not None:
        progress("compiled", 1, 1)
    return built


def plan_to_build(
    module: IRModule | Plan | onnx.ModelProto | tvm.IRModule | str | Path | bytes,
    target: Target | CompilationConfig | Mapping[str, object] | str | None = None,
    target_host: Target | str | None = None,
    executor: Executor | str | None = None,
    runtime: Runtime | str | None = None,
    params: Mapping[str, Array] | None = None,
    *,
    where: Mapping[str, Constraint | str | Target] | None = None,
    entry: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Plan:
    """Return the plan that a build makes of its arguments, which are described there; a plan stays as it is.

    `options` are further arguments of `decompose` by name.
    """
    given_options = dict(options or {})
    known = set(signature(decompose).parameters) - {"module", "target", "costs", "where", "entry", "since"}
    unknown = sorted(given_options.keys() - known)
    raise_all(TargetError, [f"unknown option {name!r} of decompose{did_you_mean(name, known)}" for name in unknown])
    if isinstance(module, Plan):
        given = {"target_host": target_host, "executor": executor, "runtime": runtime, "params": params, "where": where}
        _refuse_changes(module, target, {**given, "entry": entry, **given_options})
        supposed = module.hypotheses()
        if supposed:
            raise TargetError(f"the plan of a what-if question that supposes support is not built: {supposed[0]}")
        return module
    own = module.target if isinstance(module, IRModule) else None
    if target is None and isinstance(module, IRModule) and own is not None and not module.is_trusted:
        reject_addresses(own, "the target in the program")
    chosen = _configured(target if target is not None else own, target_host, executor, runtime)
    return decompose(IRModule.of(module, chosen, entry).bind(params or {}), chosen, where=where, **given_options)  # type: ignore[arg-type]


def _unknown_sites(plan: Plan, settings: Settings) -> Iterator[str]:
    """Yield which settings are for sites that have no work, and would be ignored."""
    used = {subgraph.site for subgraph in plan.subgraphs}
    for site in settings:
        if site not in used:
            names = ", ".join(repr(name) for name in sorted(used))
            yield f"settings are given for {site!r}, which is no leaf with work; there is {names or 'none'}"


def build_plan(
    plan: Plan,
    advice: TunedChoices | None = None,
    settings: Settings | None = None,
    name: str = "default",
    *,
    allow_interpreter: bool = False,
    progress: Progress | None = None,
    since: Iterable[Executable] = (),
) -> Executable:
    """Compile a plan as it is and link it; `build` says what the arguments are, of which several may be `since`."""
    chosen = choose_backends(plan, allow_interpreter=allow_interpreter)
    raise_all(BackendError, _too_large(plan))
    code: dict[str, Leaf] = {}
    for executable in since:
        code |= executable.code
    leaves = _compile_all(plan, advice, settings, code, chosen, progress=progress)
    program, constants = DriverProgram.of(plan.module), constants_of(plan.module)
    root, tuned = plan.topology.root, () if advice is None else tuple(advice.applied)
    machines = {path: DriverProgram.of(part) for path, part in plan.programs().items()} if is_distributed(root) else {}
    calls = [LeafCall(one.function, one.call, one.ops, one.inputs, one.outputs) for one in plan.subgraphs]
    return Executable(root, program, constants, leaves, name, tuned, machines, calls)


def _too_large(plan: Plan) -> list[str]:
    """Return the operations whose results have a known size that no machine holds; allocating it can end a process."""
    most = limit("tensor-bytes")
    return [
        f"op {call.source!r} of @{subgraph.site or '.'} yields {output.type}, {output.type.nbytes:,} bytes, more than "
        f"the limit of {most:,}; {LIMITS['tensor-bytes'].variable} raises it"
        for subgraph in plan.subgraphs
        for call in plan.module[subgraph.function].body
        for output in call.outputs
        if isinstance(output.type, TensorType) and (output.type.nbytes or 0) > most
    ]


def _refuse_changes(
    plan: Plan, target: Target | CompilationConfig | Mapping[str, object] | str | None, others: Mapping[str, object]
) -> None:
    """Raise `TargetError` for what can only be asked of a program that is not divided yet."""
    given = [name for name, value in others.items() if value]
    if target is not None and _configured(target, None, None, None).resolve() != plan.topology.root:
        given.insert(0, "target")
    if given:
        raise TargetError(
            f"a plan is built as it was made, so that {', '.join(map(repr, given))} cannot be given with it; "
            "give the undivided program, or divide it again: decompose(plan.request.module, target, where=...)"
        )


def choose_backends(plan: Plan, *, allow_interpreter: bool) -> dict[str, tuple[Backend, str]]:
    """Return the backend and the note of every site that has work, as `choose_backend`.

    What has no work is not looked at: neither code generators of idle leaves nor executors of idle systems.

    Raises:
        BackendError: all that cannot be built, and all attributes that would be ignored, with their paths.
    """
    chosen: dict[str, tuple[Backend, str]] = {}
    problems: list[str] = []
    sites = list(dict.fromkeys(subgraph.site for subgraph in plan.subgraphs))
    used = list(dict.fromkeys(path for site in ("", *sites) for path in _around(site)))
    for path in used:
        node = plan.topology[path].target
        if node.executor is not None:
            problems += not_honoured_by_driver(node.executor, "executor", path)
        if node.runtime is not None:
            problems += not_honoured_by_driver(node.runtime, "runtime", path)
        problems += _ignored_drivers(plan.topology.root, node, path)
        if node.is_composite:
            problems += not_honoured(node, frozenset(), "a system", path)
    problems += undistributable(plan.topology, {unnumbered(path) for path in used})
    for site in sites:
        target = plan.topology[site].target
        if _is_external(plan, site):
            chosen[site] = backend_named("tvm"), ""  # which hands on all attributes, as options
            continue
        try:
            backend, _ = chosen[site] = choose_backend(plan.topology, site, allow_interpreter=allow_interpreter)
        except BackendError as error:
            problems += error.problems
            continue
        by = backend.name if target.kind in backend.kinds else f"{backend.name}, which interprets it,"
        problems += not_honoured(target, honoured(backend, target.kind), by, site)
    for path in dict.fromkeys(plan.topology[path].host for path in used):
        host = plan.topology[path].target
        known = next((backend for backend, lacks in backends(host.kind) if lacks is None), None)
        if path in sites:
            continue
        if known is not None:
            problems += not_honoured(host, honoured(known, host.kind), known.name, path)
        else:
            problems += not_honoured(host, frozenset(), "the graph executor, which drives in its place,", path)
    raise_all(BackendError, list(dict.fromkeys(problems)))
    return chosen


def _ignored_drivers(root: Target, node: Target, path: str) -> Iterator[str]:
    """Yield the executor and runtime of an inner node that have no effect, as those of the root run the program."""
    used = root.executor.kind if root.executor is not None else "graph"
    if node.executor is not None and node.executor.kind != used:
        yield f"executor {node.executor.kind!r} of @{path} would be ignored: executor {used!r} runs all drivers"
    used = root.runtime.kind if root.runtime is not None else "python"
    # Each machine of a distributed runtime runs its drivers in one Python process.
    if node.runtime is not None and not is_distributed(node) and node.runtime.kind not in (used, "python"):
        yield f"runtime {node.runtime.kind!r} of @{path} would be ignored: runtime {used!r} runs the program"


def _is_external(plan: Plan, site: str) -> bool:
    """Whether TVM has an external code generator for a leaf all of whose functions are of Relax."""
    kind = plan.topology[site].target.kind
    functions = (plan.module[subgraph.function] for subgraph in plan.subgraphs if subgraph.site == site)
    if is_native(kind) or not all(map(needs_relax, functions)):
        return False
    from tvmtarget.backends.tvm.backend import generates

    return generates(kind)


def _around(site: str) -> Iterator[str]:
    """Yield the paths of the systems around a site, the root first, and its own."""
    yield ""
    names = site.split("/") if site else []
    yield from ("/".join(names[: count + 1]) for count in range(len(names)))


def _configured(
    target: Target | CompilationConfig | Mapping[str, object] | str | None,
    target_host: Target | str | None,
    executor: Executor | str | None,
    runtime: Runtime | str | None,
) -> Target:
    """Return the target with what else was asked of it; a host that contradicts the tree's is an error."""
    tree = Target.parse(target) if isinstance(target, str | Mapping) else target
    if isinstance(tree, CompilationConfig):
        first = tree.targets[0].device
        if tree.fallback_device not in (None, first):
            raise TargetError(
                f"fallback_device {tree.fallback_device!r} of the configuration would be ignored: work that nothing "
                f"places goes to the first target that takes it, which is on {first!r}; list that target first"
            )
        tree = tree.to_target()
    if tree is None:
        raise TargetError("no target is given and the module has none; pass one, such as 'llvm'")
    if executor is not None:
        tree = tree.replace(executor=Executor.from_json(executor))
    if runtime is not None:
        tree = tree.replace(runtime=Runtime.from_json(runtime))
    if target_host is None:
        return tree
    host = Target.parse(target_host) if isinstance(target_host, str) and target_host[:1] != "@" else target_host
    if tree.host is not None and tree.host != host:
        raise TargetError(f"two hosts are given: {str(tree.host)!r} in the target, and target_host {str(host)!r}")
    return tree.replace(host=host)


def _compile_all(
    plan: Plan,
    advice: TunedChoices | None,
    settings: Settings | None,
    code: Mapping[str, Leaf],
    chosen: Mapping[str, tuple[Backend, str]],
    *,
    progress: Progress | None,
) -> dict[str, Leaf]:
    """Compile the leaf functions, each once; those whose code is there already are not compiled again."""
    if settings is None:
        settings = {} if advice is None else advice.settings(plan)
    leaves: dict[str, Leaf] = {}
    shared: dict[str | None, tuple[Compiled, LogSchedules | None]] = {}
    functions: dict[str, SubgraphRecord] = {}
    for subgraph in plan.subgraphs:
        functions.setdefault(subgraph.function, subgraph)
    for done, subgraph in enumerate(functions.values()):
        if progress is not None:
            progress(f"compile {subgraph.function} for @{subgraph.site or '.'}", done, len(functions))
        backend, note = chosen[subgraph.site]
        target = codegen_target(plan.topology, subgraph.site)
        schedules = None if advice is None else advice.for_leaf(target)
        part = compile_request(plan, subgraph, target.override(dict(settings.get(subgraph.site, {}))), schedules)
        function = plan.module[subgraph.function]
        is_external = backend.name == "tvm" and target.kind not in backend.kinds
        if is_external:
            whole = with_composites(plan.module, plan.topology)[subgraph.function]
            part = replace(part, source=external_module_json(whole, target.kind))
        own = build_key(function, part.target, subgraph.site, backend) + ("" if schedules is None else " by a log")
        key = None if is_external else code_key(function, part.target, backend)
        if key is not None and schedules is not None:
            key = f"{part.target.digest} {key}"  # a log answers by more of the target than code depends on
        known = code.get(own)
        if known is not None and _repeats(schedules, known):
            compiled = known.compiled
        elif key in shared:
            compiled, schedules = shared[key]
            part = replace(part, schedules=schedules)
        else:
            compiled = backend.compile(part)
        applied = () if schedules is None else schedules.applied
        leaves[subgraph.function] = Leaf(part, backend, note, applied, compiled, own)
        if key is not None:
            shared[key] = compiled, schedules
    if progress is not None:
        progress("compiled", len(functions), len(functions))
    return leaves


def _repeats(schedules: LogSchedules | None, earlier: Leaf) -> bool:
    """Whether a log says of a leaf function what it said when that was compiled."""
    said = earlier.part.schedules
    return schedules is None or (isinstance(said, LogSchedules) and schedules.repeats(said))


def _source_of(module: IRModule, name: str) -> bytes:
    """Return a leaf function in the form of its dialect: TVM's JSON for Relax, else an ONNX model."""
    if needs_relax(module[name]):
        return leaf_module_json(module[name], module.by_name)
    return bytes(module.to_onnx(name).SerializeToString(deterministic=True))


def compile_request(
    plan: Plan, subgraph: SubgraphRecord, target: Target, schedules: Schedules | None = None
) -> CompileRequest:
    """Return the leaf function of a subgraph as a backend takes it.

    Raises:
        BackendError: the program was read from a text or a file, and the function holds more than operators.
    """
    source = _source_of(plan.module, subgraph.function)
    if not plan.request.module.is_trusted and needs_relax(plan.module[subgraph.function]):
        unsafe = next(unsafe_parts(source), None)
        if unsafe is not None:
            raise BackendError(
                f"function {subgraph.function!r} of @{subgraph.site or '.'} is compiled only if you trust who wrote it "
                f"(read its program with trust=True): {unsafe}"
            )
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
    """Return a leaf with its host, as code generators see it."""
    site = topology[path]
    host = topology[site.host].target.replace(name=None, host=None, count=1) if site.host != path else None
    return site.target.replace(name=None, host=host, count=1)


def choose_backend(topology: Topology, path: str, *, allow_interpreter: bool) -> tuple[Backend, str]:
    """Return the backend of a leaf, and a note to report if it is the interpreter in place of a code generator.

    Raises:
        BackendError: no code generator for the leaf is installed, and numpy may not interpret it.
    """
    target = topology[path].target
    place = f"@{path or '.'}"
    missing = None
    for backend, lacks in backends(target.kind):
        if lacks is None:
            return backend, ""
        missing = lacks
    advice = str(missing) if missing is not None else f"no backend for kind {target.kind!r} is installed"
    foreign = refuses_interpreter(target)
    if foreign is not None:
        raise BackendError(
            f"{place} cannot be compiled: {advice}; nor can numpy interpret it, as it describes another machine "
            f"({foreign}): install a code generator for it, or build for this machine, such as 'native'"
        )
    if not allow_interpreter:
        raise BackendError(
            f"{place} cannot be compiled: {advice}; allow_interpreter=True (--allow-interpreter) lets numpy "
            "interpret it, slowly, on this machine"
        )
    return backend_named("numpy"), f"{place} ({target.kind}) is interpreted by numpy: {advice}"
