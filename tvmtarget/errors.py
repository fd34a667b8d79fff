"""Every error this library raises on purpose.

    TvmTargetError
    ├── TextError            text that is not a target, a constraint or a path
    ├── UnknownNameError     a tag, kind, attribute, path, op or backend nobody has heard of
    ├── TargetError          a tree that contradicts itself
    ├── ModelError           a program that is not valid, or not readable
    ├── InfeasibleError      constraints that no node of the tree can meet
    ├── BackendError         a code generator that refused or failed
    ├── RunError             inputs that do not fit, or a program that failed while running
    ├── FileError            a file that cannot be read, is damaged, or exceeds a limit
    │   ├── ArtifactError    a saved program that is damaged, foreign or too new
    │   ├── LogError         a tuning log that is damaged or foreign, cannot be written, or has no answer
    │   │   └── NewerLogError   a tuning log that a newer version wrote
    │   ├── ModelFileError   a model file that is damaged or too large; a ModelError too
    │   └── TargetFileError  a file about targets (targets, tags, costs, machines) of that sort; a TargetError too
    └── MissingExtraError    an optional package that is not installed

    TvmTargetWarning         a historic spelling or name, read as what is written today
    PluginWarning            a plugin of another package that cannot be used

Errors that mean a bad value are also `ValueError`, so that pydantic reports them in its own way. Beside that, an
`UnknownNameError` is a `KeyError`, which mappings such as the registry need; a `BackendError` or `RunError` is a
`RuntimeError`, and a `MissingExtraError` an `ImportError`.

A message is lower case, names the value with `!r`, says what would be right, and where. An error that
collects several problems keeps each of them in `problems`; its text has one line per problem.
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = [
    "ArtifactError",
    "BackendError",
    "FileError",
    "InfeasibleError",
    "LogError",
    "MissingExtraError",
    "ModelError",
    "ModelFileError",
    "NewerLogError",
    "PluginWarning",
    "RunError",
    "TargetError",
    "TargetFileError",
    "TextError",
    "TvmTargetError",
    "TvmTargetWarning",
    "UnknownNameError",
    "did_you_mean",
    "raise_all",
    "warn",
]


class TvmTargetError(Exception):
    """Base of all errors of this library; `problems` holds one line for each thing that is wrong."""

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems: tuple[str, ...] = problems

    def __str__(self) -> str:
        return "\n".join(self.problems)


class TextError(TvmTargetError, ValueError):
    """Text that does not parse; `column` (from 0) is where, `caret()` shows it.

    In a text of many lines `text` is the one that is wrong, and `line` (from 1) its number.
    """

    def __init__(self, problem: str, *, text: str = "", column: int = 0, line: int = 0) -> None:
        super().__init__(problem)
        self.text = text
        self.column = column
        self.line = line

    def __reduce__(self) -> tuple[object, ...]:
        return (_text_error, (self.problems[0], self.text, self.column, self.line))

    def __str__(self) -> str:
        if not self.text and not self.line:
            return self.problems[0]
        line = f"line {self.line}, " if self.line else ""
        return f"{self.problems[0]}, at {line}column {self.column + 1} of {self.text!r}"

    def caret(self) -> str:
        """Draw the text with a caret under the column where reading stopped."""
        return f"{self.problems[0]}\n  {self.text}\n  {' ' * self.column}^"


def _text_error(problem: str, text: str, column: int, line: int) -> TextError:
    return TextError(problem, text=text, column=column, line=line)


class UnknownNameError(TvmTargetError, ValueError, KeyError):
    """A name that is in no table; the message offers the nearest ones."""


class TargetError(TvmTargetError, ValueError):
    """A target tree that contradicts itself or its kinds."""


class ModelError(TvmTargetError, ValueError):
    """A program that cannot be read, or that breaks a rule of the IR."""


class InfeasibleError(TvmTargetError, ValueError):
    """Constraints that no node of the target tree can meet."""


class BackendError(TvmTargetError, RuntimeError):
    """A code generator that is absent, refuses a function, or fails on it."""


class RunError(TvmTargetError, ValueError, RuntimeError):
    """Inputs that do not fit the program, or a program that failed while running."""


class FileError(TvmTargetError, ValueError):
    """A file that cannot be read, is damaged, or exceeds a limit (docs/limits.md).

    `path` is the file, `member` the file within an archive, `offset` (in bytes) where it is damaged; each is empty or
    None where it does not apply.
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
    """A saved program that is damaged, foreign, or written by a newer version."""


class LogError(FileError):
    """A tuning log that is damaged or foreign, that cannot be written, or that has no answer good enough."""


class NewerLogError(LogError):
    """A tuning log that a newer version of this library wrote; it is left as it is."""


class MissingExtraError(TvmTargetError, ImportError):
    """An optional package that is not installed; the message names the extra that brings it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package!r} is not installed; install it with: pip install 'tvmtarget[{extra}]'")
        self.package = package
        self.extra = extra

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.package, self.extra))


class TvmTargetWarning(DeprecationWarning):
    """A spelling of an older TVM, or a tag that is going away; the message says what to write instead."""


class PluginWarning(UserWarning):
    """A plugin of another package that cannot be used; the message names its owner."""


def did_you_mean(value: str, candidates: Iterable[str], *, listing: str = "known") -> str:
    """Return the tail of an error message: the nearest candidates, else all of them, else nothing."""
    names: Sequence[str] = sorted(set(candidates))
    near = difflib.get_close_matches(value, names, n=3, cutoff=0.6)
    if near:
        return "; did you mean " + " or ".join(repr(name) for name in near) + "?"
    if names and len(names) <= 24:
        return f"; {listing}: " + ", ".join(names)
    return ""


def raise_all(error: type[TvmTargetError], problems: Sequence[str]) -> None:
    """Raise one `error` that carries all `problems`, or return when there are none."""
    if problems:
        raise error(*problems)


def warn(message: str, category: type[Warning] = TvmTargetWarning) -> None:
    """Give a warning that points at the line outside this package which led here."""
    home, levels, frame = str(Path(__file__).parent), 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(home):
        frame, levels = frame.f_back, levels + 1
    warnings.warn(message, category, stacklevel=levels)
