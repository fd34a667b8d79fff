"""Compare two plans: operations that moved, and changes of subgraphs, copies and time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tvmtarget.human_units import bytes_text, counted
from tvmtarget.partition.costs.costs import Unit
from tvmtarget.partition.costs.estimate import cost_text
from tvmtarget.partition.decomposition import Decomposition
from tvmtarget.partition.placement.hypotheses import unsupported_assumptions

__all__ = ["PlanDifference", "Totals", "difference", "totals"]

# Operations that are listed; the totals, which follow them, should stay in view.
MAX_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Totals:
    """A plan in numbers: subgraphs, copies, bytes copied (of those whose size is known), predicted time or energy."""

    subgraphs: int
    copies: int
    nbytes: int
    time: int | None
    unit: Unit = "us"

    def to_json(self) -> dict[str, object]:
        """Return the numbers as data: microseconds under `us`, or microjoules under `uJ`."""
        time = None if self.time is None else self.time / 10**6
        return {"subgraphs": self.subgraphs, "copies": self.copies, "bytes": self.nbytes, self.unit: time}

    @property
    def predicted(self) -> str:
        """The predicted time with its unit, or `unknown`."""
        return "unknown" if self.time is None else cost_text(self.time, self.unit)


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """Operations by name: those that moved, with both sites, and those that only one plan has.

    `hypothetical` names operations that the second plan supposes to be supported. It is true where anything differs.
    """

    moved: Mapping[str, tuple[str, str]]
    gone: tuple[str, ...]
    new: tuple[str, ...]
    before: Totals
    after: Totals
    hypothetical: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.moved or self.gone or self.new or self.before != self.after)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the difference line by line; one line if there is none."""
        if not self:
            yield "no difference"
        lines = [f"{op}: @{old or '.'} -> @{new or '.'}" for op, (old, new) in self.moved.items()]
        lines += [f"{op}: only before" for op in self.gone] + [f"{op}: only after" for op in self.new]
        yield from lines[:MAX_SHOWN]
        if len(lines) > MAX_SHOWN:
            yield f"... and {counted(len(lines) - MAX_SHOWN, 'more op')}"
        for name, old, new in (
            ("subgraphs", str(self.before.subgraphs), str(self.after.subgraphs)),
            ("copies", str(self.before.copies), str(self.after.copies)),
            ("copied", bytes_text(self.before.nbytes), bytes_text(self.after.nbytes)),
        ):
            if old != new:
                yield f"{name}: {old} -> {new}"
        if self.before.time != self.after.time:
            yield f"predicted: {self.before.predicted} -> {self.after.predicted}"
        for supposed in self.hypothetical:
            yield f"hypothetical: {supposed}"

    def to_json(self) -> dict[str, object]:
        """Return the difference as data."""
        flat: dict[str, object] = {
            "moved": {op: {"before": old, "after": new} for op, (old, new) in self.moved.items()},
            "gone": list(self.gone),
            "new": list(self.new),
            "before": self.before.to_json(),
            "after": self.after.to_json(),
        }
        return flat | ({"hypothetical": list(self.hypothetical)} if self.hypothetical else {})


def difference(before: Decomposition, after: Decomposition) -> PlanDifference:
    """Compare two plans, operation by operation.

    Args:
        before: the one plan.
        after: the other plan.

    Returns:
        The difference from `before` to `after`.
    """
    old, new = before.sites(), after.sites()
    return PlanDifference(
        moved={op: (site, new[op]) for op, site in old.items() if op in new and new[op] != site},
        gone=tuple(op for op in old if op not in new),
        new=tuple(op for op in new if op not in old),
        before=totals(before),
        after=totals(after),
        hypothetical=tuple(unsupported_assumptions(after.feasibility, after.sites())),
    )


def totals(plan: Decomposition) -> Totals:
    """Return a plan in numbers.

    Args:
        plan: the plan.

    Returns:
        Counts, bytes, and the predicted time in picoseconds, which is None without costs.
    """
    nbytes = sum(copy.nbytes or 0 for copy in plan.copies)
    if plan.prediction is None:
        return Totals(len(plan.subgraphs), len(plan.copies), nbytes, None)
    return Totals(len(plan.subgraphs), len(plan.copies), nbytes, plan.prediction.total, plan.prediction.unit)
