"""Answers of three values, and what they rest on."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from tvmtarget.target.node import Node

__all__ = ["Reason", "Truth"]


class Truth(IntEnum):
    """The three values of an answer, ordered so that `min` is "and" and `max` is "or"."""

    NO = 0
    UNKNOWN = 1
    YES = 2


class Reason(Node):
    """An answer and what it rests on; only a yes counts as true."""

    truth: Truth
    text: str
    parts: tuple[Reason, ...] = ()

    def __bool__(self) -> bool:
        return self.truth is Truth.YES

    @property
    def is_possible(self) -> bool:
        """Whether the answer is not a no: the question to ask where unknown counts as yes."""
        return self.truth is not Truth.NO

    def to_json(self) -> dict[str, object]:
        """Return the tree of reasons as data: truth (YES, NO, UNKNOWN), text, parts."""
        return {"truth": self.truth.name, "text": self.text, "parts": [part.to_json() for part in self.parts]}

    def lines(self, depth: int = 0) -> Iterator[str]:
        """Yield the tree of reasons, one line each, indented."""
        yield f"{'  ' * depth}{self.truth.name} {self.text}"
        for part in self.parts:
            yield from part.lines(depth + 1)

    def __str__(self) -> str:
        return "\n".join(self.lines())
