"""Decision records: what a stage decided about operations, and why. Reports print them and derive nothing again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tvmtarget.human_units import bytes_text
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.partition_node import PartitionNode
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.level import Assignment, Level
from tvmtarget.partition.placement.memory_capacity import MemoryCapacity
from tvmtarget.partition.placement.pattern_groups import exceeded_limit
from tvmtarget.partition.placement.where_rules import Requirement
from tvmtarget.support.strategy import Reject
from tvmtarget.target.topology import Site

__all__ = [
    "Decision",
    "assignment_records",
    "decisions_about",
    "limit_records",
    "preference_records",
    "separating_decision",
    "unsupported_record",
]


@dataclass(frozen=True, slots=True)
class Decision:
    """One record.

    Attributes:
        stage: the stage that decided: `assign`, `form` or `check` (see `pipeline.py`).
        code: what kind of decision it is. MEMORY: the weights of the operation do not fit into the memory of the site,
            beside those that are there. CONTROL_SCALAR: a driver reads the result to run control flow, so it is
            computed where the driver's memory is. VETO: the code generator of the site rejects one subgraph of all
            these operations. SHAPE: the code generator of the site takes each operation alone. MAX_SIZE, MAX_INPUTS,
            MAX_OUTPUTS: one subgraph of all these operations exceeds a limit of the site. RELEASED_PIN: the site does
            not meet a preference. QUANTIZED: the operation follows another one of its quantized unit to the site.
            FLOAT_COPY: the first of two operations does not follow the second, so that floats pass.
        ops: the operations that it is about, by number; for a limit, all that one subgraph would have had.
        site: path of the site that it is about.
        reason: one line for people.
    """

    stage: str
    code: str
    ops: tuple[int, ...]
    site: str
    reason: str

    def __str__(self) -> str:
        return f"{self.code}, {self.reason}"

    def to_json(self) -> dict[str, str]:
        """Return the record as data, without the operations."""
        return {"stage": self.stage, "code": self.code, "site": self.site, "reason": self.reason}


def decisions_about(decisions: Sequence[Decision], *ops: int) -> Iterator[Decision]:
    """Yield the records that are about all of some operations.

    Args:
        decisions: the records of a plan.
        *ops: operations, by number.

    Yields:
        Records in the order in which they were made.
    """
    wanted = frozenset(ops)
    return (decision for decision in decisions if wanted.issubset(decision.ops))


def separating_decision(decisions: Sequence[Decision], first: int, second: int) -> Decision | None:
    """Return the record that best explains why two operations are in different subgraphs.

    Args:
        decisions: the records of a plan.
        first: an operation, by number.
        second: another operation.

    Returns:
        Of the records of limits and rejected subgraphs about both, the one about the fewest operations; None if there
        is none.
    """
    records = (
        one
        for one in decisions_about(decisions, first, second)
        if one.stage in ("form", "check") or one.code == "FLOAT_COPY"
    )
    return min(records, key=lambda one: len(one.ops), default=None)


def assignment_records(
    program: FlatProgram, feasibility: Feasibility, level: Level, assignment: Assignment
) -> Iterator[Decision]:
    """Record why atoms are not on sites that support them, and which serve their driver.

    Args:
        program: the flat program.
        feasibility: what fits where.
        level: the level that was assigned.
        assignment: the option of every atom.

    Yields:
        A MEMORY record for each atom and each allowed option whose memory has no capacity left for its weights, and a
        CONTROL_SCALAR record for each operation whose result the driver reads; a QUANTIZED or FLOAT_COPY record for
        each operation that follows another one.
    """
    if assignment.capacity is not None:
        yield from _memory_records(level, assignment.chosen, assignment.capacity)
    for number, atom in enumerate(level.atoms if level.control_scalars else ()):
        option = level.options[assignment.chosen[number]]
        if level.control_scalars.issuperset(atom) and option.domain == level.site.domain:
            reason = "a driver reads what it computes to run control flow, and this is the driver's memory"
            yield Decision("assign", "CONTROL_SCALAR", atom, option.path, reason)
    if level.followed:
        yield from _unit_records(program, feasibility, level, assignment.chosen)


def _unit_records(
    program: FlatProgram, feasibility: Feasibility, level: Level, chosen: Sequence[int]
) -> Iterator[Decision]:
    atom_of = {index: number for number, atom in enumerate(level.atoms) for index in atom}
    for index, other in sorted(level.followed.items()):
        option = level.options[chosen[atom_of[other]]]
        if atom_of[index] == atom_of[other]:
            center = other
            while center in level.followed and atom_of[center] == atom_of[index]:
                center = level.followed[center]
            reason = f"it stays with {program.body[center].source!r}, so that quantized values pass between sites, not "
            yield Decision("assign", "QUANTIZED", (index,), option.path, f"{reason}float copies")
        elif chosen[atom_of[index]] != chosen[atom_of[other]]:
            source = program.body[index].source
            why = (
                f"{source!r} cannot run on" if not feasibility.fits((index,), option) else f"{source!r} is not kept on"
            )
            reason = f"a float copy of a quantized value passes, since {why} @{option.path}"
            yield Decision("assign", "FLOAT_COPY", (index, other), option.path, reason)


def _memory_records(level: Level, chosen: Sequence[int], capacity: MemoryCapacity) -> Iterator[Decision]:
    memory_of = capacity.memories.tolist()
    constants: dict[int, list[int]] = {}
    present: set[tuple[int, int]] = set()
    for atom, constant in zip(capacity.atoms.tolist(), capacity.owned.tolist(), strict=True):
        constants.setdefault(atom, []).append(constant)
        present.add((memory_of[chosen[atom]], constant))
    used = capacity.loads(np.array(chosen, dtype=np.int64))
    for atom, owned in constants.items():
        for number, option in enumerate(level.options):
            memory = memory_of[number]
            limit = capacity.limits[memory]
            if limit is None or memory == memory_of[chosen[atom]] or not level.allowed[atom, number]:
                continue
            more = sum(int(capacity.sizes[constant]) for constant in owned if (memory, constant) not in present)
            if used[memory] + more > limit:
                reason = (
                    f"{option.domain!r} holds {bytes_text(limit)} of weights, has {bytes_text(used[memory])}, and this "
                    f"needs {bytes_text(more)} more"
                )
                yield Decision("assign", "MEMORY", level.atoms[atom], option.path, reason)


def limit_records(
    program: FlatProgram, feasibility: Feasibility, level: Level, chosen: Sequence[int], groups: Sequence[Sequence[int]]
) -> Iterator[Decision]:
    """Record which limits of code generators divide what could be one subgraph.

    Subgraphs of one site that follow each other without another in between could be one: nothing that one of them
    reads comes from elsewhere after the first has begun.

    Args:
        program: the flat program.
        feasibility: what fits where.
        level: the level whose subgraphs were formed.
        chosen: the option of every atom.
        groups: the subgraphs as lists of atoms, in execution order.

    Yields:
        One record for each run of such subgraphs that exceeds a limit.
    """
    for number, run in groupby(groups, key=lambda group: chosen[group[0]]):
        strategy = feasibility.strategy(level.options[number])
        if level.limits[number].is_unlimited or strategy is None:
            continue
        joined = [atom for group in run for atom in group]
        if len(joined) == 1:
            continue
        site, calls = level.options[number], level.calls(joined)
        if strategy.subgraphs == "single":
            yield Decision("form", "SHAPE", calls, site.path, f"{site.target.kind} takes each operation alone")
            continue
        over = exceeded_limit(program, strategy, calls)
        if over is not None:
            yield Decision("form", over.code, calls, site.path, f"one subgraph would have {over.message}")


def unsupported_record(calls: tuple[int, ...], site: Site, reason: Reject) -> Decision:
    """Record that a code generator rejects a subgraph as a whole.

    Args:
        calls: its operations.
        site: where it would have run.
        reason: what the code generator answered.

    Returns:
        The VETO record.
    """
    kind = site.target.kind
    if len(calls) == 1:
        text = f"{kind} on @{site.path or '.'} rejects a function of it alone: {reason}"
    else:
        text = f"{kind} rejects one function of these {len(calls)} operations: {reason}"
    return Decision("check", "VETO", calls, site.path, text)


def preference_records(program: FlatProgram, root: PartitionNode) -> Iterator[Decision]:
    """Record the preferences of operations that their leaf does not meet.

    Args:
        program: the flat program.
        root: the tree of subgraphs.

    Yields:
        A RELEASED_PIN record for each operation and preference; the reason is the preference and its origin.
    """
    # Programs share few lists of requirements, most of which state no preference.
    distinct = {id(row): row for row in program.requirements}.values()
    if all(item.constraint.is_required for row in distinct for item in row):
        return
    # One rule often covers most of a program, so each list of requirements is checked once for each leaf.
    unmet: dict[tuple[tuple[Requirement, ...], str], list[str]] = {}
    for leaf in root.walk():
        if not leaf.is_leaf:
            continue
        for index in program.with_nested(leaf.calls):
            key = program.requirements[index], leaf.site.path
            if key not in unmet:
                unmet[key] = [
                    str(item)
                    for item in key[0]
                    if not item.constraint.is_required
                    and not item.constraint.replace(weight=None).check(
                        leaf.site.target, leaf.site.path, program.topology.root
                    )
                ]
            for reason in unmet[key]:
                yield Decision("assign", "RELEASED_PIN", (index,), leaf.site.path, reason)
