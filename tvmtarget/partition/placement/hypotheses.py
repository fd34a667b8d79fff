"""What-if questions: requirements added to those of a plan, and the operator support that they assume."""

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
    """Read the sites of a what-if question.

    Args:
        moves: sites by operation name, glob or `op:KIND`.
        topology: the sites of the target.

    Returns:
        The names and constraints.

    Raises:
        TargetError: for a name without a site.
        UnknownNameError: for a site that is none of the target.
    """
    lacking = [name for name, site in moves.items() if site is None]
    raise_all(TargetError, [f"what-if {name!r} has no site; give one, such as '@cpu'" for name in lacking])
    return tuple((name, site_constraint(site, topology)) for name, site in moves.items() if site is not None)


def with_moves(program: FlatProgram, moves: Moves) -> FlatProgram:
    """Add the requirements of a question to a program.

    Args:
        program: the program.
        moves: the question; it also holds for operations in nested bodies.

    Returns:
        The new program.

    Raises:
        UnknownNameError: for names of no operation, and constraints that name nothing in the tree.
    """
    resolve, requirements = ConstraintResolver(program.topology), list(program.requirements)
    for name, constraint in moves:
        item = resolve(constraint, f"what-if {name!r}")
        for index in program.with_nested(program.ops_named(name)):
            requirements[index] = (*requirements[index], item)
    resolve.check()
    return replace(program, requirements=tuple(requirements))


def assume_support(feasibility: Feasibility, moves: Moves) -> Feasibility:
    """Assume support for the operations that a question moves to sites without it.

    Operator support is assumed only where no required site has it, and never that a constraint is met.

    Args:
        feasibility: operator support of the program.
        moves: the question.

    Returns:
        Operator support with these assumptions.
    """
    program = feasibility.program
    sites: dict[int, list[Constraint]] = {}
    for name, constraint in moves:
        for index in program.with_nested(program.ops_named(name)):
            sites.setdefault(index, []).append(constraint)
    # Operations without nested bodies first: whether a body fits depends on those in it.
    plain = [index for index in sites if index not in program.bodies and not feasibility.supported[index].any()]
    found = _with(feasibility, sites, plain)
    root = program.topology[""]
    whole = [index for index in sites if index in program.bodies and not found.fits((index,), root)]
    return _with(found, sites, whole)


def _with(feasibility: Feasibility, sites: Mapping[int, Sequence[Constraint]], calls: Sequence[int]) -> Feasibility:
    """Assume that the leaves which meet the constraints on some operations support them."""
    root = feasibility.program.topology.root
    assumed = {
        (index, leaf.path)
        for index in calls
        for leaf in feasibility.leaves
        if all(constraint.check(leaf.target, leaf.path, root) for constraint in sites[index])
    }
    return feasibility.replace(assumed=feasibility.assumed | assumed) if assumed else feasibility


def unsupported_assumptions(feasibility: Feasibility, sites: dict[str, str]) -> Iterator[str]:
    """Report operations of a plan on sites that do not support them.

    Args:
        feasibility: operator support with assumptions.
        sites: leaves by operation name.

    Yields:
        One line per operation, with the unsupported reason.
    """
    plain = feasibility.replace(assumed=frozenset())
    for index, path in sorted(feasibility.assumed):
        call = feasibility.program.body[index]
        reason = plain.unsupported_reason(index, feasibility.program.topology[path])
        if sites.get(call.source) == path and reason is not None:
            yield f"@{path or '.'} does not support {call.source!r} ({reason})"
