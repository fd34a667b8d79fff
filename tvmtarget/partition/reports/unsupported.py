"""List the operations that run elsewhere because a preferred leaf does not support them, with the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmtarget.human_units import counted
from tvmtarget.partition.decomposition import Decomposition

__all__ = ["UnsupportedOps", "unsupported_lines", "unsupported_ops"]

_MAX_LINES = 3
_MAX_KINDS = 5


@dataclass(frozen=True, slots=True)
class UnsupportedOps:
    """Operations that one leaf does not support for one reason.

    Attributes:
        site: the leaf.
        code: the class of the reason.
        reason: the code, what is wrong and what would help.
        ops: the names of the operations.
        kinds: their operators, in the same order.
    """

    site: str
    code: str
    reason: str
    ops: tuple[str, ...]
    kinds: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the site, the code, the reason and the names of the operations."""
        return {"site": self.site, "code": self.code, "reason": self.reason, "ops": list(self.ops)}


def unsupported_ops(plan: Decomposition) -> tuple[UnsupportedOps, ...]:
    """List the operations that a leaf does not support and that run on a less preferred one.

    Args:
        plan: the plan.

    Returns:
        Groups of operations with equal reasons, the largest group first.
    """
    feasibility, program = plan.feasibility, plan.program
    place = {leaf.path: number for number, leaf in enumerate(feasibility.leaves)}
    ran = {index: place[subgraph.site] for subgraph in plan.subgraphs for index in program.with_nested(subgraph.calls)}
    found: dict[tuple[str, str, str], list[int]] = {}
    for number, leaf in enumerate(feasibility.leaves):
        for index in np.flatnonzero(~feasibility.supported[:, number]).tolist():
            # Only leaves preferred to the one that runs the operation count; support by the others was not needed.
            if ran.get(index, 0) <= number:
                continue
            reason = feasibility.unsupported_reason(index, leaf)
            # The user excluded the leaf by a constraint, which says nothing about its code generator.
            if reason is not None and reason.code != "CONSTRAINT":
                found.setdefault((leaf.path, reason.code, str(reason)), []).append(index)
    groups = [
        UnsupportedOps(
            site,
            code,
            text,
            tuple(program.body[one].source for one in ops),
            tuple(program.body[one].kind for one in ops),
        )
        for (site, code, text), ops in found.items()
    ]
    return tuple(sorted(groups, key=lambda group: -len(group.ops)))


def unsupported_lines(plan: Decomposition) -> Iterator[str]:
    """Print unsupported operations, with a line for each leaf and class of reasons.

    Args:
        plan: the plan.

    Yields:
        The lines, that of most operations first.
    """
    classes: dict[tuple[str, str], list[UnsupportedOps]] = {}
    for group in unsupported_ops(plan):
        classes.setdefault((group.site, group.code), []).append(group)
    numbers = {key: sum(len(group.ops) for group in groups) for key, groups in classes.items()}
    listed = sorted(classes, key=lambda key: -numbers[key])
    for key in listed[:_MAX_LINES]:
        groups = classes[key]
        kinds = Counter(kind for group in groups for kind in group.kinds).most_common()
        names = [f"{count} {kind}" for kind, count in kinds[:_MAX_KINDS]]
        names += [f"{sum(count for _, count in kinds[_MAX_KINDS:])} others"] * (len(kinds) > _MAX_KINDS)
        example = f" (of {groups[0].ops[0]!r})" if len(groups) > 1 else ""
        yield f"  @{key[0] or '.'} does not support {', '.join(names)}: {groups[0].reason}{example}"
    if len(listed) > _MAX_LINES:
        rest = sum(numbers[key] for key in listed[_MAX_LINES:])
        yield f"  ... and {counted(rest, 'more op')} that preferred sites do not support"
