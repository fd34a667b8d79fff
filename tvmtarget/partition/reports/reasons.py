"""Why an operation is on its site, and which preferences it was not given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvmtarget.partition.control.control_scalars import control_scalars_of
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.outline.outlining import Outlined, SubgraphRecord
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.memory_capacity import capacities
from tvmtarget.support.registry import strategy_at
from tvmtarget.target.topology import Site

__all__ = ["reason_for", "released", "why_driven"]

_BY_COST = {
    "latency": "the whole takes least so, with calls and copies, by the costs",
    "throughput": "the busiest machine is least busy so, with calls and copies, by the costs",
}


def why_driven(program: FlatProgram, feasibility: Feasibility, index: int) -> str:
    """Say why a driver runs an operation with nested bodies."""
    if all(feasibility.unsupported_reason(index, leaf) is not None for leaf in feasibility.leaves):
        return "no site can take it whole, so that its bodies are divided"
    if index in program.driven:
        return "a driver held it, and its bodies stay divided"
    return "its bodies are better divided, by what is preferred or by the costs"


def reason_for(
    feasibility: Feasibility,
    index: int,
    record: SubgraphRecord,
    outlined: Outlined,
    estimates: Estimates | None,
    objective: str,
) -> str:
    """Say why an operation is on the site of its subgraph."""
    if record.device not in (None, record.site):
        return f"it is shape or scalar work, which its host does for @{record.device or '.'}"
    program = feasibility.program
    possible = [leaf for leaf in feasibility.leaves if feasibility.unsupported_reason(index, leaf) is None]
    asked = program.requirements[index]
    if len(possible) == 1:
        required = [str(item) for item in asked if item.constraint.is_required]
        return f"it must meet {' and '.join(required)}" if required else "no other site can take it"
    around = next((outer for outer in record.calls if index in program.nested(outer)), None)
    if around is not None:
        return f"it is in a body of {program.body[around].source!r}, which runs there whole"
    ranks = [sum(item.constraint.rank(leaf.target, leaf.path) for item in asked) for leaf in possible]
    best = [leaf for leaf, rank in zip(possible, ranks, strict=True) if rank == max(ranks)]
    if len(best) < len(possible) and record.site in [leaf.path for leaf in best]:
        return f"preferred by {' and '.join(map(str, asked))}"
    forced = next(_forced(feasibility, index, record, outlined, estimates, best), None)
    if forced is not None:
        return forced
    first = "the first site, in order of preference, that can take it"
    if estimates is not None:
        known = {leaf.path for leaf in best if estimates.time(index, leaf).time is not None}
        is_blind = record.site == best[0].path and not (record.site in known and len(known) > 1)
        return f"{first}, as unknown times do not speak for another" if is_blind else _BY_COST[objective]
    if record.site == best[0].path:
        return first
    return "a site that can take it and what was decided together with it"


def _forced(
    feasibility: Feasibility,
    index: int,
    record: SubgraphRecord,
    outlined: Outlined,
    estimates: Estimates | None,
    best: Sequence[Site],
) -> Iterator[str]:
    """Yield why an operation is not on a site that would come first."""
    program = feasibility.program
    earlier = best[: next((place for place, leaf in enumerate(best) if leaf.path == record.site), len(best))]
    group = feasibility.groups.of.get(index)
    kind = program.topology[record.site].target.kind
    pattern = None if group is None else group.pattern_of(kind)
    if group is not None and pattern is not None and len(group.calls) > 1:
        others = ", ".join(repr(program.body[call].source) for call in group.calls if call != index)
        yield f"pattern {pattern!r} of {kind} takes it together with {others}"
    driven = {one.call for one in outlined.driven}
    if driven and index in control_scalars_of(program, tuple(program.scope_of(index).calls), driven):
        yield "a driver reads what it computes to run control flow, and this is the driver's memory"
    for leaf in best if estimates is not None else earlier:
        if leaf.path != record.site:
            yield from _vetoes(program, index, leaf)
            yield from _full(program, index, leaf, outlined, estimates)
    frame = next((frame for frame in program.frames[index] if frame.constraints), None)
    if frame is not None and earlier:
        yield f"it stays together with the other operations of function {frame.callee!r}"


def _vetoes(program: FlatProgram, index: int, leaf: Site) -> Iterator[str]:
    strategy = strategy_at(leaf.target)
    answer = None if strategy is None else strategy.check_together([program.op(index)])
    if answer is not None:
        yield f"VETO, {leaf.target.kind} on @{leaf.path or '.'} refuses a function of it alone: {answer}"


def _full(
    program: FlatProgram, index: int, leaf: Site, outlined: Outlined, estimates: Estimates | None
) -> Iterator[str]:
    topology = program.topology
    limit = capacities(topology, {} if estimates is None else estimates.capacities()).get(leaf.domain)
    own = {name for name in program.body[index].uses() if name in program.constants}
    if limit is None or not own or leaf.domain == topology.home(""):
        return
    read = (
        call
        for subgraph in outlined.subgraphs
        if topology[subgraph.site].domain == leaf.domain
        for call in subgraph.calls
    )
    held = {name for call in read for name in program.body[call].uses() if name in program.constants}
    there = sum(program.constants[name].data.nbytes for name in held)
    more = sum(program.constants[name].data.nbytes for name in own if name not in held)
    if there + more > limit:
        yield f"MEMORY, {leaf.domain!r} holds {limit} bytes of weights, has {there}, and this needs {more} more"


def released(program: FlatProgram, index: int, site: Site) -> tuple[str, ...]:
    """List the preferences about an operation that its site does not meet."""
    return tuple(
        str(item)
        for item in program.requirements[index]
        if not item.constraint.is_required
        and not item.constraint.replace(weight=None).check(site.target, site.path, program.topology.root)
    )
