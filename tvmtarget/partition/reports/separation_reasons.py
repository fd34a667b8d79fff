"""Print why neighbours of an operation are in other subgraphs: the decision record, or the path of a cycle."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tvmtarget.partition.decisions import separating_decision
from tvmtarget.partition.decomposition import Decomposition
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.partition_node import PartitionNode

__all__ = ["owners_of", "separation_reasons"]


def owners_of(program: FlatProgram, root: PartitionNode) -> dict[int, int]:
    """Map operations to their subgraphs.

    Args:
        program: the flat program.
        root: the tree of subgraphs.

    Returns:
        The number of the leaf subgraph of every operation, in the order of calls; a negative number for each operation
        that a driver runs.
    """
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


def separation_reasons(plan: Decomposition, index: int, owner: dict[int, int]) -> Iterator[tuple[str, str]]:
    """Yield why the neighbours of an operation are in other subgraphs.

    Args:
        plan: the plan.
        index: the operation, by number.
        owner: what `owners_of` returns for the plan.

    Yields:
        The name of each operation in another subgraph that it reads from or that reads from it, and a code with the
        reason (docs/plans.md).
    """
    program = plan.program
    before = list(program.predecessors(index))
    after = dict.fromkeys(
        reader for output in program.body[index].outputs for reader in program.consumers.get(output.name, ())
    )
    for other in (*before, *after):
        if owner[other] != owner[index]:
            yield program.body[other].source, _reason(plan, index, other, owner, is_before=other in before)


def _reason(plan: Decomposition, index: int, other: int, owner: dict[int, int], *, is_before: bool) -> str:
    program, here, there = plan.program, owner[index], owner[other]
    if program.scope_of(other) is not program.scope_of(index):
        return "BODY, it is outside of the body that this one stands in"
    if here < 0 or there < 0:
        return f"CONTROL_FLOW, a driver runs {'this one' if here < 0 else 'it'}"
    decision = separating_decision(plan.decisions, index, other)
    if plan.subgraphs[there].site != plan.subgraphs[here].site:
        floats = f"; {decision.reason}" if decision is not None and decision.code == "FLOAT_COPY" else ""
        return f"SITE, it runs on @{plan.subgraphs[there].site}{floats}"
    if decision is not None:
        return str(decision)
    first, last = (other, index) if is_before else (index, other)
    path = _detour(program, _parting(program, plan.root, first, last), first, last)
    if path:
        through = " -> ".join(program.body[step].source for step in path)
        return f"CYCLE, one subgraph of both would wait for itself: {through}"
    if program.is_boundary(first, last):
        return "BOUNDARY, it is required between them"
    if program.frames[index] != program.frames[other]:
        return "CONSTRAINT, they are in calls of different functions, which stay whole"
    return f"WAVE, it runs {'earlier' if is_before else 'later'}"


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
    # Breadth-first search from the whole part, so that the path that is printed is a shortest one.
    queue = deque(sorted(came))
    while queue:
        step = queue.popleft()
        readers = [reader for out in program.body[step].outputs for reader in program.consumers.get(out.name, ())]
        for reader in (*readers, *([effects[step]] if step in effects else [])):
            # A step inside the two parts, or from one to the other, is no detour: only a path through a third part
            # keeps them from being joined.
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
