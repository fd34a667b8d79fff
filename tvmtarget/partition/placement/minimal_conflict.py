"""Minimal sets of contradicting constraints, for error messages about operations that fit nowhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from tvmtarget.ir.inline import Frame
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.placement.where_rules import Requirement

__all__ = ["conflict_text", "find_minimal_conflict", "minimal_subset"]

# Every test decides feasibility of some operations anew.
MAX_TESTS = 20


def conflict_text(program: FlatProgram, calls: Sequence[int], is_feasible: Callable[[FlatProgram], bool]) -> str:
    """Return advice on which constraints to drop.

    Args:
        program: the program.
        calls: operations that are infeasible together.
        is_feasible: whether they are feasible in a program with fewer requirements.

    Returns:
        The tail of an error message; empty if no constraint is the cause.
    """
    conflict = find_minimal_conflict(program, calls, is_feasible)
    if not conflict:
        return ""
    return f"; {'drop' if len(conflict) == 1 else 'drop or change one of'}: {', '.join(map(str, conflict))}"


def find_minimal_conflict(
    program: FlatProgram, calls: Sequence[int], is_feasible: Callable[[FlatProgram], bool]
) -> tuple[Requirement, ...]:
    """Return constraints that cannot be met together, although they can without any one of them.

    Args:
        program: the program.
        calls: operations that are infeasible together.
        is_feasible: whether they are feasible in a program with fewer requirements.

    Returns:
        The constraints; none if the operations are infeasible without any.
    """
    required = (item for index in calls for item in program.requirements[index] if item.constraint.is_required)
    items = tuple(dict.fromkeys(required))
    if not is_feasible(_requiring_only(program, calls, ())):
        return ()
    return minimal_subset(items, lambda kept: not is_feasible(_requiring_only(program, calls, kept)))


_Item = TypeVar("_Item")


def minimal_subset(
    items: Sequence[_Item], is_conflict: Callable[[Sequence[_Item]], bool], tests: int = MAX_TESTS
) -> tuple[_Item, ...]:
    """Return a small subset of items that is still a conflict.

    Drops blocks of halving size, then single items, as in delta debugging (Zeller and Hildebrandt, 2002).

    Args:
        items: items that are a conflict together.
        is_conflict: whether some of the items are.
        tests: number of subsets to try.

    Returns:
        A conflict; minimal if there are at most `tests` items.
    """
    kept, size = list(items), 1 if len(items) <= tests else len(items) // 2
    while size:
        start = 0
        while start < len(kept) and tests:
            rest = kept[:start] + kept[start + size :]
            tests -= 1
            if is_conflict(rest):
                kept = rest
            else:
                start += size
        size = size // 2 if tests else 0
    return tuple(kept)


def _requiring_only(program: FlatProgram, calls: Sequence[int], kept: Collection[Requirement]) -> FlatProgram:
    """Return the program with only some of the requirements on operations and on the calls around them."""
    requirements, frames = list(program.requirements), list(program.frames)
    for index in calls:
        requirements[index] = tuple(
            item for item in requirements[index] if item in kept or not item.constraint.is_required
        )
        frames[index] = tuple(_restricted(frame, kept) for frame in frames[index])
    return replace(program, requirements=tuple(requirements), frames=tuple(frames))


def _restricted(frame: Frame, kept: Collection[Requirement]) -> Frame:
    provenance = (
        (constraint, origin)
        for constraint, origin in frame.provenance
        if not constraint.is_required or Requirement(constraint, origin) in kept
    )
    return replace(frame, provenance=tuple(provenance))
