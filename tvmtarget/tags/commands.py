"""Read the tables `[runner]` and `[toolchain]`: commands that run and compile code for other machines, by triple.

    [runner]
    aarch64-linux-gnu = "qemu-aarch64 -L /usr/aarch64-linux-gnu"

    [toolchain]
    aarch64-linux-gnu = "aarch64-linux-gnu-gcc-12"
    riscv64-linux-gnu = { c = ["clang", "--target=riscv64-linux-gnu"], cxx = "clang++ --target=riscv64-linux-gnu" }

A command is a text, split as a POSIX shell does, or a list of words; no shell runs it. The file of the user is trusted.
That of a project, which others may have written, names commands only if the user trusts its folder.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from tvmtarget.errors import TargetError, TargetFileError, did_you_mean, raise_all
from tvmtarget.target.cpu.triples import Triple
from tvmtarget.target.problems import shown
from tvmtarget.untrusted import parse_toml, read_text

__all__ = ["COMMAND_SECTIONS", "TAG_SECTIONS", "TRUST", "CommandRow", "Section", "command_rows", "read_commands"]

Section: TypeAlias = Literal["runner", "toolchain"]
COMMAND_SECTIONS: tuple[Section, ...] = ("runner", "toolchain")
TAG_SECTIONS = ("source", "tag", "family")  # of a project's file and of a tag file (`tags/files.py`)
_LANGUAGES = ("c", "cxx")

# The environment variable with the folders of projects whose files may name commands.
TRUST = "TVMTARGET_TRUST_PROJECT"


@dataclass(frozen=True)
class CommandRow:
    """A row of `[runner]` or `[toolchain]`.

    Attributes:
        section: the table.
        triple: normal form of the triple (`Triple.key`).
        commands: words of the commands; by language, `c` or `cxx`, for a tool chain, and under `c` for a runner.
        place: the file and the key, for messages.
        project: the folder of the project that the file belongs to; None for the file of the user.
    """

    section: Section
    triple: str
    commands: Mapping[str, tuple[str, ...]]
    place: str
    project: Path | None = None

    def check_trust(self, environ: Mapping[str, str]) -> None:
        """Check that the user trusts the file with commands.

        Args:
            environ: the environment variables.

        Raises:
            TargetError: the row is of a project that `TVMTARGET_TRUST_PROJECT` does not list.
        """
        trusted = [Path(one).resolve() for one in environ.get(TRUST, "").split(os.pathsep) if one]
        if self.project is not None and self.project.resolve() not in trusted:
            raise TargetError(
                f"{self.place} names a command, {shlex.join(next(iter(self.commands.values())))!r}, which would run as "
                f"you; if you trust who wrote it, set {TRUST}={self.project}, or write the row in your own file"
            )


def command_rows(data: Mapping[str, object], path: Path, project: Path | None) -> Iterator[CommandRow | str]:
    """Read the tables of commands of a file.

    Args:
        data: the parsed TOML.
        path: the file, for messages.
        project: the folder of the project of the file, or None.

    Yields:
        Rows, and a message for each problem.
    """
    for section in COMMAND_SECTIONS:
        table = data.get(section, {})
        if not isinstance(table, dict):
            yield f"{section!r} is a table of commands by triple, not {shown(table)}"
            continue
        seen: dict[str, str] = {}
        for name, value in table.items():
            place = f"{section}.{name}"
            try:
                triple = Triple.parse(name).key
            except TargetError as error:
                yield f"{place!r}: {error}"
                continue
            if triple in seen:
                yield f"{place!r} is of the same platform as {section}.{seen[triple]}; leave one of them out"
                continue
            seen[triple] = name
            try:
                commands = _commands(value, section)
            except ValueError as error:
                yield f"{place!r} {error}"
                continue
            yield CommandRow(section, triple, commands, f"{place!r} of {str(path)!r}", project)


def _commands(value: object, section: Section) -> dict[str, tuple[str, ...]]:
    if section == "toolchain" and isinstance(value, dict):
        unknown = next((key for key in value if key not in _LANGUAGES), None)
        if unknown is not None:
            raise ValueError(f"has an unknown key {unknown!r}{did_you_mean(unknown, _LANGUAGES)}")
        if not value:
            raise ValueError(f"has no command; its keys are {' and '.join(_LANGUAGES)}")
        return {language: _words(words) for language, words in value.items()}
    return {"c": _words(value)}


def _words(value: object) -> tuple[str, ...]:
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"is no command: {shown(value)}: {str(error).lower()}") from error
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        raise ValueError(f"is a command, a text or a list of words, not {shown(value)}")
    if any("\0" in word for word in words):
        raise ValueError(f"is no command: {shown(value)} has a null character")
    return tuple(words)


def read_commands(path: Path, project: Path | None) -> tuple[CommandRow, ...]:
    """Read the commands of a configuration file.

    Args:
        path: `tvmtarget.toml`, or a `pyproject.toml` with the tables in `[tool.tvmtarget]`.
        project: the folder of the project; None for the file of the user, which holds nothing but commands.

    Returns:
        The rows, those of the runners first.

    Raises:
        TargetFileError: the file cannot be read.
        TargetError: a row is no command of a triple.
    """
    label = f"configuration {str(path)!r}"
    data = parse_toml(
        read_text(path, "configuration", most="target-bytes", error=TargetFileError), label, error=TargetFileError
    )
    if path.name == "pyproject.toml":
        data = data.get("tool", {}).get("tvmtarget", {})
    rows = list(command_rows(data, path, project))
    problems = [f"{one}, in {label}" for one in rows if isinstance(one, str)]
    known = ("schema", *COMMAND_SECTIONS, *(() if project is None else TAG_SECTIONS))
    problems += [f"unknown section {key!r}{did_you_mean(key, known)}, in {label}" for key in data if key not in known]
    raise_all(TargetError, problems)
    return tuple(one for one in rows if isinstance(one, CommandRow))
