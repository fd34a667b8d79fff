"""Which of the constraints on operations that fit nowhere contradict each other: a minimal_subset set of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from tvmtarget.ir.inline import Frame
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.placement.where_rules import Requirement

__all__ = ["MAX_TESTS", "conflict_text", "find_minimal_conflict", "minimal_subset"]

MAX_TESTS = 20


def conflict_text(program: FlatProgram, calls: Sequence[int], is_feasible: Callable[[FlatProgram], bool]) -> str:
    """Return the tail of an error message: the constraints of which one must go; empty if none is to conflict_text."""
    guilty = find_minimal_conflict(program, calls, is_feasible)
    if not guilty:
        return ""
    return f"; {'drop' if len(guilty) == 1 else 'drop or change one of'}: {', '.join(map(str, guilty))}"


def find_minimal_conflict(
    program: FlatProgram, calls: Sequence[int], is_feasible: Callable[[FlatProgram], bool]
) -> tuple[Requirement, ...]:
    """Return constraints on operations that cannot be met together, but without any one of them can.

    `is_feasible` says so of the program with only some of what is asked of `calls`. Nothing is returned if the
    operations are infeasible without any constraint.
    """
    required = (item for index in calls for item in program.requirements[index] if item.constraint.is_required)
    items = tuple(dict.fromkeys(required))
    if not is_feasible(_asking(program, calls, ())):
        return ()
    return minimal_subset(items, lambda kept: not is_feasible(_asking(program, calls, kept)))


_Item = TypeVar("_Item")


def minimal_subset(
    items: Sequence[_Item], is_conflict: Callable[[Sequence[_Item]], bool], tests: int = MAX_TESTS
) -> tuple[_Item, ...]:
    """Drop what is not needed for a conflict, in blocks that get smaller, then one by one, in at most so many tests.

    Up to `tests` items the result is minimal; of more it may hold some that are innocent, never too few.
    """
    kept, size = list(items), 1 if len(items) <= tests else len(items) // 2
    while size:
        at = 0
        while at < len(kept) and tests:
            rest = kept[:at] + kept[at + size :]
            tests -= 1
            if is_conflict(rest):
                kept = rest
            else:
                at += size
        size = size // 2 if tests else 0
    return tuple(kept)


def _asking(program: FlatProgram, calls: Sequence[int], kept: Collection[Requirement]) -> FlatProgram:
    """Return the program with only some of what is required of operations, and of the calls around them."""
    requirements, frames = list(program.requirements), list(program.frames)
    for index in calls:
        requirements[index] = tuple(
            item for item in requirements[index] if item in kept or not item.constraint.is_required
        )
        frames[index] = tuple(_around(frame, kept) for frame in frames[index])
    return replace(program, requirements=tuple(requirements), frames=tuple(frames))


def _around(frame: Frame, kept: Collection[Requirement]) -> Frame:
    asked = (
        (wanted, origin)
        for wanted, origin in frame.provenance
        if not wanted.is_required or Requirement(wanted, origin) in kept
    )
    return replace(frame, provenance=tuple(asked))
