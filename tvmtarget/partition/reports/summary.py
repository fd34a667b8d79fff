"""Print a plan in lines: coverage, subgraphs, copies, unsupported operators, predicted time, unmet preferences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tvmtarget.human_units import bytes_text, counted
from tvmtarget.ir.types import TensorType, Type
from tvmtarget.partition.costs.work import Unknown
from tvmtarget.partition.decomposition import Decomposition
from tvmtarget.partition.memory_use import memory_uses
from tvmtarget.partition.outline.constant_binding import bound_weights
from tvmtarget.partition.partition_node import PartitionNode
from tvmtarget.partition.reports.rules import RuleEffects
from tvmtarget.partition.reports.unsupported import unsupported_lines

__all__ = ["summary_of", "systems_in"]

MAX_SHOWN = 5


def summary_of(plan: Decomposition) -> Iterator[str]:
    """Print a plan.

    Args:
        plan: the plan.

    Yields:
        The lines: totals, each leaf, each driver, copies, operators that preferred sites do not support, predictions,
        and rules and preferences without effect.
    """
    total = len(plan.program.body)
    counts: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for subgraph in plan.subgraphs:
        counts[subgraph.site] += len(subgraph.ops) + len(subgraph.inner)
        calls[subgraph.site] += 1
    flops = _flops(plan)
    warning = f"; {plan.prediction.warning}" if plan.prediction is not None and plan.prediction.warning else ""
    parts, sites = counted(len(plan.subgraphs), "subgraph"), counted(len(counts), "site")
    yield f"{counted(total, 'op')} in {parts} on {sites} of {plan.topology.root.kind}{warning}"
    replaced = len(plan.program.replaced)
    if replaced:
        yield f"  replaced by their definitions in ONNX: {counted(replaced, 'op')}"
    if len(plan.program.folded) > replaced:
        yield f"  folded into constants: {counted(len(plan.program.folded) - replaced, 'op')}"
    for site in (leaf.path for leaf in plan.topology.leaves()):
        share = f"{_percent(counts[site], total)} %"
        if flops.total():
            share += f", {_percent(flops[site], flops.total())} % of flops"
        kind = plan.topology[site].target.kind
        ops, subgraphs = counted(counts[site], "op"), counted(calls[site], "subgraph")
        yield f"  @{site or '.'} ({kind}): {ops} ({share}) in {subgraphs}"
    yield from _drivers(plan.root)
    if plan.outlined.driven:
        kinds = Counter(plan.program.body[one.call].kind for one in plan.outlined.driven)
        driven = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        yield f"  run by drivers: {driven}, whose bodies are partitioned"
    yield f"  copies: {len(plan.copies)}{_bytes(plan)}"
    yield from (f"  {use}" for use in memory_uses(plan))
    yield from unsupported_lines(plan)
    if plan.prediction is not None:
        yield from plan.prediction.lines()
    if plan.throughput is not None:
        yield from plan.throughput.lines()
    yield from _bound(plan)
    yield from _released(plan)
    idle = [rule for rule in RuleEffects.of(plan).reports() if not rule.effective]
    for rule in idle[:MAX_SHOWN]:
        yield f"  {rule.rule.origin}, {rule.rule.text or rule.rule.constraint}, changes nothing: {rule.why()}"
    if len(idle) > MAX_SHOWN:
        yield f"  ... and {counted(len(idle) - MAX_SHOWN, 'more rule')} without effect"


def _bound(plan: Decomposition) -> Iterator[str]:
    """Yield how many weights stay parts of functions though the plan was to lift all, and the first of them."""
    functions = [plan.module[name] for name in dict.fromkeys(subgraph.function for subgraph in plan.subgraphs)]
    bound = [(weight, one.name) for one in functions for weight in bound_weights(one)]
    if plan.options.constants == "lift" and bound:
        weight, name = bound[0]
        why = "the code generator needs their values, or the function is called once from outside or another machine"
        yield f"  not lifted: {counted(len(bound), 'weight')} such as {weight!r} of {name!r}; {why}"


def _drivers(root: PartitionNode) -> Iterator[str]:
    """Yield how many subgraphs each system has, and can have at least; a deeper one may be called several times."""
    drivers: dict[str, list[PartitionNode]] = {}
    for system in systems_in(root):
        drivers.setdefault(system.site.path, []).append(system)
    for path, called in drivers.items():
        subgraphs, least = sum(len(one.parts) for one in called), sum(one.least_parts for one in called)
        calls = f" in {counted(len(called), 'call')}" if len(called) > 1 else ""
        parts = counted(subgraphs, "subgraph")
        yield f"  driver of @{path or '.'}: {parts}{calls}, at least {least} for these sites"


def systems_in(subgraph: PartitionNode) -> Iterator[PartitionNode]:
    """Yield the systems that are called outside of nested bodies.

    Args:
        subgraph: the tree of subgraphs.

    Yields:
        Its systems, in the order in which they are called.
    """
    if subgraph.site.is_system and not subgraph.bodies:
        yield subgraph
        for part in subgraph.parts:
            yield from systems_in(part)


def _bytes(plan: Decomposition) -> str:
    """Return the bytes of all copies in one run, and how many sizes are assumed by the costs or unknown."""
    nbytes = plan.estimates.nbytes if plan.estimates is not None else _stated
    sizes = [nbytes(copy.type) for copy in plan.copies]
    known = [size for size in sizes if size is not None]
    is_dynamic = [copy.nbytes is None for copy in plan.copies]
    assumed = sum(size is not None and dynamic for size, dynamic in zip(sizes, is_dynamic, strict=True))
    text = f", {bytes_text(sum(known))}" if known else ""
    text += f", {assumed} of dynamic shape with the sizes that the costs assume" if assumed else ""
    unknown = len(sizes) - len(known)
    return text + (f", {unknown if known else 'all'} of dynamic shape" if unknown else "")


def _stated(type_: Type) -> int | None:
    return type_.nbytes if isinstance(type_, TensorType) else None


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole if whole else 0.0:.0f}"


def _flops(plan: Decomposition) -> Counter[str]:
    """Return the floating-point operations of each site; nothing if those of any operation are unknown."""
    found: Counter[str] = Counter()
    if plan.estimates is None:
        return found
    for subgraph in plan.subgraphs:
        for index in plan.program.with_nested(subgraph.calls):
            # Shares of an incomplete total would mislead, so one unknown operation drops them all.
            work = plan.estimates.work(index)
            if isinstance(work, Unknown):
                return Counter()
            found[subgraph.site] += work.flops
    return found


def _released(plan: Decomposition) -> Iterator[str]:
    """Yield the preferences that are not met, with the number of operations and the first of them."""
    if not any(item.constraint.weight is not None for items in plan.program.requirements for item in items):
        return
    lost: dict[str, list[str]] = {}
    for decision in plan.decisions:
        if decision.code == "RELEASED_PIN":
            lost.setdefault(decision.reason, []).append(plan.program.body[decision.ops[0]].source)
    for item, ops in list(lost.items())[:MAX_SHOWN]:
        yield f"  released: {item}, for {counted(len(ops), 'op')} such as {ops[0]!r}"
    if len(lost) > MAX_SHOWN:
        yield f"  ... and {counted(len(lost) - MAX_SHOWN, 'more preference')}"
