"""Errors and warnings that this library raises on purpose.

    TvmTargetError
    ├── ArgumentError        an argument of another type than a function takes
    ├── TextError            a text that is not a target, a constraint or a path
    ├── UnknownNameError     an unknown tag, kind, attribute, path, operator or backend
    ├── TargetError          a target tree that contradicts itself
    ├── ModelError           a program that is not valid, or not readable
    ├── InfeasibleError      constraints that no node of the tree can meet
    │   ├── CapacityError        weights that the memory of their sites cannot hold
    │   └── MemoryTooSmallError  buffers that do not fit into the memory pools
    ├── BackendError         a code generator that is absent, rejects a function, or fails on it
    │   └── CompileError     a leaf function that its code generator cannot compile
    ├── RunError             inputs that do not fit, or a program that failed while running
    ├── FileError            a file that cannot be read, is damaged, or exceeds a limit
    │   ├── ArtifactError    a saved program that is damaged, of another format or too new
    │   ├── LogError         a tuning log that is damaged or foreign, cannot be written, or has no matching record
    │   │   ├── NewerLogError   a tuning log that a newer version wrote
    │   │   └── ReadOnlyLogError   a file of lines that was to be written
    │   ├── ModelFileError   a model file that is damaged or too large; also a ModelError
    │   └── TargetFileError  a file of targets, tags, costs or machines that is damaged; also a TargetError
    └── MissingExtraError    an optional package that is not installed

    TvmTargetWarning         a historic spelling or name, read with its present meaning
    PluginWarning            a plugin of another package that cannot be used
    CacheWarning             a compile cache that cannot be used or written

Errors about a bad value are also `ValueError`, because pydantic reports only those raised by a check. In addition,
`ArgumentError` is a `TypeError`, `UnknownNameError` is a `KeyError`, which mappings such as the tag registry must
raise, `BackendError` and `RunError` are `RuntimeError`, and `MissingExtraError` is an `ImportError`.

A message is in lower case, names the value with `!r`, and says what would be right, and where. An error about several
problems keeps each of them in `problems`; its text has one line per problem.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

__all__ = [
    "ArgumentError",
    "ArtifactError",
    "BackendError",
    "CacheWarning",
    "CapacityError",
    "CompileError",
    "FileError",
    "InfeasibleError",
    "LogError",
    "MemoryTooSmallError",
    "MissingExtraError",
    "ModelError",
    "ModelFileError",
    "NewerLogError",
    "PluginWarning",
    "Problem",
    "ReadOnlyLogError",
    "RunError",
    "TargetError",
    "TargetFileError",
    "TextError",
    "TvmTargetError",
    "TvmTargetWarning",
    "UnknownNameError",
    "count_warnings",
    "did_you_mean",
    "first_line",
    "raise_all",
    "warn",
]


class Problem(str):
    """A line of an error that knows its place: the keys and indices that lead to the wrong part of the input."""

    __slots__ = ("loc",)

    loc: tuple[str | int, ...]

    def __new__(cls, text: str, loc: tuple[str | int, ...]) -> Self:
        """Make a line of an error.

        Args:
            text: the line.
            loc: keys and indices, outermost first.

        Returns:
            The line.
        """
        line = super().__new__(cls, text)
        line.loc = loc
        return line

    def __reduce__(self) -> tuple[object, ...]:
        return (Problem, (str(self), self.loc))

    @staticmethod
    def within(loc: tuple[str | int, ...], line: str) -> str:
        """Return a line with a place that begins with other keys and indices.

        Args:
            loc: keys and indices of the value around, outermost first.
            line: the line; one that is no `Problem` is about all of its value.

        Returns:
            The line; the same one if `loc` is empty.
        """
        return Problem(line, (*loc, *(line.loc if isinstance(line, Problem) else ()))) if loc else line


class TvmTargetError(Exception):
    """Base of all errors of this library; `problems` holds one line per problem."""

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems: tuple[str, ...] = problems

    def __str__(self) -> str:
        return "\n".join(self.problems)


class ArgumentError(TvmTargetError, ValueError, TypeError):
    """An argument of another type than a function takes."""


class TextError(TvmTargetError, ValueError):
    """A text that does not parse, or several without a place.

    `text` is the text, of several lines the wrong one; `column` (from 0) is the place in it, and `line` (from 1, 0 if
    there is only one) its number. `caret()` draws the place.
    """

    def __init__(self, *problems: str, text: str = "", column: int = 0, line: int = 0) -> None:
        super().__init__(*problems)
        self.text = text
        self.column = column
        self.line = line

    def __reduce__(self) -> tuple[object, ...]:
        return (_text_error, (self.problems, self.text, self.column, self.line))

    def __str__(self) -> str:
        if not self.text and not self.line:
            return super().__str__()
        line = f"line {self.line}, " if self.line else ""
        return f"{self.problems[0]}, at {line}column {self.column + 1} of {self.text!r}"

    def caret(self) -> str:
        """Return the message and the text with a caret under the column where parsing stopped."""
        return f"{self.problems[0]}\n  {self.text}\n  {' ' * self.column}^"


def _text_error(problems: tuple[str, ...], text: str, column: int, line: int) -> TextError:
    return TextError(*problems, text=text, column=column, line=line)


class UnknownNameError(TvmTargetError, ValueError, KeyError):
    """A name that is in no table; the message offers the nearest names."""


class TargetError(TvmTargetError, ValueError):
    """A target tree that contradicts itself or its kinds."""


class ModelError(TvmTargetError, ValueError):
    """A program that cannot be read, or that breaks a rule of the IR."""


class InfeasibleError(TvmTargetError, ValueError):
    """Constraints that no node of the target tree can meet."""


class CapacityError(InfeasibleError):
    """Weights that the memory of their sites cannot hold.

    `memory` is its domain, and `missing` the number of bytes by which it is too small. `groups` are the operations
    whose weights are there, by number, in groups that stay together, each with the bytes of its weights and the memory
    domains that were tried.
    """

    def __init__(
        self,
        *problems: str,
        memory: str = "",
        missing: int = 0,
        groups: tuple[tuple[tuple[int, ...], int, frozenset[str]], ...] = (),
    ) -> None:
        super().__init__(*problems)
        self.memory = memory
        self.missing = missing
        self.groups = groups


class MemoryTooSmallError(InfeasibleError):
    """Buffers that do not fit into the memory pools of a system.

    `pools` are the names of the pools that the buffers could use, `missing` is the number of bytes by which they are
    too small, `step` is the step with the most live bytes, and `largest` are the names of the largest buffers that are
    live at that step, largest first.
    """

    def __init__(
        self,
        *problems: str,
        pools: tuple[str, ...] = (),
        missing: int = 0,
        step: int = 0,
        largest: tuple[str, ...] = (),
    ) -> None:
        super().__init__(*problems)
        self.pools = pools
        self.missing = missing
        self.step = step
        self.largest = largest


class BackendError(TvmTargetError, RuntimeError):
    """A code generator that is absent, rejects a function, or fails on it."""


class CompileError(BackendError):
    """A leaf function that its code generator cannot compile, or not in time.

    `function` is its name. `refused` has, by function, the position of each operation that the code generator refuses,
    with the reason; it is empty if the code generator does not say which operations these are.
    """

    def __init__(
        self, *problems: str, function: str = "", refused: Mapping[str, Mapping[int, str]] | None = None
    ) -> None:
        super().__init__(*problems)
        self.function = function
        self.refused = refused or {}


class RunError(TvmTargetError, ValueError, RuntimeError):
    """Inputs that do not fit the program, or a program that failed while running."""


class FileError(TvmTargetError, ValueError):
    """A file that cannot be read, is damaged, or exceeds a limit (docs/limits.md).

    `path` is the file, `member` the file within an archive, and `offset` (in bytes) the place of the damage; each is
    empty or None where it does not apply.
    """

    def __init__(self, *problems: str, path: str = "", member: str = "", offset: int | None = None) -> None:
        super().__init__(*problems)
        self.path = path
        self.member = member
        self.offset = offset


class ModelFileError(FileError, ModelError):
    """A model file that cannot be read, is damaged, or exceeds a limit."""


class TargetFileError(FileError, TargetError):
    """A file of targets, tags, costs, operators or a captured machine that cannot be read or exceeds a limit."""


class ArtifactError(FileError):
    """A saved program that is damaged, of another format, or written by a newer version."""


class LogError(FileError):
    """A tuning log that is damaged or foreign, cannot be written, or has no matching record."""


class NewerLogError(LogError):
    """A tuning log that a newer version of this library wrote; it is not changed."""


class ReadOnlyLogError(LogError):
    """A change of a file of lines, which is only read; databases are written."""


class MissingExtraError(TvmTargetError, ImportError):
    """An optional package that is not installed; the message names the extra that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package!r} is not installed; install it with: pip install 'tvmtarget[{extra}]'")
        self.package = package
        self.extra = extra

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.package, self.extra))


class TvmTargetWarning(DeprecationWarning):
    """A spelling of an older TVM, or a deprecated tag; the message gives the replacement."""


class PluginWarning(UserWarning):
    """A plugin of another package that cannot be used; the message names its owner."""


class CacheWarning(UserWarning):
    """A compile cache that cannot be used or written; builds go on without it."""


def did_you_mean(value: str, candidates: Iterable[str], *, listing: str = "known") -> str:
    """Return the end of an error message about an unknown name.

    Args:
        value: the unknown name.
        candidates: the known names.
        listing: word that introduces the list of all names.

    Returns:
        Up to three nearest candidates; else all of them, sorted with numbers by value, if at most 24; else the empty
        string.

    >>> did_you_mean("lvm", ["llvm", "cuda"]), did_you_mean("CUDA", ["llvm", "cuda"])
    ("; did you mean 'llvm'?", "; did you mean 'cuda'?")
    >>> did_you_mean("x", ["v0.19", "v0.9"])
    '; known: v0.9, v0.19'
    """
    import difflib  # only messages need it, and reading a target is to start fast

    names: Sequence[str] = sorted({*candidates} - {""})  # the root of a tree has no name
    # The hyphens of options are alone a third of a short one.
    bare = {name.lstrip("-"): name for name in reversed(names)}
    near = [bare[one] for one in difflib.get_close_matches(value.lstrip("-"), sorted(bare), n=3, cutoff=0.6)]
    # Only then without case, as names that differ in it alone may be different names.
    near = near or [name for name in names if name.casefold() == value.casefold()][:3]
    if near:
        return "; did you mean " + " or ".join(repr(name) for name in near) + "?"
    if names and len(names) <= 24:
        return f"; {listing}: " + ", ".join(sorted(names, key=_with_numbers))
    return ""


def _with_numbers(name: str) -> list[tuple[int, str]]:
    """Split a name at its numbers, which are compared by length first, as texts are not: v0.9 comes before v0.19."""
    return [(len(part) if at % 2 else 0, part) for at, part in enumerate(re.split(r"([0-9]+)", name))]


def first_line(error: Exception) -> str:
    """Return the first line of what an error says that is not empty.

    Args:
        error: an error of another library, whose text may have many lines.

    Returns:
        The line without spaces around it; the name of the class if there is none, and before a key that is missing.
    """
    text = f"KeyError: {error}" if type(error) is KeyError else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def raise_all(error: type[TvmTargetError], problems: Sequence[str]) -> None:
    """Raise one error for a list of problems; return if the list is empty.

    Args:
        error: class of the error.
        problems: one line each.

    Raises:
        TvmTargetError: an `error` with all `problems`.
    """
    if problems:
        raise error(*problems)


_issued = 0


def count_warnings() -> int:
    """Return how many warnings this library issued in this process, shown or not."""
    return _issued


def warn(message: str, category: type[Warning] = TvmTargetWarning) -> None:
    """Issue a warning for the innermost line of the call stack outside this package.

    Args:
        message: the text of the warning.
        category: its class.
    """
    package, level, frame = str(Path(__file__).parent), 1, inspect.currentframe()
    # Python 3.12 has `skip_file_prefixes` for this. The default filters show a DeprecationWarning only if its line is
    # in the main module, so that users would see none that pointed into this package.
    while frame is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    global _issued
    _issued += 1
    warnings.warn(message, category, stacklevel=level)
