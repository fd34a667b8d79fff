"""Find the operators that cost most where a site does not support them, by planning with the support supposed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tvmtarget.human_units import bytes_text, counted
from tvmtarget.partition.decomposition import Decomposition
from tvmtarget.partition.reports.difference import Totals, totals
from tvmtarget.partition.reports.what_if import with_support

__all__ = ["Blocker", "blockers"]

# Pairs of operator and site that are tried, those with the most operations first; each needs a decomposition.
MAX_TRIED = 16


@dataclass(frozen=True, slots=True)
class Blocker:
    """An operator that a site does not support: how many operations, why, and the plan without and with support."""

    kind: str
    site: str
    ops: int
    reason: str
    before: Totals
    after: Totals

    def __str__(self) -> str:
        gains = ", ".join(self._gains())
        return f"{self.kind} on @{self.site or '.'} ({counted(self.ops, 'op')}, {self.reason}): {gains}"

    def _gains(self) -> Iterator[str]:
        before, after = self.before, self.after
        if before.subgraphs != after.subgraphs:
            fewer = before.subgraphs - after.subgraphs
            yield f"{counted(abs(fewer), 'subgraph')} {'fewer' if fewer > 0 else 'more'}"
        if before.time is not None and after.time is not None and before.time:
            yield f"{100 * (before.time - after.time) / before.time:.0f} % less time"
        elif before.nbytes != after.nbytes:
            less = before.nbytes - after.nbytes
            yield f"{bytes_text(abs(less))} {'fewer' if less > 0 else 'more'} copied"

    def to_json(self) -> dict[str, object]:
        """Return the blocker as data."""
        flat: dict[str, object] = {"kind": self.kind, "site": self.site, "ops": self.ops, "reason": self.reason}
        return flat | {"before": self.before.to_json(), "after": self.after.to_json()}


def blockers(plan: Decomposition, limit: int) -> tuple[Blocker, ...]:
    """Return the operators whose support by a site would gain most.

    Args:
        plan: the plan.
        limit: how many to return at most.

    Returns:
        The operators, those that save most time first; without costs, those that save most subgraphs.
    """
    unsupported: Counter[tuple[str, str]] = Counter()
    reasons: dict[tuple[str, str], str] = {}
    for kind, site, reason in _unsupported(plan):
        unsupported[kind, site] += 1
        reasons.setdefault((kind, site), reason)
    found = []
    before = totals(plan)
    for (kind, site), count in unsupported.most_common(MAX_TRIED):
        after = totals(with_support(plan, f"op:{kind}", site))
        if _rank(after) < _rank(before):
            found.append(Blocker(kind, site, count, reasons[kind, site], before, after))
    return tuple(sorted(found, key=lambda blocker: _rank(blocker.after))[:limit])


def _rank(numbers: Totals) -> tuple[int, int, int]:
    # Compared in this order: without costs the time is 0 in both plans, and the subgraphs decide.
    return (0 if numbers.time is None else numbers.time, numbers.subgraphs, numbers.nbytes)


def _unsupported(plan: Decomposition) -> Iterator[tuple[str, str, str]]:
    """Yield operator, leaf and code wherever a code generator, not a constraint, excludes an operation."""
    for index, call in enumerate(plan.program.body):
        for leaf in plan.feasibility.leaves:
            reason = plan.feasibility.unsupported_reason(index, leaf)
            if reason is not None and reason.code != "CONSTRAINT":
                yield call.kind, leaf.path, reason.code
