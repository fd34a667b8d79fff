"""Cursor over a text: the base of the parsers of targets, constraints, IR modules and patterns."""

from __future__ import annotations

import re

__all__ = ["Cursor"]

_BLANKS = re.compile(r"\s*")


class Cursor:
    """A text and a position in it.

    Methods that look for something first pass over what the pattern `skipped` matches; subclasses replace it, for
    example to skip comments.
    """

    skipped: re.Pattern[str] = _BLANKS

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def skip(self) -> None:
        """Move past blanks and everything else that the grammar ignores."""
        # Compiled patterns match at a position, so that the text is never sliced.
        match = self.skipped.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def peek(self) -> str:
        """Return the next character, or the empty string at the end."""
        self.skip()
        return self.text[self.at : self.at + 1]

    def accept(self, mark: str) -> bool:
        """Move past a mark if it is next.

        Args:
            mark: the text to look for.

        Returns:
            Whether it was next.
        """
        self.skip()
        if not self.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        return True

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """Move past what a pattern matches here.

        Args:
            pattern: the pattern.

        Returns:
            The matched text, or None, where the cursor moves past blanks only.
        """
        self.skip()
        match = pattern.match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match.group()
