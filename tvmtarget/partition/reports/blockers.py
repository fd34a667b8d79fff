"""Which operators stand in the way: what a plan would gain if one more of them ran on a site that refuses it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvmtarget.partition.reports.difference import Totals, totals

if TYPE_CHECKING:
    from tvmtarget.partition.plan import Plan

__all__ = ["Blocker", "blockers"]

# Operators and sites that are tried; each needs a decomposition. Those with the most operations come first.
MAX_TRIED = 16


@dataclass(frozen=True, slots=True)
class Blocker:
    """An operator that a site refuses, for how many operations and why, and the plan in numbers without and with it."""

    kind: str
    site: str
    ops: int
    reason: str
    before: Totals
    after: Totals

    def __str__(self) -> str:
        gains = ", ".join(self._gains())
        return f"{self.kind} on @{self.site or '.'} ({self.ops} ops, {self.reason}): {gains}"

    def _gains(self) -> Iterator[str]:
        before, after = self.before, self.after
        if before.subgraphs != after.subgraphs:
            yield _fewer(before.subgraphs - after.subgraphs, "subgraph")
        if before.time is not None and after.time is not None and before.time:
            yield f"{100 * (before.time - after.time) / before.time:.0f} % less time"
        elif before.nbytes != after.nbytes:
            yield f"{_fewer(before.nbytes - after.nbytes, 'byte')} copied"

    def to_json(self) -> dict[str, object]:
        """Return the blocker as data."""
        flat: dict[str, object] = {"kind": self.kind, "site": self.site, "ops": self.ops, "reason": self.reason}
        return flat | {"before": self.before.to_json(), "after": self.after.to_json()}


def _fewer(number: int, what: str) -> str:
    return f"{abs(number)} {what}{'' if abs(number) == 1 else 's'} {'fewer' if number > 0 else 'more'}"


def blockers(plan: Plan, limit: int) -> tuple[Blocker, ...]:
    """Return operators whose support by a site would gain most time, else save most subgraphs; the best one first."""
    refused: Counter[tuple[str, str]] = Counter()
    reasons: dict[tuple[str, str], str] = {}
    for kind, site, reason in _refusals(plan):
        refused[kind, site] += 1
        reasons.setdefault((kind, site), reason)
    found = []
    before = totals(plan)
    for (kind, site), count in refused.most_common(MAX_TRIED):
        after = totals(plan.with_support(f"op:{kind}", site))
        if _rank(after) < _rank(before):
            found.append(Blocker(kind, site, count, reasons[kind, site], before, after))
    return tuple(sorted(found, key=lambda blocker: _rank(blocker.after))[:limit])


def _rank(numbers: Totals) -> tuple[int, int, int]:
    return (0 if numbers.time is None else numbers.time, numbers.subgraphs, numbers.nbytes)


def _refusals(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield operator, leaf and code wherever a strategy, not a constraint, refuses an operation."""
    for index, call in enumerate(plan.program.body):
        for leaf in plan.feasibility.leaves:
            refusal = plan.feasibility.unsupported_reason(index, leaf)
            if refusal is not None and refusal.code != "CONSTRAINT":
                yield call.kind, leaf.path, refusal.code
