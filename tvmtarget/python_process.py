"""How this library starts Python: without modules of the current folder, which may be anybody's."""

from __future__ import annotations

import os
import sys

__all__ = ["python_command", "python_environment", "without_current_folder"]


def python_command(*arguments: str) -> list[str]:
    """Return the command that runs this Python; `-m` finds no module in the current folder.

    Without `-P`, `-m` and `-c` put the current folder before everything else on the path.
    """
    return [sys.executable, "-P", *arguments]


def python_environment(**changes: str) -> dict[str, str]:
    """Return the environment for a process of Python, in which further ones keep the current folder out, too."""
    return os.environ | {"PYTHONSAFEPATH": "1"} | changes


def without_current_folder() -> list[str]:
    """Return the path of this process without the entry that stands for the folder it happens to be in."""
    return [folder for folder in sys.path if folder]
