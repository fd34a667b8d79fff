"""A plan in lines: coverage, regions against their lower bound, copies, predicted time, unmet preferences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tvmtarget.partition.costs.work import Unknown
from tvmtarget.partition.reports.reasons import released
from tvmtarget.partition.split import Region

if TYPE_CHECKING:
    from tvmtarget.partition.plan import Plan

__all__ = ["summary_of", "systems_in"]

MAX_SHOWN = 5


def summary_of(plan: Plan) -> Iterator[str]:
    """Yield the summary of a plan line by line."""
    total = len(plan.program.body)
    counts: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for region in plan.regions:
        counts[region.site] += len(region.ops) + len(region.inner)
        calls[region.site] += 1
    flops = _flops(plan)
    yield f"{total} ops in {len(plan.regions)} regions on {len(counts)} sites of {plan.layout.root.kind}"
    for site in (leaf.path for leaf in plan.layout.leaves()):
        share = f"{_percent(counts[site], total)} %"
        if flops.total():
            share += f", {_percent(flops[site], flops.total())} % of flops"
        kind = plan.layout[site].target.kind
        yield f"  @{site or '.'} ({kind}): {counts[site]} ops ({share}) in {calls[site]} regions"
    for system in systems_in(plan.root):
        where = f"@{system.site.path or '.'}"
        yield f"  driver of {where}: {len(system.parts)} regions, at least {system.least_parts} for these sites"
    if plan.outlined.driven:
        kinds = Counter(plan.program.body[one.call].kind for one in plan.outlined.driven)
        counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        yield f"  run by drivers: {counted}, whose bodies are divided"
    sizes = [copy.nbytes for copy in plan.copies]
    known = sum(size for size in sizes if size is not None)
    open_ended = f", {sizes.count(None)} of them of open size" if None in sizes else ""
    yield f"  copies: {len(sizes)}, {known} bytes{open_ended}"
    if plan.prediction is not None:
        yield from plan.prediction.lines()
    if plan.pace is not None:
        yield from plan.pace.lines()
    yield from _released(plan)


def systems_in(region: Region) -> Iterator[Region]:
    """Yield the systems that are called outside of nested bodies."""
    if region.site.is_system and not region.bodies:
        yield region
        for part in region.parts:
            yield from systems_in(part)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole if whole else 0.0:.0f}"


def _flops(plan: Plan) -> Counter[str]:
    """Return the operations on numbers that each site does, nothing if that is unknown of anything."""
    found: Counter[str] = Counter()
    if plan.estimates is None:
        return found
    for region in plan.regions:
        for index in plan.program.with_nested(region.calls):
            work = plan.estimates.work(index)
            if isinstance(work, Unknown):
                return Counter()
            found[region.site] += work.flops
    return found


def _released(plan: Plan) -> Iterator[str]:
    """Yield the preferences that were not kept, with how many operations and the first of them."""
    if not any(item.constraint.weight is not None for asked in plan.program.asked for item in asked):
        return
    lost: dict[str, list[str]] = {}
    for region in plan.regions:
        for index in plan.program.with_nested(region.calls):
            for item in released(plan.program, index, plan.layout[region.site]):
                lost.setdefault(item, []).append(plan.program.body[index].source)
    for item, ops in list(lost.items())[:MAX_SHOWN]:
        yield f"  released: {item}, for {len(ops)} ops such as {ops[0]!r}"
    if len(lost) > MAX_SHOWN:
        yield f"  ... and {len(lost) - MAX_SHOWN} more preferences"
