"""Why an operation is where it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvmtarget.partition.costs.costs import structure_of
from tvmtarget.partition.costs.estimate import Estimate, Estimates
from tvmtarget.partition.feasibility import Feasibility
from tvmtarget.partition.outline import Outlined, RegionRecord
from tvmtarget.partition.program import Program
from tvmtarget.partition.split import Region

__all__ = ["Explanation", "explain_op"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Verdicts by site, the decision, the region, why neighbours are elsewhere, and the copies this causes.

    With costs there are times by site; `structure` is by what measurements name such an operation. For control flow
    that a driver runs, `site` is the driver's host and `members` counts what is in the nested bodies. `levels` tells,
    from the root down, which part of a system took the operation and with how many; there are several in a deep tree.
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

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the explanation line by line."""
        yield f"{self.op} ({self.kind}) runs on @{self.site or '.'}: {self.reason}"
        times = dict(self.times)
        for site, verdict in self.verdicts:
            yield f"  @{site or '.'}: {verdict}" + (f"; {times[site]}" if site in times else "")
        if self.is_driven:
            yield f"  run by driver {self.function!r}, with {self.members} ops in its bodies"
        else:
            yield f"  in region {self.function!r} of {self.members} ops"
        for system, part, count in self.levels if len(self.levels) > 1 else ():
            yield f"  system @{system or '.'} gave it to @{part} in a call of {count} ops"
        for neighbour, why in self.neighbours:
            yield f"  apart from {neighbour!r}: {why}"
        for copy in self.copies:
            yield f"  copy: {copy}"

    def to_json(self) -> dict[str, object]:
        """Return the explanation as data."""
        times = {site: {"us": _us(estimate), "why": estimate.why} for site, estimate in self.times}
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
        return flat | ({"times": times, "structure": self.structure} if times else {})


def _us(estimate: Estimate) -> float | None:
    return None if estimate.time is None else estimate.time / 10**6


def explain_op(
    program: Program,
    feasibility: Feasibility,
    root: Region,
    outlined: Outlined,
    op: str,
    estimates: Estimates | None = None,
    *,
    objective: str = "latency",
) -> Explanation:
    """Explain one operation of a plan; `UnknownNameError` if there is none of that name."""
    index = program.find(op)
    owner = _owners(program, root)
    values = {*program.body[index].uses(), *(output.name for output in program.body[index].outputs)}
    driven = next((one for one in outlined.driven if one.call == index), None)
    record = None if driven is not None else outlined.regions[owner[index]]
    site = record.site if record is not None else program.layout[driven.system].host if driven is not None else ""
    return Explanation(
        op=op,
        kind=program.body[index].kind,
        site=site,
        function=record.function if record is not None else driven.driver if driven is not None else "",
        reason=_why_driven(program, feasibility, index)
        if driven
        else _why_on_host(record)
        or _reason(program, feasibility, index, record, None if estimates is None else _BY_COST[objective]),
        verdicts=tuple(_verdicts(feasibility, index, "" if driven is not None else site)),
        neighbours=tuple(_neighbours(program, index, owner, outlined.regions)),
        copies=tuple(f"{copy.value} from {copy.src} to {copy.dst}" for copy in outlined.copies if copy.value in values),
        members=len(tuple(program.nested(index))) if record is None else len(record.ops) + len(record.inner),
        times=() if estimates is None else tuple(_times(feasibility, estimates, index)),
        structure=structure_of(program.op(index)),
        is_driven=driven is not None,
        levels=tuple(_levels(root, index)),
    )


_BY_COST = {
    "latency": "the whole takes least so, with calls and copies, by the costs",
    "throughput": "the busiest machine is least busy so, with calls and copies, by the costs",
}


def _levels(region: Region, index: int) -> Iterator[tuple[str, str, int]]:
    part = next((part for part in region.parts if index in part.calls), None)
    if part is not None:
        yield region.site.path, part.site.path, len(part.calls)
        yield from _levels(part, index)


def _owners(program: Program, root: Region) -> dict[int, int]:
    """Map operations to the leaf regions that hold them, by number; those that drivers run to numbers below 0."""
    owner: dict[int, int] = {}
    leaves = 0
    for region in root.walk():
        if region.bodies:
            owner[region.calls[0]] = -1 - region.calls[0]
        elif region.is_leaf:
            owner |= dict.fromkeys(region.calls, leaves)
            owner |= {inner: leaves for call in region.calls for inner in program.nested(call)}
            leaves += 1
    return owner


def _why_driven(program: Program, feasibility: Feasibility, index: int) -> str:
    if all(feasibility.verdict(index, leaf) is not None for leaf in feasibility.leaves):
        return "no site can take it whole, so that its bodies are divided"
    if index in program.driven:
        return "a driver held it, and its bodies stay divided"
    return "its bodies are better divided, by what is preferred or by the costs"


def _times(feasibility: Feasibility, estimates: Estimates, index: int) -> Iterator[tuple[str, Estimate]]:
    for leaf in feasibility.leaves:
        if feasibility.verdict(index, leaf) is None:
            yield leaf.path, estimates.time(index, leaf)


def _why_on_host(record: RegionRecord | None) -> str:
    if record is None or record.device in (None, record.site):
        return ""
    return f"it is shape or scalar work, which its host does for @{record.device or '.'}"


def _reason(
    program: Program, feasibility: Feasibility, index: int, record: RegionRecord | None, by_cost: str | None
) -> str:
    possible = [leaf.path for leaf in feasibility.leaves if feasibility.verdict(index, leaf) is None]
    asked = program.asked[index]
    if len(possible) == 1:
        required = [str(item) for item in asked if item.constraint.is_required]
        return f"it must meet {' and '.join(required)}" if required else "no other site can take it"
    ranks = [sum(item.constraint.rank(program.layout[path].target, path) for item in asked) for path in possible]
    if len(set(ranks)) > 1:
        return f"preferred by {' and '.join(map(str, asked))}"
    if by_cost is not None:
        return by_cost
    if record is None or record.site == possible[0]:
        return "the first site, in order of preference, that can take it"
    around = next((outer for outer in record.calls if index in program.nested(outer)), None)
    if around is not None:
        return f"it is in a body of {program.body[around].source!r}, which runs there whole"
    return "a site that can take it and what was decided together with it"


def _verdicts(feasibility: Feasibility, index: int, site: str) -> Iterator[tuple[str, str]]:
    for leaf in feasibility.leaves:
        refusal = feasibility.verdict(index, leaf)
        verdict = "yes" if refusal is None else f"no, {refusal}"
        yield leaf.path, f"{verdict} (chosen)" if leaf.path == site else verdict


def _neighbours(
    program: Program, index: int, owner: dict[int, int], regions: Sequence[RegionRecord]
) -> Iterator[tuple[str, str]]:
    before = list(program.predecessors(index))
    after = dict.fromkeys(
        reader for output in program.body[index].outputs for reader in program.consumers.get(output.name, ())
    )
    here = owner[index]
    for other in (*before, *after):
        there = owner[other]
        if there == here:
            continue
        name = program.body[other].source
        if program.scope_of(other) is not program.scope_of(index):
            yield name, "BODY, it is outside of the body that this one stands in"
            continue
        if here < 0 or there < 0:
            yield name, f"CONTROL_FLOW, a driver runs {'this one' if here < 0 else 'it'}"
            continue
        if regions[there].site != regions[here].site:
            yield name, f"SITE, it runs on @{regions[there].site}"
            continue
        first, last = (other, index) if other in before else (index, other)
        path = _detour(program, first, last, owner)
        through = " -> ".join(program.body[step].source for step in path)
        yield name, f"CYCLE, one region of both would wait for itself: {through}" if path else "WAVE, it runs later"


def _detour(program: Program, first: int, last: int, owner: dict[int, int]) -> list[int]:
    """Return a path between the regions of two operations that leaves them both, or nothing."""
    ends = {owner[first], owner[last]}
    starts = [call for call, region in owner.items() if region == owner[first]]
    came: dict[int, int | None] = dict.fromkeys(starts)
    queue = deque(sorted(starts))
    while queue:
        step = queue.popleft()
        for output in program.body[step].outputs:
            for reader in program.consumers.get(output.name, ()):
                if reader in came or (owner[reader] in ends and owner[step] in ends):
                    continue
                came[reader] = step
                if owner[reader] == owner[last]:
                    return _trace(came, reader)
                queue.append(reader)
    return []


def _trace(came: dict[int, int | None], step: int) -> list[int]:
    path = [step]
    while (before := came[path[-1]]) is not None:
        path.append(before)
    return path[::-1]
