"""How far a number may be off before an operation is better elsewhere: intervals in which a decision stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tvmtarget.partition.costs.estimate import microseconds

__all__ = ["Sensitivity"]


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The time of an operation where it runs, and how much longer the whole takes with it elsewhere, in picoseconds.

    `longer` has a number for every other site that may take the operation, with the best choice for the rest; it
    counts operations, calls of functions and copies.
    """

    op: str
    site: str
    time: int
    longer: Mapping[str, int]

    @property
    def most(self) -> int | None:
        """The time above which the operation is better elsewhere; None if it can be nowhere else."""
        return self.time + min(self.longer.values()) if self.longer else None

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the interval and what it rests on, line by line."""
        here = f"{self.op} takes {microseconds(self.time)} on @{self.site or '.'}"
        if self.most is None:
            yield f"{here}, and can run nowhere else"
            return
        yield f"{here}, and stays unless that is more than {microseconds(self.most)}"
        for site, longer in self.longer.items():
            yield f"  on @{site or '.'} the whole would take {microseconds(longer)} more"

    def to_json(self) -> dict[str, object]:
        """Return the numbers as data, in microseconds."""
        most = None if self.most is None else self.most / 10**6
        longer = {site: time / 10**6 for site, time in self.longer.items()}
        return {"op": self.op, "site": self.site, "us": self.time / 10**6, "most": most, "longer": longer}
