"""What a build took from a tuning log, item by item, and from which tier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from tvmtarget.human_units import counted

if TYPE_CHECKING:
    from tvmtarget.autotune.log.match import Match

__all__ = ["Applied", "applied_lines"]


@dataclass(frozen=True)
class Applied:
    """A kernel, a placement or settings, and what the log has for it.

    Attributes:
        level: the level of the workload.
        what: the name of the item.
        key: the key of the item.
        tier: the tier of the match.
        calls: how often a run of the program executes it.
        record: the digest of the record.
        source: the target that the record was measured on.
        ratio: the cost over that of the baseline, where it was measured.
        format: the format of the candidate.
        body: the body of the candidate if it is used.
        note: why it is not used, or why a pin before it is not.
    """

    level: str
    what: str
    key: str
    tier: str
    calls: int = 1
    record: str = ""
    source: str = ""
    ratio: float | None = None
    format: str = ""
    body: object = None
    note: str = ""

    @classmethod
    def of(cls, what: str, key: str, match: Match, calls: int = 1) -> Self:
        """Return the outcome for an item that accepts every candidate that the lookup returns.

        Args:
            what: the name of the item.
            key: its key.
            match: the result of the lookup.
            calls: how often a run of the program executes it.

        Returns:
            The outcome.
        """
        applied = cls(match.workload.level, what, key, match.tier, calls)
        if match.record is None:
            return replace(applied, note=match.tried[0].reason) if match.tried else applied
        pins = [f"pin {tried.what[:11]}: {tried.reason}" for tried in match.tried if tried.tier == "pin"]
        applied = replace(applied, record=match.record.digest, source=str(match.source or ""), note=", ".join(pins))
        if match.candidate is None:
            return replace(applied, note=", ".join([*pins, "the default is as good"]))
        return replace(applied, ratio=match.ratio, format=match.candidate.format, body=match.candidate.body)

    @property
    def is_used(self) -> bool:
        """Whether a candidate of the log is used."""
        return self.body is not None

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are not empty.

        Returns:
            An object of JSON.
        """
        return {name: value for name, value in asdict(self).items() if value not in ("", None)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned.

        Args:
            data: an object of JSON.

        Returns:
            The outcome.

        Raises:
            TypeError: a field is unknown or of another type.
        """
        applied = cls(**data)
        names = ("level", "what", "key", "tier", "record", "source", "format", "note")
        if not all(isinstance(getattr(applied, name), str) for name in names):
            raise TypeError("its level, key, tier, record and note are texts")
        if type(applied.calls) is not int or not isinstance(applied.ratio, float | int | None):
            raise TypeError("'calls' is a whole number, and 'ratio' a number")
        return applied

    def __str__(self) -> str:
        times = f" x{self.calls}" if self.calls > 1 else ""
        faster = f", {1 / self.ratio:.2f} times as fast as the default there" if self.ratio and self.is_used else ""
        source = f" ({self.record[:11]} on {self.source}{faster})" if self.is_used else ""
        note = f", not used: {self.note}" if self.note else ""
        return f"{self.level} {self.what}{times}: {self.tier}{source}{note}"


def applied_lines(outcomes: Sequence[Applied]) -> Iterator[str]:
    """Print what a build took from a log.

    Args:
        outcomes: the outcomes of its lookups.

    Yields:
        A line for each candidate that is used or refused, then one for all lookups that found no record.
    """
    yield from (f"tuned: {one}" for one in outcomes if one.is_used or one.note)
    lacking = Counter(one.level for one in outcomes if not one.is_used and not one.note)
    if lacking:
        what = ["the placement"] * ("graph" in lacking) + ["the settings"] * ("executor" in lacking)
        what += [counted(lacking["kernel"], "kernel")] * ("kernel" in lacking)
        yield f"not tuned, as the log has no record: {', '.join(what)}"
