"""What-if moves: requirements that a question adds to those of a plan, and the operator support that they suppose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from tvmtarget.errors import TargetError, raise_all
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.placement.constraint_paths import site_constraint
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.where_rules import ConstraintResolver
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.target_node import TargetNode
from tvmtarget.target.topology import Topology

__all__ = ["Moves", "assume_support", "read_moves", "unsupported_assumptions", "with_moves"]

# Operations by name, glob or `op:KIND`, as in `where`, and what a question requires of them.
Moves: TypeAlias = tuple[tuple[str, Constraint], ...]


def read_moves(moves: Mapping[str, Constraint | TargetNode | str | None], topology: Topology) -> Moves:
    """Read the sites of a question; `TargetError` where none is given, `UnknownNameError` for one that is none."""
    lacking = [name for name, site in moves.items() if site is None]
    raise_all(TargetError, [f"what-if {name!r} says no site; give one, such as '@cpu'" for name in lacking])
    return tuple((name, site_constraint(site, topology)) for name, site in moves.items() if site is not None)


def with_moves(program: FlatProgram, moves: Moves) -> FlatProgram:
    """Return the program in which operations, and all in their nested bodies, meet the requirements of a question too.

    `UnknownNameError` for names of no operation, and for constraints that name nothing in the tree.
    """
    read, requirements = ConstraintResolver(program.topology), list(program.requirements)
    for name, constraint in moves:
        item = read(constraint, f"what-if {name!r}")
        for index in program.with_nested(program.ops_named(name)):
            requirements[index] = (*requirements[index], item)
    read.check()
    return replace(program, requirements=tuple(requirements))


def assume_support(feasibility: Feasibility, moves: Moves) -> Feasibility:
    """Return what fits where if sites took what moves require of them, where no such site takes it by itself.

    Only what code generators support is supposed, never that a constraint is met.
    """
    program = feasibility.program
    sites: dict[int, list[Constraint]] = {}
    for name, constraint in moves:
        for index in program.with_nested(program.ops_named(name)):
            sites.setdefault(index, []).append(constraint)
    plain = [index for index in sites if index not in program.bodies and not feasibility.supported[index].any()]
    found = _with(feasibility, sites, plain)
    root = program.topology[""]
    whole = [index for index in sites if index in program.bodies and not found.fits((index,), root)]
    return _with(found, sites, whole)


def _with(feasibility: Feasibility, sites: Mapping[int, Sequence[Constraint]], calls: Sequence[int]) -> Feasibility:
    """Return the same in which the leaves that meet the constraints on some operations take them."""
    root = feasibility.program.topology.root
    assumed = {
        (index, leaf.path)
        for index in calls
        for leaf in feasibility.leaves
        if all(constraint.check(leaf.target, leaf.path, root) for constraint in sites[index])
    }
    return feasibility.replace(assumed=feasibility.assumed | assumed) if assumed else feasibility


def unsupported_assumptions(feasibility: Feasibility, sites: dict[str, str]) -> Iterator[str]:
    """Yield for each operation that is on a site which does not take it, which that is and why it does not."""
    plain = feasibility.replace(assumed=frozenset())
    for index, path in sorted(feasibility.assumed):
        call = feasibility.program.body[index]
        refusal = plain.unsupported_reason(index, feasibility.program.topology[path])
        if sites.get(call.source) == path and refusal is not None:
            yield f"@{path or '.'} does not take {call.source!r} ({refusal})"
