"""Three-valued answers with the reasons for them (Kleene's strong logic of indeterminacy)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from tvmtarget.target.node import Node

__all__ = ["Reason", "Truth"]


class Truth(IntEnum):
    """Truth value of a check, ordered so that `min` is "and" and `max` is "or"."""

    NO = 0
    UNKNOWN = 1
    YES = 2

    @classmethod
    def of(cls, holds: bool | None) -> Truth:
        """Convert a Python truth value.

        Args:
            holds: The answer, None if it is unknown.

        Returns:
            The truth value.
        """
        return cls.UNKNOWN if holds is None else cls.YES if holds else cls.NO

    @property
    def negated(self) -> Truth:
        """The opposite answer; UNKNOWN for UNKNOWN."""
        return Truth(Truth.YES - self)


class Reason(Node):
    """Result of a check with the results of its parts; only YES is true in a condition."""

    truth: Truth
    text: str
    parts: tuple[Reason, ...] = ()

    def __bool__(self) -> bool:
        return self.truth is Truth.YES

    @property
    def is_possible(self) -> bool:
        """Whether the answer is YES or UNKNOWN."""
        return self.truth is not Truth.NO

    def to_json(self) -> dict[str, object]:
        """Return the tree of reasons as data.

        Returns:
            `truth` (YES, NO or UNKNOWN), `text`, and `parts` with the nested reasons.
        """
        return {"truth": self.truth.name, "text": self.text, "parts": [part.to_json() for part in self.parts]}

    def lines(self, depth: int = 0) -> Iterator[str]:
        """Print the tree of reasons.

        Args:
            depth: Indentation levels of the first line.

        Yields:
            One line for each reason, indented by two spaces a level.
        """
        yield f"{'  ' * depth}{self.truth.name} {self.text}"
        for part in self.parts:
            yield from part.lines(depth + 1)

    def __str__(self) -> str:
        return "\n".join(self.lines())
