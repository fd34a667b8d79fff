"""Verify the invariants of a partitioned module. Every plan is verified before it is returned. O(V + E).

The checks read the module, not the data structures it was made from, so that they also find faults of outlining.
After an edit of single operations, what holds of a call, its function and its record holds again where all three are
the same objects, which are frozen, and no operation in it has changed: only the others are checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress, count, islice, repeat
from operator import attrgetter
from typing import cast

from tvmtarget.errors import ModelError
from tvmtarget.ir.control_flow import control_flow_form
from tvmtarget.ir.function import CODE, COPY, Call, Constant, Function, changed_places
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.op_aliases import is_named_operator, op_aliases
from tvmtarget.ir.verify import verify_functions
from tvmtarget.partition.control.verify_drivers import Path, calls_in_order, copies_are_needed, values_are_exact
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.known_partition import differ_in_ops_only
from tvmtarget.partition.local_edit import changed_ops
from tvmtarget.partition.outline.deduplicate import same_data
from tvmtarget.partition.outline.outlining import Outlined, SubgraphRecord
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.target.tree import Target

__all__ = ["verify_dataflow", "verify_plan"]

# Violations that an error lists.
MAX_SHOWN = 5


@dataclass(frozen=True, eq=False)
class _ProvenPlan:
    """A plan that keeps all invariants.

    Attributes:
        program: the original program.
        assumptions: those of its feasibility.
        target: that of the partitioned module.
        functions: its functions by name.
        outlined: records of its subgraphs, drivers and copies.
    """

    program: FlatProgram
    assumptions: tuple[object, ...]
    target: Target | None
    functions: Mapping[str, Function]
    outlined: Outlined


def verify_plan(program: FlatProgram, feasibility: Feasibility, module: IRModule, outlined: Outlined) -> None:
    """Verify a partitioned module.

    The verifier of the IR proves that the graph of subgraphs has no cycle, and that values captured by a region are
    computed before it runs: a subgraph is one call of its driver, and the body of a driver is in topological order.

    Args:
        program: the original program.
        feasibility: which site supports which operation.
        module: the partitioned module.
        outlined: records of its subgraphs, drivers and copies.

    Raises:
        ModelError: with up to five violated invariants.
    """
    cache = feasibility.cache
    proven = cast("_ProvenPlan | None", cache.proven)
    has_same_target = proven is not None and proven.target == module.target
    since = _before(outlined, proven) if proven is not None and has_same_target else None
    verify_functions(module.by_name, module.target, since)
    if proven is None or not _holds_again(program, feasibility, module, outlined, proven):
        _verify_all(program, feasibility, module, outlined)
    cache.proven = _ProvenPlan(program, feasibility.assumptions, module.target, module.by_name, outlined)


def verify_dataflow(program: FlatProgram, module: IRModule, subgraphs: Sequence[SubgraphRecord]) -> None:
    """Verify operand by operand that functions compute what their operations do.

    `verify_plan` proves that drivers call the functions with the values that the records list. Outlining writes both
    from the same numbers, so that this is left out of every plan, whose time it would add to.

    Args:
        program: the original program.
        module: the partitioned module, which keeps the rules of the IR.
        subgraphs: records of its subgraphs.

    Raises:
        ModelError: with up to five operations that read other values, or have other attributes.
    """
    problems = [problem for record in subgraphs for problem in _differing_ops(program, module[record.function], record)]
    if problems:
        raise ModelError(*problems[:MAX_SHOWN])


def _differing_ops(program: FlatProgram, leaf: Function, record: SubgraphRecord) -> Iterator[str]:
    if len(leaf.params) != len(record.inputs) or len(leaf.body) != len(record.calls):
        yield f"function {leaf.name!r} has other operands or operations than its subgraph lists"
        return
    values: dict[str, str | Constant] = {"": "", **{constant.name: constant for constant in leaf.constants}}
    values |= zip([param.name for param in leaf.params], record.inputs, strict=True)
    for index, call in zip(record.calls, leaf.body, strict=True):
        op = program.body[index]
        if not _are_values(program, [values.get(name, "") for name in call.inputs], op.inputs):
            yield f"op {op.source!r} reads other values in function {leaf.name!r} than in the program"
        if call.attrs != op.attrs or len(call.outputs) != len(op.outputs):
            yield f"op {op.source!r} has other attributes or results in function {leaf.name!r} than in the program"
        results = zip(call.outputs, op.outputs, strict=False)
        values |= {output.name: result.name for output, result in results if output.name}  # "" stays an absent operand
    if [values.get(name, "") for name in leaf.results] != [*record.outputs]:
        yield f"function {leaf.name!r} returns other values than its subgraph lists"


def _before(outlined: Outlined, proven: _ProvenPlan) -> Mapping[str, Function]:
    """Return the functions before an edit, also by the names that those in their place have now."""
    places = zip(outlined.subgraphs, proven.outlined.subgraphs, strict=False)
    renamed = {new.function: old.function for new, old in places if new.function not in proven.functions}
    return {**proven.functions, **{name: proven.functions[old] for name, old in renamed.items()}}


def _verify_all(program: FlatProgram, feasibility: Feasibility, module: IRModule, outlined: Outlined) -> None:
    subgraphs = outlined.subgraphs
    # All other checks look sites and memories up.
    unknown = [*_unknown_sites(program, outlined)]
    if unknown:
        raise ModelError(*unknown[:MAX_SHOWN])
    leaves = [module[subgraph.function] for subgraph in subgraphs]
    drivers = [function for function in module.functions if function.attr("role") == "driver"]
    problems = [
        *_every_op_runs_once(program, outlined),
        *_every_function_has_its_ops(program, subgraphs, leaves),
        *_every_site_supports_its_ops(program, feasibility, outlined),
        *_every_function_keeps_limits(program, feasibility, subgraphs),
        *_every_function_names_one_leaf(program, subgraphs, leaves),
        *_every_group_is_whole(program, feasibility, subgraphs),
        *(problem for driver in drivers for problem in _calls_stay_in_system(program, driver, module)),
        *_every_call_is_in_its_region(program, module, subgraphs),
        *_effects_keep_their_order(program, module),
        *_every_call_gets_its_values(program, module, subgraphs),
        *(problem for driver in drivers for problem in _driver_only_drives(driver, driver.name)),
        *(problem for driver in drivers for problem in values_are_exact(driver, module)),
        *(problem for driver in drivers for problem in copies_are_needed(driver, _home(driver, program))),
        *_copies_follow_links(outlined),
        *_copies_lead_away(program, module, outlined),
    ]
    if problems:
        raise ModelError(*problems[:MAX_SHOWN])


def _holds_again(
    program: FlatProgram, feasibility: Feasibility, module: IRModule, outlined: Outlined, proven: _ProvenPlan
) -> bool:
    """Return whether the invariants hold because they held before an edit; False where that is not certain.

    Copies, and the operands and results of all calls, have to be those of the earlier plan.
    """
    if feasibility.groups.all or feasibility.assumptions != proven.assumptions:
        return False
    if not differ_in_ops_only(proven.program, program) or not _has_same_driver(module, outlined, proven):
        return False
    changed = _changed_calls(program, module, outlined, proven)
    if changed is None:
        return False
    edited = frozenset(changed_ops(proven.program, program))
    records: list[SubgraphRecord] = []
    leaves: list[Function] = []
    for number, call, old_call in changed:
        record, before = outlined.subgraphs[number], proven.outlined.subgraphs[number]
        leaf, earlier = module[record.function], proven.functions[before.function]
        if op_aliases(call) is None and op_aliases(old_call) is None:
            record, leaf = _edited_part(record, leaf, earlier, edited)
        records.append(record)
        leaves.append(leaf)
    calls = [call for _, call, _ in changed]
    # Limits of code generators depend on the operations of a function and on who reads whom, which are as before.
    return all(
        _calls_its_function(program, record, call, leaf)
        for record, call, leaf in zip(records, calls, leaves, strict=True)
    ) and not [
        *_every_function_has_its_ops(program, records, leaves),
        *_every_site_supports_its_ops(program, feasibility, replace(outlined, subgraphs=tuple(records))),
        *_every_function_names_one_leaf(program, records, leaves),
    ]


def _edited_part(
    record: SubgraphRecord, leaf: Function, earlier: Function, edited: Collection[int]
) -> tuple[SubgraphRecord, Function]:
    """Return what an edit changed of a subgraph and its function; all of both if more may have changed.

    Parameters are left out then, because they are read as before.
    """
    if (leaf.params, leaf.results) != (earlier.params, earlier.results):
        return record, leaf
    if not len(leaf.body) == len(earlier.body) == len(record.calls):
        return record, leaf
    places = changed_places(leaf.body, earlier.body)
    if any(leaf.body[at].regions or leaf.body[at].inputs != earlier.body[at].inputs for at in places):
        return record, leaf
    places = sorted({*places, *compress(count(), map(edited.__contains__, record.calls))})
    calls, body = tuple([record.calls[at] for at in places]), tuple([leaf.body[at] for at in places])
    return replace(record, calls=calls), leaf.replace(params=(), body=body, results=())


def _has_same_driver(module: IRModule, outlined: Outlined, proven: _ProvenPlan) -> bool:
    """Return whether one driver calls leaf functions only, and makes the copies that it made before."""
    main, before, known = module.main, proven.functions["main"], proven.outlined
    graph, graph_before = outlined.memory_graph, known.memory_graph
    return (
        outlined.copies is known.copies
        and len(outlined.subgraphs) == len(known.subgraphs)
        and not (outlined.driven or known.driven)
        and (graph is not None and graph_before is not None and graph.costs == graph_before.costs)
        and (main.params, main.results, main.constraint) == (before.params, before.results, before.constraint)
        and main.constant_names == before.constant_names
        and (main.attr("role"), before.attr("role")) == ("driver", "driver")
        and all(function.attr("role") == "leaf" for function in module.functions if function is not main)
        and all(function.attr("role") == "leaf" for name, function in proven.functions.items() if name != "main")
    )


def _changed_calls(
    program: FlatProgram, module: IRModule, outlined: Outlined, proven: _ProvenPlan
) -> list[tuple[int, Call, Call]] | None:
    """Return the numbers of the subgraphs that an edit changed, their calls now and before; None if more changed."""
    main, before = module.main.body, proven.functions["main"].body
    if len(main) != len(before):
        return None
    functions, edited = module.by_name, frozenset(changed_ops(proven.program, program))
    if any(one.body[index].has_effect for one in (program, proven.program) for index in edited):
        return None
    renewed = {name for name, function in functions.items() if proven.functions.get(name) is not function}
    pairs = [pair for pair in zip(main, before, strict=True) if pair[0].op[:1] == "@" or pair[0] is not pair[1]]
    if len(pairs) != len(outlined.subgraphs):
        return None
    changed: list[tuple[int, Call, Call]] = []
    records = zip(outlined.subgraphs, proven.outlined.subgraphs, strict=True)
    for number, ((call, old_call), (record, old_record)) in enumerate(zip(pairs, records, strict=True)):
        if call is not old_call:
            if not (call.op[:1] == old_call.op[:1] == "@") or (call.inputs, call.outputs) != (
                old_call.inputs,
                old_call.outputs,
            ):
                return None
        elif record is old_record and record.function not in renewed and edited.isdisjoint(record.calls):
            continue
        parts = ("site", "calls", "inputs", "outputs", "inner", "runs", "device")
        if record is not old_record and any(getattr(record, part) != getattr(old_record, part) for part in parts):
            return None
        changed.append((number, call, old_call))
    return changed


def _calls_its_function(program: FlatProgram, record: SubgraphRecord, call: Call, leaf: Function) -> bool:
    """Return whether a call leads to the operations of its record, which have no effects and read all that they get."""
    names = op_aliases(call)
    sources = tuple([program.body[index].source for index in record.calls])
    read = frozenset(leaf.results).union(*[inner.inputs for inner in leaf.body])
    return (
        call.op[1:] == record.function
        and leaf.calls is leaf.body
        and not any(op[:1] == "@" or op in (COPY, CODE) for op in leaf.ops)
        and not (call.has_effect or call.regions or [inner for inner in leaf.body if inner.has_effect])
        and (tuple([inner.source for inner in leaf.body]) if names is None else names) == sources
        and all(param.name in read for param in leaf.params)
        and len(set(call.inputs)) == len(call.inputs)
    )


def _unknown_sites(program: FlatProgram, outlined: Outlined) -> Iterator[str]:
    topology, domains = program.topology, program.topology.domains()
    for subgraph in outlined.subgraphs:
        for site in (subgraph.site, _leaf_of(subgraph)):
            if site not in topology:
                yield f"function {subgraph.function!r} is on @{site}, which is no site of the target"
                break
    for driven in outlined.driven:
        if driven.system not in topology:
            yield f"op {driven.op!r} is run by a driver of @{driven.system}, which is no site of the target"
    for copy in outlined.copies:
        if not {copy.src, copy.dst} <= domains:
            ends = f"from {copy.src!r} to {copy.dst!r}"
            yield f"{copy.value!r} is copied {ends}, which are not both memories of the target"


def _every_op_runs_once(program: FlatProgram, outlined: Outlined) -> Iterator[str]:
    counts = Counter(chain.from_iterable(program.with_nested(subgraph.calls) for subgraph in outlined.subgraphs))
    counts.update(driven.call for driven in outlined.driven)
    for index in [index for index in range(len(program.body)) if counts[index] != 1]:
        call = program.body[index]
        yield f"op {call.source!r} ({call.op}) is in {counts[index]} subgraphs, not in one"


def _every_function_has_its_ops(
    program: FlatProgram, subgraphs: Sequence[SubgraphRecord], leaves: Sequence[Function]
) -> Iterator[str]:
    for subgraph, leaf in zip(subgraphs, leaves, strict=True):
        if [program.body[index].op for index in subgraph.calls] != [call.op for call in leaf.body]:
            yield f"function {leaf.name!r} does not hold the ops that its subgraph lists"


def _every_site_supports_its_ops(program: FlatProgram, feasibility: Feasibility, outlined: Outlined) -> Iterator[str]:
    calls_of: dict[str, list[int]] = {}
    for subgraph in outlined.subgraphs:
        calls_of.setdefault(_leaf_of(subgraph), []).extend(subgraph.calls)
    are_supported = {path: feasibility.supports_each(calls, program.topology[path]) for path, calls in calls_of.items()}
    for subgraph in outlined.subgraphs:
        site = program.topology[_leaf_of(subgraph)]
        for index in () if are_supported[site.path] else subgraph.calls:
            reason = feasibility.unsupported_reason(index, site)
            if reason is not None:
                op = program.body[index].source
                hint = _consistency_hint(reason.code)
                yield f"op {op!r} is on @{subgraph.site}, which cannot take it: {reason}{hint}"
    for driven in outlined.driven:
        reason = feasibility.reason_not_driven(driven.call, program.topology[driven.system])
        if reason is not None:
            yield f"op {driven.op!r} is run by driver {driven.driver!r}, which cannot: {reason}"


def _every_function_keeps_limits(
    program: FlatProgram, feasibility: Feasibility, subgraphs: Sequence[SubgraphRecord]
) -> Iterator[str]:
    for subgraph in subgraphs:
        if not feasibility.can_be_one_function(subgraph.calls, program.topology[_leaf_of(subgraph)]):
            yield f"function {subgraph.function!r} of {subgraph.ops[:1]} exceeds a limit of @{subgraph.site}"


def _leaf_of(subgraph: SubgraphRecord) -> str:
    """Return the leaf that has to support a subgraph: the device, where its host runs it."""
    return subgraph.site if subgraph.device is None else subgraph.device


def _consistency_hint(code: str) -> str:
    """Return a hint for an operation that its strategy supported before."""
    return "" if code == "CONSTRAINT" else " (a strategy must give the same answer every time)"


def _every_function_names_one_leaf(
    program: FlatProgram, subgraphs: Sequence[SubgraphRecord], leaves: Sequence[Function]
) -> Iterator[str]:
    for subgraph, leaf in zip(subgraphs, leaves, strict=True):
        path = None if leaf.constraint is None else leaf.constraint.path
        if path is None or path not in program.topology or program.topology[path].is_system:
            yield f"function {leaf.name!r} is not constrained to one leaf, but to {leaf.constraint}"
        elif path != subgraph.site:
            yield f"function {leaf.name!r} is constrained to @{path}, but its subgraph lists @{subgraph.site}"


def _every_group_is_whole(
    program: FlatProgram, feasibility: Feasibility, subgraphs: Sequence[SubgraphRecord]
) -> Iterator[str]:
    """The operations of a pattern match are in one function, on any site, or in the regions of one operation."""
    groups = feasibility.groups.all
    numbered = enumerate(subgraphs if groups else ())
    owner = {index: number for number, subgraph in numbered for index in program.with_nested(subgraph.calls)}
    for group in groups:
        if len({owner.get(index) for index in group.calls}) > 1:
            names = ", ".join(repr(program.body[index].source) for index in group.calls)
            yield f"ops {names}, which {group} matches together, are apart"


def _every_call_is_in_its_region(
    program: FlatProgram, module: IRModule, subgraphs: Sequence[SubgraphRecord]
) -> Iterator[str]:
    """Leaf functions are called in the order of their subgraphs, each from the regions that its operations are in."""
    if not program.bodies and _entry_calls_all(program, module, subgraphs):
        return
    order = calls_in_order(module, "main")
    is_leaf = module.main.attr("role") == "leaf"
    entry: list[tuple[str | None, Path]] = [("main", ())] if is_leaf else []
    # A module with a single leaf function has no call of it: the entry itself is the start.
    starts = chain(entry, ((call.callee, path) for call, _, path in order if _is_leaf(module, call)))
    operators = {op for function in module for op in function.ops}
    is_named = {op: is_named_operator(op, module.by_name) for op in operators}
    names_in_order = (name for call, name, _ in order if is_named[call.op])
    for subgraph in subgraphs:
        callee, path = next(starts, (None, ()))
        if callee != subgraph.function:
            yield f"function {callee!r} is called where {subgraph.function!r} should be, which has {subgraph.ops[:1]}"
            return
        ops = list(program.with_nested(subgraph.calls))
        names = list(islice(names_in_order, len(ops)))
        if names != [program.body[index].source for index in ops]:
            yield f"the call of {callee!r} for {subgraph.ops[:1]} calls its ops {', '.join(map(repr, names[:3]))}"
        for index in subgraph.calls if path or program.bodies else ():
            if tuple(program.nesting_path(index)) != path:
                yield f"op {program.body[index].source!r} of {callee!r} is not called from its region"
    extra = next(starts, None)
    if extra is not None:
        yield f"function {extra[0]!r} is called once more than there are subgraphs for it"


def _every_call_gets_its_values(
    program: FlatProgram, module: IRModule, subgraphs: Sequence[SubgraphRecord]
) -> Iterator[str]:
    """Drivers, of which several calls may share one, pass the operands that the subgraphs list."""
    if program.bodies or module.main.attr("role") != "driver":
        return
    records = iter(subgraphs)

    def run(driver: Function, operands: Sequence[str | Constant]) -> Iterator[str | Constant]:
        values: dict[str, str | Constant] = {constant.name: constant for constant in driver.constants}
        values |= zip([param.name for param in driver.params], operands, strict=True)
        for call in driver.body:
            if call.callee is None:  # a copy
                values[call.outputs[0].name] = values[call.inputs[0]]
                continue
            given = [values[name] for name in call.inputs]
            results: Iterable[str | Constant]
            if _is_leaf(module, call):
                record = next(records, None)
                if record is None or not _are_values(program, given, record.inputs):
                    names = () if record is None else record.ops[:1]
                    problems.append(f"the call of {call.callee!r} for {names} gets other values than it reads")
                results = () if record is None else record.outputs
            else:
                results = run(module[call.callee], given)
            found = [*results]
            if len(call.outputs) != len(found):
                counts = f"{len(call.outputs)} results, and its function {len(found)}"
                problems.append(f"the call of {call.op!r} has {counts}")
            values |= zip([output.name for output in call.outputs], chain(found, repeat("")), strict=False)
        return (values[name] for name in driver.results)

    problems: list[str] = []
    results = [*run(module.main, [param.name for param in module.main.params])]
    yield from problems
    if not _are_values(program, results, program.function.results):
        yield "the entry returns other values than the program"


def _are_values(program: FlatProgram, given: Sequence[str | Constant], names: Sequence[str]) -> bool:
    """Return whether values are those of the program with some names; constants of equal data are equal."""
    return [*given] == [*names] or (
        len(given) == len(names)
        and all(
            one == name
            if isinstance(one, str)
            else name in program.constants
            and one.type == program.constants[name].type
            and same_data(one, program.constants[name])
            for one, name in zip(given, names, strict=True)
        )
    )


def _entry_calls_all(program: FlatProgram, module: IRModule, subgraphs: Sequence[SubgraphRecord]) -> bool:
    """Whether the entry calls the functions of all subgraphs in order; False where that is not certain."""
    entry, body = module.main, program.body
    if entry.calls is not entry.body or entry.attr("role") != "driver":
        return False
    calls = [call for call in entry.body if call.op[:1] == "@"]
    if len(calls) != len(subgraphs) or any(op[:1] != "@" and op != COPY for op in entry.ops):
        return False
    sources: dict[str, list[str] | None] = {}  # of the operations of functions that call none; None for others
    for call, subgraph in zip(calls, subgraphs, strict=True):
        name = call.op[1:]
        if name not in sources:
            leaf = module[name]
            is_plain = leaf.attr("role") == "leaf" and leaf.calls is leaf.body
            is_plain = is_plain and not any(op[:1] == "@" or op in (COPY, CODE) for op in leaf.ops)
            sources[name] = [inner.source for inner in leaf.body] if is_plain else None
        aliases, own = op_aliases(call), sources[name]
        if own is None or name != subgraph.function or (aliases is not None and len(aliases) != len(own)):
            return False
        if (own if aliases is None else [*aliases]) != [body[index].source for index in subgraph.calls]:
            return False
    return True


def _is_leaf(module: IRModule, call: Call) -> bool:
    return call.callee is not None and module[call.callee].attr("role") == "leaf"


def _effects_keep_their_order(program: FlatProgram, module: IRModule) -> Iterator[str]:
    """Operations with effects keep their order; those in regions come after the operation that has the region."""
    expected = list(_effects(program, program.top))
    calls = chain.from_iterable([function.calls for function in module])
    if not expected and not any(map(attrgetter("has_effect"), calls)):
        return
    found = [name for call, name, _ in calls_in_order(module, "main") if call.has_effect and call.callee is None]
    if expected != found:
        first = next(
            (a for a, b in zip(expected, found, strict=False) if a != b), "one of them"
        )  # else one list is longer
        yield f"operations with an effect do not keep their order: {first!r} runs elsewhere"


def _effects(program: FlatProgram, calls: Sequence[int]) -> Iterator[str]:
    body = program.body
    for index in calls if program.bodies else [index for index in calls if body[index].has_effect]:
        if program.body[index].has_effect:
            yield program.body[index].source
        for scope in program.bodies.get(index, ()):
            yield from _effects(program, scope.calls)


def _driver_only_drives(body: Function, driver: str) -> Iterator[str]:
    for call in body.body:
        if call.op != COPY and call.callee is None and control_flow_form(call) is None:
            yield f"driver {driver!r} computes {call.source!r} itself"
        for _, region in call.regions:
            yield from _driver_only_drives(region, driver)
            if region.constants:
                yield f"the body {region.name!r} of {call.source!r} holds constants, which its driver should"


def _calls_stay_in_system(program: FlatProgram, driver: Function, module: IRModule) -> Iterator[str]:
    """The driver of a system calls functions of its children; that of a leaf with a host calls those of the leaf."""
    path = _path(driver)
    of_system = program.topology[path].is_system
    for name in {call.op[1:] for call in driver.calls if call.callee is not None}:
        called = _path(module[name])
        if (called.rpartition("/")[0] if of_system else called) != path or (of_system and not called):
            problem = f"calls {name!r}, which is of @{called or '.'}, no child of it"
            yield f"driver {driver.name!r} of @{path or '.'} {problem}"


def _copies_follow_links(outlined: Outlined) -> Iterator[str]:
    graph = outlined.memory_graph
    for copy in outlined.copies if graph is not None else ():
        stops = graph.route(copy.src, copy.dst, graph.nbytes(copy.type)).stops if graph is not None else ()
        if stops:
            route = " -> ".join((copy.src, *stops, copy.dst))
            yield f"{copy.value!r} is copied from {copy.src!r} directly to {copy.dst!r}, but the route is {route}"


def _copies_lead_away(program: FlatProgram, module: IRModule, outlined: Outlined) -> Iterator[str]:
    """No driver copies a value back to the memory where the function that it called returned it.

    A later call of a system gets its values in the memory of its driver, so it may copy them to where they once were.
    A driver further out may copy through that memory, where the route leads through it.
    """
    subgraphs = outlined.subgraphs if outlined.copies else ()
    owner = {index: subgraph for subgraph in subgraphs for index in subgraph.calls}
    for copy in outlined.copies:
        producer = program.producer.get(copy.value)
        subgraph = None if producer is None else owner.get(producer)
        if subgraph is None or (copy.call and not subgraph.call.startswith(f"{copy.call}/")):
            continue
        system = _path(module[copy.driver])
        depth = 1 + system.count("/") if system else 0
        called = "/".join(subgraph.site.split("/")[: depth + 1])
        if program.topology.home(called) == copy.dst:
            yield f"{copy.value!r} is copied back to {copy.dst!r}, where {subgraph.function!r} computed it"


def _home(driver: Function, program: FlatProgram) -> str:
    return program.topology.home(_path(driver))


def _path(driver: Function) -> str:
    constraint = driver.site_constraint
    return (constraint.path if constraint else None) or ""
