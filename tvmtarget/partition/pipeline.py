"""The decomposition engine: the stages that make a plan, and the loops that make it again. Read this file first.

`plan_request` decomposes a module over a target in this order:

    prepare              normalise the module into one flat program, judge which leaf can run which operation; once
                         (after an edit of single operations only these, `local_edit.py`)
    within_memory        plan again until weights and values fit all memories, at most MAX_MEMORY_ROUNDS times
      within_limits      plan again until no site has too many subgraphs, at most MAX_LIMIT_ROUNDS times
        with_colocation  plan again until `same_site` and `apart` hold; the rounds are limited by their size
        improved_colocation  try such groups on other sites, at most MAX_MOVES times
          best_candidate run STAGES once for each way of choosing sites, and verify the best result
            STAGES       partition, outline_subgraphs, predict_times

`partition` is the one recursive rule (`split`): at a system, assign every atom to a child, form subgraphs whose graph
has no cycle, have code generators check them (`decide_level`, again if they reject some, at most MAX_REJECTED_ROUNDS
times), and split each subgraph further down. Values that pass between memories become copies when subgraphs are
outlined. Each decision is recorded with its reason (`decisions.py`).

| stage | decides | in |
|---|---|---|
| normalise | one flat program; requirements of each operation | `flat_program.py`, `placement/where_rules.py` |
| judge | which leaf can take which operation, and why not | `placement/feasibility.py` |
| assign | the child of every atom | `placement/level.py`, `by_cost.py`, `throughput_balancing.py` |
| form | the subgraphs of a level | `subgraphs/forming.py`, `portfolio.py` |
| check | whether code generators accept them | `subgraphs/subgraph_check.py` |
| outline | functions, drivers, copies and their routes | `outline/outlining.py`, `costs/memory_graph.py` |
| predict | time and throughput by the costs | `costs/predict.py`, `machines/throughput.py` |
| verify | proves the result on the module itself | `verify.py` |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import cast

from tvmtarget.errors import CapacityError, InfeasibleError, TargetError, raise_all
from tvmtarget.human_units import bytes_text
from tvmtarget.ir.constant_folding import folded_ops
from tvmtarget.ir.function import DRIVEN_DEVICE
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.onnx.definitions import has_definition
from tvmtarget.ir.verify import verify_functions
from tvmtarget.partition.control.boundary_memory import check_boundary_memory
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.costs.memory_graph import MemoryGraph
from tvmtarget.partition.costs.predict import Prediction, predict
from tvmtarget.partition.decisions import (
    Decision,
    assignment_records,
    limit_records,
    preference_records,
    unsupported_record,
)
from tvmtarget.partition.decomposition import Decomposition, Request, folded_module
from tvmtarget.partition.flat_program import FlatProgram, normalise
from tvmtarget.partition.host_device.mixed_functions import split_mixed_function
from tvmtarget.partition.known_partition import KnownPartition
from tvmtarget.partition.local_edit import changed_ops, program_after, with_known_calls
from tvmtarget.partition.machines.machine import is_distributed
from tvmtarget.partition.machines.throughput import Throughput, throughput_of
from tvmtarget.partition.memory_use import MemoryUse, memory_uses
from tvmtarget.partition.options import PartitionOptions
from tvmtarget.partition.outline.outlining import Outlined, outline
from tvmtarget.partition.partition_node import PartitionNode
from tvmtarget.partition.placement.choosers import CachedChooser, PinnedChooser, choosers_for, next_choosers
from tvmtarget.partition.placement.colocation import (
    Colocation,
    ExcludedSites,
    alternative_pins,
    colocation_of,
    colocation_pins,
    foreseen_pins,
    lowered_preferences,
    with_atomic_groups,
    with_pins,
)
from tvmtarget.partition.placement.constraint_paths import leaves_at
from tvmtarget.partition.placement.coupled_atoms import CoupledOps
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.hypotheses import assume_support, with_moves
from tvmtarget.partition.placement.level import Assignment, Chooser, Level, by_preference, level_of, only_option
from tvmtarget.partition.placement.replicas import add_replicas
from tvmtarget.partition.plan_cache import PlanCache
from tvmtarget.partition.subgraphs.forming import subgraphs_of_level
from tvmtarget.partition.subgraphs.lower_bound import lower_bound
from tvmtarget.partition.subgraphs.single_subgraph import leaving_ops
from tvmtarget.partition.subgraphs.subgraph_budget import alternative_leaves, over_budget, time_saved
from tvmtarget.partition.subgraphs.subgraph_check import checked_subgraphs
from tvmtarget.partition.verify import verify_plan
from tvmtarget.support.registry import is_generator, strategy_at
from tvmtarget.support.strategy import Reject
from tvmtarget.target.topology import Site, Topology

__all__ = ["STAGES", "Candidate", "keep_for_edits", "plan_request", "prepare", "split"]

# `within_limits`: rounds of moving operations off sites that get more subgraphs than they may.
MAX_LIMIT_ROUNDS = 16

# `improved_colocation`: the number of moves to try, and the number of operations above which none are tried.
MAX_MOVES, MOVABLE = 16, 1000

# `_improved_levels`: joint choices of sites that are compared beside the best one. `_with_next_fitting`: those that are
# looked at, and those that are planned.
MAX_NEXT, MAX_SCREENED, MAX_FITTING = 8, 256, 64

# `_improved_stream`: moves that are tried, and the number of operations above which none are.
MAX_STREAM_MOVES, MAX_STREAMED = 96, 24

# `within_memory`: rounds of moving what does not fit out of memories, and plans with less room for values.
MAX_MEMORY_ROUNDS, MAX_ROOM_ROUNDS = 16, 5

# `_with_returned`: operations that may return to memories, and the number of operations above which none are tried.
MAX_RETURNED, RETURNABLE = 16, 64

# `decide_level`: rounds of assigning a level again because a code generator rejects subgraphs.
MAX_REJECTED_ROUNDS = 16


def plan_request(
    request: Request, feasibility: Feasibility | None = None, sites: Mapping[str, str] | None = None
) -> Decomposition:
    """Decompose a module.

    Args:
        request: the module, the target and the options.
        feasibility: the prepared request, where it is known from before.
        sites: paths by operation name that stay as they are wherever they are still allowed.

    Returns:
        The best decomposition found, verified.

    Raises:
        InfeasibleError: if an operation fits no site, or options contradict each other; all problems of a stage.
        UnknownNameError: for names of no operation or site.
        ModelError: if the module is not valid.
    """
    feasibility = feasibility or prepare(request)
    return replace(within_memory(request, feasibility, sites), prepared=feasibility)


# Preparation: once for a request


def prepare(request: Request, *, splits: bool = False, cache: PlanCache | None = None) -> Feasibility:
    """Normalise the module of a request, and judge what fits where.

    Args:
        request: the module, the target and the options.
        splits: split mixed functions of host and device code even where the code generator accepts them whole; always
            so for a module that was split before.
        cache: results of an earlier decomposition.

    Returns:
        What fits where, with the flat program.

    Raises:
        InfeasibleError: if an operation fits nowhere, with the reason of every leaf.
        TargetError, UnknownNameError, ModelError: where target, names or module are not valid.
    """
    # Decomposing a decomposed module must change nothing, so what was split before is split again.
    splits = splits or any(function.attr(DRIVEN_DEVICE) is not None for function in request.module)
    cache = cache or PlanCache()
    prepared = _after_local_edit(request, cache) if not splits else None
    if prepared is None or not prepared[1].is_complete:
        prepared = request, _with_definitions(request, splits=splits, cache=cache)
    cache.prepared, feasibility = prepared, prepared[1]
    if feasibility.is_complete:
        return feasibility
    # Where patterns overlap, another selection of matches may let every operation fit a site.
    feasibility = next(iter(feasibility.alternatives), feasibility)
    kept = [index for index in _definable(request, feasibility) if request.names_whole(feasibility.program.body[index])]
    hint = (
        "; an option names it, so that it is not replaced by the operations that define it in ONNX: name these, such as"
    )
    feasibility.check_all({index: f"{hint} '{feasibility.program.body[index].source}/*'" for index in kept})
    return feasibility


def _with_definitions(request: Request, *, splits: bool, cache: PlanCache) -> Feasibility:
    """Judge a program in which operations that fit no site are replaced by those of their definitions in ONNX.

    Operations that options name stay, and those whose definitions have operations that fit no site either.
    """
    defined: frozenset[str] = frozenset()
    while True:
        feasibility = judge(request, normalised(request, defined), splits=splits, cache=cache)
        if not request.options.fold_constants or feasibility.is_complete or feasibility.alternatives:
            return feasibility
        body = feasibility.program.body
        found = [
            call for call in map(body.__getitem__, _definable(request, feasibility)) if not request.names_whole(call)
        ]
        more = frozenset(call.source for call in found) - defined
        if not more:
            break
        defined |= more
    unsupported = [f"{body[index].source}/" for index in feasibility.unsupported()]
    helpful = frozenset(name for name in defined if not any(one.startswith(f"{name}/") for one in unsupported))
    if helpful == defined:
        return feasibility
    return judge(request, normalised(request, helpful), splits=splits, cache=cache)


def _definable(request: Request, feasibility: Feasibility) -> Iterator[int]:
    """Yield the operations that fit no site, and that ONNX defines by functions."""
    program = feasibility.program
    opset = dict(program.function.opsets).get("", 0)
    for index in feasibility.unsupported():
        call = program.body[index]
        if call.constraint is None and not call.regions and has_definition(call.op, opset):
            yield index


def keep_for_edits(cache: PlanCache) -> None:
    """Keep in the cache of a plan what plans after edits need, and no older plans.

    Args:
        cache: the cache that the plan was made with.
    """
    # What fits where refers to the cache. Without that reference a plan is freed as soon as nothing needs it.
    request, feasibility = cast("tuple[Request, Feasibility]", cache.prepared)
    alone = feasibility.without_cache()
    cache.prepared, cache.earlier_partitions = (request, alone), {}
    for kind, known in cast("dict[str, KnownPartition]", cache.partitions).items():
        is_same = known.feasibility is feasibility
        cache.partitions[kind] = replace(known, feasibility=alone if is_same else known.feasibility.without_cache())


def _after_local_edit(request: Request, cache: PlanCache) -> tuple[Request, Feasibility] | None:
    """Return the request, and what fits where, after an edit of single operations; None if there is no plan before.

    The module of the request has the operations of the earlier one where they are equal.
    """
    if cache.prepared is None:
        return None
    before, feasibility = cast("tuple[Request, Feasibility]", cache.prepared)
    old, new = before.module, request.module
    if feasibility.splits or request.moves or request.refusals or not before.is_like(request):
        return None
    if [*old.by_name] != [*new.by_name] or dict(old.attrs) != dict(new.attrs) or "main" not in new.by_name:
        return None
    if any(old[name] is not function for name, function in new.by_name.items() if name != "main"):
        return None
    main = with_known_calls(new.main, old.main)
    program = program_after(feasibility.program, old.main, main, request.options)
    if program is None:
        return None
    new = new.replace(functions=tuple(main if function.name == "main" else function for function in new))
    verify_functions(new.by_name, new.target, old.by_name if new.target == old.target else None)
    changed = frozenset(changed_ops(feasibility.program, program))
    return replace(request, module=new), feasibility.after_edit(program, changed, cache)


def normalised(request: Request, defined: Collection[str] = ()) -> FlatProgram:
    """Return the module as one flat program with the requirements on each operation.

    Args:
        request: the module, the target and the options.
        defined: names of operations to replace by the operations that define them in ONNX.

    Returns:
        The flat program.

    Raises:
        TargetError, UnknownNameError, ModelError: where target, names or module are not valid.
    """
    options = request.options
    module = request.module.verify()
    folded, defined = folded_module(module, request, defined) if options.fold_constants else (module, ())
    program = normalise(folded, request.target, options.where, options.named_ops)
    gone = folded_ops(module, folded)
    if gone:
        program = replace(program, folded=gone, defined=tuple(name for name in gone if name in defined))
    raise_all(TargetError, [*_unsupported_systems(program.topology), *_useless_replicas(request)])
    request.check_names(program)
    program = with_atomic_groups(program, options.atomic, options.boundary_before, options.boundary_after)
    return with_moves(program, request.moves) if request.moves else program


def judge(request: Request, program: FlatProgram, *, splits: bool, cache: PlanCache | None) -> Feasibility:
    """Return which leaf can run which operation, with the support that a question assumes.

    Args:
        request: the options and moves.
        program: the flat program.
        splits: as in `prepare`.
        cache: as in `prepare`.

    Returns:
        The answers, computed as they are needed.
    """
    numbers = {call.source: number for number, call in enumerate(program.body)} if request.refusals else {}
    refused = {(numbers[one.op], one.leaf): one.reason for one in request.refusals if one.op in numbers}
    feasibility = Feasibility(program, splits=splits, cache=cache, refused=refused)
    return assume_support(feasibility, request.moves) if request.moves else feasibility


def _unsupported_systems(topology: Topology) -> Iterator[str]:
    """Yield an error for each external generator with children whose strategy is only valid without children."""
    for path, node in topology.root.walk():
        strategy = strategy_at(node) if node.is_composite and is_generator(node) else None
        if strategy is not None:
            kind = f"@{path or '.'} is of kind {node.kind!r}, whose strategy has"
            hint = "which is for generators without children; leave them out, or make it a 'composite'"
            if strategy.subgraphs == "program":
                yield f"{kind} subgraphs='program', {hint}"
            if strategy.accepts == "device":
                yield f"{kind} accepts='device', {hint}"
            if strategy.constants != "bind":
                yield f"{kind} constants={strategy.constants!r}, {hint}"


def _useless_replicas(request: Request) -> Iterator[str]:
    """Yield an error if replicas are allowed, but no two machines would work at the same time."""
    most, root = request.options.max_replicas, request.target
    if most > 1 and not is_distributed(root):
        yield (
            f"max_replicas is {most}, but runtime {root.runtime.kind if root.runtime else 'python'!r} runs one machine "
            "at a time; state a runtime that runs all of them, such as [n=...](runtime=processes)"
        )


# Loops: plan again until every option holds


def within_memory(request: Request, feasibility: Feasibility, sites: Mapping[str, str] | None) -> Decomposition:
    """Plan until weights and values of every memory fit.

    Weights are kept within capacities while sites are assigned; how many bytes of values are there at a time is only
    known of a plan. Each round makes two plans, and keeps the faster one, or the first without costs. The first leaves
    room for the values of the last plan, then for as few as suffice; in the second, the operations that run while a
    memory is too full go elsewhere. At most MAX_MEMORY_ROUNDS rounds. In the end, operations return where that is
    better and the memories still hold all (`_with_returned`).

    Args:
        request: the module, the target and the options.
        feasibility: what fits where.
        sites: as in `plan_request`.

    Returns:
        The best decomposition found.

    Raises:
        InfeasibleError: if no plan was found that the memories hold, or as for `within_limits`.
    """
    # Room for values and operations that move are no requirements: only the first plan's bound holds for all plans.
    plan = unconstrained = with_weights(request, feasibility, sites)
    for _ in range(MAX_MEMORY_ROUNDS):
        full = [use for use in memory_uses(plan) if use.missing]
        if not full:
            if plan is not unconstrained and sites is None:
                plan = _with_next_fitting(_with_returned(request, plan, feasibility), feasibility)
            return _with_bound_of(plan, unconstrained)
        problem = InfeasibleError(*(use.problem() for use in full))
        plans = list[Decomposition]()
        with suppress(InfeasibleError):
            plans.append(_with_reserve(request, plan, sites, {use.memory: use.values for use in full}))
        with suppress(InfeasibleError):
            plans.append(_without_crowded(request, plan, sites, full))
        if not plans:
            raise problem
        plan = min(plans, key=lambda one: (not _fits(one), *_order(one)))
    raise problem


def _order(plan: Decomposition) -> tuple[int, tuple[int, ...]]:
    """Return what plans that memories hold are compared by, less is better: preferences, then the objective."""
    program, topology = plan.program, plan.topology
    if all(item.constraint.is_required and not item.constraint.any_of for row in program.requirements for item in row):
        return 0, plan.rank
    sites = plan.sites()
    kept = (
        plan.feasibility.preference_rank((index,), topology[sites[program.body[index].source]])
        for index in range(len(program.body))
        if index not in program.bodies
    )
    return -sum(kept), plan.rank


def _with_returned(request: Request, plan: Decomposition, feasibility: Feasibility) -> Decomposition:
    """Let operations return to memories that they had to leave, one at a time, where the plan becomes better.

    A round excludes all operations that run while a memory is too full, though some of them may fit without the others.
    At most MAX_RETURNED tries.

    Args:
        request: the module, the target and the options.
        plan: a plan that the memories hold.
        feasibility: what fits where without it.

    Returns:
        The best plan found.
    """
    program, topology, estimates = plan.program, plan.topology, plan.estimates
    if len(program.body) > RETURNABLE:
        return plan
    left = plan.feasibility.refused.keys() - feasibility.refused.keys()

    def loss(index: int, path: str) -> tuple[int, int]:
        """Return what an operation loses at a leaf: preference, and time."""
        site = topology[path]
        time = None if estimates is None else estimates.time(index, site).time
        return -feasibility.preference_rank((index,), site), time or 0

    gains: dict[tuple[int, str], tuple[int, int]] = {}
    for index, path in left:
        here, there = loss(index, plan.site_of(program.body[index].source)), loss(index, path)
        gain = here[0] - there[0], here[1] - there[1]
        returning = index, topology[path].domain
        gains[returning] = max(gain, gains.get(returning, gain))
    for index, memory in sorted(gains, key=lambda one: (*(-gain for gain in gains[one]), one))[:MAX_RETURNED]:
        pairs = {one for one in left if one[0] == index and topology[one[1]].domain == memory}
        refused = {one: reason for one, reason in plan.feasibility.refused.items() if one not in pairs}
        with suppress(InfeasibleError):
            other = with_weights(request, plan.feasibility.replace(refused=refused), None)
            is_comparable = other.is_no_worse_than(plan) or _order(other)[0] < _order(plan)[0]
            if is_comparable and _order(other) < _order(plan) and _fits(other):
                plan = other
    return plan


def _with_next_fitting(plan: Decomposition, feasibility: Feasibility) -> Decomposition:
    """Return the best of a plan and those by the next joint choices of sites that memories hold, for few operations."""
    options, program = plan.request.options, feasibility.program
    if options.costs is None or plan.prediction is None or options.objective != "latency" or program.bodies:
        return plan
    estimates = Estimates(program, options.costs)
    colocation = colocation_of(program, options.same_site, options.apart)
    coupled = CoupledOps(colocation, _limits(options, feasibility))
    # Without what rounds reserved for values, and excluded.
    first = best = replace(plan, program=program, feasibility=feasibility, estimates=estimates)
    tried, full = 0, set[tuple[str, frozenset[str]]]()
    for choose in next_choosers(feasibility, estimates, coupled, plan.prediction.total, MAX_SCREENED):
        users = _ops_by_memory(choose.sites, plan.topology)
        # More operations seldom fit where fewer do not.
        if any(ops <= users.get(memory, frozenset()) for memory, ops in full):
            continue
        if (tried := tried + 1) > MAX_FITTING:
            break
        other = _better_of(best, choose, coupled)
        missing = [use.memory for use in memory_uses(other) if use.missing]
        full |= {(memory, users[memory]) for memory in missing if memory in users}
        if not missing and _order(other) <= _order(best):
            best = other
    if best is first:
        return plan
    verify_plan(best.program, best.feasibility, best.module, best.outlined)
    return best


def _ops_by_memory(sites: Mapping[str, str], topology: Topology) -> dict[str, frozenset[str]]:
    names: dict[str, set[str]] = {}
    for name, site in sites.items():
        names.setdefault(topology[site].domain, set()).add(name)
    return {memory: frozenset(ops) for memory, ops in names.items()}


def _limits(options: PartitionOptions, feasibility: Feasibility) -> tuple[tuple[frozenset[str], int], ...]:
    topology = feasibility.program.topology
    return tuple((leaves_at(name, topology), most) for name, most in options.max_subgraphs.items())


def _fits(plan: Decomposition) -> bool:
    return not any(use.missing for use in memory_uses(plan))


def _with_reserve(
    request: Request, plan: Decomposition, sites: Mapping[str, str] | None, values: Mapping[str, int]
) -> Decomposition:
    """Plan again with less of some memories for weights."""
    reserved = dict(plan.program.reserved)
    if all(reserved.get(memory, 0) >= nbytes for memory, nbytes in values.items()):
        raise InfeasibleError("as many bytes are reserved already")
    reserved |= {memory: max(nbytes, reserved.get(memory, 0)) for memory, nbytes in values.items()}
    best = _reserving(request, plan, sites, reserved)
    # With fewer operations there, values need less room, and leave more to weights.
    least, most = 0.0, 1.0
    for _ in range(MAX_ROOM_ROUNDS if _fits(best) else 0):
        middle = (least + most) / 2
        less = {memory: int(middle * nbytes) for memory, nbytes in reserved.items()}
        other = _reserving(request, plan, sites, less)
        if not _fits(other):
            least = middle
        else:
            best, most = other, middle
    return best


def _reserving(
    request: Request, plan: Decomposition, sites: Mapping[str, str] | None, reserved: Mapping[str, int]
) -> Decomposition:
    program = replace(plan.program, reserved=reserved)
    return with_weights(request, plan.feasibility.replace(program=program), sites)


def _without_crowded(
    request: Request, plan: Decomposition, sites: Mapping[str, str] | None, full: Sequence[MemoryUse]
) -> Decomposition:
    """Plan again with the operations elsewhere that run while a memory is too full."""
    refused = dict(plan.feasibility.refused)
    for use in full:
        reason = f"memory {use.memory!r} of {bytes_text(use.limit)} is too small for the values that it needs there"
        leaves = [leaf.path for leaf in plan.feasibility.leaves if leaf.domain == use.memory]
        refused |= {(index, leaf): reason for index in use.crowded for leaf in leaves}
    feasibility = plan.feasibility.replace(refused=refused)
    feasibility.check_all()
    return with_weights(request, feasibility, sites)


def with_weights(request: Request, feasibility: Feasibility, sites: Mapping[str, str] | None) -> Decomposition:
    """Plan until the weights of every memory fit, where a level alone finds no way.

    A level decides without the memories of systems below it, and never leaves a preferred site. Each round moves
    operations out of one memory, those that lose the least time per byte. At most MAX_MEMORY_ROUNDS rounds.

    Args:
        request: the module, the target and the options.
        feasibility: what fits where.
        sites: as in `plan_request`.

    Returns:
        The best decomposition found.

    Raises:
        InfeasibleError: if weights that do not fit can go nowhere else, or as for `within_limits`.
    """
    problem: CapacityError | None = None
    for _ in range(MAX_MEMORY_ROUNDS):
        try:
            plan = within_limits(request, feasibility, sites)
        except CapacityError as error:
            # The first one is about the requirements alone, without operations that were excluded here.
            problem = problem or error
            excluded = _without_weights(request, feasibility, error)
            if excluded is None:
                break
            feasibility = excluded
            continue
        # What left a memory might have stayed there if other operations had left it.
        return plan if problem is None else _without_bound(plan)
    assert problem is not None
    raise problem


def _without_weights(request: Request, feasibility: Feasibility, error: CapacityError) -> Feasibility | None:
    """Exclude operations from a memory until the weights of the others fit; None if the level tried all there is."""
    leaves = [leaf for leaf in feasibility.leaves if leaf.domain == error.memory]
    paths = frozenset(leaf.path for leaf in leaves)
    costs = request.options.costs
    estimates = None if costs is None else Estimates(feasibility.program, costs)
    movable = [
        (calls, nbytes)
        for calls, nbytes, tried in error.groups
        if all(
            any(leaf.domain not in tried for leaf in alternative_leaves(feasibility, index, paths)) for index in calls
        )
    ]

    def loss(group: tuple[tuple[int, ...], int]) -> tuple[float, tuple[int, ...]]:
        calls, nbytes = group
        saved = 0 if estimates is None else time_saved(feasibility, estimates, calls, leaves[0], paths)
        return saved / nbytes, tuple(-index for index in calls)

    refused, missing = dict(feasibility.refused), error.missing
    for calls, nbytes in sorted(movable, key=loss):
        if missing <= 0:
            break
        missing -= nbytes
        reason = f"memory {error.memory!r} is too small for its weights beside those of other operations"
        refused |= {(index, path): reason for index in calls for path in paths}
    return feasibility.replace(refused=refused) if missing <= 0 else None


def _without_bound(plan: Decomposition) -> Decomposition:
    return plan if plan.prediction is None else replace(plan, prediction=replace(plan.prediction, lower_bound=None))


def within_limits(request: Request, feasibility: Feasibility, sites: Mapping[str, str] | None) -> Decomposition:
    """Plan until no site has more subgraphs than it may.

    `max_subgraphs` limits them, and some code generators take a single one. Each round moves the operations that gain
    least off the sites that got too many. At most MAX_LIMIT_ROUNDS rounds.

    Args:
        request: the module, the target and the options.
        feasibility: what fits where.
        sites: as in `plan_request`.

    Returns:
        The best decomposition found.

    Raises:
        InfeasibleError: if operations have nowhere else to go, or the rounds do not suffice.
    """
    plan = unconstrained = with_colocation(request, feasibility, sites)
    excluded: list[ExcludedSites] = []
    for _ in range(MAX_LIMIT_ROUNDS):
        limits = [(name, plan.leaves_of(name), most) for name, most in request.options.max_subgraphs.items()]
        surplus = over_budget(plan.feasibility, plan.estimates, plan.subgraphs, limits)
        split_programs = leaving_ops(plan.feasibility, plan.estimates, plan.subgraphs)
        if not surplus and not split_programs:
            return _with_bound_of(plan, unconstrained)
        # Exclusions add up over the rounds; otherwise operations could return to a site that they had to leave.
        excluded.append(ExcludedSites("max_subgraphs", surplus))
        excluded.append(ExcludedSites("a site that takes one program", split_programs))
        plan = with_colocation(request, feasibility, sites, excluded)
    raise InfeasibleError(
        f"no plan was found in {MAX_LIMIT_ROUNDS} rounds that keeps 'max_subgraphs', and gives one program to sites "
        "that take one; allow more subgraphs, or place operations by 'where'"
    )


def with_colocation(
    request: Request,
    feasibility: Feasibility,
    sites: Mapping[str, str] | None,
    excluded: Sequence[ExcludedSites] = (),
) -> Decomposition:
    """Plan until `same_site` and `apart` hold.

    Each round pins the groups that the previous plan violates; without costs, all rounds become one where possible. The
    number of rounds is limited to one for each group of `same_site`, three for each pair of `apart`, and one more.

    Args:
        request: the module, the target and the options.
        feasibility: what fits where.
        sites: as in `plan_request`.
        excluded: operations and the sites that they must leave.

    Returns:
        The best decomposition found.

    Raises:
        InfeasibleError: if no assignment keeps all groups.
    """
    colocation = colocation_of(feasibility.program, request.options.same_site, request.options.apart)
    plain = with_pins(feasibility, {}, excluded) if excluded else feasibility
    # Assignment by cost keeps most groups itself; the rounds below are for those that it does not.
    plan = unconstrained = best_candidate(request, plain, sites, colocation)
    if not colocation or (request.options.costs is not None and _keeps(plan, colocation)):
        return plan
    pins: dict[int, str] = {}
    rounds = 1 + 3 * len(colocation.apart) + len(colocation.same_site)
    # Without costs, an operation stays where it is when others move, so that one plan can take the place of many.
    foreseen = foreseen_pins(plain, colocation, plan.sites(), rounds) if request.options.costs is None else None
    if foreseen is not None and foreseen[0]:
        try:
            planned = best_candidate(request, with_pins(feasibility, foreseen[0], excluded), sites)
        except InfeasibleError:
            pass  # limits of code generators moved more than the pinned operations: go round by round
        else:
            if planned.sites() == foreseen[1]:
                plan, pins = planned, foreseen[0]
    for _ in range(rounds):
        wanted = colocation_pins(plain, colocation, plan.sites(), pins)
        if wanted == pins:
            # Given sites are to be kept, and without costs no plan is better than another.
            if sites is None and plan.prediction is not None:
                lowered = lowered_preferences(plain, plan.sites(), pins)
                other = _with_lowered(request, feasibility, colocation, [*excluded, lowered])
                if other is not None and other.is_no_worse_than(plan):
                    return _with_bound_of(other, unconstrained)
                plan = improved_colocation(plan, plain, colocation, pins)
            return _with_bound_of(plan, unconstrained)
        pins = wanted
        plan = best_candidate(request, with_pins(feasibility, pins, excluded), sites)
    raise InfeasibleError("no choice of sites was found that keeps all of 'apart'; list fewer operations in it")


def _with_lowered(
    request: Request, feasibility: Feasibility, colocation: Colocation, excluded: Sequence[ExcludedSites]
) -> Decomposition | None:
    """Plan by cost without the preferences that contradict the colocation; None if there are none, or no plan."""
    if not excluded[-1].leaves:
        return None
    try:
        plan = best_candidate(request, with_pins(feasibility, {}, excluded), None, colocation)
    except InfeasibleError:
        return None
    return plan if _keeps(plan, colocation) else None


def improved_colocation(
    plan: Decomposition, plain: Feasibility, colocation: Colocation, pins: Mapping[int, str]
) -> Decomposition:
    """Try colocated groups on other sites, and go on from each better plan; MAX_MOVES times.

    Args:
        plan: a plan with costs that keeps all groups.
        plain: what fits where without pins.
        colocation: the groups.
        pins: the sites that the plan's groups are pinned to, by operation.

    Returns:
        The best plan found, `plan` itself if no other is better.
    """
    untried = alternative_pins(plain, colocation, plan.sites(), pins)
    # Each try plans the whole program again, which takes too long for large programs.
    for _ in range(MAX_MOVES if len(plain.program.body) <= MOVABLE else 0):
        moved = next(untried, None)
        if moved is None:
            return plan
        try:
            other = best_candidate(plan.request, with_pins(plain, moved), None)
            keeps_groups = colocation_pins(plain, colocation, other.sites(), moved) == moved
        # That a group cannot go there is no error, because there is a plan already.
        except InfeasibleError:
            continue
        if keeps_groups and other.is_no_worse_than(plan) and other.rank < plan.rank:
            # Hill climbing: the neighbours of the better plan are tried next.
            plan, untried = other, alternative_pins(plain, colocation, other.sites(), moved)
    return plan


def _with_bound_of(plan: Decomposition, unconstrained: Decomposition) -> Decomposition:
    """Return a plan with the lower bound of the unconstrained plan, which bounds this one too and may be tighter.

    Bounds are of plans that keep preferences: there is none if this plan releases one that the other keeps.
    """
    if plan is unconstrained or plan.prediction is None or unconstrained.prediction is None:
        return plan
    if not _released(plan) <= _released(unconstrained):
        return _without_bound(plan)
    return replace(plan, prediction=replace(plan.prediction, lower_bound=unconstrained.prediction.lower_bound))


def _released(plan: Decomposition) -> set[tuple[tuple[int, ...], str]]:
    """Return the preferences that a plan releases, each with its operation."""
    return {(one.ops, one.reason) for one in plan.decisions if one.code == "RELEASED_PIN"}


def _keeps(plan: Decomposition, colocation: Colocation) -> bool:
    sites = plan.sites()
    return colocation.is_kept({index: sites[call.source] for index, call in enumerate(plan.program.body)})


def _is_within_limits(plan: Decomposition, coupled: CoupledOps) -> bool:
    """Return whether no site has more subgraphs than it may."""
    counts = Counter(subgraph.site for subgraph in plan.subgraphs)
    return all(sum(counts[leaf] for leaf in leaves) <= most for leaves, most in coupled.max_subgraphs)


def best_candidate(
    request: Request,
    feasibility: Feasibility,
    sites: Mapping[str, str] | None,
    colocation: Colocation | None = None,
) -> Decomposition:
    """Plan once with each way of choosing sites, and return the best plan, verified.

    Assignment by cost does not know how levels and nested bodies will be split, so that there it can miss the
    best plan. There the assignment by preference is planned too, and another plan replaces it only if known times
    show that it is no slower. Other selections of overlapping patterns are compared in the same way.

    Args:
        request: the module, the target and the options.
        feasibility: what fits where.
        sites: as in `plan_request`.
        colocation: groups of operations; plans that keep them come before those that do not.

    Returns:
        The best decomposition; of those with fewest operations moved from `sites`.

    Raises:
        InfeasibleError: if an operation fits no site.
    """
    options = request.options
    estimates = None if options.costs is None else Estimates(feasibility.program, options.costs)
    coupled = CoupledOps(colocation or Colocation(), _limits(options, feasibility))
    ways = [feasibility] if estimates is None else [feasibility, *feasibility.alternatives]
    distinct: dict[tuple[int, object], Candidate] = {}
    bounds: dict[int, int] = {}
    problems = list[CapacityError]()
    for number, way in enumerate(ways):
        for choose in choosers_for(way, estimates, options, sites, coupled):
            try:
                candidate = partition(Candidate(request, way, estimates, choose))
            except CapacityError as error:
                problems.append(error)  # another chooser may find how weights fit
                continue
            assert candidate.root is not None
            if candidate.root.least_time is not None:
                bounds[number] = max(candidate.root.least_time, bounds.get(number, 0))
            parts = tuple((node.site.path, node.calls) for node in candidate.root.walk())
            distinct.setdefault((number, parts), candidate)
    if not distinct:
        raise problems[0]
    # A lower bound that one chooser proves holds for the plans of all.
    candidates = [
        replace(candidate, root=replace(candidate.root, least_time=bounds.get(number)))
        for (number, _), candidate in distinct.items()
        if candidate.root is not None
    ]
    plans = [run_stages(candidate) for candidate in candidates]
    if colocation:
        plans = [plan for plan in plans if _keeps(plan, colocation)] or plans
    plans = [plan for plan in plans if _is_within_limits(plan, coupled)] or plans
    moved = [plan.moved_from(sites or {}) for plan in plans]
    first, *others = [plan for plan, number in zip(plans, moved, strict=True) if number == min(moved)]
    best = min([*(plan for plan in others if plan.is_no_worse_than(first)), first], key=lambda plan: plan.rank)
    if sites is None:
        best = (_improved_levels if options.objective == "latency" else _improved_stream)(best, coupled)
    # Only the plan that is returned has to be proven.
    verify_plan(best.program, best.feasibility, best.module, best.outlined)
    return best


def _improved_levels(best: Decomposition, coupled: CoupledOps) -> Decomposition:
    """Return the best plan found where levels interact: other sites than those of the best bound may be better."""
    prediction, estimates = best.prediction, best.estimates
    is_nested = any(option.is_system for option in best.topology.options(""))
    if estimates is None or prediction is None or prediction.lower_bound is None or not is_nested:
        return best
    if prediction.total > prediction.lower_bound:
        for choose in next_choosers(best.feasibility, estimates, coupled, prediction.total, MAX_NEXT):
            best = _better_of(best, choose, coupled)
    return best


def _improved_stream(best: Decomposition, coupled: CoupledOps) -> Decomposition:
    """Move subgraphs and operations while inputs of a stream take less: load is balanced at the root alone.

    At most MAX_STREAM_MOVES moves are tried, in small programs on nested trees.
    """
    estimates, is_nested = best.estimates, any(option.is_system for option in best.topology.options(""))
    if estimates is None or best.throughput is None or not is_nested or len(best.program.body) > MAX_STREAMED:
        return best
    by_cost = CachedChooser.of(best.feasibility, estimates)
    untried = _moved_sites(best)
    for _ in range(MAX_STREAM_MOVES):
        sites = next(untried, None)
        if sites is None:
            break
        other = _better_of(best, PinnedChooser(sites, best.program.body, by_cost, estimates), coupled)
        if other is not best:
            best, untried = other, _moved_sites(other)
    return best


def _moved_sites(plan: Decomposition) -> Iterator[Mapping[str, str]]:
    """Yield the sites of a plan with one subgraph, then one operation, on each other leaf that supports it."""
    sites, names = plan.sites(), [call.source for call in plan.program.body]
    for calls in dict.fromkeys(
        [*(record.calls for record in plan.subgraphs), *((index,) for index in plan.program.top)]
    ):
        for leaf in plan.feasibility.leaves:
            is_supported = all(plan.feasibility.unsupported_reason(index, leaf) is None for index in calls)
            if is_supported and sites[names[calls[0]]] != leaf.path:
                yield {**sites, **{names[index]: leaf.path for index in calls}}


def _better_of(best: Decomposition, choose: Chooser, coupled: CoupledOps) -> Decomposition:
    """Return the plan of a chooser if it is better and keeps what couples operations."""
    try:
        candidate = partition(Candidate(best.request, best.feasibility, best.estimates, choose))
    except CapacityError:
        return best
    assert candidate.root is not None
    assert best.prediction is not None
    other = run_stages(replace(candidate, root=replace(candidate.root, least_time=best.prediction.lower_bound)))
    is_valid = _keeps(other, coupled.colocation) and _is_within_limits(other, coupled)
    return other if is_valid and other.is_no_worse_than(best) and other.rank < best.rank else best


# Stages: once for a candidate


@dataclass(frozen=True)
class Candidate:
    """One way to decompose a request, as far as its stages have come."""

    request: Request
    feasibility: Feasibility
    estimates: Estimates | None
    choose: Chooser
    root: PartitionNode | None = None
    decisions: tuple[Decision, ...] = ()
    outlined: Outlined | None = None
    module: IRModule | None = None
    prediction: Prediction | None = None
    throughput: Throughput | None = None


def partition(candidate: Candidate) -> Candidate:
    """Assign every operation to a leaf, and form the tree of subgraphs.

    Args:
        candidate: a candidate without results.

    Returns:
        The candidate with `root`, and the decision records of all levels.

    Raises:
        InfeasibleError: if atoms fit no child, or values at the border of a body cannot be in their memory.
    """
    feasibility, estimates, choose = candidate.feasibility, candidate.estimates, candidate.choose
    program, cache = feasibility.program, feasibility.cache
    kind = _kind_of(choose)
    known = cast("KnownPartition | None", cache.earlier_partitions.get(kind))
    if known is None or not known.is_of(feasibility, estimates):
        root = split(program, feasibility, program.topology[""], program.top, choose)
        check_boundary_memory(program, root)
        decisions = [decision for node in root.walk() for decision in node.decisions]
        decisions += preference_records(program, root)
        known = KnownPartition(feasibility, estimates, root, tuple(decisions))
    else:
        cache.count("partitions", 1, 1)
        cache.keep("operations that sites take", "choices of sites", "divisions into subgraphs", "minimum cuts")
        known = replace(known, feasibility=feasibility, estimates=estimates)
    if kind:
        cache.partitions.setdefault(kind, known)
    return replace(candidate, root=known.root, decisions=known.decisions)


def _kind_of(choose: Chooser) -> str:
    """Name a chooser that sees nothing of operations but support and times; '' for others."""
    if choose is by_preference:
        return "by preference"
    return "by cost" if isinstance(choose, CachedChooser) and not choose.choose.coupled else ""


def outline_subgraphs(candidate: Candidate) -> Candidate:
    """Make functions of subgraphs, drivers of systems, and copies where memories differ.

    Args:
        candidate: a candidate with `root`.

    Returns:
        The candidate with `outlined` and `module`.
    """
    assert candidate.root is not None
    program, estimates = candidate.feasibility.program, candidate.estimates
    outlined = outline(
        program,
        candidate.root,
        candidate.feasibility.groups.all,
        constants=candidate.request.options.constants,
        # With costs, copies have to take the routes that the estimates assume.
        memory_graph=MemoryGraph(program.topology) if estimates is None else estimates.memory_graph,
        cache=candidate.feasibility.cache,
    )
    functions = (*outlined.functions, *program.others)
    module = candidate.request.module.replace(functions=functions, target=program.topology.root)
    return replace(candidate, outlined=outlined, module=module)


def predict_times(candidate: Candidate) -> Candidate:
    """Predict time and throughput if there are costs, and choose replicas if there may be any.

    Args:
        candidate: a candidate with `outlined`.

    Returns:
        The candidate with `prediction` and `throughput`, and replicas in `module`.
    """
    estimates, outlined, module = candidate.estimates, candidate.outlined, candidate.module
    if estimates is None:
        return candidate
    assert candidate.root is not None
    assert outlined is not None
    assert module is not None
    prediction = predict(estimates, outlined, module, candidate.root.least_time)
    throughput = None if estimates.costs.is_energy else throughput_of(estimates, outlined, module)
    options = candidate.request.options
    if throughput is not None and options.max_replicas > 1:
        module = add_replicas(module, throughput, candidate.feasibility, estimates, outlined, options)
        throughput = throughput_of(estimates, outlined, module)
    return replace(candidate, module=module, prediction=prediction, throughput=throughput)


# The stages of one candidate, in order; `prepare` runs before them and `verify_plan` after the best one is chosen.
STAGES: tuple[Callable[[Candidate], Candidate], ...] = (partition, outline_subgraphs, predict_times)


def run_stages(candidate: Candidate) -> Decomposition:
    """Run all stages on a candidate, but the first one if it is partitioned already.

    Args:
        candidate: a candidate without later results.

    Returns:
        The finished decomposition.
    """
    for stage in STAGES if candidate.root is None else STAGES[1:]:
        candidate = stage(candidate)
    assert candidate.root is not None
    assert candidate.outlined is not None
    assert candidate.module is not None
    return Decomposition(
        candidate.module,
        candidate.request,
        candidate.feasibility.program,
        candidate.feasibility,
        candidate.root,
        candidate.outlined,
        candidate.estimates,
        candidate.prediction,
        candidate.throughput,
        decisions=candidate.decisions,
    )


# The recursive rule


def split(
    program: FlatProgram, feasibility: Feasibility, site: Site, calls: tuple[int, ...], choose: Chooser = by_preference
) -> PartitionNode:
    """Split operations over the sites below one site, recursively down to leaves.

    Args:
        program: the flat program.
        feasibility: what fits where.
        site: a system, whose children get subgraphs, or a leaf, which may be a device with a host.
        calls: the operations, by number.
        choose: chooses the child of every atom of a level.

    Returns:
        The subgraph at `site` with its parts, in an order in which they can run.

    Raises:
        InfeasibleError: if atoms fit no child, or their code generators reject every subgraph.
    """
    if not site.is_system:
        return split_mixed_function(program, feasibility, site, calls)
    # Choosing by cost has records and bounds of every level.
    forced = only_option(program, feasibility, site, calls) if choose is by_preference else None
    if forced is not None:
        part = split(program, feasibility, forced, calls, choose)
        return PartitionNode(site, part.calls, (part,), least_parts=1)
    level = level_of(program, feasibility, site, calls)
    assignment, groups, decisions = decide_level(program, feasibility, level, choose)
    parts = tuple(
        _split_group(
            program, feasibility, level, level.options[assignment.chosen[group[0]]], level.calls(group), choose
        )
        for group in groups
    )
    in_order = tuple(index for part in parts for index in part.calls)
    # A driver copies the inputs of a nested body only when the body needs them. The lower bound of this level does not
    # model that, so it is not a proven bound here.
    least_time = None if level.has_driver_option else assignment.least_time
    least_parts = lower_bound(level.graph.labeled(assignment.chosen), len(groups))
    return PartitionNode(site, in_order, parts, least_parts, least_time, decisions=decisions)


def _split_group(
    program: FlatProgram, feasibility: Feasibility, level: Level, site: Site, calls: tuple[int, ...], choose: Chooser
) -> PartitionNode:
    """Split what one option of a level got; its own site means that its driver runs the operation."""
    if site.path != level.site.path:
        return split(program, feasibility, site, calls, choose)
    bodies = tuple(split(program, feasibility, site, tuple(scope.calls), choose) for scope in program.bodies[calls[0]])
    return PartitionNode(site, calls, bodies=bodies)


def decide_level(
    program: FlatProgram, feasibility: Feasibility, level: Level, choose: Chooser
) -> tuple[Assignment, list[list[int]], tuple[Decision, ...]]:
    """Assign a level and form its subgraphs until code generators accept all.

    At most MAX_REJECTED_ROUNDS rounds. An atom that a code generator rejects even alone may no longer go to that site
    in the next round.

    Args:
        program: the flat program.
        feasibility: what fits where.
        level: the atoms of one system, and its children.
        choose: chooses the child of every atom.

    Returns:
        The assignment, the subgraphs as lists of atoms in an order in which they can run, and the decision records.

    Raises:
        InfeasibleError: if a rejected atom can go nowhere else, or the rounds do not suffice.
    """
    # Records of all rounds: an atom that was rejected in one round is elsewhere in the last one, for that reason.
    rejections: list[Decision] = []

    # Reads `level` and `chosen` of the current round, which the loop below assigns anew.
    def check(group: Sequence[int]) -> Reject | None:
        site, calls = level.options[chosen[group[0]]], level.calls(group)
        strategy = feasibility.strategy(site)
        if strategy is None or not strategy.checks_subgraphs:
            return None
        reason = strategy.check_together([program.op(index) for index in calls])
        if reason is not None:
            rejections.append(unsupported_record(calls, site, reason))
        return reason

    for _ in range(MAX_REJECTED_ROUNDS):
        assignment = choose(level)
        chosen = assignment.chosen
        formed = subgraphs_of_level(level, assignment, feasibility.cache)
        groups, rejected = checked_subgraphs(formed, check, level.limiter, chosen, level.limits)
        if not rejected:
            assigned = assignment_records(program, feasibility, level, assignment)
            limited = limit_records(program, feasibility, level, chosen, groups)
            return assignment, groups, (*assigned, *rejections, *limited)
        allowed = level.allowed.copy()
        for atom in rejected:
            allowed[atom, chosen[atom]] = False
        problems = [
            f"op {program.body[level.atoms[atom][0]].source!r} is refused by @{level.options[chosen[atom]].path}, "
            f"where it would be alone ({reason}), and no other site can take it"
            for atom, reason in rejected.items()
            if not allowed[atom].any()
        ]
        raise_all(InfeasibleError, problems)
        level = replace(level, allowed=allowed)
    raise InfeasibleError(f"strategies still refuse subgraphs in {MAX_REJECTED_ROUNDS} rounds; take less in `check_op`")
