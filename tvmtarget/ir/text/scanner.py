"""Scanner for the text form of a module: blanks, comments, words, strings, brackets, and positions of errors."""

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
# JSON forbids control characters in strings (RFC 8259, section 7), so that a string ends on its line.
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_WORD = re.compile(r"\w+")
# Brackets in the text of another grammar (a constraint); strings are matched so that brackets inside do not count.
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\](){}]')
_OPENING = "[({"


class Scanner(Cursor):
    """A cursor over a text; methods that look for a token skip blanks and comments first."""

    skipped = _SKIPPED

    def error(self, problem: str, at: int | None = None) -> TextError:
        """Return a syntax error with line, column and the source line.

        Args:
            problem: message.
            at: offset in the text; by default the position of the cursor.

        Returns:
            The error, to be raised by the caller.
        """
        at = min(self.at if at is None else at, len(self.text))
        line = self.text.count("\n", 0, at) + 1
        begin = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        return syntax_error(problem, self.text[begin : end if end >= 0 else len(self.text)], at - begin, line)

    def skip_blanks(self) -> None:
        """Skip blanks within the line."""
        match = _BLANKS.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def found(self) -> str:
        """Describe the next token for the end of an error message.

        Returns:
            Text such as ", not '}'".
        """
        found = self.peek()
        return f", not {found!r}" if found else ", but the text ended"

    def end(self) -> None:
        """Check that nothing but blanks and comments is left.

        Raises:
            TextError: there is more text.
        """
        if self.peek():
            raise self.error(f"expected the end of the text{self.found()}")

    def expect(self, mark: str, what: str) -> None:
        """Consume a mark.

        Args:
            mark: the mark.
            what: its description for the error.

        Raises:
            TextError: the mark is not next.
        """
        if not self.accept(mark):
            raise self.error(f"expected {what}{self.found()}")

    def span(self, pattern: re.Pattern[str]) -> tuple[str, int]:
        """Consume what a pattern matches at the cursor, without skipping blanks.

        Args:
            pattern: the pattern.

        Returns:
            The matched text, possibly empty, and its offset.
        """
        start = self.at
        match = pattern.match(self.text, start)
        self.at = match.end() if match else start
        return self.text[start : self.at], start

    def sees_word(self, *words: str) -> bool:
        """Return whether one of some words of the grammar is next.

        Args:
            *words: the words.

        Returns:
            True if the next name is one of them.
        """
        self.skip()
        # The whole name counts: `returned` does not begin with the word `return`.
        match = NAME.match(self.text, self.at)
        return match is not None and match.group() in words

    def accept_word(self, word: str) -> bool:
        """Consume a word of the grammar if it is next.

        Args:
            word: the word.

        Returns:
            True if it was next.
        """
        if not self.sees_word(word):
            return False
        self.at += len(word)
        return True

    def word(self, what: str) -> str:
        """Consume a word.

        Args:
            what: description of the word for the error.

        Returns:
            The word.

        Raises:
            TextError: no word is next.
        """
        word = self.match(_WORD)
        if word is None:
            raise self.error(f"expected {what}{self.found()}")
        return word

    def symbol(self) -> str:
        """Consume a symbolic dimension.

        Returns:
            The symbol.

        Raises:
            TextError: no symbol is next.
        """
        symbol = self.match(SYMBOL)
        if symbol is None:
            raise self.error(f"expected a dimension: a number, a symbol or '?'{self.found()}")
        return symbol

    def name(self, what: str) -> str:
        """Consume a name: a word or a string.

        Args:
            what: description of the name for the error.

        Returns:
            The name without quotes.

        Raises:
            TextError: no name is next.
        """
        if self.peek() == '"':
            return self.string(what)
        name = self.match(NAME)
        if name is None:
            raise self.error(f"expected {what}{self.found()}")
        return name

    def string(self, what: str) -> str:
        """Consume a JSON string.

        Args:
            what: description of the string for the error.

        Returns:
            The value of the string.

        Raises:
            TextError: no valid string is next.
        """
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
        """Consume a list in brackets, separated by commas.

        Args:
            read: consumes one item.
            ends: opening and closing bracket.
            what: description of the items for the error.

        Returns:
            The items; may be empty.
        """
        self.expect(ends[0], f"{ends[0]!r} and {what}")
        if self.accept(ends[1]):
            return ()
        found = [read()]
        while self.accept(","):
            found.append(read())
        self.expect(ends[1], f"',' or {ends[1]!r} in the list of {what}")
        return tuple(found)

    def listed(self, read: Callable[[], _T]) -> tuple[_T, ...]:
        """Consume a list without brackets, separated by commas.

        Args:
            read: consumes one item.

        Returns:
            The items, at least one.
        """
        found = [read()]
        while self.accept(","):
            found.append(read())
        return tuple(found)

    def enclosed(self) -> tuple[str, int]:
        """Consume a bracket with everything up to its end, in any grammar.

        Returns:
            The text inside of the bracket, and its offset.

        Raises:
            TextError: the bracket is not closed.
        """
        self.skip()
        start = self.at
        depth = 0
        for match in _BRACKET.finditer(self.text, start):
            mark = match.group()
            if len(mark) == 1:
                # Kinds of brackets need not match here: the parser of the inner grammar reports that.
                depth += 1 if mark in _OPENING else -1
            if depth == 0:
                self.at = match.end()
                return self.text[start + 1 : match.start()], start + 1
        raise self.error("the bracket is never closed", start)
