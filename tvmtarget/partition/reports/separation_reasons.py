"""Why neighbours are in other subgraphs than an operation."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.outline.outlining import SubgraphRecord
from tvmtarget.partition.partition_node import PartitionNode
from tvmtarget.partition.placement.pattern_groups import check_caps
from tvmtarget.support.registry import strategy_at

__all__ = ["owners_of", "separation_reasons"]


def owners_of(program: FlatProgram, root: PartitionNode) -> dict[int, int]:
    """Map operations to the leaf subgraphs that hold them, by number; those that drivers run to numbers below 0."""
    owner: dict[int, int] = {}
    leaves = 0
    for subgraph in root.walk():
        if subgraph.bodies:
            owner[subgraph.calls[0]] = -1 - subgraph.calls[0]
        elif subgraph.is_leaf:
            owner |= dict.fromkeys(subgraph.calls, leaves)
            owner |= {inner: leaves for call in subgraph.calls for inner in program.nested(call)}
            leaves += 1
    return owner


def separation_reasons(
    program: FlatProgram, root: PartitionNode, index: int, owner: dict[int, int], subgraphs: Sequence[SubgraphRecord]
) -> Iterator[tuple[str, str]]:
    """Yield what an operation reads from or is read by in other subgraphs, by name, each with a code and the reason."""
    before = list(program.predecessors(index))
    outputs = program.body[index].outputs
    after = dict.fromkeys(reader for output in outputs for reader in program.consumers.get(output.name, ()))
    here = owner[index]
    for other in (*before, *after):
        there = owner[other]
        if there == here:
            continue
        yield program.body[other].source, _why(program, root, (index, other), (here, there), subgraphs, other in before)


def _why(
    program: FlatProgram,
    root: PartitionNode,
    pair: tuple[int, int],
    owners: tuple[int, int],
    subgraphs: Sequence[SubgraphRecord],
    is_before: bool,
) -> str:
    index, other = pair
    here, there = owners
    if program.scope_of(other) is not program.scope_of(index):
        return "BODY, it is outside of the body that this one stands in"
    if here < 0 or there < 0:
        return f"CONTROL_FLOW, a driver runs {'this one' if here < 0 else 'it'}"
    if subgraphs[there].site != subgraphs[here].site:
        return f"SITE, it runs on @{subgraphs[there].site}"
    first, last = (other, index) if is_before else (index, other)
    path = _detour(program, _parting(program, root, first, last), first, last)
    if path:
        through = " -> ".join(program.body[step].source for step in path)
        return f"CYCLE, one subgraph of both would wait for itself: {through}"
    if program.is_boundary(first, last):
        return "BOUNDARY, one is asked for between them"
    if program.frames[index] != program.frames[other]:
        return "CONSTRAINT, they are in calls of different functions, which stay whole"
    refusal = _refusal(program, subgraphs[here], subgraphs[there])
    return refusal or f"WAVE, it runs {'earlier' if is_before else 'later'}"


def _refusal(program: FlatProgram, one: SubgraphRecord, other: SubgraphRecord) -> str:
    """Return why the code generator of a site takes no function with all operations of two; '' if it would."""
    kind = program.topology[one.site].target.kind
    strategy = strategy_at(program.topology[one.site].target)
    if strategy is None:
        return ""
    if strategy.subgraphs == "single":
        return f"SHAPE, {kind} takes each operation alone"
    calls = tuple(sorted({*one.calls, *other.calls}))
    over = check_caps(program, strategy, calls)
    if over is not None:
        return f"{over.code}, together they would have {over.message}"
    answer = strategy.check_together([program.op(call) for call in calls])
    if answer is not None:
        return f"VETO, {kind} refuses a function of both: {answer}"
    return ""


def _parting(program: FlatProgram, root: PartitionNode, first: int, last: int) -> PartitionNode:
    """Return the deepest subgraph that two operations of one body are both in."""
    around = _around(program, first)
    subgraph = root
    while True:
        inner = [part for part in (*subgraph.parts, *subgraph.bodies) if not around.isdisjoint(part.calls)]
        both = [part for part in inner if part.bodies or (first in part.calls) == (last in part.calls)]
        if not both or both[0].is_leaf:
            return subgraph
        subgraph = both[0]


def _around(program: FlatProgram, index: int) -> frozenset[int]:
    """Return an operation and those whose nested bodies it stands in."""
    found = {index}
    owner = program.scope_of(index).owner
    while owner is not None:
        found.add(owner)
        owner = program.scope_of(owner).owner
    return frozenset(found)


def _detour(program: FlatProgram, subgraph: PartitionNode, first: int, last: int) -> list[int]:
    """Return a path between the parts of a subgraph that hold two operations which leaves them both, or nothing."""
    part = {call: place for place, inner in enumerate(subgraph.parts) for call in inner.calls}
    if first not in part or last not in part or part[first] == part[last]:
        return []
    ends = {part[first], part[last]}
    effects = {before: after for after, before in program.effect_before.items()}
    came: dict[int, int | None] = dict.fromkeys(subgraph.parts[part[first]].calls)
    queue = deque(sorted(came))
    while queue:
        step = queue.popleft()
        readers = [reader for out in program.body[step].outputs for reader in program.consumers.get(out.name, ())]
        for reader in (*readers, *([effects[step]] if step in effects else [])):
            if reader in came or reader not in part or (part[reader] in ends and part[step] in ends):
                continue
            came[reader] = step
            if part[reader] == part[last]:
                return _trace(came, reader)
            queue.append(reader)
    return []


def _trace(came: dict[int, int | None], step: int) -> list[int]:
    path = [step]
    while (before := came[path[-1]]) is not None:
        path.append(before)
    return path[::-1]
