"""What a plan is compared with: everything on one leaf, and on the first site that takes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tvmtarget.partition.reports.difference import Totals, time_text

__all__ = ["Alternative"]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A way to place a program, the share of its operations that is there, and the plan of it in numbers.

    What may not go there goes where it is best; so does what is asked to be elsewhere.
    """

    name: str
    share: float
    totals: Totals

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the alternative as one line."""
        totals = self.totals
        time = "" if totals.time is None else f", {time_text(totals.time)}"
        placed = f"{100 * self.share:.0f} % of ops there"
        yield f"{self.name} ({placed}): {totals.subgraphs} subgraphs, {totals.copies} copies{time}"

    def to_json(self) -> Mapping[str, object]:
        """Return the alternative as data."""
        return {"name": self.name, "share": self.share} | self.totals.to_json()
