"""The decomposition engine: the loops that plan again until every option holds. Read this file first.

`plan_request` decomposes a module over a target in this order:

    prepare              one flat program, and which leaf can run which operation of it; once
    within_memory        plan again until weights and values fit all memories, at most MAX_MEMORY_ROUNDS times
      within_limits      plan again until no site has too many subgraphs, at most MAX_LIMIT_ROUNDS times
        with_colocation  plan again until `same_site` and `apart` hold; the rounds are limited by their size
          best_candidate run STAGES once for each way of choosing sites, and verify the best result
            STAGES       partition, outline_subgraphs, predict_times

`partition` is the one recursive rule (`stages.split`): at a system, assign every atom to a child, form subgraphs whose
graph has no cycle, have code generators check them (`stages.decide_level`, again if they reject some), and split each
subgraph further down. Values that pass between memories become copies when subgraphs are outlined. Each decision is
recorded with its reason (`decisions.py`). What a finished plan misses because levels and requests were decided one
after the other, `improvements.py` looks for among the plans near it.

| stage | decides | in |
|---|---|---|
| prepare | one flat program; what each operation requires | `preparation.py`, `flat_program.py` |
| judge | which leaf can take which operation, and why not | `placement/feasibility.py` |
| assign | the child of every atom | `placement/level.py`, `by_cost.py`, `throughput_balancing.py` |
| form | the subgraphs of a level | `subgraphs/forming.py`, `portfolio.py` |
| check | whether code generators accept them | `subgraphs/subgraph_check.py` |
| outline | functions, drivers, copies and their routes | `outline/outlining.py`, `costs/memory_graph.py` |
| predict | time and throughput by the costs | `costs/predict.py`, `machines/throughput.py` |
| improve | other sites, if they are better | `improvements.py` |
| verify | proves the result on the module itself | `verify.py` |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from tvmtarget.errors import CapacityError, InfeasibleError
from tvmtarget.human_units import bytes_text
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.decomposition import Decomposition, Request
from tvmtarget.partition.improvements import (
    by_preference_and_rank,
    fitting_plan,
    improved_bodies,
    improved_colocation,
    improved_levels,
    improved_limits,
    improved_memories,
    improved_stream,
    keeps_colocation,
    keeps_limits,
    planned,
)
from tvmtarget.partition.memory_use import (
    MemoryUse,
    bytes_around,
    check_signature,
    fits_memories,
    full_memories,
    too_large_ops,
)
from tvmtarget.partition.placement.choosers import MAX_COMPARED, choosers_for, quick_chooser
from tvmtarget.partition.placement.colocation import (
    Colocation,
    ExcludedSites,
    colocation_of,
    colocation_pins,
    foreseen_pins,
    lowered_preferences,
    pins_of_rounds,
    with_pins,
)
from tvmtarget.partition.placement.coupled_atoms import CoupledOps, coupled_ops
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.preparation import prepare
from tvmtarget.partition.stages import Candidate, partition, run_stages
from tvmtarget.partition.subgraphs.single_subgraph import leaving_ops
from tvmtarget.partition.subgraphs.subgraph_budget import alternative_leaves, over_budget, time_saved
from tvmtarget.partition.verify import verify_plan

__all__ = ["plan_request"]

# `within_limits`: rounds of moving operations off sites that get more subgraphs than they may.
MAX_LIMIT_ROUNDS = 16

# `within_memory`: rounds of moving what does not fit out of memories, and plans with less room for values. After
# FEW_ROUNDS, what leaves a memory that is too full may go to no other one of these. Programs of more than EXACT
# operations, or with bodies, are planned in one way in each round.
MAX_MEMORY_ROUNDS, MAX_ROOM_ROUNDS, FEW_ROUNDS, EXACT = 32, 5, 8, 64

# `with_weights`: rounds of moving weights out of memories.
MAX_WEIGHT_ROUNDS = 16

# `with_colocation`: operations that later rounds are foreseen to pin, above which one round pins all of them.
MAX_AHEAD = 16

# `best_candidate`: the part of its time by which another plan of a large program must be faster to be looked for.
NEAR = 0.005


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


# Loops: plan again until every option holds


def within_memory(request: Request, feasibility: Feasibility, sites: Mapping[str, str] | None) -> Decomposition:
    """Plan until weights and values of every memory fit.

    Weights are kept within capacities while sites are assigned; how many bytes of values are there at a time is only
    known of a plan. If the first plan is too large, one is made as if memories held everything, which may fit: what is
    too large for a memory may be elsewhere anyway. Each round makes two plans, and keeps the faster one, or the first
    without costs. The first, for memories that hold weights too, leaves room for the values of the last plan, then for
    as few as suffice; in the second, operations go elsewhere that run while a memory is too full. After at most
    MAX_MEMORY_ROUNDS rounds, all operations leave memories that are still too full, or a plan of all choosers is taken
    that fits (`fitting_plan`). In the end, operations return where that is better and the memories still hold all
    (`improved_memories`).

    Args:
        request: the module, the target and the options.
        feasibility: what fits where.
        sites: as in `plan_request`.

    Returns:
        The best decomposition found.

    Raises:
        InfeasibleError: if no plan was found that the memories hold, or as for `within_limits`.
    """
    original = feasibility
    too_large = too_large_ops(feasibility.program, _estimates(request, feasibility))
    strict = feasibility.replace(refused={**feasibility.refused, **too_large}) if too_large else feasibility
    if too_large:
        # Those that fit nowhere are left to the messages below, which say what else is in the memory.
        stuck = frozenset(strict.unsupported())
        refused = {one: reason for one, reason in too_large.items() if one[0] not in stuck}
        feasibility = feasibility.replace(refused={**feasibility.refused, **refused})
    # Room for values and operations that move are no requirements: only the first plan's bound holds for all plans.
    plan = unconstrained = with_weights(request, feasibility, sites)
    full = full_memories(plan)
    if full or too_large:
        free = _without_limits(request, original, sites)
        if free is not None and (full or by_preference_and_rank(free) < by_preference_and_rank(plan)):
            return _with_bound_of(free, unconstrained)
    for number in range(MAX_MEMORY_ROUNDS):
        if not full:
            break
        check_signature(plan)
        problem = InfeasibleError(*(use.problem() for use in full))
        plans = list[Decomposition]()
        values = {use.memory: use.values for use in full if use.weights}
        with suppress(InfeasibleError):
            plans += [_with_reserve(request, plan, sites, values)] if values else []
        with suppress(InfeasibleError):
            plans.append(_without_crowded(request, plan, sites, full, is_late=number >= FEW_ROUNDS))
        if not plans:
            break
        plan = min(plans, key=lambda one: (not fits_memories(one), *by_preference_and_rank(one)))
        full = full_memories(plan)
    if full:
        found = [_without_full_memories(request, plan, sites), fitting_plan(unconstrained, feasibility, sites)]
        fitting = [one for one in found if one is not None]
        if not fitting:
            strict.check_all()
            raise problem
        plan = min(fitting, key=by_preference_and_rank)
    if plan is not unconstrained and _has_quick_rounds(plan):
        verify_plan(plan.program, plan.feasibility, plan.module, plan.outlined)
    if plan is not unconstrained and sites is None:
        plan = improved_memories(plan, feasibility, partial(with_weights, request, sites=None))
    return _with_bound_of(plan, unconstrained)


def _without_limits(
    request: Request, feasibility: Feasibility, sites: Mapping[str, str] | None
) -> Decomposition | None:
    """Plan as if memories held everything; None if they do not hold what is planned so."""
    program = replace(feasibility.program, is_limited=False)
    try:
        plan = with_weights(request, feasibility.replace(program=program), sites)
    except InfeasibleError:
        return None
    if full_memories(plan):
        return None
    feasibility = plan.feasibility.replace(program=feasibility.program)
    estimates = _estimates(request, feasibility)
    return replace(plan, program=feasibility.program, feasibility=feasibility, estimates=estimates)


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
    for _ in range(MAX_ROOM_ROUNDS if fits_memories(best) else 0):
        middle = (least + most) / 2
        less = {memory: int(middle * nbytes) for memory, nbytes in reserved.items()}
        other = _reserving(request, plan, sites, less)
        if not fits_memories(other):
            least = middle
        else:
            best, most = other, middle
    return best


def _reserving(
    request: Request, plan: Decomposition, sites: Mapping[str, str] | None, reserved: Mapping[str, int]
) -> Decomposition:
    program = replace(plan.program, reserved=reserved)
    return _planned_once(request, plan, plan.feasibility.replace(program=program), sites)


def _without_crowded(
    request: Request,
    plan: Decomposition,
    sites: Mapping[str, str] | None,
    full: Sequence[MemoryUse],
    *,
    is_late: bool,
) -> Decomposition:
    """Plan again with operations elsewhere that run while a memory is too full.

    Those that lose the least time per byte go first, as many as have the missing bytes. Without costs, all of them go
    in late rounds and, for large programs, in each: else the rounds would not suffice. Where none can go, operations
    elsewhere do whose values are copied through the memory.
    """
    for refused in _refusals_in_turn(plan, full, is_late=is_late):
        other = _without_ops(request, plan, sites, refused)
        if other is not None:
            return other
    raise InfeasibleError("nothing in a memory that is too full can go elsewhere")


def _refusals_in_turn(
    plan: Decomposition, full: Sequence[MemoryUse], *, is_late: bool
) -> Iterator[dict[tuple[int, str], str]]:
    """Yield the leaves that operations have to leave, in the order in which such choices are tried."""
    is_quick = plan.prediction is None and (is_late or len(plan.program.body) > EXACT)
    # Where those that run meanwhile must be there, all others leave; some of them return (`improved_memories`).
    for is_needed in (True, False):
        refused = dict[tuple[int, str], str]()
        for use in full:
            needed = use.crowded if is_quick else _cheapest_of(plan, use)
            closed = {one.memory for one in full} if is_late and is_needed else {use.memory}
            refused |= _refusals(plan, use, needed if is_needed else _ops_in(plan, use.memory), closed)
        yield refused
    refused = {}
    for use in full:
        for index in use.passing:
            site = plan.topology[plan.site_of(plan.program.body[index].source)]
            refused |= _refusals(plan, use, [index], {site.domain})
    yield refused


def _cheapest_of(plan: Decomposition, use: MemoryUse) -> list[int]:
    """Return the operations that run while a memory is too full, as many as have the missing bytes of values."""
    feasibility, estimates, program = plan.feasibility, plan.estimates, plan.program
    paths = frozenset(leaf.path for leaf in feasibility.leaves if leaf.domain == use.memory)
    groups = [
        ((index,), max(1, bytes_around(program, estimates, index)))
        for index in use.crowded
        if alternative_leaves(feasibility, index, paths)
    ]
    found, _ = _cheapest_groups(feasibility, estimates, use.memory, groups, use.missing)
    return [index for calls in found for index in calls]


def _cheapest_groups(
    feasibility: Feasibility,
    estimates: Estimates | None,
    memory: str,
    groups: Iterable[tuple[tuple[int, ...], int]],
    missing: int,
) -> tuple[list[tuple[int, ...]], int]:
    """Return the groups of operations that lose the least time per byte outside a memory, and the bytes still missing.

    Groups have bytes, and are taken until these are as many as are missing.
    """
    leaves = [leaf for leaf in feasibility.leaves if leaf.domain == memory]
    paths = frozenset(leaf.path for leaf in leaves)

    def loss(group: tuple[tuple[int, ...], int]) -> tuple[float, tuple[int, ...]]:
        calls, nbytes = group
        saved = 0 if estimates is None else time_saved(feasibility, estimates, calls, leaves[0], paths)
        return saved / nbytes, tuple(-index for index in calls)

    found = list[tuple[int, ...]]()
    for calls, nbytes in sorted(groups, key=loss):
        if missing <= 0:
            break
        found.append(calls)
        missing -= nbytes
    return found, missing


def _planned_once(
    request: Request, plan: Decomposition, feasibility: Feasibility, sites: Mapping[str, str] | None
) -> Decomposition:
    """Plan again with another view of what fits where; in one way alone and not verified where rounds are quick."""
    estimates = _estimates(request, feasibility)
    if estimates is not None and _has_quick_rounds(plan):
        coupled = coupled_ops(feasibility.program, request.options)
        again = replace(plan, program=feasibility.program, feasibility=feasibility, estimates=estimates)
        with suppress(InfeasibleError):
            other = planned(again, quick_chooser(feasibility, estimates, coupled, sites), coupled)
            if other is not None:
                return other
    return with_weights(request, feasibility, sites)


def _has_quick_rounds(plan: Decomposition) -> bool:
    """Return whether rounds plan in one way alone: for large programs and those with bodies."""
    is_slow = len(plan.program.body) > EXACT or bool(plan.program.bodies)
    return is_slow and plan.prediction is not None and plan.options.objective == "latency"


def _without_full_memories(
    request: Request, plan: Decomposition, sites: Mapping[str, str] | None
) -> Decomposition | None:
    """Plan again without the memories that are too full; None if what must be there is too large."""
    while full := full_memories(plan):
        refused = dict[tuple[int, str], str]()
        for use in full:
            refused |= _refusals(plan, use, range(len(plan.program.body)), {use.memory})
        try:
            other = _without_ops(request, plan, sites, refused)
        except InfeasibleError:
            return None
        if other is None:
            return None
        plan = other
    return plan


def _refusals(
    plan: Decomposition, use: MemoryUse, calls: Iterable[int], memories: Collection[str]
) -> dict[tuple[int, str], str]:
    """Return the leaves in some memories, for operations that have to leave these for the sake of a full one."""
    reason = f"memory {use.memory!r} of {bytes_text(use.limit)} is too small for the values that it needs there"
    leaves = [leaf.path for leaf in plan.feasibility.leaves if leaf.domain in memories]
    return {(index, leaf): reason for index in calls for leaf in leaves}


def _without_ops(
    request: Request, plan: Decomposition, sites: Mapping[str, str] | None, refused: Mapping[tuple[int, str], str]
) -> Decomposition | None:
    """Plan again with some operations off some leaves; None if those that can leave have left already."""
    before = plan.feasibility.refused
    stuck = frozenset(plan.feasibility.replace(refused={**before, **refused}).unsupported())
    refused = {one: reason for one, reason in refused.items() if one[0] not in stuck}
    if not refused.keys() - before.keys():
        return None
    feasibility = plan.feasibility.replace(refused={**before, **refused})
    feasibility.check_all()
    return _planned_once(request, plan, feasibility, sites)


def _ops_in(plan: Decomposition, memory: str) -> list[int]:
    """Return the operations that a plan has in a memory."""
    sites = plan.sites()
    return [
        index
        for index, call in enumerate(plan.program.body)
        if call.source in sites and plan.topology[sites[call.source]].domain == memory
    ]


def with_weights(request: Request, feasibility: Feasibility, sites: Mapping[str, str] | None) -> Decomposition:
    """Plan until the weights of every memory fit, where a level alone finds no way.

    A level decides without the memories of systems below it, and never leaves a preferred site. Each round moves
    operations out of one memory, those that lose the least time per byte. At most MAX_WEIGHT_ROUNDS rounds.

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
    for _ in range(MAX_WEIGHT_ROUNDS):
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
    paths = frozenset(leaf.path for leaf in feasibility.leaves if leaf.domain == error.memory)
    movable = [
        (calls, nbytes)
        for calls, nbytes, tried in error.groups
        if all(
            any(leaf.domain not in tried for leaf in alternative_leaves(feasibility, index, paths)) for index in calls
        )
    ]
    estimates = _estimates(request, feasibility)
    found, missing = _cheapest_groups(feasibility, estimates, error.memory, movable, error.missing)
    reason = f"memory {error.memory!r} is too small for its weights beside those of other operations"
    leaving = {(index, path): reason for calls in found for index in calls for path in paths}
    return feasibility.replace(refused={**feasibility.refused, **leaving}) if missing <= 0 else None


def _estimates(request: Request, feasibility: Feasibility) -> Estimates | None:
    costs = request.options.costs
    return None if costs is None else Estimates(feasibility.program, costs)


def _without_bound(plan: Decomposition) -> Decomposition:
    return plan if plan.prediction is None else replace(plan, prediction=replace(plan.prediction, lower_bound=None))


def within_limits(request: Request, feasibility: Feasibility, sites: Mapping[str, str] | None) -> Decomposition:
    """Plan until no site has more subgraphs than it may.

    `max_subgraphs` limits them, and some code generators take a single one. Each round moves the operations that gain
    least off the sites that got too many. At most MAX_LIMIT_ROUNDS rounds. In the end, operations return where that is
    better and the limits hold (`improved_limits`).

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

    def leaving(plan: Decomposition) -> list[ExcludedSites]:
        limits = [(name, plan.leaves_of(name), most) for name, most in request.options.max_subgraphs.items()]
        # Groups that the plan pinned to a site may go to another one together.
        unpinned = with_pins(feasibility, {}, excluded) if excluded else feasibility
        surplus = over_budget(unpinned, plan.estimates, plan.subgraphs, limits)
        split_programs = leaving_ops(unpinned, plan.estimates, plan.subgraphs)
        found = ExcludedSites("max_subgraphs", surplus), ExcludedSites("a site that takes one program", split_programs)
        return [one for one in found if one.leaves]

    def plan_again(excluded: Sequence[ExcludedSites]) -> Decomposition | None:
        other = with_colocation(request, feasibility, None, excluded)
        return None if leaving(other) else other

    for _ in range(MAX_LIMIT_ROUNDS):
        surplus = leaving(plan)
        if not surplus:
            plan = improved_limits(plan, excluded, plan_again) if excluded and sites is None else plan
            return _with_bound_of(plan, unconstrained)
        # Exclusions add up over the rounds; otherwise operations could return to a site that they had to leave.
        excluded += surplus
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

    Each round pins the groups that the previous plan violates. All rounds become one without costs where possible, and
    with costs where they would be many. The number of rounds is limited to one for each group of `same_site`, three for
    each pair of `apart`, and one more.

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
    plan = unconstrained = best_candidate(request, plain, sites, colocation=True)
    if not colocation or (request.options.costs is not None and keeps_colocation(plan, colocation)):
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
                plan = improved_colocation(plan, plain, colocation, pins, partial(best_candidate, request, sites=None))
            return _with_bound_of(plan, unconstrained)
        later = pins_of_rounds(plain, colocation, plan.sites(), pins, rounds)
        pins = later[0] if later is not None and len(later[0]) > len(wanted) + MAX_AHEAD else wanted
        plan = best_candidate(request, with_pins(feasibility, pins, excluded), sites)
    raise InfeasibleError("no choice of sites was found that keeps all of 'apart'; list fewer operations in it")


def _is_near_bound(plan: Decomposition, coupled: CoupledOps) -> bool:
    """Return whether a plan keeps its requests, and none can be faster by more than the part NEAR."""
    prediction = plan.prediction
    if prediction is None or prediction.lower_bound is None or prediction.unknown:
        return False
    is_near = plan.options.objective == "latency" and prediction.total * (1 - NEAR) <= prediction.lower_bound
    return is_near and keeps_colocation(plan, coupled.colocation) and keeps_limits(plan, coupled)


def _with_lowered(
    request: Request, feasibility: Feasibility, colocation: Colocation, excluded: Sequence[ExcludedSites]
) -> Decomposition | None:
    """Plan by cost without the preferences that contradict the colocation; None if there are none, or no plan."""
    if not excluded[-1].leaves:
        return None
    try:
        plan = best_candidate(request, with_pins(feasibility, {}, excluded), None, colocation=True)
    except InfeasibleError:
        return None
    return plan if keeps_colocation(plan, colocation) else None


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


def best_candidate(
    request: Request,
    feasibility: Feasibility,
    sites: Mapping[str, str] | None,
    *,
    colocation: bool = False,
) -> Decomposition:
    """Plan once with each way of choosing sites, and return the best plan, verified.

    Assignment by cost does not know how levels and nested bodies will be split, so that there it can miss the
    best plan. There the assignment by preference is planned too, and another plan replaces it only if known times
    show that it is no slower. Other selections of overlapping patterns are compared in the same way.

    Args:
        request: the module, the target and the options.
        feasibility: what fits where.
        sites: as in `plan_request`.
        colocation: whether plans that keep `same_site` and `apart` come before those that do not; pins keep them
            otherwise.

    Returns:
        The best decomposition; of those with fewest operations moved from `sites`.

    Raises:
        InfeasibleError: if an operation fits no site.
    """
    options = request.options
    estimates = _estimates(request, feasibility)
    coupled = coupled_ops(feasibility.program, options, has_colocation=colocation)
    ways = [feasibility] if estimates is None else [feasibility, *feasibility.alternatives]
    distinct: dict[tuple[int, object], Candidate] = {}
    bounds: dict[int, int] = {}
    promising: Decomposition | None = None
    problems = list[CapacityError]()
    for number, way in enumerate(ways):
        choosers = choosers_for(way, estimates, options, sites, coupled)
        for choose in choosers:
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
            # The choosers of large programs on nested trees begin with the most promising one, which proves a bound.
            is_first = choose is choosers[0] and len(ways) == 1 and candidate.root.least_time is not None
            if is_first and len(way.program.top) > MAX_COMPARED:
                promising = run_stages(candidate)
                if sites is None and _is_near_bound(promising, coupled):
                    break
    if not distinct:
        raise problems[0]
    plans: list[Decomposition] = []
    for (number, _), candidate in distinct.items():
        assert candidate.root is not None
        # A lower bound that one chooser proves holds for the plans of all.
        root = replace(candidate.root, least_time=bounds.get(number))
        if promising is not None and not plans and promising.root.least_time == root.least_time:
            plans.append(promising)
        else:
            plans.append(run_stages(replace(candidate, root=root)))
    if coupled.colocation:
        plans = [plan for plan in plans if keeps_colocation(plan, coupled.colocation)] or plans
    plans = [plan for plan in plans if keeps_limits(plan, coupled)] or plans
    if options.objective == "throughput":
        # Machines are balanced without the memories of the leaves below them.
        plans = [plan for plan in plans if fits_memories(plan)] or plans
    moved = [plan.moved_from(sites or {}) for plan in plans]
    first, *others = [plan for plan, number in zip(plans, moved, strict=True) if number == min(moved)]
    best = min([*(plan for plan in others if plan.is_no_worse_than(first)), first], key=lambda plan: plan.rank)
    if sites is None:
        improvements = (improved_levels, improved_bodies) if options.objective == "latency" else (improved_stream,)
        for improved in improvements:
            best = improved(best, coupled)
    # Only the plan that is returned has to be proven.
    verify_plan(best.program, best.feasibility, best.module, best.outlined)
    return best
