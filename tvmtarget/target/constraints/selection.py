"""Choosing among values by the most specific constraint that a target satisfies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tvmtarget.errors import TargetError
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.constraints.satisfaction import satisfies
from tvmtarget.target.tree_paths import NestedNode

__all__ = ["select"]

_T = TypeVar("_T")


def select(choices: Mapping[Constraint | str, _T], target: NestedNode, *, default: _T | None = None) -> _T:
    """Return the value of the constraint that implies all others which the target satisfies.

    `TargetError` if none is satisfied and there is no default, or if two are of which neither implies the other.

    >>> from tvmtarget import Target
    >>> select({"gpu": 1, "cuda(arch>=sm_80)": 2, "cuda(arch>=sm_90)": 3}, Target("cuda", {"arch": "sm_86"}))
    2
    """
    read = [(Constraint.parse(key), value) for key, value in choices.items()]
    reasons = [satisfies(target, constraint) for constraint, _ in read]
    met = [pair for pair, reason in zip(read, reasons, strict=True) if reason]
    if not met:
        if default is not None:
            return default
        missed = "; ".join(line.strip() for reason in reasons for line in reason.lines())
        raise TargetError(f"no choice is satisfied{': ' + missed if missed else ', for there is none'}")
    best = [pair for pair in met if all(pair[0].implies(other) for other, _ in met)]
    if len(best) == 1:
        return best[0][1]
    raise TargetError(_tie([constraint for constraint, _ in best or met]))


def _tie(constraints: list[Constraint]) -> str:
    """Return the message that two constraints are satisfied, and neither says more than the other."""
    for at, one in enumerate(constraints):
        for other in constraints[:at]:
            if one.implies(other) and other.implies(one):
                return f"{str(other)!r} and {str(one)!r} say the same; leave one of them out"
            if not one.implies(other) and not other.implies(one):
                return f"{str(other)!r} and {str(one)!r} are both satisfied, and neither implies the other"
    listed = ", ".join(repr(str(one)) for one in constraints)
    return f"of {listed}, which are all satisfied, none implies all others"
