"""The proof of a decomposition, run on every plan: what must hold of its module, whatever made it. O(V + E)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tvmtarget.errors import ModelError
from tvmtarget.ir.function import COPY, Call, Function
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.feasibility import Feasibility
from tvmtarget.partition.outline import RegionRecord
from tvmtarget.partition.program import Program

__all__ = ["verify_plan"]


def verify_plan(
    program: Program,
    feasibility: Feasibility,
    module: IRModule,
    regions: Sequence[RegionRecord],
) -> None:
    """Raise `ModelError` unless every invariant holds.

    The IR's own rules prove that the graph of regions has no circle: a region is one call of its driver, and a
    driver's body is in topological order.
    """
    module.verify()
    leaves = [module[region.function] for region in regions]
    drivers = [function for function in module.functions if function.attr("role") == "driver"]
    problems = [
        *_every_op_runs_once(program, regions, leaves),
        *_every_op_is_where_it_may_be(program, feasibility, regions),
        *_every_leaf_names_one_leaf(program, leaves),
        *(problem for driver in drivers for problem in _driver_only_drives(driver)),
        *(problem for driver in drivers for problem in _values_are_exact(driver, module)),
        *(problem for driver in drivers for problem in _copies_are_needed(driver, program)),
    ]
    if problems:
        raise ModelError(*problems[:5])


def _every_op_runs_once(program: Program, regions: Sequence[RegionRecord], leaves: Sequence[Function]) -> Iterator[str]:
    counts = Counter(index for region in regions for index in region.calls)
    for index, call in enumerate(program.body):
        if counts[index] != 1:
            yield f"op {call.source!r} ({call.op}) is in {counts[index]} regions, not in one"
    for region, leaf in zip(regions, leaves, strict=True):
        wanted = [(program.body[index].source, program.body[index].op) for index in region.calls]
        if wanted != [(call.source, call.op) for call in leaf.body]:
            yield f"function {leaf.name!r} does not hold the ops that its region lists"


def _every_op_is_where_it_may_be(
    program: Program, feasibility: Feasibility, regions: Sequence[RegionRecord]
) -> Iterator[str]:
    for region in regions:
        site = program.layout[region.site if region.device is None else region.device]
        for index in region.calls:
            refusal = feasibility.verdict(index, site)
            if refusal is not None:
                yield f"op {program.body[index].source!r} is on @{region.site}, which cannot take it: {refusal}"


def _every_leaf_names_one_leaf(program: Program, leaves: Sequence[Function]) -> Iterator[str]:
    for leaf in leaves:
        path = None if leaf.constraint is None else leaf.constraint.path
        if path is None or path not in program.layout or program.layout[path].is_system:
            yield f"function {leaf.name!r} is not constrained to one leaf, but to {leaf.constraint}"


def _driver_only_drives(driver: Function) -> Iterator[str]:
    for call in driver.body:
        if call.op != COPY and call.callee is None:
            yield f"driver {driver.name!r} computes {call.source!r} itself"


def _values_are_exact(driver: Function, module: IRModule) -> Iterator[str]:
    """Every callee reads all its parameters, once each, and everything it returns is read."""
    read = Counter(name for call in driver.body for name in call.inputs) + Counter(driver.results)
    for call in driver.body:
        for output in call.outputs:
            if not read[output.name]:
                yield f"nothing reads {output.name!r}, which {call.op!r} returns (function {driver.name!r})"
        if call.callee is None:
            continue
        callee = module[call.callee]
        used = {name for inner in callee.body for name in inner.uses()} | set(callee.results)
        unread = [param.name for param in callee.params if param.name not in used]
        if unread or len(set(call.inputs)) != len(call.inputs):
            yield f"function {callee.name!r} is given {unread or call.inputs}, which it does not need"


def _copies_are_needed(driver: Function, program: Program) -> Iterator[str]:
    scopes = {param.name: param.scope for param in driver.params}
    made: set[tuple[str, str]] = set()
    origin: dict[str, str] = {}
    for call in driver.body:
        scopes |= {output.name: output.scope for output in call.outputs}
        if call.op != COPY:
            yield from _arguments_are_at_home(call, scopes, driver)
            continue
        source, copied = call.inputs[0], call.outputs[0]
        origin[copied.name] = origin.get(source, source)
        pair = (origin[copied.name], copied.scope)
        if pair in made or scopes[origin[copied.name]] == copied.scope or scopes[source] != call.attr("src"):
            yield f"copy of {source!r} to {copied.scope!r} is not needed, or not from where it is (in {driver.name!r})"
        made.add(pair)
    home = program.layout.home((driver.asks.path if driver.asks is not None else None) or "")
    for result in driver.results:
        if scopes.get(result, home) != home:
            yield f"result {result!r} of {driver.name!r} is in {scopes[result]!r}, not in {home!r}"


def _arguments_are_at_home(call: Call, scopes: Mapping[str, str], driver: Function) -> Iterator[str]:
    domains = {scopes[name] for name in call.inputs if name in scopes} | {output.scope for output in call.outputs}
    if len(domains) > 1:
        yield f"{call.op!r} mixes values in {', '.join(sorted(domains))} (function {driver.name!r})"
