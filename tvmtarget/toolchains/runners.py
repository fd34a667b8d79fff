"""Runners: commands that run programs for another machine, such as QEMU's."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tvmtarget.errors import RunError
from tvmtarget.tags.commands import CommandRow, Section
from tvmtarget.tags.discovery import configured_commands
from tvmtarget.target.cpu.triples import Triple
from tvmtarget.target.tree import Target
from tvmtarget.toolchains.boards import board_of
from tvmtarget.toolchains.platforms import general, is_this_machine, platform_of, triple_of

__all__ = ["Runner", "configured", "find_runner", "is_local", "runner_for"]


@dataclass(frozen=True)
class Runner:
    """A command that runs a program for another machine.

    Attributes:
        command: words to put before the path of the program.
        origin: where the command comes from, for reports.
    """

    command: tuple[str, ...]
    origin: str

    def __str__(self) -> str:
        return shlex.join(self.command)


def configured(section: Section, triple: Triple, environ: Mapping[str, str] = os.environ) -> CommandRow | None:
    """Return the configured command of a platform.

    Args:
        section: `runner` or `toolchain`.
        triple: the platform.
        environ: the environment variables.

    Returns:
        The row of this triple, else that of the triple without vendor and version; of the project, else of the user.

    Raises:
        TargetError: a file is not valid, or its project is not trusted with commands.
    """
    rows = [one for one in configured_commands(_working_folder(), environ) if one.section == section]
    for key in (triple.key, general(triple)):
        for row in rows:
            if key == row.triple:
                row.check_trust(environ)
                return row
    return None


def _working_folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def is_local(target: Target) -> bool:
    """Return whether code for a CPU runs in this process.

    Args:
        target: the CPU target, of kind `c` or `llvm`.

    Returns:
        True if it is of the platform of this machine, and no runner is configured for that.
    """
    triple = triple_of(target)
    return is_this_machine(triple) and configured("runner", triple) is None


def find_runner(target: Target, environ: Mapping[str, str] = os.environ) -> Runner | None:
    """Find the command that runs programs for a CPU target which this machine cannot run itself.

    Args:
        target: the CPU target.
        environ: the environment variables.

    Returns:
        The configured runner, else QEMU's of this platform if it is installed; None if there is none, or if the target
        is of the platform of this machine and no runner is configured.

    Raises:
        TargetError: a configuration file is not valid, or not trusted with commands.
    """
    triple = triple_of(target)
    row = configured("runner", triple, environ)
    if row is not None:
        return Runner(row.commands["c"], row.place)
    tools = platform_of(triple)
    if tools is None or is_this_machine(triple):
        return None
    path = shutil.which(tools.emulator, path=environ.get("PATH"))
    if path is None:
        return None
    if triple.os != "linux":
        board = board_of(target)
        return None if board is None else Runner((path, *board.emulator_arguments()), f"board {board.name} of QEMU")
    libraries = Path("/usr", tools.gnu)
    arguments = ("-L", str(libraries)) if libraries.is_dir() else ()
    return Runner((path, *arguments), f"{tools.emulator} on PATH")


def runner_for(target: Target, environ: Mapping[str, str] = os.environ) -> Runner:
    """Return the command that runs programs for a CPU target of another machine.

    Args:
        target: the CPU target.
        environ: the environment variables.

    Returns:
        The runner.

    Raises:
        RunError: there is none; the message names the package to install, and the key to configure.
        TargetError: a configuration file is not valid, or not trusted with commands.
    """
    runner = find_runner(target, environ)
    if runner is not None:
        return runner
    triple, tools = triple_of(target), platform_of(triple_of(target))
    key = general(triple)
    configure = f'configure one: [runner] {key} = "COMMAND" in tvmtarget.toml'
    if is_this_machine(triple):
        raise RunError(f"no runner for {key} is configured, which is the platform of this machine; {configure}")
    if tools is None:
        raise RunError(f"no runner for {key} is known; {configure}")
    if triple.os != "linux" and shutil.which(tools.emulator, path=environ.get("PATH")):
        cpu = target.attrs.get("mcpu")
        raise RunError(f"QEMU has no known board with mcpu {cpu!r}; {configure}")
    raise RunError(
        f"no runner for {key}: {tools.emulator!r} is not on PATH; install it: apt install {tools.emulator_package}; "
        f"or {configure}"
    )
