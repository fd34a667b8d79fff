"""A cursor over a text, as the parsers of all grammars use it."""

from __future__ import annotations

import re

__all__ = ["Cursor"]

_BLANKS = re.compile(r"\s*")


class Cursor:
    """A text and a position; methods that look for something pass over what `skipped` matches first."""

    skipped: re.Pattern[str] = _BLANKS

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def skip(self) -> None:
        """Go on to what the grammar does not pass over."""
        match = self.skipped.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def peek(self) -> str:
        """Return the next letter, or nothing at the end."""
        self.skip()
        return self.text[self.at : self.at + 1]

    def accept(self, mark: str) -> bool:
        """Pass over a mark if it is next."""
        self.skip()
        if not self.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        return True

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """Pass over what a pattern matches, or return None."""
        self.skip()
        match = pattern.match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match.group()
