"""Helpers for error messages: shortened values, places in a tree, and several problems in one error."""

from __future__ import annotations

from collections.abc import Collection
from reprlib import Repr
from typing import TypeAlias, TypeVar

from tvmtarget.errors import Problem, TargetError, TextError, TvmTargetError, UnknownNameError, did_you_mean

__all__ = ["REPORTED", "Problems", "known_word", "place", "shown", "syntax_error"]

_Word = TypeVar("_Word", bound=str)

_MAX_SHOWN = 80  # letters of a value
_MAX_EXCERPT = 400  # letters of a text, around the column where reading stopped

_repr = Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = _MAX_SHOWN


def shown(value: object) -> str:
    """Return `repr(value)`, shortened in the middle to about 80 characters.

    Args:
        value: the value to print in a message.

    Returns:
        One line.
    """
    if isinstance(value, int) and value.bit_length() > 64:  # Python refuses to print very long numbers
        return f"a number of {value.bit_length()} bits"
    return _repr.repr(value)


def known_word(what: str, value: object, known: Collection[_Word], error: type[TvmTargetError] = TargetError) -> _Word:
    """Return the known word that equals a value.

    Args:
        what: what the word is, for the message.
        value: the value, of any type.
        known: the words.
        error: class of the error.

    Returns:
        The word.

    Raises:
        TvmTargetError: an `error`; there is no such word, and the message has the nearest ones.

    >>> known_word("level", "krenel", ["kernel", "graph"])
    Traceback (most recent call last):
    tvmtarget.errors.TargetError: unknown level 'krenel'; did you mean 'kernel'?
    """
    # Only a text is compared, as arrays of numpy compare element by element.
    found = next((each for each in known if each == value), None) if isinstance(value, str) else None
    if found is None:
        raise error(f"unknown {what} {shown(value)}{did_you_mean(str(value), known)}")
    return found


def place(where: str) -> str:
    """Return the end of a message that names a place in the tree.

    Args:
        where: path of a node; empty for the root.

    Returns:
        ` (at 'path')`, or the empty string for the root.
    """
    return f" (at {shown(where)})" if where else ""


def syntax_error(problem: str, text: str, column: int, line: int = 0) -> TextError:
    """Make the error for a place in a text.

    Args:
        problem: the message.
        text: the text, or the wrong line of it; a long one is reduced to 400 characters around the column.
        column: the place, from 0.
        line: the number of the line, from 1, or 0 if there is only one.

    Returns:
        The error, to be raised.
    """
    if len(text) <= _MAX_EXCERPT:
        return TextError(problem, text=text, column=column, line=line)
    begin = max(0, column - _MAX_EXCERPT // 2)
    end = begin + _MAX_EXCERPT
    before, after = "..." if begin else "", "..." if end < len(text) else ""
    return TextError(problem, text=before + text[begin:end] + after, column=column - begin + len(before), line=line)


# The errors about what a user wrote; all others are faults of a program.
REPORTED = (TargetError, UnknownNameError, TextError)

_Loc: TypeAlias = tuple[str | int, ...]
_Found: TypeAlias = tuple[TargetError | UnknownNameError | TextError, str]


class _Collector:
    """Context manager of `Problems.collect`; a class, because a generator costs more than making a small node."""

    __slots__ = ("_loc", "_problems", "_where")

    def __init__(self, problems: Problems, where: str, loc: _Loc) -> None:
        self._problems = problems
        self._where = where
        self._loc = loc

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        if not isinstance(error, REPORTED):
            return False
        self._problems.add(error, self._where, self._loc)
        return True


class Problems:
    """Collects the errors of one stage and raises them as one.

    >>> problems = Problems()
    >>> with problems.collect("gpu"):
    ...     raise TargetError("too hot")
    >>> problems.raise_all()
    Traceback (most recent call last):
    tvmtarget.errors.TargetError: too hot (at 'gpu')
    """

    def __init__(self) -> None:
        self._found: list[_Found] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def collect(self, where: str = "", loc: _Loc = ()) -> _Collector:
        """Return a context manager that keeps an error raised in its block and continues after it.

        Args:
            where: path of the node that the block is about, for the text of the message.
            loc: keys and indices of the value that the block reads, within the value that its caller reads.

        Returns:
            The context manager; it keeps `TargetError`, `UnknownNameError` and `TextError`.
        """
        return _Collector(self, where, loc)

    def add(self, error: TargetError | UnknownNameError | TextError, where: str = "", loc: _Loc = ()) -> None:
        """Keep an error that was caught; in loops over nodes, `try` costs less than `collect`.

        Args:
            error: the error, one of `REPORTED`.
            where: as for `collect`.
            loc: as for `collect`.
        """
        if loc:
            error.problems = tuple(Problem.within(loc, line) for line in error.problems)
        self._found.append((error, where))

    def raise_all(self) -> None:
        """Raise one error with all problems and their places; return if there are none.

        A single error without a place is raised unchanged, so that a syntax error keeps its column. Errors of several
        types become a `TargetError`.

        Raises:
            TargetError: there are problems.
            UnknownNameError: all problems are unknown names.
            TextError: the only problem is one of syntax.
        """
        if not self._found:
            return
        first, where = self._found[0]
        if len(self._found) == 1 and (not where or isinstance(first, TextError)):
            raise first
        is_about_names = all(isinstance(error, UnknownNameError) for error, _ in self._found)
        lines = [
            Problem.within(line.loc if isinstance(line, Problem) else (), line + place(where))
            for error, where in self._found
            for line in _lines(error)
        ]
        raise (UnknownNameError if is_about_names else TargetError)(*lines) from first


def _lines(error: TargetError | UnknownNameError | TextError) -> tuple[str, ...]:
    if not isinstance(error, TextError):
        return error.problems
    first = error.problems[0]
    return (Problem.within(first.loc if isinstance(first, Problem) else (), str(error)),)
