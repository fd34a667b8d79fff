"""How the errors of this floor are put together: values shortened, places named, all of a stage at once."""

from __future__ import annotations

from reprlib import Repr
from typing import TypeAlias

from tvmtarget.errors import TargetError, TextError, UnknownNameError

__all__ = ["Problems", "place", "shown", "syntax_error"]

_MAX_SHOWN = 80  # letters of a value
_MAX_EXCERPT = 400  # letters of a text, around the column where reading stopped

_repr = Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = _MAX_SHOWN


def shown(value: object) -> str:
    """Return what `!r` would, shortened in the middle where the value is long."""
    if isinstance(value, int) and value.bit_length() > 64:  # Python refuses to print very long numbers
        return f"a number of {value.bit_length()} bits"
    return _repr.repr(value)


def place(where: str) -> str:
    """Return the tail of a message that names a path of the tree, a long one shortened; nothing for the root."""
    return f" (at {shown(where)})" if where else ""


def syntax_error(problem: str, text: str, column: int, line: int = 0) -> TextError:
    """Return the error at a column of a text; of a long text it shows what is around the column."""
    if len(text) <= _MAX_EXCERPT:
        return TextError(problem, text=text, column=column, line=line)
    begin = max(0, column - _MAX_EXCERPT // 2)
    end = begin + _MAX_EXCERPT
    before, after = "..." if begin else "", "..." if end < len(text) else ""
    return TextError(problem, text=before + text[begin:end] + after, column=column - begin + len(before), line=line)


_Found: TypeAlias = tuple[TargetError | UnknownNameError | TextError, str]


class _Collector:
    """The context that `Problems.collect` returns; a class, because generators cost more than a small node."""

    __slots__ = ("_found", "_where")

    def __init__(self, found: list[_Found], where: str) -> None:
        self._found = found
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        if not isinstance(error, TargetError | UnknownNameError | TextError):
            return False
        self._found.append((error, self._where))
        return True


class Problems:
    """Collects what goes wrong in one stage, so that one error tells all of it.

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

    def collect(self, where: str = "") -> _Collector:
        """Keep the problems of an error that the `with` block raises, with their place, and go on behind it."""
        return _Collector(self._found, where)

    def raise_all(self) -> None:
        """Raise one error with every problem and its place; return when there is none.

        A single error is raised as it is where nothing is to be added, so that an error of syntax keeps its
        column; errors of several types become a `TargetError`.
        """
        if not self._found:
            return
        first, where = self._found[0]
        if len(self._found) == 1 and (not where or isinstance(first, TextError)):
            raise first
        is_about_names = all(isinstance(error, UnknownNameError) for error, _ in self._found)
        lines = [line + place(where) for error, where in self._found for line in _lines(error)]
        raise (UnknownNameError if is_about_names else TargetError)(*lines) from first


def _lines(error: TargetError | UnknownNameError | TextError) -> tuple[str, ...]:
    return (str(error),) if isinstance(error, TextError) else error.problems
