"""The stages that make a plan for one way of choosing sites, and the recursive rule that the first of them follows.

A stage takes frozen data and returns frozen data, with a record of each decision (`decisions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from tvmtarget.errors import InfeasibleError, raise_all
from tvmtarget.ir.module import IRModule
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
from tvmtarget.partition.decomposition import Decomposition, Request
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.host_device.mixed_functions import split_mixed_function
from tvmtarget.partition.known_partition import KnownPartition
from tvmtarget.partition.machines.throughput import throughput_of
from tvmtarget.partition.outline.outlining import Outlined, outline
from tvmtarget.partition.partition_node import PartitionNode
from tvmtarget.partition.placement.choosers import CachedChooser
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.level import Assignment, Chooser, Level, by_preference, level_of, only_option
from tvmtarget.partition.placement.replicas import add_replicas
from tvmtarget.partition.subgraphs.forming import subgraphs_of_level
from tvmtarget.partition.subgraphs.subgraph_check import checked_subgraphs
from tvmtarget.support.strategy import Reject
from tvmtarget.target.topology import Site

__all__ = ["STAGES", "Candidate", "outline_subgraphs", "partition", "predict_times", "run_stages", "split"]

# `decide_level`: rounds of assigning a level again because a code generator rejects subgraphs.
MAX_REJECTED_ROUNDS = 16


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
    """Predict the time if there are costs, and choose replicas if there may be any.

    Args:
        candidate: a candidate with `outlined`.

    Returns:
        The candidate with `prediction`, and replicas in `module`.
    """
    estimates, outlined, module = candidate.estimates, candidate.outlined, candidate.module
    if estimates is None:
        return candidate
    assert candidate.root is not None
    assert outlined is not None
    assert module is not None
    prediction = predict(estimates, outlined, module, candidate.root.least_time)
    options = candidate.request.options
    throughput = None
    if options.max_replicas > 1 and not estimates.costs.is_energy:
        throughput = throughput_of(estimates, outlined, module)
    if throughput is not None:
        module = add_replicas(module, throughput, candidate.feasibility, estimates, outlined, options)
    return replace(candidate, module=module, prediction=prediction)


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
        return PartitionNode(site, part.calls, (part,))
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
    labeled = level.graph.labeled(assignment.chosen)
    return PartitionNode(site, in_order, parts, labeled, least_time, decisions=decisions)


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
