"""Improve a finished plan: try others near it, and go on from each that is better.

Levels assign sites one after the other, and what a memory or a pair of operations requires is kept by excluding sites,
so that the plan of the loops in `pipeline.py` need not be the best one. Every try plans the whole program again: each
improvement has a limit on tries, and on the operations of programs that it is tried on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import TypeAlias

from tvmtarget.errors import CapacityError, InfeasibleError
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.decomposition import Decomposition
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.memory_use import fits_memories, full_memories
from tvmtarget.partition.placement.choosers import CachedChooser, PinnedChooser, choosers_for, next_choosers
from tvmtarget.partition.placement.colocation import (
    Colocation,
    ExcludedSites,
    alternative_pins,
    colocation_pins,
    with_pins,
)
from tvmtarget.partition.placement.coupled_atoms import CoupledOps, coupled_ops
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.level import Chooser
from tvmtarget.partition.stages import Candidate, partition, run_stages
from tvmtarget.partition.subgraphs.single_subgraph import split_programs
from tvmtarget.partition.verify import verify_plan
from tvmtarget.target.topology import Site, Topology

__all__ = [
    "by_preference_and_rank",
    "fitting_plan",
    "improved_bodies",
    "improved_colocation",
    "improved_levels",
    "improved_limits",
    "improved_memories",
    "improved_stream",
    "keeps_colocation",
    "keeps_limits",
    "planned",
]

# Plans the program of a request again, with another view of what fits where.
_Planner: TypeAlias = Callable[[Feasibility], Decomposition]

# Joint choices of sites that `improved_levels` compares beside the best one; the number of operations above which only
# a plan that may be worse than the best by this part is worth the time.
MAX_NEXT, MAX_EXACT, MIN_GAP = 8, 24, 0.01

# Moves that `improved_bodies` tries, and the number of operations above which it tries none.
# A move must pay for itself by the calls that it saves, of which it seldom saves more than MAX_SAVED.
MAX_BODY_MOVES, MAX_MOVED, MAX_SAVED = 24, 64, 2

# Moves that `improved_stream` tries, and the number of operations above which it tries none.
MAX_STREAM_MOVES, MAX_STREAMED = 96, 24

# Moves that `improved_colocation` tries, and the number of operations above which it tries none.
MAX_MOVES, MOVABLE = 16, 1000

# Operations that may return to memories, and the number of operations above which none are tried.
MAX_RETURNED, RETURNABLE = 16, 64

# Moves that are tried where memories are limited, in programs of at most MAX_MOVED operations.
MAX_MEMORY_MOVES = 32

# Joint choices of sites that `fitting_plan` looks at, and how many times as long as a plan these may take. It plans
# MAX_FITTING.
MAX_SEARCHED, COST_FACTORS = 1024, (2, 4, 16)

# Joint choices of sites whose memories are looked at, and those that are planned. All that are looked at are planned
# where a plan that fits is improved in programs of at most MAX_EXACT operations.
MAX_SCREENED, MAX_FITTING = 256, 64


def improved_levels(plan: Decomposition, coupled: CoupledOps) -> Decomposition:
    """Plan the next joint choices of sites while these are better.

    Where levels interact, the choice of the best bound need not be the best. At most MAX_NEXT choices are planned, for
    nested trees.

    Args:
        plan: a plan for the least latency.
        coupled: requests that couple operations.

    Returns:
        The best plan found.
    """
    prediction, estimates = plan.prediction, plan.estimates
    if estimates is None or prediction is None or prediction.lower_bound is None or not _is_nested(plan):
        return plan
    gap = 1 - prediction.lower_bound / prediction.total if prediction.total else 0.0
    if gap > (0 if len(plan.program.top) <= MAX_EXACT else MIN_GAP):
        for choose in next_choosers(plan.feasibility, estimates, coupled, prediction.total, MAX_NEXT):
            other = planned(plan, choose, coupled)
            if other is not None and _is_better(other, plan):
                plan = other
    return plan


def improved_bodies(plan: Decomposition, coupled: CoupledOps) -> Decomposition:
    """Move operations of programs with branches and loops while the program takes less.

    Bodies and what is around them are decided one after the other. At most MAX_BODY_MOVES moves are tried, for programs
    of at most MAX_MOVED operations.

    Args:
        plan: a plan for the least latency.
        coupled: requests that couple operations.

    Returns:
        The best plan found.
    """
    estimates, program = plan.estimates, plan.program
    if estimates is None or plan.prediction is None or not program.bodies or len(program.body) > MAX_MOVED:
        return plan
    return _with_moves(plan, coupled, lambda plan: _promising_sites(plan, estimates), MAX_BODY_MOVES)


def improved_stream(plan: Decomposition, coupled: CoupledOps) -> Decomposition:
    """Move subgraphs and operations while inputs of a stream take less.

    Load is balanced at the root alone. At most MAX_STREAM_MOVES moves are tried, for small programs on nested trees.

    Args:
        plan: a plan for the highest throughput.
        coupled: requests that couple operations.

    Returns:
        The best plan found.
    """
    if plan.throughput is None or not _is_nested(plan) or len(plan.program.body) > MAX_STREAMED:
        return plan
    is_fitting = fits_memories(plan)

    def is_possible(other: Decomposition) -> bool:
        return not is_fitting or fits_memories(other)

    return _with_moves(plan, coupled, _sites_of_moves, MAX_STREAM_MOVES, is_possible=is_possible)


def improved_colocation(
    plan: Decomposition, plain: Feasibility, colocation: Colocation, pinned: Collection[int], plan_again: _Planner
) -> Decomposition:
    """Move colocated groups to other sites.

    At most MAX_MOVES moves are tried, for programs of at most MOVABLE operations.

    Args:
        plan: a plan with costs that keeps all groups.
        plain: what fits where without pins.
        colocation: the groups.
        pinned: the operations that are pinned to their sites in the plan.
        plan_again: plans the program with other pins.

    Returns:
        The best plan found.
    """
    if len(plain.program.body) > MOVABLE:
        return plan
    names = {index: plain.program.body[index].source for index in pinned}

    def moved(plan: Decomposition) -> Iterator[Decomposition | None]:
        sites = plan.sites()
        for pins in alternative_pins(plain, colocation, sites, {index: sites[name] for index, name in names.items()}):
            other = None
            # That a group cannot go there is no error, because there is a plan already.
            with suppress(InfeasibleError):
                other = plan_again(with_pins(plain, pins))
                if colocation_pins(plain, colocation, other.sites(), pins) != pins:
                    other = None
            yield other

    return _climbed(plan, moved, MAX_MOVES)


def improved_limits(
    plan: Decomposition,
    excluded: Sequence[ExcludedSites],
    plan_again: Callable[[Sequence[ExcludedSites]], Decomposition | None],
) -> Decomposition:
    """Let operations return to sites of limited subgraphs, one at a time, where that is better.

    At most MAX_RETURNED are tried, in programs of at most RETURNABLE operations.

    Args:
        plan: a plan that keeps the limits.
        excluded: the sites that operations had to leave.
        plan_again: plans the program with other exclusions; None if the plan does not keep the limits.

    Returns:
        The best plan found.
    """
    program = plan.program
    if len(program.body) > RETURNABLE:
        return plan
    left = {index for one in excluded for index in one.leaves}
    for index in list(filter(left.__contains__, _in_canonical_order(program, program.top)))[:MAX_RETURNED]:
        fewer = [
            replace(one, leaves={op: leaves for op, leaves in one.leaves.items() if op != index}) for one in excluded
        ]
        with suppress(InfeasibleError):
            other = plan_again(fewer)
            if other is not None and _is_preferred(other, plan):
                plan, excluded = other, fewer
    return plan


def improved_memories(plan: Decomposition, feasibility: Feasibility, plan_again: _Planner) -> Decomposition:
    """Return operations to memories, try the next joint choices, and move single operations.

    Args:
        plan: a plan that the memories hold, for which values were given room, or operations excluded from memories.
        feasibility: what fits where without it.
        plan_again: plans the program with other exclusions.

    Returns:
        The best plan found that the memories hold.
    """
    return _with_moved(_with_next_fitting(_with_returned(plan, feasibility, plan_again), feasibility), feasibility)


def _with_returned(plan: Decomposition, feasibility: Feasibility, plan_again: _Planner) -> Decomposition:
    """Let operations return to memories one at a time, where the plan becomes better.

    A round of `within_memory` excludes all operations that run while a memory is too full, though some of them may fit
    without the others. At most MAX_RETURNED are tried, in programs of at most RETURNABLE operations.
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
            other = plan_again(plan.feasibility.replace(refused=refused))
            if _is_preferred(other, plan) and fits_memories(other):
                plan = other
    return plan


def fitting_plan(
    plan: Decomposition, feasibility: Feasibility, sites: Mapping[str, str] | None
) -> Decomposition | None:
    """Look for a plan that memories hold.

    The plans of all choosers are tried, then those of joint choices of sites that cost more. At most MAX_SEARCHED
    choices are looked at, and MAX_FITTING planned.

    Args:
        plan: a plan with costs that memories do not hold.
        feasibility: what fits where, without operations that rounds excluded.
        sites: paths by operation name that stay as they are wherever they are still allowed.

    Returns:
        The best of the first that are found, verified; None if there is none.
    """
    options, program = plan.options, feasibility.program
    if options.costs is None or plan.prediction is None:
        return None
    estimates, coupled, total = Estimates(program, options.costs), coupled_ops(program, options), plan.prediction.total
    again = replace(plan, program=program, feasibility=feasibility, estimates=estimates)
    known = choosers_for(feasibility, estimates, options, sites, coupled)
    costlier = (
        next_choosers(feasibility, estimates, coupled, factor * total, MAX_SEARCHED, is_quick=True)
        for factor in (COST_FACTORS if len(program.top) <= MAX_EXACT else COST_FACTORS[:1])
    )
    count, full = 0, set[tuple[str, frozenset[str]]]()
    for choosers in (known, *(costlier if sites is None else ())):
        fitting = list[Decomposition]()
        for choose in choosers:
            # Those that follow a plan that fits cost more. To look for another one takes long, also if it is not tried.
            if choosers is not known and (fitting or count >= MAX_FITTING):
                break
            users = _ops_by_memory(choose.sites, plan.topology) if isinstance(choose, PinnedChooser) else {}
            # More operations seldom fit where fewer do not.
            if choosers is not known and any(ops <= users.get(memory, frozenset()) for memory, ops in full):
                continue
            count += 1
            with suppress(InfeasibleError):
                other = planned(again, choose, coupled)
                if other is None:
                    continue
                missing = [use.memory for use in full_memories(other)]
                users = _ops_by_memory(other.sites(), plan.topology)
                full |= {(memory, users[memory]) for memory in missing if memory in users}
                fitting += [] if missing else [other]
        if fitting:
            best = min(fitting, key=by_preference_and_rank)
            verify_plan(best.program, best.feasibility, best.module, best.outlined)
            return best
    return None


def _with_next_fitting(plan: Decomposition, feasibility: Feasibility) -> Decomposition:
    """Try the next joint choices of sites; at most MAX_SCREENED are looked at, and of large programs fewer planned."""
    options, program = plan.options, feasibility.program
    if options.costs is None or plan.prediction is None or options.objective != "latency" or program.bodies:
        return plan
    estimates = Estimates(program, options.costs)
    coupled = coupled_ops(program, options)
    # Without what rounds reserved for values, and excluded.
    first = best = replace(plan, program=program, feasibility=feasibility, estimates=estimates)
    tried, full = 0, set[tuple[str, frozenset[str]]]()
    most = MAX_SCREENED if len(program.body) <= MAX_EXACT else MAX_FITTING
    total = plan.prediction.total
    for choose in next_choosers(feasibility, estimates, coupled, total, MAX_SCREENED, is_quick=True):
        users = _ops_by_memory(choose.sites, plan.topology)
        # More operations seldom fit where fewer do not.
        if any(ops <= users.get(memory, frozenset()) for memory, ops in full):
            continue
        if (tried := tried + 1) > most:
            break
        other = planned(best, choose, coupled)
        if other is None or not _is_better(other, best):
            continue
        missing = [use.memory for use in full_memories(other)]
        full |= {(memory, users[memory]) for memory in missing if memory in users}
        if not missing and by_preference_and_rank(other) <= by_preference_and_rank(best):
            best = other
    if best is first:
        return plan
    verify_plan(best.program, best.feasibility, best.module, best.outlined)
    return best


def _with_moved(plan: Decomposition, feasibility: Feasibility) -> Decomposition:
    """Move single operations while that is better and memories hold the plan; at most MAX_MEMORY_MOVES are tried.

    A plan that is made again with one operation elsewhere may be too large for a memory, so that others leave it.
    """
    options, program = plan.options, feasibility.program
    if options.costs is None or plan.prediction is None or options.objective != "latency":
        return plan
    if len(program.body) > MAX_MOVED or program.bodies:
        return plan
    estimates = Estimates(program, options.costs)
    first = replace(plan, program=program, feasibility=feasibility, estimates=estimates)
    coupled = coupled_ops(program, options)
    best = _with_moves(
        first, coupled, lambda plan: _promising_sites(plan, estimates), MAX_MEMORY_MOVES, is_possible=fits_memories
    )
    if best is first:
        return plan
    verify_plan(best.program, best.feasibility, best.module, best.outlined)
    return best


def by_preference_and_rank(plan: Decomposition) -> tuple[int, tuple[int, ...]]:
    """Return what plans that memories hold are compared by: preferences, then the objective.

    Args:
        plan: the plan.

    Returns:
        A key, which is less for better plans.
    """
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


def keeps_colocation(plan: Decomposition, colocation: Colocation) -> bool:
    """Return whether operations of a plan share sites, or not, as required.

    Args:
        plan: the plan.
        colocation: the requirements.

    Returns:
        False if one is violated.
    """
    sites = plan.sites()
    return colocation.is_kept({index: sites[call.source] for index, call in enumerate(plan.program.body)})


def keeps_limits(plan: Decomposition, coupled: CoupledOps) -> bool:
    """Return whether no site of a plan has more subgraphs than it may.

    Args:
        plan: the plan.
        coupled: the most subgraphs, by leaves.

    Returns:
        False if there are too many somewhere.
    """
    counts = Counter(subgraph.site for subgraph in plan.subgraphs)
    return all(sum(counts[leaf] for leaf in leaves) <= most for leaves, most in coupled.max_subgraphs)


def _climbed(
    plan: Decomposition, near: Callable[[Decomposition], Iterator[Decomposition | None]], most: int
) -> Decomposition:
    """Hill climbing: go on from each better plan, with the plans near it; at most `most` plans are made.

    `near` makes plans one at a time, None where there is no valid one.
    """
    untried = near(plan)
    for _ in range(most):
        try:
            other = next(untried)
        except StopIteration:
            break
        if other is not None and _is_better(other, plan):
            plan, untried = other, near(other)
    return plan


def _with_moves(
    plan: Decomposition,
    coupled: CoupledOps,
    sites_of_moves: Callable[[Decomposition], Iterator[Mapping[str, str]]],
    most: int,
    is_possible: Callable[[Decomposition], bool] = lambda _: True,
) -> Decomposition:
    """Move operations to other sites, those of a plan with one move each, while the plan becomes better."""
    estimates = plan.estimates
    if estimates is None:
        return plan
    by_cost = CachedChooser.of(plan.feasibility, estimates)

    def near(plan: Decomposition) -> Iterator[Decomposition | None]:
        for sites in sites_of_moves(plan):
            other = planned(plan, PinnedChooser(sites, plan.program.body, by_cost, estimates), coupled)
            yield other if other is not None and is_possible(other) else None

    return _climbed(plan, near, most)


def _is_better(other: Decomposition, plan: Decomposition) -> bool:
    return other.is_no_worse_than(plan) and other.rank < plan.rank


def _is_preferred(other: Decomposition, plan: Decomposition) -> bool:
    order, before = by_preference_and_rank(other), by_preference_and_rank(plan)
    return order < before and (other.is_no_worse_than(plan) or order[0] < before[0])


def planned(plan: Decomposition, choose: Chooser, coupled: CoupledOps) -> Decomposition | None:
    """Plan again with other sites.

    Args:
        plan: a plan with costs.
        choose: chooses the sites.
        coupled: requests that couple operations.

    Returns:
        A plan that is not verified yet; None if weights fit in no way, or if it does not keep what couples operations,
        or has several subgraphs on a site that takes one program.
    """
    try:
        candidate = partition(Candidate(plan.request, plan.feasibility, plan.estimates, choose))
    except CapacityError:
        return None
    assert candidate.root is not None
    assert plan.prediction is not None
    other = run_stages(replace(candidate, root=replace(candidate.root, least_time=plan.prediction.lower_bound)))
    is_kept = keeps_colocation(other, coupled.colocation) and keeps_limits(other, coupled)
    return other if is_kept and not split_programs(other.feasibility, other.subgraphs) else None


def _promising_sites(plan: Decomposition, estimates: Estimates) -> Iterator[Mapping[str, str]]:
    """Yield the sites of a plan with one operation elsewhere, those first that gain most by operations and copies.

    Operations with bodies go to a leaf as a whole, or to a driver. What bodies take elsewhere is only known once they
    are decided, so that these moves come before all others.
    """
    program, topology, feasibility = plan.program, plan.topology, plan.feasibility
    sites, names = plan.sites(), [call.source for call in program.body]
    runs = {index: subgraph.runs for subgraph in plan.subgraphs for index in subgraph.calls}
    most = MAX_SAVED * max((estimates.launch(leaf) for leaf in feasibility.leaves), default=0)
    moves: list[tuple[float, dict[str, str]]] = []

    def time(index: int, site: Site) -> int | None:
        own = None if site.is_system else estimates.time(index, site).time
        return None if own is None else own + _copies_around(plan, estimates, sites, index, site)

    # In canonical order, so that equal gains are tried in an order independent of how operations are listed.
    movable = runs.keys() | {one.call for one in plan.outlined.driven}
    for index in filter(movable.__contains__, _in_canonical_order(program, program.top)):
        inside = {names[one] for one in program.nested(index)} if index in program.bodies else set()
        around = dict.fromkeys(leaf.path.rpartition("/")[0] for leaf in feasibility.leaves) if inside else ()
        others = [leaf for leaf in feasibility.leaves if feasibility.supports_whole((index,), leaf)]
        others += [topology[path] for path in around if feasibility.drives((index,), topology[path])]
        before = time(index, topology[sites[names[index]]])
        for site in others:
            after = time(index, site)
            gain = -inf if before is None or after is None else float(runs.get(index, 1)) * (after - before)
            if site.path == sites[names[index]] or gain >= most:
                continue
            kept = {name: path for name, path in sites.items() if name not in inside}
            moved = {names[index]: site.path} | ({} if site.is_system else dict.fromkeys(inside, site.path))
            moves.append((gain, kept | moved))
    yield from (moved for _, moved in sorted(moves, key=lambda move: move[0]))


def _in_canonical_order(program: FlatProgram, calls: Sequence[int]) -> Iterator[int]:
    for (index,) in program.in_canonical_order([(call,) for call in calls]):
        yield index
        for scope in program.bodies.get(index, ()):
            yield from _in_canonical_order(program, scope.calls)


def _copies_around(plan: Decomposition, estimates: Estimates, sites: Mapping[str, str], index: int, site: Site) -> int:
    """Return what copies take between an operation on a site and the operations that its values come from or go to."""
    program, topology, total = plan.program, plan.topology, 0
    call, domain = program.body[index], topology.home(site.path)
    produced = {output.name for output in call.outputs}
    for name in ({*call.uses()} | produced) - program.constants.keys() - {""}:
        ends = program.consumers.get(name, ()) if name in produced else [program.producer.get(name, index)]
        memories = {topology.home(sites[program.body[end].source]) for end in ends if end != index} - {domain}
        total += sum(estimates.copy(program.types.get(name), domain, memory) or 0 for memory in memories)
    return total


def _sites_of_moves(plan: Decomposition) -> Iterator[Mapping[str, str]]:
    """Yield the sites of a plan with one subgraph, then one operation, on each other leaf that supports it."""
    sites, names = plan.sites(), [call.source for call in plan.program.body]
    for calls in dict.fromkeys(
        [*(record.calls for record in plan.subgraphs), *((index,) for index in plan.program.top)]
    ):
        for leaf in plan.feasibility.leaves:
            is_supported = all(plan.feasibility.unsupported_reason(index, leaf) is None for index in calls)
            if is_supported and sites[names[calls[0]]] != leaf.path:
                yield {**sites, **{names[index]: leaf.path for index in calls}}


def _is_nested(plan: Decomposition) -> bool:
    return any(option.is_system for option in plan.topology.options(""))


def _ops_by_memory(sites: Mapping[str, str], topology: Topology) -> dict[str, frozenset[str]]:
    names: dict[str, set[str]] = {}
    for name, site in sites.items():
        names.setdefault(topology[site].domain, set()).add(name)
    return {memory: frozenset(ops) for memory, ops in names.items()}
