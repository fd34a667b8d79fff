"""Explain one operation of a plan: the records that its stages made, printed in one place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from tvmtarget.human_units import bytes_text, counted
from tvmtarget.partition.costs.costs import Unit, structure_of
from tvmtarget.partition.costs.estimate import Estimate, Estimates, cost_text
from tvmtarget.partition.decisions import decisions_about
from tvmtarget.partition.decomposition import Decomposition
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.outline.outlining import CopyRecord, DrivenRecord, SubgraphRecord
from tvmtarget.partition.partition_node import PartitionNode
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.reports.move_delta import move_delta
from tvmtarget.partition.reports.separation_reasons import owners_of, separation_reasons
from tvmtarget.target.topology import Site

__all__ = ["Explanation", "explain_op"]


def _by_cost(plan: Decomposition) -> str:
    """Say what the costs minimise by an operation's site."""
    gain = "the program is fastest"
    if plan.options.objective == "throughput":
        gain = "the busiest machine has least work"
    elif plan.options.costs is not None and plan.options.costs.is_energy:
        gain = "the program takes least energy"
    has_errors = plan.estimates is not None and plan.estimates.has_errors and plan.options.objective == "latency"
    errors = ", with the errors of estimates added on all sites but the best one" if has_errors else ""
    return f"{gain} with it there, by the costs of operations, calls and copies{errors}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one operation runs where it does.

    Attributes:
        op: the name of the operation.
        kind: its operator.
        site: the leaf that it runs on; for control flow that a driver runs, the driver's host.
        function: the function that it is in, or the driver that runs it.
        reason: why it runs there.
        verdicts: for each leaf whether it supports the operation, and why not.
        neighbours: operations that exchange values with it in other subgraphs, with the reason (docs/plans.md).
        copies: the copies of its operands and results.
        members: number of operations in the function, or in the nested bodies.
        times: with costs, the estimated time on each leaf that supports it.
        structure: the name under which measurements know such an operation.
        is_driven: whether a driver runs it.
        levels: from the root down, each system, the child it passed the operation to, and the operations in that call.
        alone: by leaf, picoseconds added if only this operation moved there, below zero if faster; no launch costs.
        released: preferences that the site does not meet.
        rules: the effect of each rule of `where` on the operation.
        ran_by: what runs it inside the function, as the engine reported it when it was compiled; empty if unknown.
        unit: `us`, or `uJ` where times are energies in picojoules.
    """

    op: str
    kind: str
    site: str
    function: str
    reason: str
    verdicts: tuple[tuple[str, str], ...]
    neighbours: tuple[tuple[str, str], ...]
    copies: tuple[str, ...]
    members: int
    times: tuple[tuple[str, Estimate], ...] = ()
    structure: str = ""
    is_driven: bool = False
    levels: tuple[tuple[str, str, int], ...] = ()
    alone: tuple[tuple[str, int], ...] = ()
    released: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    ran_by: str = ""
    unit: Unit = "us"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the explanation line by line."""
        yield f"{self.op} ({self.kind}) runs on @{self.site or '.'}: {self.reason}"
        times, alone = dict(self.times), dict(self.alone)
        for site, verdict in self.verdicts:
            time = f"; {times[site]}" if site in times else ""
            yield f"  @{site or '.'}: {verdict}{time}" + (
                f"; {_longer(alone[site], self.unit)}" if site in alone else ""
            )
        for item in self.released:
            yield f"  RELEASED_PIN: {item} is not kept"
        yield from (f"  {rule}" for rule in self.rules)
        if self.is_driven:
            yield f"  run by driver {self.function!r}, with {counted(self.members, 'op')} in its bodies"
        else:
            inside = f", and runs there by {self.ran_by}" if self.ran_by else ""
            yield f"  in subgraph {self.function!r} of {counted(self.members, 'op')}{inside}"
        for system, part, count in self.levels if len(self.levels) > 1 else ():
            yield f"  system @{system or '.'} passed it to @{part} in a call of {counted(count, 'op')}"
        for neighbour, why in self.neighbours:
            yield f"  apart from {neighbour!r}: {why}"
        for copy in self.copies:
            yield f"  copy: {copy}"

    def to_json(self) -> dict[str, object]:
        """Return the explanation as data."""
        times = {site: {self.unit: _us(estimate), "why": estimate.reason} for site, estimate in self.times}
        flat: dict[str, object] = {
            "op": self.op,
            "kind": self.kind,
            "site": self.site,
            "function": self.function,
            "reason": self.reason,
            "verdicts": dict(self.verdicts),
            "neighbours": dict(self.neighbours),
            "copies": list(self.copies),
        } | ({"driven": True} if self.is_driven else {})
        flat |= {"levels": [list(level) for level in self.levels]} if len(self.levels) > 1 else {}
        flat |= {"released": list(self.released)} if self.released else {}
        flat |= {"rules": list(self.rules)} if self.rules else {}
        flat |= {"ran_by": self.ran_by} if self.ran_by else {}
        flat |= {"alone": {site: longer / 10**6 for site, longer in self.alone}} if self.alone else {}
        return flat | ({"times": times, "structure": self.structure} if times else {})


def _longer(time: int, unit: Unit) -> str:
    return f"alone there, {cost_text(abs(time), unit)} {'more' if time >= 0 else 'less'} in all"


def _us(estimate: Estimate) -> float | None:
    return None if estimate.time is None else estimate.time / 10**6


def explain_op(plan: Decomposition, op: str) -> Explanation:
    """Explain where one operation of a plan runs.

    Args:
        plan: the plan.
        op: the name of an operation.

    Returns:
        The explanation, without what `where` rules do.

    Raises:
        UnknownNameError: if there is no such operation.
    """
    program, feasibility, estimates, outlined = plan.program, plan.feasibility, plan.estimates, plan.outlined
    index = program.find(op)
    owner = owners_of(program, plan.root)
    driven = next((one for one in outlined.driven if one.call == index), None)
    record = None if driven is not None else outlined.subgraphs[owner[index]]
    # Negative numbers mark operations that drivers run, which are on no leaf.
    sites = {call: outlined.subgraphs[place].site for call, place in owner.items() if place >= 0}
    site, function, reason, members = (
        (record.site, record.function, _reason(plan, index, record), len(record.ops) + len(record.inner))
        if record is not None
        else _in_driver(program, feasibility, index, driven)
    )
    return Explanation(
        op=op,
        kind=program.body[index].kind,
        site=site,
        function=function,
        reason=reason,
        verdicts=tuple(_verdicts(feasibility, index, "" if driven is not None else site)),
        neighbours=tuple(separation_reasons(plan, index, owner)),
        copies=tuple(_copied(copy, estimates) for copy in _caused(program, index, record, outlined.copies)),
        members=members,
        times=() if estimates is None else tuple(_times(feasibility, estimates, index)),
        structure=structure_of(program.op(index)),
        is_driven=driven is not None,
        levels=tuple(_levels(plan.root, index)),
        alone=() if estimates is None else tuple(move_delta(feasibility, estimates, sites, index)),
        released=tuple(one.reason for one in decisions_about(plan.decisions, index) if one.code == "RELEASED_PIN"),
        unit="us" if estimates is None else estimates.costs.unit,
    )


def _reason(plan: Decomposition, index: int, record: SubgraphRecord) -> str:
    """Return why an operation is on the site of its subgraph."""
    # Check hard reasons first: requirements and operator support, then preferences, then costs.
    if record.device not in (None, record.site):
        return f"it is shape or scalar work, which the host runs for @{record.device or '.'}"
    program, feasibility, estimates = plan.program, plan.feasibility, plan.estimates
    possible = [leaf for leaf in feasibility.leaves if feasibility.unsupported_reason(index, leaf) is None]
    requirements = program.requirements[index]
    if len(possible) == 1:
        required = [str(item) for item in requirements if item.constraint.is_required]
        return f"it must meet {' and '.join(required)}" if required else "no other site can take it"
    around = next((outer for outer in record.calls if index in program.nested(outer)), None)
    if around is not None:
        return f"it is in a body of {program.body[around].source!r}, which runs there whole"
    ranks = [sum(item.constraint.rank(leaf.target, leaf.path) for item in requirements) for leaf in possible]
    best = [leaf for leaf, rank in zip(possible, ranks, strict=True) if rank == max(ranks)]
    if len(best) < len(possible) and record.site in [leaf.path for leaf in best]:
        return f"preferred by {' and '.join(map(str, requirements))}"
    forced = next(_forced(plan, index, record, best), None)
    if forced is not None:
        return forced
    first = "the first site, in order of preference, that can take it"
    if estimates is not None:
        known = {leaf.path for leaf in best if estimates.time(index, leaf).time is not None}
        is_blind = record.site == best[0].path and not (record.site in known and len(known) > 1)
        return f"{first}, as no known time is in favour of another" if is_blind else _by_cost(plan)
    if record.site == best[0].path:
        return first
    return "a site that can take it and what was decided together with it"


def _forced(plan: Decomposition, index: int, record: SubgraphRecord, best: Sequence[Site]) -> Iterator[str]:
    """Yield why an operation is not on a site that comes first by preference, from what the stages recorded."""
    program = plan.program
    earlier = [leaf.path for leaf in takewhile(lambda leaf: leaf.path != record.site, best)]
    group = plan.feasibility.groups.of.get(index)
    kind = program.topology[record.site].target.kind
    pattern = None if group is None else group.pattern_of(kind)
    if group is not None and pattern is not None and len(group.calls) > 1:
        others = ", ".join(repr(program.body[call].source) for call in group.calls if call != index)
        yield f"pattern {pattern!r} of {kind} takes it together with {others}"
    competing = earlier if plan.estimates is None else [leaf.path for leaf in best if leaf.path != record.site]
    for decision in decisions_about(plan.decisions, index):
        if decision.code == "CONTROL_SCALAR" or (decision.code == "QUANTIZED" and competing):
            yield decision.reason
        elif decision.site in competing:
            is_alone = decision.ops == (index,)
            if decision.code == "MEMORY" or (decision.code == "VETO" and is_alone):
                yield str(decision)
    frame = next((frame for frame in program.frames[index] if frame.constraints), None)
    if frame is not None and earlier:
        yield f"it stays together with the other operations of function {frame.callee!r}"


def _why_driven(program: FlatProgram, feasibility: Feasibility, index: int) -> str:
    """Say why a driver runs an operation with nested bodies."""
    if all(feasibility.unsupported_reason(index, leaf) is not None for leaf in feasibility.leaves):
        return "no site can take it whole, so that its bodies are divided"
    if index in program.driven:
        return "a driver held it, and its bodies stay divided"
    return "its bodies are better divided, by what is preferred or by the costs"


def _in_driver(
    program: FlatProgram, feasibility: Feasibility, index: int, driven: DrivenRecord | None
) -> tuple[str, str, str, int]:
    site, driver = ("", "") if driven is None else (program.topology[driven.system].host, driven.driver)
    return site, driver, _why_driven(program, feasibility, index), len(tuple(program.nested(index)))


def _levels(subgraph: PartitionNode, index: int) -> Iterator[tuple[str, str, int]]:
    part = next((part for part in subgraph.parts if index in part.calls), None)
    if part is not None:
        yield subgraph.site.path, part.site.path, len(part.calls)
        yield from _levels(part, index)


def _times(feasibility: Feasibility, estimates: Estimates, index: int) -> Iterator[tuple[str, Estimate]]:
    for leaf in feasibility.leaves:
        if feasibility.unsupported_reason(index, leaf) is None:
            yield leaf.path, estimates.time(index, leaf)


def _verdicts(feasibility: Feasibility, index: int, site: str) -> Iterator[tuple[str, str]]:
    for leaf in feasibility.leaves:
        refusal = feasibility.unsupported_reason(index, leaf)
        verdict = "yes" if refusal is None else f"no, {refusal}"
        yield leaf.path, f"{verdict} (chosen)" if leaf.path == site else verdict


def _caused(
    program: FlatProgram, index: int, record: SubgraphRecord | None, copies: Sequence[CopyRecord]
) -> Iterator[CopyRecord]:
    """Yield the copies that bring an operation's operands to its site, then the copies of its results.

    Both are in the order of execution: first out of the systems that computed a value, then into the systems that
    read it.
    """
    read, made = program.body[index].uses(), {output.name for output in program.body[index].outputs}
    arriving = {value: {"" if record is None else program.topology[record.site].domain} for value in read}
    about = [copy for copy in copies if copy.value in read]
    for _ in about:  # each round finds one more step of the way, if there is any
        known = sum(map(len, arriving.values()))
        for copy in reversed(about):
            if copy.dst in arriving[copy.value]:
                arriving[copy.value].add(copy.src)
        if sum(map(len, arriving.values())) == known:
            break
    if record is None:
        yield from (copy for copy in copies if copy.value in made or copy.value in read)
        return
    incoming = [copy for copy in copies if copy.value in read and copy.dst in arriving[copy.value]]
    outgoing = [copy for copy in copies if copy.value in made]
    own = {(copy.value, copy.src, copy.dst) for copy in incoming if _leads_to(copy, record)}
    incoming = [copy for copy in incoming if _leads_to(copy, record) or (copy.value, copy.src, copy.dst) not in own]
    yield from sorted(incoming, key=lambda copy: _depth(copy) if _leads_to(copy, record) else -_depth(copy))
    yield from sorted(outgoing, key=lambda copy: -_depth(copy) if _leads_to(copy, record) else _depth(copy))


def _leads_to(copy: CopyRecord, record: SubgraphRecord) -> bool:
    """Whether the driver that makes a copy is on the chain of calls from the entry to a subgraph function."""
    return not copy.call or record.call.startswith(f"{copy.call}/")


def _depth(copy: CopyRecord) -> int:
    """Return how many calls lead from the entry to the driver that makes a copy."""
    return copy.call.count("/") + bool(copy.call)


def _copied(copy: CopyRecord, estimates: Estimates | None) -> str:
    """Return what a copy moves, and how long that takes by the costs."""
    nbytes = copy.nbytes if estimates is None else estimates.nbytes(copy.type)
    time = None if estimates is None else estimates.copy(copy.type, copy.src, copy.dst)
    size = "of dynamic shape" if nbytes is None else bytes_text(nbytes)
    runs = "" if copy.runs == 1 else f", {float(copy.runs):g} times"
    took = (
        "" if estimates is None else ", unknown time" if time is None else f", {cost_text(time, estimates.costs.unit)}"
    )
    return f"{copy.value} from {copy.src} to {copy.dst}, {size}{took}{runs}"
