"""A cursor over the text of a module: blanks and comments, words, strings, brackets, and where an error is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TypeVar

from tvmtarget.errors import TextError
from tvmtarget.ir.text.escaping import NAME, SYMBOL
from tvmtarget.target.problems import syntax_error
from tvmtarget.target.text.cursor import Cursor

__all__ = ["Scanner"]

_T = TypeVar("_T")

_SKIPPED = re.compile(r"(?:\s+|#[^\n]*)*")
_BLANKS = re.compile(r"[ \t]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_WORD = re.compile(r"\w+")
# What stands between brackets in a foreign grammar: strings are jumped over.
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\](){}]')
_OPENING = "[({"


class Scanner(Cursor):
    """A cursor; methods that look for something skip blanks and comments first."""

    skipped = _SKIPPED

    def error(self, problem: str, at: int | None = None) -> TextError:
        """Return a `TextError` with line and column of a position, or of where the cursor is."""
        at = min(self.at if at is None else at, len(self.text))
        line = self.text.count("\n", 0, at) + 1
        begin = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        return syntax_error(problem, self.text[begin : end if end >= 0 else len(self.text)], at - begin, line)

    def skip_blanks(self) -> None:
        """Go on within the line."""
        match = _BLANKS.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def found(self) -> str:
        """Return the tail of a message that says what is there instead."""
        found = self.peek()
        return f", not {found!r}" if found else ", but the text ended"

    def end(self) -> None:
        """Insist on the end of the text."""
        if self.peek():
            raise self.error(f"expected the end of the text{self.found()}")

    def expect(self, mark: str, what: str) -> None:
        """Pass over a mark that must be next."""
        if not self.accept(mark):
            raise self.error(f"expected {what}{self.found()}")

    def span(self, pattern: re.Pattern[str]) -> tuple[str, int]:
        """Return what a pattern matches right here, and where it begins."""
        start = self.at
        match = pattern.match(self.text, start)
        self.at = match.end() if match else start
        return self.text[start : self.at], start

    def sees_word(self, *words: str) -> bool:
        """Whether one of these words of the grammar is next."""
        self.skip()
        match = NAME.match(self.text, self.at)
        return match is not None and match.group() in words

    def accept_word(self, word: str) -> bool:
        """Pass over a word of the grammar if it is next."""
        if not self.sees_word(word):
            return False
        self.at += len(word)
        return True

    def word(self, what: str) -> str:
        """Pass over a word."""
        word = self.match(_WORD)
        if word is None:
            raise self.error(f"expected {what}{self.found()}")
        return word

    def symbol(self) -> str:
        """Pass over a symbolic dimension."""
        symbol = self.match(SYMBOL)
        if symbol is None:
            raise self.error(f"expected a dimension: a number, a symbol or '?'{self.found()}")
        return symbol

    def name(self, what: str) -> str:
        """Pass over a name: a word or a string."""
        if self.peek() == '"':
            return self.string(what)
        name = self.match(NAME)
        if name is None:
            raise self.error(f"expected {what}{self.found()}")
        return name

    def string(self, what: str) -> str:
        """Pass over a JSON string."""
        self.skip()
        start = self.at
        string = self.match(_STRING)
        if string is None:
            raise self.error(
                f"expected {what}{self.found()}" if self.peek() != '"' else "the string has no end on its line"
            )
        try:
            return str(json.loads(string))
        except ValueError:
            raise self.error(f"{string} is not a JSON string", start) from None

    def several(self, read: Callable[[], _T], ends: str, what: str) -> tuple[_T, ...]:
        """Read things between a pair of brackets, separated by commas."""
        self.expect(ends[0], f"{ends[0]!r} and {what}")
        if self.accept(ends[1]):
            return ()
        found = [read()]
        while self.accept(","):
            found.append(read())
        self.expect(ends[1], f"',' or {ends[1]!r} in the list of {what}")
        return tuple(found)

    def listed(self, read: Callable[[], _T]) -> tuple[_T, ...]:
        """Read one thing, and more of them while there are commas."""
        found = [read()]
        while self.accept(","):
            found.append(read())
        return tuple(found)

    def enclosed(self) -> tuple[str, int]:
        """Pass over a bracket with all in it; returns what it encloses and where that begins."""
        self.skip()
        start = self.at
        depth = 0
        for match in _BRACKET.finditer(self.text, start):
            mark = match.group()
            if len(mark) == 1:
                depth += 1 if mark in _OPENING else -1
            if depth == 0:
                self.at = match.end()
                return self.text[start + 1 : match.start()], start + 1
        raise self.error("the bracket is never closed", start)
